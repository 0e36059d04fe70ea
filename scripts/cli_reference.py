"""Write docs/cli.md from the commands' code: `make docs`.

tests/test_readme.py fails when the page and the commands differ.
"""

from __future__ import annotations

import argparse
import inspect
import re
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from typer.models import ArgumentInfo

from ram_studio.algorithm.methods import METHODS
from ram_studio.cli.main import commands

PAGE = Path(__file__).parents[1] / "docs" / "cli.md"

HEAD = """# Command line

*Generated from the commands by `make docs`; do not edit by hand. [Usage](usage.md) shows them at
work.*

Sources are folders or Hub ids, `owner/name[@revision]`. With `--json` a command prints one object
for machines, described in [Formats](formats.md#--json); a failure is
`{"error": {"code", "message", "retry", "part"}}`. Progress and messages go to standard error: bars
on a terminal, else a line every 30 seconds, or with `ram-studio --progress json COMMAND` a JSON
line a second; `ram-studio --log-level warning COMMAND` logs only warnings and errors.
`ram-studio --install-completion` makes the shell complete commands and options.

| exit code | meaning |
| --- | --- |
| 0 | done |
| 1 | a fault of RAM Studio's own, or the reader of its output went away |
| 2 | wrong usage, an unknown setting, or a sweep of which nothing could be merged |
| 65 | files that are refused; one line says what was found, what was expected and what to do |
| 69 | the Hub, object storage or a model server refused, was too busy, or could not be reached |
| 75 | try again: a source changed meanwhile, or another run writes there |
| 130 | stopped by Ctrl-C or SIGTERM; nothing half finished is left |
"""


def reference() -> str:
    """Return the whole page."""
    parts = [HEAD]
    found = {c.name or "": c.callback for c in commands.registered_commands}
    for group in commands.registered_groups:
        assert group.typer_instance
        name = group.typer_instance.info.name
        found |= {f"{name} {c.name}": c.callback for c in group.typer_instance.registered_commands}
    for command, callback in sorted(found.items()):
        assert callback
        parts += ["", *_page_of(command, callback)]
    return "\n".join([*parts, *_methods()]) + "\n"


def _page_of(name: str, function: Callable[..., Any]) -> Iterator[str]:
    """Yield the lines of one command, from its signature, as typer's own objects may change."""
    parameters = inspect.signature(function, eval_str=True).parameters.values()
    arguments = [p for p in parameters if isinstance(_info(p), ArgumentInfo)]
    options = [p for p in parameters if p not in arguments and not _info(p).hidden]
    usage = ["ram-studio", name, *map(_argument, arguments), *(["[OPTIONS]"] if options else [])]
    yield from (f"## {name}", "", _text(function.__doc__), "", f"    {' '.join(usage)}", "")
    if arguments:
        yield from ("| argument | |", "| --- | --- |")
        yield from (f"| `{_argument(p)}` | {_cell(_info(p).help)} |" for p in arguments)
        yield ""
    yield from ("| option | | default |", "| --- | --- | --- |")
    yield from (f"| {_names(p)} | {_cell(_info(p).help)} | {_default(p)} |" for p in options)


def _info(parameter: inspect.Parameter) -> Any:
    """Return the `typer.Option` or `typer.Argument` of a parameter."""
    return get_args(parameter.annotation)[1]


def _kind(parameter: inspect.Parameter) -> Any:
    """Return the type of one value: int for `list[int] | None`."""
    kind = get_args(parameter.annotation)[0]
    while get_origin(kind) in (Union, types.UnionType, list, tuple, Annotated):
        kind = next(part for part in get_args(kind) if part is not type(None))
    return kind


def _argument(parameter: inspect.Parameter) -> str:
    info = _info(parameter)
    name = info.metavar or parameter.name.upper()
    if "list[" in str(get_args(parameter.annotation)[0]) and "..." not in name:
        name += "..."
    return name if parameter.default is parameter.empty or "[" in name else f"[{name}]"


def _option_names(parameter: inspect.Parameter) -> list[str]:
    info = _info(parameter)
    # In an annotation typer first treats the first name as the default, and corrects it later.
    given = [text for text in (info.default, *(info.param_decls or ())) if isinstance(text, str)]
    word = parameter.name.replace("_", "-")
    usual = f"--{word}/--no-{word}" if _kind(parameter) is bool else f"--{word}"
    return [name for text in given or [usual] for name in text.split("/")]


def _names(parameter: inspect.Parameter) -> str:
    kind = _kind(parameter)
    names = ", ".join(f"`{name}`" for name in _option_names(parameter))
    if kind is bool:
        return names
    choices = "\\|".join(get_args(kind)) if get_origin(kind) is Literal else ""
    word = {str: "TEXT", Path: "PATH", int: "NUMBER", float: "NUMBER"}.get(kind, "")
    return f"{names} {_cell(_info(parameter).metavar) or choices or word}"


def _default(parameter: inspect.Parameter) -> str:
    value = parameter.default
    if value is parameter.empty:
        return "*needed*"
    if value is True:
        return f"`{_option_names(parameter)[0]}`"
    is_empty = value is None or value is False or value in ("", (), [])  # 0 is a default
    return "" if is_empty else f"`{value}`"


def _methods() -> Iterator[str]:
    """Yield the settings of every method, from its settings model."""
    yield from ("", "## Settings of the methods", "")
    yield from ("`--set KEY=VALUE`, or `settings` in a recipe.", "")
    yield from ("| method | setting | | default |", "| --- | --- | --- | --- |")
    for name, method in METHODS.items():
        fields = method.settings.model_json_schema()["properties"]
        for key, field in fields.items():
            choices = field.get("enum") or []
            text = _cell(field.get("description")) + (
                f" One of {', '.join(choices)}." * bool(choices)
            )
            default = field.get("default")
            yield f"| `{name}` | `{key}` | {text} | {'' if default is None else f'`{default}`'} |"


def _text(text: str | None) -> str:
    """Return help as Markdown paragraphs of one line each."""
    paragraphs = re.split(r"\n\s*\n", (text or "").replace("\b", "").strip())
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)


def _cell(text: str | None) -> str:
    return " ".join((text or "").split()).replace("|", "\\|")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--print", action="store_true", help="print the page instead")
    if parser.parse_args().print:
        print(reference(), end="")
    else:
        PAGE.write_text(reference(), encoding="utf-8")
