"""How much of the spread of a model's predictions is noise of the descent that found it, and what is kept of it.

With s the standard deviation of the predictions and nu that of what the noise of all releases adds to them, the scale
of the predictions is multiplied by the shrinkage

    kappa = 1 - min(1, nu^2 / s^2) / 2

half of what James and Stein would take off: a descent of few steps from 0 ends with predictions too small already, and
on small tables of the choosing half the whole was too much. nu follows from a linear model of the descent, in the
eigenbasis of the second moment M = U diag(h) U^T with floor f, where gradients are `a_j v_j`:

    a_j     = (c h_j + lam u_j) / (h_j + f),  u_j = 1 - U_cj^2
    c       = E phi''(t) min(1, C / (|phi'| r)),  t normal with mean m and standard deviation min(s, 5)
    nu^2    = sum_j (1 - q_j^2) h_j / (h_j + f) var_j,   q = sqrt(h) U_c / norm

r is the length of a typical row in v, C the clip, U_c the row of U of the column of ones: the shift of all predictions
is no part of their spread. phi' and phi'' are typical ones, see `prediction_curvature`. var_j is the variance of the
result in direction j: the recursion is run on a unit of noise at each step, and the squares are added. Everything in it
is released or public, so it costs nothing. Utility only.

Source:
    James, Stein 1961 for the rule; the noise of a descent that it goes by is ours.
"""

import math
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import expit, ndtr, ndtri

from privopt.later import Array, Float
from privopt.planning.coordinates import RowSpectrum
from privopt.planning.task import Instance
from privopt.problems.losses import GLMLoss, Logistic, Loss, Quantile, Squared
from privopt.problems.problem import Problem
from privopt.public import Public

WIDEST = 5.0  # of predictions, in the curvature
TAKEN = 0.5  # of what James and Stein take off


@dataclass(frozen=True, kw_only=True, eq=False)
class NoisePath:
    """The steps of a descent with fixed momentum, as far as noise is concerned.

    Attributes:
        step_size: eta.
        momentum: b.
        clip: C.
        deviations: standard deviation of the noise in an entry of each step's gradient, (T,).
        mixing: how far the average moves to each iterate, (T,).
        newton: share of the Newton step at the end, see `newton_end`; 0 for none.
        curvature: of the loss by its prediction, as the Newton step supposes.
        ridge: lam.
        rows: the second moment along the axes of the run.
    """

    step_size: float
    momentum: float
    clip: float
    deviations: NDArray[np.float64]
    mixing: NDArray[np.float64]
    newton: float
    curvature: float
    ridge: float
    rows: RowSpectrum

    def variance(self, curvature: float) -> NDArray[np.float64]:
        """var_j, (d,), where the clipped loss is curved like c."""
        ridge = self.rows.ridge(self.ridge)
        slopes = curvature * self.rows.damping + ridge
        steps, width = len(self.deviations), len(slopes)
        last, point, average, points, gradients = (np.zeros((steps, width)) for _ in range(5))
        for step in range(steps):  # row i: what a unit of noise at step i has made of each direction
            gradient = slopes * point
            gradient[step] += 1.0
            points += point / steps
            gradients += gradient / steps
            moved = point - self.step_size * gradient
            point, last = moved + self.momentum * (moved - last), moved
            average += self.mixing[step] * (moved - average)
        if self.newton:
            bend = self.curvature * np.maximum(self.rows.damping, LEAST_SIGNAL) + ridge
            noise = math.sqrt(float(np.sum(self.deviations**2))) / steps
            average = (1.0 - self.newton) * average + self.newton * (bend * points - gradients) / (
                bend + noise
            )
        return np.sum((self.deviations[:, None] * average) ** 2, axis=0)


def shrinkage(path: NoisePath, found: ArrayLike, loss: GLMLoss) -> float:
    """kappa, between 1/2 and 1; 1 for losses that nothing is known of. Post-processing.

    Args:
        path: of the descent that found the model.
        found: (m, s), mean and standard deviation of the predictions.
        loss: it minimised.
    """
    rows, (mean, spread) = path.rows, (float(entry) for entry in np.asarray(found))
    reach = path.clip / max(rows.signal, 1e-9)
    curvature = clipped_curvature(loss, mean, min(spread, WIDEST), reach)
    if curvature is None or rows.constant is None or spread <= 0.0:
        return 1.0
    along = rows.eigenvalues * rows.axes[rows.constant] ** 2
    spreads = 1.0 - along / max(float(np.sum(along)), 1e-12)
    noise = float(np.sum(spreads * rows.damping * path.variance(curvature)))
    return 1.0 - TAKEN * min(1.0, noise / spread**2) if math.isfinite(noise) else 1.0 - TAKEN


