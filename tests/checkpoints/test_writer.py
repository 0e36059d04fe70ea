"""The writer: whole or not at all, whatever happens meanwhile."""

from __future__ import annotations

import errno
import os
import random
import shutil
import subprocess
import sys
from collections import namedtuple
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self

import blake3
import numpy as np
import pytest
import torch
from checkpoint_zoo import small_tensors, write_checkpoint
from safetensors.torch import load_file

from ram_studio.checkpoints.opening import open_checkpoint
from ram_studio.checkpoints.record.part_plan import PartPlan, save_plan
from ram_studio.checkpoints.write import output_folder
from ram_studio.checkpoints.write.output import NewFolder
from ram_studio.checkpoints.write.output_folder import check_output, write_whole
from ram_studio.checkpoints.write.shard_plan import TensorSpec, index_files, lay_out
from ram_studio.engine.reading.sources import Sources
from ram_studio.errors import OutputError

TENSORS = small_tensors()
SPECS = [(name, "BF16", tuple(t.shape)) for name, t in TENSORS.items()]


class Writing:
    """A checkpoint on its way into a new folder, as merges write it."""

    def __init__(
        self,
        out: Path,
        specs: Sequence[TensorSpec],
        *,
        max_shard_bytes: int = 10**9,
        sources: Sequence[Path] = (),
        sidecar_bytes: int = 2**20,
    ) -> None:
        shards = lay_out(specs, max_shard_bytes)
        self.index = index_files(shards)
        self.output = NewFolder(out)
        self.output.begin("", room=sidecar_bytes)
        self.writer = self.output.writer("whole", shards, sources)

    def __enter__(self) -> Self:
        self.writer.__enter__()
        return self

    def __exit__(self, *exception: object) -> None:
        self.writer.__exit__(*exception)
        self.output.__exit__(*exception)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.writer, name)

    def finish(self, files: Mapping[str, bytes] = MappingProxyType({})) -> Path:
        self.output.keep("whole", self.writer, b"", lambda flushed: None)
        self.output.complete({**files, **self.index})
        return self.output.out


def data_of(name: str) -> bytes:
    return TENSORS[name].view(torch.uint8).numpy().tobytes()


def write_all(target: Writing) -> None:
    for name in TENSORS:
        target.write(name, 0, data_of(name))


def write(out: Path, **options: Any) -> None:
    with Writing(out, SPECS, **options) as target:
        write_all(target)
        target.finish({"config.json": b"{}"})


