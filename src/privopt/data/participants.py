"""Who takes part in a release, drawn exactly as it is priced, from a stream of random bits.

**Poisson.** Each unit takes part independently with the probability p that is priced, a float64 number taken as it
is. The gaps between those who do are independent, and geometric: at least j with probability (1 - p)^j. A gap is
drawn by inversion, floor(log U / log(1 - p)), U uniform in (0, 1) with infinitely many bits. 64 bits and float64 give
it where the error bound below leaves no integer in doubt; else decimal arithmetic and as many bits as it takes. So
nothing is left for delta: no unit takes part with a probability above p, not by 2^-53 either, as it would where
uniform float64 numbers are compared with p, and not by what a binomial number in floating point, as NumPy's, would be
off.

The bound. Let u = 2^-53, c the first 64 bits of U as an integer, y the quotient. What is not known of log U, for c
and its rounding to float64, is 1.1 (1 / c + u), which moves y by as much over |log(1 - p)|; two logarithms of the C
library, off by less than 4 units in the last place, 8 u, and a quotient move it by less than 18 u y. `_fill` allows
for twice as much.

**Fixed size.** NumPy's `Generator.choice` without replacement draws each place with bounded integers, by Floyd's
algorithm or the end of a Fisher-Yates shuffle, and `permutation` and `integers` do as well: such integers come from
random words by Lemire's method or by masking, with rejection of the surplus. So subsets, orders and integers are
exactly uniform. Blocks are told apart by such integers, see `data.blocks`.

The end of a shuffle takes memory for all positions, and NumPy turns to it where a batch is more than a fiftieth of
them. Above `_SHUFFLED` positions such a batch is drawn by selection, in memory for the batch alone: position i is taken
if an integer, uniform among as many as positions are left, is below the number of units still wanted. A subset S of
size b then comes out with probability 1 / C(n, b): the factors are w_i / (n - i) where i is in S and
1 - w_i / (n - i) where it is not; their numerators make up b! (n - b)!, in some order, and their denominators n!. The
integers are Lemire's with 64 bits of a word, the surplus rejected, so this is exact, too.

Source:
    Skips between those sampled, and selection (algorithm S of Knuth): Fan, Muller, Rezucha 1962; bounded integers:
    Lemire 2019; subsets: Bentley and Floyd 1987. Deciding by as many bits as it takes: Karney 2016.
"""

import dataclasses
import decimal
import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privopt.compilation import compiled
from privopt.data.room import MEMORY
from privopt.data.storage import gather_rows
from privopt.data.targets import offsets, within
from privopt.data.units import Units
from privopt.ledger.events import EveryUnit, FixedSize, Poisson, Sampling
from privopt.mechanisms.exact_noise import decimals
from privopt.public import Public, Relation

_U = 2.0**-53
_SHUFFLED = 2**22  # positions up to which NumPy may shuffle them all: 32 MB
_WORDS = 2**16  # random words that are held at a time
_HALF = np.uint64(32)
_LOW_HALF = np.uint64(2**32 - 1)


def takes_everybody(sampling: Sampling, n: int) -> bool:
    """Whether a sample is of all units, and priced as such; a drawn block may have more than n."""
    return isinstance(sampling, EveryUnit) or sampling == Poisson(1.0) or sampling == FixedSize(n, n)


def drawn_positions(
    sampling: Sampling, generator: np.random.Generator, *, n: int, private_count: int
) -> NDArray[np.int64]:
    """Draw the positions of the units that take part, in order. Independent of what the units hold.

    Args:
        sampling: Poisson draws each unit independently with probability `rate`; fixed-size draws `batch` of n positions
            without replacement, and an absent unit at one of them takes no part.
        generator: the secret stream for units.
        n: the public number of units.
        private_count: how many of them are there, at the first positions.
    Privacy:
        Exact, see the module.
    """
    if takes_everybody(sampling, n):
        return np.arange(private_count)
    if isinstance(sampling, FixedSize):
        private_draw = fixed_positions(sampling.batch, max(n, private_count), generator)
        return private_draw[private_draw < private_count]
    assert isinstance(sampling, Poisson)
    return poisson_positions(sampling.rate, private_count, generator)


