"""Output of ``analyze`` and ``preview``: counts, storage, pairs of agents, rounding loss."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ram_studio.cli.tables import print_table, ratio

if TYPE_CHECKING:
    from ram_studio.algorithm.analysis import Analysis
    from ram_studio.algorithm.meters.storage import Share
    from ram_studio.checkpoints.fit.storage_report import StorageReport


def with_relations(analysis: Analysis, described: dict[str, Any]) -> dict[str, Any]:
    """Return a preview with "relations" and "rounding", null where the analysis has none.

    "lost_to_epsilon" names agents whose update is almost all below epsilon, null without any.
    """
    from ram_studio.algorithm.epsilon_grid import snap
    from ram_studio.algorithm.meters.relation_preview import relation_preview, rounding_preview
    from ram_studio.algorithm.verdict import find_lost_agents

    point = snap(described["epsilon"])
    lost = find_lost_agents(analysis, point)
    factors = {name: _requested_lambda(described, name) for name in described["agents"]}
    return described | {
        "relations": relation_preview(analysis, point),
        "rounding": rounding_preview(analysis, point, factors),
        "lost_to_epsilon": lost and {"agents": list(lost.agents), "text": lost.finding.text},
    }


def _requested_lambda(described: dict[str, Any], name: str) -> float | None:
    """Return an agent's lambda times its weight, where it is one factor of at least 1.

    Rounding loss is shown for those only, not for factors by layer.
    """
    weight = described.get("weights", {}).get(name, 1.0)
    factor = 0.0 if isinstance(weight, list) else described["agents"][name]["lambda"] * weight
    return factor if factor >= 1 else None


def with_parts(analysis: Analysis, described: dict[str, Any]) -> dict[str, Any]:
    """Return a preview with "towers" and "experts": counts of each agent by label.

    Null for a model without towers, or without experts.
    """
    from ram_studio.algorithm.epsilon_grid import snap

    point = snap(described["epsilon"])
    found: dict[str, Any] = {}
    for key, by, fewest in (("towers", "tower", 2), ("experts", "expert", 1)):
        has = len(analysis.group_labels(by)) >= fewest
        groups = analysis.preview(point, by=by)["groups"] if has else None
        found[key] = groups and {
            label: {
                agent: {name: numbers[name] for name in _PART_NUMBERS}
                for agent, numbers in group["agents"].items()
            }
            for label, group in groups.items()
        }
    return described | found


_PART_NUMBERS = ("total", "active", "density", "unique", "shared")


def print_parts(described: dict[str, Any], agents: tuple[str, ...]) -> None:
    """Print densities and shared parts of towers, and in short of routers and experts."""
    if described["towers"] is not None:
        print_table(
            ("tower", *agents),
            [
                (tower, *(_density(numbers[agent]) for agent in agents))
                for tower, numbers in described["towers"].items()
            ],
            title="Changed in the language model and in towers (shared in brackets)",
        )
    if described["experts"] is None:
        return
    kinds: dict[str, list[dict[str, Any]]] = {}
    for label, numbers in described["experts"].items():
        part = label.rsplit("/", 1)[1]
        kinds.setdefault("experts" if part.isdecimal() else part, []).append(numbers)
    rows = []
    for kind, found in kinds.items():
        for how, choose in (("least", min), ("most", max)):
            ends = [choose((n[a] for n in found), key=lambda n: n["density"]) for a in agents]
            rows.append((f"{kind} ({len(found)}), {how}", *map(_density, ends)))
    print_table(
        ("part", *agents),
        rows,
        title="Changed in routers and experts (shared in brackets); all of them with --json",
    )


def _density(numbers: dict[str, Any]) -> str:
    shared = numbers["shared"] / numbers["active"] if numbers["active"] else 0.0
    return f"{numbers['density']:.2%} ({shared:.0%})"


def print_counts(described: dict[str, Any], analysis: Analysis) -> None:
    """Print a preview: its agents, the verdict, pairs, and the rounding loss."""
    from ram_studio.algorithm.epsilon_grid import snap
    from ram_studio.algorithm.meters.relation_preview import rounding_warning
    from ram_studio.algorithm.verdict import verdict

    print_agents(
        described["agents"],
        title=f"{described['rule']}, r {described['r']:g}, alpha {described['alpha']:g}, "
        f"epsilon {described['epsilon']:g}",
    )
    if "as_base_dtype" in described:
        print_agents(described["as_base_dtype"]["agents"], title="As if in the base's dtype")
    settings = (described[name] for name in ("rule", "r", "alpha"))
    found = verdict(analysis, snap(described["epsilon"]), *settings)
    rounding = described["rounding"]
    # The note below is the same, with the more precise numbers of its table.
    if found.key != "rounding" or not rounding or not rounding_warning(analysis, rounding):
        print(found.text)
    print_retained(described["agents"])
    if described["relations"] is not None:
        _print_pairs(described["relations"])
    if rounding is not None:
        _print_rounding(described, analysis)
    elif described["relations"] is not None:
        print("The rounding loss is known only for all analyzed agents together.")


def print_shares(report: StorageReport) -> None:
    """Print each agent's changes as stored and as if in the base's dtype, where they differ."""
    if not any(agent.rounded is not None for agent in report.agents.values()):
        return
    print_table(
        ("agent", "density", "rounded", "rho", "rounded", "verdict"),
        [
            (
                name,
                *_pair(agent.stored, agent.rounded, lambda s: f"{s.density:.2%}"),
                *_pair(agent.stored, agent.rounded, lambda s: ratio(s.rho)),
                agent.verdict,
            )
            for name, agent in report.agents.items()
        ],
        title="As stored, and rounded to the base's dtype",
    )


def _pair(stored: Share | None, rounded: Share | None, show: Callable[[Share], str]) -> list[str]:
    return ["-" if share is None else show(share) for share in (stored, rounded)]


def print_agents(agents: dict[str, Any], title: str) -> None:
    """Print counts and ratios of every agent."""
    by_size = ["rho by size"] if all("rho_m" in a for a in agents.values()) else []
    print_table(
        ("agent", "changed", "density", "unique", "shared", "rho", *by_size, "lambda"),
        [
            (
                name,
                f"{a['active']:,}",
                f"{a['density']:.2%}",
                f"{a['unique']:,}",
                f"{a['shared']:,}",
                ratio(a["rho"]),
                *(ratio(a["rho_m"]) for _ in by_size),
                "-" if a["lambda"] is None else ratio(a["lambda"]),
            )
            for name, a in agents.items()
        ],
        title=title,
    )


def print_retained(agents: dict[str, Any]) -> None:
    """Print the retained share of each agent, and interference, where known."""
    rows = []
    for name, agent in agents.items():
        retained = agent.get("retained")
        if retained is not None:
            shares = (
                f"{part:.1%}" for part_name, part in retained.items() if part_name != "rounding"
            )
            rows.append((name, *shares, f"{agent['interference']:.2f} x"))
    if rows:
        parts = ("retained", "unique", "boost", "shared", "lost to averaging", "lost to epsilon")
        print_table(
            ("agent", *parts, "interference"),
            rows,
            title="Retained share of each update, by energy",
        )


def _print_pairs(found: dict[str, Any]) -> None:
    if not found["pairs"]:
        return
    print_table(
        ("pair", "both changed", "opposite signs", "cancels", "cosine", "shuffled", "at most"),
        [
            (
                name,
                f"{pair['both']:,}",
                _percent(pair["opposite_share"]),
                _percent(pair["cancelled_share"]),
                *(
                    "-" if pair[key] is None else f"{sign}{pair[key]:.3f}"
                    for key, sign in (("cosine", ""), ("cosine_floor", "±"), ("cosine_ceiling", ""))
                ),
            )
            for name, pair in found["pairs"].items()
        ],
        title="Pairs of agents where both changed; cosines of whole task vectors",
    )
    if found["conflict_share"] is not None and len(found["agents"]) > 2:
        print(f"Signs differ in {found['conflict_share']:.2%} of the shared elements.")


def _print_rounding(described: dict[str, Any], analysis: Analysis) -> None:
    from ram_studio.algorithm.meters.relation_preview import rounding_warning

    rounding = described["rounding"]
    by_agent = {
        name: {dtype: found[name] for dtype, found in rounding.items() if name in found}
        for name in described["agents"]
    }
    by_agent = {name: found for name, found in by_agent.items() if found}
    if not by_agent:
        return
    print_table(
        ("agent", "requested", *rounding, "bfloat16, stochastic"),
        [
            (
                name,
                ratio(_requested_lambda(described, name)),
                *map(_within, found.values()),
                f"{found['bfloat16']['stochastic']:.3f}"
                f" ± {found['bfloat16']['stochastic_error']:.1g}",
            )
            for name, found in by_agent.items()
        ],
        title="Lambda that each output dtype is expected to store, rounded to nearest",
    )
    advice = rounding_warning(analysis, rounding)
    if advice:
        print(f"note: {advice}")


def _within(found: dict[str, float]) -> str:
    width = (found["high"] - found["low"]) / 2
    return f"{found['nearest']:.3f}" + (f" ± {width:.1g}" if width >= 5e-4 else "")


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.2%}"
