"""Rows on a grid: every path of the engine computes with the decoded rows, and no path asks for anything else."""

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from privopt.data.places import GivenPlaces
from privopt.data.rows import GridRows
from privopt.data.units import Units
from privopt.engine.compiled_loops import traced_sum
from privopt.engine.drawn_rows import drawn_rows, in_place
from privopt.engine.in_process import InProcessEngine
from privopt.engine.reference import ReferenceEngine
from privopt.engine.rounding import rounding_bound
from privopt.precision import double_precision
from privopt.problems import losses
from privopt.problems.constraints import L2Ball
from privopt.problems.regularisers import Ridge
from privopt.queries.gradient_norms import GradientAndCount
from privopt.queries.lots import LocalPass
from privopt.queries.slopes import ClippedGradient, ClippedGradientDifference, MixedGradient

D = 11
AT, BEFORE = np.linspace(-0.9, 1.1, D + 1), np.linspace(0.3, -0.2, D + 1)
USERS = np.arange(400) % 130


@pytest.fixture(autouse=True)
def _double() -> Iterator[None]:
    with double_precision():
        yield


def made(
    storage: Any, *, by_user: bool = False, classes: tuple[int, ...] = (0, 1), unit: float = 1.0
) -> Units:
    """Ordinary and hostile records; features in multiples of `unit`."""
    rng = np.random.default_rng(5)
    rows = rng.normal(size=(400, D)) * unit
    rows[:8] *= np.array([1e-300, 1e-20, 1e-3, 1e3, 1e20, 1e200, np.nan, np.inf])[:, None]
    return Units.from_arrays(
        rows,
        rng.choice(classes, 400),
        classes=classes,
        row_bound=4.0 * unit,
        entry_bound=max(2.5 * unit, 1.0),
        intercept=1.0,
        groups=USERS if by_user else None,
        max_records_per_user=3,
        storage=storage,
        noise=None,
    )


def decoded(units: Units) -> Units:
    """The same rows as float64 numbers."""
    rows = units.private_features
    assert isinstance(rows, GridRows)
    public = dataclasses.replace(units.public, storage="float64")
    return dataclasses.replace(units, public=public, private_features=rows.take(slice(None)))


def queries() -> dict[str, Any]:
    common = {"loss": losses.logistic, "at": AT, "clip": 0.3}
    return {
        "gradient": ClippedGradient(**common),
        "difference": ClippedGradientDifference(
            loss=losses.logistic, at=AT, anchor=BEFORE, slope_clip=0.1, gradient_clip=0.3
        ),
        "mixed": MixedGradient(**common, previous=BEFORE, change_clip=0.2, gain=0.4),
        "with a count": GradientAndCount(**common, height=0.5),
        "with a count, mapped": GradientAndCount(
            **common, height=0.5, row_map=np.eye(D + 1)[:, :3] + 0.1, centre=np.full(3, 0.05)
        ),
    }


def room(query: Any, units: Units) -> float:
    """How far two sums of the same contributions may be apart, and two clips of one contribution: 1e-9 inwards."""
    return float(rounding_bound(query.radius(), units.public.n)) + 3e-9 * units.public.n * float(
        query.radius()
    )


# What is compiled for others takes as long, and its code for a grid is that of these.
FEW = [("gradient", False), ("gradient", True)]
REST = [(name, by_user) for name in queries() for by_user in (False, True) if (name, by_user) not in FEW]


@pytest.mark.parametrize(
    ("name", "by_user"), [*FEW, *(pytest.param(*one, marks=pytest.mark.audit) for one in REST)]
)
def test_the_kernels_compute_with_the_decoded_rows(name: str, by_user: bool) -> None:
    asked = queries()[name]
    units = made("int8", by_user=by_user)
    some = np.arange(0, units.private_count, 3)
    engine, plain = InProcessEngine(units), InProcessEngine(decoded(units))
    for draw in (None, some):
        found, wanted = engine.clipped_sum(asked, draw), plain.clipped_sum(asked, draw)
        assert np.linalg.norm(found - wanted) <= room(asked, units)
        assert np.linalg.norm(wanted) > 1e6 * room(asked, units)


