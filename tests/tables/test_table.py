"""A table in files: the same records from every form, wherever reading begins, and nothing that was not asked for."""

import decimal
import os
import pickle
import uuid
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as arrow_csv
import pyarrow.parquet as pq
import pytest
from tests.tables.toy_tables import FORMS, ROWS, SCHEMA, toy_table, write_forms

from privopt import Account, Budget, LogisticRegression, Table, TabularEncoder, losses, minimize
from privopt.data import user_keys
from privopt.data.read_units import read_units
from privopt.data.record_source import ArrayRecords, Description, RecordBlock
from privopt.data.units import Units
from privopt.errors import ArgumentError, DataUnavailable
from privopt.mechanisms.noise import NoiseSource
from privopt.solvers import GradientDescent
from privopt.tables import row_blocks, text_blocks
from privopt.tables import user_keys as keys_of
from privopt.tables.errors import TableError
from privopt.tables.text_stream import bytes_of


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("forms")
    write_forms(path)
    return path


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_blocks, "BLOCK_BYTES", 1000)
    monkeypatch.setattr("privopt.tables.table.MOST_BLOCK", 64)
    monkeypatch.setattr("privopt.tables.table.MOST_BLOCK", 64)
    monkeypatch.setattr("privopt.tables.table.LEAST_BLOCK", 64)


def together(blocks: Any) -> RecordBlock:
    parts = list(blocks)
    return RecordBlock(*(np.concatenate([part[k] for part in parts]) for k in range(3)))


@pytest.mark.later("one.csv", "one.csv.gz", "one.tsv", "texts")
@pytest.mark.parametrize("form", FORMS)
def test_records_are_the_same_in_every_form_and_from_any_row_on(form: str, folder: Path) -> None:
    records = Table.open(str(folder / form), SCHEMA).records(groups="who")
    table = toy_table()
    assert (records.rows, records.width, records.by_user) == (ROWS, 3, True)
    again = pickle.loads(pickle.dumps(records))
    for start, stop in ((0, ROWS), (130, 460), (590, ROWS), (0, 1)):
        block = together(again.blocks(start, stop))
        expected = TabularEncoder(SCHEMA).transform(table.slice(start, stop - start))
        assert np.array_equal(block.private_features, expected)
        assert block.private_targets.tolist() == table["ill"].to_pylist()[start:stop]
        assert [key or None for key in block.private_keys] == table["who"].to_pylist()[start:stop]
    assert again.fingerprint() == records.fingerprint()


@pytest.mark.at_once("deep/**/*.parquet", "four", "one.parquet")
@pytest.mark.parametrize("form", FORMS)
def test_units_are_the_same_to_the_byte_in_every_form(form: str, folder: Path) -> None:
    table = toy_table()
    features, targets = TabularEncoder(SCHEMA).transform(table), table["ill"].to_numpy()
    options: dict[str, Any] = {"row_bound": 0.9, "classes": (0, 1), "intercept": 1.0}
    opened = Table.open(str(folder / form), SCHEMA)
    for groups in (None, "who"):
        plain = Units.from_arrays(
            features,
            targets,
            groups=None if groups is None else keys_of(table, "who"),
            max_records_per_user=5,
            noise=NoiseSource(1),
            **options,
        )
        description = Description(max_records_per_user=5, **options)
        units = read_units(opened.records(groups=groups), description, noise=NoiseSource(1))
        assert units.public == plain.public
        assert units.seeded == plain.seeded
        for name in ("features", "targets", "norms", "present", "offsets", "weights"):
            one, other = getattr(units, f"private_{name}"), getattr(plain, f"private_{name}")
            assert (one is None and other is None) or one.tobytes() == other.tobytes(), name
    assert opened.user_count("who") == 89


def test_sparse_and_empty_sources_become_units_as_arrays_do() -> None:
    from scipy import sparse

    rows = sparse.random_array((50, 9), density=0.3, rng=np.random.default_rng(0), format="csr")
    keys = np.arange(50) % 7
    for groups in (None, keys):
        plain = Units.from_arrays(rows, groups=groups, row_bound=1.0, noise=NoiseSource(2))
        units = read_units(ArrayRecords(rows, None, groups), Description(row_bound=1.0), noise=NoiseSource(2))
        assert (units.private_features != plain.private_features).nnz == 0
    alone = read_units(ArrayRecords(np.ones((1, 3))), Description(row_bound=1.0, n=2))
    assert alone.private_count == 1  # a block may have one record
    described = Description(row_bound=1.0, relation="add-or-remove-one", n=5, classes=("a", "b"))
    nothing = read_units(ArrayRecords(np.zeros((0, 3)), np.array([], str)), described)
    assert (nothing.public.n, nothing.public.d, nothing.private_count) == (5, 3, 0)