def poisson_positions(rate: float, count: int, generator: np.random.Generator) -> NDArray[np.int64]:
    """Which of the positions 0, ..., count - 1 are in a sample that each joins independently with probability `rate`.

    Args:
        rate: in (0, 1].
        count: how many positions there are.
        generator: the secret stream for units.
    """
    if rate == 1.0:
        return np.arange(count)
    bits = generator.bit_generator
    places, found, after = np.empty(_likely(count * rate), np.int64), 0, 0
    while after < count:
        expected = (count - after) * rate
        words = np.asarray(bits.random_raw(_likely(expected)), np.uint64)
        used = 0
        while used < len(words) and after < count:
            if found == len(places):
                places = np.concatenate([places, np.empty(_likely((count - after) * rate), np.int64)])
            used, found, after, doubtful = _fill(words, used, rate, places, found, after, count)
            if doubtful:
                place = after + _settled(int(words[used]), rate, count, lambda: int(bits.random_raw()))
                used, after = used + 1, place + 1
                if place < count:  # there is room: what was full had room added before the gap was in doubt
                    places[found] = place
                    found += 1
    return places[:found].copy()


def _likely(expected: float) -> int:
    """Room for as many as are expected, and for as many more as they rarely are."""
    return int(expected + 5.0 * math.sqrt(expected)) + 4


def fixed_positions(batch: int, count: int, generator: np.random.Generator) -> NDArray[np.int64]:
    """A uniformly random subset of the positions 0, ..., count - 1, in order, in memory for `batch` of them.

    Args:
        batch: how many, at most `count`.
        count: how many positions there are.
        generator: the secret stream for units.
    """
    if count <= _SHUFFLED or batch <= count // 50:
        return np.sort(generator.choice(count, batch, replace=False, shuffle=False)).astype(np.int64)
    places, found, place = np.empty(batch, np.int64), 0, 0
    while found < batch:
        words = np.asarray(generator.bit_generator.random_raw(_WORDS), np.uint64)
        found, place = _select(words, places, found, place, count)
    return places


@compiled()
def _select(
    words: NDArray[np.uint64], places: NDArray[np.int64], found: int, place: int, count: int
) -> tuple[int, int]:
    """Take positions or leave them, one word each, until those that are wanted are found or the words end.

    Args:
        words: 64 bits each.
        places: the positions that are taken, of room for all that are wanted.
        found: how many are.
        place: the position that is decided next.
        count: how many positions there are.
    Returns:
        (found, place).
    """
    for w in range(words.shape[0]):
        if found == places.shape[0]:
            break
        left = np.uint64(count - place)
        word_high, word_low = words[w] >> _HALF, words[w] & _LOW_HALF
        left_high, left_low = left >> _HALF, left & _LOW_HALF
        middle = word_high * left_low + (word_low * left_low >> _HALF)
        other = word_low * left_high + (middle & _LOW_HALF)
        high = word_high * left_high + (middle >> _HALF) + (other >> _HALF)
        low = words[w] * left  # of the product of both, modulo 2^64
        if low < left and low < (~left + np.uint64(1)) % left:  # the surplus: 2^64 modulo `left`
            continue
        if high < np.uint64(places.shape[0] - found):
            places[found] = place
            found += 1
        place += 1
    return found, place


