"""Odd columns: flags, numbers as text, categories, dates, labels, frames and names, and what each cell is read as."""

import datetime
import decimal
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from tests.support.odd_inputs.cells import ODD

LOW, HIGH = -1e4, 1e4
NUMBER = {"kind": "num", "low": LOW, "high": HIGH}
FLAG = {"kind": "flag"}
LEVELS = ["male", "female", "Caf\u00e9", "1", "2", "-3", "2.5", "A", "a"]

# ---- flags ---------------------------------------------------------------------------------------

SPELT = {
    "ja": {"true": "ja", "false": "nein"},
    "12": {"true": 1, "false": 2},
    "21": {"true": "2", "false": "1"},
}
FLAGS: dict[str, tuple[dict[str, Any], list[Any], list[Any]]] = {
    "yes and no": ({}, ["yes", "no"], [1, 0]),
    "capitals": ({}, ["YES", "No", "TRUE", "f"], [1, 0, 1, 0]),
    "letters": ({}, ["y", "n", "t", "F"], [1, 0, 1, 0]),
    "blanks around": ({}, [" yes", "no\t", " 1 "], [1, 0, 1]),
    "digits as text": ({}, ["1", "0"], [1, 0]),
    "what pandas writes": ({}, ["1.0", "0.0"], [1, 0]),
    "truth values": ({}, [True, False], [1, 0]),
    "truth values and nothing": ({}, [True, None, False], [1, None, 0]),
    "floats": ({}, [1.0, 0.0, math.nan], [1, 0, None]),
    "numbers of NumPy": ({}, [np.int8(1), np.float32(0)], [1, 0]),
    "truth values of NumPy": ({}, [np.True_, np.False_], [1, 0]),
    "decimals": ({}, [decimal.Decimal(1), decimal.Decimal(0)], [1, 0]),
    "a share": ({}, [0.7, 0.2], [1, 0]),
    "codes 1 and 2": ({}, [1, 2], [1, None]),
    "codes 1 and 2, said": (SPELT["12"], [1, 2, 2.0, "2", "1.0"], [1, 0, 0, 0, 1]),
    "codes 2 and 1, said": (SPELT["21"], [1, 2, 0], [0, 1, None]),
    "minus one": ({}, [-1, 0], [None, 0]),
    "a count": ({}, [0, 1, 17], [0, 1, None]),
    "words of another language": ({}, ["ja", "nein"], [None, None]),
    "words of another language, said": (SPELT["ja"], ["ja", "NEIN ", "yes"], [1, 0, None]),
    "several spellings": ({"true": ["x", "on"], "false": ["-", "off"]}, ["X", "On", "-"], [1, 1, 0]),
    "truth values where texts are said": (SPELT["ja"], [True, False], [1, 0]),
    "empty texts": ({}, ["", " ", "1"], [None, None, 1]),
    "marks of what is missing": ({}, ["NA", "?", "0"], [None, None, 0]),
    "infinity": ({}, [math.inf, -math.inf, 1], [None, None, 1]),
    "an accent in another form": ({"true": "s\u00ed", "false": "no"}, ["si\u0301", "S\u00cd"], [1, 1]),
    "a tick": ({"true": "\u2713", "false": "\u2717"}, ["\u2713", "\u2717"], [1, 0]),
    "a wide digit": ({}, ["\uff11", "1"], [1, 1]),
}
# ---- numbers as text -----------------------------------------------------------------------------

