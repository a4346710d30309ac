"""What a run makes of its units has its room before the run is paid for; a disk that is too small costs nothing."""

import errno
import gc
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from scipy import sparse
from tests.support.small_disk import SmallDisk

from privopt import Account, Budget, LogisticRegression, PrivateSearchCV, Table, losses
from privopt.curator.dry_run import DryRun, foresee
from privopt.data import blocks, places, storage
from privopt.data.record_source import ArrayRecords, Description
from privopt.data.storage import Derived, Extra, record_bytes
from privopt.engine.placement import Placement
from privopt.engine.streamed import disk as streamed_disk
from privopt.engine.streamed import open_streamed
from privopt.engine.streamed.disk import Residency
from privopt.engine.streamed.spool import Spool
from privopt.errors import ArgumentError, DataUnavailable
from privopt.papers.phased_sgd import PhasedSGD
from privopt.papers.strongly_convex_stages import StronglyConvexStages
from privopt.problems.constraints import L1Ball
from privopt.problems.problem import Problem
from privopt.public import Public, Relation
from privopt.solve import minimize
from privopt.solvers.adaptive_gradient_descent import AdaptiveGradientDescent
from privopt.solvers.clip_choice import PrivateClip
from privopt.solvers.frank_wolfe import FrankWolfe
from privopt.solvers.gradient_descent import GradientDescent
from privopt.solvers.randomized_smoothing import RandomizedSmoothing
from privopt.solvers.whitening import Whitening

