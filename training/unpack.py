"""Make a model's folder once, from a package's GGUF."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path


def build(name: str, folder: Path, make: Callable[[Path], None]) -> Path:
    """Return folder/name, made first if missing, atomically."""
    made = folder / name
    if made.is_dir():
        return made
    start = time.perf_counter()
    print(f"making {name} ...", file=sys.stderr, flush=True)
    unfinished = Path(tempfile.mkdtemp(prefix=f".{name}-", dir=folder))
    try:
        make(unfinished)
        unfinished.chmod(0o755)
        os.rename(unfinished, made)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    print(f"made {name} in {time.perf_counter() - start:.0f} s", file=sys.stderr, flush=True)
    return made


def unpack_gguf(gguf: Path, out: Path, card: str, *, tied: bool = False) -> None:
    """Write a GGUF's model as bfloat16 safetensors, with config, tokenizer and chat template.

    Needs the library `gguf`. tied: the output layer's matrix becomes the embedding too, for a model
    whose GGUF holds the one matrix twice, quantized differently.
    """
    os.environ["HF_HUB_OFFLINE"] = "1"
    warnings.simplefilter("ignore")
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging

    logging.disable_progress_bar()
    unpacked = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name)
    kind, config = type(unpacked), unpacked.config
    weights = {name: value.bfloat16() for name, value in unpacked.state_dict().items()}
    del unpacked
    # With a config that says "quantized" the plain numbers would not be saved.
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    if tied:
        config.tie_word_embeddings = True
        weights["model.embed_tokens.weight"] = weights["lm_head.weight"]
    model = kind(config).bfloat16()
    model.load_state_dict(weights)
    model.save_pretrained(out)
    AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name).save_pretrained(out)
    (out / "README.md").write_text(f"---\nlicense: apache-2.0\n---\n{card}\n", encoding="utf-8")