def test_what_is_read_in_order_is_decoded_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[list[int]] = []
    batches = row_blocks.RowBlocks._batches

    def counted(self: Any, file: Any, groups: list[int]) -> Any:
        begun.append(groups)
        return batches(self, file, groups)

    monkeypatch.setattr(row_blocks.RowBlocks, "_batches", counted)
    records = Table.open(folder / "one.parquet", SCHEMA).records()
    parts = [
        together((block[0], block[1], block[1]) for block in records.blocks(k, k + 100))
        for k in range(0, ROWS, 100)
    ]
    assert begun == [[0, 1, 2, 3, 4, 5]]
    assert sum(len(part.private_features) for part in parts) == ROWS
    list(records.blocks(450, 500))
    assert begun[1:] == [[4, 5]]  # the others are not touched


def with_footer_of(truth: Path, other: Path) -> bytes:
    """The pages of one Parquet file under the footer of another, whose pages begin at the same places."""
    pages, lies = truth.read_bytes(), other.read_bytes()
    length = int.from_bytes(pages[-8:-4], "little")
    assert (len(lies), int.from_bytes(lies[-8:-4], "little")) == (len(pages), length)
    return pages[: -length - 8] + lies[-length - 8 :]


def test_no_statistics_are_read(tmp_path: Path) -> None:
    """Of a file whose statistics lie, the same records come."""
    table = toy_table().select(["age", "ill"]).append_column("who", pa.array(np.arange(ROWS) % 90))
    plain = {"compression": "none", "use_dictionary": False, "row_group_size": 50}
    pq.write_table(table, tmp_path / "true.parquet", **plain)
    for name in ("age", "ill", "who"):  # the same numbers of others, so that nothing is where they say
        column = pa.array(table[name].to_numpy()[::-1] + 1000)
        table = table.set_column(table.column_names.index(name), name, column)
    pq.write_table(table, tmp_path / "other.parquet", **plain)
    (tmp_path / "lies.parquet").write_bytes(
        with_footer_of(tmp_path / "true.parquet", tmp_path / "other.parquet")
    )
    footer = pq.ParquetFile(tmp_path / "lies.parquet").metadata
    assert footer.row_group(0).column(0).statistics.min > 100  # above all ages
    one, other = (
        together(Table.open(tmp_path / name, SCHEMA, features=["age"]).records(groups="who").blocks(0, ROWS))
        for name in ("true.parquet", "lies.parquet")
    )
    assert [part.tobytes() for part in one] == [part.tobytes() for part in other]
    assert one.private_features.std() > 0
    sources = "".join(
        Path(row_blocks.__file__).parent.joinpath(f"{name}.py").read_text()
        for name in ("row_blocks", "text_stream", "table", "places")
    )
    assert not [word for word in (".statistics", "filters=", "is_stats_set") if word in sources]


def files_of_keys(folder: Path, *stored: pa.Array) -> Table:
    """A table of one file for each column of keys."""
    for place, keys in enumerate(stored):
        rows = len(keys)
        columns = {"age": np.arange(rows) / 10.0, "sex": ["f"] * rows, "ill": [0] * rows}
        pq.write_table(pa.table({**columns, "who": keys}), folder / f"{place}.parquet")
    return Table.open(folder, SCHEMA)


def test_equal_keys_are_one_user_over_files_of_other_widths(tmp_path: Path) -> None:
    whole = [pa.array([1, 2, 3], kind) for kind in (pa.int64(), pa.int8(), pa.uint64(), pa.decimal128(20, 2))]
    table = files_of_keys(tmp_path, *whole, pa.array([None, 1, 2], pa.int64()), pa.nulls(2))
    assert table.user_count("who") == 3
    keys = np.concatenate(
        [block.private_keys.astype(object) for block in table.records(groups="who").blocks(0, 17)]
    )
    assert user_keys.user_codes(keys, 17).tolist() == [0, 1, 2] * 4 + [-1, 0, 1, -1, -1]


