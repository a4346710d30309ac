"""Marginals and answers of coded tables: how far one unit moves them, and that they are counted exactly."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from privopt.curator.audit import Audit
from privopt.data.units import Units
from privopt.engine.in_process import InProcessEngine
from privopt.ledger.amounts import Budget
from privopt.ledger.events import Poisson
from privopt.ledger.ledger import Ledger
from privopt.mechanisms.additive import Gaussian
from privopt.mechanisms.noise import NoiseSource
from privopt.precision import double_precision
from privopt.problems.workload import Workload
from privopt.public import Public, Relation
from privopt.queries.marginals import MarginalMeans, QueryMeans, centred_answers, longest_answer

LEVELS, N, CAP = (3, 2, 3), 4, 3
VALUES = np.abs(np.cos(np.arange(4 * 18) ** 2)).reshape(4, 18)
QUERIES = {
    "pairs": MarginalMeans(workload=Workload.ways(LEVELS, 2)),
    "one": MarginalMeans(workload=Workload(LEVELS, sets=((2, 0, 1),))),
    "answers": QueryMeans(workload=Workload(LEVELS, queries=VALUES)),
    "binary answers": QueryMeans(workload=Workload(LEVELS, queries=np.round(VALUES))),
}
codes = st.one_of(st.integers(-1, 3), st.sampled_from([np.nan, np.inf, 1e300, -1e300, 0.5]))
rows = st.lists(codes, min_size=3, max_size=3)


@st.composite
def neighbours(draw, most):
    """Units on two sides that differ in the last one; the records of one user may be many or none."""
    relation = draw(st.sampled_from(["replace-one", "add-or-remove-one"]))
    one = st.lists(rows, min_size=1 if most == 1 else 0, max_size=most)
    owned = [draw(one) for _ in range(N - 1)]
    last, instead = draw(one), draw(one)
    return [*owned, last], [*owned, [] if relation == "add-or-remove-one" else instead], relation


def as_units(owned, relation, *, by_user):
    every = [row for unit in owned for row in unit]
    return Units.from_codes(
        np.array(every, np.float64).reshape(-1, 3),
        levels=LEVELS,
        relation=relation,
        n=N,
        groups=np.repeat(np.arange(len(owned)), [len(unit) for unit in owned]) if by_user else None,
        max_records_per_user=CAP,
        user_weighting="sqrt",
        noise=NoiseSource(1),
    )


@pytest.mark.at_once("pairs-False")
@pytest.mark.parametrize("by_user", [False, True])
@pytest.mark.parametrize("name", QUERIES)
@given(data=st.data())
def test_one_unit_moves_no_mean_further_than_its_sensitivity(name, by_user, data):
    left, right, relation = data.draw(neighbours(CAP if by_user else 1))
    sides = [as_units(owned, relation, by_user=by_user) for owned in (left, right)]
    ledger = Ledger(Budget(10.0, 1e-5), relation, composition="gaussian")
    audit = Audit(*sides, ledger, noise=NoiseSource(1))
    with double_precision():
        released = audit.release(QUERIES[name], Gaussian(5.0))
        engine = InProcessEngine(sides[0])
        fast, plain = engine.clipped_sum(QUERIES[name]), engine.general_sum(QUERIES[name])
    assert np.all(np.isfinite(released))
    assert audit.moves[0][1] <= 1.0
    np.testing.assert_allclose(fast, plain, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(("relation", "factor"), [("replace-one", 2), ("add-or-remove-one", 1)])
def test_the_sensitivity_is_attained(relation, factor):
    def units(last):
        return Units.from_codes([[0, 0, 0], *last], levels=LEVELS, relation=relation, n=2)

    pair = [units([[1, 1, 1]]), units([] if factor == 1 else [[0, 0, 0]])]
    pairs = MarginalMeans(workload=Workload.ways(LEVELS, 2))
    opposite = QueryMeans(workload=Workload(LEVELS, queries=np.repeat([np.arange(18) == 0], 9, axis=0)))
    for query, expected in ((pairs, math.sqrt(3 * factor) / 2), (opposite, factor * math.sqrt(9) / 2 / 2)):
        moved = np.subtract(*(InProcessEngine(one).clipped_sum(query) for one in pair)) / 2
        assert np.linalg.norm(moved) == pytest.approx(expected, rel=1e-8)
        assert float(query.sensitivity(pair[0].public)) == pytest.approx(expected, rel=1e-8)


def test_counts_are_exact_and_of_users_too():
    rng = np.random.default_rng(0)
    table, users = rng.integers(0, 3, (5000, 3)), rng.integers(0, 900, 5000)
    work = Workload(LEVELS, sets=((0,), (2, 1), (1, 2, 0)))
    clean = np.minimum(table, np.array(LEVELS) - 1)
    joint = np.bincount(clean @ [1, 3, 6], minlength=18)
    counted = InProcessEngine(Units.from_codes(table, levels=LEVELS)).clipped_sum(
        MarginalMeans(workload=work)
    )
    np.testing.assert_array_equal(counted, work.answers(joint))
    by_user = Units.from_codes(table, levels=LEVELS, groups=users, max_records_per_user=20)
    shares = InProcessEngine(by_user).clipped_sum(MarginalMeans(workload=work))
    order = rng.permutation(5000)  # users stand where they appear first; none has more than 20 records
    shuffled = InProcessEngine(
        Units.from_codes(table[order], levels=LEVELS, groups=users[order], max_records_per_user=20)
    )
    np.testing.assert_array_equal(shares, shuffled.clipped_sum(MarginalMeans(workload=work)))
    assert shares[:3].sum() == pytest.approx(5000 / 20, rel=1e-9)
    answered = QueryMeans(workload=Workload(LEVELS, queries=VALUES))
    found = InProcessEngine(Units.from_codes(table, levels=LEVELS)).clipped_sum(answered)
    np.testing.assert_allclose(found, centred_answers(answered.workload, joint), rtol=1e-12)


def test_a_sample_is_priced_for_opposite_contributions():
    public = Public(n=100, d=3, relation=Relation.REPLACE_ONE, levels=LEVELS)
    query = QUERIES["pairs"]
    assert query.sensitivity(public, Poisson(0.1)) == pytest.approx(2 * math.sqrt(3) / 10)
    assert query.sensitivity(public) == pytest.approx(math.sqrt(6) / 100)


def test_binary_queries_are_centred():
    assert longest_answer(QUERIES["binary answers"].workload) == pytest.approx(1.0, rel=1e-8)
