"""BFCL's Java and JavaScript questions: arguments are texts in the syntax of the language.

The prompt gives the language and each parameter's type in it, and the model writes every argument
as a text. The rules that turn texts into values are those of the leaderboard's checker, with its
limits (a list is split at every comma, texts in a Java array keep their quotation marks): a text
that is not a literal of its type stays a text, and is right only where a variable's name is.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

Row = Mapping[str, Any]

LANGUAGES = {"simple_java": "Java", "simple_javascript": "JavaScript"}
_LISTS = ("Array", "ArrayList", "array")
# Their types in JSON schemas, for values after `value_of`.
_SCHEMA_TYPES = {
    **dict.fromkeys(("byte", "short", "integer", "long", "Bigint"), "integer"),
    **dict.fromkeys(("float", "double"), "number"),
    **dict.fromkeys(("boolean", "Boolean"), "boolean"),
    **dict.fromkeys(("char", "String", "any"), "string"),
    **dict.fromkeys(_LISTS, "array"),
    **dict.fromkeys(("HashMap", "dict"), "object"),
}
_WHOLE = r"-?\d+"
_DECIMAL = r"-?\d+(?:\.\d+)?"
_SCIENTIFIC = rf"{_DECIMAL}(?:[eE][+-]?\d+)?"


def _number(pattern: str, read: Callable[[str], Any]) -> Callable[[str], Any]:
    """Return a reader of texts that match the whole pattern, without the suffix."""
    whole = re.compile(rf"({pattern})\n?")

    def value(text: str) -> Any:
        found = whole.fullmatch(text)
        try:
            return read(found.group(1).rstrip("fFlLn")) if found else text
        # Python refuses to read very long numbers.
        except ValueError:
            return text

    return value


def _truth(text: str) -> Any:
    return {"true": True, "false": False}.get(text, text)


def _unquote(text: str) -> str:
    is_quoted = len(text) > 1 and text[0] == text[-1] and text[0] in "\"'"
    return text[1:-1] if is_quoted else text


_SCALARS: dict[str, dict[str, Callable[[str], Any]]] = {
    "Java": {
        **dict.fromkeys(("byte", "short", "integer"), _number(_WHOLE, int)),
        "long": _number(rf"{_WHOLE}[lL]", int),
        "float": _number(rf"{_SCIENTIFIC}[fF]", float),
        "double": _number(_SCIENTIFIC, float),
        "boolean": _truth,
    },
    "JavaScript": {
        "integer": _number(_WHOLE, int),
        "Bigint": _number(f"{_WHOLE}n", int),
        "float": _number(_DECIMAL, float),
        "Boolean": _truth,
        "String": _unquote,
    },
}

# Possessive (no backtracking), so that a text without its end is read once.
_NEW_ARRAY = re.compile(r"new\s++\w++\[\]\s*+\{([^}\n]*+)\}")
_AS_LIST = re.compile(r"new\s+ArrayList<\w*>\(Arrays\.asList\((.+?)\)\)")
_ADDED = re.compile(r"new\s++ArrayList<\w*+>\(\)\s*+\{\{(.+?)\}\}", re.DOTALL)
_ADD = re.compile(r"add\((.[^)\n]*+)\)")
_EMPTY_LIST = re.compile(r"new\s+ArrayList<\w*>\(\)")
_NEW_MAP = re.compile(r"new\s++HashMap<")
_MAP_BODY = re.compile(r">\s*+\(\)(?:\s*+\{\s*+\{?([^}]*+)\})?")
_PUT = re.compile(r"put\(\"([^\"\n]*+)\",\s*+([^)\n]*+)\)")
_JS_ROWS = re.compile(
    r"(?:\[|new\s++Array\()\s*+(\[[^\]\n]*+\]\s*+(?:,\s*+\[[^\]\n]*+\]\s*+)*+)[\])]"
)
_JS_ROW = re.compile(r"\[(.*?)\]")
_JS_LIST = re.compile(r"\[(.*?)\]|new\s+Array\((.*?)\)")
_JS_DICT = re.compile(r"\{(.*?)\}")


def describe_function(function: Row, language: str) -> dict[str, Any]:
    """Return a function for the prompt: every parameter is a text with its type described."""
    parameters = {}
    for name, given in function["parameters"]["properties"].items():
        kind = "object of any type" if given["type"] == "any" else f"value of type {given['type']}"
        note = f" Give it as text: a {language} {kind}."
        if given["type"] in _LISTS:
            note += f" Its elements are of type {given['items']['type']}."
        if given["type"] == "dict" and "properties" in given:
            note += f" Its entries: {given['properties']}."
        limits = {key: given[key] for key in ("default", "enum") if key in given}
        parameters[name] = {**limits, "type": "string", "description": given["description"] + note}
    return {
        **function,
        "description": f"{function['description']} This is a {language} function.",
        "parameters": {**function["parameters"], "properties": parameters},
    }


def schema_of(function: Row) -> dict[str, Any]:
    """Return the JSON schema of a function's arguments after they are converted to values."""
    given = function["parameters"]
    return {"properties": {k: _schema(v) for k, v in given["properties"].items()},
            "required": list(given["required"])}  # fmt: skip


def _schema(given: Row) -> dict[str, Any]:
    found: dict[str, Any] = {"type": _SCHEMA_TYPES[given["type"]]}
    if given["type"] in _LISTS:
        found["items"] = {"type": _SCHEMA_TYPES[given["items"]["type"]]}
    return found


