"""The loss on test rows of what a user holds in hand: every linear estimator at its defaults.

    python -m benchmarks test_loss [--half choose|judge] [--loss MODEL ...] [--epsilon E ...] [--seeds N] [--quick]

An estimator is fitted on the training rows of a problem of the panel, with random_state 0, 1, ..., and judged by what
it predicts for the test rows: log-loss of `predict_proba`, hinge of `decision_function`, squared, Huber and pinball
error of `predict` (targets scaled to [-1, 1]), mean Poisson deviance of `predict`. Two yardsticks are fitted on those
rows without privacy, by L-BFGS on the same loss: `constant`, and `plain`, a linear model with the better of two ridges.
Excess is test loss less that of `plain`. delta = 1 / n^2, replace-one. The units of the models "by user" are made up:
users of 1 to 7 records each, 2 on average.
"""

import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

from benchmarks.panel_problems import PROBLEMS, Half, PanelArrays, arrays
from benchmarks.results import Record, select
from privopt import (
    HuberRegressor,
    LinearSVC,
    LogisticRegression,
    PoissonRegressor,
    QuantileRegressor,
    Ridge,
    RobustClassifier,
)
from privopt.precision import double_precision

EPSILONS, SEEDS = (0.1, 0.3, 1.0, 3.0, 100.0), 5
QUICK = {"epsilons": (0.3, 3.0), "seeds": 2, "rows": 2_000}
METHOD = "default"
BEFORE = "divided rows"  # the default of version 0.1 before rows were trained as they are
TINY_PENALTY = 1e-7  # so that a minimum exists
ROWS = 10_000  # the most training rows
WIDEST = 500  # columns; wider problems are left out

Floats = NDArray[np.float64]
TWO_CLASSES = (
    "adult: income",
    "adult: income, n/16",
    "adult: income, 1 %",
    "adult: six columns",
    "fars: fatal, n/4",
    "compas: re-arrest",
    "fair: any affair",
    "california: above 180 000, n/4",
    "w8a: page",
    "anes96: vote",
    "covertype: second cover, n/4",
    "german: bad",
    "kdd99: attack, n/4",
    "randhie: any spending, n/4",
    "hiva: active",
    "diabetes: above 140",
    "breast_cancer: benign",
)
NUMBERS = (
    "adult: hours",
    "fars: age",
    "fair: age",
    "california: value",
    "california: value, n/8",
    "anes96: party",
    "covertype: elevation",
    "randhie: spending",
    "randhie: mental health, n/4",
    "diabetes: progression",
)
COUNTS = ("compas: priors", "fair: children", "randhie: visits", "randhie: admissions")
FEW_CLASSES = (
    "adult: income",
    "compas: re-arrest",
    "fair: any affair",
    "california: above 180 000, n/4",
    "w8a: page",
)


@dataclass(frozen=True, kw_only=True)
class Judged:
    """One estimator and how it is judged.

    Attributes:
        make: the estimator of a budget and of the arrays.
        problems: names of the panel's problems it is fitted on.
        loss: of predictions (rows, outputs) and targets, one number a row; what `plain` minimises too.
        convex: a loss whose minimum, scaled by 1, 3 and 10, `plain` is sought from besides zero; where `loss` is not.
        predictions: of a fitted model, in the form that `loss` takes.
        by_user: whether the unit is a (made-up) user.
    """

    make: Callable[[dict[str, Any], PanelArrays], Any]
    problems: Sequence[str]
    loss: Callable[[Any, Any], Any]
    predictions: Callable[[Any, Any], Floats]
    convex: Callable[[Any, Any], Any] | None = None
    by_user: bool = False


def _log_loss(scores: Any, codes: Any) -> Any:
    if scores.shape[1] == 1:
        return jax.nn.softplus((1.0 - 2.0 * codes) * scores[:, 0])
    chosen = jnp.take_along_axis(scores, jnp.asarray(codes, int)[:, None], axis=1)[:, 0]
    return jax.scipy.special.logsumexp(scores, axis=1) - chosen


