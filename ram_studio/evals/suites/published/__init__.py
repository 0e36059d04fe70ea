"""Published benchmarks: their questions come from a package, a folder, or the Hub, see `rows`.

Prompts and scoring are as published, except for the differences that each file names.
"""

from ram_studio.evals.suites.published import (
    bfcl,
    bfcl_multi_turn,
    contests,
    gsm8k,
    humaneval,
    ifeval,
    math500,
    mbpp,
    nq,
    ruler,
)

SUITES = (
    *(
        *bfcl.SUITES,
        bfcl_multi_turn.SUITE,
        humaneval.SUITE,
        mbpp.SUITE,
        *contests.SUITES,
        gsm8k.SUITE,
        math500.SUITE,
    ),
    *(ifeval.SUITE, nq.SUITE, *ruler.SUITES),
)
