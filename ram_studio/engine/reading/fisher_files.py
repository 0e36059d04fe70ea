"""Fisher files: importance of an agent's elements, stored beside it and read block by block.

A Fisher file is safetensors with float32 tensors of the agent's names and shapes, each at least 0,
and this metadata: `format` = FORMAT; `fingerprint` of the agent's checkpoint, so that the files of
another model are refused; `aliases`, JSON {name: stored name} of matrices that are stored once
(tied heads); `examples`, `seed` and `prompts` (a digest) of the measurement.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

import numpy as np

from ram_studio.checkpoints.fit.compatibility import CompatibilityReport, MergeTensor
from ram_studio.checkpoints.read.checkpoint import Checkpoint, fingerprint_of
from ram_studio.checkpoints.read.describe import printable, quoted, shown_shape, who
from ram_studio.checkpoints.read.files import Folder
from ram_studio.checkpoints.read.header import Header, read_header
from ram_studio.checkpoints.read.json_files import parse_json_object
from ram_studio.checkpoints.read.tensors import TensorInfo
from ram_studio.engine.reading.blocks import Block
from ram_studio.errors import CheckpointError, SettingsError

FORMAT = "ram-studio fisher 1"


def fisher_path(folder: str | Path, agent: str) -> Path:
    """Return the path of an agent's Fisher file in a folder of them."""
    return Path(os.path.expanduser(folder)) / f"{agent}.safetensors"


class FisherFiles:
    """The Fisher files of a merge's agents, checked to belong to them."""

    def __init__(
        self, report: CompatibilityReport, folder: str | None, tensors: Sequence[MergeTensor]
    ) -> None:
        """Read and check all headers.

        Raises: SettingsError without a folder or file, or for files of another model;
        CheckpointError for damaged ones.
        """
        if folder is None:
            raise SettingsError(
                "Fisher merging needs a Fisher file of each agent, and no folder of them was "
                "given. Estimate them with `ram-studio fisher`, then set files to that folder."
            )
        self._headers = {a.name: _header_of(fisher_path(folder, a.name), a) for a in report.agents}
        self._sources = [
            _find_tensors(self._headers[agent.name], agent, tensors, position)
            for position, agent in enumerate(report.agents)
        ]
        self._states = [_state(header.path) for header in self._headers.values()]
        self._handles: list[int] = []

    @cached_property
    def fingerprints(self) -> dict[str, str]:
        """The files' fingerprints by agent, see ``fingerprint_of``."""
        return {
            name: fingerprint_of([header], Folder(header.path.parent, who(name)))
            for name, header in self._headers.items()
        }

    def __enter__(self) -> FisherFiles:
        for header in self._headers.values():
            self._handles.append(os.open(header.path, os.O_RDONLY | os.O_CLOEXEC))
        return self

    def __exit__(self, *_: object) -> None:
        for handle in self._handles:
            os.close(handle)
        self._handles.clear()

    def read(self, block: Block) -> np.ndarray:
        """Return the block's Fisher information, float32 (agents, n); 0 where an agent has none.

        Raises: CheckpointError for negative, NaN or infinite values, or when a file changed.
        """
        out = np.zeros((len(self._sources), block.n), dtype=np.float32)
        for t, (header, sources) in enumerate(
            zip(self._headers.values(), self._sources, strict=True)
        ):
            path, source = header.path, sources.get(block.tensor.name)
            if source is None or block.start >= block.tensor.common_numel[t]:
                continue
            data = os.pread(self._handles[t], 4 * block.n, source.offset + 4 * block.start)
            if len(data) != 4 * block.n or _state(path) != self._states[t]:
                raise CheckpointError(
                    f"Fisher file {printable(path)} changed while it was read; run again."
                )
            out[t] = np.frombuffer(data, dtype=np.float32)
            if not np.isfinite(out[t]).all() or (out[t] < 0).any():
                raise CheckpointError(
                    f"Fisher file {printable(path)}: tensor {quoted(source.name)} holds negative "
                    "or non-finite values; Fisher information is at least 0. Estimate it again."
                )
        return out


def _state(path: Path) -> tuple[int, int]:
    state = os.stat(path)
    return state.st_size, state.st_mtime_ns


def _header_of(path: Path, agent: Checkpoint) -> Header:
    """Return the header of an agent's Fisher file."""
    if not path.is_file():
        raise SettingsError(
            f'Agent "{agent.name}" has no Fisher file: expected {printable(path)}. Estimate it '
            "with `ram-studio fisher`."
        )
    header = read_header(path, agent.who)
    metadata = header.metadata
    if metadata.get("format") != FORMAT:
        raise CheckpointError(
            f"{printable(path)} is not a Fisher file: its format is "
            f"{printable(metadata.get('format'), 60)!r}, expected {FORMAT!r}."
        )
    if metadata.get("fingerprint") != agent.fingerprint:
        raise SettingsError(
            f'{printable(path)} is the Fisher file of another model than agent "{agent.name}" '
            f"(fingerprint {printable(metadata.get('fingerprint'), 16)}..., expected "
            f"{agent.fingerprint[:16]}...). Estimate it for this agent."
        )
    return header


def _find_tensors(
    header: Header, agent: Checkpoint, tensors: Sequence[MergeTensor], position: int
) -> dict[str, TensorInfo]:
    """Return each merged tensor's entry in the Fisher file, for tensors the agent has."""
    path, stored = header.path, header.tensors
    text = header.metadata.get("aliases", "{}").encode()
    aliases = parse_json_object(text, path, "Metadata of ")
    found = {}
    for tensor in tensors:
        own = tensor.agents[position]
        if own.path not in agent.shards:  # the agent has no such tensor: the base replaces it
            continue
        names = [tensor.name, tensor.tied_to, own.name]
        names += [alias for name in names if isinstance(alias := aliases.get(name or ""), str)]
        info = next((stored[name] for name in names if name in stored), None)
        if info is None or info.dtype != "F32" or info.shape != own.shape:
            what = "is missing" if info is None else f"is {info.dtype} {shown_shape(info.shape)}"
            raise CheckpointError(
                f"Fisher file {printable(path)}: tensor {quoted(tensor.name)} {what}; expected "
                f"F32 {shown_shape(own.shape)}. Estimate it again."
            )
        found[tensor.name] = info
    return found
