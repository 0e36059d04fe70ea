"""Every error that RAM Studio raises on purpose.

    RamStudioError
    ├── SettingsError          a value that a setting does not allow
    ├── CheckpointError        a checkpoint that cannot be read (missing, truncated, pickle, ...)
    │   ├── NonFiniteError     NaN or Inf among the elements
    │   ├── StorageError       object storage that cannot be reached, or is too busy
    │   └── SourceChangedError a file changed while it was being read
    ├── CompatibilityError     base and agents do not fit together
    ├── HubError               the Hub refused a request, or could not be reached
    ├── AnalysisError          an analysis file that is damaged or belongs to other checkpoints
    ├── PlanError              a changed plan, or a part of a merge that is missing or stale
    ├── OutputError            the output folder exists, is not writable, or the disk is too small
    │   └── BusyError          another run is writing to it
    ├── VerificationError      a merged checkpoint differs from its provenance or its sources
    ├── EvaluationError        a model or a suite that cannot be evaluated
    │   ├── EvalSettingsError  an invalid suite, device or number (SettingsError)
    │   └── ServerError        a model server that cannot be reached, or is too busy
    └── Stopped                the user asked a running job to stop

A message says what was found, what was expected and what to do, in one line; the command line
prints it and exits with the class's code, the app shows it. Codes are those of sysexits.h where it
has one: 2 usage, 65 data, 69 network, 75 try again, 130 stopped.
"""

from __future__ import annotations

import contextlib
import difflib
import errno
import re
from collections.abc import Iterable, Iterator


class RamStudioError(Exception):
    """Base class: catch this to catch everything RAM Studio raises on purpose.

    Attributes:
        exit_code: of the command line.
        can_retry: whether the same command may succeed when it is run again.
        part: number of the plan's part that failed, None without a plan.
    """

    exit_code = 65
    can_retry = False
    part: int | None = None

    def to_dict(self) -> dict[str, object]:
        """Return the error for JSON: `code` (the class in snake_case), message, retry, part."""
        name = re.sub(r"(?<!^)(?=[A-Z])", "_", type(self).__name__).lower()
        message = " ".join(str(self).split())
        return {"code": name, "message": message, "retry": self.can_retry, "part": self.part}


class SettingsError(RamStudioError):
    """A value that a setting does not allow."""

    exit_code = 2


class CheckpointError(RamStudioError):
    """A checkpoint that cannot be read."""


class NonFiniteError(CheckpointError):
    """NaN or Inf among the elements of a tensor."""


class SourceChangedError(CheckpointError):
    """A source file changed while it was being read."""

    exit_code = 75
    can_retry = True


class StorageError(CheckpointError):
    """Object storage could not be reached, or was too busy to answer."""

    exit_code = 69
    can_retry = True


class CompatibilityError(RamStudioError):
    """Base and agents do not fit together."""


class HubError(RamStudioError):
    """The Hub refused a request or could not be reached."""

    exit_code = 69
    can_retry = True


class AnalysisError(RamStudioError):
    """An analysis file that is damaged or belongs to other checkpoints."""


class PlanError(RamStudioError):
    """A plan that was changed, or a part of a merge that is missing, stale or of another plan."""


class OutputError(RamStudioError):
    """The output cannot be written at the requested place."""


class BusyError(OutputError):
    """Another run is writing to the same output."""

    exit_code = 75
    can_retry = True


class VerificationError(RamStudioError):
    """A merged checkpoint differs from its provenance or its sources."""


class EvaluationError(RamStudioError):
    """A model or a suite that cannot be evaluated."""


class EvalSettingsError(EvaluationError, SettingsError):
    """A value that an evaluation setting does not allow."""


class ServerError(EvaluationError):
    """A model server could not be reached, or was too busy to answer."""

    exit_code = 69
    can_retry = True


class Stopped(RamStudioError):
    """A user stopped a running job."""

    exit_code = 130
    can_retry = True


@contextlib.contextmanager
def raise_as(kind: type[RamStudioError], what: str, advice: str = "") -> Iterator[None]:
    """Turn an error of the operating system into `kind`: "what: its reason; advice."."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            advice = "free some space"
        rest = f"; {advice}" if advice else ""
        raise kind(f"{what}: {error.strerror or error}{rest}.") from error


def did_you_mean(found: object, allowed: Iterable[str]) -> str:
    """Return ", did you mean 'x'?" for the allowed name closest to a wrong one, or nothing.

    Three of four letters must agree: dare_linear is another method than linear, not a slip.
    """
    close = difflib.get_close_matches(str(found), list(allowed), n=1, cutoff=0.75)
    return f", did you mean {close[0]!r}?" if close else ""
