"""Exact noise on integers: round(2^s X) for an exact standard normal or Laplace X, from the words of a cipher.

What is drawn is floor(2^46 X), of which every coarser rounding is a shift. |X| = (k + x) / 16: a slab k is chosen by an
alias table, and x, uniform in [0, 1), is kept with probability exp(-a), where

    normal:   slab k with weight exp(-k^2 / 512),  a = (2 k x + x^2) / 512;
    Laplace:  slab k with weight exp(-k / 16),     a = x / 16, and the last outcome stands for all slabs from there on:
              511 are added, and everything is drawn again.

x and the number u that decides are infinite sequences of random bits, of which as many are read as it takes: 1 - a is
a lower bound of exp(-a); then comes exp in 31-bit fixed point with an error bound; then, for one draw in 10^6, decimal
arithmetic of any precision. Every stage gives the answer that real arithmetic gives. There is no floating point.

Gumbel variables are drawn from the same stream by inversion, see `exact_gumbel`.

Distance to the exact law, both together below 1e-87 a draw in total variation: normal slabs end at 20 standard
deviations (mass beyond: 2^-290), and the table is cut at 2^-400 a slot. The time of a draw depends on the noise alone.
"""

import decimal
import functools
import math
import os
import sys
import threading
import weakref
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from privopt.compilation import compiled

# ------------------------------------------------------------------------------------------------------------
# Exact noise on integers: round(2^s X) for an exact standard normal or Laplace X, from the words of a
# cipher.


Shape = tuple[int, ...]

FINEST = 45  # largest exponent s; what is drawn has one bit more
COARSEST = -60  # a normal that far down rounds to 0
_NORMAL_SLABS = 320  # 20 standard deviations
_SLOTS = 512
_TABLE_BITS = 400  # of a slot's threshold; the first 54 decide but once in 2^54 draws
_FIRST_BITS = 54
_PLACE_BITS = FINEST + 1 - 4  # of x: a slab is 2^-4 wide
_PLACE = (1 << _PLACE_BITS) - 1
_U_BITS = 64 - _PLACE_BITS  # of u in the second word
_U_SCALE = (
    25 - _U_BITS
)  # so that u stands in units of 2^-25, and a / 64 in units of 2^-31 is a in units of 2^-25
_ONE = 1 << 31
# `_exp_minus` of what the loop gives it is within 447 units of 2^-31 of exp(-a), see there; u is known to one unit.
DOUBT = 1024
_BLOCK = 8192  # words fetched at a time: they stay in the cache
_LEAST_WORDS = 4  # a draw that is not settled exactly reads at most three


class Bits(Protocol):
    """A stream of random 64-bit words: a bit generator of NumPy's kind."""

    def random_raw(self, size: int) -> Any:
        """The next words, uint64."""
        ...


class _Table(NamedTuple):
    """An alias table: slot i stands for outcome i below its threshold, and for its alias from there on."""

    first: NDArray[np.int64]  # the first 54 bits of the threshold; 2^54 for 1
    alias: NDArray[np.int64]
    digits: tuple[int, ...]  # all 400


def _table(weights: Callable[[], list[decimal.Decimal]]) -> _Table:
    """The alias table of some weights (Walker's, as Vose builds it), in decimal numbers of 150 digits."""
    with decimal.localcontext(decimals(150)):
        given = weights()
        total = sum(given)
        mass = [weight / total * _SLOTS for weight in given] + [decimal.Decimal(0)] * (_SLOTS - len(given))
        threshold, alias = [decimal.Decimal(1)] * _SLOTS, list(range(_SLOTS))
        small = [slot for slot in range(_SLOTS) if mass[slot] < 1]
        large = [slot for slot in range(_SLOTS) if mass[slot] >= 1]
        while small and large:
            filled, donor = small.pop(), large.pop()
            threshold[filled], alias[filled] = mass[filled], donor
            mass[donor] += mass[filled] - 1
            (small if mass[donor] < 1 else large).append(donor)
        digits = tuple(int(one * 2**_TABLE_BITS) for one in threshold)
    first = [digit >> (_TABLE_BITS - _FIRST_BITS) for digit in digits]
    return _Table(np.array(first, np.int64), np.array(alias, np.int64), digits)


