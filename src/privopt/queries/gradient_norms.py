"""How long the clipped mean gradient is at each of several points, for a private choice of a stationary one."""

import math
from collections.abc import Sequence
from dataclasses import field
from typing import Any, ClassVar

import numpy as np

from privopt.later import Array, Float, is_traced, jax, jnp
from privopt.ledger.events import EveryUnit, Sampling
from privopt.problems.losses import GLMLoss, Loss
from privopt.problems.projections import scale_of
from privopt.public import Public
from privopt.queries.base import (
    Clipped,
    RecordSum,
    RowForm,
    Scalar,
    clip_to_ball,
    query,
    shrunk_radius,
    static,
)
from privopt.queries.slopes import (
    ClippedGradient,
    GradientSum,
    clip_each,
    clipped_slopes,
    columns_of,
    glm_slopes,
    gradients_at,
    points_in_groups,
    side_by_side,
    slope_form,
    slopes_at,
)
from privopt.queries.values import ValueSum, around, differences

# ---- The clipped mean gradient, and in the same release how many units were not shortened by the clip ------


@query
class GradientAndCount(GradientSum):
    """Mean over units of `(clip_c(B^T g_j - v0), s_j)`, g_j a unit's gradient, s_j = h where the clip changed nothing.

    Where the clip shortened the unit's vector s_j is -h; a unit without records contributes zeros. A mean of s_j / h is
    the share of units within the clip minus the share outside: what an adaptive clip follows. v0 is not added back: the
    caller does so, once, after the release. Added for each unit it would leak through the number of units.

    Attributes:
        loss: a generalised-linear or user-written loss.
        at: public point, (d,) or (d, K); flat for a user-written loss.
        clip: c, gradient units (those of `B^T g` with a map); infinite only when privacy is switched off.
        height: h, at least 0, in the same units: what the count weighs against the gradient.
        row_map: B (d, k), public or released: gradients in the coordinates v of w = B v, without mapped rows. None for
            the identity; of a user-written loss it maps the flat parameters.
        centre: v0, flat, public or released; None for 0.
    Privacy:
        A unit contributes (a, s) with |a| <= c and |s| <= h, whatever its records, their number and its weight. So it
        is within sqrt(c^2 + h^2), see `MeanQuery`, and the l2 sensitivity is sqrt(D_g^2 + D_h^2) with D_g that of the
        clipped gradient and D_h = factor h / n. One Gaussian of multiplier z gives what two would, of variances in the
        ratio c^2 : h^2, on a sample too.
    Source:
        Andrew, Thakkar, McMahan, Ramaswamy 2021 (the count that the clip follows); one vector for both is ours.
    """

    loss: Loss = static()
    at: Float[Array, " *shape"]
    clip: Scalar
    height: Scalar
    row_map: Any = None
    centre: Any = None

    def radius(self) -> Scalar:
        """sqrt(c^2 + h^2)."""
        if is_traced(self.clip) or is_traced(self.height):
            return jnp.sqrt(self.clip * self.clip + self.height * self.height)
        return math.hypot(float(self.clip), float(self.height))

    def shape(self, public: Public) -> tuple[int, ...]:
        """The gradient as a flat vector, and one number."""
        del public
        return (self._width() + 1,)

    def clip_unit(self, private_vector: Float[Array, " *shape"]) -> Float[Array, " k"]:
        """The unit's gradient in other coordinates, around the centre and in its ball, and whether it was inside."""
        private_moved = jnp.ravel(
            private_vector
            if self.row_map is None
            else jnp.asarray(self.row_map, jnp.float64).T @ private_vector
        )
        if self.centre is not None:
            private_moved = private_moved - jnp.asarray(self.centre)
        private_clipped = clip_to_ball(private_moved, self.clip)
        private_length = jnp.sqrt(jnp.sum(private_moved * private_moved))
        private_inside = private_length <= shrunk_radius(self.clip)
        height = jnp.where(shrunk_radius(self.clip) > 0, shrunk_radius(self.height), 0.0)
        return jnp.append(private_clipped, jnp.where(private_inside, height, -height))

    def row_form(self, public: Public) -> RowForm | None:
        """Of users, the generalised-linear form of their averages: slope times row."""
        loss = self.loss
        if not isinstance(loss, GLMLoss) or not public.by_user:
            return None

        def coefficients(private_predictions: Array, private_targets: Array, private_norms: Array) -> Array:
            del private_norms
            return glm_slopes(loss, private_predictions, private_targets)

        return slope_form(loss, public, (self.at,), coefficients, self.radius())

    def _width(self) -> int:
        """Entries of the gradient."""
        shape = jnp.shape(self.at)
        if self.row_map is None:
            return int(np.prod(shape, dtype=int))
        return int(jnp.shape(self.row_map)[1] * np.prod(shape[1:], dtype=int))


