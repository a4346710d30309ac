import gzip
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from privopt.tables import TableError, read_table, unpacking, user_keys
from privopt.tables.schema import Schema

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
    monkeypatch.setattr(unpacking, "MOST_FREE", 2**17)
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
