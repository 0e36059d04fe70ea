"""A small world of files, a calendar and a shop that functions read and change.

The state is plain data, {"files": {name: text}, "events": {day: {hour: person}}, "stock": {item:
price}, "orders": {item:
count}}. A failing function changes nothing and returns an error, as a service does: {"error": ...}.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ram_studio.evals.suites.tools.tool import JSON_TYPES, function_schema
from ram_studio.evals.suites.tools.tool_calls import Call

State = dict[str, dict[str, Any]]
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday")


class Impossible(Exception):
    """A request that cannot be fulfilled; its text is the reason."""


def _require(place: Mapping[str, Any], key: str, what: str) -> Any:
    if key not in place:
        raise Impossible(f"there is no {what} {key!r}")
    return place[key]


def _day(state: State, day: str) -> dict[str, str]:
    found: dict[str, str] = _require(state["events"], day.capitalize(), "day")
    return found


def _list_files(state: State) -> Any:
    return sorted(state["files"])


def _read_file(state: State, name: str) -> Any:
    return _require(state["files"], name, "file")


def _write_file(state: State, name: str, text: str) -> Any:
    state["files"][name] = text
    return "written"


def _delete_file(state: State, name: str) -> Any:
    _require(state["files"], name, "file")
    del state["files"][name]
    return "deleted"


def _list_events(state: State, day: str) -> Any:
    events = sorted(_day(state, day).items(), key=lambda event: int(event[0]))
    return [{"hour": int(hour), "person": person} for hour, person in events]


def _add_event(state: State, day: str, hour: int, person: str) -> Any:
    events = _day(state, day)
    if str(hour) in events:
        raise Impossible(f"{day} at {hour} is taken")
    if not 0 <= hour < 24:
        raise Impossible(f"{hour} is not an hour of a day")
    events[str(hour)] = person
    return "added"


def _cancel_event(state: State, day: str, hour: int) -> Any:
    events = _day(state, day)
    _require(events, str(hour), f"event on {day} at")
    del events[str(hour)]
    return "canceled"


def _search_items(state: State, word: str) -> Any:
    stock = state["stock"].items()
    return [{"item": item, "price": price} for item, price in stock if word.lower() in item]


def _order_item(state: State, item: str, count: int) -> Any:
    _require(state["stock"], item, "item")
    if count < 1:
        raise Impossible("the count is below 1")
    state["orders"][item] = state["orders"].get(item, 0) + count
    return "ordered"


def _cancel_order(state: State, item: str) -> Any:
    _require(state["orders"], item, "order of")
    del state["orders"][item]
    return "canceled"


def _list_orders(state: State) -> Any:
    return [{"item": item, "count": count} for item, count in state["orders"].items()]


# Name: description, argument types, function.
_FUNCTIONS: dict[str, tuple[str, dict[str, type], Callable[..., Any]]] = {
    "list_files": ("Names of all files.", {}, _list_files),
    "read_file": ("Text of a file.", {"name": str}, _read_file),
    "write_file": ("Write a file, new or over the old one.", {"name": str, "text": str},
                   _write_file),
    "delete_file": ("Delete a file.", {"name": str}, _delete_file),
    "list_events": ("Events of a day, Monday to Friday.", {"day": str}, _list_events),
    "add_event": ("Add a meeting with a person, at a full hour from 0 to 23.",
                  {"day": str, "hour": int, "person": str}, _add_event),
    "cancel_event": ("Cancel the event of a day and hour.", {"day": str, "hour": int},
                     _cancel_event),
    "search_items": ("Items of the shop with a word in their name, and their prices.",
                     {"word": str}, _search_items),
    "order_item": ("Order a number of an item of the shop, by its full name.",
                   {"item": str, "count": int}, _order_item),
    "list_orders": ("What is ordered.", {}, _list_orders),
    "cancel_order": ("Cancel the order of an item.", {"item": str}, _cancel_order),
}  # fmt: skip


TOOLS = tuple(function_schema(name, about, kinds) for name, (about, kinds, _) in _FUNCTIONS.items())


def call(state: State, name: str, arguments: Mapping[str, Any]) -> Any:
    """Call a function, which may change the state; return its result, ready for JSON."""
    try:
        about = _FUNCTIONS.get(name)
        if about is None:
            raise Impossible(f"there is no function {name!r:.60}")
        _, kinds, function = about
        if arguments.keys() != kinds.keys():
            raise Impossible(f"{name} takes the arguments {', '.join(kinds) or 'none'}")
        for key, kind in kinds.items():
            # A bool is an int to Python.
            if type(arguments[key]) is not kind:
                raise Impossible(f"{key} is not of type {JSON_TYPES[kind]}")
        return function(state, **arguments)
    except Impossible as error:
        return {"error": str(error)}


def apply_calls(state: State, calls: Iterable[Call]) -> State:
    """Return the state after calls; the given one is unchanged."""
    after = copy.deepcopy(state)
    for one in calls:
        call(after, one.name, one.arguments)
    return after


def difference(found: State, wanted: State) -> str:
    """Return the first difference between states, ignoring outer blanks; "" for none."""
    for place, own in wanted.items():
        for key in {**own, **found[place]}:
            has, should = (_plain(side.get(key)) for side in (found[place], own))
            if has != should:
                return f"{place}, {key}: {has!r:.60} instead of {should!r:.60}"
    return ""


def _plain(value: Any) -> Any:
    return value.strip() if isinstance(value, str) else value
