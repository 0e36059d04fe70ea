"""``ram-studio evaluate``."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from ram_studio.cli import options
from ram_studio.cli.progress import status_line
from ram_studio.cli.report import Export, Judging, check_exports
from ram_studio.cli.settings import SettingsOptions, Storing
from ram_studio.errors import EvaluationError
from ram_studio.evals.settings import EvalSettings

Models = Annotated[
    list[str],
    typer.Argument(
        metavar="MODEL...",
        help="Folders, or NAME=FOLDER; with --endpoint the server's model names.",
    ),
]


@dataclass
class Answering:
    """The models' engine. The annotations are the command line's."""

    endpoint: Annotated[
        str | None, typer.Option(metavar="URL", help="OpenAI-compatible server of the models.")
    ] = None
    token_env: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Environment variable with the server's token."),
    ] = None
    timeout: Annotated[
        float,
        typer.Option(help="Seconds to wait for an endpoint's answer; asked once more after that."),
    ] = 300.0
    engine: Annotated[
        Literal["transformers", "vllm", "lm-eval"],
        typer.Option(help="Engine for local models; lm-eval has its own tasks."),
    ] = "transformers"
    tasks: Annotated[
        str | None,
        typer.Option(help="Tasks of --engine lm-eval, such as gsm8k,ifeval or forgetting."),
    ] = None
    include_path: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Task files of your own for lm-eval.")
    ] = None
    ray: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS",
            help="Ask each model and suite in a task on this Ray cluster; local starts Ray on this "
            "machine.",
        ),
    ] = None

    def check(self, settings: EvalSettings) -> None:
        """Raise typer.BadParameter (exit code 2) for options that exclude each other."""
        is_harness = self.engine == "lm-eval"
        faults = {
            "--engine": (
                self.endpoint is not None and self.engine != "transformers",
                "an endpoint needs no engine; leave it out",
            ),
            "--tasks": (
                is_harness is (self.tasks is None),
                "name lm-eval's tasks, for example gsm8k,ifeval, with --engine lm-eval",
            ),
            "--include-path": (
                self.include_path is not None and not settings.is_harness,
                "only lm-eval takes these; add --engine lm-eval",
            ),
            "--ray": (
                self.ray is not None and (settings.is_harness or self.endpoint is not None),
                "on Ray models are local and use --engine transformers; leave it out",
            ),
        }
        for option, (is_wrong, what) in faults.items():
            if is_wrong:
                raise typer.BadParameter(what, param_hint=option)

    def sources(self, models: list[str], settings: EvalSettings) -> dict[str, Any]:
        """Return folders, or models of an endpoint, by name."""
        from ram_studio.evals.answering.endpoint import EndpointEngine

        if self.endpoint is None:
            return dict(name_models(models))
        token = None if self.token_env is None else os.environ.get(self.token_env)
        if self.token_env is not None and not token:
            raise typer.BadParameter(
                f"the variable {self.token_env} is not set; set it to the server's token",
                param_hint="--token-env",
            )
        how: dict[str, Any] = {"token": token, "chat": settings.chat, "seconds": self.timeout}
        return {name: EndpointEngine(self.endpoint, name, **how) for name in models}

    def ask(self, sources: dict[str, Any], settings: EvalSettings, **hooks: Any) -> Any:
        """Return the report of suites or, where settings say so, of lm-eval."""
        from ram_studio.evals.lm_eval import evaluate_with_harness
        from ram_studio.evals.on_ray import evaluate_on_ray
        from ram_studio.evals.run import evaluate as ask

        if settings.is_harness:
            hooks["include_path"] = self.include_path
            return evaluate_with_harness(sources, settings, **hooks)
        if self.ray is not None:
            return evaluate_on_ray(sources, self.ray, settings, **hooks)
        return ask(sources, settings, **hooks)


@options.expand_groups
def evaluate(
    models: Models,
    *,
    asked: Annotated[dict[str, Any], SettingsOptions()],
    judging: Judging,
    answering: Answering,
    storing: Storing,
    export: Export = None,
    as_json: options.Json = False,
) -> None:
    """Score models side by side on the same questions, with 95 % intervals."""
    asked["engine"] = "vllm" if answering.engine == "vllm" else "transformers"
    asked["tasks"] = answering.tasks or ()
    settings = EvalSettings(**asked, base=judging.base)
    answering.check(settings)
    sources = answering.sources(models, settings)
    # Checked first, although it is only needed at the end, hours later.
    check_exports(export)
    judging.check(sources)
    with storing.open_store() as store, status_line(quiet=as_json) as show_text:
        report = answering.ask(
            sources,
            settings,
            store=store,
            rerun=storing.rerun,
            on_progress=lambda model, domain, done, n: show_text(f"{model}: {domain} {done}/{n}"),
        )
    if report.until:
        print(report.until.sentence, file=sys.stderr if as_json else sys.stdout)
    result = judging.show(report, export, as_json)
    answered = any(score.n for row in report.models.values() for score in row.domains.values())
    if report.items and not answered:
        (first, *_), *_ = next(iter(report.models.values())).answers.values()
        missing = " ".join(result.missing())
        raise EvaluationError(f"No question was answered. {missing} The first: {first.note}.")


def name_models(models: list[str]) -> dict[str, str]:
    """Return model folders by name: NAME of NAME=FOLDER, else the folder's own name.

    Two folders of the same name get their parent's name too.
    """
    named: dict[str, str] = {}
    for text in models:
        name, separator, path = text.partition("=")
        if not separator or "/" in name:
            path = text
            resolved = Path(path).resolve()
            name = resolved.name
            if name in named:
                name = f"{resolved.parent.name}/{name}"
                same = next((one for one in named if Path(named[one]).resolve() == resolved), None)
                if same:
                    print(f"note: {name} is the same folder as {same}.", file=sys.stderr)
        elif not name.strip() or not path:
            raise typer.BadParameter(f"{text!r} does not have the form NAME=FOLDER")
        if name in named:
            raise typer.BadParameter(f"two models are called {name!r}; use NAME=FOLDER")
        named[name] = path
    return named
