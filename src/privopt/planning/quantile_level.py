"""The level of a quantile fit, set right after the descent that found it.

A corner that is made smooth, a clip and a penalty each move the share of targets below a quantile fit away from its
level: at level 0.05 a smoothing of a twentieth of the targets' range left no target below. The shift b that mends it is
found by halving an interval: K times the share of the targets below prediction + b is released, which is the slope of
the pinball loss by b, and b moves up where the share is less than the level.

    share       q = (10 / (n mu))^2 of mu^2, between 0.05 and 0.3; none without noise
    steps       K = 10, 30 without noise, from the interval [-1/2, 1/2] for targets in [-1, 1]
    noise       of a released share: sqrt(K) / (n mu sqrt(q))

All of it concerns utility only.

Source:
    Halving with noisy counts: Smith 2011 for private quantiles in general; this use of it is ours.
"""

import math

from privopt.planning.instance import Instance
from privopt.problems.losses import Loss, Quantile
from privopt.problems.problem import Problem
from privopt.public import Public

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
