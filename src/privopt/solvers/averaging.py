"""Averages of iterates, as running means with public weights, and the guard against iterates that are not finite."""

import math
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

Average = Literal["last", "tail", "weighted"]


def mixing_ratios(average: Average, steps: int) -> NDArray[np.float64]:
    """How far the running average moves to each new iterate: weight over the sum of weights so far.

    "last" keeps the last iterate, "tail" the mean of the last ceil(steps / 2), "weighted" all with weights (t + 1)^2.

    Returns:
        Shape (steps,); 1 where the average starts anew.
    """
    if average == "last":
        return np.ones(steps)
    if average == "tail":
        first = steps - math.ceil(steps / 2)
        return np.array([1.0 / (t - first + 1) if t >= first else 1.0 for t in range(steps)])
    if average == "weighted":
        weights = (np.arange(steps) + 1.0) ** 2
        return weights / np.cumsum(weights)
    raise ValueError(f"average must be 'last', 'tail' or 'weighted', got {average!r}.")


def halted_at_divergence(moved: Any, state: Any) -> Any:
    """The moved state while its iterates are finite, else the old one, marked; both are functions of releases.

    Args:
        moved: the next state, a NamedTuple with a field `finite`.
        state: the state before.
    """
    kept = jax.tree.map(lambda new, old: jnp.where(moved.finite, new, old), moved, state)
    return kept._replace(finite=moved.finite)
