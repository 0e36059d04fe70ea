"""Findings on checkpoints' tokenizers: their differences, and what the base's lacks.

Reads the JSON files only; no tokenizer is built, so no code of a checkpoint runs.
"""

from __future__ import annotations

import contextlib
import difflib
import itertools
import math
from collections.abc import Sequence
from functools import cached_property
from typing import Any

from ram_studio.algorithm.meters.storage import Finding, Kind
from ram_studio.checkpoints.read.checkpoint import Checkpoint
from ram_studio.checkpoints.read.describe import plural, printable, shown_list
from ram_studio.checkpoints.read.json_files import read_bounded, read_json_object
from ram_studio.errors import CheckpointError

_FILES = ("tokenizer.json", "vocab.json", "added_tokens.json", "tokenizer_config.json")
_TEMPLATES = ("chat_template.jinja", "chat_template.json")
_GENERATION = "generation_config.json"
_EOS = "eos_token_id"
MAX_STOP_TOKENS = 64
MAX_TEMPLATE_LINES = 2000


def tokenizer_findings(base: Checkpoint, agents: Sequence[Checkpoint]) -> list[Finding]:
    """Return findings on files that the base lacks for chats, and on agents' differences.

    A checkpoint without tokenizer files is not compared. Unreadable files are reported: a merge
    does not depend on them.
    """
    ours = _Tokenizer(base)
    theirs = {agent.name: _Tokenizer(agent) for agent in agents}
    found = _lacking(ours, theirs)
    for agent in agents:
        own = theirs.pop(agent.name)  # vocabularies are large: hold one at a time
        if not ours.is_there or not own.is_there:
            continue
        try:
            if ours.has_files_of(own):
                continue
            differences, template = _differences(ours, own), _template_difference(ours, own)
        except CheckpointError as error:
            differences, template = [f"it cannot be compared ({error})"], None
        if differences:
            text = (
                f"{agent.who}its tokenizer differs from the base's: "
                f"{shown_list(differences, limit=6)}. The base's is copied unless you choose "
                "another."
            )
            found.append(Finding("tokenizer", text, (agent.name,)))
        if template:
            text = (
                f"{agent.who}{template}. The agent's skill may need its own template; the "
                "base's is copied unless you choose another tokenizer."
            )
            found.append(Finding("chat-template", text, (agent.name,)))
    return found


def stop_tokens(checkpoint: Checkpoint) -> tuple[int, ...]:
    """Return the ids that end an answer, as libraries do: from generation_config, else config.

    Raises: CheckpointError when generation_config.json cannot be read.
    """
    path = checkpoint.folder / _GENERATION
    generation = read_json_object(path, checkpoint.who) if path.is_file() else {}
    for source in (generation, checkpoint.config, checkpoint.text_config):
        if (ids := source.get(_EOS)) is not None:
            listed = ids if isinstance(ids, list) else [ids]
            return tuple(one for one in listed if type(one) is int and one >= 0)[:MAX_STOP_TOKENS]
    return ()


def all_stop_tokens(base: Checkpoint, agents: Sequence[Checkpoint]) -> tuple[int, ...]:
    """Return the ids that end an answer of any of them, the base's first.

    Ids without a token in the base are left out. Raises: CheckpointError, see ``stop_tokens``.
    """
    sizes = {**base.config, **base.text_config}.get("vocab_size")
    limit = sizes if isinstance(sizes, int) else math.inf
    every = itertools.chain.from_iterable(map(stop_tokens, (base, *agents)))
    return tuple(dict.fromkeys(one for one in every if one < limit))


def stop_token_findings(base: Checkpoint, agents: Sequence[Checkpoint]) -> list[Finding]:
    """Return findings on agents that end answers at tokens after which the base continues."""
    found = []
    for agent in agents:
        with contextlib.suppress(CheckpointError):  # unreadable files are reported elsewhere
            more = all_stop_tokens(base, [agent])[len(all_stop_tokens(base, [])) :]
            if more:
                text = (
                    f"{agent.who}it stops at {plural(len(more), 'token')} after which the base "
                    f"continues ({shown_list([str(one) for one in more], 6, ', ')}). The merge "
                    "stops as the base does; set stop_tokens: union to use all agents' tokens."
                )
                found.append(Finding("stop-tokens", text, (agent.name,)))
    return found


