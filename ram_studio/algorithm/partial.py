"""An analysis in parts: results of some tensors of a model, to be added to those of the others.

Adding is exact: counts are integers, statistics of a tensor are of one part only, and sums over
the model are not rounded before all parts are in. A whole analysis, also of a single pass, is the
sum of its parts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from ram_studio.algorithm import naming
from ram_studio.algorithm.analysis import Analysis
from ram_studio.algorithm.exact_sums import ExactSum, rounded
from ram_studio.algorithm.grouping import add_stacks
from ram_studio.algorithm.meters.part_factors import PartFactors
from ram_studio.algorithm.meters.relations import RowLayout
from ram_studio.algorithm.meters.retained import build_energies
from ram_studio.algorithm.meters.rounding_meter import StepCounts, add_up
from ram_studio.algorithm.meters.storage import Finding, combine_findings, pass_findings, texts
from ram_studio.algorithm.shapes import Float64
from ram_studio.algorithm.verdict import find_lost_agents
from ram_studio.errors import AnalysisError


@dataclass(frozen=True)
class ExactSums:
    """Sums over a model, not yet rounded, packed (see ``ExactSum.packed``).

    products: the kernels' rows of tau_a tau_b and of part factors at each point; loose, layer: of
        StepCounts.
    """

    products: Float64[np.ndarray, "terms points products"]
    loose: Float64[np.ndarray, "_ rows points 2"]
    layer: Float64[np.ndarray, "_ layer_rows 2"]


@dataclass(frozen=True)
class PartialAnalysis:
    """Result of a pass over some tensors.

    analysis: of these tensors; without energies and warnings, and its steps' sums are 0.
    plan: digest of the plan of these parts, "" for a whole model in one.
    parts: number of each part (from 1) -> number of its tensors; ascending.
    of: number of all parts.
    findings: of the compatibility check.
    sums: None where relations were not collected.
    """

    analysis: Analysis
    plan: str
    parts: Mapping[int, int]
    of: int
    findings: tuple[Finding, ...]
    sums: ExactSums | None

    @property
    def missing(self) -> list[int]:
        """Numbers of the missing parts."""
        return [number for number in range(1, self.of + 1) if number not in self.parts]

    def whole(self) -> Analysis:
        """Return the analysis of the whole model.

        Raises: AnalysisError naming the parts that are missing.
        """
        if self.missing:
            raise AnalysisError(
                f"The analysis holds {parts_text(self.parts, self.of)}; "
                f"{parts_text(self.missing, self.of)} missing. Analyze the missing parts, then add "
                "all of them with `ram-studio analysis add`."
            )
        analysis = self.analysis
        if self.sums is not None and analysis.steps is not None:
            rows, layout = rounded(self.sums.products), RowLayout(len(analysis.agents))
            products = layout.products.stop - layout.products.start
            energies = build_energies(rows[:, :products], analysis.counts)
            analysis = replace(
                analysis,
                steps=replace(
                    analysis.steps,
                    loose_sums=rounded(self.sums.loose),
                    layer_sums=rounded(self.sums.layer),
                ),
                energies=energies,
                part_factors=PartFactors.of_rows(rows[:, products:], len(analysis.agents)),
            )
        lost = find_lost_agents(analysis)
        counted = pass_findings(analysis) + (() if lost is None else (lost.finding,))
        findings = combine_findings(self.findings, counted)
        return replace(analysis, warnings=texts(findings))


def parts_text(numbers: Sequence[int] | Mapping[int, Any], of: int) -> str:
    """Return "part 2 of 3" or "parts 1, 4 to 9 of 9" for a message; there may be thousands."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    texts = [f"{r[0]} to {r[-1]}" if len(r) > 2 else ", ".join(map(str, r)) for r in runs]
    listed = ", ".join(texts)
    return f"part{'' if len(numbers) == 1 else 's'} {listed} of {of}"