@pytest.mark.skipif(not hasattr(pa, "decimal64"), reason="Arrow has had them since version 18")
def test_narrow_decimals_uuids_and_clocks_are_keys_as_well(tmp_path: Path) -> None:
    """Arrow has no dictionaries of some, and Python no cells of others."""
    one, other, third = (tmp_path / name for name in ("decimals", "uuids", "clocks"))
    for folder in (one, other, third):
        folder.mkdir()
    assert files_of_keys(third, pa.array([0, None, 7, 7], pa.time64("ns"))).user_count("who") == 2
    narrow = pa.array([decimal.Decimal(1), None, decimal.Decimal(3)], pa.decimal64(12, 2))
    assert files_of_keys(one, pa.array([1, 2, 3]), narrow).user_count("who") == 3
    uuids = pa.array([bytes(16), None, bytes(15) + b"1"], pa.uuid())
    assert files_of_keys(other, uuids, uuids).user_count("who") == 2


def test_texts_are_one_user_over_files_that_store_them_in_other_ways(tmp_path: Path) -> None:
    kinds = (pa.string(), pa.large_string(), pa.dictionary(pa.int32(), pa.string()))
    table = files_of_keys(tmp_path, *(pa.array(["a", "b", ""]).cast(kind) for kind in kinds))
    assert table.user_count("who") == 2


IDS = [2**60 + 2 * place for place in range(3)]
IN_TWO_WAYS = {
    "whole numbers near 2^60 beside doubles": (
        pa.array(IDS),
        pa.array([float(each) for each in IDS]),
        "int64",
    ),
    "doubles beside whole numbers": (pa.array([1.0, 2.0]), pa.array([1, 2]), "int64"),
    "numbers beside texts": (pa.array([7, 8]), pa.array(["7.0", "8.0"]), "int64"),
    "texts beside doubles": (pa.array(["7", "8"]), pa.array([7.0, 8.0]), "double"),
    "numbers beside bytes": (pa.array([7, 8]), pa.array([b"7", b"8"]), "int64"),
    "texts beside bytes": (pa.array(["7", "8"]), pa.array([b"7", b"8"]), "string"),
    "texts in dictionaries beside bytes": (
        pa.array(["7", "8"]).dictionary_encode(),
        pa.array([b"7"]),
        "string",
    ),
    "bytes of one width beside numbers": (pa.array([b"7"], pa.binary(1)), pa.array([7]), "int64"),
    "floats of two widths": (pa.array([0.1], pa.float32()), pa.array([0.1]), "float"),
    "truth values beside numbers": (pa.array([True, False]), pa.array([1, 0]), "int64"),
    "times beside numbers": (pa.array([7], pa.timestamp("s")), pa.array([7]), "int64"),
    "decimals beside doubles": (pa.array([1, 2], pa.decimal128(20, 2)), pa.array([1.0, 2.0]), "decimal"),
}


