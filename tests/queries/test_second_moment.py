"""The mean second moment: its sensitivity, its packing, and the engine's products against exact sums."""

import math
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse
from tests.support.formula_noise import FormulaNoise
from tests.support.query_neighbours import D, as_units, pairs
from tests.support.reference_rows import reference_arrays
from tests.support.turns import in_turn

from privopt.curator.audit import Audit
from privopt.curator.local import LocalCurator
from privopt.data.rows import take_rows
from privopt.data.units import Units
from privopt.engine import user_gradients
from privopt.engine.in_process import InProcessEngine
from privopt.engine.rounding import rounding_bound
from privopt.ledger.amounts import Budget
from privopt.ledger.events import Poisson
from privopt.ledger.ledger import Ledger
from privopt.mechanisms.additive import Gaussian
from privopt.mechanisms.noise import NoiseSource
from privopt.precision import double_precision
from privopt.public import Public, Relation
from privopt.queries.moments import ColumnMagnitudes, SecondMoment, pack, packed_length, unpack

LAYOUTS = ["dense", "sparse", "users", "sparse users"]


@pytest.fixture(autouse=True)
def _double() -> Iterator[None]:
    with double_precision():
        yield


@pytest.mark.at_once("users")
@pytest.mark.parametrize("layout", LAYOUTS)
@given(
    data=st.data(),
    row_bound=st.sampled_from([1.5, 0.2, 3.0]),
    public=st.sampled_from([(6, "add-or-remove-one"), (6, "replace-one")]),
)
def test_one_unit_moves_the_mean_by_at_most_the_sensitivity(layout, data, row_bound, public):
    pair = data.draw(pairs(5 if "users" in layout else 1, [public]))
    left, right = (as_units(owned, pair, layout) for owned in pair.sides())
    ledger = Ledger(Budget(10.0, 1e-5), pair.relation, composition="gaussian")
    audit = Audit(left, right, ledger, noise=NoiseSource(1))
    with double_precision():
        released = audit.release(SecondMoment(row_bound=row_bound), Gaussian(5.0))
    assert released.shape == (packed_length(D),)
    assert np.all(np.isfinite(released))
    assert audit.moves[0][1] <= 1.0


@pytest.mark.parametrize(
    ("relation", "factor"), [("replace-one", math.sqrt(2.0)), ("add-or-remove-one", 1.0)]
)
def test_orthogonal_rows_attain_the_sensitivity(relation, factor):
    rows = np.array([[1.0, 0.0], [0.0, 2.0], [0.0, 2.0]])
    other = np.array([[1.0, 0.0], [0.0, 2.0], [2.0, 0.0]]) if relation == "replace-one" else rows[:2]
    left, right = (Units.from_arrays(part, row_bound=2.0, relation=relation, n=3) for part in (rows, other))
    query = SecondMoment(row_bound=2.0)
    moved = InProcessEngine(left).clipped_sum(query) - InProcessEngine(right).clipped_sum(query)
    sensitivity = float(query.sensitivity(left.public))
    assert sensitivity == pytest.approx(factor * 4.0 / 3.0, rel=1e-15)
    assert np.linalg.norm(moved) / 3.0 == pytest.approx(sensitivity, rel=1e-6)


@given(
    st.lists(st.floats(-1, 1), min_size=D * 4, max_size=D * 4),
    st.lists(st.floats(0, 1), min_size=4, max_size=4),
)
def test_averages_of_outer_products_are_never_further_apart_than_sqrt_2(entries, weights):
    rows = np.reshape(entries, (4, D))
    rows /= np.maximum(1.0, np.linalg.norm(rows, axis=1, keepdims=True))
    shares = np.array(weights)
    left = sum(w * np.outer(a, a) for w, a in zip(shares[:2], rows[:2], strict=True)) / 2
    right = sum(w * np.outer(a, a) for w, a in zip(shares[2:], rows[2:], strict=True)) / 2
    assert np.linalg.norm(left - right) <= math.sqrt(2.0) * (1 + 1e-15)


