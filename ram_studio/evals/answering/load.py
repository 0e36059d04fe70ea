"""Load models and tokenizers from local folders, through transformers.

Only safetensors weights are opened and no remote code is run.
"""

import json
import math
import os
import re
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ram_studio.algorithm.naming import layer_of
from ram_studio.checkpoints.read.describe import printable, shown_list
from ram_studio.checkpoints.read.json_files import MAX_CONFIG_BYTES, read_json_object
from ram_studio.errors import CheckpointError, EvalSettingsError, EvaluationError, Stopped
from ram_studio.evals.answering.engine import reason_of

# Smaller models are computed in float32 whatever their dtype: as fast, and the same answers on
# every machine.
FLOAT32_BELOW_BYTES = 2 * 1024**3
# The library takes about 10 ms a layer, however small; the deepest published merges have about 300.
MOST_LAYERS = 512
MOST_COMPUTED = 2**27
"""Buffer elements that any model may have beside its weights: as many as 32 masks of GPT-Neo."""
MOST_LISTED = 100_000
"""Layers and labels that a config may have: transformers lists each when it reads one."""
_LISTED = re.compile(r"(layers?|labels)$")
_LAYER_COUNT = re.compile(r"((?<!max_window_)layers?|depths?|num_blocks)$")
# Linux device files of GPUs that torch could use.
_GPU_FILES = ("nvidia*", "nvhost*", "nvmap", "kfd", "dxg")


def resolve_device(device: str) -> str:
    """Return the device to use: "auto" is "cuda" when torch has a GPU, else "cpu".

    Raises: EvaluationError: torch does not have this device.
    """
    if device == "cpu" or (device == "auto" and not _may_have_gpu()):
        return "cpu"
    import torch

    if device == "auto":
        # On ZeroGPU torch always reports a GPU; it exists only inside a GPU task, which names its
        # device.
        is_lent = os.environ.get("SPACES_ZERO_GPU") == "true"
        return "cuda" if torch.cuda.is_available() and not is_lent else "cpu"
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise EvalSettingsError(
            f"Device {device!r} was requested, but torch sees no CUDA device. Use 'cpu' or 'auto'."
        )
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise EvalSettingsError(
            f"Device {device!r} was requested, which torch does not have here. Use 'auto', 'cpu' "
            "or 'cuda'."
        ) from error
    return device


def _may_have_gpu() -> bool:
    """Return False where no GPU can exist; torch is not asked, as its import takes seconds."""
    if "torch" in sys.modules or sys.platform != "linux":
        return True
    return any(next(Path("/dev").glob(pattern), None) for pattern in _GPU_FILES)


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """Hide transformers' progress bars inside the block; callers report progress themselves."""
    logging = transformers().utils.logging
    was_shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if was_shown:
            logging.enable_progress_bar()


# The library is not thread-safe: its import replaces its own module, and while it loads a model,
# all threads create modules on the meta device.
_ONE_AT_A_TIME = threading.RLock()


def transformers() -> Any:
    """Return the library, imported by one thread at a time."""
    with _ONE_AT_A_TIME:
        import transformers

        return transformers


def check_folder(path: str | Path) -> Path:
    """Return a model's folder that has a config and a tokenizer, without loading either.

    Raises: EvaluationError: one of them is missing.
    """
    folder = Path(path)
    if not (folder / "config.json").is_file():
        why = "has no config.json" if folder.is_dir() else "is not a folder"
        raise EvaluationError(
            f"{folder} {why}. Expected a local model folder in the transformers layout; check the "
            "path, or download the model first: hf download OWNER/NAME --local-dir FOLDER."
        )
    kinds = ("tokenizer.json", "tokenizer_config.json", "vocab.json")
    if not any((folder / name).is_file() for name in kinds):
        raise EvaluationError(
            f"{folder} has no tokenizer (tokenizer.json or tokenizer_config.json). "
            "Copy the base model's tokenizer files into it."
        )
    return folder


