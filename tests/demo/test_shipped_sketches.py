"""The shipped sketches are those of the shipped weights."""

import numpy as np
import pandas as pd
import pytest

from ram_studio.checkpoints.record.sketch_file import load_sketch
from ram_studio.demo.sketches import SETS, SKETCH_FILE, example_sketch
from ram_studio.resources import asset_path


@pytest.mark.parametrize("name", SETS)
def test_shipped_sketch_equals_a_new_analysis(name):
    shipped = load_sketch(asset_path(name, SKETCH_FILE))
    fresh = example_sketch(name)
    np.testing.assert_array_equal(shipped.counts.patterns, fresh.counts.patterns)
    np.testing.assert_array_equal(shipped.magnitudes, fresh.magnitudes)
    # Sums of |tau| are exact; dot products are added in the vector width of the processor.
    previews = [pd.json_normalize(sketch.preview()) for sketch in (shipped, fresh)]
    pd.testing.assert_frame_equal(*previews, rtol=1e-12)
    for name in ("by_set", "pair_counts", "pair_sums", "conflicts", "cancelled"):
        expected = getattr(fresh.relations, name)
        np.testing.assert_array_equal(getattr(shipped.relations, name), expected)
    np.testing.assert_allclose(shipped.relations.dots, fresh.relations.dots, rtol=1e-9, atol=1e-12)
    np.testing.assert_array_equal(shipped.steps.exact, fresh.steps.exact)
    np.testing.assert_array_equal(shipped.steps.layer_exact, fresh.steps.layer_exact)
    np.testing.assert_allclose(shipped.steps.loose_sums, fresh.steps.loose_sums, rtol=1e-9)
    assert shipped.fingerprints == fresh.fingerprints
    assert shipped.sources == fresh.sources
    assert shipped.warnings == fresh.warnings
    # It names no folder of the machine it was made on.
    assert all(not source.startswith("/") for source in shipped.sources.values())
    assert not any("/" in warning for warning in shipped.warnings)
