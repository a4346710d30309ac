import copy
import math
import pickle
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats
from tests.support.scale_checks import LEVEL, WRONG_SCALES, coordinate_p_values

from privopt.ledger.events import GaussianEvent, NonPrivateEvent
from privopt.mechanisms.noise import NoiseSource
from privopt.mechanisms.prefix_sum import (
    PrefixSum,
    block_diagonal,
    dense_optimum,
    independent,
    prefix_noise,
    square_root_toeplitz,
)

STRATEGIES = {
    "independent": independent(7),
    "square root": square_root_toeplitz(7),
    "blocks": block_diagonal(independent(1), square_root_toeplitz(6)),
    "optimum": dense_optimum(np.ones(7)),
    "weighted optimum": dense_optimum([1.0, *[0.25] * 6]),
}
every_strategy = pytest.mark.parametrize("strategy", STRATEGIES.values(), ids=STRATEGIES.keys())


def rms(errors: NDArray[np.float64]) -> float:
    return math.sqrt(np.mean(errors**2))


@pytest.mark.parametrize(
    ("items", "largest", "root_mean_square"),
    [
        (2, 1.2030, 1.1441),
        (4, 1.4163800019, 1.3109294505),
        (8, 1.6352022730, 1.4944136531),
        (16, 1.8566841539, 1.6894036820),
    ],
)
def test_the_dense_optimum_has_its_reference_errors(
    items: int, largest: float, root_mean_square: float
) -> None:
    """nonsmooth reference, sections 3 and 14."""
    errors = prefix_noise(dense_optimum(np.ones(items)))
    tolerance = 1e-4 if items == 2 else 2e-10
    assert errors.max() == pytest.approx(largest, abs=tolerance)
    assert rms(errors) == pytest.approx(root_mean_square, abs=tolerance)


@pytest.mark.parametrize(
    ("items", "largest"), [(8, 1.718379259109), (64, 2.388848108295), (256, 2.831049931861)]
)
def test_the_square_root_has_its_reference_errors(items: int, largest: float) -> None:
    assert prefix_noise(square_root_toeplitz(items)).max() == pytest.approx(largest, abs=1e-11)


def test_the_square_root_squares_to_the_prefix_sums() -> None:
    root = square_root_toeplitz(9)
    root = root / root[0, 0]
    assert np.allclose(root @ root, np.tril(np.ones((9, 9))), atol=1e-12)


def test_a_block_strategy_has_its_reference_errors() -> None:
    strategy = block_diagonal(independent(1), square_root_toeplitz(7))
    errors = prefix_noise(strategy, [0.02, *[0.005] * 7]) / 0.5
    expected = (
        "0.0400000000 .0420410519 .0425360148 .0428119168 .0430024739 .0431478004 .0432651570 .0433635236"
    )
    assert np.allclose(errors, [float(x) for x in expected.split()], atol=1e-10)


@pytest.mark.parametrize(
    ("strategy", "expected"),
    [
        (dense_optimum([1.0, *[0.25] * 31]), 1.0600),
        (block_diagonal(independent(1), dense_optimum(np.ones(31))), 1.1021),
        (block_diagonal(independent(1), square_root_toeplitz(31)), 1.1148),
        (independent(32), 1.4031),
    ],
)
def test_weighted_streams_have_their_reference_errors(strategy: NDArray[np.float64], expected: float) -> None:
    assert rms(prefix_noise(strategy, [1.0, *[0.25] * 31])) == pytest.approx(expected, abs=5e-5)


def test_the_dense_optimum_cannot_be_improved() -> None:
    weights = np.array([1.0, 0.3, 0.3, 0.5, 0.1])
    optimum = dense_optimum(weights)
    best = rms(prefix_noise(optimum, weights))
    generator = np.random.default_rng(60)
    for _ in range(200):
        other = np.tril(optimum + 0.02 * generator.normal(size=optimum.shape))
        other /= np.linalg.norm(other, axis=0)
        assert rms(prefix_noise(other, weights)) >= best
    assert np.array_equal(dense_optimum(7 * weights), optimum)  # only ratios count


class GivenNoise(NoiseSource):
    """Hands out this array in place of standard normals."""

    def __init__(self, draws: NDArray[np.float64]) -> None:
        super().__init__(seed=0)
        self.draws = draws

    def normal(self, shape: tuple[int, ...]) -> NDArray[np.float64]:
        assert shape == self.draws.shape
        return self.draws


