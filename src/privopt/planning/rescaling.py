"""Scale and shift of a model's predictions, learnt after the descent that found it.

Few steps from 0 leave predictions too small where classes are far apart, too large where they are mostly noise, and the
rate of a rare class too high. Two numbers mend most of that, and are cheap to learn. With M = U diag(h) U^T the
released second moment, its noise taken out, c the column of ones, w what the descent found, the model is w = B theta,

    B = (b, u),    b = e_c / sqrt(M_cc),    m = b^T M w,    s^2 = w^T M w - m^2,    u = (w - m b) / s

so that theta = (shift, scale) starts at (m, s), and both columns of a B have mean square 1 and are uncorrelated. K
gradients g_t by theta are released, each record's shortened to C without regard to its target. How curved the loss is
in theta follows from predictions shift + scale x, x standard normal; a normal prior around the start keeps what the
releases say little about. With r the standard deviation of the noise,

    curvature   H = E sigma'(shift + scale x) (1, x) (1, x)^T, by a Gauss-Hermite sum
    prior       P = diag(1 / (tau^2 (1 + m^2)), 1 / (tau s)^2)
    precision   J_t = P + sum_i<=t H_i^2 / r^2
    estimate    theta_{t+1} = J_t^-1 (P theta_0 + sum_i<=t H_i (H_i theta_i - g_i) / r^2)

    share       q = 0.1 of mu^2 by default
    steps       K = 3
    clip        C = 0.25 x^-0.25, between 0.3 and 4, x = factor / (n mu sqrt(q))
    width       tau = 0.3

The constants were chosen on the half of the benchmark panel that is there to choose on. All of it concerns utility
only.

Source:
    Scale and shift of scores: Platt 1999. Learning them privately, with a prior, is ours.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Array
from numpy.typing import ArrayLike, NDArray

from privopt.planning.coordinates import RowSpectrum
from privopt.planning.instance import Instance
from privopt.planning.logistic_curvature import logistic_curvature
from privopt.planning.whitening import only_free_column
from privopt.problems.losses import Logistic
from privopt.problems.problem import Problem
from privopt.public import Public

SHARE, STEPS = 0.1, 3
CLIP_FACTOR, CLIP_POWER, LEAST_CLIP, MOST_CLIP = 0.25, 0.25, 0.3, 4.0
WIDTH, LEAST_WIDTH = 0.3, 0.02  # tau, and the least tau s
LEAST_CONSTANT = 0.02  # of M_cc
LEAST_SPREAD = 0.14  # of s over the length of w
MOST_SHIFT, MOST_SCALE = 9.0, 6.0  # the second over s
FARTHEST = 1e50  # parameter: squares of longer ones would overflow
NORMAL, _WEIGHTS = np.polynomial.hermite_e.hermegauss(31)
WEIGHTS = _WEIGHTS / np.sum(_WEIGHTS)


class TwoColumns(NamedTuple):
    """What the rows are mapped to, and where the search begins.

    Attributes:
        basis: B, (d, 2).
        start: theta_0 = (m, s), with `basis @ start` the parameters.
    """

    basis: NDArray[np.float64]
    start: NDArray[np.float64]


def applies(problem: Problem, public: Public) -> bool:
    """Whether scale and shift can be learnt: two classes, a constant column that is not penalised, records as units."""
    return isinstance(problem.loss, Logistic) and only_free_column(problem) is not None and not public.by_user


def default_share(instance: Instance) -> float:
    """q where they can be learnt and there is noise; else 0."""
    return SHARE if instance.is_private and applies(instance.problem, instance.public) else 0.0


def clip_for(instance: Instance, share: float) -> float:
    """C, from public numbers.

    Args:
        instance: the problem and the whole budget.
        share: q.
    """
    public = instance.public
    noise = public.relation.factor / (public.n * instance.mu * math.sqrt(share))
    return min(max(CLIP_FACTOR * noise**-CLIP_POWER, LEAST_CLIP), MOST_CLIP)


def two_columns(rows: RowSpectrum, params: ArrayLike) -> TwoColumns:
    """The columns for parameters w, (d,). Post-processing.

    Raises:
        ValueError: there is no column of ones.
    """
    if rows.constant is None:
        raise ValueError("a shift of all predictions needs a column of ones.")
    found = np.clip(np.nan_to_num(np.asarray(params, np.float64)), -FARTHEST, FARTHEST)
    along = rows.axes * np.sqrt(rows.eigenvalues)  # M = along along^T
    first = np.zeros(len(found))
    first[rows.constant] = 1.0 / math.sqrt(max(float(np.sum(along[rows.constant] ** 2)), LEAST_CONSTANT))
    ones, whole = first @ along, found @ along
    mean = float(ones @ whole)
    rest = found - mean * first
    least = LEAST_SPREAD * math.sqrt(max(float(whole @ whole), 1e-6))
    spread = max(float(np.linalg.norm(rest @ along)), least, 1e-4)
    return TwoColumns(np.stack([first, rest / spread], axis=1), np.asarray([mean, spread]))


def curvature(theta: ArrayLike) -> NDArray[np.float64]:
    """H at (shift, scale), (2, 2)."""
    shift, scale = np.asarray(theta, np.float64)
    weights = logistic_curvature(shift + scale * NORMAL) * WEIGHTS
    first, second, third = (float(np.sum(weights * NORMAL**k)) for k in range(3))
    return np.asarray([[first, second], [second, third]])


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """What the releases so far say of (shift, scale).

    Attributes:
        start: theta_0.
        precision: J, (2, 2).
        shown: J theta.
    """

    start: NDArray[np.float64]
    precision: NDArray[np.float64]
    shown: NDArray[np.float64]

    @classmethod
    def before(cls, start: NDArray[np.float64]) -> "Estimate":
        """The prior around theta_0."""
        mean, spread = start
        prior = np.diag([1.0 / (WIDTH**2 * (1.0 + mean**2)), 1.0 / max(WIDTH * spread, LEAST_WIDTH) ** 2])
        return cls(start=start, precision=prior, shown=prior @ start)

    @property
    def theta(self) -> NDArray[np.float64]:
        """The estimate, held within public limits."""
        most = MOST_SCALE * self.start[1] + 0.1
        found = np.linalg.solve(self.precision, self.shown)
        limits = np.asarray([MOST_SHIFT, most])
        return np.clip(np.asarray(found, np.float64), -limits, limits)

    def after(self, released_gradient: Array | NDArray[np.float64], deviation: float) -> "Estimate":
        """With a gradient that was released at `theta`, its noise of this standard deviation."""
        theta, gradient = self.theta, np.asarray(released_gradient, np.float64)
        if not np.all(np.isfinite(gradient)):
            return self
        bend = curvature(theta)
        return Estimate(
            start=self.start,
            precision=self.precision + bend @ bend / deviation**2,
            shown=self.shown + bend @ (bend @ theta - gradient) / deviation**2,
        )
