"""An upper bound on the Goldstein norm of a function at a point, by an explicit convex combination of gradients.

The Goldstein norm of F at x with radius r is the length of the shortest vector in the convex hull of all gradients of F
in the ball of radius r around x. A shortest vector of the hull of some of them is no shorter, so every set of points
gives an upper bound; this one looks for points that make it small.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from privopt.later import Array, Float, is_array, jax, jnp
from privopt.precision import in_float64
from privopt.problems.constraints import Unconstrained
from privopt.problems.glm import GLMLoss, Loss, RecordLoss
from privopt.problems.grouped_loss import GroupedLoss
from privopt.problems.problem import Problem

Gradient = Callable[[NDArray[np.float64]], ArrayLike]
_Batch = Callable[[NDArray[np.float64]], NDArray[np.float64]]
NO_DIRECTION = 1e-9  # of the longest gradient: a shorter combination is rounding, and points nowhere
_INSIDE = 1.0 - 1e-9  # of the radius: points are within the ball after rounding
_PATIENCE = 12  # rounds without progress
_PROGRESS = 1e-3  # relative


@dataclass(frozen=True)
class GoldsteinNorm:
    """An upper bound on the Goldstein norm at a point. Not private: it was computed from the data without noise.

    Attributes:
        norm: the bound, `|weights @ gradients|`; of values, an estimate of it.
        radius: r of the ball.
        points: where gradients were taken, (k, ...), all within the ball.
        weights: of the convex combination, (k,), none negative, of sum 1.
        gradients: at the points, (k, ...).
        decrease: F(x) - F(x - r v / |v|), v the shortest combination: what a step of length r against it gains. None
            if no values of F were to be had, or if v is 0 up to rounding.
        estimated: whether gradients were estimated from values, so that `norm` is no strict bound.
    """

    norm: float
    radius: float
    points: Float[NDArray[np.float64], "k ..."] = field(repr=False)
    weights: Float[NDArray[np.float64], " k"] = field(repr=False)
    gradients: Float[NDArray[np.float64], "k ..."] = field(repr=False)
    decrease: float | None = None
    estimated: bool = False

    def __str__(self) -> str:
        kind = "about, from values alone," if self.estimated else "at most"
        gain = "" if self.decrease is None else f" A step of that length gains {self.decrease:.3g}."
        return (
            f"Goldstein norm {kind} {self.norm:.3g} within radius {self.radius:.3g}: no single direction improves the "
            f"function faster everywhere in that ball.{gain} Not private: computed from the data without noise."
        )

    def __repr__(self) -> str:
        kind = "estimate" if self.estimated else "upper bound"
        return f"GoldsteinNorm({self.norm:.6g}, {kind} at radius {self.radius:.6g}; NOT PRIVATE)"


def goldstein(
    function: Gradient | Problem,
    x: Any,
    *,
    radius: float,
    X: ArrayLike | None = None,
    y: ArrayLike | None = None,
    value: Callable[[NDArray[np.float64]], Any] | None = None,
    seed: int = 0,
    rounds: int = 60,
    tolerance: float = 0.0,
) -> GoldsteinNorm:
    """Bound how fast a function can still be improved around a point: for its owner, without any privacy.

    It never reports less than the true norm, but for rounding, and may report more: by up to 2 % where it is a good
    part of the longest gradient, by more where it is nearly 0. No lower bound can be had from finitely many gradients.
    Gradients are taken at random points and never at `x` itself, which often is a kink, where automatic differentiation
    may return what is no limit of gradients.

    Args:
        function: the gradient of F, a point to an array of its shape, differentiable almost everywhere; or a problem,
            whose F is the mean loss over the records of `X` and `y` plus the penalty.
        x: the point, an array of any shape; or a pytree of parameters like that of the problem's loss.
        radius: of the ball, positive.
        X: records of a problem, (n, d), as the loss takes them: nothing is shortened or scaled here.
        y: their targets, (n,).
        value: F itself, for `decrease`; known for a problem.
        seed: of the random points.
        rounds: at most so many rounds of 12 gradients.
        tolerance: stop when the bound is no larger.
    Returns:
        The bound and the combination that proves it.
    Privacy:
        None: do not publish it. A private certificate is in the findings of a run.
    Raises:
        ValueError: the radius is not positive, or lost beside the size of x in float64; records are missing; a gradient
            has another shape or is not finite.
    Source:
        Goldstein 1977; the search in the manner of Lin, Zheng, Jordan 2022 is ours.
    """
    with in_float64():
        at = _as_array(function, x)
        batch, value = _as_batch(function, at, X, y, value)
        found = search(batch, at.ravel(), radius=radius, seed=seed, rounds=rounds, tolerance=tolerance)
        points, weights, gradients = found
        shortest = weights @ gradients
        norm = float(np.linalg.norm(shortest))
        decrease = None
        if value is not None and norm > 0:
            moved = at - (radius * shortest / norm).reshape(at.shape)
            decrease = float(np.asarray(value(at))) - float(np.asarray(value(moved)))
    shape = (len(points), *at.shape)
    return GoldsteinNorm(norm, radius, points.reshape(shape), weights, gradients.reshape(shape), decrease)


def search(
    gradients: _Batch, at: NDArray[np.float64], *, radius: float, seed: int, rounds: int, tolerance: float
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Points of the ball, weights and gradients, of a convex combination of gradients that is short.

    Args:
        gradients: of rows of points, (k, p) to (k, p).
        at: the centre, (p,).
        radius: of the ball.
        seed: of the random points.
        rounds: at most so many.
        tolerance: stop when the combination is no longer.
    """
    _check_radius(radius, at)
    rng = np.random.default_rng(seed)
    size = at.size
    shift = np.concatenate(
        [
            1e-6 * _in_ball(rng, 1, size),
            _in_ball(rng, size + 1, size),
            _on_sphere(rng, size + 1, size),
        ]
    )
    points = at + radius * _INSIDE * shift
    slopes = _checked(gradients(points), points)
    shortest, weights = wolfe_min_norm(slopes)
    lengths = [float(np.linalg.norm(shortest))]
    for _ in range(rounds):
        stuck = len(lengths) > _PATIENCE and lengths[-1] > (1.0 - _PROGRESS) * lengths[-1 - _PATIENCE]
        if lengths[-1] <= tolerance or stuck:
            break
        fresh = at + radius * _candidates(rng, shortest / lengths[-1])
        kept = weights > 0
        points = np.concatenate([points[kept], fresh])
        slopes = np.concatenate([slopes[kept], _checked(gradients(fresh), fresh)])
        shortest, weights = wolfe_min_norm(slopes)
        lengths.append(float(np.linalg.norm(shortest)))
    kept = weights > 0
    points, slopes, weights = points[kept], slopes[kept], weights[kept] / weights[kept].sum()
    assert np.all(np.linalg.norm(points - at, axis=1) <= radius)
    return points, weights, slopes


