"""How a budget is split around a private choice of the start, and the candidates that are chosen among.

    N points of a scrambled Sobol sequence in the box start +- reach,  N = 1024
    rho of the choice = e^2 / 8 = share * mu^2 / 2,  share = 0.2

In more than four parameters so few points say next to nothing about a box, and the method that follows does better with
the whole budget. Utility only.

Source:
    Kornowski, Liu, Talwar 2024, Appendix B, where the net has exponentially many points.
"""

import math
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import qmc

from privopt.ledger.gaussian_dp import part_of
from privopt.planning.forecast import Forecast
from privopt.planning.instance import Instance
from privopt.problems.black_box import BlackBox
from privopt.problems.problem import Problem

SHARE = 0.2
CANDIDATES = 1024
MOST_PARAMETERS = 4


def obstacle(solver: Any, problem: Problem, parameters: int) -> str | None:
    """Why there is no warm start, or None if there is one."""
    if parameters > MOST_PARAMETERS:
        return (
            f"{solver.candidates} candidates say next to nothing about a box in {parameters} parameters (limit: "
            f"{MOST_PARAMETERS}): leave the warm start out"
        )
    if not isinstance(problem.loss, BlackBox) and not (solver.is_set("low") and solver.is_set("high")):
        return f"the {problem.loss.name} loss states no range of its values: give `low` and `high`"
    return None


def end(solver: Any, instance: Instance, which: str) -> float:
    """`low` or `high` of a black box, or as given."""
    del solver
    loss = instance.problem.loss
    assert isinstance(loss, BlackBox)  # `obstacle` has asked for the others
    return loss.low if which == "low" else loss.high


def choice_range(share: float, instance: Instance) -> float:
    """e of the exponential mechanism: rho = e^2 / 8 = share mu^2 / 2; infinite without noise."""
    return 2.0 * instance.mu * math.sqrt(share) if instance.is_private else math.inf


def rest(instance: Instance, share: float) -> Instance:
    """What the inner solver plans for."""
    return replace(instance, budget=part_of(instance.budget, 1.0 - share))


def candidates(centre: NDArray[np.float64], reach: float, count: int, seed: int) -> NDArray[np.float64]:
    """`centre` and well spread points of the box around it, (count, p).

    Args:
        centre: flat parameters, one of the candidates.
        reach: half the width of the box.
        count: how many, at least 1.
        seed: public randomness of the scrambling.
    """
    sequence = qmc.Sobol(len(centre), scramble=True, rng=np.random.default_rng(seed))
    spread = sequence.random_base2(max(0, math.ceil(math.log2(count))))[:count]
    points = centre + reach * (2.0 * spread - 1.0)
    points[0] = centre
    return points


def forecast(solver: Any, instance: Instance) -> Forecast:
    """The inner solver's with its part of the budget; its bound supposes another start."""
    return replace(solver.inner.forecast(rest(instance, solver.share)), bound=None)
