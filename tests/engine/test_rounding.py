"""The rounding bound holds for the worst sums we can think of, on every path, and is small."""

import math
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
import pytest
from tests.contracts.queries import own_residual
from tests.support.loop_sums import loop_sum

from privopt.data.units import Units
from privopt.engine.in_process import InProcessEngine
from privopt.engine.reference import ReferenceEngine
from privopt.engine.rounding import BLOCK_ROWS, PART_UNITS, BlockedSum, rounding_bound
from privopt.mechanisms.noise import NoiseSource
from privopt.precision import double_precision
from privopt.problems import losses
from privopt.queries.slopes import ClippedGradient

N = 50_000


@pytest.fixture(autouse=True)
def _double() -> Iterator[None]:
    with double_precision():
        yield


def adversarial_targets(kind: str) -> np.ndarray:
    """Contributions of a squared loss at zero are -target: big ones of one sign, then many below half an ulp."""
    generator = np.random.default_rng(0)
    if kind == "half an ulp of the sum":
        return np.where(np.arange(N) < N // 2, 1.0, 2.0**-39 * (1 + 2.0**-10))
    if kind == "interleaved":
        return np.where(np.arange(N) % 2 == 0, 1.0, 2.0**-39 * (1 + 2.0**-10))
    if kind == "cancelling":
        return np.where(np.arange(N) % 2 == 0, 1.0, -1.0 + 2.0**-40)
    return np.round(generator.uniform(-1, 1, N) * 2**44) * 2.0**-44


@pytest.mark.later("half an ulp of the sum")
@pytest.mark.parametrize("kind", ["half an ulp of the sum", "interleaved", "cancelling", "random"])
def test_every_path_sums_within_the_bound(kind: str) -> None:
    targets = adversarial_targets(kind)
    # Powers of two as features: every product is exact, so fsum of the products is the exact sum.
    units = Units.from_arrays(np.tile([0.5, 0.25], (N, 1)), targets, row_bound=1.0)
    exact = np.array([math.fsum(-0.5 * targets), math.fsum(-0.25 * targets)])
    engine = InProcessEngine(units)
    query = ClippedGradient(loss=losses.squared, at=np.zeros(2), clip=1.0)
    bound = rounding_bound(1.0, N)
    sums = {
        "kernel": engine.clipped_sum(query),
        "general": engine.general_sum(query),
        "traced": loop_sum(engine, query),
        "drawn": engine.clipped_sum(query, np.random.default_rng(0).permutation(N)),
    }
    for path, found in sums.items():
        assert np.linalg.norm(np.asarray(found) - exact) <= bound, path


def test_the_bound_is_small_and_scales_with_the_radius() -> None:
    assert rounding_bound(0.0, 1000) == 0.0
    assert rounding_bound(2.0, 200_000) == pytest.approx(2 * rounding_bound(1.0, 200_000))
    assert rounding_bound(1.0, 200_000) < 5e-7
    assert rounding_bound(1.0, 10**6) < 5e-6
    # What the docstring claims: gamma_h n C with one product, one block and all block sums on the way.
    h = BLOCK_ROWS + -(-200_000 // BLOCK_ROWS) + 17
    assert rounding_bound(1.0, 200_000) > 200_000 * h * 2.0**-53 / (1 - h * 2.0**-53)


def test_the_bound_of_one_part_is_as_ever_and_of_many_grows_with_n_alone() -> None:
    for n in (1, 2, 4096, 4097, 200_000, 500_000, PART_UNITS):
        assert rounding_bound(0.7, n) == 0.7 * (2.0 * (4096 + -(-n // 4096) + 64) * 2.0**-53 * n)
    for n in (PART_UNITS + 1, 10**8, 10**9, 10**12):
        assert rounding_bound(1.0, n) == 2.0 * (4096 + 128 + 64) * 2.0**-53 * n
    assert rounding_bound(1.0, 10**9) < 1e-3
    # What an `ExactSum` of the parts can add to the sum of a million numbers, in the l1 norm, is far below.
    parts, numbers = -(-(10**9) // PART_UNITS), 10**6
    assert parts * numbers * 2.0**-60 < 1e-5 * rounding_bound(1.0, 10**9)


def test_the_bound_can_be_traced() -> None:
    found = jax.jit(lambda radius: rounding_bound(radius, 1000))(np.float64(3.0))
    assert float(found) == rounding_bound(3.0, 1000)


def test_a_blocked_sum_adds_everything() -> None:
    total = BlockedSum((2,))
    for k in range(100):
        total.add(np.array([1.0, k]), 1000)
    assert total.total().tolist() == [100.0, 4950.0]


@pytest.mark.parametrize("loss", [losses.softmax(3), losses.RecordLoss(own_residual)])
@pytest.mark.parametrize("engine", [ReferenceEngine, InProcessEngine])
def test_a_contribution_is_rounded_alike_however_many_units_there_are(engine: Any, loss: Any) -> None:
    """One unit more must not re-round the others': a count, or a small clip of what cancels, would show it."""
    rng = np.random.default_rng(0)
    rows, targets = rng.normal(size=(2_060, 3)), rng.integers(0, 3, 2_060)
    point = rng.normal(size=(3, 3) if loss.outputs > 1 else 3)
    query = ClippedGradient(loss=loss, at=point, clip=math.inf)
    found = []
    for count in (40, 2_047, 2_048, 2_049, 2_060):
        units = Units.from_arrays(
            rows[:count], targets[:count], classes=[0, 1, 2] if loss.outputs > 1 else None, row_bound=2.0, n=2_060,
            groups=np.arange(count), max_records_per_user=2, relation="add-or-remove-one", noise=NoiseSource(1),
        )  # fmt: skip
        found.append(engine(units).gather(query)[:40])
    for other in found[1:]:
        np.testing.assert_array_equal(other, found[0])
