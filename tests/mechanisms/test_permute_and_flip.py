import itertools
import math

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.support.scale_checks import LEVEL, WRONG_SCALES, frequency_p_value, softmax

from privopt.ledger.accounting import epsilon as price
from privopt.ledger.events import NonPrivateEvent, PureEvent
from privopt.mechanisms.choice import PermuteAndFlip
from privopt.mechanisms.noise import NoiseSource

SCORES = np.array([0.3, -1.2, 0.8, 0.0, 0.75])


def law(scores: NDArray[np.float64], epsilon: float, sensitivity: float) -> NDArray[np.float64]:
    """Exact: go through the indices in random order, stop with probability exp(epsilon (score - best) / range)."""
    heads = np.exp(epsilon * (scores - scores.max()) / sensitivity)
    probabilities = np.zeros(len(scores))
    for order in itertools.permutations(range(len(scores))):
        left = 1 / math.factorial(len(scores))
        for index in order:
            probabilities[index] += left * heads[index]
            left *= 1 - heads[index]
    return probabilities


def test_the_price_is_pure() -> None:
    assert PermuteAndFlip(0.4).event() == PureEvent(0.4)
    assert PermuteAndFlip(math.inf).event() == NonPrivateEvent()
    assert price(PermuteAndFlip(0.4).event(), 0.0, "replace-one") == 0.4


def test_choices_have_the_frequencies_of_permuting_and_flipping() -> None:
    noise = NoiseSource(seed=90)
    for factor, accepted in [(1.0, True), *((wrong, False) for wrong in WRONG_SCALES)]:
        mechanism = PermuteAndFlip(0.9 * factor)
        chosen = [mechanism.release(noise, SCORES, 0.5) for _ in range(8_000)]
        p_value = frequency_p_value(np.bincount(chosen, minlength=5), law(SCORES, 0.9, 0.5))
        assert p_value > LEVEL if accepted else p_value < LEVEL


def test_probabilities_change_by_at_most_e_to_the_epsilon() -> None:
    generator = np.random.default_rng(91)
    largest = 0.0
    for _ in range(300):
        size = int(generator.integers(2, 6))
        epsilon, sensitivity = generator.uniform(0.05, 3.0, 2)
        scores = generator.normal(size=size)
        moved = scores + generator.choice([0.0, 0.5, 1.0], size) * sensitivity + generator.normal()
        ratio = np.log(law(moved, epsilon, sensitivity) / law(scores, epsilon, sensitivity))
        assert np.abs(ratio).max() <= epsilon * (1 + 1e-9)
        largest = max(largest, float(np.abs(ratio).max() / epsilon))
    assert largest > 0.9


def test_the_shortfall_is_between_half_and_all_of_the_exponential_mechanisms() -> None:
    generator = np.random.default_rng(92)
    for _ in range(100):
        scores = generator.normal(size=5)
        ours = scores.max() - law(scores, 1.0, 0.5) @ scores
        theirs = scores.max() - softmax(scores / 0.5) @ scores
        assert theirs / 2 * (1 - 1e-9) <= ours <= theirs * (1 + 1e-9)


def test_noise_off_takes_the_best_score_and_a_wrong_epsilon_is_refused() -> None:
    assert PermuteAndFlip(math.inf).release(NoiseSource(seed=1), SCORES, 1.0) == 2
    assert PermuteAndFlip(0.1).release(NoiseSource(seed=1), SCORES, 0.0) == 2
    with pytest.raises(ValueError, match="epsilon must be positive"):
        PermuteAndFlip(-1.0)
