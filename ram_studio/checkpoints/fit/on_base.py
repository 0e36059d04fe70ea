"""Agents stored as what differs from a base, read as one checkpoint: LoRA adapters, and deltas.

Adapters follow peft: names `base_model.model.NAME.lora_A.weight`, W + scale * B A with
scale = alpha / rank or alpha / sqrt(rank) (rank-stabilised), `alpha_pattern`, and whole tensors
that were trained beside (modules_to_save, biases, embeddings). Ranks are those of the stored
matrices. An adapter whose meaning lies elsewhere than in these files is refused.

Deltas have the layout of TRL's weight synchronisation: for each changed tensor `NAME.indices`, flat
and rising (int32, int64 for larger tensors), and `NAME.values`, the agent's own elements.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ram_studio.checkpoints.fit.tied import find_pair, tie_setting
from ram_studio.checkpoints.read.checkpoint import Checkpoint
from ram_studio.checkpoints.read.content_hash import hash_bytes, hash_tensor
from ram_studio.checkpoints.read.derived import LowRank, Sparse
from ram_studio.checkpoints.read.describe import printable, quoted, shown_list, shown_shape
from ram_studio.checkpoints.read.header import MERGED_DTYPES, TensorInfo
from ram_studio.errors import CompatibilityError

_FACTOR = re.compile(
    r"(?P<module>.+)\.lora_(?P<what>A|B|embedding_A|embedding_B|magnitude_vector)"
    r"(\.default)?(\.weight)?"
)
_PREFIX = "base_model.model."
_INNER = re.compile(r"\.(base_layer|modules_to_save|original_module)(\.default)?(?=\.)")
_MERGE = "merge it into its base with peft first (merge_and_unload, then save_pretrained)"
_NESTED = re.compile(r"\)[*+{?]")
MOST_ALPHA = 1e30
MOST_NAME = 300
"""Characters of a module that patterns are matched with: a stranger's may take their cube."""
_UNREAD = ("lora_bias", "use_qalora", "alora_invocation_tokens", "megatron_config")
_OWN_BASE = ("pissa", "olora", "loftq", "corda", "lora_ga")


def on_base(agent: Checkpoint, base: Checkpoint) -> Checkpoint:
    """Return an adapter applied to its base, or the agent that a delta is of; others as they are.

    Matrices that an adapter changed are float32 (``LowRank``), tensors that were trained whole as
    they are stored, elements of a delta laid over the base's (``Sparse``), all else the base's.

    Raises: CompatibilityError for one of another base, one that does not fit its tensors, and an
    adapter of a kind that is not read.
    """
    if base.adapter is not None or base.delta is not None:
        what, of = "LoRA adapter", "the agents were trained from"
        if base.adapter is None:
            what, of = "delta", "it was made from"
        raise CompatibilityError(
            f"{base.at} is a {what}; give the whole model that {of} as the base."
        )
    if agent.adapter is not None:
        tensors = _applied(agent, agent.adapter, base)
        digest = hashlib.blake2b(digest_size=32, person=b"ram-studio-lora")
        settings = json.dumps(agent.adapter, sort_keys=True)
        for part in (agent.fingerprint, base.fingerprint, settings):
            digest.update(part.encode())
        agent = replace(agent, fingerprint=digest.hexdigest())
    elif agent.delta is not None:
        tensors = _rebuilt(agent, agent.delta, base)
    else:
        return agent
    return replace(
        agent,
        tensors=tensors,
        config=base.config,
        is_local=agent.is_local and base.is_local,
        remote={**base.remote, **agent.remote},
    )


