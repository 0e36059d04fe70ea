"""The small files beside the weights that a merged checkpoint copies from its base."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from ram_studio.checkpoints.read.checkpoint import CONFIG_FILE, QUANTIZATION, Checkpoint
from ram_studio.checkpoints.read.describe import printable
from ram_studio.checkpoints.read.json_files import check_link, parse_json_object, read_bounded
from ram_studio.errors import SettingsError

OUTPUT_DTYPES = {"bfloat16": "BF16", "float16": "F16", "float32": "F32"}
"""Output dtypes by the name a recipe uses, and the safetensors name of each."""

GENERATION_CONFIG = "generation_config.json"
MODEL_FILES = (GENERATION_CONFIG, "preprocessor_config.json", "processor_config.json")
TOKENIZER_FILES = (
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"),
    *("chat_template.jinja", "chat_template.json", "vocab.json", "vocab.txt", "merges.txt"),
    *("tokenizer.model", "spiece.model", "sentencepiece.bpe.model", "tekken.json"),
)
_LICENSE = re.compile(r"(LICEN[CS]E|NOTICE|USE_POLICY)(\.(txt|md))?", re.IGNORECASE)


def sidecar_files(
    base: Checkpoint,
    *,
    dtype: str | None = None,
    tokenizer: Checkpoint | None = None,
    stop_tokens: Sequence[int] = (),
) -> dict[str, bytes]:
    """Return the files to put beside merged shards, by name.

    config.json (with the output dtype), generation and processor settings, license texts and the
    tokenizer's files. The base's Python files are never among them.

    Args:
        base: the base model.
        dtype: the output dtype ("bfloat16", "float16", "float32"); None keeps the config.
        tokenizer: the checkpoint whose tokenizer to copy (default: the base).
        stop_tokens: ids that end an answer, for generation_config.json (default: the base's).

    Raises: CheckpointError when a file cannot be read or is a link out of its folder, or when
    config.json is not a JSON object; SettingsError for another dtype.
    """
    if dtype is not None and dtype not in OUTPUT_DTYPES:
        raise SettingsError(f"dtype is {printable(dtype)!r}; expected {', '.join(OUTPUT_DTYPES)}.")
    licenses = sorted(p.name for p in base.folder.iterdir() if _LICENSE.fullmatch(p.name))
    wanted = [(base, name) for name in (CONFIG_FILE, *MODEL_FILES, *licenses)]
    wanted += [(tokenizer or base, name) for name in TOKENIZER_FILES]
    files = {
        name: data for source, name in wanted if (data := _read_sidecar(source, name)) is not None
    }
    if CONFIG_FILE in files:
        files[CONFIG_FILE] = _with_dtype(files[CONFIG_FILE], dtype, base)
    if stop_tokens:
        path = base.folder / GENERATION_CONFIG
        config = parse_json_object(files.get(GENERATION_CONFIG, b"{}"), path, base.who)
        files[GENERATION_CONFIG] = _json(config | {"eos_token_id": list(stop_tokens)})
    return files


def _json(value: dict[str, Any]) -> bytes:
    return (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode()


def _read_sidecar(checkpoint: Checkpoint, name: str) -> bytes | None:
    """Return a file of a checkpoint's folder, None if missing."""
    path, at = checkpoint.folder / name, checkpoint.who
    if not (path.exists() if name == CONFIG_FILE else path.is_file()):
        return None
    return read_bounded(check_link(path, at), at)


def _with_dtype(data: bytes, dtype: str | None, base: Checkpoint) -> bytes:
    """Return config.json, its dtype entries changed to `dtype`; byte for byte when none changes."""
    config = parse_json_object(data, base.folder / CONFIG_FILE, base.who)
    # A base that was dequantized, see ``virtual.quantized``.
    if QUANTIZATION in config and QUANTIZATION not in base.config:
        del config[QUANTIZATION]
        _set_dtype(config, dtype or "bfloat16")
    elif dtype is None or not _set_dtype(config, dtype):
        return data
    return _json(config)


def _set_dtype(config: dict[str, Any], dtype: str) -> bool:
    """Write `dtype` wherever the config names one (also in a nested text_config); True if changed.

    transformers 5 writes `dtype`, 4 writes `torch_dtype` and reads only that; with neither,
    loading would fall back to float32 or to the file's own, so the name that both read is added.
    """
    before = json.dumps(config, sort_keys=True)
    keys = [key for key in ("dtype", "torch_dtype") if key in config]
    for key in keys or ["torch_dtype"]:
        config[key] = dtype
    for value in config.values():
        if isinstance(value, dict):
            for key in ("dtype", "torch_dtype"):
                if isinstance(value.get(key), str):
                    value[key] = dtype
    return json.dumps(config, sort_keys=True) != before
