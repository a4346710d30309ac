"""The privacy loss of one release, as the probabilities that it lies above a threshold.

A pair of distributions (P, Q) that dominates a release is told by P[loss > t] and Q[loss > t]. Most pairs here are
*symmetric*: the loss under P has the law of minus the loss under Q. They are told from a joint t0 >= 0 on, with
P[loss > t0] + Q[loss > t0] <= 1; what is missing of mass 1 lies at t0 and -t0, which is the chord of the curve between
its two ends and hence a bound, for a privacy curve is convex in e^epsilon. The pairs of Poisson samples under
add-or-remove-one are not symmetric and stand for one direction each.

Source:
    Poisson samples, either direction, and samples of fixed size under replace-one: Zhu, Dong, Wang 2022, theorem 11 and
    proposition 30. Mixtures: Choquette-Choo, Ganesh, Steinke, Thakurta 2023. Objective perturbation: Redberg, Koskela,
    Wang 2023. Zero-concentrated privacy: the tails of the curve of Canonne, Kamath, Steinke 2020, whose slope is known.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

Values = NDArray[np.float64]
_DOUBLINGS = 30
_ndtr = cast("Callable[[Any], Values]", ndtr)


class TooFine(ValueError):
    """A privacy loss that no grid of a sensible size holds."""


@dataclass(frozen=True)
class Loss:
    """The privacy loss of a pair.

    Attributes:
        above: (P[loss > t], Q[loss > t]) at thresholds t, rising; of a symmetric pair at `joint` and above.
        width: about its standard deviation.
        joint: t0 of a symmetric pair; None of any other.
        effort: how many times as long as another loss it takes to evaluate.
    """

    above: Callable[[Values], tuple[Values, Values]]
    width: float
    joint: float | None = None
    effort: int = 1


def gaussian(mu: float) -> Loss:
    """Gaussian noise of sensitivity over deviation `mu`."""

    def above(t: Values) -> tuple[Values, Values]:
        return _ndtr(mu / 2 - t / mu), _ndtr(-mu / 2 - t / mu)

    return Loss(above, mu, joint=0.0)


def pure(epsilon: float) -> Loss:
    """Pure privacy: a biased coin."""
    return Loss(lambda t: (np.zeros_like(t), np.zeros_like(t)), epsilon, joint=epsilon)


def laplace(multiplier: float) -> Loss:
    """Laplace noise of that scale over the sensitivity."""
    end = 1 / multiplier

    def above(t: Values) -> tuple[Values, Values]:
        inside = t < end
        return (
            np.where(inside, 1 - np.exp((np.minimum(t, end) - end) / 2) / 2, 0.0),
            np.where(inside, np.exp(-(t + end) / 2) / 2, 0.0),
        )

    return Loss(above, min(end, 1.0), joint=0.0)


def shifted(mu: float, shift: float, two_signed: bool) -> Loss:
    """Objective perturbation: one tail of a Gaussian loss from `shift` on, or two of them."""
    weight = 2.0 if two_signed else 1.0

    def tails(z: Values) -> tuple[Values, Values]:
        return weight * _ndtr(-z), weight * math.exp(-shift) * _ndtr(-z - mu)

    start = -mu / 2
    if two_signed:  # both tails together must leave mass for the joint
        low, high = 0.0, 1.0
        for _ in range(60):
            middle = (low + high) / 2
            low, high = (middle, high) if sum(map(float, tails(np.asarray(middle)))) > 1 else (low, middle)
        start = high
    joint = shift + mu * (start + mu / 2)
    return Loss(lambda t: tails((t - shift) / mu - mu / 2), mu, joint=max(0.0, joint))


def zero_concentrated(rho: float) -> Loss:
    """Whatever is rho-zCDP.

    With a the best order at t and d the delta there, the slope of the curve in t is -(a - 1) d, so P[loss > t] is a d
    and Q[loss > t] is (a - 1) d e^-t.
    """
    if not 1e-9 < rho < 1e3:
        raise TooFine("zero-concentrated privacy of this size has no curve that could be put on a grid")
    orders = 1 + np.geomspace(1e-9, 1e9, 4096)
    thresholds = rho * (2 * orders - 1) + np.log1p(-1 / orders)

    def above(t: Values) -> tuple[Values, Values]:
        excess = np.interp(t, thresholds, orders) - 1
        for _ in range(4):  # Newton's steps for the best order
            gap = rho * (1 + 2 * excess) + np.log(excess) - np.log1p(excess) - t
            excess = np.maximum(excess / 2, excess - gap / (2 * rho + 1 / excess - 1 / (1 + excess)))
        logs = excess * (rho * (1 + excess) - t + np.log(excess) - np.log1p(excess)) - np.log1p(excess)
        delta = np.exp(np.minimum(logs, 0.0))
        return (1 + excess) * delta, excess * delta * np.exp(-t)

    def fits(t: float) -> bool:
        """Whether the tails may begin here: they leave mass, and fall from here on."""
        ahead = np.asarray([t, *(t + np.geomspace(1e-6, 40 * (1 + math.sqrt(2 * rho)), 400))])
        first, second = above(ahead)
        falls = bool(np.all(np.diff(first) <= 1e-15)) and bool(np.all(np.diff(second) <= 1e-15))
        return falls and float(first[0] + second[0]) <= 1

    low, high = 0.0, 4 * math.sqrt(2 * rho) + rho
    for _ in range(_DOUBLINGS):
        if fits(high):
            break
        high *= 2
    else:
        raise TooFine("zero-concentrated privacy of this size has no curve that could be put on a grid")
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (low, middle) if fits(middle) else (middle, high)
    return Loss(above, math.sqrt(2 * rho), joint=high, effort=8)


def fixed_size(rate: float, multiplier: float) -> Loss:
    """Gaussian noise on a sample of fixed size, under replace-one; the multiplier is over the distance of the means."""
    remove = poisson(rate, multiplier)[0]
    return Loss(remove.above, remove.width, joint=0.0)


def poisson_replaced(rate: float, multiplier: float) -> Loss:
    """Gaussian noise on a Poisson sample in which a unit is replaced; the multiplier is over the distance of the means.

    The pair is (1 - q) N(0, s^2) + q N(1, s^2) against its mirror image, s in units of half that distance.
    """
    s = 2 * multiplier
    odds = (1 - rate) / rate * math.exp(min(700.0, 1 / (2 * s**2)))

    def above(t: Values) -> tuple[Values, Values]:
        # e^(x / s^2) = u solves u^2 - odds (e^t - 1) u - e^t = 0; the larger root, without cancellation.
        half = odds * np.expm1(t) / 2
        u = half + np.sqrt(half**2 + np.exp(t))
        x = s**2 * np.log(u)
        return (
            (1 - rate) * _ndtr(-x / s) + rate * _ndtr((1 - x) / s),
            (1 - rate) * _ndtr(-x / s) + rate * _ndtr((-1 - x) / s),
        )

    return Loss(above, _width(rate, 2.0, s), joint=0.0)


def mixture(rate: float, ratio: float, multiplier: float) -> tuple[Loss, Loss]:
    """(1 - rate) N(1, z^2) + rate N(1 + ratio, z^2) against N(0, z^2), and the other way round."""
    parts = [(1 - rate, 1.0), (rate, 1 + ratio)]

    def loss_at(x: Values) -> Values:
        first = (2 * x - 1) / (2 * multiplier**2)
        more = ratio * (2 * x - 2 - ratio) / (2 * multiplier**2)
        return first + np.logaddexp(np.log1p(-rate), np.log(rate) + more)

    def place(t: Values) -> Values:
        reach = 60 * multiplier + 1 + ratio
        low, high = np.full_like(t, -reach), np.full_like(t, reach)
        for _ in range(60):
            middle = (low + high) / 2
            below = loss_at(middle) < t
            low, high = np.where(below, middle, low), np.where(below, high, middle)
        return high

    return _two_ways(parts, place, multiplier, effort=60)


def poisson(rate: float, multiplier: float) -> tuple[Loss, Loss]:
    """Gaussian noise on a Poisson sample: (1 - rate) N(0, z^2) + rate N(1, z^2) against N(0, z^2), and back."""

    def place(t: Values) -> Values:
        power = np.maximum(np.exp(np.minimum(t, 700.0)) - (1 - rate), 5e-324) / rate
        return 0.5 + multiplier**2 * np.log(power)

    return _two_ways([(1 - rate, 0.0), (rate, 1.0)], place, multiplier)


def _two_ways(
    parts: list[tuple[float, float]],
    place: Callable[[Values], Values],
    multiplier: float,
    *,
    effort: int = 1,
) -> tuple[Loss, Loss]:
    """A mixture of normals against the normal at 0, and the other way round.

    Args:
        parts: (probability, mean).
        place: where the loss of the first, which rises, is t.
        multiplier: the standard deviation.
        effort: as that of a `Loss`.
    """

    def mixed(x: Values, sign: float) -> Values:
        first, second = (weight * _ndtr(sign * (x - mean) / multiplier) for weight, mean in parts)
        return first + second

    def removed(t: Values) -> tuple[Values, Values]:
        x = place(t)
        return mixed(x, -1.0), _ndtr(-x / multiplier)

    def added(t: Values) -> tuple[Values, Values]:
        x = place(-t)
        return _ndtr(x / multiplier), mixed(x, 1.0)

    (_, apart), (rate, mean) = parts
    width = max(apart / multiplier, _width(rate, mean - apart, multiplier))
    return Loss(removed, width, effort=effort), Loss(added, width, effort=effort)


def _width(rate: float, mean: float, multiplier: float) -> float:
    """About the deviation of the loss of a sample: that of the ratio of densities, at most that of everybody."""
    return min(mean / multiplier, rate * math.sqrt(math.expm1(min(4.0, (mean / multiplier) ** 2))))
