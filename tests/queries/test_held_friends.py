"""Concentration of held points, and means of those with many others nearby: reference values and worst neighbours."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.support.held_samples import neighbouring, reference_points

from privopt.curator.handles import Held
from privopt.precision import double_precision
from privopt.public import Public
from privopt.queries.users import (
    MARGIN,
    AcceptedMean,
    ConcentrationScore,
    FriendlyMean,
    FriendlyWeight,
    acceptance,
    accepted_shift,
    even,
    friendly_weights,
    neighbours,
)

PUBLIC = Public(n=40, d=3)
ONE = 1.0 + 2 * MARGIN  # points at distance 1 are within it


@pytest.fixture(autouse=True)
def x64():
    with double_precision():
        yield


def held(points, replaced=True):
    return Held(points=points, replaced=replaced)


def value(query, vectors):
    return np.asarray(query.value(jnp.asarray(vectors), jnp.ones(len(vectors), bool)))


def many(query, sides):
    run = jax.jit(jax.vmap(query.value))
    return [np.asarray(run(jnp.asarray(side), jnp.ones(side.shape[:2], bool))) for side in sides]


def test_reference_values():
    points = jnp.asarray(reference_points())
    counts = neighbours(points, 0.5)
    assert list(np.asarray(counts)[[0, 1, 2, 3, 4, 5, 6, 7, 38, 39]]) == [
        38,
        32,
        24,
        34,
        33,
        26,
        31,
        35,
        1,
        1,
    ]
    origin = jnp.zeros(3)
    score = ConcentrationScore(held=held(40), origin=origin, within=0.5)
    assert value(score, points) == pytest.approx(29.05, abs=1e-9)
    np.testing.assert_allclose(acceptance(points, 0.2)[:6], [1, 0.75, 0, 0.45, 0.6, 0], atol=1e-12)
    weight = FriendlyWeight(held=held(40), origin=origin, within=0.6)
    assert value(weight, points) == pytest.approx(32.769230769230774, rel=1e-12)
    expected = [0.8974358974, 0.8974358974, 0.6923076923, 0.8974358974]
    np.testing.assert_allclose(friendly_weights(points, 0.6)[:4], expected, atol=1e-10)
    mean = FriendlyMean(held=held(40), origin=origin, within=0.6, least_weight=8.0)
    np.testing.assert_allclose(value(mean, points), [0.0020629235, 0.0044634766, 0.0008168638], atol=1e-10)
    assert accepted_shift(1000, 1e-7) == pytest.approx(0.144, abs=1e-12)


@pytest.mark.at_once("16")
@pytest.mark.parametrize("points", [6, 7, 15, 16])
def test_no_point_moves_weight_or_weighted_mean_further_than_stated(points):
    both = neighbouring(np.random.default_rng(points), 3000, points, radius=1.0)
    sides, origin = (both[:, :-1], both[:, 1:]), jnp.zeros(2)
    weight = FriendlyWeight(held=held(points), origin=origin, within=ONE)
    mean = FriendlyMean(held=held(points), origin=origin, within=ONE, least_weight=1.0)
    weights, means = many(weight, sides), many(mean, sides)
    moved = np.abs(weights[0] - weights[1])
    assert moved.max() <= weight.sensitivity(PUBLIC)
    assert moved.max() > (2.99 if points < 10 else 2.0)
    large = np.maximum(*weights)
    ratio = np.linalg.norm(means[0] - means[1], axis=1) * large / mean.sensitivity(PUBLIC)
    assert ratio[large > 3.0].max() <= 1.0


def test_leaving_a_cluster_moves_the_scores_by_their_whole_sensitivity():
    together = np.zeros((40, 3))
    apart = together.copy()
    apart[4] = 9.0
    origin = jnp.zeros(3)
    for query in (
        FriendlyWeight(held=held(40), origin=origin, within=1.0),
        ConcentrationScore(held=held(40), origin=origin, within=1.0),
    ):
        assert value(query, together) - value(query, apart) == pytest.approx(
            query.sensitivity(PUBLIC), rel=1e-6
        )


@pytest.mark.at_once("16")
@pytest.mark.parametrize("points", [8, 9, 16, 17])
def test_no_point_moves_score_or_acceptance_further_than_stated(points):
    both = neighbouring(np.random.default_rng(points), 3000, points, radius=1.0)
    sides = (both[:, :-1], both[:, 1:])
    score = ConcentrationScore(held=held(points), origin=jnp.zeros(2), within=ONE)
    scores = many(score, sides)
    assert np.abs(scores[0] - scores[1]).max() <= score.sensitivity(PUBLIC)
    # Left is all but the last and right all but the first: position j of the one is position j - 1 of the other.
    count = even(points)
    chances = [
        np.asarray(jax.jit(jax.vmap(lambda p: acceptance(p, ONE)))(jnp.asarray(x)))
        for x in (both[:, :count], np.concatenate([both[:, count : count + 1], both[:, 1:count]], axis=1))
    ]
    assert np.abs(chances[0][:, 1:] - chances[1][:, 1:]).max() <= 6.0 / count + 1e-12


@pytest.mark.at_once("13")
@pytest.mark.parametrize("points", [12, 13, 30])
def test_no_point_moves_the_accepted_mean_further_than_stated_while_decisions_agree_enough(points):
    """Positions are kept, as the lottery is drawn for positions; a pair is held to the X that it really has."""
    rng = np.random.default_rng(points)
    both = neighbouring(rng, 2000, points, radius=1.0)
    left = both[:, :-1]
    right = left.copy()
    right[:, 0] = both[:, -1]
    lottery = jnp.asarray(rng.random(points))
    score = ConcentrationScore(held=held(points), origin=jnp.zeros(2), within=ONE)
    mean = AcceptedMean(held=held(points), origin=jnp.zeros(2), within=ONE, lottery=lottery, failure=1e-7)
    certified = np.maximum(*many(score, (left, right))) >= 2 * even(points) / 3
    assert certified.sum() > 20
    means = many(mean, (left, right))
    moved = np.linalg.norm(means[0] - means[1], axis=1)[certified]
    count = even(points)
    taken = [
        np.asarray(
            jax.jit(jax.vmap(lambda p: lottery[:count] < acceptance(p, ONE)))(jnp.asarray(x[:, :count]))
        )
        for x in (left, right)
    ]
    differing = (taken[0][:, 1:] != taken[1][:, 1:]).sum(axis=1)[certified]
    assert np.all(moved <= 6.0 * ONE * (differing + 2) / count)
    assert np.all(moved <= mean.sensitivity(PUBLIC))


@pytest.mark.at_once("6")
@pytest.mark.parametrize("points", [4, 6, 8, 10, 14, 20])
def test_where_one_side_passes_some_point_of_the_other_is_accepted_for_sure(points):
    """So the mean of the other side is one of points, not the zero of an empty set."""
    rng = np.random.default_rng(points)
    spread = rng.choice([0.4, 0.7, 1.0, 1.3], (20_000, 1, 1))
    left = spread * np.where(
        rng.random((20_000, 1, 1)) < 0.5,
        rng.normal(size=(20_000, points, 2)),
        rng.integers(-1, 2, (20_000, points, 2)),
    )
    right = left.copy()
    right[:, 0] = 100.0
    score = ConcentrationScore(held=held(points), origin=jnp.zeros(2), within=1.0)
    # At the edge: as few neighbours as pass.
    found = many(score, (left,))[0]
    passed = (found >= 2 * points / 3) & (found < 2 * points / 3 + 1)
    assert passed.sum() > 50
    chances = jax.jit(jax.vmap(lambda p: acceptance(p, 1.0)))(jnp.asarray(right[passed]))
    assert np.asarray(chances).max(axis=1).min() == 1.0


@pytest.mark.parametrize("points", [2, 3])
def test_the_accepted_mean_of_two_points_is_refused(points):
    """Both are accepted where they are close, and neither once one is replaced."""
    apart = np.array([[0.0, 0.0], [100.0, 0.0]])
    assert not np.asarray(acceptance(jnp.asarray(apart), 1.0)).any()
    mean = AcceptedMean(
        held=held(points), origin=jnp.zeros(2), within=ONE, lottery=jnp.zeros(points), failure=1e-7
    )
    with pytest.raises(ValueError, match="at least 4 points"):
        mean.sensitivity(PUBLIC)


def test_an_odd_number_of_points_needs_one_left_out():
    """E7: with K odd and h > K / 2, accepted points of the two data sets need not share a neighbour."""
    # Two clusters of 3 at distance 1 around nothing in common, and one point that changes sides: K = 7, h = 4 > 3.5.
    left = np.array([0.0, 0.0, 0.0, 100.0, 100.0, 100.0, 0.0])[:, None]
    right = left.copy()
    right[6] = 100.0

    def naive(points):
        count = len(points)
        near = np.asarray(neighbours(jnp.asarray(points), 2.0))
        return np.clip((near - count / 2) / (count / 6), 0.0, 1.0)

    accepted = [side[naive(side) > 0, 0] for side in (left, right)]
    assert np.abs(accepted[0].max() - accepted[1].min()) == 100.0  # not within 4 tau of each other
    ours = [np.asarray(acceptance(jnp.asarray(side[: even(7)]), 1.0)) for side in (left, right)]
    assert not np.any(ours[0] > 0)
    assert not np.any(ours[1] > 0)


@pytest.mark.parametrize("kind", [FriendlyWeight, ConcentrationScore])
def test_points_that_come_and_go_are_refused(kind):
    with pytest.raises(ValueError, match="use replace-one"):
        kind(held=held(5, replaced=False), origin=jnp.zeros(2), within=1.0).sensitivity(PUBLIC)


def test_distances_hold_for_points_far_from_the_origin():
    """A cluster at 1e9 r, most of which is moved to one place, and huge coordinates: nothing is not finite."""
    vectors = np.full((30, 2), 1e9)
    vectors[3] = 1e300
    mean = FriendlyMean(held=held(30), origin=jnp.zeros(2), within=1.0, least_weight=4.0)
    assert np.all(np.isfinite(value(mean, vectors)))
    weight = FriendlyWeight(held=held(30), origin=jnp.zeros(2), within=1.0)
    assert value(weight, vectors) <= 30.0
