"""Digests of users' keys: equal exactly where the keys are, in every block and every process."""

import dataclasses
import datetime
import pickle
import subprocess
import sys
import zoneinfo
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.data.test_user_keys import ANY_KEY, MISSING, SAME, Ward, together
from tests.support.odd_inputs.cells import FORMS, every_form

from privopt.data.user_keys import UserSecret, user_codes
from privopt.data.user_parts import NOBODY, UserRecords, count_users, lay_out_part, needed, user_digests
from privopt.errors import ArgumentError
from privopt.mechanisms.noise import NoiseSource

SECRET = UserSecret.drawn(NoiseSource(1), 10)
ELSEWHERE = dataclasses.replace(SECRET, process=bytes(16))
OF_ITS_OWN = (frozenset, Ward, complex, type)
PLAIN = [alike for alike in SAME if not isinstance(alike[0], OF_ITS_OWN)]


def digests_of(keys: Any, rows: int, secret: UserSecret) -> list[tuple[int, int]]:
    """Both halves of each key's."""
    found = user_digests(keys, rows, secret)
    assert found.shape == (2, rows)
    assert np.array_equal(found[0] == NOBODY, found[1] == NOBODY)
    return [(int(first), int(second)) for first, second in found.T]


def users_of(digests: list[tuple[int, int]]) -> list[list[bool]]:
    """Which records are one user's."""
    nobody = (int(NOBODY), int(NOBODY))
    return [[one == other != nobody for other in digests] for one in digests]


@pytest.mark.later("list", "tuple")
@every_form
def test_digests_are_equal_where_keys_are(form: str) -> None:
    keys = [key for alike in SAME for key in alike] + MISSING
    keys = [keys[place] for place in np.random.default_rng(0).permutation(len(keys))]
    digests = digests_of(FORMS[form](keys), len(keys), SECRET)
    assert users_of(digests) == together(user_codes(keys, len(keys)).tolist())
    alone = [digests_of(FORMS[form]([key]), 1, SECRET)[0] for key in keys]
    assert alone == digests


@given(st.lists(ANY_KEY, min_size=1, max_size=8), st.sampled_from(["list", "series"]))
def test_any_keys_have_equal_digests_exactly_where_their_codes_are_equal(keys: list[Any], form: str) -> None:
    digests = digests_of(FORMS[form](keys), len(keys), SECRET)
    assert users_of(digests) == together(user_codes(keys, len(keys)).tolist())


COLUMNS = st.sampled_from(
    ["i1", "u8", "f2", "f4", "f8", "?", "U", "O", "text", "M8[s]", "M8[ns]", "m8[ms]", "Int64", "string"]
)


def column(dtype: str, numbers: list[int]) -> Any:
    """Small numbers in a column of some type."""
    if dtype == "text":
        return pa.array([str(number) for number in numbers])
    if dtype == "O":
        return np.array([number if number % 2 else float(number) for number in numbers], object)
    if dtype in ("Int64", "string"):
        return pd.Series(numbers).astype(dtype)
    if dtype[1:2] == "8" and "[" in dtype:
        return (
            np.array(numbers, "m8[D]").astype(dtype)
            if dtype[0] == "m"
            else np.array(numbers, "M8[D]").astype(dtype)
        )
    return np.array(numbers).astype(dtype)


@given(
    st.lists(st.tuples(COLUMNS, st.lists(st.integers(0, 3), min_size=1, max_size=4)), min_size=1, max_size=4)
)
def test_blocks_of_different_types_agree_with_their_cells_read_together(
    blocks: list[tuple[str, list[int]]],
) -> None:
    columns = [column(dtype, numbers) for dtype, numbers in blocks]
    cells = [cell for each in columns for cell in list(np.asarray(each))]
    apart = [digest for each in columns for digest in digests_of(each, len(each), SECRET)]
    assert users_of(apart) == together(user_codes(cells, len(cells)).tolist())


@given(st.lists(st.tuples(ANY_KEY, st.integers(0, 2), ANY_KEY), min_size=1, max_size=6))
def test_several_columns_name_a_user_together(rows: list[tuple[Any, int, Any]]) -> None:
    table = np.empty((len(rows), 3), object)
    for place, row in enumerate(rows):
        for k, cell in enumerate(row):
            table[place, k] = cell
    expected = together(user_codes(table, len(rows)).tolist())
    assert users_of(digests_of(table, len(rows), SECRET)) == expected
    frame = pd.DataFrame(table).astype({1: np.int8})
    assert users_of(digests_of(frame, len(rows), SECRET)) == expected
    halves = [digests_of(part, len(part), SECRET) for part in (frame[:1], table[1:])]
    assert users_of([*halves[0], *halves[1]]) == expected


def test_an_instant_is_one_whatever_writes_it_and_texts_without_an_encoding_are_apart() -> None:
    noon = datetime.datetime(2020, 6, 1, 12, tzinfo=datetime.UTC)
    same = [
        noon,
        pd.Timestamp(noon),
        pd.Timestamp("2020-06-01 14:00", tz="Europe/Berlin"),
        pd.Timestamp(noon).as_unit("ns"),
        noon.replace(tzinfo=None),  # as the same instants stand in a file whose columns have no zones
    ]
    assert len(set(digests_of(same, 5, SECRET))) == 1
    others = [
        pd.Timestamp(noon) + pd.Timedelta(1),
        str(noon),
        "\ud800",
        "'\\ud800'",
        "z",
    ]
    assert len(set(digests_of([noon, *others], 6, SECRET))) == 6


