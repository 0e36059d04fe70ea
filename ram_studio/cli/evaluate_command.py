"""``ram-studio evaluate``."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from ram_studio.cli import options
from ram_studio.cli.progress import status_line
from ram_studio.cli.tables import number_text, print_table, score_text
from ram_studio.errors import EvaluationError, Stopped

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from ram_studio.evals import AnswerStore, Comparison, EvalReport
    from ram_studio.evals.report.retention import Retention

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


def evaluate(
    models: Annotated[
        list[str],
        typer.Argument(metavar="MODEL...", help="Folders, or NAME=FOLDER; names on an endpoint."),
    ],
    suite: Annotated[
        str,
        typer.Option(help="demo, or any of tool,memory,code,math,instructions,health."),
    ] = "demo",
    limit: Annotated[
        int | None, typer.Option(help="Questions per suite (demo: 300 per domain).")
    ] = None,
    lengths: Lengths = "1k,4k",
    seed: Annotated[int, typer.Option(help="Chooses the generated questions.")] = 2026,
    chat: Chat = "auto",
    code: Code = "auto",
    base: BaseRow = None,
    specialists: Specialists = None,
    margin: Margin = 5.0,
    endpoint: Annotated[
        str | None, typer.Option(metavar="URL", help="OpenAI-compatible server of the models.")
    ] = None,
    token_env: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Environment variable that holds its token."),
    ] = None,
    timeout: Annotated[float, typer.Option(help="Seconds for one answer of an endpoint.")] = 300.0,
    engine: Annotated[
        Literal["transformers", "vllm", "lm-eval"],
        typer.Option(help="What answers for folders; lm-eval has tasks of its own."),
    ] = "transformers",
    tasks: Annotated[
        str | None, typer.Option(help="Tasks of --engine lm-eval, such as gsm8k,ifeval.")
    ] = None,
    include_path: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Task files of your own for lm-eval.")
    ] = None,
    device: options.Device = "auto",
    batch_size: BatchSize = 128,
    store: Store = None,
    no_store: NoStore = False,
    fresh: Fresh = False,
    export: Export = None,
    as_json: options.Json = False,
) -> None:
    """Score models side by side on the same prompts, with 95 % intervals."""
    from ram_studio.evals import EndpointEngine, compare_all
    from ram_studio.evals import evaluate as ask
    from ram_studio.evals.lm_eval import evaluate_with_harness
    from ram_studio.evals.report.breakdown import missing
    from ram_studio.evals.report.retention import check_margin, verdicts_of

    if endpoint is None:
        sources: dict[str, Any] = dict(name_models(models))
    else:
        token = _token(token_env)
        sources = {
            name: EndpointEngine(endpoint, name, token=token, chat=chat, seconds=timeout)
            for name in models
        }
    _check_engine(engine, tasks, include_path, endpoint)
    # Before hours are spent: what is only needed at the end must be right, too.
    chosen = parse_specialists(specialists, sources)
    check_exports(export)
    check_margin(margin / 100)
    sizes = parse_lengths(lengths)
    with open_store(store, no_store) as answers, status_line(quiet=as_json) as tell:

        def on_progress(model: str, domain: str, done: int, total: int) -> None:
            tell(f"{model}: {domain} {done}/{total}")

        if tasks is not None:
            report = evaluate_with_harness(
                sources,
                tasks,
                limit=limit,
                chat=chat,
                device=device,
                include_path=include_path,
                store=answers,
                fresh=fresh,
                on_progress=on_progress,
            )
        else:
            report = ask(
                sources,
                suite,
                limit=limit,
                seed=seed,
                lengths=sizes,
                chat=chat,
                code=code,
                engine="vllm" if engine == "vllm" else "transformers",
                device=device,
                batch_size=batch_size,
                base=base,
                store=answers,
                fresh=fresh,
                on_progress=on_progress,
            )
    comparisons = compare_all(report, base=base, specialists=chosen) if base or chosen else ()
    verdicts = verdicts_of(report, chosen, base, margin=margin / 100)
    show(report, comparisons, verdicts, export, as_json)
    answered = any(score.n for row in report.models.values() for score in row.domains.values())
    if report.items and not answered:
        raise EvaluationError(f"No question was answered. {' '.join(missing(report))}")


def show(
    report: EvalReport,
    comparisons: Sequence[Comparison],
    verdicts: Sequence[Retention],
    export: Sequence[str] | None,
    as_json: bool,
) -> None:
    """Write the export files, then print a report, verdicts first, or as JSON."""
    from ram_studio.evals.report.breakdown import breakdown, missing
    from ram_studio.evals.report.export import export_report

    for file in export or ():
        export_report(report, file, comparisons, verdicts)
    if as_json:
        result = report.to_dict()
        result["breakdown"] = breakdown(report)
        result["comparisons"] = [comparison.to_dict() for comparison in comparisons]
        result["verdicts"] = [verdict.to_dict() for verdict in verdicts]
        print(json.dumps(result))
        return
    for verdict in verdicts:
        print(verdict.sentence())
    domains = list(report.items)
    rows = []
    for name, model in report.models.items():
        row = model.to_dict()
        cells = [score_text(row["domains"][domain]) for domain in domains]
        rows.append((name, *cells, score_text(model.over_skills.to_dict())))
    if report.floors:
        rows.append(("(floor)", *(number_text(report.floors.get(d)) for d in domains), "-"))
    if domains:
        sizes = {len(items) for items in report.items.values()}
        n = f"{min(sizes)} to {max(sizes)}" if len(sizes) > 1 else f"{min(sizes)}"
        title = f"{report.suite}, n = {n} per domain"
        print_table(("model", *domains, "average"), rows, title=title)
        _print_categories(report)
        for sentence in missing(report):
            print(sentence)
        beside = [domain for domain in domains if domain not in report.skills]
        if beside:
            print(f"average: the mean of the skills; {', '.join(beside)} beside it.")
        if report.floors:
            print("(floor): what gibberish, or always saying the same, gets right.")
    _print_health(report)
    for comparison in comparisons:
        print(comparison.sentence())
    if comparisons:
        print(f"{len(comparisons)} comparisons were made; p-values are adjusted for that (Holm).")


def _print_categories(report: EvalReport) -> None:
    from ram_studio.evals.report.breakdown import breakdown

    parts = breakdown(report)
    first = next(iter(parts.values()))
    rows = [
        (
            f"{domain}: {category}",
            *(_fraction(parts[m]["categories"][domain][category]) for m in parts),
        )
        for domain, categories in first["categories"].items()
        if len(categories) > 1
        for category in categories
    ]
    if "accuracies" in first:
        rows += [
            (f"instructions: {key}", *(f"{parts[m]['accuracies'][key]:.3f}" for m in parts))
            for key in first["accuracies"]
        ]
    if rows:
        print_table(("category", *parts), rows)


def _fraction(score: dict[str, Any]) -> str:
    return f"{score['correct']}/{score['n']}"


def _print_health(report: EvalReport) -> None:
    measured = {name: row.health for name, row in report.models.items() if row.health}
    if not measured:
        return
    keys = [key for key in next(iter(measured.values())) if key != "warnings"]
    rows = [
        (key, *(number_text(health[key], ".4g") for health in measured.values())) for key in keys
    ]
    print_table(("health", *measured), rows)
    for name, health in measured.items():
        for warning in health["warnings"]:
            print(f"{name}: {warning}.")


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
