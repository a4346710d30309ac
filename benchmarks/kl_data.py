"""The problems of the comparison under the KL condition: what is minimised, on which rows, and the optimum.

    randhie     any outpatient visit, nine features by their public ranges, 20,190 person-years: logistic
    adult       income above 50,000, rows of length 1: logistic
    generated   20,000 rows of 20 correlated features, uniform on [-1, 1], logistic labels, parameters of norm 12
    leaky       the same rows, targets leaky(x . w), loss (leaky(x . w) - y)^2 / 2, a user's own: not convex in w
    network     house values of 5,000 California districts, a network of two layers, a user's own pytree loss

Rows have norm at most 1, those of all but adult because they are divided by sqrt(d), d with the intercept; features and
targets of the network are in [-1, 1]. The optimum of the logistic problems is that of Newton's method; that of leaky is
0, at the parameters that made the targets; for the network it stands the best of several long runs without privacy, so
that its "excess" says how much better such runs are.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import expit, ndtr

from benchmarks.datasets import load
from benchmarks.optimum import unit_rows
from privopt.data.units import Units
from privopt.precision import double_precision
from privopt.problems import losses
from privopt.problems.losses import RecordLoss
from privopt.problems.problem import Problem
from privopt.tables import Schema

CONVEX = ("randhie", "adult", "generated")
DATA = (*CONVEX, "leaky", "network")
RANDHIE = ("logc", "idp", "lpi", "fmde", "physlm", "disea", "hlthg", "hlthf", "hlthp")
ROWS = {"generated": 20_000, "leaky": 20_000, "network": 5_000}
WIDTH, CORRELATION, LENGTH = 20, 0.7, 12.0
LEAST_SLOPE = 0.3  # of the leaky link
HIDDEN = 8


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Case:
    """A problem, its rows and its optimum.

    Attributes:
        name: of `DATA`.
        problem: what is minimised.
        units: the rows, row bound 1.
        start: of every method.
        objective: the mean loss.
        gradient: of the mean loss.
        best: the non-private optimum.
        lipschitz: a bound on a record's gradient, or what it is clipped to.
        curvature: of one record's loss, for step sizes: 1 / curvature is the usual one.
    """

    name: str
    problem: Problem
    units: Units
    start: Any
    objective: Callable[[Any], float]
    gradient: Callable[[Any], NDArray[np.float64]]
    best: float
    lipschitz: float
    curvature: float

    @property
    def convex(self) -> bool:
        """Whether the optimum is certified and the loss the library's own."""
        return self.name in CONVEX

    @property
    def parameters(self) -> int:
        """How many numbers are fitted."""
        return flat(self.problem, self.start).size


def flat(problem: Problem, params: Any) -> NDArray[np.float64]:
    """The parameters as one vector; one that is already stays."""
    if isinstance(params, np.ndarray) and params.ndim == 1:
        return params.astype(np.float64)
    with double_precision():
        return np.asarray(problem.ravel(params))


def case(name: str, shared: Path, *, rows: int | None = None) -> Case:
    """Build a problem and solve it without privacy.

    Args:
        name: of `DATA`.
        shared: the folder of the shared data.
        rows: at most this many.
    """
    if name == "network":
        return _network(shared, min(rows or ROWS[name], ROWS[name]))
    if name == "leaky":
        return _leaky(min(rows or ROWS[name], ROWS[name]))
    if name == "randhie":
        features, signs = _randhie(shared)
    elif name == "adult":
        encoded, codes, *_ = load("adult", shared)
        features, signs = unit_rows(encoded), 2.0 * codes - 1.0
    else:
        features, truth, rng = generated(ROWS[name])
        signs = np.where(rng.random(len(features)) < expit(features @ truth), 1.0, -1.0)
    features, signs = features[:rows], signs[:rows]
    signed = signs[:, None] * features
    return Case(
        name=name,
        problem=Problem(losses.logistic),
        units=Units.from_arrays(features, signs, row_bound=1.0 + 2.0**-20),
        start=np.zeros(features.shape[1]),
        objective=lambda params: float(np.mean(np.logaddexp(0.0, -(signed @ np.asarray(params))))),
        gradient=lambda params: _logistic_slope(signed, np.asarray(params)),
        best=logistic_optimum(signed),
        lipschitz=1.0,
        curvature=0.25,
    )