COMMA, GERMAN = {"decimal": ","}, {"decimal": ",", "thousands": "."}
ENGLISH, FRENCH, SWISS = {"thousands": ","}, {"decimal": ",", "thousands": " "}, {"thousands": "'"}
PLAIN = {"decimal": "."}
NUMBERS: dict[str, tuple[dict[str, Any], list[Any], list[Any]]] = {
    "plain": (PLAIN, ["1.5", "-2", "+3"], [1.5, -2.0, 3.0]),
    "blanks around": (PLAIN, [" 1.5", "2\t", "\u00a03"], [1.5, 2.0, 3.0]),
    "an exponent": (PLAIN, ["1e3", "2E-1"], [1000.0, 0.2]),
    "a leading zero": (PLAIN, ["007", "-01"], [7.0, -1.0]),
    "no digit before the point": (PLAIN, [".5", "-.5", "5."], [0.5, -0.5, 5.0]),
    "a comma that is not said": (PLAIN, ["1,5", "2"], [None, 2.0]),
    "a comma": (COMMA, ["1,5", "2", "-0,25"], [1.5, 2.0, -0.25]),
    "a point where the comma is said": (COMMA, ["1.5", "1,5"], [None, 1.5]),
    "thousands that are not said": (PLAIN, ["1,234", "1234"], [None, 1234.0]),
    "thousands": (ENGLISH, ["1,234", "9,999.5", "12"], [1234.0, 9999.5, 12.0]),
    "thousands in the wrong place": (ENGLISH, ["1,23", "12,34,567"], [None, None]),
    "German": (GERMAN, ["1.234,5", "-9.999", "7,25"], [1234.5, -9999.0, 7.25]),
    "French": (FRENCH, ["1 234,5", "1\u00a0234", "1\u202f234"], [1234.5, 1234.0, 1234.0]),
    "Swiss": (SWISS, ["1'234.5", "1\u2019234"], [1234.5, 1234.0]),
    "a currency": (PLAIN, ["$5", "5 \u20ac"], [None, None]),
    "per cent": (PLAIN, ["5%", "5"], [None, 5.0]),
    "a unit": (PLAIN, ["5kg", "5"], [None, 5.0]),
    "brackets for minus": (PLAIN, ["(5)", "5"], [None, 5.0]),
    "a true minus": (PLAIN, ["\u22125", "-5"], [None, -5.0]),
    "underscores": (PLAIN, ["1_000", "1000"], [None, 1000.0]),
    "hexadecimal": (PLAIN, ["0x10", "16"], [None, 16.0]),
    "not a number": (PLAIN, ["nan", "inf", "-inf", "1"], [None, None, None, 1.0]),
    "a fraction": (PLAIN, ["1/2", ".5"], [None, 0.5]),
    "words": (PLAIN, ["five", "5"], [None, 5.0]),
    "truth as text": (PLAIN, ["true", "False"], [1.0, 0.0]),
    "a date": (PLAIN, ["2020-01-01", "3"], [None, 3.0]),
    "errors of a spreadsheet": (PLAIN, ["#N/A", "#DIV/0!", "1"], [None, None, 1.0]),
    "two points": (PLAIN, ["1.2.3", "1"], [None, 1.0]),
    "other digits": (PLAIN, ["\u0663", "3"], [3.0, 3.0]),
    "marks that are said": ({"missing": ["-99", "."]}, ["-99", ".", "1"], [None, None, 1.0]),
}
MARK = {"missing": ["-99", "NA"]}
MARKED: dict[str, tuple[dict[str, Any], dict[str, Any], Callable[[], Any], list[Any]]] = {
    "whole numbers": (NUMBER, MARK, lambda: pd.DataFrame({"v": [-99, 1]}), [None, 1.0]),
    "floats": (NUMBER, MARK, lambda: pd.DataFrame({"v": [-99.0, 1.5, math.nan]}), [None, 1.5, None]),
    "bytes": (NUMBER, MARK, lambda: pa.table({"v": pa.array([-99, 1], pa.int8())}), [None, 1.0]),
    "numbers that cannot be it": (NUMBER, MARK, lambda: pa.table({"v": pa.array([1], pa.uint8())}), [1.0]),
    "decimals": (
        NUMBER,
        MARK,
        lambda: pa.table({"v": [decimal.Decimal("-99.0"), decimal.Decimal(1)]}),
        [None, 1.0],
    ),
    "half floats": (NUMBER, MARK, lambda: pa.table({"v": pa.array(np.array([-99, 1], "f2"))}), [None, 1.0]),
    "objects": (
        NUMBER,
        MARK,
        lambda: pd.DataFrame(
            {"v": pd.Series([-99, "-99.0", "NA", 1, ODD["an object that fails"]], dtype=object)}
        ),
        [None, None, None, 1.0, None],
    ),
    "a dictionary": (
        NUMBER,
        MARK,
        lambda: pa.table({"v": pa.array([-99, 1]).dictionary_encode()}),
        [None, 1.0],
    ),
    "texts": (NUMBER, MARK, lambda: pa.table({"v": ["-99.0", " NA ", "1"]}), [None, None, 1.0]),
    "a decimal comma": (
        NUMBER,
        {"decimal": ",", "missing": ["-99,5"]},
        lambda: pa.table({"v": ["-99,50", "1,5"]}),
        [None, 1.5],
    ),
    "a level": (
        {"kind": "cat", "levels": ["1", "9"]},
        {"missing": [9]},
        lambda: pd.DataFrame({"v": [1, 9]}),
        ["1", None],
    ),
    "a level as text": (
        {"kind": "cat", "levels": ["1", "9"]},
        {"missing": [9]},
        lambda: pd.DataFrame({"v": ["1", "9.0"]}),
        ["1", None],
    ),
    "a flag": (FLAG, {"missing": ["0"]}, lambda: pd.DataFrame({"v": [1, 0]}), [1, None]),
    "truth values": (FLAG, {"missing": ["0"]}, lambda: pd.DataFrame({"v": [True, False]}), [1, 0]),
    "a date": (
        {"kind": "date", "low": "2000-01-01", "high": "2030-01-01"},
        {"missing": ["2001-01-01"]},
        lambda: pa.table({"v": ["2001-01-01"]}),
        [None],
    ),
}
# ---- categories ----------------------------------------------------------------------------------

