"""For every query: one unit moves it by at most its sensitivity, whatever its records hold."""

import math
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.query_neighbours import (
    CASES,
    LOSSES,
    PUBLIC,
    D,
    Pair,
    as_units,
    entries,
    pairs,
    points,
)

from privopt.curator.audit import Audit
from privopt.data.units import Units
from privopt.engine.in_process import InProcessEngine
from privopt.ledger.amounts import Budget
from privopt.ledger.events import EveryUnit, FixedSize, Poisson
from privopt.ledger.ledger import Ledger
from privopt.mechanisms.additive import Gaussian
from privopt.mechanisms.noise import NoiseSource
from privopt.precision import double_precision
from privopt.problems import losses
from privopt.public import Public
from privopt.queries.base import clip_to_ball, query
from privopt.queries.slopes import ClippedGradient, ClippedGradientDifference, GradientNorm

QUERIES = {
    "gradient": lambda loss, at, anchor, clip: ClippedGradient(loss=loss, at=at, clip=clip),
    "norm": lambda loss, at, anchor, clip: GradientNorm(loss=loss, at=at, clip=clip),
    "difference": lambda loss, at, anchor, clip: ClippedGradientDifference(
        loss=loss, at=at, anchor=anchor, slope_clip=clip, gradient_clip=1.0
    ),
}


@pytest.mark.at_once("gradient-huber dense", "gradient-softmax dense", "norm-logistic dense")
@pytest.mark.parametrize(("loss", "layout"), CASES, ids=[" ".join(case) for case in CASES])
@pytest.mark.parametrize("kind", QUERIES)
@given(data=st.data(), at=points, anchor=points, clip=st.sampled_from([1e-6, 0.3, 50.0]))
def test_one_unit_moves_a_query_by_at_most_its_sensitivity(kind, loss, layout, data, at, anchor, clip):
    # A compiled path compiles once for each public description: two of them are enough there.
    public = PUBLIC if loss in ("logistic", "squared", "huber") else PUBLIC[:2]
    pair = data.draw(pairs(5 if "users" in layout else 1, public))
    left, right = (as_units(owned, pair, layout) for owned in pair.sides())
    formula = LOSSES[loss]
    if formula.outputs > 1:
        at, anchor = (np.outer(point, [1.0, -0.5, 0.0]) for point in (at, anchor))
    query = QUERIES[kind](formula, at, anchor, clip)
    ledger = Ledger(Budget(10.0, 1e-5), pair.relation, composition="gaussian")
    audit = Audit(left, right, ledger, noise=NoiseSource(1))
    with double_precision():
        released = audit.release(query, Gaussian(5.0))
    assert np.shape(released) == query.shape(left.public)
    assert np.all(np.isfinite(released))
    assert audit.moves[0][1] <= 1.0


@given(st.lists(entries, min_size=4, max_size=4), st.sampled_from([0.0, 1e-9, 0.7, 1e12]))
def test_a_clipped_vector_is_in_the_ball_and_a_short_one_is_left_alone(vector, radius):
    with double_precision():
        clipped = np.asarray(jax.jit(clip_to_ball)(np.asarray(vector), radius))
    assert math.hypot(*clipped) <= radius  # without overflow and underflow
    if math.hypot(*vector) <= radius * (1 - 1e-8):
        np.testing.assert_allclose(clipped, vector, rtol=0, atol=1e-300)  # subnormal numbers may be lost


def test_at_the_anchor_a_difference_is_zero_and_free_of_noise():
    query = ClippedGradientDifference(loss=losses.logistic, at=np.ones(D), anchor=np.ones(D), slope_clip=1.0)
    pair = Pair([[([1.0, 0.0, 0.0], 1.0)]] * 6, 0, [], "replace-one")
    units = as_units(pair.units, pair, "dense")
    audit = Audit(units, units, Ledger(Budget(10.0, 1e-5), "replace-one"), noise=NoiseSource(1))
    with double_precision():
        assert not np.any(audit.release(query, Gaussian(5.0)))
    assert audit.transcript[0].scale == 0.0


@pytest.mark.parametrize("kind", ["gradient", "norm"])
@pytest.mark.parametrize(
    ("relation", "allowed"), [("replace-one", 2 * 0.5), ("add-or-remove-one", 0.5)], ids=["replace", "add"]
)
def test_a_bounded_loss_moves_by_what_it_allows_however_large_the_clip(kind, relation, allowed):
    row = np.array([0.9, 0.0, 1.2])  # on the row bound of 1.5
    pair = Pair([[(row, 10.0)]] * 6, 2, [(row, -10.0)], relation)
    if relation == "add-or-remove-one":
        pair = Pair(pair.units, 2, [], relation)
    left, right = (as_units(owned, pair, "dense") for owned in pair.sides())
    audit = Audit(
        left, right, Ledger(Budget(10.0, 1e-5), relation, composition="gaussian"), noise=NoiseSource(1)
    )
    for clip in (5.0, math.inf):
        query = QUERIES[kind](losses.huber(0.5), np.zeros(D), None, clip)
        with double_precision():
            assert float(query.sensitivity(left.public)) == pytest.approx(allowed * 1.5 / 6, rel=1e-6)
    with double_precision():
        audit.release(QUERIES[kind](losses.huber(0.5), np.zeros(D), None, 5.0), Gaussian(5.0))
    reached = audit.moves[0][1]
    assert reached <= 1.0
    if kind == "gradient" or relation == "add-or-remove-one":
        assert reached > 0.999


