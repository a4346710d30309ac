"""Tables in a store of objects, and URIs of files: read as on this machine, refused in a sentence, no secret told."""

import json
import urllib.parse
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from tests.support.object_store import KEY, SECRET, ObjectStore, object_store
from tests.tables.toy_tables import SCHEMA, write_forms
from typer.testing import CliRunner

from privopt import Account, LogisticRegression, Table
from privopt.cli import app
from privopt.errors import DataUnavailable
from privopt.tables import TableError, places
from privopt.tables.places import Place, StoredFile, located, shown_name
from privopt.tables.table import EncodedRecords

SPENT = ("--epsilon", "1", "--delta", "1e-5", "--solver", "gradient-descent")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("a folder")
    write_forms(path)
    (path / "s.json").write_text(json.dumps(SCHEMA))
    return path


@pytest.fixture
def store(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Generator[ObjectStore]:
    with object_store(folder, monkeypatch) as made:
        yield made


def run(*words: Any) -> Any:
    return CliRunner().invoke(app, [str(word) for word in words])


def fitted(where: Any, **placed: Any) -> Any:
    model = LogisticRegression(epsilon=1.0, delta=1e-5, solver="gradient-descent", random_state=0)
    return model.fit(Table.open(where, SCHEMA, **placed))


@pytest.mark.at_once("files", "streamed")
@pytest.mark.parametrize(
    ("where", "placed"),
    [
        pytest.param("s3://bucket/t/four", {}, id="a folder"),
        pytest.param("s3://bucket/t/four/p*.parquet", {}, id="files"),
        pytest.param("s3://bucket/t/one.csv.gz", {"engine": "stream", "memory": "1MB"}, id="streamed"),
    ],
)
def test_a_table_in_a_store_gives_the_model_of_the_same_table_here(
    where: str, placed: dict[str, Any], folder: Path, store: ObjectStore
) -> None:
    assert fitted(where, **placed).coef_.tobytes() == fitted(folder / "four").coef_.tobytes()
    assert {line.split()[0] for line in store.asked} == {"GET", "HEAD"}  # nothing was written


@pytest.mark.audit
def test_a_uri_of_files_gives_the_model_of_the_same_table_here(folder: Path) -> None:
    uri = (folder / "four").as_uri()
    assert "%20" in uri
    assert fitted(f"{uri}/*.parquet").coef_.tobytes() == fitted(folder / "four").coef_.tobytes()


@pytest.mark.parametrize("end", ["is gone", "has changed"])
def test_an_object_that_is_another_by_now_ends_the_fit(
    end: str, folder: Path, store: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has the size and the time of the one that was opened, and another tag."""
    blocks = EncodedRecords.blocks

    def replaced(self: Any, start: int, stop: int) -> Any:
        name = "bucket/t/one.csv"
        content = store.objects.pop(name, b"")
        if end == "has changed":
            store.objects[name] = content.replace(b'"f"', b'"m"')
        return blocks(self, start, stop)

    monkeypatch.setattr(EncodedRecords, "blocks", replaced)
    account = Account(9.0, 1e-3)
    model = LogisticRegression(epsilon=1.0, delta=1e-6, account=account)
    with pytest.raises(DataUnavailable, match=f"one.csv' {end} since the table was opened"):
        model.fit(Table.open("s3://bucket/t/one.csv", SCHEMA))
    assert not account.entries
    store.objects["bucket/t/one.csv"] = (folder / "one.csv").read_bytes()
    outcome = run(
        "fit", "s3://bucket/t/one.csv", "--schema", folder / "s.json", *SPENT, "--output", tmp_path / "m"
    )
    assert outcome.exit_code == 3
    assert f"the file 's3://bucket/t/one.csv' {end}" in outcome.output
    assert "Nothing was spent" in outcome.output
    assert not (tmp_path / "m").exists()


def addressed(store: ObjectStore, path: str, *, user: str = "") -> str:
    """A URI that says by itself where its store is and, if it does, who asks."""
    query = urllib.parse.urlencode({"endpoint_override": store.url, "scheme": "http", "region": "us-east-1"})
    return f"s3://{user}bucket/{path}?{query}"


REFUSED = {
    "s3://no-bucket/one.csv": "There is no table 's3://no-bucket/one.csv', or you have no access",
    "s3://bucket/t/no.csv": "There is no table 's3://bucket/t/no.csv', or you have no access",
    "s3://bucket/t/*.tsv.gz": "No table matches",
    "s3://somebody:wr0ng-s3cret@bucket/t/one.csv": "'s3://bucket/t/one.csv' cannot be reached: .* your access",
    "s3://somebody:wr0ng-s3cret@bucket/t/*.csv": "'bucket/t' cannot be listed: look at your access",
    "s3://somebody:wr0ng-s3cret/x@bucket/t/one.csv": "The store of 's3://bucket/t/one.csv' cannot be opened",
    "s3://somebody:wr0ng-s3cret?y@bucket/t/one.csv": "'s3://bucket/t/one.csv'",
    "gs://somebody:wr0ng-s3cret@[bucket/t/one.csv": r"'gs://\[bucket/t/one.csv'",
}


@pytest.mark.parametrize("uri", REFUSED)
def test_what_a_store_does_not_give_is_refused_in_a_sentence(uri: str, store: ObjectStore) -> None:
    with pytest.raises(TableError, match=REFUSED[uri]) as refused:
        located(uri)
    assert "s3cret" not in str(refused.value)
    assert refused.value.__cause__ is None
    assert refused.value.__suppress_context__ or refused.value.__context__ is None


def test_wrong_keys_of_the_environment_are_refused(
    store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIAOFNOBODY")
    with pytest.raises(
        TableError, match=r"'s3://bucket/t/one.csv' cannot be reached: .* your access"
    ) as refused:
        located("s3://bucket/t/one.csv")
    assert "NOBODY" not in str(refused.value)


def test_a_secret_of_a_uri_stands_nowhere(
    folder: Path, store: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.delenv("AWS_ENDPOINT_URL")
    user = f"{KEY}:{urllib.parse.quote(SECRET, safe='')}@"
    where = addressed(store, "t/one.parquet", user=user)
    common = ("--schema", folder / "s.json", *SPENT, "--solver", "gradient-descent")
    outcomes = [
        run(
            "account",
            "create",
            tmp_path / "a.sqlite",
            "--data-set",
            "toy",
            "--epsilon",
            "9",
            "--delta",
            "1e-3",
        ),
        run(
            "fit",
            where,
            *common,
            "--account",
            tmp_path / "a.sqlite",
            "--resume",
            tmp_path / "r",
            "--output",
            tmp_path / "m",
        ),
        run("predict", tmp_path / "m", where, "--output", tmp_path / "p.parquet"),
        run("plan", where, *common),
        run("report", tmp_path / "m"),
        run("verify", tmp_path / "m"),
    ]
    assert [outcome.exit_code for outcome in outcomes] == [0] * 6, [outcome.output for outcome in outcomes]
    store.objects["bucket/t/none.csv"] = b"age,sex,who,ill\n"
    few = run("fit", addressed(store, "t/none.csv", user=user), *common, "--output", tmp_path / "n")
    assert few.exit_code == 2
    assert "the table 's3://bucket/t/none.csv' has 0 records" in few.output
    kept = [file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()]
    assert len(kept) > 5
    told = [outcome.output.encode() for outcome in (*outcomes, few)]
    for secret in (KEY, SECRET, urllib.parse.quote(SECRET, safe="")):
        assert not [text for text in (*kept, *told) if secret.encode() in text]
    assert SECRET not in repr(Table.open(where, SCHEMA)) + repr(located(where))


@pytest.mark.parametrize(
    ("uri", "shown"),
    [
        ("s3://bucket/t/a@b.csv", "s3://bucket/t/a@b.csv"),
        ("s3://key:se/cr@et@bucket/t.csv", "s3://bucket/t.csv"),
        ("s3://key:1/c@bucket/t.csv", "s3://bucket/t.csv"),
        ("s3://key:se?cr#et@bucket/t.csv", "s3://bucket/t.csv"),
        ("S3://key@bucket/a@b.csv?c=d@e", "S3://bucket/a@b.csv"),
        ("https://u:p@host:8443/t.csv?X-Amz-Signature=5", "https://host:8443/t.csv"),
        ("https://host/t.csv?user=a@b&sig=5?6", "https://host/t.csv"),
        (
            "abfss://box@account.dfs.core.windows.net/t.parquet?sas=5",
            "abfss://account.dfs.core.windows.net/t.parquet",
        ),
        ("what/is?[no]-uri@:5.csv", "what/is?[no]-uri@:5.csv"),
        ("/my/12:30/me@home.csv", "/my/12:30/me@home.csv"),
        ("https://host/t.csv#token=5", "https://host/t.csv"),
        ("s3://bucket/a#1.csv", "s3://bucket/a#1.csv"),
        ("s3://key:secret", "s3://key"),
        ("s3://key:se/cr+et", "s3://key"),
        (" s3://key:secret@bucket/t.csv", "...@bucket/t.csv"),
        ("s3:/key:secret@bucket/t.csv", "...@bucket/t.csv"),
        ("s3//key:secret@bucket/t.csv", "...@bucket/t.csv"),
        ("simplecache::s3://key:se@cret@bucket/t.csv", "...@bucket/t.csv"),
        ("filecache::https://host/t.csv?sig=5", "filecache::https://host/t.csv"),
    ],
)
def test_of_a_uri_no_password_and_no_query_is_shown(uri: str, shown: str) -> None:
    assert shown_name(uri) == shown


@pytest.mark.parametrize("slip", [" s3://", "s3:/", "s3//", "simplecache::s3://", "s3::"])
def test_what_is_nearly_a_uri_is_not_quoted_with_its_password(slip: str, folder: Path) -> None:
    for name in ("t.csv", "*.csv"):
        with pytest.raises(TableError, match=r"'\.\.\.@bucket/t/") as refused:
            located(f"{slip}somebody:s3cret@bucket/t/{name}")
        assert "s3cret" not in str(refused.value)
        outcome = run("plan", f"{slip}somebody:s3cret@bucket/t/{name}", "--schema", folder / "s.json", *SPENT)
        assert outcome.exit_code == 2
        assert "s3cret" not in outcome.output


def of_url(user: str = "", query: str = "", stamp: str = "") -> StoredFile:
    uri = f"https://{user}host/t.csv{query}"
    return StoredFile(uri, shown_name(uri), 5, stamp)


def test_no_password_enters_a_fingerprint_or_a_text_whatever_the_server_says() -> None:
    """One who guesses a password could try it on the digest, which a folder of `--resume` keeps."""

    def digest(*files: StoredFile) -> str:
        return Place(system=None, files=files).fingerprint()

    assert digest(of_url("me:s3cret@")) == digest(of_url())
    assert "s3cret" not in repr([of_url("me:s3cret@")])
    assert digest(of_url("me:s3cret@", "?day=1")) == digest(of_url("", "?day=1"))
    assert digest(of_url("", "?day=1")) != digest(of_url("", "?day=2"))
    assert digest(of_url("", "?day=1", "v1")) == digest(of_url("", "?day=2", "v1"))


def test_one_version_of_a_url_with_two_signatures_or_passwords_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else every record of it would count twice."""
    stamps = ["v1", "v1", "v1", "v2"]
    monkeypatch.setattr(places, "_opened", lambda where: (None, where, shown_name(where), ""))
    monkeypatch.setattr(places, "_kind", lambda *_: places.fs.FileType.File)
    monkeypatch.setattr(places, "version_of", lambda *_: (5, stamps.pop(0)))
    one, two = "https://host/t.csv?sig=1", "https://me:s3cret@host/t.csv?sig=2"
    with pytest.raises(TableError, match="One file stands under two names"):
        located([one, two])
    assert len(located([one, two]).files) == 2


ELSEWHERE = "s3://somebody:s3cret@bucket/x"


@pytest.mark.parametrize(
    "words",
    [
        ("fit", "one.csv", "--schema", "s.json", *SPENT, "--output", ELSEWHERE),
        ("fit", "one.csv", "--schema", "s.json", *SPENT, "--output", "m", "--resume", ELSEWHERE),
        ("plan", "one.csv", "--schema", ELSEWHERE, *SPENT),
        ("plan", "one.csv", "--schema", "s.json", *SPENT, "--engine", "stream", "--spool", ELSEWHERE),
        ("plan", "one.csv", "--schema", "s.json", *SPENT, "--account", ELSEWHERE),
        ("synthesize", "one.csv", "--schema", "s.json", *SPENT[:4], "--output", ELSEWHERE),
        ("predict", "m", "one.csv", "--output", ELSEWHERE),
        ("report", ELSEWHERE),
        ("verify", ELSEWHERE),
        ("account", "create", ELSEWHERE, "--data-set", "x", *SPENT[:4]),
        ("account", "show", ELSEWHERE),
        ("report", "m", ELSEWHERE),
    ],
    ids=lambda words: f"{words[0]} {words[-2]}",
)
def test_a_uri_for_a_place_of_this_machine_makes_no_folder_named_by_its_password(
    words: tuple[str, ...], folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("one.csv", "s.json"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    monkeypatch.chdir(tmp_path)
    outcome = run(*words)
    assert outcome.exit_code == 2
    assert "a URI was given for" in outcome.output or "s3://..." in outcome.output
    assert "s3cret" not in outcome.output
    assert sorted(file.name for file in tmp_path.iterdir()) == ["one.csv", "s.json"]