def files_of(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def nothing_left(folder: Path, *allowed: str) -> bool:
    return sorted(os.listdir(folder)) == sorted(allowed)


@pytest.mark.parametrize("limit", [10**9, 100, 1])
def test_what_was_written_is_read_back(tmp_path, limit):
    out = tmp_path / "new" / "deep" / "out"
    if limit == 1:
        out.mkdir(parents=True)  # an empty folder is used, missing parents are made
    with Writing(out, SPECS, max_shard_bytes=limit) as target:
        write_all(target)
        assert not (out / "model.safetensors").exists()
        assert target.finish({"config.json": b"{}", "sub/chat.jinja": b"x"}) == out
    assert nothing_left(out.parent, "out")
    opened = open_checkpoint(out, name="base")
    assert set(opened.tensors) == set(TENSORS)
    loaded = {name: t for shard in opened.shards for name, t in load_file(shard).items()}
    for name, tensor in TENSORS.items():
        assert torch.equal(loaded[name], tensor)
    assert (out / "config.json").read_bytes() == b"{}"
    assert (out / "sub" / "chat.jinja").read_bytes() == b"x"
    assert (out / "model.safetensors.index.json").exists() == (len(opened.shards) > 1)
    assert opened.nbytes == target.nbytes


def test_the_bytes_do_not_depend_on_order_pieces_or_threads(tmp_path):
    write(tmp_path / "plain", max_shard_bytes=100)
    pieces = [
        (name, start, data_of(name)[start : start + 3])
        for name in TENSORS
        for start in range(0, len(data_of(name)), 3)
    ]
    random.Random(0).shuffle(pieces)
    with (
        Writing(tmp_path / "mixed", SPECS, max_shard_bytes=100) as target,
        ThreadPoolExecutor(8) as pool,
    ):
        with pytest.raises(OutputError, match="incomplete"):
            target.digests()
        list(pool.map(lambda piece: target.write(*piece), pieces))
        followed = {name: digest.hexdigest() for name, digest in target._digests.items()}
        assert followed == target.digests()
        target.finish({"config.json": b"{}"})
    for name, digest in followed.items():
        assert blake3.blake3((tmp_path / "mixed" / name).read_bytes()).hexdigest() == digest
    assert files_of(tmp_path / "plain") == files_of(tmp_path / "mixed")


def test_arrays_scalars_and_empty_tensors_are_written(tmp_path):
    specs = [("wide", "F32", (2, 2)), ("scalar", "I64", ()), ("empty", "BF16", (0, 3))]
    values = np.arange(4, dtype=np.float32).reshape(2, 2)
    with Writing(tmp_path / "out", specs) as target:
        target.write("wide", 0, values)
        target.write("scalar", 0, np.array(7))
        target.write("empty", 0, np.zeros((0, 3), np.uint16))
        target.finish()
    loaded = load_file(tmp_path / "out" / "model.safetensors")
    assert loaded["wide"].tolist() == values.tolist()
    assert loaded["scalar"].item() == 7
    assert tuple(loaded["empty"].shape) == (0, 3)


def test_a_tensor_not_written_in_full_is_never_let_out(tmp_path):
    with Writing(tmp_path / "out", SPECS) as target:
        write_all(target)
        target._written["model.norm.weight"] -= 2  # as if one piece had been lost
        with pytest.raises(OutputError, match=r"`model\.norm\.weight` 30 of 32 bytes"):
            target.finish()
    assert nothing_left(tmp_path)


def test_writing_outside_a_tensor_or_the_folder_is_refused(tmp_path):
    with Writing(tmp_path / "out", SPECS) as target:
        for offset, data in ((31, b"ab"), (-1, b"a")):
            with pytest.raises(AssertionError):
                target.write("model.norm.weight", offset, data)
        for name in ("../x", "/x", ""):
            with pytest.raises(AssertionError):
                target.output.complete({name: b""})


def test_an_exception_or_ctrl_c_leaves_nothing(tmp_path):
    for error in (ValueError, KeyboardInterrupt):
        target = Writing(tmp_path / "new" / "deep" / "out", SPECS)
        with pytest.raises(error), target:  # noqa: PT012  (raised inside the writer's own block)
            write_all(target)
            raise error
        assert nothing_left(tmp_path)


@pytest.mark.parametrize(
    ("out", "words", "answers"),
    [
        ("source", "not empty", {}),
        ("file", "not a folder", {}),
        ("link", "not a folder", {}),
        ("dangling", "not a folder", {}),
        ("file/out", "file is not a folder", {}),
        ("empty", "choose a new folder inside it", {"path.ismount": True}),
        ("source/merged", "is inside", {}),
        ("linked/merged/deep", "is inside", {}),
        # Root may write anywhere: the answer of the system is given for it.
        ("empty/out", "empty is not writable", {"access": False}),
    ],
)
def test_a_place_that_cannot_be_used_is_refused(tmp_path, monkeypatch, out, words, answers):
    (tmp_path / "file").write_text("x")
    (tmp_path / "empty").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "empty")
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    source = write_checkpoint(tmp_path / "source", small_tensors())
    (tmp_path / "linked").symlink_to(source)
    before, retained = sorted(os.listdir(tmp_path)), files_of(source)
    for call, answer in answers.items():
        monkeypatch.setattr(f"os.{call}", lambda *given, answer=answer: answer)
    with (
        pytest.raises(OutputError, match=words),
        Writing(tmp_path / out, SPECS, sources=[source]),
    ):
        pass
    monkeypatch.undo()
    assert nothing_left(tmp_path, *before)
    assert files_of(source) == retained
    check_output(tmp_path / "beside", needed_bytes=1, sources=[source])


def test_a_disk_too_small_is_refused_with_both_numbers(tmp_path, monkeypatch):
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(output_folder.shutil, "disk_usage", lambda path: usage(10**9, 0, 4_000))
    target = Writing(tmp_path / "out", SPECS, sidecar_bytes=7_000_000)
    with pytest.raises(OutputError) as caught, target:
        pass
    needed = target.nbytes + 7_000_000
    for words in (f"{needed} and 4000 bytes", "4.00 kB free", str(tmp_path / "out")):
        assert words in str(caught.value)
    assert nothing_left(tmp_path)


