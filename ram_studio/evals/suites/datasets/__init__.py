"""Published benchmarks whose questions are a data set: in a folder of yours, or on the Hub.

See `rows` for where they are looked for. Prompts and scoring are as published, but for what each
file says of its own.
"""

from ram_studio.evals.suites.datasets import gsm8k, ifeval, math500, mbpp, nq, ruler

SUITES = (mbpp.SUITE, gsm8k.SUITE, math500.SUITE, ifeval.SUITE, nq.SUITE, *ruler.SUITES)
