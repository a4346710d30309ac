"""Gaussian releases together with a few objective perturbations, by direct summation: no Fourier transform, any delta.

Let the objective perturbations have dominating pairs (P_i, Q_i) with privacy losses L_i under P_i, and let the Gaussian
releases together have the pair (N(mu, 1), N(0, 1)). Under adaptive composition the products dominate the whole (Zhu,
Dong, Wang 2022), and integrating over the Gaussian part first gives

    delta(eps) = E GaussianDelta(mu, eps - L_1 - L_2 - ...) + P(some L_i is infinite).

For fixed eps the expectation is that of F(X) under Q_i, where X = dP_i / dQ_i and F(x) = integral (x p - e^eps q)_+
over everything else, convex in x. Moving the mass of an interval [x_j, x_j+1] to its two ends, with its P_i and its Q_i
mass kept, replaces F by its chord and therefore only raises delta: a discrete pair that dominates (P_i, Q_i). The same
holds for a second move onto a common grid, on which losses of several events are added by plain convolution, and for
moving mass to a larger loss, infinity included. Where the loss is mu t + constant with t normal, [z, z + w] gives

    to its upper end    integral phi(t) (1 - e^(-mu (t - z))) dt / (1 - e^(-mu w)),
    to its lower end    integral phi(t) (e^(mu (z + w - t)) - 1) dt / (e^(mu w) - 1),

positive smooth integrands, for which six Gauss-Legendre nodes are exact to the last digits. Every sum has positive
terms only, so the relative error of floating point stays far below the 1e-9 that is added.

Source:
    Doroshenko, Ghazi, Kamath, Kumar, Manurangsi 2022, algorithm 1 (connecting the dots); direct summation is ours.
"""

import functools
import math
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_ndtr, ndtr

from privopt.ledger.curves import gaussian_deltas, gaussian_epsilon, root

# ---- The privacy curve of objective perturbation, in closed formulas over the whole line -------------------
# A mechanism of privacy `mu`, shifted by c, has for eps >= c, in both directions,
#
#     delta(eps) <= GaussianDelta(mu, eps - c)                                            one-signed derivatives
#     delta(eps) <= E (1 - e^(eps - c - mu |Z| - mu^2 / 2))_+ , Z standard normal          two-signed derivatives
#
# The second is 2 GaussianDelta(mu, eps - c) from eps - c = mu^2 / 2 on. Both hold for the mechanism's two directions,
# so the mirror image delta(-eps) = 1 - e^-eps + e^-eps delta(eps) is a bound for eps <= -c, and since a privacy curve
# is convex in x = e^eps, the greatest convex function below the two pieces is a bound everywhere. The mirror maps the
# line 1 - b (1 + x) to itself, so the pieces are joined by the line of this form that meets them both: at +-c where the
# derivative has one sign, at a tangent where it has two.
#
# The joined curve is convex, decreasing and at least (1 - x)_+: it is the curve of a pair of distributions that
# dominates the mechanism. With w = 1 or 2 signs, the privacy loss of the pair has, under its first distribution,
#
#     density w phi(z) at c + mu z + mu^2 / 2 for z >= start,  the mirror image w e^-c phi(z + mu) at minus that loss,
#     and what is missing of mass 1 at the two joints, in the ratio 1 to e^-joint.
#
# Source:
#     The two bounds: Redberg, Koskela, Wang 2023, sharpened for one-signed derivatives. A convex bound is the curve of
#     a dominating pair: Zhu, Dong, Wang 2022. The mirror and the joint are ours.


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

        found = root(excess, 0.0, 1.0, xtol=1e-16, rtol=1e-15)
        while excess(found) > 0:  # from here on no mass is counted twice
            found += 1e-16
        return found

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


# ---- Gaussian releases together with a few objective perturbations, by direct summation --------------------

REACH = 37.5  # normal quantiles; what is beyond has mass 1e-307 and counts as an infinite loss
CELL, LARGEST_STEP, MOST_CELLS = 0.01, 0.05, 20_000
MOST_COMMON_POINTS = 3000  # on either side of 0
UNDERFLOW = 1e-300
ROUNDING = 1 + 1e-9
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(6)


class Losses(NamedTuple):
    """A discrete privacy loss under the first distribution of a pair."""

    values: NDArray[np.float64]
    masses: NDArray[np.float64]
    infinite: float


