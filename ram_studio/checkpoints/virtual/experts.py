"""Matches experts in different layouts, by headers: reads an agent in its base's layout.

Libraries store a layer's experts one by one, (out, in) as every linear layer,

    NAME.experts.0.gate_proj.weight  up_proj  down_proj      (Mixtral: w1  w3  w2)

or as stacks, NAME.experts.gate_up_proj (experts, 2 inner, hidden) with gate above up, and
NAME.experts.down_proj (experts, hidden, inner); some transpose both matrices (Llama 4, Qwen3-VL),
and an agent may store gate above up for each expert (NAME.experts.0.gate_up_proj.weight). The
shapes of both matrices show whether they are transposed: hidden = inner = 2 inner is impossible.
gpt-oss interleaves gate and up and is read in its own layout only.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from ram_studio.algorithm.meters.storage import Finding
from ram_studio.checkpoints.read.checkpoint import Checkpoint
from ram_studio.checkpoints.read.describe import plural
from ram_studio.checkpoints.read.tensors import TensorInfo, TensorReader, VirtualTensor
from ram_studio.checkpoints.virtual.distributed import Box, Boxes

_SINGLE = re.compile(
    r"(?P<stem>(?:.+\.)?experts)\.(?P<expert>\d{1,5})\."
    r"(?P<part>gate_proj|up_proj|down_proj|w1|w2|w3)(?P<weight>\.weight)?"
)
_STACK = re.compile(r"(?P<stem>(?:.+\.)?experts)\.(?P<part>gate_up_proj|down_proj)(\.weight)?")
_PAIR = re.compile(r"(?P<stem>(?:.+\.)?experts\.\d{1,5})\.gate_up_proj(?P<weight>\.weight)?")
_PARTS = {"gate_proj": 0, "w1": 0, "up_proj": 1, "w3": 1, "down_proj": 2, "w2": 2}
_INTERLEAVED = ("gpt_oss",)


@dataclass(frozen=True, slots=True)
class Run(VirtualTensor):
    """Consecutive elements of another tensor of the same dtype, from element `start` on."""

    of: TensorInfo
    start: int

    def read_into(
        self, tensor: TensorInfo, reader: TensorReader, byte_start: int, buffer: memoryview
    ) -> None:
        """Fill a buffer with bytes of the tensor."""
        reader.read_into(self.of, self.start * tensor.element_bytes + byte_start, buffer)


@dataclass(frozen=True, slots=True)
class TransposedStack(VirtualTensor):
    """Each matrix of a stack transposed: (..., columns, rows) of `of` as (..., rows, columns)."""

    of: TensorInfo

    def elements(
        self, tensor: TensorInfo, reader: TensorReader, start: int, count: int
    ) -> np.ndarray:
        """Return elements [start, start + count); a matrix is transposed once and cached."""
        rows, columns = self.of.shape[-2:]
        dtype = np.dtype(f"u{tensor.element_bytes}")
        nbytes = rows * columns * dtype.itemsize
        # Its inputs may be many: its name is unique within a pass.
        key = replace(self.of, virtual=None)

        def transpose_matrix(number: int) -> np.ndarray:
            raw = reader.stored(self.of, number * nbytes, nbytes)
            return np.ascontiguousarray(raw.view(dtype).reshape(rows, columns).T).reshape(-1)

        return from_matrices(
            start,
            count,
            rows * columns,
            lambda number: reader.cache.get(key, lambda: transpose_matrix(number), part=number),
        )


def from_matrices(
    start: int, count: int, size: int, matrix: Callable[[int], np.ndarray]
) -> np.ndarray:
    """Return elements [start, start + count) of matrices of `size` elements, one after another."""
    found = []
    for number in range(start // size, -(-(start + count) // size)):
        begin, end = max(start, number * size), min(start + count, (number + 1) * size)
        found.append(matrix(number)[begin - number * size : end - number * size])
    return np.concatenate(found)


@dataclass
class _Layer:
    """The experts of one layer, in any layout, as names of a checkpoint's tensors.

    single: by expert and part (gate, up, down); stack: gate_up_proj and down_proj.
    """

    single: dict[tuple[int, int], str]
    stack: dict[str, str]

    @property
    def is_stacked(self) -> bool:
        return len(self.stack) == 2 and not self.single

    @property
    def is_single(self) -> bool:
        experts = len(self.single) // 3
        return (
            bool(self.single)
            and not self.stack
            and self.single.keys()
            == {(expert, part) for expert in range(experts) for part in range(3)}
        )


def in_layout_of(base: Checkpoint, agent: Checkpoint) -> tuple[Checkpoint, Finding | None]:
    """Return an agent with its experts in the base's layout, and a note where they were not.

    Layers that cannot be matched stay unchanged; the fit check reports them.
    """
    if any(c.config.get("model_type") in _INTERLEAVED for c in (base, agent)):
        return agent, None
    tensors = _split_fused(base.tensors, agent.tensors)
    ours, theirs, changed = _layers(base.tensors), _layers(tensors), 0
    for stem in ours.keys() & theirs.keys():
        made = _match_layer(ours[stem], theirs[stem], base.tensors, tensors)
        if made:
            for name in (*theirs[stem].single.values(), *theirs[stem].stack.values()):
                del tensors[name]
            tensors |= made
        if made or any(name not in agent.tensors for name in theirs[stem].single.values()):
            changed += 1
    if not changed:
        return agent, None
    text = (
        f"{agent.who}experts of {plural(changed, 'layer')} are stored in another layout than "
        "the base's; they are read in the base's layout."
    )
    note = Finding("sources", text, (agent.name,), level="note")
    return replace(agent, tensors=tensors), note


def _split_fused(
    base: Mapping[str, TensorInfo], agent: Mapping[str, TensorInfo]
) -> dict[str, TensorInfo]:
    """Return an agent's tensors, with an expert's gate and up split if the base's are."""
    tensors = dict(agent)
    for name, pair in agent.items():
        match = _PAIR.fullmatch(name)
        if match is None or name in base or len(pair.shape) != 2 or pair.shape[0] % 2:
            continue
        shape = pair.shape[0] // 2, pair.shape[1]
        for which, part in enumerate(("gate_proj", "up_proj")):
            own = f"{match['stem']}.{part}{match['weight'] or ''}"
            start = which * shape[0] * shape[1]
            tensors[own] = pair.replaced_by(Run(pair, start), name=own, shape=shape)
        del tensors[name]
    return tensors