def has_chat_template(folder: Path) -> bool:
    """Return whether a folder's files include a chat template."""
    if (folder / "chat_template.jinja").is_file():
        return True
    try:
        config = json.loads((folder / "tokenizer_config.json").read_text("utf-8"))
        return bool(config["chat_template"])
    except (OSError, ValueError, KeyError, TypeError):
        return False


def load_tokenizer(path: str | Path) -> Any:
    """Load the tokenizer of a local model folder; it does not need the weights.

    Raises: EvaluationError: no config or tokenizer, or a tokenizer that does not load or that
        decodes with a regular expression.
    """
    folder = check_folder(path)
    _check_lists(folder)
    with _loading_errors(folder):
        tokenizer = transformers().AutoTokenizer.from_pretrained(
            folder, local_files_only=True, trust_remote_code=False
        )
    decoder = getattr(getattr(tokenizer, "backend_tokenizer", None), "decoder", None)
    if decoder is not None and b'"Regex"' in decoder.__getstate__():
        # Answers are decoded in this process, where nothing could stop an expression's search.
        raise EvaluationError(
            f"The decoder in {folder / 'tokenizer.json'} replaces by a regular expression, which "
            "may never end. Copy the base model's tokenizer files into the folder."
        )
    return tokenizer


@contextmanager
def _loading_errors(folder: Path) -> Iterator[None]:
    # Broken files raise many types (OSError, ValueError, RuntimeError, safetensors' own).
    try:
        with _ONE_AT_A_TIME, quiet_transformers():
            yield
    except (Stopped, EvaluationError):
        raise
    except Exception as error:
        raise EvaluationError(
            f"{folder} does not load as a causal language model: {reason_of(error)} "
            "Check that its config, tokenizer and safetensors files are complete and match."
        ) from error


def load_model(path: str | Path, device: str = "auto") -> tuple[Any, Any]:
    """Return (model in eval mode, tokenizer) of a folder with config, weights and tokenizer files.

    Small models are computed in float32, others as stored. device: "auto", "cpu", "cuda", "cuda:N".

    Raises: EvaluationError: the folder is missing, has no tokenizer or no safetensors, lacks a
        tensor that its config describes, or does not load.
    """
    import torch

    folder = Path(path)
    tokenizer = load_tokenizer(folder)
    weights = sorted(folder.glob("*.safetensors"))
    if not weights:
        raise EvaluationError(
            f"{folder} has no *.safetensors file. Only safetensors weights are opened; "
            "convert the model first."
        )
    target = resolve_device(device)
    nbytes = sum(file.stat().st_size for file in weights)
    config = load_config(folder)
    with _loading_errors(folder):
        _check_size(folder, config, weights)
        model, found = transformers().AutoModelForCausalLM.from_pretrained(
            folder,
            config=config,
            local_files_only=True,
            trust_remote_code=False,
            use_safetensors=True,
            dtype=torch.float32 if nbytes < FLOAT32_BELOW_BYTES else "auto",
            output_loading_info=True,
        )
    # The library would fill them with random numbers without an error.
    if missing := sorted(found["missing_keys"]):
        names = shown_list(missing, separator=", ")
        raise EvaluationError(
            f"{folder} lacks {names}, which its config.json describes. Copy all of the model's "
            "files into the folder."
        )
    return model.to(target).eval(), tokenizer


def load_config(folder: Path) -> Any:
    """Return the model config of a folder's config.json.

    Raises: EvaluationError: it is damaged, or of a type that transformers does not know.
    """
    _check_lists(folder)
    with _loading_errors(folder):
        return transformers().AutoConfig.from_pretrained(
            folder, local_files_only=True, trust_remote_code=False
        )


