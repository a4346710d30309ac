"""Value estimates in parameters: what streams of them add up, whose directions differ from item to item.

The numbers along one block of orthonormal rows are a rotation, or a projection, of the vector in parameters, so that
nothing but the place of the noise changes: it has all p coordinates, also where there are fewer directions.
"""

import math

import jax.numpy as jnp
from jaxtyping import Array, Float

from privopt.ledger.sampling import EveryUnit, Sampling, expected_units
from privopt.public import Public
from privopt.queries.base import Scalar, query
from privopt.queries.value_difference import ValueDifference
from privopt.queries.value_gradient import ValueGradient


@query
class PlacedValueGradient(ValueGradient):
    """The mean of `ValueGradient` for one block of directions, as a vector in parameters.

    Privacy:
        The sum over directions of the numbers times orthonormal rows is no longer than the numbers, so the map of the
        mean is 1-Lipschitz and the sensitivity is that of `ValueGradient`, and what the sum is rounded by, see
        `rounding_of_sum`. Rows that could stretch it are scaled down.
    """

    def __post_init__(self) -> None:
        require_one_block(self.blocks)

    def sensitivity(self, public: Public, sampling: Sampling = EveryUnit()) -> Scalar:
        """That of the numbers, and rounding."""
        units = expected_units(sampling, public.n)
        rounding = rounding_of_sum(self.directions) * self.radius() * (public.n / units)
        return super().sensitivity(public, sampling) + rounding

    def shape(self, public: Public) -> tuple[int, ...]:
        """The shape of the parameters."""
        del public
        return tuple(jnp.shape(self.at))

    def finish(self, private_mean: Array) -> Float[Array, " *shape"]:
        """The mean in parameters."""
        return self.gradient(contracted(self.directions, private_mean))


@query
class PlacedValueDifference(ValueDifference):
    """The mean of `ValueDifference` for one block of directions, as a vector in parameters.

    Privacy:
        As for `PlacedValueGradient`.
    """

    def __post_init__(self) -> None:
        require_one_block(self.blocks)

    def sensitivity(self, public: Public, sampling: Sampling = EveryUnit()) -> Scalar:
        """That of the numbers, and rounding."""
        units = expected_units(sampling, public.n)
        rounding = rounding_of_sum(self.directions) * self.radius() * (public.n / units)
        return super().sensitivity(public, sampling) + rounding

    def shape(self, public: Public) -> tuple[int, ...]:
        """The shape of the parameters."""
        del public
        return tuple(jnp.shape(self.at))

    def finish(self, private_mean: Array) -> Float[Array, " *shape"]:
        """The mean in parameters."""
        return self.gradient(contracted(self.directions, private_mean))


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
