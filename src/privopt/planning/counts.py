"""Settings of whitened descent for counts: everything is relative to how large the counts were released to be.

The public bound on a count says little about its size. So `TargetMagnitudes` is released first, with noise of standard
deviation s in each entry. Two readings of it are combined:

    seen            entry k, unless noise explains it: above s sqrt(4 + 2 log max(1, 10 u_k s / m_k)), m_k the mean by
                    the entries that were seen before, at least s
    fitted          log-normal bumps over the intervals, 9 widths at each half octave, with the height that fits best;
                    averages over bumps by their likelihood, where real counts differ from a bump by a factor of 0.35
    mean            m, the geometric mean of what the bumps say
    parts           of the mean in each interval: 3/4 by what was seen, 1/4 by the bumps
    large counts    q = sum_k parts_k u_k (3/4 u_k from the second interval on) / m, about E y^2 / E y, for both
                    readings; their geometric mean with the same weights, at least m
    beyond c        t(c) = sum_k parts_k max(0, 1 - c / u_k), u_k as for q: about the mean of what counts exceed c by

From these follow

    start           the constant column's coefficient is log m, so that descent begins at the best constant
    curvature       m, that of exp at the start
    anchor          a ridge around the start, in v, of strength kappa = m (s_1 / m)^2 D / 0.3: s_1 the noise of one
                    gradient that had the whole rest, D = sum h_j / (h_j + f). It is the posterior's where log-rates
                    have variance 0.3 around their mean, and keeps weak data near the constant.

    level           counts are cut from above only, so that descent ends too low where they are rare. With b and s the
                    mean and the standard deviation of its predictions by the released moment, rates have the mean
                    exp(b + s^2 / 2) if predictions are normal. The shift is moved by

                        w max(0, log m - b - s^2 / 2),  w = min(1, N / 0.003) / (1 + (s_m / (0.6 m))^2)

                    s_m the noise of the first magnitude, N below: where there is little of it no clip is at fault

The rest is the rule of `planning.whitening` for slope and curvature 1 in units of m:

    share           of mu^2 for the magnitudes (100 / (n mu))^2, at least 0.05 and at most half of what the second
                    moment leaves: their noise is relative to 1 / n
    noise excess    V = V_1 (2 q / m)^2, V_1 that of the rule
    cap             0.2 - 0.15 log10 V, between 0.4 and 1
    clip            c r, c the smaller of two. One is the clip of the slopes that balances what is cut off with noise,

                        argmin over c of (beta t(c) + 0.05 q m / (4 c))^2 + (N c)^2,   beta = 3 sqrt(N) within 0.12..1,

                    over c at least 0.7 m. N c is the length of the noise of one gradient that had the whole rest. The
                    mean of what slopes exceed c by is at most q m / (4 c) for any distribution with this second
                    moment; a part of that stands for tails that noise hides. The other is
                    cap * 2 q * max(1, sqrt(0.003 / N)). c is at least 1 where N is below m: no count but 0 is below 1.
                    It grows without bound as the noise falls, so that a larger budget ends at the optimum of the loss
    steps           0.5 V_1^-0.48 at the bound on r, between 4 and 100; a sixth of that where it is more, up to 300
    step size       0.5 / (m + kappa + lam |B|^2), and at most 1 / L_t, L_t the largest curvature that the released
                    gradients have shown so far: rates that grow make the loss more curved. Momentum 0.5
    average         "eased"

The constants were chosen on the counts of the half of the panel that is there to choose on, and on made-up ones; those
of the bumps and of the clip on six sets of counts of four tables (randhie, compas, california, german) and six made-up
ones. All of it concerns utility only.
"""

import math
from dataclasses import dataclass, replace
from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from privopt.later import Array
from privopt.planning import shrinkage
from privopt.planning.coordinates import Coordinates
from privopt.planning.task import Instance
from privopt.planning.whitening import LossConstants, WhiteningRule
from privopt.precision import run_arrays
from privopt.problems.losses import Loss, Poisson, Quantile
from privopt.problems.magnitudes import interval_ends
from privopt.problems.problem import Problem
from privopt.public import Public

