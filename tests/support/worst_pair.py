"""Neighbours for descent, and what counts of runs on them refute: assumes nothing of the noise, and needs many runs."""

import math

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from privopt.attacks.confidence import CONFIDENCE
from privopt.attacks.subjects import HUGE
from privopt.data.units import Units
from privopt.ledger.amounts import Budget


def worst_pair(relation: str, *, n: int, others: float) -> tuple[Units, Units]:
    """Two neighbours whose clipped mean gradient of the squared loss differs by the whole sensitivity at every point.

    Unit 0 pulls with all its might along the first axis; in the neighbour it pulls the other way, or is absent.

    Args:
        relation: the neighbouring relation.
        n: public number of units.
        others: how the other units pull along the same axis: 1, or 0 for empty rows.
    """
    rows, targets = np.tile([others, 0.0], (n, 1)), np.full(n, -HUGE)
    rows[0, 0] = 1.0
    turned = targets.copy()
    turned[0] = HUGE
    first = 1 if relation == "add-or-remove-one" else 0
    return (
        Units.from_arrays(rows, targets, relation=relation, row_bound=1.0, n=n),
        Units.from_arrays(rows[first:], turned[first:], relation=relation, row_bound=1.0, n=n),
    )


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
    at_least = float(stats.beta.ppf(half, left, runs - left + 1)) if left else 0.0
    at_most = float(stats.beta.ppf(1 - half, right + 1, runs - right)) if right < runs else 1.0
    return math.log((at_least - delta) / at_most) if at_least > delta else -math.inf


def counted_bound(
    log_ratio_left: NDArray[np.float64], log_ratio_right: NDArray[np.float64], budget: Budget
) -> float:
    """The best lower bound on epsilon of the likelihood-ratio test at the claim's own threshold, in both directions.

    An (epsilon, delta) claim is tight on the event that the log-likelihood ratio exceeds epsilon.

    Args:
        log_ratio_left: log-likelihood ratios left against right, of runs on the left data set.
        log_ratio_right: the same ratios, of as many runs on the right one.
        budget: the claim.
    """
    runs = len(log_ratio_left)
    left, right = log_ratio_left, log_ratio_right
    exceeded = int(np.sum(left > budget.epsilon)), int(np.sum(right > budget.epsilon))
    reversed_ = int(np.sum(-right > budget.epsilon)), int(np.sum(-left > budget.epsilon))
    return max(epsilon_lower_bound(seen, also, runs, budget.delta) for seen, also in (exceeded, reversed_))