def released_prefixes(
    mechanism: PrefixSum, noise: Any, items: Any, sensitivities: Any
) -> NDArray[np.float64]:
    state = mechanism.open(noise, np.shape(items)[1:])
    added = zip(items, sensitivities, strict=True)
    return np.stack([mechanism.add(state, noise, item, s, item_index=j) for j, (item, s) in enumerate(added)])


@every_strategy
def test_a_unit_in_one_item_is_hidden_as_by_one_gaussian_release(strategy: NDArray[np.float64]) -> None:
    """The distance of two neighbours' releases, in the metric of the noise that is really added, is at most mu."""
    multiplier, sensitivities = 2.5, np.array([0.02, 0.5, 0.5, 0.1, 1.0, 0.3, 2.0])
    mechanism = PrefixSum(strategy=strategy, noise_multiplier=multiplier)
    noise_map = released_prefixes(mechanism, GivenNoise(np.eye(7)), np.zeros((7, 7)), sensitivities)
    covariance = noise_map @ noise_map.T
    assert np.linalg.matrix_rank(noise_map) == 7  # equal or missing rows would release an item exactly
    for j in range(7):
        moved = np.where(np.arange(7) >= j, sensitivities[j], 0.0)
        distance = math.sqrt(moved @ np.linalg.solve(covariance, moved))
        assert distance <= (1 + 1e-9) / multiplier
        assert distance == pytest.approx(np.linalg.norm(strategy[:, j]) / multiplier, rel=1e-9)


@every_strategy
def test_the_noise_of_every_prefix_has_its_scale(strategy: NDArray[np.float64]) -> None:
    sensitivities = [0.02, 0.5, 0.5, 0.1, 1.0, 0.3, 2.0]
    errors = prefix_noise(strategy, sensitivities)
    items = np.arange(7.0)[:, None] * np.ones(4000)
    for factor, accepted in [(1.0, True), *((wrong, False) for wrong in WRONG_SCALES)]:
        mechanism = PrefixSum(strategy=strategy, noise_multiplier=1.3 * factor)
        added = released_prefixes(mechanism, NoiseSource(seed=61), items, sensitivities) - np.cumsum(
            items, axis=0
        )
        p_values = coordinate_p_values((added / (1.3 * errors[:, None])).T, stats.norm.cdf)
        assert p_values.min() > LEVEL if accepted else p_values.max() < LEVEL


def test_noise_off_releases_the_exact_sums() -> None:
    mechanism = PrefixSum(strategy=square_root_toeplitz(4), noise_multiplier=0.0)
    items = np.cos(np.arange(12.0)).reshape(4, 3)
    released = released_prefixes(mechanism, NoiseSource(seed=62), items, [math.inf, 0.0, 1.0, 2.0])
    assert np.array_equal(released, np.cumsum(items, axis=0))
    assert mechanism.event() == NonPrivateEvent()


def test_an_item_of_sensitivity_zero_is_added_exactly() -> None:
    mechanism = PrefixSum(strategy=independent(3), noise_multiplier=1.0)
    released = released_prefixes(mechanism, NoiseSource(seed=63), np.ones((3, 2)), [1.0, 0.0, 1.0])
    assert np.array_equal(released[1], released[0] + 1.0)
    assert not np.array_equal(released[2], released[1] + 1.0)


def test_the_stream_is_one_gaussian_event() -> None:
    assert PrefixSum(strategy=independent(5), noise_multiplier=2.0).event() == GaussianEvent(2.0)


def test_noise_drawn_ahead_for_a_loop_gives_the_eager_prefixes() -> None:
    mechanism = PrefixSum(strategy=square_root_toeplitz(6), noise_multiplier=0.8)
    items, sensitivities = np.cos(np.arange(18.0)).reshape(6, 3), np.linspace(0.1, 0.6, 6)
    eager = released_prefixes(mechanism, NoiseSource(seed=64), items, sensitivities)
    rows = mechanism.draw(NoiseSource(seed=64), (3,))
    with jax.enable_x64(True):

        def step(prefix: jax.Array, scanned: Any) -> tuple[jax.Array, jax.Array]:
            prefix = prefix + mechanism.combine(*scanned)
            return prefix, prefix

        inputs = jax.tree.map(jnp.asarray, (items, sensitivities, rows))
        looped = jax.lax.scan(step, jnp.zeros(3, jnp.float64), inputs)[1]
    assert np.allclose(np.asarray(looped), eager, rtol=1e-14, atol=1e-14)


