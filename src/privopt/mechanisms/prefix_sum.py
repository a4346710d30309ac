"""Prefix sums with correlated noise: every sum of the first items of a stream is released, at the price of one release.

What correlates the noise is a strategy, see `strategies`; how often a unit may be in the items, a participation.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, ClassVar, NoReturn, SupportsFloat

import numpy as np
from numpy.typing import ArrayLike, NDArray

from privopt.later import Array
from privopt.ledger.events import Event, GaussianEvent, NoEvent, NonPrivateEvent
from privopt.mechanisms.base import (
    Entry,
    HiddenState,
    Mechanism,
    Request,
    Sensitivity,
    StreamMechanism,
    check_multiplier,
    checked_sensitivity,
    host_release,
    noise_exponent,
    spacing_ratio,
    traced_release,
)
from privopt.mechanisms.exact_noise import FINEST
from privopt.mechanisms.noise import Draws, Noise, Shape
from privopt.mechanisms.strategies import (
    ONCE,
    WHOLE,
    Banded,
    Participation,
    PrefixScales,
    SolvedRows,
    Strategy,
    divided,
    largest_noise,
    largest_row,
    participation_sensitivity,
)

# ------------------------------------------------------------------------------------------------------------
# Correlated noise on integers: a strategy whose entries are whole numbers, and why its noise is exact.
# Let c be a lower-triangular matrix of integers, k_1, k_2, ... the places of a stream's items on their lattices
# (vectors of integers, see `lattice`), and J_t = round(2^e N_t) with N_t exact standard normals. The noise of item t,
# and what is published of the item, are the integers
#
#     x_t = floor((J_t - sum_{j < t} c_tj x_j + h_t) / c_tt),    y_t = k_t + x_t,    h_t = floor(c_tt / 2).
#
# Privacy: put x_j = y_j - k_j into the first, and note that k + floor(v) = floor(k + v) for an integer k. Then
#
#     y_t = floor((r_t - sum_{j < t} c_tj y_j + h_t) / c_tt),    r_t = sum_{j <= t} c_tj k_j + J_t.
#
# So y_1, ..., y_t are a function of r_1, ..., r_t, and since the sum in r_t is a vector of integers, r_t = round(sum_{j
# <= t} c_tj k_j + 2^e N_t): row t of the Gaussian mechanism on c k over the real numbers, rounded. The whole stream is
# post-processing of that mechanism. What moves c k: an item that a unit is not in has the same place on both sides,
# since its spacing is the same and so is the item, to the last bit (it is computed from its block alone, in an order
# that nobody else decides, see `curator.loops.compiles`); one that it is in moves by at most D, whatever its
# sensitivity is, because its spacing follows its sensitivity (`lattice`, where D includes the rounding of all entries).
# So c k moves by at most D times the sensitivity of c under the participation, which is computed from these integers,
# and z times that is at most 2^e. Items and sensitivities may be chosen from what was published: given that, row t of c
# k moves by a function of the past, and along every path the squares add up to at most the square of that bound.
#
# Exact sums. The rows x are kept in float64, and added up by its products of matrices. All numbers in them are
# integers, and where the sum of |c_tj| max |x_j| over j and of |J_t| is below 2^52 so is every partial sum, and none is
# rounded, in whatever order they are added. `SolvedRows.next_whole` looks at that before each row and refuses to go on
# otherwise: this depends on the noise alone, and e is chosen so that it takes some 64 standard deviations.


ENTRY_BITS = 14  # of the largest entry
_DEVIATIONS = 64.0
_MARGIN = 1 + 2.0**-30  # more than the float64 operations that make up a sensitivity are off by


@dataclass(frozen=True, kw_only=True, eq=False)
class WholeStrategy:
    """A strategy in whole numbers.

    Attributes:
        matrix: c, integers in float64.
        unit: what an entry of 1 became.
        sensitivity: of c under the participation, rounded up.
        largest_noise: on an item, see `correlated_noise`, of c / unit; infinite where there is a zero on the diagonal.
        finest: the largest exponent e at which its noise is drawn.
    """

    matrix: Strategy
    unit: float
    sensitivity: float
    largest_noise: float
    finest: int


def in_whole_numbers(strategy: Strategy, participation: Participation) -> WholeStrategy:
    """The strategy times a power of 2, rounded to integers of which the largest has 14 bits.

    Args:
        strategy: C, finite and lower triangular.
        participation: in which items a unit may be.
    """
    stored = strategy.diagonals if isinstance(strategy, Banded) else strategy
    _, exponent = math.frexp(float(np.abs(stored).max()))
    whole = np.rint(np.ldexp(stored, ENTRY_BITS - exponent))
    diagonal = whole[0] if isinstance(strategy, Banded) else np.diagonal(whole)
    matrix: Strategy = Banded(whole) if isinstance(strategy, Banded) else whole
    unit = math.ldexp(1.0, ENTRY_BITS - exponent)
    noise = largest_noise(matrix) if np.all(diagonal) else math.inf
    room = WHOLE / _DEVIATIONS / (noise * largest_row(matrix))
    return WholeStrategy(
        matrix=matrix,
        unit=unit,
        sensitivity=participation_sensitivity(matrix, participation) * _MARGIN,
        largest_noise=noise * unit,
        finest=min(FINEST, math.floor(math.log2(room))) if room >= 1.0 else 0,
    )


# ------------------------------------------------------------------------------------------------------------
# Prefix sums with correlated noise: every sum of the first items of a stream is released, at the price of
# one release.


MOST_NOISE = 1e6  # on an item over its sensitivity and the multiplier: rounded in float64 at 1e-10 of it
_ROUNDING = 1e-3  # by how much the sensitivity of a strategy may be above 1; it is divided by whatever it is


class PrefixSumState(HiddenState):
    """The correlated noise of the last items, the released prefix, and how many items have entered it.

    Attributes:
        private_rows: of the noise.
        prefix: the released sum.
        exact: whether the noise is of integers.
    """

    __slots__ = ("exact", "prefix", "private_rows")

    def __init__(self, private_rows: SolvedRows, prefix: NDArray[np.float64], *, exact: bool) -> None:
        self.private_rows = private_rows
        self.prefix = prefix
        self.exact = exact

    @property
    def count(self) -> int:
        """How many items have entered."""
        return self.private_rows.count


@dataclass(frozen=True, kw_only=True)
class ItemNoise(Mechanism):
    """Add a row of the correlated noise of a stream to an item. It is no release of its own: the stream was paid for.

    Attributes:
        noise_multiplier: of the noise that is correlated, over the sensitivity of an item.
        exponent: at which that noise is drawn.
    """

    noise_multiplier: float
    exponent: int

    @property
    def exact(self) -> bool:
        """It is: see `whole_strategy`."""
        return True

    def event(self) -> Event:
        """Nothing: the stream was charged when it opened."""
        return NoEvent()

    def noise_shape(self, value_shape: Shape) -> Shape:
        """One number a coordinate."""
        return value_shape

    def draw(self, noise: Noise, shape: Shape) -> NoReturn:
        """Refused: the stream knows which row is next."""
        raise TypeError("a row of correlated noise is drawn by its stream: use `PrefixSum.draw_next`.")

    def combine(self, private_value: Array, sensitivity: Sensitivity, standard_noise: Array) -> Array:
        """The item with its noise, in pure JAX."""
        return traced_release(
            private_value, sensitivity, self.noise_multiplier, standard_noise, exponent=self.exponent
        )

    def release(self, noise: Noise, private_value: ArrayLike, sensitivity: SupportsFloat) -> NoReturn:
        """Refused, as `draw` is."""
        raise TypeError("an item of a stream is released by the stream: use `PrefixSum.add`.")


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class PrefixSum(StreamMechanism):
    """Release every prefix sum of a stream of private items, with noise correlated over the stream.

    Item j is released as `(item_j / s_j + noise_multiplier * (C^{-1} Z)_j) * s_j` and added up: the noise of the items
    nearly cancels in the sums. Noise multiplier 0 releases the exact sums.

    From a source of exact noise, each item is rounded to a lattice of its own, and the noise is integers, which a
    strategy of integers correlates, see `whole_strategy`.

    Args:
        strategy: C, lower triangular, one row an item, of sensitivity at most 1 under the participation; see
            `strategies`, and `participation.unit_sensitivity` for more than one item a unit. It is kept as it is used:
            its entries are rounded to 14 bits of the largest, and divided by the sensitivity that they then have.
        noise_multiplier: 1 / mu, the noise on one item over its l2 sensitivity if C were the identity.
        participation: in which items a unit may be; the default is in at most one.
    Privacy:
        Every unit is in items that the participation admits, and moves each of them by at most its sensitivity in the
        l2 norm. The stream is a fixed function of C u + Z / mu with u_j = item_j / s_j. C is lower triangular, so given
        the earlier releases row t of C u moves by sum_j C_tj Delta u_j, a function of the past, even if items and
        sensitivities were chosen from it. The squares of these add up to at most the squared sensitivity of C, at most
        1: the whole stream is one Gaussian release, mu-GDP. There is no amplification by sampling. On integers that
        holds as it stands, rounding included: `whole_strategy` has the proof. Where noise is float64, an item is
        rounded as coarsely as the noise that it gets, which later noise takes back: so that is limited by `MOST_NOISE`.
    Source:
        Denisov, McMahan, Rush, Smith, Thakurta 2022, Theorem 2.1 (adaptive streams); Choquette-Choo, McMahan, Rush,
        Thakurta 2023 (units in several items); Kornowski, Liu, Talwar 2024, Algorithm 1, where the printed tree
        releases some items without noise.
    """

    exact: ClassVar[bool] = True
    requests: ClassVar[Mapping[str, Request]] = MappingProxyType(
        {"add": Request(fed=True, arguments=frozenset({"item_index"}))}
    )

    strategy: Strategy
    noise_multiplier: float
    participation: Participation = ONCE
    _whole: WholeStrategy = field(init=False)
    _of_item: ItemNoise = field(init=False)

    def __post_init__(self) -> None:
        check_multiplier(self.noise_multiplier)
        whole = in_whole_numbers(_checked_strategy(self.strategy), self.participation)
        if not whole.largest_noise <= MOST_NOISE:
            raise ValueError(
                f"the noise on single items of this strategy is {whole.largest_noise:.3g} times that of an independent "
                "one, and what is left of it in the sums would be lost to rounding, an item with it: take a strategy "
                "of `strategies`, or larger entries on the diagonal."
            )
        sensitivity = whole.sensitivity / whole.unit
        if sensitivity > 1 + _ROUNDING:
            what = (
                "columns must have norm at most 1"
                if self.participation.largest(self.items) == 1
                else f"sensitivity must be at most 1 under {self.participation}"
            )
            raise ValueError(
                f"the strategy's {what}, got {sensitivity:.6g}: divide it by that, see `unit_sensitivity`."
            )
        multiplier = self.noise_multiplier * whole.sensitivity
        of_item = ItemNoise(
            noise_multiplier=multiplier, exponent=min(noise_exponent(multiplier), whole.finest)
        )
        object.__setattr__(self, "_whole", whole)
        object.__setattr__(self, "_of_item", of_item)
        object.__setattr__(self, "strategy", _frozen(divided(whole.matrix, whole.sensitivity)))

    def __repr__(self) -> str:
        several = "" if self.participation == ONCE else f", participation={self.participation!r}"
        return f"PrefixSum(items={self.items}, noise_multiplier={self.noise_multiplier!r}{several})"

    @property
    def items(self) -> int:
        """How many items the stream holds."""
        return len(self.strategy)

    def event(self) -> Event:
        """The whole stream, charged once when it opens."""
        return GaussianEvent(self.noise_multiplier) if self.noise_multiplier > 0 else NonPrivateEvent()

    def admits(self, items: frozenset[int]) -> bool:
        """What the participation says."""
        return self.participation.admits(items)

    def covers(self, entry: Entry) -> bool:
        """What the participation says of how many items a unit is in and of how far the last two are apart."""
        apart = entry.gap is None or entry.gap >= self.participation.separation
        return apart and entry.most <= self.participation.most

    def require_room(self, entries: int) -> None:
        """See `Mechanism.require_room`."""
        if self.noise_multiplier > 0:
            by = self.of_item()
            try:
                spacing_ratio(by.noise_multiplier, entries, self.norm, by.exponent)
            except ValueError:
                raise ValueError(
                    f"correlated noise of {self.noise_multiplier:.3g} times the sensitivity on items of {entries} "
                    "numbers is beyond the integers that it is drawn as: nothing of the items would be left in it. "
                    "Take a smaller noise multiplier."
                ) from None

    def of_item(self) -> ItemNoise:
        """What a row of the correlated noise is added to an item by."""
        return self._of_item

    def scales(self) -> PrefixScales:
        """The standard deviation of the noise on every prefix, from the sensitivities of the items as they come."""
        return PrefixScales(self.strategy, self.noise_multiplier)

    def draw(self, noise: Noise, shape: Shape) -> Draws:
        """The correlated noise C^{-1} Z, `(items, *shape)`; row j is what `combine` adds to an item of this shape."""
        state = self.open(noise, shape)
        rows: list[Any] = [self.draw_next(state, noise) for _ in range(self.items)]
        return np.stack(rows)

    def draw_next(self, state: PrefixSumState, noise: Noise) -> Draws:
        """The row of the correlated noise for the next item, which thereby has entered.

        Raises:
            ValueError: the stream is full.
        """
        self._require_turn(state, None)
        shape, rows = state.prefix.shape, state.private_rows
        silent = self.noise_multiplier == 0
        if state.exact:
            exponent = self.of_item().exponent
            private_places = np.zeros(shape, np.int64) if silent else noise.rounded_normal(shape, exponent)
            return rows.next_whole(private_places.reshape(-1)).reshape(shape)
        private_draw = np.zeros(shape) if silent else noise.normal(shape)
        return rows.next(private_draw.reshape(-1)).reshape(shape)

    def combine(self, private_item: Array, sensitivity: Sensitivity, correlated_noise: Array) -> Array:
        """What item j adds to the released prefix, in pure JAX inside `jax.enable_x64(True)`."""
        return self.of_item().combine(private_item, sensitivity, correlated_noise)

    def open(self, noise: Noise, shape: Shape) -> PrefixSumState:
        """Make room for items of this shape; the noise of an item is drawn when it enters."""
        return PrefixSumState(
            SolvedRows(self._whole.matrix, math.prod(shape)), np.zeros(shape), exact=noise.exact
        )

    def add(
        self,
        state: PrefixSumState,
        noise: Noise,
        private_item: ArrayLike,
        sensitivity: SupportsFloat,
        *,
        item_index: int | None = None,
    ) -> NDArray[np.float64]:
        """Enter an item and release the prefix sum up to and including it.

        Args:
            state: from `open`; it moves on by one item.
            noise: where the next row of Z comes from.
            private_item: the item, of the shape the stream was opened for.
            sensitivity: l2 sensitivity of the item. Public; it may depend on earlier releases; 0 adds the item exactly.
            item_index: 0, 1, 2, ...; if given, it is checked against the items entered so far.
        Raises:
            ValueError: the stream is full, or the item's index, shape or sensitivity is wrong.
        """
        self._require_turn(state, item_index)
        if np.shape(private_item) != state.prefix.shape:
            raise ValueError(
                f"the stream holds items of shape {state.prefix.shape}, got {np.shape(private_item)}."
            )
        scale = checked_sensitivity(sensitivity, noisy=self.noise_multiplier > 0)
        private_row, by = self.draw_next(state, noise), self.of_item()
        state.prefix = state.prefix + host_release(
            private_item, scale, by.noise_multiplier, private_row, exponent=by.exponent
        )
        return state.prefix.copy()

    def _require_turn(self, state: PrefixSumState, item_index: int | None) -> None:
        index = state.count
        if index >= self.items or item_index not in (None, index):
            raise ValueError(
                f"items enter once, in turn: {index} of {self.items} have entered, got item "
                f"{index if item_index is None else item_index}."
            )


def _frozen(strategy: Strategy) -> Strategy:
    """The same, which nobody can change."""
    if not isinstance(strategy, Banded):
        strategy.flags.writeable = False
    return strategy


def _checked_strategy(strategy: Strategy) -> Strategy:
    """The strategy, refused unless it is square, finite, lower triangular and of full rank."""
    if isinstance(strategy, Banded):
        stored, diagonal, triangular = strategy.diagonals, strategy.diagonals[0], True
    else:
        stored = np.array(strategy, dtype=np.float64)
        if stored.ndim != 2 or stored.shape[0] != stored.shape[1] or not stored.size:
            raise ValueError(
                f"the strategy must be a square matrix, one row for each item, got shape {stored.shape}."
            )
        diagonal, triangular = np.diagonal(stored), not np.any(np.triu(stored, 1))
    if not (triangular and np.all(np.isfinite(stored)) and np.all(diagonal)):
        raise ValueError("the strategy must be finite and lower triangular, with no zero on its diagonal.")
    return strategy if isinstance(strategy, Banded) else stored
