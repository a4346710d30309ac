"""Means of contributions that know a record's loss by its values only, at points that are public."""

import abc
import math
from dataclasses import field
from typing import Any, ClassVar, final

from privopt.later import Array, Float, jax, jnp
from privopt.ledger.events import EveryUnit, Sampling, expected_units
from privopt.problems.black_box import BlackBox
from privopt.problems.losses import GLMLoss, Loss
from privopt.public import Public
from privopt.queries.base import AtPoint, Query, RecordSum, Scalar, clip_to_ball, query, shrunk_radius, static
from privopt.queries.slopes import by_distance


class ValueSum(RecordSum):
    """A mean query whose contribution is a function of one record's loss values at public points.

    The class declares the field `loss: Loss = static()`. A loss that is a callable on the host is called there, record
    by record; any other one is traced.

    Privacy:
        The points follow from the query's fields, which are public; so a record's vector is a function of that record,
        whatever its loss does, and `clip_unit` bounds it, see `MeanQuery`. What a black box must keep to is said in
        `BlackBox`.
    """

    loss: Loss

    @abc.abstractmethod
    def points(self) -> Float[Array, "m p"]:
        """The public points at which the loss is asked for, flat parameters each."""

    @abc.abstractmethod
    def of_values(self, private_values: Float[Array, " m"]) -> Array:
        """What one record contributes, before averaging within its unit and clipping. Pure JAX.

        Args:
            private_values: its loss at the points; NaN where a black box gave none.
        """

    @final
    def record_contribution(self, private_features: Float[Array, " d"], private_target: Scalar) -> Array:
        """`of_values` of the record's values."""
        return self.of_values(values_at(self.loss, self.points(), private_features, private_target))

    @property
    def on_host(self) -> bool:
        """Whether the loss is called on the host."""
        return isinstance(self.loss, BlackBox) and self.loss.host


def called_on_host(query: Query) -> bool:
    """Whether a query calls a loss on the host."""
    return isinstance(query, ValueSum) and query.on_host


def values_at(
    loss: Loss, points: Float[Array, "m p"], private_features: Float[Array, " d"], private_target: Scalar
) -> Float[Array, " m"]:
    """One record's loss at several flat points, pure JAX.

    Raises:
        TypeError: the loss is called on the host.
    """
    if isinstance(loss, BlackBox):
        return loss.values_at(points, private_features, private_target)
    if not isinstance(loss, GLMLoss):
        return jax.vmap(lambda point: loss.value(point, private_features, private_target))(points)
    count, width = points.shape[0], private_features.shape[0]
    if loss.outputs == 1:
        return of_predictions(loss, points @ private_features, private_target)
    columns = jnp.reshape(points, (count, width, loss.outputs))
    return of_predictions(loss, jnp.einsum("d,mdk->mk", private_features, columns), private_target)


def of_predictions(loss: GLMLoss, private_predictions: Array, private_target: Scalar) -> Float[Array, " m"]:
    """One record's values from its predictions, (m,) or (m, outputs)."""
    private_wide = jnp.full((private_predictions.shape[0],), private_target)
    return loss.value(private_predictions, private_wide)


# ------------------------------------------------------------------------------------------------------------
# The gradient of a smoothed loss from values alone: two-point differences along orthonormal directions,
# clipped.


class AlongDirections(ValueSum):
    """A mean of numbers along public directions, a block of orthonormal rows after the other."""

    at: Any
    directions: Float[Array, "rows p"]
    blocks: int

    def shape(self, public: Public) -> tuple[int, ...]:
        """A number a direction."""
        del public
        return (int(jnp.shape(self.directions)[0]),)

    def gradient(self, released: Float[Array, " rows"]) -> Float[Array, " *shape"]:
        """The value in parameters, from what was released. Post-processing."""
        return along(self.directions, released, jnp.shape(self.at))


