"""What the phased methods for users have in common: who is in a phase, and what a phase may spend.

Phase i = 0, 1, ... gets a share of the users proportional to 2^(-q i) where the phases are disjoint (`blocks`), and all
n of them where they are reused. Disjoint phases may spend the whole budget each, since a user is in one of them; reused
ones divide it. The noise of a mean over a share w of the users is that of all users over w, and reuse divides the
budget by l, which costs sqrt(l): reuse is better from w = 1 / sqrt(l) down, that is for every phase but perhaps the
first.

Source:
    Lowy, Liu, Asi 2024, Algorithms 1 and 3, line 4, with shares that use everybody.
"""

import math
from typing import TYPE_CHECKING

from privopt.ledger.gaussian_dp import gaussian_mu
from privopt.planning.descent_defaults import OWN_SLOPE, guess
from privopt.planning.instance import Instance
from privopt.problems.losses import GLMLoss, Squared

if TYPE_CHECKING:
    from privopt.papers.phased_group_sgd import PhasedGroupSGD
    from privopt.solvers.phased_accelerated_erm import PhasedAcceleratedERM

BAD_EVENTS = 0.1  # of delta, for tests that pass though they should not
DISTANCE = 2.0  # from 0 to the optimum, where features are standardised
MOST_GAUSSIAN_TESTS = 40  # beyond them one sparse vector needs less slack


def paper_sizes(n: int, decay: float) -> tuple[float, ...]:
    """(1 - 2^-q) n / 2^(q i) users for i = 1 .. floor(log2 n), as printed; a fraction 1 - 2^-q of them takes no part.

    Args:
        n: users.
        decay: q.
    """
    return tuple((1.0 - 0.5**decay) * n / 2.0 ** (decay * i) for i in range(1, math.floor(math.log2(n)) + 1))


def phase_sizes(n: int, phases: int, decay: float) -> tuple[int, ...]:
    """The users of disjoint phases: proportional to 2^(-q i), all together at most n.

    Args:
        n: users.
        phases: l.
        decay: q.
    """
    weights = [2.0 ** (-decay * i) for i in range(phases)]
    return tuple(math.floor(n * weight / math.fsum(weights)) for weight in weights)


def users_of(solver: "PhasedGroupSGD | PhasedAcceleratedERM", n: int) -> tuple[int, ...]:
    """How many users each phase of a solver looks at."""
    return (n,) * solver.phases if solver.reuse else phase_sizes(n, solver.phases, solver.share_decay)


def parts(solver: "PhasedGroupSGD | PhasedAcceleratedERM") -> int:
    """Into how many parts the budget is divided: one a phase where users are reused."""
    return max(1, solver.phases) if solver.reuse else 1


def rho_of_phase(
    instance: Instance, solver: "PhasedGroupSGD | PhasedAcceleratedERM", bad_events: float
) -> float:
    """The zCDP cost that a phase may have, bad events taken off delta; infinite without noise.

    Args:
        instance: problem, public numbers and budget.
        solver: how the phases share the budget.
        bad_events: the part of delta that is set aside.
    """
    if not instance.is_private:
        return math.inf
    budget = instance.budget
    return gaussian_mu(budget.epsilon, budget.delta - bad_events) ** 2 / (2.0 * parts(solver))


def bad_event_delta(instance: Instance, solver: "PhasedGroupSGD | PhasedAcceleratedERM", tests: int) -> float:
    """delta_1 of one test: a tenth of delta, divided among the tests that one user can be in.

    Args:
        instance: problem, public numbers and budget.
        solver: how the phases share the budget.
        tests: in one phase.
    """
    return BAD_EVENTS * instance.budget.delta / (parts(solver) * max(1, tests))


def steepest_gradient(instance: Instance) -> float:
    """L0, the longest gradient of a record that is worth keeping; numbers to predict are thought of as standardised."""
    loss, row_bound = instance.problem.loss, instance.public.row_bound
    if isinstance(loss, Squared):
        return 3.0 * row_bound
    bound = instance.gradient_bound
    if math.isfinite(bound):
        return bound
    return guess(instance).slope * row_bound if isinstance(loss, GLMLoss) else OWN_SLOPE * row_bound


def distance(instance: Instance) -> float:
    """R, a guess of the distance to the optimum: 2 for rows of norm sqrt(d), no further than a ball allows."""
    guessed = DISTANCE * math.sqrt(instance.public.d) / instance.public.row_bound
    radius = getattr(instance.problem.constraint, "radius", math.inf)
    return min(guessed, 2.0 * float(radius))
