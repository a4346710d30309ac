"""What the division of rows by their lengths is worth: `python -m benchmarks.panel_rows`, on the half to choose on.

Every variant is fitted as the library fits and is judged by the log loss of test rows, above the least that a model
without privacy reaches with rows as they are or divided, its ridge chosen by the test rows themselves. A table's
number is the geometric mean over its problems and budgets of a variant's excess over today's; tables weigh alike.

The same measure says what a smaller ridge, the end by a Newton step and the present default, which adds scale and shift
to both, are worth on rows that the fit has not seen: the panel's own measure, the training loss without its penalty,
always likes a smaller ridge.
"""

import argparse
import json
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import log_softmax
from scipy.stats import rankdata

from benchmarks.panel_calibrated import calibrated
from benchmarks.panel_cells import EPSILONS, Cell
from benchmarks.panel_halfway import halfway
from benchmarks.panel_problems import PROBLEMS, PanelArrays, PanelProblem, arrays
from benchmarks.panel_rules import landed
from benchmarks.results import RESULTS, SCRATCH, Record, append, read, select
from privopt.planning.averaging import mixing_ratios
from privopt.planning.descent_theory import descent_setting
from privopt.planning.row_length import length_shown
from privopt.planning.whitening import SHARE

Floats = NDArray[np.float64]
NAME = "panel-rows"
OWN, SHOWN, PUBLIC, COMMON = "own length", "length shown", "public length", "common length"
PLAIN_OWN, PLAIN_RELEASED = "plain, own length", "plain, released length"
HALFWAY, SMALL_RIDGE = "halfway, own length", "smaller ridge, own length"
CALIBRATED = "calibrated, own length"
PAIRS = (
    (SHOWN, OWN),
    (PUBLIC, OWN),
    (COMMON, OWN),
    (PLAIN_RELEASED, PLAIN_OWN),
    (HALFWAY, OWN),
    (SMALL_RIDGE, OWN),
    (CALIBRATED, OWN),
)
LENGTH_SHARE = 0.01  # of mu^2, for the mean logarithm of the lengths
LEAST_EXCESS = 2e-5  # an excess below it is that
RIDGES = (1e-2, 1e-3, 1e-4, 1e-5, 1e-6)


def with_constant(features: Any) -> NDArray[np.float32]:
    """Rows as the library scales them for bounds (-1, 1), the constant last."""
    inside = np.clip(features, -1.0, 1.0)
    return np.concatenate([inside, np.ones((len(inside), 1))], axis=1).astype(np.float32)


def lengths(rows: NDArray[np.float32]) -> NDArray[np.float32]:
    """Of rows (n, d), (n, 1)."""
    return np.linalg.norm(rows, axis=1, keepdims=True)


def log_losses(scores: Floats, targets: Floats) -> Floats:
    """Mean log loss of scores (n, seeds, K), (seeds,)."""
    if scores.shape[-1] == 1:
        return np.mean(np.logaddexp(0.0, np.where(targets[:, None] == 1, -1.0, 1.0) * scores[..., 0]), axis=0)
    places = targets.astype(int)[:, None, None]
    return -np.mean(np.take_along_axis(log_softmax(scores, axis=2), places, axis=2)[..., 0], axis=0)


def area_under_curve(scores: Floats, targets: Floats) -> float:
    """The chance that a record of class 1 scores above one of class 0; NaN where a class is missing."""
    ones = int(np.sum(targets == 1))
    zeros = len(targets) - ones
    if not ones * zeros:
        return math.nan
    above = float(np.sum(rankdata(scores)[targets == 1])) - ones * (ones + 1) / 2
    return above / (ones * zeros)


def released_length(cell: Cell, rows: NDArray[np.float32]) -> Floats:
    """The typical length by a release of the mean of log lengths, each within [0, log sqrt(d)], (seeds,).

    Shrunk towards the middle of that interval, of which a quarter is the prior's standard deviation.
    """
    longest = 0.5 * math.log(cell.d)
    noise = longest / (cell.n * cell.mu * math.sqrt(LENGTH_SHARE))
    released = float(np.mean(np.log(lengths(rows)))) + noise * cell.generator("lengths").standard_normal(
        cell.seeds
    )
    weight = (longest / 4.0) ** 2 / ((longest / 4.0) ** 2 + noise**2)
    return np.exp(np.clip(weight * released + (1.0 - weight) * longest / 2.0, 0.0, longest))


def shown_length(cell: Cell) -> Floats:
    """The typical length that the second moment of the fit shows, (seeds,)."""
    public = cell.instance.public
    noise = math.sqrt(public.relation.factor) * public.row_bound**2 / (cell.n * cell.mu * math.sqrt(SHARE))
    corners = cell.moment(SHARE)[:, -1, -1]
    return np.asarray([length_shown(float(corner), noise, columns=cell.d - 1) for corner in corners])


