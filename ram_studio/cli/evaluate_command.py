"""``ram-studio evaluate``."""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from ram_studio.cli import options
from ram_studio.cli.progress import status_line
from ram_studio.cli.report import show
from ram_studio.errors import EvaluationError, Stopped

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from ram_studio.evals import AnswerStore, EvalReport

Store = Annotated[
    str | None,
    typer.Option(help="Where answers are kept; in the user's data folder when left out."),
]
NoStore = Annotated[
    bool, typer.Option("--no-store", help="Keep no answers; what is stopped is lost.")
]
Fresh = Annotated[bool, typer.Option("--fresh", help="Ask again what is stored.")]
Lengths = Annotated[
    str, typer.Option(help="Prompt lengths of the memory suite in tokens, such as 1k,4k.")
]
Chat = Annotated[Literal["auto", "template", "none"], typer.Option(help="Chat template.")]
Code = Annotated[
    Literal["auto", "on", "off"], typer.Option(help="Run code that models write, sealed off.")
]
BatchSize = Annotated[int, typer.Option(help="Prompts decoded together.")]
Export = Annotated[
    list[str] | None,
    typer.Option(metavar="FILE", help="Also write a .json, .csv or .html file; repeatable."),
]
Margin = Annotated[
    float, typer.Option(help="Points below its specialist that a merge may be and still survive.")
]
BaseRow = Annotated[str | None, typer.Option("--base", help="Which of the models is the base.")]
Specialists = Annotated[
    list[str] | None,
    typer.Option("--specialist", metavar="DOMAIN=NAME", help="The agent trained for a domain."),
]


MaxTokens = Annotated[
    list[str] | None,
    typer.Option(
        metavar="N or SUITE=N",
        help="Most tokens of an answer, of all suites or one; repeat [default: each suite's own].",
    ),
]


MOST_UNTIL = 1600


Models = Annotated[
    list[str],
    typer.Argument(metavar="MODEL...", help="Folders, or NAME=FOLDER; names on an endpoint."),
]
Suites = Annotated[
    str,
    typer.Option(
        help="demo, or any others of those that `ram-studio suites` lists, and health; with commas."
    ),
]
Limit = Annotated[int | None, typer.Option(help="Questions per suite (demo: 300 per domain).")]
Mode = Annotated[
    Literal["whole", "memagent"],
    typer.Option(
        help="How suites about long texts (memory, ruler-*) are read: whole, or piece by piece "
        "with a bounded memory, as MemAgent does."
    ),
]
ThinkTokens = Annotated[
    int, typer.Option(help="Most tokens of thinking (<think>), apart from the answer's.")
]
Samples = Annotated[
    int, typer.Option(help="Answers to each question, for pass@k; the paper's are 4.")
]
Data = Annotated[
    Path | None,
    typer.Option(
        metavar="FOLDER", help="Where the rows of suites that are data sets are; else the Hub."
    ),
]
Until = Annotated[
    float | None,
    typer.Option(
        metavar="POINTS",
        help="Ask generated suites until every 95 % interval is so narrow, or --limit ends.",
    ),
]
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


def evaluate(
    models: Models,
    suite: Suites = "demo",
    limit: Limit = None,
    lengths: Lengths = "1k,4k",
    seed: Annotated[int, typer.Option(help="Chooses generated questions, and draws.")] = 2026,
    mode: Mode = "whole",
    chunk_tokens: Annotated[int, typer.Option(help="Most tokens of a piece.")] = 5000,
    memory_tokens: Annotated[int, typer.Option(help="Most tokens of the memory.")] = 1024,
    chat: Chat = "auto",
    code: Code = "auto",
    max_tokens: MaxTokens = None,
    think_tokens: ThinkTokens = 0,
    temperature: Annotated[float, typer.Option(help="0 is greedy; the paper's is 1.0.")] = 0.0,
    top_p: Annotated[float, typer.Option(help="Share of the likeliest tokens.")] = 1.0,
    samples: Samples = 1,
    data: Data = None,
    difficulty: Annotated[int, typer.Option(help="Of generated suites, 1 to 5.")] = 2,
    until: Until = None,
    base: BaseRow = None,
    specialists: Specialists = None,
    margin: Margin = 5.0,
    endpoint: Endpoint = None,
    token_env: TokenEnv = None,
    timeout: Annotated[float, typer.Option(help="Seconds for one answer of an endpoint.")] = 300.0,
    engine: Engine = "transformers",
    tasks: Tasks = None,
    include_path: IncludePath = None,
    device: options.Device = "auto",
    batch_size: BatchSize = 128,
    store: Store = None,
    no_store: NoStore = False,
    fresh: Fresh = False,
    ray: options.Ray = None,
    export: Export = None,
    as_json: options.Json = False,
) -> None:
    """Score models side by side on the same prompts, with 95 % intervals."""
    from ram_studio.evals.answering.engine import Decoding
    from ram_studio.evals.pieces import Pieces
    from ram_studio.evals.report.retention import check_margin

    _check_engine(engine, tasks, include_path, endpoint)
    sources = _sources(models, endpoint, token_env, chat, timeout)
    # Before hours are spent: what is only needed at the end must be right, too.
    chosen = parse_specialists(specialists, sources)
    check_exports(export)
    check_margin(margin / 100)
    if ray is not None and (endpoint is not None or engine != "transformers" or until is not None):
        raise typer.BadParameter(
            "Ray asks models in folders, by transformers, all questions", param_hint="--ray"
        )
    asked: dict[str, Any] = {"limit": limit, "chat": chat, "device": device, "fresh": fresh}
    if tasks is not None:
        asked |= {"tasks": tasks, "include_path": include_path}
    else:
        asked |= {"suite": suite, "seed": seed, "code": code, "base": base, "samples": samples}
        asked |= {"difficulty": difficulty, "data": data, "batch_size": batch_size}
        asked |= {"lengths": parse_lengths(lengths), "max_tokens": parse_budget(max_tokens)}
        asked["engine"] = "vllm" if engine == "vllm" else "transformers"
        asked["decoding"] = Decoding(temperature, top_p, think_tokens=think_tokens)
        asked["pieces"] = Pieces(chunk_tokens, memory_tokens) if mode == "memagent" else None
    if until is not None:
        asked |= {"width": until / 100, "most": asked.pop("limit") or MOST_UNTIL}
    if ray is not None:
        asked["ray"] = ray
    with open_store(store, no_store) as answers:
        report = _ask(sources, answers, as_json, **asked)
    _tell(report, chosen, base, margin, export, as_json)


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