def test_items_are_entered_once_and_in_turn() -> None:
    mechanism = PrefixSum(strategy=independent(2), noise_multiplier=1.0)
    noise = NoiseSource(seed=65)
    state = mechanism.open(noise, (3,))
    with pytest.raises(ValueError, match="in turn"):
        mechanism.add(state, noise, np.zeros(3), 1.0, item_index=1)
    with pytest.raises(ValueError, match="shape"):
        mechanism.add(state, noise, np.zeros(2), 1.0)
    mechanism.add(state, noise, np.zeros(3), 1.0)
    with pytest.raises(ValueError, match="in turn"):
        mechanism.add(state, noise, np.zeros(3), 1.0, item_index=0)
    mechanism.add(state, noise, np.zeros(3), 1.0)
    with pytest.raises(ValueError, match="in turn"):
        mechanism.add(state, noise, np.zeros(3), 1.0)


def test_a_released_prefix_is_the_callers_own() -> None:
    mechanism = PrefixSum(strategy=independent(2), noise_multiplier=1.0)
    noise = NoiseSource(seed=66)
    state = mechanism.open(noise, (2,))
    first = mechanism.add(state, noise, np.zeros(2), 1.0)
    kept = first.copy()
    first += 100.0
    second = mechanism.add(state, noise, np.zeros(2), 0.0)
    assert np.array_equal(second, kept)


@pytest.mark.parametrize(
    ("strategy", "message"),
    [
        (np.ones((2, 3)), "square"),
        (np.ones((0, 0)), "square"),
        (np.array([[1.0, 0.1], [0.0, 0.9]]), "lower triangular"),
        (np.array([[1.0, 0.0], [0.0, 0.0]]), "diagonal"),
        (np.array([[1.0, 0.0], [math.nan, 1.0]]), "finite"),
        (np.tril(np.ones((2, 2))), "norm at most 1"),
        (1.002 * np.eye(2), "norm at most 1"),
    ],
)
def test_a_strategy_that_privacy_does_not_hold_for_is_refused(strategy: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        PrefixSum(strategy=strategy, noise_multiplier=1.0)


def test_a_strategy_cannot_be_changed_afterwards() -> None:
    strategy = np.eye(3)
    mechanism = PrefixSum(strategy=strategy, noise_multiplier=1.0)
    strategy *= 9
    assert np.array_equal(mechanism.strategy, np.eye(3))
    with pytest.raises(ValueError, match="read-only"):
        mechanism.strategy[0, 0] = 5.0
    assert repr(mechanism) == "PrefixSum(items=3, noise_multiplier=1.0)"


def test_wrong_arguments_are_refused() -> None:
    with pytest.raises(ValueError, match="at least 1 item"):
        independent(0)
    with pytest.raises(ValueError, match="512"):
        dense_optimum(np.ones(513))
    with pytest.raises(ValueError, match="positive and finite"):
        dense_optimum([1.0, 0.0])
    with pytest.raises(ValueError, match="noise_multiplier"):
        PrefixSum(strategy=independent(2), noise_multiplier=-1.0)


@pytest.mark.parametrize("duplicate", [pickle.dumps, copy.copy, copy.deepcopy])
def test_the_hidden_state_stays_hidden(duplicate: Any) -> None:
    state = PrefixSum(strategy=independent(2), noise_multiplier=1.0).open(NoiseSource(seed=67), (2,))
    assert repr(state) == "<private>"
    with pytest.raises(TypeError, match="cannot be pickled or copied"):
        duplicate(state)


@pytest.mark.audit
@pytest.mark.parametrize(
    ("items", "largest", "root_mean_square"), [(128, 2.5256, 2.3110), (512, 2.9715, 2.7394)]
)
def test_the_dense_optimum_of_long_streams(items: int, largest: float, root_mean_square: float) -> None:
    errors = prefix_noise(dense_optimum(np.ones(items)))
    assert errors.max() == pytest.approx(largest, abs=1e-4)
    assert rms(errors) == pytest.approx(root_mean_square, abs=1e-4)
