"""Families of questions drawn from templates: as many as asked for, new ones for every seed.

No model can have seen them. The difficulty, 1 to 5, says how many steps a question takes. Question
i of a seed is the same however many are asked, so that a smaller limit gives a part of a larger.
"""

from ram_studio.evals.suites.generated import code, mathematics, tool

SUITES = (mathematics.SUITE, tool.SUITE, code.SUITE)
