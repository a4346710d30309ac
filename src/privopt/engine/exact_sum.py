"""Adds the sums of parts as integers on a public grid: the same bits in any order, and by any tree, of additions."""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from privopt.queries.base import LARGEST_RADIUS, SMALLEST_RADIUS

_LOW_BITS = 62
_LOW_MASK = (1 << _LOW_BITS) - 1
_UNIT = 2.0**-13  # what `high` counts, in the largest power of two within the radius
_FARTHEST = (
    2.0**36
)  # of a part's sum, in what `high` counts: eight times as far as `PART_UNITS` units can reach
_EXPONENT = 0x7FF0000000000000  # the bits of a float64 that tell its power of two


class ExactSum(NamedTuple):
    """Sums of parts, each rounded once to the grid, and from there on added without rounding.

    With P the largest power of two that is at most the radius C, the sum is (high 2^62 + low) times the grid P 2^-75,
    which is at most 2^-75 C. `low` lies in 0, ..., 2^62 - 1, so that a number has one pair of limbs, whatever was added
    in which order.

    Attributes:
        high: int64; of a part at most 2^36 in size, so that 2^26 parts fit: 3 10^13 units.
        low: int64, of the same shape.
        plain: float64, the sum as floating point has it. It stands for the sum where the radius is infinite: there is
            no grid then, and no noise could hide a unit, so that no order needs to be forgotten.

    Privacy:
        The limbs are functions of the set of part sums, not of their order. A part sum is off by half the grid at most;
        one that is farther out than contributions within the radius can bring it, which does not happen, is moved to
        the end of the range, so that no limb wraps around. See `rounding_bound`.
    """

    high: Any
    low: Any
    plain: Any

    @classmethod
    def of_part(cls, private_sum: Any, radius: Any) -> "ExactSum":
        """One part's sum.

        Args:
            private_sum: float64, of any shape; NumPy's or JAX's, also traced.
            radius: C, the same for every part, at least as large as any entry of any unit's contribution.
        """
        xp = _namespace(private_sum)
        scaled = private_sum / (_UNIT * _power_within(radius, xp))  # exact, by a power of two
        scaled = xp.clip(xp.where(xp.isfinite(scaled), scaled, 0.0), -_FARTHEST, _FARTHEST)
        whole = xp.trunc(scaled)
        # A difference of two numbers of one sign, of which one is the other without its digits behind the point: exact.
        low = xp.rint((scaled - whole) * 2.0**_LOW_BITS).astype(np.int64)
        return _carried(whole.astype(np.int64), low, private_sum)

    def plus(self, other: "ExactSum") -> "ExactSum":
        """The sum of both, which were made with the same radius."""
        return _carried(self.high + other.high, self.low + other.low, self.plain + other.plain)

    def value(self, radius: Any) -> Any:
        """The sum in float64, off by four roundings at most; a function of the limbs where the radius is finite."""
        xp = _namespace(self.plain)
        upper = self.low >= 1 << (_LOW_BITS - 1)  # nearer to the next `high`: no digits cancel
        high = xp.where(upper, self.high + 1, self.high).astype(np.float64)
        low = xp.where(upper, self.low - (1 << _LOW_BITS), self.low).astype(np.float64)
        found = (high + low * 2.0**-_LOW_BITS) * (_UNIT * _power_within(radius, xp))
        return xp.where(xp.isinf(radius), self.plain, found)


def _carried(high: Any, low: Any, plain: Any) -> ExactSum:
    """What `low` has beyond its range goes to `high`; the shift rounds downwards, so that `low` is not negative."""
    return ExactSum(high + (low >> _LOW_BITS), low & _LOW_MASK, plain)


def _namespace(values: Any) -> Any:
    return jnp if isinstance(values, jax.Array) else np


def _power_within(radius: Any, xp: Any) -> Any:
    """The largest power of two that is at most the radius, which contributions keep to between its two limits.

    Below `SMALLEST_RADIUS` they are all zero, and beyond `LARGEST_RADIUS` they are cut to that; 1 if it is infinite.
    """
    if xp is np:
        stated = float(radius)
        if not SMALLEST_RADIUS <= stated < math.inf:
            return 1.0
        return 2.0 ** (math.frexp(min(stated, LARGEST_RADIUS))[1] - 1)
    stated = jnp.asarray(radius, jnp.float64)
    bits = jax.lax.bitcast_convert_type(jnp.minimum(stated, LARGEST_RADIUS), jnp.int64) & _EXPONENT
    ordinary = (stated >= SMALLEST_RADIUS) & jnp.isfinite(stated)
    return jnp.where(ordinary, jax.lax.bitcast_convert_type(bits, jnp.float64), 1.0)
