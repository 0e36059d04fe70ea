"""The three shipped sets of agents, ready with their sketches."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

import orjson

from ram_studio.algorithm.ladder import LADDER
from ram_studio.algorithm.meters.profile import client_profile
from ram_studio.algorithm.sketch import Sketch
from ram_studio.app.session import Loaded
from ram_studio.checkpoints.record.sketch_file import load_sketch
from ram_studio.resources import asset_path

FOLDERS = {"1": "house", "house": "house", "independent": "example", "dense": "dense"}
"""Link value (``?example=...``) -> folder under assets/."""

TITLES = {
    "1": "the example",
    "house": "the house-style agents",
    "independent": "the independent agents",
    "dense": "the dense agents",
}


def opener(example: str) -> str:
    """Return the CSS class of the button that opens a set, by which the lesson presses it."""
    return f"opens-{FOLDERS[example]}"


def _model_folder(folder: str, name: str) -> Path:
    own = asset_path(folder) / name
    # All sets were trained from the same base; it is shipped once.
    return own if own.is_dir() else asset_path("example", name)


@lru_cache(maxsize=len(FOLDERS))
def _sketch_of(folder: str) -> Sketch:
    return load_sketch(asset_path(folder, "sketch.safetensors"))


@lru_cache(maxsize=len(FOLDERS))
def load_example(example: str) -> Loaded:
    """Return a shipped set; read from disk once.

    Raises: CheckpointError when this installation lacks the files; SketchError for a damaged one.
    """
    folder = FOLDERS[example]
    sketch = _sketch_of(folder)
    return Loaded(
        title=TITLES[example],
        example=example,
        base=str(_model_folder(folder, "base")),
        agents={name: str(_model_folder(folder, name)) for name in sketch.agents},
        sketch=sketch,
    )


SKILLS = "skills.json.gz"
"""The measured skills of a shipped set."""

RECORD = "record.json"
"""How a shipped set was trained and what was measured of it."""


def shipped_file(example: str, name: str) -> Path | None:
    """Return a file of a shipped set; None where there is no such set, or it has none."""
    folder = FOLDERS.get(example)
    path = None if folder is None else asset_path(folder) / name
    return path if path is not None and path.is_file() else None


def build_profile(sketch: Sketch) -> dict[str, Any]:
    """Return ``client_profile`` with mergekit's factors at each point, which only the page shows.

    Sent once per analysis; numbers.js does the same arithmetic on it as Sketch.preview (a test
    compares the two to 1e-12).
    """
    profile = client_profile(sketch)
    profile["mergekit"] = [sketch.dialects(k)["mergekit"].tolist() for k in range(len(LADDER))]
    return profile


@lru_cache(maxsize=len(FOLDERS))
def _profile_of_set(folder: str) -> dict[str, Any]:
    return build_profile(_sketch_of(folder))


@lru_cache(maxsize=len(FOLDERS))
def example_profile(example: str) -> str:
    """Return the client profile of a shipped set as JSON.

    Computed once a set, whatever its names in links.
    """
    skills_at = f"ram/skills/{example}.json" if shipped_file(example, SKILLS) else None
    own = {"example": example, "set": FOLDERS[example], "skills_at": skills_at}
    return _as_text({**_profile_of_set(FOLDERS[example]), **own})


def profile_of(loaded: Loaded) -> str:
    """Return the client profile of whatever is loaded, as JSON.

    Text, because Gradio looks at every number of a nested value for files: 60 ms a visitor.
    """
    if loaded.example is not None:
        return example_profile(loaded.example)
    return _as_text(build_profile(loaded.sketch))


def _as_text(profile: dict[str, Any]) -> str:
    # As Gradio writes JSON: what is not finite becomes null, which every browser reads.
    return orjson.dumps(profile).decode()
