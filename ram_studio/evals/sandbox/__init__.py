"""Run a model's Python code where it can do no harm and cannot judge itself.

Guarantees on Linux (5.13 and newer, x86-64 and AArch64; see `is_sealed()`), root or not:
- a new process with an empty environment in an empty temporary folder, as another user where we are
  root;
- system calls: only those that CPython needs to compute (`inside.syscalls`); so no other process,
  program, signal or tracing, no limits, priorities or file metadata changed, no network;
- files: only Python's own library and the system's shared libraries can be read; nothing can be
  written, made, linked or deleted anywhere, the temporary folder included;
- limits on CPU time, wall clock, address space, open files and output; as there is only one
  process, they apply to the whole program; then it is killed;
- the verdict is made here, from plain data: expected results never enter its process.

What it does NOT cover:
- faults of the kernel itself, side channels, and the use of CPU time within the limit;
- whether a file exists, and its size and times, can be read (`os.stat`); contents and listings
  cannot;
- other Linux machines and older kernels: there only some layers and an audit hook inside Python
  apply, which native code (ctypes) can bypass. "auto" does not run code there; macOS and Windows
  run none at all.

No bubblewrap or nsjail: they must be installed, and need user namespaces, which containers and some
distributions refuse.
"""

from ram_studio.evals.sandbox.process import (
    AnswerFault,
    ProgramResult,
    run_program,
    run_tests,
    sealed_function,
)
from ram_studio.evals.sandbox.switch import CodeSwitch, Limits, check_code_allowed, is_sealed

__all__ = [
    "AnswerFault",
    "CodeSwitch",
    "Limits",
    "ProgramResult",
    "check_code_allowed",
    "is_sealed",
    "run_program",
    "run_tests",
    "sealed_function",
]
