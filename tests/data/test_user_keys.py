"""Whose a record is: one rule for arrays, lists, data frames and files, which reads every key by itself."""

import datetime
import decimal
import enum
import fractions
import math
import time
import uuid
from collections.abc import Hashable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.odd_inputs.cells import FORMS, ODD, every_form
from tests.support.slowness import slowness

from privopt.data.units import Units
from privopt.data.user_keys import UserSecret, joined, user_codes
from privopt.data.user_parts import user_digests
from privopt.tables import Schema, TableError, read_table, user_keys

DAY = datetime.date(2020, 1, 1)
NAME = uuid.UUID("12345678-1234-5678-1234-567812345678")


class Ward(enum.Enum):
    """A key of a type of its own."""

    NORTH = 1
    SOUTH = 2


SAME: list[list[Any]] = [
    [
        1,
        1.0,
        "1",
        np.int8(1),
        np.uint64(1),
        np.float32(1),
        decimal.Decimal("1.00"),
        np.str_("1"),
        np.longdouble(1),
        fractions.Fraction(1),
        1 + 0j,
        np.complex64(1),
        np.array(1),
    ],
    [0, 0.0, -0.0, "0", decimal.Decimal("-0")],
    [0.5, "0.5", np.float32(0.5), decimal.Decimal("0.50"), fractions.Fraction(1, 2)],
    [-0.125, "-0.125", fractions.Fraction(-1, 8), decimal.Decimal("-0.125")],
    [fractions.Fraction(1, 3), "1/3"],
    [decimal.Decimal(1) / 3],
    [decimal.Decimal("0." + "3" * 40), fractions.Fraction(int("3" * 40), 10**40), "0." + "3" * 40],
    [decimal.Decimal("0." + "3" * 39)],
    [0.1, "0.1", np.float64(0.1), decimal.Decimal("0.10")],
    [float(np.float32(0.1)), np.float32(0.1), str(float(np.float32(0.1))), np.longdouble(np.float32(0.1))],
    [2.0**-60, decimal.Decimal(2.0**-60), str(2.0**-60), np.longdouble(2.0**-60)],
    [1e-5, "1e-05", decimal.Decimal("0.00001")],
    [10**20, 1e20, "1" + "0" * 20, "1e+20", decimal.Decimal("1E+20"), fractions.Fraction(10**20)],
    [10**16, 1e16, "1e+16", "1" + "0" * 16, np.longdouble(1e16)],
    [-(10**16), -1e16, "-1e+16"],
    [10**16 + 1],
    ["1E+16"],
    ["1.0e+16"],
    [10**6000, decimal.Decimal("1E+6000"), fractions.Fraction(10**6000), "1" + "0" * 6000],
    [12 * 10**5998 + 1, decimal.Decimal(12 * 10**5998 + 1)],
    [3**9000, decimal.Decimal(3**9000), fractions.Fraction(3**9000)],
    [2**20_000, fractions.Fraction(2**20_000)],
    [np.longdouble(2) ** 12_000, 2**12_000],
    [decimal.Decimal("1E-6000"), fractions.Fraction(1, 10**6000)],
    [decimal.Decimal("1E+999999")],
    [math.inf, "inf", np.float32(np.inf), decimal.Decimal("Infinity")],
    [True, np.True_, "True"],
    ["a", np.str_("a")],
    [b"a", np.bytes_(b"a")],
    [NAME, str(NAME)],
    [DAY, datetime.datetime(2020, 1, 1), pd.Timestamp("2020-01-01"), np.datetime64("2020-01-01")],
    [
        datetime.datetime(2020, 1, 1, 12, tzinfo=datetime.UTC),
        pd.Timestamp("2020-01-01 13:00", tz="Europe/Berlin"),
        datetime.datetime(2020, 1, 1, 12),
        np.datetime64("2020-01-01T12", "h"),
    ],
    [
        datetime.datetime(1970, 1, 1, 0, 0, 50),
        np.datetime64(50, "s"),
        np.datetime64(5, "10s"),
        np.datetime64(50 * 10**12, "ps"),
        pd.Timestamp(50, unit="s"),
    ],
    [np.datetime64(50 * 10**12 + 1, "ps")],
    [np.datetime64("1800-01", "M"), np.datetime64("1800", "Y"), datetime.date(1800, 1, 1)],
    [np.datetime64("1970-01-15", "W"), datetime.date(1970, 1, 15)],
    [np.datetime64(10**12, "Y"), np.datetime64(12 * 10**12, "M")],
    [datetime.timedelta(1), pd.Timedelta("1D"), np.timedelta64(24, "h"), np.timedelta64(864 * 10**14, "ps")],
    [np.timedelta64(1, "Y"), np.timedelta64(12, "M"), np.timedelta64(4, "3M")],
    [np.timedelta64(7 * 10**16, "D"), np.timedelta64(10**16, "W")],
    [("north", 7), ["north", "7"], np.array(["north", 7], object)],
    [(1, (2, 3)), (1.0, ("2", 3))],
    [frozenset({1, 2}), frozenset({2, 1})],
    [Ward.NORTH],
    [Ward.SOUTH],
    ["01"],
    ["1.0"],
    [" a"],
    ["A"],
    [("a",)],
    [1 + 2j],
    [int],
    [np.datetime64("999999-01-01")],
    [10**400],
    [10**5000, decimal.Decimal("1E+5000")],
]
MISSING: list[Any] = [
    *(None, math.nan, np.float32(np.nan), pd.NA, pd.NaT, np.datetime64("NaT"), complex(math.nan, 0)),
    *("", b"", np.str_(""), (), [], (1, None), ("", 2), (1, {2}), {1, 2}, {"a": 1}, np.array(None)),
    *(decimal.Decimal("NaN"), decimal.Decimal("sNaN"), ODD["an object that fails"]),
]