# ------------------------------------------------------------------------------------------------------------
# Where a descent ends if its releases are read once more: a shrunk Newton step from the mean of all its
# points.
# The gradients of T steps were released with independent noise, so their plain mean has the noise s of one gradient
# that had the whole budget, whatever T is; an average of the last iterates has forgotten most of them. For a nearly
# quadratic loss of known curvature A the mean gradient at the mean point shows the optimum, through noise s / A. A
# descent of few steps is early, a Newton step is noisy: half of each was better than either. Where one class is rare
# the logistic loss is flatter than at 0, and the share of the Newton step falls with its curvature. Utility only.
#
# Source:
#     Ours.


LEAST_SIGNAL = 0.05  # of h / (h + f)
SHARE = 0.5  # of the Newton step in the result, where the loss is as curved as it can be


def newton_share(rows: RowSpectrum, point: Float[Array, " d"] | NDArray[np.float64], *, fades: bool) -> float:
    """`2 sigma'(m)`, m the mean prediction at the point by the column of ones; 1/2 if the curvature does not fade."""
    if not fades:
        return SHARE
    mean = float(rows.mean_prediction(rows.constant) @ (rows.axes.T @ np.asarray(point)))
    return 4.0 * SHARE * float(logistic_curvature(mean))


def newton_end(
    rows: RowSpectrum,
    point: Float[Array, " d"] | NDArray[np.float64],
    gradient: Float[Array, " d"] | NDArray[np.float64],
    *,
    start: Float[Array, " d"] | NDArray[np.float64],
    curvature: float,
    ridge: float,
    noise: float,
) -> NDArray[np.float64]:
    """`x0 + U (A + s)^-1 (A U^T (u - x0) - U^T y)`, `A_j = (c h_j + lam u_j) / (h_j + f)`.

    Args:
        rows: the spectrum that the coordinates follow from.
        point: u, the plain mean of the points.
        gradient: y, the plain mean of the released gradients, the penalty's included.
        start: x0, which the step is shrunk towards.
        curvature: c, of the loss by its prediction.
        ridge: lam, the strength of the ridge in the data's own coordinates; u_j of it meets axis j.
        noise: s, standard deviation of every entry of the mean gradient.
    """
    bend = curvature * np.maximum(rows.damping, LEAST_SIGNAL) + rows.ridge(ridge)
    first = np.asarray(start)
    shown = bend * (rows.axes.T @ (np.asarray(point) - first)) - rows.axes.T @ np.asarray(gradient)
    return first + rows.axes @ (shown / (bend + noise))


# ------------------------------------------------------------------------------------------------------------
# How steep and how curved a loss typically is where predictions are normally distributed; no data are read.
# The residuals of numbers to predict, scaled to [-1, 1], are not known: they are taken as normal with standard
# deviation 0.3, around the quantile that is asked for. Utility only.


RESIDUAL = 0.3  # standard deviation of what a number to predict is missed by
NORMAL, _WEIGHTS = np.polynomial.hermite_e.hermegauss(31)
WEIGHTS = _WEIGHTS / np.sum(_WEIGHTS)


class Local(NamedTuple):
    """At each of the predictions `shift + scale * NORMAL`, whose weights are `WEIGHTS`.

    Attributes:
        slopes: sizes of the slope.
        curvature: the second derivative.
    """

    slopes: NDArray[np.float64]
    curvature: NDArray[np.float64]


def local(loss: GLMLoss, shift: float, scale: float) -> Local | None:
    """Slopes and curvatures; None for losses that nothing is known of."""
    residuals = np.abs(RESIDUAL * NORMAL)
    match loss:
        case Logistic():
            predictions = shift + scale * NORMAL
            return Local(expit(np.abs(predictions)), logistic_curvature(predictions))
        case Squared():
            return Local(residuals, np.ones_like(residuals))
        case Quantile():
            middle, half = float(ndtri(loss.level)), max(loss.smoothing, 1e-3)
            density = (ndtr(middle + half / RESIDUAL) - ndtr(middle - half / RESIDUAL)) / (2.0 * half)
            return Local(np.full_like(residuals, 0.5), np.full_like(residuals, float(density)))
        case _:
            return None


