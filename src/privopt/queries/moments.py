"""The mean second moment `a a^T` of the rows, as a flat vector in which Gaussian noise is isotropic."""

import math
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from privopt.later import Array, Float, jax, jnp
from privopt.ledger.events import EveryUnit, Sampling, expected_units
from privopt.precision import arrays_of
from privopt.problems.losses import Logistic, ScalarLoss
from privopt.problems.magnitudes import interval_ends
from privopt.public import Public, Weighting
from privopt.queries.base import (
    NO_NEGATIVE_ENTRY,
    ROUNDING_MARGIN,
    SMALLEST_RADIUS,
    AcuteMean,
    Clipped,
    Number,
    RecordSum,
    RowShaped,
    Scalar,
    UnitSum,
    query,
    static,
)
from privopt.queries.slopes import distance_of


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
class SecondMoment(AcuteMean, WeightedSecondMoment):
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


def unpack(vector: Any, d: int) -> Any:
    """The symmetric matrix (d, d) of a packed vector; the inverse of `pack`.

    Raises:
        ValueError: the vector does not have d (d + 1) / 2 entries.
    """
    if vector.shape != (packed_length(d),):
        raise ValueError(
            f"a packed symmetric matrix of order d = {d} has shape ({packed_length(d)},), got {vector.shape}."
        )
    rows, columns, weights = _triangle(d)
    if arrays_of(vector) is np:
        matrix = np.zeros((d, d))
        matrix[rows, columns] = matrix[columns, rows] = np.asarray(vector) / weights
        return matrix
    entries = jnp.asarray(vector) / weights
    return jnp.zeros((d, d), entries.dtype).at[rows, columns].set(entries).at[columns, rows].set(entries)


def _triangle(d: int) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]:
    """Rows and columns of the upper triangle, and the weight of each entry."""
    rows, columns = np.triu_indices(d)
    return rows, columns, np.where(rows == columns, 1.0, math.sqrt(2.0))


# ------------------------------------------------------------------------------------------------------------
# The damped Newton direction of a generalised-linear loss, computed by the curator for a public gradient.


Model = Literal["hessian", "bound"]
_UNIT_ROUNDOFF = 2.0**-53
_LONGEST = 1e250  # of a direction


