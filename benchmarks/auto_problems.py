"""The problems of the panel of `auto`: generated records of one seed, and how far parameters are from the best.

quantile by user    0.5 |y - x . w|, 1,000 users with 1, 10 or 100 records each; "smoothed" with h = 0.5
logistic by user    the same rows and users, labels of a logistic model
curved game         |x|^2 / 4 - 0.1 u . x + (u . x)(v . y) + 0.1 v . y - |y|^2 / 4 on simplices, the entries of u and
                    v +-1, records of 6 hidden types
matrix game         (u . x)(v . y), the same records; "offsets": those of `benchmarks.games`
power, sine         `zoo`: |w|^p / p and waves, d = 10, curvature, slope and growth stated
kink                `zoo`: the largest entry, slope, convexity and growth stated
own convex loss     log cosh of a residual, a RecordLoss of which nothing is stated
own bent loss       a squared sigmoid, nothing stated: not convex
largest entry       that of the kink, as a black box of which values alone are known
l1 ball             logistic regression with ten true features, on an l1 ball
logistic, hinge     without a set: what most models are
ramp                labels of a half-space of which a fifth are flipped, the ramp loss: not convex
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import expit

from benchmarks import games, nonsmooth_data
from privopt.data.units import Units
from privopt.precision import double_precision
from privopt.problems import losses
from privopt.problems.black_box import BlackBox
from privopt.problems.constraints import L1Ball, Simplex
from privopt.problems.losses import RecordLoss
from privopt.problems.problem import Problem
from privopt.problems.projections import project_l1_ball, project_simplex
from privopt.problems.regularisers import Ridge
from privopt.problems.saddle import BilinearGame, Game, SaddleProblem
from privopt.zoo.kinks import LargestEntryLoss, max_linear
from privopt.zoo.problem import ZooProblem
from privopt.zoo.tilted import power, sine

Vector = NDArray[np.float64]
USERS, WIDTH = 1_000, 10
TYPES, BEND, TILT = 6, 0.5, 0.1
RIDGE = 1e-4


@dataclass(frozen=True, kw_only=True, eq=False)
class Posed:
    """A problem on the records of one seed.

    Attributes:
        problem: what is solved.
        units: the records.
        excess: the objective at some parameters above its least value, or the gap of a game's strategies.
        start: where a run begins; None for zero, and for games.
        trivial: the excess of the start, or of the uniform strategies.
    """

    problem: Problem | Game
    units: Units
    excess: Callable[[Any], float]
    start: Any = None
    trivial: float


def by_user(loss: Any, records: int, seed: int) -> Posed:
    """Linear predictions for 1,000 users with so many records each; a user's records lean to one side."""
    rng = np.random.default_rng([records, seed])
    rows = _rows(rng, USERS * records, WIDTH)
    groups = np.repeat(np.arange(USERS), records)
    scores = rows @ rng.normal(size=WIDTH) * 1.5
    if loss == losses.logistic:
        targets = np.where(rng.random(len(rows)) < expit(3.0 * scores), 1.0, -1.0)
    else:
        leaning = rng.normal(size=USERS)[groups] * 0.2
        targets = scores + leaning + rng.laplace(size=len(rows)) * 0.2
    units = Units.from_arrays(rows, targets, row_bound=1.0, groups=groups, typical_records=float(records))
    return _linear(Problem(loss), rows, targets, units)


def linear(kind: str, n: int, d: int, seed: int) -> Posed:
    """A model of two classes without a set: logistic regression, or the hinge loss."""
    rng = np.random.default_rng([n, d, seed])
    rows = _rows(rng, n, d)
    scores = rows @ rng.normal(size=d)
    targets = np.where(rng.random(n) < expit(4.0 * scores), 1.0, -1.0)
    loss = {"logistic": losses.logistic, "hinge": losses.smoothed_hinge(0.1)}[kind]
    units = Units.from_arrays(rows, targets, row_bound=1.0)
    return _linear(Problem(loss, Ridge(RIDGE)), rows, targets, units)


