"""Schedule, predicted gradient norm and notices of DP-Spider.

With W = 2 rho n^2 / factor^2, p parameters, clip C and an L-smooth objective that starts at most `gap` above its
minimum:

    steps       T = (L gap W^2 / (C p)^2)^(1/3), at most 4000
    period      q T p = W, which keeps the noise of a period's differences from growing
    step size   eta = 1 / (2 L)

The gradient at a random iterate then has a root mean square norm of at most `sqrt(6 L gap / T)`. In general, with S2
the noise variance of one released gradient and B the noise that a period's differences add for each unit of |v|^2, a
step lowers the objective by at least `(eta/2) (|grad|^2 - |error|^2 + (1 - L eta) |v|^2)`, so if B <= 1 - L eta

    mean |grad F(w_t)|^2 <= 2 gap / (eta T) + p S2.

Source:
    Arora, Bassily, Gonzalez, Guzman, Menart, Ullah 2023, Theorem 1, with constants worked out for exact composition.
"""

import math
from typing import Any, NamedTuple

from privopt.planning.descent_defaults import NOISELESS_STEPS, default_clip
from privopt.planning.forecast import Forecast
from privopt.planning.instance import Instance
from privopt.planning.notices import NOISE_IS_OFF, large_delta
from privopt.planning.plan import Finding
from privopt.problems.constraints import Unconstrained
from privopt.problems.losses import GLMLoss
from privopt.problems.problem import Problem

MOST_STEPS = 4_000  # where the theorem's number of steps is above what passes over the data are worth


class SpiderSchedule(NamedTuple):
    """How many steps, and how often a gradient is released."""

    steps: int  # T
    period: int  # q


def planned_schedule(
    *, signal: float, clip: float, smoothness: float, gap: float, parameters: int, steps: int | None = None
) -> SpiderSchedule:
    """The schedule that balances what the steps gain and what the noise costs; see the module.

    Args:
        signal: W, infinite without noise.
        clip: C.
        smoothness: L.
        gap: a bound on the excess of the start.
        parameters: p.
        steps: T, where it is given.
    """
    if steps is None:
        steps = math.ceil(
            min((smoothness * gap * (signal / (clip * parameters)) ** 2) ** (1.0 / 3.0), MOST_STEPS)
        )
    period = signal / (max(steps, 1) * parameters)
    return SpiderSchedule(
        steps, int(max(1.0, min(math.floor(period) if math.isfinite(period) else steps, steps)))
    )


def schedule(solver: Any, instance: Instance) -> SpiderSchedule:
    """The schedule for a solver whose clip, curvature and gap are set."""
    return planned_schedule(
        signal=(instance.mu * instance.public.n / instance.public.relation.factor) ** 2,
        clip=solver.clip,
        smoothness=smoothness(solver, instance),
        gap=start_gap(solver, instance.problem),
        parameters=instance.parameters,
        steps=solver.steps,
    )


def steps(solver: Any, instance: Instance) -> int:
    """T."""
    return schedule(solver, instance).steps if instance.is_private else NOISELESS_STEPS


def smoothness(solver: Any, instance: Instance) -> float:
    """L of the objective."""
    return solver.curvature + instance.penalty_smoothness


def start_gap(solver: Any, problem: Problem) -> float:
    """The given gap, else the least of the problem's and the bound on the loss at 0; infinite if not known."""
    if solver.gap is not None:
        return solver.gap
    known = math.inf if problem.growth is None else problem.growth.gap
    at_zero = problem.loss.value_at_zero if isinstance(problem.loss, GLMLoss) else None
    return min(known, math.inf if at_zero is None else at_zero)


def known_gap(solver: Any, instance: Instance) -> float | None:
    """The gap, or None."""
    gap = start_gap(solver, instance.problem)
    return gap if math.isfinite(gap) else None


DEFAULTS = {
    "clip": lambda solver, instance: default_clip(instance),
    "curvature": lambda solver, instance: instance.problem.loss_smoothness(instance.public),
    "gap": known_gap,
    "steps": steps,
    "period": lambda solver, instance: schedule(solver, instance).period,
    "step_size": lambda solver, instance: 0.5 / smoothness(solver, instance),
}


def gradient_norm_bound(solver: Any, instance: Instance) -> float | None:
    """The module's bound on the root mean square of the gradient norm over the iterates, in expectation.

    None where the noise of the differences is too large, a penalty is not smooth, there is a set, or no gap is known.
    """
    problem, public, eta = instance.problem, instance.public, solver.step_size
    gap = start_gap(solver, problem)
    flows = problem.regulariser.is_smooth and isinstance(problem.constraint, Unconstrained)
    if solver.steps == 0 or not (flows and math.isfinite(gap)):
        return None
    anchor, difference = solver.mechanisms()
    factor = public.relation.factor / public.n
    slope = solver.difference_clip * solver.curvature * eta * factor * difference.noise_multiplier
    carried = min(solver.period, solver.steps) * instance.parameters * slope**2
    if carried > 1.0 - smoothness(solver, instance) * eta:
        return None
    noise = factor * solver.clip * anchor.noise_multiplier if anchor.noise_multiplier else 0.0
    return math.sqrt(2.0 * gap / (eta * solver.steps) + instance.parameters * noise**2)


def forecast(solver: Any, instance: Instance) -> Forecast:
    """The predicted gradient norm, where there is one, or that the noise may build up."""
    norm = gradient_norm_bound(solver, instance)
    indicators: dict[str, Finding] = {}
    if norm is not None:
        indicators["gradient_norm"] = Finding(
            norm,
            "bound on the gradient norm of a random iterate, root mean square, if no gradient and no change of one is "
            "clipped and the loss at the start is no larger than at 0",
        )
    if not instance.is_private:
        return Forecast(indicators=indicators, notices=(NOISE_IS_OFF,))
    found = Forecast(indicators=indicators, notices=large_delta(instance))
    if solver.steps and norm is None:
        return found.noting(
            "the noise of the differences may build up within a period: a shorter `period` or fewer `steps` would be "
            "safer."
        )
    return found