def named(labels: Sequence[Any]) -> list[int]:
    """Labels numbered in order of appearance; None is -1."""
    position: dict[Any, int] = {}
    return [-1 if each is None else position.setdefault(each, len(position)) for each in labels]


@every_form
def test_equal_keys_of_different_types_are_one_user_and_others_are_not(form: str) -> None:
    flat = [(user, key) for user, alike in enumerate(SAME) for key in alike]
    flat += [(None, key) for key in MISSING]
    order = np.random.default_rng(0).permutation(len(flat))
    shuffled = [flat[place] for place in order]
    codes = user_codes(FORMS[form]([key for _, key in shuffled]), len(flat))
    assert codes.tolist() == named([user for user, _ in shuffled])


@every_form
@pytest.mark.parametrize("odd", ODD)
def test_an_odd_key_belongs_to_nobody_or_to_a_user_of_its_own(form: str, odd: str) -> None:
    codes = user_codes(FORMS[form](["x", 1, ODD[odd], "x", 1.0]), 5)
    assert codes[[0, 1, 3, 4]].tolist() == [0, 1, 0, 1]
    assert codes[2] in (-1, 2)


@pytest.mark.parametrize(
    "declared",
    [
        np.array([3, 1, 3, 2], np.int8),
        np.array([3, 1, 3, 2], np.uint64) + 2**63,
        np.array([3.5, 1, 3.5, 2], np.float16),
        np.array([3.5, 1, 3.5, 2], np.longdouble),
        np.array([1 + 2j, 1, 1 + 2j, 2]),
        np.array(["c", "a", "c", "b"]),
        np.array([b"c", b"a", b"c", b"b"]),
        np.array(["2020-01-03", "2020-01-01", "2020-01-03", "2020-01-02"], "M8[D]"),
        np.array(["999999", "2020", "999999", "2021"], "M8[Y]"),
        np.array([3, 1, 3, 2], "m8[as]"),
        np.array([3, 1, 3, 2], ">m8[3W]"),
        np.array([(3, "a"), (1, "a"), (3, "a"), (2, "b")], [("number", int), ("name", "U1")]),
        pd.Series(["c", "a", "c", "b"], dtype="string"),
        pd.Series(["c", "a", "c", "b"], dtype="category"),
        pd.Series([3, 1, 3, 2], dtype="Int64"),
        pd.Series(pd.to_datetime([3, 1, 3, 2], utc=True)),
        pa.array(["c", "a", "c", "b"]),
        pa.chunked_array([[3, 1], [3, 2]]),
    ],
    ids=str,
)
def test_a_declared_type_names_the_same_users_as_its_cells(declared: Any) -> None:
    assert user_codes(declared, 4).tolist() == [0, 1, 0, 2]
    assert user_codes(list(np.asarray(declared)), 4).tolist() == [0, 1, 0, 2]


