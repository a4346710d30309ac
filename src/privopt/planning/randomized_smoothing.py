"""The radius of randomized smoothing, and the problem that is solved in place of the given one. Utility only."""

import math
from dataclasses import replace
from typing import Any

from privopt.planning.indicators import DISTANCE
from privopt.planning.instance import Instance
from privopt.problems.problem import Problem
from privopt.problems.smoothed import randomly_smoothed
from privopt.public import Public


def default_radius(solver: Any, instance: Instance) -> float:
    """r = W sqrt(p) / (mu n sqrt(m)), W the distance that the optimum is guessed at; 0 without noise.

    With it the bias, at most L r, is about the error that the noise leaves anyway.
    """
    del solver
    public = instance.public
    if not instance.is_private:
        return 0.0
    distance = DISTANCE / public.row_bound
    units = public.n * math.sqrt(public.typical_records)
    return distance * math.sqrt(instance.parameters) / (instance.mu * units)


DEFAULTS = {"radius": default_radius}


def smoothed_problem(problem: Problem, public: Public, radius: float, seed: int) -> Problem:
    """The problem with its loss smoothed; the problem itself for a radius of 0."""
    if radius == 0.0:
        return problem
    smooth = randomly_smoothed(problem.loss, radius, row_bound=public.row_bound, seed=seed)
    return replace(problem, loss=smooth, growth=None, constant=None)