def share_inside(released_count: Float[Array, ""], height: Scalar) -> Array:
    """The share of units within the clip, in [0, 1], from the released mean of s_j. Post-processing."""
    return jnp.clip(0.5 * (1.0 + released_count / height), 0.0, 1.0)


# ------------------------------------------------------------------------------------------------------------
# How many units' gradients are no longer than each of several lengths, for a private choice of a clip.


_UNIT_ROUNDOFF = 2.0**-53


LENGTHS_ARGUMENT = (
    "A unit moves each count by at most one, up or down, and a distance from a share by no more: the range of the "
    "moves is at most two counts."
)  # the `sensitivity_argument` of both classes


class _Counts(RecordSum):
    """How far the counts of units whose vectors are no longer than each of several lengths are from a share."""

    norm: ClassVar[str] = "range"
    radius_norm: ClassVar[str] = "linf"

    lengths: Float[Array, " k"]
    share: Scalar
    bonus: Any

    def radius(self) -> Scalar:
        """The largest entry of one unit's vector."""
        return 1.0

    def sensitivity(self, public: Public, sampling: Sampling = EveryUnit()) -> Scalar:
        """2 / n, whatever the relation, and rounding."""
        return moved_by_counts(public, sampling, self.share, self.bonus)

    def shape(self, public: Public) -> tuple[int, ...]:
        """One score a length."""
        del public
        return (int(jnp.shape(self.lengths)[0]),)

    def clip_unit(self, private_vector: Array) -> Float[Array, " k"]:
        """1 for each length that is no shorter than the unit's vector."""
        return counted(private_vector, self.lengths)

    def finish(self, private_mean: Float[Array, " k"]) -> Float[Array, " k"]:
        """The bonus minus the distances from the share."""
        return self.bonus - jnp.abs(private_mean - self.share)


@query
class NormCounts(_Counts, GradientSum):
    """Minus `|count_k / n - share|`, and a public bonus, for each length C_k; count_k units' gradients are no longer.

    The exponential mechanism takes the largest score: the length below which about `share` of the gradients are. Where
    many gradients have one length, all shorter lengths have the same count: a bonus then prefers the longest of them.

    Attributes:
        loss: a generalised-linear or user-written loss.
        at: public point, as in `ClippedGradient`. A unit's gradient is the one that it would clip there.
        lengths: C_k, (k,), public, in any order.
        share: the share of the units to be no longer, in [0, 1].
        bonus: public numbers that are added to the scores, (k,), in shares of the units, at most 1 in size; 0 for none.
    Privacy:
        Sensitivity in the *range* (largest minus smallest entry of the change of the scores), which is what the
        exponential mechanism asks for. A unit adds a vector of zeros and ones, an absent one zeros: adding, removing
        or replacing it moves each count by -1, 0 or 1, and each score by at most 1 / n, up or down, since
        `|c - q|` is 1-Lipschitz in c. So the range is at most 2 / n under both relations; attained by a unit that
        brings one count closer to its share and another one further away. A gradient that is not finite counts as
        zero, so as no longer than any length. A bonus is the same on both data sets. Sums of zeros and ones are exact;
        the division by n, the difference and the sum with the bonus are rounded by at most 2^-53 of 1 + share + bonus
        each, in size, at two lengths and on two data sets, for which twice as much is added.
    Source:
        Smith 2011 (a quantile by the exponential mechanism), with counts as scores; ours for lengths of gradients.
    """

    sensitivity_argument: ClassVar[str] = LENGTHS_ARGUMENT

    loss: Loss = static()
    at: Float[Array, " *shape"]
    lengths: Float[Array, " k"]
    share: Scalar
    bonus: Any = field(default=0.0)


