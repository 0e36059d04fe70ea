"""Parse function calls in a model's answer, in the formats that models are trained to write.

- `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`, once per call; also with
  `<function=name><parameter=key>value</parameter></function>` inside, or alone;
- Llama: `<function=name>{...}</function>`, `<|python_tag|>...`;
- DeepSeek: `<｜tool▁call▁begin｜>name<｜tool▁sep｜>{...}<｜tool▁call▁end｜>`, and its older form
  with the word "function" and a fenced block;
- Gemma: `<start_function_call>call:name{key:<escape>text<escape>}<end_function_call>`, or Python in
  a block `tool_code`, also inside `print(...)`;
- GLM: `<tool_call>name<arg_key>key</arg_key><arg_value>value</arg_value></tool_call>`;
- Kimi: `<|tool_call_begin|>functions.name:0<|tool_call_argument_begin|>{...}<|tool_call_end|>`;
- gpt-oss: `to=functions.name<|channel|>commentary json<|message|>{...}<|call|>`, in either order;
- Mistral: `[TOOL_CALLS] [...]`, `[TOOL_CALLS]name[ARGS]{...}`, `[TOOL_CALLS]name{...}`;
- JSON: a call, a list of calls, several calls one after the other, alone or inside prose or a
  fenced block, arguments under "arguments", "parameters" or "args", also as a JSON text;
- Python: `[f(a=1), g("x")]` or one call per line, values literal, arguments by keyword or place.

Marks that are special tokens may be missing, as tokenizers omit them when decoding.

Nothing is ever executed.
"""

import ast
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

MAX_ANSWER_CHARS = 20_000
MAX_CALLS = 32
# Total read after brackets that do not open JSON; each costs up to the rest of the text.
MAX_VAIN_CHARS = 10 * MAX_ANSWER_CHARS
_LEAST_VAIN_CHARS = 100
# Of arguments: deeper ones, and longer numbers, cannot always be written as JSON.
_MOST_DEPTH, _MOST_BITS = 32, 4096

# An opening mark is only matched before the last closing one: otherwise each opening mark costs up
# to the rest of the text.
_TAGGED = re.compile(r"<tool_call>(.*?)(?:</tool_call>|\Z)", re.DOTALL)
_FUNCTION_END, _PARAMETER_END = "</function>", "</parameter>"
_FUNCTION = re.compile(rf"<function=([\w.\-]++)>(.*?){_FUNCTION_END}", re.DOTALL)
_PARAMETER = re.compile(rf"<parameter=([\w\-]++)>(.*?){_PARAMETER_END}", re.DOTALL)
_FENCED = re.compile(r"```[\w+-]*+[ \t]*+\n(.*?)(?:```|\Z)", re.DOTALL)
_MARKERS = re.compile(
    r"\[TOOL_CALLS\](?!\w)|<\|python_tag\|>|<\|eom_id\|>|<\|tool_call\|>"
    r"|<｜tool▁(?:calls?|outputs?)▁(?:begin|end)｜>"
)
# A name and then its arguments as JSON.
_NAMED = re.compile(
    r"\[TOOL_CALLS\]([\w.\-]+)(?:\[CALL_ID\]\w*)?(?:\[ARGS\])?\s*(?={)"
    r"|(?:\bfunction)?<｜tool▁sep｜>([\w.\-]+)\s*(?:```(?:json)?\s*)?(?={)"
    # Only from a word's beginning: otherwise a long word is read again from each letter.
    r"|(?<![\w.\-])([\w.\-]+)<｜tool▁sep｜>\s*(?={)"
    r"|^function([\w.\-]+)\s*```json\s*(?={)"
    r"|(?<![\w.\-])functions\.([\w.\-]++)(?::\d++)?(?:\s|<\|\w++\|>|commentary|json)*+(?={)"
    r"|\A\s*([\w.\-]+)(?:\[ARGS\])?(?={)",
    re.MULTILINE,
)
_NAME = re.compile(r"[\w.\-]+")
_GEMMA = re.compile(r"call:([\w.\-]++)({.*})", re.DOTALL)
_ESCAPED = re.compile(r"<escape>(.*?)<escape>", re.DOTALL)
_BARE_KEY = re.compile(r"([{,]\s*)([A-Za-z_][\w.\-]*)\s*:")
_BRACKET = re.compile(r"[\[{]")
_ARGUMENT_KEYS = ("arguments", "parameters", "args")
_BESIDE_A_NAME = {"name", "function", "id", "type"}
# Other languages' names of the constants, for calls in Python syntax.
_CONSTANTS = {"true": True, "false": False, "null": None, "none": None}