def plain(cell: Cell) -> Floats:
    """The library's gradient descent with its defaults, in the columns as they are."""
    setting = descent_setting(cell.instance)
    params = at = average = cell.start()
    generator = cell.generator("plain descent")
    noise = float(cell.noise_of_one(setting.clip, 1.0)[0]) * math.sqrt(setting.steps)
    ridge = cell.ridge[:, None] if params.ndim == 3 else cell.ridge
    for ratio in mixing_ratios("weighted", setting.steps):
        gradient = cell.gradients(None, at, setting.clip) + noise * generator.standard_normal(params.shape)
        moved = at - setting.step_size * (gradient + ridge * at)
        at, params = moved + setting.momentum * (moved - params), moved
        average = average + ratio * (params - average)
    return average


def variants(cell: Cell) -> dict[str, Floats]:
    """Scores of the test rows, (rows, seeds, K), by how the model treats lengths."""
    train, test = with_constant(cell.arrays.features), with_constant(cell.arrays.test_features)

    def scored(params: Floats) -> Floats:
        return _scores(cell, test, params)

    def over(scores: Floats, length: Floats) -> Floats:
        return scores / length[None, :, None]

    own, released = lengths(test)[:, :, None], released_length(cell, train)
    whitened = scored(landed(cell))
    found = {
        OWN: whitened / own,
        SHOWN: over(whitened, shown_length(cell)),
        PUBLIC: over(whitened, np.full(cell.seeds, cell.d**0.25)),
    }
    descended = scored(plain(cell))
    found |= {PLAIN_OWN: descended / own, PLAIN_RELEASED: over(descended, released)}
    common = float(np.exp(np.mean(np.log(released))))  # one for all seeds: it differs little between them
    shortened = train / common
    again = Cell(cell.problem, cell.arrays, cell.epsilon, cell.seeds)
    again.__dict__["rows"] = jnp.asarray(shortened / np.maximum(lengths(shortened), 1.0))
    found[COMMON] = over(scored(landed(again)), np.full(cell.seeds, common))
    return found


def ends(cell: Cell) -> dict[str, Floats]:
    """Scores of the test rows by `panel_halfway` and by its ridge alone; nothing for more than two classes."""
    if cell.outputs > 1:
        return {}
    return _on_test_rows(cell, {HALFWAY: halfway(cell), SMALL_RIDGE: halfway(cell, newton=0.0)})


def rescaled_ends(cell: Cell) -> dict[str, Floats]:
    """Scores of the test rows by the present default of two classes; nothing for more."""
    return {} if cell.outputs > 1 else _on_test_rows(cell, {CALIBRATED: calibrated(cell)})


def _on_test_rows(cell: Cell, found: dict[str, Floats]) -> dict[str, Floats]:
    test = with_constant(cell.arrays.test_features)
    return {name: _scores(cell, test / lengths(test), params) for name, params in found.items()}


def _scores(cell: Cell, rows: NDArray[np.float32], params: Floats) -> Floats:
    return np.einsum("nd,sdk->nsk", rows, params.reshape(cell.seeds, cell.d, -1), optimize=True)


def least_test_loss(problem: PanelProblem, data: PanelArrays) -> float:
    """Of models without privacy, over both kinds of rows and several ridges; kept on disk."""
    path = SCRATCH / f"panel-rows-least-{problem.name.replace(' ', '-').replace('/', '-')}.json"
    if not path.exists():
        found = [_least(data, divided=divided) for divided in (False, True)]
        path.write_text(json.dumps(min(found)), encoding="utf-8")
    return float(json.loads(path.read_text(encoding="utf-8")))


def _least(data: PanelArrays, *, divided: bool) -> float:
    train, test = with_constant(data.features), with_constant(data.test_features)
    square = float(np.mean(lengths(train) ** 2))
    if divided:
        train, test, square = train / lengths(train), test / lengths(test), 1.0
    outputs = data.classes if data.classes > 2 else 1
    rows, codes = jnp.asarray(train), jnp.asarray(data.targets.astype(int))

    @jax.jit
    def objective(flat: Any, ridge: float) -> Any:
        scores = rows @ flat.reshape(-1, outputs)
        if outputs == 1:
            losses = jnp.logaddexp(0.0, jnp.where(codes == 1, -1.0, 1.0) * scores[:, 0])
        else:
            losses = -jnp.take_along_axis(jax.nn.log_softmax(scores), codes[:, None], 1)[:, 0]
        return jnp.mean(losses) + 0.5 * ridge * jnp.sum(flat * flat)

    both = jax.jit(jax.value_and_grad(objective))
    flat, least = np.zeros(train.shape[1] * outputs), math.inf
    for ridge in RIDGES:

        def at(point: Floats, ridge: float = ridge) -> tuple[float, Floats]:
            value, slope = both(jnp.asarray(point, jnp.float32), ridge * square)
            return float(value), np.asarray(slope, np.float64)

        flat = minimize(at, flat, jac=True, method="L-BFGS-B", options={"maxiter": 300, "maxcor": 20}).x
        scores = (test @ flat.reshape(-1, outputs))[:, None, :]
        least = min(least, float(log_losses(scores, data.test_targets)[0]))
    return least