@query
class ValueNormCounts(_Counts, ValueSum):
    """The scores of `NormCounts` for estimates from values: how long a unit's `ValueGradient` is before the clip.

    Attributes:
        loss: any loss; its values are all that is asked for.
        at: public point.
        directions: (k, p), public orthonormal rows.
        smoothing: r, the radius of the two-point differences.
        lengths, share, bonus: as in `NormCounts`.
    Privacy:
        As in `NormCounts`: whatever the values are, a unit adds zeros and ones.
    """

    sensitivity_argument: ClassVar[str] = LENGTHS_ARGUMENT

    loss: Loss = static()
    at: Float[Array, " *shape"]
    directions: Float[Array, "rows p"]
    smoothing: Scalar
    lengths: Float[Array, " k"]
    share: Scalar
    bonus: Any = field(default=0.0)

    def points(self) -> Float[Array, "m p"]:
        """See `ValueGradient`."""
        return around(self.at, self.directions, self.smoothing)

    def of_values(self, private_values: Float[Array, " m"]) -> Array:
        """The differences, times p / k."""
        rows, size = jnp.shape(self.directions)
        return differences(private_values, self.smoothing) * (size / rows)


def moved_by_counts(public: Public, sampling: Sampling, share: Scalar, bonus: Any) -> Scalar:
    """2 / n, whatever the relation, and rounding, which grows with the share and the bonus.

    Raises:
        ValueError: for a sample, where a count is divided by fewer units.
    """
    if not isinstance(sampling, EveryUnit):
        raise ValueError(
            "lengths of gradients are counted on all units and cannot be sampled: leave out `sampling`."
        )
    largest = 1.0 + jnp.abs(jnp.asarray(share, float)) + jnp.max(jnp.abs(jnp.asarray(bonus, float)))
    return 2.0 / public.n + 24.0 * _UNIT_ROUNDOFF * largest


def counted(private_vector: Array, lengths: Float[Array, " k"]) -> Float[Array, " k"]:
    """1 for each length that is no shorter than a unit's vector, else 0."""
    private_scale = scale_of(private_vector)
    private_unit = private_vector / private_scale
    private_length = jnp.sqrt(jnp.sum(private_unit * private_unit)) * private_scale
    return jnp.where(private_length <= jnp.asarray(lengths, float), 1.0, 0.0)


# ------------------------------------------------------------------------------------------------------------
# How long the clipped mean gradient is at each of several points, for a private choice of a stationary one.


@query
class _AtPoints(RecordSum):
    """Gradients of one loss at several public points, each clipped for itself; all share one pass over the rows."""

    loss: Loss = static()
    points: Float[Array, "T ..."]
    clip: Scalar

    def moves(self, public: Public, sampling: Sampling) -> Float[Array, " T"]:
        """The sensitivity of `ClippedGradient` at each point."""

        def move(at: Array) -> Array:
            gradient = ClippedGradient(loss=self.loss, at=at, clip=self.clip)
            return jnp.asarray(gradient.sensitivity(public, sampling), float)

        return jax.vmap(move)(jnp.asarray(self.points, float))

    def record_contribution(self, private_features: Float[Array, " d"], private_target: Scalar) -> Array:
        """The gradients of one record's loss, (p, T)."""
        return gradients_at(self.loss, self.points, private_features, private_target)

    def without_bad(self, private_vector: Float[Array, "p T"]) -> Float[Array, "p T"]:
        """Each gradient that is not finite as zero."""
        return jax.vmap(super().without_bad, in_axes=1, out_axes=1)(private_vector)

    def columns_form(self, public: Public) -> RowForm | None:
        """The generalised-linear form, the points side by side: K T columns, those of one output together.

        A record's gradients are clipped here, each for itself; a user's are averaged first, and clipped by
        `clip_unit`.
        """
        loss = self.loss
        if not isinstance(loss, GLMLoss):
            return None
        count, outputs = int(jnp.shape(self.points)[0]), loss.outputs

        def coefficients(private_predictions: Array, private_targets: Array, private_norms: Array) -> Array:
            private_slopes = slopes_at(loss, count, private_predictions, private_targets)
            if public.unit == "record":
                private_slopes = clipped_slopes(private_slopes, private_norms, self.clip)
            return side_by_side(private_slopes)

        return RowForm(
            points=columns_of(self.points, loss, public),
            coefficients=coefficients,
            outputs=outputs * count,
            shape=(public.d * outputs, count),
            radius=2.0 * self.clip * count**0.5,  # never reached by clipped gradients
        )


