"""``ram-studio merge``."""

from __future__ import annotations

import contextlib
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ram_studio.cli import options
from ram_studio.cli.merge import parts
from ram_studio.cli.merge.push import YesPublic, push_merge
from ram_studio.cli.merge.result import report
from ram_studio.cli.progress import progress_bars
from ram_studio.cli.tables import print_table, print_warnings
from ram_studio.errors import SettingsError, did_you_mean

if TYPE_CHECKING:
    from ram_studio.checkpoints.hub.push import PushAhead
    from ram_studio.checkpoints.record.recipe import Recipe
    from ram_studio.engine.passes.driver import RunKeywords


@dataclass
class RequestedRecipe:
    """The recipe's fields, or replacements of a file's fields; None: not given."""

    base: options.Base = None
    agent: options.Agents = None
    method: Annotated[
        str | None, typer.Option(help="Merge method, or FILE.py:NAME of your own [default: ram+].")
    ] = None
    preset: Annotated[
        str | None, typer.Option(help="Settings of RAM+: paper, authors-script or mergekit.")
    ] = None
    epsilon: Annotated[float | None, typer.Option(help="Threshold of change.")] = None
    r: Annotated[float | None, typer.Option("--r", help="Strength of the rescaling.")] = None
    alpha: Annotated[float | None, typer.Option(help="Cap on rho.")] = None
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="A setting of the method; repeat."),
    ] = None
    weight: Annotated[
        list[str] | None,
        typer.Option(
            metavar="AGENT=W",
            help="Weight of an agent's task vector: 0.7, or 0.2,0.8 over the layers.",
        ),
    ] = None
    from_sweep: Annotated[
        Path | None,
        typer.Option(help="JSON of a sweep (smaller models work too): use its best setting."),
    ] = None
    dtype: options.Dtype = None
    rounding: Annotated[str | None, typer.Option(help="nearest or stochastic.")] = None
    seed: Annotated[int | None, typer.Option(help="Seed of all randomness.")] = None


@dataclass
class Fit:
    """The recipe's fields for agents that do not fit, and for the tokenizer."""

    missing: Annotated[str | None, options.MISSING] = None
    extra: Annotated[str | None, options.EXTRA] = None
    rows: Annotated[str | None, options.ROWS] = None
    names: Annotated[str | None, options.NAMES] = None
    experts_packing: options.Packings = None
    allow_base_mismatch: Annotated[
        bool,
        typer.Option(
            "--allow-base-mismatch", help="Merge even if an agent seems to come from another base."
        ),
    ] = False
    tokenizer_from: Annotated[
        str | None,
        typer.Option(
            metavar="AGENT",
            help="Agent whose tokenizer and chat template to use [default: the base's].",
        ),
    ] = None
    stop_tokens: Annotated[
        str | None, typer.Option(help="Tokens that end an answer: base, or union of all agents'.")
    ] = None


RecipeFile = Annotated[
    Path | None, typer.Argument(help="A recipe (YAML), or a provenance file (ram_studio.json).")
]
Out = Annotated[
    str | None,
    typer.Option("--out", "-o", help="Folder to create, or an fsspec URL (s3://...)."),
]
AnalysisFile = Annotated[
    Path | None, typer.Option(help="Analysis of the same files: saves the counting pass.")
]
Stream = Annotated[
    bool,
    typer.Option(
        "--stream",
        help="Read Hub models remotely (twice without --analysis); store only the result.",
    ),
]
Push = Annotated[
    str | None,
    typer.Option(
        metavar="OWNER/NAME", help="Upload the merge to the Hub, shard by shard; private."
    ),
]


DryRun = Annotated[
    bool,
    typer.Option("--dry-run", help="List which tensors each filter matches; write nothing."),
]


@options.expand_groups
def merge(
    recipe: RecipeFile = None,
    *,
    out: Out = None,
    asked: RequestedRecipe,
    device: options.Device = "auto",
    threads: options.Threads = None,
    analysis: AnalysisFile = None,
    max_shard_size: options.MaxShardSize = "5GB",
    fit: Fit,
    hash_sources: options.Hash = True,
    plan: options.Plan = None,
    part: options.Part = None,
    stream: Stream = False,
    ray: options.Ray = None,
    push: Push = None,
    public: YesPublic = False,
    dry_run: DryRun = False,
    as_json: options.Json = False,
) -> None:
    """Merge agents into one checkpoint, by a recipe or by options (options win over the recipe).

    With --plan and --part only the files of one part are written; `finish` makes a model of them.
    """
    from ram_studio.algorithm.methods import OWN

    if dry_run:
        return _print_filters(_recipe(recipe, asked, fit), as_json)
    if out is None:
        raise typer.BadParameter("no output was given; name a folder to create", param_hint="--out")
    passes: RunKeywords = {"device": device, "threads": threads}
    if plan is not None or part is not None:
        named = {"recipe": recipe, "ray": ray, "stream": stream, "push": push}
        options.refuse_beside_plan(**named, **vars(asked), **vars(fit))
        return parts.merge(*options.require_part(plan, part), out, analysis, {**passes}, as_json)
    ahead = None if push is None else _push_ahead(push, out, public)
    if ray is not None and stream:
        raise typer.BadParameter(
            "other nodes read downloaded models; leave it out", param_hint="--stream"
        )
    chosen = _recipe(recipe, asked, fit)
    if ray is not None and chosen.method in OWN:
        raise typer.BadParameter(
            "other nodes do not have your method; merge on this machine", param_hint="--ray"
        )
    shards: dict[str, Any] = {
        "max_shard_bytes": options.parse_size(max_shard_size),
        "analysis": options.known_analysis(analysis),
        "hash_sources": hash_sources,
    }
    with (
        ahead or contextlib.nullcontext(),
        progress_bars(quiet=as_json) as (on_progress, on_download),
    ):
        passes["on_progress"] = on_progress
        if ray is None:
            from ram_studio.engine.merge import merge as run

            passes["receiver"] = ahead
            result = run(chosen, out, on_download=on_download, stream=stream, **shards, **passes)
        else:
            from ram_studio.engine.parts.on_ray import merge_on_ray

            result = merge_on_ray(chosen, out, ray, passes, **shards)
    report(result, as_json)
    if push is not None:
        push_merge(Path(result.out), push, public=public, quiet=as_json, ahead=ahead)


