"""``ram-studio push``, and the push of ``merge --push``."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ram_studio.cli import options

if TYPE_CHECKING:
    from ram_studio.checkpoints.hub.push import Pushed

YesPublic = Annotated[
    bool,
    typer.Option(
        "--yes-public", help="Push where everybody can read it; private without this second yes."
    ),
]


def push(
    folder: Annotated[Path, typer.Argument(help="A merged folder.")],
    repository: Annotated[str, typer.Argument(help="owner/name on the Hub.")],
    yes_public: YesPublic = False,
    as_json: options.Json = False,
) -> None:
    """Upload a merged folder to the Hub, its card and passport included; private by default.

    A push that broke off goes on where it was when the command is run again.
    """
    from ram_studio.checkpoints.record.passport import read_passport
    from ram_studio.engine.verify_files import check_files

    check_files(folder, read_passport(folder))
    pushed = run(folder, repository, yes_public=yes_public, quiet=as_json)
    print(json.dumps(pushed.to_dict()) if as_json else told(pushed))


def run(folder: Path, repository: str, *, yes_public: bool, quiet: bool) -> Pushed:
    """Push, showing how far it is."""
    from ram_studio.checkpoints.hub.push import PushProgress, push
    from ram_studio.cli.progress import status_line

    with status_line(quiet) as show:

        def tell(progress: PushProgress) -> None:
            share = progress.done_bytes / max(1, progress.total_bytes)
            show(f"pushed {progress.file}, {share:.0%}")

        return push(folder, repository, public=yes_public, on_progress=tell)


def push_merge(folder: Path, repository: str, *, yes_public: bool, quiet: bool) -> None:
    """Push what was merged just now; what went up is told beside the merge's own output."""
    pushed = run(folder, repository, yes_public=yes_public, quiet=quiet)
    print(told(pushed), file=sys.stderr if quiet else sys.stdout)


def told(pushed: Pushed) -> str:
    """Return what a push did, in a sentence."""
    who = "everybody can read it" if pushed.is_public else "private"
    was = "was there already" if pushed.was_there else "pushed"
    return f"{pushed.url} ({who}): {was}."