@query
class GradientNorms(_AtPoints):
    """Minus the norm |g_t + o_t| at each of T points, g_t the mean over units of `grad f(w_t; unit)`, each clipped.

    Minus, since the exponential mechanism takes the largest score: the smallest gradient. All points share one pass
    over the rows for a generalised-linear loss; for a user-written one they are met in groups of bounded size.

    Attributes:
        loss: a generalised-linear or user-written loss.
        points: w_t, (T, d) or (T, d, K), public or released; (T, p) for a user-written loss.
        clip: C, the largest norm of one unit's gradient at one point; infinite only when privacy is switched off.
        offsets: o_t, public gradients of a penalty at the points, shaped like them; 0 for none.
    Privacy:
        Sensitivity in the *range* (largest minus smallest entry of the change of the scores), which is what the
        exponential mechanism asks for. At point t the mean moves by at most D_t, the sensitivity of `ClippedGradient`
        there, and its distance from -o_t by no more, in either direction. So the largest entry of the change is at
        most D_s for some point s, the smallest at least -D_t for some t, and unless s = t (then the range is 0) the
        range is at most the sum of the two largest D_t: 2 D where they are alike, 0 where there is one point. This is
        attained, by a unit that lengthens one mean and shortens another.
        The radius, from which the curator takes the rounding of sums, is therefore twice the clip. A norm of p entries
        is rounded by at most (p + 4) 2^-53 of its size, C and |o_t| at most, at two points and on two data sets; four
        times that is added.
    Source:
        Menart, Ullah, Arora, Bassily, Guzman 2023, Theorem 5 (choice of a stationary point); Dong, Durfee, Rogers 2020
        (bounded range).
    """

    norm: ClassVar[str] = "range"
    radius_norm: ClassVar[str] = "columns"
    sensitivity_argument: ClassVar[str] = (
        "No norm moves by more than the mean gradient at its point, and the range of the moves is at most the sum of "
        "the two largest."
    )

    offsets: Any = field(default=0.0)

    def radius(self) -> Scalar:
        """Twice the clip: a contribution may lengthen one mean and shorten another."""
        return 2.0 * self.clip

    def sensitivity(self, public: Public, sampling: Sampling = EveryUnit()) -> Scalar:
        """The sum of the two largest sensitivities of a clipped gradient at the points, and rounding."""
        points = jnp.asarray(self.points, float)
        count = points.shape[0]
        if count == 1:
            return jnp.zeros(())
        largest = jnp.sum(jax.lax.top_k(self.moves(public, sampling), 2)[0])
        size = points.size // count
        offsets = jnp.reshape(jnp.broadcast_to(jnp.asarray(self.offsets, float), points.shape), (count, -1))
        longest = self.clip + jnp.max(jnp.sqrt(jnp.sum(offsets * offsets, axis=1)))
        return largest + 4.0 * (size + 4.0) * _UNIT_ROUNDOFF * longest

    def shape(self, public: Public) -> tuple[int, ...]:
        """One score a point."""
        del public
        return (int(jnp.shape(self.points)[0]),)

    def clip_unit(self, private_vector: Float[Array, "p T"]) -> Float[Array, "p T"]:
        """Each gradient in its ball."""
        return clip_each(private_vector, self.clip)

    def finish(self, private_mean: Float[Array, "p T"]) -> Float[Array, " T"]:
        """Minus the norms."""
        count = private_mean.shape[1]
        shape = jnp.shape(self.points)
        offsets = jnp.reshape(jnp.broadcast_to(jnp.asarray(self.offsets, float), shape), (count, -1))
        private_whole = private_mean + offsets.T
        return -jnp.sqrt(jnp.sum(private_whole * private_whole, axis=0))

    def row_form(self, public: Public) -> RowForm | None:
        """See `_AtPoints.columns_form`."""
        return self.columns_form(public)

    def groups(self, public: Public) -> Sequence["GradientNorms"]:
        """The same points in groups, see `points_in_groups`."""
        if len(parts := points_in_groups(self.points, self.loss, public)) == 1:
            return (self,)
        return [GradientNorms(loss=self.loss, points=part, clip=self.clip) for part in parts]


