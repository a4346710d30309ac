"""Sums over many parts: near those over one, on every path, with the same bits in every order and on any threads."""

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy import sparse
from tests.contracts.queries import EVERY_QUERY, D, is_of_codes, own_residual

from privopt.data.rows import MappedRows
from privopt.data.units import Units
from privopt.engine.in_process import InProcessEngine
from privopt.engine.parts import parts_of, sum_over_parts
from privopt.engine.receiving import ReceivingEngine
from privopt.engine.reference import ReferenceEngine
from privopt.engine.rounding import PART_UNITS, rounding_bound
from privopt.mechanisms.noise import NoiseSource
from privopt.precision import double_precision
from privopt.problems import losses
from privopt.problems.workload import Workload
from privopt.queries.base import MeanQuery
from privopt.queries.marginals import MarginalMeans
from privopt.queries.slopes import ClippedGradient

N = 150
SMALL = 32  # units of a part in the tests that patch it
LAYOUTS = ("dense", "sparse", "users", "sparse users", "mapped", "mapped users")


@pytest.fixture(autouse=True)
def _double() -> Iterator[None]:
    with double_precision():
        yield


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("privopt.engine.parts.PART_UNITS", SMALL)
    monkeypatch.setattr("privopt.engine.receiving.PART_UNITS", SMALL)