LEVEL_REACH, LEAST_LEVEL_SHARE = 100.0, 0.05
SIGNIFICANT = 2.0  # standard deviations of an entry whose noise is at most a tenth of the mean
FAINT = 0.1  # that tenth
LEAST_MEAN = 1e-6
LEAST_PEAK, PEAK_STEP = -2.0, 0.5  # of bumps, in octaves
WIDTHS = np.geomspace(0.35, 3.2, 9)  # in octaves
TYPICAL_WIDTH, WIDTH_SPREAD = 1.0, 0.5  # the second of its logarithm
SMALLNESS = 0.1  # fall of the log prior in an octave
MOST_BEYOND = 0.1  # share of the mean beyond the public bound
LEAST_HEIGHT = 0.3  # of a bump, in standard deviations
MISFIT = 0.35  # of real counts in an interval, over the bump
TINY_SHARE = 1e-12  # no bump leaves an interval empty
FITTED = 0.25  # weight of the bumps beside what was seen
FILLED = 0.75  # E y^2 / (u E y) of a count spread over (u / 2, u]
SLOPE = 2.0  # of the large counts
HURRY = 0.5
SPREAD = 0.3  # variance of log-rates around their mean
RELATIVE_SETTINGS = ("inner.clip", "inner.step_size", "inner.smoothness")  # of a plan: at a mean of 1
RELATIVE_TO_THE_MEAN = (
    "the clip and the step size of the plan are in units of the mean count, which no plan can know: the run releases "
    "it first, then clips in proportion to it and steps in inverse proportion."
)
RELATIVE = LossConstants(
    slope=1.0, curvature=1.0, cap=(0.2, 0.15, 0.4), pace=0.5, returns="eased", most_steps=300, secant=True
)
BIAS, LEAST_BIAS, MOST_BIAS = 3.0, 0.12, 1.0  # beta
HIDDEN = 0.05  # of the largest mean that a second moment allows beyond a clip
LEAST_SLOPE = 0.7  # of the mean
LEAST_COUNT = 1.0  # that counts other than 0 are
QUIET = 0.003  # N from which on the clip of the large counts grows
CUT = 0.6  # about how far the cut of the counts moves the logarithm of the mean
SLOPES = 2.0 ** (np.arange(161) / 8.0)  # c over the least one
MOST_SLOPE = 8.0  # of the public bound


class Level(NamedTuple):
    """How large counts are, as released.

    Attributes:
        mean: m.
        large: q.
        sizes: of the counts in each interval, (k,).
        parts: of the mean, in each interval, (k,).
    """

    mean: float
    large: float
    sizes: NDArray[np.float64] = np.ones(0)
    parts: NDArray[np.float64] = np.zeros(0)

    def beyond(self, slopes: NDArray[np.float64]) -> NDArray[np.float64]:
        """t(c) for several c, (j,)."""
        return np.maximum(0.0, 1.0 - slopes[:, None] / self.sizes) @ self.parts


def constant_column(problem: Problem) -> int | None:
    """The column of ones of a model of counts; None without one, and for other losses."""
    return problem.constant if isinstance(problem.loss, Poisson) else None


def level_share(instance: Instance, share: float) -> float:
    """The fraction of mu^2 for the magnitudes, from public numbers; 0 where their release is of no use.

    Args:
        instance: the problem and the budget.
        share: of mu^2 for the second moment; of the rest the magnitudes get no more than half.
    """
    if not instance.is_private or constant_column(instance.problem) is None:
        return 0.0
    wanted = (LEVEL_REACH / (instance.public.n * instance.mu)) ** 2
    return min(max(wanted, LEAST_LEVEL_SHARE), 0.5 * (1.0 - share))


