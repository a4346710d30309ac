"""Scores of a polytope's vertices, and of the parts of a product: the range by which one unit moves them."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.query_neighbours import LOSSES, PUBLIC, as_units, pairs, points

from privopt.curator.audit import Audit
from privopt.curator.local import LocalCurator
from privopt.data.units import Units
from privopt.engine.in_process import InProcessEngine
from privopt.ledger.amounts import Budget
from privopt.ledger.events import EveryUnit
from privopt.ledger.ledger import Ledger
from privopt.ledger.payer import Unlimited
from privopt.mechanisms.choice import ExponentialMechanism
from privopt.mechanisms.noise import NoiseSource
from privopt.precision import double_precision
from privopt.problems import losses
from privopt.public import Relation
from privopt.queries.scores import PartScores, PolytopeScores, VertexScores
from privopt.queries.slopes import ClippedGradient

ONES = np.ones(4)


def audit_of(left, right, relation, **options):
    ledger = Ledger(Budget(10.0, 1e-5), relation, composition="zcdp")
    return Audit(left, right, ledger, noise=NoiseSource(1), **options)


@pytest.mark.later("logistic-dense")
@pytest.mark.parametrize(("loss", "layout"), [("logistic", "dense"), ("own", "csr users")])
@given(data=st.data(), at=points, clip=st.sampled_from([1e-6, 0.3, 50.0]))
def test_one_unit_moves_the_scores_by_a_range_of_at_most_their_sensitivity(loss, layout, data, at, clip):
    pair = data.draw(pairs(5 if "users" in layout else 1, PUBLIC))
    left, right = (as_units(owned, pair, layout) for owned in pair.sides())
    vertices = np.outer([1.0, -300.0, 0.0, 2.0], np.ones(at.size)) + 5.0 * np.eye(4, at.size)
    query = PolytopeScores(loss=LOSSES[loss], at=at, vertices=vertices, clip=clip, offset=0.1 * at)
    audit = audit_of(left, right, pair.relation)
    with double_precision():
        chosen = int(audit.release(query, ExponentialMechanism(0.1)))
        summed = np.asarray(InProcessEngine(left).clipped_sum(query))
    assert 0 <= chosen < 4
    assert audit.moves[0][1] <= 1.0
    assert np.max(np.abs(summed), initial=0.0) <= left.public.n * clip * (1 + 1e-12)


def test_what_all_vertices_share_is_centred_away_and_costs_no_clip():
    units = Units.from_arrays(
        [[0.5, 0.0, 0.0], [0.0, 0.5, 0.0]], [1.0, -1.0], row_bound=1.0, storage="float64"
    )
    corners = np.array([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]])
    with double_precision():
        scores = []
        for moved in (0.0, 1e4):
            query = PolytopeScores(
                loss=losses.logistic, at=np.zeros(3), vertices=corners + moved, clip=0.2, offset=np.zeros(3)
            )
            curator = LocalCurator(units, Unlimited(Relation.REPLACE_ONE))
            scores.append(np.asarray(curator.private_value(query, EveryUnit(), None)))
    # The slopes are -1/2 and 1/2, so <v_i, grad> is (-1/4, 0) and (0, 1/4): centred, and within the clip.
    np.testing.assert_allclose(scores[0], [1 / 16, -1 / 16], atol=1e-12)
    np.testing.assert_allclose(scores[1], scores[0], atol=1e-9)


def test_the_range_is_attained_and_an_understated_sensitivity_is_noticed():
    rows = np.array([[0.5, 0.5, 0.5]] * 4)
    other = rows.copy()
    other[0] *= -1.0
    sides = [Units.from_arrays(x, ONES, row_bound=1.0) for x in (rows, other)]
    query = PolytopeScores(
        loss=losses.logistic,
        at=np.zeros(3),
        vertices=np.array([[1.0, 0.0, 0.0], [-1.0, 0.0, 0.0]]),
        clip=0.2,
        offset=np.zeros(3),
    )
    for understate, above in ((0.0, False), (0.002, True)):
        audit = audit_of(*sides, "replace-one", understate=understate)
        with double_precision():
            audit.release(query, ExponentialMechanism(0.1))
        assert audit.moves[0][1] == pytest.approx(1.0, rel=3e-3)
        assert (audit.moves[0][1] > 1.0) == above


def test_the_scores_of_a_part_are_those_of_all_at_its_places():
    rng = np.random.default_rng(0)
    units = Units.from_arrays(rng.normal(size=(4, 3)), ONES, row_bound=1.0)
    scores = VertexScores(loss=losses.logistic, at=np.zeros(3), clip=0.2, offset=np.zeros(3))
    curator = LocalCurator(units, Unlimited(Relation.REPLACE_ONE))
    with double_precision():
        mean = curator.hold_mean(scores)
        whole = np.asarray(curator.private_value(scores, EveryUnit(), None))
        part = PartScores(mean=mean, places=((1, 3), (4, 6)))
        np.testing.assert_array_equal(curator.private_value(part, EveryUnit(), None), whole[[1, 2, 4, 5]])
    assert part.shape(units.public) == (4,)
    assert float(part.sensitivity(units.public)) == mean.sensitivity


def test_parts_of_a_mean_whose_range_is_not_bounded_are_refused():
    units = Units.from_arrays(np.ones((4, 3)), ONES, row_bound=1.0)
    curator = LocalCurator(units, Unlimited(Relation.REPLACE_ONE))
    with double_precision():
        mean = curator.hold_mean(ClippedGradient(loss=losses.logistic, at=np.zeros(3), clip=0.2))
        with pytest.raises(
            TypeError, match=r"ClippedGradient is held, bounded in the l2 norm: hold VertexScores"
        ):
            curator.release(PartScores(mean=mean, places=((0, 2),)), ExponentialMechanism(0.1))


def test_a_held_mean_is_gone_with_its_handle():
    units = Units.from_arrays(np.ones((4, 3)), ONES, row_bound=1.0)
    curator = LocalCurator(units, Unlimited(Relation.REPLACE_ONE))
    scores = VertexScores(loss=losses.logistic, at=np.zeros(3), clip=0.2, offset=np.zeros(3))
    with double_precision():
        for _ in range(3):
            mean = curator.hold_mean(scores)
            curator.release(PartScores(mean=mean, places=((0, 2),)), ExponentialMechanism(0.1))
    assert len(curator._private_means) == 1
