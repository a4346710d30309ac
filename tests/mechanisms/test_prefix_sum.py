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
from privopt.mechanisms.prefix_sum import PrefixSum
from privopt.mechanisms.strategies import (
    Banded,
    Participation,
    Strategy,
    banded,
    binary_tree,
    block_diagonal,
    dense_optimum,
    independent,
    prefix_map,
    prefix_noise,
    square_root_toeplitz,
    unit_sensitivity,
)

STRATEGIES: dict[str, Strategy] = {
    "independent": independent(7),
    "tree": binary_tree(7),
    "bands": banded(7, 3),
    "banded blocks": block_diagonal(independent(1), banded(6, 4)),
    "square root": square_root_toeplitz(7),
    "blocks": block_diagonal(independent(1), square_root_toeplitz(6)),
    "optimum": dense_optimum(np.ones(7)),
    "weighted optimum": dense_optimum([1.0, *[0.25] * 6]),
}
every_strategy = pytest.mark.parametrize("strategy", STRATEGIES.values(), ids=STRATEGIES.keys())


class GivenNoise(NoiseSource):
    """Hands out the rows of this array in place of standard normals, or rounded as they are."""

    def __init__(self, draws: NDArray[np.float64], *, exact: bool = True) -> None:
        super().__init__(seed=0, exact=exact)
        self.rows = iter(draws)

    def normal(self, shape: tuple[int, ...]) -> NDArray[np.float64]:
        row = next(self.rows)
        assert shape == row.shape
        return row

    def rounded_normal(self, shape: tuple[int, ...], exponent: int) -> NDArray[np.int64]:
        return np.rint(np.ldexp(self.normal(shape), exponent)).astype(np.int64)


def released_prefixes(
    mechanism: PrefixSum, noise: Any, items: Any, sensitivities: Any
) -> NDArray[np.float64]:
    state = mechanism.open(noise, np.shape(items)[1:])
    added = zip(items, sensitivities, strict=True)
    return np.stack([mechanism.add(state, noise, item, s, item_index=j) for j, (item, s) in enumerate(added)])


@every_strategy
@pytest.mark.parametrize("exact", [True, False])
def test_a_unit_in_one_item_is_hidden_as_by_one_gaussian_release(strategy: Strategy, exact: bool) -> None:
    """The distance of two neighbours' releases, in the metric of the noise that is really added, is at most mu."""
    multiplier, sensitivities = 2.5, np.array([0.02, 0.5, 0.5, 0.1, 1.0, 0.3, 2.0])
    mechanism = PrefixSum(strategy=strategy, noise_multiplier=multiplier)
    noise_map = released_prefixes(
        mechanism, GivenNoise(np.eye(7), exact=exact), np.zeros((7, 7)), sensitivities
    )
    covariance = noise_map @ noise_map.T
    assert np.linalg.matrix_rank(noise_map) == 7  # equal or missing rows would release an item exactly
    for j in range(7):
        moved = np.where(np.arange(7) >= j, sensitivities[j], 0.0)
        distance = math.sqrt(moved @ np.linalg.solve(covariance, moved))
        assert distance <= (1 + 1e-9) / multiplier
        matrix = strategy.dense() if isinstance(strategy, Banded) else strategy
        assert distance == pytest.approx(np.linalg.norm(matrix[:, j]) / multiplier, rel=2e-4)  # of the grid


@pytest.mark.at_once("independent", "square root", "tree")
@every_strategy
def test_the_noise_of_every_prefix_has_its_scale(strategy: Strategy) -> None:
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


@pytest.mark.parametrize("strategy", [banded(8, 4), square_root_toeplitz(8), dense_optimum(np.ones(8))])
@pytest.mark.parametrize("exact", [True, False])
def test_a_unit_in_several_items_is_hidden_as_by_one_gaussian_release(
    strategy: Strategy, exact: bool
) -> None:
    """Whatever items of two neighbours differ, in directions of their own, the releases are at most mu apart."""
    admitted, multiplier, sensitivities = Participation(separation=4, most=2), 1.7, np.linspace(0.3, 1.4, 8)
    mechanism = PrefixSum(
        strategy=unit_sensitivity(strategy, admitted), noise_multiplier=multiplier, participation=admitted
    )
    noise_map = released_prefixes(
        mechanism, GivenNoise(np.eye(8), exact=exact), np.zeros((8, 8)), sensitivities
    )
    covariance = noise_map @ noise_map.T
    generator, distances = np.random.default_rng(68), []
    for pair in [(j, i) for j in range(8) for i in range(j + 4, 8)]:
        for spread in (0.0, 0.2, 3.0):
            directions = np.array([1.0, 0.0, 0.0]) + spread * generator.normal(size=(2, 3))
            directions /= np.linalg.norm(directions, axis=1, keepdims=True)
            moved = np.zeros((8, 3))
            moved[list(pair)] = directions * sensitivities[list(pair), None]
            moved = np.cumsum(moved, axis=0)
            distances.append(math.sqrt(np.sum(moved * np.linalg.solve(covariance, moved))))
    assert max(distances) <= (1 + 1e-9) / multiplier
    assert max(distances) == pytest.approx(1 / multiplier, rel=1e-7)  # a worst unit reaches it


