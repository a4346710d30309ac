"""Defaults and forecast of descent for the worst group. Utility only.

clip        1.5 times the steepest slope times the length of a row: what was best on generated records of 50 features;
            balanced, a rare group's weight then shortens both labels alike. Whitened, 1 to 2 times, see `whitening`
step size   with rows in a ball: 1.25 / (L + l), l the largest curvature of the penalty; with an l1 ball, whose rows
            have d entries of size R / sqrt(d) at most, 1 / (4 curvature R^2 / d + l), which is 1 for entries in [-1, 1]
            and no penalty; whitened, half of one over the curvature
steps       30 sqrt(0.02 / x) within 30..120, x = factor sqrt(d) / (n mu p), p the rarest group's share: with 30 the
            worst loss on generated records stayed 1 % above its minimum however small the noise; with more, Adult and
            COMPAS, some of whose groups are rare, lost at epsilon 1. 30 with an l1 ball, one group or drawn groups
weights     in proportion to sqrt(share) at first, then to the exponential of the sum of the losses too, for 20 % of the
            budget: with equal weights at first, small groups, whose gradients are mostly noise, counted too much on
            Adult and COMPAS; with weights in proportion to the shares descent was slow on generated records
draws       16 a step from 51 groups on
"""

import math
from typing import Any

import numpy as np

from privopt.planning import descent_defaults
from privopt.planning.coordinates import Coordinates
from privopt.planning.forecast import Forecast
from privopt.planning.instance import Instance
from privopt.planning.notices import NOISE_IS_OFF, large_delta
from privopt.problems.constraints import L1Ball, Product
from privopt.problems.grouped_loss import GroupedLoss
from privopt.problems.problem import Problem
from privopt.public import Public

STEPS, MOST_STEPS, NOISELESS_STEPS = 30, 120, 300
CLEAR = 0.02  # x, the noise of a group's gradient below which more steps are taken
CLIP_SHARE = 1.5  # of the steepest slope times the row bound
STEP_SHARE = 0.4  # of what whitened descent without groups takes
GROUP_SHARE = 0.2  # of mu^2, for the losses of the groups
SHARES_SHARE = 0.05  # of mu^2, for the shares where they are released
MOST_GROUPS = 50  # from more on, groups are drawn
DRAWS = 16


def grouped(problem: Problem) -> GroupedLoss:
    """The problem's loss.

    Raises:
        ValueError: it is not one of groups.
    """
    if isinstance(problem.loss, GroupedLoss):
        return problem.loss
    raise ValueError(f"the {problem.loss.name} loss knows no groups: use GroupedLoss(loss, groups, shares).")


def steps(solver: Any, instance: Instance) -> int:
    """T."""
    del solver
    if not instance.is_private:
        return NOISELESS_STEPS
    public, loss = instance.public, grouped(instance.problem)
    if not 1 < loss.groups <= MOST_GROUPS or _on_l1_ball(instance.problem):
        return STEPS
    shares = np.zeros(1) if loss.shares is None else np.asarray(loss.shares)
    rarest = float(np.min(loss.divisors(shares)))
    noise = public.relation.factor * math.sqrt(public.d) / (public.n * instance.mu * rarest)
    return min(max(round(STEPS * math.sqrt(CLEAR / noise)), STEPS), MOST_STEPS)


def clip(solver: Any, instance: Instance) -> float:
    """C; infinite with the noise off."""
    del solver
    if not instance.is_private:
        return math.inf
    loss = grouped(instance.problem)
    slope = loss.lipschitz if math.isfinite(loss.lipschitz) else 1.0
    return CLIP_SHARE * slope * instance.public.row_bound


def step_size(solver: Any, instance: Instance) -> float:
    """eta."""
    del solver
    public, curvature = instance.public, grouped(instance.problem).curvature
    if _on_l1_ball(instance.problem) and math.isfinite(curvature):
        return 1.0 / (4.0 * curvature * public.row_bound**2 / public.d + instance.penalty_smoothness)
    return descent_defaults.STEP_FACTOR / (
        descent_defaults.smoothness(instance) + instance.penalty_smoothness
    )


