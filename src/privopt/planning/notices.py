"""What several solvers tell a user, from public quantities."""

from privopt.ledger.amounts import Budget
from privopt.problems.losses import GLMLoss
from privopt.problems.problem import Problem
from privopt.public import Public

NOISE_IS_OFF = "epsilon is infinite: nothing is clipped or noised, and the result is not private."


def large_delta(public: Public, budget: Budget) -> tuple[str, ...]:
    """A delta at which some unit may be revealed outright."""
    if budget.delta <= 1.0 / public.n:
        return ()
    return (f"delta {budget.delta:.2g} exceeds 1 / n = {1 / public.n:.2g}: it should be well below.",)


def faint_signal(problem: Problem, excess: float | None) -> tuple[str, ...]:
    """A predicted excess that is not far from the loss of doing nothing."""
    at_zero = problem.loss.value_at_zero if isinstance(problem.loss, GLMLoss) else None
    if excess is None or at_zero is None or excess <= 0.5 * at_zero:
        return ()
    return (
        f"the predicted excess {excess:.2g} is near {at_zero:.2g}, a bound on the loss of the zero model: "
        "the noise may drown the signal. More units or a larger epsilon would help.",
    )
