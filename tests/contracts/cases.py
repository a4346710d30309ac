"""The list every contract test runs over: add a line here and a newcomer is tested."""

from dataclasses import dataclass

import numpy as np

from privopt.data import Units
from privopt.ledger.amounts import Budget
from privopt.problems import losses
from privopt.problems.constraints import L2Ball
from privopt.problems.problem import Problem
from privopt.problems.regularisers import L1, ElasticNet, NoRegulariser, Ridge
from privopt.solvers.base import Solver
from privopt.solvers.gradient_descent import GradientDescent
from privopt.solvers.stochastic_gradient_descent import StochasticGradientDescent

N, D = 40, 5
BUDGET = Budget(2.0, 1e-5)


@dataclass(frozen=True)
class Case:
    """A solver on a problem, with everything that could be derived given."""

    name: str
    solver: Solver
    problem: Problem
    relations: tuple[str, ...] = ("replace-one", "add-or-remove-one")


def own_loss(params, features, target):
    """A user-written loss of one record, neither convex nor generalised linear."""
    import jax.numpy as jnp

    return jnp.log1p((features @ params - target) ** 2) + 0.1 * jnp.sum(jnp.sin(params))


_LOGISTIC = Problem(losses.logistic, Ridge(0.1))
_FULL = {"clip": 0.4, "step_size": 1.0, "momentum": 0.5, "steps": 6}
_SAMPLED = {"clip": 0.4, "step_size": 1.0, "momentum": 0.5, "steps": 6, "rate": 0.5, "noise_multiplier": 8.0}

EVERY_CASE = (
    Case("gradient descent", GradientDescent(**_FULL), _LOGISTIC),
    Case(
        "gradient descent, l1, last",
        GradientDescent(average="last", **_FULL),
        Problem(losses.huber(0.5), L1(0.02)),
    ),
    Case(
        "gradient descent, ball, weighted",
        GradientDescent(average="weighted", **_FULL),
        Problem(losses.squared, NoRegulariser(), L2Ball(0.5)),
    ),
    Case("gradient descent, softmax", GradientDescent(**_FULL), Problem(losses.softmax(3), Ridge(0.1))),
    Case("gradient descent, own loss", GradientDescent(**_FULL), Problem(losses.RecordLoss(own_loss))),
    Case("stochastic gradient descent", StochasticGradientDescent(**_SAMPLED), _LOGISTIC),
    Case(
        "stochastic gradient descent, elastic net",
        StochasticGradientDescent(**_SAMPLED),
        Problem(losses.smoothed_hinge(0.5), ElasticNet(0.02, 0.1)),
    ),
    Case(
        "stochastic gradient descent, fixed size",
        StochasticGradientDescent(sampler="fixed-size", **_SAMPLED),
        _LOGISTIC,
        relations=("replace-one",),
    ),
    Case(
        "stochastic gradient descent, own loss",
        StochasticGradientDescent(**_SAMPLED),
        Problem(losses.RecordLoss(own_loss)),
    ),
)
CASES = [(case, relation) for case in EVERY_CASE for relation in case.relations]
IDS = [f"{case.name}, {relation}" for case, relation in CASES]


def toy_arrays(case: Case, seed: int = 0):
    """Features (N, D) and targets of the right kind for the case's loss."""
    rng = np.random.default_rng(seed)
    features = rng.normal(size=(N, D))
    scores = features @ np.arange(1.0, D + 1.0)
    if case.problem.loss.outputs > 1:
        return features, (np.digitize(scores, [-3.0, 3.0])).astype(float)
    if case.problem.loss.name in ("logistic", "smoothed hinge"):
        return features, np.where(scores + rng.normal(size=N) > 0, 1.0, -1.0)
    return features, np.tanh(scores)


def as_units(features, targets, relation: str) -> Units:
    """The toy data behind a row bound of 1."""
    return Units.from_arrays(features, targets, relation=relation, row_bound=1.0, n=N)
