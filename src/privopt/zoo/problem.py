"""What a problem of the zoo is: an objective whose constants and minimum are known in closed form.

There are two kinds: a function that every record tilts (`zoo_tilted`), and linear models over a table of records that
are repeated as often as wanted (`zoo_linear_models`).
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from privopt.problems.growth import KL
from privopt.problems.problem import Problem

Vector = NDArray[np.float64]
Records = Callable[[int, int], tuple[Vector, Vector]]


@dataclass(frozen=True, kw_only=True, eq=False)
class ZooProblem:
    """A problem with a known minimum and known constants, for studying solvers.

    Attributes:
        name: the problem and its parameters.
        problem: loss, constraint set and growth, as a solver takes them.
        start: where the constants suppose that a run begins.
        region: where the constants hold, in words.
        lipschitz: L0, a bound on the norm of one record's gradient on the region.
        smoothness: L1, a bound on the curvature of one record's loss on the region; infinite if it is not smooth.
        minimum: F*, the least value of the objective.
        minimiser: a point where it is attained, the nearest to the start if there are several; None if there is none.
        row_bound: the largest norm of a record's features.
        round: the records come in multiples of so many, of which the others are copies; 1 if there is no such table.
        objective: F at some parameters.
        gradient: the gradient of F.
        excess_of: F minus F* at some parameters, computed without a difference of near equals where that is possible.
        records_of: see `records`.
    """

    name: str
    problem: Problem
    start: Vector
    region: str
    lipschitz: float
    smoothness: float
    minimum: float
    minimiser: Vector | None
    row_bound: float
    round: int
    objective: Callable[[ArrayLike], float]
    gradient: Callable[[ArrayLike], Vector]
    excess_of: Callable[[ArrayLike], float]
    records_of: Records

    @property
    def growth(self) -> KL:
        """The KL condition that the objective satisfies on the region."""
        assert self.problem.growth is not None
        return self.problem.growth

    @property
    def shared_gradient(self) -> bool:
        """Whether the gradients of all records differ by constants only: that of x is `grad F(w) + x`."""
        return self.round == 1

    @property
    def d(self) -> int:
        """The number of parameters."""
        return len(self.start)

    def excess(self, params: ArrayLike) -> float:
        """The objective at these parameters above its least value."""
        return self.excess_of(params)

    def records(self, n: int, seed: int = 0) -> tuple[Vector, Vector]:
        """Records whose mean loss is the objective exactly, up to rounding.

        Args:
            n: how many.
            seed: of the records that are drawn at random.
        Returns:
            Features of shape (n, k) and targets of shape (n,).
        Raises:
            ValueError: there are no n such records.
        """
        if n < 1:
            raise ValueError(f"n must be at least 1, got {n}: it is the number of records.")
        return self.records_of(n, seed)


def vector(params: ArrayLike) -> Vector:
    """Parameters as a flat float64 array."""
    return np.asarray(params, np.float64).reshape(-1)


def require_positive(name: str, number: float, meaning: str) -> None:
    """Refuse a parameter of a problem that is not a positive finite number."""
    if not (0.0 < number < np.inf):
        raise ValueError(f"{name} must be positive and finite, got {number!r}: it is {meaning}.")


def require_dimension(d: int) -> None:
    """Refuse a problem without parameters."""
    if d < 1:
        raise ValueError(f"d must be at least 1, got {d!r}: it is the number of parameters.")
