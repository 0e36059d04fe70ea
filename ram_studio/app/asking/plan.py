"""What can be asked here, and how: one set of checks for Check, Compare and the sweep."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ram_studio.app.load.work import open_loaded
from ram_studio.app.public.lanes import Effort
from ram_studio.app.session import Session
from ram_studio.app.settings import Settings
from ram_studio.errors import RamStudioError, SettingsError
from ram_studio.evals.answering.engine import Decoding
from ram_studio.evals.how import DEFAULT_SEED
from ram_studio.evals.pieces import MODE, Pieces
from ram_studio.evals.suites import ALL_SUITES, GENERAL_SUITES, HEALTH, generated, is_a
from ram_studio.evals.suites.generated import HARDEST
from ram_studio.evals.suites.suite import DEFAULT_DIFFICULTY
from ram_studio.evals.until import FIRST, Until

SUITE = "demo"
MADE = tuple(suite.name for suite in generated.SUITES)
"""Suites of which there are as many questions as asked for."""
LENGTHS = (1000, 2000, 4000, 8000, 16000, 32000)
_SPACE_LENGTHS = LENGTHS[:3]
MOST_TOKENS = 32_768
MOST_SEED = 2**31 - 1
MODES = ("whole", MODE)


@dataclass(frozen=True)
class How:
    """How to ask; each as `HowToAsk` and `Decoding` have it.

    max_tokens: 0 for each suite's own. until: points that every interval may span, 0 for as many
    questions as the plan says; most: questions per skill until then. mode: how long texts are read,
    one of MODES. data: folder with the rows of data sets, "" for the Hub's cache.
    """

    max_tokens: int = 0
    think_tokens: int = 0
    temperature: float = 0.0
    top_p: float = 1.0
    samples: int = 1
    seed: int = DEFAULT_SEED
    difficulty: int = DEFAULT_DIFFICULTY
    until: float = 0.0
    most: int = FIRST
    mode: str = MODES[0]
    data: str = ""

    @property
    def settings(self) -> dict[str, Any]:
        """These, but for until and most, as `evaluate` takes them."""
        return {
            "max_tokens": self.max_tokens or None,
            "decoding": Decoding(self.temperature, self.top_p, think_tokens=self.think_tokens),
            "samples": self.samples,
            "seed": self.seed,
            "difficulty": self.difficulty,
            "pieces": Pieces() if self.mode == MODE else None,
            "data": self.data or None,
        }


@dataclass(frozen=True)
class Asked:
    """What models are asked: suites, lengths of long texts, and how.

    limits: questions of each suite (demo: per skill), in a check; experiments have one for all.
    """

    suites: tuple[str, ...] = (SUITE,)
    lengths: tuple[int, ...] = LENGTHS[:1]
    how: How = field(default_factory=How)
    limits: Mapping[str, int] = field(default_factory=dict)

    def answers(self, items: int = 10) -> int:
        """Return how many answers a model is to give at most; items: of a suite without a limit."""
        usual = self.how.most if self.how.until else items
        skills = ((3 if name == SUITE else 1, name) for name in self.suites)
        return self.how.samples * sum(n * self.limits.get(name, usual) for n, name in skills)

    @property
    def settings(self) -> dict[str, Any]:
        """These as fields of an experiment's plan."""
        how = self.how
        until = Until(how.until / 100, how.most) if how.until else None
        return {"lengths": self.lengths, "until": until, **how.settings}


def asking_effort(session: Session, parts: Sequence[str], answers: int) -> Effort:
    """Return what a job costs that is to get so many answers for each part.

    Of a shipped set's models answers are shared by all visitors; of others they are one's own.
    """
    owner = session.key if session.models.example is None else ""
    kind = "slow answers" if owner else "answers"
    return Effort(kind, {f"{owner} {part}": answers for part in parts})


def offered_lengths(settings: Settings) -> tuple[int, ...]:
    """Return the lengths of text that suites about long texts can be asked for here."""
    return _SPACE_LENGTHS if settings.is_public else LENGTHS


def general_suites() -> tuple[str, ...]:
    """Return the suites of questions that any model can be asked; made to order come last."""
    return tuple(n for n in ALL_SUITES if n != SUITE and n not in MADE) + MADE


def code_refusal() -> str | None:
    """Return why programs that a model wrote may not run here; None where they may."""
    from ram_studio.evals.sandbox import check_code_allowed

    try:
        check_code_allowed("auto")
    except RamStudioError as error:
        return str(error)
    return None