def _applied(
    agent: Checkpoint, config: Mapping[str, Any], base: Checkpoint
) -> dict[str, TensorInfo]:
    """Return an adapter's tensors on its base."""
    _check_kind(config, agent.at)
    _check_patterns(config, agent.at)
    factors, whole = _sorted(agent.tensors)
    tensors = dict(base.tensors)
    problems = []
    for name, tensor in whole.items():
        if name in tensors:
            tensors[name] = replace(tensor, name=name)
        else:
            problems.append(f"tensor {quoted(name)} is not in the base")
    # An embedding may be saved whole beside its factors, which then go on top of it.
    for module, parts in factors.items():
        made = _made(module, parts, tensors, config)
        if isinstance(made, str):
            problems.append(made)
        else:
            tensors[made.name] = made
    if problems or not factors:
        raise CompatibilityError(
            f"{agent.at} is not an adapter of this base: "
            f"{shown_list(problems) or 'it has no lora_A and lora_B'}. Choose the base that it was "
            f"trained from ({printable(config.get('base_model_name_or_path') or 'not named')})."
        )
    _follow_ties(tensors, base)
    return tensors


def _check_patterns(config: Mapping[str, Any], at: str) -> None:
    """Refuse scales that are no numbers, and patterns that a stranger could make never end."""
    given = config.get("alpha_pattern") or {}
    patterns = given if isinstance(given, dict) else {"": "not an object"}
    values = [config.get("lora_alpha", 8), *patterns.values()]
    is_sound = all(isinstance(v, int | float) and abs(v) < MOST_ALPHA for v in values)
    for pattern in patterns:
        repeats = sum(pattern.count(sign) for sign in "*+{?")
        is_sound &= len(pattern) <= 300 and repeats <= 3 and not _NESTED.search(pattern)
    if not is_sound:
        raise CompatibilityError(
            f"{at} has a lora_alpha or an alpha_pattern that is not read; expected numbers, by "
            f"names of modules or plain patterns of them. If you trust it, {_MERGE}."
        )


def _check_kind(config: Mapping[str, Any], at: str) -> None:
    kind = config.get("peft_type")
    if kind != "LORA":
        raise CompatibilityError(
            f"{at} holds an adapter of type {printable(kind, 40)}; LoRA adapters are read, others "
            f"not: {_MERGE}."
        )
    unread = [key for key in _UNREAD if config.get(key)]
    start = str(config.get("init_lora_weights", "")).lower()
    if unread or start.startswith(_OWN_BASE):
        what = ", ".join(unread) or f"init_lora_weights: {printable(start, 40)}"
        raise CompatibilityError(
            f"{at} holds a LoRA adapter with {what}, which is more than W + scale B A on the base "
            f"as it is stored; {_MERGE}."
        )


def _sorted(
    tensors: Mapping[str, TensorInfo],
) -> tuple[dict[str, dict[str, TensorInfo]], dict[str, TensorInfo]]:
    """Return the factors by module and kind, and whole tensors by the base's name."""
    factors: dict[str, dict[str, TensorInfo]] = {}
    whole = {}
    for stored, tensor in tensors.items():
        name = stored.removeprefix(_PREFIX)
        if match := _FACTOR.fullmatch(name):
            factors.setdefault(match["module"], {})[match["what"]] = tensor
        else:
            whole[_INNER.sub("", name)] = tensor
    return factors, whole


def _made(
    module: str,
    parts: Mapping[str, TensorInfo],
    below: Mapping[str, TensorInfo],
    config: Mapping[str, Any],
) -> TensorInfo | str:
    """Return a module's weight with its update, or why there is none."""
    name = f"{module}.weight"
    weight = below.get(name)
    if weight is None:
        return f"tensor {quoted(name)} is not in the base"
    is_embedding = "embedding_A" in parts
    a, b = (parts.get(f"{'embedding_' * is_embedding}{side}") for side in "AB")
    if a is None or b is None:
        return f"{quoted(module)} has only one of lora_A and lora_B"
    is_transposed = is_embedding or bool(config.get("fan_in_fan_out"))
    left, right = (a, b) if is_transposed else (b, a)
    fits = len(a.shape) == len(b.shape) == len(weight.shape) == 2 and a.shape[0] == b.shape[1] > 0
    shape: tuple[int, ...] = (b.shape[0], a.shape[1]) if fits else ()
    if (shape[::-1] if is_transposed else shape) != weight.shape or not fits:
        return (
            f"{quoted(module)} has lora_A {shown_shape(a.shape)} and lora_B "
            f"{shown_shape(b.shape)}, the base's weight is {shown_shape(weight.shape)}"
        )
    magnitude = parts.get("magnitude_vector")
    if any(t.dtype not in MERGED_DTYPES for t in (a, b, weight, magnitude or a)):
        dtypes = " and ".join(t.dtype for t in (a, b, *((magnitude,) if magnitude else ())))
        return f"{quoted(module)} is stored as {dtypes} on {weight.dtype}"
    if magnitude is not None and (is_transposed or magnitude.numel != weight.shape[0]):
        return f"{quoted(module)} is DoRA of another kind of layer than a linear one"
    if config.get("alpha_pattern") and len(module) > MOST_NAME:
        return f"{quoted(module)} is too long a name for an alpha_pattern"
    alpha = _by_pattern(config.get("alpha_pattern"), module, config.get("lora_alpha", 8))
    rank = a.shape[0]
    scale = float(alpha) / (math.sqrt(rank) if config.get("use_rslora") else rank)
    derived = LowRank(weight, left, right, scale, is_transposed, magnitude)
    return TensorInfo(name, "F32", weight.shape, a.path, 0, 4 * weight.numel, derived)