def _hinge(scores: Any, codes: Any) -> Any:
    return jnp.maximum(0.0, 1.0 - (2.0 * codes - 1.0) * scores[:, 0])


def _squared(scores: Any, targets: Any) -> Any:
    return 0.5 * (scores[:, 0] - targets) ** 2


def _huber(scores: Any, targets: Any) -> Any:
    size = jnp.abs(scores[:, 0] - targets)
    return jnp.where(size <= 0.2, 0.5 * size**2, 0.2 * size - 0.02)


def _pinball(level: float) -> Callable[[Any, Any], Any]:
    def loss(scores: Any, targets: Any) -> Any:
        residual = targets - scores[:, 0]
        return jnp.maximum(level * residual, (level - 1.0) * residual)

    return loss


def _deviance(log_rates: Any, counts: Any) -> Any:
    at = log_rates[:, 0]
    perfect = jnp.where(counts > 0, counts * jnp.log(jnp.maximum(counts, 1e-12)) - counts, 0.0)
    return 2.0 * (perfect - counts * at + jnp.exp(at))


def _probabilities(model: Any, features: Any) -> Floats:
    found = np.log(np.clip(model.predict_proba(features), 1e-15, 1.0))
    return found[:, 1:] - found[:, :1] if found.shape[1] == 2 else found


def _scores(model: Any, features: Any) -> Floats:
    return np.asarray(model.decision_function(features), np.float64)[:, None]


def _values(model: Any, features: Any) -> Floats:
    return np.asarray(model.predict(features), np.float64)[:, None]


def _rates(model: Any, features: Any) -> Floats:
    return np.log(np.maximum(model.predict(features), 1e-12))[:, None]


def _classifier(kind: Callable[..., Any]) -> Callable[[dict[str, Any], PanelArrays], Any]:
    return lambda common, stored: kind(classes=list(range(stored.classes)), **common)


def _regressor(kind: Callable[..., Any], **options: Any) -> Callable[[dict[str, Any], PanelArrays], Any]:
    return lambda common, _: kind(target_bounds=(-1.0, 1.0), **options, **common)


def _counts(common: dict[str, Any], stored: PanelArrays) -> Any:
    return PoissonRegressor(target_bounds=(0.0, stored.most), **common)


_LOGISTIC = {"make": _classifier(LogisticRegression), "loss": _log_loss, "predictions": _probabilities}
_RIDGE = {"make": _regressor(Ridge), "loss": _squared, "predictions": _values}
_POISSON = {"make": _counts, "loss": _deviance, "predictions": _rates}
MODELS: dict[str, Judged] = {
    "logistic": Judged(problems=TWO_CLASSES, **_LOGISTIC),
    "softmax": Judged(problems=("fars: severity", "digits: digit", "covertype: cover"), **_LOGISTIC),
    "hinge": Judged(make=_classifier(LinearSVC), problems=TWO_CLASSES, loss=_hinge, predictions=_scores),
    "ramp": Judged(
        make=_classifier(RobustClassifier),
        problems=FEW_CLASSES,
        loss=lambda scores, codes: jnp.clip(0.5 * (1.0 - (2.0 * codes - 1.0) * scores[:, 0]), 0.0, 1.0),
        predictions=_scores,
        convex=_log_loss,
    ),
    "squared": Judged(problems=NUMBERS, **_RIDGE),
    "huber": Judged(make=_regressor(HuberRegressor), problems=NUMBERS, loss=_huber, predictions=_values),
    "median": Judged(
        make=_regressor(QuantileRegressor), problems=NUMBERS, loss=_pinball(0.5), predictions=_values
    ),
    "quantile .9": Judged(
        make=_regressor(QuantileRegressor, quantile=0.9),
        problems=NUMBERS,
        loss=_pinball(0.9),
        predictions=_values,
    ),
    "poisson": Judged(problems=COUNTS, **_POISSON),
    "logistic, by user": Judged(problems=FEW_CLASSES, by_user=True, **_LOGISTIC),
    "squared, by user": Judged(problems=NUMBERS[:5], by_user=True, **_RIDGE),
    "poisson, by user": Judged(problems=COUNTS, by_user=True, **_POISSON),
}


