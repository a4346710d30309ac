"""How answers are made to lean towards transcripts that tell two data sets apart, and how those are weighed.

At a delta of 1e-6 one transcript in a million is what a guarantee is about. So answers are drawn such that all are like
these, each counts for how much likelier it was made, and the mean is what it would have been.
"""

import math
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray
from scipy import special

from privopt.attacks.confidence import CONFIDENCE, mean_is_above_one
from privopt.ledger.gaussian_dp import gaussian_epsilon

_special = cast("Any", special)  # its type information is incomplete
_HALVINGS = 60
_AHEAD = (
    2.0  # the delta that is steered for, over that of the claim: a mean far above delta shows in few runs
)
_LARGEST = 300.0  # a logarithm: transcripts never count for more
_STEEPEST = 1e4


@dataclass(frozen=True)
class Steering:
    """Leads log-likelihood ratios to where the curve of Gaussian noise of the expected spread has its delta.

    Attributes:
        target: the epsilon to be exceeded.
        spread: what is expected of the whole transcript, see `Observed.spread`; 0 does not steer.
    """

    target: float = 0.0
    spread: float = 0.0

    @classmethod
    def for_spread(cls, spread: float, delta: float) -> "Steering":
        """The steering for transcripts of a spread, at a claim's delta."""
        return cls(gaussian_epsilon(math.sqrt(spread), min(_AHEAD * delta, 0.5)), spread)

    def lean(self, ratio: float, spent: float, own: float) -> float:
        """How far the next answer leans, t of `laws`.

        With mu^2 the spread that is left and x = target - ratio, the chance that decides is delta_mu(x), and the best
        lean is its logarithmic slope, M(y + mu) / (M(y) - M(y + mu)) with y = x / mu - mu / 2 and Mills' ratio M.

        Args:
            ratio: the log-likelihood ratio so far.
            spent: the spread so far.
            own: the spread of the next answer.
        """
        if self.spread == 0 or own == 0:
            return 0.0
        mu = math.sqrt(max(self.spread - spent, own))
        y = (self.target - ratio) / mu - mu / 2
        near, far = (float(_special.erfcx(at / math.sqrt(2))) for at in (y, y + mu))
        return min(far / (near - far), _STEEPEST) if near > far else 0.0


def transcript_epsilon(
    log_ratios: NDArray[np.float64],
    log_weights: NDArray[np.float64],
    delta: float,
    confidence: float = CONFIDENCE,
) -> float:
    """The largest epsilon whose delta(epsilon) = E_p max(0, 1 - e^(epsilon - L)) is above delta; 0 where none is.

    The mean is taken over transcripts of another law, each counted p over its density. Every value in it falls as
    epsilon grows, so the bound on epsilon holds with the confidence of a single test of a mean.

    Args:
        log_ratios: L, the log-likelihood ratios of independent transcripts.
        log_weights: log p less the logarithm of the density that each was drawn with.
        delta: of the claim, above 0.
        confidence: the probability with which the bound holds.

    Source:
        Siegmund 1976 (importance sampling).
    """

    def holds(epsilon: float) -> bool:
        with np.errstate(over="ignore", divide="ignore"):
            parts = np.log(-np.expm1(np.minimum(0.0, epsilon - log_ratios))) + log_weights
            shares = np.exp(np.minimum(_LARGEST, parts - math.log(delta)))
        return mean_is_above_one(shares, confidence)

    if not holds(0.0):
        return 0.0
    low, high = 0.0, float(np.max(log_ratios))
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low
