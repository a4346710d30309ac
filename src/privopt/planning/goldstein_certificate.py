"""Certificates of Goldstein stationarity: how small a run shows the mean gradient around its result to be.

The mean of the gradients at points z_1 .. z_M within r of x lies in the convex hull of the gradients in that ball.
Where it is short, no single direction improves the mean loss faster than its length everywhere within r of x, which is
then (r, length)-Goldstein stationary. What is private is that mean, v. A certificate is a bound on |v| from
releases, right with a probability of `confidence` = 1 - gamma over the noise.

*Free.* The run released the gradients at z_1 .. z_M with noise N_1 .. N_M of s_1 .. s_M a coordinate, and m is their
mean. With equal s the noise of m is Gaussian although every z depends on earlier noise, and

    |v| <= |m| + s sqrt(chi2_{d, 1 - gamma} / M).

Where a scale follows the point, as the sensitivity of `ClippedGradient` may, the noise's sum is not Gaussian. Then
s is the largest scale of the block, and gamma / 2 stands for gamma. Proof: let A_k = (N_1 + .. + N_k) / max(s_1 ..
s_k). From A_k to A_{k+1} the one who chooses scales shrinks A_k towards 0, then adds a Gaussian of scale at most 1. By
backward induction and Anderson's inequality the chance that A_M ends outside a ball grows with |A_k|, so shrinking does
not pay: at best the largest scale is 1 from the start. Then A_M is a Brownian path at a stopping time of at most M, and
by Levy's inequality P(max |B_t| > q) <= 2 P(|B_M| > q). Scales that were fixed beforehand, equal or not, need neither:
s^2 is their mean square.

*Released.* v itself was released with noise N of s a coordinate (`AveragedGradient`, of the sensitivity of one gradient
whatever M is). |v + N|^2 / s^2 is noncentral chi-squared, and the bound U solves

    P(chi2_d(U^2 / s^2) <= |v + N|^2 / s^2) = gamma,      U = 0 if there is no such U.

A certificate is about the means that were released: of *clipped* gradients, and of those of the *smoothed* loss if that
is what the run estimated. It is about the point whose ball holds z_1 .. z_M and no other; for a block that was chosen
among K by looking at releases gamma is to be divided by K.

Source:
    Kornowski, Liu, Talwar 2024, Algorithm 2 (the mean of a block as an element of the Goldstein subdifferential). The
    certificates are ours.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike
from scipy import optimize, stats

from privopt.later import Array, Float
from privopt.planning.plan import Finding, Picture, line

CONFIDENCE = 0.95
CERTIFICATE_SHARE = 0.1  # of rho, for a released certificate
IN_SCALES = "lengths in units of the parameters' `scale`"
Oracle = Literal["gradients", "jitter", "smoothed", "values"]
_ROUNDING = 1e-9  # relative, upwards
_LARGEST_RATIO = 1e4  # of |v + N| to s; beyond, the distribution's formula loses digits


def free_certificate(
    mean_released: ArrayLike,
    noise: ArrayLike,
    *,
    steps: int | None = None,
    confidence: float = CONFIDENCE,
    moving: bool | None = None,
) -> float:
    """A bound on the norm of the mean of M gradients that were released with noise, at no further price.

    Args:
        mean_released: the mean of the M released gradients.
        noise: standard deviation of a coordinate in each of them, one number or M.
        steps: M, where `noise` is one number.
        confidence: 1 - gamma in [0.5, 1).
        moving: whether scales may follow earlier releases; default: where they are not all equal. Scales that are only
            by chance equal, of a query whose sensitivity moves, are to be called moving.
    """
    level = _checked(confidence)
    scales = np.atleast_1d(np.asarray(noise, float)).ravel()
    count = scales.size if steps is None else steps
    if count < 1 or scales.size not in (1, count):
        raise ValueError(f"noise must be one number or one for each of {count} steps, got {scales.size}.")
    mean = np.asarray(mean_released, float).ravel()
    if moving is None:
        moving = bool(np.any(scales != scales[0]))
    if moving:
        scale, level = float(np.max(scales)), 0.5 * (1.0 + level)
    else:
        scale = math.sqrt(float(np.mean(scales**2)))
    return _finite_or_infinite(
        float(np.linalg.norm(mean)) + scale * math.sqrt(float(stats.chi2.ppf(level, mean.size)) / count)
    )


def released_certificate(released: ArrayLike, noise: float, *, confidence: float = CONFIDENCE) -> float:
    """A bound on |v| from one Gaussian release of v.

    Args:
        released: v plus noise.
        noise: its standard deviation in a coordinate.
        confidence: 1 - gamma in [0.5, 1).
    Returns:
        The solution of the module's equation. Where v is so long that its formula loses digits, `|v + N| + s z`, z the
        normal quantile: right as well, since |v + N| is at least |v| plus the noise along v.
    """
    failure = 1.0 - _checked(confidence)
    vector = np.asarray(released, float).ravel()
    length = float(np.linalg.norm(vector))
    if noise == 0 or not math.isfinite(length):
        return _finite_or_infinite(length)
    ratio, dimensions = length / noise, vector.size
    square = ratio * ratio
    if float(stats.chi2.cdf(square, dimensions)) <= failure:
        return 0.0
    most = ratio + float(stats.norm.isf(failure))
    if ratio > _LARGEST_RATIO:
        return noise * most

    def missing(bound: float) -> float:
        return float(stats.ncx2.cdf(square, dimensions, bound * bound)) - failure

    if missing(most) > 0:  # by rounding alone: the root is `most` to the last digits
        return noise * most
    root: Any = optimize.brentq(missing, 0.0, most, xtol=1e-13 * most)
    return noise * float(root)


def radius_of(point: ArrayLike, points: ArrayLike, smoothing: float = 0.0) -> float:
    """The radius that a certificate at `point` is for: to the farthest of the points, and the smoothing radius beyond.

    Args:
        point: x, what the run returns.
        points: z_1 .. z_M, one a row, from the transcript.
        smoothing: alpha_s, the radius of the ball over which each gradient is a mean; 0 for none.
    """
    at = np.asarray(point, float).ravel()
    rows = np.asarray(points, float).reshape(-1, at.size)
    return float(np.max(np.linalg.norm(rows - at, axis=1))) * (1.0 + _ROUNDING) + smoothing


@dataclass(frozen=True, kw_only=True)
class Certified:
    """What a certificate is about, in public numbers and releases.

    Attributes:
        point: x, what the run returns.
        points: z_1 .. z_M, one a row, whose mean gradient is bounded.
        clip: C of a unit's gradient.
        oracle: what was released at each point: "gradients" there; "jitter", gradients at a random point of the ball of
            radius `smoothing` around it, another one for each unit; "smoothed", exact gradients of the smoothed loss;
            "values", estimates from values of the loss.
        smoothing: alpha_s; 0 for none.
        every_unit: whether every unit takes part in every release, not a sample.
        never_clipped: whether no gradient can be longer than the clip, by the loss's formula.
        unit: what the mean is over.
        penalised: whether a penalty's gradient was added to the mean.
        scaled: whether lengths of parameters are in units of a black box's `scale`.
        moving: whether the scale of a release's noise may follow earlier releases.
        confidence: of the bound.
    """

    point: Float[Array, " *shape"]
    points: Float[Array, "M ..."]
    clip: float
    oracle: Oracle = "gradients"
    smoothing: float = 0.0
    every_unit: bool = True
    never_clipped: bool = False
    unit: str = "record"
    penalised: bool = False
    scaled: bool = False
    moving: bool | None = None
    confidence: float = CONFIDENCE

    @property
    def radius(self) -> float:
        """See `radius_of`."""
        return radius_of(self.point, self.points, self.smoothing)

    @property
    def what(self) -> str:
        """The mean that a certificate is about, in words."""
        smoothed = f", smoothed over balls of radius {self.smoothing:.3g}" if self.smoothing > 0 else ""
        units = "users'" if self.unit == "user" else "units'"
        shortened = "" if self.never_clipped else f", each shortened to {self.clip:.3g} where it is longer"
        penalty = ", plus the penalty's" if self.penalised else ""
        return f"the mean of the {units} gradients{shortened}{smoothed}{penalty}"

    @property
    def meaning(self) -> str:
        """What a bound says."""
        caught = "" if self.never_clipped else ", as far as gradients are no longer than the clip"
        improved = "objective" if self.penalised else "mean loss"
        measured = f", {IN_SCALES}" if self.scaled else ""
        return (
            f"no single direction improves the {improved} faster than this everywhere within {self.radius:.3g} of the "
            f"result{measured}{caught}: it bounds the length of an average, over points of that ball, of {self.what}"
        )


def free_findings(of: Certified, released: ArrayLike, noise: ArrayLike) -> Mapping[str, Finding]:
    """The certificate that the run's own releases give, at no further price.

    Args:
        of: what it is about.
        released: the M released gradients at `of.points`, the penalty's gradients added if there is a smooth penalty.
        noise: standard deviation of a coordinate in each of them, one number or M.
    """
    count = len(np.asarray(of.points))
    rows = np.asarray(released, float).reshape(count, -1)
    mean = rows.mean(axis=0)
    bound = free_certificate(mean, noise, steps=count, confidence=of.confidence, moving=of.moving)
    found = _common(of)
    found["certificate_estimate"] = Finding(
        float(np.linalg.norm(mean)),
        f"the norm of the average of the last {count} released gradients, noise included: an estimate of what the "
        "certificate bounds",
    )
    strict = of.every_unit and of.oracle in ("gradients", "smoothed")
    if strict:
        found["certificate"] = Finding(bound, f"with probability {of.confidence:.3g}, {of.meaning}")
    else:
        why = {
            "values": "gradients were estimated from values along random directions",
            "jitter": "each unit's gradient was taken at a random point of its ball",
        }.get(of.oracle, "each release saw a sample of the units")
        found["certificate_approximate"] = Finding(
            bound,
            f"about this: {of.meaning}. Noise is covered with probability {of.confidence:.3g}; not covered, so not "
            f"proved, is the chance in the estimates themselves: {why}",
        )
    return found


def released_findings(of: Certified, released: ArrayLike, noise: float) -> Mapping[str, Finding]:
    """The certificate of a release of the averaged gradient itself.

    Args:
        of: what it is about; with "gradients" as its oracle, whatever the run's steps used.
        released: the answer to `AveragedGradient` at `of.points`.
        noise: standard deviation of a coordinate.
    """
    bound = released_certificate(released, noise, confidence=of.confidence)
    found = _common(of)
    found["certificate_estimate"] = Finding(
        float(np.linalg.norm(np.asarray(released, float))),
        "the norm of the released average gradient, noise included: an estimate of what the certificate bounds",
    )
    found["certificate"] = Finding(
        bound, f"with probability {of.confidence:.3g}, {of.meaning}; released for a part of the budget"
    )
    return found


def certificate_picture(
    released: Sequence[Any] | ArrayLike,
    noise: ArrayLike,
    *,
    window: int,
    confidence: float = CONFIDENCE,
    moving: bool | None = None,
) -> Picture:
    """The certificate along the run: the norm of the mean released gradient of each block, and its free bound.

    Args:
        released: every released gradient in order, one a row, or one array each.
        noise: standard deviation of a coordinate in each of them, one number or one a release.
        window: M, how many make a block; what is left at the end makes none.
        confidence: with which all bounds hold at once: each has gamma / K of the K blocks.
        moving: see `free_certificate`.
    """
    rows = np.asarray(released, float).reshape(len(released), -1)  # pyright: ignore[reportArgumentType]
    scales = np.broadcast_to(np.asarray(noise, float), (len(rows),))
    count = len(rows) // window
    level = 1.0 - (1.0 - confidence) / max(count, 1)
    means, bounds = [0.0] * count, [0.0] * count
    for k in range(count):
        block = slice(k * window, (k + 1) * window)
        mean = rows[block].mean(axis=0)
        means[k] = float(np.linalg.norm(mean))
        bounds[k] = free_certificate(mean, scales[block], confidence=level, moving=moving)
    places = [(k + 1) * window for k in range(count)]
    return Picture(
        title="Certificate along the run",
        caption=f"Of each {window} steps in a row: the norm of their mean released gradient, noise included, and what "
        f"it proves of the mean gradient without noise; all bounds hold at once with probability {confidence:.3g}.",
        x="step",
        y="norm of the mean gradient",
        series=(line("released", means, places), line("bound", bounds, places)),
    )


def _common(of: Certified) -> dict[str, Finding]:
    return {
        "certificate_radius": Finding(
            of.radius,
            "how far around the result the certificate looks: to the farthest point whose gradient was averaged"
            + (f", and the smoothing radius {of.smoothing:.3g} beyond" if of.smoothing > 0 else ""),
        )
    }


def _checked(confidence: float) -> float:
    if not 0.5 <= confidence < 1.0:
        raise ValueError(
            f"confidence must lie in [0.5, 1), got {confidence!r}: it is the probability with which a bound holds."
        )
    return confidence


def _finite_or_infinite(bound: float) -> float:
    return bound if math.isfinite(bound) else math.inf
