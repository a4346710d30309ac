"""Whose a record is: keys of users as numbers, one rule for arrays, lists, data frames and files. PRIVATE.

Two records are one user's if their keys are equal, and what a key is depends on its own cells alone:

    a number         by its value, of whatever type: 1, 1.0, Decimal("1.00"), Fraction(1) and NumPy's 1 are one key
    a text           letter by letter, capitals and blanks included; a number is the text that writes it, so 1 and "1"
                     are one key, while "1.0" and "01" are others. From 10^16 on two texts do, as a double is written
                     and as a whole number is: "1e+16" and "10000000000000000"
    a truth value    "True" or "False"; a UUID the text that writes it
    a time           an instant, of whatever type; a date is its midnight, and a time without a zone is one of UTC
    a tuple, a list  the keys in it, in order: ("north", 7) is a row of two columns of keys
    anything else    what it compares equal to among values of its own type, if it can be hashed

Numbers and texts meet because a column of ids is often read as one in one place and as the other in the next, and
whoever has two keys has two shares in the result. Missing are None, NaN, NaT, pandas.NA, an empty text, a tuple with
something missing in it, and whatever cannot be hashed or compared.
"""

import base64
import copy
import datetime
import decimal
import hashlib
import math
import numbers
import os
import uuid
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from randomgen import AESCounter, ChaCha

from privopt.data import cells
from privopt.data.containers import arrow_columns, check_column
from privopt.errors import ArgumentError
from privopt.mechanisms.noise import NoiseSource, RepeatedChoice

Codes = NDArray[np.int64]

_DIGITS = 3000  # of a number that is still written out
_LONGEST = 100_000  # letters of a text that may be such a number
_LONG = 9_966  # bits of an integer of so many digits; Python writes no more than 4,300
TEXTS, INTEGERS = (str, np.str_), (int, np.int64, np.int32)


def user_codes(private_keys: Any, rows: int) -> Codes:
    """Number the user keys 0, 1, ... in order of appearance; -1 where a key is missing.

    Args:
        private_keys: (rows,) keys, or (rows, k) for keys of several columns: a user is then the tuple, and a record
            that lacks one of them has no key.
        rows: how many records there are.
    Raises:
        ArgumentError: there is not one key for each record.
    """
    return joined([_column_codes(private_column) for private_column in key_columns(private_keys, rows)])


def key_columns(private_keys: Any, rows: int) -> list[Any]:
    """The columns that name a user together; see `user_codes`."""
    check_column(private_keys, "groups", "one user key")
    private_keys = cells.unmasked(private_keys, labels=True)
    private_arrow = arrow_columns(private_keys)
    if private_arrow is not None:
        private_columns = private_arrow
        fits = bool(private_columns) and len(private_columns[0]) == rows
    elif isinstance(private_keys, pd.DataFrame):
        private_columns = [private_keys.iloc[:, place] for place in range(private_keys.shape[1])]
        fits = bool(private_columns) and len(private_keys) == rows
    elif hasattr(private_keys, "dtype") or hasattr(private_keys, "__array__"):
        shape = np.shape(private_keys)
        fits = shape == (rows,) or (len(shape) == 2 and shape[0] == rows and shape[1] > 0)
        private_columns = _columns(private_keys) if fits and len(shape) == 2 else [private_keys]
    else:
        fits, private_columns = len(private_keys) == rows, [private_keys]
    if not fits:
        raise ArgumentError(
            "groups must have shape (rows,), one user key for each row of features, or (rows, k) for keys of k "
            "columns: give as many keys as rows."
        )
    return list(map(in_utc, private_columns))


def key_cells(private_keys: Any) -> Any:
    """The cells of a column; None for one that its type cannot give, whatever the others are."""
    private_keys = cells.uncategorised(private_keys)
    if not hasattr(private_keys, "dtype") and not hasattr(private_keys, "__array__"):
        return private_keys
    try:
        return np.asarray(private_keys, dtype=object)
    except Exception:
        private_array = getattr(private_keys, "array", private_keys)
        return [_cell(private_array, place) for place in range(len(private_array))]