@functools.cache
def _normal_table() -> _Table:
    return _table(lambda: [(decimal.Decimal(-k * k) / 512).exp() for k in range(_NORMAL_SLABS)])


@functools.cache
def _laplace_table() -> _Table:
    def weights() -> list[decimal.Decimal]:
        slabs = [(decimal.Decimal(-k) / 16).exp() for k in range(_SLOTS)]
        # A slab of weight exp(-k / 16) is kept with probability 16 (1 - exp(-1 / 16)), which leaves 16 times its mass.
        # The last outcome is never thrown away, so its weight is 16 times the mass of the tail.
        return [*slabs[:-1], 16 * slabs[-1]]

    return _table(weights)


@compiled()
def _exp_minus(r: int) -> int:
    """exp(-64 r) for 0 <= r <= 0.02, both in units of 2^-31: a Taylor polynomial, squared six times.

    The polynomial is off by at most 4 units (four products, each cut by less than 1, and the fifth term); six squarings
    multiply that by 64 and add at most 63. `r` of the loop is a / 64 cut by less than 2 units, which is 128 of exp(-a).
    """
    p = _ONE - (r >> 2)
    p = _ONE - ((r * p) >> 31) // 3
    p = _ONE - ((r * p) >> 32)
    p = _ONE - ((r * p) >> 31)
    for _ in range(6):
        p = (p * p) >> 31
    return p


@compiled()
def _fill(
    words: NDArray[np.uint64],
    start: int,
    base: Any,
    laplace: bool,
    doubt: int,
    coarser: int,
    first: NDArray[np.int64],
    alias: NDArray[np.int64],
    out: NDArray[np.int64],
    done: int,
) -> tuple[int, int, int, bool]:
    """Fill `out` from its place `done` with draws made of `words` from `start` on.

    Args:
        words: 64-bit words.
        start: the first that is not used yet.
        base: slabs that a Laplace draw under way has behind it.
        laplace: which law.
        doubt: how close u and exp(-a) may be before the draw is left to `_settled`, in units of 2^-31.
        coarser: 46 - s.
        first: the table, as `alias`.
        alias: likewise.
        out: what is filled with round(2^s X).
        done: how many there are.
    Returns:
        (words used, draws made, slabs behind the draw under way, whether it is one for `_settled`).
    """
    w, n, limit = start, len(out), len(words) - _LEAST_WORDS
    while done < n and w <= limit:
        head = words[w]  # 9 bits of slot, the sign, 54 bits against the threshold
        tail = words[w + 1]  # the place in the slab, and the beginning of u
        slot = np.int64(head & np.uint64(_SLOTS - 1))
        left = np.int64(head >> np.uint64(10))
        threshold = first[slot]
        if left == threshold:
            return w, done, base, True
        k = slot if left < threshold else np.int64(alias[slot])
        if laplace and k == _SLOTS - 1:
            base += k
            w += 2
            continue
        place = np.int64(tail & np.uint64(_PLACE))
        u = np.int64(tail >> np.uint64(_PLACE_BITS))
        x = place >> (_PLACE_BITS - 30)  # 30 bits; the true x is less than one more
        # a / 64 in units of 2^-31, cut by less than 2: by 1.1 for a normal, whose a grows by at most 1.26 with x.
        r = (x * ((1 << 26) if laplace else (k << 22) + (x >> 9))) >> 35
        used = 2
        if ((u + 1) << _U_SCALE) + r + 2 > 1 << 25:  # else u < 1 - a <= exp(-a)
            used = 3
            v = (u << (31 - _U_BITS)) | np.int64(words[w + 2] >> np.uint64(33 + _U_BITS))
            e = _exp_minus(r)
            if abs(v - e) <= doubt:
                return w, done, base, True
            if v > e:
                w += used
                continue
        w += used
        negative = -np.int64((head >> np.uint64(9)) & np.uint64(1))  # all ones, or zero
        fine = (
            ((base + k) << _PLACE_BITS) + place
        ) ^ negative  # floor(2^46 X): -y - 1 where X = -(y + a fraction)
        base = 0
        out[done] = ((fine >> (coarser - 1)) + 1) >> 1
        done += 1
    return w, done, base, False


FEW = 20_000  # draws, some microseconds each in Python; numba takes .7 seconds to load


