"""Odd files: encodings, separators, headers, stored types, and what is read of each."""

import codecs
import gzip
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from tests.support.odd_inputs.columns import FLAG, NUMBER


def text(content: str, encoding: str = "utf-8", name: str = "t.csv") -> Callable[[Path], Path]:
    """A text file."""

    def made(folder: Path) -> Path:
        data = content.encode(encoding)
        (folder / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
        return folder / name

    return made


def raw(content: bytes, name: str = "t.csv") -> Callable[[Path], Path]:
    """A file of these bytes."""

    def made(folder: Path) -> Path:
        (folder / name).write_bytes(content)
        return folder / name

    return made


def parquet(values: Any) -> Callable[[Path], Path]:
    """A Parquet file of one column."""

    def made(folder: Path) -> Path:
        pq.write_table(pa.table({"v": values}), folder / "t.parquet")
        return folder / "t.parquet"

    return made


CAFE = {"kind": "cat", "levels": ["caf\u00e9", "bar"]}
ROWS = "v,w\n1.5,caf\u00e9\n-2,bar\n"
FILES: dict[str, tuple[dict[str, Any], dict[str, Any] | None, Callable[[Path], Path], list[Any] | str]] = {
    "plain": (NUMBER, None, text(ROWS), [1.5, -2.0]),
    "no end of the last line": (NUMBER, None, text("v\n1.5"), [1.5]),
    "lines of Windows": (NUMBER, None, text("v,w\r\n1.5,a\r\n-2,b\r\n"), [1.5, -2.0]),
    "packed": (NUMBER, None, text(ROWS, name="t.csv.gz"), [1.5, -2.0]),
    "tabs": (NUMBER, None, text(ROWS.replace(",", "\t"), name="t.tsv"), [1.5, -2.0]),
    "a byte-order mark": (NUMBER, None, text(ROWS, "utf-8-sig"), [1.5, -2.0]),
    "a byte-order mark, packed": (NUMBER, None, text(ROWS, "utf-8-sig", "t.csv.gz"), [1.5, -2.0]),
    "UTF-16": (NUMBER, None, text(ROWS, "utf-16"), [1.5, -2.0]),
    "UTF-16, the other way round": (
        NUMBER,
        None,
        raw(codecs.BOM_UTF16_BE + ROWS.encode("utf-16-be")),
        [1.5, -2.0],
    ),
    "UTF-16 without a mark, said": (NUMBER, {"encoding": "utf-16-le"}, text(ROWS, "utf-16-le"), [1.5, -2.0]),
    "UTF-16, packed": (NUMBER, None, text(ROWS, "utf-16", "t.csv.gz"), [1.5, -2.0]),
    "UTF-16 of Excel": (NUMBER, {"separator": "\t"}, text(ROWS.replace(",", "\t"), "utf-16"), [1.5, -2.0]),
    "a line that names the separator": (NUMBER, None, text("sep=;\n" + ROWS.replace(",", ";")), [1.5, -2.0]),
    "such a line in capitals": (NUMBER, None, text('"SEP=|"\r\n' + ROWS.replace(",", "|")), [1.5, -2.0]),
    "such a line behind a mark": (NUMBER, None, text("sep=,\r\n" + ROWS, "utf-8-sig"), [1.5, -2.0]),
    "semicolons that are not said": (NUMBER, None, text(ROWS.replace(",", ";")), "has semicolons between"),
    "semicolons": (NUMBER, {"separator": ";"}, text(ROWS.replace(",", ";")), [1.5, -2.0]),
    "tabs in a .csv": (NUMBER, None, text(ROWS.replace(",", "\t")), "has tabs between"),
    "bars": (NUMBER, {"separator": "|"}, text(ROWS.replace(",", "|")), [1.5, -2.0]),
    "another header": (NUMBER, None, text("V,w\n1,a\n"), "did you mean 'V'"),
    "no header": (NUMBER, None, text("1.5,a\n2,b\n"), "first line must be the names"),
    "empty": (NUMBER, None, text(""), "it is empty"),
    "a header alone": (NUMBER, None, text("v,w\n"), []),
    "European": (
        NUMBER,
        {"separator": ";", "decimal": ",", "thousands": "."},
        text("v;w\n1.234,5;a\n-2;b\n"),
        [1234.5, -2.0],
    ),
    "a comma in quotes": (NUMBER, {"decimal": ","}, text('v,w\n"1,5",a\n'), [1.5]),
    "marks of what is missing": (NUMBER, {"missing": ["-99"]}, text("v\n-99\n1\n"), [None, 1.0]),
    "Western Windows": (
        CAFE,
        {"encoding": "cp1252"},
        text("v\ncaf\u00e9\nbar\n", "cp1252"),
        ["caf\u00e9", "bar"],
    ),
    "Latin-1 that is not said": (CAFE, None, text("v\ncaf\u00e9\nbar\n", "latin-1"), [None, "bar"]),
    "Latin-1 that is not said, and a marker": (
        CAFE,
        {"missing": ["NA"]},
        text("v\ncaf\u00e9\nNA\nbar\n", "latin-1"),
        [None, None, "bar"],
    ),
    "Latin-1 in the header": (CAFE, None, text("caf\u00e9,v\n1,bar\n", "latin-1"), "encoding"),
    "a line in quotes": (CAFE, None, text('v,w\n"bar","a\nb"\n"caf\u00e9",x\n'), ["bar", "caf\u00e9"]),
    "too few cells": (NUMBER, None, text("v,w\n1\n"), "as many cells in every row"),
    "numbers as text in Parquet": (NUMBER, None, parquet(["1.5", "2"]), "'v' is stored as text"),
    "numbers as text in Parquet, said": (NUMBER, {"decimal": ","}, parquet(["1,5", "2"]), [1.5, 2.0]),
    "yes and no in Parquet": (FLAG, None, parquet(["yes", "no", None]), [1, 0, None]),
    "truth values in Parquet": (FLAG, None, parquet([True, None, False]), [1, None, 0]),
    "words where numbers are stored": (CAFE, None, parquet([1, 2]), "none of its levels is one"),
}