def sparse(n: int, d: int, seed: int) -> Posed:
    """Ten of d features matter; an l1 ball as large as the truth."""
    rng = np.random.default_rng([n, d, seed])
    rows = rng.uniform(-1.0, 1.0, (n, d)) / math.sqrt(d)
    truth = np.zeros(d)
    truth[:: d // 10][:10] = np.where(np.arange(10) % 2, 1.0, -1.0)
    truth *= 2.0 / np.std(rows @ truth)
    targets = np.where(rng.random(n) < expit(rows @ truth), 1.0, -1.0)
    radius = float(np.abs(truth).sum())
    units = Units.from_arrays(rows, targets, row_bound=1.0, entry_bound=1.0 / math.sqrt(d))
    problem = Problem(losses.logistic, constraint=L1Ball(radius))
    return _measured(problem, rows, targets, units, _l1_minimum(problem, rows, targets, radius))


def log_cosh(params: Any, features: Any, target: Any) -> Any:
    """A convex loss of a residual, between its square and its absolute value."""
    residual = 2.0 * (features @ params - target)
    return 0.25 * (jnp.logaddexp(residual, -residual) - math.log(2.0))


def squared_sigmoid(params: Any, features: Any, target: Any) -> Any:
    """Squared distance of a probability from a label in {0, 1}."""
    return (jax.nn.sigmoid(features @ params) - target) ** 2


OWN = {"convex": RecordLoss(log_cosh, name="log cosh"), "bent": RecordLoss(squared_sigmoid, name="sigmoid")}


def own(kind: str, n: int, seed: int) -> Posed:
    """A loss written by its user, who states nothing of it."""
    rng = np.random.default_rng([n, 7, seed])
    rows = _rows(rng, n, WIDTH)
    scores = rows @ rng.normal(size=WIDTH)
    targets = (
        scores + 0.3 * rng.standard_t(3, n)
        if kind == "convex"
        else (rng.random(n) < expit(6.0 * scores)) * 1.0
    )
    return _linear(Problem(OWN[kind]), rows, targets, Units.from_arrays(rows, targets, row_bound=1.0))


ZOO: dict[str, ZooProblem] = {
    "power 2": power(2.0),
    "power 4": power(4.0),
    "sine": sine(),
    "kink": max_linear(),
}


def stated(kind: str, n: int, seed: int) -> Posed:
    """A problem of the zoo, whose loss states slope, curvature and growth."""
    return _zoo(ZOO[kind], ZOO[kind].problem, n, seed)


LARGEST = BlackBox(LargestEntryLoss(), value_range=(-2.0, 2.0), scale=1.0, host=False, name="largest entry")


def by_values(n: int, seed: int) -> Posed:
    """The largest of linear functions, of which values alone are known."""
    return _zoo(ZOO["kink"], Problem.of_values(LARGEST, np.zeros(ZOO["kink"].d)), n, seed)


def flipped(n: int, seed: int) -> Posed:
    """The ramp loss on labels of which the surest are wrong: the mean loss, as the least is not known."""
    data = nonsmooth_data.flipped(n, seed=seed)
    return Posed(
        problem=data.problem, units=data.units(), excess=data.loss, trivial=data.loss(np.zeros(WIDTH))
    )


def curved_payoff(x: Any, y: Any, features: Any, target: Any) -> Any:
    """(u . x)(v . y), and for each player a parabola and a tilt."""
    del target
    u, v = jnp.split(features, 2)
    return BEND * (x @ x - y @ y) / 2.0 - TILT * (u @ x - v @ y) + (u @ x) * (v @ y)


@lru_cache
def curved_game(size: int) -> SaddleProblem:
    """One game a size, so that seeds share what is compiled."""
    return SaddleProblem(
        curved_payoff,
        x=Simplex(),
        y=Simplex(),
        sizes=(size, size),
        half_ranges=(1.0, 1.0),
        curvatures=(BEND, BEND),
    )


def curved(n: int, size: int, seed: int) -> Posed:
    """A game that bends in both players: the best answers are projections."""
    u, v = _typed_signs(n, size, seed)
    matrix = u.T @ v / n
    shift_x, shift_y = TILT * u.mean(0), TILT * v.mean(0)

    def gap(params: Any) -> float:
        x, y = (np.asarray(one, np.float64) for one in params)
        best_y = _projected((matrix.T @ x + shift_y) / BEND)
        best_x = _projected((shift_x - matrix @ y) / BEND)

        def value(x: Vector, y: Vector) -> float:
            return float(BEND * (x @ x - y @ y) / 2.0 - shift_x @ x + shift_y @ y + x @ matrix @ y)

        return value(x, best_y) - value(best_x, y)

    units = Units.from_arrays(np.concatenate([u, v], axis=1), row_bound=math.sqrt(2.0 * size) * (1.0 + 1e-6))
    return _game(curved_game(size), units, gap, size)


def matrix_game(n: int, size: int, seed: int) -> Posed:
    """A matrix game without offsets."""
    u, v = _typed_signs(n, size, seed)
    matrix = u.T @ v / n
    game = BilinearGame(rows=size, columns=size)

    def gap(params: Any) -> float:
        x, y = (np.asarray(one, np.float64) for one in params)
        return float(np.max(matrix.T @ x) - np.min(matrix @ y))

    units = Units.from_arrays(np.concatenate([u, v], axis=1), row_bound=game.row_bound)
    return _game(game, units, gap, size)


def offset_game(n: int, size: int, seed: int) -> Posed:
    """A matrix game with offsets, from `benchmarks.games`."""
    made = games.generated(n, size, seed)
    return _game(made.game, made.units, lambda params: made.gap(*params), size)


def _game(game: Game, units: Units, gap: Callable[[Any], float], size: int) -> Posed:
    uniform = np.full(size, 1.0 / size)
    return Posed(problem=game, units=units, excess=gap, trivial=gap((uniform, uniform)))


def _typed_signs(n: int, size: int, seed: int) -> tuple[Vector, Vector]:
    rng = np.random.default_rng([n, size, seed])
    kinds = rng.integers(TYPES, size=n)
    chances = rng.uniform(0.05, 0.95, (2, TYPES, size))
    u, v = (np.where(rng.random((n, size)) < each[kinds], 1.0, -1.0) for each in chances)
    return u, v


def _projected(point: Vector) -> Vector:
    with double_precision():
        return np.asarray(project_simplex(jnp.asarray(point), 1.0))


def _rows(rng: np.random.Generator, n: int, d: int) -> Vector:
    """Gaussian rows of norm 1 at most."""
    rows = rng.normal(size=(n, d))
    return rows / np.maximum(math.sqrt(d), np.linalg.norm(rows, axis=1, keepdims=True))


def _zoo(known: ZooProblem, problem: Problem, n: int, seed: int) -> Posed:
    rows, targets = known.records(n, seed)
    units = Units.from_arrays(rows, targets, row_bound=known.row_bound * (1.0 + 1e-6))
    return Posed(
        problem=problem,
        units=units,
        excess=known.excess,
        start=known.start,
        trivial=known.excess(known.start),
    )


def _linear(problem: Problem, rows: Vector, targets: Vector, units: Units) -> Posed:
    """A problem of linear predictions: its least value by L-BFGS from 0, kinks rounded off less and less."""
    smoother = [0.5, 0.05, 0.005, 0.0] if problem.loss == losses.quantile(0.5) else [0.0]
    at = np.zeros(rows.shape[1])
    for width in smoother:
        rounded = Problem(losses.quantile(0.5, width)) if width else problem
        at = _minimiser(rounded, rows, targets, at)
    return _measured(problem, rows, targets, units, at)


def _measured(problem: Problem, rows: Vector, targets: Vector, units: Units, best: Vector) -> Posed:
    def objective(params: Any) -> float:
        with double_precision():
            return float(problem.objective(jnp.asarray(params), jnp.asarray(rows), jnp.asarray(targets)))

    least = objective(best)
    return Posed(
        problem=problem,
        units=units,
        excess=lambda params: objective(params) - least,
        trivial=objective(np.zeros(rows.shape[1])) - least,
    )


def _minimiser(problem: Problem, rows: Vector, targets: Vector, start: Vector) -> Vector:
    with double_precision():
        both = jax.jit(jax.value_and_grad(problem.objective))
        data = jnp.asarray(rows), jnp.asarray(targets)
        found = minimize(
            lambda w: tuple(np.asarray(one, np.float64) for one in both(jnp.asarray(w), *data)),
            start,
            jac=True,
            method="L-BFGS-B",
            options={"maxiter": 500, "ftol": 1e-13, "gtol": 1e-8},
        )
    return found.x


def _l1_minimum(problem: Problem, rows: Vector, targets: Vector, radius: float) -> Vector:
    """On the l1 ball, by accelerated projected steps."""
    with double_precision():
        data = jnp.asarray(rows), jnp.asarray(targets)
        step = 1.0 / (0.25 * float(np.linalg.norm(rows, 2) ** 2) / len(rows))
        slope = jax.grad(problem.objective)

        @jax.jit
        def run(at: Any) -> Any:
            def move(carry: Any, t: Any) -> Any:
                w, ahead = carry
                new = project_l1_ball(ahead - step * slope(ahead, *data), radius)
                return (new, new + (t / (t + 3.0)) * (new - w)), None

            return jax.lax.scan(move, (at, at), jnp.arange(1500.0))[0][0]

        return np.asarray(run(jnp.zeros(rows.shape[1])))
