"""How large each group's loss and share are: what a player who weights groups against each other sees of the data."""

from dataclasses import field
from typing import Any, ClassVar

from privopt.later import Array, Float, jnp
from privopt.ledger.events import EveryUnit, Sampling
from privopt.problems.grouped_loss import GroupedLoss, one_hot
from privopt.problems.projections import scale_of
from privopt.public import Public
from privopt.queries.base import (
    NO_NEGATIVE_ENTRY,
    AcuteMean,
    AtPoint,
    Clipped,
    Norm,
    RecordSum,
    RowForm,
    Scalar,
    query,
    shrunk_radius,
    static,
)
from privopt.queries.scores import ClippedToCube


class _AcrossGroups(RecordSum):
    """A mean with an entry for each group of the field `loss`."""

    loss: GroupedLoss

    def shape(self, public: Public) -> tuple[int, ...]:
        """A number a group."""
        del public
        return (self.loss.groups,)


@query
class GroupLosses(_AcrossGroups):
    """For each group the mean over units of `min(loss, cap) - cap / 2` of its records, 0 of all others.

    The group's mean loss is that plus cap / 2 times its share, over its share: `GroupedLoss.mean_losses`, after the
    release. Dividing there, and not here, gives each group noise in proportion to 1 over its own share, not to that of
    the rarest.

    Attributes:
        loss: of records in groups; `cap` is B.
        at: public point, (d,).
    Privacy:
        A record adds a number in [-B / 2, B / 2] to the entry of its own group; one whose label or group is unknown, or
        whose loss is not a number, adds 0. A user's vector is an average of such vectors times a weight of at most 1,
        so its l1 norm is at most B / 2, and its l2 norm as well: `radius` = B / 2, enforced by the clip, which takes in
        what an average of rounded numbers may be above it. Adding or removing a unit moves the sum by at most B / 2,
        replacing one by at most B, be it that the record switches groups (sqrt(2) B / 2) or that its loss goes from
        nothing to the cap (B): the l2 sensitivity is factor * B / (2 N), see `MeanQuery`. Without moving losses by
        B / 2 it would be sqrt(2) B and B.
    Source:
        Ours; the midrange as in Gonzalez, Guzman, Paquette 2024 read for bounded losses.
    """

    loss: GroupedLoss = static()
    at: Float[Array, " d"]

    def radius(self) -> Scalar:
        """B / 2."""
        return 0.5 * self.loss.cap

    def record_contribution(self, private_features: Float[Array, " d"], private_target: Scalar) -> Array:
        """The record's capped loss around B / 2, at the place of its group."""
        return self.contribution_at(private_features @ jnp.asarray(self.at), private_target)

    def contribution_at(self, private_prediction: Scalar, private_target: Scalar) -> Array:
        """The same, from the record's prediction."""
        return centred_loss(self.loss, private_prediction, private_target)


