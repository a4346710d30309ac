"""Sums in NumPy: those of the compiled kernels, whatever the rows hold, and of each record by itself."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse
from tests.engine.test_formulas import SCALAR_LOSSES

from privopt import Units
from privopt.engine import plain_sums
from privopt.engine.in_process import InProcessEngine
from privopt.precision import as_released, double_precision, run_in_numpy
from privopt.problems import losses
from privopt.problems.constraints import L2Ball
from privopt.problems.problem import Problem
from privopt.problems.regularisers import Ridge
from privopt.queries.moments import TargetMagnitudes
from privopt.queries.slopes import ClippedGradient
from privopt.solvers import GradientDescent, Whitening

LOSSES: list[losses.GLMLoss] = [*SCALAR_LOSSES, losses.softmax(3)]
HOSTILE = (0.0, 1e-300, -1e-38, 1.0, -1.0, 3e38, -3e38, np.nan, np.inf, -np.inf)


@pytest.fixture(autouse=True)
def _double() -> Iterator[None]:
    with double_precision():
        yield


def hostile_units(rows: int, width: int, *, form: str = "dense", n: int | None = None) -> Units:
    """Rows of ordinary and hostile numbers, within a row bound of 2."""
    draw = np.random.default_rng(rows * 100 + width)
    features = draw.normal(size=(rows, width))
    hostile = draw.uniform(size=features.shape) < 0.1
    features[hostile] = draw.choice(HOSTILE, int(np.sum(hostile)))
    targets = draw.choice([*range(3), -1.0, 9.0, np.nan, np.inf, -1e300], rows)
    given: Any = sparse.csr_array(np.nan_to_num(features)) if form == "sparse" else features
    storage: Any = {"int8": "int8", "float64": "float64"}.get(form, "float32")
    more: dict[str, Any] = {} if n is None else {"relation": "add-or-remove-one", "n": n}
    return Units.from_arrays(given, targets, row_bound=2.0, storage=storage, **more)


def gradient(loss: losses.GLMLoss, at: Any, clip: float, *, balanced: bool = False) -> ClippedGradient:
    """The query at a point of NumPy."""
    return ClippedGradient(loss=loss, at=at, clip=clip, balanced=balanced)


def sums(engine: InProcessEngine, query: Any, draw: Any = None) -> tuple[Any, Any]:
    """By NumPy, and by kernels and JAX."""
    with run_in_numpy():
        plainly = engine.clipped_sum(query, draw)
    return plainly, engine.clipped_sum(query, draw)


@pytest.mark.parametrize("form", ["dense", "float64", "sparse", "int8"])
@pytest.mark.parametrize("loss", LOSSES, ids=str)
def test_a_sum_in_numpy_is_that_of_the_kernels(loss: losses.GLMLoss, form: str) -> None:
    units = hostile_units(700, 5, form=form)
    engine, draw = InProcessEngine(units), np.random.default_rng(1)
    for length, clip in ((0.0, 0.3), (1.0, 1e-3), (1e3, 5.0), (1e160, 1.0), (1.0, 1e9)):
        shape = (5,) if loss.outputs == 1 else (5, loss.outputs)
        at = length * draw.normal(size=shape)
        query = gradient(loss, at, clip, balanced=loss.balances and clip < 1.0)
        for some in (None, np.sort(draw.choice(700, 300, replace=False))):
            plainly, compiled = sums(engine, query, some)
            np.testing.assert_allclose(plainly, compiled, rtol=1e-9, atol=1e-11 * clip * 700)
            assert np.isfinite(plainly).all()


@given(
    entries=st.lists(st.floats(width=32), min_size=4, max_size=4),
    target=st.floats(),
    at=st.lists(st.floats(-8e307, 8e307), min_size=4, max_size=4),
    clip=st.floats(1e-90, 1e90),
    kind=st.sampled_from(range(len(LOSSES))),
)
def test_no_record_adds_more_than_the_clip(
    entries: list[float], target: float, at: list[float], clip: float, kind: int
) -> None:
    loss = LOSSES[kind]
    features = np.asarray([entries, [0.0] * 4])
    units = Units.from_arrays(features, np.asarray([target, 0.0]), row_bound=2.0)
    point = np.asarray(at) if loss.outputs == 1 else np.outer(at, np.arange(loss.outputs))
    query = gradient(loss, point, clip, balanced=loss.balances)
    with run_in_numpy():
        share = InProcessEngine(units).clipped_sum(query)
    assert np.linalg.norm((share / clip).ravel()) <= 1.0


@pytest.mark.parametrize("width", [1, 2, 3, 7, 8, 13, 33, 64, 201])
def test_a_records_share_does_not_depend_on_the_others(width: int) -> None:
    """Not by a bit: neither on how many there are, nor on where it stands, nor on what they hold."""
    draw = np.random.default_rng(width)
    features = draw.uniform(-1, 1, (67, width)).astype(np.float32)
    at = draw.normal(size=width)
    alone = [np.einsum("ij,j->i", features[[i]].astype(np.float64), at)[0] for i in range(67)]
    for some in (slice(None), slice(1, None), slice(0, 66), slice(5, 40), slice(None, None, -1)):
        rows = np.ascontiguousarray(features[some], np.float64)
        np.testing.assert_array_equal(np.einsum("ij,j->i", rows, at), np.asarray(alone)[some])
    for loss in (
        losses.logistic,
        losses.poisson(2.0, 5.0),
        losses.quantile(0.3, smoothing=0.2),
        losses.softmax(3),
    ):
        point = at if loss.outputs == 1 else draw.normal(size=(width, loss.outputs))
        query = gradient(loss, point, 0.5, balanced=loss.balances)
        for place in (0, 1, 31, 66):
            among, apart = np.zeros_like(features), np.zeros_like(features[:2])  # rows of zeros add zeros
            among[place] = apart[0] = features[place]
            with run_in_numpy():
                found = [
                    InProcessEngine(Units.from_arrays(rows, np.ones(len(rows)), row_bound=30.0)).clipped_sum(
                        query
                    )
                    for rows in (among, apart)
                ]
            np.testing.assert_array_equal(found[0], found[1])
            assert np.any(found[0])


def test_magnitudes_of_targets_are_those_of_jax() -> None:
    units = hostile_units(900, 3, n=1000)
    for largest in (1.0, 9.0, 1e6):
        plainly, compiled = sums(InProcessEngine(units), TargetMagnitudes(largest=largest))
        np.testing.assert_allclose(plainly, compiled, rtol=1e-12, atol=1e-12)


def test_users_are_summed_by_the_kernels() -> None:
    rows = np.ones((6, 2))
    units = Units.from_arrays(
        rows, np.ones(6), row_bound=2.0, groups=[0, 0, 1, 1, 2, 2], max_records_per_user=2
    )
    assert not plain_sums.supports(units, gradient(losses.logistic, np.zeros(2), 1.0))


# ---- What is not the library's own is never computed so ----------------------------------------------------


class OwnSlope(losses.Logistic):
    """A loss of somebody's own, whose slope looks at a whole block."""

    def slope(self, prediction: Any, target: Any) -> Any:
        """Not a function of one record."""
        assert not isinstance(prediction, np.ndarray), "a block of private predictions was handed over"
        return super().slope(prediction, target)


