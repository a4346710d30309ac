import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.support.scale_checks import LEVEL, WRONG_SCALES, frequency_p_value, softmax

from privopt.ledger.events import BoundedRangeEvent, NonPrivateEvent
from privopt.mechanisms.choice import ExponentialMechanism, choice_exponent, places_of_scores
from privopt.mechanisms.noise import NoiseSource

SCORES = np.array([0.3, -1.2, 0.8, 0.0, 0.75])


def test_the_event_is_bounded_range() -> None:
    assert ExponentialMechanism(0.4).event() == BoundedRangeEvent(0.4)
    assert ExponentialMechanism(math.inf).event() == NonPrivateEvent()


def test_choices_have_softmax_frequencies_and_no_other_temperature() -> None:
    noise = NoiseSource(seed=40)
    sensitivity, epsilon = 0.5, 0.9
    for factor, accepted in [(1.0, True), *((wrong, False) for wrong in WRONG_SCALES)]:
        mechanism = ExponentialMechanism(epsilon * factor)
        chosen = [mechanism.release(noise, SCORES, sensitivity) for _ in range(8_000)]
        counts = np.bincount(chosen, minlength=len(SCORES))
        p_value = frequency_p_value(counts, softmax(epsilon * SCORES / sensitivity))
        assert p_value > LEVEL if accepted else p_value < LEVEL


def test_the_selection_of_boosting_has_its_reference_probabilities() -> None:
    """Saddle reference 13.3: candidate losses 0.3, 0.5, 0.35, moved by at most 0.064, epsilon 1."""
    losses = np.array([0.3, 0.5, 0.35])
    expected = np.array([0.665880796195, 0.029256760344, 0.304862443461])
    mechanism = ExponentialMechanism(1.0)
    assert np.allclose(np.exp(log_probabilities(mechanism, -losses, 0.064)), expected, rtol=1e-7)
    noise = NoiseSource(seed=41)
    counts = np.bincount([mechanism.release(noise, -losses, 0.064) for _ in range(8_000)], minlength=3)
    assert frequency_p_value(counts, expected) > LEVEL


def log_probabilities(mechanism: ExponentialMechanism, scores: np.ndarray, sensitivity: float) -> np.ndarray:
    """From the integers that noise is added to, as if noise were not rounded."""
    logits = places_of_scores(scores, np.float64(sensitivity), mechanism.epsilon) / 2.0 ** choice_exponent(
        mechanism.epsilon
    )
    return logits - np.log(np.sum(np.exp(logits - logits.max()))) - logits.max()


def test_log_likelihood_ratios_stay_in_an_interval_of_length_epsilon() -> None:
    generator = np.random.default_rng(42)
    longest = 0.0
    for _ in range(2000):
        size = int(generator.integers(2, 7))
        epsilon, sensitivity = generator.uniform(0.05, 3.0, 2)
        move = generator.choice([0.0, 0.5, 1.0], size) * sensitivity * (1 - 1e-12) + generator.normal()
        scores = generator.normal(size=size)
        mechanism = ExponentialMechanism(float(epsilon))
        ratio = log_probabilities(mechanism, scores + move, sensitivity) - log_probabilities(
            mechanism, scores, sensitivity
        )
        assert np.ptp(ratio) <= epsilon * (1 + 1e-9)
        assert np.abs(ratio).max() <= epsilon * (1 + 1e-9)
        longest = max(longest, float(np.ptp(ratio) / epsilon))
    assert longest > 0.999  # attained: the sensitivity could not be smaller


def test_scores_that_move_both_ways_need_twice_their_largest_move() -> None:
    """Mutant: the l_inf sensitivity in place of the range understates by a factor of 2."""
    mechanism = ExponentialMechanism(1.0)
    ratio = log_probabilities(mechanism, np.array([0.1, -0.1]), 0.1) - log_probabilities(
        mechanism, np.zeros(2), 0.1
    )
    assert np.ptp(ratio) == pytest.approx(2.0)


def test_a_common_shift_of_the_scores_changes_nothing() -> None:
    first, shifted = NoiseSource(seed=43), NoiseSource(seed=43)
    mechanism = ExponentialMechanism(0.5)
    scores = np.linspace(0, 1, 64)
    for _ in range(50):
        assert mechanism.release(first, scores, 0.25) == mechanism.release(shifted, scores + 8.0, 0.25)


def test_release_is_draw_and_combine() -> None:
    mechanism = ExponentialMechanism(1.0)
    eager, ahead = NoiseSource(seed=44), NoiseSource(seed=44)
    released = [mechanism.release(eager, SCORES, 0.5) for _ in range(200)]
    block = mechanism.draw(ahead, (200, *mechanism.noise_shape(SCORES.shape)))
    with jax.enable_x64(True):
        scores = jnp.asarray(SCORES)
        combine = jax.jit(jax.vmap(lambda s, row: mechanism.combine(scores, s, row)))
        combined = combine(jnp.full(200, 0.5), jnp.asarray(block))
    assert np.asarray(combined).tolist() == released
    assert all(type(index) is int for index in released)


def test_sensitivity_zero_and_noise_off_take_the_best_score() -> None:
    assert ExponentialMechanism(0.1).release(NoiseSource(seed=1), SCORES, 0.0) == 2
    for sensitivity in (0.0, 1.0, math.inf):
        assert ExponentialMechanism(math.inf).release(NoiseSource(seed=1), SCORES, sensitivity) == 2
    with jax.enable_x64(True):
        scores, noise = jnp.asarray(SCORES), jnp.arange(5.0)
        assert int(ExponentialMechanism(0.1).combine(scores, 0.0, noise)) == 2
        assert int(ExponentialMechanism(math.inf).combine(scores, math.inf, noise)) == 2
        assert int(ExponentialMechanism(0.1).combine(scores, math.inf, noise)) == -1
        assert int(ExponentialMechanism(0.1).combine(scores, math.nan, noise)) == -1


@pytest.mark.parametrize("sensitivity", [-1.0, math.nan, math.inf])
def test_a_sensitivity_that_no_noise_can_match_is_refused(sensitivity: float) -> None:
    with pytest.raises(ValueError, match="sensitivity"):
        ExponentialMechanism(1.0).release(NoiseSource(seed=1), SCORES, sensitivity)


@pytest.mark.parametrize("epsilon", [0.0, -1.0, math.nan])
def test_a_wrong_epsilon_is_refused(epsilon: float) -> None:
    with pytest.raises(ValueError, match="epsilon must be positive"):
        ExponentialMechanism(epsilon)


def test_one_candidate_is_always_chosen() -> None:
    assert ExponentialMechanism(1.0).release(NoiseSource(seed=1), [3.0], 1.0) == 0