@query
class NewtonDirection(RowShaped, Clipped, WeightedSecondMoment):
    """`(H + diag(ridge) + damping I)^-1 g`, H the mean over units of `w a a^T` at a public point, g a public vector.

    Attributes:
        loss: a generalised-linear loss with one output.
        at: public point where the weights are taken.
        gradient: g, public or released.
        ridge: (d,) non-negative second derivatives of the penalty.
        damping: added to every one of them, so that l = damping + min(ridge) is positive.
        clip: b, largest Frobenius norm of one record's `w a a^T`; curvature * row_bound^2 changes nothing.
        model: "hessian" takes w = phi''; "bound" the weight of the quadratic upper bound, logistic loss only.
    Privacy:
        Given g, the l2 sensitivity is |g| b / (l (n l + b)) under both relations. Let A be the matrix to invert
        without the unit that differs; A >= l I. With it the matrix is A + M / n, M positive semidefinite of norm at
        most b. Put U = A^(-1/2) M A^(-1/2) / n, which is positive semidefinite of norm at most t = b / (n l). Then

            A^-1 - (A + M / n)^-1 = A^(-1/2) P A^(-1/2),    P = U (I + U)^-1,    0 <= P <= t / (1 + t) I.

        Adding or removing the unit moves the direction by at most |A^-1| |P| |g| <= (1 / l) (t / (1 + t)) |g|.
        Replacing it moves it by A^(-1/2) (P - P') A^(-1/2) g; the difference of two matrices between 0 and
        t / (1 + t) I lies between -t / (1 + t) I and t / (1 + t) I, so the bound is the same. None of it needs M of
        rank one: it holds for users too. Rounding of H and of the solution perturb the matrix by at most `rounding`,
        hence the direction by |g| rounding / (l (l - rounding)) on each side; this is added.
    Differs from the paper:
        no factor of two for replace-one, and the unit may be a user.
    Source:
        Ganesh, Haghifam, Steinke, Thakurta 2023, Algorithm 1 ("double noise", the sensitivity of the direction).
    """

    sensitivity_argument: ClassVar[str] = (
        "The direction is not a mean: the damping bounds how far one positive semidefinite matrix can move it."
    )

    loss: ScalarLoss = static()
    at: Float[Array, " d"]
    gradient: Float[Array, " d"]
    ridge: Float[Array, " d"]
    damping: Scalar
    clip: Scalar
    model: Model = static()

    def point(self) -> Float[Array, " d"]:
        """Where the weights are taken."""
        return self.at

    def row_weights(
        self, private_predictions: Float[Array, " b"], private_targets: Float[Array, " b"]
    ) -> Float[Array, " b"]:
        """phi'', or tanh(|t| / 2) / (2 |t|), whose parabola lies above the logistic loss and touches it at t."""
        if self.model == "hessian":
            return self.loss.second_derivative(private_predictions, private_targets)
        if not isinstance(self.loss, Logistic):
            raise ValueError(
                f"the quadratic upper bound is known for the logistic loss only, got {self.loss.name}: "
                "use model='hessian'."
            )
        private_sizes = jnp.abs(private_predictions)
        private_small = private_sizes < 1e-4  # where the next term, t^2 / 48, is below 1e-9
        private_safe = jnp.where(private_small, 1.0, private_sizes)
        return jnp.where(private_small, 0.25, jnp.tanh(private_safe / 2.0) / (2.0 * private_safe))

    def sensitivity(self, public: Public, sampling: Sampling = EveryUnit()) -> Scalar:
        """|g| b / (l (n l + b)), and the rounding of both sides; infinite if l is below it or the direction too long.

        Raises:
            ValueError: for a sample, on which the bound does not hold.
        """
        if not isinstance(sampling, EveryUnit):
            raise ValueError(
                "the Newton direction is computed on all units and cannot be sampled: leave out `sampling`."
            )
        clip, least = jnp.asarray(self.clip, float), self.least()
        length = distance_of(self.right_side(), jnp.zeros_like(self.gradient))
        exact = length * clip / (least * (public.n * least + clip))
        rounding = self.rounding(public)
        # Infinite as well where solving the equation may leave float64, and where g is no vector of numbers.
        within = (least > 2.0 * rounding) & (length < _LONGEST * jnp.minimum(least, 1.0))
        safe = jnp.where(within, least - rounding, 1.0)
        stated = jnp.where(within, exact + 2.0 * length * rounding / (least * safe), jnp.inf)
        return jnp.where(length == 0.0, 0.0, stated)

    def right_side(self) -> Float[Array, " d"]:
        """g, and 0 where no entry reaches `SMALLEST_RADIUS`: a length that vanished would state that none moves."""
        gradient = jnp.asarray(self.gradient, float)
        return jnp.where(jnp.max(jnp.abs(gradient), initial=0.0) < SMALLEST_RADIUS, 0.0, gradient)

    def least(self) -> Scalar:
        """l, a lower bound on every eigenvalue of the matrix."""
        return self.damping + jnp.min(jnp.asarray(self.ridge, float))

    def rounding(self, public: Public) -> Scalar:
        """How far rounding may move the matrix whose equation the computed direction solves exactly.

        The engine's bound on the mean, `2 (4096 + n / 4096 + 65) u b`, and the backward error of Cholesky's method,
        at most `4 d (d + 1) u` times the norm of the matrix (Higham 2002, theorem 10.4).
        """
        d = public.d
        largest = self.clip + self.damping + jnp.max(jnp.asarray(self.ridge, float))
        summed = (8400.0 + public.n / 2048.0) * self.clip
        return _UNIT_ROUNDOFF * (summed + 4.0 * (d + 1.0) ** 2 * largest)

    def finish(self, private_mean: Float[Array, " k"]) -> Float[Array, " d"]:
        """The direction, from the packed mean."""
        assert private_mean.shape == (packed_length(self.gradient.shape[0]),)
        return _direction(private_mean, self.right_side(), self.ridge + self.damping)


