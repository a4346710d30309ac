"""A child process that is given absurd files and command lines within limits of memory and time, and says what it did.

Run as `python -m tests.support.odd_inputs.absurd FOLDER [full|some]`: it makes the files in FOLDER, runs every command
line in one process, and writes a JSON list: name, exit code, what went to stderr, seconds of CPU, and what new files
there are. What is unpacked may grow to 64 MiB, or with `full` as far as for users; with `some` every fourth line is
run.
"""

import contextlib
import gzip
import io
import json
import os
import resource
import struct
import sys
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ALWAYS = ("warm", "opened", "paid: a table", "spent")
MOST_MEMORY = 3 * 2**30  # bytes of addresses beyond what the imports took
BUDGET = ("--target", "y", "--epsilon", "1", "--delta", "1e-6")
FLAG = {"kind": "flag"}
GOOD: dict[str, Any] = {"target": "y", "columns": {"a": {"kind": "num", "low": 0, "high": 1}, "y": FLAG}}


def schemas(*, full: bool) -> dict[str, bytes]:
    """Absurd schemas by name."""

    def described(**columns: Any) -> bytes:
        return json.dumps({"columns": {**columns, "y": FLAG}}).encode()

    return {
        "empty": b"",
        "nested 100,000 deep": b'{"columns":' * 100_000,
        "a number of 100,000 digits": b'{"n": ' + b"9" * 100_000 + b', "columns": {"y": {"kind": "flag"}}}',
        "a bound of 400 digits": b'{"columns": {"a": {"kind": "num", "low": 0, "high": '
        + b"9" * 400
        + b"}}}",
        "a bound that is no number": b'{"columns": {"a": {"kind": "num", "low": 0, "high": NaN}}}',
        "a column twice": b'{"columns": {"y": {"kind": "flag"}, "y": {"kind": "flag"}}}',
        "a kind that is a list": described(a={"kind": [1]}),
        "a level twice among 100,000": described(
            a={"kind": "cat", "levels": [*map(str, range(100_000)), "7"]}
        ),
        **({"100,001 columns": described(**{f"c{at}": FLAG for at in range(100_001)})} if full else {}),
        "lists of 10^15 numbers": described(a={"kind": "pixels", "size": 10**15, "low": 0, "high": 1}),
        "sets of 10^30 members": described(a={"kind": "set", "size": 10**30}),
        "half of a pair of surrogates": b'{"columns": {"a\\ud800": {"kind": "flag"}, "y": {"kind": "flag"}}}',
        "a megabyte where a column should be": described(a=["x" * 2**20]),
        "escapes": described(a={"kind": "\x1b[2J\x07\u202ered\u200b"}),
        "packed": gzip.compress(json.dumps(GOOD).encode()),
    }


def projects() -> dict[str, str]:
    """Absurd project files by name."""
    return {
        "nested lists": "a=" + "[" * 100_000,
        "nested tables": "a=" + "{a=" * 20_000,
        "a number of 100,000 digits": "a=" + "9" * 100_000,
        "two megabytes": "#" + "x" * 2**21,
        "a name with a zero byte": 'account="\\u0000"',
        "escapes in a list": 'account=["\\u001b[31m"]',
    }


def headers() -> dict[str, bytes]:
    """Absurd safetensors files by name."""

    def packed(header: Any, data: bytes = b"\0" * 16) -> bytes:
        text = json.dumps(header).encode()
        return struct.pack("<Q", len(text)) + text + data

    entry = {"dtype": "F64", "shape": [2], "data_offsets": [0, 16]}
    return {
        "empty": b"",
        "a header of 2^63 bytes": struct.pack("<Q", 2**63) + b"{}",
        "no JSON": struct.pack("<Q", 8) + b"\xff" * 8,
        "nested deeply": struct.pack("<Q", 200_000) + b"[" * 200_000,
        "overlapping": packed({"coef": entry, "intercept": {**entry, "shape": [1], "data_offsets": [8, 16]}}),
        "beyond the end": packed({"coef": {**entry, "shape": [2000], "data_offsets": [0, 16_000]}}),
        "a hole": packed({"coef": {**entry, "shape": [1], "data_offsets": [8, 16]}}),
        "a shape of 2^60": packed({"coef": {**entry, "shape": [2**30, 2**30]}}),
        "a path for a name": packed({"../../coef": entry}),
    }


