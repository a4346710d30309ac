"""What theorems say in a plan: the bound of a run that meets their conditions, and what each method could promise."""

import math
from dataclasses import replace
from functools import cache

from privopt.planning.forecast import Forecast
from privopt.planning.goldstein_bounds import Prediction, plan_bound, predict
from privopt.planning.goldstein_errors import METHODS, Method, Oracle, StationarityTask
from privopt.planning.instance import Instance
from privopt.planning.plan import Finding, figure
from privopt.problems.black_box import BlackBox
from privopt.problems.regularisers import NoRegulariser

START_MOVED = 1e-3  # of the radius, at most: how far a start is moved off a kink that it may sit on


def task_of(instance: Instance, *, clip: float, radius: float, distance: float) -> StationarityTask | None:
    """The numbers of the bounds; None where there is no bound: a penalty whose gradient nothing bounds, no clip.

    Args:
        instance: the problem and the budget.
        clip: C, taken for L.
        radius: a, around the result.
        distance: R, a guess of how far a good point is; with C it bounds what can be gained where the loss at the
            start has no bound of its own.
    """
    plain = isinstance(instance.problem.regulariser, NoRegulariser)
    if not (plain and math.isfinite(clip) and clip > 0 and instance.public.n > 0):
        return None
    loss, known = instance.problem.loss, instance.loss_at_zero
    drop = clip * distance if known is None else known
    if isinstance(loss, BlackBox):
        drop = min(drop, loss.high - loss.low)
    return StationarityTask(
        n=instance.public.n,
        d=instance.parameters,
        mu=instance.mu,
        lipschitz=clip,
        drop=drop + START_MOVED * clip * radius,
        radius=radius,
        factor=instance.public.relation.factor,
    )


def with_method_bounds(
    found: Forecast, instance: Instance, *, clip: float, radius: float, distance: float, values: bool = False
) -> Forecast:
    """The forecast with what each method could promise for the budget, in one indicator.

    Args:
        found: the forecast so far.
        instance: see `task_of`.
        clip: likewise.
        radius: likewise.
        distance: likewise.
        values: whether gradients are estimated from values.
    """
    task = task_of(instance, clip=clip, radius=radius, distance=distance)
    found = replace(found, for_convex=False)
    if task is None:
        return found
    oracle: Oracle = "values" if values else "gradients"
    plain, *others = (_predicted(method, task, oracle) for method in METHODS)
    told = "; ".join(f"{one.method} {_in_short(one)}" for one in others)
    meaning = (
        f"what a theorem bounds the norm of an average gradient within {figure(task.radius)} of the result by, in "
        f"expectation, for plain steps ({_in_short(plain)}); {told}. If no gradient is longer than "
        f"{figure(task.lipschitz)} and the start at most {figure(task.drop)} above the infimum"
    )
    return replace(
        found, indicators={**found.indicators, "stationarity_bound": Finding(plain.value, meaning)}
    )


def with_own_bound(
    found: Forecast,
    task: StationarityTask | None,
    *,
    window: int,
    blocks: int,
    noise: float,
    smoothing: float = 0.0,
    oracle: Oracle = "gradients",
) -> Forecast:
    """The forecast with the bound of a run that meets the theorem's conditions, or a notice that it is vacuous.

    The conditions: all units in every step; steps of `2 D / (sqrt(M) G1)` with D constant; places drawn uniformly on
    the steps; a random block is returned.

    Args:
        found: the forecast so far.
        task: see `task_of`.
        window: M.
        blocks: K.
        noise: standard deviation of a coordinate of one release.
        smoothing: alpha_s.
        oracle: what is released.
    """
    if task is None or blocks < 1:
        return found
    bound, notices = plan_bound(
        task, window=window, blocks=blocks, smoothing=smoothing, oracle=oracle, noise=noise
    )
    return replace(found, bound=bound).noting(*notices)


def _in_short(one: Prediction) -> str:
    if one.vacuous:
        return f"{figure(one.value)}, vacuous at this budget"
    return f"{figure(one.value)} in {one.steps:,} steps of windows of {one.window:,}"


@cache
def _predicted(method: Method, task: StationarityTask, oracle: Oracle) -> Prediction:
    return predict(method, task, oracle=oracle)
