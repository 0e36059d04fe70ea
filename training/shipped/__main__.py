"""`python -m training.shipped --out assets [--seed 0] [--force]`: train the shipped sets again."""

import argparse
import time
from functools import partial
from pathlib import Path

from training.shipped.build import build


def main(arguments: list[str] | None = None) -> None:
    """Parse the command line and build the example agents."""
    parser = argparse.ArgumentParser(
        prog="python -m training.shipped",
        description="Train the example base and agents from nothing (CPU, under 45 minutes).",
    )
    parser.add_argument("--out", type=Path, required=True, help="folder for the three sets")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--force", action="store_true", help="train existing stages again")
    parser.add_argument(
        "--jobs", type=int, default=1, help="processes, one thread each; same results"
    )
    parser.add_argument(
        "--trials",
        type=Path,
        help="folder for the results of training variants that are not shipped",
    )
    parser.add_argument(
        "--threads", type=int, default=1, help="torch threads; the shipped weights used 1"
    )
    build(**vars(parser.parse_args(arguments)), say=partial(_say, time.time()))


def _say(start: float, text: str) -> None:
    print(f"[{time.time() - start:6.0f} s] {text}", flush=True)


if __name__ == "__main__":
    main()
