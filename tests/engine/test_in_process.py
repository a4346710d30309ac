"""The in-process engine: all its paths give one sum, and one unit never exceeds its clip."""

import dataclasses
from collections.abc import Iterator
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import sparse, stats
from tests.support.engine_rows import LOSSES, ROWS, D, FixedChoice, close, units_for
from tests.support.loop_sums import loop_sum

from privopt.curator.scan import _on_device
from privopt.data.rows import take_rows
from privopt.data.units import Units
from privopt.engine import fast_path, general_path
from privopt.engine.compiled_loops import traced_sum
from privopt.engine.drawn_rows import absent_rows, in_place
from privopt.engine.in_process import InProcessEngine
from privopt.ledger.events import EveryUnit, FixedSize, Poisson
from privopt.precision import double_precision
from privopt.problems import losses
from privopt.queries.base import KernelCall, RecordSum, RowForm, UnitSum, query, static
from privopt.queries.slopes import ClippedGradient, ClippedGradientDifference


@pytest.fixture(autouse=True)
def _double() -> Iterator[None]:
    with double_precision():
        yield


def queries_for(loss: Any) -> list[Any]:
    generator = np.random.default_rng(2)
    shape = (D + 1,) if loss.outputs == 1 else (D + 1, loss.outputs)
    at, anchor = generator.normal(size=shape), generator.normal(size=shape)
    return [
        ClippedGradient(loss=loss, at=at, clip=0.35),
        ClippedGradient(loss=loss, at=at, clip=np.inf),
        ClippedGradientDifference(loss=loss, at=at, anchor=anchor, slope_clip=0.1),
        ClippedGradientDifference(loss=loss, at=at, anchor=anchor, slope_clip=0.1, gradient_clip=0.3),
    ]


@pytest.mark.at_once("logistic-dense users")
@pytest.mark.parametrize(
    ("name", "layout"),
    [(name, "dense") for name in LOSSES]
    + [
        pytest.param(name, "sparse users", marks=() if name in ("logistic", "softmax") else pytest.mark.audit)
        for name in LOSSES
    ]
    + [("logistic", layout) for layout in ("sparse", "dense users", "float64", "float64 sparse users")]
    + [("softmax", "float64")],
)
def test_the_fast_path_equals_the_general_path(name: str, layout: str) -> None:
    engine = InProcessEngine(units_for(LOSSES[name], layout))
    some = np.flatnonzero(np.random.default_rng(3).random(engine.units.private_count) < 0.3)
    # The JAX form of a difference clips its gradients without the 1e-9 that the per-record form goes inwards.
    tolerance = 1e-10 if LOSSES[name].outputs == 1 else 4e-9
    for asked in queries_for(LOSSES[name]):
        for draw in (None, some, some[:1], some[:0]):
            close(engine.clipped_sum(asked, draw), engine.general_sum(asked, draw), tolerance=tolerance)