@pytest.mark.later(
    "numbers beside bytes",
    "texts beside doubles",
    "texts in dictionaries beside bytes",
    "whole numbers near 2^60 beside doubles",
)
@pytest.mark.parametrize("way", IN_TWO_WAYS)
def test_one_person_is_not_two_users_where_files_store_keys_in_two_ways(
    way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other, cast = IN_TWO_WAYS[way]
    monkeypatch.setattr(row_blocks.RowBlocks, "read", None)  # by their headers alone
    table = files_of_keys(tmp_path, pa.nulls(1), one, one, other)
    for asked in (
        table.user_count,
        lambda groups: table.records(groups=groups),
        lambda groups: table.engine(groups=groups, n=9),
    ):
        with pytest.raises(TableError, match=rf"two keys.*twice the epsilon.*cast to .*{cast}") as refused:
            asked("who")
        assert "1.parquet" in str(refused.value)
        assert "3.parquet" in str(refused.value)
        with pytest.raises(TableError, match="two keys"):
            asked(("sex", "who"))


def test_a_fit_to_keys_stored_in_two_ways_pays_nothing(tmp_path: Path) -> None:
    table, account = files_of_keys(tmp_path, *IN_TWO_WAYS["numbers beside texts"][:2]), Account(1.0, 1e-5)
    model = LogisticRegression(epsilon=1.0, delta=1e-5, n=10, account=account)
    with pytest.raises(TableError, match="two keys"):
        model.fit(table, groups="who")
    assert "nothing was spent yet" in str(account)


def test_an_instant_is_one_user_over_files_that_store_times_in_other_ways(tmp_path: Path) -> None:
    columns = {"age": [1.0, 2.0, 3.0], "sex": ["f", "m", "f"], "ill": [0, 1, 1]}
    seconds = pa.array([1_600_000_000, 1_600_000_001, None])
    zones = {
        "us": "Europe/Berlin",
        "ms": "No/Such_Zone",
        "ns": None,
    }  # pyarrow reads INT96, older files' times, as the last
    for place, (unit, zone) in enumerate(zones.items()):
        keys = seconds.cast(pa.timestamp("s")).cast(pa.timestamp(unit)).cast(pa.timestamp(unit, zone))
        pq.write_table(
            pa.table({**columns, "who": keys}),
            tmp_path / f"{place}.parquet",
            use_deprecated_int96_timestamps=zone is None,
        )
    far = pa.array([10**12, 10**12 + 1, 10**12], pa.timestamp("ms")).cast(pa.timestamp("ms", "UTC"))
    beyond = pa.array([10**15, 10**15 + 1, 10**15], pa.timestamp("ms"))  # Python's calendar
    for place, keys in enumerate((far, beyond), 3):
        pq.write_table(pa.table({**columns, "who": keys}), tmp_path / f"{place}.parquet")
    table = Table.open(tmp_path, SCHEMA)
    keys = np.concatenate(
        [block.private_keys.astype(object) for block in table.records(groups="who").blocks(0, 15)]
    )
    users = [0, 1, -1] * 3 + [2, 3, 2, 4, 5, 4]
    assert user_keys.user_codes(keys, 15).tolist() == users
    assert table.user_count("who") == 6


def test_a_key_that_is_no_text_in_utf8_is_a_key(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_bytes(b"age,sex,who,ill\n1,f,\xff,0\n2,m,\xfe,1\n3,m,\xff,1\n")
    table = Table.open(tmp_path / "t.csv", SCHEMA)
    assert table.user_count("who") == 2


@pytest.mark.parametrize(
    "text",
    [
        b'age,sex,who,ill\n1,"f",a,0\n2,"x""\n,y",b,1\n3,m"",c,1\n',
        b"age,sex,who,ill\r\n1,f,a,0\r\n2,m,b,1\r\n\r\n3,m,c,1",
        b'age,sex,who,ill\n1,"a,""b""\n\n""c""",a,0\n2,m,b,1\n3,"",c,1\n',
    ],
)
def test_a_text_is_cut_where_records_end(
    text: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "t.csv").write_bytes(text)
    for size in (1, 2, 3, 5, 7, 11, 1000):
        monkeypatch.setattr(text_blocks, "BLOCK_BYTES", size)
        records = Table.open(tmp_path / "t.csv", SCHEMA).records(groups="who")
        assert records.rows == 3
        block = together(records.blocks(0, 3))
        assert block.private_keys.tolist() == ["a", "b", "c"]
        assert (
            block.private_features.tolist()
            == TabularEncoder(SCHEMA)
            .transform(pa.table({"age": [1, 2, 3], "sex": [block_sex(text, k) for k in range(3)]}))
            .tolist()
        )


def block_sex(text: bytes, row: int) -> str:
    import csv
    import io

    return list(csv.DictReader(io.StringIO(text.decode(), newline="")))[row]["sex"]


def change(path: Path) -> None:
    pq.write_table(toy_table().slice(0, 600), path, row_group_size=600)


def touch(path: Path) -> None:
    stat = path.stat()
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns + 1))


def put_in_its_place(path: Path) -> None:
    """Another file of the same size and time of change."""
    stat, other = path.stat(), path.with_suffix(".new")
    other.write_bytes(path.read_bytes()[::-1])
    os.utime(other, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    other.replace(path)
    assert (path.stat().st_size, path.stat().st_mtime_ns) == (stat.st_size, stat.st_mtime_ns)


def write_over(path: Path) -> None:
    """Other bytes in the same file, of the same size and time of change."""
    stat = path.stat()
    path.write_bytes(path.read_bytes()[::-1])
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))


@pytest.mark.parametrize(
    ("harm", "words"),
    [
        (Path.unlink, "is gone"),
        (put_in_its_place, "has changed"),
        (write_over, "has changed"),
        (change, "has changed"),
        (touch, "has changed"),
        (lambda path: path.write_bytes(b""), "has changed"),
    ],
)
def test_a_file_that_is_another_by_now_is_refused(harm: Any, words: str, tmp_path: Path) -> None:
    pq.write_table(toy_table(), tmp_path / "t.parquet", row_group_size=50)
    records = Table.open(tmp_path / "t.parquet", SCHEMA).records()
    blocks = records.blocks(0, ROWS)
    next(blocks)
    harm(tmp_path / "t.parquet")
    with pytest.raises(
        DataUnavailable, match=f"{words} since the table was opened. What the run was charged stays"
    ):
        list(blocks)
    with pytest.raises(DataUnavailable, match=words):
        list(records.blocks(0, ROWS))


