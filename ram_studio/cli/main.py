"""Entry point: the commands, and the message and exit code of every error."""

from __future__ import annotations

import contextlib
import errno
import gc
import io
import json
import logging
import os
import signal
import sys
from collections.abc import Iterator
from typing import Annotated, Literal, NoReturn, cast

import typer

from ram_studio._version import full_version
from ram_studio.checkpoints.read.describe import printable
from ram_studio.cli import (
    app_command,
    evaluate_command,
    experiment_commands,
    fisher_command,
    history_command,
    progress,
)
from ram_studio.cli.inspection import (
    analysis,
    analyze,
    diff,
    export_canvas,
    gallery,
    inspect,
    microscope,
    presets,
    preview,
    suites,
)
from ram_studio.cli.merge import convert, delta, merge, parts, push, recipe, verify
from ram_studio.errors import RamStudioError, SettingsError, Stopped

EXIT_FAILED = 1
_PATH_ERRORS = (
    errno.EACCES, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG, errno.ENOENT, errno.ENOTDIR,
    errno.EPERM, errno.EROFS,
)  # fmt: skip
_LOG_LEVELS = ("debug", "info", "warning", "error")

commands = typer.Typer(
    name="ram-studio",
    help="Analyze, merge and check RL-trained LLM agents with Reinforced Agent Merging.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
commands.command("app")(app_command.app)
commands.command("analyze")(analyze.analyze)
commands.command("preview")(preview.preview)
commands.command("export-canvas")(export_canvas.export_canvas)
commands.command("gallery")(gallery.gallery)
commands.command("presets")(presets.presets)
commands.command("inspect")(inspect.inspect)
commands.command("diff")(diff.diff)
commands.command("microscope")(microscope.microscope)
commands.command("convert")(convert.convert)
commands.command("merge")(merge.merge)
commands.command("push")(push.push)
commands.command("verify")(verify.verify)
commands.command("suites")(suites.suites)
commands.command("evaluate")(evaluate_command.evaluate)
commands.command("recipe")(recipe.recipe)
commands.command("history")(history_command.history)
commands.command("compare")(experiment_commands.compare)
commands.command("fisher")(fisher_command.fisher)
commands.add_typer(delta.commands)
commands.command("plan")(parts.plan)
commands.command("finish")(parts.finish)
commands.add_typer(analysis.commands)
commands.command("sweep")(experiment_commands.sweep)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"ram-studio {full_version()}")
        raise typer.Exit


@commands.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Version.")
    ] = False,
    progress_form: Annotated[
        str,
        typer.Option(
            "--progress",
            help="auto: bars, or a line every 30 s without a terminal; json: a JSON line a second.",
        ),
    ] = "auto",
    log_level: Annotated[
        str, typer.Option(help="Lowest level of messages on stderr: debug, info, warning or error.")
    ] = "info",
) -> None:
    if progress_form not in ("auto", "json"):
        raise typer.BadParameter("expected auto or json", param_hint="--progress")
    progress.form = cast(Literal["auto", "json"], progress_form)
    if log_level not in _LOG_LEVELS:
        raise typer.BadParameter(f"expected {', '.join(_LOG_LEVELS)}", param_hint="--log-level")
    log = logging.getLogger("ram_studio")
    log.handlers = [_Messages()]
    log.setLevel(log_level.upper())


class _Messages(logging.Handler):
    """Log records as lines on standard error, like all messages."""

    def emit(self, record: logging.LogRecord) -> None:
        print(f"ram-studio: {self.format(record)}", file=sys.stderr, flush=True)


def _stop(signal_number: int, frame: object) -> NoReturn:
    # Not KeyboardInterrupt, for which the parser has its own exit.
    raise Stopped("Stopped; nothing was left behind.")


def main() -> None:
    """Run the command line.

    Exit codes: 0 done, 2 usage, 65 data, 69 network, 75 try again, 130 stopped; 1 anything else.
    """
    gc.set_threshold(50_000)  # imported modules are never garbage, and searching them takes 0.1 s
    for stopping in (signal.SIGINT, signal.SIGTERM):
        signal.signal(stopping, _stop)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # names of files may be any bytes
    try:
        as_json = _one_json_object() if "--json" in sys.argv else contextlib.nullcontext()
        with as_json, _refused_paths():
            commands(prog_name="ram-studio", standalone_mode=True)
    except RamStudioError as error:
        print(f"ram-studio: {error.to_dict()['message']}", file=sys.stderr)
        sys.exit(error.exit_code)
    except BrokenPipeError:
        # The reader of the output has closed it (as in `| head`), which is not an error.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(EXIT_FAILED)


@contextlib.contextmanager
def _refused_paths() -> Iterator[None]:
    """Report a path that the system refuses in one line, wherever it was opened."""
    try:
        yield
    except OSError as error:
        if error.filename is None or error.errno not in _PATH_ERRORS:
            raise
        raise SettingsError(
            f"{printable(error.filename)}: {error.strerror}. Check the path and your permissions."
        ) from error


@contextlib.contextmanager
def _one_json_object() -> Iterator[None]:
    """Print the block's output, or the error as JSON where it failed before any."""
    printed = io.StringIO()
    try:
        with contextlib.redirect_stdout(printed):
            yield
    except (Exception, SystemExit) as error:
        found = _as_json(error)
        if found is not None and not printed.getvalue():
            print(json.dumps({"error": found}))
        raise
    finally:
        sys.stdout.write(printed.getvalue())
        sys.stdout.flush()


def _as_json(error: BaseException) -> dict[str, object] | None:
    """Return an error's object for JSON; None for an exit without an error."""
    if isinstance(error, RamStudioError):
        return error.to_dict()
    code, message = "internal_error", f"{type(error).__name__}: {error}"
    if isinstance(error, SystemExit):
        # The parser's own error.
        format_message = getattr(error.__context__, "format_message", None)
        if format_message is None:
            return None
        code, message = "usage_error", format_message()
    return {"code": code, "message": " ".join(message.split()), "retry": False, "part": None}
