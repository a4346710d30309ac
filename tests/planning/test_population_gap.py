"""What the data's stationarity says of the population, and the example in which it says nothing."""

import math

import numpy as np
import pytest

from privopt.planning.saddle import generalization_gap


def test_the_reference_value_comes_out():
    gap = generalization_gap(n=20_000, d=10, lipschitz=1.0, reach=10.0, smoothing=0.1, failure=0.05)
    assert gap == pytest.approx(0.124022, abs=2e-6)


def test_the_population_gap_shrinks_with_records_and_needs_smoothing():
    gaps = [
        generalization_gap(n=n, d=3, lipschitz=1.0, reach=2.0, smoothing=0.2, failure=0.05)
        for n in (100, 10_000, 10**6)
    ]
    assert gaps[0] > 5 * gaps[1] > 25 * gaps[2]
    nu = 0.2 / (1.5 * 1000)  # the width that the closed form takes, kappa_3 = 1.5
    closed = 1e-3 * (3.0 + math.sqrt(2.0 * (3 * math.log(1 + 4.0 / nu) + math.log(20.0))))
    assert 0.9 * closed < gaps[2] <= closed
    with pytest.raises(ValueError, match="without smoothing no such bound"):
        generalization_gap(n=100, d=3, lipschitz=1.0, reach=2.0, smoothing=0.0, failure=0.05)


def test_without_smoothing_the_data_may_look_flat_where_the_population_is_not():
    """The counterexample to the paper's Proposition 5.1: on some cell of every ball all records fall."""
    n, cells = 5, 4**5 * 5
    signs = np.where(np.random.default_rng(0).random((n, cells)) < 0.75, 1.0, -1.0)
    slopes = signs.mean(axis=0)  # of the data's mean loss, on the cells of one ball
    assert np.mean(slopes) == pytest.approx(0.5, abs=0.02)
    assert slopes.min() == -1.0
    assert slopes.max() == 1.0  # so 0 is in the convex hull of the gradients
