"""Coded units: every value has a cell, whatever it is; users, blocks and refusals."""

import dataclasses
import json
import warnings

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse
from tests.support.odd_inputs.cells import ODD

from privopt.curator.local import LocalCurator
from privopt.curator.replay import Replay
from privopt.data.places import Stretch
from privopt.data.units import Units
from privopt.ledger.amounts import Budget
from privopt.ledger.ledger import Ledger
from privopt.mechanisms.additive import Gaussian
from privopt.mechanisms.noise import NoiseSource
from privopt.precision import double_precision
from privopt.problems import losses
from privopt.problems.workload import Workload
from privopt.public import Public
from privopt.queries.marginals import MarginalMeans, QueryMeans
from privopt.queries.moments import TotalWeight
from privopt.queries.slopes import ClippedGradient

LEVELS = (3, 2, 300)


def stored(codes, **options):
    return Units.from_codes(codes, levels=LEVELS, **options).private_features


def test_what_is_no_declared_value_counts_as_missing():
    odd = [np.nan, np.inf, -np.inf, -1, 1.5, 2, 1e300, 2.0**63]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        kept = stored(np.array([[value, 0, 298] for value in (0, 1, *odd)]))
    assert kept[:, 0].tolist() == [0, 1, *[2] * len(odd)]
    assert kept[:, 1].tolist() == [0] * 10
    assert kept[:, 2].tolist() == [298] * 10
    assert kept.dtype == np.uint16


@pytest.mark.parametrize("dtype", [np.uint8, np.int8, np.uint64, np.int64, np.bool_, np.float16, np.float32])
def test_codes_of_every_type_are_read_alike(dtype):
    codes = np.array([[1, 0, 1], [0, 1, 0]]).astype(dtype)
    np.testing.assert_array_equal(stored(codes), [[1, 0, 1], [0, 1, 0]])


def test_tables_lists_and_masks_are_read_cell_by_cell():
    rows = [[1, 0, 7], [None, "x", ODD["an object that fails"]], ["2", True, 5.5]]
    np.testing.assert_array_equal(stored(rows), [[1, 0, 7], [2, 1, 299], [2, 1, 299]])
    frame = pd.DataFrame({"a": [1, 0], "b": pd.array([None, 0], "Int64"), "c": [np.nan, 3.0]})
    np.testing.assert_array_equal(stored(frame), [[1, 1, 299], [0, 0, 3]])
    masked = np.ma.array([[1, 0, 2]], mask=[[False, True, False]], dtype=np.uint8)
    np.testing.assert_array_equal(stored(np.ma.concatenate([masked, masked])), [[1, 1, 2]] * 2)


@given(st.lists(st.lists(st.floats(), min_size=3, max_size=3), min_size=2, max_size=6))
def test_no_value_raises_and_a_row_depends_on_itself_alone(rows):
    whole = stored(np.array(rows))
    assert np.all(whole < np.array(LEVELS))
    for place, row in enumerate(rows):
        np.testing.assert_array_equal(stored(np.array([row, [0, 0, 0]]))[0], whole[place])


def test_users_keep_some_of_their_records_and_nobody_s_records_are_dropped():
    codes, keys = np.arange(12)[:, None] % 5, [1.0, 1, 1, 1, 2, 2, np.nan, 3, 3, 3, 3, 3]
    units = Units.from_codes(codes, levels=(6,), groups=keys, max_records_per_user=3)
    assert np.diff(units.private_offsets).tolist() == [3, 2, 3]
    np.testing.assert_allclose(units.private_weights, [1, 2 / 3, 1])
    assert (units.public.unit, units.public.n, units.public.levels) == ("user", 3, (6,))
    assert not units.seeded
    block = units.subset(Stretch(1, 3), 2)
    np.testing.assert_array_equal(block.private_features[:2, 0], [4, 0])
    assert block.public.levels == (6,)


def test_of_users_a_source_without_secrets_is_seen():
    assert Units.from_codes([[0], [1]], levels=(2,), groups=[1, 2], noise=NoiseSource(seed=1)).seeded


def test_the_number_of_rows_is_private_where_units_come_and_go():
    with pytest.raises(ValueError, match="n is missing"):
        Units.from_codes([[0], [1]], levels=(3,), relation="add-or-remove-one")
    units = Units.from_codes([[0], [1]], levels=(3,), relation="add-or-remove-one", n=10)
    assert (units.public.n, units.private_count) == (10, 2)
    assert repr(units).startswith("Units(<private>")


