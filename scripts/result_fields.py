"""The fields of results in `--json`, from their models."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import TypeAdapter

from ram_studio.checkpoints.hub.presets import presets
from ram_studio.checkpoints.hub.push import PushResult
from ram_studio.engine.reading.preset_check import HubModel, PresetReport
from ram_studio.evals.experiment.result import ExperimentResult
from ram_studio.evals.report.eval_result import EvalResult
from ram_studio.evals.store import StoredRun

PRINTED = {
    EvalResult: "`evaluate`, `history RUN`",
    ExperimentResult: "`compare`, `sweep`",
    StoredRun: "`history`, a list",
    PushResult: "`push`",
    PresetReport: "`presets`, a list under this key",
}
# Types that a key's name implies.
_PLAIN = ("integer", "number", "string", "boolean")


def result_fields() -> str:
    """Return a table with a line for each record: its name and its keys.

    A key of a number, text or boolean is listed alone; others with their type.
    """
    records: dict[str, Mapping[str, Any]] = {}
    for model in PRINTED:
        schema = TypeAdapter(model).json_schema(mode="serialization")
        found = {schema["title"]: schema, **schema.get("$defs", {})}
        records |= _as_printed(found) if model is PresetReport else found
    where = {model.__name__: f" ({said})" for model, said in PRINTED.items()}
    lines = ["| record | keys |", "| --- | --- |"]
    for name, schema in records.items():
        keys = (f"`{key}` {_kind(own)}".strip() for key, own in schema["properties"].items())
        lines.append(f"| {name}{where.get(name, '')} | {', '.join(keys)} |")
    return "\n".join(lines)


def _as_printed(found: Mapping[str, Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """Return the records of a preset's report with their printed keys, not their fields."""
    preset = next(iter(presets().values()))
    printed = (PresetReport(preset), HubModel(preset.base, "", "", {}, 0, is_here=True))
    return {
        (name := type(one).__name__): {
            "properties": {
                key: found[name]["properties"].get(key, {"type": "string"}) for key in one.to_dict()
            }
        }
        for one in printed
    }


def _kind(schema: Mapping[str, Any]) -> str:
    if "$ref" in schema:
        return str(schema["$ref"]).rpartition("/")[2]
    if "anyOf" in schema:
        kinds = dict.fromkeys(map(_kind, schema["anyOf"]))
        known = " or ".join(kind for kind in kinds if kind not in ("", "null"))
        return f"{known} or null".strip() if "null" in kinds else known
    if "enum" in schema or "const" in schema:
        return f"({', '.join(schema.get('enum', [schema.get('const')]))})"
    if "prefixItems" in schema:
        return f"[{', '.join(_kind(one) or one['type'] for one in schema['prefixItems'])}]"
    kind = str(schema.get("type", "anything"))
    if kind == "array":
        return f"[{_kind(schema.get('items', {})) or '...'}]"
    if kind == "object":
        inner = schema.get("additionalProperties")
        inside = _kind(inner) if isinstance(inner, Mapping) else ""
        return f"{{name: {inside}}}" if inside else "{...}"
    return "" if kind in _PLAIN else kind
