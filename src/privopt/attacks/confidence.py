"""From what an attacker got right to a lower bound on epsilon, with confidence."""

import math
from typing import Any, cast

import numpy as np
from scipy import stats

_stats = cast("Any", stats)  # its type information is incomplete
CONFIDENCE = 1 - 1e-3
_HALVINGS = 40
_MOST_EPSILON = 64.0


def epsilon_lower_bound(
    left: int, right: int, runs: int, delta: float, confidence: float = CONFIDENCE
) -> float:
    """The largest epsilon that the counts refute: log((P_left - delta) / P_right), both Clopper-Pearson.

    Args:
        left: how often an event was seen under one data set.
        right: how often under the other.
        runs: number of runs under each.
        delta: of the claim.
        confidence: the probability with which the bound holds; minus infinity says that nothing is refuted.

    Source:
        Jagielski, Ullman, Oprea 2020, section 3.
    """
    half = (1 - confidence) / 2
    at_least = float(_stats.beta.ppf(half, left, runs - left + 1)) if left else 0.0
    at_most = float(_stats.beta.ppf(1 - half, right + 1, runs - right)) if right < runs else 1.0
    return math.log((at_least - delta) / at_most) if at_least > delta else -math.inf


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
    low, high = 0.0, _MOST_EPSILON
    if chance_of_guesses(canaries, guesses, right, 0.0, delta) > 1 - confidence:
        return 0.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        refuted = chance_of_guesses(canaries, guesses, right, middle, delta) <= 1 - confidence
        low, high = (middle, high) if refuted else (low, middle)
    return low


def deviation_bounds(squares: float, count: int, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """Bounds on the standard deviation of normal draws of mean 0, from the sum of their squares."""
    half = (1 - confidence) / 2
    ends = (float(_stats.chi2.ppf(part, count)) for part in (1 - half, half))
    low, high = (math.sqrt(squares / end) for end in ends)
    return low, high
