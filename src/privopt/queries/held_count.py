"""How many held points lie within a radius of a public centre."""

from typing import Any, ClassVar

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from privopt.ledger.sampling import EveryUnit, Sampling
from privopt.public import Public
from privopt.queries.base import Scalar, StatisticOfHeld, query, static


@query
class HeldCount(StatisticOfHeld):
    """The number of points with |y_j - v0| <= radius, as a float.

    Attributes:
        held: the points.
        centre: v0, (k,), public or released.
        radius: public or released.
    Privacy:
        Whether a point counts is a function of that point: replacing, adding or removing one moves the count by at
        most 1. It is a whole number below 2^53, so it is exact. Entering moves it by 1 too, which is not half of that:
        on a sample it answers tests only.
    """

    on_samples: ClassVar[frozenset[str]] = frozenset({"answer"})

    held: Any = static()
    centre: Float[Array, " k"]
    radius: Scalar

    def sensitivity(self, public: Public, sampling: Sampling = EveryUnit()) -> Scalar:
        """1, under both relations and for groups."""
        del public, sampling
        return 1.0

    def shape(self, public: Public) -> tuple[int, ...]:
        """A number."""
        del public
        return ()

    def value(self, private_vectors: Float[Array, "p k"], private_present: Bool[Array, " p"]) -> Array:
        """See the class."""
        private_moved = private_vectors - self.centre[None, :]
        private_distances = jnp.sqrt(jnp.sum(private_moved * private_moved, axis=1))
        private_near = (private_distances <= self.radius) & private_present
        return jnp.sum(private_near.astype(jnp.float64))