def tables(folder: Path, *, full: bool) -> Iterator[tuple[str, str]]:
    """Absurd tables: names and files. They are sparse or packed, and quickly written."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    def written(name: str, content: bytes) -> str:
        (folder / name).write_bytes(content)
        return name

    (folder / "folder.csv").mkdir()
    yield "a folder", "folder.csv"
    os.mkfifo(folder / "pipe.csv")
    yield "a pipe", "pipe.csv"
    (folder / "device.csv").symlink_to("/dev/zero")
    yield "a device", "device.csv"
    with (folder / "line.csv").open("wb") as file:
        file.write(b"a,y\n")
        file.truncate(2**30)
    yield "one line of a gigabyte", "line.csv"
    with (folder / "header.csv").open("wb") as file:
        file.truncate(2**30)
    yield "a header of a gigabyte", "header.csv"
    yield (
        "a million columns",
        written("wide.csv", b",".join(b"c%d" % place for place in range(10**6)) + b"\n"),
    )
    part = gzip.compress(b"0.5,1\n" * 2**20, 9)
    yield "a gzip bomb", written("bomb.csv.gz", gzip.compress(b"a,y\n") + part * (340 if full else 20))
    yield "a gzip file cut short", written("cut.csv.gz", gzip.compress(b"a,y\n" + b"1,0\n" * 999)[:-9])
    yield "Parquet of nothing", written("junk.parquet", b"PAR1" + b"\xff" * 64 + b"PAR1")
    many = pa.table({"a": pa.array([0.5]).take(pa.array([0] * 10**6)), "y": pa.array([True] * 10**6)})
    with pq.ParquetWriter(folder / "runs.parquet", many.schema) as writer:
        for _ in range(150 if full else 12):
            writer.write_table(many)
    yield "Parquet with many equal numbers", "runs.parquet"


def main(folder: Path, *, full: bool, every: int) -> None:
    """Run everything; see above."""
    from privopt.cli import app
    from privopt.tables import text_stream

    if not full:
        text_stream.MOST_FREE = 2**26
    os.chdir(folder)
    (folder / "good.json").write_text(json.dumps(GOOD))
    (folder / "good.csv").write_text("a,y\n" + "0.5,1\n0.2,0\n" * 50)
    said: list[dict[str, Any]] = []

    def run(name: str, *arguments: str) -> None:
        if name not in ALWAYS and zlib.crc32(name.encode()) % every:
            return
        before, begun = set(folder.rglob("*")), time.process_time()
        out, complaint, code = io.StringIO(), io.StringIO(), None
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(complaint):
            try:
                app(list(arguments))
            except SystemExit as left:
                code = left.code
        said.append(
            {
                "name": name,
                "code": code,
                "said": complaint.getvalue(),
                "out": out.getvalue(),
                "seconds": time.process_time() - begun,
                "new": sorted(str(path) for path in set(folder.rglob("*")) - before),
            }
        )

    run("warm", "plan", "--schema", "absent.json", *BUDGET, "--n", "100")
    taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (taken + MOST_MEMORY, taken + MOST_MEMORY))
    for name, content in schemas(full=full).items():
        (folder / "schema.json").write_bytes(content)
        run(f"schema: {name}", "plan", "--schema", "schema.json", *BUDGET, "--n", "100")
    (folder / "schema.json").unlink()
    os.mkfifo(folder / "schema.json")
    for name, path in {"a pipe": "schema.json", "a device": "/dev/zero", "a folder": "."}.items():
        run(f"schema: {name}", "plan", "--schema", path, *BUDGET, "--n", "100")
    for name, file in tables(folder, full=full):
        run(f"table: {name}", "fit", file, "--schema", "good.json", *BUDGET, "--output", "model")
    (folder / "privopt.toml").touch()
    for name, text in projects().items():
        (folder / "privopt.toml").write_text(text)
        run(f"project: {name}", "plan", "--schema", "good.json", *BUDGET, "--n", "100")
    (folder / "privopt.toml").unlink()
    os.mkfifo(folder / "privopt.toml")
    run("project: a pipe", "plan", "--schema", "good.json", *BUDGET, "--n", "100")
    (folder / "privopt.toml").unlink()
    accounts(folder, run)
    models(folder, run)
    arguments = {
        "n of 400 digits": ("--n", "1" + "0" * 400),
        "n of 100,000 digits": ("--n", "9" * 100_000),
        "epsilon of 1e308": ("--n", "100", "--epsilon", "1e308"),
        "epsilon that is no number": ("--n", "100", "--epsilon", "nan"),
        "a solver with escapes": ("--n", "100", "--solver", "\x1b[2J\u202e"),
        "a target that is no text": ("--n", "100", "--target", os.fsdecode(b"\xff")),
        "a record cap of 400 digits": ("--n", "100", "--group", "a", "--max-records", "1" + "0" * 400),
        "a negative seed": ("--n", "100", "--random-state", "-1"),
    }
    for name, more in arguments.items():
        run(f"argument: {name}", "plan", "--schema", "good.json", *BUDGET, *more)
    run("argument: a command with escapes", "\x1b[31mfit")
    rows = ("--rows", "1" + "0" * 15, "--output", "rows.parquet")
    run("argument: 10^15 rows", "synthesize", "good.csv", "--schema", "good.json", *BUDGET[2:], *rows)
    (folder / "said.json").write_text(json.dumps(said))


def accounts(folder: Path, run: Any) -> None:
    """Files that are no accounts, and counters that are none."""
    os.mkfifo(folder / "pipe.sqlite")
    (folder / "junk.sqlite").write_bytes(b"SQLite format 3\0" + b"\xff" * 5000)
    with (folder / "large.sqlite").open("wb") as file:
        file.truncate(2**30 + 1)
    for file in ("pipe.sqlite", "junk.sqlite", "large.sqlite", "/dev/zero", "."):
        run(f"account: {file}", "account", "show", file)
    sizes = ("--epsilon", "1", "--delta", "1e-6")
    run("account: escapes", "account", "create", "new.sqlite", "--data-set", "\x1b[31mred", *sizes)
    run("opened", "account", "create", "budget.sqlite", "--data-set", "all", *sizes)
    counter = folder / "budget.sqlite.counter"
    kept = counter.read_bytes()
    for name, content in {
        "nested": b"[" * 100_000,
        "digits": b'{"account": "x", "payments": ' + b"9" * 100_000 + b', "hash": "y"}',
        "another key": b'{"account": "x", "payments": 1, "hash": "y", "\\u001b": 1}',
    }.items():
        counter.write_bytes(content)
        run(f"account: a counter, {name}", "account", "show", "budget.sqlite")
    counter.unlink()
    os.mkfifo(counter)
    run("account: a counter, a pipe", "account", "show", "budget.sqlite")
    counter.unlink()
    counter.write_bytes(kept)
    account = ("--account", "budget.sqlite")
    run(
        "paid: a table",
        "fit",
        "junk.parquet",
        "--schema",
        "good.json",
        *BUDGET,
        "--output",
        "model",
        *account,
    )
    run("spent", "account", "export", "budget.sqlite")


def models(folder: Path, run: Any) -> None:
    """Model directories, asked for a prediction, a report and a verdict."""
    import hashlib

    model = folder / "model-of-others"
    model.mkdir()

    def ask(name: str) -> None:
        run(f"model: {name}, predict", "predict", model.name, "good.csv", "--output", "p.parquet")
        run(f"model: {name}, verify", "verify", model.name)

    for name, content in headers().items():
        (model / "model.safetensors").write_bytes(content)
        document = {"format": "privopt-model", "format_version": 1, "document": {"report": {}, "plan": {}}}
        document["arrays_sha256"] = hashlib.sha256(content).hexdigest()
        (model / "model.json").write_text(json.dumps(document))
        ask(name)
    (model / "model.json").write_bytes(b'{"a":' * 100_000)
    ask("deep JSON")
    (model / "model.json").unlink()
    (model / "model.json").symlink_to("/etc/passwd")
    ask("a link")
    (model / "model.json").unlink()
    os.mkfifo(model / "model.json")
    ask("a pipe")


if __name__ == "__main__":
    main(Path(sys.argv[1]), full="full" in sys.argv, every=4 if "some" in sys.argv else 1)