def _check_lists(folder: Path) -> None:
    """Raise EvaluationError for a config that would fill the memory, before transformers reads it.

    A config of a hundred bytes can name millions of layers, and transformers lists each.
    """
    try:
        parts = [read_json_object(folder / "config.json", "", limit=MAX_CONFIG_BYTES)]
    except CheckpointError as error:
        raise EvaluationError(str(error)) from error
    while parts:
        for name, value in parts.pop().items():
            if isinstance(value, dict):
                parts.append(value)
            elif isinstance(value, int) and value > MOST_LISTED and _LISTED.search(name):
                raise EvaluationError(
                    f"{folder}/config.json has {printable(name, 80)} "
                    f"{printable(f'{value:,}', 40)}; the limit is {MOST_LISTED:,}. Choose another "
                    "model."
                )


def _check_size(folder: Path, config: Any, weights: Sequence[Path]) -> None:
    """Raise EvaluationError for a config of a larger model than the one in the files.

    Without this check the config alone would decide the memory and time of loading.
    """
    import torch
    from safetensors import safe_open

    stored: dict[str, int] = {}
    is_quantized = bool(getattr(config, "quantization_config", None))
    for file in weights:
        with safe_open(file, "pt") as tensors:
            for name in tensors.keys():  # noqa: SIM118, it is no dict
                own = tensors.get_slice(name)
                # A quantized integer holds several weights, but none in less than a bit.
                bits = re.fullmatch(r"[IU](\d+)", own.get_dtype()) if is_quantized else None
                stored[name] = math.prod(own.get_shape()) * (int(bits[1]) if bits else 1)
    numbers = {layer for layer in map(layer_of, stored) if layer.isdigit()}
    layers = getattr(config.get_text_config(), "num_hidden_layers", None) or 0
    if layers > (found := len(numbers) or len(stored)):
        raise EvaluationError(
            f"{folder}/config.json describes {layers} layers, and the weights have {found}. Copy "
            "all of the model's files into the folder."
        )
    deepest = max((count for part in _parts(config) for count in _layer_counts(part)), default=0)
    if deepest > MOST_LAYERS:
        raise EvaluationError(
            f"{folder}/config.json describes {deepest:,} layers. Models of up to {MOST_LAYERS} "
            "layers are loaded; choose another one."
        )
    with torch.device("meta"):
        model = transformers().AutoModelForCausalLM.from_config(config, trust_remote_code=False)
    described, held = sum(p.numel() for p in model.parameters()), sum(stored.values())
    # Files hold no masks and other buffers; a small model's may be larger than its weights.
    described += max(0, sum(b.numel() for b in model.buffers()) - MOST_COMPUTED)
    if described > 2 * held:  # a few missing tensors are named after loading
        raise EvaluationError(
            f"{folder}/config.json describes a model of {described:,} weights, and its files hold "
            f"{held:,}. Copy all of the model's files into the folder."
        )


def _layer_counts(part: Any) -> Iterator[int]:
    """Yield possible numbers of layers: the key differs by type of tower."""
    yield getattr(part, "num_hidden_layers", None) or 0
    for name, value in vars(part).items():
        if _LAYER_COUNT.search(name):
            values = value if isinstance(value, (list, tuple)) else (value,)
            yield from (count for count in values if isinstance(count, int))


def _parts(config: Any) -> Iterator[Any]:
    """Yield a config and those of its towers, recursively."""
    yield config
    for name in getattr(config, "sub_configs", ()):
        if (part := getattr(config, name, None)) is not None:
            yield from _parts(part)


def padding_id(tokenizer: Any) -> int:
    """Return the id that pads short rows of a batch."""
    pad = tokenizer.pad_token_id
    return int((tokenizer.eos_token_id or 0) if pad is None else pad)


def ending_ids(model: Any, tokenizer: Any) -> frozenset[int]:
    """Return every id that ends a text: the generation config may name several of them."""
    configured = getattr(model.generation_config, "eos_token_id", None)
    ids = configured if isinstance(configured, list) else [configured]
    return frozenset(int(value) for value in (*ids, tokenizer.eos_token_id) if value is not None)