@pytest.mark.parametrize(
    "declared",
    [
        np.array([np.nan, 1, np.inf], np.float32),
        np.array(["NaT", "2020", "2021"], "M8[Y]"),
        np.array(["NaT", "2020", "2021"], ">M8[s]"),
        np.array(["", "a", "b"]),
        pd.Series([None, "a", "b"], dtype="string"),
        pd.Series([pd.NA, 1, 2], dtype="Int64"),
        pd.Series([None, "a", "b"], dtype="category"),
        pd.Series([None, "a", "b"]),
        pa.array([None, 1, 2]),
    ],
    ids=str,
)
def test_what_is_missing_in_a_declared_type_belongs_to_nobody(declared: Any) -> None:
    assert user_codes(declared, 3).tolist() == [-1, 0, 1]


# ---- several columns -------------------------------------------------------------------------------------------------

SITES, NUMBERS = ["n", "n", "s", None, "n", "s", ""], [1, 2.0, 1, 1, "2", np.nan, 3]
PAIRS = [0, 1, 2, -1, 1, -1, -1]


def test_several_columns_name_a_user_together() -> None:
    table = np.empty((7, 2), object)
    table[:, 0], table[:, 1] = SITES, NUMBERS
    pairs = list(zip(SITES, NUMBERS, strict=True))
    frame = pd.DataFrame({"site": SITES, "number": pd.Series(NUMBERS, dtype=object)})
    for form in (table, frame, pairs, tuple(pairs), list(map(list, pairs))):
        assert user_codes(form, 7).tolist() == PAIRS
    assert user_codes(frame[["site"]], 7).tolist() == user_codes(SITES, 7).tolist()
    assert user_codes(np.array([[1, 2], [1, 2], [2, 1]]), 3).tolist() == [0, 0, 1]
    assert user_codes(pd.DataFrame({"a": [1, 1], "b": pd.to_datetime(["2020", None])}), 2).tolist() == [0, -1]


def test_columns_of_many_values_do_not_collide() -> None:
    rows = 100_000
    columns = [np.arange(rows) for _ in range(6)]
    assert joined(columns).tolist() == list(range(rows))
    assert joined([*columns, np.zeros(rows, np.int64)]).tolist() == list(range(rows))
    assert joined([np.zeros(0, np.int64), np.zeros(0, np.int64)]).tolist() == []


@pytest.mark.parametrize(
    "wrong",
    [
        np.zeros(3),
        np.zeros((3, 2)),
        np.zeros((4, 0)),
        np.zeros((4, 1, 1)),
        [1, 2, 3],
        pd.DataFrame(index=range(4)),
        np.array(1),
    ],
    ids=lambda wrong: str(np.shape(wrong)),
)
def test_keys_that_do_not_fit_the_rows_are_refused_with_one_sentence(wrong: Any) -> None:
    with pytest.raises(
        ValueError, match=r"^groups must have shape \(rows,\), .* give as many keys as rows\.$"
    ):
        Units.from_arrays(np.ones((4, 2)), row_bound=2.0, groups=wrong)


# ---- one record's key changes nothing of another's -------------------------------------------------------------------

ANY_KEY = st.one_of(
    st.sampled_from([key for alike in SAME for key in alike]),
    st.sampled_from(MISSING),
    st.integers(-3, 3),
    st.text("a1", max_size=2),
    st.tuples(st.integers(0, 1), st.text("a", max_size=1)),
)


def together(codes: Sequence[int]) -> list[list[bool]]:
    return [[one == other >= 0 for other in codes] for one in codes]


@given(st.lists(ANY_KEY, min_size=1, max_size=12), ANY_KEY, st.booleans())
def test_another_records_key_does_not_change_whose_a_record_is(
    keys: list[Any], other: Hashable, declared: bool
) -> None:
    form = FORMS["series" if declared else "list"]
    alone, beside = user_codes(form(keys), len(keys)), user_codes(form([*keys, other]), len(keys) + 1)
    assert alone.tolist() == beside[:-1].tolist()
    first = user_codes(form([other, *keys]), len(keys) + 1)
    assert together(alone.tolist()) == together(first[1:].tolist())


