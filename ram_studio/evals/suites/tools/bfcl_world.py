"""Executes calls on BFCL's own classes; its text runs in the sandbox, see `bfcl_multi_turn`.

`act` and `check` get plain data only: calls as names and values. Model output is never evaluated;
only methods of the package are called with it. Besides the package only Python's own library is
available.
"""

from __future__ import annotations

import copy
import json
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType, SimpleNamespace
from typing import Any

Step = Sequence[tuple[str, Mapping[str, Any]]]
"""Calls of one reply: the function's name, and its arguments by name."""

PACKAGE = "bfcl_eval.eval_checker.multi_turn_eval.func_source_code"
LONGEST = 16_000
"""Most characters of a result that a model sees."""


class World:
    """Objects of a question's classes, and their methods by name.

    world: "modules", the text by name; "classes", the module by name; "config", by class;
    "is_long". The objects are new, in the question's initial state.
    """

    def __init__(self, world: Mapping[str, Any]) -> None:
        self.objects, self.methods = dict[str, Any](), dict[str, Callable[..., Any]]()
        for name, module in world["classes"].items():
            one = self.objects[name] = getattr(_load(module, world["modules"]), name)()
            if hasattr(one, "_load_scenario"):
                config = copy.deepcopy(world["config"].get(name, {}))
                one._load_scenario(config, long_context=world["is_long"])
            names = (key for key in dir(one) if not key.startswith("_"))
            self.methods |= {key: getattr(one, key) for key in names if callable(getattr(one, key))}

    def call(self, name: str, arguments: Mapping[str, Any]) -> str:
        """Return a call's result, as the leaderboard writes it."""
        return _result_text(lambda: self.methods[name](**arguments))

    def evaluate(self, text: str) -> str:
        """Return the result of a right call, given as Python text in the package."""
        return _result_text(lambda: eval(text, dict(self.methods)))

    @property
    def state(self) -> dict[str, dict[str, Any]]:
        """The public attributes of each object."""
        return {
            name: {key: value for key, value in vars(one).items() if not key.startswith("_")}
            for name, one in self.objects.items()
        }


def act(world: Mapping[str, Any], steps: Sequence[Step]) -> list[str]:
    """Return the results of the last step's calls, after those of the earlier steps."""
    acted, results = World(world), list[str]()
    for step in steps:
        results = [acted.call(name, arguments)[:LONGEST] for name, arguments in step]
    return results


def check(
    world: Mapping[str, Any], turns: Sequence[Sequence[Step]], truth: Sequence[Sequence[str]]
) -> str:
    """Return why turns of calls are wrong by the leaderboard's rules, "" where they are right.

    After each turn the state must equal that of the right calls, and their results must have
    occurred by then.
    """
    own, right, given = World(world), World(world), list[str]()
    for number, (steps, wanted) in enumerate(zip(turns, truth, strict=True), start=1):
        given += [own.call(name, arguments) for step in steps for name, arguments in step]
        expected = [right.evaluate(text) for text in wanted]
        if not wanted:
            continue
        if not any(map(len, steps)):
            return f"turn {number}: no call"
        for name, state in right.state.items():
            if differing := [key for key, value in state.items() if own.state[name][key] != value]:
                return f"turn {number}: {name} differs in {', '.join(differing)}"
        left = list(given)
        for result in expected:
            if result not in left:
                return f"turn {number}: no call gave {result[:80]}"
            left.remove(result)
    return ""


def _result_text(call: Callable[[], Any]) -> str:
    try:
        found = call()
    except Exception as error:
        return f"Error during execution: {error}"
    if isinstance(found, dict):
        try:
            return json.dumps(found)
        except (TypeError, ValueError):
            pass
    return str(found)


def _load(name: str, modules: Mapping[str, str]) -> ModuleType:
    """Return one of the package's modules, run from its text; those it imports first."""
    full = f"{PACKAGE}.{name}"
    if full not in sys.modules:
        # They only need a logarithm from it.
        sys.modules["mpmath"] = SimpleNamespace(log=math.log, mp=SimpleNamespace())  # type: ignore[assignment]
        for other in modules:
            if other != name and f"{PACKAGE}.{other} import" in modules[name]:
                _load(other, modules)
        sys.modules[full] = module = ModuleType(full)
        exec(compile(modules[name], name, "exec"), module.__dict__)
    return sys.modules[full]
