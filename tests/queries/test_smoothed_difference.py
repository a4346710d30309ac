"""Differences of smoothed gradients: right on average, and one unit moves them by at most their sensitivity."""

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.query_neighbours import LOSSES, PUBLIC, as_units, pairs, points

from privopt.curator.audit import Audit
from privopt.curator.local import LocalCurator
from privopt.data.units import Units
from privopt.ledger.amounts import Budget
from privopt.ledger.ledger import Ledger
from privopt.ledger.payer import Unlimited
from privopt.mechanisms.additive import Gaussian
from privopt.mechanisms.noise import NoiseSource
from privopt.precision import double_precision
from privopt.problems import losses
from privopt.problems.ball import first_coordinate_cdf, moved_share
from privopt.queries.slopes import ClippedGradientDifference
from privopt.queries.smoothed import (
    JitteredGradient,
    LuneDifference,
    SmoothedDifference,
    SmoothedGradient,
    TranslatedDifference,
    moved_ball_share,
)


@pytest.fixture(autouse=True)
def precise():
    with double_precision():
        yield


def audited(left, right, relation, query):
    """How far the query moves between neighbours, over its sensitivity; and what is released."""
    ledger = Ledger(Budget(10.0, 1e-5), relation, composition="gaussian")
    audit = Audit(left, right, ledger, noise=NoiseSource(1))
    released = audit.release(query, Gaussian(5.0))
    return audit.moves[0][1], np.asarray(released)


@pytest.mark.audit  # two compilations a case; the contract tests try hostile rows on one
@pytest.mark.parametrize(("loss", "layout"), [("own", "users"), ("softmax", "dense")])
@pytest.mark.parametrize("kind", ["lune", "translation"])
@given(data=st.data(), at=points, anchor=points, clip=st.sampled_from([0.3, 1e-6, 50.0, 0.0]))
def test_one_unit_moves_it_by_at_most_its_sensitivity(kind, loss, layout, data, at, anchor, clip):
    pair = data.draw(pairs(5 if "users" in layout else 1, PUBLIC[:2]))
    left, right = (as_units(owned, pair, layout) for owned in pair.sides())
    formula = LOSSES[loss]
    if formula.outputs > 1:
        at, anchor = (np.outer(point, [1.0, -0.5, 0.0]) for point in (at, anchor))
    common = {"loss": formula, "at": at, "anchor": anchor, "smoothing": 0.5, "clip": clip}
    query = (
        LuneDifference(**common)
        if kind == "lune"
        else TranslatedDifference(**common, slope_clip=0.2, draws=2)
    )
    moved, released = audited(left, right, pair.relation, query)
    assert released.shape == at.shape
    assert np.all(np.isfinite(released))
    assert moved <= 1.0


def kink(params, features, target):
    """Its gradient is the row on one side of a plane and minus the row on the other."""
    return jnp.abs(features @ params - target)


KINK = losses.RecordLoss(kink)
AT, ANCHOR, ROW = np.array([0.1, 0.0, -0.2]), np.array([0.13, -0.04, -0.2]), np.array([0.6, 0.0, 0.8])


MANY = 10_000


def alike(units, relation="replace-one"):
    return Units.from_arrays(
        np.tile(ROW, (units, 1)), np.full(units, -0.15), row_bound=1.0, relation=relation, n=units
    )


def released_from(units, query):
    curator = LocalCurator(units, Unlimited(units.public.relation), noise=NoiseSource(7))
    return np.asarray(curator.release(query, Gaussian(0.0)))


def exact_difference(smoothing):
    """Of the kink: slope E sign(a . (z + r u) - b) = 2 P(T > (b - a . z) / r) - 1, in T a coordinate of the ball."""
    cdf = [
        float(first_coordinate_cdf((-0.15 - ROW @ z) / smoothing / np.linalg.norm(ROW), 3))
        for z in (AT, ANCHOR)
    ]
    return 2.0 * (cdf[1] - cdf[0]) * ROW


@pytest.mark.audit
@pytest.mark.parametrize("kind", ["lune", "translation"])
def test_it_is_right_on_average(kind):
    """10 000 units with the same record: their mean is the difference of the exactly smoothed gradients."""
    common = {"loss": KINK, "at": AT, "anchor": ANCHOR, "smoothing": 0.25, "clip": 2.0}
    query = (
        LuneDifference(**common)
        if kind == "lune"
        else TranslatedDifference(**common, slope_clip=1e3, draws=1)
    )
    found, expected = released_from(alike(MANY), query), exact_difference(0.25)
    assert np.linalg.norm(expected) > 0.05
    share = float(moved_share(np.linalg.norm(AT - ANCHOR), 0.25, 3))
    deviation = 2.0 * share if kind == "lune" else 2.0 * np.sqrt(2 * share)
    assert np.linalg.norm(found - expected) <= 4.0 * deviation / np.sqrt(MANY)