CATEGORIES: dict[str, tuple[list[Any], list[Any]]] = {
    "capitals": (["Male", "FEMALE"], ["male", "female"]),
    "blanks around": ([" male", "female "], ["male", "female"]),
    "a blank that does not break": (["male\u00a0", "\u2003female"], ["male", "female"]),
    "another form of an accent": (["Cafe\u0301", "caf\u00e9"], ["Caf\u00e9", "Caf\u00e9"]),
    "no accent": (["Cafe", "male"], [None, "male"]),
    "levels that differ in capitals": (["A", "a", "a "], ["A", "a", "a"]),
    "whole numbers": ([1, 2, -3], ["1", "2", "-3"]),
    "whole numbers as floats": ([1.0, 2.0, math.nan], ["1", "2", None]),
    "whole numbers as pandas writes them": (["1.0", "2.0", ""], ["1", "2", None]),
    "a leading zero": (["01", "+2", "-3.00"], ["1", "2", "-3"]),
    "an exponent": (["1e0", "2"], ["1", "2"]),
    "another number": (["1.5", "2.5"], [None, "2.5"]),
    "a number with an end": (["1.0000001", "1"], [None, "1"]),
    "a fraction as a float": ([2.5, 1.5], ["2.5", None]),
    "truth values": ([True, False], ["1", None]),
    "numbers of NumPy": ([np.int8(1), np.float32(2)], ["1", "2"]),
    "decimals": ([decimal.Decimal(1), decimal.Decimal("2.5")], ["1", "2.5"]),
    "a level that is not there": (["other", "male"], [None, "male"]),
    "short forms": (["m", "female"], [None, "female"]),
    "nothing": ([None, math.nan, pd.NA, pd.NaT], [None] * 4),
    "empty texts": (["", "  "], [None, None]),
    "marks of what is missing": (["NA", "?", "male"], [None, None, "male"]),
    "bytes": ([b"male", "male"], [None, "male"]),
    "a list": ([["male"], "male"], [None, "male"]),
    "infinity": ([math.inf, "1"], [None, "1"]),
    "a huge number": ([10**400, "1"], [None, "1"]),
    "numbers too large for floats": ([2**53 + 1, str(2**60)], [None, None]),
    "quotes in the text": (['"male"', "male"], [None, "male"]),
    "a soft hyphen": (["ma\u00adle", "male"], [None, "male"]),
    "letters of another alphabet": (["m\u0430le", "male"], [None, "male"]),
}
# ---- dates ---------------------------------------------------------------------------------------

