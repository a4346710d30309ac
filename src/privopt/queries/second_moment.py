"""The mean second moment `a a^T` of the rows, as a flat vector in which Gaussian noise is isotropic."""

import math
from typing import ClassVar

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from numpy.typing import NDArray

from privopt.ledger.sampling import EveryUnit, Sampling, expected_units
from privopt.public import Public, Weighting
from privopt.queries.base import RecordSum, Scalar, acute_factor, query


class WeightedSecondMoment(RecordSum):
    """Mean over units of `w a a^T`, w >= 0 a function of a record's prediction and target; see `pack`.

    A record's matrix that is longer than the radius is scaled to it before a user's average is taken: a row a longer
    than `sqrt(radius / w)` counts as if it were shortened to that.
    """

    def point(self) -> Float[Array, " d"] | None:
        """Where the predictions are taken; None if the weights do not depend on them."""
        return None

    def row_weights(
        self, private_predictions: Float[Array, " b"], private_targets: Float[Array, " b"]
    ) -> Float[Array, " b"]:
        """The weight of each record; one that is negative or not finite counts as 0."""
        del private_targets
        return jnp.ones_like(private_predictions)

    def record_contribution(self, private_features: Float[Array, " d"], private_target: Scalar) -> Array:
        """The packed outer product of the row with itself, times its weight, within the radius."""
        point = self.point()
        private_prediction = private_features[0] if point is None else private_features @ point
        private_weight = self.row_weights(private_prediction[None], private_target[None])[0]
        private_weight = jnp.where(private_weight > 0, private_weight, 0.0)  # NaN too
        private_square = private_features @ private_features
        private_most = jnp.where(private_square > 0, self.radius() / private_square, jnp.inf)
        private_product = pack(private_features[:, None] * private_features[None, :])
        return private_product * jnp.minimum(private_weight, private_most)


@query
class SecondMoment(WeightedSecondMoment):
    """Mean over units of `a a^T`, a user's being the average over their records of weight 1; see `pack` for the vector.

    Attributes:
        row_bound: R: a row longer than R counts as if it were shortened to it. With R at least `public.row_bound` no
            row is changed; where every row is at least R long, as rows with a constant 1 are for R = 1, each counts as
            `R a / |a|`: the query is then the mean of `a a^T / |a|^2` times R^2, and needs no bound on the rows.
    Privacy:
        `pack` keeps the Frobenius norm, so the l2 sensitivity is a distance of matrices. A unit's matrix A is positive
        semidefinite: an average of matrices a a^T with non-negative weights, each times a non-negative number where its
        row is longer than R, or zero. Its Frobenius norm is at most R^2, since that of every record's matrix is.
        Adding or removing it moves the sum by at most R^2; the mean divides by n, under add-or-remove-one too.
        Replacing A by B moves it by

            |A - B|^2 = |A|^2 + |B|^2 - 2 <A, B> <= 2 R^4,

        since <A, B> = tr(A^(1/2) B A^(1/2)) >= 0: by sqrt(2) R^2, not 2 R^2. Both are attained, by orthogonal rows.
    Source:
        Dwork, Talwar, Thakurta, Zhang 2014, Analyze Gauss (the release; the sqrt(2) is ours).
    """

    sensitivity_argument: ClassVar[str] = (
        "Two positive semidefinite matrices make no obtuse angle: replacing one by another moves the sum by sqrt(2) "
        "radii."
    )

    weighting: ClassVar[Weighting | None] = "user"

    row_bound: Scalar

    def radius(self) -> Scalar:
        """R^2."""
        return self.row_bound * self.row_bound

    def sensitivity(self, public: Public, sampling: Sampling = EveryUnit()) -> Scalar:
        """R^2 / N times `acute_factor`."""
        return acute_factor(public, sampling) * self.radius() / expected_units(sampling, public.n)

    def shape(self, public: Public) -> tuple[int, ...]:
        """d (d + 1) / 2 entries."""
        return (packed_length(public.d),)


def packed_length(d: int) -> int:
    """Entries of the upper triangle."""
    return d * (d + 1) // 2


def pack(matrix: Float[Array, "d d"]) -> Float[Array, " k"]:
    """The upper triangle of a symmetric matrix, row by row, off-diagonal entries times sqrt(2).

    The l2 norm of the vector is the Frobenius norm of the matrix.
    """
    rows, columns, weights = _triangle(matrix.shape[0])
    return matrix[rows, columns] * weights


def unpack(vector: Float[Array, " k"], d: int) -> Float[Array, "d d"]:
    """The symmetric matrix of a packed vector; the inverse of `pack`.

    Raises:
        ValueError: the vector does not have d (d + 1) / 2 entries.
    """
    if vector.shape != (packed_length(d),):
        raise ValueError(
            f"a packed symmetric matrix of order d = {d} has shape ({packed_length(d)},), got {vector.shape}."
        )
    rows, columns, weights = _triangle(d)
    entries = jnp.asarray(vector) / weights
    return jnp.zeros((d, d), entries.dtype).at[rows, columns].set(entries).at[columns, rows].set(entries)


def _triangle(d: int) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]:
    """Rows and columns of the upper triangle, and the weight of each entry."""
    rows, columns = np.triu_indices(d)
    return rows, columns, np.where(rows == columns, 1.0, math.sqrt(2.0))