@query
class GroupLossScores(_AcrossGroups):
    """Minus each group's mean loss, up to a common constant: for draws of groups with large losses.

    It is the mean over units of `-(min(loss, cap) - cap / 2) / q_g` at the place g of a record's group, and a part that
    does not depend on the data, `-(cap / 2) p_g / q_g`: smaller is worse off. q are the shares p, floored.

    Attributes:
        loss: of records in groups; `cap` is B.
        at: public point, (d,).
        divisors: q (groups,), public or released, positive.
        constants: (cap / 2) p / q, likewise.
    Privacy:
        Sensitivity in the range (largest minus smallest entry of the change). A record's vector has one entry, of size
        at most B / (2 min q), so with the zeros beside it its range is at most that; so is a user's, an average of
        such vectors v with weights of at most 1 in sum: max v - min v <= (sum_g q_g |v_g|) / min q, taking 0 among the
        entries. `clip_unit` enforces it, with 0 taken among the entries. The range is a seminorm, so replacing a unit
        moves the sum by at most twice the radius: factor * B / (2 min q N). The constants cancel; adding them rounds
        each entry, on either data set, by at most 2^-53 times the largest entry there can be, B / min q, hence the
        addition of 4 * 2^-53 times that and the largest constant, doubled.
    Source:
        Gonzalez, Guzman, Paquette 2024, Algorithm 1, for one-hot payoffs.
    """

    norm: ClassVar[str] = "range"

    loss: GroupedLoss = static()
    at: Float[Array, " d"]
    divisors: Float[Array, " groups"]
    constants: Float[Array, " groups"]

    def radius(self) -> Scalar:
        """B / (2 min q)."""
        return 0.5 * self.loss.cap / jnp.min(jnp.asarray(self.divisors))

    def sensitivity(self, public: Public, sampling: Sampling = EveryUnit()) -> Scalar:
        """factor * B / (2 min q N), and what adding the constants may round."""
        largest = jnp.max(jnp.abs(jnp.asarray(self.constants)))
        return super().sensitivity(public, sampling) + 2.0**-50 * (2.0 * self.radius() + largest)

    def record_contribution(self, private_features: Float[Array, " d"], private_target: Scalar) -> Array:
        """The record's capped loss around B / 2 over the share of its group, at its place."""
        return self.contribution_at(private_features @ jnp.asarray(self.at), private_target)

    def contribution_at(self, private_prediction: Scalar, private_target: Scalar) -> Array:
        """The same, from the record's prediction."""
        return centred_loss(self.loss, private_prediction, private_target) / jnp.asarray(self.divisors)

    def clip_unit(self, private_vector: Array) -> Array:
        """Scale one unit's vector so that its range, 0 taken among its entries, is within the radius."""
        private_finite = jnp.all(jnp.isfinite(private_vector))
        private_safe = jnp.where(private_finite, private_vector, jnp.zeros_like(private_vector))
        private_scale = scale_of(private_safe)
        private_unit = private_safe / private_scale
        private_range = jnp.max(private_unit, initial=0.0) - jnp.min(private_unit, initial=0.0)
        aim = shrunk_radius(self.radius())
        private_inside = private_range * private_scale <= aim
        private_factor = aim / jnp.where(private_range > 0, private_range, 1.0)
        return jnp.where(private_inside, private_safe, private_unit * private_factor)

    def finish(self, private_mean: Array) -> Array:
        """Smaller for a larger loss."""
        return -(private_mean + jnp.asarray(self.constants))


@query
class GroupShares(AcuteMean, _AcrossGroups):
    """Each group's share of the units: a histogram, in which a unit whose group or label is unknown adds nothing.

    Attributes:
        loss: of records in groups.
    Privacy:
        A unit adds numbers that are at least 0 and sum to at most 1 (a user the average over their records, times a
        weight of at most 1), so its l2 norm is at most 1: the sensitivity of the sum under add-or-remove-one. Replacing
        p by q moves it by |p - q| <= sqrt(|p|^2 + |q|^2) <= sqrt(2), since no entry is negative.
    """

    sensitivity_argument: ClassVar[str] = NO_NEGATIVE_ENTRY

    loss: GroupedLoss = static()

    def radius(self) -> Scalar:
        """1."""
        return 1.0

    def record_contribution(self, private_features: Float[Array, " d"], private_target: Scalar) -> Array:
        """A 1 at the place of the record's group."""
        del private_features
        return one_hot(self.loss.group_of(private_target), self.loss.groups)


def centred_loss(loss: GroupedLoss, private_prediction: Scalar, private_target: Scalar) -> Array:
    """One record's loss, capped, minus cap / 2, at the place of its group; zeros for a record in none."""
    private_place = one_hot(loss.group_of(private_target), loss.groups)
    private_loss = jnp.clip(loss.value(private_prediction, private_target), 0.0, loss.cap)
    return private_place * (private_loss - 0.5 * loss.cap)


# ------------------------------------------------------------------------------------------------------------
# Gradients of a weighted mean of the groups' losses: what the player who moves the parameters sees of the
# data.


