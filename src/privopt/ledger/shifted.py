"""The privacy curve of objective perturbation, in closed formulas over the whole line.

A mechanism of privacy `mu`, shifted by c, has for eps >= c, in both directions,

    delta(eps) <= GaussianDelta(mu, eps - c)                                            one-signed derivatives
    delta(eps) <= E (1 - e^(eps - c - mu |Z| - mu^2 / 2))_+ , Z standard normal          two-signed derivatives

The second is 2 GaussianDelta(mu, eps - c) from eps - c = mu^2 / 2 on. Both hold for the mechanism's two directions, so
the mirror image delta(-eps) = 1 - e^-eps + e^-eps delta(eps) is a bound for eps <= -c, and since a privacy curve is
convex in x = e^eps, the greatest convex function below the two pieces is a bound everywhere. The mirror maps the line
1 - b (1 + x) to itself, so the pieces are joined by the line of this form that meets them both: at +-c where the
derivative has one sign, at a tangent where it has two.

The joined curve is convex, decreasing and at least (1 - x)_+: it is the curve of a pair of distributions that dominates
the mechanism. With w = 1 or 2 signs, the privacy loss of the pair has, under its first distribution,

    density w phi(z) at c + mu z + mu^2 / 2 for z >= start,  the mirror image w e^-c phi(z + mu) at minus that loss,
    and what is missing of mass 1 at the two joints, in the ratio 1 to e^-joint.

Source:
    The two bounds: Redberg, Koskela, Wang 2023, sharpened for one-signed derivatives. A convex bound is the curve of a
    dominating pair: Zhu, Dong, Wang 2022. The mirror and the joint are ours.
"""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import log_ndtr, ndtr

from privopt.ledger.events import ShiftedGaussianEvent
from privopt.ledger.gaussian_dp import gaussian_deltas, gaussian_epsilon

_brentq = cast(Any, brentq)  # its type information is incomplete


@dataclass(frozen=True)
class ShiftedCurve:
    """The convex curve of one objective perturbation and the privacy loss of its dominating pair.

    Args:
        mu: sensitivity over standard deviation of the linear term.
        shift: c, at least 0.
        two_signed: whether the derivative of the loss may have either sign.
    """

    mu: float
    shift: float
    two_signed: bool = False

    @classmethod
    def of(cls, event: ShiftedGaussianEvent) -> "ShiftedCurve":
        """The curve of an event."""
        return cls(event.mu, event.shift, event.two_signed)

    @property
    def weight(self) -> int:
        """How many Gaussian tails the loss has: 1 or 2."""
        return 2 if self.two_signed else 1

    @cached_property
    def start(self) -> float:
        """The normal quantile at which the upper piece of the curve begins.

        One sign: eps = c. Two signs: the line 1 - b (1 + x) touches at the z with 2 Q(z) + 2 e^-c Q(z + mu) = 1, which
        also says that the two pieces have all the mass.
        """
        if not self.two_signed:
            return -self.mu / 2

        def excess(z: float) -> float:
            return float(2 * ndtr(-z) + 2 * math.exp(-self.shift) * ndtr(-z - self.mu) - 1)

        root = float(_brentq(excess, 0.0, 1.0, xtol=1e-16, rtol=1e-15))
        while excess(root) > 0:  # from here on no mass is counted twice
            root += 1e-16
        return root

    @cached_property
    def joint(self) -> float:
        """The epsilon at which the upper piece begins."""
        return self.loss(self.start) if self.two_signed else self.shift

    @cached_property
    def log_slope(self) -> float:
        """log b of the line 1 - b (1 + e^eps) between the joints."""
        if self.two_signed:
            return math.log(2) - self.shift + float(log_ndtr(-self.start - self.mu))
        return math.log(2) + float(log_ndtr(-self.mu / 2)) - float(np.logaddexp(0.0, self.shift))

    @property
    def joint_mass(self) -> float:
        """The mass of the first distribution at the loss `joint`; e^-joint times as much is at -joint."""
        if self.two_signed:
            below = 2 * math.exp(-self.shift) * float(ndtr(-self.start - self.mu))
            missing = max(0.0, 1 - 2 * float(ndtr(-self.start)) - below)
        else:
            missing = -math.expm1(-self.shift) * float(ndtr(-self.mu / 2))
        return missing / (1 + math.exp(-self.joint))

    def loss(self, z: float) -> float:
        """The privacy loss at a normal quantile of the upper piece."""
        return self.shift + self.mu * (z + self.mu / 2)

    def deltas(self, epsilons: NDArray[np.float64]) -> NDArray[np.float64]:
        """The curve at any real epsilons."""
        size = np.abs(epsilons)
        with np.errstate(over="ignore"):
            outside = self.weight * gaussian_deltas(self.mu, np.maximum(size, self.joint) - self.shift)
            between = -np.expm1(np.minimum(self.log_slope + np.logaddexp(0.0, size), 0.0))
        above = np.where(size >= self.joint, outside, between)
        below = np.minimum(epsilons, 0.0)
        return np.where(epsilons >= 0, above, -np.expm1(below) + np.exp(below) * above)

    def delta(self, epsilon: float) -> float:
        """The curve at one epsilon."""
        return float(self.deltas(np.asarray([epsilon], dtype=np.float64))[0])

    def epsilon(self, delta: float) -> float:
        """The smallest epsilon >= 0 with `delta(epsilon)` at most `delta`.

        Args:
            delta: at least 0 and below 1; 0 gives infinity.
        """
        if delta <= self.delta(self.joint):
            return max(self.joint, self.shift + gaussian_epsilon(self.mu, delta / self.weight))
        ratio = math.log1p(-delta) - self.log_slope  # log(1 + e^epsilon) on the line between the joints
        if ratio <= math.log(2):
            return 0.0
        return min(self.joint, max(0.0, ratio + math.log(-math.expm1(-ratio))))

    def renyi(self, orders: NDArray[np.float64]) -> NDArray[np.float64]:
        """The Renyi divergences of the dominating pair, which bound those of the mechanism.

        They are log(E e^((a - 1) loss)) / (a - 1) under the first distribution: Gaussian integrals over half-lines.

        Args:
            orders: a, each above 1.
        """
        beyond = orders - 1
        power = orders * beyond * self.mu**2 / 2 + math.log(self.weight)
        parts = [
            power + beyond * self.shift + log_ndtr(beyond * self.mu - self.start),
            power - orders * self.shift + log_ndtr(-self.start - orders * self.mu),
        ]
        if self.joint_mass > 0:
            parts += [math.log(self.joint_mass) + beyond * self.joint]
            parts += [math.log(self.joint_mass) - orders * self.joint]
        return np.maximum(np.logaddexp.reduce(np.asarray(parts)) + 1e-14, 0.0) / beyond
