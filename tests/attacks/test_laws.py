import numpy as np
import pytest

from privopt.attacks.laws import choice, flipped, law_of, softmax
from privopt.mechanisms.additive import Gaussian, Laplace
from privopt.mechanisms.choice import ExponentialMechanism, PermuteAndFlip
from privopt.mechanisms.noise import NoiseSource

LEFT, RIGHT = np.array([0.3, -0.2, 0.1]), np.array([-0.1, 0.2, 0.4])
MECHANISMS = [Gaussian(2.0), Laplace(2.0), ExponentialMechanism(1.5), PermuteAndFlip(1.0)]


def laws(mechanism, tilt, count=1000, sensitivity=0.8):
    noise = NoiseSource(3)
    return [law_of(mechanism, LEFT, RIGHT, sensitivity, noise, lambda spread: tilt) for _ in range(count)]


@pytest.mark.later("0.0-Gaussian", "0.0-Laplace", "0.0-PermuteAndFlip")
@pytest.mark.parametrize("mechanism", MECHANISMS, ids=lambda one: type(one).__name__)
@pytest.mark.parametrize("tilt", [0.0, 1.5])
def test_weights_and_ratios_are_those_of_densities(mechanism, tilt):
    """E_t[p / p_t] = 1 and E_t[(p / p_t) (q / p)] = 1, by four deviations."""
    drawn = laws(mechanism, tilt)
    weights = np.exp([law.log_weight for law in drawn])
    other = weights * np.exp([-law.log_ratio for law in drawn])
    for ones in (weights, other):
        assert abs(np.mean(ones) - 1) <= 4 * np.std(ones) / np.sqrt(len(ones)) + 1e-12
    assert {law.spread for law in drawn} == {drawn[0].spread}


def test_the_spread_of_gaussian_noise_is_its_squared_shift_and_residuals_are_what_was_drawn():
    drawn = laws(Gaussian(2.0), 1.5)
    assert drawn[0].spread == pytest.approx(float(np.sum((LEFT - RIGHT) ** 2)) / 1.6**2)
    assert abs(np.mean([law.residual for law in drawn])) < 0.05
    assert np.std([law.residual for law in drawn]) == pytest.approx(1.0, rel=0.05)
    ratios = np.asarray([law.log_ratio for law in laws(Gaussian(2.0), 0.0)])
    assert 2 * np.mean(ratios) == pytest.approx(drawn[0].spread, rel=0.3)


@pytest.mark.parametrize(("mechanism", "chances"), [(MECHANISMS[2], softmax), (MECHANISMS[3], flipped)])
def test_choices_are_made_as_often_as_their_law_says(mechanism, chances):
    noise = NoiseSource(5)
    drawn = [int(mechanism.release(noise, LEFT, 0.8)) for _ in range(4000)]
    expected = np.exp(chances(LEFT / 0.8 * mechanism.epsilon))
    assert np.sum(expected) == pytest.approx(1.0)
    assert np.bincount(drawn, minlength=3) / 4000 == pytest.approx(expected, abs=0.03)


def test_a_choice_that_leans_takes_what_tells_the_sides_apart():
    left, right = softmax(np.array([0.0, 0.0])), softmax(np.array([0.0, 0.5]))
    noise = NoiseSource(1)
    drawn = [choice(left, right, noise, lambda spread: 50.0).released for _ in range(50)]
    assert set(drawn) == {0}


def test_chances_too_small_for_floating_point_still_have_a_ratio():
    left, right = flipped(np.array([0.0, -800.0, 1.0])), flipped(np.array([0.0, -801.0, 1.0]))
    assert left[1] - right[1] == pytest.approx(1.0)
    law = choice(left, right, NoiseSource(1), lambda spread: 0.5)
    assert np.isfinite([law.log_ratio, law.log_weight, law.spread]).all()


def test_what_is_not_known_is_not_guessed():
    assert law_of(Gaussian(0.0), LEFT, RIGHT, 1.0, NoiseSource(0), lambda spread: 0.0) is None
