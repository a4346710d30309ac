"""Whether a loss of the user's own looks convex, and whether records share its corners: from its formula alone.

A loss is convex if `f((a + b) / 2) <= (f(a) + f(b)) / 2` for all parameters a and b. Up to 512 pairs at three distances
are tried, with rows of the longest length and targets of both signs and several sizes; all are drawn with one fixed key
and hold no data. That no pair refutes it proves nothing, so it only says which solver is likely to be the better one.

The mean of many records' losses is smooth where each has a corner of its own, as |x . w - y|, and steps settle on it;
max_j |w_j| has corners where all records have them, and steps do not. A segment is halved thirty times, each time to
the half over which the mean gradient of 64 such records moves further: there is a shared corner if what remains is over
a quarter of a gradient's length.
"""

import math
from functools import lru_cache

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array
from numpy.typing import NDArray

from privopt.precision import double_precision
from privopt.problems.losses import RecordLoss
from privopt.problems.problem import Problem
from privopt.public import Public

MOST_PAIRS, FEWEST_PAIRS = 512, 8
MOST_NUMBERS = 4_000_000  # of all pairs; a model of more than an eighth of that is not tried
DISTANCES = (0.3, 3.0, 30.0)  # over the row bound: how far predictions move
TARGETS = (-3.0, -1.0, 0.0, 1.0, 3.0)
ROUNDING = 1e-9
SEGMENTS, RECORDS, HALVINGS, JUMP = 32, 64, 30, 0.25


def looks_convex(problem: Problem, public: Public) -> bool:
    """Whether the loss states that it is convex, or states nothing and no pair refutes it. Utility only."""
    loss = problem.loss
    if not isinstance(loss, RecordLoss):
        return bool(loss.convex)
    if loss.convex is not None:
        return loss.convex
    return _no_pair_refutes(loss, problem.parameter_shape(public), public.d, public.row_bound)


def shares_corners(problem: Problem, public: Public) -> bool:
    """Whether the mean loss has corners, however many records there are. Utility only."""
    loss = problem.loss
    if not isinstance(loss, RecordLoss) or math.isfinite(loss.curvature):
        return False
    return _has_jump(loss, problem.parameter_shape(public), public.d, public.row_bound)


@lru_cache(maxsize=64)
def _no_pair_refutes(loss: RecordLoss, shape: tuple[int, ...], features: int, row_bound: float) -> bool:
    pairs = min(MOST_NUMBERS // max(math.prod(shape), features), MOST_PAIRS)
    if pairs < FEWEST_PAIRS:
        return False
    rng = np.random.default_rng(0)
    first, second = _points(rng, pairs, shape, row_bound)
    rows, targets = _records(rng, pairs, features, row_bound)
    with double_precision():
        values = jax.jit(jax.vmap(loss.value))
        low, high, middle = (
            np.asarray(values(jnp.asarray(at), rows, targets))
            for at in (first, second, 0.5 * (first + second))
        )
    chord = 0.5 * (low + high)
    known = np.isfinite(chord) & np.isfinite(middle)
    within = middle <= chord + ROUNDING * (1.0 + np.abs(low) + np.abs(high))
    return bool(np.any(known) and np.all(within[known]))


@lru_cache(maxsize=64)
def _has_jump(loss: RecordLoss, shape: tuple[int, ...], features: int, row_bound: float) -> bool:
    segments = min(MOST_NUMBERS // (RECORDS * max(math.prod(shape), features)), SEGMENTS)
    if segments < 1:
        return False
    rng = np.random.default_rng(1)
    low, high = _points(rng, segments, shape, row_bound)
    rows, targets = _records(rng, RECORDS, features, row_bound)
    with double_precision():
        each = jax.vmap(loss.gradient, in_axes=(None, 0, 0))
        means = jax.jit(jax.vmap(lambda at: jnp.mean(each(at, rows, targets), axis=0)))
        lengths = jax.jit(jax.vmap(lambda at: jnp.mean(jnp.linalg.norm(each(at, rows, targets), axis=-1))))

        def moved(one: NDArray[np.float64], other: NDArray[np.float64]) -> NDArray[np.float64]:
            return np.linalg.norm(
                (means(jnp.asarray(one)) - means(jnp.asarray(other))).reshape(segments, -1), axis=1
            )

        for _ in range(HALVINGS):
            middle = 0.5 * (low + high)
            upper = (moved(middle, high) > moved(low, middle)).reshape(-1, *[1] * len(shape))
            low, high = np.where(upper, middle, low), np.where(upper, high, middle)
        jumps, typical = moved(low, high), np.asarray(lengths(jnp.asarray(low)))
    return bool(np.any(jumps > JUMP * typical))


def _points(
    rng: np.random.Generator, pairs: int, shape: tuple[int, ...], row_bound: float
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Two ends of each segment."""
    far = rng.choice(DISTANCES, pairs).reshape(-1, *[1] * len(shape)) / row_bound
    first, second = far * rng.normal(size=(2, pairs, *shape))
    return first, second


def _records(rng: np.random.Generator, count: int, features: int, row_bound: float) -> tuple[Array, Array]:
    """Rows of the longest length, and targets."""
    rows = rng.normal(size=(count, features))
    rows *= row_bound / np.linalg.norm(rows, axis=1, keepdims=True)
    with double_precision():
        return jnp.asarray(rows), jnp.asarray(rng.choice(TARGETS, count))