@jax.jit
def _direction(
    private_mean: Float[Array, " k"], gradient: Float[Array, " d"], diagonal: Float[Array, " d"]
) -> Float[Array, " d"]:
    private_matrix = unpack(private_mean, gradient.shape[0]) + jnp.diag(diagonal)
    return jax.scipy.linalg.solve(private_matrix, gradient, assume_a="pos")


# ------------------------------------------------------------------------------------------------------------
# The largest eigenvalue of the mean second moment of the rows: how curved a generalised-linear loss can be.


@query
class TopCurvature(Number, SecondMoment):
    """The largest eigenvalue of the mean over units of `a a^T`, a user's being the weighted average over their records.

    For a generalised-linear loss with phi'' at most b the mean loss is b times this number smooth. It lies in
    [0, R^2], and a result that rounding brought outside is moved to the nearer end.

    Attributes:
        row_bound: R: a row longer than R counts as if it were shortened to it.
    Privacy:
        The sensitivity is R^2 / n under both relations. A unit's matrix is positive semidefinite of spectral norm at
        most its Frobenius norm, hence at most R^2, see `SecondMoment`: it lies between 0 and R^2 I. Adding or
        removing one moves the sum by a matrix between -R^2 I and R^2 I, and so does replacing A by B, since
        -R^2 I <= -B <= A - B <= A <= R^2 I. By Weyl's inequality no eigenvalue moves by more than the spectral norm
        of that. Rounding: the curator adds that of the sum, in the Frobenius norm, which is no less than the spectral
        one; `rounding` is added for what happens to the matrix afterwards.
    Source:
        Weyl 1912 (eigenvalues of a sum). Compare Dwork, Talwar, Thakurta, Zhang 2014, Analyze Gauss.
    """

    sensitivity_argument: ClassVar[str] = (
        "Replacing one positive semidefinite matrix by another moves no eigenvalue of the sum by more than one radius."
    )

    def sensitivity(self, public: Public, sampling: Sampling = EveryUnit()) -> Scalar:
        """R^2 / n, and the rounding of both sides.

        Raises:
            ValueError: for a sample, whose price asks for more.
        """
        if not isinstance(sampling, EveryUnit):
            raise ValueError(
                "the largest eigenvalue is computed on all units and cannot be sampled: leave out `sampling`."
            )
        return self.radius() / public.n + 2.0 * self.rounding(public)

    def rounding(self, public: Public) -> Scalar:
        """How far rounding after the sum may move the result.

        Division by n, packing and unpacking round every entry a few times; the computed eigenvalues are those of a
        matrix that is off by p(d) u times the norm, p a modest polynomial: 8 (d + 1)^2 is more than the Householder
        reduction of order d and the iteration on what it leaves can add up to (Higham 2002, lemma 19.3). The
        norm is at most R^2, and twice that on a block with more than its public number of units.
        """
        return 16.0 * (public.d + 1.0) ** 2 * _UNIT_ROUNDOFF * self.radius()

    def finish(self, private_mean: Float[Array, " k"]) -> Float[Array, ""]:
        """The largest eigenvalue of the packed mean."""
        return _largest_eigenvalue(private_mean, self.radius())


@jax.jit
def _largest_eigenvalue(private_mean: Float[Array, " k"], most: Scalar) -> Float[Array, ""]:
    order = (round((8 * private_mean.shape[0] + 1) ** 0.5) - 1) // 2  # k = d (d + 1) / 2
    private_top = jnp.max(jnp.linalg.eigvalsh(unpack(private_mean, order)))
    return jnp.clip(jnp.where(jnp.isfinite(private_top), private_top, 0.0), 0.0, most)


# ------------------------------------------------------------------------------------------------------------
# How large the entries of each column are, and of which sign: the query behind bounds that are estimated
# privately.


