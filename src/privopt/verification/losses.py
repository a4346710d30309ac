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
from functools import cached_property
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray
from scipy.fft import irfft, next_fast_len, rfft
from scipy.special import ndtr

from privopt.verification.tree import spend

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
    """A mixture of normals against the normal at 0, and the other way round."""

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


# ---- Composed privacy losses on a grid, by a tilted Fourier transform, never too private -------------------
# Each release's loss is put on a grid: of what lies between two grid points the masses under P and under Q are kept and
# split between the two points, which is a pair that dominates. Many releases are a convolution. Before it every law is
# tilted by e^(lambda loss) so that the losses around the wanted epsilon are the likely ones: a floating-point transform
# is exact to 1e-16 of what is likely, and deltas of 1e-10 and below are then as exact as large ones.
#
# What the grid leaves out, what wraps around its ends and what the transform may be off by are bounded and added.
#
# Source:
#     Doroshenko, Ghazi, Kamath, Kumar, Manurangsi 2022 (connecting the dots).


# Their type information is incomplete.
_rfft, _irfft = cast("Callable[..., Any]", rfft), cast("Callable[..., Any]", irfft)
_next_fast_len = cast("Callable[..., int]", next_fast_len)
MOST_POINTS = 2**22
MOST_KINDS = 500  # of releases on one grid
_OFF = 1e-6  # of the mass of a law, by which it may differ from 1
_FARTHEST = 1e3  # loss of a single release
RELATIVE_ERROR = 2e-4  # of epsilon, about, that the grid costs
_POINTS_PER_WIDTH = 20
_DROPPED = 1e-4  # of delta, that may lie beyond the grid


