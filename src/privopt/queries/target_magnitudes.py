"""How large counts are: their mean, split by powers of two, so that a bound far above the data costs little."""

from typing import ClassVar

import jax.numpy as jnp
from jaxtyping import Array, Float

from privopt.ledger.sampling import EveryUnit, Sampling, expected_units
from privopt.problems.magnitudes import interval_ends
from privopt.public import Public, Weighting
from privopt.queries.base import RecordSum, Scalar, acute_factor, query, static


@query
class TargetMagnitudes(RecordSum):
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

    sensitivity_argument: ClassVar[str] = (
        "No entry of a contribution is negative, so that two make no obtuse angle: replacing one by another moves the "
        "sum by sqrt(2) radii."
    )

    weighting: ClassVar[Weighting | None] = "user"

    largest: float = static()

    def require_rows(self, public: Public) -> None:
        """It reads no entry of a row."""
        del public

    def radius(self) -> Scalar:
        """1."""
        return 1.0

    def sensitivity(self, public: Public, sampling: Sampling = EveryUnit()) -> Scalar:
        """1 / N times `acute_factor`."""
        return acute_factor(public, sampling) * self.radius() / expected_units(sampling, public.n)

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