@dataclass(frozen=True)
class Call:
    """A function's name and its arguments as Python values; positional: those without a name."""

    name: str
    arguments: dict[str, Any]
    positional: tuple[Any, ...] = ()

    def __str__(self) -> str:
        """The call for display, in Python syntax."""
        arguments = (f"{key}={value!r}" for key, value in self.arguments.items())
        return f"{self.name}({', '.join(arguments)})"

    def with_named_arguments(self, keys: Sequence[str]) -> "Call":
        """Return the call with every argument named; keys: the function's, in its order."""
        if not self.positional:
            return self
        # An extra or repeated one stays an unknown argument.
        names = [*keys, *(f"argument {i + 1}" for i in range(len(keys), len(self.positional)))]
        given = dict(zip(names, self.positional, strict=False))
        twice = {f"{key} twice": given[key] for key in given if key in self.arguments}
        return Call(self.name, {**given, **self.arguments, **twice})


def parse_calls(text: str) -> list[Call]:
    """Return an answer's calls, in order; none for prose or broken syntax."""
    return [
        Call(_plain(call.name), _plain(call.arguments), _plain(call.positional))
        for call in _calls(text)[:MAX_CALLS]
    ]


def _plain(value: Any, depth: int = 0) -> Any:
    """Return a value in a form that JSON can express; other parts become ``...``."""
    if depth > _MOST_DEPTH:
        return "..."
    if isinstance(value, dict):
        pairs = ((_plain(key, _MOST_DEPTH), _plain(own, depth + 1)) for key, own in value.items())
        return {key if isinstance(key, str) else repr(key): own for key, own in pairs}
    if isinstance(value, list | tuple):
        return type(value)(_plain(part, depth + 1) for part in value)
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()  # half of a surrogate pair
    if isinstance(value, int) and value.bit_length() > _MOST_BITS:
        return hex(value)
    if value is None or isinstance(value, int | float):
        return value
    return "..."


def _calls(text: str) -> list[Call]:
    text = _MARKERS.sub(" ", text[:MAX_ANSWER_CHARS]).strip()
    tagged = [part.strip() for part in _TAGGED.findall(text)]
    if tagged:
        return [call for part in tagged for call in _glm_calls(part) or _part(part)]
    fenced = [match.group(1).strip() for match in _FENCED.finditer(text)]
    for part in dict.fromkeys((text, *fenced, "\n".join(fenced))):
        calls = _part(part)
        if calls:
            return calls
    return []


def _part(text: str) -> list[Call]:
    return (
        _functions(text)
        or _gemma_calls(text)
        or _named_calls(text)
        or _json_calls(text)
        or _python_calls(text)
    )


def _functions(text: str) -> list[Call]:
    calls = []
    for name, body in _FUNCTION.findall(_until_last(_FUNCTION_END, text)):
        given = _loose(body.strip())
        if not isinstance(given, dict):
            values = _PARAMETER.findall(_until_last(_PARAMETER_END, body))
            given = {key: _loose(value.strip()) for key, value in values}
        calls.append(Call(name, given))
    return calls


def _until_last(end: str, text: str) -> str:
    return text[: text.rfind(end) + len(end)] if end in text else ""


def _glm_calls(text: str) -> list[Call]:
    name, *parts = text.split("<arg_key>")
    if not _NAME.fullmatch(name.strip()) or not all("</arg_value>" in part for part in parts):
        return []
    given = {}
    for part in parts:
        key, _, value = part.partition("</arg_key>")
        value = value.partition("<arg_value>")[2].partition("</arg_value>")[0]
        given[key.strip()] = _loose(value.strip())
    return [Call(name.strip(), given)]


def _gemma_calls(text: str) -> list[Call]:
    calls = []
    for part in text.split("<start_function_call>")[1:]:
        call = _GEMMA.fullmatch(part.partition("<end_function_call>")[0].strip())
        if call is None:
            continue
        name, body = call.groups()
        texts: list[str] = []

        def store_text(found: re.Match[str], texts: list[str] = texts) -> str:
            texts.append(found.group(1))
            return f'"\\u0000{len(texts) - 1}"'

        # Keys are bare and texts are between marks: both become JSON.
        given = _loose(_BARE_KEY.sub(r'\1"\2":', _ESCAPED.sub(store_text, body)))
        if isinstance(given, dict):
            calls.append(Call(name, _fill_texts(given, texts)))
    return calls


