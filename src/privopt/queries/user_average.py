"""A unit's average feature row."""

from typing import ClassVar

from jaxtyping import Array, Float

from privopt.public import Public, Weighting
from privopt.queries.base import RecordSum, Scalar, query


@query
class UserAverage(RecordSum):
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

    def shape(self, public: Public) -> tuple[int, ...]:
        """A row."""
        return (public.d,)

    def record_contribution(self, private_features: Float[Array, " d"], private_target: Scalar) -> Array:
        """The row."""
        del private_target
        return private_features
