"""The shipped sets of agents, ready with their analyses."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

import orjson

from ram_studio.algorithm.analysis import Analysis
from ram_studio.algorithm.epsilon_grid import EPSILON_GRID
from ram_studio.algorithm.meters.profile import client_profile
from ram_studio.app.session.session import LoadedModels
from ram_studio.checkpoints.record.analysis_file import load_analysis
from ram_studio.evals.report.skill_table import load_table
from ram_studio.resources import asset_path

REAL = "real"
"""The set of a real model's agents: measured, and too large for their weights to be shipped."""

TITLES = {
    "shared-style": "the shared-style agents",
    "independent": "the independent agents",
    "dense": "the dense agents",
    REAL: "the agents of a real 0.5B model",
}
"""Titles of the shipped sets, by their name in links, API and assets/; the first is the default."""

DEFAULT_SET = next(iter(TITLES))


def opener(set_name: str) -> str:
    """Return the CSS class of the button that opens a set, which the lesson uses to click it."""
    return f"opens-{set_name}"


def _model_folder(set_name: str, name: str) -> str:
    own = asset_path(set_name) / name
    # All sets with weights were trained from the same base; it is shipped once.
    return str(own if own.is_dir() else asset_path("independent", name))


@lru_cache(maxsize=len(TITLES))
def load_set(set_name: str) -> LoadedModels:
    """Return a shipped set; read from disk once.

    Raises: CheckpointError when the files are missing; AnalysisError for a damaged analysis.
    """
    analysis = load_analysis(asset_path(set_name, "analysis.safetensors"))
    names, has_weights = ("base", *analysis.agents), set_name != REAL
    sources = {n: _model_folder(set_name, n) if has_weights else analysis.sources[n] for n in names}
    base = sources.pop("base")
    return LoadedModels(
        title=TITLES[set_name],
        set_name=set_name,
        base=base,
        agents=sources,
        analysis=analysis,
        is_analysis_only=not has_weights,
    )


SKILLS = "skills.json.gz"
"""The measured skills of a shipped set."""

RECORD = "record.json"
"""A shipped set's record: its training and measurements."""


def shipped_file(set_name: str, name: str) -> Path | None:
    """Return a file of a shipped set; None for an unknown set, or a missing file."""
    path = asset_path(set_name) / name if set_name in TITLES else None
    return path if path is not None and path.is_file() else None


@lru_cache(maxsize=len(TITLES))
def shipped_table(set_name: str) -> dict[str, Any] | None:
    """Return the measured skills of a shipped set; None where it has none."""
    path = shipped_file(set_name, SKILLS)
    return None if path is None else load_table(path)


@lru_cache(maxsize=len(TITLES))
def record_of(set_name: str) -> dict[str, Any]:
    """Return a shipped set's record: its training and measurements."""
    found: dict[str, Any] = orjson.loads(asset_path(set_name, RECORD).read_bytes())
    return found


def build_profile(analysis: Analysis) -> dict[str, Any]:
    """Return ``client_profile`` with mergekit's factors at each grid point, only for the page.

    Sent once per analysis; outcome.js does the same arithmetic on it as Analysis.preview (a test
    compares the two to 1e-12).
    """
    profile = client_profile(analysis)
    profile["mergekit"] = [
        analysis.dialects(k)["mergekit"].tolist() for k in range(len(EPSILON_GRID))
    ]
    return profile


@lru_cache(maxsize=len(TITLES))
def set_profile(set_name: str) -> str:
    """Return the client profile of a shipped set as JSON; cached."""
    skills_at = f"ram/skills/{set_name}.json" if shipped_file(set_name, SKILLS) else None
    own = {"set": set_name, "skills_at": skills_at}
    return _as_text({**build_profile(load_set(set_name).analysis), **own})


def profile_of(loaded: LoadedModels) -> str:
    """Return the client profile of the loaded models, as JSON.

    As text, because Gradio searches every number of a nested value for files: 60 ms per user.
    """
    if loaded.set_name is not None:
        return set_profile(loaded.set_name)
    return _as_text(build_profile(loaded.analysis))


def _as_text(profile: dict[str, Any]) -> str:
    # As in Gradio's JSON: non-finite numbers become null, which every browser can parse.
    return orjson.dumps(profile).decode()
