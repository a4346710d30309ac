"""Slopes along vertices: the range by which one unit moves them, on every path of the engine."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.query_neighbours import CASES, LOSSES, PUBLIC, as_units, pairs, points
from tests.support.turns import but_later

from privopt.curator.audit import Audit
from privopt.data.units import Units
from privopt.engine.in_process import InProcessEngine
from privopt.ledger.amounts import Budget
from privopt.ledger.ledger import Ledger
from privopt.mechanisms.choice import ExponentialMechanism
from privopt.mechanisms.noise import NoiseSource
from privopt.precision import double_precision
from privopt.problems import losses
from privopt.problems.vertices import CrossPolytopeVertices, ListedVertices, SimplexVertices, reach
from privopt.queries.scores import VertexScores, VertexSlopeChanges, VertexSlopes, largest_entry

FAR_AWAY = ListedVertices(np.array([[1e6, 0.0, 1.0], [1e6, 2.0, -1.0], [1e6 + 1.0, 0.0, 0.0]]))
BOTH = [(VertexSlopes, *case) for case in CASES]
BOTH += [(VertexSlopeChanges, *CASES[case]) for case in (0, 3, 4, 6)]
BOTH_IN_TURN = but_later([BOTH[place] for place in (0, 3, 4, 7, 8, 9, 11)], BOTH)


def sets_of(size):
    """Polytopes of `size` coordinates."""
    rows = np.random.default_rng(size).normal(size=(5, size))
    return {
        "ball": CrossPolytopeVertices(size, 2.0),
        "simplex": SimplexVertices(size, 3.0),
        "listed": ListedVertices(rows),
    }


@pytest.mark.at_once("squared sparse users1")
@pytest.mark.parametrize(("kind", "loss", "layout"), BOTH_IN_TURN, ids=[" ".join(one[1:]) for one in BOTH])
@settings(max_examples=10)
@given(data=st.data(), at=points, clip=st.sampled_from([1e-6, 0.3, 50.0]))
def test_one_unit_moves_the_slopes_by_a_range_of_at_most_their_sensitivity(
    kind, loss, layout, data, at, clip
):
    public = PUBLIC if loss in ("logistic", "squared") else PUBLIC[:2]
    pair = data.draw(pairs(5 if "users" in layout else 1, public))
    left, right = (as_units(owned, pair, layout) for owned in pair.sides())
    formula = LOSSES[loss]
    if formula.outputs > 1:
        at = np.outer(at, [1.0, -0.5, 0.0])
    bodies = list(sets_of(at.size).values())
    body = bodies[(CASES.index((loss, layout)) + (kind is VertexSlopes)) % 3]
    fields = {"loss": formula, "at": at, "clip": clip, "offset": 0.1 * at, "offset_bound": 0.2}
    if kind is VertexSlopeChanges:
        fields["anchor"] = 0.5 * at + 0.1
    query = kind(vertices=body, **fields)
    assert query.shape(left.public) == (body.count,)
    audit = Audit(
        left, right, Ledger(Budget(10.0, 1e-5), pair.relation, composition="zcdp"), noise=NoiseSource(1)
    )
    with double_precision():
        audit.release(query, ExponentialMechanism(0.1))
        engine = InProcessEngine(left)
        fast, general = engine.clipped_sum(query), engine.general_sum(query)
        slopes = np.asarray(query.finish(np.asarray(fast) / left.public.n))
    assert audit.moves[0][1] <= 1.0
    if kind is VertexSlopes:  # a difference of huge numbers is rounded differently
        np.testing.assert_allclose(fast, general, rtol=1e-6, atol=1e-6 * clip)
    assert np.max(np.abs(slopes)) <= largest_entry(body, clip, 0.2) * (1 + 1e-12)


@pytest.mark.parametrize("body", [*sets_of(3).values(), FAR_AWAY], ids=["ball", "simplex", "listed", "far"])
def test_half_the_longest_distance_is_no_longer_than_the_reach(body):
    rows = np.array([body.average([i]) for i in range(body.count)])
    longest = np.max(np.sum(np.abs(rows[:, None] - rows[None, :]), axis=-1))
    assert 0.5 * longest <= reach(body) <= 1.5 * longest
    assert body.count > 1


def test_on_the_ball_they_are_the_scores_turned_round():
    rng = np.random.default_rng(0)
    units = Units.from_arrays(rng.normal(size=(20, 3)), np.sign(rng.normal(size=20)), row_bound=1.0)
    at, offset = np.array([0.3, -1.0, 0.2]), np.array([0.1, 0.0, -0.2])
    common = {"loss": losses.logistic, "at": at, "clip": 0.2, "offset": offset}
    with double_precision():
        private_mean = InProcessEngine(units).clipped_sum(VertexScores(**common)) / 20
        slopes = VertexSlopes(vertices=CrossPolytopeVertices(3, 7.0), offset_bound=1.0, **common)
        np.testing.assert_allclose(
            slopes.finish(private_mean), -VertexScores(**common).finish(private_mean), rtol=1e-14
        )
        sensitivity = slopes.sensitivity(units.public)
    assert float(sensitivity) == pytest.approx(2 * 0.2 / 20, rel=1e-12)


@pytest.mark.parametrize("name", ["ball", "simplex"])
def test_the_range_is_attained_and_an_understated_sensitivity_is_noticed(name):
    rows = np.array([[0.5, -0.5, 0.5]] * 4)
    other = rows.copy()
    other[0] *= -1.0
    sides = [Units.from_arrays(x, np.ones(4), row_bound=1.0) for x in (rows, other)]
    query = VertexSlopes(
        loss=losses.logistic, at=np.zeros(3), vertices=sets_of(3)[name], clip=0.2, offset=np.zeros(3),
        offset_bound=0.0,
    )  # fmt: skip
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


def test_an_offset_beyond_its_bound_is_cut_and_equal_points_change_nothing():
    body = CrossPolytopeVertices(3, 1.0)
    query = VertexSlopeChanges(
        loss=losses.squared, at=np.ones(3), anchor=np.ones(3), vertices=body, clip=0.2,
        offset=np.array([5.0, -5.0, 0.05]), offset_bound=0.1,
    )  # fmt: skip
    units = Units.from_arrays(np.eye(3), np.zeros(3), row_bound=1.0)
    with double_precision():
        private_sum = InProcessEngine(units).clipped_sum(query)
        np.testing.assert_array_equal(private_sum, 0.0)
        np.testing.assert_allclose(query.finish(private_sum)[:3], [0.05, -0.05, 0.025], rtol=1e-15)
        unbounded = replace(query, clip=np.inf)
        assert np.isinf(unbounded.sensitivity(units.public))
