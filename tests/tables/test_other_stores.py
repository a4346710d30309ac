"""Tables in stores that need packages besides ours: S3 as `moto` serves it, URLs and memory by fsspec, Delta, workers.

`pip install '.[dev,delta,http]' 'moto[server]>=5'` brings them all; without one its tests are left out.
"""

import json
import os
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Generator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tests.support.object_store import KEY, PASSWORD, SECRET, SIGNATURE, USER, ObjectStore, object_store
from tests.support.ray_clusters import two_nodes
from tests.tables.toy_tables import ROWS, SCHEMA, toy_table, write_forms

from privopt import LogisticRegression, Table
from privopt.errors import DataUnavailable
from privopt.tables import TableError
from privopt.tables.table import EncodedRecords

pytestmark = [
    pytest.mark.audit,
    # What boto3, moto and aiohttp leave open.
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"),
]


class Served(NamedTuple):
    """A bucket of a server of S3 that looks at keys.

    Attributes:
        client: of boto3, which may do everything.
        url: where the server listens.
    """

    client: Any
    url: str


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_forms(tmp_path)
    (tmp_path / "s.json").write_text(json.dumps(SCHEMA))
    return tmp_path


@pytest.fixture
def store(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Generator[ObjectStore]:
    with object_store(folder, monkeypatch) as made:
        yield made


@pytest.fixture
def served(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Generator[Served]:
    """The forms of the table in a bucket of moto's, and in the environment the keys of a user who may do everything."""
    boto3: Any = pytest.importorskip("boto3")
    server: Any = pytest.importorskip("moto.server").ThreadedMotoServer(port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    url = f"http://{host}:{port}"
    for name, value in {"AWS_ACCESS_KEY_ID": "first", "AWS_SECRET_ACCESS_KEY": "first"}.items():
        monkeypatch.setenv(name, value)
    for name, value in {"AWS_ENDPOINT_URL": url, "AWS_REGION": "us-east-1", "AWS_ALLOW_HTTP": "true"}.items():
        monkeypatch.setenv(name, value)
    try:
        asked(f"{url}/moto-api/reset-auth", "inf")  # until there is a user, nobody is asked for keys
        asked(f"{url}/moto-api/reset", "")
        people = boto3.client("iam", region_name="us-east-1")
        people.create_user(UserName="all")
        allowed = {
            "Version": "2012-10-17",
            "Statement": [{"Effect": "Allow", "Action": "*", "Resource": "*"}],
        }
        people.put_user_policy(UserName="all", PolicyName="all", PolicyDocument=json.dumps(allowed))
        keys = people.create_access_key(UserName="all")["AccessKey"]
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", keys["AccessKeyId"])
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", keys["SecretAccessKey"])
        client = boto3.client(
            "s3",
            region_name="us-east-1",
            aws_access_key_id=keys["AccessKeyId"],
            aws_secret_access_key=keys["SecretAccessKey"],
        )
        client.create_bucket(Bucket="bucket")
        for file in folder.rglob("*.*"):
            client.put_object(Bucket="bucket", Key=f"t/{file.relative_to(folder)}", Body=file.read_bytes())
        asked(f"{url}/moto-api/reset-auth", "0")
        yield Served(client, url)
    finally:
        server.stop()


def asked(url: str, content: str) -> None:
    request = urllib.request.Request(url, content.encode(), {"Content-Type": "text/plain"})
    with urllib.request.urlopen(request) as answer:
        answer.read()


def fitted(where: Any, **placed: Any) -> bytes:
    model = LogisticRegression(epsilon=1.0, delta=1e-5, solver="gradient-descent", random_state=0)
    return model.fit(Table.open(where, SCHEMA, **placed)).coef_.tobytes()


def command(*words: Any, environment: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "privopt", *map(str, words)]
    return subprocess.run(line, env=environment, capture_output=True, text=True, check=False)


def replaced(monkeypatch: pytest.MonkeyPatch, change: Any) -> None:
    """Have something happen to a file after it was opened and before it is read."""
    blocks = EncodedRecords.blocks

    def changed(self: Any, start: int, stop: int) -> Any:
        change()
        return blocks(self, start, stop)

    monkeypatch.setattr(EncodedRecords, "blocks", changed)


def test_moto_serves_the_table(served: Served, folder: Path, tmp_path: Path) -> None:
    here = fitted(folder / "four")
    where = "s3://bucket/t/four/*.parquet"
    assert fitted(where) == fitted("s3://bucket/t/four", engine="stream", memory="1MB") == here
    assert fitted(f"s3://bucket/t/one.csv.gz?endpoint_override={served.url[7:]}&scheme=http") == here
    typed = ["--schema", folder / "s.json", "--epsilon", 1, "--delta", "1e-5", "--engine", "stream"]
    done = command("fit", where, *typed, "--output", tmp_path / "m")
    assert done.returncode == 0, done.stderr
    done = command("predict", tmp_path / "m", where, "--output", tmp_path / "p.parquet")
    assert done.returncode == 0, done.stderr
    assert f"{ROWS} rows" in done.stdout


def test_moto_refuses_wrong_keys_and_what_is_not_there(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    for where in ("s3://none/t.csv", "s3://bucket/t/none.csv"):
        with pytest.raises(TableError, match="There is no table"):
            Table.open(where, SCHEMA)
    key = os.environ["AWS_ACCESS_KEY_ID"]
    for user in (f"{key}:wr0ng-s3cret@", "AKIAOFNOBODY:wr0ng-s3cret@"):
        with pytest.raises(TableError, match="cannot be reached: look at its name") as refused:
            Table.open(f"s3://{user}bucket/t/one.csv", SCHEMA)
        assert "s3cret" not in str(refused.value)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wr0ng-s3cret")
    with pytest.raises(TableError, match="cannot be reached: look at its name and at your access"):
        Table.open("s3://bucket/t/one.csv", SCHEMA)


def test_moto_knows_an_object_that_was_replaced(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    content = served.client.get_object(Bucket="bucket", Key="t/one.csv")["Body"].read()
    body = content.replace(b'"f"', b'"m"')
    replaced(monkeypatch, lambda: served.client.put_object(Bucket="bucket", Key="t/one.csv", Body=body))
    with pytest.raises(DataUnavailable, match=r"one.csv' has changed since the table was opened"):
        fitted("s3://bucket/t/one.csv")


@pytest.mark.parametrize("on", ["this machine", "S3"])
def test_a_delta_table_is_the_version_that_was_opened(
    on: str, folder: Path, tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    deltalake: Any = pytest.importorskip("deltalake")
    if on == "S3":
        request.getfixturevalue("served")
        monkeypatch.setenv("AWS_S3_ALLOW_UNSAFE_RENAME", "true")
    where = "s3://bucket/delta" if on == "S3" else str(tmp_path / "delta")
    table = toy_table()
    deltalake.write_deltalake(where, table.slice(0, 300))
    deltalake.write_deltalake(where, table.slice(300), mode="append")
    deltalake.DeltaTable(where).delete("ill = 0 and age > 50")
    opened = Table.open(where, SCHEMA)
    rows = opened.row_count()
    assert 0 < rows < ROWS
    deltalake.write_deltalake(where, table.slice(0, 50), mode="append")
    assert sum(block.private_features.shape[0] for block in opened.records().blocks(0, rows)) == rows
    assert Table.open(where, SCHEMA).row_count() == rows + 50
    assert len(fitted(where)) > 0
    old = deltalake.DeltaTable(where)
    old.optimize.compact()
    old.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
    with pytest.raises(DataUnavailable, match="is gone since the table was opened"):
        opened.records()
    assert Table.open(where, SCHEMA).row_count() == rows + 50


def test_a_delta_table_that_its_files_do_not_show_is_refused(tmp_path: Path) -> None:
    deltalake: Any = pytest.importorskip("deltalake")
    deltalake.write_deltalake(str(tmp_path / "parted"), toy_table(), partition_by=["sex"])
    with pytest.raises(TableError, match="keeps 'sex' in the names of its folders"):
        Table.open(tmp_path / "parted", SCHEMA).records()
    deltalake.write_deltalake(
        str(tmp_path / "marked"), toy_table(), configuration={"delta.enableDeletionVectors": "true"}
    )
    with pytest.raises(TableError, match="uses deletionVectors"):
        Table.open(tmp_path / "marked", SCHEMA)


def test_urls_with_a_signature_or_a_password_are_read_and_never_shown(
    store: ObjectStore, folder: Path, tmp_path: Path
) -> None:
    pytest.importorskip("fsspec")
    pytest.importorskip("aiohttp")
    host = store.url.removeprefix("http://")
    signed = [f"http://{host}/bucket/t/four/p{k}.parquet?sig={SIGNATURE}" for k in range(4)]
    named = f"http://{USER}:{PASSWORD}@{host}/bucket/t/one.csv.gz"
    here = fitted(folder / "four")
    assert fitted(signed) == fitted(named) == here
    typed = ["--schema", folder / "s.json", "--epsilon", 1, "--delta", "1e-5", "--resume", tmp_path / "r"]
    outcomes = [
        command("fit", named, *typed, "--output", tmp_path / "m"),
        command("predict", tmp_path / "m", *signed, "--output", tmp_path / "p.parquet"),
        command("predict", tmp_path / "m", f"{signed[0]}0", "--output", tmp_path / "q.parquet"),
        command("predict", tmp_path / "m", named.replace("one", "no"), "--output", tmp_path / "q.parquet"),
        command("fit", named.replace("csv.gz", "tsv"), *typed, "--output", tmp_path / "q"),
    ]
    assert [outcome.returncode for outcome in outcomes] == [0, 0, 2, 2, 2], [one.stderr for one in outcomes]
    assert f"There is no table 'http://{host}/bucket/t/four/p0.parquet'" in outcomes[2].stderr
    told = "".join(outcome.stdout + outcome.stderr for outcome in outcomes).encode()
    written = [file for place in ("m", "r") for file in (tmp_path / place).iterdir()]
    assert len(written) > 4
    for secret in (PASSWORD, SIGNATURE):
        assert not [one for one in (told, *(file.read_bytes() for file in written)) if secret.encode() in one]


def test_a_url_that_leads_to_something_else_by_now_ends_the_run(
    store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("fsspec")
    pytest.importorskip("aiohttp")
    name = "bucket/t/one.csv"
    replaced(
        monkeypatch,
        lambda: store.objects.update({name: store.objects[name].replace(b'"f"', b'"m"')}),
    )
    with pytest.raises(DataUnavailable, match=r"one.csv' has changed since the table was opened") as refused:
        fitted(f"{store.url}/{name}?sig={SIGNATURE}")
    assert SIGNATURE not in str(refused.value)


def test_what_fsspec_keeps_in_memory_is_a_table(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fsspec: Any = pytest.importorskip("fsspec")
    memory = fsspec.filesystem("memory")
    for k in range(4):
        memory.pipe(f"/toy/p{k}.parquet", (folder / "four" / f"p{k}.parquet").read_bytes())
    assert fitted("memory://toy") == fitted("memory://toy/*.parquet") == fitted(folder / "four")
    replaced(monkeypatch, lambda: memory.exists("/toy/p3.parquet") and memory.rm("/toy/p3.parquet"))
    with pytest.raises(DataUnavailable, match=r"'memory:///toy/p3.parquet' is gone"):
        fitted("memory://toy")


def test_workers_of_a_cluster_of_ours_have_the_keys_of_the_environment(
    store: ObjectStore, folder: Path
) -> None:
    pytest.importorskip("ray")
    assert fitted("s3://bucket/t/four", engine="ray", workers=2) == fitted(folder / "four")


def test_workers_of_another_cluster_need_keys_of_their_own(
    store: ObjectStore, folder: Path, tmp_path: Path
) -> None:
    """Keys of a URI travel with the table; those of the driver's environment do not."""
    pytest.importorskip("ray")
    typed = ["--schema", folder / "s.json", "--epsilon", 1, "--delta", "1e-5", "--solver", "gradient-descent"]
    mute = {"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": ""}
    with (
        tempfile.TemporaryDirectory(prefix="pr-", dir="/tmp") as short,  # sockets lie in it
        two_nodes(Path(short) / "c", tokens=True, more=mute) as cluster,
    ):
        environment = {**cluster.environment, **store.environment}
        placed = ["--engine", "ray", "--address", cluster.address, "--workers", 2]
        refused = command(
            "fit", "s3://bucket/t/four", *typed, *placed, "--output", tmp_path / "m", environment=environment
        )
        assert refused.returncode == 3, refused.stderr
        assert (
            "a worker failed at part 0 of the records (DataUnavailable: each machine reads" in refused.stderr
        )
        assert "Nothing was spent" in refused.stdout
        secret = SECRET.replace("/", "%2F").replace("+", "%2B")
        uri = f"s3://{KEY}:{secret}@bucket/t/four?endpoint_override={store.url[7:]}&scheme=http&region=us-east-1"
        done = command("fit", uri, *typed, *placed, "--output", tmp_path / "m", environment=environment)
        assert done.returncode == 0, done.stderr
        for text in (refused.stdout, refused.stderr, done.stdout, done.stderr):
            assert SECRET not in text
            assert secret not in text
            assert KEY not in text
