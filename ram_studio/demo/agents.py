"""One agent of the example, stage by stage, and the folders that stages leave.

An agent of a set with a house stage learns the house style before its skill: a cold start, then
rewards for following instructions in house style.
"""

import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ram_studio.demo.cold_start import ColdStartSettings, cold_start
from ram_studio.demo.pretrain import save_model
from ram_studio.demo.reinforce import ReinforceSettings, reinforce
from ram_studio.demo.tokenizer import TOKENIZER_FILES
from ram_studio.evals.answering.load import load_model

Say = Callable[[str], None]
# Agents of one set with one seed keep their distance from those of the next seed.
_SEEDS_APART = 100
_GROWING = ("training", "seeds", "common")


@dataclass(frozen=True)
class HouseStage:
    """What every agent of a set learns first, each on prompts and samples of its own."""

    cold_start: ColdStartSettings = field(default_factory=ColdStartSettings)
    reinforce: ReinforceSettings = field(
        default_factory=lambda: ReinforceSettings(
            "follow", "adam", 3e-3, steps=40, blocks=(2, 3), house_style=True
        )
    )


def learn_house_style(
    model: Any, tokenizer: Any, stage: HouseStage, seed: int, say: Say
) -> dict[str, Any]:
    """Train `model` in place and return the records of both parts."""
    shown = cold_start(model, tokenizer, stage.cold_start, seed=seed)
    say(f"cold start: loss {shown['losses'][0]:.3f} to {shown['losses'][-1]:.3f}")
    return {
        "cold_start": shown,
        "reinforce": reinforce(
            model, tokenizer, stage.reinforce, seed=seed, on_step=lambda point: say(str(point))
        ),
    }


def train_agent(
    base: Path,
    folder: Path,
    settings: ReinforceSettings,
    *,
    seed: int,
    house: HouseStage | None = None,
    number: int = 0,
    say: Say = lambda text: None,
) -> dict[str, Any]:
    """Train an agent from the checkpoint `base`, save it in `folder` and return its record.

    house: what it learns first; number: which agent of its set it is, for samples of its own there.
    """
    model, tokenizer = load_model(base, "cpu")
    first = {}
    if house is not None:
        own = _SEEDS_APART * seed + number
        first["house"] = learn_house_style(model, tokenizer, house, own, say)
    record = reinforce(model, tokenizer, settings, seed=seed, on_step=lambda point: say(str(point)))
    save_checkpoint(model, base, folder)
    return {**record, **first}


def save_checkpoint(model: Any, base: Path, folder: Path) -> None:
    """Save a model trained from `base`, with its tokenizer."""
    save_model(model, folder)
    for file in TOKENIZER_FILES:
        shutil.copyfile(base / file, folder / file)


@contextmanager
def stage(folder: Path, force: bool, say: Say) -> Iterator[Path | None]:
    """Yield a temporary folder that becomes `folder` at the end, or None when that exists."""
    if folder.exists() and not force:
        say(f"{folder.parent.name}/{folder.name}: there already, skipped")
        yield None
        return
    temporary = folder.with_name(f".{folder.name}.partial")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    yield temporary
    shutil.rmtree(folder, ignore_errors=True)
    temporary.rename(folder)


def read_record(set_folder: Path) -> dict[str, Any]:
    """Return the set's record so far."""
    file = set_folder / "record.json"
    return json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}


def update_record(set_folder: Path, news: dict[str, Any]) -> None:
    """Merge `news` into the set's record.json; what is in `_GROWING` grows, others are replaced."""
    record = read_record(set_folder)
    for key, value in news.items():
        record[key] = {**record.get(key, {}), **value} if key in _GROWING else value
    file = set_folder / "record.json"
    temporary = file.with_suffix(".partial")
    temporary.write_text(json.dumps(record, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    os.replace(temporary, file)