def _by_pattern(patterns: object, module: str, default: Any) -> Any:
    """Return what a pattern gives a module, as peft matches them: whole names, or their ends."""
    for pattern, value in patterns.items() if isinstance(patterns, dict) else ():
        try:
            if re.fullmatch(rf"(.*\.)?({pattern})", module):
                return value
        except re.error:
            continue
    return default


def _follow_ties(tensors: dict[str, TensorInfo], base: Checkpoint) -> None:
    """Let head and embedding stay one matrix where the base stores it twice and says they are."""
    pair = find_pair([base])
    if pair is None or not tie_setting(base) or not all(name in tensors for name in pair):
        return
    changed = [name for name in pair if tensors[name] is not base.tensors[name]]
    if len(changed) == 1:
        [other] = set(pair) - set(changed)
        del tensors[other]


CONTENT = "base_content"
"""Key of a delta's metadata: what its base holds, however it is cut into files."""


def content_of(tensors: Mapping[str, str]) -> str:
    """Return one hash of a model's tensors, given each one's BLAKE3 by name."""
    lines = "".join(f"{name}:{digest}\n" for name, digest in sorted(tensors.items()))
    return hash_bytes(lines.encode())


def _same_content(delta: Mapping[str, str], base: Checkpoint) -> bool:
    """Say whether a base in other files holds what a delta was made from; reads all of it."""
    if CONTENT not in delta or any(t.derived is not None for t in base.tensors.values()):
        return False
    return content_of({n: hash_tensor(t) for n, t in base.tensors.items()}) == delta[CONTENT]


def _rebuilt(
    agent: Checkpoint, delta: Mapping[str, str], base: Checkpoint
) -> dict[str, TensorInfo]:
    """Return the tensors of the agent that a delta is of."""
    made = delta.get("base")
    # Of files still on the Hub the fingerprint is another one.
    if base.is_local and made != base.fingerprint and not _same_content(delta, base):
        raise CompatibilityError(
            f"{agent.at} is a delta of another base: it was made from {printable(made, 16)}..., "
            f"the base given is {base.fingerprint[:16]}... Give the base it was made from, the "
            "same files."
        )
    tensors = dict(base.tensors)
    for stored in agent.tensors.values():
        name, _, part = stored.name.rpartition(".")
        if part not in ("indices", "values"):
            continue
        below = base.tensors.get(name)
        places, values = (agent.tensors.get(f"{name}.{of}") for of in ("indices", "values"))
        if (
            below is None
            or places is None
            or values is None
            or values.dtype != below.dtype
            or places.dtype not in ("I32", "I64")
            or places.numel != values.numel
        ):
            raise CompatibilityError(
                f"{agent.at}: {quoted(stored.name)} does not fit the base's {quoted(name)}; the "
                "file is damaged, make it again."
            )
        derived = Sparse(below, places, values)
        tensors[name] = TensorInfo(
            name, below.dtype, below.shape, places.path, 0, below.nbytes, derived
        )
    return tensors
