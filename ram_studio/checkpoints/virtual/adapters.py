"""LoRA adapters, applied to their base as they are read.

As peft writes them: names `base_model.model.NAME.lora_A.weight`, W + scale * B A with
scale = alpha / rank or alpha / sqrt(rank) (rank-stabilized), `alpha_pattern`, and whole tensors
that were also trained (modules_to_save, biases, embeddings). Ranks are those of the stored
matrices. Factors of a stack of experts are in ``expert_adapters``. An adapter that these files do
not fully describe is refused.
"""

from __future__ import annotations

import functools
import hashlib
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ram_studio.algorithm import rounding
from ram_studio.checkpoints.read.checkpoint import Checkpoint
from ram_studio.checkpoints.read.describe import printable, quoted, shown_list, shown_shape
from ram_studio.checkpoints.read.stored_bytes import read_bytes
from ram_studio.checkpoints.read.tensors import (
    MERGED_DTYPES,
    TensorInfo,
    TensorReader,
    VirtualTensor,
)
from ram_studio.checkpoints.virtual.expert_adapters import (
    PACKING_WORDS,
    Packing,
    is_ambiguous,
    make_stack,
    norms_text,
    packing_of,
)
from ram_studio.checkpoints.virtual.experts import Run, TransposedStack, as_stacks
from ram_studio.checkpoints.virtual.low_rank import LowRank, Read
from ram_studio.errors import CompatibilityError

_FACTOR = re.compile(
    r"(?P<module>.+)\.lora_(?P<what>A|B|embedding_A|embedding_B|magnitude_vector)"
    r"(\.default)?(\.weight)?"
)
_TOKENS = ".token_adapter.trainable_tokens_delta"
PREFIX = "base_model.model."
"""Prefix of peft's names."""
_NESTED_LAYER = re.compile(r"(\.base_layer)+$")
_INNER = re.compile(r"\.(base_layer|modules_to_save|original_module)(\.default)?(?=\.)")
_MERGE = "merge it into its base with peft first (merge_and_unload, then save_pretrained)"
_NESTED = re.compile(r"\)[*+{?]")
MOST_ALPHA = 1e30
MOST_FETCHED = 64_000_000
"""Largest factors of a stack that are fetched to show the norms of their update, in bytes."""
MOST_NAME = 300
"""Longest module name for patterns: an untrusted pattern may take cubic time."""
_UNREAD = (
    "lora_bias",
    "use_qalora",
    "alora_invocation_tokens",
    "megatron_config",
    "layer_replication",
    "kasa_config",
    "use_bdlora",
)
_OWN_BASE = ("pissa", "olora", "loftq", "corda", "lora_ga")


@dataclass(frozen=True, slots=True)
class Rows(VirtualTensor):
    """base with some rows replaced, in float32 (peft's `trainable_token_indices`).

    Attributes:
        base: (rows, columns).
        values: (places, columns).
        places: the rows that are replaced, in the order of ``values``.
    """

    base: TensorInfo
    values: TensorInfo
    places: tuple[int, ...]

    def elements(
        self, tensor: TensorInfo, reader: TensorReader, start: int, count: int
    ) -> np.ndarray:
        """Return elements [start, start + count) as float32."""
        found = reader.decoded(self.base, start, count).copy()
        columns = self.base.shape[1]
        for number, row in enumerate(self.places):
            first, last = max(start, row * columns), min(start + count, (row + 1) * columns)
            if first < last:
                at = number * columns + first - row * columns
                found[first - start : last - start] = reader.decoded(self.values, at, last - first)
        return found


def rank_of(tensor: TensorInfo) -> int | None:
    """Return the rank of an adapter's update of a tensor, also in another layout."""
    virtual = tensor.virtual
    while isinstance(virtual, Run | TransposedStack):
        virtual = virtual.of.virtual
    return virtual.rank if isinstance(virtual, LowRank) else None


def apply_adapter(
    agent: Checkpoint, config: Mapping[str, Any], base: Checkpoint, packing: Packing = "ask"
) -> Checkpoint:
    """Return an adapter applied to its base; config: its adapter_config.json.

    Matrices that it changed are float32 (``LowRank``), tensors that were trained whole are in
    their stored dtype, all others are the base's. Where it changed experts that the base stores
    one by one, their layer is in stacks.

    packing: order of the columns of experts if the config does not have it.

    Raises: CompatibilityError for an adapter of another base, of a kind that is not read, that does
    not fit the base's tensors, or of experts with an unknown packing.
    """
    digest = hashlib.blake2b(digest_size=32, person=b"ram-studio-lora")
    for part in (agent.fingerprint, base.fingerprint, json.dumps(config, sort_keys=True), packing):
        digest.update(part.encode())
    applied = agent.on_base(base, _overlay_adapter(agent, config, base, packing))
    return replace(applied, fingerprint=digest.hexdigest())


