"""Where the records of users in memory go: whole users, part by part. PRIVATE."""

import itertools
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from privopt.data.places import Ranges
from privopt.data.user_digests import NOBODY, laid_out_by, user_digests
from privopt.data.user_parts import UserRecords, lay_out_part, part_count, parts_of_digests
from privopt.data.user_secret import UnitsNoise, UserSecret
from privopt.data.users import choose_records, offsets


class UsersInMemory(NamedTuple):
    """Which records users keep.

    Attributes:
        private_order: rows, user after user.
        private_offsets: (users + 1,) where each user's begin.
        private_ranges: where each part begins and ends; None where there is one.
        laid_out: see `Units.laid_out`.
    """

    private_order: NDArray[np.int64]
    private_offsets: NDArray[np.int64]
    private_ranges: Ranges | None
    laid_out: str = ""


def lay_out_users(
    private_keys: Any,
    codes: NDArray[np.int64],
    private_usable: NDArray[np.bool_],
    *,
    n: int,
    cap: int,
    noise: UnitsNoise | None,
) -> UsersInMemory:
    """Choose each user's records, and put users into the parts that `user_parts` says.

    Args:
        private_keys: of the records.
        codes: the same keys as numbers, see `user_keys.user_codes`.
        private_usable: which records may be kept.
        n: the public number of users.
        cap: M, the most records of a user.
        noise: source of the secret choice; default: fresh, from the operating system.
    """
    rows, parts = len(codes), part_count(n, cap)
    secret = UserSecret.drawn(noise, rows)
    lottery = secret.lottery(0, rows)
    if parts == 1:
        users = int(codes.max(initial=-1)) + 1
        return UsersInMemory(*choose_records(codes, private_usable & (codes >= 0), users, cap, lottery), None)
    private_digests, private_rest = user_digests(private_keys, rows, secret)
    private_rows = np.flatnonzero(private_digests != NOBODY)
    private_owners = parts_of_digests(private_digests[private_rows], parts)
    private_rows = private_rows[np.argsort(private_owners, kind="stable")]
    private_ends = np.cumsum(np.bincount(private_owners, minlength=parts))
    private_chosen, private_counts = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    private_stops = [0]
    for part, private_own in enumerate(np.split(private_rows, private_ends[:-1])):
        private_records = UserRecords(
            private_digests[private_own],
            private_rest[private_own],
            private_own,
            lottery[private_own],
            private_usable[private_own],
        )
        private_layout = lay_out_part(private_records, cap, part, parts)
        private_chosen.append(private_own[private_layout.private_chosen])
        private_counts.append(np.diff(private_layout.private_offsets))
        private_stops.append(private_stops[-1] + len(private_counts[-1]))
    return UsersInMemory(
        np.concatenate(private_chosen),
        offsets(np.concatenate(private_counts)),
        tuple(itertools.pairwise(private_stops)),
        laid_out_by(secret),
    )
