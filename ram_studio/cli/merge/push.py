"""``ram-studio push``, and the push of ``merge --push``."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated

import typer

from ram_studio.cli import options
from ram_studio.cli.settings import Store, Storing
from ram_studio.errors import HubError

if TYPE_CHECKING:
    from ram_studio.checkpoints.hub.push import PushAhead, PushResult

YesPublic = Annotated[
    bool,
    typer.Option("--public", help="Make the repository public; private when left out."),
]


def push(
    folder: Annotated[Path, typer.Argument(help="A merged folder.")],
    repository: Annotated[str, typer.Argument(help="owner/name on the Hub.")],
    public: YesPublic = False,
    scores: Annotated[
        bool,
        typer.Option("--scores", help="Also publish the merge's stored scores."),
    ] = False,
    analysis: Annotated[
        Path | None,
        typer.Option(help="Also publish this analysis of the sources, compacted, for the canvas."),
    ] = None,
    store: Store = None,
    as_json: options.Json = False,
) -> None:
    """Upload a merged folder to the Hub, its card and provenance included; private by default.

    An interrupted push continues when the command is run again. If the merge is already there,
    scores and analysis are added.
    """
    from ram_studio.checkpoints.read.files import Folder
    from ram_studio.checkpoints.record.provenance import read_provenance
    from ram_studio.engine.verify import check_files
    from ram_studio.evals.publish.hub_files import push_files

    check_files(Folder(folder), read_provenance(folder))
    with Storing(store, no_store=not scores).open_store() as answers:
        more = push_files(folder, repository, store=answers, analysis=analysis)
    pushed = run(folder, repository, public=public, quiet=as_json, more=more)
    print(json.dumps(asdict(pushed)) if as_json else describe_push(pushed))


def run(
    folder: Path,
    repository: str,
    *,
    public: bool,
    quiet: bool,
    ahead: PushAhead | None = None,
    more: Mapping[str, bytes] = MappingProxyType({}),
) -> PushResult:
    """Push and show the progress.

    ahead: the uploader of shards during the merge; more: files beside those of the folder.
    """
    from ram_studio.checkpoints.hub.push import PushProgress, push
    from ram_studio.cli.progress import status_line

    with status_line(quiet) as show:

        def show_progress(progress: PushProgress) -> None:
            share = progress.done_bytes / max(1, progress.total_bytes)
            show(f"pushed {progress.file}, {share:.0%}")

        sent = {} if ahead is None else ahead.sent
        return push(
            folder, repository, public=public, on_progress=show_progress, ahead=sent, more=more
        )


def push_merge(
    folder: Path, repository: str, *, public: bool, quiet: bool, ahead: PushAhead | None
) -> None:
    """Push the merge that was just made; the result is printed with the merge's own output.

    Raises: HubError with the folder of the merge, which is complete nevertheless.
    """
    from ram_studio.evals.publish.hub_files import push_files

    try:
        more = push_files(folder, repository, store=None, analysis=None)
        pushed = run(folder, repository, public=public, quiet=quiet, ahead=ahead, more=more)
    except HubError as error:
        command = shlex.join(["ram-studio", "push", str(folder), repository])
        raise HubError(f"{error} The merge is complete in {folder}: {command}") from error
    print(describe_push(pushed), file=sys.stderr if quiet else sys.stdout)


def describe_push(pushed: PushResult) -> str:
    who = "public" if pushed.is_public else "private"
    added = f", {pushed.files} files added or updated" if pushed.files else ""
    was = f"was there already{added}" if pushed.was_there else "pushed"
    ahead = f", {pushed.ahead} of its files while others were merged" if pushed.ahead else ""
    return f"{pushed.url} ({who}): {was}{ahead}."
