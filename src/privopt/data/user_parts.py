"""Users in parts by a secret hash of their keys, so that no process need know all of them. PRIVATE.

With so few users, and records of each, that one part holds them, they stand in order of first appearance. With more, a
user's part follows from the user's digest alone (`user_digests`), and within it they stand in order of first
appearance: the place of a user's first record in the source, usable or not. Every engine lays out users so, and
computes the same bits.
"""

import dataclasses
import datetime
import functools
import hashlib
import itertools
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from pandas.util import hash_array

from privopt.data.cells import unheard
from privopt.data.room import Room
from privopt.data.targets import choose_records
from privopt.data.user_keys import (
    INTEGERS,
    TEXTS,
    UserSecret,
    are_of,
    integer_key,
    joined,
    key_cells,
    key_columns,
    key_of,
    number_key,
    text_key,
)
from privopt.errors import ArgumentError, DataUnavailable

# ------------------------------------------------------------------------------------------------------------
# Keys of users as 128 bits of a secret hash: equal for equal keys, whoever reads them, in whatever block.
# What makes two keys one is said in `user_keys`. A key is written as a text that is the same for all keys equal to it,
# and the text is hashed twice by SipHash-2-4 under keys of `UserSecret`, two others for each kind of texts. The first
# half of a digest tells the part, and whether the key is missing; both together tell the user.


Digests = NDArray[np.uint64]  # one half of each, or (2, rows) both
Kind = Literal["text", "bytes", "time", "span", "clock", "tuple", "other", "columns"]
Written = tuple[Kind, Any]

NOBODY = np.uint64(0)  # both halves of the digest of a missing key
_SIPHASH: Any = hash_array


class KeysOfOwnTypes(ArgumentError):
    """There are keys that only the process that holds them can tell apart. Says which can be told apart anywhere."""

    def __init__(self) -> None:
        super().__init__(
            "keys of users that several processes read are numbers, texts, bytes, truth values, UUIDs, times, or "
            "tuples of these: what any other value is equal to is known where it was made. Give such a key's "
            "text, or read the records in one process (engine='memory' or 'stream')."
        )


def require_known_everywhere(private_keys: Any, rows: int) -> None:
    """Refuse keys that processes cannot tell apart which did not make them.

    Privacy:
        The types of keys are part of how data are given, as their number is, and not of what they hold; the message is
        the same whichever they are, and whosever.
    Raises:
        KeysOfOwnTypes: there are some.
        ArgumentError: there is not one key for each record.
    """
    elsewhere = dataclasses.replace(UserSecret.drawn(None, 0), process=b"")
    user_digests(private_keys, rows, elsewhere)


def user_digests(private_keys: Any, rows: int, secret: UserSecret) -> Digests:
    """The digest of each user key, (2, rows); `NOBODY` where it is missing.

    Args:
        private_keys: (rows,) keys, or (rows, k) for keys of several columns, see `user_keys.user_codes`.
        rows: how many records there are.
        secret: whose hash it is.
    Privacy:
        All records of a person are one unit: keys that `user_codes` takes for one have one digest, in every process and
        whatever the type of the column that holds them. Two people of one digest would be one unit, which one of them
        leaves changed and not gone: that could move a result by more than a unit may. The hash being secret, a person
        shares a digest with one of n others with probability n / 2^128 at most, below 2^-95 for 2^33 of them: as
        unlikely as that the key of a noise generator is guessed.
    Raises:
        ArgumentError: there is not one key for each record.
        KeysOfOwnTypes: there is a key of a type of its own, and this is not the process that drew the secret, which has
            numbered such keys.
    """
    private_columns = [_column_digests(column, secret) for column in key_columns(private_keys, rows)]
    if len(private_columns) == 1:
        return private_columns[0]
    private_table = np.ascontiguousarray(np.concatenate(private_columns).T)  # (rows, 2 k)
    private_texts = private_table.view(f"V{private_table.shape[1] * 8}").ravel().astype(object)
    private_digests = _hashed(private_texts, "columns", secret)
    private_digests[:, np.any(private_table[:, ::2] == NOBODY, axis=1)] = NOBODY
    return private_digests


