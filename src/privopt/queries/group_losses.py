"""How large each group's loss and share are: what a player who weights groups against each other sees of the data."""

from typing import ClassVar

import jax.numpy as jnp
from jaxtyping import Array, Float

from privopt.ledger.sampling import EveryUnit, Sampling, expected_units
from privopt.problems.grouped_loss import GroupedLoss, one_hot
from privopt.problems.norms import scale_of
from privopt.public import Public
from privopt.queries.base import RecordSum, Scalar, acute_factor, query, shrunk_radius, static


@query
class GroupLosses(RecordSum):
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

    def shape(self, public: Public) -> tuple[int, ...]:
        """A number a group."""
        del public
        return (self.loss.groups,)

    def record_contribution(self, private_features: Float[Array, " d"], private_target: Scalar) -> Array:
        """The record's capped loss around B / 2, at the place of its group."""
        return self.contribution_at(private_features @ jnp.asarray(self.at), private_target)

    def contribution_at(self, private_prediction: Scalar, private_target: Scalar) -> Array:
        """The same, from the record's prediction."""
        return centred_loss(self.loss, private_prediction, private_target)


@query
class GroupLossScores(RecordSum):
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

    def shape(self, public: Public) -> tuple[int, ...]:
        """A number a group."""
        del public
        return (self.loss.groups,)

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
class GroupShares(RecordSum):
    """Each group's share of the units: a histogram, in which a unit whose group or label is unknown adds nothing.

    Attributes:
        loss: of records in groups.
    Privacy:
        A unit adds numbers that are at least 0 and sum to at most 1 (a user the average over their records, times a
        weight of at most 1), so its l2 norm is at most 1: the sensitivity of the sum under add-or-remove-one. Replacing
        p by q moves it by |p - q| <= sqrt(|p|^2 + |q|^2) <= sqrt(2), since no entry is negative.
    """

    sensitivity_argument: ClassVar[str] = (
        "No entry of a contribution is negative, so that two make no obtuse angle: replacing one by another moves the "
        "sum by sqrt(2) radii."
    )

    loss: GroupedLoss = static()

    def radius(self) -> Scalar:
        """1."""
        return 1.0

    def sensitivity(self, public: Public, sampling: Sampling = EveryUnit()) -> Scalar:
        """1 / N times `acute_factor`."""
        return acute_factor(public, sampling) * self.radius() / expected_units(sampling, public.n)

    def shape(self, public: Public) -> tuple[int, ...]:
        """A number a group."""
        del public
        return (self.loss.groups,)

    def record_contribution(self, private_features: Float[Array, " d"], private_target: Scalar) -> Array:
        """A 1 at the place of the record's group."""
        del private_features
        return one_hot(self.loss.group_of(private_target), self.loss.groups)


def centred_loss(loss: GroupedLoss, private_prediction: Scalar, private_target: Scalar) -> Array:
    """One record's loss, capped, minus cap / 2, at the place of its group; zeros for a record in none."""
    private_place = one_hot(loss.group_of(private_target), loss.groups)
    private_loss = jnp.clip(loss.value(private_prediction, private_target), 0.0, loss.cap)
    return private_place * (private_loss - 0.5 * loss.cap)
