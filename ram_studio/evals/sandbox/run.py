"""Run a whole program, written by a model, on an input: what it wrote is judged by the caller."""

from ram_studio.evals.sandbox.process import DEFAULT_LIMITS, Limits, ProgramResult, SealedProcess
from ram_studio.evals.sandbox.switch import CodeSwitch


def run_program(
    source: str,
    stdin: str = "",
    *,
    code: CodeSwitch = "auto",
    seconds: float = DEFAULT_LIMITS.seconds,
    memory_bytes: int = DEFAULT_LIMITS.memory_bytes,
    output_bytes: int = DEFAULT_LIMITS.output_bytes,
) -> ProgramResult:
    """Run Python source text and return how it ended; never raises for anything the program does.

    Args:
        source: the program; only the standard library can be imported.
        stdin: what it reads from standard input.
        code: see `check_code_allowed`; with "auto" an unsealed process runs nothing.
        seconds: wall-clock limit; CPU time is limited to one second more.
        memory_bytes: limit of the address space.
        output_bytes: limit of standard output and standard error, each.

    Raises:
        EvaluationError: code may not run here, or the machine cannot start a process.
    """
    limits = Limits(seconds, memory_bytes, output_bytes)
    with SealedProcess(source, "program", stdin=stdin, code=code, limits=limits) as process:
        return process.finish()
