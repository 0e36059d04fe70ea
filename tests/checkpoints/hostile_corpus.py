"""Folders made to hurt whoever opens them: each must be refused in one line, in bounded memory.

Damage that costs no memory stands in the tables of test_header and test_checkpoint_folder.

Run as a script, it opens every folder below its argument under a limit of address space and prints
what came of each as JSON: nothing else is in that process, so the limit is about the package alone.
"""

from __future__ import annotations

import json
import os
import resource
import sys
from collections.abc import Callable
from pathlib import Path

HEADROOM_BYTES = 220_000_000
"""Address space that opening any checkpoint may take beyond the imported package."""

SHARD = "model.safetensors"
INDEX = "model.safetensors.index.json"
Content = bytes | Callable[[], bytes] | Path | tuple[int, int]
"""Of a file; a path is where a link leads, two numbers are a header's length and the file's."""

ONE = '{"dtype":"F32","shape":[2],"data_offsets":[0,8]}'


def _file(header: bytes, data: bytes = b"", length: int | None = None) -> bytes:
    return (len(header) if length is None else length).to_bytes(8, "little") + header + data


GOOD = _file(b'{"w":' + ONE.encode() + b"}", bytes(8))


def _entry(shape: str, offsets: str, dtype: str = "F32") -> bytes:
    return f'{{"w":{{"dtype":"{dtype}","shape":{shape},"data_offsets":{offsets}}}}}'.encode()


def _plain(content: bytes) -> dict[str, Content]:
    return {SHARD: content}


def _bomb(open_: bytes, item: bytes, count: int, close: bytes, name: str = SHARD) -> dict:
    """Hold many small objects; `%d` in the item is its number. Built when written: it is large."""

    def text() -> bytes:
        numbered = (item % i for i in range(count)) if b"%d" in item else [item] * count
        joined = open_ + b",".join(numbered) + close
        return _file(joined) if name == SHARD else joined

    return {name: text} | ({SHARD: GOOD} if name == "config.json" else {})


def _index(text: str | bytes) -> dict[str, Content]:
    return {"a.safetensors": GOOD, INDEX: text if isinstance(text, bytes) else text.encode()}


def _points_to(shard: str) -> dict[str, Content]:
    return _index(json.dumps({"weight_map": {"w": shard}}))


def _link(target: str, *, index: bool) -> dict[str, Content]:
    linked = Path(target)
    return _points_to("b.safetensors") | {"b.safetensors": linked} if index else {SHARD: linked}


def _config(text: bytes) -> dict[str, Content]:
    return {SHARD: GOOD, "config.json": text}


