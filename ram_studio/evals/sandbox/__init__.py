"""Run a model's Python code where it can do no harm; see `run` for what is and is not covered."""

from ram_studio.evals.sandbox.run import (
    CodeSwitch,
    ProgramResult,
    Protection,
    check_code_allowed,
    protection,
    run_program,
)

__all__ = [
    "CodeSwitch",
    "ProgramResult",
    "Protection",
    "check_code_allowed",
    "protection",
    "run_program",
]
