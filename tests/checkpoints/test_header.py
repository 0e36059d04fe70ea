"""safetensors headers: what is read, and everything hostile that is refused."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch
from checkpoint_zoo import JSON, raw_safetensors, refused, small_tensors
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save, save_file

from ram_studio.checkpoints.read.describe import who
from ram_studio.checkpoints.read.header import MAX_HEADER_BYTES, read_header
from ram_studio.checkpoints.read.tensors import TensorInfo
from ram_studio.errors import CheckpointError

ONE = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
F4 = {"dtype": "F4", "shape": [3], "data_offsets": [0, 1]}


def refuse(path: Path, *expected: str) -> None:
    refused(lambda: read_header(path, who("coder")), 'Agent "coder"', path.name, *expected)


DTYPES = """BOOL bool  U8 uint8  I8 int8  I16 int16  I32 int32  I64 int64  F16 float16  F32 float32
F64 float64  BF16 bfloat16  F8_E4M3 float8_e4m3fn  F8_E5M2 float8_e5m2"""


def test_tensors_of_every_dtype_lie_where_the_header_says(tmp_path):
    words = DTYPES.split()
    tensors = small_tensors() | {
        "scalar": torch.tensor(7.0),
        "empty": torch.zeros(0, 5, dtype=torch.float16),
        **{
            n: torch.arange(3).to(getattr(torch, d))
            for n, d in zip(words[::2], words[1::2], strict=True)
        },
    }
    path = tmp_path / "model.safetensors"
    save_file(tensors, path, {"format": "pt", "note": "é"})
    header = read_header(path)
    found = header.tensors
    assert header.metadata == {"format": "pt", "note": "é"}
    assert found.keys() == tensors.keys()
    content = path.read_bytes()
    for name, tensor in tensors.items():
        info = found[name]
        assert info.shape == tuple(tensor.shape)
        assert info.numel == tensor.numel()
        stored = content[info.offset : info.offset + info.nbytes]
        assert stored == tensor.contiguous().view(-1).view(torch.uint8).numpy().tobytes()
    assert all(found[name].dtype == name for name in words[::2])
    ends = [(info.offset, info.offset + info.nbytes) for info in found.values()]
    assert ends == sorted(ends)
    assert found["scalar"].nbytes == 4
    path.write_bytes(raw_safetensors(b"{}  "))  # without tensors it is legal too
    assert (read_header(path).tensors, read_header(path).metadata) == ({}, {})


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "cut short: 0 bytes"),
        (b"\x08\0\0\0", "cut short: 4 bytes"),
        (raw_safetensors(b"{}")[:9], "cut short: its header takes 2 bytes, the file has 9"),
        ((MAX_HEADER_BYTES + 1).to_bytes(8, "little"), "header of 100000001 bytes"),
        (b"version https://git-lfs.github.com/spec/v1\noid ", "git lfs pull"),
        (b"\x80\x02}q\x00." + bytes(40), "not a safetensors file"),
        (raw_safetensors(b"[]"), "not a safetensors file"),
        (raw_safetensors(b"\0\0\0\0"), "not a safetensors file"),
        (raw_safetensors(b'{"a": '), "not valid JSON"),
        (raw_safetensors(b'{"a": "\xff"}'), "not valid JSON"),
        (raw_safetensors(b'{"a":' + b"[" * 50_000), "nested too deeply"),
        (raw_safetensors(b'{"a":' + b'{"a":' * 50_000), "nested too deeply"),
        (raw_safetensors(b'{"a":[' + b"[]," * 400_001), "exhaust memory"),
        (raw_safetensors(b'{"a":{"b":1,"b":2}}'), "`b` appears twice"),
        (raw_safetensors({"__metadata__": {"a": 1}}), "__metadata__"),
        (raw_safetensors({"__metadata__": []}), "__metadata__"),
        (raw_safetensors({"w": []}), "tensor `w`"),
        (raw_safetensors({"w": {"dtype": "F32", "shape": []}}), "tensor `w`"),
        (raw_safetensors({"w": ONE | {"more": 1}}, bytes(8)), "tensor `w`"),
        (raw_safetensors({"w": ONE | {"dtype": "F31"}}, bytes(8)), "unknown dtype F31"),
        (raw_safetensors({"w": ONE | {"dtype": 32}}, bytes(8)), "unknown dtype 32"),
        (raw_safetensors({"w": ONE | {"shape": [-2]}}, bytes(8)), "shape [-2]"),
        (raw_safetensors({"w": ONE | {"shape": [2.0]}}, bytes(8)), "shape [2.0]"),
        (raw_safetensors({"w": ONE | {"shape": [True, 2]}}, bytes(8)), "shape [True, 2]"),
        (raw_safetensors({"w": ONE | {"shape": 2}}, bytes(8)), "shape 2"),
        (raw_safetensors({"w": ONE | {"shape": [2**63, 2]}}, bytes(8)), "shape ["),
        (raw_safetensors({"w": ONE | {"shape": [2**62] * 64}}, bytes(8)), "takes "),
        (raw_safetensors({"w": ONE | {"shape": [1] * 65}}, bytes(8)), "at most 64"),
        (raw_safetensors({"w": ONE | {"data_offsets": [0]}}, bytes(8)), "data_offsets [0]"),
        (raw_safetensors({"w": ONE | {"data_offsets": [8, 0]}}, bytes(8)), "give -8"),
        (raw_safetensors({"w": ONE | {"data_offsets": [0, -8]}}, bytes(8)), "data_offsets"),
        (raw_safetensors({"w": ONE | {"shape": [3]}}, bytes(8)), "takes 12 bytes"),
        (raw_safetensors({"w": F4}, bytes(1)), "takes 3/2 bytes, its data_offsets 0..1 give 1"),
        (raw_safetensors({"w": ONE}, bytes(7)), "is cut short: it has 76 bytes, its header des"),
        (raw_safetensors({"w": ONE}, bytes(7)), "describes 77 (1 bytes missing)"),
        (raw_safetensors({"w": ONE}, bytes(9)), "1 bytes extra"),
        (raw_safetensors({"w": ONE | {"data_offsets": [4, 12]}}, bytes(12)), "holes"),
        (raw_safetensors({"v": ONE, "w": ONE}, bytes(8)), "overlap"),
        (raw_safetensors({"v\nw": ONE}, bytes(8)), "cannot be printed"),
        (raw_safetensors(b'{"\\ud800":' + json.dumps(ONE).encode() + b"}", bytes(8)), "printed"),
    ],
)
def test_a_hostile_or_damaged_header_is_refused(tmp_path, content, words):
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    refuse(path, words)


def test_a_missing_file_a_folder_and_a_pipe_are_refused(tmp_path):
    refuse(tmp_path / "missing.safetensors", "cannot be read")
    (tmp_path / "folder.safetensors").mkdir()
    refuse(tmp_path / "folder.safetensors", "not a regular file")
    os.mkfifo(tmp_path / "pipe.safetensors")
    refuse(tmp_path / "pipe.safetensors", "not a regular file")


_ENTRY = st.fixed_dictionaries(
    {
        "dtype": st.sampled_from(["F32", "BF16", "F4", "I64", "BOOL"]) | JSON,
        "shape": st.lists(st.integers(-1, 5) | st.integers(), max_size=3) | JSON,
        "data_offsets": st.lists(st.integers(-1, 40), min_size=2, max_size=2) | JSON,
    }
)


_HEADERS = st.dictionaries(st.text(max_size=4), _ENTRY | JSON, max_size=3)
REAL = save(small_tensors())


def _with_one_wrong_byte(position: int, value: int) -> bytes:
    """Return a real file, wrong in its header."""
    place = position % (8 + int.from_bytes(REAL[:8], "little"))
    return REAL[:place] + bytes([value]) + REAL[place + 1 :]


@pytest.mark.parametrize(
    "contents",
    [
        st.binary(max_size=200),
        st.builds(raw_safetensors, _HEADERS, st.binary(max_size=40)),
        st.builds(_with_one_wrong_byte, st.integers(0, 10_000), st.integers(0, 255)),
    ],
    ids=["bytes", "headers", "one wrong byte"],
)
@settings(max_examples=130)
@given(data=st.data())
def test_any_file_is_refused_or_as_its_header_describes_it(tmp_path_factory, contents, data):
    path = tmp_path_factory.getbasetemp() / "fuzz.safetensors"
    path.write_bytes(data.draw(contents))
    try:
        header = read_header(path, who("coder"))
    except CheckpointError:
        refuse(path)
        return
    end = header.data_start
    for info in header.tensors.values():
        assert isinstance(info, TensorInfo)
        assert info.offset == end
        end += info.nbytes
    assert end == path.stat().st_size