def compare_templates(base: Checkpoint, agent: Checkpoint) -> list[tuple[str, str]]:
    """Return the differing lines of two chat templates, base and agent side by side.

    A line that only one has is paired with an empty one; a row of dots separates distant places.

    Raises: CheckpointError when one cannot be read.
    """
    ours, theirs = (
        (_Tokenizer(one).template or "").splitlines()[:MAX_TEMPLATE_LINES] for one in (base, agent)
    )
    rows: list[tuple[str, str]] = []
    for kind, a, b, c, d in difflib.SequenceMatcher(None, ours, theirs, False).get_opcodes():
        if kind != "equal":
            rows += [("...", "...")] if rows else []
            rows += itertools.zip_longest(ours[a:b], theirs[c:d], fillvalue="")
    return rows


class _Tokenizer:
    """A checkpoint's tokenizer; its files are read on first use."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._folder, self._who = checkpoint.folder, checkpoint.who

    def _load(self, name: str) -> dict[str, Any]:
        path = self._folder / name
        return read_json_object(path, self._who) if path.is_file() else {}

    @property
    def is_there(self) -> bool:
        """Whether there are files to compare."""
        return any((self._folder / name).is_file() for name in _FILES)

    def has_files_of(self, other: _Tokenizer) -> bool:
        """Return whether all relevant files are equal, without parsing megabytes of JSON."""
        for name in _FILES + _TEMPLATES:
            a, b = self._folder / name, other._folder / name
            if a.is_file() != b.is_file():
                return False
            if not a.is_file() or a.resolve() == b.resolve():
                continue
            if read_bounded(a, self._who) != read_bounded(b, other._who):
                return False
        return True

    @property
    def lacks(self) -> Kind | None:
        """What chats need and it lacks: a tokenizer, a chat template, or None.

        A template is searched only beside a tokenizer; an unreadable one counts as present.
        """
        if not self.is_there and not (self._folder / "tokenizer.model").is_file():
            return "tokenizer"
        try:
            return None if self.template else "chat-template"
        except CheckpointError:
            return None

    @cached_property
    def _settings(self) -> dict[str, Any]:
        return self._load("tokenizer_config.json")

    @cached_property
    def _tokenizer(self) -> dict[str, Any]:
        return self._load("tokenizer.json")

    @cached_property
    def template(self) -> str | None:
        path = self._folder / "chat_template.jinja"
        if path.is_file():
            return read_bounded(path, self._who, limit=4_000_000).decode("utf-8", "replace")
        stored = self._load("chat_template.json")
        template = stored.get("chat_template", self._settings.get("chat_template"))
        return None if template is None else str(template)

    @property
    def eos(self) -> str | None:
        """The token that ends an answer."""
        eos = self._settings.get("eos_token")
        return eos.get("content") if isinstance(eos, dict) else eos

    @cached_property
    def vocabulary(self) -> dict[str, int] | None:
        """Token -> id; None where no file has it."""
        model = self._tokenizer.get("model")
        if isinstance(model, dict):
            return _ids(model.get("vocab"))
        return _ids(self._load("vocab.json") or None)

    @cached_property
    def added(self) -> dict[str, int]:
        """Token -> id of tokens outside the vocabulary."""
        added = _ids(self._load("added_tokens.json")) or {}
        decoder = self._settings.get("added_tokens_decoder")
        for index, token in decoder.items() if isinstance(decoder, dict) else ():
            is_id = index.isascii() and index.isdecimal() and len(index) < 20
            if isinstance(token, dict) and is_id:
                added[str(token.get("content"))] = int(index)
        listed = self._tokenizer.get("added_tokens")
        for token in listed if isinstance(listed, list) else []:
            if isinstance(token, dict) and isinstance(token.get("id"), int):
                added[str(token.get("content"))] = token["id"]
        return added


def _ids(stored: Any) -> dict[str, int] | None:
    """Return token -> id from either layout: an object, or a list of [token, score]."""
    if isinstance(stored, dict):
        return {token: index for token, index in stored.items() if isinstance(index, int)}
    if isinstance(stored, list):
        return {
            str(entry[0]): i for i, entry in enumerate(stored) if isinstance(entry, list) and entry
        }
    return None


def _lacking(ours: _Tokenizer, theirs: dict[str, _Tokenizer]) -> list[Finding]:
    """Report files that the merge would lack for any question: a tokenizer, a template."""
    missing = ours.lacks
    if missing is None:
        return []
    having = [name for name, tokenizer in theirs.items() if tokenizer.lacks is None]
    if having and missing == "chat-template":
        return []  # reported as a difference of that agent
    what, how, them = (
        ("chat template", "used in a chat", "one")
        if missing == "chat-template"
        else ("tokenizer files", "asked anything", "them")
    )
    advice = f"add {them} to the base's folder first"
    if having:
        advice = f"use an agent's (tokenizer: {having[0]})"
    text = (
        f"The base has no {what}, so the merge would have none either: it could not be {how}. "
        f"To avoid that, {advice}."
    )
    return [Finding(missing, text, level="note")]


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