def direct_delta(curves: tuple[ShiftedCurve, ...], mu: float, epsilon: float) -> float:
    """An upper bound of the delta of objective perturbations and Gaussian releases.

    Args:
        curves: of the objective perturbations.
        mu: privacy of all Gaussian releases together, at least 0.
        epsilon: at least 0.
    """
    losses = composed_losses(curves)
    rest = gaussian_deltas(mu, epsilon - losses.values)
    return min(1.0, ROUNDING * (float(losses.masses @ rest) + losses.infinite))


def direct_epsilon(curves: tuple[ShiftedCurve, ...], mu: float, delta: float) -> float:
    """The smallest epsilon >= 0 whose `direct_delta` is at most `delta`.

    Args:
        curves: of the objective perturbations.
        mu: privacy of all Gaussian releases together, at least 0.
        delta: at least 0 and below 1; below 1e-299 it gives infinity.
    """
    if direct_delta(curves, mu, 0.0) <= delta:
        return 0.0
    if delta <= 10 * UNDERFLOW:
        return math.inf

    @functools.cache
    def excess(epsilon: float) -> float:
        return math.log(direct_delta(curves, mu, epsilon) / delta)

    squares = math.fsum([mu**2, *(curve.mu**2 for curve in curves)])
    low = high = math.fsum(curve.shift for curve in curves) + gaussian_epsilon(math.sqrt(squares), delta)
    step = 1e-3 * high
    while excess(high) > 0:
        low, high, step = high, high + step, 4 * step
    while excess(low) <= 0:
        low, high, step = max(0.0, low - step), low, 4 * step
    found = root(excess, low, high, rtol=1e-12)
    while excess(found) > 0:
        found *= 1 + 1e-13
    return found


@functools.lru_cache(maxsize=64)
def composed_losses(curves: tuple[ShiftedCurve, ...]) -> Losses:
    """A discrete loss that dominates the composition of objective perturbations."""
    single = [_losses(curve) for curve in curves]
    if len(single) == 1:
        return single[0]
    furthest = max(float(losses.values.max()) for losses in single)
    interval = max(furthest / MOST_COMMON_POINTS, min(CELL * curve.mu for curve in curves))
    masses = np.ones(1)
    for losses in single:
        masses = np.convolve(masses, _on_grid(losses, interval))
    half_width = len(masses) // 2
    values = np.arange(-half_width, half_width + 1, dtype=np.float64) * interval
    return Losses(values, masses, UNDERFLOW + math.fsum(losses.infinite for losses in single))


def _losses(curve: ShiftedCurve) -> Losses:
    """The loss of one dominating pair, moved to the ends of small cells."""
    low = max(curve.start, -REACH)
    width = min(CELL, LARGEST_STEP / curve.mu)
    cells = min(math.ceil((REACH - low) / width), MOST_CELLS)
    edges = np.linspace(low, REACH, cells + 1)
    to_lower, to_upper = _split_cells(curve, edges)
    masses = np.zeros(cells + 1)
    masses[:-1] += to_lower
    masses[1:] += to_upper
    above = curve.shift + curve.mu * (edges + curve.mu / 2)
    above[0] = curve.joint if low == curve.start else above[0]
    masses[0] += curve.joint_mass
    with np.errstate(under="ignore"):
        mirrored = masses * np.exp(-above)
    return Losses(
        values=np.concatenate((-above[::-1], above)),
        masses=np.concatenate((mirrored[::-1], masses)),
        infinite=4 * curve.weight * float(ndtr(-REACH)),
    )