def units_for(layout: str, relation: str = "replace-one", n: int = N) -> Units:
    rng = np.random.default_rng(1)
    features: Any = rng.normal(size=(n, D)) * (rng.random((n, D)) < 0.7)
    features[3], features[40], features[70] = np.nan, 1e200, 0.0
    users = "users" in layout
    made = Units.from_arrays(
        sparse.csr_array(features) if layout != "dense" and layout != "users" else features,
        rng.integers(0, 2, n),
        classes=[0, 1],
        row_bound=1.5,
        groups=np.sort(rng.integers(0, n // 2, n)) if users else None,
        max_records_per_user=3,
        relation=relation,
        n=None if relation == "replace-one" else n + 7,
        noise=NoiseSource(1),
    )
    if "mapped" not in layout:
        return made
    matrix = rng.normal(size=(D, D))
    whole = made.mapped(matrix, 1.5)
    rows = MappedRows(made.private_features, matrix, 1.5)
    norms = np.minimum(np.maximum(whole.private_norms, 1e-24) * (1 + 2.0**-20), 1.5)
    return Units(**{**vars(whole), "private_features": rows, "private_norms": norms})


def close(found: Any, expected: Any, radius: float, n: int = N) -> None:
    apart = np.linalg.norm(np.ravel(np.asarray(found) - np.asarray(expected)))
    assert apart <= 2.0 * float(rounding_bound(radius, n)) + 1e-13 * n * radius


def require_parts_agree(
    query: MeanQuery, units: Units, make: Callable[[Units], Any], monkeypatch: Any
) -> None:
    """What an engine sums over one part and over many, over all units and over drawn ones in two orders."""
    count, radius = units.private_count, float(query.radius())
    draw = np.flatnonzero(np.random.default_rng(2).random(count) < 0.4)
    whole = make(units)
    expected = [whole.clipped_sum(query, positions) for positions in (None, draw, draw[:0])]
    with monkeypatch.context() as patch:
        patch.setattr("privopt.engine.parts.PART_UNITS", SMALL)
        engine = make(units)
        found = [engine.clipped_sum(query, positions) for positions in (None, draw, draw[:0])]
        assert len(engine._parts) == -(-count // SMALL) > 1
        order = np.random.default_rng(3).permutation(len(engine._parts))
        with np.errstate(all="ignore"):
            shuffled = [engine._parts[k] for k in order]
            assert sum_over_parts(shuffled, query, None).tobytes() == found[0].tobytes()
    for one, other in zip(found, expected, strict=True):
        assert one.shape == other.shape
        close(one, other, radius, units.public.n)


KERNEL = ClippedGradient(loss=losses.logistic, at=np.linspace(-1, 2, D), clip=0.3)
OWN = ClippedGradient(loss=losses.RecordLoss(own_residual), at=np.ones(D), clip=0.3)


@pytest.mark.later("replace-one")
@pytest.mark.parametrize("relation", ["replace-one", "add-or-remove-one"])
def test_parts_sum_to_what_one_part_sums_to(relation, monkeypatch):
    for layout in ("dense", "sparse users", "mapped"):
        require_parts_agree(KERNEL, units_for(layout, relation), InProcessEngine, monkeypatch)
    require_parts_agree(OWN, units_for("users", relation), ReferenceEngine, monkeypatch)


@pytest.mark.later("replace-one")
@pytest.mark.parametrize("relation", ["replace-one", "add-or-remove-one"])
def test_parts_of_lots_and_of_moments_sum_to_what_one_part_sums_to(relation, monkeypatch):
    units = units_for("dense", relation)
    for name in (
        "gradient at random points",
        "second moment",
    ):  # the lots follow the positions among all units
        require_parts_agree(EVERY_QUERY[name], units, InProcessEngine, monkeypatch)


@pytest.mark.audit
@pytest.mark.parametrize(
    "name", [name for name, query in EVERY_QUERY.items() if isinstance(query, MeanQuery)]
)
def test_every_query_is_summed_over_parts_alike(name, monkeypatch):
    query = EVERY_QUERY[name]
    for layout in ("dense", "users", "sparse"):
        if not is_of_codes(query):
            for make in (InProcessEngine, ReferenceEngine):
                require_parts_agree(query, units_for(layout), make, monkeypatch)


@pytest.mark.audit
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_is_summed_over_parts_alike(layout, monkeypatch):
    for query in (KERNEL, OWN):
        require_parts_agree(query, units_for(layout), InProcessEngine, monkeypatch)


def test_counts_and_shares_are_exact_over_parts(monkeypatch):
    rng = np.random.default_rng(0)
    query = MarginalMeans(workload=Workload.ways((3, 2, 4), 2))
    for groups in (None, np.sort(rng.integers(0, 70, N))):
        units = Units.from_codes(
            rng.integers(0, 4, (N, 3)), levels=(3, 2, 4), groups=groups, noise=NoiseSource(1)
        )
        whole = InProcessEngine(units).clipped_sum(query)
        with monkeypatch.context() as patch:
            patch.setattr("privopt.engine.parts.PART_UNITS", 16)
            np.testing.assert_array_equal(InProcessEngine(units).clipped_sum(query), whole)


def test_threads_do_not_show_in_sums_over_parts(monkeypatch):
    monkeypatch.setattr("privopt.engine.parts.PART_UNITS", 9_000)
    rng = np.random.default_rng(5)
    rows = rng.normal(size=(30_001, 24))
    units = Units.from_arrays(rows, rng.integers(0, 2, 30_001), row_bound=1.0, classes=[0, 1])
    query = ClippedGradient(loss=losses.logistic, at=rng.normal(size=24), clip=0.1)
    for draw in (None, np.flatnonzero(rng.random(30_001) < 0.8)):
        sums = [InProcessEngine(units, threads=k).clipped_sum(query, draw).tobytes() for k in (1, 2, 3, 16)]
        assert len(set(sums)) == 1


class _Tellers:
    """Respondents who answer ones."""

    private_count = N

    def ask(self, asked, private_positions):
        return {position: np.full(asked.shape, 0.1) for position in private_positions.tolist()}


def test_answers_are_received_in_parts(small_parts):
    query = ClippedGradient(loss=losses.squared, at=np.zeros(D), clip=1.0)
    engine = ReceivingEngine(replace(units_for("users").public, n=N), _Tellers())
    np.testing.assert_allclose(engine.clipped_sum(query), np.full(D, 0.1 * N), rtol=1e-12)


def test_parts_are_ranges_and_nothing_is_copied(small_parts):
    for layout in LAYOUTS:
        units = units_for(layout)
        parts = parts_of(units)
        assert [part.first for part in parts] == list(range(0, units.private_count, SMALL))
        assert sum(part.private_count for part in parts) == units.private_count
        assert all(part.public == units.public for part in parts)
        assert np.shares_memory(parts[1].private_targets, units.private_targets)
        if layout == "sparse":
            assert np.shares_memory(parts[1].private_features.data, units.private_features.data)


def adversarial_targets(kind: str, n: int) -> np.ndarray:
    place = np.arange(n)
    if kind == "one part of each size":
        return np.where(
            place < PART_UNITS, 1.0, np.where(place < 2 * PART_UNITS, -1.0, 2.0**-43 * (1 + 2.0**-9))
        )
    return np.where(place % 2 == 0, 1.0, -1.0 + 2.0**-40)


@pytest.mark.later("one part of each size")
@pytest.mark.parametrize("kind", ["one part of each size", "cancelling"])
def test_every_path_sums_millions_within_the_bound(kind):
    n = 2 * PART_UNITS + 4_099
    targets = adversarial_targets(kind, n)
    # A power of two as feature: every product is exact, so fsum of the products is the exact sum.
    units = Units.from_arrays(np.full((n, 1), 0.5), targets, row_bound=1.0)
    exact = math.fsum(-0.5 * targets)
    query = ClippedGradient(loss=losses.squared, at=np.zeros(1), clip=1.0)
    engine = InProcessEngine(units)
    sums = {
        "kernel": engine.clipped_sum(query),
        "one thread": InProcessEngine(units, threads=1).clipped_sum(query),
        "general": engine.general_sum(query),
        "drawn": engine.clipped_sum(query, np.random.default_rng(0).permutation(n)),
    }
    for path, found in sums.items():
        assert abs(float(np.asarray(found)[0]) - exact) <= rounding_bound(1.0, n), path
    assert sums["kernel"].tobytes() == sums["one thread"].tobytes()
