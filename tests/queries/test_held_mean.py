"""Clipped means and counts of held points."""

import jax.numpy as jnp
import numpy as np
import pytest

from privopt.curator.handles import Held
from privopt.precision import double_precision
from privopt.public import Public
from privopt.queries.scores import HeldCount
from privopt.queries.users import HeldMean

PUBLIC = Public(n=6, d=3)


@pytest.fixture(autouse=True)
def x64():
    with double_precision():
        yield


def mean(centre, radius=1.0, points=6, replaced=True):
    return HeldMean(
        held=Held(points=points, replaced=replaced), centre=jnp.asarray(centre, jnp.float64), radius=radius
    )


def test_the_mean_is_that_of_points_clipped_around_the_centre():
    rng = np.random.default_rng(0)
    points, centre = 3.0 * rng.normal(size=(6, 3)), np.array([1.0, -2.0, 0.5])
    present = np.array([True, True, False, True, True, True])
    moved = points - centre
    clipped = moved * np.minimum(1.0, 2.0 / np.linalg.norm(moved, axis=1))[:, None]
    expected = clipped[present].sum(axis=0) / 6
    found = mean(centre, 2.0).value(jnp.asarray(points), jnp.asarray(present))
    np.testing.assert_allclose(found, expected, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("replaced", [True, False])
@pytest.mark.parametrize("value", [0.0, 1e30, -1e300, np.nan])
def test_no_point_moves_the_mean_further_than_stated(replaced, value):
    """A centre far from 0 does not count either: it is added after the release."""
    points = np.full((6, 3), [50.0, 0.0, 0.0])
    other, present = points.copy(), np.ones(6, bool)
    other[2] = value
    fewer = present.copy()
    fewer[2] = replaced
    if not replaced:
        other[2] = 0.0
    asked = mean([49.0, 0.0, 0.0], replaced=replaced)
    ends = [
        np.asarray(asked.value(jnp.asarray(x), jnp.asarray(m)))
        for x, m in ((points, present), (other, fewer))
    ]
    assert np.linalg.norm(ends[0] - ends[1]) <= asked.sensitivity(PUBLIC)


def test_groups_are_priced_as_replaced_whatever_the_relation():
    far = mean([0.0, 0.0, 0.0], replaced=True)
    left, right = np.zeros((6, 3)), np.zeros((6, 3))
    left[0], right[0] = [9.0, 0.0, 0.0], [-9.0, 0.0, 0.0]
    ends = [np.asarray(far.value(jnp.asarray(x), jnp.ones(6, bool))) for x in (left, right)]
    moved = np.linalg.norm(ends[0] - ends[1])
    assert 0.999 * far.sensitivity(PUBLIC) < moved <= far.sensitivity(PUBLIC)
    assert moved > 1.9 * mean([0.0, 0.0, 0.0], replaced=False).sensitivity(PUBLIC)


def test_a_count_moves_by_one():
    held = Held(points=6, replaced=False)
    count = HeldCount(held=held, centre=jnp.zeros(1), radius=1.0)
    points = jnp.asarray([[0.0], [1.0], [-1.0], [1.0000001], [np.inf], [0.5]])
    present = jnp.ones(6, bool)
    assert count.value(points, present) == 4
    assert count.value(points, present.at[0].set(False)) == 3
    assert count.sensitivity(PUBLIC) == 1.0
