"""What it costs to keep a table outside of the memory of one process: JSON lines with `what`, `workers`, `ratio`.

    python -m benchmarks.scale [--quick] [--rows 4000000] [--columns 54] [--only round tiny lost users stream cold ...]

Each line is about one kind of engine; `ratio` compares medians of runs that take turns in one process, so that whoever
else uses the machine slows both. `overhead_ms` is their difference in time.

round   a pass by 2 workers of a cluster, and by 8, over one in this process
tiny    what a round of 8 workers takes beyond the sum in this process, where each has a few rows
lost    `seconds` of a round in which one of 2 workers is killed; `reload`: of making its rows anew; `first_load`: until
        the first sum
users   `seconds` until the first sum over records that go to whoever holds their users, over `records_seconds`, where
        they are read where they stay; `core_seconds`, `records_core_seconds`: the same of the workers' cores;
        `driver_mb`: how much this process grew, and `driver_tiny_mb` for a hundredth of the records; `lost_seconds`: of
        a round in which a worker is killed
stream  a pass over a spool in the page cache, a quarter of which may be in memory, over one in memory
cold    a plain read of the spool from the disk, over a pass that reads it, at `gb_a_second`
fill    `gb_a_core_second` of float32 that one core reads into a spool (`of` Parquet or CSV by `Table`; `records`: of
        Parquet without its encoder); `clipped`: every row is too long
sets    `us_a_row` and `mb_a_core_second` of CSR that one core reads from Parquet into a spool, of sets of 50 of 20,000
        that are `ordered` or not
peak    `over_mb`: how much more memory a fit takes than one of 2,000 rows (`tiny_mb`) and its `memory_mb`, where the
        table is Parquet, CSV, encoded as CSR, or Parquet whose rows are one group, as pandas writes it (`of`)

A line that has a limit says of which of its fields (`at_most`, `at_least`) and whether it is kept (`within`). Others on
the machine make lines exceed theirs. Files are written to the folder of temporary files, and gone at the end.
"""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("NUMBA_NUM_THREADS", "2")

import argparse
import contextlib
import importlib.util
import json
from collections.abc import Callable, Iterator

from benchmarks import scale_stream
from benchmarks.results import rounded
from benchmarks.scale_frame import Line, Size, line

QUICK_ROWS = 2**20  # two parts: one for each of two workers
HAS_RAY = importlib.util.find_spec("ray") is not None


def on_ray(what: str, name: str) -> Callable[[Size], Iterator[Line]]:
    """A measurement of `scale_ray`, or a word that it was left out."""

    def measured(size: Size) -> Iterator[Line]:
        if not HAS_RAY:
            yield line(what, 0, None, left_out="Ray is not installed: pip install 'privopt[ray]'")
            return
        from benchmarks import scale_ray

        yield from getattr(scale_ray, name)(size)

    return measured


# Whoever adds a kind of engine adds its lines: a function of a size, by the name to ask for.
MEASUREMENTS: dict[str, Callable[[Size], Iterator[Line]]] = {
    "round": on_ray("round", "rounds"),
    "tiny": on_ray("tiny", "tiny"),
    "lost": on_ray("lost", "lost"),
    "users": on_ray("users", "users"),
    "stream": scale_stream.warm_passes,
    "cold": scale_stream.cold_passes,
    "fill": scale_stream.reading,
    "sets": scale_stream.sets,
    "peak": scale_stream.peaks,
}
ON_CLUSTER = {"round", "tiny", "lost", "users"}


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.scale",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help=f"{QUICK_ROWS:,} rows and fewer runs, workers and tables: within two minutes",
    )
    parser.add_argument("--rows", type=int, help="records, instead of 4,000,000")
    parser.add_argument("--columns", type=int, default=54, help="features of a record; default: 54")
    parser.add_argument(
        "--only", nargs="+", choices=sorted(MEASUREMENTS), default=list(MEASUREMENTS), help="default: all"
    )
    given = parser.parse_args()
    rows = given.rows or (QUICK_ROWS if given.quick else 4_000_000)
    size = Size(rows=rows, columns=given.columns, repeats=3 if given.quick else 9, quick=given.quick)
    with contextlib.ExitStack() as cluster:
        if HAS_RAY and ON_CLUSTER & set(given.only):
            from privopt.engine.on_ray.cluster import Cluster

            cluster.callback(Cluster.joined(None).close)  # started once for all lines
        for name in sorted(given.only, key=lambda name: name not in ON_CLUSTER):
            if name not in ON_CLUSTER:
                cluster.close()
            for found in MEASUREMENTS[name](size):
                print(json.dumps(rounded(found)), flush=True)


if __name__ == "__main__":
    main()
