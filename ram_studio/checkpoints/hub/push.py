"""A merged folder to the Hub: private unless asked otherwise twice, and all or nothing.

Shards go up one by one, and the Hub keeps what has arrived, so that a push that broke off goes on
where it was. Only a last commit makes them a model; before it the repository shows nothing of them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import huggingface_hub
from huggingface_hub.errors import RepositoryNotFoundError
from huggingface_hub.utils import (
    are_progress_bars_disabled,
    disable_progress_bars,
    enable_progress_bars,
)

from ram_studio.checkpoints.hub import rights
from ram_studio.checkpoints.hub.errors import hub_errors
from ram_studio.checkpoints.hub.inspect import cache_folder, site_address
from ram_studio.checkpoints.hub.transfer import LIBRARY, REQUEST_SECONDS, Token
from ram_studio.checkpoints.read.checkpoint import CancelSignal, split_hub_id
from ram_studio.checkpoints.read.describe import printable
from ram_studio.checkpoints.record.passport import PASSPORT_FILE, read_passport
from ram_studio.errors import HubError

YES_PUBLIC = "--yes-public"
"""How messages name the second yes; a form with words of its own puts those in their place."""


@dataclass(frozen=True)
class Pushed:
    """What went up: the model's page, whether all may read it, files, and whether it was there."""

    url: str
    is_public: bool
    files: int
    nbytes: int
    was_there: bool = False

    def to_dict(self) -> dict[str, Any]:
        """Return it for JSON."""
        return dict(self.__dict__)


@dataclass(frozen=True)
class PushProgress:
    """How far a push is, in bytes of whole files."""

    file: str
    done_bytes: int
    total_bytes: int


def check_push(repository: str, *, public: bool = False, token: str | None = None) -> Token:
    """Refuse, before any work, a push that could not be done; return the token to use.

    Raises: HubError for a name that is none, nobody logged in, or a repository that is public
    without the second yes.
    """
    access = _access(repository, token)
    with _talking_of(repository):
        found = _found(repository, access)
    if found is not None:
        _check_visibility(repository, found, public)
    return access


def push(
    folder: str | Path,
    repository: str,
    *,
    public: bool = False,
    token: str | None = None,
    on_progress: Callable[[PushProgress], None] | None = None,
    cancel: CancelSignal | None = None,
) -> Pushed:
    """Upload a merged folder: weights, config, tokenizer, card and passport, nothing else.

    Args:
        folder: of a finished merge. repository: `owner/name`; created where there is none.
        public: the second yes: create it public, or write to one that is.
        token: to use instead of the one huggingface_hub finds.

    Raises: VerificationError without a sound passport; HubError, see ``check_push``, and for a
    repository that holds another model; Stopped. What has arrived is not sent again.
    """
    folder = Path(folder)
    passport = read_passport(folder)
    access = check_push(repository, public=public, token=token)
    names = list(dict.fromkeys([*passport.shards, *passport.files, "README.md", PASSPORT_FILE]))
    sizes = {name: (folder / name).stat().st_size for name in names}
    api = huggingface_hub.HfApi(endpoint=site_address(), token=access, **LIBRARY)
    url = f"{site_address()}/{repository}"
    with _talking_of(repository):
        found = _found(repository, access)
        if found is None:
            api.create_repo(repository, private=not public, exist_ok=True)
            found = _found(repository, access) or {"private": False, "files": []}
            # Somebody may have made it in the meantime, and organisations have rules of their own.
            _check_visibility(repository, found, public)
        if any(name.endswith((".safetensors", ".json", ".bin")) for name in found["files"]):
            if _passport_there(repository, found, access) != (folder / PASSPORT_FILE).read_bytes():
                raise HubError(
                    f"{repository} holds another model already; push to another name, or remove "
                    f"that one first ({url}/settings)."
                )
            return Pushed(url, not found["private"], 0, 0, was_there=True)
        operations, done = [], 0
        for name in names:
            if cancel is not None:
                cancel.raise_if_cancelled()
            addition = huggingface_hub.CommitOperationAdd(name, str(folder / name))
            # Small texts go with the commit; the Hub decides which files those are.
            api.preupload_lfs_files(repository, [addition], free_memory=False)
            operations.append(addition)
            done += sizes[name]
            if on_progress is not None:
                on_progress(PushProgress(name, done, sum(sizes.values())))
        api.create_commit(
            repository,
            operations=operations,
            commit_message=f"Merge by {passport.recipe.method} with RAM Studio",
        )
    return Pushed(url, not found["private"], len(names), sum(sizes.values()))


@contextlib.contextmanager
def _talking_of(repository: str) -> Iterator[None]:
    had_bars = not are_progress_bars_disabled()
    disable_progress_bars()
    try:
        with hub_errors(repository, None, name=None, site=site_address()):
            yield
    except HubError as error:
        refused = getattr(getattr(error.__cause__, "response", None), "status_code", 0)
        text = str(error).replace("could not be downloaded from", "could not be pushed to")
        if refused in (401, 403):
            text = (
                f"{repository} was not written: the Hub refused this login (status {refused}). "
                "Push to a new name under an account of yours, or log in with the right to write."
            )
        raise HubError(text) from error
    except (ValueError, RuntimeError) as error:  # what the Hub's storage refused
        raise HubError(
            f"{repository} could not be pushed to ({printable(error, 200)}); run again, what has "
            "arrived is not sent again."
        ) from error
    finally:
        if had_bars:
            enable_progress_bars()


def _access(repository: str, token: str | None) -> Token:
    if split_hub_id(repository) != (repository, None):
        raise HubError(
            f"{printable(repository)} is not a name on the Hub; push to owner/name, where the "
            "owner is you or an organisation of yours."
        )
    access = rights.token_for(token)
    if access is False or not (access or huggingface_hub.get_token()):
        raise HubError(
            f"Nobody is logged in, so nothing can be pushed to {repository}; {rights.advice()}, "
            "with the right to write."
        )
    return access


def _found(repository: str, access: Token) -> dict[str, Any] | None:
    """Return whether a repository is private, its commit and files; None where there is none."""
    api = huggingface_hub.HfApi(endpoint=site_address(), token=access, **LIBRARY)
    try:
        info = api.model_info(repository, timeout=REQUEST_SECONDS)
    except RepositoryNotFoundError:
        return None
    # What the Hub does not say is taken for the worse.
    files = [file.rfilename for file in info.siblings or []]
    return {"private": bool(info.private), "commit": info.sha, "files": files}


def _check_visibility(repository: str, found: Mapping[str, Any], public: bool) -> None:
    if not found["private"] and not public:
        raise HubError(
            f"{repository} is public: everybody could read the merge at once. Push to a private "
            f"repository, or say a second yes ({YES_PUBLIC})."
        )


def _passport_there(repository: str, found: Mapping[str, Any], access: Token) -> bytes | None:
    if PASSPORT_FILE not in found["files"]:
        return None
    path = huggingface_hub.hf_hub_download(
        repository,
        PASSPORT_FILE,
        revision=found["commit"],
        cache_dir=cache_folder(),
        endpoint=site_address(),
        token=access,
        **LIBRARY,
    )
    return Path(path).read_bytes()
