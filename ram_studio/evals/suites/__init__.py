"""The suites that any causal language model can be asked, by name; each states its version.

`demo` is the example agents' own suite; `health` (numbers without right answers) is not a suite of
questions, see `ram_studio.evals.suites.health.health`.
"""

from ram_studio.evals.suites import code, instructions, mathematics, memory, tool
from ram_studio.evals.suites.demo import suite as demo
from ram_studio.evals.suites.suite import DEFAULT_LENGTHS, Suite, SuiteSettings, visible

GENERAL_SUITES: dict[str, Suite] = {
    module.SUITE.name: module.SUITE for module in (tool, memory, code, mathematics, instructions)
}
ALL_SUITES: dict[str, Suite] = {demo.SUITE.name: demo.SUITE, **GENERAL_SUITES}

__all__ = [
    "ALL_SUITES",
    "DEFAULT_LENGTHS",
    "GENERAL_SUITES",
    "Suite",
    "SuiteSettings",
    "visible",
]