class _Weighted(RecordSum):
    """A record contributes its gradient times the weight of its group, shortened if `balanced`."""

    loss: GroupedLoss
    at: Any
    weights: Float[Array, " groups"]
    clip: Scalar
    balanced: bool
    clipped_in: ClassVar[Norm]

    def record_contribution(self, private_features: Float[Array, " d"], private_target: Scalar) -> Array:
        """The weighted gradient of one record's loss, shortened if `balanced`."""
        if self.clipped_in == "l2":
            private_length = jnp.sqrt(jnp.sum(private_features * private_features))
        else:
            private_length = jnp.max(jnp.abs(private_features), initial=0.0)
        private_prediction = private_features @ jnp.asarray(self.at)
        numbers = (private_prediction, private_target, private_length)
        return private_features * self._slopes(*(jnp.reshape(number, (1,)) for number in numbers))[0]

    def slope_times_row(self, public: Public) -> RowForm:
        """The generalised-linear form; the norms that the engine hands over are those of the rows in `clipped_in`."""

        def coefficients(private_predictions: Array, private_targets: Array, private_norms: Array) -> Array:
            return self._slopes(private_predictions[:, 0], private_targets, private_norms)[:, None]

        return RowForm(
            points=jnp.reshape(jnp.asarray(self.at), (public.d, 1)),
            coefficients=coefficients,
            outputs=1,
            shape=(public.d,),
            radius=self.clip,
            norm=self.clipped_in,
        )

    def _slopes(
        self,
        private_predictions: Float[Array, " rows"],
        private_targets: Float[Array, " rows"],
        private_norms: Float[Array, " rows"],
    ) -> Float[Array, " rows"]:
        """The weighted slopes; balanced ones times `min(1, C / longest)`, longest over both labels."""
        loss = self.loss
        padded = jnp.concatenate([jnp.zeros(1), jnp.asarray(self.weights, jnp.float64)])
        private_weights = padded[loss.group_of(private_targets)]
        private_slopes = private_weights * loss.slope(private_predictions, private_targets)
        if not (self.balanced and loss.balances):
            return private_slopes
        private_longest = private_weights * loss.steepest_slope(private_predictions) * private_norms
        aim = shrunk_radius(self.clip)
        private_over = private_longest > aim
        private_factor = jnp.where(private_over, aim / jnp.where(private_over, private_longest, 1.0), 1.0)
        return private_slopes * private_factor


@query
class GroupedGradient(AtPoint, Clipped, _Weighted):
    """Mean over units of `weights[g] * grad f(at; record)`, g the record's group, each clipped to the l2 norm `clip`.

    Attributes:
        loss: of records in groups.
        at: public point, (d,).
        weights: (groups,) at least 0, public or released: y_g over the share of the group.
        clip: C; infinite only when privacy is switched off (epsilon = inf).
        balanced: shorten a record's gradient by a factor that does not depend on its label, see `ClippedGradient`. A
            rare group has long weighted gradients; clipped one by one, those of its surprising records would be
            shortened most, and the group would lose by its own weight.
    Privacy:
        Whatever the weights and the record's group, label and row: the contribution is clipped to C, zero where it is
        not finite or the label or group unknown, so the l2 sensitivity is factor * C / N, see `MeanQuery`. A balanced
        gradient is clipped all the same.
    Source:
        Sagawa, Koh, Hashimoto, Liang 2020 (the weighted gradient); balanced: Kuensch, Stefanski, Carroll 1989.
    """

    clipped_in: ClassVar[Norm] = "l2"

    loss: GroupedLoss = static()
    at: Float[Array, " d"]
    weights: Float[Array, " groups"]
    clip: Scalar
    balanced: bool = field(default=True, metadata={"static": True})

    def row_form(self, public: Public) -> RowForm | None:
        """The generalised-linear form: slope times row."""
        return self.slope_times_row(public)


@query
class GroupedVertexScores(ClippedToCube, _Weighted):
    """Half the decrease that each vertex +-e_j of the unit l1 ball of the first columns promises: (-g / 2, g / 2).

    g is the mean over units of `weights[record's group] * grad f(at; record)`, each scaled into the l_inf ball of
    radius `clip`, in its first `columns` entries. See `VertexScores` for the order of the scores.

    Attributes:
        loss, at, weights, balanced: see `GroupedGradient`.
        clip: C, the largest entry of one unit's gradient.
        columns: how many parameters the ball has; the rest, such as an intercept, have no vertex.
    Privacy:
        As for `VertexScores` without an offset: the mean gradient moves by at most factor * C / N in the l_inf norm,
        leaving entries out moves it by no more, and (-v / 2, v / 2) has the range |v|_inf. The halves are exact.
    Source:
        Talwar, Thakurta, Zhang 2015 (private Frank-Wolfe); Dong, Durfee, Rogers 2020 (bounded range).
    """

    clipped_in: ClassVar[Norm] = "linf"

    loss: GroupedLoss = static()
    at: Float[Array, " d"]
    weights: Float[Array, " groups"]
    clip: Scalar
    columns: int = static()
    balanced: bool = field(default=True, metadata={"static": True})

    def shape(self, public: Public) -> tuple[int, ...]:
        """Two scores a parameter of the ball."""
        del public
        return (2 * self.columns,)

    def finish(self, private_mean: Array) -> Array:
        """The scores of the vertices +e_1, ..., +e_k, -e_1, ..., -e_k."""
        private_half = 0.5 * private_mean[: self.columns]
        return jnp.concatenate([-private_half, private_half])

    def row_form(self, public: Public) -> RowForm | None:
        """The generalised-linear form: slope times row, clipped by the row's largest entry."""
        return self.slope_times_row(public)