@pytest.mark.skipif(
    not sys.platform.startswith("linux") or os.geteuid() != 0 or not shutil.which("mount"),
    reason="needs a small file system of its own",
)
def test_a_really_full_disk_leaves_nothing(tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(disk)],
        capture_output=True,
        check=False,
    )
    if mounted.returncode:
        pytest.skip("mounting is not allowed here")
    try:
        specs = [("w", "U8", (1_500_000,))]
        with pytest.raises(OutputError, match=r"needs 2\.55 MB"):
            Writing(disk / "out", specs).__enter__()
        assert nothing_left(disk)
        # Somebody else fills the disk after the check: allocation notices, not the last write.
        (disk / "other").write_bytes(bytes(1_000_000))
        with pytest.raises(OutputError, match="the disk is full"):
            Writing(disk / "out", specs, sidecar_bytes=-(10**9)).__enter__()
        assert nothing_left(disk, "other")
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def unsupported(*args: object) -> None:
    raise OSError(errno.EOPNOTSUPP, "not supported")


def test_without_fallocate_files_still_get_their_size(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "posix_fallocate", unsupported)
    write(tmp_path / "a")
    monkeypatch.delattr(os, "posix_fallocate")
    write(tmp_path / "b")
    monkeypatch.undo()
    assert files_of(tmp_path / "a") == files_of(tmp_path / "b")


def test_a_file_that_cannot_be_put_in_place_leaves_nothing(tmp_path):
    (tmp_path / "taken").mkdir()
    with pytest.raises(OutputError, match=r"The plan .*taken cannot be written"):
        save_plan(PartPlan.model_construct(), tmp_path / "taken")
    assert nothing_left(tmp_path, "taken")


def test_an_output_that_appears_meanwhile_is_not_overwritten(tmp_path):
    out = tmp_path / "out"
    with Writing(out, SPECS) as target:
        write_all(target)
        out.mkdir()
        (out / "mine.txt").write_text("keep")
        with pytest.raises(OutputError, match="created by another process"):
            target.finish()
    assert files_of(out) == {"mine.txt": b"keep"}
    assert nothing_left(tmp_path, "out")


def test_two_writers_at_once_cannot_share_an_output(tmp_path):
    with Writing(tmp_path / "out", SPECS) as first:
        write_all(first)
        with (
            pytest.raises(OutputError, match="Another run is writing"),
            Writing(tmp_path / "out", SPECS),
        ):
            pass
        # Other outputs beside it are free, also those whose names look alike.
        write(tmp_path / "out.partial-0")
        first.finish()
    assert nothing_left(tmp_path, "out", "out.partial-0")


def test_leftovers_are_removed_where_it_is_known_whose_they_are(tmp_path, monkeypatch):
    names = [f".{name}.partial-{end}" for name in ("out", "out2") for end in (16 * "0", "mine")]
    for name in names:
        (tmp_path / name).mkdir()
    write(tmp_path / "out")
    assert nothing_left(tmp_path, "out", *names[1:])
    # A disk may know no locks: then nobody knows whether it is somebody's.
    monkeypatch.setattr(output_folder.fcntl, "flock", unsupported)
    write(tmp_path / "out2")
    assert nothing_left(tmp_path, "out", "out2", *names[1:])


def test_the_longest_names_that_a_disk_takes_are_written(tmp_path):
    folder, file = "ö" * 127 + "x", "y" * 255
    write(tmp_path / folder)
    write_whole(tmp_path / file, b"1")
    assert nothing_left(tmp_path, folder, file)


def test_permissions_are_those_of_new_files_and_folders(tmp_path):
    (tmp_path / "plain").mkdir()
    (tmp_path / "file").write_text("")
    write(tmp_path / "out")
    assert (tmp_path / "out").stat().st_mode == (tmp_path / "plain").stat().st_mode
    for name in ("model.safetensors", "config.json"):
        assert (tmp_path / "out" / name).stat().st_mode == (tmp_path / "file").stat().st_mode


def test_there_may_be_more_shards_than_a_process_may_open(tmp_path, few_open_files, monkeypatch):
    specs = [(f"t{i}", "BF16", (8,)) for i in range(100)]
    with monkeypatch.context() as patch, few_open_files():
        # As where the hard limit allows no more either.
        patch.setattr("ram_studio.checkpoints.write.shard_writer.allow_open_files", lambda n: None)
        with pytest.raises(OutputError, match=r"raise the limit \(ulimit -n\) and run again"):
            Writing(tmp_path / "out", specs, max_shard_bytes=16).__enter__()
    assert nothing_left(tmp_path)
    with few_open_files(), Writing(tmp_path / "out", specs, max_shard_bytes=16) as target:
        for name, _, _ in specs:
            target.write(name, 0, bytes(16))
        target.finish()
    written = open_checkpoint(tmp_path / "out", name="base")
    with few_open_files(), Sources(written) as sources:
        assert len(sources.states) == 100