def _fill_texts(value: Any, texts: list[str]) -> Any:
    if isinstance(value, dict):
        return {key: _fill_texts(part, texts) for key, part in value.items()}
    if isinstance(value, list):
        return [_fill_texts(part, texts) for part in value]
    return texts[int(value[1:])] if isinstance(value, str) and value[:1] == "\0" else value


def _named_calls(text: str) -> list[Call]:
    decoder, calls = json.JSONDecoder(), []
    for found in islice(_NAMED.finditer(text), MAX_CALLS):
        try:
            value, _ = decoder.raw_decode(text, found.end())
        except (ValueError, RecursionError):
            continue
        if isinstance(value, dict):
            calls.append(Call(next(filter(None, found.groups())), value))
    return calls


def _loose(value: str) -> Any:
    """Return a tag's content: JSON if it is JSON, else the text itself."""
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return value


def _json_calls(text: str) -> list[Call]:
    return [call for value in _json_values(text) for call in _calls_in(value)]


def _json_values(text: str) -> Iterator[Any]:
    """Yield every outermost JSON object or list in a text."""
    decoder = json.JSONDecoder()
    position = vain = 0
    while vain < MAX_VAIN_CHARS and (found := _BRACKET.search(text, position)):
        start = found.start()
        try:
            value, position = decoder.raw_decode(text, start)
        except (ValueError, RecursionError) as error:
            position = start + 1
            read = error.pos - start if isinstance(error, json.JSONDecodeError) else 0
            # Errors for endless digits or depth have no position.
            vain += _LEAST_VAIN_CHARS + (read or MAX_ANSWER_CHARS // 2)
        else:
            yield value


def _calls_in(value: Any) -> list[Call]:
    if isinstance(value, list):
        return [call for part in value if isinstance(part, dict) for call in _calls_in(part)]
    if not isinstance(value, dict):
        return []
    if isinstance(value.get("tool_calls"), list):
        return _calls_in(value["tool_calls"])
    if isinstance(value.get("function"), dict):
        return _calls_in(value["function"])
    name = value.get("name", value.get("function"))
    if not isinstance(name, str) or not name:
        return []
    key = next((key for key in _ARGUMENT_KEYS if key in value), None)
    # An object with a name and other keys is not a call, and neither is a repeated function schema.
    if key is None:
        return [Call(name, {})] if value.keys() <= _BESIDE_A_NAME else []
    arguments = _loose(value[key]) if isinstance(value[key], str) else value[key]
    if not isinstance(arguments, dict) or isinstance(arguments.get("properties"), dict):
        return []
    return [Call(name, arguments)]


def _python_calls(text: str) -> list[Call]:
    try:
        body = ast.parse(text.strip()).body
        if not body or not all(isinstance(line, ast.Expr) for line in body):
            return []
        nodes: list[ast.expr] = []
        for line in body:
            value = line.value  # type: ignore[attr-defined]
            nodes += value.elts if isinstance(value, ast.List | ast.Tuple) else [value]
        return [_python_call(node) for node in nodes]
    # SyntaxWarning: odd literals in the model's text, where warnings are errors.
    except (SyntaxError, SyntaxWarning, ValueError, TypeError, MemoryError, RecursionError):
        return []


def _python_call(node: ast.expr) -> Call:
    """Return a call from Python syntax; ValueError unless it has literal arguments."""
    if not isinstance(node, ast.Call):
        raise ValueError("not a call")
    name = node.func
    if isinstance(name, ast.Name) and name.id == "print" and len(node.args) == 1:
        return _python_call(node.args[0])
    while isinstance(name, ast.Attribute):
        name = name.value
    if not isinstance(name, ast.Name) or any(keyword.arg is None for keyword in node.keywords):
        raise ValueError("not a call of a named function")
    values = {keyword.arg: _literal(keyword.value) for keyword in node.keywords}
    named = {key: value for key, value in values.items() if key}
    return Call(ast.unparse(node.func), named, tuple(map(_literal, node.args)))


def _literal(node: ast.expr) -> Any:
    if isinstance(node, ast.Name) and node.id in _CONSTANTS:
        return _CONSTANTS[node.id]
    if isinstance(node, ast.List | ast.Tuple):
        return [_literal(part) for part in node.elts]
    if isinstance(node, ast.Dict):
        keys = [ast.literal_eval(key) for key in node.keys if key is not None]
        return dict(zip(keys, (_literal(value) for value in node.values), strict=True))
    return ast.literal_eval(node)
