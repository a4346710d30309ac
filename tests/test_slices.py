"""The documentation's picture of a raw and a smoothed objective."""

import numpy as np
from benchmarks import slices


def test_averages_over_balls_have_no_jumps(tmp_path):
    raw, averaged = (slices.slice_of(radius, points=81, draws=400) for radius in (0.0, 1.5))
    assert np.max(np.abs(np.diff(raw))) > 4 * np.max(np.abs(np.diff(averaged)))
    slices.draw(tmp_path / "slice.svg", points=9, draws=10)
    assert "averaged over balls of radius 1.5" in (tmp_path / "slice.svg").read_text(encoding="utf-8")
    assert slices.PICTURE.is_file()
