"""How many units' gradients are no longer than each of several lengths, for a private choice of a clip."""

from dataclasses import field
from typing import Any, ClassVar

import jax.numpy as jnp
from jaxtyping import Array, Float

from privopt.ledger.sampling import EveryUnit, Sampling
from privopt.problems.losses import Loss
from privopt.problems.norms import scale_of
from privopt.public import Public
from privopt.queries.base import RecordSum, Scalar, query, static
from privopt.queries.gradient import record_gradient
from privopt.queries.value_gradient import around, differences
from privopt.queries.values import ValueSum

_UNIT_ROUNDOFF = 2.0**-53


@query
class NormCounts(RecordSum):
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

    norm: ClassVar[str] = "range"
    radius_norm: ClassVar[str] = "linf"
    sensitivity_argument: ClassVar[str] = (
        "A unit moves each count by at most one, up or down, and a distance from a share by no more: the range of the "
        "moves is at most two counts."
    )

    loss: Loss = static()
    at: Float[Array, " *shape"]
    lengths: Float[Array, " k"]
    share: Scalar
    bonus: Any = field(default=0.0)

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

    def record_contribution(self, private_features: Float[Array, " d"], private_target: Scalar) -> Array:
        """The gradient of one record's loss."""
        return record_gradient(self.loss, self.at, private_features, private_target)

    def clip_unit(self, private_vector: Array) -> Float[Array, " k"]:
        """1 for each length that is no shorter than the gradient."""
        return counted(private_vector, self.lengths)

    def finish(self, private_mean: Float[Array, " k"]) -> Float[Array, " k"]:
        """The bonus minus the distances from the share."""
        return self.bonus - jnp.abs(private_mean - self.share)


@query
class ValueNormCounts(ValueSum):
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

    norm: ClassVar[str] = "range"
    radius_norm: ClassVar[str] = "linf"
    sensitivity_argument: ClassVar[str] = (
        "A unit moves each count by at most one, up or down, and a distance from a share by no more: the range of the "
        "moves is at most two counts."
    )

    loss: Loss = static()
    at: Float[Array, " *shape"]
    directions: Float[Array, "rows p"]
    smoothing: Scalar
    lengths: Float[Array, " k"]
    share: Scalar
    bonus: Any = field(default=0.0)

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

    def points(self) -> Float[Array, "m p"]:
        """See `ValueGradient`."""
        return around(self.at, self.directions, self.smoothing)

    def of_values(self, private_values: Float[Array, " m"]) -> Array:
        """The differences, times p / k."""
        rows, size = jnp.shape(self.directions)
        return differences(private_values, self.smoothing) * (size / rows)

    def clip_unit(self, private_vector: Array) -> Float[Array, " k"]:
        """1 for each length that is no shorter than the estimate."""
        return counted(private_vector, self.lengths)

    def finish(self, private_mean: Float[Array, " k"]) -> Float[Array, " k"]:
        """The bonus minus the distances from the share."""
        return self.bonus - jnp.abs(private_mean - self.share)


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