DATE = {"kind": "date", "low": "2000-01-01", "high": "2030-01-01"}
DAY = float((datetime.date(2020, 3, 1) - datetime.date(1970, 1, 1)).days)
UTC = datetime.UTC
DATES: dict[str, tuple[list[Any], list[Any]]] = {
    "ISO": (["2020-03-01", "2020-03-02"], [DAY, DAY + 1]),
    "ISO without signs": (["20200301"], [DAY]),
    "a time": (["2020-03-01T12:00", "2020-03-01 12:00:00"], [DAY + 0.5, DAY + 0.5]),
    "a zone": (["2020-03-01T12:00+06:00", "2020-03-01T12:00Z"], [DAY + 0.25, DAY + 0.5]),
    "blanks around": ([" 2020-03-01 "], [DAY]),
    "dates of Python": ([datetime.date(2020, 3, 1)], [DAY]),
    "times of Python": ([datetime.datetime(2020, 3, 1, 6)], [DAY + 0.25]),
    "times with a zone": ([datetime.datetime(2020, 3, 1, 6, tzinfo=UTC)], [DAY + 0.25]),
    "times of pandas": ([pd.Timestamp("2020-03-01")], [DAY]),
    "times of pandas with a zone": ([pd.Timestamp("2020-03-01T01:00", tz="Etc/GMT-1")], [DAY]),
    "times of NumPy": ([np.datetime64("2020-03-01")], [DAY]),
    "times of NumPy to the hour": ([np.datetime64("2020-03-01T12", "h")], [DAY + 0.5]),
    "too early": (["1999-01-01"], [10957.0]),
    "too late": (["2999-01-01"], [21915.0]),
    "day, month, year": (["01.03.2020", "1/3/2020"], [None, None]),
    "month, day, year": (["03/31/2020"], [None]),
    "a month in words": (["1 March 2020"], [None]),
    "a day that there is not": (["2020-02-30"], [None]),
    "a month alone": (["2020-03"], [None]),
    "a year alone": (["2020", 2020], [None, None]),
    "a number of a spreadsheet": ([43891, 43891.5], [None, None]),
    "seconds since 1970": ([1583020800], [None]),
    "nothing": ([None, pd.NaT, math.nan, np.datetime64("NaT")], [None] * 4),
    "empty texts": (["", " "], [None, None]),
    "words": (["soon", "today"], [None, None]),
    "a date far away": ([np.datetime64("999999-01-01")], [21915.0]),
    "a duration": ([datetime.timedelta(5)], [None]),
    "a time of the day": ([datetime.time(5)], [None]),
}
# ---- labels --------------------------------------------------------------------------------------

