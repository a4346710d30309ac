"""Losses of a user's own: what is minimised, on which rows, and the best that was found without privacy.

    leaky        the link function of `kl_data`, generated rows, no noise in the targets
    network      the tanh network of `kl_data`, California
    sigmoid      (sigmoid(x . w) - y)^2, income above 50,000 of Adult, rows of length 1
    noisy        log(1 + (x . w - y)^2): a Cauchy likelihood, log visits of randhie, most of whose spread is noise
    relu         |net(x) - y|, a ReLU network of eight hidden units, California: neither smooth nor convex
    classifier   logistic loss of a ReLU network of eight hidden units, re-arrest of compas

The default was chosen by the first three; the last three were run once, after it stood. Rows of the networks are in
[-1, 1]; there and for `noisy` the best is that of several long runs without privacy, so that an excess says how much
better such runs are.
"""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

from benchmarks import kl_data
from benchmarks.datasets import load
from benchmarks.kl_data import Case
from benchmarks.optimum import unit_rows
from privopt.data.units import Units
from privopt.precision import double_precision
from privopt.problems.losses import RecordLoss
from privopt.problems.problem import Problem

CHOSEN_ON = ("leaky", "network", "sigmoid")
JUDGED_ON = ("noisy", "relu", "classifier")
DATA = (*CHOSEN_ON, *JUDGED_ON)
ROWS = 5_000
HIDDEN = 8


def sigmoid_loss(params: Any, features: Any, target: Any) -> Any:
    """Squared distance of a probability from a label in {0, 1}."""
    return (jax.nn.sigmoid(features @ params) - target) ** 2


def cauchy_loss(params: Any, features: Any, target: Any) -> Any:
    """Minus the logarithm of a Cauchy likelihood."""
    return jnp.log1p((features @ params - target) ** 2)


def relu_score(params: Any, features: Any) -> Any:
    """A network with one hidden layer of ReLU units."""
    hidden = jax.nn.relu(features @ params["in"] + params["bias"])
    return hidden @ params["out"] + params["constant"]


def relu_loss(params: Any, features: Any, target: Any) -> Any:
    """Absolute error of the network."""
    return jnp.abs(relu_score(params, features) - target)


def classifier_loss(params: Any, features: Any, target: Any) -> Any:
    """Logistic loss of the network, for targets -1 and 1."""
    return jax.nn.softplus(-target * relu_score(params, features))


def case(name: str, shared: Path, *, rows: int | None = None) -> Case:
    """Build a problem and find its best without privacy.

    Args:
        name: of `DATA`.
        shared: the folder of the shared data.
        rows: at most this many.
    """
    if name in kl_data.DATA:
        return kl_data.case(name, shared, rows=rows)
    rows = min(rows or ROWS, ROWS)
    if name == "sigmoid":
        encoded, codes, *_ = load("adult", shared)
        features, targets = unit_rows(encoded)[:rows], codes[:rows].astype(np.float64)
        return _made(name, sigmoid_loss, features, targets, np.zeros(features.shape[1]), 1.0)
    if name == "noisy":
        features, visits, *_ = load("randhie", shared, target="mdvis", train=rows)
        features = np.asarray(features, np.float64) / math.sqrt(np.shape(features)[1])
        return _made(name, cauchy_loss, features, np.log1p(visits), np.zeros(features.shape[1]), 1.0)
    if name == "relu":
        features, values, _, _, info = load("california", shared, train=rows)
        assert info.bounds is not None
        low, high = info.bounds
        targets = 2.0 * (values - low) / (high - low) - 1.0
        return _network(name, relu_loss, np.asarray(features, np.float64), targets)
    features, codes, *_ = load("compas", shared, train=rows)
    return _network(name, classifier_loss, np.asarray(features, np.float64), 2.0 * codes - 1.0)


def _network(
    name: str, loss: Callable[..., Any], features: NDArray[np.float64], targets: NDArray[np.float64]
) -> Case:
    width = features.shape[1]
    return _made(name, loss, features, targets, kl_data.network_start(width, 0), math.sqrt(width))


def _made(
    name: str,
    loss: Callable[..., Any],
    features: NDArray[Any],
    targets: NDArray[np.float64],
    start: Any,
    row_bound: float,
) -> Case:
    """The case of a loss: its clip and curvature, for the tuned baseline, are a median and a largest eigenvalue."""
    features = np.asarray(features, np.float64)
    tree = isinstance(start, dict)
    problem = Problem.from_pytree(loss, start, name=name) if tree else Problem(RecordLoss(loss, name=name))
    with double_precision():
        flat_loss = problem.loss.value
        objective, gradient = kl_data.mean_loss(flat_loss, features, targets)
        first = kl_data.flat(problem, start)
        each = jax.jit(jax.vmap(jax.grad(flat_loss), in_axes=(None, 0, 0)))
        lengths = np.linalg.norm(
            np.asarray(each(jnp.asarray(first), jnp.asarray(features), jnp.asarray(targets))), axis=1
        )
        ends = [
            _descended(objective, gradient, begin)
            for begin in _starts(first, features.shape[1], tree, problem)
        ]
    return Case(
        name=name,
        problem=problem,
        units=Units.from_arrays(features, targets, row_bound=row_bound * (1.0 + 2.0**-20)),
        start=start,
        objective=lambda params: objective(kl_data.flat(problem, params)),
        gradient=lambda params: gradient(kl_data.flat(problem, params)),
        best=min(ends),
        lipschitz=float(np.median(lengths)),
        curvature=_curvature(gradient, first),
    )


def _starts(
    first: NDArray[np.float64], width: int, tree: bool, problem: Problem
) -> list[NDArray[np.float64]]:
    """Where runs without privacy begin."""
    if not tree:
        return [first]
    return [first, *(kl_data.flat(problem, kl_data.network_start(width, seed)) for seed in (1, 2))]


def _descended(
    objective: Callable[[Any], float],
    gradient: Callable[[Any], NDArray[np.float64]],
    begin: NDArray[np.float64],
) -> float:
    """The best value of a long run; once more from its end, where a kink may have stopped it."""
    value = math.inf
    for _ in range(3):
        found = minimize(objective, begin, jac=gradient, method="L-BFGS-B", options={"maxiter": 1000})
        begin, value = found.x, min(value, float(found.fun))
    return value


def _curvature(gradient: Callable[[Any], NDArray[np.float64]], at: NDArray[np.float64]) -> float:
    """The largest eigenvalue of the mean loss's Hessian at the start, by differences of gradients."""
    vector, value = np.random.default_rng(0).normal(size=at.size), 1.0
    for _ in range(30):
        vector /= np.linalg.norm(vector)
        vector = (gradient(at + 1e-3 * vector) - gradient(at - 1e-3 * vector)) / 2e-3
        value = float(np.linalg.norm(vector))
    return max(value, 1e-3)
