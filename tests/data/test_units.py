"""Units: what is clipped, what counts as zero, what raises before any value is looked at."""

import math
import subprocess
import sys
import textwrap
import tracemalloc
import warnings
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy import sparse

from privopt.data.places import GivenPlaces
from privopt.data.rows import MappedRows, take_rows
from privopt.data.targets import choose_records
from privopt.data.units import Units
from privopt.engine.in_process import InProcessEngine
from privopt.engine.reference import ReferenceEngine
from privopt.ledger.events import FixedSize, Poisson, Sampling
from privopt.problems import losses
from privopt.queries.moments import SecondMoment
from privopt.queries.slopes import ClippedGradient

RELATIONS = ["replace-one", "add-or-remove-one"]


class FixedChoice:
    """A source of units that is the same every time."""

    @property
    def units_generator(self) -> np.random.Generator:
        return np.random.default_rng(7)


def dense(units: Units) -> np.ndarray:
    return take_rows(units.private_features, slice(0, len(units.private_targets)))


def exact_norms(units: Units) -> np.ndarray:
    return np.sqrt((dense(units).astype(np.longdouble) ** 2).sum(axis=1))


@given(
    hnp.arrays(
        np.float64,
        (5, 3),
        elements=st.floats(allow_nan=True, allow_infinity=True)
        | st.sampled_from([1e-46, 3e38, 1e300, 0.0, 1.0]),
    ),
    st.sampled_from([1.0, 1e-3, 0.3, 1e20, 7.7]),
    st.sampled_from([None, 0.5, -2.0]),
    st.booleans(),
    st.sampled_from(["float32", "float64"]),
)
def test_stored_rows_obey_the_bound_and_their_norms_are_rounded_up(
    features: np.ndarray, bound: float, intercept: float | None, as_csr: bool, storage: Any
) -> None:
    given_features = sparse.csr_array(features) if as_csr else features
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        units = Units.from_arrays(given_features, row_bound=bound, intercept=intercept, storage=storage)
    assert units.private_features.dtype == storage
    finite = np.isfinite(features).all(axis=1)
    assert np.array_equal(units.private_present, finite)
    assert np.all(units.private_norms <= units.public.row_bound)
    assert np.all(exact_norms(units) <= units.private_norms.astype(np.longdouble))
    assert np.all(units.private_norms <= exact_norms(units) * (1 + 1e-12))
    assert not dense(units)[~finite].any()
    assert units.public.row_bound >= np.hypot(bound, intercept or 0.0)


def test_rows_inside_the_bound_are_kept_and_others_keep_their_direction() -> None:
    units = Units.from_arrays([[0.6, 0.8], [3.0, 4.0], [1e300, 0.0], [0.0, 0.0]], row_bound=1.0)
    np.testing.assert_allclose(dense(units), [[0.6, 0.8], [0.6, 0.8], [1, 0], [0, 0]], rtol=1e-6)
    assert units.private_present.all()


@pytest.mark.parametrize("as_csr", [False, True])
def test_float64_rows_are_exact_inside_the_bound_and_nearly_so_on_it(as_csr: bool) -> None:
    features = np.array([[0.1, 0.7], [3.0, 4.0], [0.0, 0.3]])
    units = Units.from_arrays(
        sparse.csr_array(features) if as_csr else features, row_bound=1.0, intercept=0.1, storage="float64"
    )
    assert dense(units)[[0, 2]].tolist() == [[0.1, 0.7, 0.1], [0.0, 0.3, 0.1]]
    np.testing.assert_allclose(dense(units)[1], [0.6, 0.8, 0.1], rtol=1e-13)
    part = units.subset(GivenPlaces(np.array([0, 2])), 2)
    assert dense(part).tolist() == dense(units)[[0, 2]].tolist()
    mapped = units.mapped(np.diag([1.0, 2.0, 3.0]), 5.0)
    np.testing.assert_allclose(dense(mapped), dense(units) * [1.0, 2.0, 3.0], rtol=1e-14)
    assert {part.private_features.dtype, mapped.private_features.dtype} == {np.dtype(np.float64)}