def test_kinds_of_keys_do_not_meet() -> None:
    keys = ["a", b"a", ("a",), (b"a",), (("a",),), ("a", "b"), ("text 1 a",), "tuple", ("ab",), ("a", ("b",))]
    assert len(set(digests_of(keys, len(keys), SECRET))) == len(keys)


def test_times_of_day_are_keys_in_every_process() -> None:
    keys = [datetime.time(7, 30), datetime.time(7, 30, 0, 1), datetime.time(7, 30, fold=1), "07:30:00"]
    digests = digests_of(keys, 4, SECRET)
    assert users_of(digests) == together(user_codes(keys, 4).tolist()) == together([0, 1, 0, 2])
    assert digests_of(keys, 4, ELSEWHERE) == digests
    zoned = [*keys, datetime.time(7, 30, tzinfo=datetime.UTC)]
    assert users_of(digests_of(zoned, 5, SECRET)) == together(user_codes(zoned, 5).tolist())


def test_the_two_instants_of_an_hour_that_a_zone_has_twice_are_two_users_everywhere() -> None:
    zone = zoneinfo.ZoneInfo("Europe/Berlin")
    first, second = (datetime.datetime(2026, 10, 25, 2, 30, tzinfo=zone, fold=fold) for fold in (0, 1))
    utc = [moment.astimezone(datetime.UTC) for moment in (first, second)]
    stamps = [pd.Timestamp(moment) for moment in utc]
    zoned = [stamp.tz_convert("Europe/Berlin") for stamp in stamps]
    keys = [first, second, *utc, *stamps, *zoned]
    expected = together([0, 1] * 4)
    assert users_of(digests_of(keys, 8, SECRET)) == together(user_codes(keys, 8).tolist()) == expected
    assert users_of(digests_of(pd.Series(zoned), 2, SECRET)) == together([0, 1])
    assert together(user_codes(pd.Series(zoned), 2).tolist()) == together([0, 1])
    assert digests_of(pd.Series(zoned), 2, SECRET) == digests_of(keys[:2], 2, SECRET)


@pytest.mark.parametrize("dtype", ["M8[s]", ">M8[s]", "<M8[ps]", ">M8[10m]", ">m8[D]", "m8[Y]"])
def test_a_column_of_times_agrees_with_its_cells_in_any_unit_and_byte_order(dtype: str) -> None:
    column = np.append(np.array([6000, -12000, 6000], "i8").astype(dtype), np.array(["NaT"], dtype)).astype(
        dtype
    )
    assert digests_of(column, 4, SECRET) == digests_of(list(column), 4, SECRET)
    assert users_of(digests_of(column, 4, SECRET)) == together([0, 1, 0, -1])


def test_other_secrets_have_other_digests() -> None:
    first, second = (UserSecret.drawn(None, 3) for _ in range(2))
    keys = np.arange(100)
    assert not set(digests_of(keys, 100, first)) & set(digests_of(keys, 100, second))


def test_keys_of_a_type_of_its_own_are_refused_outside_of_the_process_that_numbers_them() -> None:
    assert users_of(digests_of([frozenset("ab"), frozenset("ba"), 1], 3, SECRET))[0] == [True, True, False]
    for odd in (frozenset("ab"), 1 + 2j, (1, frozenset("ab"))):
        with pytest.raises(ArgumentError, match="several processes read"):
            digests_of([1, odd], 2, ELSEWHERE)
    plain = [key for alike in PLAIN for key in alike] + MISSING
    assert digests_of(plain, len(plain), ELSEWHERE) == digests_of(plain, len(plain), SECRET)


class Alike:
    """Keys whose hashes are all the same."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Alike) and self.number == other.number

    def __hash__(self) -> int:
        return 7


def test_keys_of_one_hash_are_apart_where_they_are_not_equal() -> None:
    keys = [Alike(1), Alike(2), Alike(1), (1, Alike(2)), (1, Alike(1)), (1, Alike(2))]
    assert users_of(digests_of(keys, 6, SECRET)) == together(user_codes(keys, 6).tolist())


@pytest.mark.parametrize("half", [0, 1])
def test_one_half_of_a_digest_in_common_makes_no_user(half: int) -> None:
    digests = np.array([[5, 5, 9], [3, 3, 4]], np.uint64)
    digests[half, 1] = 7
    found = UserRecords(*digests, np.arange(3), np.zeros(3), np.ones(3, bool))
    assert count_users(found) == 3
    assert lay_out_part(found, 1, 0, 1).private_offsets.tolist() == [0, 1, 2, 3]
    assert len(needed(found, 1)) == 3


def test_another_process_has_the_same_digests_and_lottery() -> None:
    secret = pickle.loads(pickle.dumps(UserSecret.drawn(NoiseSource(), 50)))
    keys = ["a", 1, b"a", datetime.date(2020, 1, 1), ("x", 2.5), datetime.timedelta(3)]
    code = (
        "import pickle, sys; from privopt.data.user_parts import user_digests\n"
        "secret, keys = pickle.load(sys.stdin.buffer)\n"
        "print(user_digests(keys, len(keys), secret).tolist(), secret.lottery(7, 11).tolist(), secret.is_at_home)"
    )
    run = subprocess.run(
        [sys.executable, "-c", code], input=pickle.dumps((secret, keys)), capture_output=True, check=True
    )
    here = f"{user_digests(keys, len(keys), secret).tolist()} {secret.lottery(7, 11).tolist()} False"
    assert run.stdout.decode().strip() == here


def test_keys_that_do_not_fit_the_rows_are_refused() -> None:
    with pytest.raises(ArgumentError, match="give as many keys as rows"):
        digests_of([1, 2], 3, SECRET)