class OwnRidge(Ridge):
    """A penalty of somebody's own."""


class OwnDescent(GradientDescent):
    """A solver of somebody's own."""


def test_parts_of_somebodys_own_are_not_run_in_numpy() -> None:
    descent, whitened = GradientDescent(), Whitening(inner=GradientDescent())
    for solver in (descent, whitened):
        assert solver.steps_in_numpy(Problem(losses.logistic, Ridge(0.1)))
        assert solver.steps_in_numpy(Problem(losses.softmax(3)))
        assert not solver.steps_in_numpy(Problem(OwnSlope(), Ridge(0.1)))
        assert not solver.steps_in_numpy(Problem(losses.logistic, OwnRidge(0.1)))
        assert not solver.steps_in_numpy(Problem(losses.logistic, constraint=L2Ball(1.0)))
    assert not OwnDescent().steps_in_numpy(Problem(losses.logistic))
    assert not Whitening(inner=OwnDescent()).steps_in_numpy(Problem(losses.logistic))
    units = hostile_units(20, 2)
    assert not plain_sums.supports(units, gradient(OwnSlope(), np.zeros(2), 1.0))
    with run_in_numpy():
        InProcessEngine(units).clipped_sum(gradient(OwnSlope(), np.zeros(2), 1.0))


def test_a_released_array_is_no_window_on_the_record() -> None:
    recorded = np.ones(3)
    with run_in_numpy():
        released = as_released(recorded)
        with pytest.raises(ValueError, match="read-only"):
            released[0] = 2.0
        released.flags.writeable = True
        released[0] = 2.0
    assert recorded[0] == 1.0
