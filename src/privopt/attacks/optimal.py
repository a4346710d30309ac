"""The optimal test on a pair of data sets that differs as much as it can: what descent really reveals.

Every unit pulls the gradient by the whole clip, wherever the run stands; in the neighbour one of them pulls the other
way, or is absent. So each release moves by its whole sensitivity, and what is revealed should be what is claimed.
"""

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.stats import norm

from privopt.attacks.confidence import deviation_bounds, epsilon_lower_bound
from privopt.attacks.watched import Watched
from privopt.data.units import Units
from privopt.errors import ArgumentError
from privopt.ledger.amounts import Budget
from privopt.ledger.gaussian_dp import gaussian_epsilon
from privopt.ledger.unlimited import Unlimited
from privopt.mechanisms.noise import NoiseSource
from privopt.planning.instance import Instance
from privopt.problems import losses
from privopt.problems.problem import Problem
from privopt.solvers.gradient_descent import GradientDescent

HUGE = 1e9  # a target that no prediction comes near: the clipped gradient is C at every point of the run
ROUNDING = (
    1e-6  # by which a move may exceed its sensitivity: that of the engine, which the sensitivity bounds
)
FALSE_ALARM = 1e-6  # of each test of the noise
SQUARED = Problem(losses.squared)


@dataclass(frozen=True)
class Attack:
    """What an attack found.

    Attributes:
        name: which attack.
        claim: the epsilon that is claimed.
        lower_bound: the largest epsilon that was refuted, with `CONFIDENCE`: what is revealed is more than that.
        faults: what is broken, by name.
        detail: how much was tried, in words.
    """

    name: str
    claim: float
    lower_bound: float
    faults: tuple[str, ...]
    detail: str

    @property
    def refutes(self) -> bool:
        """Whether the claim cannot be true."""
        return bool(self.faults) or self.lower_bound > self.claim


def worst_pair(relation: str, *, n: int, others: float) -> tuple[Units, Units]:
    """Two neighbours whose clipped mean gradient of the squared loss differs by the whole sensitivity at every point.

    Unit 0 pulls with all its might along the first axis; in the neighbour it pulls the other way, or is absent.

    Args:
        relation: the neighbouring relation.
        n: public number of units.
        others: how the other units pull along the same axis: 1, or 0 for empty rows.
    """
    rows, targets = np.tile([others, 0.0], (n, 1)), np.full(n, -HUGE)
    rows[0, 0] = 1.0
    turned = targets.copy()
    turned[0] = HUGE
    first = 1 if relation == "add-or-remove-one" else 0
    return (
        Units.from_arrays(rows, targets, relation=relation, row_bound=1.0, n=n),
        Units.from_arrays(rows[first:], turned[first:], relation=relation, row_bound=1.0, n=n),
    )


def optimal_attack(
    budget: Budget,
    *,
    relation: str = "replace-one",
    steps: int = 4,
    runs: int = 2000,
    n: int = 16,
    solver: GradientDescent | None = None,
    watch: type[Watched] = Watched,
    seed: int | None = None,
) -> Attack:
    """Attack gradient descent that is calibrated to a budget.

    The gradients do not depend on where the run stands, so one long run is as good as many: the releases of both are
    independent and of one law.

    Two bounds are taken. *Counts* of runs whose log-likelihood ratio exceeds the claim assume nothing, and are sharp
    where delta is not small. *Spread* bounds the deviation of the noise by chi-square and reads the curve of normal
    noise there; that the noise is normal and independent is tested beside it.

    Args:
        budget: the claim.
        relation: the neighbouring relation.
        steps: releases of one run.
        runs: runs on each side.
        n: public number of units.
        solver: what is attacked; default: descent as it is calibrated to the budget.
        watch: the curator that it runs against.
        seed: of the noise; None for the operating system's.

    Raises:
        ArgumentError: the claim is not finite, or there are no runs.
    """
    if not budget.is_private or not 0 < budget.delta < 1:
        raise ArgumentError("an attack needs a claim: a finite epsilon, and a delta above 0.")
    if steps < 1 or runs < 2:
        raise ArgumentError(f"an attack needs steps and at least two runs, got {steps} and {runs}.")
    pair = worst_pair(relation, n=n, others=1.0)
    if solver is None:
        plain = GradientDescent(steps=steps, clip=0.7, step_size=1e-9, momentum=0.0, returns="last")
        solver = plain.configure(Instance(SQUARED, pair[0].public, budget))
    long = replace(solver, steps=steps * runs)
    sides: list[Watched] = []
    for side in (0, 1):
        noise = NoiseSource(None if seed is None else seed + side)
        sides.append(watch(pair[side], pair[1 - side], Unlimited(pair[0].public.relation), noise=noise))
        long.solve(sides[side], SQUARED)
    ratios = [np.asarray(one.log_ratios).reshape(runs, steps).sum(axis=1) for one in sides]
    counted = counted_bound(ratios[0], -ratios[1], budget)
    spread, faults = _spread_bound(sides, steps, budget.delta)
    longest = max(moved for one in sides for _, moved in one.moves)
    if longest > 1 + ROUNDING:
        faults = (f"a release moved by {longest:.3g} times its stated sensitivity", *faults)
    return Attack(
        name=f"optimal test, descent, {relation}",
        claim=budget.epsilon,
        lower_bound=max(counted, spread),
        faults=faults,
        detail=f"{runs:,} runs of {steps} releases a side: {counted:.3g} by counts, {spread:.3g} by the spread",
    )


def counted_bound(
    log_ratio_left: NDArray[np.float64], log_ratio_right: NDArray[np.float64], budget: Budget
) -> float:
    """The best lower bound on epsilon of the likelihood-ratio test at the claim's own threshold, in both directions.

    An (epsilon, delta) claim is tight on the event that the log-likelihood ratio exceeds epsilon.

    Args:
        log_ratio_left: log-likelihood ratios left against right, of runs on the left data set.
        log_ratio_right: the same ratios, of as many runs on the right one.
        budget: the claim.
    """
    runs = len(log_ratio_left)
    left, right = log_ratio_left, log_ratio_right
    exceeded = int(np.sum(left > budget.epsilon)), int(np.sum(right > budget.epsilon))
    reversed_ = int(np.sum(-right > budget.epsilon)), int(np.sum(-left > budget.epsilon))
    return max(epsilon_lower_bound(seen, also, runs, budget.delta) for seen, also in (exceeded, reversed_))


def _spread_bound(sides: list[Watched], steps: int, delta: float) -> tuple[float, tuple[str, ...]]:
    """The epsilon of normal noise of the largest deviation that its residuals allow; and what is wrong with them."""
    residuals = np.concatenate([np.asarray(one.residuals) for one in sides])
    shifts = np.asarray([shift for one in sides for shift in one.shifts])
    draws = residuals.ravel()
    _, high = deviation_bounds(float(draws @ draws), draws.size)
    faults: list[str] = []
    if len(np.unique(np.round(residuals, 9), axis=0)) < len(residuals):
        return 0.0, ("two releases have the same noise: their difference is released without any",)
    neighbours = np.sum(residuals[1:] * residuals[:-1]) / max(float(draws @ draws), 1e-300)
    if abs(neighbours) * math.sqrt(draws.size) > -float(norm.ppf(FALSE_ALARM / 2)):
        return 0.0, ("the noise of releases that follow one another is not independent",)
    if high < 1 - 1e-3:
        faults.append(f"the noise is at most {high:.3g} times what is claimed")
    mu = math.sqrt(steps * float(np.mean(shifts**2)))
    return (gaussian_epsilon(mu / high, delta) if high > 0 else math.inf), tuple(faults)