def _candidates(rng: np.random.Generator, uphill: NDArray[np.float64]) -> NDArray[np.float64]:
    """Points of the unit ball where the gradient may differ from those met: down the line, and on the sphere below."""
    size = uphill.size
    steps = np.concatenate([[1.0], rng.uniform(size=5)])
    down = -(1.0 - 2e-7) * steps[:, None] * uphill + 1e-7 * _in_ball(rng, 6, size)
    if size == 1:
        return down
    across = rng.normal(size=(6, size))
    across -= (across @ uphill)[:, None] * uphill
    across /= np.maximum(np.linalg.norm(across, axis=1), 1e-300)[:, None]
    # Heights uniform in (0, 1): points of a narrow cap around the line, or of the uniform half sphere, miss by more.
    height = rng.uniform(size=(6, 1))
    return np.concatenate([down, _INSIDE * (-height * uphill + np.sqrt(1.0 - height**2) * across)])


def _on_sphere(rng: np.random.Generator, count: int, size: int) -> NDArray[np.float64]:
    drawn = rng.normal(size=(count, size))
    return drawn / np.maximum(np.linalg.norm(drawn, axis=1), 1e-300)[:, None]


def _in_ball(rng: np.random.Generator, count: int, size: int) -> NDArray[np.float64]:
    return rng.uniform(size=(count, 1)) ** (1.0 / size) * _on_sphere(rng, count, size)


