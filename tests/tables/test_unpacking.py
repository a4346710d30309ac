import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from privopt.tables import TableError, read_table, text_stream, user_keys
from privopt.tables.schema import Schema
from privopt.tables.table import Table

SCHEMA = Schema.from_json(
    {
        "columns": {
            "who": {"kind": "id"},
            "town": {"kind": "cat", "levels": ["a", "b"]},
            "age": {"kind": "flag"},
        }
    }
)
TOWNS = ["a", None, "b", "", "a"] * 20


@pytest.mark.parametrize(
    "kind", [pa.string(), pa.large_string(), pa.binary(), pa.dictionary(pa.int8(), pa.string())]
)
@pytest.mark.parametrize("coded", [True, False])
def test_texts_come_back_as_they_were_stored(kind: pa.DataType, coded: bool, tmp_path: Path) -> None:
    towns = pa.array(TOWNS, pa.string()).cast(kind if not pa.types.is_dictionary(kind) else pa.string())
    towns = towns.dictionary_encode() if pa.types.is_dictionary(kind) else towns
    path = tmp_path / "table.parquet"
    table = pa.table({"who": towns, "town": towns, "age": [1.0] * len(TOWNS)})
    pq.write_table(table, path, use_dictionary=coded, row_group_size=30)
    found = read_table(path, SCHEMA)
    assert found.column("town").to_pylist() == table.column("town").to_pylist()
    assert np.array_equal(user_keys(found, "who"), user_keys(table, "who"), equal_nan=True)


def test_what_unpacks_beyond_the_limit_is_refused_and_what_does_not_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = b"who,town,age\n" + b"x,a,1\n" * 50_000
    (tmp_path / "table.csv").write_bytes(rows)
    (tmp_path / "table.csv.gz").write_bytes(gzip.compress(rows))
    texts = pa.array(["x" * 10_000]).dictionary_encode().take(pa.array([0] * 1000))
    pq.write_table(pa.table({"who": texts, "town": texts, "age": [1] * 1000}), tmp_path / "coded.parquet")
    assert read_table(tmp_path / "table.csv.gz", SCHEMA).num_rows == 50_000
    assert read_table(tmp_path / "coded.parquet", SCHEMA).num_rows == 1000
    monkeypatch.setattr(text_stream, "MOST_FREE", 2**17)
    assert read_table(tmp_path / "table.csv", SCHEMA).num_rows == 50_000
    for name in ("table.csv.gz", "coded.parquet"):
        with pytest.raises(TableError, match="more than 100 times its own size"):
            read_table(tmp_path / name, SCHEMA)


def test_lists_of_texts_are_no_column(tmp_path: Path) -> None:
    path = tmp_path / "table.parquet"
    pq.write_table(pa.table({"who": [["x"]], "town": ["a"], "age": [1]}), path)
    with pytest.raises(TableError, match="'who' is stored as lists of texts"):
        read_table(path, SCHEMA)
    assert read_table(path, SCHEMA, columns=["town"]).num_rows == 1


def flags(folder: Path, rows: int, columns: int) -> tuple[Path, Schema]:
    """A table of flags that are nearly all 0, which Parquet packs to next to nothing, and its schema."""
    names = [f"c{place}" for place in range(columns)]
    few = (np.arange(rows) % 997 == 0).astype(np.int8)
    path = folder / "flags.parquet"
    pq.write_table(pa.table(dict.fromkeys(names, few)), path, compression="zstd")
    return path, Schema.from_json({"columns": {name: {"kind": "flag"} for name in names}})


