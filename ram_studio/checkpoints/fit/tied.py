"""Tied heads: one matrix stored once or twice, under the embedding's name or the head's.

A language model whose output head is its input embedding may store the matrix under either name or
under both. Merged checkpoints follow the base: this module gives every agent the names that the
base stores, so that the rest of the code has tensors of the same names. A matrix stored
twice is merged into both places but counted once (the authors' script counts it twice).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from ram_studio.checkpoints.read.checkpoint import Checkpoint
from ram_studio.checkpoints.read.describe import quoted
from ram_studio.checkpoints.read.stored_bytes import same_bytes
from ram_studio.checkpoints.read.tensors import TensorInfo
from ram_studio.errors import CheckpointError

HEAD_NAMES = ("lm_head.weight", "embed_out.weight")
EMBEDDING_NAMES = (
    "embed_tokens.weight",
    "wte.weight",
    "embed_in.weight",
    "word_embeddings.weight",
    "tok_embeddings.weight",
    "shared.weight",
    "embeddings.weight",
)
Stored = Literal["both", "embedding", "head", "none"]
# Biases of the head have one element per row of the vocabulary, too.
_VOCABULARY_NAMES = (*HEAD_NAMES, *EMBEDDING_NAMES, "lm_head.bias")


@dataclass(frozen=True, slots=True)
class HeadStorage:
    """How one checkpoint stores its output head and input embedding.

    Attributes:
        stored: which of the two.
        is_tied: whether they are one matrix: equal bytes where both are stored, else by the
            config (by the base's, where the agent's does not have it). None where neither is
            stored, or the bytes cannot be read.
        config: `tie_word_embeddings` of its config.json; None when missing.
    """

    stored: Stored
    is_tied: bool | None
    config: bool | None


@dataclass
class TiedResolution:
    """Agents' tensors under the base's names, with problems and warnings.

    Attributes:
        agents: per agent, its tensors by the base's name for them; a redundant head is left out.
        copy_of: {head: embedding} when the base stores the matrix twice; not counted again.
        problems: sentences on heads that cannot be merged as requested.
        warnings: sentences.
        heads: by checkpoint name; {} without a pair that could be tied.
    """

    agents: list[dict[str, TensorInfo]]
    copy_of: dict[str, str] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    heads: dict[str, HeadStorage] = field(default_factory=dict)

    def part(self, agent: Checkpoint, head: str, embedding: str, *, is_left_out: bool) -> None:
        """Report a head that an agent trained separately, though the base ties it."""
        if is_left_out:
            self.warnings.append(
                f"{agent.who}{quoted(head)} differs from {quoted(embedding)} though the base "
                f"ties them; the agent's {quoted(head)} is left out (extra: ignore)."
            )
        else:
            self.problems.append(
                f"{agent.who}tensor {quoted(head)} differs from {quoted(embedding)}, which is the "
                "same matrix in the base (tied head)"
            )


def _ends_with(name: str, endings: Iterable[str]) -> bool:
    return any(name == ending or name.endswith("." + ending) for ending in endings)


def has_vocabulary_rows(name: str) -> bool:
    """Return whether dimension 0 of this tensor is the vocabulary (embedding or head)."""
    return _ends_with(name, _VOCABULARY_NAMES)


def tie_setting(checkpoint: Checkpoint) -> bool | None:
    """Return tie_word_embeddings of config.json; None when missing."""
    for config in (checkpoint.config, checkpoint.text_config):
        if isinstance(config.get("tie_word_embeddings"), bool):
            return config["tie_word_embeddings"]
    return None


def find_pair(checkpoints: Sequence[Checkpoint]) -> tuple[str, str] | None:
    """Return the names (embedding, head) of the only pair that may be tied, else None."""
    shapes: dict[str, tuple[int, ...]] = {}
    for checkpoint in reversed(checkpoints):
        shapes.update({name: info.shape for name, info in checkpoint.tensors.items()})
    heads = [name for name in shapes if _ends_with(name, HEAD_NAMES)]
    embeddings = [name for name in shapes if _ends_with(name, EMBEDDING_NAMES)]
    if len(heads) != 1:
        return None
    # Several embeddings (an image tower beside the text model): the head's shape decides.
    fitting = [name for name in embeddings if shapes[name] == shapes[heads[0]]] or embeddings
    return (fitting[0], heads[0]) if fitting else None


def follow_ties(agent: Checkpoint, base: Checkpoint) -> Checkpoint:
    """Return an applied adapter with one matrix where the base stores a declared tie twice.

    It is the one of head and embedding that the adapter changed.
    """
    pair = find_pair([base])
    if pair is None or not tie_setting(base) or not all(name in agent.tensors for name in pair):
        return agent
    same = [name for name in pair if agent.tensors[name] is base.tensors[name]]
    if len(same) != 1:
        return agent
    return replace(agent, tensors={n: t for n, t in agent.tensors.items() if n != same[0]})


class _Pair:
    """The only pair of matrices that may be tied, and its storage in each checkpoint."""

    def __init__(self, embedding: str, head: str) -> None:
        self.names = (embedding, head)
        self._equal: dict[str, bool] = {}

    def stored_names(self, checkpoint: Checkpoint) -> list[str]:
        """Return which of the two a checkpoint stores, embedding first."""
        return [name for name in self.names if name in checkpoint.tensors]

    def is_stored_twice(self, checkpoint: Checkpoint, fallback: bool | None = None) -> bool:
        """Return whether a checkpoint that stores both matrices stores the same one twice.

        The bytes of a checkpoint that is not downloaded are unknown: its config decides, else
        `fallback`; this is repeated after the download. A remote checkpoint's config is trusted if
        it declares a tie; else its bytes decide.
        """
        embedding, head = (checkpoint.tensors[name] for name in self.names)
        if (embedding.dtype, embedding.shape) != (head.dtype, head.shape):
            return False
        setting = tie_setting(checkpoint)
        if not checkpoint.is_readable or (setting and not checkpoint.is_local):
            return bool(fallback if setting is None else setting)
        if checkpoint.name not in self._equal:  # both may be large: they are read once
            names = (checkpoint.name, checkpoint.name)
            self._equal[checkpoint.name] = same_bytes(
                embedding, head, agents=names, remote=checkpoint.remote
            )
        return self._equal[checkpoint.name]

    def is_tied(self, checkpoint: Checkpoint, fallback: bool | None = True) -> bool:
        """Return whether head and embedding are one matrix in this checkpoint.

        Stored twice: if their bytes are equal. Stored once: by the config, else `fallback`
        (a base without a stored head can only be tied).
        """
        stored = self.stored_names(checkpoint)
        if len(stored) == 2:
            return self.is_stored_twice(checkpoint)
        if not stored:
            return False
        setting = tie_setting(checkpoint)
        return bool(fallback if setting is None else setting)

    def describe(self, checkpoint: Checkpoint, fallback: bool | None = True) -> HeadStorage:
        """Return how this checkpoint stores the two."""
        stored = self.stored_names(checkpoint)
        kinds: dict[int, Stored] = {0: "none", 2: "both"}
        one: Stored = "embedding" if self.names[0] in stored else "head"
        is_tied = None
        with contextlib.suppress(CheckpointError):  # a merge that needs the bytes reports it
            is_tied = self.is_tied(checkpoint, fallback) if stored else None
        return HeadStorage(kinds.get(len(stored), one), is_tied, tie_setting(checkpoint))


def resolve_tied(
    base: Checkpoint, agents: Sequence[Checkpoint], *, ignore_extra: bool
) -> TiedResolution:
    """Give every agent the head and embedding under the names that the base stores.

    Args:
        base: the base model.
        agents: in the order given.
        ignore_extra: the user's `extra: ignore`; a head that an agent trained apart from its
            embedding is then left out instead of being a problem.
    """
    found = TiedResolution([dict(agent.tensors) for agent in agents])
    names = find_pair([base, *agents])
    if names is None:
        return found
    pair = _Pair(*names)
    base_is_tied = pair.is_tied(base)
    found.heads = {c.name: pair.describe(c, base_is_tied) for c in agents}
    found.heads = {base.name: pair.describe(base), **found.heads}
    stored = pair.stored_names(base)
    if len(stored) == 2:
        _follow_base_with_both(base, agents, pair, ignore_extra, found)
    elif len(stored) == 1:
        stored_name = stored[0]
        [other] = set(names) - {stored_name}
        _follow_base_with_one(agents, pair, stored_name, other, base_is_tied, ignore_extra, found)
    return found


def _follow_base_with_both(
    base: Checkpoint,
    agents: Sequence[Checkpoint],
    pair: _Pair,
    ignore_extra: bool,
    found: TiedResolution,
) -> None:
    embedding, head = pair.names
    base_is_tied = pair.is_tied(base)
    setting = tie_setting(base)
    if setting and not base_is_tied:
        found.warnings.append(
            f"{base.who}config.json has tie_word_embeddings, but the stored {quoted(head)} "
            f"differs from {quoted(embedding)}; they are merged as two matrices."
        )
    parted = []
    for agent, tensors in zip(agents, found.agents, strict=True):
        there = [name for name in pair.names if name in tensors]
        if len(there) == 1 and pair.is_tied(agent, base_is_tied):
            tensors[head if there == [embedding] else embedding] = tensors[there[0]]
        elif len(there) == 2 and base_is_tied and not pair.is_stored_twice(agent, setting):
            parted.append((agent, tensors))
    if not base_is_tied:
        return
    if parted and not setting:
        # The base's config does not tie the two: they start equal and may be trained separately.
        names = ", ".join(f'"{agent.name}"' for agent, _ in parted)
        found.warnings.append(
            f"The base's {quoted(head)} equals its embedding, but not in {names}; they are merged "
            "as two matrices."
        )
        return
    found.copy_of[head] = embedding
    for agent, tensors in parted:
        found.part(agent, head, embedding, is_left_out=ignore_extra)
        tensors[head] = tensors[embedding]


def _follow_base_with_one(
    agents: Sequence[Checkpoint],
    pair: _Pair,
    stored_name: str,
    other: str,
    base_is_tied: bool,
    ignore_extra: bool,
    found: TiedResolution,
) -> None:
    for agent, tensors in zip(agents, found.agents, strict=True):
        if other not in tensors:
            continue
        if stored_name not in tensors:
            if pair.is_tied(agent, base_is_tied):
                tensors[stored_name] = tensors.pop(other)
        elif pair.is_stored_twice(agent, base_is_tied):
            del tensors[other]
        elif base_is_tied:
            del tensors[other]
            found.part(agent, other, stored_name, is_left_out=ignore_extra)