@compiled()
def _fill(
    words: NDArray[np.uint64],
    start: int,
    rate: float,
    places: NDArray[np.int64],
    found: int,
    after: int,
    count: int,
) -> tuple[int, int, int, bool]:
    """Go from one who takes part to the next, one word a gap, until positions or room end or a gap is in doubt.

    Args:
        words: 64 bits each.
        start: the first that is not used yet.
        rate: p, in (0, 1).
        places: the positions of those who take part; without room for one more it goes no further.
        found: how many there are.
        after: the position after the last of them; that of the end, or more, when no more are to come.
        count: how many positions there are.
    Returns:
        (words used, found, after, whether the next gap is one for `_settled`).
    """
    step = -math.log1p(-rate)
    for w in range(start, words.shape[0]):
        if found == places.shape[0]:
            return w, found, after, False
        c = np.float64(words[w])
        if c == 0.0:
            return w, found, after, True
        far = -math.log(c * 2.0**-64)
        slack = 2.2 * (1.0 / c + _U) + 36.0 * _U * far
        if far - slack >= step * count * (1.0 + 2.0**-40):
            return w + 1, found, count, False
        if slack >= 0.5 * step:  # also where the rate is so small that the gap is no float64 number
            return w, found, after, True
        gap, doubt = far / step, slack / step
        whole = math.floor(gap)
        if gap - whole <= doubt or gap - whole >= 1.0 - doubt:
            return w, found, after, True
        after += whole
        if after >= count:
            return w + 1, found, count, False
        places[found] = after
        found += 1
        after += 1
    return words.shape[0], found, after, False


