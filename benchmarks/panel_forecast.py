"""What plans say of a result, fitted on one half of the panel and held against the other.

    python -m benchmarks.panel_forecast measure [--half choose] [--seeds 2]
    python -m benchmarks.panel_forecast fit                  # the constants of privopt/solvers/whitening.py
    python -m benchmarks.panel_forecast check [--half judge] # how well what is said holds

`measure` fits every problem by the library's default and notes what the plan predicted, and what is true: the excess
of the mean training loss, and that of the constant model. The cells stand in benchmarks/results/panel-forecast.jsonl.
Users and losses that are not solved by a whitened descent are left out. What reports say of a result is held to account
by `benchmarks.improvement_calibration`.
"""

import argparse
import json
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize as least

from benchmarks.panel_cells import EPSILONS, Cell, Model
from benchmarks.panel_problems import PROBLEMS, PanelProblem, arrays
from benchmarks.results import RESULTS, Record, append, select
from privopt.planning.plan import IMPROVEMENT_SHARE
from privopt.solve import minimize
from privopt.solvers.whitening import FITTED

BENCHMARK = "panel-forecast"
MODELS: dict[str, tuple[Model, ...]] = {
    "two classes": ("logistic", "hinge"),
    "classes": ("logistic",),
    "numbers": ("squared", "huber", "quantile"),
    "counts": ("poisson",),
}
EVERY_MODEL: tuple[Model, ...] = ("logistic", "squared", "huber", "quantile", "poisson", "hinge")
KNOWN = {loss.__name__: found for loss, found in FITTED.items()}
TOGETHER = (("huber", "quantile"),)  # losses of one kappa: few tables have numbers to predict
COVERED = 0.85  # of the cells of tables left out that the range shall hold
Floats = NDArray[np.float64]


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["measure", "fit", "check"])
    parser.add_argument("--half", choices=["choose", "judge"], default="choose")
    parser.add_argument("--models", nargs="*", default=list(EVERY_MODEL))
    parser.add_argument("--seeds", type=int, default=2)
    options = parser.parse_args(arguments)
    if options.what == "measure":
        for problem, model in asked(options.half, options.models):
            for record in measured(problem, model, options.seeds):
                append(record, RESULTS)
            print(f"{problem.name}, {model}", flush=True)
        return
    path = RESULTS / f"{BENCHMARK}.jsonl"
    latest = {
        (one["data"], one["method"], one["epsilon"]): one
        for one in map(json.loads, path.read_text(encoding="utf-8").splitlines())
    }
    records = select(latest.values(), half=options.half)
    print("\n".join(fit(records) if options.what == "fit" else check(records)))


def asked(half: str, models: Sequence[str]) -> Iterator[tuple[PanelProblem, Model]]:
    """Problems of a half with these losses; the hinge loss on whole tables only."""
    for model in EVERY_MODEL:
        for problem in PROBLEMS:
            fits = (
                model in models
                and model in MODELS[problem.kind]
                and (model != "hinge" or problem.part == 1.0)
            )
            if fits and problem.half == half and not problem.users:
                yield problem, model


def measured(problem: PanelProblem, model: Model, seeds: int) -> Iterator[Record]:
    """A problem's cells at every epsilon."""
    found = arrays(problem)
    options = (("row_bound", "entries"),)  # as every estimator's default is
    for epsilon in EPSILONS:
        cell = Cell(problem, found, epsilon, seeds=seeds, model=model, options=options)
        runs = [
            minimize(
                cell.instance.problem, cell.units, budget=cell.instance.budget, random_state=1000 * seed + 1
            )
            for seed in range(seeds)
        ]
        plan = runs[0].plan
        if plan is None or not plan.solver.startswith("whitened"):
            return
        excess = cell.excess(np.stack([np.asarray(run.params, np.float64) for run in runs]))
        constant = cell.constant_excess
        yield {
            "benchmark": BENCHMARK,
            "data": problem.name,
            "method": model,
            "epsilon": epsilon,
            "half": problem.half,
            "table": problem.table,
            "loss": type(cell.loss).__name__,
            "noise": cell.d / (cell.n * cell.mu),
            "mu": cell.mu,
            "predicted": plan.predicted_excess,
            "range": plan.predicted_range and list(plan.predicted_range),
            "planned_share": plan.indicators[IMPROVEMENT_SHARE].value
            if IMPROVEMENT_SHARE in plan.indicators
            else None,
            "excess": float(np.mean(excess)),
            "constant": float(np.mean(constant)),
            "shares": [float(one) for one in 1.0 - excess / np.mean(constant)],
        }
        del cell


# Fitting --------------------------------------------------------------------------------------------------------------
def fit(records: Sequence[Record]) -> list[str]:
    """The table of constants."""
    grouped = [group for group in TOGETHER if select(records, method=group[0])]
    methods = {one["method"] for one in records} - {name for group in grouped for name in group}
    alone = sorted({one["loss"] for one in records if one["method"] in methods})
    together = [_losses(records, group) for group in grouped]
    return [line for names in (*((loss,) for loss in alone), *together) for line in _fitted(records, names)]


