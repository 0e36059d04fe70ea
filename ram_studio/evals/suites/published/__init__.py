"""Published benchmarks: their questions are in a package of their own, a folder, or on the Hub.

See `rows` for where they are looked for. Prompts and scoring are as published, but for what each
file says of its own.
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