def test_rare_flags_are_no_bomb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cell counts with the width of its type: 300,000 x 500 flags are within 1 GiB, here 2,000 x 60 within 150 kB."""
    path, schema = flags(tmp_path, 2_000, 60)
    monkeypatch.setattr(text_stream, "MOST_GROWTH", 1)
    monkeypatch.setattr(text_stream, "MOST_FREE", 150_000)
    assert path.stat().st_size < 60_000
    assert read_table(path, schema).num_rows == 2_000
    assert Table.open(path, schema).row_count() == 2_000
    assert Table.open(path, schema).columns(schema.names).rows == 2_000
    monkeypatch.setattr(text_stream, "MOST_FREE", 120_000)
    with pytest.raises(TableError, match="PRIVOPT_MOST_UNPACKED=8GB"):
        read_table(path, schema)
    with pytest.raises(TableError, match="PRIVOPT_MOST_UNPACKED=8GB"):
        Table.open(path, schema).columns(schema.names)


def test_the_limit_is_the_users_to_raise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, schema = flags(tmp_path, 2_000, 60)
    (tmp_path / "flags.csv.gz").write_bytes(gzip.compress(b"c0\n" + b"0\n" * 100_000))
    one = Schema.from_json({"columns": {"c0": {"kind": "flag"}}})
    monkeypatch.setattr(text_stream, "MOST_GROWTH", 1)
    monkeypatch.setattr(text_stream, "MOST_FREE", 1_000)
    for file, described in ((path, schema), (tmp_path / "flags.csv.gz", one)):
        with pytest.raises(TableError, match="unpacks to more"):
            read_table(file, described)
        monkeypatch.setenv("PRIVOPT_MOST_UNPACKED", "1MB")
        assert read_table(file, described).num_rows > 0
        assert Table.open(file, described).columns(described.names).rows > 0
        monkeypatch.setenv("PRIVOPT_MOST_UNPACKED", "plenty")
        with pytest.raises(TableError, match="PRIVOPT_MOST_UNPACKED must be an amount"):
            read_table(file, described)
        monkeypatch.delenv("PRIVOPT_MOST_UNPACKED")


@pytest.mark.parametrize(
    ("kind", "width"),
    [
        (pa.int8(), 1),
        (pa.bool_(), 1),
        (pa.float32(), 4),
        (pa.int64(), 8),
        (pa.list_(pa.int16()), 2),
        (pa.string(), 8),
    ],
)
def test_a_cell_counts_with_the_width_of_its_type(kind: pa.DataType, width: int, tmp_path: Path) -> None:
    path = tmp_path / "table.parquet"
    pq.write_table(pa.table({"a.b": pa.nulls(3, kind), "c": [1, 2, 3]}), path)
    metadata = pq.read_metadata(path)
    assert text_stream._width(metadata.schema.to_arrow_schema(), "a.b", metadata.schema.column(0)) == width


def varint(value: int, size: int = 0) -> bytes:
    """A whole number as Parquet's footer has it, on `size` bytes where that is more than it takes."""
    left, places = 2 * value, list[int]()
    while left or len(places) < max(1, size):
        places.append(left & 0x7F | 0x80)
        left >>= 7
    return bytes([*places[:-1], places[-1] & 0x7F])


def long_texts(path: Path, groups: int, length: int) -> None:
    """A file of one long text a row group, whose footer says that each takes 1,000 bytes."""
    schema = pa.schema([("who", pa.string()), ("town", pa.string())])
    options: dict[str, Any] = {
        "compression": "zstd",
        "write_statistics": False,
        "dictionary_pagesize_limit": 2**30,
    }
    with pq.ParquetWriter(path, schema, **options) as writer:
        for group in range(groups):
            texts = {"who": [f"{group:04}" + "x" * length], "town": ["a"]}
            writer.write_table(pa.table(texts, schema=schema))
    honest = pq.read_metadata(path)
    content = path.read_bytes()
    start = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
    footer = content[start:-8]
    for group in range(groups):
        for size in (
            honest.row_group(group).column(0).total_uncompressed_size,
            honest.row_group(group).total_byte_size,
        ):
            footer = footer.replace(varint(size), varint(1000, len(varint(size))))
    path.write_bytes(content[:start] + footer + content[-8:])
    assert pq.read_metadata(path).row_group(0).column(0).total_uncompressed_size == 1000


def test_a_footer_that_says_too_little_fills_no_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """40 kB that grow to 80 MB, and would to any number of GB: not more than two row groups are in memory."""
    path, one, kept = tmp_path / "texts.parquet", 2_000_000, pa.total_allocated_bytes()
    long_texts(path, 40, one)
    read = Table.open(path, SCHEMA).columns(["who"]).read(0, 40)
    for _ in range(3):
        next(read)
        assert pa.total_allocated_bytes() - kept < 5 * one
    del read
    seen, written_out = list[int](), text_stream._written_out
    monkeypatch.setattr(text_stream, "_written_out", lambda chunk: seen.append(0) or written_out(chunk))
    monkeypatch.setattr(text_stream, "MOST_FREE", 5 * one)
    monkeypatch.setattr(text_stream, "MOST_GROWTH", 1)
    with pytest.raises(TableError, match="unpacks to more"):
        text_stream.read_parquet(path, ["who"])
    assert len(seen) == 5