# ---- memory and file ---------------------------------------------------------------------------------------------

SCHEMA = Schema.from_json({"columns": {"site": {"kind": "id"}, "number": {"kind": "id"}}})


@pytest.mark.parametrize(
    ("site", "number"),
    [
        (["n", "n", "s", None, "n", "s", ""], [1, 2, 1, 1, 2, None, 3]),
        (["n", "n", "s", None, "n", "s", ""], ["1", "2", "1", "1", "2", None, "3"]),
        ([b"n", b"n", b"s", None, b"n", b"s", b""], [1.5, 2.0, 1.5, 1.5, 2.0, math.nan, 3.0]),
        (
            [True, True, False, None, True, False, None],
            [DAY, datetime.date(2020, 1, 2), DAY, DAY, datetime.date(2020, 1, 2), None, DAY],
        ),
    ],
)
def test_a_file_and_the_same_arrays_name_the_same_users(tmp_path: Path, site: Any, number: Any) -> None:
    table = pa.table({"site": site, "number": number})
    pq.write_table(table, tmp_path / "t.parquet")
    read = read_table(tmp_path / "t.parquet", SCHEMA)
    encoded = pa.table({name: read[name].dictionary_encode() for name in read.column_names})
    for given_table in (table, read, encoded, pa.concat_tables([read[:3], read[3:]]), table.to_pandas()):
        keys = user_keys(given_table, ["site", "number"])
        assert user_codes(keys, 7).tolist() == PAIRS
        for name in ("site", "number"):
            one = user_codes(user_keys(given_table, name), 7).tolist()
            assert one == user_codes(table[name].to_pylist(), 7).tolist()


def test_a_data_frame_of_mixed_keys_names_the_same_users_as_a_list() -> None:
    keys = [key for alike in SAME for key in alike] + MISSING
    frame = pd.DataFrame({"site": pd.Series(keys, dtype=object)})
    assert user_codes(user_keys(frame, "site"), len(keys)).tolist() == user_codes(keys, len(keys)).tolist()


@pytest.mark.parametrize("others", [[], [1.5], [b"a"]], ids=str)
def test_a_frame_reads_texts_as_a_list_does_whatever_else_is_in_the_column(others: list[Any]) -> None:
    texts = ["1e+16", "1" + "0" * 16, "a", "", None, "1" + "0" * 6000, "1e6000", "10"]
    expected = user_codes(texts, len(texts)).tolist()
    assert expected == [0, 0, 1, -1, -1, 2, 2, 3]
    frames: list[Any] = [pd.DataFrame({"site": pd.Series(texts + others, dtype=object)})]
    if not others:
        array = pa.array(texts)
        frames += [pd.DataFrame({"site": pd.Series(texts, dtype=kind)}) for kind in ("string", "category")]
        frames += [pa.table({"site": each}) for each in (array, array.dictionary_encode())]
        frames += [pa.table({"site": array.cast(pa.large_string())})]
    for frame in frames:
        assert user_codes(user_keys(frame, "site"), len(texts + others))[: len(texts)].tolist() == expected


