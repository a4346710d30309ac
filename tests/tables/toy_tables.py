"""One small table in every form that a table in files may have."""

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as arrow_csv
import pyarrow.parquet as pq

ROWS = 600
SCHEMA = {
    "columns": {
        "age": {"kind": "num", "low": 0, "high": 100},
        "sex": {"kind": "cat", "levels": ["f", "m"]},
        "who": {"kind": "id"},
        "ill": {"kind": "flag"},
    },
    "target": "ill",
    "user": "who",
}
FORMS = (
    "one.parquet",
    "four",
    "four/*.parquet",
    "deep/**/*.parquet",
    "one.csv",
    "one.csv.gz",
    "one.tsv",
    "texts",
)


def toy_table() -> Any:
    """600 records of 90 users, one of whom has no key; a text with a quote, a comma and an end of a line in it."""
    rng = np.random.default_rng(0)
    sex = rng.choice(["f", "m", 'n"o,\nt', ""], ROWS)
    who = [None if key == 7 else f"u{key}" for key in rng.integers(0, 90, ROWS)]
    return pa.table(
        {
            "age": rng.uniform(-5, 105, ROWS),
            "sex": pa.array(sex),
            "who": pa.array(who),
            "ill": pa.array(rng.integers(0, 2, ROWS)),
        }
    )


def write_forms(folder: Path) -> None:
    """Write the table in all `FORMS`."""
    table = toy_table()
    pq.write_table(table, folder / "one.parquet", row_group_size=110)
    for name in ("four", "deep/a/z", "texts"):
        (folder / name).mkdir(parents=True)
    for k in range(4):
        part = table.slice(150 * k, 150)
        pq.write_table(part, folder / "four" / f"p{k}.parquet", row_group_size=37)
        pq.write_table(part, folder / ("deep/a" if k < 2 else "deep/a/z") / f"p{k}.parquet")
        arrow_csv.write_csv(part.select(["ill", "who", "sex", "age"]), folder / "texts" / f"p{k}.csv")
    (folder / "four" / "_SUCCESS").write_text("")
    arrow_csv.write_csv(table, folder / "one.csv")
    (folder / "one.csv.gz").write_bytes(gzip.compress((folder / "one.csv").read_bytes()))
    arrow_csv.write_csv(table, folder / "one.tsv", arrow_csv.WriteOptions(delimiter="\t"))
