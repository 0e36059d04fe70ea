"""How models are asked and answers kept, as options: one set for `evaluate`, `sweep`, `compare`."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from ram_studio.errors import Stopped

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ram_studio.evals import AnswerStore
    from ram_studio.evals.until import Until


@dataclass
class Asking:
    """The options. Their annotations are the command line's."""

    suite: Annotated[
        str,
        typer.Option(
            help="demo, or any others of those that `ram-studio suites` lists, with commas; "
            "`evaluate` knows health too."
        ),
    ] = "demo"
    lengths: Annotated[
        str,
        typer.Option(help="Prompt lengths of suites about long texts in tokens, such as 1k,4k."),
    ] = "1k,4k"
    mode: Annotated[
        Literal["whole", "memagent"],
        typer.Option(
            help="How suites about long texts (memory, ruler-*) are read: whole, or piece by piece "
            "with a bounded memory, as MemAgent does."
        ),
    ] = "whole"
    chunk_tokens: Annotated[int, typer.Option(help="Most tokens of a piece.")] = 5000
    memory_tokens: Annotated[int, typer.Option(help="Most tokens of the memory.")] = 1024
    chat: Annotated[Literal["auto", "template", "none"], typer.Option(help="Chat template.")] = (
        "auto"
    )
    code: Annotated[
        Literal["auto", "on", "off"], typer.Option(help="Run code that models write, sealed off.")
    ] = "auto"
    max_tokens: Annotated[
        list[str] | None,
        typer.Option(
            metavar="N or SUITE=N",
            help="Most tokens of an answer, of all suites or one; repeat [default: each suite's "
            "own].",
        ),
    ] = None
    think_tokens: Annotated[
        int, typer.Option(help="Most tokens of thinking (<think>), apart from the answer's.")
    ] = 0
    temperature: Annotated[float, typer.Option(help="0 is greedy; the paper's is 1.0.")] = 0.0
    top_p: Annotated[float, typer.Option(help="Share of the likeliest tokens.")] = 1.0
    samples: Annotated[
        int, typer.Option(help="Answers to each question, for pass@k; the paper's are 4.")
    ] = 1
    data: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER", help="Where the rows of suites that are data sets are; else the Hub."
        ),
    ] = None
    difficulty: Annotated[int, typer.Option(help="Of generated suites, 1 to 5.")] = 2
    until: Annotated[
        float | None,
        typer.Option(
            "--until",
            metavar="POINTS",
            help="Ask generated suites until every 95 % interval is so narrow, or the most "
            "questions (--limit, --items) are asked.",
        ),
    ] = None
    batch_size: Annotated[int, typer.Option(help="Prompts decoded together.")] = 128

    def fields(self) -> dict[str, Any]:
        """Return the fields of `HowToAsk`, but for the seed.

        Raises: typer.BadParameter (exit code 2) for texts that are no numbers.
        """
        from ram_studio.evals.answering.engine import Decoding
        from ram_studio.evals.pieces import Pieces

        is_whole = self.mode == "whole"
        return {
            "lengths": parse_lengths(self.lengths),
            "chat": self.chat,
            "code": self.code,
            "max_tokens": parse_budget(self.max_tokens),
            "decoding": Decoding(self.temperature, self.top_p, think_tokens=self.think_tokens),
            "samples": self.samples,
            "difficulty": self.difficulty,
            "data": self.data,
            "pieces": None if is_whole else Pieces(self.chunk_tokens, self.memory_tokens),
        }

    def until_decided(self, most: int | None) -> Until | None:
        """Return until when to ask, None for as many questions as said; most: at most, or None."""
        from ram_studio.evals.until import MOST, Until

        return None if self.until is None else Until(self.until / 100, most or MOST)


Store = Annotated[
    str | None,
    typer.Option(help="Where answers are kept; in the user's data folder when left out."),
]
NoStore = Annotated[
    bool, typer.Option("--no-store", help="Keep no answers; what is stopped is lost.")
]


@dataclass
class Keeping:
    """Where answers are kept, and whether what is there is asked again."""

    store: Store = None
    no_store: NoStore = False
    fresh: Annotated[bool, typer.Option("--fresh", help="Ask again what is stored.")] = False

    @contextlib.contextmanager
    def open(self) -> Iterator[AnswerStore | None]:
        """Yield the store of answers, None when none is to be kept."""
        from ram_studio.evals import AnswerStore

        if self.no_store:
            yield None
            return
        with AnswerStore(self.store) as answers:
            yield answers

    def stopped(self) -> Stopped:
        """Return the error of an experiment that was stopped, whether or not answers were kept."""
        kept = "no store was kept" if self.no_store else "finished answers are stored"
        return Stopped(f"Stopped as asked; {kept}. Run the same again to go on.")


def parse_budget(texts: list[str] | None) -> int | dict[str, int] | None:
    """Return most tokens of an answer: a number for all suites, or by suite.

    Raises: typer.BadParameter (exit code 2) for anything else.
    """
    found: dict[str, int] = {}
    for text in texts or ():
        name, separator, number = text.rpartition("=")
        tokens = _tokens(number, text, "--max-tokens")
        if not separator and len(texts or ()) == 1:
            return tokens
        if not name.strip():
            raise typer.BadParameter(
                "name the suites when there are several, as in math=1024", param_hint="--max-tokens"
            )
        found[name.strip()] = tokens
    return found or None


def parse_lengths(text: str) -> tuple[int, ...]:
    """Return lengths in tokens: `1k,4k` or `1000,4000`; k is a thousand.

    Raises: typer.BadParameter (exit code 2) for anything else.
    """
    lengths = []
    for part in text.split(","):
        number = part.strip().lower()
        scale = 1000 if number.endswith("k") else 1
        lengths.append(_tokens(number.removesuffix("k"), part, "--lengths") * scale)
    return tuple(lengths)


def _tokens(number: str, text: str, option: str) -> int:
    if not (number.isascii() and number.isdigit() and len(number) < 9):
        raise typer.BadParameter(f"{text!r} is no number of tokens", param_hint=option)
    return int(number)
