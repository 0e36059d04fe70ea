"""``ram-studio fisher``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ram_studio.cli import options
from ram_studio.errors import OutputError


def fisher(
    agent: options.Agents = None,
    out: Annotated[Path | None, typer.Option(help="Folder for the Fisher files.")] = None,
    examples: Annotated[int, typer.Option(help="Prompts per agent.")] = 256,
    prompts: Annotated[
        Path | None, typer.Option(help="Text file, one prompt a line [default: the example's own].")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the sampled answers.")] = 0,
    device: options.Device = "auto",
) -> None:
    """Estimate the Fisher information that `merge --method fisher --set files=DIR` weighs by."""
    from ram_studio.engine.reading.fisher_files import fisher_path
    from ram_studio.evals.fisher import check_knows_examples, estimate_fisher, training_prompts

    agents = options.parse_agents(agent)
    if out is None:
        raise typer.BadParameter("no folder was given", param_hint="--out")
    if prompts is None:
        for name, source in agents.items():
            check_knows_examples(source, name)
        chosen = list(training_prompts(examples, seed))
    else:
        try:
            lines = prompts.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise OutputError(f"{prompts} cannot be read: {error}.") from error
        chosen = [line for line in lines if line.strip()][:examples]
    for name, source in agents.items():
        path = estimate_fisher(
            source, fisher_path(out, name), chosen, name=name, seed=seed, device=device
        )
        print(f"{name}: {path}")
    print(f"Next: ram-studio merge ... --method fisher --set files={out}")