def _randhie(shared: Path) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Rows in a random order, an intercept first, and +1 where there was a visit."""
    schema = Schema.from_json(shared / "schema.json", "randhie")
    table = pq.read_table(shared / "randhie.parquet", columns=[*RANDHIE, "mdvis"]).to_pandas()
    table = table.iloc[np.random.default_rng(0).permutation(len(table))]
    ranges = {column.name: column for column in schema.feature_columns(target="mdvis")}
    columns = [np.ones(len(table))]
    for name in RANDHIE:
        low, high = ranges[name].low, ranges[name].high
        columns.append(np.clip(2.0 * (table[name].to_numpy(float) - low) / (high - low) - 1.0, -1.0, 1.0))
    features = np.stack(columns, axis=1) / math.sqrt(len(columns))
    return features, np.where(table["mdvis"].to_numpy() > 0, 1.0, -1.0)


def generated(rows: int) -> tuple[NDArray[np.float64], NDArray[np.float64], np.random.Generator]:
    """Rows, true parameters, and the generator for the rest."""
    rng = np.random.default_rng(0)
    normal = rng.normal(size=(rows, WIDTH))
    for j in range(1, WIDTH):
        normal[:, j] = CORRELATION * normal[:, j - 1] + math.sqrt(1.0 - CORRELATION**2) * normal[:, j]
    truth = rng.normal(size=WIDTH)
    return (2.0 * ndtr(normal) - 1.0) / math.sqrt(WIDTH), LENGTH * truth / np.linalg.norm(truth), rng


def _logistic_slope(signed: NDArray[np.float64], params: NDArray[np.float64]) -> NDArray[np.float64]:
    return -(signed.T @ expit(-(signed @ params))) / len(signed)


def logistic_optimum(signed: NDArray[np.float64], accuracy: float = 1e-10) -> float:
    """The least mean logistic loss, by Newton's method until the decrement says `accuracy`.

    Args:
        signed: rows times labels; directions that separate them are followed until they pay no more.
        accuracy: half the squared Newton decrement at which to stop.
    """
    params = np.zeros(signed.shape[1])

    def value(at: NDArray[np.float64]) -> float:
        return float(np.mean(np.logaddexp(0.0, -(signed @ at))))

    for _ in range(200):
        chance = expit(-(signed @ params))
        slope = -(signed.T @ chance) / len(signed)
        hessian = (signed.T * (chance * (1.0 - chance))) @ signed / len(signed)
        step = np.linalg.lstsq(hessian + 1e-13 * np.eye(len(params)), slope, rcond=1e-12)[0]
        decrement = 0.5 * float(slope @ step)
        if decrement < accuracy:
            break
        length = 1.0
        while value(params - length * step) > value(params) - 0.1 * length * decrement:
            length *= 0.5
        params = params - length * step
    return value(params)


@dataclass(frozen=True)
class LeakyLink:
    """`(leaky(x . w) - y)^2 / 2`, leaky(t) = slope t + (1 - slope) tanh t; hashable, so that it is compiled once."""

    slope: float = LEAST_SLOPE

    def link(self, prediction: Any) -> Any:
        """leaky(t), of slope between `slope` and 1."""
        return self.slope * prediction + (1.0 - self.slope) * jnp.tanh(prediction)

    def __call__(self, params: Any, features: Any, target: Any) -> Any:
        """The loss of one record."""
        return 0.5 * (self.link(features @ params) - target) ** 2


def _leaky(rows: int) -> Case:
    """The leaky link on the rows of `generated`."""
    loss = LeakyLink()
    features, truth, _ = generated(ROWS["leaky"])
    features = features[:rows]
    with double_precision():
        targets = np.asarray(loss.link(jnp.asarray(features @ truth)))
    problem = Problem(RecordLoss(loss, name="leaky link"))
    objective, gradient = mean_loss(loss, features, targets)
    return Case(
        name="leaky",
        problem=problem,
        units=Units.from_arrays(features, targets, row_bound=1.0 + 2.0**-20),
        start=np.zeros(WIDTH),
        objective=objective,
        gradient=gradient,
        best=0.0,
        lipschitz=1.0,
        curvature=0.25,
    )


def network_loss(params: Any, features: Any, target: Any) -> Any:
    """Square loss of a network with one hidden layer of tanh units."""
    hidden = jnp.tanh(features @ params["in"] + params["bias"])
    return 0.5 * (hidden @ params["out"] + params["constant"] - target) ** 2


def network_start(width: int, seed: int) -> dict[str, NDArray[np.float64]]:
    """Random parameters, public: no record has a part in them."""
    rng = np.random.default_rng(seed)
    return {
        "in": rng.normal(size=(width, HIDDEN)) / math.sqrt(width / 3.0),
        "bias": np.zeros(HIDDEN),
        "out": rng.normal(size=HIDDEN) / math.sqrt(HIDDEN),
        "constant": np.zeros(()),
    }


def _network(shared: Path, rows: int) -> Case:
    """House values by a small network."""
    features, values, _, _, info = load("california", shared, train=rows)
    assert info.bounds is not None
    low, high = info.bounds
    features = np.asarray(features, np.float64)
    targets = 2.0 * (values - low) / (high - low) - 1.0
    width = features.shape[1]
    start = network_start(width, 0)
    problem = Problem.from_pytree(network_loss, start, name="network")
    with double_precision():
        loss = problem.loss.value
        objective, gradient = mean_loss(loss, features, targets)
        ends = []
        for seed in range(3):
            begin = flat(problem, network_start(width, seed))
            found = minimize(objective, begin, jac=gradient, method="L-BFGS-B", options={"maxiter": 1000})
            ends.append(float(found.fun))
    return Case(
        name="network",
        problem=problem,
        units=Units.from_arrays(features, targets, row_bound=math.sqrt(width)),
        start=start,
        objective=lambda params: objective(flat(problem, params)),
        gradient=lambda params: gradient(flat(problem, params)),
        best=min(ends),
        lipschitz=1.0,
        curvature=3.0,
    )


def mean_loss(
    loss: Callable[..., Any], features: NDArray[np.float64], targets: NDArray[np.float64]
) -> tuple[Callable[[Any], float], Callable[[Any], NDArray[np.float64]]]:
    """The mean of a record's loss as a function of the flat parameters, and its gradient."""
    with double_precision():
        rows, wanted = jnp.asarray(features), jnp.asarray(targets)

    def mean(params: Any) -> Any:
        return jnp.mean(jax.vmap(loss, in_axes=(None, 0, 0))(params, rows, wanted))

    value, slope = jax.jit(mean), jax.jit(jax.grad(mean))

    def objective(params: Any) -> float:
        with double_precision():
            return float(value(jnp.asarray(params)))

    def gradient(params: Any) -> NDArray[np.float64]:
        with double_precision():
            return np.asarray(slope(jnp.asarray(params)))

    return objective, gradient
