"""``ram-studio recipe``."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from ram_studio.cli.tables import print_warnings
from ram_studio.errors import OutputError, raise_as

if TYPE_CHECKING:
    from ram_studio.checkpoints.record.mopd import Trainer
    from ram_studio.checkpoints.record.recipe import Recipe


def recipe(
    source: Annotated[
        Path,
        typer.Argument(help="A recipe, provenance file or mergekit's YAML (--from-mergekit)."),
    ],
    from_mergekit: Annotated[
        bool, typer.Option("--from-mergekit", help="Read mergekit's YAML, write a recipe.")
    ] = False,
    to_mergekit: Annotated[
        bool, typer.Option("--to-mergekit", help="Read a recipe, write mergekit's YAML.")
    ] = False,
    to_mopd: Annotated[
        Literal["verl", "nemo-rl"] | None,
        typer.Option("--to-mopd", help="Write the agents as teachers for distillation."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="File to write; printed when left out.")
    ] = None,
) -> None:
    """Check a recipe and fill in its defaults, or convert it from or to other tools' settings."""
    if from_mergekit + to_mergekit + (to_mopd is not None) > 1:
        raise typer.BadParameter(
            "give at most one of --from-mergekit, --to-mergekit and --to-mopd",
            param_hint="--from-mergekit",
        )
    from ram_studio.checkpoints.write.output_folder import absolute, write_whole

    text, warnings = _convert_recipe(source, from_mergekit, to_mergekit, to_mopd)
    print_warnings(warnings)
    if out is None:
        print(text, end="")
        return
    out = absolute(out)
    if os.path.lexists(out):
        raise OutputError(f"{out} exists; choose another name or remove it first.")
    with raise_as(OutputError, f"{out} cannot be written"):
        write_whole(out, text.encode())


def _convert_recipe(
    source: Path, from_mergekit: bool, to_mergekit: bool, to_mopd: Trainer | None
) -> tuple[str, list[str]]:
    from ram_studio.checkpoints.read.json_files import read_bounded
    from ram_studio.checkpoints.record.mergekit import export_mergekit, import_mergekit
    from ram_studio.checkpoints.record.mopd import export_mopd
    from ram_studio.checkpoints.record.provenance import read_recipe
    from ram_studio.checkpoints.record.recipe import MAX_RECIPE_BYTES, recipe_yaml
    from ram_studio.errors import SettingsError

    if from_mergekit:
        data = read_bounded(source, "", limit=MAX_RECIPE_BYTES)
        try:
            text = data.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise SettingsError(f"{source} is not UTF-8 text; expected a YAML file.") from error
        recipe, warnings = import_mergekit(text, where=str(source))
        return recipe_yaml(recipe), warnings
    loaded = read_recipe(source)
    if to_mopd is not None:
        return export_mopd(loaded, to_mopd)
    if to_mergekit:
        return export_mergekit(loaded.model_copy(update={"dtype": _written_dtype(loaded, source)}))
    return recipe_yaml(loaded), []


def _written_dtype(recipe: Recipe, source: Path) -> str | None:
    """Return a recipe's dtype or, where it follows the base's, the written dtype of a provenance.

    mergekit does not follow the base: without a dtype it writes float32.
    """
    from ram_studio.algorithm.meters.relation_preview import DTYPE_WORDS
    from ram_studio.checkpoints.read.files import Folder
    from ram_studio.checkpoints.record.provenance import is_provenance, provenance_of

    if recipe.dtype is not None or not is_provenance(source):
        return recipe.dtype
    return DTYPE_WORDS.get(provenance_of(Folder(source.parent), source.name).dtype)
