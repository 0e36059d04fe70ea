"""The preview of an analysis: a JSON object that also prints as one line and as a table."""

from __future__ import annotations

import html
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ram_studio.algorithm import naming

if TYPE_CHECKING:
    import pandas as pd

_MODEL_COLUMNS = ("retained", "interference", "own_factor", "shared_factor")


class Preview(dict[str, Any]):
    """The object of ``preview --json``, see ``Analysis.preview``."""

    def __repr__(self) -> str:
        settings = f"{self['rule']}, epsilon {self['epsilon']:g}, r {self['r']:g}"
        groups = f" by {self['by']}" if "by" in self else ""
        return f"Preview({', '.join(self['agents'])}: {settings}, alpha {self['alpha']:g}{groups})"

    def _repr_html_(self) -> str:
        """Return a table for notebooks: a row for each agent, or each group and agent."""
        return f"<p>{html.escape(repr(self))}</p>{self.to_frame().to_html(index=False)}"

    def to_frame(self) -> pd.DataFrame:
        """Return it as a tidy table, see ``Analysis.to_frame``."""
        import pandas as pd

        by = self.get("by", "model")
        frame = pd.DataFrame(
            {
                "agent": agent,
                **(_place(label) if by == "tensor" else {}),
                by: label,
                **numbers,
                **(_flat(numbers) if by == "model" else {}),
            }
            for label, group in self.get("groups", {"model": self}).items()
            for agent, numbers in group["agents"].items()
        ).drop(columns=["model", "overlap", "factors"], errors="ignore")
        ratios = [name for name in ("rho", "rho_m") if name in frame]
        if by == "model":
            frame = frame.astype(dict.fromkeys(("lambda", *_MODEL_COLUMNS), float))
        else:  # a merge has one lambda, of the whole model
            frame = frame.drop(columns="lambda")
        # JSON's null stands for an unbounded ratio.
        return frame.astype(dict.fromkeys(ratios, float)).fillna(dict.fromkeys(ratios, math.inf))


def _place(name: str) -> dict[str, str]:
    return {"layer": naming.layer_of(name), "module": naming.module_of(name)}


def _flat(numbers: Mapping[str, Any]) -> dict[str, float | None]:
    """Return the nested numbers of an agent's preview, flat for a table."""
    factors = {f"{part}_factor": value for part, value in numbers["factors"].items()}
    return {"retained": (numbers["retained"] or {}).get("total"), **factors}
