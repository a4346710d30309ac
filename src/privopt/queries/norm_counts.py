"""How many units' gradients are no longer than each of several lengths, for a private choice of a clip."""

from typing import ClassVar

import jax.numpy as jnp
from jaxtyping import Array, Float

from privopt.ledger.sampling import EveryUnit, Sampling
from privopt.problems.losses import Loss
from privopt.problems.norms import scale_of
from privopt.public import Public
from privopt.queries.base import RecordSum, Scalar, query, static
from privopt.queries.gradient import record_gradient

_UNIT_ROUNDOFF = 2.0**-53


@query
class NormCounts(RecordSum):
    """Minus `|count_k / n - share|` for each length C_k, count_k the number of units whose gradient is no longer.

    The exponential mechanism takes the largest score: the length below which about `share` of the gradients are.

    Attributes:
        loss: a generalised-linear or user-written loss.
        at: public point, as in `ClippedGradient`. A unit's gradient is the one that it would clip there.
        lengths: C_k, (k,), public, in any order.
        share: the share of the units to be no longer, in [0, 1].
    Privacy:
        Sensitivity in the *range* (largest minus smallest entry of the change of the scores), which is what the
        exponential mechanism asks for. A unit adds a vector of zeros and ones, an absent one zeros: adding, removing
        or replacing it moves each count by -1, 0 or 1, and each score by at most 1 / n, up or down, since
        `|c - q|` is 1-Lipschitz in c. So the range is at most 2 / n under both relations; attained by a unit that
        brings one count closer to its share and another one further away. A gradient that is not finite counts as
        zero, so as no longer than any length. Sums of zeros and ones are exact; the division by n and the difference
        are rounded by at most 2^-53 each, at two lengths and on two data sets, for which eight such are added.
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

    def radius(self) -> Scalar:
        """The largest entry of one unit's vector."""
        return 1.0

    def sensitivity(self, public: Public, sampling: Sampling = EveryUnit()) -> Scalar:
        """2 / n, whatever the relation, and rounding.

        Raises:
            ValueError: for a sample, where a count is divided by fewer units.
        """
        if not isinstance(sampling, EveryUnit):
            raise ValueError(
                "lengths of gradients are counted on all units and cannot be sampled: leave out `sampling`."
            )
        return 2.0 / public.n + 8.0 * _UNIT_ROUNDOFF

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
        """Minus the distances from the share."""
        return -jnp.abs(private_mean - self.share)


def counted(private_vector: Array, lengths: Float[Array, " k"]) -> Float[Array, " k"]:
    """1 for each length that is no shorter than a unit's vector, else 0."""
    private_scale = scale_of(private_vector)
    private_unit = private_vector / private_scale
    private_length = jnp.sqrt(jnp.sum(private_unit * private_unit)) * private_scale
    return jnp.where(private_length <= jnp.asarray(lengths, float), 1.0, 0.0)
