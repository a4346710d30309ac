"""Whatever a stranger answers, a unit moves a statistic by at most the sensitivity; honest answers stay as they are."""

import jax.numpy as jnp
import numpy as np
import pytest
from tests.contracts.queries import EVERY_QUERY, FIRST_OF_ITS_KIND, ROW_BOUND, D
from tests.support.turns import but_later

from privopt.curator.audit import distance
from privopt.data.units import Units
from privopt.engine.general_path import contribution_shape
from privopt.engine.reference import ReferenceEngine
from privopt.ledger.events import EveryUnit, Poisson
from privopt.precision import double_precision
from privopt.problems import losses
from privopt.public import Public, Relation
from privopt.queries.base import MeanQuery
from privopt.queries.moments import SecondMoment
from privopt.queries.received import RECEIVABLE, received, received_sensitivity, require_receivable
from privopt.queries.slopes import ClippedGradient

RECEIVED = {name: query for name, query in EVERY_QUERY.items() if type(query) in RECEIVABLE.values()}
UNITS = 6


def public_of(relation):
    return Public(
        n=UNITS,
        d=D,
        relation=relation,
        row_bound=ROW_BOUND,
        unit="user",
        records_per_unit=3,
        typical_records=1.0,
    )


def hostile_vectors(shape, rng):
    """Directions of every length, each with its opposite, and what is no number."""
    vectors = [np.zeros(shape), np.full(shape, np.nan), np.full(shape, np.inf), np.full(shape, 5e-324)]
    for size in (1e-200, 1e-9, 0.3, 1.0, 30.0, 1e30, 1e300):
        direction = rng.normal(size=shape)
        axis = np.zeros(shape)
        axis.flat[0] = 1.0
        vectors += [size * direction, -size * direction, size * axis, -size * axis, np.full(shape, -size)]
    vectors.append(np.where(np.arange(int(np.prod(shape))).reshape(shape) == 0, np.nan, 1e9))
    return vectors


def statistic(query, public, vectors):
    """What the curator would noise, from what everybody answered."""
    total = np.sum(received(query, public, np.stack(vectors)), axis=0)
    return np.asarray(query.finish(jnp.asarray(total / public.n)))


def test_every_class_that_is_received_is_among_the_queries_tried_here():
    assert {type(query) for query in RECEIVED.values()} == set(RECEIVABLE.values())


@pytest.mark.later(
    "average of gradients, own loss-Relation.REPLACE_ONE",
    "average of gradients, softmax-Relation.REPLACE_ONE",
    "average of gradients-Relation.REPLACE_ONE",
    "difference, clipped gradients-Relation.REPLACE_ONE",
    "difference, no kernel-Relation.REPLACE_ONE",
    "difference, own loss-Relation.REPLACE_ONE",
    "difference, softmax-Relation.REPLACE_ONE",
    "difference-Relation.REPLACE_ONE",
    "gradient and count, mapped-Relation.REPLACE_ONE",
    "gradient and count, no kernel-Relation.REPLACE_ONE",
    "gradient and count, own loss-Relation.REPLACE_ONE",
    "gradient and count, softmax-Relation.REPLACE_ONE",
    "gradient and count-Relation.REPLACE_ONE",
    "gradient norm-Relation.REPLACE_ONE",
    "gradient, capped, not compiled-Relation.REPLACE_ONE",
    "gradient, logistic, balanced-Relation.REPLACE_ONE",
    "gradient, logistic-Relation.ADD_OR_REMOVE_ONE",
    "gradient, own loss-Relation.REPLACE_ONE",
    "gradient, poisson-Relation.REPLACE_ONE",
    "gradient, ramp-Relation.REPLACE_ONE",
    "gradient, softmax-Relation.REPLACE_ONE",
    "gradient, squared, huge clip-Relation.REPLACE_ONE",
    "gradient, squared, tiny clip-Relation.REPLACE_ONE",
    "gradient, squared-Relation.REPLACE_ONE",
    "local pass, l1, reach-Relation.REPLACE_ONE",
    "local pass, no kernel-Relation.REPLACE_ONE",
    "local pass, own loss-Relation.REPLACE_ONE",
    "local pass, softmax-Relation.REPLACE_ONE",
    "local pass, squared, average, ball-Relation.REPLACE_ONE",
    "local pass, squared, ridge, far-Relation.REPLACE_ONE",
    "local pass-Relation.REPLACE_ONE",
    "magnitudes of targets, small-Relation.REPLACE_ONE",
    "magnitudes of targets-Relation.REPLACE_ONE",
    "mixture, no kernel-Relation.REPLACE_ONE",
    "mixture, own loss-Relation.REPLACE_ONE",
    "mixture, softmax-Relation.REPLACE_ONE",
    "mixture-Relation.REPLACE_ONE",
    "second moment, clipped-Relation.REPLACE_ONE",
    "second moment-Relation.REPLACE_ONE",
    "top curvature-Relation.REPLACE_ONE",
    "total weight-Relation.REPLACE_ONE",
    "vertex scores, no kernel-Relation.REPLACE_ONE",
    "vertex scores, own loss-Relation.REPLACE_ONE",
    "vertex scores, softmax-Relation.REPLACE_ONE",
    "vertex scores-Relation.REPLACE_ONE",
)
@pytest.mark.parametrize("relation", Relation)
@pytest.mark.parametrize("name", RECEIVED)
def test_no_answer_moves_a_statistic_by_more_than_the_sensitivity(name, relation):
    query, public, rng = RECEIVED[name], public_of(relation), np.random.default_rng(1)
    with double_precision():
        shape = contribution_shape(query, public)
        most = float(received_sensitivity(query, public, EveryUnit()))
        others = [rng.normal(size=shape) for _ in range(UNITS - 1)]
        answers = hostile_vectors(shape, rng)
        values = [statistic(query, public, [*others, one]) for one in answers]
        absent = statistic(query, public, [*others, np.zeros(shape)])
    lefts = values if relation is Relation.REPLACE_ONE else [absent]
    moved = [distance(left, right, query.norm) for left in lefts for right in values]
    assert max(moved) <= most * (1 + 1e-9)
    assert max(moved) > 0
    assert np.all(np.isfinite(values))


