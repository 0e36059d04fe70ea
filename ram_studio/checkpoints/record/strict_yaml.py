"""YAML for recipes: plain data, every name once, numbers such as 1e-5 without a dot.

Dumped data is read back equal.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import yaml

from ram_studio.checkpoints.read.describe import printable
from ram_studio.errors import SettingsError

_TEXT = "tag:yaml.org,2002:str"


def parse_yaml(data: bytes, where: str) -> dict[str, Any]:
    """Return the fields of a YAML file, which `where` names in messages.

    Raises: SettingsError, one line, for anything but one mapping of plain data in UTF-8.
    """
    values = load_plain(data, where)
    if not isinstance(values, dict):
        raise SettingsError(f"{where} holds no recipe; expected fields such as base and agents.")
    return values


def load_plain(data: bytes, where: str) -> Any:
    """Return the content of a YAML file, as ``parse_yaml`` does, of any type."""
    try:
        return yaml.load(data.decode("utf-8-sig"), Loader=_StrictLoader)  # a SafeLoader
    except yaml.MarkedYAMLError as error:
        line = f", line {error.problem_mark.line + 1}" if error.problem_mark else ""
        raise SettingsError(
            f"{where}{line}: not valid YAML: {printable(error.problem)}."
        ) from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else error
        raise SettingsError(f"{where}: not valid YAML: {printable(reason)}.") from error


def dump_yaml(values: Mapping[str, Any]) -> str:
    """Return YAML text, fields in the order given, that `parse_yaml` reads back equal."""
    return yaml.dump(
        dict(values), Dumper=_StrictDumper, sort_keys=False, allow_unicode=True, width=1000
    )


class _StrictLoader(yaml.SafeLoader):
    """Plain data only: no aliases (their expansion can be unbounded), no key given twice.

    No tags except !!str: for text that does not match its tag PyYAML raises errors of any kind.
    """

    def compose_node(self, parent: Any, index: Any) -> Any:
        event = self.peek_event()
        is_alias = isinstance(event, yaml.AliasEvent)
        if is_alias or getattr(event, "tag", None) not in (None, "!", _TEXT):
            what = "aliases" if is_alias else "tags"
            raise yaml.MarkedYAMLError(
                problem=f"{what} are not allowed", problem_mark=event.start_mark
            )
        return super().compose_node(parent, index)

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                raise yaml.MarkedYAMLError(
                    problem="a name must be plain text", problem_mark=key_node.start_mark
                )
            if key_node.value in seen:
                raise yaml.MarkedYAMLError(
                    problem=f"{printable(key_node.value, 60)!r} appears twice",
                    problem_mark=key_node.start_mark,
                )
            seen.add(key_node.value)
        return super().construct_mapping(node, deep)


class _StrictDumper(yaml.SafeDumper):
    """Writes what `_StrictLoader` reads back: text that looks like its numbers is quoted."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    # Unquoted or in single quotes PyYAML folds unusual line breaks (U+0085) into spaces.
    style = None if text.isprintable() else '"'
    return dumper.represent_scalar(_TEXT, text, style=style)


_StrictDumper.add_representer(str, _represent_text)

# Numbers as in YAML 1.1 without sexagesimal ones: 1:30 is not 90, and "1:1:1..." never ends.
# Python reads any number of binary digits, but cannot print the result: long ones are text.
_INTEGER = r"[-+]?(0b[01_]{1,99}|0[0-7_]{1,99}|0|[1-9][0-9_]*|0x[0-9a-fA-F_]{1,99})$"
_DECIMAL = (
    r"([-+]?[0-9][0-9_]*\.[0-9_]*([eE][-+][0-9]+)?|\.[0-9][0-9_]*([eE][-+][0-9]+)?"
    r"|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN))$"
)
_NUMBERS = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")
_StrictLoader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in known if tag not in _NUMBERS]
    for first, known in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
for _tag, _pattern in zip(_NUMBERS, (_INTEGER, _DECIMAL), strict=True):
    _StrictLoader.add_implicit_resolver(_tag, re.compile(_pattern), list("-+0123456789."))

# YAML 1.1 reads 1e-5 as text because it has no dot; users write epsilon that way.
for _yaml_class in (_StrictLoader, _StrictDumper):
    _yaml_class.add_implicit_resolver(
        "tag:yaml.org,2002:float", re.compile(r"[-+]?[0-9]+[eE][-+]?[0-9]+$"), list("-+0123456789")
    )
