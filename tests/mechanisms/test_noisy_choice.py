"""Choices on a lattice: the argument of `mechanisms.choice`, tried at its edges."""

import math
from fractions import Fraction
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats
from tests.support.scale_checks import LEVEL

from privopt.mechanisms.choice import (
    ROUNDING,
    ExponentialMechanism,
    PermuteAndFlip,
    choice_exponent,
    choice_spacing,
    noisy_choice,
    places_of_scores,
)
from privopt.mechanisms.noise import NoiseSource

EPSILONS = [1e300, 1e9, 2.0**22, 800.0, 1.0, 0.7, 1e-2, 3e-5, 1e-7]


def places(scores: Any, sensitivity: float, epsilon: float) -> NDArray[np.int64]:
    with np.errstate(all="ignore"):
        return np.asarray(places_of_scores(np.asarray(scores, float), np.float64(sensitivity), epsilon))


@pytest.mark.parametrize("epsilon", EPSILONS)
@pytest.mark.parametrize("sensitivity", [1e-250, 3e-5, 1.0, math.pi, 1e200])
def test_the_noise_covers_the_range_on_the_lattice(epsilon: float, sensitivity: float) -> None:
    """(s / g + 7) 2^-t <= epsilon in rational arithmetic; and hardly more noise than that."""
    g, t = Fraction(float(choice_spacing(np.float64(sensitivity), epsilon))), choice_exponent(epsilon)
    assert 8 <= t <= 34
    cost = (Fraction(sensitivity) / g + ROUNDING) / 2**t
    assert cost <= Fraction(epsilon)
    if 1e-4 < epsilon < 2**22:
        assert Fraction(sensitivity) / g / 2**t >= Fraction(epsilon) * (1 - Fraction(1, 10**5))


def test_an_epsilon_that_leaves_nothing_of_the_scores_is_refused() -> None:
    with pytest.raises(ValueError, match="beyond the integers"):
        ExponentialMechanism(1e-10).release(NoiseSource(0), [0.0, 1.0], 1.0)


@pytest.mark.parametrize("epsilon", [1.0, 0.3, 1e-2, 3e-5])
def test_neighbours_scores_move_by_no_more_than_the_stated_range(epsilon: float) -> None:
    """Moves of exactly the sensitivity, next to halves of the lattice, on top of a common shift of any size."""
    rng, closest = np.random.default_rng(int(epsilon * 1e7) % 2**32), 0.0
    for trial in range(300):
        sensitivity = float(rng.uniform(0.5, 2.0))
        g = float(choice_spacing(np.float64(sensitivity), epsilon))
        whole = Fraction(sensitivity) / Fraction(g)
        left = (
            -(
                np.floor(rng.uniform(0, 1, 4) * 2.0 ** rng.integers(0, 38))
                + 0.5
                + rng.choice([-1e-3, 1e-3], 4)
            )
            * g
        )
        left[0] = 0.0
        right = left + rng.choice([0.0, 1.0], 4) * sensitivity + rng.choice([0.0, 1.0, 1e6]) * (trial % 3) * g
        moved = [Fraction(float(b)) - Fraction(float(a)) for a, b in zip(left, right, strict=True)]
        if max(moved) - min(moved) > Fraction(sensitivity):  # the float64 sum moved them further
            continue
        change = places(right, sensitivity, epsilon) - places(left, sensitivity, epsilon)
        beyond = int(np.ptp(change)) - whole
        assert beyond <= 2 + Fraction(1, 2**5)
        closest = max(closest, float(beyond))
    assert closest > 0.9  # rounding does move them further than the range


def test_scores_far_away_move_no_further_apart() -> None:
    """Entries alone would: a common shift beyond a cut-off changes some and not others."""
    scores = np.array([0.0, 2.0**70, 2.0**70 - 2.0**20])
    for shift in (2.0**20, 2.0**69, -(2.0**70)):
        moved = places(scores + shift, 1.0, 1.0) - places(scores, 1.0, 1.0)
        assert np.ptp(moved) <= 1


def test_what_is_no_number_counts_as_the_least_and_all_paths_agree() -> None:
    hostile = [
        [0.0, math.nan, -1.0, 1e308],
        [math.nan] * 4,
        [math.inf, 0.0, math.inf, math.nan],
        [-math.inf] * 4,
        [-1e308, 1e308, 5e-324, -0.0],
        [1.0, 1.0 - 2**-53, 1.0, 0.5],
    ]
    noise = NoiseSource(1).rounded_gumbel((4,), choice_exponent(0.3))
    with jax.enable_x64(True):
        for sensitivity in (1e-300, 0.1, 1e300):
            traced = jax.jit(lambda v, s, j: (places_of_scores(v, s, 0.3), noisy_choice(v, s, 0.3, j)))
            for scores in hostile:
                given = np.array(scores)
                found, index = traced(jnp.asarray(given), jnp.asarray(sensitivity), jnp.asarray(noise))
                with np.errstate(all="ignore"):
                    assert noisy_choice(given, np.float64(sensitivity), 0.3, noise) == int(index)
                assert np.array_equal(found, places(given, sensitivity, 0.3))
                assert np.max(found) <= 0
                deepest = np.min(np.asarray(found)[np.isnan(given)], initial=0)
                assert deepest == (np.min(found) if np.isnan(given).any() else 0)


