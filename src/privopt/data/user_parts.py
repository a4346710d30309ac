"""Users in parts by a secret hash of their keys, so that no process need know all of them. PRIVATE.

With so few users, and records of each, that one part holds them, they stand in order of first appearance. With more, a
user's part follows from the user's digest alone (`user_digests`), and within it they stand in order of first
appearance: the place of a user's first record in the source, usable or not. Every engine lays out users so, and
computes the same bits.
"""

import functools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from privopt.data.user_digests import NOBODY, Digests
from privopt.data.user_keys import joined
from privopt.data.users import choose_records
from privopt.errors import DataUnavailable

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
        return UserRecords(
            self.private_digests[private_positions],
            self.private_rest[private_positions],
            self.private_places[private_positions],
            self.private_lottery[private_positions],
            self.private_usable[private_positions],
        )


_NO_RECORDS = UserRecords(
    np.zeros(0, np.uint64),
    np.zeros(0, np.uint64),
    np.zeros(0, np.int64),
    np.zeros(0, np.float64),
    np.zeros(0, np.bool_),
)


def joined_records(private_pieces: Sequence[UserRecords]) -> UserRecords:
    """The records of some pieces, one piece behind the other."""
    private_pieces = [_NO_RECORDS, *private_pieces]
    return UserRecords(
        np.concatenate([piece.private_digests for piece in private_pieces]),
        np.concatenate([piece.private_rest for piece in private_pieces]),
        np.concatenate([piece.private_places for piece in private_pieces]),
        np.concatenate([piece.private_lottery for piece in private_pieces]),
        np.concatenate([piece.private_usable for piece in private_pieces]),
    )


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
