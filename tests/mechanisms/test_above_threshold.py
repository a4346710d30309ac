import copy
import math
import pickle
from fractions import Fraction
from typing import Any

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from tests.support.scale_checks import LEVEL, WRONG_SCALES

from privopt.ledger.events import NonPrivateEvent, PureEvent
from privopt.mechanisms import tests as above_threshold
from privopt.mechanisms.noise import NoiseSource
from privopt.mechanisms.tests import AboveThreshold, SparseTest


class RecordingNoise(NoiseSource):
    """Gives these Laplace draws in turn, as float64, and remembers how many were asked for."""

    def __init__(self, *draws: float) -> None:
        super().__init__(seed=0, exact=False)
        self.draws = list(draws)
        self.asked = 0

    def laplace(self, shape: tuple[int, ...]) -> Any:
        assert shape == ()
        self.asked += 1
        return np.float64(self.draws.pop(0) if self.draws else 0.0)


def split(epsilon: float, threshold: float = 0.0) -> AboveThreshold:
    return AboveThreshold(threshold, *AboveThreshold.best_split(epsilon))


def test_the_closed_forms_have_their_reference_values() -> None:
    """user-level reference, R4, but for the rounding to integers."""
    test = split(0.3)
    assert test.epsilon_threshold == pytest.approx(0.11594646286929282, rel=1e-12)
    assert test.epsilon_queries == pytest.approx(0.18405353713070716, rel=1e-12)
    assert test.threshold_scale == pytest.approx(8.624670173227331, rel=2e-9)
    assert test.query_scale == pytest.approx(10.866403499649579, rel=2e-9)
    assert test.tail(100.0) == pytest.approx(1.283160740820107e-4, rel=1e-7)
    assert test.threshold_for(1e-7, 20) == pytest.approx(210.92516445435706, rel=1e-8)
    assert split(0.25).threshold_for(1e-7, 50) == pytest.approx(265.06960004, rel=1e-8)


def test_the_tail_is_a_survival_function() -> None:
    test = AboveThreshold(0.0, 0.7, 0.4)
    distances = np.linspace(-60, 60, 241)
    tails = np.array([test.tail(x) for x in distances])
    assert np.all(np.diff(tails) < 0)
    assert np.allclose(tails + tails[::-1], 1.0)
    assert test.tail(0.0) == pytest.approx(0.5)


def test_the_tail_is_continuous_where_the_two_scales_meet() -> None:
    equal = AboveThreshold(0.0, 0.5, 1.0)
    for distance in (0.1, 3.0, 40.0):
        closed = (2 + distance / 2) * math.exp(-distance / 2) / 4
        assert equal.tail(distance) == pytest.approx(closed, rel=1e-7)
        for near in (1 + 1e-6, 1 + 3e-5):
            assert AboveThreshold(0.0, 0.5, 1.0 / near).tail(distance) == pytest.approx(closed, rel=2e-3)
        inside = AboveThreshold(0.0, 0.5, 1.0 / (1 + 0.99e-5)).tail(distance)
        outside = AboveThreshold(0.0, 0.5, 1.0 / (1 + 1.01e-5)).tail(distance)
        assert inside == pytest.approx(outside, rel=1e-5)


def test_the_threshold_for_a_failure_probability_errs_on_the_safe_side() -> None:
    for failure, tests in [(1e-3, 1), (1e-7, 20), (1e-12, 1000)]:
        distance = split(1.0).threshold_for(failure, tests)
        assert tests * split(1.0).tail(distance) <= failure
        assert tests * split(1.0).tail(distance * (1 - 1e-9)) > failure
    assert 0 < AboveThreshold(0.0, math.inf, math.inf).threshold_for(1e-7, 20) < 1e-300
    with pytest.raises(ValueError, match="tests must be at least 1 and failure in"):
        split(1.0).threshold_for(0.5, 1)


def test_the_whole_stream_costs_both_epsilons() -> None:
    assert AboveThreshold(1.0, 0.25, 0.5).event() == PureEvent(0.75)
    assert AboveThreshold(1.0, math.inf, math.inf).event() == NonPrivateEvent()


