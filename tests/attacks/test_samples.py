import numpy as np
import pytest
from scipy import stats

from privopt.attacks.lockstep import sampled_law
from privopt.mechanisms.additive import Gaussian
from privopt.mechanisms.noise import NoiseSource

RATE, SENSITIVITY = 0.3, 0.5
WITHOUT, LEFT, RIGHT = np.array([0.1, -0.2]), np.array([0.5, -0.5]), np.array([-0.3, 0.1])


def laws(tilt, count=200, mechanism=Gaussian(1.0), right=RIGHT):
    noise = NoiseSource(4)
    return [
        sampled_law(mechanism, (WITHOUT, LEFT, right), RATE, SENSITIVITY, noise, lambda spread: tilt)
        for _ in range(count)
    ]


@pytest.mark.later("2.0")
@pytest.mark.parametrize("tilt", [0.0, 2.0])
def test_answers_on_a_sample_are_weighed_by_the_densities_of_the_mixtures(tilt):
    drawn = laws(tilt)
    weights = np.exp([law.log_weight for law in drawn])
    other = weights * np.exp([-law.log_ratio for law in drawn])
    for ones in (weights, other):
        assert abs(np.mean(ones) - 1) <= 4 * np.std(ones) / np.sqrt(len(ones))
    law = drawn[0]
    densities = [
        (1 - RATE) * stats.multivariate_normal.pdf(law.released, WITHOUT, SENSITIVITY**2)
        + RATE * stats.multivariate_normal.pdf(law.released, at, SENSITIVITY**2)
        for at in (LEFT, RIGHT)
    ]
    assert law.log_ratio == pytest.approx(np.log(densities[0] / densities[1]), abs=1e-9)


@pytest.mark.audit
def test_answers_that_do_not_lean_are_drawn_from_the_mixture():
    drawn = np.asarray([law.released for law in laws(0.0, count=400)])
    assert np.mean(drawn, axis=0) == pytest.approx(WITHOUT + RATE * (LEFT - WITHOUT), abs=0.12)


def test_records_that_pull_in_different_directions_are_no_question_of_one_number():
    assert laws(0.0, count=1, right=np.array([0.9, 0.9])) == [None]
    same = laws(0.0, count=1, right=LEFT)[0]
    assert (same.log_ratio, same.spread) == (0.0, 0.0)
