"""Averages of iterates, as running means with public weights, and the guard against iterates that are not finite."""

import math
from collections.abc import Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array
from numpy.typing import NDArray

Average = Literal["last", "tail", "weighted", "settled", "late"]
WINDOW = 10  # released gradients that are averaged before their norm is looked at


def mixing_ratios(
    average: Average, steps: int, precision: NDArray[np.float64] | None = None
) -> NDArray[np.float64]:
    """How far the running average moves to each new iterate: weight over the sum of weights so far.

    "last" keeps the last iterate, "tail" the mean of the last ceil(steps / 2); the others weigh all of them: "weighted"
    with (t + 1)^2, "settled" with min(t + 1, 8)^3 (for well-conditioned problems), "late" with (t + 1)^5.

    Args:
        average: which weights.
        steps: how many iterates there are.
        precision: one over the noise variance of each step, by which the weights are multiplied; None if all are equal.
    Returns:
        Shape (steps,); 1 where the average starts anew.
    """
    t = np.arange(steps)
    if average == "last":
        return np.ones(steps)
    if average == "tail":
        weights = (t >= steps - math.ceil(steps / 2)).astype(np.float64)
    elif average == "weighted":
        weights = (t + 1.0) ** 2
    elif average == "settled":
        weights = np.minimum(t + 1.0, 8.0) ** 3
    elif average == "late":
        weights = (t + 1.0) ** 5
    else:
        raise ValueError(f"average must be 'last', 'tail', 'weighted', 'settled' or 'late', got {average!r}.")
    if precision is not None:
        weights = weights * precision
    sums = np.cumsum(weights)
    return np.where(weights > 0, weights / np.where(sums > 0, sums, 1.0), 1.0)


def flattest(points: Sequence[Array], slopes: Sequence[Array]) -> Array:
    """The middle point of the window over which the mean of the released slopes is smallest. Post-processing.

    Args:
        points: where the slopes were taken.
        slopes: released gradients, that of a smooth penalty included.
    """
    width = min(WINDOW, len(points))
    stacked = np.stack([np.asarray(slope, np.float64).ravel() for slope in slopes])
    sums = np.concatenate([np.zeros((1, stacked.shape[1])), np.cumsum(stacked, axis=0)])
    norms = np.linalg.norm(sums[width:] - sums[:-width], axis=1)
    start = int(np.argmin(np.where(np.isfinite(norms), norms, np.inf)))
    return points[start + width // 2]


def halted_at_divergence(moved: Any, state: Any) -> Any:
    """The moved state while its iterates are finite, else the old one, marked; both are functions of releases.

    Args:
        moved: the next state, a NamedTuple with a field `finite`.
        state: the state before.
    """
    kept = jax.tree.map(lambda new, old: jnp.where(moved.finite, new, old), moved, state)
    return kept._replace(finite=moved.finite)
