"""The streamed engine against memory and against the disk, and what reading into its spool costs."""

import argparse
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import csv

from benchmarks.fit_memory import write_table
from benchmarks.peak_memory import peak_memory_mb
from benchmarks.processes import lines_of
from benchmarks.scale_frame import Line, Size, in_turns, line
from privopt import Table
from privopt.data.read_units import read_units
from privopt.data.record_source import BLOCK_RECORDS, Description, RecordBlock, RecordSource
from privopt.engine.in_process import InProcessEngine
from privopt.engine.placement import Placement
from privopt.engine.protocol import Engine
from privopt.engine.streamed import StreamedEngine, open_streamed
from privopt.ledger.amounts import Budget
from privopt.problems import losses
from privopt.solve import minimize
from privopt.solvers.continuous_spider import ContinuousSpider

STREAM_LIMIT, COLD_LEAST, READING_LEAST = 1.3, 0.8, 0.15
PEAK_LIMIT_MB = 150
SHARE = 4  # of the spool, one part in so many may be in memory
_MB = 2**20
_TINY_ROWS = 2000
SET_ROWS = 200_000
LEVELS = 40  # of a column whose levels are encoded as CSR


class ParquetRecords(RecordSource):
    """Columns of float32 and a last one of labels, from a Parquet file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        found = pq.ParquetFile(path).metadata
        self.rows, self.width = found.num_rows, found.num_columns - 1

    def blocks(self, start: int, stop: int) -> Iterator[RecordBlock]:
        """See `RecordSource.blocks`; all of them."""
        assert (start, stop) == (0, self.rows)
        for batch in pq.ParquetFile(self._path).iter_batches(BLOCK_RECORDS, use_threads=False):
            private_columns = [column.to_numpy() for column in batch.columns]
            yield RecordBlock(np.stack(private_columns[:-1], axis=1), private_columns[-1], None)

    def fingerprint(self) -> str:
        """See `RecordSource.fingerprint`."""
        return self._path.name


def warm_passes(size: Size) -> Iterator[Line]:
    """`stream`: a pass over a spool in the page cache, of which a quarter may be in memory, over one in memory."""
    query = size.query()
    streamed, memory = both(size)
    expected, found = memory.clipped_sum(query), streamed.clipped_sum(query)
    passes = {"memory": lambda: memory.clipped_sum(query), "stream": lambda: streamed.clipped_sum(query)}
    times = in_turns(passes, size.repeats)
    yield line(
        "stream",
        1,
        times["stream"] / times["memory"],
        times["stream"] - times["memory"],
        at_most={"ratio": STREAM_LIMIT},
        same_bits=expected.tobytes() == found.tobytes(),
        rows=size.rows,
    )
    streamed.close()


def cold_passes(size: Size) -> Iterator[Line]:
    """`cold`: the time of a plain read of the spool from the disk, over that of a pass; beyond 1 a pass is faster."""
    query = size.query()
    streamed = opened(size)
    descriptor = max(_spools(), key=lambda one: os.fstat(one).st_size)
    whole = os.fstat(descriptor).st_size

    def out_of_memory() -> None:
        room: Any = streamed.units.room
        room.let_go()
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)

    def plain() -> None:
        buffer, done = bytearray(4 * _MB), 0
        while done < whole:
            done += os.preadv(descriptor, [buffer], done)

    passes: dict[str, Callable[[], Any]] = {"plain": plain, "pass": lambda: streamed.clipped_sum(query)}
    times = in_turns(passes, max(3, size.repeats // 2), before=out_of_memory)
    speed = whole / times["pass"] / 1e9
    ratio, more = times["plain"] / times["pass"], times["pass"] - times["plain"]
    yield line("cold", 1, ratio, more, at_least={"ratio": COLD_LEAST}, gb_a_second=speed, rows=size.rows)
    streamed.close()


def reading(size: Size) -> Iterator[Line]:
    """`fill`: float32 gigabytes a second that one core reads of a table into the spool, `clipped` where all are long.

    Of Parquet, whose `records` come without the table's encoder too, and, without a limit, of text.
    """
    less = Size(rows=size.rows // 4, columns=size.columns, repeats=1)
    with tempfile.TemporaryDirectory() as folder:
        for of, large in (("records", size), ("parquet", size), ("csv", less)):
            path = FORMS["csv" if of == "csv" else "parquet"](Path(folder), large)
            memory = large.rows * large.columns
            for row_bound in (20.0, 1.0) if of != "csv" else (20.0,):
                start = time.process_time()
                if of == "records":
                    opened = open_streamed(
                        ParquetRecords(path), described(row_bound), Placement(memory=memory)
                    )
                else:
                    opened = _opened(of, path, memory, row_bound)
                busy = time.process_time() - start
                opened.close()
                speed = 4 * large.rows * large.columns / busy / 1e9
                least = None if of == "csv" else {"gb_a_core_second": READING_LEAST}
                more = {"gb_a_core_second": speed, "clipped": row_bound == 1.0, "rows": large.rows}
                yield line("fill", 1, None, at_least=least, of=of, **more)


def sets(size: Size) -> Iterator[Line]:
    """`sets`: what one core takes for a row of a set, and megabytes of CSR a second, from Parquet into the spool."""
    rows, width, active = min(size.rows, SET_ROWS), 20_000, 50
    for ordered in (True, False):
        with tempfile.TemporaryDirectory() as folder:
            path, schema = write_table(Path(folder), rows, width, active, ordered=ordered)
            table = Table.open(path, schema, engine="stream", memory=8 * rows * active)
            busy = []
            for _ in range(size.repeats):
                start = time.process_time()
                table.engine(row_bound=8.0).close()  # the norm of all is 7.1
                busy.append(time.process_time() - start)
        least = min(busy)
        speed = 8 * rows * active / least / 1e6
        us = 1e6 * least / rows
        yield line("sets", 1, None, ordered=ordered, us_a_row=us, mb_a_core_second=speed, rows=rows)


def peaks(size: Size) -> Iterator[Line]:
    """`peak`: how far a fit of a large table takes more memory than one of a tiny table and `--memory`."""
    half = Size(rows=size.rows // 2, columns=size.columns, repeats=1)
    quarter = 4 * size.rows * size.columns // SHARE
    wanted = [("parquet", size, 50 * _MB), ("csr", half, 50 * _MB)]
    if not size.quick:
        wanted += [("whole", half, 50 * _MB), ("csv", half, 50 * _MB), ("parquet", size, quarter)]
    tiny, of_tiny = Size(rows=_TINY_ROWS, columns=size.columns, repeats=1), dict[str, float]()
    with tempfile.TemporaryDirectory() as folder:
        for kind, large, memory in wanted:
            if kind not in of_tiny:
                of_tiny[kind] = _peak_mb(kind, FORMS[kind](Path(folder), tiny), memory)
            grown = _peak_mb(kind, FORMS[kind](Path(folder), large), memory) - of_tiny[kind]
            more = {"tiny_mb": of_tiny[kind], "memory_mb": memory / _MB, "rows": large.rows}
            over = grown - memory / _MB
            yield line("peak", 1, None, at_most={"over_mb": PEAK_LIMIT_MB}, of=kind, over_mb=over, **more)


def _peak_mb(kind: str, path: Path, memory: int) -> float:
    """The most memory that a process has which fits a table of some kind."""
    return next(lines_of(["-m", "benchmarks.scale_stream", kind, str(path), str(memory)]))["peak_mb"]


def both(size: Size) -> tuple[StreamedEngine, InProcessEngine]:
    """The same records in a spool and in memory."""
    return opened(size), InProcessEngine(read_units(*size.records()))


def opened(size: Size) -> StreamedEngine:
    """An engine that may have a part of the spool in memory."""
    return open_streamed(*size.records(), Placement(memory=4 * size.rows * size.columns // SHARE))


def written(folder: Path, size: Size) -> Path:
    """A Parquet file of normal features and random labels; the one that is there."""
    path = folder / f"{size.rows}.parquet"
    if path.exists():
        return path
    generator, step = np.random.default_rng(0), 2**17
    names = [*map(str, range(size.columns)), "label"]
    schema = pa.schema([*((name, pa.float32()) for name in names[:-1]), ("label", pa.int64())])
    with pq.ParquetWriter(path, schema, compression="none", use_dictionary=False) as writer:
        for start in range(0, size.rows, step):
            count = min(step, size.rows - start)
            columns = list(generator.standard_normal((size.columns, count), dtype=np.float32))
            writer.write_table(pa.table([*columns, generator.integers(0, 2, count)], schema=schema))
    return path


def written_whole(folder: Path, size: Size) -> Path:
    """Numbers of 64 bits in one row group, with dictionaries and compressed, as pandas writes them."""
    path, generator = folder / f"{size.rows}-whole.parquet", np.random.default_rng(0)
    columns = list(generator.standard_normal((size.columns, size.rows)))
    names = [*map(str, range(size.columns)), "label"]
    pq.write_table(pa.table([*columns, generator.integers(0, 2, size.rows)], names=names), path)
    return path


def written_text(folder: Path, size: Size) -> Path:
    """The same as text."""
    path = folder / f"{size.rows}.csv"
    with (
        pq.ParquetFile(written(folder, size)) as parquet,
        csv.CSVWriter(path, parquet.schema_arrow) as writer,
    ):
        for batch in parquet.iter_batches(2**16):
            writer.write_batch(batch)
    return path


def written_levels(folder: Path, size: Size) -> Path:
    """A Parquet file of as many columns, each of a level in so many that they are encoded as CSR."""
    path, generator = folder / f"{size.rows}-levels.parquet", np.random.default_rng(0)
    names = [*map(str, range(size.columns)), "label"]
    schema = pa.schema([(name, pa.int64()) for name in names])
    with pq.ParquetWriter(path, schema) as writer:
        for start in range(0, size.rows, 2**17):
            count = min(2**17, size.rows - start)
            columns = list(generator.integers(0, LEVELS, (size.columns, count)))
            writer.write_table(pa.table([*columns, generator.integers(0, 2, count)], schema=schema))
    return path


FORMS: dict[str, Callable[[Path, Size], Path]] = {
    "parquet": written,
    "csv": written_text,
    "csr": written_levels,
    "whole": written_whole,
}


def described(row_bound: float) -> Description:
    """What is public of the records of a file."""
    return Description(row_bound=row_bound, classes=[0, 1])


def _spools() -> list[int]:
    """The descriptors of files that this process has open and that have no name."""
    links = [path for path in Path("/proc/self/fd").iterdir() if path.is_symlink()]
    return [int(path.name) for path in links if str(path.readlink()).endswith("(deleted)")]


def _opened(kind: str, path: Path, memory: int, row_bound: float | None = None) -> Engine:
    """An engine on a table in a spool."""
    with path.open("rb") as file:
        names = csv.open_csv(file).schema.names if kind == "csv" else pq.read_schema(file).names
    number = {"kind": "num", "low": -6.0, "high": 6.0}
    level = {"kind": "cat", "levels": [*map(str, range(LEVELS))]}
    columns: dict[str, Any] = dict.fromkeys(names[:-1], level if kind == "csr" else number)
    columns["label"] = {"kind": "cat", "levels": ["0", "1"]}
    schema = {"target": "label", "columns": columns}
    return Table.open(path, schema, engine="stream", memory=memory).engine(row_bound=row_bound)


def _fit() -> None:
    """A streamed fit in a process of its own: prints the most memory that the process had."""
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", choices=FORMS)
    parser.add_argument("path", type=Path)
    parser.add_argument("memory", type=int)
    given = parser.parse_args()
    engine = _opened(given.kind, given.path, given.memory)
    budget, solver = Budget(1.0, 1e-6), ContinuousSpider(steps=10, clip=1.0, curvature=0.25)
    minimize(losses.logistic, engine, budget=budget, solver=solver)
    engine.close()
    print(json.dumps({"peak_mb": peak_memory_mb()}))


if __name__ == "__main__":
    _fit()
