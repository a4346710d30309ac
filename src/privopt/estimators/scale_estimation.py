"""Bounds of features that are estimated privately, from a loose public range: one release, and what follows from it."""

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privopt.curator.base import Curator
from privopt.estimators.arguments import fraction
from privopt.estimators.scaling import FeatureScaling
from privopt.ledger.amounts import Budget
from privopt.ledger.events import Event
from privopt.ledger.gaussian_dp import gaussian_mu, part_of
from privopt.mechanisms.additive import Gaussian
from privopt.queries.column_magnitudes import ColumnMagnitudes, bin_ends

LEVELS = 40  # powers of two below the loose range: twelve orders of magnitude
LEAST_SHARE = 0.005  # a bin with fewer of the units does not widen the bounds
FALSE_ALARM = 0.05  # probability that noise alone is taken for an entry, in any of the bins

Bounds = tuple[NDArray[np.float64], NDArray[np.float64]]


@dataclass(frozen=True, kw_only=True)
class ScaleEstimation:
    """One Gaussian release of how many units have entries of each sign and power of two, column by column.

    The bounds of a column reach from the lowest to the highest bin that clearly holds units: more than
    `LEAST_SHARE` of them, and more than the noise of all bins explains. A column with none but zeros in sight keeps
    its loose range. Values beyond the bounds are clipped, so they are wrong by a factor of 2 at most and never
    dangerous. Moments of the clipped columns were measured as well: on a range a thousand times too wide their
    noise hides the scale altogether.

    Attributes:
        loose: the scaling by the loose range, without a shift: float32 rows keep small entries' relative precision.
        share: of the whole budget's mu^2.
        keep_zero: whether the bounds must include 0, because the features are sparse.
        noise_multiplier: of the release; None before a budget is known.
    Privacy:
        The release is charged; the bounds are post-processing of it.
    """

    loose: FeatureScaling
    share: float
    keep_zero: bool
    noise_multiplier: float | None = None

    def configured(self, budget: Budget) -> "ScaleEstimation":
        """With the noise that a share of the budget allows."""
        part = part_of(budget, self.share)
        noise = 1.0 / gaussian_mu(part.epsilon, part.delta) if budget.is_private else 0.0
        return replace(self, noise_multiplier=noise)

    def rest(self, budget: Budget) -> Budget:
        """What is left for the fit."""
        return part_of(budget, 1.0 - self.share)

    def scaled(self, factor: float) -> "ScaleEstimation":
        """The same with all noise times `factor`."""
        assert self.noise_multiplier is not None
        return replace(self, noise_multiplier=self.noise_multiplier * factor)

    @property
    def mechanism(self) -> Gaussian:
        """What makes the noise."""
        assert self.noise_multiplier is not None
        return Gaussian(self.noise_multiplier)

    @property
    def event(self) -> Event:
        """What it costs."""
        return self.mechanism.event()

    def release(self, curator: Curator) -> Bounds:
        """Ask once, and read the bounds off the answer."""
        asked = ColumnMagnitudes(levels=LEVELS, columns=self.loose.width)
        shares = np.asarray(curator.release(asked, self.mechanism))
        return self.bounds(shares, self.mechanism.noise_multiplier * float(asked.sensitivity(curator.public)))

    def bounds(self, shares: NDArray[np.float64], stddev: float) -> Bounds:
        """Each column's bounds, from the released shares (d, bins) and their noise's standard deviation."""
        seen = shares > max(LEAST_SHARE, stddev * math.sqrt(2.0 * math.log(shares.size / FALSE_ALARM)))
        sizes = np.maximum(np.abs(self.loose.low), np.abs(self.loose.high))
        lower, upper = bin_ends(LEVELS)
        first, last = np.argmax(seen, axis=1), shares.shape[1] - 1 - np.argmax(seen[:, ::-1], axis=1)
        low = np.clip(lower[first] * sizes, self.loose.low, self.loose.high)
        high = np.clip(upper[last] * sizes, self.loose.low, self.loose.high)
        if self.keep_zero:
            low, high = np.minimum(low, 0.0), np.maximum(high, 0.0)
        found = np.any(seen, axis=1) & (low < high)
        return np.where(found, low, self.loose.low), np.where(found, high, self.loose.high)


def scale_estimation(loose_bounds: Any, share: float, width: int, *, keep_zero: bool) -> ScaleEstimation:
    """The estimation that a user asked for.

    Args:
        loose_bounds: (low, high), two numbers or two arrays of `width` entries.
        share: of the budget's mu^2.
        width: number of features.
        keep_zero: whether the features are sparse.
    Raises:
        TypeError, ValueError: the range or the share is not usable.
    """
    fraction("scale_budget", share, "the share of the budget for estimating bounds")
    loose = FeatureScaling.of(loose_bounds, width, centered=False, keep_zero=keep_zero, name="loose_bounds")
    return ScaleEstimation(loose=loose, share=share, keep_zero=keep_zero)
