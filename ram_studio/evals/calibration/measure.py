"""Measure a model on all suites, for as long as there is time, and write its record.

    python -m ram_studio.evals.calibration.measure FOLDER --name SmolLM2-135M-Instruct --minutes 60

All suites are asked 6 questions, then 12, 24, ... until the time is over or all were asked; what a
suite was asked of last in full counts, so that no question is left out for how long it takes. Every
answer is stored as it ends: the same command goes on where it was stopped, with more time than
before. A suite that cannot be asked here (its package is missing, the context is too small) is said
and left out.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ram_studio.errors import RamStudioError, Stopped
from ram_studio.evals.answering.local import LocalEngine
from ram_studio.evals.calibration.record import FOLDER, make_record, save_record
from ram_studio.evals.report.tables import EvalReport
from ram_studio.evals.run import evaluate
from ram_studio.evals.store.answers import AnswerStore
from ram_studio.evals.suites import ALL_SUITES

FIRST = 6
LENGTHS = (1000,)
# The example's own: what they ask is not for other models.
LEFT_OUT = ("demo",)


def measure(
    folder: Path,
    name: str,
    store: AnswerStore,
    *,
    suites: Sequence[str],
    should_stop: Callable[[], bool],
    batch_size: int = 16,
) -> tuple[dict[str, EvalReport], dict[str, str]]:
    """Return a report per suite, of the most questions that were asked in full, and what failed.

    Args: suites: names, in the order they are asked. should_stop: when the time is over.
    """
    done: dict[str, EvalReport] = {}
    failed: dict[str, str] = {}
    limit, open_suites = FIRST, list(suites)
    how: dict[str, Any] = {"lengths": LENGTHS, "store": store, "should_stop": should_stop}
    with closing(LocalEngine(folder, batch_size=batch_size)) as engine:
        while open_suites:
            for suite in list(open_suites):
                try:
                    report = evaluate({name: engine}, suite, limit=limit, **how)
                except Stopped:
                    return done, failed
                except RamStudioError as error:
                    failed[suite] = str(error)
                    open_suites.remove(suite)
                    continue
                asked = _asked(report)
                score = {d: s.score for d, s in report.models[name].domains.items()}
                print(f"{datetime.now(UTC):%H:%M:%S} {suite} {asked}: {score}", flush=True)
                if suite in done and asked == _asked(done[suite]):
                    open_suites.remove(suite)
                done[suite] = report
            limit *= 2
    return done, failed


def _asked(report: EvalReport) -> int:
    return sum(len(items) for items in report.items.values())


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and write; return the exit code."""
    parser = argparse.ArgumentParser(description="Measure a model on all suites.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--name", required=True, help="as `record.SLOTS` has it")
    parser.add_argument("--note", default="", help="where the weights came from")
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--suites", help="names with commas; all but the example's when left out")
    parser.add_argument("--store", type=Path, help="where answers go; the user's when left out")
    parser.add_argument("--out", type=Path, help="the record; among the shipped when left out")
    options = parser.parse_args(arguments)
    known = [suite for suite in ALL_SUITES if suite not in LEFT_OUT]
    suites = options.suites.split(",") if options.suites else known
    began, end = datetime.now(UTC), time.monotonic() + 60 * options.minutes
    with AnswerStore(options.store) as store:
        done, failed = measure(
            options.folder,
            options.name,
            store,
            suites=suites,
            should_stop=lambda: time.monotonic() > end,
        )
    for suite, why in failed.items():
        print(f"{suite}: {why}", file=sys.stderr)
    if not done:
        print("No suite was asked in full; give it more minutes.", file=sys.stderr)
        return 1
    record = make_record(
        done,
        began=began.isoformat(timespec="seconds"),
        ended=datetime.now(UTC).isoformat(timespec="seconds"),
        weights=str(LocalEngine(options.folder).identity["fingerprint"]),
        note=options.note,
    )
    print(save_record(record, options.out or FOLDER / f"{options.name.lower()}.json"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
