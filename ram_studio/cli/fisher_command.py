"""``ram-studio fisher``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ram_studio.checkpoints.read.describe import shell_word
from ram_studio.cli import options
from ram_studio.cli.progress import status_line
from ram_studio.errors import SettingsError, raise_as


def fisher(
    agent: options.Agents = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Folder for the Fisher files.")
    ] = None,
    examples: Annotated[int, typer.Option(help="Prompts per agent.")] = 256,
    prompts: Annotated[
        Path | None, typer.Option(help="Text file, one prompt a line [default: the example's own].")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the sampled answers.")] = 0,
    device: options.Device = "auto",
) -> None:
    """Estimate the Fisher information that `merge --method fisher --set files=DIR` uses."""
    from ram_studio.checkpoints.opening import open_checkpoint
    from ram_studio.engine.reading.fisher_files import fisher_path
    from ram_studio.evals.fisher import check_knows_examples, estimate_fisher, training_prompts

    sources = options.parse_agents(agent)
    if out is None:
        raise typer.BadParameter("no folder was given; name one to create", param_hint="--out")
    if examples < 1:
        raise typer.BadParameter("give at least 1", param_hint="--examples")
    agents = [open_checkpoint(source, name=name) for name, source in sources.items()]
    if prompts is None:
        for own in agents:
            check_knows_examples(own)
        chosen = list(training_prompts(examples, seed))
    else:
        try:
            with raise_as(SettingsError, f"{prompts} cannot be read"):
                # Not splitlines: a prompt may contain other line separators.
                lines = prompts.read_text("utf-8").split("\n")
        except UnicodeDecodeError as error:
            raise SettingsError(f"{prompts} is not UTF-8 text; write one prompt a line.") from error
        chosen = [line for line in lines if line.strip()][:examples]
    for own in agents:
        path = fisher_path(out, own.name)
        with status_line() as show_text:
            done = estimate_fisher(own, path, chosen, seed=seed, device=device, on_text=show_text)
        print(f"{own.name}: {done}")
    print(f"Next: ram-studio merge ... --method fisher --set files={shell_word(out)}")
