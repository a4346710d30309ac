"""The panel's problems whose unit is a user: the library's default as it comes, beside a released base rate.

The loss is what the estimator minimises: the mean over users of the mean over their records. Fits are those of the
library, one after another, so that there are few seeds.
"""

import time
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import expit

from benchmarks.optimum import TINY_PENALTY, unit_rows
from benchmarks.panel_problems import PanelArrays, PanelProblem
from benchmarks.results import Record
from privopt.estimators.linear import LogisticRegression
from privopt.ledger.curves import gaussian_mu

SEEDS, QUICK_SEEDS = 5, 1
RULE, LOSS = "default", "logistic, by user"

Floats = NDArray[np.float64]


def measure(problem: PanelProblem, stored: PanelArrays, epsilon: float, seeds: int = SEEDS) -> Record:
    """One cell of two classes, delta = 1 / users^2, replace-one.

    Raises:
        ValueError: the arrays do not say which user a row belongs to.
    """
    if stored.groups is None:
        raise ValueError(f"{problem.name} has no users.")
    begun = time.perf_counter()
    _, place, counts = np.unique(stored.groups, return_inverse=True, return_counts=True)
    users, weights = len(counts), 1.0 / counts[place] / len(counts)
    signs = 2.0 * stored.targets - 1.0
    delta = 1.0 / users**2
    best = least(stored.features, signs, weights)
    excesses = []
    for seed in range(seeds):
        model = LogisticRegression(
            epsilon=epsilon,
            delta=delta,
            bounds=(-1.0, 1.0),
            classes=[0, 1],
            row_bound="unit",  # scores of the rows that the fit sees
            random_state=seed,
        )
        model.fit(stored.features, stored.targets, groups=stored.groups)
        scores = np.asarray(model.decision_function(stored.features), np.float64)
        excesses.append(weighted_loss(scores, signs, weights) - best)
    constants = [
        weighted_loss(at, signs, weights) - best for at in base_rates(signs, weights, users, epsilon, seeds)
    ]
    return {
        "benchmark": "panel",
        "half": problem.half,
        "table": problem.table,
        "data": problem.name,
        "kind": problem.kind,
        "what": LOSS,
        "epsilon": epsilon,
        "method": RULE,
        "excess": float(np.mean(excesses)),
        "sd": float(np.std(excesses, ddof=1)) if seeds > 1 else 0.0,
        "seeds": seeds,
        "excesses": excesses,
        "constant": float(np.mean(constants)),
        "constants": constants,
        "best": best,
        "n": users,
        "d": stored.features.shape[1] + 1,
        "seconds": time.perf_counter() - begun,
    }


def base_rates(signs: Floats, weights: Floats, users: int, epsilon: float, seeds: int) -> Iterator[float]:
    """The log-odds of the mean of users' shares of ones, released with the whole budget: sensitivity 1 / users."""
    share = float(weights @ (signs > 0))
    scale = 1.0 / (users * gaussian_mu(epsilon, 1.0 / users**2))
    for seed in range(seeds):
        drawn = share + scale * np.random.default_rng(seed).standard_normal()
        kept = min(max(drawn, 0.5 / users), 1.0 - 0.5 / users)
        yield float(np.log(kept / (1.0 - kept)))


def weighted_loss(scores: Floats | float, signs: Floats, weights: Floats) -> float:
    """The weighted mean logistic loss."""
    return float(weights @ np.logaddexp(0.0, -signs * scores))


def least(features: NDArray[np.float32], signs: Floats, weights: Floats) -> float:
    """The least weighted mean loss on rows of length 1, as the private estimator sees them."""
    rows = unit_rows(features)

    def objective(params: Floats) -> tuple[float, Floats]:
        scores = rows @ params
        value = weighted_loss(scores, signs, weights) + 0.5 * TINY_PENALTY * float(params @ params)
        return value, rows.T @ (-weights * signs * expit(-signs * scores)) + TINY_PENALTY * params

    options = {"maxiter": 1_000, "maxcor": 40, "ftol": 1e-13, "gtol": 1e-8}
    solved = minimize(objective, np.zeros(rows.shape[1]), jac=True, method="L-BFGS-B", options=options)
    return weighted_loss(rows @ solved.x, signs, weights)
