"""Options of commands that ask models: the evaluation settings, and the store of answers."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, get_args, get_origin

import typer

from ram_studio.errors import Stopped
from ram_studio.evals.settings import EvalSettings, described_fields

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ram_studio.evals.store import AnswerStore

_ELSEWHERE = ("engine", "base", "tasks")
"""Fields that these commands set by options of their own."""


class SettingsOptions:
    """The fields of `EvalSettings` as options of a command, which gets the given ones as a dict.

    Args:
        helps: help by option, where it differs from the field's.
        names: option by field, where the names differ.
    """

    def __init__(self, helps: Mapping[str, str] | None = None, **names: str) -> None:
        fields = [name for name in EvalSettings.model_fields if name not in _ELSEWHERE]
        names = {"suites": "suite", **names}
        self._options = {names.get(name, name): name for name in fields}
        self._helps = helps or {}

    def parameters(self) -> list[inspect.Parameter]:
        """Return the options, each annotated for the parser."""
        schemas = described_fields(self._options.values())
        return [
            _option(option, name, schemas[name], self._helps.get(option))
            for option, name in self._options.items()
        ]

    def make(self, given: Mapping[str, Any]) -> dict[str, Any]:
        return {self._options[name]: value for name, value in given.items() if value is not None}


def _option(
    option: str, name: str, schema: Mapping[str, Any], text: str | None
) -> inspect.Parameter:
    field = EvalSettings.model_fields[name]
    kind, default = field.annotation, field.default
    if get_origin(kind) is tuple:
        kind, default = str, ",".join(map(str, default))
    elif any(get_origin(part) is dict for part in get_args(kind)):
        kind = list[str] | None
    info = typer.Option(
        f"--{option.replace('_', '-')}",
        help=text or field.description,
        metavar=schema.get("metavar"),
    )
    return inspect.Parameter(
        option, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, info]
    )


Store = Annotated[
    str | None,
    typer.Option(help="File of stored answers; the one in the user's data folder when left out."),
]


@dataclass
class Storing:
    """The store of answers, and whether stored ones are asked again."""

    store: Store = None
    no_store: Annotated[
        bool, typer.Option("--no-store", help="Do not store answers; a stopped run starts over.")
    ] = False
    rerun: Annotated[
        bool, typer.Option("--rerun", help="Ask again, even where answers are stored.")
    ] = False

    @contextlib.contextmanager
    def open_store(self) -> Iterator[AnswerStore | None]:
        """Yield the store of answers, None with --no-store."""
        from ram_studio.evals.store import AnswerStore

        if self.no_store:
            yield None
            return
        with AnswerStore(self.store) as answers:
            yield answers

    def stopped_error(self) -> Stopped:
        """Return the error of an experiment that was stopped, with or without a store."""
        what = "no answers were stored" if self.no_store else "finished answers are stored"
        return Stopped(f"Stopped; {what}. Run the same command again to continue.")