def clipped_curvature(loss: GLMLoss, shift: float, scale: float, reach: float) -> float | None:
    """The mean curvature of the loss whose slopes are cut at `reach`; None for losses that nothing is known of."""
    found = local(loss, shift, scale)
    if found is None or not math.isfinite(reach):
        return None if found is None else float(found.curvature @ WEIGHTS)
    return float((found.curvature * np.minimum(1.0, reach / np.maximum(found.slopes, 1e-9))) @ WEIGHTS)


def two_column_curvature(loss: GLMLoss, shift: float, scale: float) -> NDArray[np.float64]:
    """H: `E phi''(shift + scale x) (1, x) (1, x)^T` for x standard normal, (2, 2)."""
    found = local(loss, shift, scale)
    weights = WEIGHTS if found is None else found.curvature * WEIGHTS
    first, second, third = (float(np.sum(weights * NORMAL**k)) for k in range(3))
    return np.asarray([[first, second], [second, third]])


# ---- How curved the logistic loss is at a prediction -------------------------------------------------------


LARGEST_PREDICTION = 50.0


def logistic_curvature(predictions: ArrayLike) -> NDArray[np.float64]:
    """sigma'(t) = 1 / (4 cosh^2(t / 2)), of the predictions' shape; beyond +-50 as there."""
    held = np.clip(np.asarray(predictions, np.float64), -LARGEST_PREDICTION, LARGEST_PREDICTION)
    return np.asarray(0.25 / np.cosh(0.5 * held) ** 2, np.float64)


# ---- Scale and shift of a model's predictions, learnt after the descent that found it ----------------------
# Few steps from 0 leave predictions too small where classes are far apart, too large where they are mostly noise, and
# the rate of a rare class too high. Two numbers mend most of that, and are cheap to learn. With M = U diag(h) U^T the
# released second moment, its noise taken out, c the column of ones, w what the descent found, the model is w = B theta,
#
#     B = (b, u),    b = e_c / sqrt(M_cc),    m = b^T M w,    s^2 = w^T M w - m^2,    u = (w - m b) / s
#
# so that theta = (shift, scale) is (m, s) at w, and both columns of a B have mean square 1 and are uncorrelated. The
# search starts at theta_0 = (m, kappa s), where kappa, the shrinkage, takes the noise of the descent out of the spread
# of predictions, see `planning.shrinkage`. K gradients g_t by theta are released, and that of the ridge, R theta with R
# that of w in these columns, is added to each; with two classes each record's is shortened to C without regard to its
# target. How curved the loss is in theta follows from predictions shift + scale x, x standard normal; of the squared
# loss the curvature is I. A normal prior around the start keeps what the releases say little about. With r the standard
# deviation of the noise,
#
#     curvature   H = E sigma'(shift + scale x) (1, x) (1, x)^T + R, by a Gauss-Hermite sum; I + R for the squared loss
#     prior       P = diag(1 / tau_b^2, 1 / max(0.3 kappa s, least)^2), tau_b = 0.3 sqrt(1 + m^2) and least = 0.05 for
#     two
#                 classes, tau_b = 0.1 and least = 0.02 for targets in [-1, 1]
#     precision   J_t = P + sum_i<=t H_i^2 / r^2
#     estimate    theta_{t+1} = J_t^-1 (P theta_0 + sum_i<=t H_i (H_i theta_i - g_i) / r^2), the scale at least 0
#
#     share       q = 0.1 of mu^2 (two classes) or 0.05 (squared loss); none where n mu is below 55
#     steps       K = 3
#     clip        C = 0.25 x^-0.25, at least 0.3, times sqrt(0.0005 / x) where that is more than 1; x = factor / (n mu
#                 sqrt(q)). It grows without bound as the noise falls: a clip weighs rows that the model does not fit
#                 unequally, and the mean prediction with them
#
# The constants were chosen by the test loss on the tables for choosing. All of it concerns utility only.
#
# Source:
#     Scale and shift of scores: Platt 1999. Learning them privately, with a prior, is ours.


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
