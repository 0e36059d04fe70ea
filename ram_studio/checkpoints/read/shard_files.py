"""Which files of a folder make up a model: one file, or shards with or without an index.

Works on file names, so that a repository on the Hub has the same rules as a local folder.
A pickle is never opened, and an index cannot point outside its folder.
"""

from __future__ import annotations

import itertools
import json
import re
import shlex
from collections.abc import Iterable
from typing import Any

from ram_studio.checkpoints.read.describe import (
    plural,
    printable,
    quoted,
    shell_word,
    shown_list,
)
from ram_studio.checkpoints.read.files import Files
from ram_studio.checkpoints.read.json_files import MAX_JSON_BYTES
from ram_studio.errors import CheckpointError

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
INDEX_SUFFIX = ".safetensors.index.json"
UNFINISHED = ".ram-studio-parts"
"""A folder in the output of a merge in parts, until the merge is finished."""
ADAPTER_FILE = "adapter_model.safetensors"
ADAPTER_CONFIG = "adapter_config.json"
MAX_SMALL_BYTES = 256_000_000
PICKLE_SUFFIXES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle")

_SMALL = re.compile(
    r"[^/]+\.(json|jinja|txt|model)|README\.md|(LICEN[CS]E|NOTICE|USE_POLICY)(\.(txt|md))?",
    re.IGNORECASE,
)
_NUMBERED_SHARD = re.compile(r"(?P<stem>.+)-(?P<number>\d{5,})-of-(?P<count>\d{5,})\.safetensors")
_DCP_PART = re.compile(r"shard-\d{5,}-.+\.safetensors")
_CONVERT = "ram-studio convert {folder} OUT"
_PYTHON = "python -c "


def find_shards(files: Files) -> tuple[list[str], dict[str, str] | None]:
    """Return the safetensors files that make up a model, and the index's map if it has one.

    transformers' order of preference: model.safetensors alone, then the index, then the numbered
    shards (all of them must exist), then all safetensors files.

    Raises: CheckpointError when no shard is found or one is missing.
    """
    names, folder = files.names(), files.at("")
    at = f"{files.who}{printable(folder)}"
    if UNFINISHED in names:
        raise CheckpointError(
            f"{at} is a merge in parts that is not finished; once all parts are merged, run "
            f"`ram-studio finish PLAN --out {shell_word(folder)}`."
        )
    if SINGLE_FILE in names:
        return [SINGLE_FILE], None
    indexes = [n for n in names if n.endswith(INDEX_SUFFIX)]
    if indexes:
        if INDEX_FILE not in indexes and len(indexes) > 1:
            raise CheckpointError(
                f"{at} holds several indexes ({shown_list(indexes, show=printable)}), of different "
                f"models; keep one, or call the right one {INDEX_FILE}."
            )
        index_name = INDEX_FILE if INDEX_FILE in indexes else indexes[0]
        index_at = f"{files.who}{printable(f'{folder}/{index_name}')}"
        index = files.json(index_name, limit=MAX_JSON_BYTES, unique=True)
        weight_map = _checked_weight_map(index, index_at)
        shards = sorted(set(weight_map.values()))
        missing = [shard for shard in shards if shard not in names]
        if missing:
            raise CheckpointError(
                f"{index_at} names {plural(len(missing), 'shard')} that "
                f"{'is' if len(missing) == 1 else 'are'} missing: "
                f"{shown_list(missing, show=printable)}; download or copy the checkpoint "
                "again."
            )
        return shards, weight_map
    shards = [n for n in names if n.endswith(".safetensors") and not n.startswith(".")]
    if not shards:
        raise CheckpointError(_nothing_to_open(names, at, folder))
    if all(n.startswith("adapter_") for n in shards):
        if ADAPTER_FILE not in shards or ADAPTER_CONFIG not in names:
            raise CheckpointError(
                f"{at} holds a part of a LoRA adapter ({shards[0]}); expected both {ADAPTER_FILE} "
                f"and {ADAPTER_CONFIG}, as peft's save_pretrained writes them."
            )
        return [ADAPTER_FILE], None
    shards = [n for n in shards if not n.startswith("adapter_")]
    if is_distributed(shards):
        return shards, None
    return _numbered_shards(shards, at), None


def is_small_file(name: str, size: int) -> bool:
    """Return whether a file is fetched with a model's headers: config, tokenizer, card, license."""
    return size <= MAX_SMALL_BYTES and _SMALL.fullmatch(name) is not None


def is_distributed(shards: Iterable[str]) -> bool:
    """Return whether file names are those of torch's distributed checkpoints, see `distributed`."""
    return all(map(_DCP_PART.fullmatch, shards))


