"""``ram-studio evaluate``."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from ram_studio.cli import options
from ram_studio.cli.asking import Asking, Keeping
from ram_studio.cli.progress import status_line
from ram_studio.cli.report import Export, Judging, check_exports
from ram_studio.errors import EvaluationError

if TYPE_CHECKING:
    from ram_studio.evals import AnswerStore, EvalReport

Models = Annotated[
    list[str],
    typer.Argument(metavar="MODEL...", help="Folders, or NAME=FOLDER; names on an endpoint."),
]
Limit = Annotated[int | None, typer.Option(help="Questions per suite (demo: 300 per domain).")]


@dataclass
class Answering:
    """What answers. The annotations are the command line's."""

    endpoint: Annotated[
        str | None, typer.Option(metavar="URL", help="OpenAI-compatible server of the models.")
    ] = None
    token_env: Annotated[
        str | None, typer.Option(metavar="NAME", help="Environment variable that holds its token.")
    ] = None
    timeout: Annotated[float, typer.Option(help="Seconds for one answer of an endpoint.")] = 300.0
    engine: Annotated[
        Literal["transformers", "vllm", "lm-eval"],
        typer.Option(help="What answers for folders; lm-eval has tasks of its own."),
    ] = "transformers"
    tasks: Annotated[
        str | None, typer.Option(help="Tasks of --engine lm-eval, such as gsm8k,ifeval.")
    ] = None
    include_path: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Task files of your own for lm-eval.")
    ] = None

    def check(self, *, is_until_decided: bool) -> None:
        """Raise typer.BadParameter (exit code 2) for what does not go together."""
        if self.endpoint is not None and self.engine != "transformers":
            raise typer.BadParameter(
                "an endpoint answers itself; leave the engine out", param_hint="--engine"
            )
        is_harness = self.engine == "lm-eval"
        if is_harness and self.tasks is None:
            raise typer.BadParameter("say which, for example gsm8k,ifeval", param_hint="--tasks")
        if is_harness and is_until_decided:
            raise typer.BadParameter("lm-eval's tasks have an end", param_hint="--until")
        if not is_harness and (self.tasks is not None or self.include_path is not None):
            raise typer.BadParameter(
                "these are lm-eval's; add --engine lm-eval",
                param_hint="--tasks" if self.tasks is not None else "--include-path",
            )

    def sources(self, models: list[str], chat: Any) -> dict[str, Any]:
        """Return what answers by name: folders, or models of an endpoint."""
        from ram_studio.evals import EndpointEngine

        if self.endpoint is None:
            return dict(name_models(models))
        token = None if self.token_env is None else os.environ.get(self.token_env)
        if self.token_env is not None and not token:
            raise typer.BadParameter(
                f"the variable {self.token_env} is not set", param_hint="--token-env"
            )
        how = {"token": token, "chat": chat, "seconds": self.timeout}
        return {name: EndpointEngine(self.endpoint, name, **how) for name in models}


@options.grouped
def evaluate(
    models: Models,
    *,
    limit: Limit = None,
    seed: Annotated[int, typer.Option(help="Chooses generated questions, and draws.")] = 2026,
    asking: Asking,
    judging: Judging,
    answering: Answering,
    device: options.Device = "auto",
    keeping: Keeping,
    ray: options.Ray = None,
    export: Export = None,
    as_json: options.Json = False,
) -> None:
    """Score models side by side on the same prompts, with 95 % intervals."""
    from ram_studio.evals.report.breakdown import missing

    until, engine, tasks = asking.until_decided(limit), answering.engine, answering.tasks
    answering.check(is_until_decided=until is not None)
    sources = answering.sources(models, asking.chat)
    # Before hours are spent: what is only needed at the end must be right, too.
    check_exports(export)
    judging.check(sources)
    is_plain = answering.endpoint is None and engine == "transformers" and until is None
    if ray is not None and not is_plain:
        raise typer.BadParameter(
            "Ray asks models in folders, by transformers, all questions", param_hint="--ray"
        )
    asked: dict[str, Any] = {"limit": limit, "device": device, "fresh": keeping.fresh}
    if tasks is not None:
        asked |= {"tasks": tasks, "include_path": answering.include_path, "chat": asking.chat}
    else:
        asked |= {"suite": asking.suite, "seed": seed, "base": judging.base, **asking.fields()}
        asked["batch_size"] = asking.batch_size
        asked["engine"] = "vllm" if engine == "vllm" else "transformers"
    if until is not None:
        del asked["limit"]
        asked |= {"width": until.width, "most": until.most}
    if ray is not None:
        asked["ray"] = ray
    with keeping.open() as answers:
        report = _ask(sources, answers, as_json, **asked)
    judging.show(report, export, as_json)
    answered = any(score.n for row in report.models.values() for score in row.domains.values())
    if report.items and not answered:
        raise EvaluationError(f"No question was answered. {' '.join(missing(report))}")


def _ask(
    sources: dict[str, Any], answers: AnswerStore | None, quiet: bool, **asked: Any
) -> EvalReport:
    """Return the report of suites or, where tasks are named, of lm-eval."""
    from ram_studio.evals import evaluate as ask
    from ram_studio.evals.lm_eval import evaluate_with_harness
    from ram_studio.evals.on_ray import evaluate_on_ray
    from ram_studio.evals.until import evaluate_until

    with status_line(quiet=quiet) as tell:
        asked["on_progress"] = lambda model, domain, done, total: tell(
            f"{model}: {domain} {done}/{total}"
        )
        if "tasks" in asked:
            return evaluate_with_harness(sources, asked.pop("tasks"), store=answers, **asked)
        if "ray" in asked:
            return evaluate_on_ray(sources, asked.pop("ray"), store=answers, **asked)
        if "width" not in asked:
            return ask(sources, asked.pop("suite"), store=answers, **asked)
        report, decided = evaluate_until(sources, asked.pop("suite"), store=answers, **asked)
    print(decided.sentence(), file=sys.stderr if quiet else sys.stdout)
    return report


def name_models(models: list[str]) -> dict[str, str]:
    """Return model folders by name: NAME=FOLDER as given, else the folder's own name.

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
        if name in named:
            raise typer.BadParameter(f"two models are called {name!r}; use NAME=FOLDER")
        named[name] = path
    return named
