"""Convert a trainer's checkpoint to safetensors, tensor by tensor, without losing a bit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from ram_studio.algorithm import rounding
from ram_studio.algorithm.meters.relation_preview import DTYPE_WORDS
from ram_studio.checkpoints.read.checkpoint import CONFIG_FILE, QUANTIZATION, Checkpoint
from ram_studio.checkpoints.read.describe import printable, quoted
from ram_studio.checkpoints.read.header import HEADER_METADATA
from ram_studio.checkpoints.read.json_files import read_json_object
from ram_studio.checkpoints.read.tensors import TensorInfo
from ram_studio.checkpoints.write.output import DEFAULT_MAX_SHARD_BYTES, NewFolder
from ram_studio.checkpoints.write.output_folder import check_output
from ram_studio.checkpoints.write.shard_plan import index_files, lay_out
from ram_studio.checkpoints.write.sidecars import sidecar_files
from ram_studio.convert.dcp import read_dcp
from ram_studio.convert.layouts import Layout, find_config, find_layout
from ram_studio.convert.ranks import read_files, read_ranks
from ram_studio.engine.events import CancelToken, Meter, ProgressCallback
from ram_studio.engine.reading.sources import Sources
from ram_studio.errors import CheckpointError, SettingsError

OutputDtype = Literal["stored", "float32"]
_TO_FLOAT32 = ("BF16", "F16", "F64")
_TITLES = {
    "ranks": "the parts that each rank saved",
    "dcp": "a torch distributed checkpoint",
    "files": "a pickled state dict",
}


@dataclass(frozen=True)
class ConversionResult:
    """Result of a conversion.

    Attributes:
        out: the folder.
        source: the place of the model.
        kind: "ranks", "dcp" or "files", see ``layouts``.
        tensors, nbytes: number of tensors, and their bytes.
        dtypes: elements by written dtype.
        config: the folder of config and tokenizer, None where none was found.
        left_out: names of objects in the checkpoint that are not tensors.
    """

    out: Path
    source: Path
    kind: str
    tensors: int
    nbytes: int
    dtypes: dict[str, int]
    config: Path | None
    left_out: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        """Description of the source's kind."""
        return _TITLES[self.kind]

    def to_dict(self) -> dict[str, Any]:
        """Return it for JSON."""
        config = None if self.config is None else str(self.config)
        return {**self.__dict__, "out": str(self.out), "source": str(self.source), "config": config}


def convert(
    source: str | Path,
    out: str | Path,
    *,
    dtype: OutputDtype = "stored",
    config: str | Path | None = None,
    key: str | None = None,
    max_shard_bytes: int = DEFAULT_MAX_SHARD_BYTES,
    on_progress: ProgressCallback | None = None,
    cancel: CancelToken | None = None,
) -> ConversionResult:
    """Write a trainer's checkpoint as safetensors shards, with its config and tokenizer.

    Args:
        source: a folder of verl, FSDP, DCP or Megatron (torch_dist), its parent, or a file
            of torch.save. Pickles are described by a sealed process, never opened here.
        out: a folder that does not exist yet.
        dtype: "stored" keeps every element's bits; "float32" widens floating-point tensors.
        config: folder with config.json and tokenizer, if they are not beside the model.
        key: the keys that lead to the model if several were saved, as "ema" or "app.model".

    Raises: CheckpointError, SettingsError, OutputError, Stopped; nothing is left behind then.
    """
    if dtype not in ("stored", "float32"):
        raise SettingsError(
            f"dtype is {printable(dtype)!r}; expected stored or float32. Others would round the "
            "trained weights; a merge can write any dtype."
        )
    source = Path(source).expanduser()
    cancel = cancel or CancelToken()
    check_output(out, needed_bytes=0)
    layout = find_layout(source)
    folder = find_config(layout, source, None if config is None else Path(config).expanduser())
    found = source if source.is_file() else layout.folder
    tensors, left_out = _read_layout(layout, key, printable(found))
    written = {name: _output_dtype(info.dtype, dtype) for name, info in tensors.items()}
    specs = [(name, written[name], info.shape) for name, info in tensors.items()]
    shards = lay_out(specs, max_shard_bytes)
    model = _checkpoint(source, layout, folder, tensors)
    elements: Counter[str] = Counter()
    for name, info in tensors.items():
        elements[written[name]] += info.numel
    files = _small_files(model, folder, elements) | index_files(shards)
    meter = Meter("convert", sum(info.nbytes for info in tensors.values()), len(tensors))
    with (
        NewFolder(out) as output,
        output.writer("whole", shards, [layout.folder] if source.is_dir() else []) as writer,
        Sources(model) as sources,
    ):
        for number, (name, info) in enumerate(tensors.items()):
            for start, chunk in _chunks(sources, info, written[name]):
                cancel.raise_if_cancelled()
                writer.write(name, start, chunk.data)
                meter.add(len(chunk), name, number)
                meter.report_progress(on_progress)
        sources.check_unchanged()
        output.keep("whole", writer, b"", lambda flushed: cancel.raise_if_cancelled())
        output.complete(files)
    nbytes = sum(size for shard in shards for _, size in shard.offsets.values())
    return ConversionResult(
        output.out,
        found,
        layout.kind,
        len(tensors),
        nbytes,
        dict(elements),
        folder,
        tuple(left_out),
    )


