"""How far steps of gradient descent may go and still bring any two points closer, and what such steps add up to."""

import math

import numpy as np

from privopt.problems.problem import Problem
from privopt.proofs.huberised_objective import own_ridge
from privopt.public import Public


def largest_step(problem: Problem, public: Public) -> float:
    """2 / (L + mu), with the ridge in both."""
    ridges = own_ridge(problem, public.d)
    curvature = problem.loss.curvature * public.row_bound**2
    return 2.0 / (curvature + float(np.max(ridges)) + float(np.min(ridges)))


def geometric_sum(shrink: float, steps: int) -> float:
    """`sum over k < steps of (1 - shrink)^k`, for shrink between 0 and 1."""
    if shrink == 0.0 or steps == 0:
        return float(steps)
    if shrink >= 1.0:
        return 1.0
    return -math.expm1(steps * math.log1p(-shrink)) / shrink