def test_dense_and_sparse_rows_are_stored_alike() -> None:
    features = np.random.default_rng(0).normal(size=(50, 7)) * (np.arange(7) % 3 > 0)
    features[3] = np.nan
    for intercept in (None, 0.25):
        for form in (sparse.csr_array, sparse.csr_matrix, sparse.coo_array, sparse.csc_matrix):
            left = Units.from_arrays(features, row_bound=1.5, intercept=intercept)
            right = Units.from_arrays(form(features), row_bound=1.5, intercept=intercept)
            np.testing.assert_allclose(dense(left), dense(right), rtol=3e-7)
            np.testing.assert_allclose(left.private_norms, right.private_norms, rtol=3e-7)
            assert right.public.sparse
            assert not left.public.sparse


def test_duplicate_entries_of_a_sparse_row_are_added_and_the_callers_matrix_stays() -> None:
    values, columns = np.array([1.0, 2.0]), np.array([0, 0])
    given_features = sparse.csr_array((values, columns, [0, 2, 2]), shape=(2, 3))
    units = Units.from_arrays(given_features, row_bound=10.0)
    assert dense(units).tolist() == [[3, 0, 0], [0, 0, 0]]
    assert given_features.nnz == 2
    assert values.tolist() == [1.0, 2.0]


@pytest.mark.parametrize("kind", [np.int64, np.bool_, np.float16, np.float32])
def test_any_numeric_type_is_taken(kind: Any) -> None:
    units = Units.from_arrays(np.ones((3, 2), kind), row_bound=2.0)
    assert dense(units).dtype == np.float32
    assert dense(units).tolist() == [[1, 1]] * 3


@pytest.mark.parametrize(
    ("labels", "classes", "codes", "present"),
    [
        ([0, 1, 1, 2], [0, 1], [-1, 1, 1, 0], [1, 1, 1, 0]),
        ([0.0, 1.0, np.nan, np.inf], [1, 0], [1, -1, 0, 0], [1, 1, 0, 0]),
        (["b", "a", "zz", "c"], ["c", "b", "a"], [1, 2, 0, 0], [1, 1, 0, 1]),
        (np.array(["b", None, [], 3], object), ["a", "b"], [1, 0, 0, 0], [1, 0, 0, 0]),
        ([True, False, True, True], [False, True], [1, -1, 1, 1], [1, 1, 1, 1]),
    ],
)
def test_labels_are_mapped_to_codes_and_unknown_ones_count_as_zero(
    labels: Any, classes: list[Any], codes: list[float], present: list[int]
) -> None:
    units = Units.from_arrays(np.ones((4, 1)), labels, row_bound=1.0, classes=classes)
    assert units.private_targets.tolist() == codes
    assert units.private_present.tolist() == [bool(p) for p in present]
    assert units.private_norms[~units.private_present].tolist() == [0.0] * (4 - sum(present))
    assert units.public.outputs == (len(classes) if len(classes) > 2 else 1)


def test_numeric_targets_are_clipped_and_infinite_ones_count_as_zero() -> None:
    targets = [1.0, 9.0, -np.inf, np.nan]
    units = Units.from_arrays(np.ones((4, 1)), targets, row_bound=1.0, target_bounds=(0, 2))
    assert units.private_targets.tolist() == [1.0, 2.0, 0.0, 0.0]
    assert units.private_present.tolist() == [True, True, False, False]


@pytest.mark.later("False-replace-one", "True-add-or-remove-one")
@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize("as_csr", [False, True])
def test_memory_is_taken_for_the_rows_and_everything_public_follows_n(relation: str, as_csr: bool) -> None:
    for rows in (0, 3, 6) if relation == "add-or-remove-one" else (3, 6):
        features = np.ones((rows, 2))
        units = Units.from_arrays(
            sparse.csr_array(features) if as_csr else features,
            np.ones(rows),
            row_bound=2.0,
            relation=relation,
            n=6,
            intercept=1.0,
        )
        assert units.private_features.shape == (rows, 3)
        assert units.private_present.tolist() == [True] * rows
        assert units.private_count == len(units.private_targets) == len(units.private_norms) == rows
        assert units.public.n == 6
        engine = InProcessEngine(units)
        asked = ClippedGradient(loss=losses.squared, at=np.zeros(3), clip=1.0)
        assert engine.clipped_sum(asked).shape == (3,)
        held = engine.gather(asked)  # a statistic may count its vectors, so there are always n
        assert held.shape == (6, 3)
        assert np.any(held != 0.0, axis=1).tolist() == [True] * rows + [False] * (6 - rows)


