"""Pushes a merged folder to the Hub: private unless confirmed twice, and all or nothing.

Shards are uploaded one by one, and the Hub keeps uploaded ones, so that an interrupted push
continues where it was. Only the last commit makes them a model; until then the repository shows
none of them.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping
from contextvars import copy_context
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from queue import SimpleQueue
from types import MappingProxyType
from typing import Self

import huggingface_hub
from huggingface_hub import CommitOperationAdd, ModelInfo
from huggingface_hub.errors import RepositoryNotFoundError
from huggingface_hub.utils import (
    are_progress_bars_disabled,
    disable_progress_bars,
    enable_progress_bars,
)

from ram_studio.checkpoints.hub import rights
from ram_studio.checkpoints.hub.errors import hub_errors
from ram_studio.checkpoints.hub.transfer import REQUEST_SECONDS, fetch_file, hub_api, site_address
from ram_studio.checkpoints.read.checkpoint import CancelSignal, split_hub_id
from ram_studio.checkpoints.read.describe import printable, quoted, shown_list
from ram_studio.checkpoints.read.json_files import check_link
from ram_studio.checkpoints.record.provenance import PROVENANCE_FILE, Provenance, read_provenance
from ram_studio.checkpoints.write.shard_plan import Shard
from ram_studio.errors import HubError, VerificationError

_WAIT_SECONDS = 0.1

YES_PUBLIC = "--public"
"""Wording of the second confirmation; the app replaces it with the label of its form."""


@dataclass(frozen=True)
class PushResult:
    """Result of a push: the model's page, whether it is public, files, and whether it existed.

    ahead: number of files that were uploaded while the merge was written.
    """

    url: str
    is_public: bool
    files: int
    nbytes: int
    was_there: bool = False
    ahead: int = 0


@dataclass(frozen=True)
class PushProgress:
    """Progress of a push, in bytes of whole files."""

    file: str
    done_bytes: int
    total_bytes: int


def check_push(repository: str, *, public: bool = False) -> None:
    """Refuse, before any work, a push that would fail.

    Raises: HubError for an invalid name, without a login, or for a public repository without the
    second confirmation.
    """
    if split_hub_id(repository) != (repository, None):
        name = printable(repository) or "An empty name"
        raise HubError(
            f"{name} is not a Hub id; push to owner/name, where the owner is you or one "
            "of your organizations."
        )
    token = rights.token()
    if token is False or not (token or huggingface_hub.get_token()):
        raise HubError(
            f"You are not logged in, so nothing can be pushed to {repository}; {rights.advice()}, "
            "with the right to write."
        )
    with _talking_of(repository):
        found = _find_repository(repository)
    if found is not None:
        _check_visibility(repository, found, public)


def push(
    folder: str | Path,
    repository: str,
    *,
    public: bool = False,
    on_progress: Callable[[PushProgress], None] | None = None,
    cancel: CancelSignal | None = None,
    ahead: Mapping[str, CommitOperationAdd] = MappingProxyType({}),
    more: Mapping[str, bytes] = MappingProxyType({}),
) -> PushResult:
    """Upload a merged folder: weights, config, tokenizer, card and provenance, nothing else.

    If the repository already has the merge, only `more` is uploaded.

    Args:
        folder: of a finished merge. repository: `owner/name`; created if missing.
        public: the second confirmation: create it public, or write to a public one.
        ahead: files that are already uploaded, see ``PushAhead``. more: further files by name, or
            other content of the folder's card.

    Raises: VerificationError without a valid provenance, or where a file in it is missing;
    CheckpointError for a link out of the folder; HubError, see ``check_push``, and for a
    repository that holds another model; Stopped. Files already uploaded are not sent again.
    """
    folder = Path(folder)
    provenance = read_provenance(folder)
    check_push(repository, public=public)
    names = _names(folder, provenance)
    names += [name for name in more if name not in names]
    sizes = {n: len(more[n]) if n in more else (folder / n).stat().st_size for n in names}
    api = hub_api()
    url = f"{site_address()}/{repository}"
    with _talking_of(repository):
        found = _create_repository(repository, public)
        if _has_model(found):
            if _provenance_there(repository, found) != (folder / PROVENANCE_FILE).read_bytes():
                raise HubError(
                    f"{repository} already holds another model; push to another name, or remove "
                    f"that one first ({url}/settings)."
                )
            _add(api, repository, more)
            nbytes = sum(map(len, more.values()))
            return PushResult(url, not found.private, len(more), nbytes, was_there=True)
        operations, done = [], 0
        for name in names:
            if cancel is not None:
                cancel.raise_if_cancelled()
            if (addition := ahead.get(name)) is not None:
                addition.path_or_fileobj = str(folder / name)
            else:
                addition = CommitOperationAdd(name, more.get(name) or str(folder / name))
                # Small texts go with the commit; the Hub decides which files those are.
                api.preupload_lfs_files(repository, [addition], free_memory=False)
            operations.append(addition)
            done += sizes[name]
            if on_progress is not None:
                on_progress(PushProgress(name, done, sum(sizes.values())))
        api.create_commit(
            repository,
            operations=operations,
            commit_message=f"Merge by {provenance.recipe.method} with RAM Studio",
        )
    went = len(ahead.keys() & sizes.keys())
    return PushResult(url, not found.private, len(names), sum(sizes.values()), ahead=went)


def _names(folder: Path, provenance: Provenance) -> list[str]:
    """Return the files to upload, checked to exist and not to link out of the folder."""
    names = list(
        dict.fromkeys([*provenance.shards, *provenance.files, "README.md", PROVENANCE_FILE])
    )
    if missing := [name for name in names if not (folder / name).is_file()]:
        raise VerificationError(
            f"{printable(folder)} lacks {shown_list(missing, show=quoted)}, which its provenance "
            "lists. Restore the missing files, or merge again. Nothing was pushed."
        )
    for name in names:
        check_link(folder / name, "", suffix=".safetensors" if name in provenance.shards else None)
        for above in PurePosixPath(name).parents[:-1]:  # a folder may be a link, too
            check_link(folder / above, "")
    return names


def _add(api: huggingface_hub.HfApi, repository: str, files: Mapping[str, bytes]) -> None:
    """Add small files to an existing model, or replace them."""
    if files:
        operations = [CommitOperationAdd(name, data) for name, data in files.items()]
        message = "Scores and recipe from RAM Studio"
        api.create_commit(repository, operations=operations, commit_message=message)


class PushAhead:
    """Uploads shards while a merge writes the others: the ``Receiver`` of its writer.

    A context manager. Nothing is created on the Hub before the first shard is complete, and nothing
    is visible before ``push`` makes a model of the uploads. It also uploads what failed here.

    Attributes:
        sent: uploaded files, by name.
    """

    def __init__(self, repository: str, *, public: bool = False) -> None:
        """Run the checks that need no work, see ``check_push``.

        Args: as for ``push``. Raises: HubError.
        """
        self._repository, self._public = repository, public
        check_push(repository, public=public)
        self.sent: dict[str, CommitOperationAdd] = {}
        self._queue: SimpleQueue[tuple[str, Path] | None] = SimpleQueue()
        self._is_open: bool | None = None
        self._is_over = False
        # An upload cannot be interrupted: it must not delay the end of the program. It uses the
        # rights of the user who merges.
        work = partial(copy_context().run, self._work)
        self._thread = threading.Thread(target=work, name="push", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._end()

    def take(self, shard: Shard, path: Path) -> None:
        """Queue a shard for upload."""
        self._queue.put((shard.file_name, path))

    def release(self, on_wait: Callable[[], None]) -> None:
        """Start no further upload; return when the current one has finished."""
        self._end()
        while self._thread.is_alive():
            self._thread.join(_WAIT_SECONDS)
            on_wait()

    def _end(self) -> None:
        self._is_over = True
        self._queue.put(None)

    def _work(self) -> None:
        for name, path in iter(self._queue.get, None):
            if self._is_over:
                return
            # The push at the end tries again, and reports errors that remain.
            with contextlib.suppress(HubError, OSError), _talking_of(self._repository):
                self._send(name, path)

    def _send(self, name: str, path: Path) -> None:
        if self._is_open is None:
            found = _create_repository(self._repository, self._public)
            self._is_open = not _has_model(found)
        if self._is_open:
            addition = CommitOperationAdd(name, str(path))
            api = hub_api()
            api.preupload_lfs_files(self._repository, [addition], free_memory=False)
            self.sent[name] = addition


def _create_repository(repository: str, public: bool) -> ModelInfo:
    """Return the Hub's record of a repository; create it, private by default, if missing."""
    info = _find_repository(repository)
    if info is None:
        hub_api().create_repo(repository, private=not public, exist_ok=True)
        info = hub_api().model_info(repository, timeout=REQUEST_SECONDS)
    # It may have been created in the meantime, and organizations have their own rules.
    _check_visibility(repository, info, public)
    return info