@pytest.mark.at_once("3.0")
@pytest.mark.parametrize("distance", [0.0, 3.0, 9.0])
def test_hits_have_the_probability_of_the_tail_and_of_no_other_scale(distance: float) -> None:
    noise, trials = NoiseSource(seed=50), 8000
    test = AboveThreshold(10.0, 0.6, 0.9)
    value = 10.0 - 0.5 * distance
    hits = sum(test.answer(test.open(noise), noise, value, 0.5) for _ in range(trials))
    assert stats.binomtest(hits, trials, test.tail(distance)).pvalue > LEVEL
    for wrong in WRONG_SCALES if distance else ():
        claimed = AboveThreshold(10.0, 0.6 * wrong, 0.9 * wrong).tail(distance)
        assert stats.binomtest(hits, trials, claimed).pvalue < LEVEL


def test_the_threshold_noise_is_drawn_once_and_the_query_noise_every_time() -> None:
    noise = RecordingNoise(2.0, 0.0, 0.0, 0.0)
    test = AboveThreshold(100.0, 1.0, 2.0)
    state = test.open(noise)
    assert noise.asked == 1
    answers = [test.answer(state, noise, value, 3.0) for value in (100.0, 105.9, 106.0)]
    assert answers == [False, False, True]  # the threshold moved by 2.0 / 1.0 sensitivities of 3.0
    assert noise.asked == 4


def test_query_noise_has_twice_the_scale() -> None:
    for draw, hit in [(0.99, False), (1.0, True)]:
        noise = RecordingNoise(0.0, draw)
        test = AboveThreshold(0.0, 1.0, 0.5)
        assert test.answer(test.open(noise), noise, -4.0, 1.0) is hit


def test_many_passing_answers_cost_the_threshold_epsilon_once() -> None:
    """Exactly, by integrating over the threshold's noise: the pass-all probability of 16 values moves by at most
    epsilon_threshold. Mutant: redrawing that noise for every value costs more than the whole stream is charged."""
    test = AboveThreshold(0.0, 0.5, 1.0)
    grid = np.linspace(-60, 60, 24_001)
    density = stats.laplace.pdf(grid, scale=test.threshold_scale)

    def pass_all(value: float, redraw: bool) -> float:
        below = stats.laplace.cdf(grid - value, scale=test.query_scale)
        if redraw:
            return 16 * math.log(np.trapezoid(density * below, grid))
        return math.log(np.trapezoid(density * below**16, grid))

    assert 0.3 < pass_all(0.0, False) - pass_all(1.0, False) <= test.epsilon_threshold
    assert pass_all(0.0, True) - pass_all(1.0, True) > test.epsilon_threshold + test.epsilon_queries


def test_reversed_stops_at_the_first_value_below() -> None:
    noise = NoiseSource(seed=51)
    plain = AboveThreshold(5.0, math.inf, math.inf)
    backwards = AboveThreshold(5.0, math.inf, math.inf, reversed=True)
    assert [plain.answer(plain.open(noise), noise, v, 1.0) for v in (4.9, 5.0, 5.1)] == [False, True, True]
    assert [backwards.answer(backwards.open(noise), noise, v, 1.0) for v in (4.9, 5.0, 5.1)] == [
        True,
        False,
        False,
    ]


def test_reversed_mirrors_forward() -> None:
    forward, backwards = AboveThreshold(-5.0, 0.7, 0.6), AboveThreshold(5.0, 0.7, 0.6, reversed=True)
    first, second = NoiseSource(seed=52), NoiseSource(seed=52)
    for value in np.linspace(0, 10, 400):
        answers = [
            test.answer(test.open(noise), noise, sign * value, 2.0)
            for test, noise, sign in [(forward, first, -1), (backwards, second, 1)]
        ]
        assert answers[0] is answers[1]


def test_a_stream_closes_at_its_first_hit() -> None:
    noise = NoiseSource(seed=53)
    test = AboveThreshold(0.0, 50.0, 50.0)
    state = test.open(noise, (1,))
    assert test.answer(state, noise, -100.0, 1.0) is False
    assert test.answer(state, noise, 100.0, 1.0) is True
    with pytest.raises(RuntimeError, match="stopped at its first hit"):
        test.answer(state, noise, -100.0, 1.0)


def test_sensitivity_zero_answers_exactly() -> None:
    noise = NoiseSource(seed=54)
    test = AboveThreshold(1.0, 0.01, 0.01)
    for _ in range(20):
        assert test.answer(test.open(noise), noise, 1.0 - 1e-12, 0.0) is False
        assert test.answer(test.open(noise), noise, 1.0, 0.0) is True


