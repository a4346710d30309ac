"""The KL condition estimated from public or synthetic records: what a run without privacy shows at its end."""

import math

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from numpy.typing import ArrayLike, NDArray

from privopt.precision import double_precision
from privopt.problems.glm import GLMLoss
from privopt.problems.growth import KL
from privopt.problems.problem import Problem

SETTLED = (
    30.0  # an excess counts as known where it is this many times what the last point is short of the minimum
)
DECADES = 2.0
FEWEST_POINTS = 10
SAFETY = 2.0  # on gamma: too small a one makes bounds false, too large a one costs gamma^kappa only
ROUNDING = 1e-13


def fit_growth(
    problem: Problem,
    features: ArrayLike,
    targets: ArrayLike,
    *,
    start: ArrayLike | None = None,
    steps: int = 10_000,
    step_size: float | None = None,
) -> KL:
    """Fit (gamma, kappa) of an objective to public or synthetic records of the same design as the private ones.

    Gradient descent without noise; then log(F - F*) against log |grad F| over the last two decades of the excess that
    rounding and the estimate of F* leave: the slope is kappa, at least 1. gamma is the least that makes the condition
    hold on these points, doubled.

    Args:
        problem: loss, smooth penalty and constraint set; the set should hold the minimum inside.
        features: public records, (n, d).
        targets: their targets, (n,).
        start: default zero.
        steps: how many.
        step_size: default one over five times the curvature bound of the loss at these rows, small enough to follow
            the flow.
    Returns:
        An estimate along one path; no bound that is derived from it is proved.
    Privacy:
        None: the result is a function of the records. For public or synthetic records only.
    Raises:
        ValueError: the path is too short to fit, the penalty is not smooth, or there is no default step size.
    """
    if not problem.regulariser.is_smooth:
        raise ValueError("the growth of an objective is fitted to its gradients: it needs a smooth penalty.")
    if steps < 4 * FEWEST_POINTS:
        raise ValueError(
            f"steps must be at least {4 * FEWEST_POINTS}, got {steps}: the fit needs the end of a path."
        )
    rows, labels = np.asarray(features, np.float64), np.asarray(targets, np.float64)
    eta = _default_step_size(problem, rows) if step_size is None else step_size
    with double_precision():
        width = problem.layout.size if problem.layout is not None else rows.shape[1]
        shape = (width,) if problem.loss.outputs == 1 else (width, problem.loss.outputs)
        first = jnp.zeros(shape) if start is None else jnp.asarray(problem.ravel(start), jnp.float64)
        values, norms = _descent(problem, jnp.asarray(rows), jnp.asarray(labels), first, eta, steps)
        return _fit(np.asarray(values), np.asarray(norms))


def _default_step_size(problem: Problem, rows: NDArray[np.float64]) -> float:
    scale = float(np.max(np.sum(rows * rows, axis=1))) if isinstance(problem.loss, GLMLoss) else 1.0
    smoothness = problem.loss.curvature * scale + problem.regulariser.smoothness
    if not 0.0 < smoothness < math.inf:
        raise ValueError(f"the loss states a curvature of {problem.loss.curvature!r}: give step_size.")
    return 0.2 / smoothness


def _descent(
    problem: Problem,
    rows: Float[Array, "n d"],
    labels: Float[Array, " n"],
    start: Float[Array, "..."],
    step_size: float,
    steps: int,
) -> tuple[Array, Array]:
    """The objective and the gradient's norm at every point of plain descent."""
    objective = jax.value_and_grad(lambda params: problem.objective(params, rows, labels))

    def step(params: Array, _: None) -> tuple[Array, tuple[Array, Array]]:
        value, gradient = objective(params)
        moved = problem.constraint.project(params - step_size * gradient)
        return moved, (value, jnp.sqrt(jnp.sum(gradient * gradient)))

    _, path = jax.jit(lambda params: jax.lax.scan(step, params, None, length=steps))(start)
    return path


def _fit(values: NDArray[np.float64], norms: NDArray[np.float64]) -> KL:
    last, remaining = float(values[-1]), _remaining(values)
    excess = values - (last - remaining)
    floor = max(SETTLED * remaining, ROUNDING * max(abs(last), float(values[0])), 1e-300)
    chosen = (excess >= floor) & (excess <= floor * 10.0**DECADES) & (norms > 0.0)
    if np.count_nonzero(chosen) < FEWEST_POINTS or not excess[0] >= 10.0 * floor:
        raise ValueError(
            f"{np.count_nonzero(chosen)} points of the path lie within the two decades that can be fitted, and "
            f"{FEWEST_POINTS} are needed: take more steps, or a smaller step size where the descent ends at once."
        )
    slope, _ = np.polyfit(np.log(norms[chosen]), np.log(excess[chosen]), 1)
    kappa = max(float(slope), 1.0)
    gamma = float(np.max(excess[chosen] ** (1.0 / kappa) / norms[chosen]))
    return KL(gamma=SAFETY * gamma, kappa=kappa, gap=float(excess[0]))


def _remaining(values: NDArray[np.float64]) -> float:
    """How far the last value is above the limit, by the gains of the last half and of the quarter before.

    For an excess that falls like t^-q the gains shrink by 2^-q from one to the next; the rest is a geometric series.
    """
    quarter, half, last = (float(values[len(values) * k // 4 - 1]) for k in (1, 2, 4))
    if not quarter > half > last:
        return 0.0
    ratio = min((half - last) / (quarter - half), 0.99)
    return (half - last) * ratio / (1.0 - ratio)
