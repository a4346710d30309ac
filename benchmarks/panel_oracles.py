"""What an oracle that sees the training loss would choose: the yardsticks of every cell of the panel.

Plain DP-GD, as it is usually written: gradients of rows of length 1, clipped, T steps of constant size with equal
shares, no momentum, from 0; the last iterate or the mean of the last half. 36 settings: T x clip x step size. All of
them are screened with `SCREENING` seeds (T = 300 where T = 100 was the best of those before it), and the `FINALISTS`
best settings run with all seeds; the least mean training excess counts. Nothing is paid for the choice. Of a loss of
several outputs fewer run, see `SEVERAL`. Noise has the usual 2 C / n; the library's own bound near 0 is less.

Objective perturbation: the library's solver with its own noise at several strengths of its ridge, of which the best
counts; all seeds and ridges are minimised as one batch.
"""

import heapq
import itertools
import math
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.panel_cells import Cell
from benchmarks.panel_rules import landed
from privopt.planning.averaging import Average, mixing_ratios
from privopt.planning.whitening import loss_constants
from privopt.solvers.objective_perturbation import ObjectivePerturbation

Floats = NDArray[np.float64]

STEPS = (10, 30, 100, 300)
CLIPS = (0.1, 0.3, 1.0)  # over the steepest slope worth keeping, of rows of length 1
STEP_SIZES = (1.0, 4.0, 16.0)  # over 1 / curvature, of rows of length 1
AVERAGES: tuple[Average, ...] = ("last", "tail")
SCREENING, FINALISTS = 2, 6
SEVERAL = (STEPS[:-1], 1, 2)  # the same of a loss of several outputs, where a pass is dear
RIDGE_FACTORS = (0.3, 1.0, 3.0, 10.0)
ROUNDS, RESIDUAL = 200, 1e-7  # of the minimisers; the residual in units of the objective
HINDSIGHT_STEPS = (3, 5, 9, 15, 25, 43, 75, 128)


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One setting of plain DP-GD; clip and step size are in the units of `CLIPS` and `STEP_SIZES`."""

    steps: int
    clip: float
    step_size: float
    average: Average


def plain_descents(
    cell: Cell, steps: int, settings: list[tuple[float, float]], seeds: int
) -> dict[Setting, Floats]:
    """DP-GD under several clips and step sizes at once, with the same noise for all of them.

    Args:
        cell: the cell.
        steps: T.
        settings: pairs of clip and step size.
        seeds: how many of the cell's seeds run.
    Returns:
        Parameters (seeds, d) or (seeds, d, K) for every setting and average.
    """
    shape = cell.start().shape[1:]
    runs, slope, curvature = len(settings) * seeds, *_scales(cell)
    clips = np.repeat([clip * slope for clip, _ in settings], seeds)
    wide = (slice(None), *(None,) * len(shape))
    sizes = np.repeat([size / curvature for _, size in settings], seeds)[wide]
    spread = (clips * float(cell.noise_of_one(1.0, 1.0)[0]) * math.sqrt(steps))[wide]
    ridge = cell.ridge[:, None] if len(shape) == 2 else cell.ridge
    generator = cell.generator("plain")
    params = np.zeros((runs, *shape))
    averages = {average: np.zeros((runs, *shape)) for average in AVERAGES}
    ratios = {average: mixing_ratios(average, steps) for average in AVERAGES}
    for t in range(steps):
        noise = np.tile(
            generator.standard_normal((cell.seeds, *shape))[:seeds], (len(settings), *(1,) * len(shape))
        )
        gradient = cell.gradients(None, params, clips) + spread * noise
        params = params - sizes * (gradient + ridge * params)
        for average in AVERAGES:
            averages[average] += ratios[average][t] * (params - averages[average])
    return {
        Setting(steps=steps, clip=clip, step_size=size, average=average): found[k * seeds : (k + 1) * seeds]
        for average, found in averages.items()
        for k, (clip, size) in enumerate(settings)
    }


def best_plain_descent(cell: Cell) -> tuple[Setting, Floats]:
    """The best setting of plain DP-GD in hindsight, and its excess, one a seed."""
    grid = list(itertools.product(CLIPS, STEP_SIZES))
    counts, screening, count = (STEPS, SCREENING, FINALISTS) if cell.outputs == 1 else SEVERAL
    means: dict[Setting, float] = {}
    for steps in counts:
        if steps == STEPS[-1] and min(means, key=means.__getitem__).steps < STEPS[-2]:
            break
        runs = plain_descents(cell, steps, grid, min(screening, cell.seeds))
        means |= {setting: _mean(cell.excess(params)) for setting, params in runs.items()}
    finalists = {
        (one.steps, one.clip, one.step_size) for one in heapq.nsmallest(count, means, key=means.__getitem__)
    }
    excesses: dict[Setting, Floats] = {}
    for steps in STEPS:
        chosen = [(clip, size) for number, clip, size in sorted(finalists) if number == steps]
        if chosen:
            runs = plain_descents(cell, steps, chosen, cell.seeds)
            excesses |= {setting: cell.excess(params) for setting, params in runs.items()}
    best = min(excesses, key=lambda one: _mean(excesses[one]))
    return best, excesses[best]


@dataclass(frozen=True, kw_only=True)
class Steps:
    """A number of steps."""

    steps: int


def best_steps(cell: Cell) -> tuple[Steps, Floats]:
    """The T in hindsight of the rule of before, and its excess, one a seed."""
    excesses = {steps: cell.excess(landed(cell, steps=steps)) for steps in HINDSIGHT_STEPS}
    best = min(excesses, key=lambda one: _mean(excesses[one]))
    return Steps(steps=best), excesses[best]


@dataclass(frozen=True, kw_only=True)
class RidgeFactor:
    """Strength of the ridge over the one that the library would choose."""

    factor: float


def best_perturbed_minimiser(cell: Cell) -> tuple[RidgeFactor, Floats]:
    """Objective perturbation with the best of several ridges in hindsight, and its excess, one a seed."""
    instance, public = cell.instance, cell.instance.public
    usual = ObjectivePerturbation().configure(instance)
    solvers: dict[float, ObjectivePerturbation] = {}
    for factor in RIDGE_FACTORS:
        try:
            solvers[factor] = ObjectivePerturbation(ridge_total=factor * usual.ridge_total).configure(
                instance
            )
        except ValueError:  # so small a ridge leaves nothing of the budget
            continue
    generator = cell.generator("objective perturbation")
    tilts, outputs = generator.standard_normal((2, cell.seeds, cell.d))
    queries = [solver.query(instance.problem) for solver in solvers.values()]
    multipliers = [solver.noise_multiplier for solver in solvers.values()]
    noises = [z * one.sensitivity(public) / cell.n for z, one in zip(multipliers, queries, strict=True)]
    ridges = np.stack([np.maximum(cell.ridge, solver.ridge_total) for solver in solvers.values()])
    params = minimised(
        cell,
        tilts=np.concatenate([noise * tilts for noise in noises]),
        ridges=np.repeat(ridges, cell.seeds, axis=0),
        clip=usual.clip,
    )
    excesses: dict[float, Floats] = {}
    for k, (factor, solver) in enumerate(solvers.items()):
        mechanism = queries[k].mechanism(multipliers[k], public, output_share=solver.output_share)
        found = params[k * cell.seeds : (k + 1) * cell.seeds] + mechanism.output_stddev * outputs
        excesses[factor] = cell.excess(found)
    best = min(excesses, key=lambda one: _mean(excesses[one]))
    return RidgeFactor(factor=best), excesses[best]


def minimised(cell: Cell, *, tilts: Floats, ridges: Floats, clip: float) -> Floats:
    """Minimisers of mean Huberised loss + ridge + <tilt, w>, by accelerated steps with restarts.

    Steps are taken in the metric of the exact second moment times the largest curvature of the loss, plus the ridge,
    which no Hessian exceeds.

    Args:
        cell: the cell.
        tilts: linear terms, (runs, d).
        ridges: strengths, (runs, d).
        clip: of the gradients, which makes the loss Huberised.
    Returns:
        (runs, d).
    """
    spectrum, axes = np.linalg.eigh(cell.exact_moment)
    least = np.min(ridges, axis=1, keepdims=True)
    metric = cell.loss.curvature * np.maximum(spectrum, 0.0)[None, :] + np.max(ridges, axis=1, keepdims=True)
    params = at = np.zeros_like(tilts)
    pace = np.ones((len(tilts), 1))
    for _ in range(ROUNDS):
        gradient = cell.gradients(None, at, clip) + ridges * at + tilts
        rotated = gradient @ axes
        if np.max(np.sum(gradient**2, axis=1, keepdims=True) / (2.0 * least)) < RESIDUAL:
            break
        moved = at - (rotated / metric) @ axes.T
        forward = np.sum(gradient * (moved - params), axis=1, keepdims=True) <= 0.0
        ahead = np.where(forward, 0.5 * (1.0 + np.sqrt(1.0 + 4.0 * pace**2)), 1.0)
        at = moved + np.where(forward, (pace - 1.0) / ahead, 0.0) * (moved - params)
        params, pace = moved, ahead
    return params


ORACLES: dict[str, Callable[[Cell], tuple[Any, Floats]]] = {
    "dp-gd": best_plain_descent,
    "objective perturbation": best_perturbed_minimiser,
    "best T": best_steps,
}


def asked_of(cell: Cell, known: Collection[str]) -> Iterator[str]:
    """The oracles that a cell has not and can have: objective perturbation is for one output and bounded curvature."""
    for name in ORACLES:
        refused = name == "objective perturbation" and not (
            cell.outputs == 1 and math.isfinite(cell.loss.curvature)
        )
        if name not in known and not refused:
            yield name


def _scales(cell: Cell) -> tuple[float, float]:
    """The steepest slope worth keeping and the curvature, of rows of length 1, as the library's rule takes them."""
    constants = loss_constants(cell.instance)
    return constants.slope, constants.curvature


def _mean(excess: Floats) -> float:
    return float(np.mean(np.where(np.isfinite(excess), excess, np.inf)))