def absent_here(data: str = "") -> dict[str, str]:
    """Return why suites have no questions on this machine, by name; data: see `How`."""
    why = {name: ALL_SUITES[name].absent(data or None) for name in general_suites()}
    return {name: text for name, text in why.items() if text}


def misfits_of(session: Session, settings: Settings) -> dict[str, str]:
    """Return why suites that are here cannot be asked of the loaded base; empty for none."""
    from ram_studio.evals.suites.fit import misfits

    if session.loaded is None or session.loaded.is_sketch_only:
        return {}
    try:
        folder = open_loaded(session.loaded).base.folder  # headers and small files are enough
    except RamStudioError:
        return {}
    absent = absent_here(session.data)
    there = tuple(name for name in general_suites() if name not in absent)
    return misfits(folder, there, offered_lengths(settings)[0], session.data or None)


def most_items(suite: str, settings: Settings) -> int:
    """Return the most questions of a suite (demo: per skill)."""
    if suite == SUITE:
        return 300
    # Those written for this program have no more.
    return settings.max_suite_items if suite in GENERAL_SUITES else settings.max_made_items


def asked_of(
    suites: Sequence[str],
    lengths: Sequence[Any],
    settings: Settings,
    how: Mapping[str, Any] | None = None,
    limits: Mapping[str, Any] | None = None,
) -> Asked:
    """Return what a form asks, checked.

    Args:
        how: fields of `How`; what is left out is as usual. limits: of a check, questions by suite.

    Raises: SettingsError for no suite, one that is not here, or numbers out of range.
    """
    chosen = tuple(name for name in (*ALL_SUITES, HEALTH) if name in suites)
    if not chosen:
        raise SettingsError("No suite is chosen. Tick at least one.")
    asked = _how_of(how or {}, chosen, settings)
    allowed = offered_lengths(settings)
    wanted = tuple(length for length in allowed if length in lengths)
    about = [name for name in chosen if is_a(name, "has_texts")]
    if about and not wanted:
        raise SettingsError(f"Suite {about[0]} needs a prompt length. Tick at least one.")
    absent = absent_here(asked.data)
    for name in chosen:
        if name in absent and settings.is_public:
            raise SettingsError(f"Suite {name} is not offered here: its questions are not there.")
    whole = {}
    for name in chosen:
        if limits is None or asked.until or name == HEALTH:
            continue
        most, value = most_items(name, settings), limits.get(name)
        if not isinstance(value, (int, float)) or not 1 <= value <= most:
            raise SettingsError(
                f"The number of questions for {name} is {value}; it must be from 1 to {most}."
            )
        whole[name] = int(value)
    return Asked(chosen, wanted or allowed[:1], asked, whole)


def _how_of(given: Mapping[str, Any], suites: Sequence[str], settings: Settings) -> How:
    ranges = {
        # name: in words, least, most
        "max_tokens": ("tokens of an answer are", 0, MOST_TOKENS),
        "think_tokens": ("tokens of thinking are", 0, MOST_TOKENS),
        "temperature": ("temperature is", 0.0, 2.0),
        "top_p": ("top-p is", 0.01, 1.0),
        "samples": ("number of samples is", 1, settings.max_samples),
        "seed": ("seed is", 0, MOST_SEED),
        "difficulty": ("difficulty is", 1, HARDEST),
        "until": ("width of the intervals in points is", 0.0, 99.0),
        "most": ("most questions until decided are", FIRST, settings.max_made_items),
    }
    read: dict[str, Any] = {}
    for name, (what, least, most) in ranges.items():
        value = given.get(name)
        if value is None or value == "":
            continue
        if not isinstance(value, (int, float)) or not least <= value <= most:
            raise SettingsError(f"The {what} {value}; choose {least:g} to {most}.")
        read[name] = float(value) if isinstance(least, float) else int(value)
    mode, data = given.get("mode") or MODES[0], str(given.get("data") or "")
    if mode not in MODES:
        raise SettingsError(f"The mode is {mode!r}; choose {' or '.join(MODES)}.")
    if data and settings.is_public:
        raise SettingsError("A folder of data sets is not opened by this public app. Leave it out.")
    if data and not Path(data).is_dir():
        raise SettingsError(f"{data} is no folder. Give one that holds data sets, or none.")
    how = How(**{"most": settings.max_made_items, **read}, mode=mode, data=data)
    if how.until and set(suites) - set(MADE):
        raise SettingsError(
            "Only suites made to order have questions enough to ask until decided. Leave the "
            f"others out, or set the width to 0; made to order are {', '.join(MADE)}."
        )
    return how
