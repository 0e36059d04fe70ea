"""Mismatches that prevent a merge of an agent with a base, tensor by tensor, with advice.

Has the rules for missing, extra, reshaped and integer tensors.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ram_studio.algorithm.naming import LANGUAGE, layer_of, tower_of
from ram_studio.checkpoints.fit.tied import has_vocabulary_rows
from ram_studio.checkpoints.read.checkpoint import Checkpoint
from ram_studio.checkpoints.read.describe import (
    BASE_NAME,
    plural,
    printable,
    quoted,
    shown_list,
    shown_shape,
)
from ram_studio.checkpoints.read.remote import Remote
from ram_studio.checkpoints.read.stored_bytes import same_bytes
from ram_studio.checkpoints.read.tensors import COPIED_DTYPES, MERGED_DTYPES, TensorInfo
from ram_studio.checkpoints.virtual.expert_adapters import PACKING_WORDS
from ram_studio.errors import CompatibilityError

# Stored by older libraries though no training touches them: rotary tables and attention masks.
_BUFFER = re.compile(
    r"(^|\.)(rotary_emb\.(inv_freq|(cos|sin)_cached)|(attn|attention|self_attn)\.masked_bias"
    r"|embeddings\.position_ids)$"
)
_MASK = re.compile(r"(^|\.)(attn|attention|self_attn)\.bias$")


class Mismatch(NamedTuple):
    """One reason why a merge cannot start; `kind` selects the advice at the message's end.

    parts: the mismatches that it summarizes.
    """

    kind: str
    text: str
    parts: tuple[str, ...] = ()


OPTION_WORDS = {
    "missing": "set missing: keep-base",
    "extra": "set extra: ignore",
    "rows": "set rows: common",
    "names": "set names: mapped",
    "experts_packing": PACKING_WORDS,
    "other base": "set other_base: accept (--allow-base-mismatch)",
}
"""Wording of options in messages; the app replaces it with the labels of its form."""

_ADVICE = {
    "base": "Choose the base this agent was trained from.",
    "missing": f"Choose the base this agent was trained from, or {OPTION_WORDS['missing']} to "
    "leave those tensors as the base has them.",
    "extra": f"Choose the base this agent was trained from, or {OPTION_WORDS['extra']} to leave "
    "those tensors out.",
    "shape": "Shapes must match: choose the base this agent was trained from.",
    "rows": "Only the rows of the embedding and head differ (padded vocabulary): "
    f"{OPTION_WORDS['rows']} to merge the rows they share.",
    "dtype": "Convert the checkpoint to bfloat16 first (load it with transformers and "
    "save_pretrained).",
    "float64": "Convert the checkpoint to float32 first (with transformers and save_pretrained): "
    "bfloat16 would round away much of what RL changed.",
    "integer": "Integer tensors are copied, not merged; choose agents trained from this base.",
    "tied": f"To leave the agent's head out, {OPTION_WORDS['extra']}; or untie the base first.",
}


def incompatible(problems: Sequence[Mismatch]) -> CompatibilityError:
    """Build the error: the first tensors in one line, all of them in its notes."""
    texts = [problem.text for problem in problems]
    kinds = list(dict.fromkeys(problem.kind for problem in problems))
    # `rows: common` helps only where nothing else has another shape.
    if "rows" in kinds and "shape" in kinds:
        kinds.remove("rows")
    lead = "" if len(texts) == 1 else f"{len(texts)} tensors do not fit: "
    error = CompatibilityError(
        f"{lead}{shown_list(texts)}. {' '.join(_ADVICE[kind] for kind in kinds)}"
    )
    for problem in problems:
        for text in problem.parts or (problem.text,):
            error.add_note(text)
    return error


def unmergeable(checkpoint: Checkpoint, tensors: Mapping[str, TensorInfo]) -> list[Mismatch]:
    """Return the tensors of dtypes that are neither merged nor copied."""
    return [
        Mismatch(
            "float64" if tensor.dtype == "F64" else "dtype",
            f"{checkpoint.who}tensor {quoted(name)} ({printable(tensor.path.name)}) has "
            f"dtype {tensor.dtype}, expected BF16, F16 or F32",
        )
        for name, tensor in tensors.items()
        if tensor.dtype not in MERGED_DTYPES + COPIED_DTYPES
    ]


def is_buffer(tensor: TensorInfo) -> bool:
    """Return whether a tensor is a known buffer, not a parameter.

    A causal mask is called `attn.bias`, as a trained bias might be: only the mask has 4 dimensions.
    """
    if _MASK.search(tensor.name):
        return len(tensor.shape) == 4
    return _BUFFER.search(tensor.name) is not None


def match_agent(
    base: Checkpoint,
    agent: Checkpoint,
    tensors: Mapping[str, TensorInfo],
    policies: Mapping[str, Any],
) -> tuple[list[Mismatch], list[str]]:
    """Return the mismatches of one agent, and warnings for the user if it has none.

    policies: see ``check_compatibility``.
    """
    rows = policies["rows"]
    at = agent.who
    problems = unmergeable(agent, {n: t for n, t in tensors.items() if n in base.tensors})
    names_by_note: dict[str, list[str]] = {}  # warning -> tensors

    for name, own in base.tensors.items():
        if name in tensors or is_buffer(own):
            continue
        if policies["names"] == "mapped" and tower_of(name) != LANGUAGE:
            continue  # an agent of the language model alone has none
        if policies["missing"] == "error":
            text = f"{at}tensor {quoted(name)} is missing from {printable(agent.folder)}"
            problems.append(Mismatch("missing", text))
        else:
            names_by_note.setdefault("missing, stay as in the base", []).append(quoted(name))
    for name, own in tensors.items():
        if name in base.tensors or is_buffer(own):
            continue
        if policies["extra"] == "error":
            text = f"{at}tensor {quoted(name)} ({printable(own.path.name)}) is not in the base"
            problems.append(Mismatch("extra", text))
        else:
            names_by_note.setdefault("that the base does not have, left out", []).append(
                quoted(name)
            )
    warnings = [
        f"{at}{plural(len(names), 'tensor')} {what}: {shown_list(names, separator=', ')}."
        for what, names in names_by_note.items()
    ]

    cropped = []
    remote = {**base.remote, **agent.remote} if base.is_readable and agent.is_readable else None
    for name in (n for n in base.tensors if n in tensors):
        wanted, own = base.tensors[name], tensors[name]
        problem = _compare(agent, wanted, own, rows, remote)
        if problem is not None:
            problems.append(problem)
        elif own.shape != wanted.shape:
            cropped.append(f"{quoted(name)} {own.shape[0]} of {wanted.shape[0]}")
    if another := _another_base(base, tensors, problems):
        problems = [
            Mismatch(
                "base",
                f"{at}it has another base ({another})",
                tuple(problem.text for problem in problems),
            )
        ]
    if cropped:
        warnings.append(
            f"{at}the vocabulary has another number of rows than the base's; only common rows are "
            f"merged ({shown_list(cropped, separator=', ')}), the others are the base's."
        )
    return problems, warnings


def _another_base(
    base: Checkpoint, tensors: Mapping[str, TensorInfo], problems: Sequence[Mismatch]
) -> str | None:
    """Return how an agent's whole model differs from the base's, None if only some tensors do."""
    unfit = [problem for problem in problems if problem.kind in ("shape", "missing", "extra")]
    if not unfit:
        return None
    ours, theirs = _layers(base.tensors), _layers(tensors)
    if ours != theirs:
        return f"{plural(theirs, 'layer')} against {ours}"
    if len(unfit) <= max(1, len(base.tensors) // 2):
        return None
    common = [name for name in base.tensors if name in tensors]
    other = [n for n in common if base.tensors[n].shape != tensors[n].shape]
    if not common:
        return "no tensor has a name that is also in the base"
    if other:
        shapes = shown_shape(tensors[other[0]].shape), shown_shape(base.tensors[other[0]].shape)
        return (
            f"{len(other)} of {plural(len(base.tensors), 'tensor')} have other shapes, "
            f"{quoted(other[0])} {shapes[0]} against {shapes[1]}"
        )
    return f"{len(unfit)} of {plural(len(base.tensors), 'tensor')} are in one of the two only"


def _layers(tensors: Mapping[str, TensorInfo]) -> int:
    return len({layer for name in tensors if (layer := layer_of(name)).isdecimal()})


def _compare(
    agent: Checkpoint, base: TensorInfo, own: TensorInfo, rows: str, remote: Remote | None
) -> Mismatch | None:
    """Return why the agent's tensor cannot be merged into the base's of the same name.

    remote: where their files are; None if bytes cannot be compared yet.
    """
    at = f"{agent.who}tensor {quoted(base.name)} ({printable(own.path.name)})"
    if own.shape != base.shape:
        text = f"{at} has shape {shown_shape(own.shape)}, the base has {shown_shape(base.shape)}"
        same_rows = (
            has_vocabulary_rows(base.name)
            and own.shape[1:] == base.shape[1:]
            and len(own.shape) == len(base.shape) >= 1
        )
        if not same_rows:
            return Mismatch("shape", text)
        if rows == "exact":
            return Mismatch("rows", text)
    is_copied = base.dtype in COPIED_DTYPES
    if is_copied != (own.dtype in COPIED_DTYPES) or (is_copied and own.dtype != base.dtype):
        return Mismatch("integer", f"{at} has dtype {own.dtype}, the base has {base.dtype}")
    if not is_copied or remote is None:
        return None
    if not same_bytes(base, own, agents=(BASE_NAME, agent.name), remote=remote):
        return Mismatch("integer", f"{at} of dtype {own.dtype} has other values than the base")
    return None