def measure(
    *,
    half: Half = "choose",
    models: Sequence[str] | None = None,
    epsilons: Sequence[float] | None = None,
    seeds: int | None = None,
    quick: bool = False,
    method: str = METHOD,
) -> Iterator[Record]:
    """One record per model, problem and epsilon.

    Args:
        half: which tables.
        models: keys of `MODELS`; all if None.
        epsilons: of the fits.
        seeds: how many fits per cell.
        quick: few rows, budgets and seeds.
        method: the name under which the results are kept.
    """
    usual = QUICK if quick else {"epsilons": EPSILONS, "seeds": SEEDS, "rows": ROWS}
    known = {problem.name: problem for problem in PROBLEMS}
    for name in models or MODELS:
        judged = MODELS[name]
        for problem in (known[one] for one in judged.problems):
            if problem.half != half:
                continue
            stored = _first_rows(arrays(problem), usual["rows"])
            if stored.features.shape[1] > WIDEST:
                continue
            constant, plain = yardsticks(judged, stored)
            for epsilon in epsilons or usual["epsilons"]:
                begun = time.perf_counter()
                losses = [fitted(judged, stored, epsilon, seed) for seed in range(seeds or usual["seeds"])]
                yield {
                    "benchmark": "test-loss",
                    "half": half,
                    "data": problem.name,
                    "what": name,
                    "method": method,
                    "epsilon": epsilon,
                    "loss": float(np.mean(losses)),
                    "losses": losses,
                    "constant": constant,
                    "plain": plain,
                    "n": len(stored.targets),
                    "d": stored.features.shape[1],
                    "seconds": (time.perf_counter() - begun) / len(losses),
                }


def fitted(judged: Judged, stored: PanelArrays, epsilon: float, seed: int) -> float:
    """The mean test loss of one fit."""
    groups = users(len(stored.targets)) if judged.by_user else None
    units = len(stored.targets) if groups is None else int(groups.max()) + 1
    common = {"epsilon": epsilon, "delta": 1.0 / units**2, "bounds": (-1.0, 1.0), "random_state": seed}
    model = judged.make(common, stored)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        targets = stored.targets.astype(int) if stored.classes else stored.targets
        model.fit(stored.features, targets, **({} if groups is None else {"groups": groups}))
    with double_precision():
        found = jnp.asarray(judged.predictions(model, stored.test_features))
        return float(jnp.mean(judged.loss(found, jnp.asarray(stored.test_targets))))


def users(rows: int) -> NDArray[np.int64]:
    """The user of each row: consecutive rows, 1 to 7 per user."""
    sizes = np.random.default_rng(0).choice([1, 1, 1, 1, 2, 2, 3, 7], size=rows)
    return np.repeat(np.arange(rows), sizes)[:rows]


def yardsticks(judged: Judged, stored: PanelArrays) -> tuple[float, float]:
    """The test losses of the best constant and of the best linear model of the training rows, without privacy."""
    rows, test = _with_ones(stored.features), _with_ones(stored.test_features)
    outputs = stored.classes if stored.classes > 2 else 1

    def tested(columns: slice, ridge: float) -> float:
        """Of the minimum of the training loss in these columns."""
        kept = (rows[:, columns], stored.targets, ridge)
        starts = [np.zeros((kept[0].shape[1], outputs))]
        if judged.convex is not None:
            first, _ = _minimum(judged.convex, *kept, starts[0])
            starts += [scale * first for scale in (1.0, 3.0, 10.0)]
        weights, _ = min(
            (_minimum(judged.loss, *kept, start) for start in starts), key=lambda found: found[1]
        )
        with double_precision():
            scores = jnp.asarray(test[:, columns]) @ jnp.asarray(weights)
            return float(jnp.mean(judged.loss(scores, jnp.asarray(stored.test_targets))))

    plain = min(tested(slice(None), ridge) for ridge in (TINY_PENALTY, 1.0 / len(rows)))
    return tested(slice(-1, None), TINY_PENALTY), plain