def add_partial(found: Sequence[PartialAnalysis]) -> PartialAnalysis:
    """Return the sum of several parts of one plan; the order does not matter.

    Raises: AnalysisError naming the part that is given twice, of another plan, or counted with
    other settings than the first.
    """
    assert found, "there is something to add"
    first = found[0]
    _check_belong_together(found)
    analyses = [partial.analysis for partial in found]
    parts = {number: count for partial in found for number, count in partial.parts.items()}
    # All tensors, in the order of their parts.
    order = np.argsort(np.repeat(list(parts), list(parts.values())), kind="stable")

    def join_tensors(name: str) -> Any:
        """Return counts or relations of all tensors; None where no analysis has any."""
        of_each = [own for s in analyses if (own := getattr(s, name)) is not None]
        if not of_each:
            return None
        return replace(
            of_each[0],
            **{
                field.name: np.concatenate([getattr(own, field.name) for own in of_each])[order]
                for field in fields(of_each[0])
                if getattr(of_each[0], field.name) is not None
            },
        )

    tensors = [tensor for s in analyses for tensor in s.tensors]
    steps, sums = _add_steps(found)
    return replace(
        first,
        analysis=replace(
            first.analysis,
            tensors=tuple(tensors[i] for i in order),
            counts=join_tensors("counts"),
            magnitudes=np.sum([s.magnitudes for s in analyses], axis=0),
            rounded=join_tensors("rounded"),
            relations=join_tensors("relations"),
            steps=steps,
            weighing=join_tensors("weighing"),
            stacks=add_stacks([s.stacks for s in analyses if s.stacks is not None]),
        ),
        parts={number: parts[number] for number in sorted(parts)},
        sums=sums,
    )


def _check_belong_together(found: Sequence[PartialAnalysis]) -> None:
    first = found[0]
    seen: set[int] = set()
    for partial in found:
        which = parts_text(partial.parts, partial.of)
        if (partial.plan, partial.of) != (first.plan, first.of):
            raise AnalysisError(
                f"The analysis of {which} is of another plan ({partial.plan[:12]}...) than that of "
                f"{parts_text(first.parts, first.of)} ({first.plan[:12]}...). Use one plan for "
                "all parts."
            )
        if twice := sorted(seen & partial.parts.keys()):
            raise AnalysisError(
                f"{parts_text(twice, partial.of).capitalize()} is given twice; add every part once."
            )
        seen |= partial.parts.keys()
        for what in ("agents", "fingerprints", "dtypes"):
            if getattr(partial.analysis, what) != getattr(first.analysis, what):
                raise AnalysisError(
                    f"The analysis of {which} has other {what} than that of "
                    f"{parts_text(first.parts, first.of)}; analyze it again."
                )
        if (partial.sums is None) != (first.sums is None):
            raise AnalysisError(
                f"The analysis of {which} differs from that of {parts_text(first.parts, first.of)} "
                "in --no-relations; analyze every part in the same way."
            )


def _add_steps(
    found: Sequence[PartialAnalysis],
) -> tuple[StepCounts | None, ExactSums | None]:
    steps = [p.analysis.steps for p in found if p.analysis.steps is not None]
    sums = [p.sums for p in found if p.sums is not None]
    if not steps or not sums:
        return None, None
    layers = naming.sort_layers({label for s in steps for label in s.layers})
    place = np.array([layers.index(label) for s in steps for label in s.layers], dtype=np.int64)
    starts = np.cumsum([0, *(len(s.layers) for s in steps)])

    def by_layer(rows: np.ndarray, which: int) -> np.ndarray:
        return np.column_stack([place[rows[:, 0] + starts[which]], rows[:, 1:]])

    def total(keys: Sequence[np.ndarray], terms: Sequence[np.ndarray]) -> tuple[Any, Any]:
        every, where = np.unique(np.concatenate(keys), axis=0, return_inverse=True)
        added, start = ExactSum((len(every), *terms[0].shape[2:])), 0
        for rows, packed in zip(keys, terms, strict=True):
            own = where.reshape(-1)[start : start + len(rows)]
            start += len(rows)
            for term in packed:
                added.add(term, own)
        return every, added.packed()

    loose, loose_sums = total([s.loose for s in steps], [s.loose for s in sums])
    layer_loose, layer_sums = total(
        [by_layer(s.layer_loose, i) for i, s in enumerate(steps)], [s.layer for s in sums]
    )
    terms = [term for own in sums for term in own.products]
    products = ExactSum(sums[0].products.shape[1:], terms)
    return (
        StepCounts(
            n_agents=steps[0].n_agents,
            layers=tuple(layers),
            exact=add_up(np.concatenate([s.exact for s in steps])),
            loose=loose,
            loose_sums=np.zeros((len(loose), *loose_sums.shape[2:])),
            layer_exact=add_up(
                np.concatenate([by_layer(s.layer_exact, i) for i, s in enumerate(steps)])
            ),
            layer_loose=layer_loose,
            layer_sums=np.zeros((len(layer_loose), 2)),
        ),
        ExactSums(products.packed(), loose_sums, layer_sums),
    )
