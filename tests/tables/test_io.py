"""Reading CSV and Parquet, only what the schema names, and writing tables."""

import gzip
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.fs as pa_fs
import pyarrow.parquet as pq
import pytest

import privopt.tables.io
from privopt.tables import (
    Schema,
    TableError,
    TabularEncoder,
    read_table,
    read_target,
    row_count,
    table_columns,
    user_keys,
)
from privopt.tables.io import WRITERS, check_written, guarded, new_table

SCHEMA = Schema.from_json(
    {
        "target": "y",
        "user": "person",
        "columns": {
            "age": {"kind": "num", "low": 0, "high": 100},
            "town": {"kind": "cat", "levels": ["007", "NA", "a,b", "two\nlines"]},
            "member": {"kind": "flag"},
            "person": {"kind": "id"},
            "y": {"kind": "flag"},
        },
    }
)
FRAME = pd.DataFrame(
    {
        "secret": ["do", "not", "read", "this"],
        "y": [0, 1, 1, 0],
        "town": ["007", "NA", "a,b", "two\nlines"],
        "age": [50.0, None, 1e9, 0.1],
        "member": [1, 0, 1, 1],
        "person": [3, 3, 5, 8],
    }
)


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    paths = {end: tmp_path / f"table{end}" for end in (".csv", ".csv.gz", ".tsv", ".parquet")}
    FRAME.to_csv(paths[".csv"], index=False, encoding="utf-8-sig")
    paths[".csv.gz"].write_bytes(gzip.compress(paths[".csv"].read_bytes()))
    FRAME.to_csv(paths[".tsv"], index=False, sep="\t")
    FRAME.to_parquet(paths[".parquet"])
    return paths


def test_every_format_gives_the_same_features_targets_and_users(files: dict[str, Path]) -> None:
    encoder = TabularEncoder(SCHEMA)
    expected = encoder.transform(FRAME)
    assert expected[:, 1:5].tolist() == np.eye(4).tolist()
    for path in files.values():
        table = read_table(path, SCHEMA)
        assert table.column_names == list(SCHEMA.names)
        assert np.array_equal(encoder.transform(table), expected)
        assert read_target(table, SCHEMA).tolist() == [0, 1, 1, 0]
        assert user_keys(table, "person").tolist() == [0, 0, 1, 2]
        assert row_count(path) == 4
        assert table_columns(path) == list(FRAME.columns)
        assert read_table(path, SCHEMA, columns=["town", "age"]).column_names == ["town", "age"]


def test_damage_in_a_column_is_one_sentence_when_it_is_read(tmp_path: Path, files: dict[str, Path]) -> None:
    content = bytearray(files[".parquet"].read_bytes())
    content[4:120] = b"\xff" * 116  # the first pages, not the footer
    path = written(tmp_path / "damaged.parquet", bytes(content))
    with pytest.raises(TableError, match=r"damaged|well-formed") as caught:
        read_table(path, SCHEMA, columns=["town", "y"])
    assert "\n" not in str(caught.value)


