"""A sparse matrix is read by compiled code only after every one of its indices has been checked."""

import subprocess
import sys
import textwrap
from typing import Any

import numpy as np
import pytest
from scipy import sparse

from privopt import LogisticRegression
from privopt.data.cells import checked_csr
from privopt.data.units import Units

D = 5


def matrix(kind: Any = sparse.csr_array) -> Any:
    dense = np.random.default_rng(0).normal(size=(8, D)) * (np.arange(D) % 2)
    dense[3] = 0.0
    return kind(dense)


def broken(name: str) -> Any:
    """A matrix whose arrays were changed after it was made."""
    found = matrix()
    if name == "a column beyond the shape":
        found.indices[4] = 7654321
    elif name == "a negative column":
        found.indices[4] = -7654321
    elif name == "rows that do not ascend":
        found.indptr[3] = 7654321
    elif name == "rows that do not begin with 0":
        found.indptr[0] = 1
    elif name == "rows that begin below 0":
        found.indptr[0] = -7654321
    elif name == "rows that end beyond the entries":
        found.indptr[-1] = 7654321
    elif name == "too few rows":
        found.indptr = found.indptr[:-1]
    elif name == "too many rows":
        found.indptr = np.append(found.indptr, found.indptr[-1])
    elif name == "no rows at all":
        found.indptr = found.indptr[:0]
    elif name == "data shorter than indices":
        found.data = found.data[:-1]
    elif name == "indices shorter than data":
        found.indices = found.indices[:-1]
    elif name == "indices that are no integers":
        found.indices = found.indices + 0.5
    elif name == "indices with two axes":
        found.indices = found.indices[:, None]
    elif name == "data with two axes":
        found.data = found.data[:, None]
    elif name == "csc, a row beyond the shape":
        found = matrix(sparse.csc_array)
        found.indices[4] = 7654321
    elif name == "bsr, a block beyond the shape":
        found = sparse.bsr_array(matrix().toarray()[:, :4], blocksize=(2, 2))
        found.indices[1] = 7654321
    elif name == "coo, a row beyond the shape":
        found = matrix(sparse.coo_array)
        found.row[1] = 7654321
    elif name == "coo, a negative column":
        found = matrix(sparse.coo_array)
        found.col[1] = -7654321
    elif name == "coo, fewer values than places":
        found = matrix(sparse.coo_array)
        found.data = found.data[:-1]
    elif name == "lil, a column beyond the shape":
        found = matrix(sparse.lil_array)
        found.rows[0][0] = 7654321
    elif name == "lil, fewer values than places":
        found = matrix(sparse.lil_array)
        found.data[0].pop()
    elif name == "dok, a column beyond the shape":
        found = matrix(sparse.dok_array)
        found._dict[(0, 7654321)] = 1.0
    return found


BROKEN = (
    "a column beyond the shape",
    "a negative column",
    "rows that do not ascend",
    "rows that do not begin with 0",
    "rows that begin below 0",
    "rows that end beyond the entries",
    "too few rows",
    "too many rows",
    "no rows at all",
    "data shorter than indices",
    "indices shorter than data",
    "indices that are no integers",
    "indices with two axes",
    "data with two axes",
    "csc, a row beyond the shape",
    "bsr, a block beyond the shape",
    "coo, a row beyond the shape",
    "coo, a negative column",
    "coo, fewer values than places",
    "lil, a column beyond the shape",
    "lil, fewer values than places",
    "dok, a column beyond the shape",
)


@pytest.mark.parametrize("name", BROKEN)
def test_arrays_that_describe_no_matrix_are_refused_without_a_number_from_them(name: str) -> None:
    with pytest.raises(ValueError, match=r"not a sparse matrix that can be read: .*Build it anew") as refused:
        Units.from_arrays(broken(name), row_bound=1.0)
    assert "7654321" not in str(refused.value)
    assert refused.value.__cause__ is None
    assert refused.value.__context__ is None