def _push_ahead(name: str, out: str, public: bool) -> PushAhead:
    """Return an uploader of shards as they are written; faults show before the work."""
    from ram_studio.checkpoints.hub.push import PushAhead
    from ram_studio.checkpoints.read.url_folder import is_url

    if is_url(out):
        raise typer.BadParameter(
            "only a merge in a local folder is pushed; give one as --out", param_hint="--push"
        )
    return PushAhead(name, public=public)


def _recipe(path: Path | None, asked: RequestedRecipe, fit: Fit) -> Recipe:
    from ram_studio.algorithm.methods import get_method
    from ram_studio.checkpoints.fit.compatibility import FitKeywords
    from ram_studio.checkpoints.own_methods import bring_method
    from ram_studio.checkpoints.record.provenance import read_recipe
    from ram_studio.checkpoints.record.recipe import make_recipe

    own = _preset(asked.preset) | options.parse_pairs(asked.set_, "set KEY=VALUE")
    loaded = None if path is None else read_recipe(path)
    values: dict[str, Any] = {} if loaded is None else loaded.model_dump()
    if asked.base is not None or loaded is None:
        values["base"] = options.require_base(asked.base)
    if asked.agent or loaded is None:
        values["agents"] = options.parse_agents(asked.agent)
    given = {name: getattr(asked, name) for name in ("method", "dtype", "rounding", "seed")}
    given |= {name: getattr(fit, name) for name in FitKeywords.__annotations__}
    given |= {
        "experts_packing": options.parse_packings(fit.experts_packing),
        "tokenizer": fit.tokenizer_from,
        "stop_tokens": fit.stop_tokens,
        "other_base": "accept" if fit.allow_base_mismatch else None,
    }
    values |= {key: value for key, value in given.items() if value is not None}
    if asked.method is not None:
        values["method"] = bring_method(asked.method)
    if asked.from_sweep is not None:
        found = _sweep_result(asked.from_sweep, values)
        # A user's method has to be given again: a sweep's file has only its name.
        if asked.method is not None and values["method"] != found["method"]:
            raise typer.BadParameter(
                f"the sweep's best setting is of {found['method']}; leave --method out",
                param_hint="--method",
            )
        values |= found
    name = values.setdefault("method", "ram+")
    if asked.from_sweep is None and (loaded is None or name != loaded.method):
        values["settings"] = {}  # another method's settings do not apply
    fields = get_method(name).settings.model_fields
    # A setting's own option wins over a preset.
    for key in ("epsilon", "r", "alpha"):
        value = getattr(asked, key)
        if value is not None and key in fields:
            own[key] = value
        elif value is not None:
            print(f"note: {name} has no {key}; it is left out.", file=sys.stderr)
    values["settings"] = {**values["settings"], **own}
    if asked.weight:
        values["weights"] = {**values.get("weights", {}), **options.parse_weights(asked.weight)}
    return make_recipe(values, where="merge")


def _sweep_result(path: Path, values: dict[str, Any]) -> dict[str, Any]:
    """Return these values with the winner of a sweep, for its agents."""
    from ram_studio.evals.experiment.winner import read_winner

    winner = read_winner(path)
    winner.check_agents(values["agents"])
    if winner.note:
        print(f"note: {winner.note}", file=sys.stderr)
    return {"method": winner.method, "settings": winner.settings, "weights": winner.weights}


def _print_filters(recipe: Recipe, as_json: bool) -> None:
    """Print the tensors that each filter of a recipe matches; only headers are read."""
    from ram_studio.checkpoints.record.filters import caught_by
    from ram_studio.engine.analyze import load_sources
    from ram_studio.engine.job import MergeJob

    job = MergeJob(load_sources(recipe, None, None, stream=True), recipe)
    rows = caught_by([t.name for t in job.merged], recipe.filters, job.choices)
    if as_json:
        print(json.dumps({"filters": rows, "warnings": list(job.report.warnings)}))
        return
    print_warnings(job.report.warnings)
    actions = {own.title: own.action for own in recipe.filters}
    print_table(
        ("filter", "tensors", "does", "such as"),
        [
            (
                row["filter"] or "no filter",
                str(len(row["tensors"])),
                actions.get(row["filter"], "as the recipe"),
                row["tensors"][0],
            )
            for row in rows
        ],
        title=f"{recipe.method}: nothing is written",
    )


def _preset(name: str | None) -> dict[str, Any]:
    from ram_studio.algorithm.methods import PRESETS

    if name is None:
        return {}
    if name not in PRESETS:
        raise SettingsError(
            f"The preset is {name!r}; it must be one of {', '.join(PRESETS)}"
            f"{did_you_mean(name, PRESETS) or '.'}"
        )
    return dict(PRESETS[name])