def test_a_csv_cell_that_is_no_number_is_missing(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.write_text("age,y\n25,1\nunknown,true\n,maybe\n", encoding="utf-8")
    table = read_table(path, SCHEMA, columns=["age", "y"])
    assert np.array_equal(table["age"].to_numpy(), [25, np.nan, np.nan], equal_nan=True)
    assert np.array_equal(read_target(table, SCHEMA), [1, 1, np.nan], equal_nan=True)


def test_a_column_that_only_resembles_a_wanted_one_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "table.parquet"
    pq.write_table(pa.table({"age.secret": ["x"], "age": [1.0]}), path)
    assert read_table(path, SCHEMA, columns=["age"]).column_names == ["age"]
    folder = tmp_path / "member=1"
    folder.mkdir()
    pq.write_table(pa.table({"age": [1.0]}), folder / "table.parquet")
    with pytest.raises(TableError, match="has no column 'member'"):
        read_table(folder / "table.parquet", SCHEMA, columns=["member"])


def written(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def test_a_file_that_cannot_be_read_is_one_sentence_without_cells(
    tmp_path: Path, files: dict[str, Path]
) -> None:
    cases: list[tuple[Path, str]] = [
        (tmp_path / "absent.csv", "There is no table"),
        (tmp_path, "is of no known format"),
        (tmp_path / "table.xlsx", r"must end in one of \.parquet, \.pq, \.csv"),
        (written(tmp_path / "ragged.csv", b"age,y\n1,1\nhush,2,3\n"), "it is not well-formed CSV"),
        (written(tmp_path / "latin_header.csv", b"\xe4ge,town\n1,2\n"), "it is not UTF-8 text"),
        (written(tmp_path / "no.parquet", b"hush"), "it is not well-formed Parquet"),
        (
            written(tmp_path / "cut.parquet", files[".parquet"].read_bytes()[:300]),
            "it is not well-formed Parquet",
        ),
        (written(tmp_path / "cut.csv.gz", files[".csv.gz"].read_bytes()[:40]), "cannot be read"),
        (written(tmp_path / "empty.csv", b""), "has no column 'age'"),
        (written(tmp_path / "twice.csv", b"age,town,age\n1,2,3\n"), "two columns of one name"),
    ]
    for path, sentence in cases:
        with pytest.raises(TableError, match=sentence) as caught:
            read_table(path, SCHEMA, columns=["age", "town"] if "ragged" not in path.name else ["age"])
        assert "hush" not in str(caught.value)
        assert "\n" not in str(caught.value)


def test_a_cell_that_is_no_unicode_text_is_missing_and_changes_no_other(tmp_path: Path) -> None:
    path = written(
        tmp_path / "latin.csv", b"age,member,town,person,y\n1,1,a,Z\xfcrich,0\n\xfc,1,\xfc,x,\xfc\n"
    )
    table = read_table(path, SCHEMA)
    assert np.array_equal(table["age"].to_numpy(), [1, np.nan], equal_nan=True)
    features = TabularEncoder(SCHEMA).transform(table)
    assert features[1, 1:5].tolist() == [0.0, 0.0, 0.0, 0.0]
    assert np.array_equal(read_target(table, SCHEMA), [0, np.nan], equal_nan=True)
    assert user_keys(table, "person").tolist() == [0, 1]


def test_missing_and_unknown_columns_are_named(files: dict[str, Path]) -> None:
    wider = Schema.from_json({"columns": {"age": {"kind": "flag"}, "height": {"kind": "flag"}}})
    for path in files.values():
        with pytest.raises(TableError, match="has no column 'height', which the schema names"):
            read_table(path, wider)
        with pytest.raises(TableError, match="The schema has no column 'secret'"):
            read_table(path, SCHEMA, columns=["secret"])


def test_csv_has_no_form_for_lists(tmp_path: Path) -> None:
    schema = Schema.from_json({"columns": {"active": {"kind": "set", "size": 3}}})
    path = written(tmp_path / "table.csv", b"active\n1\n")
    with pytest.raises(
        TableError, match="'active' holds lists, which CSV has no form for: give the table as Parquet"
    ):
        read_table(path, schema)


READERS = {
    ".parquet": pd.read_parquet,
    ".pq": pd.read_parquet,
    ".csv": pd.read_csv,
    ".tsv": lambda path: pd.read_csv(path, sep="\t"),
    ".feather": pd.read_feather,
    ".arrow": pd.read_feather,
}


@pytest.mark.parametrize("end", WRITERS)
def test_a_table_is_written_piece_by_piece_and_replaced_whole(
    end: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(privopt.tables.io, "GROUP_ROWS", 2)
    path, read = tmp_path / f"Rows{end}", READERS[end]
    path.write_text("what stood here before")
    first = {"x": ["a", None, "c"], "y": [1.5, 2.5, 3.5]}
    pieces = [first, {"x": ['say "d", e'], "y": [4.5]}, {"x": ["f"], "y": [5.5]}]
    with new_table(path) as write:
        for piece in pieces:
            write(pa.table(piece))
        assert path.read_text() == "what stood here before"
    assert read(path).fillna("-").to_dict("list") == {
        "x": ["a", "-", "c", 'say "d", e', "f"],
        "y": [1.5, 2.5, 3.5, 4.5, 5.5],
    }
    with pytest.raises(RuntimeError, match="halfway"):
        _stopped_halfway(path)
    assert len(read(path)) == 5
    assert [each.name for each in tmp_path.iterdir()] == [path.name]
    check_written(path, pa.table(first))


def _stopped_halfway(path: Path) -> None:
    with new_table(path) as write:
        write(pa.table({"x": ["a", "b", "c"]}))
        raise RuntimeError("halfway")


def test_a_table_that_cannot_be_written_is_refused_before_it_is_made(tmp_path: Path) -> None:
    with pytest.raises(TableError, match=r"must end in \.parquet, \.pq, \.csv, \.tsv, \.feather or \.arrow"):
        check_written(tmp_path / "rows.xlsx")
    lists = pa.schema({"age": pa.int64(), "words": pa.list_(pa.int32())}).empty_table()
    with pytest.raises(
        TableError, match=r"'words' holds list<.*>, which \.csv has no form for: write \.parquet"
    ):
        check_written(tmp_path / "rows.csv", lists)
    check_written(tmp_path / "rows.feather", lists)
    with (
        pytest.raises(TableError, match="cannot be written: No such file"),
        new_table(tmp_path / "absent" / "rows.csv"),
    ):
        pass
    assert not list(tmp_path.iterdir())


def test_a_file_that_is_gone_is_named_as_it_was_given(tmp_path: Path) -> None:
    gone = tmp_path / "Visits.parquet"
    with pytest.raises(
        TableError, match=r"Visits\.parquet' cannot be read: no such file or directory\.$"
    ) as refused:
        guarded(gone, lambda: pa_fs.LocalFileSystem().open_input_file(str(gone)))
    assert str(refused.value).count(str(gone)) == 1
