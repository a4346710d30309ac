"""The experiment of Wang, Ye, Xu 2017, repaired: the optimality gap of every method against its passes over the data.

Covertype, 200,000 rows of length 1 (54 features and a constant), ridge 0.01, replace-one, delta 1e-3, epsilon 0.2, 0.5
and 1. Every point is a run of its own, its noise calibrated to exactly its releases; the paper's Appendix A instead
reads the gap along one run, at noise that is 16 to 179 times too small.
"""

import math
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.encoded import encode, open_encoded
from benchmarks.optimum import mean_loss, minimised, unit_rows
from benchmarks.results import Record, machine, select
from privopt.data.units import Units
from privopt.errors import NotPriceable
from privopt.ledger.amounts import Budget
from privopt.papers.newton import DoubleNoiseNewton
from privopt.papers.output_perturbation import OutputPerturbation
from privopt.problems import losses
from privopt.problems.constraints import L2Ball, Unconstrained
from privopt.problems.problem import Problem
from privopt.problems.regularisers import Ridge
from privopt.solve import minimize
from privopt.solvers.accelerated_mirror_descent import AcceleratedMirrorDescent
from privopt.solvers.base import Solver
from privopt.solvers.gradient_descent import GradientDescent
from privopt.solvers.objective_perturbation import ObjectivePerturbation
from privopt.solvers.stochastic_gradient_descent import StochasticGradientDescent
from privopt.solvers.svrg import SVRG
from privopt.solvers.whitening import Whitening