def joined(private_columns: Sequence[Codes]) -> Codes:
    """One code for each different row of codes, in order of appearance; -1 where one of them is -1."""
    private_codes = private_columns[0]
    for private_other in private_columns[1:]:
        private_known = (private_codes >= 0) & (private_other >= 0)
        # Both are below the number of rows, so that the product stays far below 2^63.
        private_pairs = private_codes * (np.max(private_other, initial=0) + 1) + private_other
        private_codes = np.full(len(private_pairs), -1, np.int64)
        private_codes[private_known] = pd.factorize(private_pairs[private_known])[0]
    return private_codes


def as_keys(private_codes: Codes) -> NDArray[np.float64]:
    """Codes as `groups` of a fit: NaN for -1."""
    return np.where(private_codes < 0, np.nan, private_codes)


def user_count(public_users: int) -> int:
    """How many users the keys name, where that is public.

    Raises:
        ArgumentError: fewer than 2.
    """
    if public_users < 2:
        raise ArgumentError(
            f"the user keys name {public_users} users, and a private mean needs at least 2: give one key for each row "
            "of features, the same one for all rows of a user. A row whose key is missing (None, NaN or an empty text) "
            "belongs to nobody and counts as nothing."
        )
    return public_users


def _columns(private_keys: Any) -> list[NDArray[Any]]:
    """The columns of a table without names."""
    private_table = np.asarray(private_keys)
    return [private_table[:, place] for place in range(private_table.shape[1])]


def _column_codes(private_keys: Any) -> Codes:
    """The codes of one column."""
    dtype = getattr(private_keys, "dtype", None)
    if isinstance(dtype, np.dtype) and (dtype.kind in "biu" or (dtype.kind == "f" and dtype.itemsize <= 8)):
        private_numbers = np.asarray(private_keys)
        if dtype.kind == "f":
            private_numbers = private_numbers.astype(np.float64) + 0.0  # -0.0 is 0
        return pd.factorize(private_numbers)[0].astype(np.int64)
    if isinstance(dtype, np.dtype) and dtype.kind in "mM":
        private_instants = np.asarray(private_keys)
        private_ticks = private_instants.astype(np.int64)
        private_codes, private_known = np.full(len(private_ticks), -1, np.int64), ~np.isnat(private_instants)
        private_codes[private_known] = pd.factorize(private_ticks[private_known])[0]
        return private_codes
    private_cells = key_cells(private_keys)
    if are_of(private_cells, TEXTS) or are_of(private_cells, INTEGERS):  # equal as keys where equal to Python
        return _alike(np.fromiter(private_cells, dtype=object, count=len(private_cells)))
    position: dict[Hashable, int] = {}
    with cells.unheard():
        return np.fromiter((_code(position, private_cell) for private_cell in private_cells), np.int64)


def are_of(private_cells: Any, kinds: tuple[type, ...]) -> bool:
    """Whether every cell is of one of some types itself; one of somebody's own may fail when it is hashed."""
    return set(map(id, map(type, private_cells))) <= set(map(id, kinds))


def _alike(private_cells: NDArray[Any]) -> Codes:
    """The codes of texts alone, or of integers alone."""
    private_codes = np.full(len(private_cells), -1, np.int64)
    private_known = private_cells != ""
    # pandas takes some texts for what they look like
    if len(private_cells) and isinstance(private_cells[0], str):
        position: dict[str, int] = {}
        private_codes[private_known] = [
            position.setdefault(text_key(private_cell), len(position))
            for private_cell in private_cells[private_known]
        ]
    else:
        private_codes[private_known] = pd.factorize(private_cells[private_known])[0]
    return private_codes


def _cell(private_array: Any, place: int) -> Any:
    try:
        return private_array[place]
    except Exception:  # such as a text that is no UTF-8
        return None


