"""The mean of held points, each clipped around a public centre."""

from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from privopt.ledger.sampling import EveryUnit, Sampling
from privopt.public import Public
from privopt.queries.base import Scalar, StatisticOfHeld, clip_to_ball, query, static

_UNIT_ROUNDOFF = 2.0**-53


@query
class HeldMean(StatisticOfHeld):
    """(1 / K) sum over the points of clip_c(y_j - v0); v0 is for whoever asked to add.

    Attributes:
        held: the points.
        centre: v0, (k,), public or released.
        radius: c.
    Privacy:
        Each term lies in the ball of radius c and K is public: replacing a point moves the sum by at most 2 c, adding
        or removing one by at most c. v0 is added once, to what was released: added to every term it would leak through
        their number.
        Rounding: y_j - v0 and its clip are functions of one point. A tree of additions of p terms of norm at most c
        is off by at most p gamma_p c, gamma_p = p u / (1 - p u), u = 2^-53; p <= 2 K holds in a random block of the
        units as well. Two data sets' means differ by at most 2 * 2 K * gamma_2K c / K more than the exact ones:
        16 K u c covers it.
        On a sample K is the expected number of points: one that enters moves the mean by c / K, under replace-one half
        of the sensitivity. Rows that are no points add 0, which is exact, and p counts the others.
    """

    on_samples: ClassVar[frozenset[str]] = frozenset({"mean"})

    held: Any = static()
    centre: Float[Array, " k"]
    radius: Scalar

    def sensitivity(self, public: Public, sampling: Sampling = EveryUnit()) -> Scalar:
        """factor c / K, and rounding."""
        del public, sampling
        points = self.held.points
        return self.radius * (self.held.factor / points + 16.0 * points * _UNIT_ROUNDOFF)

    def shape(self, public: Public) -> tuple[int, ...]:
        """That of a point."""
        del public
        return tuple(jnp.shape(self.centre))

    def value(self, private_vectors: Float[Array, "p k"], private_present: Bool[Array, " p"]) -> Array:
        """See the class."""
        private_moved = clipped_offsets(private_vectors, self.centre, self.radius)
        return _masked_sum(private_moved, private_present) / float(self.held.points)


@jax.jit
def clipped_offsets(
    private_vectors: Float[Array, "p k"], centre: Float[Array, " k"], radius: Scalar
) -> Float[Array, "p k"]:
    """clip(y_j - v0) of every row; zero where that is not finite."""
    return jax.vmap(clip_to_ball, in_axes=(0, None))(private_vectors - centre[None, :], radius)


@jax.jit
def _masked_sum(private_rows: Float[Array, "p k"], private_kept: Bool[Array, " p"]) -> Float[Array, " k"]:
    return jnp.sum(jnp.where(private_kept[:, None], private_rows, 0.0), axis=0)