def test_numbers_of_a_csv_file_are_the_texts_that_stand_there(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("site,number\n1,1\n1,1.0\n1,01\n1,1\n,1\n")
    table = read_table(tmp_path / "t.csv", SCHEMA)
    assert user_codes(user_keys(table, ("site", "number")), 5).tolist() == [0, 1, 2, 0, -1]


def test_no_column_of_keys_is_refused() -> None:
    with pytest.raises(TableError, match="No column was named"):
        user_keys(pa.table({"site": [1]}), [])


# ---- speed -----------------------------------------------------------------------------------------------------------


@pytest.mark.audit
def test_many_keys_are_read_quickly() -> None:
    draw = np.random.default_rng(0)
    keys = draw.integers(0, 10**5, 10**6)
    texts = np.array([f"user {key}" for key in range(10**5)], object)[keys]
    for form, seconds in (
        (keys, 2.0),
        (keys.astype(float), 2.0),
        (texts, 6.0),
        (np.stack([keys, keys], 1), 4.0),
    ):
        begun = time.process_time()
        codes = user_codes(form, len(keys))
        assert time.process_time() - begun < seconds * slowness()
        assert codes.max() == len(np.unique(keys)) - 1


def test_texts_that_no_encoding_knows_are_told_apart_whoever_else_is_there() -> None:
    odd = np.array(["\ud800", "'\\ud800'", "z"], dtype=object)
    assert len(set(user_codes(odd, 3))) == 3
    assert len(set(user_codes(np.array([*odd, 7], dtype=object), 4)[:3])) == 3


FAR = pd.Series(np.array(["20000-01-01", "2020-02-02", "9999-12-31T23:59:59", "0001-01-01"], "M8[us]"))
UNLIKE_CELLS: dict[str, Any] = {
    **{zone: FAR.dt.tz_localize("UTC").dt.tz_convert(zone) for zone in ("Europe/Berlin", "Asia/Tokyo")},
    "Arrow": pd.Series(pd.array(pa.array(FAR), pd.ArrowDtype(pa.timestamp("us", "America/New_York")))),
}


@pytest.mark.parametrize("column", UNLIKE_CELLS)
def test_instants_beyond_the_calendar_of_a_zone_are_users_like_all_others(column: str) -> None:
    secret = UserSecret.drawn(None, 0)
    private_column = UNLIKE_CELLS[column]
    assert user_codes(private_column, 4).tolist() == [0, 1, 2, 3]
    for keys in (private_column, pd.Index(private_column), private_column.array):
        np.testing.assert_array_equal(user_digests(keys, 4, secret), user_digests(FAR.to_numpy(), 4, secret))


def test_a_cell_that_its_column_cannot_give_belongs_to_nobody() -> None:
    days = pa.array([10**7, 3, 10**7], pa.int32()).cast(pa.date32())
    assert user_codes(pd.Series(days, dtype=pd.ArrowDtype(days.type)), 3).tolist() == [0, 1, 0]
    texts = pa.array([b"a", b"\xff", b"a"], pa.binary()).view(pa.utf8())
    odd = pd.Series(pd.array(texts, pd.ArrowDtype(pa.utf8())))
    assert user_codes(odd, 3).tolist() == [0, -1, 0]
    assert (user_digests(odd, 3, UserSecret.drawn(None, 0))[0] == 0).tolist() == [False, True, False]


COLUMNS: dict[str, list[Any]] = {
    "large numbers": [2**60, 2**60 + 1, 2**60, 7],
    "floats": [0.1, 0.2, 0.1, 7.0],
    "texts": ["a", "b", "a", "c"],
    "truth values": [True, False, True, False],
    "dates": [
        datetime.date(2020, 1, 1),
        datetime.date(2020, 1, 2),
        datetime.date(2020, 1, 1),
        datetime.date(1970, 1, 1),
    ],
    "times": [datetime.datetime(2020, 1, 1, hour) for hour in (1, 2, 1, 3)],
    "decimals": [decimal.Decimal("1.5"), decimal.Decimal("2.5"), decimal.Decimal("1.5"), decimal.Decimal(3)],
}


@pytest.mark.parametrize("name", COLUMNS)
def test_a_missing_key_changes_no_other_key_of_arrow_or_polars(name: str) -> None:
    polars = pytest.importorskip("polars")
    whole = COLUMNS[name]
    expected = user_codes(whole, 4)
    for private_keys in (whole, [*whole[:3], None]):
        column, other = pa.array(private_keys), ["x"] * 4
        for container in (
            column,
            pa.chunked_array([column[:1], column[1:]]),
            pa.table({"a": column}),
            pa.table({"a": column, "b": other}),
            pa.RecordBatch.from_pydict({"a": column, "b": other}),
            polars.Series(private_keys),
            polars.DataFrame({"a": private_keys, "b": other}),
        ):
            codes = user_codes(container, 4)
            assert codes[0] == codes[2] != codes[1] >= 0
            assert codes[3] == (-1 if private_keys[3] is None else user_codes(list(whole), 4)[3])
    assert expected[0] == expected[2] != expected[1]


def test_objects_of_polars_are_keys_by_value() -> None:
    polars = pytest.importorskip("polars")
    keys = polars.Series([uuid.UUID(int=1), uuid.UUID(int=2), uuid.UUID(int=1)], dtype=polars.Object)
    assert user_codes(keys, 3).tolist() == [0, 1, 0]
