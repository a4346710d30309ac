"""Tables that cannot be opened or read: each gets its sentence, before anything is charged."""

import gzip
import json
import os
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import pytest
from tests.tables.toy_tables import SCHEMA, toy_table, write_forms

from privopt import Account, LogisticRegression, PrivateSearchCV, Table
from privopt.errors import ArgumentError, ArgumentTypeError, DataUnavailable, PrivoptError
from privopt.tables import TableError, places, text_blocks, text_stream
from privopt.tables.table import EncodedRecords


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_forms(tmp_path)
    return tmp_path


def parquet(path: Path, **columns: Any) -> None:
    pq.write_table(pa.table({"age": [1.0], "sex": ["f"], "who": ["a"], "ill": [1]} | columns), path)


def empty_folder(folder: Path) -> Any:
    (folder / "empty").mkdir()
    return folder / "empty"


def hidden_only(folder: Path) -> Any:
    (folder / "log").mkdir()
    (folder / "log" / "_SUCCESS").write_text("")
    return folder / "log"


def linked(folder: Path) -> Any:
    (folder / "four" / "latest.parquet").symlink_to(folder / "four" / "p3.parquet")
    return folder / "four"


def lacking_a_feature(folder: Path) -> Any:
    pq.write_table(pa.table({"age": [1.0], "sex": ["f"], "ill": [1]}), folder / "four" / "q.parquet")
    return folder / "four"


def by_semicolons(folder: Path) -> Any:
    (folder / "semi.csv").write_text("age;sex;who;ill\n1;f;secret cell;0\n")
    return folder / "semi.csv"


def without_a_header(folder: Path) -> Any:
    (folder / "bare.csv").write_text("1,f,secret cell,0\n")
    return folder / "bare.csv"


def nothing_in_it(folder: Path) -> Any:
    (folder / "nothing.csv").write_text("")
    return folder / "nothing.csv"


def lacking(folder: Path) -> Any:
    pq.write_table(pa.table({"age": [1.0], "ill": [1]}), folder / "less.parquet")
    return folder / "less.parquet"


def no_text_name(folder: Path) -> Any:
    (folder / "four" / os.fsdecode(b"\xff.parquet")).write_bytes(b"")
    return folder / "four"


def pipe(folder: Path) -> Any:
    os.mkfifo(folder / "pipe.csv")
    return folder / "pipe.csv"


def damaged(folder: Path) -> Any:
    (folder / "four" / "p2.parquet").write_bytes(b"PAR1 no more PAR1")
    return folder / "four"


