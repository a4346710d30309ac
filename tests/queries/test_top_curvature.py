"""The largest eigenvalue of the second moment: its sensitivity under both relations, and its value."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse
from tests.support.query_neighbours import as_units, pairs

from privopt.curator.audit import Audit
from privopt.data.units import Units
from privopt.ledger.amounts import Budget
from privopt.ledger.events import Poisson
from privopt.ledger.ledger import Ledger
from privopt.mechanisms.additive import Gaussian
from privopt.mechanisms.noise import NoiseSource
from privopt.precision import double_precision
from privopt.public import Public
from privopt.queries.moments import TopCurvature


def audited(left, right, relation, query, multiplier=5.0, understate=0.0):
    ledger = Ledger(Budget(10.0, 1e-5), relation, composition="gaussian")
    audit = Audit(left, right, ledger, noise=NoiseSource(1), understate=understate)
    with double_precision():
        released = audit.release(query, Gaussian(multiplier))
    return audit.moves[0][1], float(released)


@pytest.mark.at_once("sparse")
@pytest.mark.parametrize("layout", ["dense", "sparse", "users", "sparse users"])
@given(
    data=st.data(),
    row_bound=st.sampled_from([1.5, 0.2]),
    public=st.sampled_from([(6, "add-or-remove-one"), (2, "replace-one"), (6, "replace-one")]),
)
def test_one_unit_moves_it_by_at_most_its_sensitivity(layout, data, row_bound, public):
    pair = data.draw(pairs(5 if "users" in layout else 1, [public]))
    left, right = (as_units(owned, pair, layout) for owned in pair.sides())
    query = TopCurvature(row_bound=row_bound)
    assert query.shape(left.public) == ()
    moved, released = audited(left, right, pair.relation, query)
    assert np.isfinite(released)
    assert moved <= 1.0


@pytest.mark.parametrize("relation", ["replace-one", "add-or-remove-one"])
def test_parallel_rows_attain_it_and_an_understated_one_is_noticed(relation):
    rows = np.array([[2.0, 0.0], [2.0, 0.0], [2.0, 0.0]])
    other = np.array([[2.0, 0.0], [2.0, 0.0], [0.0, 0.0]]) if relation == "replace-one" else rows[:2]
    left, right = (Units.from_arrays(part, row_bound=2.0, relation=relation, n=3) for part in (rows, other))
    query = TopCurvature(row_bound=2.0)
    assert float(query.sensitivity(left.public)) == pytest.approx(4.0 / 3.0, rel=1e-9)
    assert 0.999 < audited(left, right, relation, query)[0] <= 1.0
    assert audited(left, right, relation, query, understate=0.002)[0] > 1.0


@pytest.mark.parametrize("width", [1, 2, 7, 40])
@pytest.mark.parametrize("layout", ["dense", "sparse", "users"])
def test_it_is_the_largest_eigenvalue(width, layout):
    rows = np.random.default_rng(width).normal(size=(200, width))
    rows /= np.linalg.norm(rows, axis=1, keepdims=True) * 1.01
    units = Units.from_arrays(
        sparse.csr_array(rows) if layout == "sparse" else rows,
        row_bound=1.0,
        groups=np.arange(200) // 4 if layout == "users" else None,
        max_records_per_user=4 if layout == "users" else 100,
        storage="float64",
    )
    ledger = Ledger(Budget(np.inf, 0.0), units.public.relation)
    audit = Audit(units, units, ledger, noise=NoiseSource(1))
    with double_precision():
        found = float(audit.release(TopCurvature(row_bound=1.0), Gaussian(0.0)))
    assert found == pytest.approx(np.linalg.eigvalsh(rows.T @ rows / 200)[-1], rel=1e-8)


def test_rounding_is_far_below_the_sensitivity_and_above_that_of_the_eigenvalues():
    for d in (3, 54, 300):
        matrix = np.random.default_rng(d).normal(size=(4 * d, d))
        matrix /= np.linalg.norm(matrix, axis=1, keepdims=True)
        moment = matrix.T @ matrix / (4 * d)
        turned = np.linalg.qr(np.random.default_rng(1).normal(size=(d, d)))[0]
        tops = [np.linalg.eigvalsh(one)[-1] for one in (moment, turned.T @ moment @ turned)]
        sizes = Public(n=10_000, d=d)
        query = TopCurvature(row_bound=1.0)
        assert abs(tops[0] - tops[1]) < query.rounding(sizes) < 1e-3 / sizes.n
        assert float(query.sensitivity(sizes)) < 1.002 / sizes.n


def test_a_sample_is_refused():
    with pytest.raises(ValueError, match="cannot be sampled"):
        TopCurvature(row_bound=1.0).sensitivity(Public(n=10, d=2), Poisson(0.1))
