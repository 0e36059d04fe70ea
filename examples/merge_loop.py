"""Merge what a running job has saved so far: again and again, from cron or beside the job.

    python examples/toy_trainer.py RUN &
    python examples/merge_loop.py RUN OUT --agent tool=TOOL --agent memory=MEMORY

    */10 * * * *  python examples/merge_loop.py RUN OUT --agent tool=TOOL --agent memory=MEMORY

Of every RUN/step_N that is complete (DCP writes `.metadata` last) and not merged yet it makes

    OUT/step_N          the checkpoint as safetensors, every bit of it (`ram-studio convert`)
    OUT/soup/step_N     the mean of the last --soup checkpoints
    OUT/ema/step_N      decay * the average before + (1 - decay) * the checkpoint
    OUT/merged/step_N   RAM+ of that average with the other agents; OUT/latest points to it

Run it as often as you like: what is done is found in its folder and left alone, what was broken off
leaves nothing, and a second one beside it ends at once. Exit codes: 0 done or nothing to do, 75 try
again (another one runs, or a file changed meanwhile), else an error.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import re
import subprocess
import sys
from pathlib import Path

import ram_studio as rs

TRY_AGAIN = 75


def complete_steps(run: Path, every: int) -> list[int]:
    """Return the steps of which a whole checkpoint is there, in order."""
    found = (re.fullmatch(r"step_(\d+)", path.parent.name) for path in run.glob("*/.metadata"))
    return sorted(int(match[1]) for match in found if match and int(match[1]) % every == 0)


def merge(base: Path | str, agents: dict[str, str], out: Path, method: str, **more: object) -> None:
    """Merge into a folder; a merge that is there already is left as it is."""
    recipe = {"base": str(base), "agents": agents, "method": method, "other_base": "accept"}
    rs.merge(rs.make_recipe({**recipe, **more}), out, device="cpu")


def merge_step(step: int, before: list[int], options: argparse.Namespace) -> None:
    """Make everything of one step; before: the steps merged before it."""
    out, name = Path(options.out), f"step_{step}"
    now = out / name
    if not now.exists():
        convert = (sys.executable, "-m", "ram_studio", "convert", f"{options.run}/{name}")
        subprocess.run([*convert, str(now), "--config", options.base], check=True)
    last = [*before, step][-options.soup :]
    soup = {f"step_{one}": str(out / f"step_{one}") for one in last}
    mean = {"settings": {"scale": 1 / len(soup)}, "dtype": "float32"}
    merge(options.base, soup, out / "soup" / name, "task-arithmetic", **mean)
    average = out / "ema" / f"step_{before[-1]}" if before else now
    part = {"settings": {"scale": 1 - options.decay}, "dtype": "float32"}
    merge(average, {"now": str(now)}, out / "ema" / name, "task-arithmetic", **part)
    others = dict(pair.split("=", 1) for pair in options.agent)
    agents = {"trained": str(out / "ema" / name), **others}
    merge(options.base, agents, out / "merged" / name, "ram+")
    new = out / f".latest-{os.getpid()}"
    new.symlink_to(Path("merged") / name)
    new.replace(out / "latest")  # whoever reads it sees one merge or the other, whole


def main() -> int:
    """Merge every step that is new; return the exit code."""
    parser = argparse.ArgumentParser(description="Merge the checkpoints of a running job.")
    parser.add_argument("run", help="folder where the job saves step_N")
    parser.add_argument("out", help="folder for the merges")
    parser.add_argument("--base", default=str(rs.asset_path("independent", "base")))
    parser.add_argument("--agent", action="append", default=[], metavar="NAME=PATH")
    parser.add_argument("--every", type=int, default=1, help="merge steps divisible by this")
    parser.add_argument("--soup", type=int, default=3, help="how many checkpoints to average")
    parser.add_argument("--decay", type=float, default=0.9, help="of the moving average")
    options = parser.parse_args()
    out = Path(options.out)
    out.mkdir(parents=True, exist_ok=True)
    with open(out / ".lock", "w", encoding="utf-8") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(f"another run merges into {out}; nothing was done", file=sys.stderr)
            return TRY_AGAIN
        steps = complete_steps(Path(options.run), options.every)
        for number, step in enumerate(steps):
            if (out / "merged" / f"step_{step}" / "ram_studio.json").is_file():
                continue
            try:
                merge_step(step, steps[:number], options)
            except rs.RamStudioError as error:
                print(f"step {step}: {error}", file=sys.stderr)
                return error.exit_code
            except subprocess.CalledProcessError as error:
                return error.returncode
            print(f"step {step}: merged", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