def test_the_share_of_a_ball_is_the_one_of_the_planner():
    for d in (1, 3, 10):
        for distance in (1e-12, 0.1, 0.9, 3.0):
            far = jnp.zeros(d).at[0].set(distance)
            found = float(moved_ball_share(far, jnp.zeros(d), 0.5))
            np.testing.assert_allclose(found, moved_share(distance, 0.5, d), rtol=1e-10)


@pytest.mark.audit
@pytest.mark.parametrize("kind", ["lune", pytest.param("translation", marks=pytest.mark.audit)])
def test_at_equal_points_it_is_exactly_nothing(kind):
    common = {"loss": KINK, "at": AT, "anchor": AT, "smoothing": 0.25, "clip": float("inf")}
    query = (
        LuneDifference(**common)
        if kind == "lune"
        else TranslatedDifference(**common, slope_clip=float("inf"))
    )
    assert float(query.radius()) == 0.0
    np.testing.assert_array_equal(released_from(alike(MANY), query), np.zeros(3))


@pytest.mark.audit
def test_gradients_at_random_points_are_right_on_average():
    query = JitteredGradient(loss=KINK, at=AT, smoothing=0.25, clip=2.0)
    position = (-0.15 - ROW @ AT) / 0.25
    expected = (1.0 - 2.0 * float(first_coordinate_cdf(position, 3))) * ROW
    assert 0.1 < np.linalg.norm(expected) < 0.9
    assert np.linalg.norm(released_from(alike(MANY), query) - expected) <= 4.0 / np.sqrt(MANY)


def test_closed_differences_are_those_of_closed_gradients():
    """Of the absolute loss; the clip is that of the share of the ball, and one by distance if there is one."""
    units = Units.from_arrays(
        np.random.default_rng(0).normal(size=(50, 3)) / 2, np.full(50, 0.1), row_bound=1.5, storage="float64"
    )
    common = {"loss": losses.absolute(0.0), "smoothing": 0.25, "clip": 10.0}
    gradients = [released_from(units, SmoothedGradient(at=z, **common)) for z in (AT, ANCHOR)]
    query = SmoothedDifference(at=AT, anchor=ANCHOR, **common)
    found = released_from(units, query)
    np.testing.assert_allclose(found, gradients[0] - gradients[1], atol=1e-12)
    share = moved_share(np.linalg.norm(AT - ANCHOR), 0.25, 3)
    np.testing.assert_allclose(query.radius(), 20.0 * share, rtol=1e-10)
    short = SmoothedDifference(at=AT, anchor=ANCHOR, slope_clip=1e-3, **common)
    np.testing.assert_allclose(short.radius(), 5e-5, rtol=1e-10)
    assert np.linalg.norm(released_from(units, short)) <= 5e-5


def along(params, features, target):
    """One slope on one side of a plane through the pairs of points, another on the other."""
    del target
    return jnp.abs(params[0]) * features[0]


@pytest.mark.audit
@pytest.mark.parametrize("relation", ["replace-one", "add-or-remove-one"])
def test_a_pair_attains_the_sensitivity_of_lunes(relation):
    """Far apart all of a ball is moved, and a kink between the centres gives two opposite gradients of norm C."""
    query = LuneDifference(
        loss=losses.RecordLoss(along),
        at=np.array([1.0, 0.0, 0.0]),
        anchor=np.array([-1.0, 0.0, 0.0]),
        smoothing=0.5,
        clip=0.4,
    )
    rows = np.tile([1.0, 0.0, 0.0], (6, 1))
    other = np.concatenate([-rows[:1], rows[1:]]) if relation == "replace-one" else rows[1:]
    left, right = (
        Units.from_arrays(x, np.zeros(len(x)), row_bound=1.0, relation=relation, n=6) for x in (rows, other)
    )
    moved, _ = audited(left, right, relation, query)
    assert 1.0 - 1e-8 < moved <= 1.0


def beyond(params, features, target):
    """Its gradient is the row at points above the target, and nothing below."""
    return features[0] * jnp.where(params[0] > target, params[0], 0.0)


@pytest.mark.later("lune")
@pytest.mark.parametrize(
    "make",
    [
        lambda **common: LuneDifference(smoothing=0.0, **common),
        pytest.param(lambda **common: LuneDifference(smoothing=1e-160, **common), marks=pytest.mark.audit),
        pytest.param(
            lambda **common: TranslatedDifference(smoothing=0.0, slope_clip=np.inf, **common),
            marks=pytest.mark.audit,
        ),
        lambda clip, **common: ClippedGradientDifference(gradient_clip=clip, slope_clip=np.inf, **common),
    ],
    ids=["lune", "small lune", "translation", "difference"],
)
def test_a_distance_whose_square_vanishes_is_none_in_the_clip_as_in_the_sensitivity(make):
    """The root of a square of one number is its size in a compiled program, where nothing vanishes."""
    query = make(loss=losses.RecordLoss(beyond), at=np.array([1e-160]), anchor=np.zeros(1), clip=1.0)
    left, right = (
        Units.from_arrays(row * np.ones((6, 1)), np.full(6, 5e-161), row_bound=1.0, storage="float64")
        for row in (1.0, -1.0)
    )
    assert released_from(left, query) == released_from(right, query)
