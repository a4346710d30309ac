"""Composed privacy losses on a grid, by a tilted Fourier transform, never too private.

Each release's loss is put on a grid: of what lies between two grid points the masses under P and under Q are kept and
split between the two points, which is a pair that dominates. Many releases are a convolution. Before it every law is
tilted by e^(lambda loss) so that the losses around the wanted epsilon are the likely ones: a floating-point transform
is exact to 1e-16 of what is likely, and deltas of 1e-10 and below are then as exact as large ones.

What the grid leaves out, what wraps around its ends and what the transform may be off by are bounded and added.

Source:
    Doroshenko, Ghazi, Kamath, Kumar, Manurangsi 2022 (connecting the dots).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray
from scipy.fft import irfft, next_fast_len, rfft

from privopt.verification.losses import Loss, TooFine, Values
from privopt.verification.work import spend

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
