"""An evaluation's report in the terminal, as JSON and in files."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ram_studio.cli.options import parse_pairs
from ram_studio.cli.tables import number_text, print_reproducibility, print_table, score_text
from ram_studio.errors import OutputError

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from ram_studio.evals.report.eval_report import EvalReport
    from ram_studio.evals.report.eval_result import EvalResult


Export = Annotated[
    list[str] | None,
    typer.Option(
        metavar="FILE",
        help="Also write a .json, .csv or .html file, or logs of another tool: inspect=DIR, "
        "lm-eval=DIR; repeatable.",
    ),
]


@dataclass
class Judging:
    """The models to compare with. The annotations are the command line's."""

    base: Annotated[
        str | None, typer.Option("--base", help="Name of the base among the models.")
    ] = None
    specialists: Annotated[
        list[str] | None,
        typer.Option("--specialist", metavar="DOMAIN=NAME", help="The agent trained for a domain."),
    ] = None
    margin: Annotated[
        float,
        typer.Option(
            help="Non-inferiority margin: points that a merge may lose to its specialist."
        ),
    ] = 5.0

    def check(self, models: Collection[str]) -> dict[str, str]:
        """Return the specialists by domain.

        Raises: typer.BadParameter (exit code 2) for bad texts or unknown models; EvaluationError
        for an invalid margin.
        """
        from ram_studio.evals.report.skill_verdict import check_margin

        chosen = parse_pairs(self.specialists, "specialist DOMAIN=NAME")
        for name in chosen.values():
            if name not in models:
                raise typer.BadParameter(
                    f"{name!r} is not one of the models: {', '.join(models)}",
                    param_hint="--specialist",
                )
        check_margin(self.margin / 100)
        return chosen

    def show(self, report: EvalReport, export: Sequence[str] | None, as_json: bool) -> EvalResult:
        """Write the export files, print the report, as text or JSON, and return its result.

        Raises: EvaluationError, at the end, for a specialist's domain that is not in the report.
        """
        from ram_studio.evals.publish.logs import LOGS
        from ram_studio.evals.report.eval_result import EvalResult, judge
        from ram_studio.evals.report.export import export_report
        from ram_studio.evals.report.score import as_json as json_of
        from ram_studio.evals.report.skill_verdict import Specialists

        chosen = self.check(report.models)
        known = {domain: name for domain, name in chosen.items() if domain in report.items}
        result = EvalResult.of(report)
        if self.base or known:
            named = Specialists(known, report, {})
            result = judge(report, self.base, named, margin=self.margin / 100)
        for file in export or ():
            tool, _, folder = file.partition("=")
            LOGS[tool](result, folder) if tool in LOGS else export_report(result, file)
        if as_json:
            print(json.dumps(json_of(result), allow_nan=False))
        else:
            _print(result)
        # Domains are known only from the answers, and an error must not lose those.
        report.check_names(chosen.values(), chosen)
        return result


def check_exports(files: Sequence[str] | None) -> None:
    """Refuse, before any work, files that cannot be written.

    Raises: typer.BadParameter (exit code 2) for an unknown format; OutputError for no folder.
    """
    from ram_studio.checkpoints.write.output_folder import absolute, check_file
    from ram_studio.evals.publish.logs import LOGS
    from ram_studio.evals.report.export import FORMATS

    for file in files or ():
        tool, _, folder = file.partition("=")
        if Path(file).suffix.lower() not in FORMATS and not (tool in LOGS and folder):
            raise typer.BadParameter(
                f"{file!r} does not end in {', '.join(FORMATS)}, and is none of "
                f"{', '.join(f'{name}=DIR' for name in LOGS)}",
                param_hint="--export",
            )
        target = absolute(folder if tool in LOGS else file)
        if not target.parent.is_dir():
            raise OutputError(f"{target.parent} is not a folder; create it first.")
        if tool not in LOGS:
            check_file(target)
        elif target.exists() and not target.is_dir():
            raise OutputError(f"{target} is not a folder; name another one for the logs.")


def _print(result: EvalResult) -> None:
    """Print damage and verdicts first, then scores, kinds of questions, health and comparisons."""
    from ram_studio.evals.report.comparison import holm_note

    for one in result.inherited_damage:
        print(one.sentence())
    for verdict in result.verdicts:
        print(verdict.sentence())
    if result.verdicts:
        print(holm_note(len(result.verdicts), "verdict"))
    if result.report.items:
        _print_scores(result)
    if measured := result.measured:
        rows = [(label, *texts) for label, texts in result.health_rows()]
        print_table(("health", *measured), rows)
        for name, health in measured.items():
            for warning in health["warnings"]:
                print(f"{name}: {warning}.")
    for comparison in result.comparisons:
        print(comparison.sentence())
    if result.comparisons:
        print(holm_note(len(result.comparisons), "comparison"))


def _print_scores(result: EvalResult) -> None:
    report, domains = result.report, list(result.report.items)
    rows = [
        (name, *map(score_text, row.domains.values()), score_text(row.average))
        for name, row in result.models.items()
    ]
    if result.chance_levels:
        levels = (number_text(result.chance_levels.get(d)) for d in domains)
        rows.append(("(chance level)", *levels, "-"))
    sizes = {len(items) for items in report.items.values()}
    n = f"{min(sizes)} to {max(sizes)}" if len(sizes) > 1 else f"{min(sizes)}"
    title = f"{result.suite}, n = {n} per domain"
    print_table(("model", *domains, "average"), rows, title=title)
    models = list(result.models.values())
    parts = [
        (what, *(f"{score.correct}/{score.n}" for score in scores))
        for what, scores in result.category_rows()
    ]
    parts += [(what, *texts) for what, texts in result.sample_rows]
    parts += [
        (f"{d}: {what}", *(number_text(row.domains[d].summary.get(what)) for row in models))
        for d in domains
        for what in dict.fromkeys(key for row in models for key in row.domains[d].summary)
    ]
    if parts:
        print_table(("category", *result.models), parts)
    for sentence in result.missing():
        print(sentence)
    if report.beside:
        print(f"average: the mean of the skills, without {', '.join(report.beside)}.")
    if result.chance_levels:
        print("(chance level): the score of random or constant answers.")
    print_reproducibility(result.lines)
