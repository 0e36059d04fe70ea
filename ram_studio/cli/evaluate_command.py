"""``ram-studio evaluate``."""

from __future__ import annotations

import os
import sys
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
Endpoint = Annotated[
    str | None, typer.Option(metavar="URL", help="OpenAI-compatible server of the models.")
]
TokenEnv = Annotated[
    str | None, typer.Option(metavar="NAME", help="Environment variable that holds its token.")
]
Engine = Annotated[
    Literal["transformers", "vllm", "lm-eval"],
    typer.Option(help="What answers for folders; lm-eval has tasks of its own."),
]
Tasks = Annotated[str | None, typer.Option(help="Tasks of --engine lm-eval, such as gsm8k,ifeval.")]
IncludePath = Annotated[
    Path | None, typer.Option(metavar="DIR", help="Task files of your own for lm-eval.")
]


@options.grouped
def evaluate(
    models: Models,
    *,
    limit: Limit = None,
    seed: Annotated[int, typer.Option(help="Chooses generated questions, and draws.")] = 2026,
    asking: Asking,
    judging: Judging,
    endpoint: Endpoint = None,
    token_env: TokenEnv = None,
    timeout: Annotated[float, typer.Option(help="Seconds for one answer of an endpoint.")] = 300.0,
    engine: Engine = "transformers",
    tasks: Tasks = None,
    include_path: IncludePath = None,
    device: options.Device = "auto",
    keeping: Keeping,
    ray: options.Ray = None,
    export: Export = None,
    as_json: options.Json = False,
) -> None:
    """Score models side by side on the same prompts, with 95 % intervals."""
    from ram_studio.evals.report.breakdown import missing

    _check_engine(engine, tasks, include_path, endpoint)
    sources = _sources(models, endpoint, token_env, asking.chat, timeout)
    # Before hours are spent: what is only needed at the end must be right, too.
    check_exports(export)
    judging.check(sources)
    until = asking.until_decided(limit)
    if ray is not None and (endpoint is not None or engine != "transformers" or until is not None):
        raise typer.BadParameter(
            "Ray asks models in folders, by transformers, all questions", param_hint="--ray"
        )
    asked: dict[str, Any] = {"limit": limit, "device": device, "fresh": keeping.fresh}
    if tasks is not None:
        asked |= {"tasks": tasks, "include_path": include_path, "chat": asking.chat}
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


def _sources(
    models: list[str], endpoint: str | None, token_env: str | None, chat: Any, timeout: float
) -> dict[str, Any]:
    """Return what answers by name: folders, or models of an endpoint."""
    from ram_studio.evals import EndpointEngine

    if endpoint is None:
        return dict(name_models(models))
    token = _token(token_env)
    return {
        name: EndpointEngine(endpoint, name, token=token, chat=chat, seconds=timeout)
        for name in models
    }


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


def _check_engine(
    engine: str, tasks: str | None, include_path: Path | None, endpoint: str | None
) -> None:
    """Raise typer.BadParameter (exit code 2) for engines and options that do not go together."""
    if endpoint is not None and engine != "transformers":
        raise typer.BadParameter(
            "an endpoint answers itself; leave the engine out", param_hint="--engine"
        )
    if engine == "lm-eval" and tasks is None:
        raise typer.BadParameter("say which, for example gsm8k,ifeval", param_hint="--tasks")
    if engine != "lm-eval" and (tasks is not None or include_path is not None):
        raise typer.BadParameter(
            "these are lm-eval's; add --engine lm-eval",
            param_hint="--tasks" if tasks is not None else "--include-path",
        )


def _token(name: str | None) -> str | None:
    if name is None:
        return None
    if not os.environ.get(name):
        raise typer.BadParameter(f"the variable {name} is not set", param_hint="--token-env")
    return os.environ[name]


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
