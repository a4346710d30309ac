"""Defaults and forecasts of the synthesizers that weigh every cell of the joint table, from public numbers."""

import math
from typing import Any

from privopt.ledger.curves import zcdp_rho_budget
from privopt.planning.plan import Finding
from privopt.planning.task import Forecast, Task
from privopt.problems.workload import Workload
from privopt.public import Relation

# ------------------------------------------------------------------------------------------------------------
# What synthesizers' defaults and forecasts share: how loud one unit is in a count, and what noise does to
# cells.


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


# ------------------------------------------------------------------------------------------------------------
# Defaults and forecasts of the synthesizers that weigh every cell of the joint table, from public numbers.


ROUNDS_SLOPE = 1.4  # rounds of MWEM, over the square root of the loudness
ANSWER_SECONDS = (
    4e-9  # a cell of the joint table and column, in one evaluation of all answers or of the adjoint
)


def parts(workload: Workload) -> int:
    """How many marginals there are, or queries."""
    return len(workload.sets) or workload.size


def default_rounds(program: Any, task: WorkloadTask) -> int:
    """1.4 sqrt(kappa), kappa the loudness of the data: 40 to 80 for 20 000 units at epsilon 0.3 to 1.

    At most the number of marginals or queries.
    """
    del program
    return min(max(1, round(ROUNDS_SLOPE * math.sqrt(loudness(task)))), parts(task.problem))


def fit_seconds(iterations: float, workload: Workload) -> float:
    """An iteration evaluates the answers and the adjoint about once each."""
    if workload.queries is not None:
        return 2.5 * iterations * workload.size * workload.universe * 1e-9
    return (
        2.5 * iterations * (workload.universe * len(workload.levels) * ANSWER_SECONDS + workload.size * 4e-8)
    )


def gaussian_forecast(program: Any, task: WorkloadTask) -> Forecast:
    """The noise of every answer before the fit."""
    share = 1.0 / parts(task.problem)
    if task.problem.queries is None:
        noise = cell_noise(program.noise_multiplier, share, task)
        found = {"cell_noise": cell_finding(noise, "every marginal")}
    else:
        noise = cell_noise(program.noise_multiplier, share, task) / 2.0
        found = {"answer_noise": Finding(noise, "the standard deviation of the noise on a query, at most")}
    return Forecast(meaning="the fit averages much of the noise away; see the indicators", indicators=found)


def mwem_forecast(program: Any, task: WorkloadTask) -> Forecast:
    """The noise of a measurement, and how clearly the worst is told from the others."""
    if program.rounds == 0:
        return Forecast(meaning="no round: the uniform table, at no cost")
    share = (1.0 - program.selection_share) / program.rounds
    noise = cell_noise(program.noise_multiplier, share, task)
    choosing = program.choice(program.selection_share / program.rounds)
    blur = (
        2.0
        * math.log(max(2, task.problem.size))
        / (choosing.epsilon * task.public.n * task.public.typical_weight)
    )
    found = {
        "cell_noise": cell_finding(noise, "a chosen marginal"),
        "choice_blur": Finding(
            blur,
            "a chosen cell is about this much less wrong than the worst one, as a share of all units, at most",
        ),
    }
    return Forecast(
        meaning="there is no formula for the error of a model; see the indicators", indicators=found
    )
