"""Texts that panels of several rooms show; all others stand where they are used."""

from __future__ import annotations

METHOD_NAMES = {
    "ram": "RAM",
    "ram+": "RAM+",
    "ram+s": "RAM+s",
    "ram+m": "RAM+m",
    "task-arithmetic": "Task arithmetic (plain averaging and sums)",
    "ties": "TIES",
    "dare-ta": "DARE + task arithmetic",
    "dare-ties": "DARE + TIES",
    "fisher": "Fisher averaging",
    "wudi": "WUDI",
}

SETTING_SIGNS = {"epsilon": "ε", "alpha": "α"}