def group_share(solver: Any, instance: Instance) -> float:
    """Of mu^2; nothing where there is one group."""
    del solver
    return GROUP_SHARE if grouped(instance.problem).groups > 1 else 0.0


def shares_share(solver: Any, instance: Instance) -> float:
    """Of mu^2; nothing where the shares are public."""
    del solver
    loss = grouped(instance.problem)
    return SHARES_SHARE if loss.shares is None and loss.groups > 1 else 0.0


def draws(solver: Any, instance: Instance) -> int:
    """K; 0 where there are few groups, for CVaR, and with the noise off."""
    del solver
    loss = grouped(instance.problem)
    many = loss.groups > MOST_GROUPS and loss.alpha is None and instance.is_private
    return DRAWS if many else 0


DEFAULTS = {
    "steps": steps,
    "clip": clip,
    "step_size": step_size,
    "group_share": group_share,
    "shares_share": shares_share,
    "draws": draws,
}


def in_coordinates(coordinates: Coordinates) -> dict[str, Any]:
    """Clip and step size of whitened coordinates, whose rule knows the weights of groups."""
    return {
        "clip": coordinates.clip,
        "step_size": STEP_SHARE / (coordinates.smoothness + STEP_SHARE * coordinates.ridge_smoothness),
        "balanced": coordinates.balanced,
    }


def loss_noise(solver: Any, instance: Instance) -> float:
    """The standard deviation of the rarest group's loss, averaged over the steps; 0 without shares or noise."""
    loss = grouped(instance.problem)
    if loss.shares is None or not solver.group_share or not solver.steps:
        return 0.0
    once = instance.public.relation.factor * 0.5 * loss.cap / instance.public.n
    rarest = float(np.min(loss.divisors(np.asarray(loss.shares))))
    return once * solver.noise_multiplier / math.sqrt(solver.group_share) / rarest


def forecast(solver: Any, instance: Instance) -> Forecast:
    """What can be said of the noise and of the groups; there is no formula for the excess."""
    if not instance.is_private:
        return Forecast(meaning="no formula for the worst group", notices=(NOISE_IS_OFF,))
    return Forecast(
        meaning="no formula for the worst group",
        notices=large_delta(instance) + notices(solver, instance),
    )


def notices(solver: Any, instance: Instance) -> tuple[str, ...]:
    """What is known of the groups beforehand."""
    loss = grouped(instance.problem)
    if loss.groups == 1:
        return (
            "there is one group: nothing is to be gained by weighting groups, and a plain fit is the same model.",
        )
    found: list[str] = []
    if loss.shares is not None:
        least = min(loss.floor, 1.0 / loss.groups)
        rare = sum(share < least for share in loss.shares)
        if rare:
            found.append(
                f"{rare} of {loss.groups} groups have a share below the floor {least:.3g}: they count less than their "
                "own share, since noise on a group's loss is in proportion to one over its share."
            )
    else:
        found.append(
            f"shares are released, for {100 * solver.shares_share:.3g} % of the budget (of its rho); those below the "
            f"floor {min(loss.floor, 1.0 / loss.groups):.3g} count less."
        )
    noise = loss_noise(solver, instance)
    if noise > 0.1 * loss.cap and not solver.draws:
        found.append(
            f"the noise on the loss of the rarest group is about {noise:.2g}, over all steps: which group is worst "
            "will hardly be seen, and there is nothing to gain over a plain fit at this budget. Fewer groups, more "
            "units or a larger epsilon would help."
        )
    return tuple(found)


def obstacle(problem: Problem, public: Public) -> str | None:
    """Why the worst group cannot be solved for, or None."""
    del public
    if not isinstance(problem.loss, GroupedLoss):
        return f"the {problem.loss.name} loss knows no groups"
    if not problem.regulariser.is_smooth:
        return "the penalty is not smooth"
    return None


def _on_l1_ball(problem: Problem) -> bool:
    constraint = problem.constraint
    parts = [part for part, _ in constraint.parts] if isinstance(constraint, Product) else [constraint]
    return any(isinstance(part, L1Ball) for part in parts)