def level(released_magnitudes: Array | NDArray[np.float64], stddev: float, largest: float) -> Level:
    """How large counts are, by released magnitudes. Post-processing.

    Args:
        released_magnitudes: as `TargetMagnitudes` gives them, (k,).
        stddev: of the noise of an entry.
        largest: the public bound on a count.
    """
    ends = interval_ends(largest)
    values = np.nan_to_num(np.asarray(released_magnitudes, np.float64))
    mean, fitted = bump_level(values, stddev, largest)
    seen = significant(values, stddev, ends) * ends
    sizes = ends * np.where(ends <= 1.0, 1.0, FILLED)
    shares = (1.0 - FITTED) * _normalised(seen if np.any(seen) else fitted) + FITTED * _normalised(fitted)
    large = _normalised(seen if np.any(seen) else fitted) @ sizes
    large = float(large ** (1.0 - FITTED) * (_normalised(fitted) @ sizes) ** FITTED)
    return Level(mean=mean, large=max(large, mean), sizes=sizes, parts=mean * shares)


def _normalised(parts: NDArray[np.float64]) -> NDArray[np.float64]:
    """With a sum of 1."""
    return parts / float(np.sum(parts))


def significant(values: NDArray[np.float64], stddev: float, ends: NDArray[np.float64]) -> NDArray[np.float64]:
    """The entries of released magnitudes that noise does not explain, and 0 in place of the others, (k,)."""
    kept, below = np.zeros_like(values), stddev
    for k, end in enumerate(ends):
        reach = math.log(max(1.0, end * stddev / (FAINT * below))) if stddev else 0.0
        if values[k] > stddev * math.sqrt(SIGNIFICANT**2 + 2.0 * reach):
            kept[k] = values[k]
            below = max(float(kept @ ends), stddev)
    return kept


def bump_level(
    values: NDArray[np.float64], stddev: float, largest: float
) -> tuple[float, NDArray[np.float64]]:
    """The mean count, and about what each interval adds to it, by log-normal bumps fitted to released magnitudes.

    Args:
        values: the released magnitudes, (k,), finite.
        stddev: of the noise of an entry.
        largest: the public bound on a count.
    """
    ends = interval_ends(largest)
    if stddev == 0.0:
        parts = np.maximum(values, 0.0) * ends
        mean = min(max(float(np.sum(parts)), LEAST_MEAN), largest)
        return mean, parts if np.any(parts > 0.0) else np.eye(len(ends))[0] * mean
    shares, log_prior = _bumps(largest)
    shapes = shares / ends
    precision = np.full_like(shapes, stddev**-2.0)
    height = np.zeros(len(shapes))
    for _ in range(2):  # the second time with what real counts differ from a bump by
        known = np.sum(precision * shapes**2, axis=1)
        height = np.maximum(
            np.sum(precision * shapes * values, axis=1) / known, LEAST_HEIGHT / np.sqrt(known)
        )
        precision = 1.0 / (stddev**2 + (MISFIT * height[:, None] * shapes) ** 2)
    fitted = height[:, None] * shapes
    likelihood = 0.5 * np.sum(np.log(precision) - (values - fitted) ** 2 * precision, axis=1) + log_prior
    weights = np.exp(likelihood - np.max(likelihood))
    weights /= np.sum(weights)
    real = (MISFIT * fitted) ** 2
    parts = np.maximum(fitted + real / (real + stddev**2) * (values - fitted), 0.0) * ends
    totals = np.maximum(np.sum(parts, axis=1), LEAST_MEAN)
    mean = min(math.exp(float(weights @ np.log(totals))), largest)
    return mean, weights @ parts + LEAST_MEAN


