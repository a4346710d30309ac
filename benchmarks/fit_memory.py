"""How much memory `privopt fit` of a Parquet table takes beyond what the program itself takes.

`python -m benchmarks.fit_memory [ROWS [COLUMNS [ACTIVE]]]` writes a made-up table of float64 columns, or one of sets of
ACTIVE members out of COLUMNS, and fits a logistic model to it by the command line, in a process of its own. Printed is
the peak of that process's memory, less that of a fit to a thousand rows, as a multiple of the features' size: 4 bytes
each, and of sets 8 a member.
"""

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

ROWS, COLUMNS, FEW, ROW_GROUP = 1_000_000, 100, 1_000, 2**16
SCHEMA_KIND = {"kind": "num", "low": -4.0, "high": 4.0}


def write_table(
    folder: Path, rows: int, columns: int, active: int = 0, *, ordered: bool = True
) -> tuple[Path, Path]:
    """The table, written in parts so that this process stays small, and its schema; sets may be in no order."""
    names = ["s"] if active else [f"x{number}" for number in range(columns)]
    table, schema = folder / "table.parquet", folder / "schema.json"
    kind = pa.list_(pa.int32()) if active else pa.float64()
    fields = pa.schema([*((name, kind) for name in names), ("y", pa.int64())])
    rng = np.random.default_rng(0)
    with pq.ParquetWriter(table, fields) as writer:
        for start in range(0, rows, ROW_GROUP):
            part = rng.normal(size=(max(2, len(names)), min(ROW_GROUP, rows - start)))
            target = (part[0] + part[1] + rng.normal(size=part.shape[1]) > 0).astype(np.int64)
            values = [_sets(rng, part.shape[1], columns, active, ordered)] if active else list(part)
            writer.write_table(pa.table([*values, target], schema=fields))
    about = {"kind": "cat", "levels": [0, 1]}
    described = {"kind": "set", "size": columns, "max_active": active} if active else SCHEMA_KIND
    told = {"target": "y", "columns": {**dict.fromkeys(names, described), "y": about}}
    schema.write_text(json.dumps(told), encoding="utf-8")
    return table, schema


def _sets(rng: np.random.Generator, rows: int, columns: int, active: int, ordered: bool) -> pa.Array:
    """Sets of so many members each."""
    step = columns // active
    members = rng.integers(0, step, (rows, active)) + np.arange(active) * step
    members = members if ordered else rng.permuted(members, axis=1)
    ends = pa.array(np.arange(rows + 1, dtype=np.int32) * active)
    return pa.ListArray.from_arrays(ends, pa.array(members.astype(np.int32).ravel()))


def peak_bytes(arguments: Sequence[str]) -> int:
    """The largest resident memory of `privopt` with these arguments, in a process of its own.

    Raises:
        CalledProcessError: it failed.
    """
    program = (
        "import resource, subprocess, sys; "
        "subprocess.run([sys.executable, '-m', 'privopt', *sys.argv[1:]], check=True, stdout=subprocess.DEVNULL); "
        "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)"
    )
    found = subprocess.run(
        [sys.executable, "-c", program, *arguments], check=True, capture_output=True, text=True
    )
    return int(found.stdout.split()[-1]) * (1 if sys.platform == "darwin" else 1024)


def fit_bytes(rows: int, columns: int, active: int = 0) -> int:
    """The largest memory of a fit to so many rows."""
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        table, schema = write_table(folder, rows, columns, active)
        fit = ["fit", str(table), "--schema", str(schema), "--output", str(folder / "model")]
        return peak_bytes([*fit, "--epsilon", "1", "--delta", "1e-8"])


def main(arguments: Sequence[str]) -> None:
    """Measure and print."""
    rows, columns, active = (int(given) for given in (*arguments, *(ROWS, COLUMNS, 0)[len(arguments) :]))
    of_program, of_fit = (fit_bytes(some, columns, active) for some in (FEW, rows))
    size = 8 * rows * active if active else 4 * rows * columns
    print(
        f"{rows:,} x {columns}{f' of which {active} are not zero' * (active > 0)}: {(of_fit - of_program) / size:.2f} "
        f"times the size of the features ({size / 2**20:.0f} MB), beyond the {of_program / 2**20:.0f} MB of a fit to "
        f"{FEW:,} rows"
    )


if __name__ == "__main__":
    main(sys.argv[1:])