def truncated(folder: Path) -> Any:
    whole = (folder / "one.parquet").read_bytes()
    (folder / "cut.parquet").write_bytes(whole[: len(whole) // 2])
    return folder / "cut.parquet"


def ragged(folder: Path) -> Any:
    (folder / "ragged.csv").write_text("age,sex,who,ill\n1,f,a,0\n2,m\n")
    return folder / "ragged.csv"


def no_gzip(folder: Path) -> Any:
    (folder / "no.csv.gz").write_text("age,sex,who,ill\n1,f,a,0\n")
    return folder / "no.csv.gz"


def cut_gzip(folder: Path) -> Any:
    packed = gzip.compress((folder / "one.csv").read_bytes())
    (folder / "cut.csv.gz").write_bytes(packed[: len(packed) // 2])
    return folder / "cut.csv.gz"


def unknown(folder: Path) -> Any:
    (folder / "four" / "notes.txt").write_text("notes")
    return folder / "four"


def nested(folder: Path) -> Any:
    parquet(folder / "nested.parquet", age=pa.array([[1.0]]))
    return folder / "nested.parquet"


def nested_key(folder: Path) -> Any:
    parquet(folder / "four" / "r.parquet", who=pa.array([[1.0]]))
    return folder / "four"


def texts_for_numbers(folder: Path) -> Any:
    parquet(folder / "four" / "r.parquet", age=pa.array([{"x": 1}]))
    return folder / "four"


def twice_named(folder: Path) -> Any:
    (folder / "twice.csv").write_text("age,age,sex,who,ill\n1,1,f,a,0\n")
    return folder / "twice.csv"


def delta(folder: Path) -> Any:
    (folder / "four" / "_delta_log").mkdir()
    return folder / "four"


OPENED: dict[str, tuple[Callable[[Path], Any], str]] = {
    "no such file": (lambda folder: folder / "no.parquet", "There is no table"),
    "an empty glob": (lambda folder: folder / "four" / "*.csv", "No table matches"),
    "a glob below a file": (lambda folder: folder / "one.csv" / "*.csv", "No table matches|cannot be listed"),
    "an empty list": (lambda folder: [], "No table was given"),
    "an empty folder": (empty_folder, "holds no table"),
    "a folder of hidden files": (hidden_only, "holds no table"),
    "mixed formats": (lambda folder: [folder / "one.parquet", folder / "one.csv"], "several formats"),
    "commas and tabs": (lambda folder: [folder / "one.csv", folder / "one.tsv"], "several formats"),
    "an unknown format": (unknown, "holds other files beside tables, such as .notes.txt."),
    "one file twice": (lambda folder: [folder / "one.csv", folder / "one.csv"], "given twice"),
    "a file and its folder": (lambda folder: [folder / "four", folder / "four/p1.parquet"], "given twice"),
    "one file under two names": (linked, "under two names"),
    "a name that is no text": (no_text_name, "not UTF-8 text: rename it"),
    "a pipe": (pipe, "is a pipe or a device, which can be read once"),
    "standard input": (lambda folder: "-", "is a pipe or a device"),
    "a device": (lambda folder: "/dev/null", "is a pipe or a device"),
    "a URI of no scheme": (lambda folder: "strange://bucket/t.parquet", "opened by the package fsspec"),
    "a wildcard for a bucket": (lambda folder: "s3://*/t.parquet", "first wildcard"),
    "a URI that is none": (lambda folder: "s3://", "cannot be opened"),
    "a password in a URI": (lambda folder: "s3://:hunter2@/t.parquet", r"^[^2]*$"),
    "Delta without its package": (delta, r"privopt\[delta\]"),
    "two stores": (
        lambda folder: [folder / "one.csv", "s3://bucket/*.csv"],
        "several file systems|cannot be",
    ),
}
READ: dict[str, tuple[Callable[[Path], Any], str]] = {
    "other columns": (lacking_a_feature, "has other columns than|has no column 'who'"),
    "a column that is missing": (lacking, "has no column 'sex'"),
    "cells between semicolons": (
        by_semicolons,
        "its first line has semicolons between the names. Say so in the schema",
    ),
    "no header": (without_a_header, r"has no column '\w+', which the schema names, nor any other of them"),
    "an empty text": (nothing_in_it, "which the schema names: it is empty"),
    "a damaged file": (damaged, "is not well-formed Parquet"),
    "half a file": (truncated, "cannot be read"),
    "rows of several lengths": (ragged, "is not well-formed CSV"),
    "what is no gzip": (no_gzip, "cannot be read"),
    "half a gzip": (cut_gzip, "cannot be read"),
    "lists for numbers": (nested, "stored as list<"),
    "lists for numbers in a later file": (texts_for_numbers, r"r\.parquet': .*stored as struct<"),
    "lists for keys in a later file": (nested_key, "cannot tell users apart"),
    "two columns of one name": (twice_named, "two columns of one name"),
}


@pytest.mark.parametrize("case", OPENED)
def test_what_cannot_be_opened_is_refused(case: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make, words = OPENED[case]
    monkeypatch.setitem(sys.modules, "fsspec", None)
    monkeypatch.setitem(sys.modules, "deltalake", None)
    where = make(folder)
    monkeypatch.setattr(places, "_system", offline(places._system))
    with pytest.raises(TableError, match=words):
        Table.open(where if isinstance(where, list) else str(where), SCHEMA)


@pytest.mark.parametrize("groups", [None, "who"])
def test_without_ray_a_cluster_is_refused_in_a_sentence(
    groups: str | None, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    model = LogisticRegression(epsilon=1.0, delta=1e-6)
    with pytest.raises(
        ArgumentError, match=r"needs Ray, which is not installed: pip install 'privopt\[ray\]'"
    ):
        model.fit(Table.open(folder / "four", SCHEMA, engine="ray"), groups=groups)


def offline(system: Any) -> Any:
    """No store is asked; what pyarrow says of a URI without asking one is kept."""

    def opened(uri: str, scheme: str) -> Any:
        if scheme == "s3":
            raise OSError("no network, and hunter2 is the password")
        return system(uri, scheme)

    return opened


@pytest.mark.parametrize("case", READ)
def test_what_cannot_be_read_is_refused_before_anything_is_paid(
    case: str, folder: Path, tmp_path: Path
) -> None:
    make, words = READ[case]
    where = make(folder)
    account = Account(9.0, 1e-3)
    model = LogisticRegression(epsilon=1.0, delta=1e-6, account=account)
    with pytest.raises(TableError, match=words):
        model.fit(Table.open(where, SCHEMA), groups="who")
    assert not account.entries


def test_of_columns_that_differ_those_of_the_schema_are_named(folder: Path) -> None:
    with pytest.raises(
        TableError, match=r"q\.parquet' has other columns than '.*p0\.parquet' \('.*q\.parquet' lacks 'who'\)"
    ):
        Table.open(lacking_a_feature(folder), SCHEMA).records()


@pytest.mark.parametrize("form", ["parquet", "csv", "csv.gz"])
@pytest.mark.parametrize("at", [0, 1])
def test_a_column_that_the_schema_does_not_name_may_be_in_one_file_alone(
    form: str, at: int, tmp_path: Path
) -> None:
    rows = pa.table({"age": [1.0, 2.0], "sex": ["f", "m"], "who": ["a", "b"], "ill": [1, 0]})
    found = []
    for folder, more in (
        ("same", []),
        ("more", [("notes", pa.array(["x", "y"])), ("other", pa.array([1, 2]))]),
    ):
        (tmp_path / folder).mkdir()
        for place in range(2):
            stored = rows
            for name, cells in more if place == at else []:
                stored = stored.add_column(1, name, cells)
            path = tmp_path / folder / f"{place}.{form}"
            if form == "parquet":
                pq.write_table(stored, path)
            else:
                with pa.output_stream(str(path), compression="gzip" if form == "csv.gz" else None) as stream:
                    pa_csv.write_csv(stored, stream)
        table = Table.open(tmp_path / folder, SCHEMA)
        found.append(table.read(["age", "who", "ill"]).to_pydict())
        assert table.names == ["age", "sex", "who", "ill"]
        assert table.records(groups="who").rows == 4
    assert found[0] == found[1]


ARGUMENTS: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "a place of no kind": ({"engine": "disk"}, ValueError, "engine must be"),
    "memory in words": ({"memory": "a lot"}, ArgumentError, "such as 8GB"),
    "no memory": ({"memory": 0}, ArgumentError, "such as 8GB"),
    "no workers": ({"workers": 0}, ValueError, "workers must be"),
    "an n of none": ({"n": 0}, ArgumentError, "n must be a whole number"),
    "a target that is none": ({"target": "who"}, TableError, "only"),
    "a target that is not there": ({"target": "what"}, TableError, "no column 'what'"),
}


@pytest.mark.parametrize("case", ARGUMENTS)
def test_an_argument_that_is_wrong_is_refused(case: str, folder: Path) -> None:
    given, kind, words = ARGUMENTS[case]
    with pytest.raises(kind, match=words):
        Table.open(folder / "four", SCHEMA, **given)


def test_a_fit_says_what_is_wrong_with_its_arguments(folder: Path) -> None:
    table = Table.open(folder / "four", SCHEMA)
    model = LogisticRegression(epsilon=1.0, delta=1e-6)
    with pytest.raises(ArgumentTypeError, match="leave y out"):
        model.fit(table, [1, 0])
    with pytest.raises(TableError, match="no column 'whom'"):
        model.fit(table, groups="whom")
    with pytest.raises(ArgumentError, match="name of a column"):
        model.fit(table, groups=[1, 2])
    with pytest.raises(ArgumentError, match="one column twice"):
        model.fit(table, groups=["who", "who"])
    with pytest.raises(TableError, match="names no target"):
        model.fit(Table.open(folder / "four", SCHEMA | {"target": None}))


def test_lists_have_no_form_in_texts(tmp_path: Path) -> None:
    schema = {"columns": {"age": {"kind": "pixels", "size": 2, "low": 0, "high": 1}, "ill": {"kind": "flag"}}}
    (tmp_path / "t.csv").write_text("age,ill\n1,0\n")
    with pytest.raises(TableError, match="which CSV has no form for"):
        Table.open(tmp_path / "t.csv", schema, target="ill").records()


def test_bombs_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_stream, "MOST_FREE", 10_000)
    monkeypatch.setattr(text_stream, "MOST_GROWTH", 2)
    (tmp_path / "t.csv.gz").write_bytes(gzip.compress(b"age,sex,who,ill\n" + b"1,f,a,0\n" * 9000))
    parquet(tmp_path / "t.parquet")
    pq.write_table(
        pa.table({"age": [1.0] * 90_000, "sex": ["f"] * 90_000, "ill": [1] * 90_000}), tmp_path / "u.parquet"
    )
    for name in ("t.csv.gz", "u.parquet"):
        with pytest.raises(TableError, match="unpacks to more than"):
            Table.open(tmp_path / name, SCHEMA).records()
    monkeypatch.setattr(text_blocks, "MOST_RECORD", 100)
    monkeypatch.setattr(text_blocks, "BLOCK_BYTES", 50)
    (tmp_path / "long.csv").write_text("age,sex,who,ill\n1,f," + "a" * 500 + ",0\n")
    with pytest.raises(TableError, match="has a record of more than"):
        Table.open(tmp_path / "long.csv", SCHEMA).records()


@pytest.mark.parametrize(("groups", "n"), [(None, 599), ("who", 80)])
def test_more_units_than_a_public_n_are_refused_without_their_number(
    groups: Any, n: int, folder: Path
) -> None:
    account = Account(9.0, 1e-3, relation="add-or-remove-one")
    model = LogisticRegression(epsilon=1.0, delta=1e-6, relation="add-or-remove-one", account=account)
    with pytest.raises(ValueError, match="n is missing: under add-or-remove-one"):
        model.fit(Table.open(folder / "four", SCHEMA), groups=groups)
    search = PrivateSearchCV(
        LogisticRegression(relation="add-or-remove-one"), {"alpha": [0.1, 1.0]}, epsilon=1.0, delta=1e-6
    )
    with pytest.raises(ValueError, match="n is missing: under add-or-remove-one"):
        search.fit(Table.open(folder / "four", SCHEMA), groups=groups)
    described = {"row_bound": 1.0, "relation": "add-or-remove-one", "groups": groups}
    with pytest.raises(ValueError, match="n is missing"):
        Table.open(folder / "four", SCHEMA).engine(**described)
    with pytest.raises(ArgumentError, match=f"than n = {n}: n must be a public number") as refused:
        model.fit(Table.open(folder / "four", SCHEMA, n=n), groups=groups)
    assert not account.entries
    assert "600" not in str(refused.value)
    assert "89" not in str(refused.value)


def test_a_file_that_goes_during_a_fit_ends_it_without_a_charge(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows are all read before the first release, so that nothing was charged yet."""
    blocks = EncodedRecords.blocks

    def gone(self: Any, start: int, stop: int) -> Any:
        (folder / "four" / "p3.parquet").unlink(missing_ok=True)
        return blocks(self, start, stop)

    monkeypatch.setattr(EncodedRecords, "blocks", gone)
    account = Account(9.0, 1e-3)
    model = LogisticRegression(epsilon=1.0, delta=1e-6, account=account)
    table = Table.open(folder / "four", SCHEMA)
    with pytest.raises(DataUnavailable, match="is gone since the table was opened"):
        model.fit(table)
    assert not account.entries
    assert not hasattr(model, "coef_")


def fake_delta(files: list[str], features: Any = (), partitions: Any = ()) -> Any:
    class DeltaTable:
        def __init__(self, uri: str) -> None:
            assert uri.endswith("four")

        def protocol(self) -> Any:
            return types.SimpleNamespace(reader_features=list(features))

        def metadata(self) -> Any:
            return types.SimpleNamespace(partition_columns=list(partitions))

        def file_uris(self) -> list[str]:
            return files

    module = types.ModuleType("deltalake")
    module.DeltaTable = DeltaTable  # type: ignore[attr-defined]
    return module


def test_of_delta_the_files_of_its_log_are_read(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    delta(folder)
    files = [str(folder / "four" / "p1.parquet"), f"file://{folder}/four/p0.parquet"]
    monkeypatch.setitem(sys.modules, "deltalake", fake_delta(files))
    records = Table.open(folder / "four", SCHEMA).records()
    assert records.rows == 300
    targets = [one for block in records.blocks(0, 300) for one in block.private_targets]
    assert targets == toy_table()["ill"].to_pylist()[:300]
    for module, words in (
        (fake_delta(files, ["deletionVectors"]), "uses deletionVectors"),
        (fake_delta(files, [], ["age"]), "keeps 'age' in the names of its folders"),
        (fake_delta([]), "holds no file"),
        (types.ModuleType("deltalake"), "cannot be read"),
    ):
        monkeypatch.setitem(sys.modules, "deltalake", module)
        with pytest.raises(TableError, match=words):
            Table.open(folder / "four", SCHEMA).records()
    monkeypatch.setitem(sys.modules, "deltalake", fake_delta(files, [], ["year"]))
    assert Table.open(folder / "four", SCHEMA).row_count() == 300  # the schema does not ask for it


def test_every_refusal_is_one_of_ours_and_quotes_no_cell(folder: Path) -> None:
    (folder / "secret.csv").write_text("age,sex,who,ill\n1,f,secret cell\n")
    with pytest.raises(PrivoptError, match="not well-formed CSV") as refused:
        Table.open(folder / "secret.csv", SCHEMA).records()
    assert "secret cell" not in json.dumps(str(refused.value)) + repr(refused.value.__cause__)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"address": "head:6379"}, "address is about a Ray cluster: give it with engine='ray'"),
        ({"engine": "stream", "workers": 2}, "workers is about a Ray cluster"),
        ({"engine": "memory", "memory": "1GB"}, "memory is what rows may take before they are streamed"),
        ({"engine": "ray", "spool": "."}, "spool is the folder of a streamed table"),
    ],
)
def test_a_setting_that_would_do_nothing_is_refused(given: dict[str, Any], words: str, folder: Path) -> None:
    with pytest.raises(ArgumentError, match=words):
        Table.open(folder / "four", SCHEMA, **given)
