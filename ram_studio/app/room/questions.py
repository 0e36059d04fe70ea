"""Questions of a room: text, form of the answer, and the measured value.

The teacher's page makes questions from the lesson's scenes (assets/room/questions.js) and from
Tune's current view (ask.js), with the canvas's numbers. Here they are validated: only text and
numbers, in two parts, the one visible from the start and the one that the reveal adds.
"""

from __future__ import annotations

import math
from typing import Annotated, Any, Self, TypeGuard
from urllib.parse import parse_qsl, urlencode

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)

from ram_studio.app.session.deep_link import KEYS
from ram_studio.app.session.sets import TITLES
from ram_studio.errors import RamStudioError

MAX_QUESTIONS = 24
MAX_LINK = 400
NEAR = 0.1
"""A guess is right within this share of its line from the measured value."""


class RoomError(RamStudioError):
    """A request that a room refuses. status: of the HTTP response."""

    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.status = status


Text = Annotated[str, Field(max_length=700)]
Pieces = Annotated[list[Text | list[Text]], Field(max_length=40)]
"""Text as in the lesson: a string, or [strings] that are highlighted."""


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    @classmethod
    def read(cls, value: object) -> Self:
        """Return the model of a JSON value. Raises: RoomError, which names the first fault."""
        try:
            return cls.model_validate(value)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            place = ".".join(map(str, first["loc"])) or "the body"
            raise RoomError(f"Cannot use {place}: {first['msg']}.") from error


class Line(_Model):
    """A line to guess on, from low to high in steps. unit: shown after a number, may be empty."""

    low: float
    high: float
    step: float = Field(gt=0)
    unit: str = Field(default="", max_length=24)

    @model_validator(mode="after")
    def _check(self) -> Self:
        if not self.low < self.high or (self.high - self.low) / self.step > 10_000:
            raise ValueError("a line needs low < high and at most 10,000 steps")
        return self


class Truth(_Model):
    """The measured value. value: on the line, or a choice's index. low, high: 95 % interval."""

    value: float
    text: str = Field(max_length=300)
    low: float | None = None
    high: float | None = None


class Question(_Model):
    """One question; either ``choices`` or a ``line``. explore: a query that opens it in Tune."""

    id: str = Field(pattern=r"^[a-z0-9-]{1,40}$")
    title: str = Field(max_length=120)
    ask: Pieces
    choices: list[Annotated[str, Field(max_length=160)]] | None = Field(
        default=None, min_length=2, max_length=8
    )
    line: Line | None = None
    truth: Truth
    reveal: Pieces = Field(default_factory=list)
    note: Text = ""
    explore: Annotated[str, AfterValidator(lambda link: link and canvas_link(link))] = ""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.choices is None) == (self.line is None):
            raise ValueError("a question has either choices or a line")
        if not self.takes(self.truth.value):
            raise ValueError("the measured value must be one of the answers")
        return self

    def takes(self, value: object) -> TypeGuard[float]:
        """Whether a value can be an answer."""
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            return False
        if not math.isfinite(value):
            return False
        if self.line is not None:
            return self.line.low <= value <= self.line.high
        return value == int(value) and 0 <= value < len(self.choices or ())

    def right_range(self) -> tuple[float, float]:
        """Return the range of right answers: the choice, or an interval on the line."""
        truth = self.truth
        if self.line is None:
            return truth.value, truth.value
        near = NEAR * (self.line.high - self.line.low)
        return (
            min(truth.value - near, truth.value if truth.low is None else truth.low),
            max(truth.value + near, truth.value if truth.high is None else truth.high),
        )

    def before(self) -> dict[str, Any]:
        """Return the part that is visible before the reveal."""
        return self.model_dump(include={"id", "title", "ask", "choices", "line"})

    def after(self) -> dict[str, Any]:
        """Return the part that the reveal adds."""
        return self.model_dump(include={"truth", "reveal", "explore"})


class NewRoom(_Model):
    """A teacher's request to open a room."""

    questions: list[Question] = Field(min_length=1, max_length=MAX_QUESTIONS)
    talk_seconds: int = Field(default=90, ge=10, le=900)
    is_rehearsal: bool = False


def canvas_link(text: object) -> str:
    """Return the normalized query of a link to this app's Tune step.

    Only the query is used, so the result always leads to this app. Raises: RoomError for anything
    but a query of known keys that names a shipped set or a scene.
    """
    refused = RoomError(
        'This is not a link to the canvas. Open it from here, then use "Share", "Copy link".'
    )
    if not isinstance(text, str) or not text.startswith("?") or len(text) > MAX_LINK:
        raise refused
    try:
        entries = parse_qsl(text[1:], strict_parsing=True, max_num_fields=16)
    except ValueError as error:
        raise refused from error
    known = dict(entries)
    is_known = known.keys() <= set(KEYS) and text.isprintable()
    if len(known) < len(entries) or not is_known:
        raise refused
    if known.get("set") not in TITLES and "lesson" not in known:
        raise refused
    return f"?{urlencode(known)}"
