"""Golden plans, for which no data are needed: of estimators by public sizes, and of every solver of some problems."""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import product
from typing import Any

import numpy as np
from tests.contracts.cases import jumping, own_loss
from tests.contracts.game_cases import MATRIX, OWN
from tests.golden.comparing import Line
from tests.golden.transcripts import line_of_plan

import privopt
from privopt import papers
from privopt.problems import losses
from privopt.problems.constraints import L1Ball, L2Ball
from privopt.problems.grouped_loss import GroupedLoss
from privopt.problems.growth import KL
from privopt.problems.regularisers import L1, Ridge
from privopt.problems.saddle import Game

CLASSES: Mapping[str, Any] = {"bounds": (-1.0, 1.0), "classes": [0, 1]}
NUMBERS: Mapping[str, Any] = {"bounds": (-1.0, 1.0), "target_bounds": (0.0, 10.0)}
MODELS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "logistic": ("LogisticRegression", CLASSES),
    "logistic, four classes": ("LogisticRegression", CLASSES | {"classes": [0, 1, 2, 3]}),
    "logistic, loose bounds": (
        "LogisticRegression",
        CLASSES | {"bounds": None, "loose_bounds": (-100.0, 100.0)},
    ),
    "logistic, a chosen penalty": ("LogisticRegression", CLASSES | {"alpha": "private"}),
    "support vectors": ("LinearSVC", CLASSES),
    "robust classes": ("RobustClassifier", CLASSES),
    "least squares": ("LinearRegression", NUMBERS),
    "ridge": ("Ridge", NUMBERS),
    "huber": ("HuberRegressor", NUMBERS),
    "quantile": ("QuantileRegressor", NUMBERS | {"quantile": 0.9}),
    "counts": ("PoissonRegressor", NUMBERS),
    "robust numbers": ("RobustRegressor", NUMBERS),
    "lasso, classes": ("LassoClassifier", CLASSES | {"radius": 2.0}),
    "lasso, numbers": ("LassoRegressor", NUMBERS | {"radius": 2.0}),
    "fair": ("FairClassifier", CLASSES | {"sensitive_values": ["a", "b"], "shares": [0.7, 0.3]}),
}
SIZES = ((500, 5), (20_000, 20), (10**6, 100))  # units and features
EPSILONS = (0.3, 3.0)
RELATIONS = ("replace-one", "add-or-remove-one")


def model_plan_runs() -> Iterator[tuple[str, Callable[[], Line]]]:
    """Every estimator, for small, middling and large data, at a small and a large epsilon, under both relations.

    Units are records and users in turn.
    """
    grid = product(MODELS, enumerate(SIZES), enumerate(EPSILONS), enumerate(RELATIONS))
    for model, (size, (n, d)), (level, epsilon), (kind, relation) in grid:
        by_user = (size + level + kind) % 3 == 2
        name = f"{model}, n = {n}, d = {d}, epsilon = {epsilon} ({relation}{', users' if by_user else ''})"
        yield name, partial(_planned, model, n, d, epsilon, relation, by_user)


def _planned(model: str, n: int, d: int, epsilon: float, relation: str, by_user: bool) -> Line:
    kind, arguments = MODELS[model]
    made = getattr(privopt, kind)(epsilon=epsilon, delta=n**-2.0, relation=relation, n=n, **arguments)
    return _brief(line_of_plan(made.plan(n_features=d, n=n, by_user=by_user)))


