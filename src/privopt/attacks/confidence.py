"""From what an attacker got right to a lower bound on epsilon, with confidence."""

import math
from collections.abc import Callable
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray
from scipy import stats

_stats = cast("Any", stats)  # its type information is incomplete
CONFIDENCE = 1 - 1e-3
_HALVINGS = 40
_BETS = (0.1, 0.3, 0.5, 0.7, 0.9)
_MOST_EPSILON = 64.0


def chance_of_guesses(canaries: int, guesses: int, right: int, epsilon: float, delta: float) -> float:
    """At most how likely so many right guesses are where a run is (epsilon, delta)-private.

    Each of `canaries` fair coins decided about one unit of a single run; somebody who saw the result guessed `guesses`
    of them, and `right` or more were right.

    Source:
        Steinke, Nasr, Jagielski 2023, theorem 5.2.
    """
    rate = 1 / (1 + math.exp(-epsilon))
    pure = float(_stats.binom.sf(right - 1, guesses, rate))
    excess = np.arange(1, right + 1)
    fewer = np.cumsum(_stats.binom.pmf(right - excess, guesses, rate))
    return min(1.0, pure + 2 * canaries * delta * float(np.max(fewer / excess, initial=0.0)))


def one_run_epsilon(
    canaries: int, guesses: int, right: int, delta: float, confidence: float = CONFIDENCE
) -> float:
    """The largest epsilon that the guesses of one run refute; 0 where they refute none."""

    def refuted(epsilon: float) -> bool:
        return chance_of_guesses(canaries, guesses, right, epsilon, delta) <= 1 - confidence

    return largest_refuted(refuted, _MOST_EPSILON, _HALVINGS) if refuted(0.0) else 0.0


def largest_refuted(refuted: Callable[[float], bool], most: float, halvings: int) -> float:
    """The largest epsilon that is refuted, from below; 0 is, and what is larger than `most` is not."""
    low, high = 0.0, most
    for _ in range(halvings):
        middle = (low + high) / 2
        low, high = (middle, high) if refuted(middle) else (low, middle)
    return low


def deviation_bounds(squares: float, count: int, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """Bounds on the standard deviation of normal draws of mean 0, from the sum of their squares."""
    half = (1 - confidence) / 2
    ends = (float(_stats.chi2.ppf(part, count)) for part in (1 - half, half))
    low, high = (math.sqrt(squares / end) for end in ends)
    return low, high


def mean_is_above_one(values: NDArray[np.float64], confidence: float = CONFIDENCE) -> bool:
    """Whether the mean of independent values, at least 0 and as large as they like, is above 1.

    A gambler who starts with 1 and puts a share s of it on every value has prod(1 + s (value - 1)) at the end, at most
    1 on average if the mean is at most 1: also on average over several s. Markov's inequality does the rest.

    Source:
        Waudby-Smith, Ramdas 2024, section 4 (bounded means by betting), with bets that are fixed.
    """
    with np.errstate(divide="ignore"):
        wealth = [float(np.sum(np.log1p(bet * (values - 1)))) for bet in _BETS]
    return float(np.logaddexp.reduce(wealth)) - math.log(len(_BETS)) >= -math.log(1 - confidence)
