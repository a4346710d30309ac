"""The streamed engine has the bits of the one in memory, whatever is read, asked and drawn."""

import dataclasses
import gc
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import sparse
from tests.contracts.cases import BUDGET, EVERY_CASE, N, toy_arrays
from tests.contracts.queries import EVERY_QUERY, D
from tests.support.spooled import spooled

from privopt.curator.local import LocalCurator
from privopt.data.places import GivenPlaces
from privopt.data.read_units import read_units
from privopt.data.record_source import ArrayRecords, Description, RecordSource
from privopt.data.rows import GridRows
from privopt.data.units import Units
from privopt.engine.in_process import InProcessEngine
from privopt.engine.placement import Placement
from privopt.engine.streamed import StreamedEngine, open_streamed, opening
from privopt.errors import ArgumentError, DataUnavailable
from privopt.ledger.payer import Unlimited
from privopt.mechanisms.noise import NoiseSource
from privopt.planning.task import Instance
from privopt.precision import double_precision
from privopt.problems import losses
from privopt.queries.slopes import ClippedGradient, MixedGradient
from privopt.solve import rehearse
from privopt.testing import check_engine

ROWS, SMALL = 150, 32
RNG = np.random.default_rng(1)
FEATURES = RNG.normal(size=(ROWS, D)) * (RNG.random((ROWS, D)) < 0.7)
FEATURES[3], FEATURES[40], FEATURES[70] = np.nan, 1e200, 0.0
LABELS = RNG.integers(0, 2, ROWS)
KEYS = RNG.integers(0, ROWS // 3, ROWS)
WORDS = np.array([None if key == 2 else f"user {key}" for key in KEYS], object)
LAYOUTS: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "dense": (FEATURES, None, {"intercept": 1.0}),
    "columns": (np.asfortranarray(FEATURES), None, {"storage": "float64"}),
    "int8": (FEATURES, None, {"storage": "int8", "intercept": 1.0}),
    "sparse": (sparse.csr_array(FEATURES), None, {"intercept": 1.0}),
    "users": (FEATURES, KEYS, {"max_records_per_user": 2}),
    "int16 users": (FEATURES, KEYS, {"storage": "int16", "max_records_per_user": 2}),
    "sparse users": (sparse.csr_array(FEATURES), WORDS, {"max_records_per_user": 2}),
    "two keys": (FEATURES, np.stack([KEYS % 5, KEYS // 5], axis=1), {"max_records_per_user": 2}),
}
POINTS = RNG.normal(size=(3, D))
KERNEL = ClippedGradient(loss=losses.logistic, at=POINTS[0], clip=0.3)
QUERIES = (
    KERNEL,
    EVERY_QUERY["second moment"],
    MixedGradient(
        loss=losses.logistic, at=POINTS[1], previous=POINTS[0], clip=0.5, change_clip=0.1, gain=0.9
    ),
    MixedGradient(
        loss=losses.logistic, at=POINTS[2], previous=POINTS[1], clip=0.5, change_clip=0.1, gain=0.9
    ),
    MixedGradient(
        loss=losses.logistic, at=POINTS[0], previous=POINTS[1], clip=0.5, change_clip=0.1, gain=0.9
    ),
)

REPRESENTATIVE = {"stochastic gradient descent", "continuous spider", "whitening"}


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch):
    monkeypatch.setattr("privopt.data.record_source.BLOCK_RECORDS", 7)
    with double_precision():
        yield


@pytest.fixture
def small_parts(monkeypatch):
    monkeypatch.setattr("privopt.engine.parts.PART_UNITS", SMALL)


def described(layout):
    features, keys, rest = LAYOUTS[layout]
    return ArrayRecords(features, LABELS, keys), Description(row_bound=1.5, classes=[0, 1], **rest)


def in_memory(layout):
    features, keys, rest = LAYOUTS[layout]
    return Units.from_arrays(
        features, LABELS, groups=keys, row_bound=1.5, classes=[0, 1], noise=NoiseSource(3), **rest
    )


def streamed(layout, folder, memory=1):
    source, description = described(layout)
    return open_streamed(source, description, Placement(spool=folder, memory=memory), noise=NoiseSource(3))


def require_equal(private_one, private_other):
    """The same units to the last bit, wherever they lie."""
    for name in (field.name for field in dataclasses.fields(private_one)):
        one, other = getattr(private_one, name), getattr(private_other, name)
        if name in ("room", "origin"):
            continue
        if sparse.issparse(one):
            for part in ("data", "indices", "indptr"):
                np.testing.assert_array_equal(getattr(one, part), getattr(other, part))
            assert one.shape == other.shape
        elif isinstance(one, GridRows):
            assert one.private_steps.dtype == other.private_steps.dtype
            assert one.private_steps.tobytes() == other.private_steps.tobytes()
            assert (one.shape, one.steps.tobytes()) == (other.shape, other.steps.tobytes())
        elif isinstance(one, np.ndarray):
            assert (one.dtype, one.shape, one.tobytes()) == (other.dtype, other.shape, other.tobytes())
        else:
            assert one == other


@pytest.mark.later("int16 users", "sparse users", "two keys")
@pytest.mark.parametrize("layout", LAYOUTS)
def test_units_that_are_read_in_blocks_are_those_of_the_arrays(layout, tmp_path):
    expected = in_memory(layout)
    source, description = described(layout)
    require_equal(expected, read_units(source, description, noise=NoiseSource(3)))
    units = streamed(layout, tmp_path).units
    require_equal(expected, units)
    assert units.origin == description.origin(source)
    some = GivenPlaces(np.arange(0, units.private_count, 3))
    require_equal(expected.subset(some, len(some)), units.subset(some, len(some)))
    matrix = RNG.normal(size=(units.public.d, 3))
    require_equal(expected.mapped(matrix, 1.2), units.mapped(matrix, 1.2))


@pytest.mark.later("columns", "users", "int16 users")
@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("layout", ["columns", "users", "two keys", "int16 users"])
def test_sums_over_many_parts_have_the_bits_of_those_in_memory(layout, tmp_path):
    memory, spool = InProcessEngine(in_memory(layout)), streamed(layout, tmp_path)
    assert len(spool._parts) > 1
    some = np.flatnonzero(RNG.random(memory.private_count) < 0.4)
    for query in QUERIES:
        for draw in (None, some):
            assert memory.clipped_sum(query, draw).tobytes() == spool.clipped_sum(query, draw).tobytes()
    assert memory.gather(KERNEL).tobytes() == spool.gather(KERNEL).tobytes()
    for one, other in (
        (memory.view(np.eye(D) / 2, 1.0), spool.view(np.eye(D) / 2, 1.0)),
        (memory.subset(GivenPlaces(some), len(some)), spool.subset(GivenPlaces(some), len(some))),
    ):
        assert type(other) is StreamedEngine
        assert one.clipped_sum(KERNEL).tobytes() == other.clipped_sum(KERNEL).tobytes()


def test_the_streamed_engine_keeps_the_promises_of_every_engine(tmp_path):
    check_engine(partial(spooled, folder=tmp_path), relations=["add-or-remove-one"], pairs=1)


@pytest.mark.audit
def test_the_streamed_engine_keeps_the_promises_in_every_layout(tmp_path):
    layouts = ["dense", "sparse", "users"]
    check_engine(partial(spooled, folder=tmp_path), layouts=layouts, storages=["float32", "float64"], pairs=8)
    check_engine(partial(spooled, folder=tmp_path), layouts=["dense", "users"], storages=["int8"], pairs=8)


@pytest.mark.at_once("continuous spider")
@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id=case.name, marks=() if case.name in REPRESENTATIVE else (pytest.mark.audit,))
        for case in EVERY_CASE
        if "replace-one" in case.relations
    ],
)
def test_a_run_takes_no_more_room_than_was_reserved(case, tmp_path, monkeypatch):
    monkeypatch.setattr("privopt.engine.parts.PART_UNITS", 16)
    features, targets = toy_arrays(case)
    keys = np.arange(N) // 2 if case.by_user else None
    users = {"max_records_per_user": 3} if case.by_user else {}
    n = N // 2 if case.by_user else N
    engine = open_streamed(
        ArrayRecords(features, targets, keys),
        Description(row_bound=1.0, n=n, **users),
        Placement(spool=tmp_path, memory=1),
        noise=NoiseSource(7),
    )
    solver = case.solver.configure(Instance(case.problem, engine.public, BUDGET))
    engine.reserve(rehearse(solver, case.problem, engine, engine.public, BUDGET).extra())
    monkeypatch.setattr("privopt.engine.streamed.disk.take_room", None)
    curator = LocalCurator(engine, Unlimited("replace-one"), noise=NoiseSource(1))
    assert len(solver.solve(curator, case.problem).transcript) > 0


