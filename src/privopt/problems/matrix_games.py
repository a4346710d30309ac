"""Matrix games whose payoffs are known: min over x, max over y of x . (A y) + p . x - q . y, solved exactly."""

from typing import Any, cast

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linprog

_linprog = cast(Any, linprog)  # its type information is incomplete
Vector = NDArray[np.float64]


def equilibrium(matrix: NDArray[np.float64], p: Vector, q: Vector) -> tuple[Vector, Vector]:
    """Optimal mixed strategies of both players, by linear programming.

    As both strategies sum to 1, the payoff is x . (A + p 1^T - 1 q^T) y. Payoffs that are no finite numbers give the
    uniform strategies.

    Args:
        matrix: A, (rows, columns).
        p: what each row adds.
        q: what each column takes away.
    Source:
        von Neumann 1928; the dual values of the program for x are y.
    """
    payoffs = matrix + p[:, None] - q[None, :]
    rows, columns = payoffs.shape
    scale = float(np.max(np.abs(payoffs)))
    uniform = np.full(rows, 1.0 / rows), np.full(columns, 1.0 / columns)
    if not np.isfinite(scale) or scale == 0.0:
        return uniform
    # Variables (x, v): minimise v where (payoffs^T x)_k <= v for every column k.
    bounds = np.hstack([payoffs.T / scale, -np.ones((columns, 1))])
    solved = _linprog(
        np.append(np.zeros(rows), 1.0),
        A_ub=bounds,
        b_ub=np.zeros(columns),
        A_eq=np.append(np.ones(rows), 0.0)[None, :],
        b_eq=np.ones(1),
        bounds=[(0.0, None)] * rows + [(None, None)],
        method="highs",
    )
    if solved.status != 0:
        return uniform
    return _normalised(solved.x[:rows]), _normalised(-solved.ineqlin.marginals)


def _normalised(weights: Any) -> Vector:
    kept = np.maximum(np.asarray(weights, np.float64), 0.0)
    total = float(np.sum(kept))
    return kept / total if total > 0 else np.full(len(kept), 1.0 / len(kept))