NESTED = b'{"a":' + b'{"a":' * 200_000
HOSTILE: dict[str, dict[str, Content]] = {
    # The length of the header.
    "length-zero": _plain(_file(b"", bytes(8), 0)),
    "length-u64": _plain(_file(b"{}", length=2**64 - 1)),
    "length-i64": _plain(_file(b"{}", length=2**63)),
    "length-over-the-file": _plain(_file(b"{}", length=3)),
    "length-over-the-limit": {SHARD: (100_000_001, 200_000_000)},
    "length-at-the-limit-of-zeros": {SHARD: (100_000_000, 2_000_000_000)},
    "spaces": _bomb(b'{"w":', b" " * 1000, 40_000, b"}"),
    # Bombs: small text, many objects.
    "bomb-of-lists": _bomb(b'{"w":[', b"[]", 4_000_000, b"]}"),
    "bomb-of-objects": _bomb(b'{"w":[', b"{}", 4_000_000, b"]}"),
    "bomb-of-names": _bomb(b"{", b'"%d":{}', 1_100_000, b"}"),
    "bomb-of-names-below-the-limit": _bomb(b"{", b'"%d":{}', 300_000, b"}"),
    "bomb-of-metadata": _bomb(b'{"__metadata__":{', b'"%d":1', 300_000, b"}}"),
    "bomb-of-tensors": _bomb(
        b"{", b'"%d":{"dtype":"F32","shape":[],"data_offsets":[0,4]}', 90_000, b"}"
    ),
    "long-name": _bomb(b'{"', b"n" * 1_000, 30_000, b'":1}'),
    "long-number": _plain(_file(_entry("[" + "9" * 5_000_000 + "]", "[0,8]"), bytes(8))),
    "deep-objects": _plain(_file(NESTED)),
    # Offsets and shapes.
    "offsets-into-the-header": _plain(_file(_entry("[2]", "[-4,4]"), bytes(8))),
    "offsets-huge": _plain(_file(_entry("[2]", "[9223372036854775807,9223372036854775815]"))),
    "offsets-float": _plain(_file(_entry("[2]", "[0.0,8.0]"), bytes(8))),
    "shape-wraps-to-zero": _plain(_file(_entry("[4294967296,4294967296]", "[0,0]"))),
    "shape-wraps-to-two": _plain(_file(_entry("[9223372036854775809,2]", "[0,8]"), bytes(8))),
    "shape-huge": _plain(_file(_entry("[9223372036854775807]", "[0,8]"), bytes(8))),
    "shape-infinite": _plain(_file(_entry("[1e999]", "[0,8]"), bytes(8))),
    "half-a-byte": _plain(_file(_entry("[3]", "[0,1]", "F4"), bytes(1))),
    # Names and text.
    "duplicate-by-escape": _plain(_file(f'{{"w":{ONE},"\\u0077":{ONE}}}'.encode(), bytes(8))),
    "name-with-nul": _plain(_file(f'{{"w\\u0000":{ONE}}}'.encode(), bytes(8))),
    "name-turned-round": _plain(_file(f'{{"w\\u202e":{ONE}}}'.encode(), bytes(8))),
    "utf-16": _plain(_file(f'{{"w":{ONE}}}'.encode("utf-16"), bytes(8))),
    "byte-order-mark": _plain(_file(b"\xef\xbb\xbf" + f'{{"w":{ONE}}}'.encode(), bytes(8))),
    "text-after-the-object": _plain(_file(f'{{"w":{ONE}}}x'.encode(), bytes(8))),
    "nan": _plain(_file(b'{"w":NaN}')),
    # The index.
    "index-missing": _points_to("b.safetensors"),
    "index-long-name": _points_to("n" * 100_000 + ".safetensors"),
    "index-promises-more": _index('{"weight_map":{"w":"a.safetensors","v":"a.safetensors"}}'),
    "index-bomb": _bomb(b'{"weight_map":{"w":[', b"[]", 4_000_000, b"]}}", INDEX),
    "index-of-many-shards": _index(
        json.dumps({"weight_map": {str(i): f"{i}.safetensors" for i in range(100_000)}})
    ),
    "index-not-utf-8": _index(b'{"weight_map":{"w":"\xff.safetensors"}}'),
    # Links.
    "link-out": _link("../outside/secret.txt", index=False),
    "link-out-by-index": _link("../outside/secret.txt", index=True),
    "link-to-passwords": _link("/etc/passwd", index=True),
    "link-to-zeros": _link("/dev/zero", index=False),
    "link-to-memory": _link("/proc/self/mem", index=False),
    "link-to-itself": _link(SHARD, index=False),
    "link-to-nothing": _link("../outside/nothing.safetensors", index=False),
    # The config.
    "config-deep": _config(NESTED),
    "config-bomb": _bomb(b'{"a":[', b"[]", 4_000_000, b"]}", "config.json"),
    "config-huge": _bomb(b'{"a":"', b"x" * 1_000, 17_000, b'"}', "config.json"),
    "config-not-utf-8": _config(b'{"\xff": 1}'),
    "config-long-number": _config(b'{"hidden_size": ' + b"9" * 100_000 + b"}"),
}


def write_corpus(folder: Path) -> None:
    """Write one folder per case, and one that links lead to."""
    (folder / "outside").mkdir()
    (folder / "outside" / "secret.txt").write_bytes(GOOD)
    for case, files in HOSTILE.items():
        (folder / case).mkdir()
        for name, content in files.items():
            path = folder / case / name
            if isinstance(content, Path):
                path.symlink_to(content)
            elif isinstance(content, tuple):
                path.write_bytes(content[0].to_bytes(8, "little"))
                os.truncate(path, content[1])
            else:
                path.write_bytes(content() if callable(content) else content)


def _open_all(folder: Path) -> dict[str, list[str]]:
    from ram_studio.checkpoints.opening import open_checkpoint

    status = Path("/proc/self/status").read_text()
    size = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmSize:"))
    limit = size * 1024 + HEADROOM_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    outcome = {}
    for case in sorted(p for p in folder.iterdir() if p.name in HOSTILE):
        try:
            opened = open_checkpoint(str(case), name="coder")
        except Exception as error:
            outcome[case.name] = [type(error).__name__, str(error)]
        else:
            outcome[case.name] = ["opened", repr(opened)[:200]]
    return outcome


if __name__ == "__main__":
    print(json.dumps(_open_all(Path(sys.argv[1]))))