@query
class ValueGradient(AlongDirections):
    """Mean over units of the two-point estimate of a smoothed loss's gradient, in the coordinates of its directions.

    With orthonormal rows y_1..y_k and c_j = (f(at + r y_j) - f(at - r y_j)) / (2 r), a record's estimate is
    `(p / k) sum_j c_j y_j`: unbiased for the gradient of the average of f over the ball of radius r where the rows are
    those of a random rotation. What is released are the k numbers (p / k) c_j; `gradient` multiplies by the rows after
    the release, so that the noise has k coordinates and not p.

    Attributes:
        loss: any loss; its values are all that is asked for.
        at: public point.
        directions: (J k, p), public: J blocks of k orthonormal rows, one block after the other.
        smoothing: r, the radius of the ball, positive; in parameter units.
        clip: C, the largest norm of one unit's estimate from one block.
        blocks: J, how many independent blocks the estimate averages.
    Privacy:
        A unit contributes J vectors of k numbers, each over J; `clip_unit` shortens every block to C / J *by its own
        norm*. So the whole is no longer than C / sqrt(J) whatever the values are, and the l2 sensitivity is
        factor * C / (sqrt(J) N), see `MeanQuery`. In parameters every block moves by at most C / J, hence their sum by
        at most C; the noise has the variance of J blocks with each 1 / J of it, so J changes nothing there. The norm of
        all numbers together is not that of the estimate: it may be sqrt(J) times smaller.
        That rows are orthonormal, and r, are utility only: a clip of the numbers bounds what is released.
    Source:
        Kornowski, Liu, Talwar 2024, Algorithm 3 and section 3 (zero-order estimates). Ours are orthonormal directions,
        the same for all records, in place of independent ones: an estimate is then hardly ever longer than a gradient,
        where the paper's may be p times as long.
    """

    loss: Loss = static()
    at: Float[Array, " *shape"]
    directions: Float[Array, "rows p"]
    smoothing: Scalar
    clip: Scalar
    blocks: int = field(default=1, metadata={"static": True})

    def radius(self) -> Scalar:
        """C / sqrt(J)."""
        return self.clip / math.sqrt(self.blocks)

    def points(self) -> Float[Array, "m p"]:
        """`at + r y` for all rows, then `at - r y`."""
        return around(self.at, self.directions, self.smoothing)

    def of_values(self, private_values: Float[Array, " m"]) -> Array:
        """The differences, times p / k over the number of blocks."""
        rows, size = jnp.shape(self.directions)
        return differences(private_values, self.smoothing) * (size / rows)

    def clip_unit(self, private_vector: Array) -> Array:
        """Every block in its ball."""
        return clip_blocks(private_vector, self.clip, self.blocks)


def around(at: Array, directions: Float[Array, "rows p"], smoothing: Scalar) -> Float[Array, "m p"]:
    """The points of two-point differences: one side, then the other."""
    centre, steps = jnp.ravel(jnp.asarray(at, float))[None, :], smoothing * jnp.asarray(directions, float)
    return jnp.concatenate([centre + steps, centre - steps])


def differences(private_values: Float[Array, " m"], smoothing: Scalar) -> Array:
    """(f(at + r y) - f(at - r y)) / (2 r) for all directions y."""
    half = private_values.shape[0] // 2
    return (private_values[:half] - private_values[half:]) / (2.0 * smoothing)


def clip_blocks(private_vector: Array, clip: Scalar, blocks: int) -> Array:
    """One unit's blocks, each of them shortened to clip / J by its own norm."""
    if blocks == 1:
        return clip_to_ball(private_vector, clip)
    private_parts = jnp.reshape(private_vector, (blocks, -1))
    private_clipped = jax.vmap(lambda private_part: clip_to_ball(private_part, clip / blocks))(private_parts)
    return jnp.reshape(private_clipped, private_vector.shape)


def along(directions: Float[Array, "rows p"], released: Array, shape: tuple[int, ...]) -> Array:
    """`sum_j released_j y_j`, shaped like the parameters."""
    return jnp.reshape(jnp.asarray(directions, float).T @ released, shape)


# ------------------------------------------------------------------------------------------------------------
# The change of a smoothed loss's gradient between two points, from values alone, with a sensitivity by
# distance.