def laid_out_by(secret: UserSecret) -> str:
    """What tells a secret, and how it is made use of, from others: equal where the same keys have the same digests.

    Empty where keys of types of their own were met, whose digests another process does not know.

    Privacy:
        It is a hash of two digests of public keys: without the secret, random letters.
    """
    if secret.private_others:
        return ""
    private_digests = user_digests(np.array([0, 1]), 2, secret)
    return hashlib.blake2b(
        private_digests.tobytes(), key=secret.private_seed, person=b"privopt layout", digest_size=32
    ).hexdigest()


def _column_digests(private_keys: Any, secret: UserSecret) -> Digests:
    """The digests of one column; each case is one of `user_keys`'s."""
    dtype = getattr(private_keys, "dtype", None)
    if isinstance(dtype, np.dtype):
        private_values = np.asarray(private_keys)
        if dtype.kind in "iu":
            return _of_distinct(private_values, lambda known: known.astype(str).astype(object), secret)
        if dtype.kind == "f" and dtype.itemsize <= 8:
            private_values = private_values.astype(np.float64) + 0.0
            return _of_distinct(
                private_values, lambda known: _objects(map(number_key, known.tolist())), secret
            )
        if dtype.kind == "b":
            return _of_distinct(private_values, lambda known: known.astype(str).astype(object), secret)
        if dtype.kind in "mM":
            private_codes, private_known = pd.factorize(private_values.astype(np.int64))
            return _of_cells(private_known.view(dtype.newbyteorder("=")), secret)[:, private_codes]
    private_cells = key_cells(private_keys)
    if are_of(private_cells, TEXTS):
        return _hashed(_objects(map(text_key, private_cells)), "text", secret)
    if are_of(private_cells, INTEGERS):
        return _hashed(_objects(map(integer_key, map(int, private_cells))), "text", secret)
    return _of_cells(private_cells, secret)


def _of_distinct(
    private_values: NDArray[Any], written: Callable[[NDArray[Any]], NDArray[Any]], secret: UserSecret
) -> Digests:
    """The digests of numbers, each different one written once; NaN is missing."""
    private_codes, private_known = pd.factorize(private_values)
    private_digests = _hashed(written(np.asarray(private_known)), "text", secret)
    private_missing = np.full((2, 1), NOBODY)
    return np.append(private_digests, private_missing, axis=1)[
        :, private_codes
    ]  # the last one is where -1 points


def _of_cells(private_cells: Any, secret: UserSecret) -> Digests:
    """The digests of cells of any types."""
    with unheard():
        private_written = [_written(private_cell) for private_cell in private_cells]
    private_digests = np.full((2, len(private_written)), NOBODY)
    kinds: set[Kind] = {written[0] for written in private_written if written is not None}
    for kind in kinds:
        if kind == "other" and not secret.is_at_home:
            raise KeysOfOwnTypes
        private_places = [j for j, written in enumerate(private_written) if written and written[0] == kind]
        private_texts = [written[1] for written in private_written if written and written[0] == kind]
        if kind == "other":
            private_texts = [_numbered(private_key, secret) for private_key in private_texts]
        private_digests[:, private_places] = _hashed(_objects(private_texts), kind, secret)
    return private_digests


def _numbered(private_key: Hashable, secret: UserSecret) -> str:
    """The text of a key of a type of its own; empty where it cannot be compared."""
    try:
        return str(secret.number(private_key))
    except Exception:
        return ""


def _hashed(private_texts: NDArray[Any], kind: Kind, secret: UserSecret) -> Digests:
    """The hash of texts or bytes of one kind, (2, texts); an empty text is missing."""
    keys = secret.hash_keys(kind)
    try:
        private_halves = [_SIPHASH(private_texts, hash_key=key, categorize=False) for key in keys]
    except UnicodeEncodeError:  # half of a pair of surrogates
        private_bytes = _objects(_encoded(private_text) for private_text in private_texts)
        private_halves = [_SIPHASH(private_bytes, hash_key=key, categorize=False) for key in keys]
    private_digests = np.maximum(np.stack(private_halves), np.uint64(1))
    private_digests[:, private_texts == ""] = NOBODY
    return private_digests


def _written(private_cell: Any) -> Written | None:
    """A cell as a text, by its kind; None where it is missing, or cannot be hashed or compared."""
    try:
        private_key = key_of(private_cell)
        hash(private_key)
        return None if private_key is None else _written_key(private_key)
    except Exception:
        return None