@query
class ColumnMagnitudes(AcuteMean, RecordSum):
    """For each column the share of units whose entry has each sign and each power of two, entries in [-1, 1].

    Of 2 L + 1 bins, bin L + c holds the entries in (2^-(L-c+1), 2^-(L-c)], bin L - c their negatives, c = 1 ... L, and
    bin L those of size at most 2^-L. A user counts with the average of their records, times the user's weight.

    Attributes:
        levels: L, the number of powers of two.
        columns: d, the number of columns.
    Privacy:
        One unit contributes, for each of d columns, numbers that are at least 0 and sum to at most 1 (a record has one
        1 a column; a user's weighted average stays there; an absent unit has zeros), so its l2 norm is at most
        sqrt(d): the sensitivity of the sum under add-or-remove-one. Replacing a unit moves a column by p - q with
        ||p - q||^2 <= ||p||^2 + ||q||^2 <= 2, since no entry is negative: sqrt(2 d) in all, not 2 sqrt(d).
        Contributions are bounded by their form; `clip_unit` only shrinks them, by more than the average of a million
        records is rounded.
    """

    sensitivity_argument: ClassVar[str] = NO_NEGATIVE_ENTRY

    levels: int = static()
    columns: int = static()

    def radius(self) -> Scalar:
        """sqrt(d)."""
        return math.sqrt(self.columns)

    def clip_unit(self, private_vector: Array) -> Array:
        """A factor just below 1."""
        return private_vector * (1.0 - ROUNDING_MARGIN)

    def shape(self, public: Public) -> tuple[int, ...]:
        """One row of bins a column."""
        del public
        return (self.columns, 2 * self.levels + 1)

    def record_contribution(self, private_features: Float[Array, " d"], private_target: Scalar) -> Array:
        """A 1 in the bin of each entry."""
        del private_target
        thresholds = jnp.asarray(2.0 ** -np.arange(self.levels, 0, -1.0))
        private_exceeded = jnp.abs(private_features)[:, None] > thresholds[None, :]
        private_count = jnp.sum(private_exceeded, axis=1).astype(jnp.float64)
        private_bin = self.levels + jnp.sign(private_features) * private_count
        bins = jnp.arange(2 * self.levels + 1, dtype=jnp.float64)
        return (private_bin[:, None] == bins[None, :]).astype(jnp.float64)


