"""Scores of vertices: the range by which one unit moves them, on every path of the engine."""

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.query_neighbours import (
    CASES,
    CASES_IN_TURN,
    LOSSES,
    PUBLIC,
    D,
    as_units,
    entries,
    pairs,
    points,
)

from privopt.curator.audit import Audit
from privopt.data.units import Units
from privopt.engine.in_process import InProcessEngine
from privopt.ledger.amounts import Budget
from privopt.ledger.ledger import Ledger
from privopt.mechanisms.additive import Gaussian
from privopt.mechanisms.choice import ExponentialMechanism
from privopt.mechanisms.noise import NoiseSource
from privopt.precision import double_precision
from privopt.problems import losses
from privopt.queries.scores import VertexScores, clip_to_cube


@pytest.mark.at_once("own users")
@pytest.mark.parametrize(("loss", "layout"), CASES_IN_TURN, ids=[" ".join(case) for case in CASES])
@given(data=st.data(), at=points, clip=st.sampled_from([1e-6, 0.3, 50.0]))
def test_one_unit_moves_the_scores_by_a_range_of_at_most_their_sensitivity(loss, layout, data, at, clip):
    public = PUBLIC if loss in ("logistic", "squared") else PUBLIC[:2]
    pair = data.draw(pairs(5 if "users" in layout else 1, public))
    left, right = (as_units(owned, pair, layout) for owned in pair.sides())
    formula = LOSSES[loss]
    if formula.outputs > 1:
        at = np.outer(at, [1.0, -0.5, 0.0])
    query = VertexScores(loss=formula, at=at, clip=clip, offset=0.1 * at)
    assert query.shape(left.public) == (2 * at.size,)
    audit = Audit(
        left, right, Ledger(Budget(10.0, 1e-5), pair.relation, composition="zcdp"), noise=NoiseSource(1)
    )
    with double_precision():
        chosen = int(audit.release(query, ExponentialMechanism(0.1)))
        engine = InProcessEngine(left)
        fast, general = engine.clipped_sum(query), engine.general_sum(query)
    assert 0 <= chosen < 2 * at.size
    assert audit.moves[0][1] <= 1.0
    np.testing.assert_allclose(fast, general, rtol=1e-6, atol=1e-6 * clip)
    assert np.max(np.abs(fast), initial=0.0) <= left.public.n * clip * (1 + 1e-12)


def test_the_range_is_attained_and_an_understated_sensitivity_is_noticed():
    rows = np.array([[0.5, 0.5, 0.5]] * 4)
    other = rows.copy()
    other[0] *= -1.0
    sides = [Units.from_arrays(x, np.ones(4), row_bound=1.0) for x in (rows, other)]
    query = VertexScores(loss=losses.logistic, at=np.zeros(3), clip=0.2, offset=np.zeros(3))
    for understate, above in ((0.0, False), (0.002, True)):
        audit = Audit(
            *sides,
            Ledger(Budget(10.0, 1e-5), "replace-one", composition="zcdp"),
            noise=NoiseSource(1),
            understate=understate,
        )
        with double_precision():
            audit.release(query, ExponentialMechanism(0.1))
        assert audit.moves[0][1] == pytest.approx(1.0, rel=3e-3)
        assert (audit.moves[0][1] > 1.0) == above


def test_noise_of_another_norm_is_refused():
    units = Units.from_arrays(np.ones((4, 3)), np.ones(4), row_bound=1.0)
    audit = Audit(units, units, Ledger(Budget(10.0, 1e-5), "replace-one"), noise=NoiseSource(1))
    query = VertexScores(loss=losses.logistic, at=np.zeros(3), clip=0.2, offset=np.zeros(3))
    with double_precision(), pytest.raises(ValueError, match="range norm"):
        audit.release(query, Gaussian(5.0))


@given(st.lists(entries, min_size=D, max_size=D), st.sampled_from([0.0, 1e-9, 0.7, 1e12]))
def test_a_clipped_vector_is_in_the_cube_and_a_small_one_is_left_alone(vector, radius):
    with double_precision():
        clipped = np.asarray(jax.jit(clip_to_cube)(np.asarray(vector), radius))
    assert np.max(np.abs(clipped)) <= radius
    if np.max(np.abs(vector)) <= radius * (1 - 1e-8):
        np.testing.assert_allclose(clipped, vector, rtol=0, atol=1e-300)