def _code(position: dict[Hashable, int], private_cell: Any) -> int:
    try:
        private_key = key_of(private_cell)
        return -1 if private_key is None else position.setdefault(private_key, len(position))
    except Exception:  # it cannot be hashed or compared
        return -1


def key_of(private_cell: Any) -> Hashable:
    """A cell as a key that equals those of the same user; None for a missing one."""
    match private_cell:
        case str():
            return text_key(str.__str__(private_cell)) or None
        case bool() | np.bool_():
            return str(bool(private_cell))
        case np.datetime64() | np.timedelta64() | datetime.date() | datetime.timedelta():
            return _time(private_cell)  # to NumPy a span is an integer
        case float() | np.floating():
            return number_key(private_cell)
        case decimal.Decimal():
            return _decimal(private_cell)
        case numbers.Integral():
            return integer_key(int(private_cell))
        case numbers.Rational():
            return _ratio(int(private_cell.numerator), int(private_cell.denominator))
        case complex() | np.complexfloating():
            return number_key(private_cell.real) if private_cell.imag == 0 else _complex(private_cell)
        case bytes():
            return ("bytes", private_cell) if private_cell else None
        case uuid.UUID():
            return str(private_cell)
        case np.void():
            return key_of(private_cell.item())
        case np.ndarray() if private_cell.ndim == 0:
            return key_of(private_cell[()])
        case tuple() | list() | np.ndarray():
            parts = tuple(key_of(private_part) for private_part in private_cell)
            return None if not parts or None in parts else ("tuple", *parts)
        case _:
            if private_cell is None or private_cell is pd.NA or private_cell != private_cell:
                return None
            return (type(private_cell), private_cell)


def text_key(private_text: str) -> str:
    """A text as a key: itself, but for one that writes a double of 10^16 or more, or a long integer: that number's."""
    if "e+" not in private_text and not _DIGITS < len(private_text) < _LONGEST:
        return private_text
    try:
        if len(private_text) > _DIGITS:
            private_long = decimal.Decimal(private_text)
            return str(_decimal(private_long)) if format(private_long, "f") == private_text else private_text
        private_double = float(private_text)
        return str(number_key(private_double)) if repr(private_double) == private_text else private_text
    except (ValueError, decimal.DecimalException):
        return private_text


def number_key(private_number: Any) -> str | None:
    """A float of any width as a key."""
    if private_number != private_number:
        return None
    if abs(private_number) != math.inf and private_number == (whole := int(private_number)):
        return integer_key(whole)
    private_double = float(private_number)  # a narrower type writes the same number in fewer digits
    return str(private_double if private_double == private_number else private_number)


def _decimal(private_number: decimal.Decimal) -> str | None:
    """A decimal number as a key: exactly, whatever the precision of the context is."""
    if private_number.is_nan():
        return None
    if private_number.is_infinite():
        return str(float(private_number))
    sign, digits, exponent = private_number.as_tuple()
    private_text = "".join(map(str, digits)).lstrip("0")
    if not private_text:
        return "0"
    private_digits = private_text.rstrip("0")
    exponent = int(exponent) + len(private_text) - len(private_digits)
    mark = "-" if sign else ""
    if abs(exponent) > _DIGITS or len(private_digits) + max(exponent, 0) > _DIGITS:
        return f"{mark}{private_digits}e{exponent}"
    if exponent >= 0:
        return mark + private_digits + "0" * exponent
    private_short = str(private_double := float(private_number))
    if private_number == private_double or private_number == decimal.Decimal(private_short):
        return private_short
    private_digits = private_digits.rjust(1 - exponent, "0")
    return f"{mark}{private_digits[:exponent]}.{private_digits[exponent:]}"


def integer_key(private_number: int) -> str:
    """An integer as a key: in decimal digits, and a long one as digits and a power of 10."""
    if private_number.bit_length() < _LONG:
        return str(private_number)
    return str(_decimal(decimal.Decimal(private_number)))


