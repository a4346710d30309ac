"""What it costs to keep a table outside of the memory of one process: JSON lines with `what`, `workers`, `ratio`.

    python -m benchmarks.scale [--quick] [--rows 4000000] [--columns 54] [--only round tiny lost users stream cold ...]

Each line is about one kind of engine; `ratio` compares medians of runs that take turns in one process, so that whoever
else uses the machine slows both. `overhead_ms` is their difference in time for one pass, where that says something.
Of a cluster there are `round` (by 2 workers and by 8), `tiny` (8 with a few rows each) and `lost` (one of 2 is killed),
and `users`: records that go to whoever holds their users, over records that are read where they stay.
Files are written to the folder of temporary files, and gone at the end.
"""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("NUMBA_NUM_THREADS", "2")

import argparse
import importlib.util
import json
from collections.abc import Callable, Iterator

from benchmarks import scale_stream
from benchmarks.results import rounded
from benchmarks.scale_frame import Line, Size, line

QUICK_ROWS = 1_200_000


def on_ray(what: str, name: str) -> Callable[[Size], Iterator[Line]]:
    """A measurement of `scale_ray`, or a word that it was left out."""

    def measured(size: Size) -> Iterator[Line]:
        if importlib.util.find_spec("ray") is None:
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
    "peak": scale_stream.peaks,
}


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="fewer rows and runs: within two minutes")
    parser.add_argument("--rows", type=int, default=None)
    parser.add_argument("--columns", type=int, default=54)
    parser.add_argument("--only", nargs="+", choices=sorted(MEASUREMENTS), default=list(MEASUREMENTS))
    given = parser.parse_args()
    rows = given.rows or (QUICK_ROWS if given.quick else 4_000_000)
    size = Size(rows=rows, columns=given.columns, repeats=3 if given.quick else 9)
    for name in given.only:
        for found in MEASUREMENTS[name](size):
            print(json.dumps(rounded(found)), flush=True)


if __name__ == "__main__":
    main()
