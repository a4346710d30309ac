"""Units in parts of at most `PART_UNITS`: the unit of summation, so that a sum's rounding does not grow with n."""

import contextlib
import itertools
import math
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextvars import ContextVar
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from privopt.data.units import Units
from privopt.engine.rounding import PART_UNITS
from privopt.later import jax, jnp, namespace
from privopt.public import Public, Relation
from privopt.queries.base import LARGEST_RADIUS, SMALLEST_RADIUS, MeanQuery

Range = tuple[int, int]  # positions of the first unit of a part, and of the first that is not in it


class PartEngine(Protocol):
    """What sums over one part."""

    def part_sum(
        self, query: MeanQuery, private_draw: NDArray[np.int64] | None = None
    ) -> NDArray[np.float64]:
        """The sum over the part's units, or over those at some positions, counted from the part's first."""
        ...


def parts_of(units: Units) -> list[Units]:
    """The units as parts, in order."""
    ranges = ranges_of(units)
    return [units] if len(ranges) == 1 else [units.part(start, stop) for start, stop in ranges]


def ranges_of(units: Units) -> Sequence[Range]:
    """Where each part begins and ends: as users were put there, or from the number of units alone."""
    private_ranges = units.private_ranges
    return part_ranges(units.private_count) if private_ranges is None else private_ranges


def part_ranges(count: int) -> list[Range]:
    """Where each part of so many units begins and ends; one of nobody, where there are none."""
    return list(itertools.pairwise([*range(0, max(count, 1), PART_UNITS), count]))


def sum_over_parts(
    parts: Sequence[PartEngine],
    query: MeanQuery,
    private_draw: NDArray[np.int64] | None,
    ranges: Sequence[Range] = (),
    public: Public | None = None,
) -> NDArray[np.float64]:
    """The sum over all units, or over some: of one part as it is, of several by an `ExactSum`.

    Args:
        parts: engines of the parts.
        query: what to compute.
        private_draw: positions of the units that take part, in any order; None for all.
        ranges: where each part begins and ends, for a draw from several.
        public: what is public about the units, to tell how far it is; None to tell nothing.
    Privacy:
        How a unit's contribution is rounded follows from its part, and adding the parts forgets their order. A part of
        which no unit is drawn is not asked, which shows in running time only.
    """
    if len(parts) == 1:
        return parts[0].part_sum(query, private_draw)
    if private_draw is None:
        asked = parts if public is None else told(parts, public)
        return total_of_parts((part.part_sum(query) for part in asked), query.radius())
    private_shares = shares_of_parts(private_draw, ranges)
    private_asked = [k for k, private_share in enumerate(private_shares) if len(private_share)] or [0]
    return total_of_parts(
        (parts[k].part_sum(query, private_shares[k]) for k in private_asked), query.radius()
    )


def total_of_parts(private_sums: Iterable[NDArray[np.float64]], radius: Any) -> NDArray[np.float64]:
    """Add the sums of parts, at least one, whose contributions are within the radius; their order does not show."""
    radius = float(radius)
    total: ExactSum | None = None
    for private_sum in private_sums:
        private_part = ExactSum.of_part(private_sum, radius)
        total = private_part if total is None else total.plus(private_part)
    assert total is not None
    return np.asarray(total.value(radius))


def shares_of_parts(private_draw: NDArray[np.int64], ranges: Sequence[Range]) -> list[NDArray[np.int64]]:
    """The positions within each part of those drawn, in the order in which they are drawn."""
    starts, ends = (np.array(column, np.int64) for column in zip(*ranges, strict=True))
    private_owners = np.searchsorted(ends, private_draw, side="right")
    if np.any(np.diff(private_owners) < 0):
        private_order = np.argsort(private_owners, kind="stable")
        private_draw, private_owners = private_draw[private_order], private_owners[private_order]
    edges = np.searchsorted(private_owners, np.arange(len(ranges) + 1))
    return [private_draw[edges[k] : edges[k + 1]] - starts[k] for k in range(len(ranges))]


# ------------------------------------------------------------------------------------------------------------
# Adds the sums of parts as integers on a public grid: the same bits in any order, and by any tree, of
# additions.


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
        xp = namespace(private_sum)
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
        xp = namespace(self.plain)
        upper = self.low >= 1 << (_LOW_BITS - 1)  # nearer to the next `high`: no digits cancel
        high = xp.where(upper, self.high + 1, self.high).astype(np.float64)
        low = xp.where(upper, self.low - (1 << _LOW_BITS), self.low).astype(np.float64)
        found = (high + low * 2.0**-_LOW_BITS) * (_UNIT * _power_within(radius, xp))
        return xp.where(xp.isinf(radius), self.plain, found)


def _carried(high: Any, low: Any, plain: Any) -> ExactSum:
    """What `low` has beyond its range goes to `high`; the shift rounds downwards, so that `low` is not negative."""
    return ExactSum(high + (low >> _LOW_BITS), low & _LOW_MASK, plain)


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


# ---- How far a round has come: told by engines, part after part, to whoever shows it -----------------------


Listener = Callable[[str, float], None]  # told what of, and the share of it that is done
ROUND, ROWS = "the round", "the rows"

Item = TypeVar("Item")
_listening: ContextVar[Listener | None] = ContextVar("listening", default=None)


@contextlib.contextmanager
def shown_by(listener: Listener) -> Generator[None]:
    """Have whatever runs inside tell a listener how far it is."""
    token = _listening.set(listener)
    try:
        yield
    finally:
        _listening.reset(token)


def tell(what: str, done: int, of: int, public: Public) -> None:
    """Tell the share of the parts that are done.

    Args:
        what: of what, `ROUND` or `ROWS`.
        done: how many parts are.
        of: how many there are.
        public: what is public about the units.

    Privacy:
        Shares tell the number of parts, which follows from n under replace-one, and is private where units come and go
        or were drawn: nothing is told there. When it is told shows in running time, as the round's end does.
    """
    listener = _listening.get()
    if listener is not None and of > 1 and public.relation is Relation.REPLACE_ONE and not public.drawn:
        listener(what, done / of)


def told(parts: Sequence[Item], public: Public) -> Iterator[Item]:
    """The parts of a round, each told of once the next is asked for."""
    for done, part in enumerate(parts, 1):
        yield part
        tell(ROUND, done, len(parts), public)