class Breaks(ArrayRecords):
    """Records of which the file is gone halfway."""

    def blocks(self, start, stop):
        for place, block in enumerate(super().blocks(start, stop)):
            if place == 4:
                raise DataUnavailable("the file is gone.")
            yield block


class Shrinks(ArrayRecords):
    """Records that are fewer than they were."""

    def blocks(self, start, stop):
        return super().blocks(start, stop - 10)


@pytest.mark.parametrize("kind", [Breaks, Shrinks])
def test_a_source_that_breaks_leaves_nothing_behind(kind: type[RecordSource], tmp_path):
    before = open_files(tmp_path)
    with pytest.raises(DataUnavailable, match=r"gone|changed"):
        open_streamed(kind(FEATURES, LABELS), Description(row_bound=1.0), Placement(spool=tmp_path))  # type: ignore[call-arg]
    gc.collect()
    assert open_files(tmp_path) == before == []
    assert list(tmp_path.iterdir()) == []


def open_files(folder):
    """What this process has open in a folder, with or without a name."""
    links = [path for path in Path("/proc/self/fd").iterdir() if path.is_symlink()]
    return sorted({str(path.readlink()) for path in links if str(path.readlink()).startswith(str(folder))})


def test_a_closed_engine_gives_its_spool_back_and_says_so(tmp_path):
    engine = streamed("dense", tmp_path)
    public = engine.public
    query = ClippedGradient(loss=losses.logistic, at=np.ones(D + 1), clip=0.3)
    engine.clipped_sum(query)
    view = engine.view(np.eye(D + 1), 1.0)
    assert len(open_files(tmp_path)) == 2
    engine.close()
    engine.close()
    assert engine.public == public
    assert "private" not in repr(engine)
    with pytest.raises(DataUnavailable, match="closed"):
        engine.clipped_sum(query)
    view.clipped_sum(query)  # its own spool, and what it shares with the first
    view.close()
    gc.collect()
    assert open_files(tmp_path) == []