@pytest.mark.parametrize("loss", ["squared", "own"])
def test_a_loss_without_bounds_moves_by_its_clip(loss):
    public = as_units([[([1.0, 0.0, 0.0], 1.0)]] * 6, Pair([[]] * 6, 0, [], "replace-one"), "dense").public
    query = QUERIES["gradient"](LOSSES[loss], np.zeros(D), None, 0.7)
    assert float(query.sensitivity(public)) == pytest.approx(2 * 0.7 / 6)


@pytest.mark.parametrize("sampling", [Poisson(0.5), FixedSize(3, 6)], ids=["poisson", "fixed size"])
def test_a_sample_is_priced_for_opposite_vectors_as_long_as_the_clip(sampling):
    public = as_units([[([1.0, 0.0, 0.0], 1.0)]] * 6, Pair([[]] * 6, 0, [], "replace-one"), "dense").public
    query = QUERIES["gradient"](losses.huber(0.5), np.zeros(D), None, 5.0)
    assert float(query.sensitivity(public, sampling)) == pytest.approx(2 * 5.0 / 3)
    assert float(query.sensitivity(public, EveryUnit())) == pytest.approx(2 * 0.5 * 1.5 / 6, rel=1e-6)


@pytest.mark.parametrize("relation", ["replace-one", "add-or-remove-one"])
def test_at_zero_a_logistic_gradient_moves_by_half_of_what_it_can_elsewhere(relation):
    row = np.array([0.9, 0.0, 1.2])  # on the row bound of 1.5
    instead = [(row, -1e9)] if relation == "replace-one" else []  # a label far outside counts as -1
    pair = Pair([[(row, 1.0)]] * 6, 2, instead, relation)
    left, right = (as_units(owned, pair, "dense") for owned in pair.sides())
    audit = Audit(
        left, right, Ledger(Budget(10.0, 1e-5), relation, composition="gaussian"), noise=NoiseSource(1)
    )
    query = QUERIES["gradient"](losses.logistic, np.zeros(D), None, 1.5)
    with double_precision():
        by_clip = left.public.relation.factor * 1.5 / 6
        assert float(query.sensitivity(left.public)) == pytest.approx(by_clip / 2, rel=1e-4)
        audit.release(query, Gaussian(5.0))
    assert 0.999 < audit.moves[0][1] <= 1.0


def test_the_bounds_of_a_users_own_loss_are_not_trusted():
    """A subclass inherits the bounds of the loss that it changes."""

    class ThriceAsSteep(losses.Logistic):
        @property
        def facts(self):
            return replace(super().facts, lipschitz=3.0, curvature=0.75, kernel_code=None)

        def slope(self, prediction, target):
            return 3.0 * super().slope(prediction, target)

    sizes = Public(n=2, d=1)
    with double_precision():
        own = ClippedGradient(loss=ThriceAsSteep(), at=jnp.zeros(1), clip=3.0)
        assert float(own.sensitivity(sizes)) == pytest.approx(3.0)
        ours = ClippedGradient(loss=losses.logistic, at=jnp.zeros(1), clip=3.0)
        assert float(ours.sensitivity(sizes)) == pytest.approx(0.5, rel=2e-3)


@pytest.mark.parametrize("groups", [None, np.arange(60) // 3])
def test_a_balanced_clip_shortens_both_labels_alike_on_every_path(groups):
    rng = np.random.default_rng(3)
    rows, at = rng.normal(size=(60, 4)), np.array([1.0, -2.0, 0.5, 3.0])
    labels = np.where(rng.uniform(size=60) < 0.5, 1.0, -1.0)
    clip = 0.3
    units = Units.from_arrays(rows, labels, row_bound=10.0, groups=groups, storage="float64")
    with double_precision():
        query = ClippedGradient(loss=losses.logistic, at=jnp.asarray(at), clip=clip, balanced=True)
        engine = InProcessEngine(units)
        compiled, general = engine.clipped_sum(query), engine.general_sum(query)
    np.testing.assert_allclose(compiled, general, rtol=1e-9, atol=1e-12)
    if groups is None:
        margins, lengths = labels * (rows @ at), np.linalg.norm(rows, axis=1)
        steepest = 1.0 / (1.0 + np.exp(-np.abs(margins)))
        factors = np.minimum(1.0, clip / (lengths * steepest))
        slopes = -labels / (1.0 + np.exp(margins))
        np.testing.assert_allclose(compiled, rows.T @ (factors * slopes), rtol=1e-7)


def test_a_balanced_clip_needs_a_loss_that_has_one():
    own = ClippedGradient(loss=losses.huber(0.5), at=np.zeros(2), clip=1.0, balanced=True)
    with pytest.raises(ValueError, match="no balanced clip"):
        own.row_form(Public(n=5, d=2))


def test_what_is_compiled_for_one_query_never_serves_another_of_the_same_fields():
    """A subclass that clips otherwise has the same leaves; JAX looks up compiled code by structure."""

    @query
    class Longer(ClippedGradient):
        def clip_unit(self, private_vector):
            return 2.0 * super().clip_unit(private_vector)

    fields = {"loss": losses.logistic, "at": np.zeros(3), "clip": 1.0}
    kinds = [jax.tree.structure(kind(**fields)) for kind in (ClippedGradient, GradientNorm, Longer)]
    for position, kind in enumerate(kinds):
        assert kind == jax.tree.structure(jax.tree.unflatten(kind, [0.0] * kind.num_leaves))
        assert all(kind != other for other in kinds[position + 1 :])
