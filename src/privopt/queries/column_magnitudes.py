"""How large the entries of each column are, and of which sign: the query behind bounds that are estimated privately."""

import math
from typing import ClassVar

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from numpy.typing import NDArray

from privopt.ledger.sampling import EveryUnit, Sampling, expected_units
from privopt.public import Public
from privopt.queries.base import ROUNDING_MARGIN, RecordSum, Scalar, acute_factor, query, static


@query
class ColumnMagnitudes(RecordSum):
    """For each column the share of units whose entry has each sign and each power of two, entries in [-1, 1].

    Of 2 L + 1 bins, bin L + c holds the entries in (2^-(L-c+1), 2^-(L-c)], bin L - c their negatives, c = 1 ... L, and
    bin L those of size at most 2^-L. A user counts with the average of their records, times the user's weight.

    Attributes:
        levels: L, the number of powers of two.
        columns: d, the number of columns.
    Privacy:
        One unit contributes, for each of d columns, numbers that are at least 0 and sum to at most 1 (a record has one
        1 a column; a user's weighted average stays there; an absent unit has zeros), so its l2 norm is at most
        sqrt(d): the sensitivity of the sum under add-or-remove-one. Replacing a unit moves a column by p - q with
        ||p - q||^2 <= ||p||^2 + ||q||^2 <= 2, since no entry is negative: sqrt(2 d) in all, not 2 sqrt(d).
        Contributions are bounded by their form; `clip_unit` only shrinks them, by more than the average of a million
        records is rounded.
    """

    sensitivity_argument: ClassVar[str] = (
        "No entry of a contribution is negative, so that two make no obtuse angle: replacing one by another moves the "
        "sum by sqrt(2) radii."
    )

    levels: int = static()
    columns: int = static()

    def radius(self) -> Scalar:
        """sqrt(d)."""
        return math.sqrt(self.columns)

    def clip_unit(self, private_vector: Array) -> Array:
        """A factor just below 1."""
        return private_vector * (1.0 - ROUNDING_MARGIN)

    def shape(self, public: Public) -> tuple[int, ...]:
        """One row of bins a column."""
        del public
        return (self.columns, 2 * self.levels + 1)

    def sensitivity(self, public: Public, sampling: Sampling = EveryUnit()) -> Scalar:
        """sqrt(d) / N times `acute_factor`."""
        return acute_factor(public, sampling) * self.radius() / expected_units(sampling, public.n)

    def record_contribution(self, private_features: Float[Array, " d"], private_target: Scalar) -> Array:
        """A 1 in the bin of each entry."""
        del private_target
        thresholds = jnp.asarray(2.0 ** -np.arange(self.levels, 0, -1.0))
        private_exceeded = jnp.abs(private_features)[:, None] > thresholds[None, :]
        private_count = jnp.sum(private_exceeded, axis=1).astype(jnp.float64)
        private_bin = self.levels + jnp.sign(private_features) * private_count
        bins = jnp.arange(2 * self.levels + 1, dtype=jnp.float64)
        return (private_bin[:, None] == bins[None, :]).astype(jnp.float64)


def bin_ends(levels: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The lower and the upper end of each bin; both 0 for the middle one."""
    upper = 2.0 ** -np.arange(levels - 1, -1, -1.0)
    lower = upper / 2
    return np.concatenate([-upper[::-1], [0.0], lower]), np.concatenate([-lower[::-1], [0.0], upper])