@pytest.mark.parametrize("sensitivity", [-1.0, math.nan, math.inf])
def test_a_sensitivity_that_no_noise_can_match_is_refused(sensitivity: float) -> None:
    noise = NoiseSource(seed=55)
    test = split(1.0)
    with pytest.raises(ValueError, match="sensitivity"):
        test.answer(test.open(noise), noise, 0.0, sensitivity)


def test_wrong_arguments_are_refused() -> None:
    with pytest.raises(ValueError, match="threshold must be finite"):
        AboveThreshold(math.nan, 1.0, 1.0)
    with pytest.raises(ValueError, match="must be positive"):
        AboveThreshold(0.0, 0.0, 1.0)
    with pytest.raises(ValueError, match="single numbers"):
        split(1.0).open(NoiseSource(seed=1), (3,))


@pytest.mark.parametrize("duplicate", [pickle.dumps, copy.copy, copy.deepcopy])
def test_the_hidden_state_stays_hidden(duplicate: Any) -> None:
    state = split(1.0).open(NoiseSource(seed=56))
    assert repr(state) == "<private>"
    with pytest.raises(TypeError, match="cannot be pickled or copied"):
        duplicate(state)


class ChosenSteps(NoiseSource):
    """Gives these integers in turn as rounded Laplace draws."""

    def __init__(self, *steps: int) -> None:
        super().__init__(seed=0)
        self.steps = list(steps)

    def rounded_laplace(self, shape: tuple[int, ...], exponent: int) -> Any:
        return np.int64(self.steps.pop(0))


def steps_of(epsilon: float) -> tuple[int, int]:
    return above_threshold._steps(epsilon)


@pytest.mark.parametrize("epsilon", [1e-13, 1e-9, 2.0**-15, 0.01, 0.3, 1.0, 1.0 + 2**-52, 7.7, 1e9, 1e300])
def test_a_unit_of_steps_costs_no_more_than_its_epsilon(epsilon: float) -> None:
    """m / 2^t <= epsilon, and 2 h / 2^t <= epsilon for the values, in rational arithmetic; hardly less."""
    for asked, units in ((epsilon, 1), (epsilon / 2, 2)):
        steps, exponent = steps_of(asked)
        cost = Fraction(units * steps) / Fraction(2) ** exponent
        assert cost <= Fraction(epsilon)
        assert cost >= Fraction(epsilon) * (1 - Fraction(1, 2**29) - Fraction(2) ** -43 / Fraction(epsilon))
    test = AboveThreshold(0.0, epsilon, epsilon)
    assert test.threshold_scale >= (1 - 2**-52) / epsilon
    assert test.query_scale >= (1 - 2**-52) * 2 / epsilon


@given(st.integers(0, 2**32 - 1), st.booleans())
def test_shifted_noise_gives_a_neighbour_the_same_answers(seed: int, backwards: bool) -> None:
    """The map of the proof: xi by m steps, nu at the hit by 2 h; values move by all they may, at and next to ties."""
    rng = np.random.default_rng(seed)
    epsilon = float(rng.choice([0.3, 1.0, 2.0**-20]))
    test = AboveThreshold(float(rng.normal()), epsilon, 2 * epsilon, reversed=backwards)
    steps, _ = steps_of(epsilon)  # of both noises
    sensitivities = rng.choice([0.5, 1.0, 4.0], 5)
    drawn = [int(j) for j in rng.integers(-3 * steps, 3 * steps, 6)]
    near = [drawn[0] - j for j in drawn[1:]]  # steps above the threshold at which there is a tie
    sign = -1 if backwards else 1
    exact = [
        Fraction(test.threshold) + sign * Fraction(s) * Fraction(k, steps)
        for s, k in zip(sensitivities, near, strict=True)
    ]
    values = [
        float(v) + float(rng.choice([0, 0, 1e-12, -1e-12, -9.0, 9.0])) * float(s)
        for v, s in zip(exact, sensitivities, strict=True)
    ]
    moved = [
        Fraction(v) + int(rng.choice([-1, 1])) * Fraction(s)
        for v, s in zip(values, sensitivities, strict=True)
    ]

    def answers(private_values: Any, noise: Any) -> list[bool]:
        state, found = test.open(noise), list[bool]()
        for value, sensitivity in zip(private_values, sensitivities, strict=True):
            found.append(test.answer(state, noise, value, float(sensitivity)))
            if found[-1]:
                break
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            above_threshold, "_fraction", Fraction
        )  # neighbours' values need not be float64 numbers
        first = answers(values, ChosenSteps(*drawn))
        shifted = [drawn[0] + steps, *drawn[1:]]
        if first[-1]:
            shifted[len(first)] += 2 * steps
        assert answers(moved, ChosenSteps(*shifted)) == first


