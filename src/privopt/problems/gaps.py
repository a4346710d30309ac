"""How far two strategies of a game are from a saddle point, computed on records that nobody protects.

For tests and benchmarks: everything named `nonprivate_` reads data and gives back a number that reveals them. The gap
of (x, y) is max over y' of F(x, y') - min over x' of F(x', y), at least 0 and 0 at a saddle point alone.

Source:
    Gonzalez, Guzman, Paquette 2024, section 2 (the gap). Jaggi 2013 (Frank-Wolfe's certificate);
    Lacoste-Julien, Jaggi 2015 (pairwise steps); Pedregosa, Negiar, Askari, Jaggi 2020 (their lengths).
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from privopt.later import jax, jnp
from privopt.precision import in_float64
from privopt.problems.saddle import Game, Who
from privopt.problems.vertices import Vertices

Vector = NDArray[np.float64]
MOST_STEPS = 20_000
_GROWTH, _DECAY = 2.0, 0.9  # of the curvature that a step supposes, when it was too small and after each step
_ROUNDING = 1e-13  # relative; of a mean of payoffs


class Certified(NamedTuple):
    """A number between two that are known.

    Attributes:
        low: it is no less.
        high: it is no more.
    """

    low: float
    high: float


def nonprivate_gap_bilinear(
    matrix: ArrayLike, p: ArrayLike, q: ArrayLike, x: ArrayLike, y: ArrayLike
) -> float:
    """The gap of the matrix game x^T A y + p . x - q . y on two simplices, exactly.

    Args:
        matrix: A, (rows, columns).
        p: offsets of the rows, or 0.
        q: offsets of the columns, or 0.
        x: strategy of the rows.
        y: strategy of the columns.
    Privacy:
        None: the numbers are taken as they are.
    """
    payoffs, rows, columns, one, other = (np.asarray(given, np.float64) for given in (matrix, p, q, x, y))
    p_of_rows, q_of_columns = np.broadcast_to(rows, one.shape), np.broadcast_to(columns, other.shape)
    best_column = np.max(payoffs.T @ one - q_of_columns) + p_of_rows @ one
    best_row = np.min(payoffs @ other + p_of_rows) - q_of_columns @ other
    return float(best_column - best_row)


def nonprivate_gap(
    game: Game,
    features: ArrayLike,
    targets: ArrayLike | None,
    x: ArrayLike,
    y: ArrayLike,
    *,
    tolerance: float = 1e-6,
    most_steps: int = MOST_STEPS,
) -> Certified:
    """The gap of two strategies, enclosed in an interval of length 2 `tolerance` or less.

    Each player's best answer is found by Frank-Wolfe steps until its certificate, the largest that the payoff may still
    change by, is at most the tolerance. A player in whose strategy the payoff is linear answers exactly at once.

    Args:
        game: convex in x and concave in y; otherwise the interval says nothing.
        features: (n, d), a record a row.
        targets: (n,); None for zeros.
        x: strategy of the player who minimises, in coordinates.
        y: of the other, likewise.
        tolerance: of each player's best payoff.
        most_steps: after so many the interval is what it is then: longer, and as certain.
    Privacy:
        None: the records are read as they are.
    """
    against_x = nonprivate_best_payoff(
        game, features, targets, "y", x, tolerance=tolerance, most_steps=most_steps
    )
    against_y = nonprivate_best_payoff(
        game, features, targets, "x", y, tolerance=tolerance, most_steps=most_steps
    )
    return Certified(max(0.0, against_x.low - against_y.high), max(0.0, against_x.high - against_y.low))


def nonprivate_best_payoff(
    game: Game,
    features: ArrayLike,
    targets: ArrayLike | None,
    who: Who,
    against: ArrayLike,
    *,
    tolerance: float = 1e-6,
    most_steps: int = MOST_STEPS,
) -> Certified:
    """What a player reaches against a fixed strategy of the other: max F(x, .) for "y", min F(., y) for "x".

    Args:
        game: see `nonprivate_gap`.
        features: likewise.
        targets: likewise.
        who: whose best answer.
        against: the strategy of the other, in coordinates.
        tolerance: length of the interval.
        most_steps: likewise.
    Privacy:
        None: the records are read as they are.
    """
    with in_float64():
        rows = jnp.asarray(np.asarray(features, np.float64))
        labels = jnp.zeros(len(rows)) if targets is None else jnp.asarray(np.asarray(targets, np.float64))
        fixed = jnp.asarray(np.asarray(against, np.float64))

        def answer(point: Vector) -> tuple[float, Vector]:
            value, slope = _mean_payoff(jnp.asarray(point), fixed, rows, labels, game=game, who=who)
            return float(value), np.asarray(slope)

        best = _least(answer, game.players[who].vertices, tolerance, most_steps)
    return best if who == "x" else Certified(-best.high, -best.low)


@partial(jax.jit, static_argnames=("game", "who"))
def _mean_payoff(
    own: Any, fixed: Any, features: Any, targets: Any, *, game: Game, who: Who
) -> tuple[Any, Any]:
    """What a player makes small, f or -f, averaged over records, and its gradient by their strategy."""

    def mean(strategy: Any) -> Any:
        x, y = (strategy, fixed) if who == "x" else (fixed, strategy)
        payoffs = jax.vmap(lambda row, label: game.payoff(x, y, row, label))(features, targets)
        return jnp.mean(payoffs) * (1.0 if who == "x" else -1.0)

    return jax.value_and_grad(mean)(own)


def _least(
    answer: Callable[[Vector], tuple[float, Vector]], vertices: Vertices, tolerance: float, most_steps: int
) -> Certified:
    """The minimum of a convex function over a polytope, by pairwise Frank-Wolfe steps.

    A value is an upper bound, and value - <gradient, point - best vertex> a lower one, at every point.
    """
    value, slopes = _along(answer, vertices, vertices.uniform())
    low, high = value - (float(np.mean(slopes)) - float(np.min(slopes))), value
    weights = np.zeros(vertices.count)
    weights[int(np.argmin(slopes))] = 1.0
    value, slopes = _along(answer, vertices, weights)
    curvature = 1e-6
    for _ in range(most_steps):
        toward, away = int(np.argmin(slopes)), int(np.argmax(np.where(weights > 0, slopes, -np.inf)))
        low = max(low, value - (float(weights @ slopes) - float(slopes[toward])))
        high = min(high, value)
        descent = float(slopes[away] - slopes[toward])
        floor = _ROUNDING * (1.0 + abs(value))
        if high - low <= max(tolerance, floor) or descent <= 0:
            break
        while True:
            step = min(float(weights[away]), descent / curvature)
            moved = weights.copy()
            moved[toward] += step
            moved[away] = 0.0 if step == weights[away] else moved[away] - step
            there, there_slopes = _along(answer, vertices, moved)
            if there <= value - step * descent + 0.5 * curvature * step**2 + floor:
                break
            curvature *= _GROWTH
        weights, value, slopes = moved / np.sum(moved), there, there_slopes
        curvature *= _DECAY
    return Certified(low, max(low, high))


def _along(
    answer: Callable[[Vector], tuple[float, Vector]], vertices: Vertices, weights: Vector
) -> tuple[float, Vector]:
    """The value at a mixture of the vertices, and the slope along each of them."""
    value, slope = answer(vertices.mix(weights))
    return value, np.asarray(vertices.along(slope))
