"""The mixed pass: the same sum on every path, with and without the slopes kept from the pass before."""

import dataclasses
import itertools
import threading
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
import pytest
from scipy import sparse
from tests.support.engine_rows import LOSSES, D, FixedChoice, close, units_for
from tests.support.loop_sums import loop_sum
from tests.support.plain_logistic import PlainLogistic

from privopt.data.rows import MappedRows
from privopt.data.units import Units
from privopt.engine import mixed_kernel
from privopt.engine.in_process import InProcessEngine
from privopt.precision import double_precision
from privopt.problems import losses
from privopt.queries.slopes import ClippedGradient, MixedGradient


@pytest.fixture(autouse=True)
def _double() -> Iterator[None]:
    with double_precision():
        yield


def mixed(at: Any, previous: Any, **changes: Any) -> MixedGradient:
    given = {"loss": losses.logistic, "clip": 0.35, "change_clip": 0.1, "gain": 0.4, **changes}
    return MixedGradient(at=at, previous=previous, **given)


@pytest.mark.at_once("hinge-dense", "huber-dense", "logistic-sparse", "quantile-dense")
@pytest.mark.parametrize(
    ("name", "layout"),
    [(name, "dense") for name in LOSSES]
    + [("logistic", layout) for layout in ("sparse", "dense users", "float64 sparse users")]
    + [("softmax", "dense users"), ("softmax", "sparse")],
)
def test_the_fast_path_equals_the_general_path(name: str, layout: str) -> None:
    loss = LOSSES[name]
    engine = InProcessEngine(units_for(loss, layout))
    shape = (D + 1,) if loss.outputs == 1 else (D + 1, loss.outputs)
    at, previous = np.random.default_rng(2).normal(size=(2, *shape))
    some = np.flatnonzero(np.random.default_rng(3).random(engine.units.private_count) < 0.3)
    for draw in (None, some, some[:0]):
        for clips in ((0.35, 0.1), (np.inf, 0.05), (1e-3, np.inf)):
            asked = mixed(at, previous, loss=loss, clip=clips[0], change_clip=clips[1])
            close(engine.clipped_sum(asked, draw), engine.general_sum(asked, draw))


