"""How two checkpoints' tokenizers differ, in words: size, ids, added tokens, chat template.

Reads the JSON files only; no tokenizer is built, so no code of a checkpoint runs.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from ram_studio.checkpoints.read.checkpoint import Checkpoint
from ram_studio.checkpoints.read.describe import plural, printable, shown_list, who
from ram_studio.checkpoints.read.json_files import read_bounded, read_json_object
from ram_studio.errors import CheckpointError

_FILES = ("tokenizer.json", "vocab.json", "added_tokens.json", "tokenizer_config.json")
_TEMPLATES = ("chat_template.jinja", "chat_template.json")


@dataclass(frozen=True)
class _Tokenizer:
    """What is compared. `vocabulary` maps tokens to ids; None where no file tells."""

    vocabulary: dict[str, int] | None
    added: dict[str, int]
    template: str | None
    eos: str | None


class TokenizerDifferences(NamedTuple):
    """Short phrases: on tokens and their ids, and on the chat template (None: the same)."""

    tokens: list[str]
    template: str | None


def tokenizer_differences(base: Checkpoint, agent: Checkpoint) -> TokenizerDifferences:
    """Return how the agent's tokenizer differs from the base's.

    A checkpoint without tokenizer files has nothing to compare. Files that are not readable are
    reported as such: a merge does not depend on them.
    """
    try:
        if not _has_tokenizer(base.folder) or not _has_tokenizer(agent.folder):
            return TokenizerDifferences([], None)
        if _same_files(base.folder, agent.folder):
            return TokenizerDifferences([], None)
        ours, theirs = _read(base), _read(agent)
    except CheckpointError as error:
        return TokenizerDifferences([f"it cannot be compared ({error})"], None)
    return TokenizerDifferences(_differences(ours, theirs), _template_difference(ours, theirs))


def lacks(checkpoint: Checkpoint) -> str | None:
    """Return what a checkpoint's folder lacks to be talked to: tokenizer, chat template, or None.

    A template is looked for only beside a tokenizer; one that cannot be read counts as there.
    """
    if not (_has_tokenizer(checkpoint.folder) or (checkpoint.folder / "tokenizer.model").is_file()):
        return "no tokenizer files"
    try:
        template = _template(checkpoint, _load(checkpoint, "tokenizer_config.json"))
    except CheckpointError:
        return None
    return None if template else "no chat template"


def _has_tokenizer(folder: Path) -> bool:
    return any((folder / name).is_file() for name in _FILES)


def _same_files(one: Path, other: Path) -> bool:
    """Say whether all files that would be read are equal, before parsing megabytes of JSON."""
    for name in _FILES + _TEMPLATES:
        a, b = one / name, other / name
        if a.is_file() != b.is_file():
            return False
        if a.is_file() and a.resolve() != b.resolve() and a.read_bytes() != b.read_bytes():
            return False
    return True


def _read(checkpoint: Checkpoint) -> _Tokenizer:
    load = partial(_load, checkpoint)
    tokenizer, settings = load("tokenizer.json"), load("tokenizer_config.json")
    model = tokenizer.get("model")
    stored = model.get("vocab") if isinstance(model, dict) else load("vocab.json") or None
    vocabulary = _ids(stored)
    added = _ids(load("added_tokens.json")) or {}
    decoder = settings.get("added_tokens_decoder")
    if isinstance(decoder, dict):
        for index, token in decoder.items():
            if (
                isinstance(token, dict)
                and index.isascii()
                and index.isdecimal()
                and len(index) < 20
            ):
                added[str(token.get("content"))] = int(index)
    listed = tokenizer.get("added_tokens")
    for token in listed if isinstance(listed, list) else []:
        if isinstance(token, dict) and isinstance(token.get("id"), int):
            added[str(token.get("content"))] = token["id"]
    eos = settings.get("eos_token")
    if isinstance(eos, dict):
        eos = eos.get("content")
    return _Tokenizer(vocabulary, added, _template(checkpoint, settings), eos)


def _ids(stored: Any) -> dict[str, int] | None:
    """Return token -> id from either layout: an object, or a list of [token, score]."""
    if isinstance(stored, dict):
        return {token: index for token, index in stored.items() if isinstance(index, int)}
    if isinstance(stored, list):
        return {
            str(entry[0]): i for i, entry in enumerate(stored) if isinstance(entry, list) and entry
        }
    return None


def _load(checkpoint: Checkpoint, name: str) -> dict[str, Any]:
    path = checkpoint.folder / name
    return read_json_object(path, who(checkpoint.name)) if path.is_file() else {}


def _template(checkpoint: Checkpoint, settings: dict[str, Any]) -> str | None:
    path = checkpoint.folder / "chat_template.jinja"
    if path.is_file():
        data = read_bounded(path, who(checkpoint.name), limit=4_000_000)
        return data.decode("utf-8", "replace")
    told = _load(checkpoint, "chat_template.json")
    template = told.get("chat_template", settings.get("chat_template"))
    return None if template is None else str(template)


def _differences(ours: _Tokenizer, theirs: _Tokenizer) -> list[str]:
    found = []
    before, after = ours.vocabulary, theirs.vocabulary
    if before is not None and after is not None:
        sizes = len(before.keys() | ours.added), len(after.keys() | theirs.added)
        if sizes[0] != sizes[1]:
            found.append(f"{sizes[1]} tokens, the base has {sizes[0]}")
        moved = sum(before[token] != after[token] for token in before.keys() & after.keys())
        if moved:
            found.append(f"{plural(moved, 'token')} of the vocabulary under another id")
        replaced = len(before.keys() - after.keys() - theirs.added.keys())
        if replaced:
            found.append(f"{plural(replaced, 'token')} of the base's vocabulary missing")
    for word, only in (
        ("added", {t: i for t, i in theirs.added.items() if ours.added.get(t) != i}),
        ("lacking", {t: i for t, i in ours.added.items() if t not in theirs.added}),
    ):
        if only:
            tokens = [f"{printable(token, 40)} (id {index})" for token, index in only.items()]
            found.append(f"{word} tokens {shown_list(tokens, 4, ', ')}")
    if ours.eos != theirs.eos and ours.eos and theirs.eos:
        found.append(f"end token {printable(theirs.eos, 40)} instead of {printable(ours.eos, 40)}")
    return found


def _template_difference(ours: _Tokenizer, theirs: _Tokenizer) -> str | None:
    if ours.template == theirs.template:
        return None
    if ours.template is None:
        return "it has a chat template, the base has none"
    if theirs.template is None:
        return "it has no chat template, the base has one"
    return "it has another chat template than the base"