# ------------------------------------------------------------------------------------------------------------
# The clipped mean gradient, averaged over several points: what certifies a point that is the mean of
# iterates.


@query
class AveragedGradient(Clipped, _AtPoints):
    """Mean over M points of the mean over units of `grad f(z_m; unit)`, each clipped to the l2 norm `clip`.

    Every unit is clipped at every point by itself, as `ClippedGradient` does it there, so that the value is the average
    of what M such queries would answer; but it is one release. All points share one pass over the rows for a
    generalised-linear loss; for a user-written one they are met in groups of bounded size.

    Attributes:
        loss: a generalised-linear or user-written loss.
        points: z_m, (M, d) or (M, d, K), public or released; (M, p) for a user-written loss. At most a million.
        clip: C, the largest norm of one unit's gradient at one point; infinite only when privacy is switched off.
    Privacy:
        A unit's contribution is the average of M vectors of norm at most C (an average of M float64 vectors is longer
        by at most M 2^-53 of C, which the margin of the clip covers for a million), so its norm is at most C whatever
        M is: l2 sensitivity factor * C / N, see `MeanQuery`. And an average of M means moves by at most the average of
        their moves: where the loss bounds the sensitivity of `ClippedGradient` at a point below that, the average of
        these sensitivities.
    Source:
        The certificate of Kornowski, Liu, Talwar 2024, Algorithm 2 (Goldstein stationarity of the mean of a block);
        its private release is ours.
    """

    sensitivity_argument: ClassVar[str] = (
        "An average of clipped mean gradients moves by at most the average of their moves, each at most the "
        "sensitivity of the clipped gradient at its point."
    )

    def sensitivity(self, public: Public, sampling: Sampling = EveryUnit()) -> Scalar:
        """The average over the points of the sensitivity of `ClippedGradient`."""
        return jnp.mean(self.moves(public, sampling))

    def shape(self, public: Public) -> tuple[int, ...]:
        """The shape of the parameters."""
        del public
        return tuple(jnp.shape(self.points)[1:])

    def clip_unit(self, private_vector: Float[Array, "p M"]) -> Array:
        """The average of the gradients, each in its ball."""
        private_clipped = clip_each(private_vector, self.clip)
        return jnp.reshape(jnp.mean(private_clipped, axis=1), jnp.shape(self.points)[1:])

    def row_form(self, public: Public) -> RowForm | None:
        """The generalised-linear form, the points side by side.

        A record's gradients are clipped and averaged here, so that its row is met once; a user's are averaged over
        their records first, and clipped by `clip_unit`.
        """
        loss, count = self.loss, int(jnp.shape(self.points)[0])
        if not isinstance(loss, GLMLoss) or public.unit != "record":
            return self.columns_form(public)

        def coefficients(private_predictions: Array, private_targets: Array, private_norms: Array) -> Array:
            private_slopes = slopes_at(loss, count, private_predictions, private_targets)
            return jnp.mean(clipped_slopes(private_slopes, private_norms, self.clip), axis=1)

        return RowForm(
            points=columns_of(self.points, loss, public),
            coefficients=coefficients,
            outputs=loss.outputs,
            shape=tuple(jnp.shape(self.points)[1:]),
            radius=self.clip,
            averages=False,
        )

    def groups(self, public: Public) -> Sequence[tuple[float, "AveragedGradient"]]:
        """The same average in shares: groups of points so few that one unit's gradients are held without harm.

        Where there is a generalised-linear form and a unit is a record no gradient is ever held.
        """
        parts = points_in_groups(self.points, self.loss, public)
        if len(parts) == 1:
            return ((1.0, self),)
        count = int(jnp.shape(self.points)[0])
        return [
            (len(part) / count, AveragedGradient(loss=self.loss, points=part, clip=self.clip))
            for part in parts
        ]
