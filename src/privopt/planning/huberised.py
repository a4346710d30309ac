"""What objective and output perturbation share: what their proofs cover, and settings from public quantities."""

import math

from privopt.ledger.amounts import Budget
from privopt.planning import descent_defaults
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


def default_clip(problem: Problem, public: Public, budget: Budget) -> float:
    """C: the largest gradient that the formula allows; R for a loss whose slope is unbounded."""
    if not budget.is_private:
        return math.inf
    slope = problem.loss.lipschitz
    if isinstance(problem.loss, Poisson):
        slope = min(slope, math.sqrt(problem.loss.max_count))
    return public.row_bound * (slope if math.isfinite(slope) else 1.0)


def default_ridge(problem: Problem, public: Public, budget: Budget, clip: float) -> float:
    """lam: the penalty's own, the best for an optimum within 10 / R of zero, or what keeps c below epsilon / 10."""
    own = float(min(own_ridge(problem, public.d)))
    curvature = problem.loss.curvature * public.row_bound**2
    if not budget.is_private:
        return max(own, NOISELESS_RIDGE * curvature) if own == 0.0 else own
    length = min(clip, default_clip(problem, public, budget))  # a clip of other coordinates has other units
    noise = descent_defaults.noise_of_one(public, budget, length)
    by_noise = noise * math.sqrt(public.d) * public.row_bound / 10.0
    return max(own, by_noise, 10.0 * curvature / (public.n * budget.epsilon))


def added_ridge(problem: Problem, public: Public, ridge: float, *, needed_by: str) -> tuple[str, ...]:
    """That coordinates get a ridge which the problem did not ask for."""
    raised = int((own_ridge(problem, public.d) < ridge).sum())
    if not raised:
        return ()
    return (
        f"added ridge: {raised} of {public.d} coordinates had a ridge weight below {ridge:.3g} and get this one, "
        f"because {needed_by} needs strong convexity in every direction.",
    )