@pytest.mark.parametrize(
    ("codes", "words"),
    [
        (np.zeros((2, 2)), r"shape \(rows, 3\).*2 dimensions and 2 columns"),
        (np.zeros(3), "1 dimensions and 3 columns"),
        (np.zeros((1, 3)), "at least 2 units"),
    ],
)
def test_what_has_another_shape_is_refused(codes, words):
    with pytest.raises(ValueError, match=words):
        stored(codes)


@pytest.mark.parametrize(
    ("codes", "words"),
    [
        (sparse.csr_array(np.zeros((2, 3))), "dense array, got a sparse matrix"),
        (np.array([["a", "b", "c"]] * 2), "must be numbers, got dtype <U1"),
    ],
)
def test_what_is_of_another_type_is_refused(codes, words):
    with pytest.raises(TypeError, match=words):
        stored(codes)


def test_a_column_without_levels_is_refused():
    with pytest.raises(ValueError, match=r"at least 2 cells.*got 1"):
        Units.from_codes(np.zeros((2, 2)), levels=(3, 1))
    with pytest.raises(ValueError, match="each of the d = 2 columns"):
        Public(n=10, d=2, levels=(3,))


def curator_on(units):
    return LocalCurator(units, Ledger(Budget(1.0, 1e-6), "replace-one"), noise=NoiseSource(1))


def test_queries_of_numbers_refuse_codes_before_anything_is_paid():
    curator = curator_on(Units.from_codes(np.zeros((4, 2)), levels=(3, 2)))
    gradient = ClippedGradient(loss=losses.logistic, at=np.zeros(2), clip=1.0)
    with double_precision():
        with pytest.raises(
            ValueError, match="ClippedGradient needs rows of numbers, but this table is coded"
        ):
            curator.release(gradient, Gaussian(1.0))
        with pytest.raises(ValueError, match="needs rows of numbers"):
            curator.hold(gradient)
        for other in (curator, Replay(curator.transcript, curator.public)):
            with pytest.raises(ValueError, match="a linear map of the rows needs rows of numbers"):
                other.view(np.eye(2), 1.0)
    assert curator.ledger.spent == 0
    assert len(curator.transcript) == 0


def test_queries_of_cells_refuse_numbers_and_other_columns():
    marginals = MarginalMeans(workload=Workload.ways((3, 2), 1))
    numbers = Units.from_arrays(np.zeros((4, 2)), row_bound=1.0)
    other = Units.from_codes(np.zeros((4, 2)), levels=(3, 4))
    asked = Workload((3, 2), queries=np.zeros((1, 6)))
    with double_precision():
        for units, words in (
            (numbers, "this table holds numbers"),
            (other, r"has columns of \(3, 4\) cells"),
        ):
            for query in (marginals, QueryMeans(workload=asked)):
                with pytest.raises(ValueError, match=words):
                    curator_on(units).release(query, Gaussian(1.0))
        coded = curator_on(Units.from_codes(np.zeros((4, 2)), levels=(3, 2)))
        with pytest.raises(ValueError, match="has queries: ask for QueryMeans"):
            coded.release(MarginalMeans(workload=asked), Gaussian(1.0))
        with pytest.raises(ValueError, match="has column sets: ask for MarginalMeans"):
            coded.release(QueryMeans(workload=marginals.workload), Gaussian(1.0))
        assert coded.release(TotalWeight(), Gaussian(20.0)).shape == ()


def test_what_is_public_of_a_coded_table_survives_a_trip_through_json():
    public = Units.from_codes(np.zeros((4, 2)), levels=(3, 2)).public
    stored = json.loads(json.dumps(dataclasses.asdict(public) | {"relation": "replace-one"}))
    assert Public(**(stored | {"relation": public.relation})) == public
    assert hash(Public(**(stored | {"relation": public.relation}))) == hash(public)


@pytest.mark.parametrize(("dtype", "level"), [(np.float16, 2052), (np.float32, 2**24 + 4)])
def test_a_missing_value_stays_in_its_column_where_its_code_has_no_float(dtype, level):
    """level - 1 may round up to level in a narrow format, which is the first cell of the next column."""
    codes = np.array([[np.nan, 0], [1, 1], [2, 0]], dtype)
    kept = Units.from_codes(codes, levels=(level, 3)).private_features
    assert kept[:, 0].tolist() == [level - 1, 1, 2]
