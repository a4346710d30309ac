"""A clip for a loss of the user's own, from records that are public or made up."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array
from numpy.typing import ArrayLike

from privopt.precision import double_precision
from privopt.problems.problem import Problem


def clip_from(
    problem: Problem, public_features: ArrayLike, public_targets: ArrayLike, *, at: Array | None = None
) -> float:
    """The median norm of a record's gradient, over public or made-up records.

    Args:
        problem: whose loss.
        public_features: rows like the private ones, (m, d). **Never rows of the private data.**
        public_targets: their targets, (m,).
        at: the point, such as the start of the solve; default zero.
    Returns:
        A clip: about half of the records would be shortened, at first; fewer as the gradients shrink.
    Raises:
        ValueError: all gradients are zero or not finite, so that no scale can be read off.
    """
    with double_precision():
        rows = jnp.asarray(public_features, jnp.float64)
        targets = jnp.asarray(public_targets, jnp.float64)
        point = (
            jnp.zeros(_shape(problem, rows), jnp.float64)
            if at is None
            else jnp.asarray(problem.ravel(at), jnp.float64)
        )
        gradients = jax.vmap(problem.record_gradient, (None, 0, 0))(point, rows, targets)
        norms = np.sqrt(np.sum(np.asarray(gradients).reshape(len(rows), -1) ** 2, axis=1))
    median = float(np.median(norms))
    if not (np.isfinite(median) and median > 0):
        raise ValueError(
            f"the median gradient norm of these records is {median!r}: give records whose gradients are finite and not "
            "zero, or another point `at`."
        )
    return median


def _shape(problem: Problem, rows: Array) -> tuple[int, ...]:
    """The shape of the parameters, by the number of features."""
    if problem.layout is not None:
        return (problem.layout.size,)
    d, outputs = int(rows.shape[1]), problem.loss.outputs
    return (d,) if outputs == 1 else (d, outputs)