def _has_model(info: ModelInfo) -> bool:
    return any(name.endswith((".safetensors", ".json", ".bin")) for name in _files_of(info))


@contextlib.contextmanager
def _talking_of(repository: str) -> Iterator[None]:
    had_bars = not are_progress_bars_disabled()
    disable_progress_bars()
    try:
        with hub_errors(repository, None, name=None):
            yield
    except HubError as error:
        refused = getattr(getattr(error.__cause__, "response", None), "status_code", 0)
        text = str(error).replace("could not be downloaded from", "could not be pushed to")
        if refused in (401, 403):
            text = (
                f"{repository} was not written: the Hub refused this login (status {refused}). "
                "Push to a new name under your account, or log in with the right to write."
            )
        raise HubError(text) from error
    except (ValueError, RuntimeError) as error:  # errors of the Hub's storage
        raise HubError(
            f"{repository} could not be pushed to ({printable(error, 200)}). Run again: "
            "uploaded files are not sent twice."
        ) from error
    finally:
        if had_bars:
            enable_progress_bars()


def _find_repository(repository: str) -> ModelInfo | None:
    """Return the Hub's record of a repository; None where it does not exist."""
    try:
        return hub_api().model_info(repository, timeout=REQUEST_SECONDS)
    except RepositoryNotFoundError:
        return None


def _files_of(info: ModelInfo) -> list[str]:
    return [file.rfilename for file in info.siblings or []]


def _check_visibility(repository: str, info: ModelInfo, public: bool) -> None:
    # Without an answer of the Hub, assume that it is public.
    if not info.private and not public:
        raise HubError(
            f"{repository} is public: everybody could read the merge. Push to a private "
            f"repository, or confirm with {YES_PUBLIC}."
        )


def _provenance_there(repository: str, info: ModelInfo) -> bytes | None:
    if PROVENANCE_FILE not in _files_of(info):
        return None
    return fetch_file(repository, PROVENANCE_FILE, revision=info.sha).read_bytes()