LABELS: dict[str, tuple[tuple[Any, ...], Any, list[Any]]] = {
    "digits as text": ((0, 1), ["0", "1"], [0, 1]),
    "digits as an array of text": ((0, 1), np.array(["0", "1"]), [0, 1]),
    "digits as bytes": ((0, 1), [b"0", 1], [None, 1]),
    "digits where texts are declared": (("0", "1"), [0, 1.0], ["0", "1"]),
    "numbers where texts are declared": (("0", "1"), np.array([0.0, 1.0]), ["0", "1"]),
    "what pandas writes": ((0, 1), ["0.0", "1.0"], [0, 1]),
    "floats": ((0, 1), np.array([0.0, 1.0, math.nan]), [0, 1, None]),
    "floats that are no labels": ((0, 1), [0.5, 1], [None, 1]),
    "truth values": ((0, 1), [False, True], [0, 1]),
    "truth values declared": ((False, True), [0, 1, "true"], [False, True, True]),
    "truth as text": ((False, True), ["True", "FALSE"], [True, False]),
    "yes and no": ((0, 1), ["no", "Yes"], [0, 1]),
    "yes and no declared": (("no", "yes"), ["NO", " yes "], ["no", "yes"]),
    "yes and no for other labels": ((1, 2), ["no", "yes"], [None, None]),
    "minus and plus": ((-1, 1), ["-1", "+1"], [-1, 1]),
    "codes 1 and 2": ((1, 2), ["1", 2.0], [1, 2]),
    "codes 1 and 2 where 0 and 1 are declared": ((0, 1), [1, 2], [1, None]),
    "capitals": (("a", "b"), ["A", "B "], ["a", "b"]),
    "labels that differ in capitals": (("a", "A"), ["A", "a", "a "], ["A", "a", "a"]),
    "another form of an accent": (("\u00e9", "e"), ["e\u0301", "e"], ["\u00e9", "e"]),
    "nothing": ((0, 1), [None, math.nan, pd.NA, 1], [None, None, None, 1]),
    "a mask": ((0, 1), np.ma.array([0, 1, 1], mask=[0, 1, 0]), [0, None, 1]),
    "a mask of texts": (("a", "b"), np.ma.array(["a", "b"], mask=[1, 0]), [None, "b"]),
    "nullable": ((0, 1), pd.array([0, None, 1], dtype="Int64"), [0, None, 1]),
    "a category": (("a", "b"), pd.Series(["a", "c"], dtype="category"), ["a", None]),
    "texts of Arrow": ((0, 1), pd.array(["0", None], dtype="str"), [0, None]),
    "an object that fails": ((0, 1), [ODD["an object that fails"], 1], [None, 1]),
    "labels of three types": ((0, "a", 2.5), ["0", "a", "2.5"], [0, "a", 2.5]),
    "huge numbers": ((0, 1), [10**400, "1" * 5000, 1], [None, None, 1]),
    "labels of two columns": ((("a", 1), ("b", 2)), [("a", 1), "a"], [("a", 1), None]),
}
# ---- frames --------------------------------------------------------------------------------------

HALF = [1.5, None, -2.0]
AB = {"kind": "cat", "levels": ["a", "b"]}


def _polars(values: list[Any], kind: str | None = None) -> Any:
    import polars

    return polars.DataFrame(
        {"v": polars.Series(values, dtype=None if kind is None else getattr(polars, kind))}
    )


def _in_arrow(values: list[Any], kind: Any) -> pd.DataFrame:
    return pd.DataFrame({"v": pd.array(values, dtype=pd.ArrowDtype(kind))})


