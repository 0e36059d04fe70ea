"""``ram-studio convert``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from ram_studio.cli import options
from ram_studio.cli.progress import progress_bars


def convert(
    source: Annotated[Path, typer.Argument(help="A trainer's checkpoint: a folder, or one file.")],
    out: Annotated[Path, typer.Argument(help="Folder to create.")],
    *,
    dtype: Annotated[
        str, typer.Option(help="stored: every element as it is; float32: widened.")
    ] = "stored",
    config: Annotated[
        Path | None,
        typer.Option(help="Folder with config.json and tokenizer, if they are elsewhere."),
    ] = None,
    key: Annotated[
        str | None, typer.Option(help="Keys that lead to the model, such as ema or app.model.")
    ] = None,
    max_shard_size: options.MaxShardSize = "5GB",
    as_json: options.Json = False,
) -> None:
    """Write a trainer's checkpoint as safetensors, without losing a bit.

    Reads verl's global_step_N/actor, FSDP's shards of each rank, torch distributed checkpoints
    (DCP, Megatron's torch_dist) and pickled state dicts. Pickles are opened in a sealed process,
    and only by this command.
    """
    from ram_studio.checkpoints.read.describe import plural, shown_bytes, shown_list
    from ram_studio.convert.writing import convert as convert_checkpoint

    with progress_bars(quiet=as_json) as (on_progress, _):
        done = convert_checkpoint(
            source,
            out,
            dtype=dtype,  # type: ignore[arg-type]
            config=config,
            key=key,
            max_shard_bytes=options.parse_size(max_shard_size),
            on_progress=on_progress,
        )
    if as_json:
        print(json.dumps(done.to_dict()))
        return
    print(f"{done.source} holds {done.title}: {plural(done.tensors, 'tensor')}.")
    if done.left_out:  # an optimizer has thousands
        count, shown = plural(len(done.left_out), "entry"), shown_list(done.left_out)
        print(f"note: {count.replace('entrys', 'entries')} left out, no tensors: {shown}.")
    if done.config is None:
        print("warning: no config.json was found; give its folder with --config.")
    else:
        print(f"Config and tokenizer are those of {done.config}.")
    dtypes = ", ".join(done.dtypes)
    print(f"Written to {done.out}: {shown_bytes(done.nbytes)} in {dtypes}.")