def _overlay_adapter(
    agent: Checkpoint, config: Mapping[str, Any], base: Checkpoint, packing: Packing
) -> dict[str, TensorInfo]:
    """Return an adapter's tensors on its base."""
    _check_kind(config, agent.at)
    _check_patterns(config, agent.at)
    factors, whole = _sort_factors(agent)
    tensors = dict(base.tensors)
    problems = []
    for name, tensor in whole.items():
        made = _whole_or_rows(name, tensor, tensors, config)
        if isinstance(made, str):
            problems.append(made)
        else:
            tensors[made.name] = made
    # An embedding may be saved whole beside its factors, which are then applied to it.
    for nested, parts in factors.items():
        module = _NESTED_LAYER.sub("", nested)
        if (weight := tensors.get(f"{module}.weight")) is not None:
            made = _build_update(module, parts, weight, config)
        else:
            tensors = as_stacks(tensors, module) or tensors
            made = _made_stack(agent, module, parts, tensors, config, packing)
        if isinstance(made, str):
            problems.append(made)
        else:
            tensors[made.name] = made
    if problems or not factors:
        raise CompatibilityError(
            f"{agent.at} is not an adapter of this base: "
            f"{shown_list(problems) or 'lora_A and lora_B are missing'}. Choose the base it was "
            f"trained from ({printable(config.get('base_model_name_or_path') or 'not named')}). If "
            f"this is it, {_MERGE}."
        )
    return tensors


def _whole_or_rows(
    name: str,
    tensor: TensorInfo,
    below: Mapping[str, TensorInfo],
    config: Mapping[str, Any],
) -> TensorInfo | str:
    """Return a tensor that was trained whole, or a matrix with trained rows; or the reason."""
    module = name.removesuffix(_TOKENS)
    if module == name:
        known = f"tensor {quoted(name)} is not in the base"
        return tensor.renamed(name) if name in below else known
    weight = below.get(f"{module}.weight")
    if weight is None:
        return f"tensor {quoted(f'{module}.weight')} is not in the base"
    indices = config.get("trainable_token_indices")
    if isinstance(indices, dict):
        indices = next(
            (own for key, own in indices.items() if f".{module}".endswith(f".{key}")), None
        )
    places = tuple(indices) if isinstance(indices, list) else ()
    rows = weight.shape[0] if len(weight.shape) == 2 else 0
    is_sound = all(type(one) is int and 0 <= one < rows for one in places)
    if not is_sound or tensor.shape != (len(places), *weight.shape[1:]) or not places:
        return (
            f"{quoted(module)} has {shown_shape(tensor.shape)} for rows of "
            f"{shown_shape(weight.shape)} that trainable_token_indices does not name"
        )
    if len(set(places)) < len(places):
        return f"{quoted(module)} has two values for one row: trainable_token_indices repeats it"
    if any(t.dtype not in MERGED_DTYPES for t in (tensor, weight)):
        return f"{quoted(module)} is stored as {tensor.dtype} on {weight.dtype}"
    made = Rows(weight, tensor, places)
    return tensor.replaced_by(made, name=weight.name, shape=weight.shape, dtype="F32")


def _check_patterns(config: Mapping[str, Any], at: str) -> None:
    """Refuse scales that are not numbers, and patterns that may never end."""
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
            f"{at} holds an adapter of type {printable(kind, 40)}; only LoRA adapters are "
            f"read: {_MERGE}."
        )
    unread = [key for key in _UNREAD if config.get(key)]
    start = str(config.get("init_lora_weights", "")).lower()
    if unread or start.startswith(_OWN_BASE):
        what = ", ".join(unread) or f"init_lora_weights: {printable(start, 40)}"
        raise CompatibilityError(
            f"{at} holds a LoRA adapter with {what}, which is more than W + scale B A on the base "
            f"as it is stored; {_MERGE}."
        )


def _sort_factors(
    agent: Checkpoint,
) -> tuple[dict[str, dict[str, TensorInfo]], dict[str, TensorInfo]]:
    """Return the factors by module and kind, and whole tensors by the base's name.

    Raises: CompatibilityError for two of one kind.
    """
    factors: dict[str, dict[str, TensorInfo]] = {}
    whole: dict[str, TensorInfo] = {}
    for stored, tensor in agent.tensors.items():
        name = stored.removeprefix(PREFIX)
        if match := _FACTOR.fullmatch(name):
            other = factors.setdefault(match["module"], {}).setdefault(match["what"], tensor)
        else:
            other = whole.setdefault(_INNER.sub("", name), tensor)
        if other is not tensor:
            raise CompatibilityError(
                f"{agent.at} has {quoted(other.name)} and {quoted(stored)}, of which only one can "
                "be read; save it again with peft's save_pretrained."
            )
    return factors, whole