def _layers(tensors: Mapping[str, TensorInfo]) -> dict[str, _Layer]:
    found: dict[str, _Layer] = {}
    for name in tensors:
        if (single := _SINGLE.fullmatch(name)) is not None:
            layer = found.setdefault(single["stem"], _Layer({}, {}))
            layer.single[int(single["expert"]), _PARTS[single["part"]]] = name
        elif (stack := _STACK.fullmatch(name)) is not None:
            found.setdefault(stack["stem"], _Layer({}, {})).stack[stack["part"]] = name
    return found


def _match_layer(
    ours: _Layer, theirs: _Layer, base: Mapping[str, TensorInfo], agent: Mapping[str, TensorInfo]
) -> dict[str, TensorInfo] | None:
    """Return a layer's experts by the base's names, None where they are equal or do not fit."""
    if ours.is_single and theirs.is_stacked:
        return _split_stacks(ours, theirs, base, agent)
    stacks: dict[str, TensorInfo] | None = None
    if ours.is_stacked and theirs.is_single:
        stacks = _plain_stacks(theirs, agent)
    elif ours.is_stacked and theirs.is_stacked:
        stacks = {part: agent[name] for part, name in theirs.stack.items()}
    if stacks is None:
        return None
    is_turned = _is_turned(
        {part: stack.shape for part, stack in stacks.items()},
        {part: base[name].shape for part, name in ours.stack.items()},
    )
    if is_turned is None or (theirs.is_stacked and not is_turned):
        return None
    # Renamed first: a transposed matrix is cached by the name of its source.
    made = {ours.stack[part]: stack.renamed(ours.stack[part]) for part, stack in stacks.items()}
    return {name: _turn(stack) for name, stack in made.items()} if is_turned else made