def _written_key(private_key: Hashable) -> Written:
    """A key of `user_keys.key_of` as a text, the same for all that are equal to it; itself of a type of its own."""
    match private_key:
        case str():
            return "text", private_key
        case ("bytes", bytes() as private_bytes):
            return "bytes", bytes(private_bytes)
        case ("time", str() as private_text):
            return "time", private_text
        case ("span", str() as private_text):
            return "span", private_text
        case (_, datetime.time(tzinfo=None) as private_clock) if type(private_clock) is datetime.time:
            return "clock", private_clock.replace(fold=0).isoformat()
        case ("tuple", *private_parts):
            private_listed = [_written_key(private_part) for private_part in private_parts]
            if any(kind == "other" for kind, _ in private_listed):
                return "other", private_key
            return "tuple", _listed(private_listed)
        case _:
            return "other", private_key


def _listed(private_parts: Sequence[Written]) -> bytes:
    """Written keys one after the other, each with its kind and its length, so that no two lists are alike."""
    private_pieces = list[bytes]()
    for kind, private_text in private_parts:
        private_bytes = _encoded(private_text)
        private_pieces += [f"{kind} {len(private_bytes)} ".encode(), private_bytes]
    return b"".join(private_pieces)


def _encoded(private_text: str | bytes) -> bytes:
    return private_text if isinstance(private_text, bytes) else private_text.encode("utf-8", "surrogatepass")


def _objects(private_values: Any) -> NDArray[Any]:
    private_list = list(private_values)
    private_array = np.empty(len(private_list), dtype=object)
    private_array[:] = private_list
    return private_array


# ---- Users in parts by a secret hash of their keys, so that no process need know all of them ---------------


MOST_USERS = 2**19  # of a part: `engine.rounding.PART_UNITS`
MEAN_USERS = MOST_USERS - 2**14  # of a part, where there are several: at most so many, in the mean
MEAN_RECORDS = 2**20  # that the users of a part may keep, in the mean: so many workers share them
MOST_FOR_RECORDS = 2**10  # parts for the sake of records: each costs some 40 microseconds a pass
LEAST_USERS = 2**4  # of a part for the sake of records, in the mean


class UserRecords(NamedTuple):
    """Some records as the layout of users needs them, in any order.

    Attributes:
        private_digests: the first half of those of their keys, none of them `NOBODY`.
        private_rest: the second half.
        private_places: where they stand in the source.
        private_lottery: their lottery numbers, see `UserSecret.lottery`.
        private_usable: whether they may be kept.
    """

    private_digests: Digests
    private_rest: Digests
    private_places: NDArray[np.int64]
    private_lottery: NDArray[np.float64]
    private_usable: NDArray[np.bool_]

    def taken(self, private_positions: NDArray[np.int64] | NDArray[np.bool_]) -> "UserRecords":
        """Those at some positions, in that order."""
        return UserRecords._make(private_column[private_positions] for private_column in self)


_KINDS = (np.uint64, np.uint64, np.int64, np.float64, np.bool_)  # of its columns
_NO_RECORDS = UserRecords._make(np.zeros(0, kind) for kind in _KINDS)


def joined_records(private_pieces: Sequence[UserRecords]) -> UserRecords:
    """The records of some pieces, one piece behind the other."""
    return UserRecords._make(map(np.concatenate, zip(_NO_RECORDS, *private_pieces, strict=True)))


class UserLayout(NamedTuple):
    """Which records some users keep, and where.

    Attributes:
        private_chosen: positions, among the records that were given, of those that are kept: user after user, and in
            the order of the source within a user.
        private_offsets: (users + 1,) where each user's begin.
        private_first: (users,) the place of each user's first record, ascending.
    """

    private_chosen: NDArray[np.int64]
    private_offsets: NDArray[np.int64]
    private_first: NDArray[np.int64]


