"""Which records a user keeps, how they are laid out, and what a user's average weighs."""

import numpy as np
from numpy.typing import NDArray

from privopt.public import Weighting


def choose_records(
    codes: NDArray[np.int64],
    private_usable: NDArray[np.bool_],
    users: int,
    cap: int,
    lottery: NDArray[np.float64],
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Choose at most `cap` usable records of each user: those with the smallest lottery numbers.

    Args:
        codes: whose each record is; any number where it is not usable.
        private_usable: which records may be chosen.
        users: how many there are.
        cap: the most of one user.
        lottery: a number of each record, drawn from [0, 1) without looking at it, so that the choice is uniform.
    Returns:
        (chosen rows sorted by user, in their given order within a user; offsets of the users).
    """
    private_rows = np.flatnonzero(private_usable)
    private_rows = private_rows[np.argsort(codes[private_rows], kind="stable")]
    private_counts = np.bincount(codes[private_rows], minlength=users)
    private_crowded = np.repeat(private_counts > cap, private_counts)
    private_kept = np.ones(len(private_rows), np.bool_)
    private_drawn = np.flatnonzero(private_crowded)
    private_among = private_rows[private_drawn]
    private_drawn = private_drawn[np.lexsort((lottery[private_among], codes[private_among]))]
    private_kept[private_drawn] = within(private_counts[private_counts > cap]) < cap
    return private_rows[private_kept], offsets(np.minimum(private_counts, cap))


def user_weights(private_counts: NDArray[np.int64], cap: int, weighting: Weighting) -> NDArray[np.float64]:
    """The weight of each user's average; 0 for a user without records."""
    if weighting == "user":
        return (private_counts > 0).astype(np.float64)
    share = private_counts / cap
    return np.sqrt(share) if weighting == "sqrt" else share


def within(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """0, 1, ..., c - 1 for each count c, one after the other."""
    ends = np.cumsum(counts)
    return np.arange(int(ends[-1]) if len(ends) else 0) - np.repeat(ends - counts, counts)


def offsets(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Where each of the consecutive runs starts, and where the last one ends."""
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(counts, dtype=np.int64)])


def row_counts(private_offsets: NDArray[np.int64], positions: NDArray[np.int64]) -> NDArray[np.int64]:
    """How many rows the units at some positions have."""
    return private_offsets[positions + 1] - private_offsets[positions]