@pytest.mark.parametrize("period", [1, 3, 8])
def test_noise_at_the_end_of_every_period_has_its_scale_and_covariance(period: int) -> None:
    """At t = k S; independent of the period before, where each has noise of its own."""
    strategy = block_diagonal(*[banded(period, period)] * 2)
    ends = np.array([period - 1, 2 * period - 1])
    exact = prefix_map(strategy)[ends]
    covariance = exact @ exact.T
    assert covariance[0, 1] == pytest.approx(covariance[0, 0], rel=1e-12)  # what period 1 left is still there
    mechanism = PrefixSum(strategy=strategy, noise_multiplier=1.0)
    drawn = released_prefixes(
        mechanism, NoiseSource(seed=69), np.zeros((2 * period, 20_000)), np.ones(2 * period)
    )[ends]
    measured = drawn @ drawn.T / drawn.shape[1]
    assert np.allclose(measured, covariance, atol=5 * math.sqrt(2 / 20_000) * covariance.max())
    assert drawn.std(axis=1).min() > 0.5


def test_banded_noise_is_drawn_item_by_item_in_the_memory_of_its_bands() -> None:
    mechanism = PrefixSum(strategy=banded(1000, 3), noise_multiplier=1.0)
    noise = NoiseSource(seed=70)
    state = mechanism.open(noise, (5,))
    assert state.private_rows._earlier.shape == (2, 5)  # pyright: ignore[reportPrivateUsage]
    mechanism.add(state, noise, np.zeros(5), 1.0)
    ahead = NoiseSource(seed=70)
    ahead.rounded_normal((5,), 20)
    assert np.array_equal(noise.rounded_normal((5,), 20), ahead.rounded_normal((5,), 20))


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
        (Banded(np.array([[1.0, 0.0]])), "diagonal"),
        (Banded(np.array([[1.0, 1.0], [0.1, 0.0]])), "norm at most 1"),
    ],
)
def test_a_strategy_that_privacy_does_not_hold_for_is_refused(strategy: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        PrefixSum(strategy=strategy, noise_multiplier=1.0)


def test_a_strategy_whose_noise_swallows_the_items_is_refused() -> None:
    """At 1e19 the second sum is a multiple of 1024 or so: which one it is shows an item that the noise would hide."""
    for strategy in ([[1e-19, 0.0], [0.5, 0.5]], Banded(np.array([[1e-19, 0.5], [0.5, 0.0]]))):
        with pytest.raises(ValueError, match="lost to rounding"):
            PrefixSum(strategy=strategy, noise_multiplier=1.0)  # type: ignore[arg-type]
    vanishing = np.tril(np.full((40, 40), 0.1))
    np.fill_diagonal(vanishing, 1e-200)  # what comes after a few items is no number
    with pytest.raises(ValueError, match="lost to rounding"):
        PrefixSum(strategy=vanishing, noise_multiplier=1.0)


def test_a_strategy_of_too_large_a_sensitivity_for_its_participation_is_refused() -> None:
    twice = Participation(separation=3, most=2)
    with pytest.raises(ValueError, match="sensitivity must be at most 1 under Participation"):
        PrefixSum(strategy=banded(6, 3), noise_multiplier=1.0, participation=twice)
    mechanism = PrefixSum(
        strategy=unit_sensitivity(banded(6, 3), twice), noise_multiplier=1.0, participation=twice
    )
    assert mechanism.admits(frozenset({0, 3}))
    assert not mechanism.admits(frozenset({0, 2}))
    assert not mechanism.admits(frozenset({0, 3, 6}))
    assert "participation=Participation(separation=3, most=2)" in repr(mechanism)


def test_a_strategy_cannot_be_changed_afterwards() -> None:
    strategy = np.eye(3)
    mechanism = PrefixSum(strategy=strategy, noise_multiplier=1.0)
    strategy *= 9
    assert np.allclose(mechanism.strategy, np.eye(3), rtol=0, atol=1e-8)
    with pytest.raises(ValueError, match="read-only"):
        mechanism.strategy[0, 0] = 5.0
    assert repr(mechanism) == "PrefixSum(items=3, noise_multiplier=1.0)"


def test_a_negative_noise_multiplier_is_refused() -> None:
    with pytest.raises(ValueError, match="noise_multiplier"):
        PrefixSum(strategy=independent(2), noise_multiplier=-1.0)


@pytest.mark.parametrize("duplicate", [pickle.dumps, copy.copy, copy.deepcopy])
def test_the_hidden_state_stays_hidden(duplicate: Any) -> None:
    state = PrefixSum(strategy=independent(2), noise_multiplier=1.0).open(NoiseSource(seed=67), (2,))
    assert repr(state) == "<private>"
    with pytest.raises(TypeError, match="cannot be pickled or copied"):
        duplicate(state)