@pytest.mark.later("None")
@pytest.mark.parametrize("groups", [None, np.arange(300) // 3])
def test_a_users_own_generalised_linear_loss_needs_no_kernel(groups: Any) -> None:
    generator = np.random.default_rng(4)
    rows, targets = generator.normal(size=(300, 4)), np.sign(generator.normal(size=300))
    engine = InProcessEngine(Units.from_arrays(rows, targets, row_bound=2.0, groups=groups))
    at, previous = generator.normal(size=(2, 4))
    own, ours = mixed(at, previous, loss=PlainLogistic()), mixed(at, previous)
    form = own.row_form(engine.units.public)
    assert form is not None
    close(engine.clipped_sum(own), engine.clipped_sum(ours))
    close(engine.clipped_sum(own), engine.general_sum(own))
    without = dataclasses.replace(form, kernel=None)
    assert not without.averages


def test_with_a_gain_of_zero_or_one_it_is_the_gradient_or_the_change() -> None:
    engine = InProcessEngine(units_for(losses.logistic, "dense"))
    at, previous = np.random.default_rng(2).normal(size=(2, D + 1))
    plain = ClippedGradient(loss=losses.logistic, at=at, clip=0.35)
    close(engine.clipped_sum(mixed(at, previous, gain=0.0)), engine.clipped_sum(plain), tolerance=1e-13)
    change = engine.clipped_sum(mixed(at, previous, gain=1.0, change_clip=np.inf))
    ends = [ClippedGradient(loss=losses.logistic, at=point, clip=np.inf) for point in (at, previous)]
    close(change, engine.clipped_sum(ends[0]) - engine.clipped_sum(ends[1]))
    assert not np.any(engine.clipped_sum(mixed(at, at, gain=1.0)))


def path_units(layout: str, width: int, rows: int) -> Units:
    generator = np.random.default_rng(width)
    features: Any = generator.normal(size=(rows, width))
    features[3], features[4, 0] = 1e300, np.nan
    units = Units.from_arrays(
        sparse.csr_array(features) if "sparse" in layout else features,
        generator.integers(0, 2, rows),
        row_bound=1.0,
        classes=[0, 1],
        groups=np.arange(rows) // 3 if "users" in layout else None,
        noise=FixedChoice(),
        storage="float64" if "float64" in layout else "float32",
    )
    if "mapped" not in layout:
        return units
    source = units.private_features
    matrix = generator.normal(size=(width, width))
    public = dataclasses.replace(units.public, sparse=False)
    bound = MappedRows(source, matrix, 1.0)
    private_norms = np.minimum(np.linalg.norm(bound.take(slice(0, rows)), axis=1) * (1 + 1e-6), 1.0)
    return dataclasses.replace(units, public=public, private_features=bound, private_norms=private_norms)


@pytest.mark.later(
    "logistic-dense-1",
    "logistic-dense-20",
    "logistic-dense-54",
    "logistic-dense-7",
    "logistic-float64-33",
    "logistic-sparse mapped users-9",
    "logistic-sparse mapped-9",
    "logistic-sparse users-9",
    "logistic-users-9",
)
@pytest.mark.parametrize(
    ("layout", "width"),
    [("dense", 1), ("dense", 7), ("dense", 20), ("dense", 54), ("float64", 33)]
    + [(layout, 9) for layout in ("sparse", "users", "sparse users", "sparse mapped", "sparse mapped users")],
)
@pytest.mark.parametrize("name", ["logistic", "poisson"])
def test_kept_slopes_change_no_bit_on_any_number_of_threads(layout: str, width: int, name: str) -> None:
    if name == "poisson" and layout not in ("dense", "sparse users"):
        return
    rows = 12_345 if layout in ("dense", "users") else 2_345
    units, points = path_units(layout, width, rows), np.random.default_rng(0).normal(size=(5, width))
    draw = np.flatnonzero(np.random.default_rng(1).random(units.private_count) < 0.7)
    keeping = [InProcessEngine(units, threads=k) for k in (1, 2, 5)]
    # Forward along the path, then a step from a point that is not the last one, one that stays, and a new formula.
    steps = [(0, 0), (1, 0), (2, 1), (3, 2), (1, 0), (1, 1), (2, 1), (4, 2)]
    for t, (at, previous) in enumerate(steps):
        gain = [0.4, 0.9, 0.0, 1.0][t % 4]
        asked = mixed(points[at], points[previous].copy(), loss=LOSSES[name], gain=gain)
        fresh = InProcessEngine(units, threads=1).clipped_sum(asked)
        for engine in keeping:
            assert np.array_equal(engine.clipped_sum(asked), fresh)
            engine.clipped_sum(ClippedGradient(loss=losses.squared, at=points[0], clip=1.0))
        sampled = InProcessEngine(units, threads=1).clipped_sum(asked, draw)
        assert np.array_equal(keeping[0].clipped_sum(asked, draw), sampled)
    if width > 1:
        assert np.linalg.norm(fresh) > 0


def test_kept_slopes_are_used_only_for_their_point_and_formula(monkeypatch: pytest.MonkeyPatch) -> None:
    sources: list[int] = []
    whole = mixed_kernel.sum_mixed_records

    def noted(*arguments: Any) -> None:
        sources.append(arguments[6][0])
        whole(*arguments)

    monkeypatch.setattr("privopt.engine.fast_path.sum_mixed_records", noted)
    engine = InProcessEngine(path_units("dense", 7, rows=100), threads=1)
    points = np.random.default_rng(0).normal(size=(3, 7))
    below = np.nextafter(points[1], 0.0)
    huber = losses.huber(0.5)
    draw = np.arange(50)
    for asked, positions, source in [
        (mixed(points[0], points[1]), None, mixed_kernel.BOTH),
        (mixed(points[1], points[0]), None, mixed_kernel.CARRIED),
        (mixed(points[2], points[1], clip=0.1, change_clip=9.0, gain=0.7), None, mixed_kernel.CARRIED),
        (mixed(points[1], points[1]), None, mixed_kernel.SAME),
        (mixed(points[2], points[1]), draw, mixed_kernel.BOTH),
        (mixed(points[0], points[1]), None, mixed_kernel.CARRIED),
        (mixed(points[1], points[2]), None, mixed_kernel.BOTH),
        (mixed(points[2], below), None, mixed_kernel.BOTH),
        (mixed(points[1], points[2], loss=huber), None, mixed_kernel.BOTH),
        (mixed(points[2], points[1], loss=losses.huber(0.4)), None, mixed_kernel.BOTH),
        (mixed(points[0], points[1], gain=0.0), None, mixed_kernel.SAME),
        (mixed(points[1], points[0]), None, mixed_kernel.CARRIED),
    ]:
        engine.clipped_sum(asked, positions)
        assert sources.pop() == source
    assert not sources
    assert "private" in repr(engine._carried)
    assert len(repr(engine._carried)) < 40


def test_after_a_pass_that_failed_nothing_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    units = path_units("dense", 7, rows=100)
    engine = InProcessEngine(units, threads=1)
    points = np.random.default_rng(0).normal(size=(3, 7))
    engine.clipped_sum(mixed(points[0], points[1]))

    def fails(*arguments: Any) -> None:
        raise MemoryError("stopped in the middle")

    with monkeypatch.context() as patch:
        patch.setattr("privopt.engine.fast_path.sum_mixed_records", fails)
        with pytest.raises(MemoryError, match="stopped"):
            engine.clipped_sum(mixed(points[1], points[0]))
    asked = mixed(points[2], points[0])
    assert np.array_equal(engine.clipped_sum(asked), InProcessEngine(units).clipped_sum(asked))


@pytest.mark.parametrize("name", ["logistic", "softmax"])
def test_the_compiled_loops_sum_equals_the_engines(name: str) -> None:
    loss = LOSSES[name]
    engine = InProcessEngine(units_for(loss, "dense"))
    shape = (D + 1,) if loss.outputs == 1 else (D + 1, loss.outputs)
    at, previous = np.random.default_rng(2).normal(size=(2, *shape))
    asked = mixed(at, previous, loss=loss)
    drawn = np.array([5, 0, 3, 299, 17])
    found = loop_sum(engine, jax.tree.map(np.asarray, asked), drawn, spare=2)
    close(found, engine.clipped_sum(asked, drawn))


def test_passes_at_the_same_time_get_their_own_slopes() -> None:
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(20_000, 4)) / 4.0
    units = Units.from_arrays(rows, np.sign(rows[:, 0]), row_bound=1.0)
    points = rng.normal(size=(6, 4))

    def asked(a: int, b: int) -> MixedGradient:
        return MixedGradient(
            loss=losses.logistic, at=points[a], previous=points[b], clip=1.0, change_clip=0.3, gain=0.7
        )

    pairs = [(a, b) for a in range(6) for b in range(6)]
    truth = {(a, b): InProcessEngine(units, threads=1).clipped_sum(asked(a, b)) for a, b in pairs}
    shared, wrong = InProcessEngine(units, threads=1), []

    def wander(seed: int) -> None:
        steps = np.random.default_rng(seed).integers(6, size=120)
        with double_precision():
            for before, after in itertools.pairwise(steps):
                found = shared.clipped_sum(asked(after, before))
                if not np.array_equal(found, truth[after, before]):
                    wrong.append((before, after))

    threads = [threading.Thread(target=wander, args=(seed,)) for seed in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