def gumbel_law(k: NDArray[np.int64], t: int) -> NDArray[np.float64]:
    """The probabilities of the indices, exactly as the module writes them: a sum over the largest sum."""
    h = 2.0**-t
    m = np.arange(int(k.min()) - 6 * 2**t, int(k.max()) + 45 * 2**t)
    c, before = np.exp(-h * (m + 0.5)), np.exp(-h * (m - 0.5))
    w = np.exp(h * k.astype(float))
    return np.array(
        [
            np.sum(
                -np.exp(-before * w[i])
                * np.expm1((before - c) * w[i])
                * -np.exp(-before * w[:i].sum() - c * w[i + 1 :].sum())
            )
            for i in range(len(k))
        ]
    )


def exponential_law(k: NDArray[np.int64], t: int) -> NDArray[np.float64]:
    """The probabilities of permute-and-flip on integers: by what the others leave to each."""
    h, top = 2.0**-t, int(k.max()) + 45 * 2**t
    m = np.arange(int(k.min()), top)

    def least(r: NDArray[np.int64]) -> NDArray[np.float64]:
        return np.where(r <= 0, 1.0, np.exp(-h * (r - 0.5)))

    at_least = np.array([least(m - one) for one in k])
    beyond = np.array([least(m + 1 - one) for one in k])
    below, up_to = 1.0 - at_least, 1.0 - beyond
    return np.array(
        [
            np.sum((at_least[i] - beyond[i]) * below[:i].prod(axis=0) * up_to[i + 1 :].prod(axis=0))
            for i in range(len(k))
        ]
    )


@pytest.mark.parametrize("t", [8, 9])
def test_rounded_gumbel_noise_draws_from_a_softmax_within_the_proven_factor(t: int) -> None:
    """And the factor is there: ties go to the lowest index."""
    rng, widest = np.random.default_rng(t), 0.0
    for _ in range(25):
        k = rng.integers(-6 * 2**t, 1, int(rng.integers(2, 6)))
        law, h = gumbel_law(k, t), 2.0**-t
        assert law.sum() == pytest.approx(1.0, abs=1e-9)
        w = np.exp(h * k)
        off = np.log(law / (w / w.sum()))
        assert np.all((off >= -h * (1 + 1e-6)) & (off <= h * (1 + h) * (1 + 1e-6)))
        widest = max(widest, float(np.ptp(off)) / h)
    assert widest > 0.4


@pytest.mark.parametrize(("law", "slack"), [(gumbel_law, 4.0), (exponential_law, 0.0)])
def test_choices_between_neighbours_stay_within_the_price(law: Any, slack: float) -> None:
    """On the lattice, with noise of 2^8 points: ratios and, for Gumbel noise, their range; close to the bound."""
    rng, t, largest = np.random.default_rng(3), 8, 0.0
    for _ in range(60):
        size, distance = int(rng.integers(2, 5)), int(rng.integers(1, 2**t))
        k = rng.integers(-3 * 2**t, 1, size)
        moved = k + rng.choice([0, distance], size)
        ratios = np.log(law(moved, t) / law(k, t))
        bound = (distance + slack * (1 + 2.0**-t)) / 2**t
        spread = np.ptp(ratios) if slack else np.max(np.abs(ratios))
        assert spread <= bound * (1 + 1e-9)
        largest = max(largest, float(spread / (distance / 2**t)))
    assert largest > 0.97


@pytest.mark.parametrize(
    ("mechanism", "law"), [(ExponentialMechanism, gumbel_law), (PermuteAndFlip, exponential_law)]
)
def test_the_laws_are_those_that_are_drawn(mechanism: Any, law: Any) -> None:
    """An epsilon of 2^22 has noise of 2^9 points at most: scores that far apart show every point."""
    choose, scores = mechanism(2.0**22), np.array([0.0, -1.0, 0.3, 0.3]) * 2.0**-22
    k, t = places(scores, 1.0, choose.epsilon), choice_exponent(choose.epsilon)
    noise = choose.draw(NoiseSource(5), (40_000, 4))
    counts = np.bincount(np.argmax(k + noise, axis=1), minlength=4)
    assert stats.chisquare(counts, law(k, t) * counts.sum() / law(k, t).sum()).pvalue > LEVEL


@pytest.mark.audit
@pytest.mark.parametrize(
    ("mechanism", "law"), [(ExponentialMechanism, gumbel_law), (PermuteAndFlip, exponential_law)]
)
def test_the_laws_are_those_that_are_drawn_many_times(mechanism: Any, law: Any) -> None:
    choose, rng = mechanism(2.0**22), np.random.default_rng(8)
    for trial in range(10):
        scores = rng.uniform(-3.0, 0.0, 6) * 2.0**-22
        k, t = places(scores, 1.0, choose.epsilon), choice_exponent(choose.epsilon)
        noise = choose.draw(NoiseSource(trial), (2_000_000, 6))
        counts = np.bincount(np.argmax(k + noise, axis=1), minlength=6)
        assert stats.chisquare(counts, law(k, t) * counts.sum() / law(k, t).sum()).pvalue > LEVEL / 10
