"""The shipped sketches are those of the shipped weights."""

import numpy as np
import pytest

from ram_studio.checkpoints.sketch_file import load_sketch
from ram_studio.demo.sketches import SETS, SKETCH_FILE, example_sketch
from ram_studio.resources import asset_path


@pytest.mark.parametrize("name", SETS)
def test_shipped_sketch_equals_a_new_analysis(name):
    shipped = load_sketch(asset_path(name, SKETCH_FILE))
    fresh = example_sketch(name)
    np.testing.assert_array_equal(shipped.counts.patterns, fresh.counts.patterns)
    np.testing.assert_array_equal(shipped.magnitudes, fresh.magnitudes)
    assert shipped.preview() == fresh.preview()
    assert shipped.fingerprints == fresh.fingerprints
    assert shipped.sources == fresh.sources
    assert shipped.warnings == fresh.warnings


def test_shipped_sketch_names_no_folder_of_the_machine_it_was_made_on():
    for name in SETS:
        sketch = load_sketch(asset_path(name, SKETCH_FILE))
        assert all(not source.startswith("/") for source in sketch.sources.values())
        assert not any("/" in warning for warning in sketch.warnings)
