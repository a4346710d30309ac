"""From epsilon 100 on a convex model predicts as well as the minimum of its objective, found by other means.

Two classes and numbers are held against scikit-learn as well in `test_budget_laws`, counts in `test_larger_budgets`.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.special import expit, softmax
from tests.estimators.test_budget_laws import DELTA, LAWS, Table, group_of, table
from tests.support.turns import but_later

from privopt.precision import double_precision
from privopt.problems import losses
from privopt.problems.losses import GLMLoss, Quantile

ALPHA, SEEDS, EPSILONS = 1e-4, 3, (100.0, 1e3, 1e5, math.inf)
RIDGED: dict[str, GLMLoss] = {
    "logistic": losses.logistic,
    "three classes": losses.softmax(3),
    "support vectors": losses.smoothed_hinge(0.5),
    "ridge": losses.squared,
    "huber": losses.huber(0.2),
    "median": losses.quantile(0.5, 0.1),
    "upper decile": losses.quantile(0.9, 0.1),
    "worst group": losses.logistic,
}
FREE: dict[str, GLMLoss] = {"least squares": losses.squared, "own loss": losses.logistic}
IN_A_BALL = {"sparse logistic": (losses.logistic, 5.0), "lasso": (losses.squared, 2.0)}


@dataclass(frozen=True)
class Best:
    """The model of these parameters, (columns and the constant, outputs), as the judges of the laws take it."""

    params: np.ndarray

    def scores(self, features: np.ndarray) -> np.ndarray:
        return features @ self.params[:-1] + self.params[-1]

    def predict(self, features: np.ndarray) -> np.ndarray:
        return self.scores(features)[:, 0]

    decision_function = predict

    def predict_proba(self, features: np.ndarray) -> np.ndarray:
        found = self.scores(features)
        if found.shape[1] > 1:
            return softmax(found, axis=1)
        return np.column_stack([expit(-found), expit(found)])


def mean_loss(loss: GLMLoss, records: Table, groups: int = 1) -> Callable[[jax.Array], jax.Array]:
    """Of the records of each group, by parameters (columns and the constant, outputs)."""
    rows = jnp.asarray(np.column_stack([records.features, np.ones(len(records.features))]))
    labels = records.targets.dtype.kind == "i" and loss.outputs == 1
    targets = jnp.asarray(2.0 * records.targets - 1.0 if labels else records.targets)
    places = [group_of(len(rows)) == group if groups > 1 else slice(None) for group in range(groups)]

    def found(params: jax.Array) -> jax.Array:
        scores = rows @ params if loss.outputs > 1 else (rows @ params)[:, 0]
        each = jax.vmap(loss.value)(scores, targets)
        return jnp.stack([jnp.mean(each[place]) for place in places])

    return found


def solved(value: Callable[[Any], Any], start: np.ndarray, **options: Any) -> np.ndarray:
    """The minimum of a function of an array, by L-BFGS, or by SLSQP where there are constraints."""
    both = jax.jit(jax.value_and_grad(value))

    def of(params: np.ndarray) -> tuple[float, np.ndarray]:
        value, gradient = both(params)
        return float(value), np.asarray(gradient, np.float64)

    exact = {"maxiter": 10_000, "ftol": 1e-14}
    if "constraints" not in options:
        options, exact = {"method": "L-BFGS-B"}, exact | {"gtol": 1e-8}
    return minimize(of, start, jac=True, options=exact, **options).x


def best(name: str, records: Table) -> Best:
    """The minimum of the estimator's objective; of a quantile's with the intercept that gives the level."""
    width = records.features.shape[1] + 1
    if name in IN_A_BALL:
        loss, radius = IN_A_BALL[name]
        mean = mean_loss(loss, records)
        inside = {"type": "ineq", "fun": lambda parts: radius - np.sum(parts[:-1])}

        def params(
            parts: Any,
        ) -> Any:  # what is positive and what is negative in the weights, and the intercept
            return jnp.append(parts[: width - 1] - parts[width - 1 : -1], parts[-1])[:, None]

        limits = [(0.0, None)] * (2 * width - 2) + [(None, None)]
        start = np.zeros(2 * width - 1)
        found = solved(lambda parts: mean(params(parts))[0], start, constraints=[inside], bounds=limits)
        return Best(np.asarray(params(found)))
    loss, alpha = (RIDGED[name], ALPHA) if name in RIDGED else (FREE[name], 0.0)
    shape = (width, loss.outputs)

    def ridge(params: Any) -> Any:
        return alpha / 2.0 * jnp.sum(params[:-1] ** 2)

    if name == "worst group":
        means = jax.jit(mean_loss(loss, records, 3))
        below = {"type": "ineq", "fun": lambda point: point[-1] - np.asarray(means(point[:-1, None]))}
        start = np.append(np.zeros(width), 1.0)
        found = solved(lambda point: point[-1] + ridge(point[:-1]), start, constraints=[below])[:-1]
    else:
        mean = mean_loss(loss, records)
        start = np.zeros(shape).ravel()
        found = solved(lambda point: mean(point.reshape(shape))[0] + ridge(point.reshape(shape)), start)
    params = found.reshape(shape)
    if isinstance(loss, Quantile):
        rest = records.targets - Best(params).predict(records.features)
        params[-1] += np.quantile(rest, loss.level)
    return Best(params)


QUICK = [("logistic", 100.0), ("huber", 1e3)]
EVERY = [(name, epsilon) for name in (*RIDGED, *FREE, *IN_A_BALL) for epsilon in EPSILONS]


@pytest.mark.later("logistic-100.0")
@pytest.mark.parametrize(("name", "epsilon"), but_later(QUICK, EVERY))
def test_the_test_loss_is_that_of_the_minimum(name, epsilon):
    make, targets, judge = LAWS[name]
    records = table(targets)
    with double_precision():
        least = judge(best(name, records), records)
    ridge = {"alpha": ALPHA} if name in RIDGED else {}
    seeds = SEEDS if epsilon < math.inf else 1
    reached = np.mean(
        [
            judge(
                make(epsilon=epsilon, delta=DELTA, random_state=seed, **ridge).fit(
                    records.features, records.targets
                ),
                records,
            )
            for seed in range(seeds)
        ]
    )
    assert reached <= least + max(0.005 * least, 1e-3)
