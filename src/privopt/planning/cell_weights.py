"""What synthesizers' defaults and forecasts share: how loud one unit is in a count, and what noise does to cells."""

import math

from privopt.ledger.curves import zcdp_rho_budget
from privopt.planning.plan import Finding
from privopt.planning.task import Task
from privopt.problems.workload import Workload
from privopt.public import Relation

MOST_CELLS = 2**20  # of a joint table whose cells all get a weight
LOUDEST = 1e7  # of `loudness`, which is infinite without noise
NORMAL_MEAN = math.sqrt(2.0 / math.pi)  # of |N(0, 1)|

WorkloadTask = Task[Workload]


def loudness(task: WorkloadTask) -> float:
    """kappa = n / s: the n units over the noise s, in units, of one marginal that gets the whole budget.

    s = sqrt(c / (2 rho)): a unit enters one cell, and under replace-one (c = 2) leaves another.
    """
    rho = zcdp_rho_budget(task.budget.epsilon, task.budget.delta)
    entered = 2.0 if task.public.relation is Relation.REPLACE_ONE else 1.0
    return min(task.public.n * math.sqrt(2.0 * rho / entered), LOUDEST)


def cell_noise(noise_multiplier: float, share: float, task: WorkloadTask) -> float:
    """The standard deviation of a cell of a marginal that gets this share of the zCDP, as a share of all units.

    A typical user weighs less than the largest, who sets the noise, where weights grow with the number of records.
    """
    entered = math.sqrt(2.0) if task.public.relation is Relation.REPLACE_ONE else 1.0
    total = task.public.n * task.public.typical_weight
    return noise_multiplier / math.sqrt(share) * entered / total if share > 0 else math.inf


def cell_finding(noise: float, which: str) -> Finding:
    """The noise of the cells of a released marginal, in words."""
    return Finding(
        noise, f"the standard deviation of the noise on a cell of {which}, as a share of all units"
    )


ANSWER_SECONDS = (
    4e-9  # a cell of the joint table and column, in one evaluation of all answers or of the adjoint
)


def parts(workload: Workload) -> int:
    """How many marginals there are, or queries."""
    return len(workload.sets) or workload.size


def fit_seconds(iterations: float, workload: Workload) -> float:
    """An iteration evaluates the answers and the adjoint about once each."""
    if workload.queries is not None:
        return 2.5 * iterations * workload.size * workload.universe * 1e-9
    return (
        2.5 * iterations * (workload.universe * len(workload.levels) * ANSWER_SECONDS + workload.size * 4e-8)
    )
