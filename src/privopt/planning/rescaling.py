"""Scale and shift of a model's predictions, learnt after the descent that found it.

Few steps from 0 leave predictions too small where classes are far apart, too large where they are mostly noise, and the
rate of a rare class too high. Two numbers mend most of that, and are cheap to learn. With M = U diag(h) U^T the
released second moment, its noise taken out, c the column of ones, w what the descent found, the model is w = B theta,

    B = (b, u),    b = e_c / sqrt(M_cc),    m = b^T M w,    s^2 = w^T M w - m^2,    u = (w - m b) / s

so that theta = (shift, scale) is (m, s) at w, and both columns of a B have mean square 1 and are uncorrelated. The
search starts at theta_0 = (m, kappa s), where kappa, the shrinkage, takes the noise of the descent out of the spread of
predictions, see `planning.shrinkage`. K gradients g_t by theta are released, and that of the ridge, R theta with R that
of w in these columns, is added to each; with two classes each record's is shortened to C without regard to its target.
How curved the loss is in theta follows from predictions shift + scale x, x standard normal; of the squared loss the
curvature is I. A normal prior around the start keeps what the releases say little about. With r the standard deviation
of the noise,

    curvature   H = E sigma'(shift + scale x) (1, x) (1, x)^T + R, by a Gauss-Hermite sum; I + R for the squared loss
    prior       P = diag(1 / tau_b^2, 1 / max(0.3 kappa s, least)^2), tau_b = 0.3 sqrt(1 + m^2) and least = 0.05 for two
                classes, tau_b = 0.1 and least = 0.02 for targets in [-1, 1]
    precision   J_t = P + sum_i<=t H_i^2 / r^2
    estimate    theta_{t+1} = J_t^-1 (P theta_0 + sum_i<=t H_i (H_i theta_i - g_i) / r^2), the scale at least 0

    share       q = 0.1 of mu^2 (two classes) or 0.05 (squared loss); none where n mu is below 55
    steps       K = 3
    clip        C = 0.25 x^-0.25, at least 0.3, times sqrt(0.0005 / x) where that is more than 1; x = factor / (n mu
                sqrt(q)). It grows without bound as the noise falls: a clip weighs rows that the model does not fit
                unequally, and the mean prediction with them

The constants were chosen by the test loss on the tables for choosing. All of it concerns utility only.

Source:
    Scale and shift of scores: Platt 1999. Learning them privately, with a prior, is ours.
"""

import math
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from jaxtyping import Array
from numpy.typing import ArrayLike, NDArray

from privopt.planning.coordinates import RowSpectrum
from privopt.planning.instance import Instance
from privopt.planning.prediction_curvature import two_column_curvature
from privopt.problems.losses import GLMLoss, Logistic, Loss, Quantile, Squared
from privopt.problems.problem import Problem
from privopt.public import Public

STEPS = 3  # K
LEARNT = (Logistic, Squared, Quantile)  # the hinge and the Huber loss do not earn its price
LEAST_REACH = 55.0  # n mu below which three gradients cost more than they tell
CLIP_FACTOR, CLIP_POWER, LEAST_CLIP = 0.25, 0.25, 0.3
QUIET = 5e-4  # the x below which the clip grows faster
WIDTH = 0.3  # prior standard deviation of the scale over the scale
LEAST_CONSTANT = 0.02  # of M_cc
LEAST_SPREAD = 0.14  # of s over the length of w
MOST_SHIFT, MOST_SCALE = 9.0, 6.0  # the second over s
FARTHEST = 1e50  # parameter: squares of longer ones would overflow


@dataclass(frozen=True, kw_only=True)
class Constants:
    """What depends on the loss.

    Attributes:
        share: q.
        shift_width: tau_b, prior standard deviation of the shift, for two classes times `sqrt(1 + m^2)`.
        least_width: least prior standard deviation of the scale.
        two_classes: whether the shift's is times `sqrt(1 + m^2)` and gradients are shortened without regard to targets.
    """

    share: float
    shift_width: float
    least_width: float
    two_classes: bool


TWO_CLASSES = Constants(share=0.1, shift_width=0.3, least_width=0.05, two_classes=True)
NUMBERS = Constants(share=0.05, shift_width=0.1, least_width=0.02, two_classes=False)


