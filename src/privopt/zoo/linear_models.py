"""Linear models whose objective is the mean over a fixed table of records, repeated as often as wanted."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import expit

from privopt.later import Array, Float, jnp
from privopt.problems import losses
from privopt.problems.constraints import L2Ball
from privopt.problems.glm import RecordLoss
from privopt.problems.growth import KL
from privopt.problems.problem import Problem
from privopt.zoo.problem import Records, Vector, ZooProblem, require_dimension, require_positive, vector

STEEPEST_BEND = 4.0 / (3.0 * math.sqrt(3.0))  # the largest |tanh''|


@dataclass(frozen=True)
class LeakyLinkLoss:
    """`(s(<x, w>) - y)^2 / 2` with the link `s(z) = leak z + (1 - leak) tanh(z)`, whose slopes lie in [leak, 1]."""

    leak: float

    def __call__(
        self, params: Float[Array, " d"], features: Float[Array, " d"], target: Float[Array, ""]
    ) -> Float[Array, ""]:
        """The loss of one record."""
        prediction = jnp.sum(features * params)
        return 0.5 * (self.leak * prediction + (1.0 - self.leak) * jnp.tanh(prediction) - target) ** 2


def least_squares(
    d: int = 10,
    *,
    rank: int | None = None,
    table: int = 100,
    condition: float = 10.0,
    residual: float = 0.1,
    seed: int = 0,
) -> ZooProblem:
    """Least squares of any rank: kappa = 2, mu the smallest eigenvalue of X'X / n above 0.

    Args:
        d: the number of parameters.
        rank: of the table, at most d; default d. Below d there are many minimisers.
        table: how many different records there are, more than `rank`.
        condition: the ratio of the largest to the smallest variance of the independent features.
        residual: the root mean square residual at the minimum.
        seed: of the table.
    Raises:
        ValueError: a parameter is out of its range.
    """
    features, mu = _table(d, d if rank is None else rank, table, condition, seed)
    generator = np.random.default_rng((seed, 1))
    noise = generator.standard_normal(table)
    noise -= features @ np.linalg.lstsq(features, noise, rcond=1e-10)[0]
    noise *= residual * math.sqrt(table) / np.linalg.norm(noise)
    truth = generator.standard_normal(d) / math.sqrt(d)
    targets = features @ truth + noise
    minimiser = vector(np.linalg.lstsq(features, targets, rcond=1e-10)[0])
    radius = float(np.linalg.norm(minimiser))
    lengths = np.linalg.norm(features, axis=1)
    rests = np.abs(features @ minimiser - targets)

    def excess(params: ArrayLike) -> float:
        return float(0.5 * np.mean((features @ (vector(params) - minimiser)) ** 2))

    def objective(params: ArrayLike) -> float:
        return float(0.5 * np.mean((features @ vector(params) - targets) ** 2))

    def gradient(params: ArrayLike) -> Vector:
        return features.T @ (features @ vector(params) - targets) / table

    growth = KL.of_strong_convexity(mu, gap=excess(np.zeros(d)))
    return _table_problem(
        name=f"least_squares(d={d}, rank={rank or d})",
        problem=Problem(losses.squared, growth=growth),
        region=f"everywhere; gradients: |w - w*| <= {radius:.3g}",
        lipschitz=float(np.max(lengths * (lengths * radius + rests))),
        smoothness=1.0,
        minimiser=minimiser,
        objective=objective,
        gradient=gradient,
        excess=excess,
        records=(features, targets),
    )


def leaky_link(
    d: int = 10,
    *,
    leak: float = 0.3,
    table: int = 100,
    condition: float = 4.0,
    truth_norm: float = 3.0,
    seed: int = 0,
) -> ZooProblem:
    """Square loss through the link `s(z) = leak z + (1 - leak) tanh(z)` with realisable targets: not convex.

    kappa = 2 with mu = leak^4 times the smallest eigenvalue of X'X / n, everywhere: `<grad F, w - w*> >= 2 leak F` and
    `|w - w*|^2 <= 2 F / (leak^2 lambda)`.

    Args:
        d: the number of parameters.
        leak: the smallest slope of the link, in (0, 1).
        table: how many different records there are, more than d.
        condition: the ratio of the largest to the smallest variance of the features.
        truth_norm: |w*|; the constants of one record hold where |w - w*| is at most that.
        seed: of the table.
    Raises:
        ValueError: a parameter is out of its range.
    """
    if not 0.0 < leak < 1.0:
        raise ValueError(f"leak must be in (0, 1), got {leak!r}: it is the smallest slope of the link.")
    require_positive("truth_norm", truth_norm, "the norm of the minimiser")
    features, least = _table(d, d, table, condition, seed)
    minimiser = np.random.default_rng((seed, 1)).standard_normal(d)
    minimiser *= truth_norm / np.linalg.norm(minimiser)
    targets = _leaky(features @ minimiser, leak)

    def objective(params: ArrayLike) -> float:
        return float(0.5 * np.mean((_leaky(features @ vector(params), leak) - targets) ** 2))

    def gradient(params: ArrayLike) -> Vector:
        predictions = features @ vector(params)
        slopes = leak + (1.0 - leak) * (1.0 - np.tanh(predictions) ** 2)
        return features.T @ ((_leaky(predictions, leak) - targets) * slopes) / table

    # A residual is at most |x| |w - w*|, since the link is 1-Lipschitz.
    smoothness = 1.0 + truth_norm * (1.0 - leak) * STEEPEST_BEND
    loss = RecordLoss(LeakyLinkLoss(leak), name="leaky link", lipschitz=truth_norm, curvature=smoothness)
    return _table_problem(
        name=f"leaky_link(leak={leak:g}, d={d})",
        problem=Problem(loss, growth=KL.of_strong_convexity(leak**4 * least, gap=objective(np.zeros(d)))),
        region=f"|w - w*| <= {truth_norm:g}; the growth everywhere",
        lipschitz=truth_norm,
        smoothness=smoothness,
        minimiser=minimiser,
        objective=objective,
        gradient=gradient,
        records=(features, targets),
    )


def separable_logistic(
    d: int = 10, *, margin: float = 0.2, slack: float = 0.0, table: int = 100, seed: int = 0
) -> ZooProblem:
    """Logistic loss of records that a unit vector separates with a margin, from the start 0: kappa = 1, F* = 0.

    gamma = `(1 + e^-b) log(1 + e^b) / margin` where every record's `y <x, w>` is at least -b; `2 log(2) / margin` where
    all of them are classified rightly. The infimum is attained nowhere.

    Args:
        d: the number of parameters, at least 2.
        margin: the least `y <x, u>` over the records of norm at most 1, u = (1, 0, ..., 0).
        slack: b, at least 0.
        table: how many different records there are.
        seed: of the table.
    Raises:
        ValueError: a parameter is out of its range.
    """
    require_dimension(d - 1)
    if not 0.0 < margin < 0.7:
        raise ValueError(f"margin must be in (0, 0.7), got {margin!r}: records have norm at most 1.")
    if not 0.0 <= slack < math.inf:
        raise ValueError(
            f"slack must be at least 0, got {slack!r}: every record's margin is at least -slack."
        )
    generator = np.random.default_rng(seed)
    along = generator.uniform(margin, 0.7, table)
    along[0] = margin
    across = generator.standard_normal((table, d - 1))
    across *= 0.7 / np.linalg.norm(across, axis=1, keepdims=True)
    labels = np.where(np.arange(table) % 2 == 0, 1.0, -1.0)
    features = _stored(labels[:, None] * np.column_stack([along, across]))
    margin = float(np.min(labels * features[:, 0]))

    gamma = (1.0 + math.exp(-slack)) * math.log1p(math.exp(slack)) / margin
    return _table_problem(
        name=f"separable_logistic(d={d})",
        problem=Problem(losses.logistic, growth=KL(gamma=gamma, kappa=1.0, gap=math.log(2.0))),
        region=f"y <x, w> >= {-slack:g} for every record",
        lipschitz=1.0,
        smoothness=0.25,
        objective=partial(_logistic_objective, features, labels),
        gradient=partial(_logistic_gradient, features, labels),
        records=(features, labels),
    )


def ball_logistic(
    d: int = 5, *, radius: float = 4.0, table: int = 200, condition: float = 4.0, seed: int = 0
) -> ZooProblem:
    """Logistic loss on a ball, of records that nothing separates: kappa = 2, mu = s'(radius) lambda_min(X'X / n).

    Args:
        d: the number of parameters.
        radius: B, of the constraint set around 0, which holds the minimiser inside.
        table: how many different records there are, more than d.
        condition: the ratio of the largest to the smallest variance of the features.
        seed: of the table.
    Raises:
        ValueError: a parameter is out of its range, or the minimiser of this table lies outside of the ball.
    """
    require_positive("radius", radius, "the radius of the constraint set")
    features, least = _table(d, d, table, condition, seed)
    generator = np.random.default_rng((seed, 1))
    truth = generator.standard_normal(d)
    truth *= 2.0 / np.linalg.norm(truth)
    labels = np.where(generator.uniform(size=table) < expit(features @ truth), 1.0, -1.0)
    minimiser = _logistic_minimiser(features, labels)
    if not np.linalg.norm(minimiser) < radius:
        raise ValueError(
            f"the minimiser of this table has norm {np.linalg.norm(minimiser):.3g}, outside of radius={radius!r}: "
            "take a larger radius, a larger table or another seed."
        )

    best = labels * (features @ minimiser)

    def excess(params: ArrayLike) -> float:
        # The gradient vanishes at the minimiser, so the linear parts cancel: what is left is a mean of positive terms.
        moved = labels * (features @ vector(params)) - best
        return float(np.mean(np.log1p(expit(-best) * np.expm1(-moved)) + expit(-best) * moved))

    growth = KL.of_strong_convexity(float(expit(radius) * expit(-radius)) * least, gap=excess(np.zeros(d)))
    return _table_problem(
        name=f"ball_logistic(radius={radius:g}, d={d})",
        problem=Problem(losses.logistic, constraint=L2Ball(radius), growth=growth),
        region=f"|w| <= {radius:g}",
        lipschitz=1.0,
        smoothness=0.25,
        minimiser=minimiser,
        objective=partial(_logistic_objective, features, labels),
        gradient=partial(_logistic_gradient, features, labels),
        excess=excess,
        records=(features, labels),
    )


def _table_problem(
    *,
    name: str,
    problem: Problem,
    region: str,
    lipschitz: float,
    smoothness: float,
    records: tuple[Vector, Vector],
    objective: Callable[[ArrayLike], float],
    gradient: Callable[[ArrayLike], Vector],
    minimiser: Vector | None = None,
    excess: Callable[[ArrayLike], float] | None = None,
) -> ZooProblem:
    """A problem over a table of features of norm at most 1 and their targets, from the start 0.

    Where no excess is given, the least value of the objective is 0.
    """
    features, targets = records
    return ZooProblem(
        name=name,
        problem=problem,
        start=np.zeros(features.shape[1]),
        region=region,
        lipschitz=lipschitz,
        smoothness=smoothness,
        minimum=0.0 if excess is None or minimiser is None else objective(minimiser),
        minimiser=minimiser,
        row_bound=1.0,
        round=len(targets),
        objective=objective,
        gradient=gradient,
        excess_of=objective if excess is None else excess,
        records_of=repeated_records(features, targets),
    )


def repeated_records(features: Vector, targets: Vector) -> Records:
    """The same records over and over, so that the mean loss is that of one round."""

    def records(n: int, seed: int) -> tuple[Vector, Vector]:
        del seed
        rounds, rest = divmod(n, len(targets))
        if rest:
            raise ValueError(
                f"n must be a multiple of {len(targets)}, got {n}: the objective is the mean over so many records."
            )
        return np.tile(features, (rounds, 1)), np.tile(targets, rounds)

    return records


def _table(d: int, rank: int, table: int, condition: float, seed: int) -> tuple[Vector, float]:
    """Rows of norm at most 1 and of this rank, and the smallest eigenvalue of their second moment above 0."""
    require_dimension(d)
    if not 1 <= rank <= d:
        raise ValueError(f"rank must be between 1 and d = {d}, got {rank!r}.")
    if table <= rank:
        raise ValueError(f"table must be above the rank {rank}, got {table!r}: it is a number of records.")
    if not 1.0 <= condition < math.inf:
        raise ValueError(f"condition must be at least 1, got {condition!r}: it is a ratio of variances.")
    independent = np.linalg.qr(np.random.default_rng(seed).standard_normal((table, rank)))[0]
    scaled = independent * np.geomspace(1.0, condition**-0.5, rank)
    features = scaled[
        :, np.arange(d) % rank
    ]  # the others are copies, so that the rank is exact in floating point
    features = _stored(features / np.max(np.linalg.norm(features, axis=1)) * (1.0 - 1e-6))
    return features, float(np.sort(np.linalg.eigvalsh(features.T @ features / table))[d - rank])


def _stored(features: Vector) -> Vector:
    """Numbers that float32 holds exactly, so that storage changes no record."""
    return features.astype(np.float32).astype(np.float64)


def _leaky(predictions: Vector, leak: float) -> Vector:
    return leak * predictions + (1.0 - leak) * np.tanh(predictions)


def _logistic_objective(features: Vector, labels: Vector, params: ArrayLike) -> float:
    return float(np.mean(np.logaddexp(0.0, -labels * (features @ vector(params)))))


def _logistic_gradient(features: Vector, labels: Vector, params: ArrayLike) -> Vector:
    return features.T @ (-labels * expit(-labels * (features @ vector(params)))) / len(labels)


def _logistic_minimiser(features: Vector, labels: Vector) -> Vector:
    """Newton's method from 0, which converges for a table that nothing separates and small rows."""
    params = np.zeros(features.shape[1])
    for _ in range(50):
        predictions = features @ params
        bends = expit(predictions) * expit(-predictions)
        hessian = (features * bends[:, None]).T @ features / len(labels)
        params = params - np.linalg.solve(hessian, _logistic_gradient(features, labels, params))
    return params
