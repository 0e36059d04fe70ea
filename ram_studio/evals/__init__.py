"""Ask, judge, store, report: suites of questions, strict checkers, honest intervals.

`run.evaluate` asks models, `experiment.run` asks merges made in memory, `store` saves every answer.
"""