def test_a_comparison_is_made_without_rounding() -> None:
    """Where float64 would lose the value in the noise, or the noise in the value."""
    steps, _ = steps_of(0.5)
    test = AboveThreshold(1e16, 0.5, 1.0)
    for extra, hit in ((0, True), (-1, False)):
        noise = ChosenSteps(5 * steps, 5 * steps + extra)
        assert test.answer(test.open(noise), noise, 1e16, 1e-9) is hit
    tiny = AboveThreshold(0.0, 0.5, 1.0)
    for value, hit in ((5e-324, True), (-5e-324, False)):
        noise = ChosenSteps(2**40, 2**40)
        assert tiny.answer(tiny.open(noise), noise, value, 1e300) is hit


@pytest.mark.parametrize(("value", "hit"), [(math.nan, True), (math.inf, True), (-math.inf, False)])
def test_what_is_no_number_is_answered_without_an_error(value: float, hit: bool) -> None:
    for noise in (ChosenSteps(0, 0), NoiseSource(seed=1, exact=False)):
        test = AboveThreshold(-1e6, 1.0, 1.0)
        assert test.answer(test.open(noise), noise, value, 1.0) is hit


@pytest.mark.parametrize("first", [1e-13, 1e-4, 0.3, 0.5, 0.5 * (1 + 1e-9), 0.5 * (1 + 1e-5), 40.0])
def test_the_tail_is_no_less_than_that_of_the_rounded_draws(first: float) -> None:
    """Half a step of either draw nearer, with 50 digits and the true scales; and hardly more than for real numbers."""
    test = AboveThreshold(0.0, first, 1.0)
    with mpmath.workdps(50):
        scales, closer = [], mpmath.mpf(0)
        for epsilon in (first, 0.5):
            steps, exponent = steps_of(epsilon)
            scales.append(mpmath.mpf(2) ** exponent / steps)
            closer += mpmath.mpf(1) / (2 * steps)
        low, high = sorted(scales)

        def tail(distance: Any) -> Any:
            if low == high:
                return (2 + distance / low) * mpmath.exp(-distance / low) / 4
            parts = [one**2 * mpmath.exp(-distance / one) for one in (high, low)]
            return (parts[0] - parts[1]) / (2 * (high**2 - low**2))

        for multiple in (1e-6, 0.1, 1.0, 7.0, 50.0, 600.0):
            distance = multiple * float(high)
            assert mpmath.mpf(test.tail(distance)) >= tail(distance - closer)
            assert test.tail(distance) <= float(tail(distance)) * (1 + 1e-8)
    assert test.tail(0.0) >= 0.5


def test_noise_that_no_integer_holds_is_refused() -> None:
    for epsilons in ((1e-14, 1.0), (1.0, 5e-324)):
        with pytest.raises(ValueError, match="beyond the integers"):
            AboveThreshold(0.0, *epsilons)


@pytest.mark.audit
@pytest.mark.parametrize("exact", [True, False])
def test_many_hits_have_the_probability_of_the_tail(exact: bool) -> None:
    noise, trials = NoiseSource(seed=60, exact=exact), 200_000
    test = AboveThreshold(10.0, 0.6, 0.9)
    for distance in (0.0, 4.0):
        hits = sum(test.answer(test.open(noise), noise, 10.0 - 0.5 * distance, 0.5) for _ in range(trials))
        assert stats.binomtest(hits, trials, test.tail(distance)).pvalue > LEVEL


def test_a_test_that_sensitivities_rest_on_takes_numbers_of_sensitivity_one() -> None:
    """At sensitivity 3 the noise is three times as far spread, and wrong passes are not as rare as was paid for."""
    test = SparseTest.of(1.0, tests=5, bad_event_delta=1e-6)
    state = test.open(NoiseSource(0))
    with pytest.raises(ValueError, match=r"of sensitivity 1 at most, got 3\.0"):
        test.answer(state, NoiseSource(0), 0.0, 3.0)
    assert not test.answer(state, NoiseSource(0), 0.0, 1.0)
    off = SparseTest(1.0, math.inf, math.inf)
    assert off.answer(off.open(NoiseSource(0)), NoiseSource(0), 2.0, 3.0)