def _ratio(private_above: int, private_below: int) -> str:
    """A fraction in lowest terms as a key: that of the decimal number that it is, if it is one."""
    if private_below == 1:
        return integer_key(private_above)
    twos, fives = _times(2, private_below), _times(5, private_below)
    if 2**twos * 5**fives != private_below:
        return f"{integer_key(private_above)}/{integer_key(private_below)}"
    places = max(twos, fives)
    private_digits = decimal.Decimal(abs(private_above) * 10**places // private_below).as_tuple().digits
    return str(_decimal(decimal.Decimal((int(private_above < 0), private_digits, -places))))


def _times(factor: int, private_number: int) -> int:
    """How often a factor goes into an integer that is not 0."""
    powers = [factor]
    for _ in range(private_number.bit_length()):
        if private_number % powers[-1]:
            break
        powers.append(powers[-1] ** 2)
    times = 0
    for place in reversed(range(len(powers) - 1)):
        if private_number % powers[place] == 0:
            private_number, times = private_number // powers[place], times + 2**place
    return times


def _complex(private_number: Any) -> Hashable:
    """A complex number that is no real one as a key."""
    private_wide = complex(private_number)
    return None if private_wide != private_wide else (complex, private_wide)


def _time(private_time: Any) -> Hashable:
    """A date, an instant or a span as a key."""
    if private_time != private_time:
        return None
    if isinstance(private_time, np.timedelta64 | datetime.timedelta):
        return ("span", span(private_time))
    return ("time", instant(private_time))


# ---- Instants and spans as texts, the same for equal ones of whatever type, unit and zone. PRIVATE ---------
_SECOND = 10**18  # attoseconds, the finest unit of NumPy
_DAY = 86_400 * _SECOND
_ATTOSECONDS = {"W": 7 * _DAY, "D": _DAY, "h": 3_600 * _SECOND, "m": 60 * _SECOND, "s": _SECOND} | {
    unit: 10**digits for unit, digits in (("ms", 15), ("us", 12), ("ns", 9), ("ps", 6), ("fs", 3), ("as", 0))
}
_ARROW = ("timestamp", "date", "duration")  # how its types begin that have an instant or a span
_MONTHS = {"Y": 12, "M": 1}
_EPOCH = datetime.date(1970, 1, 1).toordinal()
_CYCLE_MONTHS, _CYCLE_DAYS = 4_800, 146_097  # after which the calendar repeats itself


def in_utc(private_column: Any) -> Any:
    """A column of pandas' or Arrow's times as NumPy's, of UTC; any other as it is.

    As Python's times, what lies at the ends of the calendar, or beyond them, cannot be had in every zone.
    """
    dtype = getattr(private_column, "dtype", None)
    if isinstance(dtype, pd.DatetimeTZDtype):
        return np.asarray(private_column, f"M8[{dtype.unit}]")
    if isinstance(dtype, pd.ArrowDtype) and str(dtype.pyarrow_dtype).startswith(_ARROW):
        return getattr(private_column, "array", private_column).__arrow_array__().to_numpy()
    return private_column


def instant(private_time: Any) -> str:
    """An instant in attoseconds of UTC; a date is its midnight.

    A clock without a zone counts as one of UTC: the same instants are often stored with their zone in one place and
    without it in the next. Of an hour that a zone has twice the two are told apart, though Python takes them for equal
    in one zone.

    Args:
        private_time: of Python, pandas or NumPy, and not missing.
    """
    match private_time:
        case np.datetime64():
            return _numpy_instant(private_time)
        case pd.Timestamp():
            return _numpy_instant(private_time.asm8)  # of UTC
        case datetime.datetime():
            private_clock = _of_day(private_time) + 3_600 * private_time.hour + 60 * private_time.minute
            private_clock = (private_clock + private_time.second) * 10**6 + private_time.microsecond
            private_offset = private_time.utcoffset() or datetime.timedelta()
            return str(private_clock * 10**12 - _attoseconds(private_offset))
        case _:
            return str(_of_day(private_time) * _SECOND)


def span(private_span: Any) -> str:
    """A span in attoseconds; one of years and months, which have no length, in months.

    Args:
        private_span: of Python, pandas or NumPy, and not missing.
    """
    match private_span:
        case np.timedelta64():
            return _numpy_span(private_span)
        case pd.Timedelta():
            return _numpy_span(private_span.asm8)
        case _:
            return str(_attoseconds(private_span))


def _of_day(private_date: datetime.date) -> int:
    """When a day begins, in seconds."""
    return 86_400 * (private_date.toordinal() - _EPOCH)


def _attoseconds(private_span: datetime.timedelta) -> int:
    private_seconds = private_span.days * 86_400 + private_span.seconds
    return (private_seconds * 10**6 + private_span.microseconds) * 10**12


def _numpy_instant(private_time: Any) -> str:
    unit, private_count = _counted(private_time)
    if unit in _MONTHS:
        private_cycles, private_month = divmod(private_count * _MONTHS[unit], _CYCLE_MONTHS)
        private_day = np.datetime64(private_month, "M").astype("M8[D]").astype(np.int64)
        unit, private_count = "D", private_cycles * _CYCLE_DAYS + int(private_day)
    return str(private_count * _ATTOSECONDS[unit])


def _numpy_span(private_span: Any) -> str:
    unit, private_count = _counted(private_span)
    if unit in _MONTHS:
        return f"{private_count * _MONTHS[unit]} months"
    return str(private_count * _ATTOSECONDS[unit]) if unit in _ATTOSECONDS else f"{private_count} of no unit"


def _counted(private_value: Any) -> tuple[str, int]:
    """The unit of a NumPy time or span, and how many of it."""
    unit, count = np.datetime_data(private_value.dtype)
    return unit, int(private_value.astype(np.int64)) * count


# ------------------------------------------------------------------------------------------------------------
# The secret that lays out users: the key of a hash of their keys, and a lottery of the records they keep.


_FROM_ANYWHERE = (
    AESCounter,
    ChaCha,
    np.random.PCG64,
)  # a double of theirs is one step, and steps can be skipped
_AT_ONCE = 2**20  # doubles that are skipped by drawing them
_PROCESS = os.urandom(16)  # tells this process from others


class UnitsNoise(Protocol):
    """The part of a noise source that decides which records of a user are kept."""

    @property
    def units_generator(self) -> np.random.Generator:
        """A secret generator."""
        ...


def is_secret(noise: UnitsNoise) -> bool:
    """Whether a source is known to be one that nobody can repeat."""
    return isinstance(noise, NoiseSource | RepeatedChoice) and not noise.seeded


@dataclass(frozen=True, eq=False, repr=False)
class UserSecret:
    """What decides where a user lies and which records are kept; the same wherever it is sent.

    Attributes:
        private_bits: of which the double at place i, counted from here, is the lottery number of the record at place i
            of the source, whoever reads it.
        private_seed: 32 bytes, from which the hash keys are derived.
        process: tells the process that drew it from others.
        private_others: keys of types of their own, in the order in which this process met them.

    Privacy:
        The choice of a user's records is uniform and independent of what they hold, since the lottery numbers are
        drawn without them. Nothing rests on the hash but that no part overflows, see `user_parts`: for whoever knows
        it, users with keys of their choice could be made to meet in one part. The noise of a run cannot be had from
        it: of a source that is not seeded it holds a key of its own. It can be pickled, as it is sent to the workers
        that read and hold records: which of them are kept, these see anyway. Nobody else gets it.
    """

    private_bits: Any
    private_seed: bytes
    process: bytes
    private_others: dict[Hashable, int] = field(default_factory=dict[Hashable, int])

    @classmethod
    def drawn(cls, noise: UnitsNoise | None, rows: int) -> "UserSecret":
        """Draw it once for a source of so many records.

        Args:
            noise: source of the secret choice; default: fresh, from the operating system. Its stream is used up as by
                `units_generator.random(rows)`, and the lottery numbers are these.
            rows: how many records there are.
        """
        source = NoiseSource() if noise is None else noise
        if isinstance(source, NoiseSource) and not source.seeded:
            source = RepeatedChoice(source)  # its own stream decides who is sampled: it is not given away
        generator = source.units_generator
        if isinstance(generator.bit_generator, _FROM_ANYWHERE):
            private_bits = copy.deepcopy(generator.bit_generator)
            _skip(generator, rows)
        else:
            private_bits = ChaCha(key=int.from_bytes(generator.bytes(32), "little"), rounds=20)
        return cls(private_bits, np.random.Generator(_placed(private_bits, 0)).bytes(32), _PROCESS)

    @classmethod
    def lasting(cls, noise: UnitsNoise | None, rows: int, files: str) -> "UserSecret":
        """The same for a source that lasts, such as a file: for a run that may be resumed, the one kept with it.

        Args:
            noise: see `drawn`.
            rows: likewise.
            files: what the records are read from, see `RecordSource.fingerprint`; empty for arrays, which do not last.
        Privacy:
            Lottery numbers belong to places, and a neighbour moves places. In one table that leaves their law as it
            was, however often it is read. In another table places move otherwise, so numbers that both had in common
            would not have the law that they had together: whatever else is read gets independent ones.
        """
        source = NoiseSource() if noise is None else noise
        if not files:
            return cls.drawn(source, rows)
        if isinstance(source, NoiseSource) and not source.seeded:
            source = RepeatedChoice.lasting(source)
        secret = cls.drawn(source, rows)
        if not is_secret(source):
            return secret
        own = hashlib.blake2b(
            files.encode(), key=secret.private_seed, person=b"privopt lottery", digest_size=32
        )
        return replace(secret, private_bits=ChaCha(key=int.from_bytes(own.digest(), "little"), rounds=20))

    def lottery(self, start: int, stop: int) -> NDArray[np.float64]:
        """The lottery numbers of the records start..stop-1, uniform in [0, 1)."""
        return np.random.Generator(_placed(self.private_bits, start)).random(stop - start)

    @property
    def is_at_home(self) -> bool:
        """Whether it was drawn in this process."""
        return self.process == _PROCESS

    def hash_keys(self, kind: str) -> tuple[str, str]:
        """The keys, 16 letters of 6 random bits each, of the two hashes of one kind of texts."""
        private_keys = hashlib.blake2b(
            self.private_seed, digest_size=24, person=b"privopt users", salt=kind.encode()
        ).digest()
        return base64.b64encode(private_keys[:12]).decode(), base64.b64encode(private_keys[12:]).decode()

    def number(self, private_key: Hashable) -> int:
        """The number of a key of a type of its own: the same for keys that are equal, in this process."""
        return self.private_others.setdefault(private_key, len(self.private_others))

    def __repr__(self) -> str:
        return "UserSecret(<private>)"


def _placed(private_bits: Any, steps: int) -> Any:
    """A copy so many doubles further on."""
    if isinstance(private_bits, ChaCha):  # it has no `advance`
        private_state: Any = private_bits.state["state"]
        low, high = (int(word) for word in private_state["ctr"])
        key = int.from_bytes(np.asarray(private_state["keysetup"], "<u4").tobytes(), "little")
        counter = (low + (high << 64) + 2 * steps) % 2**128
        return ChaCha(key=key, counter=counter, rounds=private_state["rounds"])
    private_copy = copy.deepcopy(private_bits)
    private_copy.advance(steps)
    return private_copy


def _skip(generator: np.random.Generator, steps: int) -> None:
    """Go so many doubles further on."""
    bits: Any = generator.bit_generator
    if not isinstance(bits, ChaCha):
        bits.advance(steps)
        return
    for start in range(0, steps, _AT_ONCE):
        generator.random(min(_AT_ONCE, steps - start))