def _tell(
    report: EvalReport,
    chosen: dict[str, str],
    base: str | None,
    margin: float,
    export: list[str] | None,
    as_json: bool,
) -> None:
    """Show a report with its comparisons and verdicts.

    Raises: EvaluationError when nothing was answered.
    """
    from ram_studio.evals import compare_all
    from ram_studio.evals.report.breakdown import missing
    from ram_studio.evals.report.retention import verdicts_of

    comparisons = compare_all(report, base=base, specialists=chosen) if base or chosen else ()
    verdicts = verdicts_of(report, chosen, base, margin=margin / 100)
    show(report, comparisons, verdicts, export, as_json, base)
    answered = any(score.n for row in report.models.values() for score in row.domains.values())
    if report.items and not answered:
        raise EvaluationError(f"No question was answered. {' '.join(missing(report))}")


def parse_budget(texts: list[str] | None) -> int | dict[str, int] | None:
    """Return most tokens of an answer: a number for all suites, or by suite.

    Raises: typer.BadParameter (exit code 2) for anything else.
    """
    found: dict[str, int] = {}
    for text in texts or ():
        name, separator, number = text.rpartition("=")
        if not (number.isascii() and number.isdigit() and len(number) < 9):
            raise typer.BadParameter(f"{text!r} is no number of tokens", param_hint="--max-tokens")
        if not separator and len(texts or ()) == 1:
            return int(number)
        if not name.strip():
            raise typer.BadParameter(
                "name the suites when there are several, as in math=1024",
                param_hint="--max-tokens",
            )
        found[name.strip()] = int(number)
    return found or None


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


def parse_specialists(pairs: list[str] | None, models: Collection[str]) -> dict[str, str]:
    """Return DOMAIN=NAME texts as a dict.

    Raises: typer.BadParameter (exit code 2) for bad texts or a name that is none of the models.
    """
    chosen = options.parse_pairs(pairs, "specialist DOMAIN=NAME")
    for name in chosen.values():
        if name not in models:
            raise typer.BadParameter(
                f"{name!r} is none of the models: {', '.join(models)}", param_hint="--specialist"
            )
    return chosen


def check_exports(files: list[str] | None) -> None:
    """Raise typer.BadParameter (exit code 2) for a file name that names no known format."""
    from ram_studio.evals.report.export import FORMATS

    for file in files or ():
        if Path(file).suffix.lower() not in FORMATS:
            raise typer.BadParameter(
                f"{file!r} does not end in {', '.join(FORMATS)}", param_hint="--export"
            )


@contextlib.contextmanager
def open_store(path: str | None, no_store: bool) -> Iterator[AnswerStore | None]:
    """Yield the store of answers, None when none is to be kept."""
    from ram_studio.evals import AnswerStore

    if no_store:
        yield None
        return
    with AnswerStore(path) as answers:
        yield answers


def stopped(no_store: bool) -> Stopped:
    """Return the error of an experiment that was stopped, whether or not its answers were kept."""
    kept = "no store was kept" if no_store else "finished answers are stored"
    return Stopped(f"Stopped as asked; {kept}. Run the same again to go on.")


def parse_lengths(text: str) -> tuple[int, ...]:
    """Return lengths in tokens: `1k,4k` or `1000,4000`; k is a thousand.

    Raises: typer.BadParameter (exit code 2) for anything else.
    """
    lengths = []
    for part in text.split(","):
        number, scale = part.strip().lower(), 1
        if number.endswith("k"):
            number, scale = number[:-1], 1000
        if not (number.isascii() and number.isdigit() and len(number) < 9):
            raise typer.BadParameter(f"{part!r} is no number of tokens", param_hint="--lengths")
        lengths.append(int(number) * scale)
    return tuple(lengths)


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