def _check_radius(radius: float, at: NDArray[np.float64]) -> None:
    if not (np.isfinite(radius) and radius > 0):
        raise ValueError(
            f"radius must be positive and finite, got {radius!r}: at radius 0 the norm is that of limits of gradients, "
            "which no gradient at another point shows."
        )
    if not np.all(np.isfinite(at)) or at.size == 0:
        raise ValueError("x must hold numbers, all finite: it is the centre of the ball.")
    size = float(np.max(np.abs(at)))
    if radius < 1e-6 * size:
        raise ValueError(
            f"radius {radius:.3g} is lost beside the size of x, {size:.3g}, in double precision: take a radius of at "
            "least a millionth of it."
        )


def _checked(slopes: Any, points: NDArray[np.float64]) -> NDArray[np.float64]:
    rows = np.asarray(slopes, np.float64)
    if rows.shape != points.shape or not np.all(np.isfinite(rows)):
        raise ValueError(
            "the gradient at a point of the ball has another shape than x or is not finite: give a function that is "
            "differentiable almost everywhere within the radius."
        )
    return rows


def _as_array(function: Gradient | Problem, x: Any) -> NDArray[np.float64]:
    """The point as an array; a pytree of parameters as a flat vector."""
    if isinstance(function, Problem) and function.layout is not None and not is_array(x):
        return np.asarray(function.ravel(x), np.float64)
    return np.asarray(x, np.float64)


def _as_batch(
    function: Gradient | Problem,
    at: NDArray[np.float64],
    X: ArrayLike | None,
    y: ArrayLike | None,
    value: Callable[[NDArray[np.float64]], Any] | None,
) -> tuple[_Batch, Callable[[NDArray[np.float64]], Any] | None]:
    """The gradients of rows of flat points, and F."""
    if isinstance(function, Problem):
        if X is None or y is None:
            raise ValueError(
                "a problem is certified on records: give X, of shape (n, d), and y, of shape (n,)."
            )
        gradients, objective = gradient_of_problem(function, X, y, at.shape)
        return gradients, objective if value is None else value
    if not callable(function):
        raise TypeError(
            f"give a Problem(loss, ...), or a function from a point to a gradient there, got {type(function).__name__}."
        )
    if X is not None or y is not None:
        raise ValueError(
            "X and y go with a problem, such as Problem(loss) of a loss of records; a gradient is a function of the "
            "point alone."
        )

    def one_by_one(points: NDArray[np.float64]) -> NDArray[np.float64]:
        rows = [np.ravel(np.asarray(function(point.reshape(at.shape)), np.float64)) for point in points]
        if any(row.size != at.size for row in rows):
            raise ValueError(
                f"the gradient must have as many entries as x, {at.size}, got {rows[0].size}: it maps a point to an "
                "array of its shape."
            )
        return np.stack(rows)

    return one_by_one, value


# ---- The shortest vector of the convex hull of some vectors ------------------------------------------------
# Source:
#     Wolfe 1976, Finding the nearest point in a polytope. Corrals are solved by least squares on differences, so that
#     vectors may coincide.
_LEAST_WEIGHT = 1e-15
_GAP = 1e-14  # relative to the longest vector squared: when a point counts as the shortest


def wolfe_min_norm(
    vectors: Float[NDArray[np.float64], "k d"],
) -> tuple[Float[NDArray[np.float64], " d"], Float[NDArray[np.float64], " k"]]:
    """The shortest vector of the convex hull, and weights that give it.

    Args:
        vectors: finite, one a row, at least one.
    Returns:
        v and weights of sum 1, none negative, with `v = weights @ vectors`; `<g, v> >= |v|^2` for every row g, up to
        1e-14 of the longest row's square.
    """
    peak = float(np.max(np.abs(vectors)))
    weights = np.zeros(len(vectors))
    if peak == 0.0:
        weights[0] = 1.0
        return np.zeros(vectors.shape[1]), weights
    rows = vectors / peak
    rows /= np.max(np.linalg.norm(rows, axis=1))
    corral = [int(np.argmin(np.linalg.norm(rows, axis=1)))]
    shares = np.ones(1)
    shortest = rows[corral[0]]
    for _ in range(20 * sum(rows.shape)):
        along = rows @ shortest
        entering = int(np.argmin(along))
        length = float(shortest @ shortest)
        if length - float(along[entering]) <= _GAP or entering in corral:
            break
        candidate, kept = _shortest_of([*corral, entering], np.append(shares, 0.0), rows)
        found = candidate @ rows[kept]
        if not float(found @ found) < length:  # by rounding alone
            break
        corral, shares, shortest = kept, candidate, found
    weights[corral] = shares / shares.sum()
    return weights @ vectors, weights


