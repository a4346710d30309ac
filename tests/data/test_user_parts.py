"""Users in parts by a hash of their keys: whole, whatever order their records come in, and none too large."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from privopt.data import user_parts
from privopt.data.targets import choose_records
from privopt.data.user_parts import (
    LEAST_USERS,
    MEAN_RECORDS,
    MEAN_USERS,
    MOST_FOR_RECORDS,
    MOST_USERS,
    NOBODY,
    UserRecords,
    count_users,
    lay_out_part,
    needed,
    part_count,
    part_starts,
    parts_of_digests,
)
from privopt.engine.rounding import PART_UNITS
from privopt.errors import DataUnavailable


@st.composite
def records(draw: st.DrawFn) -> UserRecords:
    """Records of a few users of one part, with ties nowhere but in digests."""
    count = draw(st.integers(0, 30))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    users = np.sort(rng.integers(1, 2**63, (2, 6)).astype(np.uint64))
    return UserRecords(
        *users[:, rng.integers(0, 6, count)],
        rng.permutation(10 * count)[:count].astype(np.int64),
        rng.permutation(count) / max(count, 1),
        rng.random(count) < 0.8,
    )


def chosen_places(given_records: UserRecords, cap: int) -> tuple[list[int], list[int], list[int]]:
    layout = lay_out_part(given_records, cap, 0, 1)
    return (
        given_records.private_places[layout.private_chosen].tolist(),
        layout.private_offsets.tolist(),
        layout.private_first.tolist(),
    )


@given(records(), st.integers(1, 4), st.integers(0, 2**32))
def test_a_layout_does_not_depend_on_the_order_in_which_records_come(private, cap, seed) -> None:
    order = np.random.default_rng(seed).permutation(len(private.private_places))
    assert chosen_places(private.taken(order), cap) == chosen_places(private, cap)


@given(records(), st.integers(1, 4))
def test_a_layout_is_what_it_says(private, cap) -> None:
    places, offsets, first = chosen_places(private, cap)
    rows = {int(place): j for j, place in enumerate(private.private_places)}
    expected = {}
    for place in sorted(rows):
        expected.setdefault(int(private.private_digests[rows[place]]), []).append(place)
    assert [each[0] for each in expected.values()] == first == sorted(first)
    for user, each in enumerate(expected.values()):
        usable = [place for place in each if private.private_usable[rows[place]]]
        best = sorted(usable, key=lambda place: private.private_lottery[rows[place]])[:cap]
        assert places[offsets[user] : offsets[user + 1]] == sorted(best)


@given(records(), st.integers(1, 4), st.lists(st.integers(0, 3), min_size=30, max_size=30))
def test_what_is_needed_of_each_piece_lays_out_the_whole(private, cap, pieces) -> None:
    piece = np.array(pieces)[: len(private.private_places)]
    of_pieces = [private.taken(piece == k) for k in range(4)]
    kept = [each.taken(needed(each, cap)) for each in of_pieces]
    together = UserRecords(*(np.concatenate(columns) for columns in zip(*kept, strict=True)))
    assert chosen_places(together, cap) == chosen_places(private, cap)
    assert all(len(each.private_places) <= (cap + 1) * count_users(each) for each in kept)
    for each in kept:
        assert np.array_equal(
            np.lexsort((each.private_places, each.private_digests)), np.arange(len(each.private_places))
        )


@given(records(), st.integers(1, 4))
def test_one_part_is_laid_out_as_arrays_in_memory_are(private, cap) -> None:
    private = private.taken(np.argsort(private.private_places))
    known, codes = np.unique(private.private_digests, return_inverse=True)
    by_first = np.argsort(np.argsort([np.flatnonzero(codes == k)[0] for k in range(len(known))]))
    rows, offsets = choose_records(
        by_first[codes] if len(codes) else codes,
        private.private_usable,
        len(known),
        cap,
        private.private_lottery,
    )
    layout = lay_out_part(private, cap, 0, 1)
    assert layout.private_chosen.tolist() == rows.tolist()
    assert layout.private_offsets.tolist() == offsets.tolist()


def test_records_of_another_part_are_caught() -> None:
    rng = np.random.default_rng(0)
    digests = rng.integers(1, 2**64, 1000, dtype=np.uint64)
    parts = parts_of_digests(digests, 3)
    whole = UserRecords(digests, digests[::-1], np.arange(1000), rng.random(1000), np.ones(1000, bool))
    for part in range(3):
        lay_out_part(whole.taken(parts == part), 2, part, 3)
        stray = [*np.flatnonzero(parts == part).tolist(), int(np.flatnonzero(parts != part)[0])]
        with pytest.raises(DataUnavailable, match="belong to another part"):
            lay_out_part(whole.taken(np.array(stray)), 2, part, 3)
    with pytest.raises(DataUnavailable, match="another part"):
        lay_out_part(whole._replace(private_digests=np.full(1000, NOBODY)), 2, 0, 1)


@given(st.integers(1, 2**34), st.one_of(st.integers(1, 200), st.integers(1, 2**40)))
def test_parts_follow_from_public_numbers_and_leave_room(n, cap) -> None:
    parts = part_count(n, cap)
    assert n / parts <= MEAN_USERS
    assert parts == 1 or n / parts > min(LEAST_USERS - 1, MEAN_USERS / 2)
    if parts < min(MOST_FOR_RECORDS, n // LEAST_USERS):
        assert n * cap / parts <= MEAN_RECORDS
    if n * cap <= MEAN_RECORDS:  # as where a unit is a record: no more parts than users need
        assert parts == -(-n // MEAN_USERS)
    assert part_count(n + 1, cap) >= parts <= part_count(n, cap + 1)


@pytest.mark.parametrize(
    ("n", "cap", "parts"),
    [
        (10_485, 100, 1),
        (10_486, 100, 2),
        (MEAN_USERS, 1, 1),
        (MEAN_USERS + 1, 1, 2),
        (31, 10**9, 1),
        (1000, 10**6, 62),
        (400_000, 4, 2),
        (400_000, 2500, 954),
        (400_000, np.int32(2500), 954),
        (10**6, 10**6, 1024),
        (10**9, 100, 1969),
        (np.int64(20_000), 2**63 - 1, 1024),
        (np.int64(20_000), 2**70, 1024),
    ],
)
def test_many_records_are_many_parts_and_few_are_one(n, cap, parts) -> None:
    assert part_count(n, cap) == parts


@pytest.mark.parametrize("parts", [1, 2, 3, 7, 1969, 10**5])
def test_parts_have_equal_shares_of_all_digests(parts) -> None:
    starts = [int(start) for start in part_starts(parts)] + [2**64]
    assert starts[0] == 0
    assert {stop - start for start, stop in itertools.pairwise(starts)} <= {
        2**64 // parts,
        -(-(2**64) // parts),
    }
    ends = np.array(starts[:-1], np.uint64)
    assert np.array_equal(parts_of_digests(ends, parts), np.arange(parts))
    assert np.array_equal(parts_of_digests(ends - np.uint64(1), parts), (np.arange(parts) - 1) % parts)


@pytest.mark.parametrize("cap", [1, 2, 100, 10**9])
def test_no_part_overflows_but_with_a_probability_below_2_to_minus_100(cap) -> None:
    assert MOST_USERS == PART_UNITS
    for n in (MEAN_USERS + 1, 2**20, 10**7 + 1, 2**33):
        mean = n / part_count(n, cap) + n / 2**64
        assert mean < MEAN_USERS + 1
        spare = MOST_USERS - mean
        log2 = -(spare**2) / (2 * (mean + spare / 3)) / math.log(2)
        assert log2 + 33 < -300


def test_a_part_that_overflows_all_the_same_is_an_error_and_is_not_cut(monkeypatch) -> None:
    monkeypatch.setattr(user_parts, "MOST_USERS", 3)
    digests = np.array([5, 6, 7, 8, 5], np.uint64)
    whole = UserRecords(digests, digests, np.arange(5), np.zeros(5), np.ones(5, bool))
    lay_out_part(whole.taken(np.array([0, 1, 2, 4])), 1, 0, 1)
    with pytest.raises(RuntimeError, match="more users than it may hold"):
        lay_out_part(whole, 1, 0, 1)
