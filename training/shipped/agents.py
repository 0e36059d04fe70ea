"""The agents of a set by training stage, and the stages' folders.

Agents of a set with a style stage learn the shared style before their skills: a cold start, then
rewards for following instructions in shared style. Either one checkpoint learns it, from which all
agents start, or each agent learns it by itself.
"""

import fcntl
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ram_studio.checkpoints.write.output_folder import reserved, write_whole
from ram_studio.evals.answering.load import load_model
from training.shipped.cold_start import ColdStartSettings, cold_start
from training.shipped.pretrain import save_model
from training.shipped.reinforce import ReinforceSettings, reinforce
from training.shipped.tokenizer import TOKENIZER_FILES

Say = Callable[[str], None]
# Offset between the seeds of one set's agents and those of the next seed.
_SEEDS_APART = 100
# Offset for an agent that is trained again, see `train_agent`.
_AGAIN_APART, _MOST_AGAIN = 10, 2
# Levels of a record that are merged; below them, and elsewhere, new values replace old ones.
_GROWING = {"training": 1, "seeds": 1, "tried": 3}


@dataclass(frozen=True)
class StyleStage:
    """The first stage of every agent of a set.

    is_common: one checkpoint learns it for all; otherwise each agent by itself, on its own prompts
    and samples.
    """

    cold_start: ColdStartSettings = field(default_factory=ColdStartSettings)
    reinforce: ReinforceSettings = field(
        default_factory=lambda: ReinforceSettings(
            "follow", "adam", 3e-3, steps=40, blocks=(2, 3), shared_style=True
        )
    )
    is_common: bool = False


@dataclass(frozen=True)
class Training:
    """The training of a set's agents: the skill by an agent's folder, and the first stage."""

    skills: Mapping[str, ReinforceSettings]
    style: StyleStage | None = None

    @property
    def common(self) -> StyleStage | None:
        """The stage of the common checkpoint of all agents, None without one."""
        return self.style if self.style is not None and self.style.is_common else None


def learn_shared_style(
    model: Any, tokenizer: Any, stage: StyleStage, seed: int, say: Say
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


def train_set(
    base: Path, folder: Path, training: Training, *, common: Path, seed: int, force: bool, say: Say
) -> None:
    """Train the agents of a set that are not in `folder`, and record it.

    common: path of the common checkpoint of all agents, if they have one.
    """
    start, own = base, training.style
    if training.common is not None:
        start, own = common, None
        if force or not all((folder / name).exists() for name in training.skills):
            record = train_common(base, common, training.common, seed=seed, force=force, say=say)
            if record:
                update_record(folder, {"training": {"common": record}})
    for number, (name, settings) in enumerate(training.skills.items()):
        with stage(folder / name, force, say) as temporary:
            if temporary:
                record = train_agent(
                    start,
                    temporary,
                    settings,
                    seed=seed,
                    style=own,
                    number=number,
                    say=_telling(say, f"{folder.name}/{name}"),
                )
                update_record(folder, {"training": {name: record}})


def train_common(
    base: Path, folder: Path, style: StyleStage, *, seed: int, force: bool, say: Say
) -> dict[str, Any]:
    """Train the common checkpoint of a set's agents, unless it exists.

    Returns the record of the stage, empty when nothing was trained.
    """
    record: dict[str, Any] = {}
    with stage(folder, force, say) as temporary:
        if temporary is not None:
            model, tokenizer = load_model(base, "cpu")
            own = _telling(say, "common checkpoint")
            record = learn_shared_style(model, tokenizer, style, seed, own)
            save_checkpoint(model, base, temporary)
    return record


def _telling(say: Say, who: str) -> Say:
    return lambda text: say(f"{who}: {text}")


def train_agent(
    base: Path,
    folder: Path,
    settings: ReinforceSettings,
    *,
    seed: int,
    style: StyleStage | None = None,
    number: int = 0,
    say: Say = lambda text: None,
) -> dict[str, Any]:
    """Train an agent from the checkpoint `base`, save it in `folder` and return its record.

    style: the first stage; number: the agent's index in its set, for its own samples there.

    A shared style that was learned only on other prompts gets no rewards on those of the skill, and
    rewards cannot reinforce what never happens. An agent that ends far below its goal is trained
    again, with other samples of the style stage, at most twice; the record has the number
    ("again").
    """
    first: dict[str, Any] = {}
    for again in range(1 + (_MOST_AGAIN if style is not None else 0)):
        model, tokenizer = load_model(base, "cpu")
        if style is not None:
            own = _SEEDS_APART * seed + _AGAIN_APART * again + number
            first = {"style": learn_shared_style(model, tokenizer, style, own, say)}
        if again:
            first["again"] = again
        record = reinforce(
            model, tokenizer, settings, seed=seed, on_step=lambda point: say(str(point))
        )
        if has_learned(record):
            break
    save_checkpoint(model, base, folder)
    return {**record, **first}


def has_learned(record: Mapping[str, Any]) -> bool:
    """Return whether a run reached at least half of its goal, if it had one."""
    goal = record["settings"]["stop_at"]
    return goal is None or record["curve"][-1]["validation"] >= goal / 2


def save_checkpoint(model: Any, base: Path, folder: Path) -> None:
    """Save a model trained from `base`, with its tokenizer."""
    save_model(model, folder)
    for file in TOKENIZER_FILES:
        shutil.copyfile(base / file, folder / file)


@contextmanager
def stage(folder: Path, force: bool, say: Say) -> Iterator[Path | None]:
    """Yield a temporary folder that becomes `folder` at the end, or None when that exists."""
    if folder.exists() and not force:
        say(f"{folder.parent.name}/{folder.name}: exists, skipped")
        yield None
        return
    with reserved(folder.absolute()) as temporary:
        yield temporary
        shutil.rmtree(folder, ignore_errors=True)
        temporary.rename(folder)


def read_record(set_folder: Path) -> dict[str, Any]:
    """Return the set's current record."""
    file = set_folder / "record.json"
    return json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}


def update_record(set_folder: Path, news: dict[str, Any]) -> None:
    """Merge `news` into the set's record.json; see `_GROWING`.

    Processes that build parts of a set do so one after another.
    """
    set_folder.mkdir(parents=True, exist_ok=True)
    folder = os.open(set_folder, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        record = read_record(set_folder)
        for key, value in news.items():
            record[key] = _grown(record.get(key, {}), value, _GROWING.get(key, 0))
        text = json.dumps(record, indent=1, allow_nan=False)
        # Lists and objects without nested ones are written in one line.
        text = re.sub(r"[\[{][^\[\]{}]*[\]}]", lambda found: " ".join(found[0].split()), text)
        write_whole(set_folder / "record.json", f"{text}\n".encode())
    finally:
        os.close(folder)


def _grown(old: Any, new: Any, levels: int) -> Any:
    if levels == 0:
        return new
    news = {key: _grown(old.get(key, {}), value, levels - 1) for key, value in new.items()}
    return {**old, **news}