@dataclass(frozen=True)
class Grid:
    """Losses of single releases on one grid.

    Attributes:
        step: the distance of two points.
        points: the loss of each point.
        laws: for each release its probabilities under P, and how often it was made.
        dropped: the mass beyond the grid, of all releases together.
    """

    step: float
    points: Values
    laws: tuple[tuple[Values, int], ...]
    dropped: float

    @classmethod
    def of(cls, losses: list[tuple[Loss, int]], epsilon: float, delta: float) -> "Grid":
        """Put losses on a grid that suits an epsilon and a delta.

        Raises:
            TooFine: it would have too many points.
        """
        if len(losses) > MOST_KINDS:
            raise TooFine(f"there are more than {MOST_KINDS} kinds of releases")
        count = sum(times for _, times in losses)
        step = min(
            math.sqrt(8 * RELATIVE_ERROR * epsilon / count),
            min(loss.width for loss, _ in losses) / _POINTS_PER_WIDTH,
        )
        share = min(_DROPPED * delta / count, _OFF / 10)  # a large delta leaves no law short of mass
        reach = max(_reach(loss, share) for loss, _ in losses)
        half = math.ceil(reach / step) + 1
        if not 0 < step < math.inf or half > MOST_POINTS // 2:
            raise TooFine("the privacy losses need a finer grid than there is room for")
        spend(2 * half * sum(loss.effort for loss, _ in losses))
        points: Values = step * np.arange(-half, half + 1, dtype=np.float64)
        laws = tuple((_masses(loss, points, step), times) for loss, times in losses)
        if not all(bool(np.all(law >= 0)) and abs(float(law.sum()) - 1) < _OFF for law, _ in laws):
            raise TooFine("a privacy loss has no law on the grid")
        missing = sum(2 * times * float(loss.above(points[-1:])[0][0]) for loss, times in losses)
        return cls(step, points, laws, missing)

    def delta(self, epsilon: float, above: float) -> float:
        """An upper bound on delta at an epsilon.

        Args:
            epsilon: at least 0.
            above: where the grid's laws are tilted to: an epsilon close to it.
        Raises:
            TooFine: the convolution would have too many points.
        """
        if epsilon >= sum(times * float(self.points[law > 0].max()) for law, times in self.laws):
            return min(1.0, self.dropped)  # no sum of losses is larger
        tilt, log_mass = self._tilt(above)
        tilted = [np.exp(tilt * self.points) * law for law, _ in self.laws]
        tilted = [law / law.sum() for law in tilted]
        counts = [times for _, times in self.laws]
        window, outside = self._window(tilted, above)
        size = _next_fast_len(math.ceil(2 * window / self.step), real=True)
        if size > MOST_POINTS:
            raise TooFine("the composed privacy loss needs a finer grid than there is room for")
        spend(size * len(counts))
        half = len(self.points) // 2
        spectrum: NDArray[np.complex128] = np.ones(size // 2 + 1, np.complex128)
        for law, times in zip(tilted, counts, strict=True):
            placed = np.zeros(size)
            np.add.at(placed, np.arange(-half, half + 1) % size, law)
            spectrum *= _rfft(placed) ** times
        composed = np.maximum(_irfft(spectrum, size), 0.0)
        centre = round(above / self.step)
        losses = self.step * (centre - size // 2 + (np.arange(size) - (centre - size // 2)) % size)
        later = losses > epsilon
        shares = (
            composed[later] * np.exp(-tilt * (losses[later] - above)) * -np.expm1(epsilon - losses[later])
        )
        doubt = float(np.abs(spectrum).sum()) * math.log2(size) * sum(counts) * 1e-16 + outside
        scale = math.exp(min(0.0, log_mass - tilt * above)) if above >= 0 else 1.0
        widest = math.exp(tilt * max(0.0, above - epsilon))
        return min(1.0, scale * (float(shares.sum()) + doubt * widest) + self.dropped)

    def _tilt(self, mean: float) -> tuple[float, float]:
        """The tilt that moves the mean of the sum there, at least 0, and the log of the mass that it makes."""
        low, high = 0.0, 1.0
        most = 600 / float(self.points[-1])  # any tilt is right; a larger one overflows
        while self._cumulants(high)[1] < mean and high < most:
            high *= 2
        high = min(high, most)
        for _ in range(50):
            middle = (low + high) / 2
            low, high = (middle, high) if self._cumulants(middle)[1] < mean else (low, middle)
        return low, self._cumulants(low)[0]

    def _cumulants(self, tilt: float) -> tuple[float, float]:
        """The logarithm of E e^(tilt loss) over all releases, and its slope."""
        total, slope = 0.0, 0.0
        for points, logs, times in self._logarithms:
            powers = tilt * points + logs
            top = float(powers.max())
            weights = np.exp(powers - top)
            mass = float(weights.sum())
            total += times * (top + math.log(mass))
            slope += times * float(weights @ points) / mass
        return total, slope

    @cached_property
    def _logarithms(self) -> list[tuple[Values, Values, int]]:
        """Of every law the points that have mass, the logarithms of the masses, and how often it was made."""
        return [(self.points[law > 0], np.log(law[law > 0]), times) for law, times in self.laws]

    def _window(self, tilted: list[Values], centre: float) -> tuple[float, float]:
        """A half-width outside of which the tilted sum hardly ever lies, and the probability that it does."""
        counts = [times for _, times in self.laws]
        means = [float(law @ self.points) for law in tilted]
        spread = sum(
            times * float(law @ (self.points - mean) ** 2)
            for law, mean, times in zip(tilted, means, counts, strict=True)
        )
        away = abs(centre - sum(times * mean for times, mean in zip(counts, means, strict=True)))
        window = max(12 * math.sqrt(spread) + away, 4 * self.step)
        whole = away + sum(counts) * (float(self.points[-1]) - min(0.0, *means) + max(0.0, *means))
        for _ in range(20):
            if window > whole:  # nothing lies further away
                return whole + self.step, 0.0
            outside = 0.0
            for sign in (-1.0, 1.0):
                best = 0.0
                for order in (0.25, 0.5, 1.0, 2.0, 4.0, 8.0):
                    power = order * 12 / window
                    logs = 0.0
                    for law, mean, times in zip(tilted, means, counts, strict=True):
                        grown = np.exp(np.minimum(700.0, sign * power * (self.points - mean)))
                        logs += times * math.log(float(law @ grown))
                    best = min(best, logs - power * (window - away))
                outside += math.exp(best)
            if outside <= 1e-12:
                return window, outside
            window *= 1.5
        raise TooFine("the composed privacy loss has tails too heavy for the grid")


def _reach(loss: Loss, share: float) -> float:
    """A threshold above which the loss hardly ever lies, under P, and below minus which it hardly does either."""
    start = 0.0 if loss.joint is None else loss.joint
    reach = max(start, loss.width)

    def beyond(threshold: float) -> bool:
        ends = [threshold] if loss.joint is not None else [threshold, -threshold]
        above = loss.above(np.asarray(ends))[0]
        return float(above[0]) > share or (loss.joint is None and 1 - float(above[1]) > max(share, 1e-14))

    while beyond(reach):
        reach *= 1.3
        if reach > _FARTHEST:
            break
    if not reach <= _FARTHEST:
        raise TooFine("a single release reveals too much for the grid")
    return reach


def _masses(loss: Loss, points: Values, step: float) -> Values:
    """The law of a loss under P on the grid points."""
    if loss.joint is None:
        first, second = loss.above(points)
        law = np.zeros(len(points))
        law[0] = 1 - first[0]  # what lies below the first point is moved up to it
        _split(law, np.maximum(0.0, -np.diff(first)), np.maximum(0.0, -np.diff(second)), points, step)
        return law
    half = len(points) // 2
    upper = points[half:]
    law = np.zeros(half + 1)
    thresholds = np.maximum(upper, loss.joint)
    first, second = loss.above(thresholds)
    _split(law, np.maximum(0.0, -np.diff(first)), np.maximum(0.0, -np.diff(second)), upper, step)
    rest = max(0.0, 1 - float(first[0] + second[0])) / (1 + math.exp(-loss.joint))
    at = min(half - 1, int(loss.joint / step))
    share = math.expm1(upper[at] - loss.joint) / math.expm1(-step)
    law[at] += rest * (1 - share)
    law[at + 1] += rest * share
    full = np.concatenate([np.zeros(half), law])
    full[half::-1] += law * np.exp(-upper)  # the mirror image; a loss of 0 is its own
    return full


def _split(law: Values, first: Values, second: Values, points: Values, step: float) -> None:
    """Add to the points what lies between them, with the same masses under P and under Q."""
    scaled = second * np.exp(np.minimum(points[:-1], 700.0))
    right = np.clip((first - scaled) / -math.expm1(-step), 0.0, first)
    law[:-1] += first - right
    law[1:] += right
