"""Counts in the cells of the panel: the default of before, the library's rule for them, and more problems to choose on.

Share explained is what users are told: 1 - (excess of the model) / (excess of the best constant), both above the best
model without noise.
"""

import math

import numpy as np
from numpy.typing import NDArray

from benchmarks.panel_cells import Cell
from benchmarks.panel_problems import PanelArrays, PanelProblem, Target
from benchmarks.panel_rules import outward
from privopt.planning import counts
from privopt.planning.averaging import mixing_ratios
from privopt.planning.counts import CountsRule
from privopt.planning.task import Instance
from privopt.planning.whitening import SHARE
from privopt.problems.magnitudes import interval_ends
from privopt.solvers import curvature_probe
from privopt.solvers.curvature_probe import CurvatureProbe
from privopt.solvers.gradient_descent import GradientDescent

Floats = NDArray[np.float64]


def probed(cell: Cell) -> Floats:
    """The default for counts of before: one released eigenvalue, then descent with the steps that it allows."""
    public, problem = cell.instance.public, cell.instance.problem
    solver = CurvatureProbe(inner=GradientDescent()).configure(cell.instance)
    rest = Instance(problem, public, solver.rest())
    stddev = solver.noise_multiplier * public.row_bound**2 / public.n
    largest, generator = float(np.linalg.eigvalsh(cell.exact_moment)[-1]), cell.generator("probe")
    found = []
    for _ in range(cell.seeds):
        released = largest + stddev * float(generator.standard_normal())
        inner = solver.configured_inner(
            problem, public, curvature_probe.cautious_curvature(released, stddev, rest)
        )
        assert isinstance(inner, GradientDescent)
        noise = inner.noise_multiplier * public.relation.factor * inner.clip / public.n
        params = at = average = np.zeros((1, cell.d))
        for ratio in mixing_ratios(inner.returns or "weighted", inner.steps):  # type: ignore[arg-type]
            gradient = cell.gradients(None, at, inner.clip) + cell.ridge * at
            moved = at - inner.step_size * (gradient + noise * generator.standard_normal(at.shape))
            at = moved + inner.momentum * (moved - params)
            params, average = moved, average + ratio * (moved - average)
        found.append(average[0])
    return np.stack(found)


def magnitudes(cell: Cell, share: float) -> tuple[Floats, float]:
    """The magnitudes of the counts released for a share of mu^2, (seeds, k), and the noise of an entry."""
    ends = interval_ends(cell.arrays.most)
    sizes = np.clip(cell.arrays.targets, 0.0, cell.arrays.most)
    places = np.searchsorted(ends[:-1], sizes, side="left")
    exact = np.bincount(places, weights=sizes / ends[places], minlength=len(ends)) / cell.n
    stddev = math.sqrt(cell.instance.public.relation.factor) / (cell.n * cell.mu * math.sqrt(share))
    drawn = cell.generator("magnitudes").standard_normal((cell.seeds, len(ends)))
    return exact + stddev * drawn, stddev


def whitened_counts(cell: Cell) -> Floats:
    """The library's default for counts, see `privopt.planning.counts`."""
    beside = counts.level_share(cell.instance, SHARE)
    rule, (released, stddev) = CountsRule.of(cell.instance, SHARE, beside), magnitudes(cell, beside)
    levels = [counts.level(one, stddev, cell.arrays.most) for one in released]
    starts = np.zeros((cell.seeds, cell.d))
    starts[:, rule.column] = [math.log(one.mean) for one in levels]
    found = [
        rule.coordinates(moment, level, start)
        for moment, level, start in zip(cell.moment(SHARE), levels, starts, strict=True)
    ]
    mapped = cell.mapped("counts", lambda: np.stack([np.asarray(one.matrix) for one in found]))
    begun = np.stack([np.linalg.solve(B, w) for B, w in zip(mapped.matrix, starts, strict=True)])
    clips, pulls = (np.asarray([getattr(one, name) for one in found]) for name in ("clip", "pull"))
    sizes = np.asarray([1.0 / (one.smoothness + one.ridge_smoothness) for one in found])[:, None]
    steps, generator = rule.whitening.steps(), cell.generator("steps")
    noise = cell.noise_of_one(clips, 1.0 - SHARE - beside)[:, None] * math.sqrt(steps)
    params = at = average = begun
    for ratio in mixing_ratios(rule.whitening.constants.returns, steps):
        gradient = cell.gradients(mapped, at, clips) + noise * generator.standard_normal(at.shape)
        gradient = gradient + cell.ridge_gradient(mapped, at) + pulls[:, None] * (at - begun)
        moved = at - sizes * gradient
        at = moved + found[0].momentum * (moved - params)
        params, average = moved, average + ratio * (moved - average)
    return outward(mapped, average)


def constant_level(cell: Cell) -> float:
    """Excess of the best constant rate: what there is to explain."""
    rate = math.log(max(float(np.mean(cell.arrays.targets)), 1e-12))
    return float(cell.mean_losses(np.full((cell.n, 1, 1), rate))[0]) - cell.best


def made_up() -> tuple[tuple[PanelProblem, PanelArrays], ...]:
    """Counts with known rates: rare, large, weakly explained, heavy-tailed, few and many rows, bounds far above."""
    return (
        _made("rare", 8_000, 10, mean=0.05, most=5, spread=0.7, over=0.0, seed=1),
        _made("rare, one-hot", 16_000, 40, mean=0.15, most=20, spread=0.8, over=1.0, seed=2, one_hot=True),
        _made("middling", 3_000, 8, mean=3.0, most=30, spread=0.5, over=0.0, seed=3),
        _made("overdispersed", 12_000, 20, mean=3.0, most=100, spread=0.6, over=2.0, seed=4),
        _made("large", 6_000, 15, mean=40.0, most=400, spread=0.6, over=0.3, seed=5),
        _made("weak", 5_000, 12, mean=2.0, most=50, spread=0.15, over=0.5, seed=6),
        _made("heavy tail", 15_000, 30, mean=1.0, most=100, spread=1.0, over=4.0, seed=7, one_hot=True),
        _made("many rows", 20_000, 12, mean=5.0, most=60, spread=0.8, over=0.2, seed=8),
        _made("few rows", 1_000, 6, mean=2.0, most=20, spread=0.6, over=0.2, seed=9),
    )


def _made(
    name: str,
    n: int,
    d: int,
    *,
    mean: float,
    most: float,
    spread: float,
    over: float,
    seed: int,
    one_hot: bool = False,
) -> tuple[PanelProblem, PanelArrays]:
    """Rates exp(z), z of standard deviation `spread`; `over` is the variance of a gamma factor on each."""
    generator = np.random.default_rng(seed)
    features = np.zeros((n, d)) if one_hot else generator.uniform(-1.0, 1.0, (n, d))
    for first in range(0, d, 8) if one_hot else ():
        level = generator.choice(8, n, p=generator.dirichlet(np.full(8, 0.6)))
        features[np.arange(n), first + level] = 1.0
    scores = features @ generator.standard_normal(d)
    rates = np.exp((scores - scores.mean()) / scores.std() * spread)
    rates *= mean / rates.mean()
    if over:
        rates = rates * generator.gamma(1.0 / over, over, n)
    targets = np.minimum(generator.poisson(rates), most).astype(np.float64)
    rows = features.astype(np.float32)
    problem = PanelProblem(
        name=f"made-up: {name}", table="made-up", kind="counts", target=Target(column=name)
    )
    none = {"test_features": rows[:1], "test_targets": targets[:1]}
    return problem, PanelArrays(features=rows, targets=targets, classes=0, most=most, **none)