@pytest.mark.later("True")
@pytest.mark.parametrize("grouped", [False, True])
def test_a_data_set_far_smaller_than_n_takes_no_memory_for_the_rest(grouped: bool) -> None:
    rows = np.random.default_rng(0).normal(size=(200, 3))
    tracemalloc.start()
    units = Units.from_arrays(
        rows,
        row_bound=2.0,
        relation="add-or-remove-one",
        n=10**7,
        groups=np.arange(200) if grouped else None,
    )
    engine = InProcessEngine(units)
    asked = ClippedGradient(loss=losses.squared, at=np.zeros(3), clip=1.0)
    assert engine.clipped_sum(asked).shape == (3,)
    assert len(engine.draw(Poisson(0.5), np.random.default_rng(0))) < 200
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 20e6


@pytest.mark.parametrize(("n", "match"), [(19, "between 20 and twice"), (41, "n = 41 was given with 20")])
def test_under_replace_one_n_is_the_number_of_rows_or_up_to_twice_as_many(n: int, match: str) -> None:
    rows = np.ones((20, 2))
    with pytest.raises(ValueError, match=match):
        Units.from_arrays(rows, row_bound=2.0, n=n)
    for usable in (20, 40):
        assert Units.from_arrays(rows, row_bound=2.0, n=usable).public.n == usable


@pytest.mark.parametrize("relation", RELATIONS)
def test_how_many_users_have_rows_is_private_so_any_larger_n_is_taken(relation: str) -> None:
    for users in (1, 20):
        rows, groups = np.ones((users, 2)), np.arange(users)
        units = Units.from_arrays(rows, row_bound=2.0, n=100, groups=groups, relation=relation)
        assert units.public.n == 100


def test_under_add_or_remove_one_no_message_says_how_many_rows_there_are() -> None:
    with pytest.raises(ValueError, match="there are more rows than n = 19") as refused:
        Units.from_arrays(np.ones((23, 2)), row_bound=2.0, n=19, relation="add-or-remove-one")
    assert "23" not in str(refused.value)


@pytest.mark.parametrize("sampling", [Poisson(0.5), FixedSize(20, 40)])
def test_a_sample_of_absent_units_is_smaller_and_never_beyond_the_rows(sampling: Sampling) -> None:
    engine = InProcessEngine(Units.from_arrays(np.ones((25, 2)), row_bound=2.0, n=40))
    drawn = [engine.draw(sampling, np.random.default_rng(seed)) for seed in range(400)]
    assert max(position for draw in drawn for position in draw) < 25
    assert all(np.all(np.diff(draw) > 0) for draw in drawn)
    taken = np.mean([len(draw) for draw in drawn])
    assert abs(taken - 12.5) < 0.6  # each of the 25 with probability 1 / 2; five standard deviations


def test_users_are_grouped_capped_and_weighted() -> None:
    groups = np.array(["b", "a", "b", "b", "c", "a"], object)
    features = np.arange(6.0)[:, None] + 1
    features[4] = np.nan
    units = Units.from_arrays(
        features,
        np.arange(6),
        row_bound=100.0,
        groups=groups,
        max_records_per_user=2,
        n=6,
        noise=FixedChoice(),
    )
    assert units.public.unit == "user"
    assert units.public.n == 6
    assert units.public.records_per_unit == 2
    offsets = units.private_offsets
    assert offsets is not None
    assert offsets.tolist() == [0, 2, 4, 4]
    assert set(units.private_targets[:2]) < {0.0, 2.0, 3.0}
    assert units.private_targets[2:].tolist() == [
        1.0,
        5.0,
    ]
    assert units.private_weights is not None
    assert units.private_weights.tolist() == [1, 1, 0]


