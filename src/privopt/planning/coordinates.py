"""Public coordinates to solve a problem in instead of its own: w = B v, rows B^T a, the penalty as it is there."""

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from privopt.later import Array, Float, jax, jnp
from privopt.precision import run_arrays
from privopt.problems.problem import Problem
from privopt.problems.regularisers import MappedRidge, Regulariser, Ridge, Step

LEAST_CONSTANT = 1e-3  # of the second moment of a column of ones, which noise may make negative


@dataclass(frozen=True, kw_only=True, eq=False)
class RowSpectrum:
    """What is known of the second moment of the rows, from which coordinates were made; public or released.

    Attributes:
        moment: M, (d, d), finite.
        eigenvalues: h >= 0, (d,), the mean square of a row along each axis, the noise's share taken out.
        axes: U, (d, d), orthonormal, in its columns: the map of the rows is `U diag(h + f)^-1/2 U^T`. The eigenvectors
            of M, or where the ridge is larger than the noise those of M with the ridge.
        floor: f > 0, in units of the eigenvalues, one number or one per axis, the ridge in it.
        constant: the number of the column of ones; None without one.
    """

    moment: NDArray[np.float64]
    eigenvalues: NDArray[np.float64]
    axes: NDArray[np.float64]
    floor: float | NDArray[np.float64]
    constant: int | None = None

    @property
    def scale(self) -> NDArray[np.float64]:
        """h + f, (d,)."""
        return self.eigenvalues + self.floor

    @property
    def damping(self) -> NDArray[np.float64]:
        """h / (h + f), (d,): the mean square of a mapped row along each axis."""
        return self.eigenvalues / self.scale

    @property
    def signal(self) -> float:
        """r, the length of a typical mapped row."""
        return math.sqrt(float(np.sum(self.damping)))

    @property
    def penalised(self) -> NDArray[np.float64]:
        """u, (d,): how much of a ridge each axis takes, that is, what of it is not the column of ones."""
        whole = np.ones(len(self.eigenvalues))
        return whole if self.constant is None else whole - self.axes[self.constant] ** 2

    def ridge(self, strength: float) -> NDArray[np.float64]:
        """`lam u_j / (h_j + f)`, (d,): how curved a ridge on w is along each axis."""
        return strength * self.penalised / self.scale

    def map(self) -> NDArray[np.float64]:
        """B, (d, d), symmetric."""
        matrix = (self.axes * self.scale**-0.5) @ self.axes.T
        return 0.5 * (matrix + matrix.T)

    def mean_prediction(self, constant: int | None) -> NDArray[np.float64]:
        """x with `x . U^T v` about the mean prediction at v, (d,), by the moment's row of a column of ones.

        It is `(M w)_c / sqrt(M_cc)`: where rows are divided by their lengths the column is not constant, and this is
        the mean prediction weighted by it. Zeros for None.
        """
        if constant is None:
            return np.zeros(len(self.eigenvalues))
        length = math.sqrt(max(float(self.moment[constant, constant]), LEAST_CONSTANT))
        return self.axes.T @ self.moment[constant] / length / np.sqrt(self.scale)


@dataclass(frozen=True, kw_only=True, eq=False)
class Coordinates:
    """What a solver needs to know of other coordinates.

    Attributes:
        matrix: B, (d, d), symmetric and positive definite; public or released.
        stretch: its largest eigenvalue.
        clip: C_v, the largest norm of one unit's gradient in v.
        smoothness: of the mean loss in v; a guess, utility only.
        ridge_smoothness: of the ridge in v.
        momentum: fixed momentum of a gradient method in v.
        balanced: whether gradients are shortened without regard to the target.
        secant: whether steps are shortened by the curvature that released gradients show.
        hurries: whether half-way momentum grows where released gradients show that parameters still grow.
        pull: strength of a ridge in v around the anchor, beside the penalty that was asked for; 0 for none.
        anchor: in w, (d,); None for no such ridge. For problems with a ridge only.
        rows: the spectrum that `matrix` follows from, for solvers that look at directions one by one; None if the
            coordinates were made from something else.
    """

    matrix: Float[Array, "d d"] | NDArray[np.float64]
    stretch: float
    clip: float
    smoothness: float
    ridge_smoothness: float
    momentum: float
    balanced: bool = False
    secant: bool = False
    hurries: bool = False
    pull: float = 0.0
    anchor: Float[Array, " d"] | None = None
    rows: RowSpectrum | None = None

    def longest_row(self, row_bound: float) -> float:
        """A bound on `|B^T a|` for rows of norm at most `row_bound`: nothing is shortened by the map.

        A power of two, so that a loop that was compiled for one map serves many others.
        """
        return 2.0 ** math.ceil(math.log2(row_bound * self.stretch * (1.0 + 1e-6)))

    def problem(self, problem: Problem) -> Problem:
        """The problem of v."""
        regulariser = problem.regulariser
        if isinstance(regulariser, Ridge):
            weights = regulariser.weights or (1.0,) * len(self.matrix)
            xp = run_arrays()
            strengths = regulariser.strength * xp.asarray(weights, np.float64)
            ridge = MappedRidge(xp.asarray(self.matrix), strengths)
            mapped: Regulariser = ridge
            if self.anchor is not None:
                mapped = AnchoredRidge(ridge, xp.asarray(self.pull, float), self.inward(self.anchor))
            return replace(problem, regulariser=mapped, growth=None, constant=None)
        return replace(
            problem, growth=None, constant=None
        )  # the growth is known in other units, 1 is no column

    def outward(self, params: Array) -> Array:
        """w = B v."""
        return run_arrays().asarray(self.matrix) @ params

    def inward(self, params: Array) -> Array:
        """v = B^-1 w."""
        xp = run_arrays()
        return xp.linalg.solve(xp.asarray(self.matrix), params)


# ------------------------------------------------------------------------------------------------------------
# A ridge on w = B v beside one in v around a point: where data say little, a solution stays near that
# point.
@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class AnchoredRidge(Regulariser, is_static=False):
    """`mapped(v) + pull/2 * |v - centre|^2`, for a vector v.

    Attributes:
        mapped: the ridge that was asked for, in v.
        pull: strength of the other, public or released.
        centre: v_0, (d,), public or released.
    """

    mapped: MappedRidge
    pull: Float[Array, ""]
    centre: Float[Array, " d"]

    @property
    def strong_convexity(self) -> float:
        """The two ridges' sum."""
        return self.mapped.strong_convexity + float(self.pull)

    @property
    def smoothness(self) -> float:
        """The two ridges' sum."""
        return self.mapped.smoothness + float(self.pull)

    @property
    def is_smooth(self) -> bool:
        """Always."""
        return True

    def value(self, params: Float[Array, "..."]) -> Float[Array, ""]:
        """See the class."""
        return self.mapped.value(params) + 0.5 * self.pull * jnp.sum((params - self.centre) ** 2)

    def gradient(self, params: Float[Array, "..."]) -> Float[Array, "..."]:
        """The two gradients' sum."""
        return self.mapped.gradient(params) + self.pull * (params - self.centre)

    def prox(self, params: Float[Array, "..."], step: Step) -> Float[Array, "..."]:
        """The identity: there is no non-smooth part."""
        del step
        return params

    def full_prox(self, params: Float[Array, "..."], step: Step) -> Float[Array, "..."]:
        """The minimiser of `value(v) + |v - params|^2 / (2 step)`: of both ridges in one, around a moved point."""
        longer = 1.0 + step * self.pull
        return self.mapped.full_prox((params + step * self.pull * self.centre) / longer, step / longer)