@query
class ValueDifference(AlongDirections):
    """Mean over units of the difference of two value gradients along the same directions, clipped by distance.

    Attributes:
        loss: any loss; its values are all that is asked for.
        at: public point.
        anchor: public point of the same shape.
        directions: (J k, p), public: J blocks of k orthonormal rows, the same at both points. With others the
            difference would be as long as a gradient, however near the points are.
        smoothing: r, see `ValueGradient`.
        slope_clip: H; one unit's difference from one block is at most H |at - anchor| long.
        blocks: J.
    Privacy:
        As for `ValueGradient` with the clip H |at - anchor|, a public number: l2 sensitivity
        factor * H |at - anchor| / (sqrt(J) N). Equal points give radius 0 and the value 0 exactly.
        Of an L-Lipschitz loss |c_j(at) - c_j(anchor)| <= L |at - anchor| / r along each direction, so that
        H = (p / sqrt(k)) L / r changes nothing: utility only.
    Source:
        Kornowski, Liu, Talwar 2024, Algorithm 3 (lines 10 to 13) and Lemma 3.4; the clip makes the bound hold always.
    """

    loss: Loss = static()
    at: Float[Array, " *shape"]
    anchor: Float[Array, " *shape"]
    directions: Float[Array, "rows p"]
    smoothing: Scalar
    slope_clip: Scalar
    blocks: int = field(default=1, metadata={"static": True})

    def block_clip(self) -> Scalar:
        """H times the distance; 0 for equal points, also where H is infinite."""
        return by_distance(self.at, self.anchor, self.slope_clip)

    def radius(self) -> Scalar:
        """H |at - anchor| / sqrt(J)."""
        return self.block_clip() / math.sqrt(self.blocks)

    def points(self) -> Float[Array, "m p"]:
        """Those of the two-point differences around `at`, then those around `anchor`."""
        here = around(self.at, self.directions, self.smoothing)
        return jnp.concatenate([here, around(self.anchor, self.directions, self.smoothing)])

    def of_values(self, private_values: Float[Array, " m"]) -> Array:
        """The differences at the one point minus those at the other, times p / k over the number of blocks."""
        rows, size = jnp.shape(self.directions)
        half = private_values.shape[0] // 2
        private_here = differences(private_values[:half], self.smoothing)
        private_there = differences(private_values[half:], self.smoothing)
        return (private_here - private_there) * (size / rows)

    def clip_unit(self, private_vector: Array) -> Array:
        """Every block in its ball."""
        return clip_blocks(private_vector, self.block_clip(), self.blocks)


# ------------------------------------------------------------------------------------------------------------
# How good each of several public candidates is, by the mean of clipped loss values: scores of a private
# choice.


@query
class CandidateValues(ValueSum):
    """Minus the mean over units of the loss at each candidate, up to a constant common to all of them.

    The exponential mechanism takes the largest score: the candidate with the smallest mean loss.

    Attributes:
        loss: any loss; its values are all that is asked for.
        candidates: (N, p), flat public points.
        low, high: the public range that values are moved into; a value that is not finite counts as `high`.
    Privacy:
        Sensitivity in the *range* (largest minus smallest entry of the change of the scores), W = high - low. A unit
        contributes numbers within W of each other, as averages of such; (low + high) / 2 is added to each, the same for
        all candidates, which changes no difference of scores and makes them at most W / 2 in size. So one unit that
        joins or leaves moves the sum by a vector of range at most W, one that is replaced by 2 W, attained by a unit
        that likes best what the other likes least: factor * W / N, see `MeanQuery`. `clip_unit` holds every entry
        within W / 2, whatever a loss answers.
    Source:
        Kornowski, Liu, Talwar 2024, Appendix B (a warm start by the exponential mechanism); Dong, Durfee, Rogers 2020
        (bounded range).
    """

    norm: ClassVar[str] = "range"

    loss: Loss = static()
    candidates: Float[Array, "N p"]
    low: Scalar
    high: Scalar

    def radius(self) -> Scalar:
        """W, in range."""
        return jnp.asarray(self.high, float) - self.low

    def shape(self, public: Public) -> tuple[int, ...]:
        """A score a candidate."""
        del public
        return (int(jnp.shape(self.candidates)[0]),)

    def points(self) -> Float[Array, "m p"]:
        """The candidates."""
        return jnp.asarray(self.candidates, float)

    def of_values(self, private_values: Float[Array, " m"]) -> Array:
        """Minus the values, moved into the range, around its middle."""
        private_kept = jnp.where(
            jnp.isfinite(private_values), jnp.clip(private_values, self.low, self.high), self.high
        )
        return 0.5 * (jnp.asarray(self.low, float) + self.high) - private_kept

    def clip_unit(self, private_vector: Array) -> Array:
        """Every entry within W / 2."""
        half = 0.5 * shrunk_radius(self.radius())
        return jnp.clip(private_vector, -half, half)