def test_a_record_without_a_user_key_counts_as_nothing() -> None:
    arguments = {"row_bound": 10.0, "n": 3, "noise": FixedChoice()}
    features, keys = np.arange(6.0)[:, None] + 1, ["b", None, "a", "", "b", math.nan]
    units = Units.from_arrays(features, groups=keys, **arguments)
    without = Units.from_arrays(features[[0, 2, 4]], groups=["b", "a", "b"], **arguments)
    assert dense(units).tolist() == dense(without).tolist() == [[1], [5], [3]]
    assert units.private_weights is not None
    assert without.private_weights is not None
    assert units.private_weights.tolist() == without.private_weights.tolist()
    assert Units.from_arrays(features, groups=keys, row_bound=1.0).public.n == 2
    none = Units.from_arrays(features, groups=[None] * 6, relation="add-or-remove-one", **arguments)
    assert none.public.n == 3


def test_weights_follow_the_rule() -> None:
    groups = np.repeat(np.arange(5), [1, 3, 10, 50, 400])
    expected = {
        "sqrt": [0.1, 0.1732050808, 0.316227766, 0.7071067812, 1],
        "user": [1] * 5,
        "record": [0.01, 0.03, 0.1, 0.5, 1],
    }
    for rule, weights in expected.items():
        units = Units.from_arrays(
            np.ones((464, 1)), row_bound=1.0, groups=groups, user_weighting=rule, noise=FixedChoice()
        )
        np.testing.assert_allclose(units.private_weights, weights, rtol=1e-9)  # user-level reference R7


def test_a_users_records_are_chosen_uniformly() -> None:
    generator = np.random.default_rng(3)

    class Source:
        units_generator = generator

    counts = np.zeros(4)
    for _ in range(600):
        units = Units.from_arrays(
            np.ones((5, 1)),
            np.arange(5),
            row_bound=1.0,
            groups=[0, 0, 0, 0, 1],
            max_records_per_user=2,
            noise=Source(),
        )
        counts[units.private_targets[:2].astype(int)] += 1
    assert np.abs(counts - 300).max() < 60  # five standard deviations


def test_a_subset_holds_the_chosen_units() -> None:
    groups = np.array([0, 1, 1, 2, 2, 2])
    for features in (np.arange(6.0)[:, None], sparse.csr_array(np.arange(6.0)[:, None])):
        whole = Units.from_arrays(features, np.arange(6), row_bound=9.0, groups=groups, noise=FixedChoice())
        part = whole.subset(GivenPlaces(np.array([0, 2])), 2)
        assert part.private_targets.tolist() == [0, 3, 4, 5]
        assert part.public.n == 2
        assert part.private_offsets is not None
        assert part.private_offsets.tolist() == [0, 1, 4]
        assert dense(part)[:, 0].tolist() == [0, 3, 4, 5]
        records = Units.from_arrays(features, np.arange(6), row_bound=9.0).subset(
            GivenPlaces(np.array([1, 2, 5])), 3
        )
        assert records.private_targets.tolist() == [1, 2, 5]
        assert records.private_count == 3
        assert part.subset(GivenPlaces(np.array([0, 1, 2, 5])), 4).private_count == 2  # the others are absent


