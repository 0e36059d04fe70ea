"""``ram-studio push``, and the push of ``merge --push``."""

from __future__ import annotations

import json
import shlex
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ram_studio.cli import options
from ram_studio.errors import HubError

if TYPE_CHECKING:
    from ram_studio.checkpoints.hub.push import PushAhead, Pushed

YesPublic = Annotated[
    bool,
    typer.Option(
        "--public", help="Push where everybody can read it; private without this second yes."
    ),
]


def push(
    folder: Annotated[Path, typer.Argument(help="A merged folder.")],
    repository: Annotated[str, typer.Argument(help="owner/name on the Hub.")],
    public: YesPublic = False,
    as_json: options.Json = False,
) -> None:
    """Upload a merged folder to the Hub, its card and provenance included; private by default.

    A push that broke off goes on where it was when the command is run again.
    """
    from ram_studio.checkpoints.read.files import Folder
    from ram_studio.checkpoints.record.provenance import read_provenance
    from ram_studio.engine.verify import check_files

    check_files(Folder(folder), read_provenance(folder))
    pushed = run(folder, repository, public=public, quiet=as_json)
    print(json.dumps(asdict(pushed)) if as_json else told(pushed))


def run(
    folder: Path, repository: str, *, public: bool, quiet: bool, ahead: PushAhead | None = None
) -> Pushed:
    """Push, showing how far it is; ahead: what sent shards while they were merged."""
    from ram_studio.checkpoints.hub.push import PushProgress, push
    from ram_studio.cli.progress import status_line

    with status_line(quiet) as show:

        def tell(progress: PushProgress) -> None:
            share = progress.done_bytes / max(1, progress.total_bytes)
            show(f"pushed {progress.file}, {share:.0%}")

        sent = {} if ahead is None else ahead.sent
        return push(folder, repository, public=public, on_progress=tell, ahead=sent)


def push_merge(
    folder: Path, repository: str, *, public: bool, quiet: bool, ahead: PushAhead | None
) -> None:
    """Push what was merged just now; what went up is told beside the merge's own output.

    Raises: HubError that says where the merge is, which is whole nevertheless.
    """
    try:
        pushed = run(folder, repository, public=public, quiet=quiet, ahead=ahead)
    except HubError as error:
        command = shlex.join(["ram-studio", "push", str(folder), repository])
        raise HubError(f"{error} The merge itself is whole in {folder}: {command}") from error
    print(told(pushed), file=sys.stderr if quiet else sys.stdout)


def told(pushed: Pushed) -> str:
    """Return what a push did, in a sentence."""
    who = "everybody can read it" if pushed.is_public else "private"
    was = "was there already" if pushed.was_there else "pushed"
    ahead = f", {pushed.ahead} of its files while others were merged" if pushed.ahead else ""
    return f"{pushed.url} ({who}): {was}{ahead}."