FRAMES: dict[str, tuple[dict[str, Any], Callable[[], Any], list[Any] | str]] = {
    "floats": (NUMBER, lambda: pd.DataFrame({"v": HALF}), HALF),
    "nullable": (NUMBER, lambda: pd.DataFrame({"v": pd.array(HALF, dtype="Float32")}), HALF),
    "objects": (NUMBER, lambda: pd.DataFrame({"v": pd.Series(HALF, dtype=object)}), HALF),
    "small floats": (NUMBER, lambda: pd.DataFrame({"v": np.array([1.5, np.nan], "f2")}), [1.5, None]),
    "whole numbers": (NUMBER, lambda: pd.DataFrame({"v": np.array([1, 2], "u1")}), [1.0, 2.0]),
    "nullable whole numbers": (NUMBER, lambda: pd.DataFrame({"v": pd.array([1, None], "Int8")}), [1.0, None]),
    "truth where a number is declared": (NUMBER, lambda: pd.DataFrame({"v": [True, False]}), [1.0, 0.0]),
    "decimals of Arrow": (NUMBER, lambda: pa.table({"v": [decimal.Decimal("1.5"), None]}), [1.5, None]),
    "half floats of Arrow": (NUMBER, lambda: pa.table({"v": pa.array(np.array([1.5], "f2"))}), [1.5]),
    "an Arrow batch": (NUMBER, lambda: pa.RecordBatch.from_pydict({"v": HALF}), HALF),
    "chunks": (NUMBER, lambda: pa.table({"v": pa.chunked_array([[1.5], [None, -2.0]])}), HALF),
    "no chunk": (NUMBER, lambda: pa.table({"v": pa.chunked_array([], pa.float64())}), []),
    "nothing but nulls": (NUMBER, lambda: pa.table({"v": pa.nulls(2)}), [None, None]),
    "a dictionary of numbers": (
        NUMBER,
        lambda: pa.table({"v": pa.array([1.5, None, 1.5]).dictionary_encode()}),
        [1.5, None, 1.5],
    ),
    "a category of numbers": (
        NUMBER,
        lambda: pd.DataFrame({"v": pd.Categorical([1.5, None, 1.5])}),
        [1.5, None, 1.5],
    ),
    "text where a number is declared": (
        NUMBER,
        lambda: pd.DataFrame({"v": pd.array(["1", "2"], dtype="str")}),
        "'v' is stored as text",
    ),
    "text of Arrow where a number is declared": (
        NUMBER,
        lambda: pa.table({"v": ["1", "2"]}),
        "'v' is stored as text",
    ),
    "large text where a number is declared": (
        NUMBER,
        lambda: pa.table({"v": pa.array(["1"], pa.large_string())}),
        "how texts write them",
    ),
    "times where a number is declared": (
        NUMBER,
        lambda: pd.DataFrame({"v": pd.to_datetime(["2020-01-01"])}),
        "holds numbers",
    ),
    "lists where a number is declared": (NUMBER, lambda: pa.table({"v": [[1.0]]}), "holds numbers"),
    "numbers where words are declared": (
        {"kind": "cat", "levels": ["male", "female"]},
        lambda: pd.DataFrame({"v": [0, 1]}),
        "none of its levels is one",
    ),
    "numbers of Arrow where words are declared": (
        {"kind": "cat", "levels": ["male", "female"]},
        lambda: pa.table({"v": pa.array([0, 1], pa.int8())}),
        "none of its levels is one",
    ),
    "truth where words are declared": (
        {"kind": "cat", "levels": ["male", "female"]},
        lambda: pd.DataFrame({"v": [True, False]}),
        "none of its levels is one",
    ),
    "truth where yes and no are levels": (
        {"kind": "cat", "levels": ["True", "False"]},
        lambda: pd.DataFrame({"v": [True, False]}),
        ["True", "False"],
    ),
    "a category of text": (
        {"kind": "cat", "levels": ["a", "b"]},
        lambda: pd.DataFrame({"v": pd.Categorical(["b", None, "c"])}),
        ["b", None, None],
    ),
    "numbers where a date is declared": (DATE, lambda: pd.DataFrame({"v": [18322]}), "holds dates"),
    "times of pandas": (DATE, lambda: pd.DataFrame({"v": pd.to_datetime(["2020-03-01", None])}), [DAY, None]),
    "dates of Arrow": (DATE, lambda: pa.table({"v": pa.array([int(DAY), None], pa.date32())}), [DAY, None]),
    "times with a zone in Arrow": (
        DATE,
        lambda: pa.table({"v": pa.array([1583020800], pa.timestamp("s", "Asia/Tokyo"))}),
        [DAY],
    ),
    "times where a flag is declared": (
        FLAG,
        lambda: pd.DataFrame({"v": pd.to_datetime(["2020-01-01"])}),
        "that it is a flag",
    ),
    "a list of rows": (NUMBER, lambda: [[1.0]], "named columns"),
    "an array": (NUMBER, lambda: np.ones((2, 1)), "named columns"),
    "a dictionary": (NUMBER, lambda: {"v": [1.0]}, "named columns"),
    "complex numbers": (NUMBER, lambda: pd.DataFrame({"v": [1 + 2j]}), "'v' is stored as complex128"),
    "a category of numbers where words are declared": (
        AB,
        lambda: pd.DataFrame({"v": pd.Categorical([0, 1])}),
        "none of its levels is one",
    ),
    "months": (
        DATE,
        lambda: pd.DataFrame({"v": pd.period_range("2020-03", periods=2, freq="M")}),
        "holds dates",
    ),
    "sparse numbers": (NUMBER, lambda: pd.DataFrame({"v": pd.arrays.SparseArray([0, 1.5])}), [0.0, 1.5]),
    "numbers of Arrow in pandas": (NUMBER, lambda: _in_arrow(HALF, pa.float64()), HALF),
    "texts of Arrow in pandas": (AB, lambda: _in_arrow(["b", None], pa.string_view()), ["b", None]),
    "dates of Arrow in pandas": (DATE, lambda: _in_arrow([int(DAY), None], pa.date32()), [DAY, None]),
    "identifiers as a category": (
        AB,
        lambda: pa.table({"v": pa.array([b"0" * 16], pa.uuid())}),
        [None],
    ),
    "runs": (NUMBER, lambda: pa.table({"v": pa.RunEndEncodedArray.from_arrays([2], [1.5])}), "holds numbers"),
    "a series": (NUMBER, lambda: pd.Series([1.0], name="v"), "give a frame of named columns"),
    "numbers of Polars": (NUMBER, lambda: _polars(HALF), HALF),
    "small numbers of Polars": (NUMBER, lambda: _polars([1, None], "UInt8"), [1.0, None]),
    "decimals of Polars": (NUMBER, lambda: _polars([decimal.Decimal("1.5"), None]), [1.5, None]),
    "nothing but nulls of Polars": (NUMBER, lambda: _polars([None, None]), [None, None]),
    "text of Polars where a number is declared": (NUMBER, lambda: _polars(["1"]), "'v' is stored as text"),
    "lists of Polars": (NUMBER, lambda: _polars([[1.0]]), "holds numbers"),
    "objects of Polars": (NUMBER, lambda: _polars([1, "a"], "Object"), "holds numbers"),
    "numbers of 128 bits of Polars": (
        NUMBER,
        lambda: _polars([1], "Int128"),
        "of types that Arrow has",
    ),
    "texts of Polars": (AB, lambda: _polars(["b", None, "c"]), ["b", None, None]),
    "categories of Polars": (AB, lambda: _polars(["b", None, "c"], "Categorical"), ["b", None, None]),
    "yes and no as categories of Polars": (
        FLAG,
        lambda: _polars(["yes", None, "no"], "Categorical"),
        [1, None, 0],
    ),
    "truth values of Polars": (FLAG, lambda: _polars([True, None, False]), [1, None, 0]),
    "dates of Polars": (DATE, lambda: _polars([datetime.date(2020, 3, 1), None]), [DAY, None]),
    "dates as categories of Polars": (DATE, lambda: _polars(["2020-03-01", "x"], "Categorical"), [DAY, None]),
    "times of the day of Polars": (DATE, lambda: _polars([datetime.time(5)]), "holds dates"),
    "a lazy frame of Polars": (NUMBER, lambda: _polars(HALF).lazy(), "whose rows are not there yet"),
    "an index that is no range": (NUMBER, lambda: pd.DataFrame({"v": [1.0, 2.0]}, index=[7, 7]), [1.0, 2.0]),
}
# ---- names of columns ----------------------------------------------------------------------------

