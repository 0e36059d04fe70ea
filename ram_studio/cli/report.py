"""An evaluation's report in the terminal, as JSON and in files."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ram_studio.cli.options import parse_pairs
from ram_studio.cli.tables import number_text, print_table, score_text

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from ram_studio.evals.report.skill_verdict import SkillVerdict
    from ram_studio.evals.report.statistics import Comparison
    from ram_studio.evals.report.tables import EvalReport


Export = Annotated[
    list[str] | None,
    typer.Option(metavar="FILE", help="Also write a .json, .csv or .html file; repeatable."),
]


@dataclass
class Judging:
    """Whom models are compared with. The annotations are the command line's."""

    base: Annotated[str | None, typer.Option("--base", help="Which of the models is the base.")] = (
        None
    )
    specialists: Annotated[
        list[str] | None,
        typer.Option("--specialist", metavar="DOMAIN=NAME", help="The agent trained for a domain."),
    ] = None
    margin: Annotated[
        float,
        typer.Option(help="Points below its specialist that a merge may be and still survive."),
    ] = 5.0

    def check(self, models: Collection[str]) -> dict[str, str]:
        """Return the specialists by domain.

        Raises: typer.BadParameter (exit code 2) for bad texts or a name that is none of the models;
        EvaluationError for a margin that is none.
        """
        from ram_studio.evals.report.skill_verdict import check_margin

        chosen = parse_pairs(self.specialists, "specialist DOMAIN=NAME")
        for name in chosen.values():
            if name not in models:
                raise typer.BadParameter(
                    f"{name!r} is none of the models: {', '.join(models)}",
                    param_hint="--specialist",
                )
        check_margin(self.margin / 100)
        return chosen

    def show(self, report: EvalReport, export: Sequence[str] | None, as_json: bool) -> None:
        """Write the export files, then print a report, verdicts first, or as JSON.

        Raises: EvaluationError, after all of that, for a specialist's domain that is not in it.
        """
        from ram_studio.evals.report.skill_verdict import skill_verdicts
        from ram_studio.evals.report.statistics import compare_all

        chosen, base = self.check(report.models), self.base
        known = {domain: name for domain, name in chosen.items() if domain in report.items}
        paired = compare_all(report, base=base, specialists=known) if base or known else ()
        verdicts = skill_verdicts(report, known, base, margin=self.margin / 100)
        _show(report, paired, verdicts, export, as_json)
        # Which domains there are shows in the answers: a wrong one must not cost them.
        report.check_names(chosen.values(), chosen)


def check_exports(files: Sequence[str] | None) -> None:
    """Raise typer.BadParameter (exit code 2) for a file name that names no known format."""
    from ram_studio.evals.report.export import FORMATS

    for file in files or ():
        if Path(file).suffix.lower() not in FORMATS:
            raise typer.BadParameter(
                f"{file!r} does not end in {', '.join(FORMATS)}", param_hint="--export"
            )


def _show(
    report: EvalReport,
    comparisons: Sequence[Comparison],
    verdicts: Sequence[SkillVerdict],
    export: Sequence[str] | None,
    as_json: bool,
) -> None:
    from ram_studio.evals.report.breakdown import breakdown, missing
    from ram_studio.evals.report.export import export_report
    from ram_studio.evals.report.skill_verdict import holm_note
    from ram_studio.evals.report.trust import trust, trust_lines

    for file in export or ():
        export_report(report, file, comparisons, verdicts)
    if as_json:
        result = report.to_dict()
        result["breakdown"] = breakdown(report)
        result["trust"] = trust(report)
        result["comparisons"] = [comparison.to_dict() for comparison in comparisons]
        result["verdicts"] = [verdict.to_dict() for verdict in verdicts]
        print(json.dumps(result))
        return
    for verdict in verdicts:
        print(verdict.sentence())
    if verdicts:
        print(holm_note(verdicts))
    domains = list(report.items)
    rows = []
    for name, model in report.models.items():
        row = model.to_dict()
        cells = [score_text(row["domains"][domain]) for domain in domains]
        rows.append((name, *cells, score_text(model.over_skills.to_dict())))
    if report.floors:
        rows.append(("(chance level)", *(number_text(report.floors.get(d)) for d in domains), "-"))
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
            print("(chance level): the score of random or constant answers.")
        print(f"Reproducibility: {' | '.join(trust_lines(trust(report)))}")
    _print_health(report)
    for comparison in comparisons:
        print(comparison.sentence())
    if comparisons:
        print(f"{len(comparisons)} comparisons were made; p-values are adjusted for that (Holm).")


def _print_categories(report: EvalReport) -> None:
    from ram_studio.evals.report.breakdown import breakdown, drawn_rows

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
    rows += [(what, *texts) for what, texts in drawn_rows(parts)]
    if "accuracies" in first:
        rows += [
            (f"instructions: {key}", *(f"{parts[m]['accuracies'][key]:.3f}" for m in parts))
            for key in first["accuracies"]
        ]
    for domain, figures in first.get("summary", {}).items():
        own = [part.get("summary", {}).get(domain, {}) for part in parts.values()]
        rows += [
            (f"{domain}: {what}", *(number_text(row.get(what), ".3f") for row in own))
            for what in figures
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
