"""What it costs to open a table of users in a spool, and to fit on it: JSON lines.

    python -m benchmarks.scale_users [--records 6000000] [--users 1500000] [--memory 50] [--keys int64 text]

Each line is `users`: how much more memory a process takes that opens such a table from Parquet than one that opens a
tiny one, without what `--memory` allows (`over_mb`), and likewise where both go on and fit (`fit_over_mb`);
microseconds of a core for each record while it is opened (`us_a_record`), and for each record and pass of the fit
(`us_a_pass`). Users' records are spread over the whole table. Files are written to the folder of temporary files, and
gone at the end.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.peak_memory import peak_memory_mb
from benchmarks.processes import lines_of
from benchmarks.results import rounded
from privopt import Budget, losses
from privopt.data.record_source import BLOCK_RECORDS, Description, RecordBlock, RecordSource
from privopt.engine.placement import Placement
from privopt.engine.streamed import open_streamed
from privopt.solve import minimize_on
from privopt.solvers.gradient_descent import GradientDescent
from privopt.tables.keys import block_keys

PEAK_LIMIT_MB = 150
_MB = 2**20
_COLUMNS = 8
_TINY = 2000
_STEPS = 10
_AT_ONCE = 2**17


class UserRecordsOfParquet(RecordSource):
    """Columns of float32 and a last one of users, from a Parquet file."""

    by_user = True

    def __init__(self, path: Path) -> None:
        self._path = path
        self.rows, self.width = pq.ParquetFile(path).metadata.num_rows, _COLUMNS

    def blocks(self, start: int, stop: int) -> Iterator[RecordBlock]:
        """See `RecordSource.blocks`; all of them."""
        assert (start, stop) == (0, self.rows)
        file = pq.ParquetFile(self._path, pre_buffer=False)  # which would hold the whole file
        for batch in file.iter_batches(BLOCK_RECORDS, use_threads=False):
            private_columns = [column.to_numpy() for column in batch.columns[:-1]]
            private_keys = block_keys(pa.Table.from_batches([batch]), ["user"])
            yield RecordBlock(np.stack(private_columns, axis=1), private_columns[0], private_keys)

    def fingerprint(self) -> str:
        """See `RecordSource.fingerprint`."""
        return self._path.name


def written(folder: Path, records: int, users: int, kind: str) -> Path:
    """A Parquet file of normal features and random users; the one that is there."""
    path = folder / f"{kind}-{records}.parquet"
    generator = np.random.default_rng(0)
    names = [*map(str, range(_COLUMNS)), "user"]
    key_type = pa.int64() if kind == "int64" else pa.string()
    schema = pa.schema([*((name, pa.float32()) for name in names[:-1]), ("user", key_type)])
    with pq.ParquetWriter(path, schema, compression="none", use_dictionary=False) as writer:
        for start in range(0, records, _AT_ONCE):
            count = min(_AT_ONCE, records - start)
            columns = list(generator.standard_normal((_COLUMNS, count), dtype=np.float32))
            private_users = generator.integers(0, users, count)
            keys = private_users if kind == "int64" else [f"user {user}" for user in private_users]
            writer.write_table(pa.table([*columns, keys], schema=schema))
    return path


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--records", type=int, default=6_000_000)
    parser.add_argument("--users", type=int, default=1_500_000)
    parser.add_argument("--memory", type=int, default=50, help="MB of the spool in memory")
    parser.add_argument("--keys", nargs="+", choices=("int64", "text"), default=["int64", "text"])
    parser.add_argument("--open", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.open:
        print(json.dumps(_opened(given.open, given.memory * _MB)))
        return
    with tempfile.TemporaryDirectory() as folder:
        for kind in given.keys:
            tiny, large = (
                next(
                    lines_of(
                        ["-m", "benchmarks.scale_users", "--open", str(path), "--memory", str(given.memory)]
                    )
                )
                for path in (
                    written(Path(folder), _TINY, _TINY // 4, kind),
                    written(Path(folder), given.records, given.users, kind),
                )
            )
            over = large["peak_mb"] - tiny["peak_mb"] - given.memory
            line = {"what": "users", "workers": 1, "keys": kind, "over_mb": over, "limit_mb": PEAK_LIMIT_MB}
            line["fit_over_mb"] = large["fit_peak_mb"] - tiny["fit_peak_mb"] - given.memory
            line |= {"memory_mb": given.memory, "us_a_record": 1e6 * large["seconds"] / given.records}
            line["us_a_pass"] = 1e6 * large["fit_seconds"] / given.records / _STEPS
            print(json.dumps(rounded(line | {"records": given.records, "users": large["users"]})), flush=True)


def _opened(path: Path, memory: int) -> dict[str, float]:
    """Open a table, and fit on it; the most memory that the process had, and its seconds of a core."""
    begun = time.process_time()
    about = Description(row_bound=1.0, target_bounds=(-1.0, 1.0))
    engine = open_streamed(UserRecordsOfParquet(path), about, Placement(memory=memory))
    opened, peak = time.process_time(), peak_memory_mb()
    minimize_on(engine, losses.squared, budget=Budget(1.0, 1e-6), solver=GradientDescent(steps=_STEPS))
    fitted = time.process_time()
    users = engine.public.n
    engine.close()
    return {
        "peak_mb": peak,
        "fit_peak_mb": peak_memory_mb(),
        "seconds": opened - begun,
        "fit_seconds": fitted - opened,
        "users": users,
    }


if __name__ == "__main__":
    main()
