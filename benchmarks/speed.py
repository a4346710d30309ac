"""How fast: the fused pass, a fit against scikit-learn's, compilation, and the import.

Times of the two sides are interleaved in one process, so that another process on the machine slows both.
"""

import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks import methods
from benchmarks.encoded import Encoded, encode, open_encoded
from benchmarks.methods import Cell
from benchmarks.processes import lines_of
from benchmarks.results import Record, machine

EPSILONS = (0.1, 0.3, 1.0, 3.0)
IMPORTS = (
    "import privopt",
    "from privopt import LogisticRegression",
    "from sklearn.linear_model import LogisticRegression",
    "import jax",
)
COMPILED = "/jax/core/compile/backend_compile_duration"


class Seconds(NamedTuple):
    """Time on the clock, and time on processors (of all threads)."""

    wall: float
    processor: float


def measure(shared: Path, scratch: Path, *, quick: bool) -> Iterator[Record]:
    """Every speed record, each from processes of their own."""
    place = encode("covertype", shared, scratch, 20_000 if quick else None)
    common = {"benchmark": "speed", "machine": machine()}
    rows = 20_000 if quick else 200_000
    for line in lines_of(["benchmarks/pass_speed.py", "--rows", str(rows)]):
        if "ratio" in line:
            yield {**common, "what": "pass", **{key: line[key] for key in line if key != "benchmark"}}
    with tempfile.TemporaryDirectory() as empty:
        cold = {"NUMBA_CACHE_DIR": empty}
        for what, environment in (("first fit on a machine", cold), ("first fit in a process", cold)):
            for line in lines_of(["-m", "benchmarks.speed", "first", str(place)], environment):
                yield {**common, "what": what, **line}
    for line in lines_of(["-m", "benchmarks.speed", "fit", str(place), "3" if quick else "7"]):
        yield {**common, "what": "fit", **line}
    for statement in IMPORTS:
        times = [_import_seconds(statement) for _ in range(2 if quick else 5)]
        walls, processors = zip(*times, strict=True)
        yield {**common, "what": statement, "seconds": min(walls), "cpu_s": min(processors)}


def _import_seconds(statement: str) -> Seconds:
    program = (
        "import json, time; wall, cpu = time.perf_counter(), time.process_time(); "
        f"{statement}; "
        "print(json.dumps({'wall': time.perf_counter() - wall, 'processor': time.process_time() - cpu}))"
    )
    return Seconds(**next(iter(lines_of(["-c", program]))))


def _private(data: Encoded, epsilon: float, seed: int) -> Any:
    cell = Cell(relation="replace-one", epsilon=epsilon, delta=1.0 / data.rows**2)
    return cell.model(data, "auto", seed).fit(data.train, data.train_targets)


def _seconds(function: Callable[..., Any], *arguments: Any) -> Seconds:
    wall, processor = time.perf_counter(), time.process_time()
    function(*arguments)
    return Seconds(time.perf_counter() - wall, time.process_time() - processor)


def first(data: Encoded) -> Record:
    """The first fit of a process, the second, and how many programs JAX compiled in each."""
    import jax

    compiled: list[float] = []

    def listen(event: str, duration_secs: float, **_: Any) -> None:
        if event == COMPILED:
            compiled.append(duration_secs)

    jax.monitoring.register_event_duration_secs_listener(listen)
    seconds = [_seconds(_private, data, 1.0, 0).wall]
    compiles = [len(compiled)]
    seconds.append(_seconds(_private, data, 1.0, 1).wall)
    compiles.append(len(compiled) - compiles[0])
    return {
        "first_fit_s": seconds[0],
        "second_fit_s": seconds[1],
        "first_fit_compilations": compiles[0],
        "second_fit_compilations": compiles[1],
    }


def fits(data: Encoded, repeats: int) -> Iterator[Record]:
    """Private fits and scikit-learn's by turns, after one fit of each that is not counted."""
    model = methods.plain(data)
    tried = {threads: _seconds(methods.plain, data, threads).wall for threads in (None, 1)}
    threads = min(tried, key=lambda one: tried[one])
    plain: list[Seconds] = []
    private: dict[float, list[Seconds]] = {epsilon: [] for epsilon in EPSILONS}
    fitted = {epsilon: _private(data, epsilon, 0) for epsilon in EPSILONS}
    for seed in range(repeats):
        plain.append(_seconds(methods.plain, data, threads))
        for epsilon in EPSILONS:
            private[epsilon].append(_seconds(_private, data, epsilon, seed))
    other = _middle(plain)
    for epsilon in EPSILONS:
        middle = _middle(private[epsilon])
        yield {
            "epsilon": epsilon,
            "rows": data.rows,
            "columns": data.train.shape[1],
            "passes": fitted[epsilon].plan_.passes,
            "fit_s": middle.wall,
            "fit_cpu_s": middle.processor,
            "scikit_learn_s": other.wall,
            "scikit_learn_cpu_s": other.processor,
            "scikit_learn_threads": "default" if threads is None else str(threads),
            "scikit_learn_iterations": int(model.n_iter_[0]),
            "scikit_learn_converged": bool(model.n_iter_[0] < model.max_iter),
            "ratio": middle.wall / other.wall,
            "ratio_of_fastest": min(one.wall for one in private[epsilon]) / min(one.wall for one in plain),
            "cpu_ratio": middle.processor / other.processor,
            "planned_s": fitted[epsilon].plan_.seconds,
        }


def _middle(times: Sequence[Seconds]) -> Seconds:
    return Seconds(
        statistics.median(one.wall for one in times), statistics.median(one.processor for one in times)
    )


def main(arguments: Sequence[str]) -> None:
    """One measuring process."""
    data = open_encoded(Path(arguments[1]))
    found = [first(data)] if arguments[0] == "first" else fits(data, int(arguments[2]))
    for record in found:
        print(json.dumps(record), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