def test_packing_keeps_the_frobenius_norm_and_unpacking_undoes_it():
    matrix = np.random.default_rng(0).normal(size=(5, 5))
    matrix += matrix.T
    vector = pack(matrix)
    assert np.linalg.norm(vector) == pytest.approx(np.linalg.norm(matrix), rel=1e-14)
    np.testing.assert_allclose(unpack(vector, 5), matrix, rtol=1e-15)
    with pytest.raises(ValueError, match=r"order d = 4 has shape \(10,\), got \(15,\)"):
        unpack(vector, 4)


def units_of(layout: str, rows: int, d: int) -> Units:
    generator = np.random.default_rng(0)
    features = generator.normal(size=(rows, d)) * (generator.random((rows, d)) < 0.4)
    features[0], features[1] = 0.0, 1e200
    features[2, 0] = np.nan
    users = np.minimum(generator.integers(0, rows // 5, rows), rows // 5 - 1) if "users" in layout else None
    units = Units.from_arrays(
        sparse.csr_array(features) if "sparse" in layout else features,
        row_bound=1.3,
        groups=users,
        max_records_per_user=8,
        noise=NoiseSource(7),
        storage="float64" if "float64" in layout else "float32",
    )
    if "mapped" in layout:
        return units.mapped(generator.normal(size=(d, d - 1)), 1.1)
    return units


@pytest.mark.later(
    "dense-140-0.4",
    "float64 sparse-140-0.4",
    "mapped sparse users-140-1.3",
    "mapped sparse-140-0.4",
    "mapped-140-1.3",
    "sparse users-4-0.4",
    "sparse-140-1.3",
    "users-140-0.4",
)
@pytest.mark.parametrize(
    ("layout", "d", "row_bound"),
    in_turn(
        [*LAYOUTS, "float64 sparse", "mapped", "mapped sparse", "mapped sparse users"],
        (4, 140),  # dense blocks of sparse rows, and sparse products
        (1.3, 0.4),
    ),
)
def test_the_products_equal_the_general_path(layout, d, row_bound, monkeypatch):
    monkeypatch.setattr("privopt.data.storage.DENSE_VIEW_BYTES", 0)  # mapped sparse rows are not stored
    monkeypatch.setattr(user_gradients, "_PRODUCT_ROWS", 16)
    engine = InProcessEngine(units_of(layout, 100, d))
    query = SecondMoment(row_bound=row_bound)
    some = np.flatnonzero(np.random.default_rng(3).random(engine.units.private_count) < 0.3)
    for draw in (None, some, some[:0]):
        found, expected = engine.clipped_sum(query, draw), engine.general_sum(query, draw)
        # Norms of rows that are mapped block by block are raised by 2^-20.
        tolerance = 4e-6 if layout.startswith("mapped sparse") else 4e-9
        assert np.linalg.norm(found - expected) <= tolerance * max(np.linalg.norm(expected), 1e-9)


@pytest.mark.parametrize("layout", ["dense", "users"])
def test_the_sum_is_within_the_rounding_bound(layout):
    count = 6000
    # Entries of one bit: 1, then far less than half an ulp of the sum; every product is exact.
    column = np.where(np.arange(count) < count // 2, 0.5, 2.0**-21)
    groups = np.arange(count) if layout == "users" else None
    units = Units.from_arrays(
        np.stack([column, column], axis=1), row_bound=1.0, groups=groups, max_records_per_user=1
    )
    exact = math.fsum(column * column)
    found = InProcessEngine(units).clipped_sum(SecondMoment(row_bound=1.0))
    error = np.linalg.norm(found - exact * np.array([1.0, math.sqrt(2.0), 1.0]))
    assert error <= rounding_bound(1.0, count)


@pytest.mark.parametrize(("relation", "factor"), [("replace-one", 2.0), ("add-or-remove-one", 1.0)])
def test_a_sampled_mean_divides_by_the_expected_number_and_is_priced_for_opposite_contributions(
    relation, factor
):
    public = Public(n=100, d=3, relation=Relation.parse(relation))
    assert SecondMoment(row_bound=2.0).sensitivity(public, Poisson(0.1)) == pytest.approx(factor * 4.0 / 10.0)


def upper_triangle(k, shape):
    """Entry (i, j) gets cos(1 + 0.7 (3 i + j)) in place of its normal."""
    i, j = np.triu_indices(3)
    assert k == 0
    assert shape == i.shape
    return np.cos(1 + 0.7 * (3 * i + j))


def test_reference_values_of_the_whitening_map():  # ERM reference 6.3, RV10
    rows, _ = reference_arrays()
    units = Units.from_arrays(rows, row_bound=1.0, storage="float64")
    mechanism = Gaussian(1 / 5.0)
    query = SecondMoment(row_bound=1.0)
    ledger = Ledger(Budget(1000.0, 1e-6), "replace-one", plan=mechanism.event())
    released = LocalCurator(units, ledger, noise=FormulaNoise(upper_triangle)).release(query, mechanism)
    stddev = float(query.sensitivity(units.public)) / 5.0
    assert stddev == pytest.approx(0.035355339059, rel=1e-10)
    values, vectors = np.linalg.eigh(unpack(released, 3))
    kept, floor = np.maximum(values, 0.0), max(0.1 / 0.25, stddev * math.sqrt(3.0))
    assert math.sqrt(np.sum(kept / (kept + floor))) == pytest.approx(1.0468211535, rel=3e-10)
    expected = [
        [1.2054901333, -0.2068850481, 0.0500566268],
        [-0.2068850481, 1.3208911275, -0.2142641629],
        [0.0500566268, -0.2142641629, 1.1747431245],
    ]
    np.testing.assert_allclose((vectors / np.sqrt(kept + floor)) @ vectors.T, expected, rtol=0, atol=1e-9)


def test_rows_of_every_kind_are_stored_where_the_engine_reads_them():
    units = units_of("sparse", 50, 4)
    rows = take_rows(units.private_features, slice(0, 50)).astype(np.float64)
    found = unpack(InProcessEngine(units).clipped_sum(SecondMoment(row_bound=1.3)), 4)
    np.testing.assert_allclose(found, rows.T @ rows, rtol=3e-9, atol=1e-9)


def test_half_the_sensitivity_on_a_sample_covers_one_contribution_under_replace_one():
    sizes = Public(n=100, d=3, relation=Relation.REPLACE_ONE)
    for found in (SecondMoment(row_bound=1.0), ColumnMagnitudes(levels=4, columns=3)):
        assert found.sensitivity(sizes, Poisson(0.1)) * 10.0 / 2.0 >= found.radius()


@pytest.mark.parametrize("relation", ["replace-one", "add-or-remove-one"])
@pytest.mark.parametrize("layout", ["dense", "sparse", "users"])
def test_rows_with_a_constant_count_divided_by_their_length(layout, relation):
    """Without a bound on the rows: the mean of `a a^T / |a|^2`, by n nominal units; of a user each record's."""
    rng = np.random.default_rng(4)
    rows = np.concatenate([rng.uniform(-9.0, 9.0, (60, 3)), np.ones((60, 1))], axis=1).astype(np.float32)
    owners = np.arange(60) // 3 if layout == "users" else None
    n = 70 if relation == "add-or-remove-one" else (60 if owners is None else 20)
    units = Units.from_arrays(
        sparse.csr_array(rows) if layout == "sparse" else rows,
        row_bound=100.0,
        groups=owners,
        max_records_per_user=3,
        relation=relation,
        n=n,
    )
    query = SecondMoment(row_bound=1.0)
    found = unpack(InProcessEngine(units).clipped_sum(query), 4) / n
    divided = rows / np.linalg.norm(rows.astype(np.float64), axis=1, keepdims=True)
    weight = 1.0 if owners is None else 1.0 / 3.0
    np.testing.assert_allclose(found, weight * divided.T @ divided / n, rtol=1e-6, atol=1e-12)
    factor = math.sqrt(2.0) if relation == "replace-one" else 1.0
    assert float(query.sensitivity(units.public)) == pytest.approx(factor / n, rel=1e-12)