def _fitted(records: Sequence[Record], names: Sequence[str]) -> Iterator[str]:
    """The constants of losses that share kappa, one line each."""
    chosen = [one for one in records if one["loss"] in names and one["excess"] > 0]
    constants, left_out = _fitted_excess(chosen, names), _left_out(chosen, names)
    for place, name in enumerate(names):
        own = [one for one in chosen if one["loss"] == name]
        off = np.asarray([abs(left_out[id(one)] - math.log10(one["excess"])) for one in own], np.float64)
        yield (
            f"    {name}: Fitted(learnable={10 ** constants[1 + place]:.3g}, signal={10 ** constants[0]:.3g}, "
            f"spread={10 ** float(np.quantile(off, COVERED)):.2g}),  # {len(own)} cells of "
            f"{len({one['table'] for one in own})} tables; left out: a factor of {10 ** np.mean(off):.2f}, within 4 in "
            f"{np.mean(off < math.log10(4)):.0%}"
        )


def _losses(records: Sequence[Record], methods: Sequence[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(one["loss"] for name in methods for one in select(records, method=name)))


def _weights(records: Sequence[Record]) -> Floats:
    """Such that tables weigh alike within a loss."""
    sizes = [len(select(records, table=one["table"], loss=one["loss"])) for one in records]
    return 1.0 / np.asarray(sizes, np.float64)


def _predictions(records: Sequence[Record], names: Sequence[str]) -> Callable[[Floats], Floats]:
    """log10 of C x / (1 + x) for constants (log10 kappa, log10 C of each loss)."""
    noise = np.asarray([one["noise"] for one in records])
    place = np.asarray([names.index(one["loss"]) for one in records])
    return lambda constants: constants[1 + place] + np.log10(noise / (10.0 ** constants[0] + noise))


def _fitted_excess(records: Sequence[Record], names: Sequence[str]) -> Floats:
    """The constants with the least weighted absolute error of the logarithm."""
    predicted, weights = _predictions(records, names), _weights(records)
    actual = np.log10([one["excess"] for one in records])

    def error(constants: Floats) -> float:
        return float(np.sum(weights * np.abs(predicted(constants) - actual)) + 1e-4 * np.sum(constants**2))

    starts = [np.asarray([signal, *[-1.0] * len(names)]) for signal in (-1.0, -0.5, 0.0)]
    solved = [least(error, start, method="Nelder-Mead", options={"maxiter": 4000}) for start in starts]
    return np.asarray(min(solved, key=lambda one: one.fun).x)


def _left_out(records: Sequence[Record], names: Sequence[str]) -> dict[int, float]:
    """For each record, the prediction fitted without its table (with it, where there is no other)."""
    found: dict[int, float] = {}
    for table in {one["table"] for one in records}:
        own = select(records, table=table)
        rest = [one for one in records if one["table"] != table]
        missing = set(names) - {one["loss"] for one in rest}
        constants = _fitted_excess(records if missing else rest, names)
        found |= zip(map(id, own), _predictions(own, names)(constants).tolist(), strict=True)
    return found


# Checking -------------------------------------------------------------------------------------------------------------
def check(records: Sequence[Record]) -> list[str]:
    """How well the plan's excess, its range and its share hold, by the constants of now."""
    head = "| loss | cells | excess: factor | within 2 | within 4 | in the range | planned share off by |"
    names = (*sorted({one["loss"] for one in records}), "all")
    rows = [_checked(name, [one for one in records if name in ("all", one["loss"])]) for name in names]
    return [head, "| --- " + "| ---: " * 6 + "|", *rows]


def _checked(name: str, records: Sequence[Record]) -> str:
    cells = [one for one in records if one["excess"] > 0 and one["loss"] in KNOWN]
    spreads = np.asarray([KNOWN[one["loss"]].spread for one in cells])
    noises = [one["noise"] / KNOWN[one["loss"]].signal for one in cells]
    predicted = [KNOWN[one["loss"]].excess(noise) for one, noise in zip(cells, noises, strict=True)]
    actual = np.asarray([one["excess"] for one in cells])
    distances = np.abs(np.log10(predicted / actual))
    held = distances <= np.log10(spreads)
    planned = [
        abs(1.0 / (1.0 + noise) - _within(np.mean(one["shares"])))
        for one, noise in zip(cells, noises, strict=True)
        if KNOWN[one["loss"]].shares
    ]
    return (
        f"| {name} | {len(cells)} | {10 ** np.mean(distances):.2f} | {np.mean(distances < math.log10(2)):.0%} "
        f"| {np.mean(distances < math.log10(4)):.0%} | {np.mean(held):.0%} | {_mean(planned):.2f} |"
    )


def _within(share: float) -> float:
    """A share between none and all."""
    return min(max(float(share), 0.0), 1.0)


def _mean(values: Any) -> float:
    return float(np.mean(values)) if len(values) else math.nan


if __name__ == "__main__":
    main()