def test_mapped_rows_are_products_inside_the_new_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = np.random.default_rng(1)
    features, matrix = generator.normal(size=(40, 6)), generator.normal(size=(6, 4))
    expected = features @ matrix
    expected *= np.minimum(1.0, 1.5 / np.linalg.norm(expected, axis=1))[:, None]
    for given_features in (features, sparse.csr_array(features)):
        mapped = Units.from_arrays(given_features, row_bound=100.0).mapped(matrix, 1.5)
        np.testing.assert_allclose(dense(mapped), expected, rtol=1e-5, atol=1e-6)
        assert mapped.public.d == 4
        assert mapped.public.row_bound == 1.5
        assert not mapped.public.sparse
    monkeypatch.setattr("privopt.data.storage.DENSE_VIEW_BYTES", 0)
    lazy = Units.from_arrays(sparse.csr_array(features), row_bound=100.0).mapped(matrix, 1.5)
    assert isinstance(lazy.private_features, MappedRows)
    assert "<private>" in repr(lazy.private_features)
    np.testing.assert_allclose(dense(lazy), expected, rtol=1e-5, atol=1e-6)
    assert np.all(exact_norms(lazy) <= lazy.private_norms)
    twice = lazy.mapped(np.eye(4), 1.0)
    assert np.all(exact_norms(twice) <= 1.0)


def test_printing_shows_no_data() -> None:
    units = Units.from_arrays(np.full((2, 1), 0.123456), [0.654321, 1.0], row_bound=1.0)
    assert "123" not in repr(units)
    assert "654" not in repr(units)
    assert "<private>" in repr(units)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"row_bound": None}, ValueError, "row_bound is missing"),
        ({"row_bound": -1.0}, ValueError, "positive"),
        ({"row_bound": np.inf}, ValueError, "positive"),
        ({"row_bound": "1"}, TypeError, "must be a number"),
        ({"features": np.ones(4)}, ValueError, "shape"),
        ({"features": np.array([["a"] * 2] * 4)}, TypeError, "must be numbers"),
        ({"features": np.array([[1, None]] * 4, object)}, TypeError, "must be numbers"),
        ({"features": np.ones((4, 2), complex)}, ValueError, "Complex data not supported"),
        ({"features": np.ones((4, 0))}, ValueError, "at least one column"),
        ({"targets": np.ones(3)}, ValueError, "one for each row"),
        ({"targets": np.ones((4, 1))}, ValueError, "one for each row"),
        ({"targets": np.array(["a"] * 4)}, TypeError, "must be numbers"),
        ({"targets": np.ones(4), "classes": ["a", "b"]}, TypeError, "labels as stored"),
        ({"classes": [0, 1], "targets": None}, ValueError, "without targets"),
        ({"classes": [0, 0]}, ValueError, "different labels"),
        ({"classes": [0]}, ValueError, "different labels"),
        ({"classes": [0, 1], "target_bounds": (0, 1)}, ValueError, "not both"),
        ({"target_bounds": (1, 0)}, ValueError, "low < high"),
        ({"groups": [0, 1, 2]}, ValueError, "one user key"),
        ({"groups": np.zeros((4, 0))}, ValueError, "one user key"),
        ({"groups": [np.nan] * 4}, ValueError, "key is missing .* belongs to nobody"),
        ({"groups": ["a", "", None, pd.NA]}, ValueError, "name 1 users"),
        ({"groups": [0, 1, 2, 3], "max_records_per_user": 0}, ValueError, "at least 1"),
        ({"groups": [0, 1, 2, 3], "user_weighting": "none"}, ValueError, "user_weighting"),
        ({"relation": "add-or-remove-one"}, ValueError, "n is missing"),
        ({"relation": "add-or-remove-one", "n": 3}, ValueError, "more rows than n"),
        ({"relation": "swap", "n": 3}, ValueError, "relation must be"),
        ({"n": 3.0}, TypeError, "must be an integer"),
        ({"groups": [0, 1, 2, 2], "n": 2}, ValueError, "more users than n"),
        ({"intercept": 0.0}, ValueError, "intercept"),
        ({"intercept": np.nan}, ValueError, "intercept"),
    ],
)
def test_wrong_arguments_are_refused_with_a_sentence(
    arguments: dict[str, Any], error: type[Exception], message: str
) -> None:
    given_arguments = {"features": np.ones((4, 2)), "targets": np.ones(4), "row_bound": 1.0, **arguments}
    with pytest.raises(error, match=message):
        Units.from_arrays(given_arguments.pop("features"), given_arguments.pop("targets"), **given_arguments)


