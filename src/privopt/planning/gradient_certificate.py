"""How far a running estimate of a gradient can be from the gradient: the variance, and bounds on the error.

The estimate is updated by `v <- u v + q`, q a released mixture with noise of standard deviation s a coordinate, and u
the gain. As long as nothing was clipped, its error e follows `e <- u e + s z`, z standard Gaussian in p coordinates. So
with the gains and noise scales of the run

    variance      V <- u^2 V + s^2, the sum of the noises' variances times the squares of all later gains
    best gain     u = a (a - b) / (V + (a - b)^2) for s = (1 - u) a + u b: what makes the next V smallest

Gains and scales depend on earlier noise, so V is no conditional covariance, and |e|^2 is not p V on average. But with A
the product of the gains since the last fresh start (u = 0), e / A is a martingale whose increments are Gaussian given
the past and of variances that add up to V / A^2. For every b known at the fresh start,

    (b / (V / A^2 + b))^(p/2) exp(|e / A|^2 / (2 (V / A^2 + b)))

is therefore a supermartingale that starts at 1: a mixture of exponential ones over a Gaussian of variance b. By Ville's
inequality it ever exceeds 1 / beta with probability at most beta. With b = 2^k s_0^2, s_0 the noise of the fresh start,
k = 0 .. 200, and a share `1 / ((k + 1) (k + 2) (r + 1) (r + 2))` of beta for scale k after the r-th fresh start,

    |e|^2 <= min_k (V + B_k) (p ln(1 + V / B_k) + 2 ln((k + 1) (k + 2) (r + 1) (r + 2) / beta)),  B_k = A^2 2^k s_0^2

at all steps at once, with probability at least 1 - beta.

Source:
    Robbins 1970 and de la Pena, Klass, Lai 2004 for the mixture; its use here is ours.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from privopt.later import Array, Float
from privopt.planning.plan import Finding
from privopt.problems.growth import KL

SCALES = np.arange(201.0)  # k


@dataclass(frozen=True, kw_only=True)
class EstimateError:
    """The error of a running estimate, from public numbers; an immutable value.

    Attributes:
        variance: V, of a coordinate; exact if gains and scales were chosen beforehand.
        start_variance: s_0^2, the variance at the last fresh start.
        log_gains: ln A, the logarithm of the product of the gains since then.
        restarts: r, how many fresh starts there were after the first.
    """

    variance: float = math.inf
    start_variance: float = math.inf
    log_gains: float = 0.0
    restarts: int = -1

    def after(self, gain: float, stddev: float) -> "EstimateError":
        """The error of `gain` times the estimate plus a release.

        Args:
            gain: u in [0, 1]; 0 starts afresh.
            stddev: s, of one coordinate of the release's noise.
        """
        if gain == 0.0:
            return EstimateError(variance=stddev**2, start_variance=stddev**2, restarts=self.restarts + 1)
        return EstimateError(
            variance=gain**2 * self.variance + stddev**2,
            start_variance=self.start_variance,
            log_gains=self.log_gains + math.log(gain),
            restarts=self.restarts,
        )

    def optimal_gain(self, fresh: float, change: float) -> float:
        """The u in [0, 1] that makes the next variance smallest; 0 where a change is no less noisy than a gradient.

        Args:
            fresh: a, the noise of a released gradient.
            change: b, the noise of a released change.
        """
        saved = fresh - change
        if not saved > 0.0 or not math.isfinite(self.variance):
            return 0.0
        return min(1.0, fresh * saved / (self.variance + saved**2))

    def proved_bound(self, parameters: int, failure: float) -> float:
        """A bound on |e| at all steps at once, with probability at least 1 - failure; see the module.

        Args:
            parameters: p.
            failure: beta in (0, 1).
        """
        if self.variance == 0.0 or math.isinf(self.variance):
            return self.variance
        with np.errstate(divide="ignore", over="ignore"):
            log_scales = 2.0 * self.log_gains + SCALES * math.log(2.0) + np.log(self.start_variance)  # ln B_k
            spread = parameters * np.logaddexp(0.0, math.log(self.variance) - log_scales)
            unions = np.log((SCALES + 1.0) * (SCALES + 2.0))
            union = math.log((self.restarts + 1.0) * (self.restarts + 2.0) / failure)
            squares = (self.variance + np.exp(log_scales)) * (spread + 2.0 * (unions + union))
        return math.sqrt(float(np.min(squares)))

    def approximate_bound(self, parameters: int, failure: float) -> float:
        """sqrt(V) (sqrt(p) + sqrt(2 ln(1 / failure))): right for a Gaussian error of variance V, which e is not."""
        return math.sqrt(self.variance) * (math.sqrt(parameters) + math.sqrt(2.0 * math.log(1.0 / failure)))


def mixed(gain: float, fresh: float, change: float) -> float:
    """The noise of a release that mixes a gradient and a change: (1 - gain) * fresh + gain * change."""
    return fresh if gain == 0.0 else (1.0 - gain) * fresh + gain * change


def certificate(
    *,
    point: Float[Array, " *shape"],
    estimate: Float[Array, " *shape"],
    slope: float,
    error: EstimateError,
    failure: float,
    clips_changes: bool,
    never_clipped: bool,
    growth: KL | None,
    of: str,
) -> Mapping[str, Finding]:
    """What a run's last estimate shows. Post-processing of releases.

    Args:
        point: where the estimate estimates the gradient of the mean loss.
        estimate: v.
        slope: norm of the estimated gradient of the objective, or of its proximal gradient map.
        error: of the estimate.
        failure: probability with which the proved bound may fail.
        clips_changes: whether changes of gradients are clipped below what the curvature allows: then nothing is proved.
        never_clipped: whether the loss's formula says that no gradient and no change can be clipped.
        growth: of the objective, for a bound on its excess.
        of: what `slope` is the norm of.
    """
    norm = "the norm of the " + of
    found = {
        "gradient_estimate": Finding(
            estimate,
            "an estimate of the gradient of the mean loss, without the penalty, at `estimated_point`",
        ),
        "estimate_variance": Finding(
            error.variance,
            "variance of a coordinate of `gradient_estimate`, as if the run's gains and noise scales had been fixed "
            "beforehand",
        ),
        "estimated_point": Finding(
            point, "the point of the last release; the returned parameters are one step further"
        ),
        "gradient_norm_estimate": Finding(slope, f"an estimate of {norm} at `estimated_point`"),
    }
    if clips_changes:
        return found
    condition = "no gradient and no change of a gradient was clipped"
    condition = (
        f"as by the loss's formula {condition}" if never_clipped else f"if {condition}, which nobody can see"
    )
    proved = slope + error.proved_bound(estimate.size, failure)
    near = slope + error.approximate_bound(estimate.size, failure)
    certain = f"with probability at least {1.0 - failure:.3g}, {condition}"
    found["gradient_norm_bound"] = Finding(proved, f"at most this is {norm} at `estimated_point`, {certain}")
    found["approximate_gradient_norm_bound"] = Finding(
        near,
        f"about a bound on {norm} at `estimated_point`, {certain}; not proved: it takes the error for Gaussian of "
        "variance `estimate_variance`",
    )
    if growth is not None:
        found["excess_bound"] = Finding(
            growth.excess_at(proved),
            f"at most this is the excess objective at `estimated_point`, {certain} and the objective has the growth "
            f"gamma = {growth.gamma:.4g}, kappa = {growth.kappa:.4g}",
        )
    return found
