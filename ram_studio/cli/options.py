"""Options that several commands share, and the parsers of their texts."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args, get_type_hints

import typer

from ram_studio.errors import SettingsError

if TYPE_CHECKING:
    from ram_studio.algorithm.analysis import Analysis
    from ram_studio.checkpoints.record.recipe import Recipe

Base = Annotated[str | None, typer.Option(help="Base model: folder or Hub id owner/name[@rev].")]
Agents = Annotated[
    list[str] | None,
    typer.Option("--agent", metavar="NAME=PATH", help="An agent; repeat for each."),
]
Device = Annotated[str, typer.Option(help="auto, cpu or cuda.")]
Threads = Annotated[int | None, typer.Option(help="Threads; one per core when left out.")]
Plan = Annotated[
    Path | None, typer.Option(help="Work on one part of this plan (see `ram-studio plan`).")
]
Part = Annotated[int | None, typer.Option(help="Which part of the plan, from 1.")]
Ray = Annotated[
    str | None,
    typer.Option(
        metavar="ADDRESS",
        help="Work in parts on this Ray cluster; local starts Ray on this machine.",
    ),
]
MaxShardSize = Annotated[str, typer.Option(help="Maximum size of one file, such as 5GB.")]
Hash = Annotated[
    bool,
    typer.Option("--hash/--no-hash", help="Record a hash of every source file in the provenance."),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object, for machines.")]
Epsilon = Annotated[float, typer.Option(help="Threshold of change.")]
Packings = Annotated[
    list[str] | None,
    typer.Option(
        "--experts-packing",
        metavar="[AGENT=]ORDER",
        help="LoRA on stacked experts: ask, rank-major or expert-major; repeat for each agent.",
    ),
]
Dtype = Annotated[
    str | None, typer.Option(help="bfloat16, float16 or float32 [default: the base's].")
]
NAMES = typer.Option(help="Tensor names of text-only agents on a multimodal base: exact or mapped.")
MISSING = typer.Option(help="Tensor missing in an agent: error or keep-base.")
EXTRA = typer.Option(help="Extra tensor in an agent: error or ignore.")
ROWS = typer.Option(help="Padded vocabularies: exact or common rows.")


@dataclasses.dataclass
class Reading:
    """How to read an agent whose files leave it open."""

    names: Annotated[str, NAMES] = "exact"
    experts_packing: Packings = None

    def fit(self) -> dict[str, Any]:
        """Return the options as keywords of `check_compatibility`."""
        return {**vars(self), "experts_packing": parse_packings(self.experts_packing) or "ask"}


@dataclasses.dataclass
class Policies(Reading):
    """Policies for agents that do not fit; the check refuses other words."""

    missing: Annotated[str, MISSING] = "error"
    extra: Annotated[str, EXTRA] = "error"
    rows: Annotated[str, ROWS] = "exact"


class _DataclassOptions:
    """The fields of a dataclass as options; their annotations are the command line's."""

    def __init__(self, kind: Any) -> None:
        self._kind = kind

    def parameters(self) -> list[inspect.Parameter]:
        hints = get_type_hints(self._kind, include_extras=True)
        own = inspect.signature(self._kind).parameters.values()
        return [one.replace(annotation=hints[one.name], kind=one.KEYWORD_ONLY) for one in own]

    def make(self, given: dict[str, Any]) -> Any:
        return self._kind(**given)


def expand_groups(command: Callable[..., None]) -> Callable[..., None]:
    """Replace each parameter of a command that is a group by the group's options.

    A group is a dataclass, or another annotation with ``parameters`` and a ``make`` that builds the
    argument from their values.
    """
    parameters: list[inspect.Parameter] = []
    groups: dict[str, Any] = {}
    for parameter in inspect.signature(command, eval_str=True).parameters.values():
        kind = parameter.annotation
        found = [one for one in get_args(kind) if hasattr(one, "parameters")]
        if dataclasses.is_dataclass(kind):
            found = [_DataclassOptions(kind)]
        if found:
            groups[parameter.name] = found[0]
        parameters += found[0].parameters() if found else [parameter]

    @functools.wraps(command)
    def run(**given: Any) -> None:
        for name, group in groups.items():
            own = {one.name: given.pop(one.name) for one in group.parameters()}
            given[name] = group.make(own)
        command(**given)

    # Read by the parser, and for the reference of all commands.
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {one.name: one.annotation for one in parameters}
    return run