@pytest.mark.at_once("128-logistic-3-float64")
@pytest.mark.parametrize(
    ("name", "which", "layout"),
    [("logistic", 3, "dense"), ("softmax", 0, "dense"), ("logistic", 3, "float64")],
)
@pytest.mark.parametrize("block", [4096, 128])  # one block; several, the last one overlapping
def test_the_compiled_loops_sum_equals_the_engines(
    name: str, which: int, layout: str, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("privopt.engine.compiled_loops.BLOCK_ROWS", block)
    engine = InProcessEngine(units_for(LOSSES[name], layout))
    asked = queries_for(LOSSES[name])[which]
    close(loop_sum(engine, asked), engine.clipped_sum(asked), tolerance=4e-9)
    close(loop_sum(engine, asked, spare=5), engine.clipped_sum(asked), tolerance=4e-9)
    drawn = np.array([0, 3, 5, 17, 299])
    close(loop_sum(engine, asked, drawn, spare=2), engine.clipped_sum(asked, drawn), tolerance=4e-9)


@pytest.mark.audit
def test_a_step_counts_its_share_of_the_rows_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of earlier and later steps stand beside them, and blocks that a share ends in."""
    monkeypatch.setattr("privopt.engine.compiled_loops.BLOCK_ROWS", 64)
    engine = InProcessEngine(units_for(losses.logistic, "dense"))
    asked = queries_for(losses.logistic)[0]
    rows = in_place(engine.rows(np.arange(engine.private_count), engine.private_count))
    for room in (1, 7, 128, 200):
        for start, count in ((0, 0), (3, 1), (50, room)):
            found = traced_sum(asked, engine.public, rows, np.array([start, count], np.int32), room)
            close(
                np.asarray(found), engine.clipped_sum(asked, np.arange(start, start + count)), tolerance=4e-9
            )


def test_a_replays_rows_have_the_shapes_of_the_real_ones_and_no_data() -> None:
    engine = InProcessEngine(units_for(losses.logistic, "dense"))
    real, empty = engine.rows(np.array([2, 5]), 7), absent_rows(7, engine.public.d)
    assert [(a.shape, a.dtype) for a in real] == [(a.shape, a.dtype) for a in empty]
    assert not any(np.any(a) for a in empty)
    assert real.private_present.tolist() == [True, True] + [False] * 5


def test_the_drawn_rows_reach_the_compiled_loop_without_another_copy() -> None:
    """And to whoever they are given, they are those that were drawn, in the order of the draw."""
    units = Units.from_arrays(np.arange(3000.0).reshape(1000, 3), np.arange(1000.0), row_bound=1e9)
    rows = InProcessEngine(units).rows(np.array([7, 3, 7]), 4)
    assert rows.private_targets.tolist() == [7.0, 3.0, 7.0, 0.0]
    assert rows.private_features[:, 0].tolist() == [21.0, 9.0, 21.0, 0.0]
    assert np.array_equal(rows.private_norms[:3], units.private_norms[[7, 3, 7]])
    on_device = _on_device(rows.private_features)
    assert on_device.unsafe_buffer_pointer() == rows.private_features.ctypes.data


def test_sparse_rows_and_users_have_no_compiled_loop() -> None:
    for layout in ("sparse", "dense users"):
        with pytest.raises(ValueError, match="dense records"):
            InProcessEngine(units_for(losses.logistic, layout)).rows(np.arange(2), 2)


@pytest.mark.parametrize("layout", ["dense", "sparse", "dense users", "sparse users"])
def test_no_unit_exceeds_its_clip(layout: str) -> None:
    loss = losses.squared
    engine = InProcessEngine(units_for(loss, layout))
    for clip in (1e-12, 0.05, 1.0, 1e6):
        asked = ClippedGradient(loss=loss, at=np.full(D + 1, 1e3), clip=clip)
        gathered = engine.gather(asked)
        assert gathered.shape == (engine.units.private_count, D + 1)
        assert np.all(np.linalg.norm(gathered, axis=1) <= clip)
        close(gathered.sum(axis=0), engine.clipped_sum(asked))
        for unit in (0, 1, 2, 3, 4, 7, 40):
            alone = engine.clipped_sum(asked, np.array([unit]))
            assert np.linalg.norm(alone.astype(np.longdouble)) <= clip
            close(alone, gathered[unit])


@pytest.mark.parametrize("width", [1, 2, 7, 8, 9, 16, 54])
def test_rows_of_any_width_and_number_are_summed_whole(width: int) -> None:
    generator = np.random.default_rng(width)
    at = generator.normal(size=width)
    asked = ClippedGradient(loss=losses.squared, at=at, clip=np.inf)
    for rows in (2, 7, 8, 9, 33, 71):
        units = Units.from_arrays(
            generator.normal(size=(rows, width)), generator.normal(size=rows), row_bound=99.0
        )
        stored = take_rows(units.private_features, slice(0, rows)).astype(np.float64)
        each = (stored @ at - units.private_targets)[:, None] * stored
        engine = InProcessEngine(units)
        close(engine.clipped_sum(asked), each.sum(axis=0), tolerance=1e-12)
        backwards = np.arange(rows)[::-1].copy()
        close(engine.clipped_sum(asked, backwards[:-1]), each[1:].sum(axis=0), tolerance=1e-12)


def test_a_clip_of_zero_and_a_bad_point_give_zero() -> None:
    engine = InProcessEngine(units_for(losses.logistic, "dense"))
    bad = [np.full(D + 1, np.nan), np.full(D + 1, np.inf)]
    for at, clip in [(np.ones(D + 1), 0.0), (bad[0], 1.0), (bad[1], np.nan), (bad[0], np.inf)]:
        asked = ClippedGradient(loss=losses.logistic, at=at, clip=clip)
        assert engine.clipped_sum(asked).tolist() == [0.0] * (D + 1)


@pytest.mark.parametrize("layout", ["dense", "sparse", "dense users", "sparse users"])
def test_two_threads_give_bitwise_what_one_gives(layout: str) -> None:
    generator = np.random.default_rng(5)
    features: Any = generator.normal(size=(30_001, 24))
    units = Units.from_arrays(
        sparse.csr_array(features) if "sparse" in layout else features,
        generator.integers(0, 2, 30_001),
        row_bound=1.0,
        classes=[0, 1],
        groups=np.arange(30_001) // 3 if "users" in layout else None,
        noise=FixedChoice(),
    )
    asked = ClippedGradient(loss=losses.logistic, at=generator.normal(size=24), clip=0.1)
    draw = np.flatnonzero(generator.random(units.private_count) < 0.8)
    for positions in (None, draw):
        sums = [InProcessEngine(units, threads=k).clipped_sum(asked, positions) for k in (1, 2, 3, 16)]
        assert all(np.array_equal(sums[0], other) for other in sums[1:])
    assert len(fast_path.lane_ends(30_001, 24, 24)) > 4


def test_reference_values_of_the_erm_spec() -> None:  # ERM reference 6.3, RV1
    i, j = np.arange(8)[:, None], np.arange(3)[None, :]
    features = np.sin(0.5 + 1.3 * i + 0.7 * j)
    labels = np.where(np.cos(2 * np.arange(8)) > 0, 1, -1)
    w = np.array([0.3, -0.2, 0.5])
    stored: Any = {"row_bound": 1.0, "storage": "float64"}
    classified = InProcessEngine(Units.from_arrays(features, labels, classes=[-1, 1], **stored))
    regressed = InProcessEngine(Units.from_arrays(features, np.cos(np.arange(8)), **stored))
    difference = ClippedGradientDifference(
        loss=losses.logistic, at=w, anchor=0 * w, slope_clip=0.02 / np.linalg.norm(w)
    )
    for found, expected in [
        (
            classified.clipped_sum(ClippedGradient(loss=losses.logistic, at=w, clip=1.0)),
            [0.3106391387, 0.7441686521, 0.8277040204],
        ),
        (
            classified.clipped_sum(ClippedGradient(loss=losses.logistic, at=w, clip=0.4)),
            [0.1339918778, 0.3982367746, 0.4751846937],
        ),
        (
            regressed.clipped_sum(ClippedGradient(loss=losses.squared, at=w, clip=0.5)),
            [-1.5227196871, -0.7641837863, 0.3537596899],
        ),
        (classified.clipped_sum(difference), [0.0475449983, 0.0806351829, 0.0758013811]),
    ]:
        np.testing.assert_allclose(found, expected, rtol=0, atol=3e-9)  # clips aim 1e-9 inside


def test_reference_values_of_the_user_level_spec() -> None:  # user-level reference 10, R6
    i = np.arange(30)
    features = np.stack([np.ones(30), np.sin(i + 1), np.cos(2 * i)], axis=1)
    labels = ((i**2 + i // 7) % 3 == 0).astype(int)
    units = Units.from_arrays(
        features,
        labels,
        row_bound=2.0,
        classes=[0, 1],
        groups=i // 5,
        max_records_per_user=5,
        user_weighting="user",
        storage="float64",
    )
    engine, w = InProcessEngine(units), np.array([0.1, -0.2, 0.3])
    gradients = engine.gather(ClippedGradient(loss=losses.logistic, at=w, clip=np.inf))
    expected = [[0.133705918, -0.0316196445, -0.2741787016], [0.3100766338, -0.0185556064, -0.1453164225]]
    np.testing.assert_allclose(gradients[:2], expected, rtol=0, atol=1e-9)
    norms = [0.3066774117, 0.3429412369, 0.3730347539, 0.0911737634, 0.3970912812, 0.4553772595]
    np.testing.assert_allclose(np.linalg.norm(gradients, axis=1), norms, rtol=0, atol=1e-9)
    mean = engine.clipped_sum(ClippedGradient(loss=losses.logistic, at=w, clip=0.3)) / 6
    np.testing.assert_allclose(mean, [0.1266786289, -0.0549479704, 0.0148665182], rtol=0, atol=1e-9)


def with_softmax_kernel(query_type: type[Any], kind: str) -> type[Any]:
    """The same query, computed by the compiled softmax kernel."""

    @query
    class Compiled(query_type):
        def row_form(self, public: Any) -> RowForm | None:
            form = super().row_form(public)
            inner = getattr(self, "gradient_clip", np.inf)
            call = KernelCall(
                kind=kind, code=int(losses.KernelCode.SOFTMAX), parameters=(0.0, 0.0), inner=inner
            )
            return dataclasses.replace(form, kernel=call)

    return Compiled


@pytest.mark.later("dense")
@pytest.mark.parametrize("layout", ["dense", "sparse"])
def test_the_softmax_kernel_equals_the_general_path(layout: str) -> None:
    loss, some = LOSSES["softmax"], np.arange(3, ROWS, 2)
    for threads in (1, 2):
        engine = InProcessEngine(units_for(loss, layout), threads=threads)
        for asked in queries_for(loss):
            names = [entry.name for entry in dataclasses.fields(asked)]
            kind = "difference" if "anchor" in names else "gradient"
            compiled = with_softmax_kernel(type(asked), kind)(
                **{name: getattr(asked, name) for name in names}
            )
            assert fast_path.supports(engine.units, compiled.row_form(engine.units.public))
            for draw in (None, some, some[:0]):
                close(engine.clipped_sum(compiled, draw), engine.general_sum(asked, draw))


@query
class LargestEntryGradient(ClippedGradient):
    """A gradient clipped in the l_inf norm."""

    radius_norm: ClassVar[str] = "linf"

    kind: Any = static()

    def clip_unit(self, private_vector: Any) -> Any:
        peak = jnp.max(jnp.abs(private_vector))
        return private_vector * jnp.minimum(1.0, self.clip * (1 - 1e-9) / jnp.where(peak > 0, peak, 1.0))

    def row_form(self, public: Any) -> RowForm | None:
        form = super().row_form(public)
        assert form is not None
        kernel = form.kernel if self.kind == "kernel" else None
        assert kernel is None or isinstance(kernel, KernelCall)
        return RowForm(
            points=form.points,
            coefficients=form.coefficients,
            outputs=form.outputs,
            shape=form.shape,
            radius=form.radius,
            norm="linf",
            kernel=kernel,
        )


@pytest.mark.later("dense users-kernel", "dense-blocks")
@pytest.mark.parametrize("kind", ["kernel", "blocks"])
@pytest.mark.parametrize("layout", ["dense", "sparse", "dense users"])
def test_a_clip_in_the_largest_entry(kind: str, layout: str) -> None:
    engine = InProcessEngine(units_for(losses.squared, layout))
    asked = LargestEntryGradient(loss=losses.squared, at=np.ones(D + 1), clip=0.2, kind=kind)
    close(engine.clipped_sum(asked), engine.general_sum(asked))
    assert np.abs(engine.clipped_sum(asked, np.array([8]))).max() == pytest.approx(0.2, rel=1e-6)
    assert np.abs(engine.gather(asked)).max() <= 0.2


@query
class RecordCount(UnitSum):
    """How many records a unit has, and the sum of its targets."""

    def radius(self) -> float:
        return 5.0

    def shape(self, public: Any) -> tuple[int, ...]:
        return (2,)

    def unit_contribution(
        self, private_features: Any, private_targets: Any, private_mask: Any, private_weight: Any
    ) -> Any:
        return jnp.stack([jnp.sum(private_mask), jnp.sum(private_targets * private_mask) / 0.5])


def test_a_query_of_whole_units_sees_each_unit_once() -> None:
    groups = np.array([0, 0, 1, 1, 1, 2])
    units = Units.from_arrays(
        np.ones((6, 1)), [0.5, 0.25, 0, 0, 0, 1e9], row_bound=1.0, groups=groups, n=5, noise=FixedChoice()
    )
    found = InProcessEngine(units).gather(RecordCount())
    np.testing.assert_allclose(found, [[2, 1.5], [3, 0], [0, 5], [0, 0], [0, 0]], atol=1e-7)
    np.testing.assert_allclose(InProcessEngine(units).clipped_sum(RecordCount()), [5, 6.5], atol=1e-7)


TRACES: list[int] = []


def _noted_loss(params: Any, features: Any, target: Any) -> Any:
    """A loss of two layers, infinite for one target; notes each compilation."""
    TRACES.append(1)
    hidden = jnp.tanh(features * params[:6])
    return jnp.where(target > 2.5, jnp.inf, 1.0) * (jnp.sum(hidden * params[6:]) - target) ** 2


CUSTOM = losses.RecordLoss(_noted_loss)


@pytest.mark.later("dense", "dense users")
@pytest.mark.parametrize("layout", ["dense", "dense users", "sparse"])
def test_a_users_own_loss_is_summed_in_chunks_that_change_nothing(
    layout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    units = units_for(losses.squared, layout)
    engine = InProcessEngine(units)
    at = np.random.default_rng(4).normal(size=12)
    asked = ClippedGradient(loss=CUSTOM, at=at, clip=0.5)
    whole = engine.clipped_sum(asked)
    assert np.isfinite(whole).all()
    expected, gradient = np.zeros(12), jax.jit(CUSTOM.gradient)
    for unit in range(units.private_count):
        rows = units.private_rows_of(np.array([unit]))
        rows = rows[units.private_present[rows]]
        if len(rows) == 0:
            continue
        part = jnp.asarray(take_rows(units.private_features, rows), jnp.float64)
        each = [gradient(at, a, y) for a, y in zip(part, units.private_targets[rows], strict=True)]
        mean = np.mean(each, axis=0) * (1 if units.private_weights is None else units.private_weights[unit])
        if np.isfinite(mean).all():
            expected += mean * min(1.0, 0.5 / np.linalg.norm(mean))
    close(whole, expected, tolerance=1e-8)
    monkeypatch.setattr(general_path, "CHUNK_BYTES", 20_000)
    general_path._widths.clear()
    close(engine.clipped_sum(asked), whole)


def test_new_points_and_clips_need_no_new_compilation() -> None:
    engine = InProcessEngine(units_for(losses.squared, "dense"))
    engine.clipped_sum(ClippedGradient(loss=CUSTOM, at=np.ones(12), clip=0.5))
    before = len(TRACES)
    for k in range(3):
        engine.clipped_sum(ClippedGradient(loss=CUSTOM, at=jnp.full(12, 0.1 * k), clip=0.5 + k))
        engine.clipped_sum(ClippedGradient(loss=CUSTOM, at=np.full(12, 0.1 * k), clip=0.5 + k), np.arange(k))
    assert len(TRACES) == before


def test_an_absent_record_contributes_nothing_whatever_the_loss() -> None:
    present = Units.from_arrays(np.ones((3, 6)), np.ones(3), row_bound=9.0)
    padded = Units.from_arrays(
        np.vstack([np.ones((3, 6)), np.full(6, np.nan)]),
        np.ones(4),
        row_bound=9.0,
        n=9,
        relation="add-or-remove-one",
    )
    # The gradient by the bias-like second half of the parameters is not zero at a zero row.
    loss = losses.RecordLoss(lambda p, a, y: jnp.sum(p) + jnp.sum(a) * p[0])
    asked = ClippedGradient(loss=loss, at=np.ones(2), clip=9.0)
    close(InProcessEngine(padded).clipped_sum(asked), InProcessEngine(present).clipped_sum(asked))


def test_a_query_that_is_no_sum_is_refused() -> None:
    engine = InProcessEngine(units_for(losses.squared, "dense"))
    with pytest.raises(TypeError, match="RecordSum, a LotSum or a UnitSum"):
        engine.clipped_sum(object())  # pyright: ignore
    assert issubclass(ClippedGradient, RecordSum)


@pytest.mark.at_once("float64 sparse-True", "sparse-False", "sparse-True")
@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize("layout", ["dense", "sparse", "sparse users", "float64 sparse"])
def test_a_view_is_the_engine_on_mapped_rows(
    layout: str, lazy: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if lazy:
        monkeypatch.setattr("privopt.data.storage.DENSE_VIEW_BYTES", 0)
        monkeypatch.setattr("privopt.engine.fast_path.block_length", lambda width: 37)
    engine = InProcessEngine(units_for(losses.logistic, layout))
    generator = np.random.default_rng(6)
    view = engine.view(generator.normal(size=(D + 1, 3)), 0.8)
    assert view.units.public.d == 3
    assert view.units.public.row_bound == 0.8
    for asked in (
        ClippedGradient(loss=losses.logistic, at=generator.normal(size=3), clip=0.2),
        ClippedGradient(loss=losses.softmax(2), at=generator.normal(size=(3, 2)), clip=0.2),
    ):
        some = np.arange(0, view.units.private_count, 3)
        for draw in (None, some):
            # Rows that are mapped anew have norms known to 1e-6 only, on the safe side.
            close(
                view.clipped_sum(asked, draw), view.general_sum(asked, draw), tolerance=3e-6 if lazy else 1e-9
            )


def test_poisson_draws_are_independent_coins() -> None:
    engine = InProcessEngine(Units.from_arrays(np.ones((5, 1)), row_bound=1.0))
    generator, rate, times = np.random.default_rng(8), 0.3, 8000
    counts = np.zeros(32)
    for _ in range(times):
        draw = engine.draw(Poisson(rate), generator)
        assert np.all(np.diff(draw) > 0)
        counts[int(np.sum(1 << draw))] += 1
    size = np.array([(k).bit_count() for k in range(32)])
    expected = times * rate**size * (1 - rate) ** (5 - size)
    assert stats.chisquare(counts, expected).pvalue > 1e-4


def test_fixed_size_draws_are_uniform_subsets() -> None:
    engine = InProcessEngine(Units.from_arrays(np.ones((6, 1)), row_bound=1.0))
    generator = np.random.default_rng(9)
    counts: dict[bytes, int] = {}
    for _ in range(4500):
        draw = engine.draw(FixedSize(2, 6), generator)
        assert draw.dtype == np.int64
        counts[draw.tobytes()] = counts.get(draw.tobytes(), 0) + 1
    assert len(counts) == 15
    assert stats.chisquare(list(counts.values())).pvalue > 1e-4
    assert engine.draw(EveryUnit(), generator).tolist() == list(range(6))
    assert engine.draw(Poisson(1.0), generator).tolist() == list(range(6))


def test_printing_an_engine_shows_no_data() -> None:
    assert "<private>" in repr(InProcessEngine(units_for(losses.logistic, "dense")))
