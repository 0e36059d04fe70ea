"""Which files of a folder are the model: verl's ranks, a distributed checkpoint, pickles."""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ram_studio.checkpoints.read.checkpoint import CONFIG_FILE
from ram_studio.checkpoints.read.describe import plural, printable, shown_list
from ram_studio.checkpoints.read.files import Folder
from ram_studio.checkpoints.read.json_files import read_json_object
from ram_studio.convert.dcp import METADATA
from ram_studio.errors import CheckpointError

Kind = Literal["ranks", "dcp", "files"]

_RANK = re.compile(
    r"(?P<stem>.*?)(world_size_(?P<world>\d+)_)?rank[_-]?(?P<rank>\d+)\.(pt|pth|bin)"
)
_WHOLE = re.compile(
    r"(pytorch_model|model|consolidated|state_dict)[\w.-]*\.(bin|pt|pth)", re.IGNORECASE
)
_NUMBERED = re.compile(r".+-(?P<number>\d{1,9})-of-(?P<count>\d{1,9})\.\w+")
_PICKLE = re.compile(r"[^.].*\.(bin|pt|pth)")
_NOT_MODEL = re.compile(
    r"(optim|optimizer|scheduler|scaler|rng_state|random_states|training_args|extra_state|data|"
    r"common|adapter_model|trainer_state)[\w.-]*"
)
_PREFERRED = ("actor", "model", "dist_ckpt", "pytorch_model_fsdp_0")
_CONFIG_FOLDER = "huggingface"
"""verl's folder of config and tokenizer beside its shards."""
_STEP = re.compile(r"(global_step_|iter_|step-?|checkpoint-)\d+")


@dataclass(frozen=True)
class Layout:
    """A model that was found: `files` are those of all ranks in order, or all of the model."""

    kind: Kind
    folder: Path
    files: tuple[Path, ...]


def find_layout(source: Path) -> Layout:
    """Return the model in a folder, in one of its subfolders, or in one file.

    Raises: CheckpointError for none, several, or an unsupported one.
    """
    if source.is_file():
        return Layout("files", source.parent, (source,))
    if not source.is_dir():
        raise CheckpointError(
            f"{printable(source)} is neither a folder nor a file; check the spelling."
        )
    found = _find_layouts(source, depth=2)
    if len(found) == 1:
        return found[0]
    if found:
        shown = [printable(layout.folder) for layout in found]
        raise CheckpointError(
            f"{printable(source)} holds {plural(len(found), 'model')}: {shown_list(shown, 6)}. "
            "Choose one of them."
        )
    names = Folder(source).names()
    if any(name.endswith(".safetensors") for name in names):
        raise CheckpointError(
            f"{printable(source)} holds safetensors files, which need no conversion; give the "
            "folder itself as base or agent."
        )
    raise CheckpointError(
        f"{printable(source)} holds no model that can be converted; expected files like "
        "model_world_size_8_rank_0.pt (verl), .metadata with .distcp files (DCP, Megatron's "
        f"torch_dist) or pytorch_model.bin, found {shown_list(names, show=printable) or 'nothing'}."
    )


def find_config(layout: Layout, source: Path, given: Path | None) -> Path | None:
    """Return the folder of config.json and tokenizer; None where none is beside the model.

    Raises: CheckpointError when the given folder has no config.json.
    """
    if given is not None:
        if not (given / CONFIG_FILE).is_file():
            raise CheckpointError(
                f"{printable(given)} has no {CONFIG_FILE}; give the folder of the trained model."
            )
        return given
    places = [layout.folder, layout.folder.parent]
    if source.is_dir():
        places.append(source)
    both = [folder for place in places for folder in (place / _CONFIG_FOLDER, place)]
    return next((folder for folder in both if (folder / CONFIG_FILE).is_file()), None)