def test_loading_makes_no_float64_copy() -> None:
    features = np.random.default_rng(0).normal(size=(60_000, 50)).astype(np.float32)
    Units.from_arrays(features[:10], row_bound=1.0)
    tracemalloc.start()
    try:
        Units.from_arrays(features, row_bound=1.0)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 1.5 * features.nbytes + 50e6  # the float32 copy and some blocks of 8 MB


@pytest.mark.audit
def test_sparse_rows_are_never_made_dense() -> None:
    program = """
    import resource
    import numpy as np
    from scipy import sparse
    from privopt.data.units import Units
    from privopt.engine.in_process import InProcessEngine
    from privopt.problems import losses
    from privopt.queries.slopes import ClippedGradient

    def run(rows, d):
        generator = np.random.default_rng(0)
        columns = generator.integers(0, d, (rows, 20))
        values = generator.normal(size=rows * 20)
        features = sparse.csr_array((values, columns.ravel(), np.arange(0, rows * 20 + 1, 20)), shape=(rows, d))
        targets = generator.integers(0, 2, rows)
        for groups in (None, np.arange(rows) // 3):
            units = Units.from_arrays(features, targets, row_bound=1.0, classes=[0, 1], intercept=0.1, groups=groups)
            engine = InProcessEngine(units)
            gradient = ClippedGradient(loss=losses.logistic, at=np.zeros(d + 1), clip=1.0)
            assert np.isfinite(engine.clipped_sum(gradient)).all()

    run(10, 50)
    used = int(next(line for line in open("/proc/self/status") if line.startswith("VmSize")).split()[1]) * 1024
    limit = used + 600 * 2**20
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    run(20_000, 100_000)   # 8 GB as dense float32
    print("fits")
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.stdout.strip() == "fits", done.stderr[-2000:]


def test_a_query_may_weigh_users_in_its_own_way() -> None:
    units = Units.from_arrays(
        np.ones((4, 1)),
        row_bound=1.0,
        groups=[0, 0, 0, 1],
        max_records_per_user=4,
        user_weighting="sqrt",
        n=3,
        typical_records=3,
    )
    assert units.public.typical_weight == math.sqrt(0.75)
    np.testing.assert_allclose(units.private_weights, np.sqrt([0.75, 0.25]))
    assert units.weighted_as(None) is units
    np.testing.assert_array_equal(units.weighted_as("user").private_weights, [1.0, 1.0])
    np.testing.assert_allclose(units.weighted_as("record").private_weights, [0.75, 0.25])
    for engine in (
        InProcessEngine(units),
        ReferenceEngine(units),
    ):  # the second moment counts users, not records
        np.testing.assert_allclose(engine.clipped_sum(SecondMoment(row_bound=1.0)), [2.0], rtol=1e-5)


@pytest.mark.parametrize(
    ("given", "error", "words"),
    [
        ("many", TypeError, "must be a number"),
        (0, ValueError, "between 1 and the cap of 4"),
        (5, ValueError, "cap of 4"),
    ],
)
def test_the_typical_number_of_records_is_one_a_user_can_have(given: Any, error: Any, words: str) -> None:
    with pytest.raises(error, match=words):
        Units.from_arrays(
            np.ones((2, 1)), row_bound=1.0, groups=[0, 1], max_records_per_user=4, typical_records=given
        )


def test_which_records_are_kept_is_up_to_their_lots_alone() -> None:
    draw = np.random.default_rng(0)
    codes, lots, usable = draw.integers(0, 9, 200), draw.random(200), draw.random(200) < 0.8
    order = draw.permutation(200)

    def kept(rows: np.ndarray, users: int = 9) -> set[int]:
        chosen, offsets = choose_records(codes[rows], usable[rows], users, 5, lots[rows])
        assert np.all(np.diff(offsets) <= 5)
        return set(rows[chosen].tolist())

    whole = kept(np.arange(200))
    assert kept(order) == whole
    without = np.flatnonzero(codes < 8)  # one user goes
    assert kept(without, users=8) == {row for row in whole if codes[row] < 8}