GROUPS: dict[str, Callable[[Cell], dict[str, Floats]]] = {  # by one of each
    COMMON: variants,
    HALFWAY: ends,
    CALIBRATED: rescaled_ends,
}


def measure(problem: PanelProblem, seeds: int) -> None:
    """All variants of a problem at every budget that was not measured yet, appended to the results."""
    done = {(one["epsilon"], one["method"]) for one in _measured() if one["data"] == problem.name}
    groups = [name for name in GROUPS if name == COMMON or problem.kind == "two classes"]
    missing = [(epsilon, name) for epsilon in EPSILONS for name in groups if (epsilon, name) not in done]
    if not missing:
        return
    data = arrays(problem)
    least = least_test_loss(problem, data)
    for epsilon, group in missing:
        cell = Cell(problem, data, epsilon, seeds)
        for variant, scores in GROUPS[group](cell).items():
            append(_record(cell, variant, scores, least), RESULTS)


def _record(cell: Cell, variant: str, scores: Floats, least: float) -> Record:
    targets = cell.arrays.test_targets
    areas = [area_under_curve(scores[:, k, 0], targets) for k in range(cell.seeds)]
    return {
        "benchmark": NAME,
        "data": cell.problem.name,
        "method": variant,
        "epsilon": cell.epsilon,
        "table": cell.problem.table,
        "seeds": cell.seeds,
        "loss": float(np.mean(log_losses(scores, targets))),
        "least": least,
        "area": None if cell.outputs > 1 or math.isnan(areas[0]) else float(np.mean(areas)),
    }


def by_table(variant: str, base: str) -> dict[str, tuple[float, float]]:
    """Of each table the mean logarithm of the ratio of excesses, and the mean gain of the area under the curve."""
    cells = {(one["data"], one["epsilon"], one["method"]): one for one in _measured()}
    ratios: dict[str, list[float]] = {}
    areas: dict[str, list[float]] = {}
    for (data, epsilon, method), one in cells.items():
        other = cells.get((data, epsilon, base))
        if method != variant or other is None:
            continue
        excess, usual = (max(each["loss"] - each["least"], LEAST_EXCESS) for each in (one, other))
        ratios.setdefault(one["table"], []).append(math.log(excess / usual))
        if one["area"] is not None:
            areas.setdefault(one["table"], []).append(one["area"] - other["area"])
    return {
        table: (float(np.mean(found)), float(np.mean(areas.get(table, [0.0]))))
        for table, found in ratios.items()
    }


def summary() -> str:
    """The table of the docs: a row a variant that was measured, the mean with its interval, then each table."""
    tables = sorted({problem.table for problem in _problems()})
    lines = [f"| variant | mean | {' | '.join(tables)} | area |", "| --- " * (len(tables) + 3) + "|"]
    for variant, base in PAIRS:
        found = by_table(variant, base)
        if not found:
            continue
        logarithms = np.asarray([ratio for ratio, _ in found.values()])
        draws = np.random.default_rng(0).integers(0, len(found), (2_000, len(found)))
        low, high = np.exp(np.quantile(logarithms[draws].mean(axis=1), (0.025, 0.975)))
        each = " | ".join(f"{math.exp(found[table][0]):.2f}" if table in found else "" for table in tables)
        area = float(np.mean([gain for _, gain in found.values()]))
        mean = f"{math.exp(float(np.mean(logarithms))):.2f} ({low:.2f} to {high:.2f})"
        lines.append(f"| {variant} over {base} | {mean} | {each} | {area:+.4f} |")
    return "\n".join(lines)


def _measured() -> list[Record]:
    return select(read(RESULTS), benchmark=NAME)


def _problems() -> Sequence[PanelProblem]:
    return [one for one in PROBLEMS if one.half == "choose" and one.kind in ("two classes", "classes")]


def main() -> None:
    """Measure what is missing, then print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--only", default="", help="problems whose names contain this")
    parser.add_argument("--print", action="store_true", help="only print what was measured")
    options = parser.parse_args()
    if not options.print:
        for problem in (one for one in _problems() if options.only in one.name):
            measure(problem, options.seeds)
            print(problem.name, flush=True)
    print(summary())


if __name__ == "__main__":
    main()