def bin_ends(levels: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The lower and the upper end of each bin; both 0 for the middle one."""
    upper = 2.0 ** -np.arange(levels - 1, -1, -1.0)
    lower = upper / 2
    return np.concatenate([-upper[::-1], [0.0], lower]), np.concatenate([-lower[::-1], [0.0], upper])


# ------------------------------------------------------------------------------------------------------------
# How large counts are: their mean, split by powers of two, so that a bound far above the data costs little.


@query
class TargetMagnitudes(AcuteMean, RecordSum):
    """Mean over units of `y / u_k` in the entry k of the interval that the target y falls into, and 0 in the others.

    The intervals are (u_(k-1), u_k] with u = 1, 2, 4, ... up to `largest`, and (0, 1] for the first. Targets are moved
    into [0, largest]. Every user counts once, with the average of their records. `sum_k u_k value_k` is the mean of the
    targets, exactly, of users the mean of their averages; an interval in which there is nothing but noise can be left
    out of it.

    Attributes:
        largest: the public bound on a target, above 0.
    Privacy:
        A record's vector has one entry in [0, 1] and zeros, so its l2 norm is at most 1. An average of such vectors has
        entries that are at least 0 and sum to at most 1, so its norm is at most 1 too, and the clip to the ball of
        radius 1 keeps the signs. Adding or removing a unit moves the sum by at most 1. Replacing a by b moves it by
        `|a - b|^2 = |a|^2 + |b|^2 - 2 <a, b> <= 2`, since no entry is negative: by sqrt(2), not 2. Both are attained,
        by targets at the ends of two intervals. Whatever the target, the entry lies in [0, 1]; records
        whose target is not finite are zero already when units are made.
    """

    sensitivity_argument: ClassVar[str] = NO_NEGATIVE_ENTRY

    weighting: ClassVar[Weighting | None] = "user"

    largest: float = static()

    def require_rows(self, public: Public) -> None:
        """It reads no entry of a row."""
        del public

    def radius(self) -> Scalar:
        """1."""
        return 1.0

    def shape(self, public: Public) -> tuple[int, ...]:
        """One number an interval."""
        del public
        return (len(interval_ends(self.largest)),)

    def record_contribution(self, private_features: Float[Array, " d"], private_target: Scalar) -> Array:
        """See the class."""
        del private_features
        ends = jnp.asarray(interval_ends(self.largest))
        private_size = jnp.clip(private_target, 0.0, self.largest)
        private_place = jnp.sum(private_size > ends[:-1])
        return jnp.where(jnp.arange(len(ends)) == private_place, private_size / ends, 0.0)


# ------------------------------------------------------------------------------------------------------------
# How much all units weigh: the scale of every weighted mean over users, and how many units are usable at
# all.


@query
class TotalWeight(Number, UnitSum):
    """Mean over units of their weights u_j in [0, 1]: 0 for a user without records, 1 where a unit is a record.

    Privacy:
        Sensitivity 1 / N under both relations: replacing a unit moves its weight from one number in [0, 1] to another,
        and adding or removing one by the weight itself. For a sample under replace-one it is 2 / N, since its price is
        worked out for two opposite contributions of half the sensitivity each.
    Source:
        Ours.
    """

    sensitivity_argument: ClassVar[str] = (
        "Two weights in [0, 1] are at most 1 apart, so that replacing a unit moves the sum by one radius."
    )

    def require_rows(self, public: Public) -> None:
        """It reads no entry of a row."""
        del public

    def radius(self) -> Scalar:
        """1, the largest weight."""
        return 1.0

    def sensitivity(self, public: Public, sampling: Sampling = EveryUnit()) -> Scalar:
        """1 / N; factor / N for a sample."""
        factor = 1 if isinstance(sampling, EveryUnit) else public.relation.factor
        return factor / expected_units(sampling, public.n)

    def unit_contribution(
        self,
        private_features: Float[Array, "M d"],
        private_targets: Float[Array, " M"],
        private_mask: Float[Array, " M"],
        private_weight: Scalar,
    ) -> Array:
        """The weight; the engine leaves units without records out."""
        del private_features, private_targets, private_mask
        return jnp.asarray(private_weight)

    def clip_unit(self, private_vector: Array) -> Array:
        """The weight in [0, 1]."""
        return jnp.clip(private_vector, 0.0, 1.0)


@query
class UsableUnits(TotalWeight):
    """The share of the units that hold something usable: `TotalWeight` with every such unit at weight 1.

    A record counts if its target could be read (and, where a missing feature makes its record count as zero, its
    features), a user if one of their records does. By N it is the number of usable units.

    Privacy:
        That of `TotalWeight`, whatever users weigh elsewhere: a unit adds 0 or 1.
    Source:
        Ours.
    """

    sensitivity_argument: ClassVar[str] = TotalWeight.sensitivity_argument
    weighting: ClassVar[Weighting | None] = "user"


# ---- A unit's average feature row --------------------------------------------------------------------------


@query
class UserAverage(RowShaped, RecordSum):
    """Mean over units of the average of a unit's rows, clipped to the l2 norm `bound`; every user weighs 1.

    Attributes:
        bound: largest norm of an average.
    Privacy:
        l2 sensitivity factor * bound / N, see `MeanQuery`.
    """

    weighting: ClassVar[Weighting | None] = "user"

    bound: Scalar

    def radius(self) -> Scalar:
        """The bound."""
        return self.bound

    def record_contribution(self, private_features: Float[Array, " d"], private_target: Scalar) -> Array:
        """The row."""
        del private_target
        return private_features
