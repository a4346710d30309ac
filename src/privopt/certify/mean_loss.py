"""The objective of a problem on given records, and its gradients at many points at once. Not private."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array
from numpy.typing import ArrayLike, NDArray

from privopt.problems.constraints import Unconstrained
from privopt.problems.glm import GLMLoss, Loss, RecordLoss
from privopt.problems.grouped_loss import GroupedLoss
from privopt.problems.problem import Problem

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