def parse_pairs(pairs: list[str] | None, what: str) -> dict[str, str]:
    """Return NAME=VALUE texts as a dict in the order given.

    Raises: typer.BadParameter (exit code 2) for a text without "=", an empty side or a name twice.
    """
    result: dict[str, str] = {}
    option, form = what.split()
    for pair in pairs or []:
        name, separator, value = pair.partition("=")
        if not separator or not name.strip() or not value.strip():
            raise typer.BadParameter(
                f"{pair!r} does not have the form {form}", param_hint=f"--{option}"
            )
        if name.strip() in result:
            raise typer.BadParameter(f"{name.strip()!r} is given twice")
        result[name.strip()] = value.strip()
    return result


def parse_weights(pairs: list[str] | None) -> dict[str, float | list[float]]:
    """Return the weights of ``--weight AGENT=W``; several numbers: one gradient over all layers.

    Raises: typer.BadParameter (exit code 2) for anything but numbers, and as ``parse_pairs``.
    """
    found: dict[str, float | list[float]] = {}
    for name, text in parse_pairs(pairs, "weight AGENT=W").items():
        try:
            numbers = [float(number) for number in text.split(",")]
            if not all(map(math.isfinite, numbers)):
                raise ValueError
        except ValueError:
            message = (
                f"the weight of {name} is {text!r}; give numbers, as {name}=0.7 or {name}=0.2,1"
            )
            raise typer.BadParameter(message, param_hint="--weight") from None
        found[name] = numbers if len(numbers) > 1 else numbers[0]
    return found


def parse_packings(texts: list[str] | None) -> str | dict[str, str] | None:
    """Return ``--experts-packing``: one order for all agents, or by agent; None: not given.

    Raises: typer.BadParameter, as ``parse_pairs``.
    """
    if texts and len(texts) == 1 and "=" not in texts[0]:
        return texts[0]
    return parse_pairs(texts, "experts-packing AGENT=ORDER") or None


def parse_method(text: str, option: str) -> tuple[str, dict[str, Any]]:
    """Return METHOD[:KEY=VALUE,...] as a method's name and its given settings.

    A user's method, FILE.py:NAME or an entry point, is loaded.

    Raises: typer.BadParameter for a text of another form; SettingsError for an unknown name or a
    value that the method refuses.
    """
    from ram_studio.algorithm.methods import make_settings
    from ram_studio.checkpoints.own_methods import bring_method

    own = re.fullmatch(r"(.+?\.py:[^:]+)(?::(.*))?", text)
    name, rest = own.groups() if own else text.partition(":")[::2]
    name = bring_method(name)
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

    Raises: typer.BadParameter and SettingsError for invalid values.
    """
    from ram_studio.checkpoints.record.recipe import make_recipe

    agents = parse_agents(agent)
    return make_recipe({"base": require_base(base), "agents": agents, **values}, where=where)


def known_analysis(path: Path | None) -> Analysis | None:
    """Return the analysis of ``--analysis``, None where it was left out."""
    from ram_studio.checkpoints.record.analysis_file import load_analysis

    return None if path is None else load_analysis(path)


def require_part(plan: Path | None, part: int | None) -> tuple[Path, int]:
    """Return plan and part.

    Raises: typer.BadParameter (exit code 2) when one of the two was left out.
    """
    if plan is None:
        raise typer.BadParameter("--part was given without --plan", param_hint="--plan")
    if part is None:
        raise typer.BadParameter("--plan was given without --part", param_hint="--part")
    return plan, part


def refuse_beside_plan(**given: object) -> None:
    """Refuse options that the plan already sets; None or False means not given.

    Raises: typer.BadParameter (exit code 2).
    """
    set_names = [name for name, value in given.items() if value is not None and value is not False]
    named = [name.strip("_").replace("_", "-") for name in set_names]
    if named:
        raise typer.BadParameter(
            f"the plan already sets it: leave out --{', --'.join(named)}", param_hint="--plan"
        )


def parse_size(text: str) -> int:
    """Return a size like 5GB, 500MB or 123 as bytes (decimal units).

    Raises: SettingsError for anything else, or zero.
    """
    units = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
    cleaned = text.strip().upper()
    digits = cleaned.rstrip("BKMGT")
    try:
        nbytes = int(float(digits) * units[cleaned[len(digits) :]])
    except (ValueError, KeyError, OverflowError):
        nbytes = 0
    if nbytes < 1:
        raise SettingsError(f"The shard size is {text!r}; write it as 5GB, 500MB or in bytes.")
    return nbytes


def require_base(base: str | None) -> str:
    """Return the base.

    Raises: typer.BadParameter (exit code 2) when it was left out.
    """
    if not base:
        raise typer.BadParameter("no base model was given", param_hint="--base")
    return base