def value_of(text: str, language: str, given: Row) -> Any:
    """Return the value of a text in its language; the text itself where it is not a literal.

    given: the parameter in BFCL's description: "type", and for lists "items".
    """
    kind, element = given["type"], given.get("items", {}).get("type")
    if kind in ("HashMap", "dict"):
        return _java_map(text) if language == "Java" else _js_dict(text.strip())
    if kind in _LISTS:
        parts = _java_parts(text, kind) if language == "Java" else None
        if language != "Java":
            return _js_list(text.strip(), element)
        if parts is None:
            return text
        # A list of texts loses their quotation marks, an array keeps them.
        if kind == "ArrayList" and element in ("char", "String"):
            return [part[1:-1] for part in parts]
        return [value_of(part, language, {"type": element or "any"}) for part in parts]
    return _SCALARS[language].get(kind, str)(text)


def _java_parts(text: str, kind: str) -> list[str] | None:
    if kind == "Array":
        found = _NEW_ARRAY.search(text)
        return [part.strip() for part in found[1].split(",") if part.strip()] if found else None
    if found := _AS_LIST.search(text):
        return [part.strip() for part in found[1].split(",")]
    if found := _ADDED.search(text):
        return [part.strip() for part in _ADD.findall(found[1])]
    return [] if _EMPTY_LIST.search(text) else None


def _java_map(text: str) -> Any:
    start = _NEW_MAP.search(text)
    found = _MAP_BODY.search(text, start.end()) if start else None
    if not found:
        return text
    return {key: _java_any(value.strip()) for key, value in _PUT.findall(found[1] or "")}


def _java_any(text: str) -> Any:
    """Return a value of unknown type, by its form."""
    if len(text) > 1 and text[0] == text[-1] == '"':
        return text[1:-1]
    for kind in ("boolean", "long", "float"):
        value = value_of(text, "Java", {"type": kind})
        if value is not text:
            return value
    return _plain_number(text)


def _js_list(text: str, element: str | None) -> Any:
    if rows := _JS_ROWS.match(text):
        inner = _JS_ROW.findall(rows[1])
        return [[_js_any(part) for part in row.strip().split(",")] for row in inner]
    found = _JS_LIST.match(text)
    if not found:
        return text
    inside = (found[1] if found[1] is not None else found[2]).strip()
    parts = [part.strip() for part in inside.split(",")] if inside else []
    own = {"type": element}
    return [value_of(p, "JavaScript", own) if element else _js_any(p) for p in parts]


def _js_dict(text: str) -> Any:
    if text == "{}":
        return {}
    found = _JS_DICT.match(text)
    if not found:
        return text
    pairs: list[str] = []
    for part in found[1].split(","):
        # A comma separates two entries if a colon comes before the next one.
        if pairs and ":" not in part[1:]:
            pairs[-1] += f",{part}"
        else:
            pairs.append(part)
    entries = [pair.partition(":") for pair in pairs if ":" in pair[1:]]
    return {key.strip().strip("'\""): _js_entry(value.strip()) for key, _, value in entries}


def _js_entry(text: str) -> Any:
    if text[:1] == "[" and text[-1:] == "]":
        return _js_list(text, None)
    if text[:1] == "{" and text[-1:] == "}":
        return _js_dict(text)
    return _js_any(text.strip("'\""))


def _js_any(text: str) -> Any:
    text = text.strip()
    plain = _unquote(text)
    if plain != text or text in ("true", "false"):
        return _truth(text) if plain == text else plain
    return _plain_number(text)


def _plain_number(text: str) -> Any:
    for read in (int, float):
        try:
            return read(text)
        # Python refuses to read very long numbers.
        except ValueError:
            continue
    return text


def values_of(arguments: Row, language: str, properties: Row) -> dict[str, Any] | str:
    """Return a call's arguments as values; or the name of the first that is not a text, an error.

    Arguments that the function does not have are unchanged.
    """
    found: dict[str, Any] = {}
    for name, text in arguments.items():
        if name not in properties:
            found[name] = text
            continue
        if not isinstance(text, str):
            return name
        found[name] = value_of(text, language, properties[name])
    return found


def example_of(value: Any, language: str, given: Row) -> str:
    """Return an acceptable value as a text in its language, for display."""
    if isinstance(value, dict):
        # An object has lists of acceptable values.
        value = {key: options[0] for key, options in value.items() if "" not in options}
    return format_value(value, language, given)


def format_value(value: Any, language: str, given: Row) -> str:
    """Return a value as a text in its language; a text, which may be a variable, unchanged."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        own = {"type": given.get("items", {}).get("type") or "any"}
        parts = ", ".join(_literal(part, language, own) for part in value)
        if language == "JavaScript":
            return f"[{parts}]"
        if given["type"] == "Array":
            return f"new {own['type']}[]{{{parts}}}"
        return f"new ArrayList<>(Arrays.asList({parts}))" if parts else "new ArrayList<>()"
    if isinstance(value, dict):
        texts = {k: _literal(v, language, {"type": "any"}) for k, v in value.items()}
        if language == "JavaScript":
            return f"{{{', '.join(f'{_quote(k)}: {v}' for k, v in texts.items())}}}"
        puts = " ".join(f"put({_quote(k)}, {v});" for k, v in texts.items())
        return f"new HashMap<>() {{{{ {puts} }}}}" if puts else "new HashMap<>()"
    suffixes = {"long": "L", "Bigint": "n", **({"float": "f"} if language == "Java" else {})}
    return f"{value}{suffixes.get(given['type'], '')}"


def _literal(value: Any, language: str, given: Row) -> str:
    return _quote(value) if isinstance(value, str) else format_value(value, language, given)


def _quote(text: str) -> str:
    return f'"{text}"'
