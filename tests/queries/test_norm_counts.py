"""Counts of units by the length of their vectors: what they say, and that no unit moves them further than stated."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from privopt.curator.audit import Audit
from privopt.curator.local import LocalCurator
from privopt.data.units import Units
from privopt.ledger.events import FixedSize
from privopt.ledger.payer import Unlimited
from privopt.mechanisms.choice import ExponentialMechanism
from privopt.precision import double_precision
from privopt.problems import losses
from privopt.public import Relation
from privopt.queries.gradient_norms import NormCounts

LENGTHS = np.array([4.0, 2.0, 1.0, 0.5, 0.25])
ROWS = np.random.default_rng(0).normal(size=(40, 3))


@pytest.fixture(autouse=True)
def in_double_precision():
    with double_precision():
        yield


def residual(params, features, target):
    """A user-written loss; its gradient at 0 is -target times the row."""
    return 0.5 * (features @ params - target) ** 2


LOSSES = {"library": losses.squared, "own": losses.RecordLoss(residual)}


def counts(loss, share=0.3):
    return NormCounts(loss=loss, at=np.zeros(3), lengths=LENGTHS, share=share)


def units_of(rows, relation="replace-one", n=40, **others):
    return Units.from_arrays(
        rows, np.ones(len(rows)), row_bound=1e6, relation=relation, n=n, storage="float64", **others
    )


@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
def test_the_best_score_is_the_length_whose_count_is_nearest_to_the_share(loss):
    curator = LocalCurator(units_of(ROWS), Unlimited(Relation.REPLACE_ONE))
    norms = np.linalg.norm(ROWS, axis=1)
    for share in (0.02, 0.3, 0.6, 0.97):
        scores = [-abs(np.mean(norms <= length) - share) for length in LENGTHS]
        assert int(curator.release(counts(loss, share), ExponentialMechanism(np.inf))) == np.argmax(scores)


def test_the_sensitivity_is_two_counts_under_both_relations():
    for relation in ("replace-one", "add-or-remove-one"):
        public = units_of(ROWS, relation).public
        assert float(counts(losses.squared).sensitivity(public)) == pytest.approx(2.0 / 40)


def test_the_range_of_two_counts_is_reached():
    """A unit that joins brings a count below its share closer and one above it further away."""
    rows = np.zeros((39, 3))
    rows[:10, 0] = 0.4
    rows[10:, 0] = 0.9
    left = units_of(rows, Relation.ADD_OR_REMOVE_ONE)
    right = units_of(np.vstack([rows, [[0.1, 0.0, 0.0]]]), Relation.ADD_OR_REMOVE_ONE)
    audit = Audit(left, right, Unlimited(Relation.ADD_OR_REMOVE_ONE))
    audit.release(counts(losses.squared, share=0.5), ExponentialMechanism(1.0))
    assert audit.moves[0][1] == pytest.approx(1.0, abs=1e-9)


@given(
    row=st.lists(
        st.sampled_from([0.0, 1e-300, 0.3, -2.0, 1e300, np.inf, -np.inf, np.nan]), min_size=3, max_size=3
    ),
    relation=st.sampled_from([Relation.REPLACE_ONE, Relation.ADD_OR_REMOVE_ONE]),
    by_user=st.booleans(),
    share=st.floats(0.0, 1.0),
)
def test_no_unit_moves_the_scores_by_more(row, relation, by_user, share):
    with double_precision():
        others = {"groups": np.repeat(np.arange(20), 2), "max_records_per_user": 2} if by_user else {}
        n = 20 if by_user else 40
        changed = ROWS.copy()
        changed[6:8] = row
        left, right = units_of(ROWS, relation, n, **others), units_of(changed, relation, n, **others)
        if not by_user:
            changed[7] = ROWS[7]
            right = units_of(changed, relation, n)
        if relation is Relation.ADD_OR_REMOVE_ONE:
            fewer = {"groups": others["groups"][:-2], "max_records_per_user": 2} if by_user else {}
            cut = -2 if by_user else -1
            changed = ROWS.copy()
            changed[cut:] = row
            left, right = units_of(ROWS[:cut], relation, n, **fewer), units_of(changed, relation, n, **others)
        for loss in LOSSES.values():
            audit = Audit(left, right, Unlimited(relation))
            audit.release(counts(loss, share), ExponentialMechanism(1.0))
            assert audit.moves[0][1] <= 1.0


def test_a_sample_is_refused_before_anything_is_read():
    """A count over the expected number of sampled units moves by more than 2 / n."""
    curator = LocalCurator(units_of(ROWS), Unlimited(Relation.REPLACE_ONE))
    with pytest.raises(ValueError, match="counted on all units and cannot be sampled"):
        curator.release(counts(losses.squared), ExponentialMechanism(1.0), FixedSize(4, 40))


@pytest.mark.parametrize("changes", [{"bonus": np.array([0.0, 2.0**53])}, {"share": 2.0**53}], ids=str)
def test_what_a_large_bonus_or_share_rounds_is_in_the_sensitivity(changes):
    rule = {"share": 0.5, "bonus": 0.0} | changes
    query = NormCounts(loss=losses.squared, at=np.zeros(3), lengths=np.array([2.0, 1.0]), **rule)
    scores = [
        np.asarray(query.finish(np.array([0.3, 0.5 + step]))) for step in np.linspace(-0.025, 0.025, 101)
    ]
    moved = max(np.ptp(after - before) for before in scores for after in scores)
    assert moved <= float(query.sensitivity(units_of(ROWS).public))