@pytest.mark.audit
@pytest.mark.parametrize("storage", ["int8", "int16"])
def test_the_softmax_kernel_computes_with_the_decoded_rows(storage: str) -> None:
    units = made(storage, classes=(0, 1, 2))
    asked = ClippedGradient(loss=losses.softmax(3), at=np.outer(AT, [1.0, -0.5, 0.2]), clip=0.3)
    found = InProcessEngine(units).clipped_sum(asked)
    assert np.linalg.norm(found - InProcessEngine(decoded(units)).clipped_sum(asked)) <= room(asked, units)


@pytest.mark.audit
@pytest.mark.parametrize("storage", ["int8", "int16"])
def test_a_users_own_pass_computes_with_the_decoded_rows(storage: str) -> None:
    units = made(storage, by_user=True)
    asked = LocalPass(
        loss=losses.logistic,
        at=AT,
        clip=0.3,
        step_size=0.2,
        regulariser=Ridge(0.1),
        constraint=L2Ball(2.0),
    )
    engine, plain = InProcessEngine(units), InProcessEngine(decoded(units))
    assert np.linalg.norm(engine.clipped_sum(asked) - plain.clipped_sum(asked)) <= room(asked, units)
    np.testing.assert_allclose(engine.gather(asked), plain.gather(asked), rtol=0, atol=1e-12)


@pytest.mark.later("int8")
@pytest.mark.parametrize("storage", ["int8", "int16"])
def test_the_plain_engine_and_the_compiled_loop_see_the_decoded_rows_bit_by_bit(storage: str) -> None:
    units = made(storage)
    asked, some = queries()["gradient"], np.arange(0, 400, 3)
    engine, plain = ReferenceEngine(units), ReferenceEngine(decoded(units))
    assert np.array_equal(engine.clipped_sum(asked), plain.clipped_sum(asked))
    share = np.array([0, len(some)], np.int32)
    rows = [drawn_rows(held, some, len(some)) for held in (units, decoded(units))]
    found = [
        traced_sum(asked, units.public, in_place(private_rows), share, len(some)) for private_rows in rows
    ]
    assert np.array_equal(*found)
    assert np.array_equal(rows[0].private_features, rows[1].private_features)


@pytest.mark.parametrize("unit", [1e-17, 1e27])
def test_the_smallest_and_the_largest_rows_are_summed(unit: float) -> None:
    units = made("int8", unit=unit)
    asked = ClippedGradient(loss=losses.squared, at=AT / unit, clip=0.3)
    found, wanted = InProcessEngine(units).clipped_sum(asked), ReferenceEngine(units).clipped_sum(asked)
    assert np.linalg.norm(found - wanted) <= room(asked, units)


def test_a_view_of_a_grid_is_stored_on_sixteen_bits_and_is_near_the_view_of_the_rows() -> None:
    units = made("int8")
    matrix = np.random.default_rng(1).normal(size=(D + 1, 5))
    view, wanted = units.mapped(matrix, 3.0), decoded(units).mapped(matrix, 3.0)
    found = view.private_features
    assert isinstance(found, GridRows)
    assert view.public.storage == "int16"
    assert view.public == units.public.mapped(5, 3.0)
    assert found.private_steps.dtype == np.int16
    gap = np.abs(found.take(slice(None)) - np.asarray(wanted.private_features))
    assert np.max(gap) <= 3.0 / 32767 + 3.0 * 2.0**-21  # a step, and what a clip goes inwards in float32
    assert np.all(np.linalg.norm(found.take(slice(None)), axis=1) <= view.private_norms)
    assert np.all(view.private_norms <= 3.0)


def test_parts_and_subsets_keep_the_grid() -> None:
    units = made("int8")
    rows = decoded(units).private_features
    chosen = np.array([3, 11, 50])
    for part, wanted in (
        (units.part(7, 90), rows[7:90]),
        (units.subset(GivenPlaces(chosen), 3), rows[chosen]),
    ):
        found = part.private_features
        assert isinstance(found, GridRows)
        assert np.array_equal(found.take(slice(None)), wanted)