_TRAINERS = (
    (
        r"adapter_model\.bin",
        "a LoRA adapter as a pickle",
        f"{_PYTHON}from peft import AutoPeftModelForCausalLM as M; "
        'M.from_pretrained({folder}).save_pretrained("OUT")',
    ),
    (r"model_world_size_\d+_rank_\d+\.pt", "verl's FSDP shards", _CONVERT),
    (r"actor|global_step_\d+", "a verl checkpoint", _CONVERT),
    (
        r"zero_to_fp32\.py|global_step\d+|(mp|zero_pp)_rank_\d+.*\.pt",
        "a DeepSpeed checkpoint",
        "python {folder}/zero_to_fp32.py {folder} OUT --safe_serialization",
    ),
    (r".+\.distcp|pytorch_model_fsdp_\d+", "a torch distributed checkpoint (DCP)", _CONVERT),
    (r"iter_\d{7}|dist_ckpt", "a Megatron checkpoint", _CONVERT),
    (
        r".+\.gguf",
        "GGUF files, which are usually quantized: prefer the checkpoint they were made from",
        f"{_PYTHON}from transformers import AutoModelForCausalLM as M; "
        "from safetensors.torch import save_file; "
        "m = M.from_pretrained({folder}, gguf_file={file}); "
        'del m.config.quantization_config; m.config.save_pretrained("OUT"); '
        "w = [(k, v.clone()) for k, v in m.state_dict().items()]; "
        'save_file(dict(w), "OUT/model.safetensors", dict(format="pt"))',
    ),
)
"""Files of trainers and converters: pattern of names, description, command that converts them."""


def _filled(command: str, folder: str, file: str = "") -> str:
    """Return a command with file names in it, quoted so that it can be pasted."""
    if not command.startswith(_PYTHON):
        return command.format(folder=shell_word(folder))
    names = {
        name: json.dumps(text, ensure_ascii=not text.isprintable())
        for name, text in (("folder", folder), ("file", file))
    }
    return f"{_PYTHON}{shlex.quote(command.removeprefix(_PYTHON).format(**names))}"


def _nothing_to_open(names: list[str], at: str, folder: str) -> str:
    for pattern, what, command in _TRAINERS:
        found = next((name for name in names if re.fullmatch(pattern, name)), None)
        if found is not None:
            shown = _filled(command, folder, found)
            trust = "convert it once" if command == _CONVERT else "if you trust it, convert it"
            return f"{at} holds {what} ({printable(found)}), no safetensors files; {trust}: {shown}"
    pickles = [n for n in names if n.lower().endswith(PICKLE_SUFFIXES)]
    if pickles:
        return (
            f"{at} has only pickle weights ({shown_list(pickles, 2, ', ')}), which can run code "
            f"when opened; convert them without running any: {_filled(_CONVERT, folder)}"
        )
    return (
        f"{at} has no safetensors file; expected model.safetensors, or shards with "
        "model.safetensors.index.json."
    )


def _numbered_shards(shards: list[str], at: str) -> list[str]:
    """Return the shards, checking that a numbered set is complete."""
    matches = {name: match for name in shards if (match := _NUMBERED_SHARD.fullmatch(name))}
    if not matches:
        return shards
    sets = {(match["stem"], match["count"]) for match in matches.values()}
    if len(sets) > 1:
        raise CheckpointError(
            f"{at} holds shards of different sets ({shown_list(sorted(matches))}) and no index; "
            "keep one set, or add model.safetensors.index.json."
        )
    total = int(next(iter(sets))[1])
    there = {int(match["number"]) for match in matches.values()}
    first_missing = next(number for number in itertools.count(1) if number not in there)
    if first_missing <= total:
        raise CheckpointError(
            f"{at} holds {len(there)} of {total} shards (number {first_missing} is missing); "
            "download or copy the checkpoint again."
        )
    return sorted(matches)


def _checked_weight_map(index: dict[str, Any], at: str) -> dict[str, str]:
    weight_map = index.get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(f"{at} has no weight_map from tensor names to shards.")
    for tensor, shard in weight_map.items():
        if not isinstance(shard, str) or not _is_plain_file_name(shard):
            raise CheckpointError(
                f"{at} maps tensor {quoted(tensor)} to {quoted(shard)}, which is not the name of "
                "a file in the same folder; refused."
            )
        if not shard.endswith(".safetensors"):
            advice = "refused"
            if shard.lower().endswith(PICKLE_SUFFIXES):
                advice = f"remove the index, then {_CONVERT.format(folder='FOLDER')}"
            raise CheckpointError(
                f"{at} maps tensor {quoted(tensor)} to {quoted(shard)}, which is not a "
                f"safetensors file; {advice}."
            )
    return weight_map


def _is_plain_file_name(name: str) -> bool:
    return bool(name) and name.isprintable() and not set(name) & set("/\\:") and name[0] != "."
