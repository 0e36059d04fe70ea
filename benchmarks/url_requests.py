"""Numbers of requests, total and concurrent, of a merge in parts with sources at a URL.

The store is fsspec's memory file system with 10 ms added to each request; a source has one shard
per part.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import threading
import time
from pathlib import Path

import fsspec
import torch
from measuring import table
from safetensors.torch import save_file

from ram_studio.checkpoints.record.part_plan import load_plan, save_plan
from ram_studio.checkpoints.record.recipe import make_recipe
from ram_studio.engine.parts.finishing import finish
from ram_studio.engine.parts.planning import make_plan
from ram_studio.engine.parts.steps import merge_part

SECONDS = 0.01
SOURCES = ("base", "a", "b")


def write(folder: Path, shards: int, moved: float) -> None:
    """Write a model with one tensor per shard."""
    folder.mkdir()
    weight_map = {}
    for i in range(shards):
        file, name = f"model-{i + 1:05d}-of-{shards:05d}.safetensors", f"model.layers.{i}.up.weight"
        save_file({name: torch.full((64, 64), 1 + moved)}, folder / file, {"format": "pt"})
        weight_map[name] = file
    index = {"metadata": {}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    (folder / "config.json").write_text("{}")


class Counted:
    """A file system's requests for bytes, each delayed by SECONDS."""

    def __init__(self, system: fsspec.AbstractFileSystem) -> None:
        self._lock, self._cat, self._now = threading.Lock(), system.cat_file, 0
        self.total = self.most = 0
        system.cat_file = self.cat_file

    def cat_file(self, path: str, start: int | None = None, end: int | None = None) -> bytes:
        with self._lock:
            self.total, self._now = self.total + 1, self._now + 1
            self.most = max(self.most, self._now)
        time.sleep(SECONDS)
        found = self._cat(path, start=start, end=end)
        with self._lock:
            self._now -= 1
        return found

    def row(self, step: str, began: float) -> tuple[str, ...]:
        """Return the counts since the last row, as a row of the table."""
        found = (step, f"{self.total:,}", str(self.most), f"{time.monotonic() - began:.1f} s")
        self.total = self.most = 0
        return found


def main() -> None:
    """Print a row for each step of a merge."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="?", type=int, default=64, help="default: 64")
    parts = parser.parse_args().parts
    with tempfile.TemporaryDirectory() as temporary:
        place = Path(temporary)
        for number, name in enumerate(SOURCES):
            write(place / name, parts, number / 64)
        memory = fsspec.filesystem("memory")
        memory.put(str(place), "/models", recursive=True)
        counted, began = Counted(memory), time.monotonic()
        urls = {name: f"memory://models/{name}" for name in SOURCES}
        recipe = {"method": "task-arithmetic", "other_base": "accept", "base": urls.pop("base")}
        size = 64 * 64 * 4 + 200
        save_plan(
            make_plan(make_recipe(recipe | {"agents": urls}), parts, max_shard_bytes=size),
            place / "p",
        )
        rows = [counted.row("plan", began)]
        plan, began = load_plan(place / "p"), time.monotonic()
        for part in range(1, parts + 1):
            merge_part(plan, part, place / "out", device="cpu", threads=1)
        rows.append(counted.row(f"{parts} parts", began))
        began = time.monotonic()
        finish(plan, place / "out", device="cpu", threads=1)
        rows.append(counted.row("finish", began))
    print(table(("step", "requests", "most at a time", "wall, one machine"), rows))


if __name__ == "__main__":
    main()