def _fill_few(
    words: NDArray[np.uint64], start: int, base: int, laplace: bool, doubt: int, coarser: int, *rest: Any
) -> tuple[int, int, int, bool]:
    """`_fill` in Python's integers: the same draws of the same words."""
    first, alias, out, done = rest
    some = words[start : start + 4 * (len(out) - done) + 64].tolist()
    tables = (first.tolist(), alias.tolist())
    used, done, base, doubtful = _in_integers()(some, 0, base, laplace, doubt, coarser, *tables, out, done)
    return start + used, done, base, doubtful


@functools.cache
def _in_integers() -> Callable[..., Any]:
    integers = SimpleNamespace(int64=int, uint64=int)
    return _fill.in_python(np=integers, _exp_minus=_exp_minus.in_python())


def _exp_bounds(start: tuple[int, int], end: tuple[int, int], bits: int) -> tuple[int, int]:
    """Integers (low, high) with low <= 2^bits exp(-a) <= high for every a from `start` to `end`, fractions p / 2^q."""
    # The decimals are off by some 10^-40 of the last bit: each operation rounds correctly.
    with decimal.localcontext(decimals(bits // 3 + 40)):
        most, least = (
            (-decimal.Decimal(p) / decimal.Decimal(1 << q)).exp() * (1 << bits) for p, q in (start, end)
        )
        margin = decimal.Decimal(10) ** -20
        return math.floor(least - margin), math.ceil(most + margin)


def _settled(take: Callable[[], int], base: int, laplace: bool, table: _Table) -> tuple[int | None, int]:
    """The draw under way by exact arithmetic, from the words that `_fill` left.

    Args:
        take: gives the next word.
        base: slabs behind the draw.
        laplace: which law.
        table: of that law.
    Returns:
        (floor(2^46 X), 0); or (None, slabs behind the draw that is to follow) where there is none yet.
    """
    head, tail = take(), take()
    slot, left, bits = head & (_SLOTS - 1), head >> 10, _FIRST_BITS
    digits = table.digits[slot]
    while bits < _TABLE_BITS and left == digits >> (_TABLE_BITS - bits):
        more = min(64, _TABLE_BITS - bits)
        left, bits = left << more | take() >> (64 - more), bits + more
    k = slot if left < digits >> (_TABLE_BITS - bits) else int(table.alias[slot])
    if laplace and k == _SLOTS - 1:
        return None, base + k
    place, x, x_bits = tail & _PLACE, tail & _PLACE, _PLACE_BITS
    u, u_bits = tail >> _PLACE_BITS << 64 | take(), _U_BITS + 64
    while True:
        start, end = _exponent(k, x, x_bits, laplace), _exponent(k, x + 1, x_bits, laplace)
        low, high = _exp_bounds(start, end, u_bits)
        if u + 1 <= low:
            break
        if u >= high:
            return None, base
        u, u_bits = u << 64 | take(), u_bits + 64
        x, x_bits = x << 64 | take(), x_bits + 64
    magnitude = ((base + k) << _PLACE_BITS) + place
    return (-magnitude - 1 if head >> 9 & 1 else magnitude), 0


def _exponent(k: int, x: int, bits: int, laplace: bool) -> tuple[int, int]:
    """The number a of a place x / 2^bits in slab k, as (p, q) with a = p / 2^q."""
    if laplace:
        return x, bits + 4
    return (2 * k * x << bits) + x * x, 2 * bits + 9


class ExactNoise:
    """Draws from one stream of words; what is not used stays for the next call, so blocks consume what single draws do.

    Calls from several threads take turns: no word is ever used twice.

    Args:
        bits: the stream. It belongs to this object: whoever else reads it sees words that noise is made of.
        doubt: how close a draw may be to the edge before exact arithmetic decides, in units of 2^-31. Larger than
            `DOUBT` changes no draw, only its time; smaller is refused.
    Raises:
        ValueError: such a `doubt`.
    Source:
        Rejection from a histogram with an alias table: Walker 1977, Vose 1991; deciding by as many bits as it takes:
        Karney 2016 (exact normals). The slabs, the stages and the fixed point are ours.
    """

    __slots__ = ("__weakref__", "_bits", "_doubt", "_lock", "_next", "_words", "settled")

    def __init__(self, bits: Bits, *, doubt: int = DOUBT) -> None:
        if doubt < DOUBT:
            raise ValueError(f"doubt must be at least {DOUBT}, got {doubt!r}: below, draws are not exact.")
        self._bits, self._doubt = bits, doubt
        self._words, self._next = np.empty(0, np.uint64), 0
        self._lock = threading.Lock()
        self.settled = 0  # draws that exact arithmetic decided
        _sources.add(self)

    def normal(self, shape: Shape, exponent: int) -> NDArray[np.int64]:
        """Independent round(2^exponent N), N exact standard normals; ties have probability 0.

        Args:
            shape: of the draws.
            exponent: from -60 to 45.
        Raises:
            ValueError: any other exponent.
        """
        return self._draw(shape, exponent, False)

    def laplace(self, shape: Shape, exponent: int) -> NDArray[np.int64]:
        """Independent round(2^exponent L), L exact Laplace variables of scale 1; see `normal`."""
        return self._draw(shape, exponent, True)

    def gumbel(self, shape: Shape, exponent: int) -> NDArray[np.int64]:
        """Independent round(2^exponent G), G exact Gumbel variables; see `normal`, and `exact_gumbel`."""
        _check_exponent(exponent)
        out, done = np.empty(math.prod(shape), np.int64), 0
        with self._lock:
            while done < out.size:
                if self._words.size == self._next:
                    self._fetch()
                self._next, done, doubtful = fill_gumbel(
                    self._words, self._next, 2.0**exponent, self._doubt / DOUBT, out, done
                )
                if doubtful:
                    self.settled += 1
                    out[done] = settled_gumbel(self._take, exponent)
                    done += 1
        return out.reshape(shape)

    def _draw(self, shape: Shape, exponent: int, laplace: bool) -> NDArray[np.int64]:
        _check_exponent(exponent)
        table = _laplace_table() if laplace else _normal_table()
        coarser = min(FINEST + 1 - exponent, 63)
        out = np.empty(math.prod(shape), np.int64)
        fill = _fill_few if out.size <= FEW and not _fill.is_made else _fill
        with self._lock:
            done, base = 0, 0
            while done < out.size:
                if self._words.size - self._next < _LEAST_WORDS:
                    self._fetch()
                self._next, done, base, doubtful = fill(
                    self._words,
                    self._next,
                    base,
                    laplace,
                    self._doubt,
                    coarser,
                    table.first,
                    table.alias,
                    out,
                    done,
                )
                if doubtful:
                    self.settled += 1
                    fine, base = _settled(self._take, base, laplace, table)
                    if fine is not None:
                        out[done] = ((fine >> (coarser - 1)) + 1) >> 1
                        done += 1
        return out.reshape(shape)

    def unlock(self) -> None:
        """Take a new lock, in a child process where there is no thread yet that could hold it."""
        self._lock = threading.Lock()

    def _fetch(self) -> None:
        """More words behind those that are left."""
        fresh = self._bits.random_raw(_BLOCK)
        self._words, self._next = np.concatenate([self._words[self._next :], fresh]), 0

    def _take(self) -> int:
        if self._next == self._words.size:
            self._fetch()
        self._next += 1
        return int(self._words[self._next - 1])

    def __repr__(self) -> str:
        return "ExactNoise(<private>)"


def _check_exponent(exponent: int) -> None:
    if not COARSEST <= exponent <= FINEST:
        raise ValueError(f"the exponent must be from {COARSEST} to {FINEST}, got {exponent!r}.")


_sources: "weakref.WeakSet[ExactNoise]" = weakref.WeakSet()


def _in_child() -> None:
    for source in _sources:
        source.unlock()


# A child process would wait for ever for a lock that another thread held when it was forked.
if sys.platform != "win32":
    os.register_at_fork(after_in_child=_in_child)


# ---- Gumbel noise on integers: round(2^s G), exactly, by inversion with as many random bits as it takes ----
# V is an infinite sequence of random bits, uniform in (0, 1). G = -log(-log V) is a Gumbel variable, P(G <= x) =
# exp(-exp(-x)), and increases with V. So the first bits of V give an interval for 2^s G; where both of its ends round
# to one integer, that is the draw, and else more bits are read. 64 bits and float64 logarithms, whose error is bounded,
# do for nearly all draws; decimal arithmetic of any precision for the others. Every stage gives the answer that real
# arithmetic gives.
#
# The first stage. Let v be the first 64 bits as an integer, c the smaller of v and 2^64 - 1 - v, u = 2^-53. Then E =
# -log V is computed from c alone: -log(c 2^-64) where V < 1/2, -log1p(-c 2^-64) where V >= 1/2 and 1 - V is from c to c
# + 1 units of 2^-64. What is not known of c, 1 of it and u of it when it becomes a float64, moves log E by at most 1.45
# (1 / c + u), since |d log E / d log c| <= 1.45 on either side (it is largest at V = 1/2). A logarithm of the C library
# is off by less than 4 units in the last place, 8 u: twice that is allowed for both. All together, G is known to
#
#     1.2 * 1.45 (1 / c + u) + 1.2 * 16 u + 16 u |G|  <=  3 / c + 2^-48 (1 + |G|),
#
# where the factor 1.2 takes log(1 + x) for its argument, |x| <= 1/4, which c >= 1024 gives. A draw is left to decimals
# where 2^s G may be that close to a half.
#
# Source:
#     Inversion, Devroye 1986, section II.2; deciding by as many bits as it takes, Karney 2016. The bounds are ours.


_LEAST = 1024  # of c
_DOUBT = 2.0**-48


@compiled()
def fill_gumbel(
    words: NDArray[np.uint64], start: int, scale: float, doubt: float, out: NDArray[np.int64], done: int
) -> tuple[int, int, bool]:
    """Fill `out` from its place `done` with round(scale * G), one word a draw from `start` on.

    Args:
        words: 64-bit words.
        start: the first that is not used yet.
        scale: 2^s.
        doubt: a factor of at least 1 on the error bound; a larger one changes no draw.
        out: what is filled.
        done: how many there are.
    Returns:
        (words used, draws made, whether the next is one for `settled_gumbel`).
    """
    w, n = start, out.shape[0]
    while done < n and w < words.shape[0]:
        word = words[w]
        upper = word >> np.uint64(63) == np.uint64(1)
        c = np.float64(~word if upper else word)
        if c < _LEAST:
            return w, done, True
        e = -math.log1p(-c * 2.0**-64) if upper else -math.log(c * 2.0**-64)
        g = -math.log(e)
        y = scale * g
        nearest = np.rint(y)
        if abs(y - nearest) + doubt * scale * (3.0 / c + _DOUBT * (1.0 + abs(g))) >= 0.5:
            return w, done, True
        out[done] = np.int64(nearest)
        done += 1
        w += 1
    return w, done, False


def settled_gumbel(take: Callable[[], int], exponent: int) -> int:
    """The draw by exact arithmetic, from the word that `fill_gumbel` left and as many more as it takes.

    Args:
        take: gives the next word.
        exponent: s.
    """
    v, bits = take(), 64
    while True:
        if 0 < v < (1 << bits) - 1:
            low, high = (_bound(end, bits, exponent, side) for end, side in ((v, -1), (v + 1, 1)))
            if low == high:
                return low
        v, bits = v << 64 | take(), bits + 64


def _bound(v: int, bits: int, exponent: int, side: int) -> int:
    """round(2^s G) at v 2^-bits, from below (-1) or above (1).

    Steps round correctly; V may be 2^-bits from 0 and 1, which costs bits / 3.3 digits, so what is left is right to
    10^-(bits / 3 + 40). The margin is above that, and shrinks with the bits, so that some number of them decides.
    """
    with decimal.localcontext(decimals(2 * bits // 3 + 60)):
        exponential = -(decimal.Decimal(v) / (1 << bits)).ln()
        scaled = -exponential.ln() * decimal.Decimal(2) ** exponent
        margin = side * decimal.Decimal(10) ** -(bits // 3 + 20)
        return math.floor(scaled + decimal.Decimal("0.5") + margin)


# ---- Decimal arithmetic that follows from nothing but the number of its digits -----------------------------


def decimals(digits: int) -> decimal.Context:
    """Arithmetic of so many digits, whatever the program has made of the default context."""
    return decimal.Context(
        prec=digits,
        rounding=decimal.ROUND_HALF_EVEN,
        Emin=decimal.MIN_EMIN,
        Emax=decimal.MAX_EMAX,
        capitals=1,
        clamp=0,
        flags=[],
        traps=[decimal.InvalidOperation, decimal.DivisionByZero, decimal.Overflow],
    )
