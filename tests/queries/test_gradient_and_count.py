"""The clipped gradient and the count in one release: formula, engines, centre, row map, and the spec's figures."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from tests.support.engine_rows import LOSSES as ENGINE_LOSSES
from tests.support.engine_rows import close, units_for
from tests.support.query_neighbours import CASES, LOSSES, PUBLIC, as_units, pairs, points
from tests.support.turns import in_turn

from privopt.data.units import Units
from privopt.engine.in_process import InProcessEngine
from privopt.engine.reference import ReferenceEngine
from privopt.engine.rounding import rounding_bound
from privopt.problems import losses
from privopt.public import Relation
from privopt.queries.gradient_norms import GradientAndCount, share_inside
from privopt.queries.moments import TotalWeight
from privopt.queries.slopes import ClippedGradient

MAP = np.random.default_rng(3).normal(size=(6, 4))


def six_users() -> Units:
    """The example of six users with five records each."""
    i = np.arange(30)
    features = np.stack([np.ones(30), np.sin(i + 1), np.cos(2 * i)], axis=1)
    labels = np.where((i**2 + i // 7) % 3 == 0, 1, 0)
    return Units.from_arrays(
        features,
        labels,
        classes=[0, 1],
        row_bound=10.0,
        groups=i // 5,
        user_weighting="user",
        max_records_per_user=5,
        storage="float64",
    )


@pytest.mark.parametrize("engine", [InProcessEngine, ReferenceEngine])
def test_six_users_give_the_figures_of_the_specification(engine: Any) -> None:
    at = np.array([0.1, -0.2, 0.3])
    around_zero = GradientAndCount(loss=losses.logistic, at=at, clip=0.3, height=0.1)
    mean = engine(six_users()).clipped_sum(around_zero) / 6
    np.testing.assert_allclose(mean[:3], [0.1266786289, -0.0549479704, 0.0148665182], rtol=1e-8)
    assert float(share_inside(mean[3], 0.1)) == pytest.approx(1 / 6)
    centre = np.array([0.1, 0.0, -0.1])
    moved = GradientAndCount(loss=losses.logistic, at=at, clip=0.2, height=0.1, centre=centre)
    mean = engine(six_users()).clipped_sum(moved) / 6
    np.testing.assert_allclose(centre + mean[:3], [0.1366678411, -0.0321803026, -0.0505304795], rtol=1e-8)


@pytest.mark.at_once(
    "dense-squared-centred",
    "sparse users-squared-plain",
    "sparse-quantile-both",
    "sparse-softmax-plain",
    "users-logistic-mapped",
)
@pytest.mark.parametrize(
    ("layout", "loss", "form"),
    in_turn(
        ("dense", "sparse", "users", "sparse users"),
        ("logistic", "squared", "quantile", "softmax"),
        ("plain", "centred", "mapped", "both"),
    ),
)
def test_the_fast_pass_sums_what_the_reference_sums(layout: str, loss: str, form: str) -> None:
    units = units_for(ENGINE_LOSSES[loss], layout)
    outputs = ENGINE_LOSSES[loss].outputs
    at = np.linspace(-0.5, 0.5, 6 * outputs).reshape((6, outputs) if outputs > 1 else 6)
    row_map = MAP if form in ("mapped", "both") else None
    width = (4 if row_map is not None else 6) * outputs
    centre = np.linspace(-0.1, 0.2, width) if form in ("centred", "both") else None
    query = GradientAndCount(
        loss=ENGINE_LOSSES[loss], at=at, clip=0.35, height=0.08, row_map=row_map, centre=centre
    )
    for draw in (None, np.arange(0, units.private_count, 3)):
        expected = ReferenceEngine(units).clipped_sum(query, draw)
        for threads in (1, 2):
            close(InProcessEngine(units, threads=threads).clipped_sum(query, draw), expected)


@pytest.mark.later("case2")
@pytest.mark.parametrize("case", [case for case in CASES if "users" in case[1]])
@given(pair=pairs(6, PUBLIC), at=points)
def test_one_unit_moves_gradient_and_count_by_at_most_the_sensitivity(
    case: tuple[str, str], pair: Any, at: Any
) -> None:
    loss = LOSSES[case[0]]
    query = GradientAndCount(loss=loss, at=at, clip=0.4, height=0.1, centre=np.array([3.0, -1.0, 0.5]))
    left, right = (as_units(side, pair, case[1]) for side in pair.sides())
    moved = np.linalg.norm(
        InProcessEngine(left).clipped_sum(query) - InProcessEngine(right).clipped_sum(query)
    )
    n, relation = left.public.n, Relation.parse(pair.relation)
    assert moved <= n * query.sensitivity(left.public) + 2 * rounding_bound(query.radius(), n)
    weights = [float(InProcessEngine(side).clipped_sum(TotalWeight())) for side in (left, right)]
    assert abs(weights[0] - weights[1]) <= n * TotalWeight().sensitivity(left.public) * (1 + 1e-12)
    assert n * TotalWeight().sensitivity(left.public) == 1.0
    assert n * query.sensitivity(left.public) == pytest.approx(relation.factor * np.hypot(0.4, 0.1))


def test_adding_the_centre_for_each_user_would_not_be_private() -> None:
    """Under add-or-remove-one a user who comes moves the sum by c at most; with the centre in it, by c + |v0|."""
    options: dict[str, Any] = {
        "row_bound": 1.0,
        "n": 4,
        "relation": "add-or-remove-one",
        "max_records_per_user": 1,
        "user_weighting": "user",
    }
    rows, targets = np.eye(2), np.ones(2)
    few, many = (Units.from_arrays(rows[:k], targets[:k], groups=np.arange(k), **options) for k in (1, 2))
    centre = np.array([5.0, 0.0])
    query = GradientAndCount(loss=losses.squared, at=np.zeros(2), clip=1.0, height=0.1, centre=centre)
    sums = [InProcessEngine(units).clipped_sum(query) for units in (few, many)]
    assert np.linalg.norm(sums[1] - sums[0]) <= 4 * query.sensitivity(few.public)
    naive = [total[:2] + k * centre for k, total in zip((1, 2), sums, strict=True)]
    assert np.linalg.norm(naive[1] - naive[0]) > 4 * query.sensitivity(few.public)


def test_the_bound_by_the_loss_holds_around_zero_and_would_not_around_another_centre() -> None:
    """A user's average is a shortened convex combination of 0 and gradients; around v0 the clip alone bounds it."""
    options: dict[str, Any] = {
        "row_bound": 1.0,
        "n": 3,
        "relation": "add-or-remove-one",
        "max_records_per_user": 4,
    }
    rows, targets, groups = np.tile([[1.0, 0.0]], (8, 1)), np.ones(8), np.repeat([0, 1], 4)
    few, many = (Units.from_arrays(rows[:k], targets[:k], groups=groups[:k], **options) for k in (4, 8))
    plain = ClippedGradient(loss=losses.logistic, at=np.zeros(2), clip=3.0)
    by_loss = 3 * float(plain.sensitivity(few.public))
    assert by_loss == pytest.approx(0.5)
    moved = InProcessEngine(many).clipped_sum(plain) - InProcessEngine(few).clipped_sum(plain)
    assert 0.499 <= np.linalg.norm(moved) <= by_loss
    around = GradientAndCount(
        loss=losses.logistic, at=np.zeros(2), clip=3.0, height=1e-9, centre=np.array([5.0, 0.0])
    )
    moved = InProcessEngine(many).clipped_sum(around) - InProcessEngine(few).clipped_sum(around)
    assert by_loss < 2.99 < np.linalg.norm(moved) <= 3 * around.sensitivity(few.public)


@pytest.mark.parametrize(("clip", "height"), [(1.0, 1e306), (1e306, 1.0), (1e-321, 1.9e-322), (0.5, 1e-310)])
@pytest.mark.parametrize("engine", [InProcessEngine, ReferenceEngine])
def test_counts_of_any_height_neither_overflow_nor_slip_below_their_sensitivity(
    engine: Any, clip: float, height: float
) -> None:
    rows, targets = np.ones((2000, 1)), np.full(2000, 3.0)
    query = GradientAndCount(loss=losses.squared, at=np.zeros(1), clip=clip, height=height)
    sides = [
        Units.from_arrays(
            rows[:k], targets[:k], groups=np.arange(k), row_bound=1.0, n=2000, relation="add-or-remove-one"
        )
        for k in (2000, 1999)
    ]
    left, right = (engine(side).clipped_sum(query) for side in sides)
    assert np.all(np.isfinite([left, right]))
    assert np.max(np.abs(left - right)) <= 2000 * query.sensitivity(sides[0].public)