# ------------------------------------------------------------------------------------------------------------
# Value estimates in parameters: what streams of them add up, whose directions differ from item to item.
# The numbers along one block of orthonormal rows are a rotation, or a projection, of the vector in parameters, so that
# nothing but the place of the noise changes: it has all p coordinates, also where there are fewer directions.


class _Placed(AtPoint, AlongDirections):
    """The mean for one block of directions, as a vector in parameters."""

    def __post_init__(self) -> None:
        require_one_block(self.blocks)

    def sensitivity(self, public: Public, sampling: Sampling = EveryUnit()) -> Scalar:
        """That of the numbers, and rounding."""
        units = expected_units(sampling, public.n)
        rounding = rounding_of_sum(self.directions) * self.radius() * (public.n / units)
        return super().sensitivity(public, sampling) + rounding

    def finish(self, private_mean: Array) -> Float[Array, " *shape"]:
        """The mean in parameters."""
        return self.gradient(contracted(self.directions, private_mean))


@query
class PlacedValueGradient(_Placed, ValueGradient):
    """The mean of `ValueGradient` for one block of directions, as a vector in parameters.

    Privacy:
        The sum over directions of the numbers times orthonormal rows is no longer than the numbers, so the map of the
        mean is 1-Lipschitz and the sensitivity is that of `ValueGradient`, and what the sum is rounded by, see
        `rounding_of_sum`. Rows that could stretch it are scaled down.
    """


@query
class PlacedValueDifference(_Placed, ValueDifference):
    """The mean of `ValueDifference` for one block of directions, as a vector in parameters.

    Privacy:
        As for `PlacedValueGradient`.
    """


def require_one_block(blocks: int) -> None:
    """Refuse several blocks, whose rows are not orthonormal to each other.

    Raises:
        ValueError: there are several.
    """
    if blocks != 1:
        raise ValueError(
            f"a value estimate in parameters has one block of directions, got blocks={blocks}: release the numbers "
            "along the directions instead."
        )


def contracted(directions: Float[Array, "rows p"], private_mean: Array) -> Array:
    """Numbers along the rows, scaled down by as much as the rows could stretch them; nothing for orthonormal rows.

    Privacy:
        The rows stretch a vector by at most the root of the largest absolute row sum of their Gram matrix, a public
        number: divided by it, the map is 1-Lipschitz whatever the directions are. That of orthonormal rows is 1 to
        rounding, less than the margin of the clip, and is left out so that they are exact.
    """
    rows = jnp.asarray(directions, float)
    stretch = jnp.sqrt(jnp.max(jnp.sum(jnp.abs(rows @ rows.T), axis=1)))
    # Rows that are no numbers make everything none: a comparison that is false would leave other columns as long.
    return private_mean / jnp.where(stretch <= 1.0 + 1e-12, 1.0, stretch)


def rounding_of_sum(directions: Float[Array, "rows p"]) -> float:
    """How far rounding moves `sum_j m_j y_j` on two data sets together, over the largest norm of the mean m.

    Privacy:
        Each of the p entries is a sum of k products, rounded by at most (k + 1) 2^-53 times the sum of their sizes; the
        vector of these is at most as long as m times the root of the sum of all squares of the rows, sqrt(k). Twice
        that on each data set, for the scaling of the rows, and since a mean may be over more units than are public.
    """
    rows = int(jnp.shape(directions)[0])
    return 4.0 * (rows + 4) * math.sqrt(rows) * 2.0**-53
