"""The client profile with what only the page needs: another implementation's lambda.

Sent once per analysis; numbers.js does the same arithmetic on it as Sketch.preview (a test compares
the two to 1e-12).
"""

from __future__ import annotations

from typing import Any

from ram_studio.algorithm.ladder import LADDER
from ram_studio.algorithm.meters.profile import client_profile
from ram_studio.algorithm.sketch import Sketch


def build_profile(sketch: Sketch) -> dict[str, Any]:
    """Return ``client_profile`` with mergekit's factors at each ladder point."""
    profile = client_profile(sketch)
    profile["mergekit"] = [sketch.dialects(k)["mergekit"].tolist() for k in range(len(LADDER))]
    return profile