@pytest.mark.later("a column beyond the shape")
@pytest.mark.parametrize("name", ["a column beyond the shape", "coo, a row beyond the shape"])
def test_an_estimator_refuses_them_too(name: str) -> None:
    model = LogisticRegression(epsilon=1.0, delta=1e-3, bounds=(-1, 1), classes=[0, 1])
    labels = np.tile([0, 1], 4)
    with pytest.raises(ValueError, match="not a sparse matrix that can be read"):
        model.fit(broken(name), labels)
    model.fit(matrix(), labels)
    with pytest.raises(ValueError, match="not a sparse matrix that can be read"):
        model.predict(broken(name))


@pytest.mark.audit
def test_a_column_beyond_the_shape_ends_in_a_sentence_and_not_in_the_kernel() -> None:
    """In a process of its own: it was a segmentation fault."""
    script = """
        import numpy as np
        import privopt
        from scipy import sparse
        from privopt.problems import losses
        wide = sparse.csr_array((np.ones(4), np.array([0, 1, 10**9, 0]), np.arange(5)), shape=(4, 10**9 + 1))
        wide._shape = (4, 3)
        try:
            units = privopt.Units.from_arrays(wide, np.ones(4), row_bound=1.0)
            privopt.minimize(losses.logistic, units, budget=privopt.Budget(1.0, 1e-3))
        except ValueError as refused:
            print(refused)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True)
    assert done.returncode == 0
    assert "not a sparse matrix that can be read" in done.stdout


@pytest.mark.parametrize(
    "kind",
    [
        sparse.csr_array,
        sparse.csr_matrix,
        sparse.csc_array,
        sparse.coo_array,
        sparse.lil_array,
        sparse.dok_array,
        sparse.dia_array,
    ],
)
def test_a_matrix_of_any_format_is_the_same_matrix(kind: Any) -> None:
    given = matrix(kind)
    found = checked_csr(given)
    assert found.toarray().tolist() == matrix().toarray().tolist()
    assert given.toarray().tolist() == matrix().toarray().tolist()
    blocks = sparse.bsr_array(matrix().toarray()[:, :4], blocksize=(2, 2))
    assert checked_csr(blocks).toarray().tolist() == blocks.toarray().tolist()


def test_entries_out_of_order_twice_zero_or_left_over_are_no_fault() -> None:
    values = np.array([1.0, 2.0, 4.0, 0.0, 8.0, 99.0])
    columns, starts = np.array([3, 0, 3, 1, 2, 88]), np.array([0, 3, 3, 5])
    odd = sparse.csr_array((values[:5], columns[:5], starts), shape=(3, D))
    odd.data, odd.indices = values, columns  # what lies behind the last entry belongs to no row
    found = checked_csr(odd)
    assert found.toarray().tolist() == [[2, 0, 0, 5, 0], [0] * D, [0, 0, 8, 0, 0]]
    assert found.has_canonical_format
    assert odd.indices.tolist() == [3, 0, 3, 1, 2, 88]
    empty = sparse.csr_array((0, D))
    assert checked_csr(empty).shape == (0, D)


def test_an_entry_stored_twice_does_not_hide_behind_a_flag() -> None:
    """Its norm would be that of its parts, too small by the root of how many they are."""
    count = 400
    hiding = sparse.csr_array((np.full(count, 1.0), np.arange(count), [0, count, count]), shape=(2, count))
    assert hiding.has_canonical_format
    hiding.indices[:] = 0
    units = Units.from_arrays(hiding, row_bound=30.0)
    row: Any = units.private_features
    assert float(np.abs(row.toarray()).sum()) <= 30.0
    assert float(units.private_norms[0]) <= 30.0


def test_more_columns_than_an_index_can_name_are_refused() -> None:
    wide = sparse.csr_array((np.ones(1), np.array([2**31 + 5]), np.array([0, 1, 1])), shape=(2, 2**32))
    with pytest.raises(ValueError, match="at most 2147483646"):
        Units.from_arrays(wide, row_bound=1.0)
