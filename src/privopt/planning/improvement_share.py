"""How much of what there is to learn a whitened descent has learnt, said by its own releases.

What there is to learn is how much better the best model without privacy is, on the training records, than the best
constant prediction. Of that,

    share = 1 - (excess of the model's mean loss) / (excess of the constant's)

has been learnt. Nobody may look at either excess. But gradients were released with noise of known size, and their
average tells how much of it is signal. In v, with u the average of the points, y that of the released gradients with
the same weights, noise sqrt(p), and in the eigenbasis of the second moment (h, f as in `planning.whitening`):

    A_j = k c max(h_j / (h_j + f), 1/20)                       model of the curvature of the clipped loss
    b = A u - y                                                A v* + N(0, p) where gradients are linear
    b <- b - A q <q, b> / <q, A q>                             q moves all predictions by a constant
    v*_j ~ N(0, tau^2 (h_j + f)),  g_j = A_j^2 (h_j + f)       large where the data vary; log tau^2 uniform beforehand
    gain = E sum_j a_j tau^2 g_j / (tau^2 g_j + p),  a_j = A_j (h_j + f) / sum,  the mean over tau^2 given b
    share = 1 / (1 + exp(-o - 0.6 log(gain / (1 - gain))))

k is the share of a typical gradient that the clip leaves; c the curvature of the loss, of the logistic loss that at the
mean prediction, at least 1/100; o depends on the loss. Where the largest likelihood of b is hardly above that of noise
alone (`LEAST_EVIDENCE`), the noise hides what there is to learn. With z times as many records, or z times the mu, p
falls by z^2: that is how a share follows from n and epsilon.

Source:
    MacKay 1992 for the evidence. The numbers were fitted to the choosing half of the panel, see docs/benchmarks.md.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Array
from numpy.typing import ArrayLike, NDArray

from privopt.planning.logistic_curvature import logistic_curvature
from privopt.planning.whitening import WhiteningRule
from privopt.problems.losses import Logistic
from privopt.problems.problem import Problem

POWER = 0.6
LEAST_CURVED, LEAST_DAMPING = 0.01, 0.05
LEAST_EVIDENCE = 2.0  # in natural logarithms
SCALES = np.geomspace(1e-4, 1e5, 61)  # of tau^2 g / p, in the geometric mean over directions


class Evidence(NamedTuple):
    """What released gradients say together: averages with the same weights.

    Attributes:
        point: where the gradients were taken, in the coordinates of the run, (d,) or (d, K).
        gradient: the released gradients, without the penalty's.
        noise: standard deviation of the noise in each entry of it.
    """

    point: Array
    gradient: Array
    noise: float


@dataclass(frozen=True, kw_only=True)
class Learnt:
    """How much was learnt, and how that depends on the noise.

    Attributes:
        weights: a_j, (d,).
        strength: g_j over their geometric mean, (d,).
        chances: of each of `SCALES`, given the releases, (61,).
        evidence: by how much the logarithm of the largest likelihood exceeds that of noise alone.
        offset: o.
    """

    weights: NDArray[np.float64]
    strength: NDArray[np.float64]
    chances: NDArray[np.float64]
    evidence: float
    offset: float

    @property
    def hidden(self) -> bool:
        """Whether the noise hides what there is to learn."""
        return self.evidence < LEAST_EVIDENCE

    def gain(self, times: float = 1.0) -> float:
        """The mean share of a direction's signal that is kept, had there been `times` as many records."""
        ratios = SCALES[:, None] * self.strength * times**2
        return float(self.chances @ (ratios / (ratios + 1.0)) @ self.weights)

    def share(self, times: float = 1.0) -> float:
        """The share that was learnt, or that `times` as many records would let it learn."""
        return share_of(self.gain(times), self.offset)

    def times(self, share: float) -> float:
        """How many times as many records, or how many times the mu, this share takes; infinite if more than 10^4."""
        low, high = 0.0, math.log(1e4)
        if self.share(math.exp(high)) < share:
            return math.inf
        for _ in range(60):
            middle = 0.5 * (low + high)
            low, high = (middle, high) if self.share(math.exp(middle)) < share else (low, middle)
        return math.exp(high)


def share_of(gain: float, offset: float) -> float:
    """The share that was learnt where a mean share `gain` of the signal is kept."""
    gain = min(max(gain, 1e-6), 1.0 - 1e-6)
    return 1.0 / (1.0 + math.exp(-offset - POWER * math.log(gain / (1.0 - gain))))


def learnt(
    rule: WhiteningRule,
    released_moment: ArrayLike,
    evidence: Evidence,
    problem: Problem,
    params: ArrayLike,
    offset: float,
) -> Learnt | None:
    """What the releases of one whitened descent say about its result. Post-processing of releases.

    Args:
        rule: of the run.
        released_moment: the second moment as it was released, (d, d).
        evidence: of the run in its coordinates.
        problem: in the original coordinates.
        params: the result in the original coordinates, (d,) or (d, K).
        offset: o, of the loss.
    Returns:
        None where there is no noise, or something is not finite.
    """
    width = rule.width
    rows = rule.directions(np.asarray(released_moment))
    kept, axes = rows.eigenvalues, rows.axes
    point, slope = (axes.T @ np.asarray(one, float).reshape(width, -1) for one in evidence[:2])
    if not (evidence.noise > 0 and np.all(np.isfinite(point)) and np.all(np.isfinite(slope))):
        return None
    lengths = rows.scale
    column = problem.constant
    shift = np.zeros(width) if column is None else axes[column]
    curvature = rule.constants.curvature
    if isinstance(problem.loss, Logistic) and column is not None:
        curvature = _curvature_at_mean(axes.T @ np.asarray(params, float).reshape(width), kept, shift)
    clipped = rule.cap(math.sqrt(float(np.sum(kept / lengths))))
    damping = np.maximum(kept / lengths, LEAST_DAMPING)
    bend = clipped * curvature * damping
    signal = bend[:, None] * point - slope
    if column is not None:
        moved = shift * np.sqrt(lengths)
        signal = signal - np.outer(bend * moved, moved @ signal / np.sum(moved * moved * bend))
    strength = bend**2 * lengths
    strength = strength / np.exp(np.mean(np.log(strength)))
    chances, likelihood = _posterior(signal / evidence.noise, strength)
    return Learnt(
        weights=bend * lengths / np.sum(bend * lengths),
        strength=strength,
        chances=chances,
        evidence=likelihood,
        offset=offset,
    )


def _curvature_at_mean(
    params: NDArray[np.float64], moment: NDArray[np.float64], shift: NDArray[np.float64]
) -> float:
    """sigma' at the mean prediction, from the moment of the features with the constant; all in the eigenbasis."""
    constant = float(np.sum(moment * shift**2))
    mean = float(np.sum(moment * shift * params)) / math.sqrt(max(constant, 1e-3))
    return max(float(logistic_curvature(mean)), LEAST_CURVED)


def _posterior(
    signal: NDArray[np.float64], strength: NDArray[np.float64]
) -> tuple[NDArray[np.float64], float]:
    """The chances of `SCALES` given rows (d, K) of variance scale * strength + 1; the evidence for the likeliest."""
    variances = SCALES[:, None] * strength + 1.0
    energy, outputs = np.sum(signal**2, axis=1), signal.shape[1]
    logs = -0.5 * np.sum(outputs * np.log(variances) + energy / variances, axis=1)
    best = float(np.max(logs))
    chances = np.exp(logs - best)
    return chances / np.sum(chances), best + 0.5 * float(np.sum(energy))
