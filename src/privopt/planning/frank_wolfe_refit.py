"""The second stage of Frank-Wolfe: the problem on the features that were selected, and how far a descent steps there.

All of it is a function of public numbers and of released parameters. Features have entries of at most a public e; with
k of them gradients are clipped at `SLOPE e sqrt(k)`, in a balanced way where the loss has one, and a step is `STEP /
(curvature e^2)`: 0.5 sqrt(k) and 1 for the logistic loss and entries within 1. Balanced gradients are shorter, up to
half, so steps are twice as long; where there are many features, which may be correlated, they are shorter again.
"""

import math
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Array, Float
from numpy.typing import NDArray

from privopt.problems.constraints import Box, Constraint, L1Ball, Product, Simplex
from privopt.problems.glm import GLMLoss
from privopt.problems.problem import Problem
from privopt.problems.regularisers import NoRegulariser, Regulariser, Ridge
from privopt.public import Public

STEPS = 20
SLOPE = 0.5  # that gradients are clipped at, over the loss's largest; over 1 where that is infinite
STEP = 0.25  # over the curvature of the loss in one feature; over 1 where that is infinite
MANY = 16  # features: with k of them more, a step is sqrt(MANY / k) times as long


@dataclass(frozen=True, kw_only=True, eq=False)
class Restriction:
    """A problem on some of the features.

    Attributes:
        features: which, in order; released.
        problem: on them alone.
        matrix: (d, k), which takes rows to their entries in these features.
        row_bound: of the rows that are left.
        clip: of gradients.
        balanced: whether gradients are shortened without regard to their targets, see `ClippedGradient`.
        step_size: of descent.
    """

    features: NDArray[np.int64]
    problem: Problem
    matrix: NDArray[np.float64]
    row_bound: float
    clip: float
    balanced: bool
    step_size: float


def obstacle(problem: Problem) -> str | None:
    """Why a problem cannot be restricted to some of the features, or None if it can."""
    if not isinstance(problem.loss, GLMLoss):
        return "a refit drops features, and the parameters of a user-written loss belong to none: use refit=False"
    if not isinstance(problem.regulariser, Ridge | NoRegulariser):
        return f"a refit cannot restrict {problem.regulariser!r} to some of the features: use refit=False"
    outputs = problem.loss.outputs
    if any(size % outputs for _, size in _blocks(problem.constraint, outputs)):
        return "a refit drops whole features, and a part of the set holds some classes of one only: use refit=False"
    if any(
        not isinstance(block, L1Ball | Simplex | Box) for block, _ in _blocks(problem.constraint, outputs)
    ):
        return f"a refit cannot restrict {problem.constraint!r} to some of the features: use refit=False"
    return None


def restricted(problem: Problem, public: Public, params: Float[Array, "..."]) -> Restriction:
    """The problem on the features with a parameter that is not 0, and on all within a box.

    Args:
        problem: on all features.
        public: of all features.
        params: released.
    """
    outputs = problem.loss.outputs
    used = np.any(np.asarray(params).reshape(public.d, outputs) != 0, axis=1)
    kept: list[tuple[Constraint, NDArray[np.int64]]] = []
    start = 0
    for block, size in _blocks(problem.constraint, public.d * outputs):
        rows = np.arange(start, start + size // outputs)
        chosen = rows if isinstance(block, Box) else rows[used[rows]]
        kept.append((_part(block, size), chosen if len(chosen) else rows[:1]))
        start += len(rows)
    features = np.concatenate([rows for _, rows in kept])
    parts = tuple((block, len(rows) * outputs) for block, rows in kept)
    matrix = np.zeros((public.d, len(features)))
    matrix[features, np.arange(len(features))] = 1.0
    entries, loss = public.largest_entry, problem.loss
    longest = entries * math.sqrt(len(features))
    balanced = isinstance(loss, GLMLoss) and loss.balances
    fewer = min(1.0, math.sqrt(MANY / len(features)))
    curvature = loss.curvature if math.isfinite(loss.curvature) else 1.0
    return Restriction(
        features=features,
        problem=replace(
            problem,
            regulariser=_penalty(problem.regulariser, features),
            constraint=parts[0][0] if len(parts) == 1 else Product(parts),
            growth=None,
        ),
        matrix=matrix,
        row_bound=min(public.row_bound, longest * (1.0 + 1e-6)),  # rounded up, so that no row is shortened
        clip=SLOPE * (loss.lipschitz if math.isfinite(loss.lipschitz) else 1.0) * longest,
        balanced=balanced,
        step_size=STEP * (1.0 + balanced) * fewer / (curvature * entries**2),
    )


def _blocks(constraint: Constraint, parameters: int) -> tuple[tuple[Constraint, int], ...]:
    return constraint.parts if isinstance(constraint, Product) else ((constraint, parameters),)


def _part(block: Constraint, size: int) -> Constraint:
    """The same set; a box by its ends in every coordinate, of which all are kept."""
    if not isinstance(block, Box):
        return block
    low, high = block.bounds((size,))
    return Box(tuple(low.tolist()), tuple(high.tolist()))


def _penalty(regulariser: Regulariser, features: NDArray[np.int64]) -> Regulariser:
    if not isinstance(regulariser, Ridge) or regulariser.weights is None:
        return regulariser
    return replace(regulariser, weights=tuple(regulariser.weights[j] for j in features.tolist()))