def _plain_stacks(layer: _Layer, tensors: Mapping[str, TensorInfo]) -> dict[str, TensorInfo] | None:
    """Return gate_up_proj and down_proj of single experts, None where their shapes differ."""
    parts = [tensors[layer.single[key]] for key in sorted(layer.single)]
    gate, up, down = parts[:3]
    is_alike = all(
        (p.dtype, p.shape) == (parts[i % 3].dtype, parts[i % 3].shape) for i, p in enumerate(parts)
    )
    if not is_alike or gate.shape != up.shape or gate.shape != down.shape[::-1]:
        return None
    if len({p.dtype for p in parts[:3]}) > 1 or len(gate.shape) != 2:
        return None
    inner, hidden = gate.shape
    count = len(parts) // 3
    shapes = {"gate_up_proj": (count, 2 * inner, hidden), "down_proj": (count, hidden, inner)}
    boxes: dict[str, list[Box]] = {"gate_up_proj": [], "down_proj": []}
    for i, part in enumerate(parts):
        expert, which = divmod(i, 3)
        key = "down_proj" if which == 2 else "gate_up_proj"
        row = inner if which == 1 else 0
        boxes[key].append(Box(part, (expert, row, 0), (1, *part.shape)))
    return {
        key: gate.replaced_by(Boxes(tuple(own)), name=key, shape=shapes[key])
        for key, own in boxes.items()
    }


def as_stacks(tensors: Mapping[str, TensorInfo], stem: str) -> dict[str, TensorInfo] | None:
    """Return a model's tensors with the single experts of one layer stacked, as libraries do.

    stem: prefix of the names of the layer's experts. None where it has no single experts.
    """
    layer = _layers({n: t for n, t in tensors.items() if n.startswith(f"{stem}.")}).get(stem)
    if layer is None or not layer.is_single:
        return None
    plain = _plain_stacks(layer, tensors)
    if plain is None:
        return None
    singles = set(layer.single.values())
    rest = {name: tensor for name, tensor in tensors.items() if name not in singles}
    made = {f"{stem}.{part}": stack for part, stack in plain.items()}
    return rest | {name: stack.renamed(name) for name, stack in made.items()}


def _split_stacks(
    ours: _Layer, theirs: _Layer, base: Mapping[str, TensorInfo], agent: Mapping[str, TensorInfo]
) -> dict[str, TensorInfo] | None:
    gate, down = base[ours.single[0, 0]].shape, base[ours.single[0, 2]].shape
    if len(gate) != 2 or gate != down[::-1] or base[ours.single[0, 1]].shape != gate:
        return None
    inner, hidden = gate
    count = len(ours.single) // 3
    plain = {"gate_up_proj": (count, 2 * inner, hidden), "down_proj": (count, hidden, inner)}
    stacks = {part: agent[name] for part, name in theirs.stack.items()}
    is_turned = _is_turned({part: t.shape for part, t in stacks.items()}, plain)
    if is_turned is None:
        return None
    if is_turned:
        stacks = {part: _turn(t) for part, t in stacks.items()}
    made, size = {}, inner * hidden
    for (expert, which), name in ours.single.items():
        of = stacks["down_proj" if which == 2 else "gate_up_proj"]
        start = expert * size if which == 2 else (2 * expert + which) * size
        made[name] = of.replaced_by(Run(of, start), name=name, shape=base[name].shape)
    return made


def _is_turned(
    found: Mapping[str, tuple[int, ...]], plain: Mapping[str, tuple[int, ...]]
) -> bool | None:
    """Return whether all stacks are transposed; None where they fit neither way."""
    if all(found[part] == shape for part, shape in plain.items()):
        return False
    are_turned = all(
        len(shape) == 3 and found[part] == (shape[0], shape[2], shape[1])
        for part, shape in plain.items()
    )
    return True if are_turned else None


def _turn(stack: TensorInfo) -> TensorInfo:
    count, rows, columns = stack.shape
    return stack.replaced_by(TransposedStack(stack), name=stack.name, shape=(count, columns, rows))