def test_an_engine_that_nobody_refers_to_gives_its_spool_back(tmp_path):
    engine = streamed("sparse", tmp_path)
    assert open_files(tmp_path)
    del engine
    gc.collect()
    assert open_files(tmp_path) == []


def test_more_records_than_n_are_refused_before_there_is_a_spool(tmp_path, monkeypatch):
    monkeypatch.setattr("privopt.engine.streamed.opening.Spool", None)
    source = ArrayRecords(FEATURES, LABELS)
    with pytest.raises(ArgumentError, match="more rows than n"):
        open_streamed(
            source,
            Description(row_bound=1.0, n=ROWS - 1, relation="add-or-remove-one"),
            Placement(spool=tmp_path),
        )


def test_records_that_do_not_fit_the_disk_are_refused_before_any_is_read(tmp_path):
    source = Breaks(FEATURES, LABELS)
    source.rows = 10**13
    secret, missing = (
        Description(row_bound=1.0, relation="add-or-remove-one", n=10**14),
        "[0-9,.]+ MB are missing",
    )
    for folder in (tmp_path, tmp_path / "new"):
        with pytest.raises(ArgumentError, match="no room for the rows in the spool's folder") as raised:
            open_streamed(source, secret, Placement(spool=folder))
        assert not set("123456789") & set(str(raised.value).replace(str(folder), ""))  # it tells no number
        with pytest.raises(ArgumentError, match=rf"\(--spool\)\. At least {missing}\.$"):
            open_streamed(source, Description(row_bound=1.0), Placement(spool=folder))
    assert [path.name for path in tmp_path.iterdir()] == ["new"]
    assert (tmp_path / "new").stat().st_mode & 0o777 == 0o700


def test_a_folder_that_cannot_be_used_is_refused(tmp_path):
    file = tmp_path / "file"
    file.write_text("")
    for folder in (file, file / "below", tmp_path / "a" / "b", "/proc"):
        with pytest.raises(ArgumentError, match="spool's folder"):
            open_streamed(ArrayRecords(FEATURES, LABELS), Description(row_bound=1.0), Placement(spool=folder))


def test_points_that_do_not_fit_beside_the_spool_are_refused(tmp_path):
    engine = open_streamed(
        ArrayRecords(FEATURES, LABELS),
        Description(row_bound=1.0),
        Placement(spool=tmp_path, memory=opening.LEAST_HELD + 8),
    )
    most = opening.LEAST_HELD // 8 + 1
    view = engine.view(np.eye(FEATURES.shape[1]), 1.0)
    for each in (engine, view):
        each.require(ClippedGradient, most)
        with pytest.raises(ValueError, match=f"ClippedGradient is to be held .* {most + 1:,} numbers take"):
            each.require(ClippedGradient, most + 1)
    engine.close()