def _with_ones(features: NDArray[np.float32]) -> Floats:
    return np.concatenate([features, np.ones((len(features), 1))], axis=1).astype(np.float64)


def _minimum(
    loss: Callable[[Any, Any], Any],
    rows: Floats,
    targets: NDArray[Any],
    ridge: float,
    start: Floats,
) -> tuple[Floats, float]:
    """Where L-BFGS ends from `start`, and the objective there; the last column, the constant, is hardly penalised."""
    penalties = np.full(start.shape, ridge)
    penalties[-1] = TINY_PENALTY
    with double_precision():
        kept = jnp.asarray(rows), jnp.asarray(targets), jnp.asarray(penalties)

        @jax.jit
        def objective(params: Any) -> Any:
            weights = params.reshape(start.shape)
            return jnp.mean(loss(kept[0] @ weights, kept[1])) + 0.5 * jnp.sum(kept[2] * weights**2)

        gradient = jax.jit(jax.value_and_grad(objective))

        def both(params: Floats) -> tuple[float, Floats]:
            value, slope = gradient(jnp.asarray(params))
            return float(value), np.asarray(slope, np.float64)

        options = {"maxiter": 1_000, "maxcor": 40, "ftol": 1e-12, "gtol": 1e-7}
        solved = minimize(both, start.ravel(), jac=True, method="L-BFGS-B", options=options)
        return solved.x.reshape(start.shape), float(solved.fun)


def _first_rows(stored: PanelArrays, most: int) -> PanelArrays:
    """The arrays with at most this many training rows."""
    first = slice(most)
    return PanelArrays(
        features=stored.features[first],
        targets=stored.targets[first],
        test_features=stored.test_features,
        test_targets=stored.test_targets,
        classes=stored.classes,
        most=stored.most,
    )


HEAD = [
    "model",
    "epsilon",
    "problems",
    "excess of the constant's",
    "excess over before",
    "worst",
    "above the constant",
]


def table_rows(records: Sequence[Record], before: str = BEFORE) -> list[list[str]]:
    """Per model and epsilon: geometric means over problems of the excess over the constant's and over that of `before`.

    An excess counts as at least a hundredth of the constant's: below that a model is as good as plain.
    """
    known = select(records, benchmark="test-loss")
    rows: list[list[str]] = []
    for model in MODELS:
        for epsilon in sorted({one["epsilon"] for one in known}):
            old, new = (
                {one["data"]: one for one in select(known, what=model, epsilon=epsilon, method=name)}
                for name in (before, METHOD)
            )
            if not new:
                continue
            shares = [_excess(cell) / _excess(cell, cell["constant"]) for cell in new.values()]
            ratios = {data: _excess(new[data]) / _excess(old[data]) for data in new if data in old}
            worst = max(ratios, key=lambda data: ratios[data], default="")
            row = [model, f"{epsilon:g}", str(len(new)), f"{_mean(shares):.3f}"]
            row += [f"{_mean(ratios.values()):.2f}", f"{ratios[worst]:.2f} ({worst})"] if ratios else ["", ""]
            above = [data for data, cell in new.items() if cell["loss"] > 1.01 * cell["constant"]]
            rows.append([*row, ", ".join(above)])
    return rows


def _mean(ratios: Iterable[float]) -> float:
    return float(np.exp(np.mean(np.log(list(ratios)))))


def _excess(cell: Record, loss: float | None = None) -> float:
    least = 1e-2 * max(cell["constant"] - cell["plain"], 1e-2 * cell["plain"])
    return max((cell["loss"] if loss is None else loss) - cell["plain"], least)
