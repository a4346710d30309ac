"""What one release says for one data set against its neighbour, by the law of its noise.

An observer who knows both data sets and all earlier releases knows the law of the next one on either side: p on the
left, q on the right. An answer may be drawn from the *tilted* law, proportional to p (p/q)^t: transcripts that tell the
sides apart are then not rare, and each counts for p over the tilted density.

Source:
    Neyman, Pearson 1933 (no test is stronger than the likelihood ratio); Siegmund 1976 (importance sampling).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privopt.mechanisms.additive import Gaussian, Laplace
from privopt.mechanisms.base import Mechanism
from privopt.mechanisms.choice import ExponentialMechanism, PermuteAndFlip
from privopt.mechanisms.noise import NoiseSource

Values = NDArray[np.float64]
Lean = Callable[[float], float]
_NODES = 400  # of the integral over the winner's noise: exact for up to 800 candidates


@dataclass(frozen=True, kw_only=True)
class Law:
    """One answer, and what it says.

    Attributes:
        released: the answer.
        log_ratio: log p - log q.
        log_weight: log p less the logarithm of the tilted density.
        spread: twice the Kullback-Leibler divergence of p from q: where noise is Gaussian, the square of the shift.
        residual: what was added over what was to be added, of Gaussian noise; None of any other.
    """

    released: Any
    log_ratio: float
    log_weight: float
    spread: float
    residual: Values | None = None


def law_of(
    mechanism: Mechanism, left: Values, right: Values, sensitivity: float, noise: NoiseSource, lean: Lean
) -> Law | None:
    """Answer for the left value and say what that tells; None where the law is not known here.

    Args:
        mechanism: what protects the value.
        left: the value before noise on the left side.
        right: on the right side, same shape.
        sensitivity: as stated, above 0.
        noise: what the mechanism draws from.
        lean: gives t, at least 0, for the spread of the answer.
    """
    if isinstance(mechanism, Gaussian) and mechanism.noise_multiplier > 0:
        return _gaussian(mechanism, left, right, sensitivity, noise, lean)
    if isinstance(mechanism, Laplace) and mechanism.noise_multiplier > 0:
        return _laplace(mechanism, left, right, sensitivity, noise)
    if isinstance(mechanism, ExponentialMechanism) and math.isfinite(mechanism.epsilon):
        chances = flipped if isinstance(mechanism, PermuteAndFlip) else softmax
        laws = [chances(np.ravel(scores) / sensitivity * mechanism.epsilon) for scores in (left, right)]
        return choice(laws[0], laws[1], noise, lean)
    return None


def _gaussian(
    mechanism: Gaussian, left: Values, right: Values, sensitivity: float, noise: NoiseSource, lean: Lean
) -> Law:
    """Tilted Gaussian noise is Gaussian noise around left + t (left - right)."""
    scale = mechanism.noise_multiplier * sensitivity
    shift = np.ravel(left - right) / scale
    spread = float(shift @ shift)
    tilt = lean(spread)
    leaning = left + tilt * (left - right)
    released = np.asarray(mechanism.release(noise, leaning, sensitivity), np.float64)
    log_ratio = float(np.ravel(released - left) @ shift) / scale + spread / 2
    return Law(
        released=released,
        log_ratio=log_ratio,
        log_weight=(tilt + tilt**2) * spread / 2 - tilt * log_ratio,
        spread=spread,
        residual=np.ravel(released - leaning) / scale,
    )


def _laplace(mechanism: Laplace, left: Values, right: Values, sensitivity: float, noise: NoiseSource) -> Law:
    """Laplace noise is not tilted: its ratios are bounded."""
    scale = mechanism.noise_multiplier * sensitivity
    released = np.asarray(mechanism.release(noise, left, sensitivity), np.float64)
    moved = np.abs(left - right) / scale
    return Law(
        released=released,
        log_ratio=float(np.sum(np.abs(released - right) - np.abs(released - left))) / scale,
        log_weight=0.0,
        spread=2 * float(np.sum(moved + np.expm1(-moved))),
    )


def choice(log_left: Values, log_right: Values, noise: NoiseSource, lean: Lean) -> Law:
    """Draw one of several things by its tilted chance, from the logarithms of its chances on either side."""
    ratios = log_left - log_right
    spread = 2 * float(np.exp(log_left) @ ratios)
    tilt = lean(spread)
    leaning = log_left + tilt * ratios
    log_norm = float(np.logaddexp.reduce(leaning))
    ends = np.cumsum(np.exp(leaning - log_norm))
    index = min(int(np.searchsorted(ends, float(noise.uniform(())))), len(ends) - 1)
    return Law(
        released=index,
        log_ratio=float(ratios[index]),
        log_weight=log_norm - tilt * float(ratios[index]),
        spread=spread,
    )


def softmax(logits: Values) -> Values:
    """The logarithms of the chances of the exponential mechanism."""
    return logits - np.logaddexp.reduce(logits)


def flipped(logits: Values) -> Values:
    """The logarithms of the chances of permute-and-flip.

    The largest of a_i + E_i with exponential E_i is i with probability int_0^1 w_i prod_{j != i} (1 - w_j u) du, where
    w = exp(a - max a).
    """
    below = logits - np.max(logits)
    weights = np.exp(below)
    points, shares = _quadrature()
    logs = np.log1p(-np.minimum(np.outer(points, weights), 1 - 1e-16))
    others = np.sum(logs, axis=1)[:, None] - logs
    return below + np.log(np.sum(shares[:, None] * np.exp(others), axis=0))


@cache
def _quadrature() -> tuple[Values, Values]:
    """Nodes and weights of Gauss and Legendre on [0, 1]."""
    nodes, weights = np.polynomial.legendre.leggauss(_NODES)
    return (nodes + 1) / 2, weights / 2