USERS: Mapping[str, Any] = {"max_records_per_user": 20}
PROBLEMS: Mapping[str, tuple[Any, Mapping[str, Any]]] = {
    "logistic": (privopt.Problem(losses.logistic, Ridge(0.01)), {"n": 2_000, "d": 6}),
    "logistic, large": (privopt.Problem(losses.logistic, Ridge(1e-4)), {"n": 200_000, "d": 50}),
    "logistic, no penalty, little budget": (losses.logistic, {"n": 5_000, "d": 10, "epsilon": 0.2}),
    "logistic, users": (privopt.Problem(losses.logistic, Ridge(0.01)), {"n": 2_000, "d": 6} | USERS),
    "logistic, add or remove one": (losses.logistic, {"n": 9_000, "d": 4, "relation": "add-or-remove-one"}),
    "logistic, sparse": (losses.logistic, {"n": 50_000, "d": 5_000, "row_entries": 30}),
    "logistic, l1 ball": (privopt.Problem(losses.logistic, constraint=L1Ball(2.0)), {"n": 5_000, "d": 200}),
    "logistic, growth": (
        privopt.Problem(losses.logistic, growth=KL(gamma=2.0, kappa=2.0)),
        {"n": 20_000, "d": 5},
    ),
    "softmax": (privopt.Problem(losses.softmax(4), Ridge(0.01)), {"n": 5_000, "d": 8}),
    "squares, l2 ball": (privopt.Problem(losses.squared, constraint=L2Ball(1.0)), {"n": 5_000, "d": 8}),
    "huber, l1": (privopt.Problem(losses.huber(0.5), L1(0.01)), {"n": 5_000, "d": 8}),
    "median, users": (losses.quantile(0.5), {"n": 5_000, "d": 8} | USERS),
    "hinge": (privopt.Problem(losses.smoothed_hinge(0.5), Ridge(0.01)), {"n": 5_000, "d": 8}),
    "ramp": (losses.ramp(), {"n": 5_000, "d": 8}),
    "counts": (losses.poisson(2.0, 5.0), {"n": 5_000, "d": 8}),
    "worst group": (privopt.Problem(GroupedLoss(losses.logistic, 2, (0.7, 0.3))), {"n": 5_000, "d": 8}),
    "a loss of one's own": (own_loss, {"n": 5_000, "d": 8, "start": np.zeros(8)}),
    "a black box": (
        privopt.BlackBox(jumping, value_range=(-1.0, 5.0), scale=2.0),
        {"n": 5_000, "d": 8, "start": np.zeros(3)},
    ),
    "a matrix game": (MATRIX, {"n": 5_000, "d": 5}),
    "a game of one's own": (OWN, {"n": 5_000, "d": 5, "row_bound": 1.0}),
}


def solver_plan_runs() -> Iterator[tuple[str, Callable[[], dict[str, Line]]]]:
    """Every solver's plan of each problem, or why it has none; the line of a problem names the default."""
    for name in PROBLEMS:
        yield name, partial(_all_planned, name)


def _all_planned(name: str) -> dict[str, Line]:
    problem, sizes = PROBLEMS[name]
    plans = privopt.plan(problem, **({"epsilon": 1.0, "delta": 1e-6} | sizes))
    lines: dict[str, Line] = {
        name: {"values": {}, "words": {"default": plans.default.solver, "reason": plans.default.reason}}
    }
    for plan in plans.plans:
        lines[f"{name}: {plan.solver}"] = _brief(line_of_plan(plan))
    for solver, reason in plans.refused:
        lines[f"{name}: {solver}"] = {"values": {}, "words": {"refused": reason}}
    return lines | _of_published(name)


def _of_published(name: str) -> dict[str, Line]:
    """The plans of solvers that only whoever names them gets."""
    problem, sizes = PROBLEMS[name]
    lines: dict[str, Line] = {}
    for solver in papers.GAME_SOLVERS if isinstance(problem, Game) else papers.SOLVERS:
        title = papers.published(solver).title
        try:
            plans = privopt.plan(problem, solver=solver, **({"epsilon": 1.0, "delta": 1e-6} | sizes))
        except ValueError as refused:
            reason = str(refused).removeprefix(f"{title} cannot solve this problem: ").removesuffix(".")
            lines[f"{name}: {title}"] = {"values": {}, "words": {"refused": reason}}
        else:
            lines[f"{name}: {title}"] = _brief(line_of_plan(plans.default))
    return lines


def _brief(line: Line) -> Line:
    """The line with its words as two texts, of which a digest is kept: there are many plans."""
    return line | {"words": {name: "\n".join(words) for name, words in line["words"].items()}}
