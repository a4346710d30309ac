"""What objective and output perturbation share: what their proofs cover, and settings from public quantities."""

import math

from privopt.planning import descent_theory
from privopt.planning.kl_theory import DISTANCE
from privopt.planning.task import Instance
from privopt.problems.losses import Poisson
from privopt.problems.problem import Problem
from privopt.proofs import huberised_objective
from privopt.proofs.huberised_objective import own_ridge
from privopt.public import Public

NOISELESS_RIDGE = 1e-8  # over the curvature: without noise, only so that there is a minimiser
TYPICAL_PASSES = 20.0  # of Newton's method
RUNNING_TIME = "the running time depends on the data and is not protected."


def obstacle(problem: Problem, public: Public) -> str | None:
    """Why the proofs do not cover a problem, or None: they are about records, and rest on formulas."""
    if public.unit == "user":
        return "it protects records, and here a unit is a user"
    return huberised_objective.obstacle(problem)


def default_clip(instance: Instance) -> float:
    """C: the largest gradient that the formula allows; R for a loss whose slope is unbounded."""
    if not instance.is_private:
        return math.inf
    loss = instance.problem.loss
    slope = loss.lipschitz
    if isinstance(loss, Poisson):
        slope = min(slope, math.sqrt(loss.max_count))
    return instance.public.row_bound * (slope if math.isfinite(slope) else 1.0)


def default_ridge(instance: Instance, clip: float) -> float:
    """lam: the penalty's own, the best for an optimum within `distance` of zero, or what keeps c below epsilon / 10."""
    public, own = instance.public, least_ridge(instance)
    curvature = record_curvature(instance)
    if not instance.is_private:
        return max(own, NOISELESS_RIDGE * curvature) if own == 0.0 else own
    length = min(clip, default_clip(instance))  # a clip of other coordinates has other units
    noise = descent_theory.noise_of_one(instance, length)
    by_noise = noise * math.sqrt(public.d) * public.row_bound / DISTANCE
    return max(own, by_noise, 10.0 * curvature / (public.n * instance.budget.epsilon))


def least_ridge(instance: Instance) -> float:
    """The least ridge weight that the problem's penalty has already."""
    return float(min(own_ridge(instance.problem, instance.public.d)))


def record_curvature(instance: Instance) -> float:
    """beta: the largest curvature of one record's loss."""
    return instance.problem.loss.curvature * instance.public.row_bound**2


def hessian_trace(instance: Instance, ridge: float) -> float:
    """A bound on the trace of the Hessian of the mean, all of whose ridge weights are `ridge`."""
    return record_curvature(instance) + instance.public.d * ridge


def distance(instance: Instance) -> float:
    """A guess of the distance from zero to the optimum."""
    return DISTANCE / instance.public.row_bound


def meaning(instance: Instance) -> str:
    """What a prediction is."""
    return f"an upper estimate for an optimum within {distance(instance):.3g} of zero"


def added_ridge(instance: Instance, ridge: float, *, needed_by: str) -> tuple[str, ...]:
    """That coordinates get a ridge which the problem did not ask for."""
    raised = int((own_ridge(instance.problem, instance.public.d) < ridge).sum())
    if not raised:
        return ()
    return (
        f"added ridge: {raised} of {instance.public.d} coordinates had a ridge weight below {ridge:.3g} and get this "
        f"one, because {needed_by} needs strong convexity in every direction.",
    )
