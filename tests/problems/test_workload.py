"""Workloads: how cells are numbered, what is refused, and what two equal ones have in common."""

import numpy as np
import pytest

from privopt.problems.workload import Workload, cells_of, codes_of, marginal_of, strides_of

LEVELS = (3, 2, 4)


def test_the_first_column_of_a_set_runs_fastest():
    # Spec 13.3: bit b of cell u is (u >> b) & 1, p_u = (1 + u) / 36, index = bit_first + 2 bit_second.
    work = Workload((2, 2, 2), sets=((0, 1), (0, 2), (1, 2)))
    table = (1 + np.arange(8)) / 36
    expected = np.array([6, 8, 10, 12, 4, 6, 12, 14, 3, 7, 11, 15]) / 36
    np.testing.assert_allclose(work.answers(table), expected, rtol=1e-15)
    assert strides_of(LEVELS, (2, 0)) == (1, 4)
    np.testing.assert_array_equal(codes_of(LEVELS, (1, 0)), [[0, 0], [1, 0], [0, 1], [1, 1], [0, 2], [1, 2]])


def test_a_marginal_counts_what_its_cells_stand_for_in_any_order_of_columns():
    rng = np.random.default_rng(0)
    table = rng.random(24)
    every = codes_of(LEVELS, (0, 1, 2))
    for columns in ((1,), (2, 0), (0, 2), (2, 1, 0)):
        index = every[:, list(columns)] @ np.array(strides_of(LEVELS, columns))
        expected = np.bincount(index, weights=table, minlength=cells_of(LEVELS, columns))
        np.testing.assert_allclose(marginal_of(table, LEVELS, columns), expected, rtol=1e-14)


def test_sizes_and_places_of_the_marginals():
    work = Workload.ways(LEVELS, 2)
    assert work.cells == (6, 12, 8)
    assert (work.size, work.universe, work.memory_bytes) == (26, 24, 208)
    assert [values.tolist() for _, values in work.marginals(np.arange(26))][2] == list(range(18, 26))
    assert Workload.ways(LEVELS, 3).sets == ((0, 1, 2),)


def test_workloads_are_equal_where_their_content_is():
    values = np.eye(4)
    first, second = Workload((2, 2), queries=values), Workload((2, 2), queries=values.tolist())
    assert first == second
    assert hash(first) == hash(second)
    assert first != Workload((2, 2), queries=values * 0.5)
    assert first != Workload.ways((2, 2), 1)
    values[0, 0] = 0.0
    assert first == second
    assert first.answers([1.0, 2.0, 3.0, 4.0])[0] == 1.0
    with pytest.raises(ValueError, match="read-only"):
        first.queries[0, 0] = 0.5


@pytest.mark.parametrize(
    ("levels", "options", "words"),
    [
        ((3, 1), {"sets": ((0,),)}, "at least 2 cells.*got 1"),
        ((), {"sets": ((0,),)}, "at least one column"),
        ((3, 2), {}, "column sets or queries"),
        ((3, 2), {"sets": ((0,),), "queries": np.zeros((1, 6))}, "column sets or queries"),
        ((3, 2), {"sets": ((0, 2),)}, r"different columns of 0 to 1, got \(0, 2\)"),
        ((3, 2), {"sets": ((0, 0),)}, "different columns"),
        ((3, 2), {"sets": ((0, 1), (1, 0))}, "given twice"),
        ((3, 2), {"queries": np.zeros((1, 5))}, r"shape \(m, 6\).*got \(1, 5\)"),
        ((3, 2), {"queries": np.full((1, 6), np.nan)}, r"values in \[0, 1\]"),
        ((3, 2), {"queries": np.full((1, 6), 1.5)}, r"values in \[0, 1\]"),
        ((2000, 2000), {"queries": np.zeros((1, 2))}, "there are 4,000,000, more than 1,048,576"),
        ((2000, 2000, 2000), {"sets": ((0, 1, 2),)}, r"1 marginals takes 59\.6 GiB.*fewer columns"),
    ],
)
def test_what_does_not_fit_is_refused_in_a_sentence(levels, options, words):
    with pytest.raises(ValueError, match=words):
        Workload(levels, **options)


@pytest.mark.parametrize(
    ("levels", "options", "words"),
    [
        ("32", {}, "levels must list"),
        ((3, 2.0), {}, "must be an integer, got 2.0"),
        ((3, 2), {"sets": "ab"}, "sets must list"),
        ((3, 2), {"sets": ("ab",)}, "tuple of column numbers"),
        ((3, 2), {"sets": ((0.0,),)}, "must hold column numbers"),
    ],
)
def test_what_is_of_another_type_is_refused_in_a_sentence(levels, options, words):
    with pytest.raises(TypeError, match=words):
        Workload(levels, **options)


@pytest.mark.parametrize("k", [0, 4, True])
def test_there_must_be_as_many_columns_as_ways(k):
    with pytest.raises(ValueError, match="between 1 and the 3 columns"):
        Workload.ways(LEVELS, k)


def test_more_sets_than_anybody_can_count_are_refused_before_they_are_listed():
    with pytest.raises(ValueError, match="5000 columns have 20,820,835,000 sets of 3"):
        Workload.ways((2,) * 5000, 3)