@cache
def _bumps(largest: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Which share of the mean lies in each interval, (models, k), and the log prior, (models,), of each bump."""
    octaves = np.log2(interval_ends(largest))
    peaks = np.arange(LEAST_PEAK, octaves[-1] + 1.0, PEAK_STEP)
    peak, width = (grid.ravel()[:, None] for grid in np.meshgrid(peaks, WIDTHS, indexing="ij"))
    below = ndtr((octaves - peak) / width)
    shares = np.diff(below, axis=1, prepend=0.0)
    beyond = 1.0 - below[:, -1]
    prior = -0.5 * (np.log(width[:, 0] / TYPICAL_WIDTH) / WIDTH_SPREAD) ** 2
    prior -= SMALLNESS * np.maximum(peak[:, 0], 0.0)
    prior -= np.where(beyond > MOST_BEYOND, ((beyond - MOST_BEYOND) / MOST_BEYOND) ** 2, 0.0)
    return shares + TINY_SHARE, prior


def balanced_slope(found: Level, noise: float, largest: float) -> float:
    """The c that balances what is cut off with noise.

    Args:
        found: how large counts are.
        noise: N.
        largest: the public bound on a count.
    """
    slopes = LEAST_SLOPE * found.mean * SLOPES
    weight = min(max(BIAS * math.sqrt(noise), LEAST_BIAS), MOST_BIAS)
    cut = weight * found.beyond(slopes) + HIDDEN * found.large * found.mean / (4.0 * slopes)
    return min(float(slopes[np.argmin(np.hypot(cut, noise * slopes))]), MOST_SLOPE * largest)


@dataclass(frozen=True, kw_only=True)
class CountsRule:
    """Everything about whitened counts that is known before, or follows from, what is released of them.

    Attributes:
        whitening: the rule, in units of the mean count.
        column: of ones.
        largest: the public bound on a count.
    """

    whitening: WhiteningRule
    column: int
    largest: float

    @classmethod
    def of(cls, instance: Instance, share: float, level_share: float) -> "CountsRule":
        """The rule for a problem and a budget, of which the second moment and the magnitudes get their shares."""
        column, loss = constant_column(instance.problem), instance.problem.loss
        assert column is not None
        assert isinstance(loss, Poisson)
        rule = WhiteningRule.of(instance, share, constants=RELATIVE, beside=level_share)
        return cls(whitening=rule, column=column, largest=loss.max_count)

    def begin(self, start: Array, found: Level) -> Array:
        """Zeros with the logarithm of the mean in the constant column; another start stays as it is."""
        if np.any(np.asarray(start)):
            return start
        begun = np.array(start)
        begun[self.column] = math.log(found.mean)
        return run_arrays().asarray(begun)

    def slope(self, found: Level, signal: float) -> float:
        """c, the clip over the length of a typical row in v."""
        large, noise = SLOPE * found.large, self._noise(signal)
        kept = self.whitening.cap(signal, large / found.mean) * large * max(1.0, math.sqrt(QUIET / noise))
        least = LEAST_COUNT if noise < found.mean else 0.0
        return max(min(balanced_slope(found, noise, self.largest), kept), least)

    def levelled(
        self, params: Array, released_moment: Array | NDArray[np.float64], found: Level, stddev: float
    ) -> Array:
        """A result with the level that the released counts have, where it was below. Post-processing.

        Args:
            params: w, (d,).
            released_moment: the second moment, (d, d).
            found: how large counts are.
            stddev: of the noise of the first magnitude.
        """
        rows = self.whitening.rows(released_moment)
        columns = shrinkage.two_columns(rows, params)
        mean, spread = columns.found * [columns.basis[self.column, 0], 1.0]
        known = 1.0 + (stddev / (CUT * found.mean)) ** 2
        weight = min(1.0, self._noise(rows.signal) / QUIET) / known
        missing = max(0.0, math.log(found.mean) - float(mean + 0.5 * spread**2))
        moved = np.array(params)
        moved[self.column] += weight * missing
        return run_arrays().asarray(moved)

    def _noise(self, signal: float) -> float:
        """N, for rows of a typical length."""
        return self.whitening.unit_noise * max(signal, 1e-6) * math.sqrt(self.whitening.parameters)

    def coordinates(
        self, released_moment: Array | NDArray[np.float64], found: Level, start: Array
    ) -> Coordinates:
        """The coordinates of a released second moment (d, d), anchored at a start in w. Post-processing."""
        rule = self.whitening
        plain = rule.coordinates(released_moment)
        assert plain.rows is not None
        signal = plain.rows.signal
        directions = signal**2
        clip = self.slope(found, signal) * max(signal, 1e-6)
        pull = (rule.unit_noise * clip) ** 2 * directions / (SPREAD * found.mean)
        return replace(
            plain,
            clip=clip,
            smoothness=(found.mean + pull) / HURRY,
            ridge_smoothness=float(np.max(plain.rows.ridge(rule.ridge))) / HURRY,
            pull=pull,
            anchor=start,
        )


# ---- The level of a quantile fit, set right after the descent that found it --------------------------------
# A corner that is made smooth, a clip and a penalty each move the share of targets below a quantile fit away from its
# level: at level 0.05 a smoothing of a twentieth of the targets' range left no target below. The shift b that mends it
# is found by halving an interval: K times the share of the targets below prediction + b is released, which is the slope
# of the pinball loss by b, and b moves up where the share is less than the level.
#
#     share       q = (10 / (n mu))^2 of mu^2, between 0.05 and 0.3; none without noise
#     steps       K = 10, 30 without noise, from the interval [-1/2, 1/2] for targets in [-1, 1]
#     noise       of a released share: sqrt(K) / (n mu sqrt(q))
#
# All of it concerns utility only.
#
# Source:
#     Halving with noisy counts: Smith 2011 for private quantiles in general; this use of it is ours.


STEPS, NOISELESS_STEPS = 10, 30  # K
FARTHEST = 0.5  # of the shift
LEAST_SHARE, MOST_SHARE, REACH = 0.05, 0.3, 10.0
THIN = 1e-6  # the largest entry of the first of two columns, whose second is 1


def applies(problem: Problem, public: Public) -> bool:
    """Whether the level can be set: a quantile, a constant column, records as units."""
    return isinstance(problem.loss, Quantile) and problem.constant is not None and not public.by_user


def default_share(instance: Instance) -> float:
    """q where the level can be set; without noise a tenth, which costs nothing there."""
    if not applies(instance.problem, instance.public):
        return 0.0
    wanted = (REACH / (instance.public.n * instance.mu)) ** 2 if instance.is_private else 0.0
    return min(max(wanted, LEAST_SHARE), MOST_SHARE)


def steps(*, is_private: bool) -> int:
    """K."""
    return STEPS if is_private else NOISELESS_STEPS


def level_notice(loss: Loss, noise: float | None) -> tuple[str, ...]:
    """How far the share of targets below a quantile fit may be from its level.

    Args:
        loss: that is minimised; nothing is said of one that is no quantile.
        noise: standard deviation of a released share; None where none is released.
    """
    if not isinstance(loss, Quantile):
        return ()
    if noise is not None:
        return (
            f"the share of the targets below the fit is set to {loss.level:g} by released counts, right to about "
            f"{max(2.0 * noise, 2.0**-STEPS):.2g}.",
        )
    if loss.smoothing == 0:
        return ()
    return (
        f"the corner of the loss is smooth over residuals up to {loss.smoothing:.3g}: the share of the targets below "
        f"the fit may be off its level {loss.level:g} by the share of targets that near to it. Whitening of records "
        "with a constant column releases counts that set it right.",
    )


def halved(low: float, high: float, slope: float) -> tuple[float, float]:
    """The half of [low, high] in which the shift lies, by the released slope at its middle. Post-processing."""
    middle = 0.5 * (low + high)
    if not math.isfinite(slope):
        return low, high
    return (middle, high) if slope < 0 else (low, middle)
