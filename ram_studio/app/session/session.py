"""The records of one user's work. A leaf module: it imports no panel and no thread."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from ram_studio.algorithm.analysis import Analysis
from ram_studio.app.public.job_queue import JobQueue, QueuedJob
from ram_studio.checkpoints.record.analysis_file import analysis_arrays
from ram_studio.errors import OutputError, Stopped
from ram_studio.evals.experiment.result import ExperimentResult, Kind
from ram_studio.evals.report.eval_report import EvalReport
from ram_studio.evals.report.skill_verdict import MARGIN

OTHER_MODELS = "Stopped: other models were loaded."


@dataclass(frozen=True)
class LoadedModels:
    """Checkpoints that were analyzed together.

    title: for display. set_name: the shipped set ("dense"), or None.
    base, agents: folders or Hub ids. options: missing, extra, rows as given to the analysis.
    read_rate: bytes per second of the analysis; None when it was not run here. is_analysis_only:
        without weights: an opened analysis, or a set that ships without weights. cautions:
        sentences to show before merging, the most serious first. remote_bytes: of models that were
        read on the Hub and are not stored here; a merge reads them again.
    opened: see ``load.work.open_loaded``.
    """

    title: str
    set_name: str | None
    base: str
    agents: Mapping[str, str]
    analysis: Analysis
    options: Mapping[str, str] = field(default_factory=dict)
    read_rate: float | None = None
    is_analysis_only: bool = False
    cautions: tuple[str, ...] = ()
    remote_bytes: int = 0
    opened: dict[Any, Any] = field(init=False, default_factory=dict, compare=False, repr=False)

    @property
    def is_example(self) -> bool:
        """Whether these are models of a shipped set with the example's skills, and with weights."""
        return self.set_name is not None and not self.is_analysis_only

    @property
    def sources(self) -> tuple[str, ...]:
        """The base and the agents, each a folder or a Hub id."""
        return (self.base, *self.agents.values())

    @cached_property
    def nbytes(self) -> int:
        """Memory of these models only: shipped sets are shared."""
        if self.set_name is not None:
            return 0
        return sum(array.nbytes for array in analysis_arrays(self.analysis).values())

    @property
    def identity(self) -> str:
        """An identifier that differs between two loads."""
        return f"{self.title}|{id(self.analysis)}"


@dataclass(frozen=True)
class MergedModel:
    """One finished merge of this session: its name, folder, method and ``merge --json`` result."""

    name: str
    folder: Path
    method: str
    result: Mapping[str, Any]
    recipe: str


@dataclass(frozen=True)
class Experiment:
    """An experiment, and its files for download: none while it is running."""

    result: ExperimentResult
    files: tuple[Path, ...]


@dataclass(frozen=True)
class ChatReply:
    """One model's reply in the chat, possibly unfinished.

    state: "waiting", "loading", "reading", "writing" or "done". speed: tokens per second since the
    first one; None before the second. verdict, tone: of its ending, in words.
    """

    model: str
    state: str = "waiting"
    text: str = ""
    tokens: int = 0
    speed: float | None = None
    is_chat: bool | None = None
    verdict: str = ""
    tone: str = "plain"


@dataclass(frozen=True)
class Chat:
    """A question with its models' replies, at one moment."""

    question: str
    answers: tuple[ChatReply, ...]


@dataclass
class Session:
    """One user's work. Changed by one handler at a time: heavy ones check ``job``.

    report: shown in Check; margin: of its verdicts. found: History's comparison. data: folder with
    the rows of data sets, "" for the Hub's cache. client, address: of the last request; token: the
    signed-in user's, for the Hub (from the request, in memory only). last_probe: the client and
    number of the microscope's last request. job_queue: for its heavy jobs. is_public: the server is
    shared.
    """

    key: str
    folder: Path
    loaded: LoadedModels | None = None
    merges: dict[str, MergedModel] = field(default_factory=dict)
    report: EvalReport | None = None
    margin: float = MARGIN
    experiments: dict[Kind, Experiment] = field(default_factory=dict)
    found: EvalReport | None = None
    chat: Chat | None = None
    data: str = ""
    last_probe: tuple[str, float] = ("", 0.0)
    job: QueuedJob | None = None
    touched: float = field(default_factory=time.monotonic)
    client: str = ""
    token: str | None = field(default=None, repr=False)
    address: str = ""
    job_queue: JobQueue = field(default_factory=JobQueue)
    is_public: bool = False
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    @property
    def is_busy(self) -> bool:
        """Whether a job of this session is still running."""
        return self.job is not None and not self.job.is_done

    @property
    def is_empty(self) -> bool:
        """Whether it contains nothing that a user could lose."""
        given = (self.job, self.loaded, self.found, self.merges, self.data)
        return not any(map(bool, given))

    @property
    def models(self) -> LoadedModels:
        """The loaded models, for callers that know they exist."""
        assert self.loaded is not None, "checked by callers"
        return self.loaded

    def load(self, loaded: LoadedModels) -> None:
        """Make these checkpoints the current ones; merges and scores of others are dropped."""
        with self._lock:
            if self.loaded is not None and self.loaded.identity != loaded.identity:
                for merged in self.merges.values():
                    shutil.rmtree(merged.folder, ignore_errors=True)
                self.merges.clear()
                self.report = None
                self.chat = None
                self.experiments.clear()
            self.loaded = loaded

    def keep(self, merged: MergedModel, loaded: LoadedModels) -> None:
        """Add a merge of the models loaded at its start; remove it if others are loaded now.

        Raises: Stopped when other models were loaded since.
        """
        with self._lock:
            if self.models.identity == loaded.identity:
                self.merges[merged.name] = merged
                return
        shutil.rmtree(merged.folder, ignore_errors=True)
        raise Stopped(OTHER_MODELS)

    def free_name(self, wanted: str) -> str:
        """Return ``wanted``, with a number if a merge of that name exists."""
        used = set(self.merges) | {"base"} | set(self.loaded.agents if self.loaded else ())
        name, number = wanted, 2
        while name in used:
            name, number = f"{wanted} ({number})", number + 1
        return name

    def save(self, files: Mapping[str, str]) -> list[Path]:
        """Write files (text by name) for download; return their paths.

        Raises: OutputError when they cannot be written.
        """
        folder = self.folder / "downloads"
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            for name, text in files.items():
                # newline="": CSV has its own line endings.
                path = folder / name
                path.write_text(text, encoding="utf-8", errors="replace", newline="")
        except OSError as error:
            why = error.strerror or error
            raise OutputError(f"The files could not be written: {why}.") from error
        return [folder / name for name in files]