@pytest.mark.parametrize(
    ("amount", "size"),
    [("8GB", 8 * 10**9), ("500 MiB", 500 * 2**20), ("1e9", 10**9), ("1.5k", 1500), (7, 7), (None, None)],
)
def test_amounts_are_read(amount: Any, size: Any) -> None:
    assert bytes_of(amount) == size


SAID = {"file": {"missing": ["-99", "NA"]}, **SCHEMA}


@pytest.mark.parametrize("name", ["t.csv", "t.parquet"])
def test_a_marker_stands_for_its_number_in_features_and_keys_however_they_are_stored(
    name: str, tmp_path: Path
) -> None:
    table = pa.table(
        {
            "age": [-99.0, 50.0, 5.0, 1.0],
            "sex": ["m", "NA", "f", "f"],
            "who": [7, 7, -99, 8],
            "ill": [1, 0, 1, 0],
        }
    )
    write = arrow_csv.write_csv if name.endswith("csv") else pq.write_table
    write(table, tmp_path / name)
    opened = Table.open(tmp_path / name, SAID)
    read = together(opened.records(opened.encoder("who", missing="indicator"), groups="who").blocks(0, 4))
    names = list(opened.encoder("who", missing="indicator").get_feature_names_out())
    assert read.private_features[:, names.index("age missing")].tolist() == [1, 0, 0, 0]
    assert read.private_features[:, names.index("sex missing")].tolist() == [0, 1, 0, 0]
    assert opened.user_count("who") == 2
    codes = user_keys.user_codes(read.private_keys, 4)
    assert codes[0] == codes[1] != codes[3]
    assert codes[2] == -1


def test_uuids_are_keys_as_the_texts_that_write_them(tmp_path: Path) -> None:
    people = [uuid.UUID(int=1), uuid.UUID(int=2), uuid.UUID(int=1)]
    keys = pa.array([one.bytes for one in people], pa.uuid())
    table = pa.table({"age": [1.0, 2.0, 3.0], "sex": ["m", "m", "f"], "who": keys, "ill": [1, 0, 1]})
    pq.write_table(table, tmp_path / "t.parquet")
    opened = Table.open(tmp_path / "t.parquet", SCHEMA)
    assert opened.user_count("who") == 2
    read = together(opened.records(groups="who").blocks(0, 3))
    assert read.private_keys.tolist() == [str(one) for one in people]


@pytest.mark.at_once("indicator-5")
@pytest.mark.parametrize(("rule", "width"), [("midpoint", 3), ("zero", 3), ("indicator", 5)])
def test_a_table_says_what_a_missing_cell_becomes(rule: str, width: int, tmp_path: Path) -> None:
    table = pa.table({"age": [None, 50.0], "sex": ["m", "f"], "who": [1, 2], "ill": [1, 0]})
    pq.write_table(table, tmp_path / "t.parquet")
    opened = Table.open(tmp_path / "t.parquet", SCHEMA, missing=rule)
    features = next(opened.features())
    assert features.shape == (2, width)
    assert np.isnan(features[0, 0]) == (rule == "zero")
    model = LogisticRegression(epsilon=1.0, delta=1e-5, solver=GradientDescent(steps=1))
    model.fit(opened)
    assert model.n_features_in_ == width
    assert model.encoder_.missing == rule
    assert minimize(losses.logistic, opened, budget=Budget(1.0, 1e-5)).params.shape == (width,)


def test_the_rule_for_missing_cells_is_said_once(tmp_path: Path) -> None:
    write_forms(tmp_path)
    opened = Table.open(tmp_path / "one.csv", SCHEMA, missing="indicator")
    with pytest.raises(
        ArgumentError, match="opened with missing='indicator', and the model has missing='zero'"
    ):
        LogisticRegression(epsilon=1.0, delta=1e-5, missing="zero").fit(opened)
    with pytest.raises(ArgumentError, match="missing must be 'midpoint', 'zero' or 'indicator', got 'drop'"):
        Table.open(tmp_path / "one.csv", SCHEMA, missing="drop")