def _find_layouts(folder: Path, depth: int) -> list[Layout]:
    """Return the models directly in a folder or, without any, in its subfolders."""
    own = _layout_of(folder)
    if own is not None:
        return [own]
    if not depth:
        return []
    inside = [p for p in sorted(folder.iterdir()) if p.is_dir() and not p.name.startswith(".")]
    inside = [path for path in inside if not _NOT_MODEL.fullmatch(path.name)]
    steps = [path for path in inside if _STEP.fullmatch(path.name)]
    if len(steps) > 1:
        raise CheckpointError(
            f"{printable(folder)} holds {plural(len(steps), 'saved step')}: "
            f"{shown_list([printable(path.name) for path in steps], 6)}. Give the folder of one."
        )
    for name in _PREFERRED:
        if (folder / name) in inside and (found := _find_layouts(folder / name, depth - 1)):
            return found
    return [layout for path in inside for layout in _find_layouts(path, depth - 1)]


def _layout_of(folder: Path) -> Layout | None:
    """Return the model directly in a folder, else None."""
    names = Folder(folder).names()
    _refuse_zarr(folder, names)
    if METADATA in names and any(name.endswith(".distcp") for name in names):
        return Layout("dcp", folder, ())
    if any(name.endswith(".distcp") for name in names):
        raise CheckpointError(
            f"{printable(folder)} has .distcp files, but not {METADATA}, which has the place of "
            "each tensor. Save again, or copy that file, too (its name begins with a dot)."
        )
    if any(name.endswith(".safetensors") for name in names):
        return None
    ranks = {name: match for name in names if (match := _RANK.fullmatch(name))}
    ranks = {name: match for name, match in ranks.items() if not _NOT_MODEL.fullmatch(name)}
    if ranks:
        return _ranks(folder, ranks)
    files = [name for name in names if _WHOLE.fullmatch(name)]
    if not files:
        pickles = [name for name in names if _PICKLE.fullmatch(name)]
        files = [name for name in pickles if not _NOT_MODEL.fullmatch(name)]
        files = files if len(files) == 1 else []
    _check_numbered(folder, files)
    return Layout("files", folder, tuple(folder / name for name in files)) if files else None


def _check_numbered(folder: Path, files: list[str]) -> None:
    """Refuse a model of numbered files if one is missing."""
    numbered = [match for name in files if (match := _NUMBERED.fullmatch(name))]
    there = {int(match["number"]) for match in numbered}
    total = max((int(match["count"]) for match in numbered), default=0)
    missing = next(number for number in itertools.count(1) if number not in there)
    if missing <= total:
        raise CheckpointError(
            f"{printable(folder)} holds {len(there)} of {plural(total, 'file')} (number {missing} "
            "is missing); copy all files of one save."
        )


def _ranks(folder: Path, ranks: dict[str, re.Match[str]]) -> Layout:
    stems = {match["stem"] for match in ranks.values()}
    stem = next((stem for stem in sorted(stems) if "model" in stem), min(stems))
    own = {int(match["rank"]): name for name, match in ranks.items() if match["stem"] == stem}
    worlds = {int(m["world"]) for m in ranks.values() if m["world"] and m["stem"] == stem}
    world = max(worlds, default=len(own))
    missing = [rank for rank in range(world) if rank not in own]
    if missing or len(worlds) > 1 or len(own) != world:
        raise CheckpointError(
            f"{printable(folder)} has files of {plural(len(own), 'rank')}, expected {world}"
            f"{f' (rank {missing[0]} is missing)' if missing else ''}; copy those of all ranks of "
            "one save."
        )
    return Layout("ranks", folder, tuple(folder / own[rank] for rank in range(world)))


def _refuse_zarr(folder: Path, names: list[str]) -> None:
    backend = None
    if "metadata.json" in names:
        backend = read_json_object(folder / "metadata.json", "").get("sharded_backend")
    if backend == "zarr" or any((folder / name / ".zarray").is_file() for name in names):
        raise CheckpointError(
            f"{printable(folder)} is a Megatron checkpoint in zarr, which is not read; save it "
            "again in torch_dist (--dist-ckpt-format torch_dist), Megatron's default, and convert "
            "that."
        )