NAMES: dict[str, tuple[list[Any], str]] = {
    "capitals": (["V"], "did you mean 'V'"),
    "a blank before": ([" v"], "did you mean ' v'"),
    "a blank behind": (["v "], "did you mean 'v '"),
    "a byte-order mark": (["\ufeffv"], "did you mean"),
    "quotes": (['"v"'], "did you mean"),
    "a sign": (["v_"], "did you mean 'v_'"),
    "a dot": (["v."], "did you mean 'v.'"),
    "nothing alike": (["income"], "no column 'v', which the schema names."),
    "a number": ([0], "no column 'v'"),
    "nothing": ([None], "no column 'v'"),
    "a tuple": ([("v", "mean")], "no column 'v'"),
    "no column": ([], "no column 'v'"),
    "two of one name": (["v", "v"], "two columns of one name"),
    "a wide letter": (["\uff56"], "no column 'v'"),
    "an empty name": ([""], "no column 'v'"),
    "brackets": (["(v)"], "did you mean '(v)'"),
    "a hyphen": (["v-"], "did you mean 'v-'"),
    "a blank and capitals": ([" V "], "did you mean ' V '"),
    "a tab": (["\tv"], "did you mean"),
    "an end of the line": (["v\n"], "did you mean"),
    "a blank of no width": (["v\u200b"], "did you mean"),
    "a colon": (["v:"], "did you mean 'v:'"),
    "a number behind": (["v1"], "no column 'v'"),
    "a unit": (["v (kg)"], "no column 'v'"),
    "in another column": (["w", "V"], "did you mean 'V'"),
}
