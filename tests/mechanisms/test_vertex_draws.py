import decimal
import math
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from tests.support.scale_checks import LEVEL, WRONG_SCALES, frequency_p_value, softmax

from privopt.mechanisms.noise import NoiseSource
from privopt.mechanisms.vertex_draws import RELATIVE_ROUNDING, WORDS, softmax_draws

BITS = 53 * WORDS
REFERENCE_SCORES = np.array([0.3, -1.2, 0.8, 0.0])


def words_of(first: int, second: int) -> NDArray[np.int64]:
    """The words of two numbers of 212 bits."""
    words = [
        [((number >> (53 * (WORDS - 1 - word))) & (2**53 - 1)) for word in range(WORDS)]
        for number in (first, second)
    ]
    return np.array([words], np.int64)


def drawn(scores: NDArray[np.float64], first: int, second: int) -> int:
    return int(softmax_draws(scores, words_of(first, second))[0])


def least(top: int, holds: object) -> int:
    """The least number from 0 to `top` at which a monotone condition holds; `top` if at none."""
    low, high = 0, top
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle + 1, high)  # type: ignore[operator]
    return low


def exact_probabilities(scores: NDArray[np.float64]) -> list[Fraction]:
    """The share of all uniform numbers that give each index: read off the draws from outside, with no tolerance."""
    side = math.ceil(len(scores) ** 0.25 - 1e-9)
    width, everything = side**2, 2**BITS
    probabilities: list[Fraction] = []
    before = 0
    for start in range(0, len(scores), width):
        ends_at = min(start + width, len(scores))
        after = least(everything, lambda number, end=ends_at: drawn(scores, number, 0) >= end)
        inside, middle = 0, (before + after) // 2
        for index in range(start, ends_at):
            share = 0
            if after > before:
                upto = least(everything, lambda number, i=index, m=middle: drawn(scores, m, number) > i)
                share, inside = upto - inside, upto
            probabilities.append(Fraction(share * (after - before), everything**2))
        before = after
    return probabilities


def exact_logs(probabilities: list[Fraction]) -> list[Decimal]:
    return [(Decimal(p.numerator) / p.denominator).ln() for p in probabilities]


# Exactness -----------------------------------------------------------------------------------------------------------


@pytest.mark.audit
@settings(max_examples=12, deadline=None)
@given(
    st.integers(1, 18).flatmap(
        lambda size: st.lists(st.floats(-200, 200), min_size=size, max_size=size).map(np.array)
    )
)
def test_every_probability_is_exact_up_to_the_relative_rounding(scores: NDArray[np.float64]) -> None:
    """Spreads up to 400: a mass of 2^-64 is as exact, relatively, as one of 1. In 150 digits."""
    with decimal.localcontext(prec=150):
        probabilities = exact_probabilities(scores)
        assert sum(probabilities) == 1
        floor = -64 * Decimal(2).ln()
        logits = [max(Decimal(s) - Decimal(float(scores.max())), floor) for s in scores.tolist()]
        errors = [p - x for p, x in zip(exact_logs(probabilities), logits, strict=True)]
        assert max(errors) - min(errors) <= 2 * Decimal(RELATIVE_ROUNDING)


@settings(max_examples=8, deadline=None)
@given(
    st.lists(st.tuples(st.floats(-90, 90), st.floats(0, 1)), min_size=2, max_size=10),
    st.floats(1e-6, 3.0),
    st.floats(-5.0, 5.0),
)
def test_a_draw_is_bounded_range_however_unlikely_a_vertex_is(
    pairs: list[tuple[float, float]], reach: float, shift: float
) -> None:
    scores, moves = np.array(pairs).T
    neighbour = scores + reach * moves + shift
    with decimal.localcontext(prec=150):
        logs, others = (exact_logs(exact_probabilities(one)) for one in (scores, neighbour))
        moved = [Decimal(b) - Decimal(a) for a, b in zip(scores.tolist(), neighbour.tolist(), strict=True)]
        ratios = [a - b for a, b in zip(logs, others, strict=True)]
        allowed = max(moved) - min(moved) + 4 * Decimal(RELATIVE_ROUNDING)
        assert max(ratios) - min(ratios) <= allowed
        assert max(abs(ratio) for ratio in ratios) <= allowed


def test_inverse_cdf_draws_have_their_reference_values() -> None:
    """saddle-point reference 13.3."""
    expected = [0.276803609645, 0.061763233750, 0.456371999029, 0.205061157576]
    assert [float(p) for p in exact_probabilities(REFERENCE_SCORES)] == pytest.approx(expected, abs=1e-12)
    found = [drawn(REFERENCE_SCORES, 0, int(u * 2**BITS)) for u in (0.05, 0.31, 0.5, 0.77, 0.999)]
    assert found == [0, 1, 2, 2, 3]


def test_every_uniform_number_gives_a_vertex() -> None:
    last = 2**BITS - 1
    for size in (1, 2, 3, 17, 300):
        scores = np.linspace(0, -500, size)
        for first in (0, last):
            for second in (0, last):
                assert 0 <= drawn(scores, first, second) < size
        assert drawn(scores, last, last) == size - 1


@pytest.mark.parametrize("odd", [math.nan, math.inf, -math.inf, 1e308, -1e308])
def test_numbers_that_are_not_finite_stop_nothing(odd: float) -> None:
    scores = np.array([0.0, odd, -3.0, 1.0])
    for number in (0, 2**BITS - 1):
        assert drawn(scores, number, number) in range(4)
    assert drawn(np.full(5, odd), 0, 0) in range(5)


# Frequencies ---------------------------------------------------------------------------------------------------------


@pytest.mark.later("3.0")
@pytest.mark.parametrize("spread", [3.0, 60.0])
def test_draws_have_softmax_frequencies_and_no_other_temperature(spread: float) -> None:
    generator = np.random.default_rng(70)
    scores = -spread * generator.random(1000)
    noise = NoiseSource(seed=71)
    for factor, accepted in [(1.0, True), *((wrong, False) for wrong in WRONG_SCALES)]:
        found = softmax_draws(factor * scores, noise.words((20_000, 2, WORDS)))
        p_value = frequency_p_value(np.bincount(found, minlength=1000), softmax(scores))
        assert p_value > LEVEL if accepted else p_value < LEVEL


@pytest.mark.audit
def test_draws_among_a_million_vertices_have_softmax_frequencies() -> None:
    generator = np.random.default_rng(73)
    scores = -60.0 * generator.random(10**6) ** 0.25
    noise = NoiseSource(seed=74)
    right, wrong = (softmax_draws(factor * scores, noise.words((40_000, 2, WORDS))) for factor in (1.0, 0.7))
    for cells in (
        np.arange(10**6) // 5000,
        generator.integers(200, size=10**6),
        np.argsort(np.argsort(scores)) // 200,
    ):
        expected = np.bincount(cells, weights=softmax(scores))
        assert frequency_p_value(np.bincount(cells[right], minlength=len(expected)), expected) > LEVEL
    assert frequency_p_value(np.bincount(cells[wrong], minlength=len(expected)), expected) < LEVEL
