"""Options that several commands share, and how their texts become values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from ram_studio.errors import SettingsError

if TYPE_CHECKING:
    from ram_studio.checkpoints.record.recipe import Recipe

Base = Annotated[str | None, typer.Option(help="Base model: folder or Hub id owner/name[@rev].")]
Agents = Annotated[
    list[str] | None,
    typer.Option("--agent", metavar="NAME=PATH", help="An agent; repeat for each."),
]
Device = Annotated[str, typer.Option(help="auto, cpu or cuda.")]
Threads = Annotated[int | None, typer.Option(help="Threads; one per core when left out.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object, for machines.")]
Epsilon = Annotated[float, typer.Option(help="Threshold of change.")]
Dtype = Annotated[
    str | None, typer.Option(help="bfloat16, float16 or float32 [default: the base's].")
]
Missing = Annotated[str, typer.Option(help="Tensor missing in an agent: error or keep-base.")]
Extra = Annotated[str, typer.Option(help="Extra tensor in an agent: error or ignore.")]
Rows = Annotated[str, typer.Option(help="Padded vocabularies: exact or common rows.")]


def parse_pairs(pairs: list[str] | None, what: str) -> dict[str, str]:
    """Return NAME=VALUE texts as a dict in the order given.

    Raises: typer.BadParameter (exit code 2) for a text without "=", an empty side or a name twice.
    """
    result: dict[str, str] = {}
    for pair in pairs or []:
        name, separator, value = pair.partition("=")
        if not separator or not name.strip() or not value.strip():
            raise typer.BadParameter(f"{pair!r} is no {what}", param_hint=f"--{what.split()[0]}")
        if name.strip() in result:
            raise typer.BadParameter(f"{name.strip()!r} is given twice")
        result[name.strip()] = value.strip()
    return result


def parse_method(text: str, option: str) -> tuple[str, dict[str, Any]]:
    """Return METHOD[:KEY=VALUE,...] as a method's name and those of its settings that are given.

    Raises: typer.BadParameter for a text of another form; SettingsError for an unknown name or a
    value that the method refuses.
    """
    from ram_studio.algorithm.methods import make_settings

    name, _, rest = text.partition(":")
    given = parse_pairs(rest.split(",") if rest else None, f"{option} METHOD:KEY=VALUE")
    settings = make_settings(name, given)
    return name, {key: getattr(settings, key) for key in given}


def parse_agents(pairs: list[str] | None) -> dict[str, str]:
    """Return the agents of ``--agent NAME=PATH`` options; at least one.

    Raises: typer.BadParameter for bad texts or no agent at all; SettingsError for a bad name.
    """
    from ram_studio.checkpoints.record.recipe import check_agent_name

    agents = parse_pairs(pairs, "agent NAME=PATH")
    if not agents:
        raise typer.BadParameter(
            "no agent was given; give at least one, for example --agent coding=./coding-agent",
            param_hint="--agent",
        )
    for name in agents:
        try:
            check_agent_name(name)
        except ValueError as error:
            raise SettingsError(f"{error}.") from error
    return agents


def parse_recipe(base: str | None, agent: list[str] | None, where: str, **values: Any) -> Recipe:
    """Return the recipe of ``--base``, ``--agent`` and further fields.

    Raises: typer.BadParameter and SettingsError for what cannot be.
    """
    from ram_studio.checkpoints.record.recipe import make_recipe

    agents = parse_agents(agent)
    return make_recipe({"base": require_base(base), "agents": agents, **values}, where=where)


def policies(missing: str, extra: str, rows: str) -> dict[str, Any]:
    """Return what to do where an agent does not fit, as arguments; the check refuses others."""
    return {"missing": missing, "extra": extra, "rows": rows}


def require_base(base: str | None) -> str:
    """Return the base.

    Raises: typer.BadParameter (exit code 2) when it was left out.
    """
    if not base:
        raise typer.BadParameter("no base model was given", param_hint="--base")
    return base