def part_count(n: int, cap: int) -> int:
    """How many parts hold so many users of at most so many records each, from these public numbers alone.

    As many as the users need, or as many as their records may need, whichever are more.

    Args:
        n: the public number of users, which their number never exceeds.
        cap: M, the public number of records that a user keeps at most.
    Privacy:
        The number of parts is public since it follows from n and M; which users are in which part stays private, as do
        the parts' sizes, which show in running time only. What a query is charged does not depend on parts at all: a
        user lies whole in one part, and a sum is the sum over users however they are divided. Dividing by a hash of
        each user's own key has the further use that adding or replacing a user moves no other user to another part, and
        changes the sums of the user's own part, or of two, alone. Where a fit lays out its users several times, they
        have the same places each time, as n, M and the secret are the same: a split into blocks holds in all stages,
        and `curator.run.Part` refuses a stage of another n or M.

        No part overflows, whatever the keys are, as they are fixed without the secret: there are P >= n / MEAN_USERS
        parts, and with P > 1 the number of users in one is binomial of mean m < MEAN_USERS + 1, the digests being those
        of a secret hash. By Bernstein's inequality it exceeds MOST_USERS = m + t, t >= 2^14 - 1, with probability at
        most exp(-t^2 / (2 (m + t / 3))) < exp(-255) < 2^-367, and for any of up to 2^33 parts with less than 2^-334. A
        smaller m, where P follows from the records, makes t larger and that less. Nothing but memory and time rests on
        how many records a part has: a user is one contribution to a sum, of however many records.
    Source:
        Boucheron, Lugosi, Massart 2013, Concentration Inequalities, section 2.8.
    """
    n, cap = int(n), int(cap)  # of NumPy's integers the product may not be one
    for_records = min(-(-n * cap // MEAN_RECORDS), MOST_FOR_RECORDS, n // LEAST_USERS)
    return max(1, -(-n // MEAN_USERS), for_records)


@functools.cache
def part_starts(parts: int) -> Digests:
    """The least digest of each part: equal shares of all 2^64, to within one."""
    starts = np.array([-(-(part << 64) // parts) for part in range(parts)], np.uint64)
    starts.setflags(write=False)
    return starts


def parts_of_digests(private_digests: Digests, parts: int) -> NDArray[np.int64]:
    """The part, 0..parts-1, of each digest."""
    return np.searchsorted(part_starts(parts), private_digests, side="right").astype(np.int64) - 1


def require_own(private_digests: Digests, part: int | NDArray[np.int64], parts: int) -> None:
    """Refuse records that belong to another part: every part asks this of every record that it holds.

    Args:
        private_digests: of the records' keys.
        part: which part they are in, or each of them.
        parts: how many there are.
    Privacy:
        A user of whom one part held some records and another part others would count as two, and move a sum twice as
        far as its sensitivity says: so the hash of every record is looked at, and nothing is taken on trust.
    Raises:
        DataUnavailable: there is one that does.
    """
    if np.any(parts_of_digests(private_digests, parts) != part) or np.any(private_digests == NOBODY):
        raise DataUnavailable(
            "a part was given records of users who belong to another part: the table has changed since it was opened. "
            "Nothing was computed with them; open it again."
        )


def require_few(private_users: int) -> None:
    """Refuse a part of more users than `part_count` leaves room for, rather than cut it.

    Raises:
        RuntimeError: it has more than `MOST_USERS`, which does not happen.
    """
    if private_users > MOST_USERS:
        raise RuntimeError("a part has more users than it may hold. Nothing was computed: open it again.")


def lay_out_part(private_records: UserRecords, cap: int, part: int, parts: int) -> UserLayout:
    """Group the records of one part by user, and choose which of them each user keeps.

    Args:
        private_records: all records of the part, or what `needed` leaves of them; in any order.
        cap: M, the most records of a user.
        part: which part it is.
        parts: how many there are.
    Returns:
        At most M usable records of each user, those with the smallest lottery numbers, and users in order of first
        appearance; one whose records are all unusable has none.
    Privacy:
        A user's place in its part and the records it keeps follow from the records of that user and from which other
        users the part holds, as positions in any data set do; no query depends on positions but by its draw, which is
        made without the data. See `part_count`, `require_own`.
    Raises:
        DataUnavailable: a record belongs to another part.
        RuntimeError: see `require_few`.
    """
    require_own(private_records.private_digests, part, parts)
    private_order = np.argsort(private_records.private_places, kind="stable")
    private_sorted = private_records.taken(private_order)
    private_codes = _codes(private_sorted)
    users = int(private_codes.max(initial=-1)) + 1
    require_few(users)
    private_chosen, private_offsets = choose_records(
        private_codes, private_sorted.private_usable, users, cap, private_sorted.private_lottery
    )
    private_first = np.empty(users, np.int64)
    private_first[private_codes[::-1]] = private_sorted.private_places[::-1]  # written last: the first
    return UserLayout(private_order[private_chosen], private_offsets, private_first)


def needed(private_records: UserRecords, cap: int) -> NDArray[np.int64]:
    """Positions of the records that may matter to `lay_out_part`, whatever other records the part has.

    Of each user, the first record stays, and the M usable ones with the smallest lottery numbers: what is chosen of a
    union of sets of records is among what is chosen of each. They come sorted by digest, and by place within a user.
    """
    private_order = np.lexsort(
        (private_records.private_places, private_records.private_rest, private_records.private_digests)
    )
    private_sorted = private_records.taken(private_order)
    private_begins = np.zeros(len(private_order), np.bool_)
    private_begins[:1] = True
    for private_half in (private_sorted.private_digests, private_sorted.private_rest):
        private_begins[1:] |= private_half[1:] != private_half[:-1]
    private_codes = np.cumsum(private_begins) - 1
    private_stays = private_begins.copy()
    private_chosen, _ = choose_records(
        private_codes,
        private_sorted.private_usable,
        int(private_begins.sum()),
        cap,
        private_sorted.private_lottery,
    )
    private_stays[private_chosen] = True
    return private_order[private_stays]


def count_users(private_records: UserRecords) -> int:
    """How many users some records have."""
    return int(_codes(private_records).max(initial=-1)) + 1


def _codes(private_records: UserRecords) -> NDArray[np.int64]:
    """One number for each user, in order of appearance."""
    private_halves = (private_records.private_digests, private_records.private_rest)
    return joined([pd.factorize(private_half)[0].astype(np.int64) for private_half in private_halves])


# ---- Records of users outside of memory: in sorted runs, of which those of some users are read together ----


AT_ONCE = 2**18  # records that are sorted or laid out together
_RECORD_BYTES = 8 + 8 + 8 + 8 + 1


class UserRuns:
    """Records in runs, each sorted by digest, so that any users' records lie together in each run.

    Args:
        rows: the most records that are appended.
        cap: M, the most that a user keeps.
        room: where they lie.
    """

    def __init__(self, rows: int, cap: int, room: Room) -> None:
        self._cap, self._room = cap, room.another(_RECORD_BYTES * rows)
        self._private_all = UserRecords(*(self._room.zeros(rows, kind) for kind in _KINDS))
        self._private_edges = [0]

    def append(self, private_records: UserRecords) -> None:
        """Put a run of what may matter of some records behind the others."""
        private_run = private_records.taken(needed(private_records, self._cap))
        start = self._private_edges[-1]
        for private_column, private_values in zip(self._private_all, private_run, strict=True):
            self._room.write(private_column, start, private_values)
        self._private_edges.append(start + len(private_run.private_places))

    def count(self) -> int:
        """How many users there are."""
        return sum(count_users(private_bucket) for private_bucket in self.buckets(0, 1))

    def buckets(self, part: int, parts: int) -> Iterator[UserRecords]:
        """The records of a part, about `AT_ONCE` at a time, each user's together.

        Of a user there are no more than M + 1 from each run, so that a bucket does not grow with what one user has.
        """
        private_each = max(1, -(-self._private_edges[-1] // (AT_ONCE * parts)))
        first = private_each * part
        private_starts = part_starts(private_each * parts)[first : first + private_each + 1]
        private_cuts = [self._cuts(run, private_starts) for run in itertools.pairwise(self._private_edges)]
        for k in range(private_each):
            yield joined_records([self._copied(slice(*cuts[k : k + 2])) for cuts in private_cuts])

    def _cuts(self, run: tuple[int, int], private_starts: Digests) -> NDArray[np.int64]:
        """Where the digests from each start on begin in a run, and where the run ends."""
        self._room.trim()  # a search touches pages all over the run
        private_digests = self._private_all.private_digests[slice(*run)]
        return np.append(np.searchsorted(private_digests, private_starts), len(private_digests)) + run[0]

    def _copied(self, where: slice) -> UserRecords:
        """A copy of some records, of which no page stays in memory."""
        return UserRecords(
            *(
                self._room.read(private_column, where.start, where.stop)
                for private_column in self._private_all
            )
        )