def _split_cells(
    curve: ShiftedCurve, edges: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The mass that each cell gives to its lower and to its upper edge."""
    width = float(edges[1] - edges[0])
    inside = width * (_NODES + 1) / 2
    with np.errstate(under="ignore"):
        density = np.exp(-((edges[:-1, None] + inside) ** 2) / 2) / math.sqrt(2 * math.pi)
    parts = curve.weight * density * (_WEIGHTS * width / 2)
    step = curve.mu * width
    if step > 1:  # six nodes would not do: all of it goes to the larger loss
        return np.zeros(len(parts)), parts.sum(axis=1)
    upper = (parts * (np.expm1(-curve.mu * inside) / math.expm1(-step))).sum(axis=1)
    lower = (parts * (np.expm1(curve.mu * (width - inside)) / math.expm1(step))).sum(axis=1)
    return lower, upper


def _on_grid(losses: Losses, interval: float) -> NDArray[np.float64]:
    """The same loss moved to the multiples of `interval`, the middle entry being 0."""
    index = np.floor(losses.values / interval).astype(np.int64)
    offset = np.clip(losses.values - index * interval, 0.0, interval)
    share = np.expm1(-offset) / math.expm1(-interval)
    half_width = int(np.max(np.abs(index))) + 1
    masses = np.zeros(2 * half_width + 1)
    np.add.at(masses, index + half_width, losses.masses * (1 - share))
    np.add.at(masses, index + half_width + 1, losses.masses * share)
    return masses


# ---- What tests on secret samples cost, with Gaussian releases on the samples that pass --------------------
# The mechanism, T times at most: draw a Poisson sample of rate g; ask a sparse vector whether a statistic of the sample
# reaches a threshold; stop if it does not; else release a mean of the *same* sample with Gaussian noise. One noise xi
# on the threshold, drawn before the first test, serves all of them.
#
# That a test passed says something about who was drawn, so given the answers a unit is in the sample with another
# probability than g: neither the product of a pure event and of T sampled Gaussians, nor amplification of the Gaussians
# alone, is a bound. With eps_a for the threshold, eps_b for the tests, e1 = eps_a + eps_b and
#
#     g' = g e^(eps_b / 2) / (1 + g (e^(eps_b / 2) - 1)),
#
# the price is delta(eps) = e^e1 delta_sub(eps - e1) for eps >= e1, delta_sub the curve of T Gaussians on Poisson
# samples of rate g', together with everything else that is released on the same units. Bad events are added once,
# outside.
#
# **Proof.** Let u be the unit in which D and D' differ, S the others that were drawn in a step, p0 and p1 the
# probabilities with which the test passes at the threshold xi without and with u in the sample, N0 and N1 the laws
# of the Gaussian release; a prime marks D' at the threshold xi - 1. A statistic that moves by 1 at most when u enters,
# leaves or is replaced, and noise Lap(2 / eps_b), give
#
#     p1 <= e^(eps_b / 2) p0,   p0' >= p0,   p1' >= p1,   and failures of D at most e^eps_b as likely as those of D'.
#
# Given S, "passes and releases in B" has under D the mass (1 - g) p0 N0(B) + g p1 N1(B) = w ((1 - a) N0 + a N1)(B) with
# w = (1 - g) p0 + g p1 and a = g p1 / w <= g'; under D', where u is replaced, at least w ((1 - a) N0 + a N1')(B).
# That is the same weight w on both sides and a pair of sampled Gaussians of rate a: a mixture of the pair of rate g'
# and of two equal laws, hence dominated by it. Averaging over S with equal weights keeps that. (u absent from D': at
# least w N0(B). u absent from D: at least p0 ((1 - g) N0 + g N1')(B) against p0 N0(B).) So at a fixed xi the run on D
# is a process A, that on D' is at least e^-eps_b times a process B, the factor for at most one failure, and A and B are
# adaptive compositions of dominated pairs: A(E) <= e^(eps - e1) B(E) + delta_sub(eps - e1). The density of xi at xi - 1
# costs e^eps_a:
#
#     P(E) <= e^eps_a (e^(eps - e1) e^eps_b P'(E) + delta_sub(eps - e1)) <= e^eps P'(E) + e^e1 delta_sub(eps - e1).
#
# Where the Gaussian's sensitivity holds only if a score of a sample is at least 1, S is called unsafe if the score is 0
# on S, S + u and S + u' alike, u' what replaces u. That is the same for D and D', so what passes at an unsafe S is left
# out of both processes, p0 = p1 = p0' = p1' = 0 there, and the above holds for the rest. Left out of P is at most the
# probability of a wrong pass, the bad event; leaving out makes P' smaller. On every other S all three distances must be
# covered, that of S and S + u' too where the score is 0 on both: see Lemma T in `proofs.huber_centre`.
#
# Several such vectors have independent thresholds: the factors multiply, so e1 adds up, and their Gaussians compose.
# Other releases on the same units are further steps of A and B.
#
# Source:
#     Lowy, Liu, Asi 2024, Theorem C.1, whose proof amplifies the Gaussians alone, given the answers; the repair is
#     ours.


def inflated_rate(rate: float, epsilon_queries: float) -> float:
    """g', the largest probability of a unit to be in a sample, given that the test on it passed.

    Args:
        rate: g, with which the sample was drawn.
        epsilon_queries: eps_b, spent on the tests' noise.
    """
    grown = rate * math.exp(epsilon_queries / 2)
    return grown / (grown + (1.0 - rate))
