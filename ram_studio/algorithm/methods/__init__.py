"""All merge methods by name. To add one: write its file, and add it to METHODS."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from ram_studio.algorithm.methods.base import (
    BlockInput,
    BlockOutput,
    Facts,
    Magnitudes,
    Method,
    MethodSettings,
    Need,
    PreparedMethod,
)
from ram_studio.algorithm.methods.dare import DARE_TASK_ARITHMETIC, DARE_TIES
from ram_studio.algorithm.methods.fisher import FISHER
from ram_studio.algorithm.methods.linear import LINEAR
from ram_studio.algorithm.methods.magmax import MAGMAX
from ram_studio.algorithm.methods.ram import (
    RAM,
    RAM_PLUS,
    RAM_PLUS_MAGNITUDE,
    RAM_PLUS_SOFT,
)
from ram_studio.algorithm.methods.region import REGION, TWO_REGIONS
from ram_studio.algorithm.methods.task_arithmetic import TASK_ARITHMETIC
from ram_studio.algorithm.methods.ties import TIES
from ram_studio.algorithm.methods.whole.model_stock import MODEL_STOCK
from ram_studio.algorithm.methods.whole.project import PROJECT
from ram_studio.algorithm.methods.whole.resmerge import RESMERGE
from ram_studio.algorithm.methods.whole.sce import SCE
from ram_studio.algorithm.methods.whole.slerp import SLERP, WARP
from ram_studio.algorithm.methods.whole.spectral import ISO, TSV
from ram_studio.algorithm.methods.whole.wudi import WUDI
from ram_studio.algorithm.scaling import PRESETS
from ram_studio.errors import SettingsError, did_you_mean

__all__ = [
    "METHODS",
    "NAMED",
    "OWN",
    "PRESETS",
    "BlockInput",
    "BlockOutput",
    "Facts",
    "Magnitudes",
    "Method",
    "MethodSettings",
    "Need",
    "PreparedMethod",
    "get_method",
    "make_settings",
]

METHODS: dict[str, Method] = {
    method.name: method
    for method in (
        RAM,
        RAM_PLUS,
        RAM_PLUS_SOFT,
        RAM_PLUS_MAGNITUDE,
        TASK_ARITHMETIC,
        LINEAR,
        TIES,
        DARE_TASK_ARITHMETIC,
        DARE_TIES,
        MAGMAX,
        SLERP,
        WARP,
        MODEL_STOCK,
        SCE,
        FISHER,
        WUDI,
        TSV,
        ISO,
        RESMERGE,
        PROJECT,
        REGION,
        TWO_REGIONS,
    )
}


NAMED = {"soup": "linear"}
"""Other names of methods: a soup averages checkpoints of a run, with ``decay`` a moving average."""

OWN: dict[str, Method] = {}
"""Methods that users added, by name, see ``checkpoints.own_methods``."""


def get_method(name: str) -> Method:
    """Return a method by name.

    Raises: SettingsError that lists the known names.
    """
    if name in OWN:
        return OWN[name]
    if name not in METHODS:
        raise SettingsError(
            f"The method is {name!r}; it must be one of {', '.join(METHODS)}"
            f"{did_you_mean(name, METHODS) or '.'}"
        )
    return METHODS[name]


def make_settings(name: str, values: Mapping[str, Any]) -> MethodSettings:
    """Return the validated settings of a method, defaults filled in.

    Raises: SettingsError in one line with each wrong setting, its value and the allowed ones.
    """
    method = get_method(name)
    try:
        return method.settings.model_validate(dict(values))
    except ValidationError as error:
        fields = method.settings.model_fields
        problems = "; ".join(
            f"{name} has no setting {e['loc'][0]!r}{did_you_mean(e['loc'][0], fields)} "
            f"(it has {', '.join(fields)})"
            if e["type"] == "extra_forbidden"
            else f"{e['loc'][0]} is {e['input']!r}: {e['msg'].lower()}"
            if e["loc"]
            else e["msg"].removeprefix("Value error, ")
            for e in error.errors()
        )
        raise SettingsError(f"Settings of {name}: {problems}.") from error