ROWS, D, MB = 20_000, 20, 2**20
RNG = np.random.default_rng(0)
FEATURES = RNG.normal(size=(ROWS, D)).astype(np.float32)
LABELS = (FEATURES[:, 0] + RNG.normal(size=ROWS) > 0).astype(int)
SPARSE = sparse.csr_array(FEATURES * (RNG.random((ROWS, D)) < 0.2))
WHITENED = Whitening(inner=GradientDescent(steps=2))
LASSO = Problem(losses.logistic, constraint=L1Ball(2.0))
RUNS: dict[str, tuple[Any, Any, Any, Any]] = {
    "a map": (FEATURES, None, losses.logistic, WHITENED),
    "a map of integers": (FEATURES, None, losses.logistic, WHITENED),
    "a map of users": (FEATURES, np.arange(ROWS) // 3, losses.logistic, WHITENED),
    "a map of CSR": (SPARSE, None, losses.logistic, WHITENED),
    "blocks": (FEATURES, None, losses.logistic, PhasedSGD(phases=3)),
    "blocks of CSR": (SPARSE, None, losses.logistic, PhasedSGD(phases=3)),
    "largest entries": (FEATURES, None, LASSO, FrankWolfe(steps=3)),
}


def opened(what, folder):
    features, keys, _, _ = RUNS[what]
    rest: dict[str, Any] = {"storage": "int8"} if what == "a map of integers" else {}
    if keys is not None:
        rest["n"] = ROWS
    source = ArrayRecords(features, LABELS, keys)
    return open_streamed(
        source, Description(row_bound=1.0, classes=[0, 1], **rest), Placement(spool=folder, memory=2 * MB)
    )


def run(what, engine, account=None):
    _, _, problem, solver = RUNS[what]
    minimize(problem, engine, budget=Budget(1.0, 1e-6), solver=solver, account=account)


@pytest.fixture(autouse=True)
def _several_hands(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (blocks, storage, places):  # so that orders are kept
        monkeypatch.setattr(module, "DEALT", 1000)


@pytest.mark.at_once("a map of CSR")
@pytest.mark.parametrize(
    "what",
    [
        pytest.param(
            what, marks=[pytest.mark.audit] if what in ("a map of integers", "blocks of CSR") else []
        )
        for what in RUNS
    ],
)
def test_nothing_is_taken_of_the_disk_once_a_run_is_paid_for(what, tmp_path, monkeypatch):
    monkeypatch.setattr("privopt.engine.parts.PART_UNITS", 4096)
    engine = opened(what, tmp_path)
    disk, take = SmallDisk(tmp_path, monkeypatch), streamed_disk.take_room
    before = disk.taken()

    class Paid(Account):
        def spend(self, *arguments, **named):
            def full(*_):
                raise OSError(errno.ENOSPC, "full")

            monkeypatch.setattr(streamed_disk, "take_room", full)
            return super().spend(*arguments, **named)

    run(what, engine, Paid(10.0, 1e-4))
    gc.collect()
    assert disk.taken() == before  # given back
    monkeypatch.setattr(streamed_disk, "take_room", take)
    disk.size = before
    account = Account(10.0, 1e-4)
    if "largest" in what:
        run(what, engine, account)
        return
    with pytest.raises(ArgumentError, match=r"no room for the rows .* linear map"):
        run(what, engine, account)
    assert not account.entries
    assert disk.taken() == before


@pytest.mark.audit
@pytest.mark.parametrize(
    "what",
    [
        "stages",
        pytest.param("one stage", marks=pytest.mark.audit),
        pytest.param("search", marks=pytest.mark.audit),
    ],
)
def test_a_fit_of_a_table_on_a_disk_of_any_size_goes_through_or_costs_nothing(what, tmp_path, monkeypatch):
    columns = {f"x{k}": {"kind": "num", "low": -5, "high": 5} for k in range(D)}
    schema = {"columns": {**columns, "y": {"kind": "cat", "levels": [0, 1]}}, "target": "y"}
    pq.write_table(
        pa.table({**{f"x{k}": FEATURES[:, k] for k in range(D)}, "y": LABELS}), tmp_path / "t.parquet"
    )
    folder = tmp_path / "spool"
    folder.mkdir()
    disk = SmallDisk(folder, monkeypatch)

    def goes_through(size):
        """Whether a fit does on a disk of some size; else nothing was paid. Nothing is left in any case."""
        disk.size, disk.most, account = size, 0, Account(10.0, 1e-4)
        given = Table.open(tmp_path / "t.parquet", schema, engine="stream", spool=folder)
        asked: dict[str, Any] = {"epsilon": 1.0, "delta": 1e-6, "account": account}
        model: Any = LogisticRegression(**asked, solver=WHITENED)
        if what == "stages":
            model = model.set_params(loose_bounds=(-50.0, 50.0))
        elif what == "search":
            model = PrivateSearchCV(LogisticRegression(solver=WHITENED), {"alpha": [0.01, 1.0]}, **asked)
        try:
            model.fit(given)
        except ArgumentError:  # that there is no room
            assert not account.entries
        gc.collect()
        assert disk.taken() == 0
        return bool(account.entries)

    assert goes_through(None)
    enough = disk.most
    assert enough > ROWS * (2 * 4 * D + 100)  # rows, and a map of them
    assert goes_through(enough)
    found = [goes_through(int(less * enough)) for less in (0.99, 0.9, 0.7, 0.1)]
    assert found == sorted(found, reverse=True)
    assert not any(found[-1:] if what == "search" else found)  # garbage is collected where room is short


def test_a_search_without_room_gives_its_rows_back_at_once(tmp_path, monkeypatch):
    schema = {"columns": {"a": {"kind": "num", "low": -5, "high": 5}, "y": {"kind": "flag"}}, "target": "y"}
    pq.write_table(pa.table({"a": FEATURES[:, 0], "y": LABELS}), tmp_path / "t.parquet")
    given = Table.open(tmp_path / "t.parquet", schema, engine="stream", spool=tmp_path)
    search = PrivateSearchCV(LogisticRegression(), {"alpha": [0.01, 1.0]}, epsilon=1.0, delta=1e-6)
    disk = SmallDisk(tmp_path, monkeypatch)

    def refuse(self, extra):
        raise ArgumentError("no room")

    monkeypatch.setattr("privopt.engine.streamed.opening.StreamedEngine.reserve", refuse)
    with pytest.raises(ArgumentError, match="no room") as kept:
        search.fit(given)
    assert disk.most > 0
    assert disk.taken() == 0  # though what was raised, and refers to them, is kept
    assert kept.tb is not None


def test_nothing_is_rehearsed_for_rows_in_memory(tmp_path, monkeypatch):
    columns = {f"x{k}": {"kind": "num", "low": -5, "high": 5} for k in range(2)}
    schema = {"columns": {**columns, "y": {"kind": "flag"}}, "target": "y"}
    rows = {f"x{k}": FEATURES[:200, k] for k in range(2)}
    pq.write_table(pa.table({**rows, "y": LABELS[:200]}), tmp_path / "t.parquet")
    search = PrivateSearchCV(
        LogisticRegression(solver="gradient-descent"), {"alpha": [0.01, 1.0]}, epsilon=1.0, delta=1e-6
    )

    class Rehearsed(Exception):
        pass

    def rehearsal(*_, **__):
        raise Rehearsed("here")

    monkeypatch.setattr("privopt.curator.dry_run.DryRun", rehearsal)
    search.fit(Table.open(tmp_path / "t.parquet", schema, engine="memory"))
    with pytest.raises(Rehearsed, match="here"):
        search.fit(Table.open(tmp_path / "t.parquet", schema, engine="stream", spool=tmp_path))


def test_what_is_reserved_is_lent_again_and_is_zeros_each_time(tmp_path, monkeypatch):
    place = Spool(tmp_path, 0, Residency(MB))
    place.reserve(96 * 4096)
    disk = SmallDisk(tmp_path, monkeypatch)
    disk.size = 96 * 4096
    for turn in range(5):
        arrays = [place.another(40_000 * (1 + turn % 2)).zeros(5000, np.float64) for _ in range(2)]
        assert not any(array.any() for array in arrays)
        for number, array in enumerate(arrays):
            array[...] = number + 1
        other = place.another(100)
        kept = other.keep(np.arange(7.0))
        assert [set(array) for array in arrays] == [{1.0}, {2.0}]
        np.testing.assert_array_equal(kept, np.arange(7.0))
        written = other.zeros((3, 2), np.float32)
        other.write(written, 1, np.ones((2, 2)))
        np.testing.assert_array_equal(written[:, 0], [0, 1, 1])
        del arrays, array, kept, other, written
    with pytest.raises(DataUnavailable, match="no room"):
        place.zeros(10**6, np.float64)
    lasting = place.another(100).keep(np.arange(9.0))
    place.reserve(0)
    np.testing.assert_array_equal(lasting, np.arange(9.0))  # its file lives as long as it does
    del lasting
    gc.collect()
    assert disk.taken() == 0


def test_what_is_made_of_units_is_counted_by_public_numbers():
    public = Public(n=1000, d=10)
    whole, row = Derived(public), record_bytes(public, computed=False)
    assert whole.extra() == Extra()
    view = whole.view(public.mapped(4, 1.0))
    wide = record_bytes(view.public, computed=False)
    assert row - wide == 4 * 6
    one, other = whole.cut([public.block(400), public.block(600)])
    one.view(public.mapped(10, 1.0))
    other.cut([public.block(300)] * 2)
    assert whole.extra() == Extra(record=wide + row + row, copies=0, sets=1 + 2 + 1 + 2)
    assert whole.beyond(public) == Extra(record=wide + 2 * row, copies=0, sets=7)
    assert whole.extra().bytes(1000, 0, 3) > 1000 * (wide + 2 * row)
    entries = Derived(Public(n=10**9, d=1000, sparse=True))
    entries.view(entries.public.mapped(1000, 1.0)).cut([entries.public.block(10)])  # too wide to be stored
    assert entries.extra().copies == 1
    assert Extra(5, 2, 0).bytes(10, 7, 1) == 64


def test_a_map_to_fewer_columns_counts_as_one_to_all_since_releases_may_choose_them():
    public = Public(n=1000, d=10)
    rehearsal = DryRun(public)
    rehearsal.view(np.zeros((10, 2)), 1.0).view(np.zeros((2, 2)), 1.0)
    rehearsal.blocks(2)
    row = record_bytes(public, computed=False)
    assert rehearsal.derived.extra() == Extra(record=3 * row, copies=0, sets=4)


@pytest.mark.parametrize("relation", list(Relation))
def test_of_a_block_that_may_have_drawn_more_than_one_hand_the_order_has_its_room(relation):
    """Of 1000 positions a hand: of a block of 1000 it is kept where more than 1000 may have joined."""
    whole = Derived(Public(n=3000, d=2, relation=relation))
    (block,) = whole.cut([whole.public.block(1000)])
    block.cut([block.public.block(100)])
    row, order = record_bytes(whole.public, computed=False), storage.ORDER_BYTES
    more = relation is Relation.ADD_OR_REMOVE_ONE
    assert whole.extra() == Extra(record=2 * row + (1 + more) * order, sets=3 + more)


def test_of_an_adaptive_solver_room_is_taken_for_all_that_it_may_make(tmp_path):
    engine, row = opened("blocks", tmp_path), record_bytes(Public(n=ROWS, d=D), computed=False)

    def taken(solver):
        derived = Derived(engine.public)
        foresee(solver, lambda curator: None, engine, derived)
        return derived.extra()

    order = storage.ORDER_BYTES  # of a cut in several hands
    assert taken(PrivateClip()) == Extra(record=2 * row + order, sets=3)
    assert taken(AdaptiveGradientDescent()) == Extra()
    for share, maps in ((0.0, 1), (0.1, 2)):
        whitened = Whitening(inner=AdaptiveGradientDescent(), rescaling_share=share, quantile_share=0.0)
        assert taken(whitened) == Extra(record=maps * row, sets=maps)
        assert taken(RandomizedSmoothing(inner=whitened)) == Extra(record=maps * row, sets=maps)
        staged = StronglyConvexStages(inner=whitened)
        assert taken(staged) == Extra(record=(1 + maps) * row + order, sets=2 + maps)
    engine.close()
    gc.collect()
    with pytest.raises(DataUnavailable, match="closed"):
        engine.reserve(Extra(record=1))
    engine.reserve(Extra())


@pytest.mark.audit
def test_room_for_the_most_entries_of_a_schema_is_taken_before_they_are_read(tmp_path, monkeypatch):
    class Told(ArrayRecords):
        row_entries = D

    disk = SmallDisk(tmp_path, monkeypatch)
    for keys in (None, np.arange(ROWS) // 2):
        disk.size, disk.most = None, 0
        description = Description(row_bound=1.0, n=ROWS)
        engine = open_streamed(Told(SPARSE, LABELS, keys), description, Placement(spool=tmp_path))
        assert disk.most >= ROWS * D * 8 > 8 * SPARSE.nnz
        assert disk.taken() < disk.most - ROWS * D * 4  # what entries did not need is given back
        needed = disk.most
        del engine
        gc.collect()
        assert disk.taken() == 0
        disk.size = needed - 4096
        with pytest.raises((ArgumentError, DataUnavailable), match="no room"):
            open_streamed(
                Told(SPARSE[:, :1] * 0.0, LABELS, keys), description, Placement(spool=tmp_path)
            )  # whatever there is to be read
        gc.collect()