@pytest.mark.at_once("average of gradients", "second moment", "total weight", "vertex scores")
@pytest.mark.parametrize("name", but_later(FIRST_OF_ITS_KIND, RECEIVED))
def test_what_a_unit_computes_is_received_as_it_is(name):
    rng, query = np.random.default_rng(2), RECEIVED[name]
    units = Units.from_arrays(
        3.0 * rng.normal(size=(4 * UNITS, D)),
        rng.integers(0, 3, 4 * UNITS) - 1.0,
        row_bound=ROW_BOUND,
        groups=np.arange(4 * UNITS) // 4,
        max_records_per_user=3,
    )
    with double_precision():
        shape = contribution_shape(query, units.public)
        vectors = ReferenceEngine(units).gather(query).reshape(-1, *shape)
        np.testing.assert_allclose(received(query, units.public, vectors), vectors, rtol=1e-12, atol=1e-14)


def test_a_bound_that_rests_on_the_loss_does_not_bind_strangers():
    """Two labels' gradients of one record are at most R apart; two strangers may answer opposite vectors anywhere."""
    public, rng = public_of(Relation.REPLACE_ONE), np.random.default_rng(3)
    query = ClippedGradient(loss=losses.logistic, at=np.full(D, 0.8), clip=10.0)
    direction = rng.normal(size=D)
    answers = [direction * 1e6, -direction * 1e6]
    with double_precision():
        moved = distance(*(statistic(query, public, [one]) for one in answers), "l2")
        assert moved > 1.05 * float(query.sensitivity(public))
        assert moved <= float(received_sensitivity(query, public, EveryUnit()))


def test_a_stranger_sends_no_matrix_of_the_other_sign():
    """Without the check a replaced answer would move the sum by two radii, not sqrt(2)."""
    public = public_of(Relation.REPLACE_ONE)
    query = SecondMoment(row_bound=ROW_BOUND)
    with double_precision():
        vector = np.zeros((1, D * (D + 1) // 2))
        vector[0, 0] = -1e9
        np.testing.assert_array_equal(received(query, public, vector), np.zeros_like(vector))
        assert float(received_sensitivity(query, public, EveryUnit())) == pytest.approx(
            np.sqrt(2.0) * ROW_BOUND**2 / UNITS
        )


def test_a_sample_is_priced_by_the_radius():
    query = ClippedGradient(loss=losses.logistic, at=np.zeros(D), clip=0.1)
    with double_precision():
        moved = received_sensitivity(query, public_of(Relation.REPLACE_ONE), Poisson(0.5))
    assert float(moved) == pytest.approx(2 * 0.1 / (0.5 * UNITS))


def test_what_nobody_argues_for_is_not_received():
    others = {type(query) for query in EVERY_QUERY.values()} - set(RECEIVABLE.values())
    assert others
    for kind in others:
        with pytest.raises(ValueError, match="is not answered by units that hold their own records"):
            require_receivable(kind)
    assert all(issubclass(kind, MeanQuery) for kind in RECEIVABLE.values())
