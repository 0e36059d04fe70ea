"""The start program of `python`: seal this process, then run the given program.

`python -I -S -B -X utf8 -c "..." FOLDER ORDER`, ORDER being JSON with the limits (see `seal`) and
"mode":
- "probe": print which layers are active, and end;
- "program": run the text of file "program" as `__main__`;
- "function": run it as module `solution`; then read calls of "entry", one JSON line each, from the
  descriptor "requests", and write their results to "replies";
- "tests": run it with a function "entry" that calls the other process in the same way; a last line
  shows that its end was reached.
"""

from __future__ import annotations

import builtins
import json
import os
import sys
from types import ModuleType

from .plain import MOST_BYTES, TYPE_CHECKING, copy_changes, decode, encode
from .seal import seal

if TYPE_CHECKING:
    from typing import Any


def main(order: dict[str, Any]) -> None:
    """Carry out one order."""
    mode = order["mode"]
    if mode == "probe":
        print(json.dumps(seal(order)))
        return
    with open(order["program"], encoding="utf-8") as file:
        source = file.read()
    layers = seal(order)
    if order["must_seal"] and not (layers["landlock"] and layers["seccomp"]):
        sys.exit("sandbox: the kernel did not seal this process; nothing was run")
    vars(builtins).update(exit=sys.exit, quit=sys.exit)
    sys.argv = ["program.py"]
    if mode == "program":
        _run("__main__", source)
        return
    line = _Line(order["requests"], order["replies"])
    if mode == "function":
        _serve(_run("solution", source), order["entry"], line)
    else:
        _run("tests", source, {order["entry"]: _remote(line)})
        line.write({"end": True})


def _run(name: str, source: str, given: dict[str, Any] | None = None) -> ModuleType:
    """Run source as a module of this name that already contains `given`."""
    module = ModuleType(name)
    module.__dict__.update(given or {}, __builtins__=builtins)
    sys.modules[name] = module
    exec(compile(source, "program.py", "exec", dont_inherit=True), module.__dict__)
    return module


def _serve(module: ModuleType, entry: str, line: _Line) -> None:
    while (request := line.read()) is not None:
        arguments, named = decode(request["call"])
        try:
            function = eval(entry, module.__dict__)
            value = encode(function(*arguments, **named))
            line.write({"value": value, "after": encode(arguments)})
        except Exception as error:
            line.write({"error": f"{type(error).__name__}: {error}"[:500]})


def _remote(line: _Line) -> Any:
    def function(*arguments: Any, **named: Any) -> Any:
        line.write({"call": encode((arguments, named))})
        reply = line.read() or {"error": "RuntimeError: no reply"}
        if "error" in reply:
            name, _, text = reply["error"].partition(": ")
            kind = getattr(builtins, name, None)
            if isinstance(kind, type) and issubclass(kind, Exception):
                raise kind(text)
            raise RuntimeError(text)
        copy_changes(arguments, decode(reply["after"]))
        return decode(reply["value"])

    return function


class _Line:
    """JSON messages in both directions, one a line."""

    def __init__(self, requests: int, replies: int) -> None:
        self._requests = os.fdopen(requests, "rb")
        self._replies = replies

    def read(self) -> dict[str, Any] | None:
        text = self._requests.readline()
        return json.loads(text) if text else None

    def write(self, message: dict[str, Any]) -> None:
        data = json.dumps(message).encode() + b"\n"
        if len(data) > MOST_BYTES:
            raise ValueError("the value is too large")
        while data:
            data = data[os.write(self._replies, data) :]
