"""Tied heads: one matrix stored once or twice, under the embedding's name or the head's.

A language model whose output head is its input embedding may store the matrix under either name or
under both. Merged checkpoints follow the base: this module makes every agent look as if it stored
what the base stores, so that the rest of the code sees tensors of the same names. A matrix stored
twice is merged into both places but counted once (the authors' script counts it twice).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from ram_studio.checkpoints.checkpoint import Checkpoint
from ram_studio.checkpoints.comparison import same_bytes
from ram_studio.checkpoints.describe import quoted, who
from ram_studio.checkpoints.header import TensorInfo

HEAD_NAMES = ("lm_head.weight", "embed_out.weight")
EMBEDDING_NAMES = (
    "embed_tokens.weight",
    "wte.weight",
    "embed_in.weight",
    "word_embeddings.weight",
    "tok_embeddings.weight",
    "shared.weight",
)
# Biases of the head have one element per row of the vocabulary, too.
_VOCABULARY_NAMES = (*HEAD_NAMES, *EMBEDDING_NAMES, "lm_head.bias")


@dataclass
class TiedResolution:
    """Agents' tensors under the base's names, and what was found on the way.

    Attributes:
        agents: per agent, its tensors by the base's name for them; a redundant head is left out.
        copy_of: {head: embedding} when the base stores the matrix twice; not counted again.
        problems: (agent, tensor name, sentence) for heads that cannot be merged as asked.
        warnings: sentences.
    """

    agents: list[dict[str, TensorInfo]]
    copy_of: dict[str, str] = field(default_factory=dict)
    problems: list[tuple[str, str, str]] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


def _ends_with(name: str, endings: Iterable[str]) -> bool:
    return any(name == ending or name.endswith("." + ending) for ending in endings)


def has_vocabulary_rows(name: str) -> bool:
    """Say whether dimension 0 of this tensor counts the vocabulary (embedding or head)."""
    return _ends_with(name, _VOCABULARY_NAMES)


def tie_setting(checkpoint: Checkpoint) -> bool | None:
    """Return what config.json says of tie_word_embeddings; None when it says nothing."""
    for config in (checkpoint.config, checkpoint.config.get("text_config")):
        if isinstance(config, dict) and isinstance(config.get("tie_word_embeddings"), bool):
            return config["tie_word_embeddings"]
    return None


def find_pair(checkpoints: Sequence[Checkpoint]) -> tuple[str, str] | None:
    """Return the names (embedding, head) of the one pair that may be tied, if there is one."""
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


def _stores_equal_pair(
    checkpoint: Checkpoint, pair: tuple[str, str], fallback: bool | None = None
) -> bool:
    """Say whether a checkpoint that stores both matrices stores the same one twice.

    Of a checkpoint that is not downloaded the bytes are unknown: its config decides, or `fallback`
    where that says nothing; the question is asked again after the download.
    """
    embedding, head = (checkpoint.tensors[name] for name in pair)
    if (embedding.dtype, embedding.shape) != (head.dtype, head.shape):
        return False
    if not checkpoint.is_local:
        setting = tie_setting(checkpoint)
        return bool(fallback if setting is None else setting)
    return same_bytes(embedding, head, agents=(checkpoint.name, checkpoint.name))


def is_tied(
    checkpoint: Checkpoint, pair: tuple[str, str] | None, fallback: bool | None = True
) -> bool:
    """Say whether head and embedding are one matrix in this checkpoint.

    Stored twice: equal bytes. Stored once: what the config says, or `fallback` where it says
    nothing (a base without a stored head can only be tied).
    """
    if pair is None:
        return False
    stored = [name for name in pair if name in checkpoint.tensors]
    if len(stored) == 2:
        return _stores_equal_pair(checkpoint, pair)
    if not stored:
        return False
    setting = tie_setting(checkpoint)
    return bool(fallback if setting is None else setting)


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
    pair = find_pair([base, *agents])
    if pair is None:
        return found
    stored = [name for name in pair if name in base.tensors]
    if len(stored) == 2:
        _follow_base_with_both(base, agents, pair, ignore_extra, found)
    elif len(stored) == 1:
        kept = stored[0]
        other = pair[1] if kept == pair[0] else pair[0]
        _follow_base_with_one(base, agents, pair, kept, other, ignore_extra, found)
    return found


def _follow_base_with_both(
    base: Checkpoint,
    agents: Sequence[Checkpoint],
    pair: tuple[str, str],
    ignore_extra: bool,
    found: TiedResolution,
) -> None:
    embedding, head = pair
    base_is_tied = is_tied(base, pair)
    setting = tie_setting(base)
    if setting and not base_is_tied:
        found.warnings.append(
            f"{who(base.name)}config.json says tie_word_embeddings, but the stored {quoted(head)} "
            f"differs from {quoted(embedding)}; they are merged as two matrices."
        )
    parted = []
    for agent, tensors in zip(agents, found.agents, strict=True):
        there = [name for name in pair if name in tensors]
        if len(there) == 1 and is_tied(agent, pair, base_is_tied):
            tensors[head if there == [embedding] else embedding] = tensors[there[0]]
        elif len(there) == 2 and base_is_tied and not _stores_equal_pair(agent, pair, setting):
            parted.append((agent, tensors))
    if not base_is_tied:
        return
    if parted and not setting:
        # The base's config does not bind the two: they start equal and may be trained apart.
        names = ", ".join(f'"{agent.name}"' for agent, _ in parted)
        found.warnings.append(
            f"The base's {quoted(head)} equals its embedding, but not in {names}; they are merged "
            "as two matrices."
        )
        return
    found.copy_of[head] = embedding
    for agent, tensors in parted:
        if ignore_extra:
            tensors[head] = tensors[embedding]
            found.warnings.append(_left_out(agent, head, embedding))
        else:
            found.problems.append((agent.name, head, _parted(head, embedding)))


def _follow_base_with_one(
    base: Checkpoint,
    agents: Sequence[Checkpoint],
    pair: tuple[str, str],
    kept: str,
    other: str,
    ignore_extra: bool,
    found: TiedResolution,
) -> None:
    base_is_tied = is_tied(base, pair)
    for agent, tensors in zip(agents, found.agents, strict=True):
        if other not in tensors:
            continue
        if kept not in tensors:
            if is_tied(agent, pair, base_is_tied):
                tensors[kept] = tensors.pop(other)
        elif _stores_equal_pair(agent, pair, base_is_tied):
            del tensors[other]
        elif base_is_tied:
            del tensors[other]
            if ignore_extra:
                found.warnings.append(_left_out(agent, other, kept))
            else:
                found.problems.append((agent.name, other, _parted(other, kept)))


def _parted(head: str, embedding: str) -> str:
    return f"differs from {quoted(embedding)}, which is the same matrix in the base (tied head)"


def _left_out(agent: Checkpoint, head: str, embedding: str) -> str:
    return (
        f"{who(agent.name)}{quoted(head)} differs from {quoted(embedding)} though the base ties "
        f"them; the agent's {quoted(head)} is left out, as asked by extra: ignore."
    )
