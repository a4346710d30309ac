"""What several solvers tell a user, from public quantities."""

import numpy as np

from privopt.ledger.amounts import Budget
from privopt.planning.plan import figure
from privopt.planning.task import Instance
from privopt.problems.black_box import BlackBox
from privopt.problems.losses import Loss

NOISE_IS_OFF = "epsilon is infinite: nothing is clipped or noised, and the result is not private."


NO_RELEASES = (
    "nothing is released: the run returns the start that it was given, and learns nothing from the data."
)

LEAST_USUAL_EPSILON, LARGEST_USUAL_EPSILON = 1e-3, 100.0


def extreme_epsilon(budget: Budget) -> tuple[str, ...]:
    """An epsilon at which there is hardly a guarantee, or hardly a result."""
    epsilon = budget.epsilon
    if not budget.is_private or LEAST_USUAL_EPSILON <= epsilon <= LARGEST_USUAL_EPSILON:
        return ()
    if epsilon > LARGEST_USUAL_EPSILON:
        odds = f"one unit may change the odds of any result by a factor of e^{epsilon:.6g}"
        consequence = f"{odds}, which hides almost nothing"
        side = f"above {LARGEST_USUAL_EPSILON:g}"
    else:
        consequence, side = "the noise will drown almost any result", f"below {LEAST_USUAL_EPSILON:g}"
    return (f"epsilon {epsilon:.6g} is {side}: {consequence}. Common values lie between 0.1 and 10.",)


def large_delta(instance: Instance) -> tuple[str, ...]:
    """A delta at which some unit may be revealed outright."""
    delta, n = instance.budget.delta, instance.public.n
    if delta <= 1.0 / n:
        return ()
    return (f"delta {delta:.2g} exceeds 1 / n = {1 / n:.2g}: it should be well below.",)


def faint_signal(instance: Instance, excess: float | None) -> tuple[str, ...]:
    """A predicted excess that is not far from the loss of doing nothing."""
    at_zero = instance.loss_at_zero
    if excess is None or at_zero is None or excess <= 0.5 * at_zero:
        return ()
    return (
        f"the predicted excess {excess:.2g} is near {at_zero:.2g}, a bound on the loss of the zero model: "
        "the noise may drown the signal. More units or a larger epsilon would help.",
    )


def declared_of_black_box(loss: Loss) -> tuple[str, ...]:
    """What the user declares of a black box, in sentences; nothing of any other loss."""
    if not isinstance(loss, BlackBox):
        return ()
    scales = sorted({float(one) for one in np.ravel(loss.scale)}) if loss.layout is not None else []
    far = f"; parameters move by about {figure(scales[0])}" if scales else ""
    if len(scales) > 1:
        far += f" to {figure(scales[-1])}"
    return (
        f"The {loss.name} is a function of the parameters and of one record alone, without state.",
        f"Its values lie between {figure(loss.low)} and {figure(loss.high)}, others are moved there{far}.",
    )


def long_steps(step_size: float, smoothness: float) -> tuple[str, ...]:
    """A step size at which descent on an objective of this curvature may diverge."""
    largest = 2.0 / smoothness
    if step_size <= largest * (1.0 + 1e-9):
        return ()
    return (
        f"step_size {step_size:.3g} exceeds 2 / L = {largest:.3g}, L the curvature of the objective: descent may "
        "diverge. A step size of 1 / L is safe.",
    )