def _read_layout(
    layout: Layout, key: str | None, at: str
) -> tuple[dict[str, TensorInfo], list[str]]:
    read = read_ranks if layout.kind == "ranks" else read_files
    left_out: list[str] = []
    try:
        if layout.kind == "dcp":
            tensors, left_out = read_dcp(layout.folder, key, at)
        else:
            tensors = read(layout.files, key, at)
    except (TypeError, ValueError, LookupError) as error:
        # A pickle may describe parts by values of any kind.
        raise CheckpointError(
            f"{at} describes invalid parts ({printable(error, 100)}); save the model again."
        ) from error
    for name in tensors:
        if not name.isprintable():
            raise CheckpointError(
                f"{at} has a tensor named {quoted(name)}, with characters that cannot be printed. "
                "Rename the tensor and save the model again."
            )
    if HEADER_METADATA in tensors:
        raise CheckpointError(
            f"{at} has a tensor named {HEADER_METADATA}. In safetensors that name belongs to the "
            "header's metadata. Rename the tensor and save the model again."
        )
    return tensors, left_out


def _checkpoint(
    source: Path, layout: Layout, folder: Path | None, tensors: dict[str, TensorInfo]
) -> Checkpoint:
    """Return the model as a checkpoint, for readers of tensors."""
    parts = (part for info in tensors.values() for part in info.stored_parts())
    shards = tuple(sorted({part.path for part in parts}))
    settings = read_json_object(folder / CONFIG_FILE, "") if folder else {}
    return Checkpoint(
        name="source",
        source=str(source),
        folder=folder or layout.folder,
        tensors=tensors,
        shards=shards,
        config={k: v for k, v in settings.items() if k != QUANTIZATION},
        fingerprint="",
        nbytes=sum(info.nbytes for info in tensors.values()),
    )


def _output_dtype(stored: str, wanted: OutputDtype) -> str:
    return "F32" if wanted == "float32" and stored in _TO_FLOAT32 else stored


def _small_files(
    model: Checkpoint, folder: Path | None, elements: Mapping[str, int]
) -> dict[str, bytes]:
    """Return config and tokenizer; the config names the dtype of most elements.

    A config with bfloat16 beside float32 weights would round them when they are loaded.
    """
    if folder is None:
        return {}
    known = [stored for stored in elements if stored in DTYPE_WORDS]
    most = max(known, key=elements.__getitem__, default="")
    return sidecar_files(model, dtype=DTYPE_WORDS.get(most))


def _chunks(sources: Sources, info: TensorInfo, dtype: str) -> Iterator[tuple[int, np.ndarray]]:
    """Yield a tensor's written bytes in chunks: each one's start and bytes."""
    for start, chunk in sources.chunks(info, info.nbytes):
        if info.dtype == dtype:
            yield start, chunk
            continue
        if info.dtype == "F64":
            values = _narrow(chunk.view(np.float64), info.name)
        else:
            values = rounding.decode(chunk, info.dtype)
        yield start * 4 // info.element_bytes, values.view(np.uint8)


def _narrow(wide: np.ndarray, name: str) -> np.ndarray:
    """Return float64 elements of a tensor as float32.

    Raises: CheckpointError for a number beyond float32.
    """
    with np.errstate(over="ignore"):
        values = wide.astype(np.float32)
    if (np.isinf(values) != np.isinf(wide)).any():
        raise CheckpointError(
            f"Tensor {quoted(name)} has float64 numbers beyond those of float32; leave --dtype out "
            "to write it as it is stored."
        )
    return values
