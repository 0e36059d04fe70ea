"""Published benchmarks whose questions come in a package of their own, asked by our engines."""

from ram_studio.evals.suites.benchmarks import bfcl, humaneval

SUITES = (*bfcl.SUITES, humaneval.SUITE)
