"""The methods of the comparison under the KL condition, and what each of them is told.

"auto" and the default of gradient descent are told nothing. The others run on their defaults, but for a loss of the
user's own they are told a clip and a curvature, which the user would have to guess. The settings of the tuned baseline
are an oracle's, and so is what KL Spider knows.
"""

import itertools
import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np

from benchmarks.kl_data import Case, flat
from privopt.papers.dp_spider import DPSpider
from privopt.problems.growth import KL
from privopt.solvers.adaptive_gradient_descent import AdaptiveGradientDescent
from privopt.solvers.base import Solver
from privopt.solvers.continuous_spider import ContinuousSpider
from privopt.solvers.curvature_probe import CurvatureProbe
from privopt.solvers.gradient_descent import GradientDescent
from privopt.solvers.kl_spider import KLSpider

AUTO = "auto"
PLAIN = "gradient descent, default"
TUNED = "DP-GD, constant noise, oracle-tuned"
CONSTANT = "DP-GD, constant noise, rule T"
GEOMETRIC = "geometric gradient descent"
SPIDER = "continuous Spider"
PROBED = "continuous Spider, curvature probe"
ADAPTIVE = "adaptive gradient descent"
ADAPTIVE_PAPER = "adaptive gradient descent, paper"
KL_PAPER = "KL Spider, paper, oracle gamma"
KL_PLANNED = "KL Spider, planned, oracle gamma"
DP_SPIDER = "DP-Spider"
METHODS = (
    AUTO,
    PLAIN,
    TUNED,
    CONSTANT,
    GEOMETRIC,
    SPIDER,
    PROBED,
    ADAPTIVE,
    ADAPTIVE_PAPER,
    KL_PAPER,
    KL_PLANNED,
    DP_SPIDER,
)

STEPS, FACTORS = (30, 100, 300, 1000), (1.0, 2.5)  # of the tuned baseline, step sizes in 1 / curvature
PATH, PATH_STRIDE = 1500, 10  # steps of the run that finds gamma, and how often it looks


def solvers(method: str, case: Case, *, quick: bool = False) -> list[tuple[dict[str, float], Solver | str]]:
    """The candidates of a method, with what tells them apart; more than one means that an oracle chooses."""
    if method == TUNED:
        return _tuned(case, quick=quick)
    told: dict[str, Any] = {} if case.convex else {"clip": case.lipschitz, "curvature": case.curvature}
    plain: dict[str, Any] = {} if case.convex else {"clip": case.lipschitz, "smoothness": case.curvature}
    known: dict[str, Any] = {"clip": case.lipschitz, "curvature": case.curvature, "most_steps": 2 * PATH}
    gap: dict[str, Any] = {} if case.convex else {"gap": case.objective(case.start)}
    made: dict[str, Callable[[], Solver | str]] = {
        AUTO: lambda: "auto",
        PLAIN: GradientDescent,
        CONSTANT: lambda: GradientDescent.geometric(ratio=1.0, **plain),
        GEOMETRIC: lambda: GradientDescent.geometric(**plain),
        SPIDER: lambda: ContinuousSpider(**told),
        PROBED: lambda: CurvatureProbe(inner=ContinuousSpider(**told)),
        ADAPTIVE: lambda: AdaptiveGradientDescent(**told),
        ADAPTIVE_PAPER: lambda: AdaptiveGradientDescent(variant="paper", **told),
        KL_PAPER: lambda: KLSpider(variant="paper", growth=growth(case), **known),
        KL_PLANNED: lambda: KLSpider(growth=growth(case), **known),
        DP_SPIDER: lambda: DPSpider(**told, **gap),
    }
    return [({}, made[method]())]


def _tuned(case: Case, *, quick: bool) -> list[tuple[dict[str, float], Solver | str]]:
    """Gradient descent as it is usually written: constant noise and step size, no momentum, the last iterate.

    It is told that the objective is no more curved than its step size suits, or long steps would be refused.
    """
    found: list[tuple[dict[str, float], Solver | str]] = []
    for steps, factor in itertools.product(STEPS[:2] if quick else STEPS, FACTORS):
        eta = factor / case.curvature
        solver = GradientDescent(
            steps=steps,
            clip=case.lipschitz,
            step_size=eta,
            smoothness=1.0 / eta,
            momentum=0.0,
            returns="last",
        )
        found.append(({"steps": steps, "step_size": eta}, solver))
    return found


@lru_cache(maxsize=1)
def growth(case: Case) -> KL:
    """The constant of the KL condition with kappa = 2 along a run without noise: nobody could know it."""
    params = flat(case.problem, case.start)
    start = case.objective(case.start) - case.best
    gamma = 0.0
    for step in range(PATH):
        slope = case.gradient(params)
        if step % PATH_STRIDE == 0:
            excess, length = case.objective(params) - case.best, float(np.linalg.norm(slope))
            if excess > 1e-9 and length > 0:
                gamma = max(gamma, math.sqrt(excess) / length)
        params = params - slope / case.curvature
    return KL(gamma=gamma, kappa=2.0, gap=start)