def _settled(word: int, rate: float, most: int, take: Callable[[], int]) -> int:
    """A gap by decimal arithmetic, from the bits of a word and as many more as it takes."""
    bits, exact_rate = 64, Fraction(rate)
    places = len(str(exact_rate.denominator))
    while True:
        if word > 0:
            with decimal.localcontext(decimals(2 * bits // 3 + 60 + 2 * places)):
                stays = (
                    decimal.Decimal(exact_rate.denominator - exact_rate.numerator) / exact_rate.denominator
                )
                margin = decimal.Decimal(10) ** -(bits // 3 + 20)  # above what the steps round, and shrinks
                low, high = (
                    math.floor((decimal.Decimal(end) / (1 << bits)).ln() / stays.ln() + side)
                    for end, side in ((word + 1, -margin), (word, margin))
                )
            if max(low, 0) == high or low >= most:
                return min(max(low, 0), most)
        word, bits = word << 64 | take(), bits + 64


# ---- Random groups of units: drawn without looking at them, each then treated as one large unit ------------


_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class GroupDraw:
    """Who is in which group, and in which order a group's records come. Secret.

    Attributes:
        count: C, how many groups there are. Public.
        private_groups: (positions,) the group of the unit at each position.
        private_seeds: (positions,) what the order of that unit's records is derived from.
    """

    count: int
    private_groups: NDArray[np.int64]
    private_seeds: NDArray[np.uint64]

    def __repr__(self) -> str:
        return "<private>"


def check_groups(public: Public, groups: Any) -> int:
    """Refuse a number of groups that cannot be drawn.

    Raises:
        TypeError, ValueError: it is no integer between 2 and n.
    """
    if isinstance(groups, bool) or not isinstance(groups, int | np.integer):
        raise TypeError(f"groups must be an integer, got {groups!r}.")
    if not 2 <= groups <= public.n:
        raise ValueError(
            f"groups must be between 2 and n = {public.n:,}, got {groups}: a group needs a unit, and a mean of one "
            "group hides nobody."
        )
    return int(groups)


def group_records(public: Public, groups: int) -> int:
    """The public number of records that a group is padded to, ceil(n / C) units of M records each."""
    return -(-public.n // groups) * public.records_per_unit


def draw_groups(
    public: Public, groups: int, generator: np.random.Generator, *, private_count: int
) -> GroupDraw:
    """Draw the groups, without looking at the units.

    Args:
        public: the public side of the data.
        groups: C, between 2 and n.
        generator: the secret stream for units.
        private_count: how many units are there; asked under add-or-remove-one only.
    Privacy:
        Under replace-one the groups are slices of a random permutation of the n positions, their sizes equal or, for
        C not dividing n, one larger for a random choice of them: the replaced unit stays in its group. Under
        add-or-remove-one each unit joins a group by a draw of its own: adding one moves no other. Either way one unit
        changes the records of one group only, and what the group computes by any amount: it *replaces* one point.
    """
    if public.relation is Relation.ADD_OR_REMOVE_ONE:
        private_groups = generator.integers(0, groups, private_count)
    else:
        sizes = np.full(groups, public.n // groups)
        sizes[generator.permutation(groups)[: public.n % groups]] += 1
        private_groups = np.empty(public.n, np.int64)
        private_groups[generator.permutation(public.n)] = np.repeat(np.arange(groups), sizes)
    private_seeds = generator.integers(0, 2**64, len(private_groups), np.uint64)
    return GroupDraw(count=groups, private_groups=private_groups, private_seeds=private_seeds)


class GroupedUnits:
    """Groups of units as the units of another data set, built for some groups at a time.

    A group owns the records of its units in a secret random order, those that count before the padding; what exceeds
    `group_records` is cut, which can happen under add-or-remove-one only. It weighs 1.

    Args:
        units: the data.
        draw: made for as many positions as there are units, or more.
    """

    def __init__(self, units: Units, draw: GroupDraw) -> None:
        self._units = units
        cap = group_records(units.public, draw.count)
        self.public = dataclasses.replace(
            units.public,
            n=draw.count,
            unit="user",
            records_per_unit=cap,
            weighting="user",
            typical_records=min(
                float(cap), max(1.0, units.public.typical_records * cap / units.public.records_per_unit)
            ),
            relation=Relation.REPLACE_ONE,
            drawn=False,
        )
        positions = np.arange(units.private_count)
        private_rows = units.private_rows_of(positions)
        private_counts = (
            np.ones(len(positions), np.int64)
            if units.private_offsets is None
            else np.diff(units.private_offsets)
        )
        private_owner = np.repeat(positions, private_counts)
        private_keys = _keys(draw.private_seeds[private_owner], within(private_counts))
        private_kept = units.private_present[private_rows]
        private_rows, private_keys = private_rows[private_kept], private_keys[private_kept]
        private_labels = draw.private_groups[private_owner][private_kept]
        private_order = np.lexsort((private_keys, private_labels))
        private_rank = within(np.bincount(private_labels, minlength=draw.count))
        private_order = private_order[private_rank < cap]
        self._private_rows = private_rows[private_order]
        self._private_offsets = offsets(np.bincount(private_labels[private_order], minlength=draw.count))

    def part(self, start: int, stop: int) -> Units:
        """The groups `start` to `stop`."""
        private_edges = self._private_offsets[start : stop + 1]
        private_rows = self._private_rows[private_edges[0] : private_edges[-1]]
        units = self._units
        return dataclasses.replace(
            units,
            public=self.public,
            private_features=gather_rows(units.private_features, private_rows),
            private_targets=units.private_targets[private_rows],
            private_norms=units.private_norms[private_rows],
            private_present=np.ones(len(private_rows), np.bool_),
            private_offsets=private_edges - private_edges[0],
            private_weights=np.ones(stop - start),
            room=MEMORY,
        )


def _keys(private_seeds: NDArray[np.uint64], index: NDArray[np.int64]) -> NDArray[np.uint64]:
    """A key for each record of each unit: splitmix64 of the unit's seed and the record's index.

    The order of a group's records is no secret that privacy rests on: whatever it is, one unit replaces one point.

    Source:
        Steele, Lea, Flood 2014 (SplitMix).
    """
    with np.errstate(over="ignore"):
        mixed = private_seeds + (index.astype(np.uint64) + np.uint64(1)) * _GOLDEN
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return mixed ^ (mixed >> np.uint64(31))