def _shortest_of(
    corral: list[int], shares: NDArray[np.float64], rows: NDArray[np.float64]
) -> tuple[NDArray[np.float64], list[int]]:
    """Weights of the shortest vector of a corral's affine hull; rows leave it until all weights are positive."""
    while True:
        affine = _affine_weights(rows[corral])
        if np.all(affine > _LEAST_WEIGHT):
            return affine, corral
        leaving = affine <= _LEAST_WEIGHT
        step = float(np.min(shares[leaving] / np.maximum(shares[leaving] - affine[leaving], 1e-300)))
        moved = (1.0 - step) * shares + step * affine
        stay = moved > _LEAST_WEIGHT
        if np.all(stay):  # the row that reached zero did so up to rounding
            stay[int(np.argmin(moved))] = False
        corral = [row for row, kept in zip(corral, stay, strict=True) if kept]
        shares = moved[stay] / moved[stay].sum()


def _affine_weights(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """Weights of sum 1 of the shortest vector of the affine hull."""
    if len(rows) == 1:
        return np.ones(1)
    rest = np.linalg.lstsq((rows[1:] - rows[0]).T, -rows[0], rcond=None)[0]
    return np.concatenate([[1.0 - rest.sum()], rest])


# ---- The objective of a problem on given records, and its gradients at many points at once. Not private ----
_POINTS_AT_ONCE = 2**24  # predictions held together


def gradient_of_problem(
    problem: Problem, X: ArrayLike, y: ArrayLike, shape: tuple[int, ...]
) -> tuple[Callable[[NDArray[np.float64]], NDArray[np.float64]], Callable[[NDArray[np.float64]], Any]]:
    """Gradients of mean loss plus penalty at rows of flat points, and the objective at one point.

    Args:
        problem: unconstrained, with a generalised-linear loss or one that JAX differentiates.
        X: records, (n, d).
        y: targets, (n,).
        shape: of the parameters.
    Raises:
        TypeError: the loss has no gradients.
        ValueError: the problem is constrained or one of groups, or records and targets do not go together.
    """
    loss = problem.loss
    if not (type(loss) is RecordLoss or isinstance(loss, GLMLoss)):
        raise TypeError(
            f"a {type(loss).__name__} has no gradient of one record's loss: estimate from values by "
            "certify.goldstein_of_values, or give the gradient as a function."
        )
    if isinstance(loss, GroupedLoss):
        raise ValueError(
            "the problem is about the worst of several groups, not about a mean: give the gradient as a function."
        )
    if not isinstance(problem.constraint, Unconstrained):
        raise ValueError(
            "the problem has a constraint set: at its boundary a point may be best although no gradient is small. "
            "Certify the problem without the set where the point lies inside."
        )
    private_rows, private_targets = jnp.asarray(X, jnp.float64), jnp.asarray(y, jnp.float64)
    if private_rows.ndim != 2 or private_targets.shape != private_rows.shape[:1] or not len(private_targets):
        raise ValueError(
            f"X must have shape (n, d) and y (n,), got {private_rows.shape} and {private_targets.shape}."
        )
    d = private_rows.shape[1]
    expected = (d,) if loss.outputs == 1 else (d, loss.outputs)
    if isinstance(loss, GLMLoss) and shape != expected:
        raise ValueError(
            f"x must have shape {expected}, for the columns of X, got {shape}: an intercept has a column of its own."
        )

    @jax.jit
    def at_points(points: Array, private_rows: Array, private_targets: Array) -> Array:
        shaped = jnp.reshape(points, (points.shape[0], *shape))
        if isinstance(loss, GLMLoss):
            private_slopes = _glm_gradients(loss, shaped, private_rows, private_targets)
        else:
            private_slopes = jax.lax.map(
                lambda at: _own_gradient(loss, at, private_rows, private_targets), shaped
            )
        penalty = jax.vmap(jax.grad(problem.regulariser.value))(shaped)
        return jnp.reshape(private_slopes + penalty, points.shape)

    def gradients(points: NDArray[np.float64]) -> NDArray[np.float64]:
        step = max(1, _POINTS_AT_ONCE // (len(private_targets) * loss.outputs))
        parts = [
            np.asarray(at_points(points[k : k + step], private_rows, private_targets))
            for k in range(0, len(points), step)
        ]
        return np.concatenate(parts)

    def objective(at: NDArray[np.float64]) -> Any:
        return problem.objective(jnp.asarray(at), private_rows, private_targets)

    return gradients, objective


def _glm_gradients(loss: GLMLoss, points: Array, private_rows: Array, private_targets: Array) -> Array:
    """Mean gradients at points (k, d) or (k, d, K): two products for all of them."""
    private_predictions = jnp.tensordot(private_rows, points, axes=(1, 1))  # (n, k) or (n, k, K)
    private_wide = jnp.broadcast_to(private_targets[:, None], private_predictions.shape[:2])
    private_slopes = loss.slope(private_predictions, private_wide)
    private_sums = jnp.tensordot(private_rows, private_slopes, axes=(0, 0))  # (d, k) or (d, k, K)
    return jnp.moveaxis(private_sums, 1, 0) / private_rows.shape[0]


def _own_gradient(loss: Loss, at: Array, private_rows: Array, private_targets: Array) -> Array:
    assert isinstance(loss, RecordLoss)

    def mean_loss(params: Array) -> Array:
        return jnp.mean(jax.vmap(loss.value, (None, 0, 0))(params, private_rows, private_targets))

    return jax.grad(mean_loss)(at)


# ---- The Goldstein norm estimated from values alone, for a function without a gradient ---------------------


def goldstein_of_values(
    value: Callable[[NDArray[np.float64]], Any],
    x: ArrayLike,
    *,
    radius: float,
    smoothing: float | None = None,
    blocks: int = 50,
    seed: int = 0,
    rounds: int = 60,
) -> GoldsteinNorm:
    """Estimate how fast a function can still be improved around a point, from its values: not private, and no bound.

    In place of a gradient stands the average of `blocks` differences along all directions of random orthonormal bases,
    which estimates the gradient of F averaged over a ball of radius `smoothing`; points are taken in the ball of what
    is left of the radius. The chance in these estimates is not covered: the norm may come out too small or too large.

    Args:
        value: F, a point to a number.
        x: the point, an array of any shape.
        radius: of the ball, positive.
        smoothing: of the averages, positive and below the radius; a quarter of it by default.
        blocks: bases for each gradient; each takes 2 d values.
        seed: of the random points and bases.
        rounds: at most so many rounds of 12 gradients.
    Returns:
        The estimate; its `gradients` are estimates.
    Privacy:
        None: do not publish it.
    Raises:
        ValueError: a radius is not positive, the smoothing radius is not the smaller one, or a value is not finite.
    """
    at = np.asarray(x, np.float64)
    reach = radius / 4.0 if smoothing is None else smoothing
    if not (np.isfinite(radius) and 0.0 < reach < radius):
        raise ValueError(
            f"smoothing must lie between 0 and the radius, got {reach!r} and {radius!r}: gradients are estimated over "
            "balls of that radius, around points within the rest."
        )
    if blocks < 1:
        raise ValueError(f"blocks must be at least 1, got {blocks}: each is a basis of directions.")
    rng = np.random.default_rng([seed, 1])

    def number(point: NDArray[np.float64]) -> float:
        return float(np.asarray(value(point.reshape(at.shape))))

    def estimate(point: NDArray[np.float64]) -> NDArray[np.float64]:
        total = np.zeros(point.size)
        for _ in range(blocks):
            factor, triangle = np.linalg.qr(rng.normal(size=(point.size, point.size)))
            for direction in (factor * np.where(np.diag(triangle) < 0, -1.0, 1.0)).T:
                step = reach * direction
                total += (number(point + step) - number(point - step)) / (2.0 * reach) * direction
        return total / blocks

    with in_float64():
        points, weights, gradients = search(
            lambda rows: np.stack([estimate(row) for row in rows]),
            at.ravel(),
            radius=radius - reach,
            seed=seed,
            rounds=rounds,
            tolerance=0.0,
        )
        shortest = weights @ gradients
        norm = float(np.linalg.norm(shortest))
        decrease = None
        if norm > NO_DIRECTION * np.max(np.linalg.norm(gradients, axis=1)):
            decrease = number(at.ravel()) - number(at.ravel() - radius * shortest / norm)
    shape = (len(points), *at.shape)
    return GoldsteinNorm(
        norm, radius, points.reshape(shape), weights, gradients.reshape(shape), decrease, True
    )