def constants_of(loss: Loss) -> Constants:
    """Those of a loss; numbers to predict are scaled to [-1, 1]."""
    return TWO_CLASSES if isinstance(loss, Logistic) else NUMBERS


class TwoColumns(NamedTuple):
    """What the rows are mapped to, and what was found in these columns.

    Attributes:
        basis: B, (d, 2).
        found: (m, s), with `basis @ found` the parameters.
    """

    basis: NDArray[np.float64]
    found: NDArray[np.float64]


def applies(problem: Problem, public: Public) -> bool:
    """Whether scale and shift can be learnt: a loss of `LEARNT`, a constant column, records as units."""
    return isinstance(problem.loss, LEARNT) and problem.constant is not None and not public.by_user


def default_share(instance: Instance) -> float:
    """q where they can be learnt and there is noise, but not too much of it; else 0."""
    if not instance.is_private or not applies(instance.problem, instance.public):
        return 0.0
    drowned = instance.public.n * instance.mu < LEAST_REACH
    return 0.0 if drowned else constants_of(instance.problem.loss).share


def clip_for(instance: Instance, share: float) -> float:
    """C, from public numbers.

    Args:
        instance: the problem and the whole budget.
        share: q.
    """
    public = instance.public
    noise = public.relation.factor / (public.n * instance.mu * math.sqrt(share))
    return max(CLIP_FACTOR * noise**-CLIP_POWER, LEAST_CLIP) * max(1.0, math.sqrt(QUIET / noise))


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


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """What the releases so far say of (shift, scale).

    Attributes:
        precision: J, (2, 2).
        shown: J theta.
        largest: limits of (shift, scale); the shift may be as far below 0.
        loss: whose curvature is taken.
        ridge: R, (2, 2): the penalty of theta is `theta^T R theta / 2`.
    """

    precision: NDArray[np.float64]
    shown: NDArray[np.float64]
    largest: NDArray[np.float64]
    loss: GLMLoss
    ridge: NDArray[np.float64]

    @classmethod
    def before(
        cls,
        found: ArrayLike,
        shrinkage: float,
        loss: GLMLoss,
        ridge: NDArray[np.float64] | None = None,
    ) -> "Estimate":
        """The prior around theta_0.

        Args:
            found: (m, s).
            shrinkage: kappa.
            loss: whose constants are taken, and its curvature.
            ridge: R; None for none.
        """
        mean, spread = (float(entry) for entry in np.asarray(found))
        constants, scale = constants_of(loss), shrinkage * spread
        shift_width = constants.shift_width * (math.sqrt(1.0 + mean**2) if constants.two_classes else 1.0)
        prior = np.diag([shift_width**-2.0, max(WIDTH * scale, constants.least_width) ** -2.0])
        return cls(
            precision=prior,
            shown=prior @ np.asarray([mean, scale]),
            largest=np.asarray([MOST_SHIFT, MOST_SCALE * spread + 0.1]),
            loss=loss,
            ridge=np.zeros((2, 2)) if ridge is None else ridge,
        )

    @property
    def theta(self) -> NDArray[np.float64]:
        """The estimate, the scale held within public limits and the shift the best for it; no scale is below 0."""
        scale = min(max(float(np.linalg.solve(self.precision, self.shown)[1]), 0.0), self.largest[1])
        shift = (self.shown[0] - self.precision[0, 1] * scale) / self.precision[0, 0]
        return np.asarray([min(max(shift, -self.largest[0]), self.largest[0]), scale], np.float64)

    def after(self, released_gradient: Array | NDArray[np.float64], deviation: float) -> "Estimate":
        """With a gradient that was released at `theta`, its noise of this standard deviation."""
        theta, gradient = self.theta, np.asarray(released_gradient, np.float64)
        if not np.all(np.isfinite(gradient)):
            return self
        bend = two_column_curvature(self.loss, *theta) + self.ridge
        gradient = gradient + self.ridge @ theta
        return replace(
            self,
            precision=self.precision + bend @ bend / deviation**2,
            shown=self.shown + bend @ (bend @ theta - gradient) / deviation**2,
        )