BASELINE = "gradient descent as in the paper"
EPSILONS = (0.2, 0.5, 1.0)
DELTA, RIDGE, ROWS = 1e-3, 0.01, 200_000
SMOOTHNESS = 0.25 + RIDGE
RADIUS = 20.0
PICTURE = Path(__file__).resolve().parent.parent / "docs" / "figures" / "gap-against-passes.svg"


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One setting of one method."""

    method: str
    solver: Solver
    ball: bool = False


def entries(*, quick: bool) -> Iterator[Entry]:
    """Everything that is compared."""
    for steps in (50, 1500) if not quick else (50,):
        plain = GradientDescent(
            steps=steps, clip=1.0, step_size=1.0 / SMOOTHNESS, momentum=0.0, returns="last"
        )
        yield Entry(method=BASELINE, solver=plain)
    for steps in (10, 20, 40, 80, 160) if not quick else (10, 40):
        yield Entry(
            method="gradient descent, momentum and tail mean",
            solver=GradientDescent(
                steps=steps, clip=1.0, step_size=1.0 / SMOOTHNESS, momentum=_momentum(steps), returns="tail"
            ),
        )
    yield Entry(method="gradient descent, default", solver=GradientDescent())
    for steps in (300, 1000) if not quick else (300,):
        yield Entry(
            method="sampled gradient descent",
            solver=StochasticGradientDescent(steps=steps, rate=0.01, clip=1.0),
        )
    yield Entry(method="SVRG, one snapshot an epoch", solver=SVRG())
    yield Entry(method="SVRG++, one snapshot an epoch", solver=SVRG.plus_plus())
    yield Entry(method="SVRG, the paper's query", solver=SVRG(variant="paper"))
    yield Entry(
        method=f"accelerated mirror descent, l2 ball of radius {RADIUS:g}",
        solver=AcceleratedMirrorDescent(),
        ball=True,
    )
    yield Entry(method="output perturbation", solver=OutputPerturbation())
    yield Entry(method="objective perturbation", solver=ObjectivePerturbation())
    yield Entry(method="Newton with two noises", solver=DoubleNoiseNewton())
    for steps in (5, 10, 20, 40) if not quick else (10,):
        yield Entry(method="whitened gradient descent", solver=Whitening(inner=GradientDescent(steps=steps)))
    yield Entry(method="whitened objective perturbation", solver=Whitening(inner=ObjectivePerturbation()))


def measure(shared: Path, scratch: Path, *, seeds: int, quick: bool) -> Iterator[Record]:
    """One record a method, setting and epsilon."""
    data = open_encoded(encode("covertype", shared, scratch, 20_000 if quick else ROWS))
    rows = np.asarray(unit_rows(data.train), np.float64)
    codes = data.train_targets
    units = Units.from_arrays(rows, 2.0 * codes - 1.0, row_bound=1.0)
    best = float(minimised(rows, codes, 2, RIDGE, maxiter=500, ftol=1e-16, gtol=1e-12).fun)
    for entry in entries(quick=quick):
        problem = Problem(losses.logistic, Ridge(RIDGE), L2Ball(RADIUS) if entry.ball else Unconstrained())
        for epsilon in EPSILONS:
            common = {
                "benchmark": "paper",
                "data": "covertype",
                "n": len(rows),
                "method": entry.method,
                "relation": "replace-one",
                "epsilon": epsilon,
                "delta": DELTA,
                "machine": machine(),
            }
            try:
                gaps, seconds, passes = _runs(problem, units, entry.solver, epsilon, seeds, rows, codes)
            except NotPriceable as refusal:
                yield {**common, "what": "refused", "refused": str(refusal)}
                continue
            yield {
                **common,
                "what": f"{passes:g} passes",
                "passes": passes,
                "gap": statistics.fmean(gaps) - best,
                "gap_sd": statistics.stdev(gaps) if seeds > 1 else None,
                "seconds": seconds,
                "seeds": seeds,
            }


def _runs(
    problem: Problem,
    units: Units,
    solver: Solver,
    epsilon: float,
    seeds: int,
    rows: NDArray[np.float64],
    codes: NDArray[np.int64],
) -> tuple[list[float], float, float]:
    gaps: list[float] = []
    seconds: list[float] = []
    passes = math.nan
    for seed in range(seeds):
        begun = time.perf_counter()
        result = minimize(problem, units, budget=Budget(epsilon, DELTA), solver=solver, random_state=seed)
        seconds.append(time.perf_counter() - begun)
        gaps.append(_objective(rows, codes, np.asarray(result.params)))
        assert result.plan is not None
        passes = result.plan.passes
    return gaps, min(seconds), passes


def _momentum(steps: int) -> float:
    slowness = math.sqrt(max(RIDGE, 16.0 * 0.25 / steps**2) / SMOOTHNESS)
    return max(0.0, (1.0 - slowness) / (1.0 + slowness))


def _objective(rows: NDArray[np.float64], codes: NDArray[np.int64], weights: NDArray[np.float64]) -> float:
    return mean_loss((rows @ weights)[:, None], codes) + 0.5 * RIDGE * float(weights @ weights)


def table_rows(records: Sequence[Record]) -> list[list[str]]:
    """The best setting of every method: its passes and gaps at the three epsilons."""
    found = select(records, benchmark="paper")
    rows: list[list[str]] = []
    for method in dict.fromkeys(one["method"] for one in found):
        settings = dict.fromkeys(one["what"] for one in select(found, method=method))
        for what in settings:
            cells = {one["epsilon"]: one for one in select(found, method=method, what=what)}
            rows.append([method, what, *(_cell(cells.get(epsilon)) for epsilon in EPSILONS)])
    return rows


def _cell(record: Record | None) -> str:
    if record is None:
        return ""
    return "not priced" if "refused" in record else f"{record['gap']:.1e}"


def draw(records: Sequence[Record], place: Path = PICTURE) -> None:
    """The gap against the passes, a panel an epsilon, as an SVG."""
    from matplotlib import colormaps, rc_context
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    found = [one for one in select(records, benchmark="paper") if "gap" in one]
    methods = list(dict.fromkeys(one["method"] for one in found))
    markers = "osD^v<>ph*XP"
    colours = colormaps["tab20"].colors
    with rc_context({"svg.hashsalt": "privopt", "svg.fonttype": "none"}):
        figure = Figure(figsize=(11.0, 4.6), layout="constrained")
        FigureCanvasSVG(figure)
        panels: Any = figure.subplots(1, len(EPSILONS), sharey=True)
        for panel, epsilon in zip(panels, EPSILONS, strict=True):
            for position, method in enumerate(methods):
                points = sorted(
                    (one["passes"], one["gap"]) for one in select(found, method=method, epsilon=epsilon)
                )
                panel.loglog(
                    *zip(*points, strict=True),
                    marker=markers[position % len(markers)],
                    markersize=5,
                    linewidth=1.2,
                    label=method,
                    color=colours[(2 * position) % 20 + (2 * position) // 20],
                )
            panel.set_title(f"epsilon = {epsilon:g}", fontsize=10)
            panel.set_xlabel("passes over the data")
            panel.grid(alpha=0.3)
        panels[0].set_ylabel("objective above its optimum")
        figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, fontsize=8)
        place.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(place, metadata={"Date": None})