def _build_update(
    module: str,
    parts: Mapping[str, TensorInfo],
    weight: TensorInfo,
    config: Mapping[str, Any],
) -> TensorInfo | str:
    """Return a module's weight with its update, or the reason why not."""
    is_embedding = "embedding_A" in parts
    a, b = (parts.get(f"{'embedding_' * is_embedding}{side}") for side in "AB")
    magnitude = parts.get("magnitude_vector")
    if len(parts) > 2 + (magnitude is not None):
        return f"{quoted(module)} has factors of two kinds"
    if a is None or b is None:
        return f"{quoted(module)} has only one of lora_A and lora_B"
    is_turned = is_embedding or bool(config.get("fan_in_fan_out"))
    fits = len(a.shape) == len(b.shape) == len(weight.shape) == 2 and a.shape[0] == b.shape[1] > 0
    shape: tuple[int, ...] = (b.shape[0], a.shape[1]) if fits else ()
    if (shape[::-1] if is_turned else shape) != weight.shape or not fits:
        return (
            f"{quoted(module)} has lora_A {shown_shape(a.shape)} and lora_B "
            f"{shown_shape(b.shape)}, the base's weight is {shown_shape(weight.shape)}"
        )
    if any(t.dtype not in MERGED_DTYPES for t in (a, b, weight, magnitude or a)):
        dtypes = " and ".join(t.dtype for t in (a, b, *((magnitude,) if magnitude else ())))
        return f"{quoted(module)} is stored as {dtypes} on {weight.dtype}"
    if magnitude is not None and (is_turned or magnitude.numel != weight.shape[0]):
        return f"{quoted(module)} is DoRA on a layer that is not linear"
    if bool(use_dora := config.get("use_dora")) != (magnitude is not None):
        which = "no" if magnitude is None else "a"
        config_text = f"its config has use_dora {use_dora}"
        return f"{quoted(module)} has {which} magnitude_vector, and {config_text}"
    scale = _scale(module, a.shape[0], config)
    if isinstance(scale, str):
        return scale
    made = LowRank(weight, b, a, scale, is_turned, magnitude=magnitude)
    return a.replaced_by(made, name=weight.name, shape=weight.shape, dtype="F32")


def _made_stack(
    agent: Checkpoint,
    module: str,
    parts: Mapping[str, TensorInfo],
    below: Mapping[str, TensorInfo],
    config: Mapping[str, Any],
    packing: Packing,
) -> TensorInfo | str:
    """Return a stack of experts with its update, or the reason why not.

    Raises: CompatibilityError where the order of the columns is not known.
    """
    if parts.keys() != {"A", "B"}:
        return f"tensor {quoted(f'{module}.weight')} is not in the base"
    plain = make_stack(module, (parts["A"], parts["B"]), below, config.get("target_parameters"))
    if isinstance(plain, str):
        return plain
    # A pattern is matched with the parameter's name.
    scale = _scale(plain.base.name, plain.rank, config)
    if isinstance(scale, str):
        return scale
    made = replace(plain, scale=scale)
    grouped = replace(made, is_expert_major=True)
    order = packing_of(config, packing)
    if order == "ask" and is_ambiguous(made):
        norms = norms_text(made, grouped, _reader_of(agent, *parts.values()))
        raise CompatibilityError(
            f"{agent.at} holds a LoRA on stacked experts, and its files do not define the order "
            f"of lora_B's columns.{norms} To read it, {PACKING_WORDS}. For this agent alone: "
            f"experts_packing: {{{agent.name}: ORDER}} in a recipe, or --experts-packing "
            f"{agent.name}=ORDER."
        )
    made = grouped if order == "expert-major" else made
    return parts["A"].replaced_by(made, name=made.base.name, shape=made.base.shape, dtype="F32")


def _reader_of(agent: Checkpoint, *factors: TensorInfo) -> Read | None:
    """Return a reader of factors' elements as float32, remote ones only if they are small."""
    size = sum(factor.nbytes for factor in factors)
    if not agent.is_local and (not agent.remote or size > MOST_FETCHED):
        return None

    @functools.cache
    def whole(tensor: TensorInfo) -> bytes:
        return read_bytes(tensor, 0, tensor.nbytes, agent.remote)

    def read(tensor: TensorInfo, start: int, count: int) -> np.ndarray:
        storage = rounding.STORAGE[tensor.dtype]
        stored = np.frombuffer(whole(tensor), storage, count, start * storage.itemsize)
        return rounding.decode(stored, tensor.dtype)

    return read


def _scale(module: str, rank: int, config: Mapping[str, Any]) -> float | str:
    """Return the factor on a module's update, or why it is unknown."""
    if config.get("alpha_pattern") and len(module) > MOST_NAME:
        return f"{quoted(module)} is too long a name for an alpha_pattern"
    alpha = _by_pattern(config.get("alpha_pattern"), module, config.get("lora_alpha", 8))
    return float(alpha) / (math.sqrt(rank) if config.get("use_rslora") else rank)


def _by_pattern(patterns: object, module: str, default: Any) -> Any:
    """Return a pattern's value for a module, matched as in peft: whole names, or their ends."""
    for pattern, value in patterns.items() if isinstance(patterns, dict) else ():
        try:
            if re.fullmatch(rf"(.*\.)?({pattern})", module):
                return value
        except re.error:
            continue
    return default
