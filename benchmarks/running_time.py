"""Whether the running time of a solver, a query or a mechanism depends on what the data hold, not on how much there is.

    python -m benchmarks.running_time [--repeats 15] [--rows 2000] [--only NAME ...]

Each is run on data sets of one public shape that hold different things, by turns in a random order, with the same noise
and the same samples. Printed is the median over the turns of its time over that on ordinary data, in processor time of
the process, and marked where every turn, but one at most, is on the same side and the median is off by more than 3 %.
`again` is ordinary data drawn anew: what is marked there is chance. Planning, prices and loading are not timed.
"""

import argparse
import random
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from privopt.curator.local import LocalCurator
from privopt.curator.run import Run
from privopt.data.units import Units
from privopt.games import registry as games
from privopt.ledger.amounts import Budget
from privopt.ledger.payer import Unlimited
from privopt.mechanisms.additive import Gaussian, Laplace
from privopt.mechanisms.base import Mechanism
from privopt.mechanisms.choice import ExponentialMechanism, PermuteAndFlip
from privopt.mechanisms.noise import NoiseSource
from privopt.papers.output_perturbation import OutputPerturbation
from privopt.planning.task import Instance, Task
from privopt.precision import double_precision
from privopt.problems import losses
from privopt.problems.constraints import L1Ball
from privopt.problems.growth import KL
from privopt.problems.problem import Problem
from privopt.problems.regularisers import Ridge
from privopt.problems.saddle import BilinearGame
from privopt.problems.workload import Workload
from privopt.queries.base import Query
from privopt.queries.moments import ColumnMagnitudes, SecondMoment
from privopt.queries.slopes import ClippedGradient
from privopt.solvers.base import Solver
from privopt.solvers.registry import NAMES, choose
from privopt.synthesis import registry as synthesis

COLUMNS, WIDE, VALUES, PER_USER, SEED = 8, 100, 20_000, 4, 1
BUDGET = Budget(1.0, 1e-6)
LEVELS = (3, 2, 4, 5)
LEAST = 0.03  # an effect below it is not marked
SLOWEST = 0.5  # seconds of one run: what takes longer is left out, and said

Kinds = Mapping[str, Any]  # by name: units, or values of a mechanism
Work = Callable[
    [Any, int], Callable[[], object]
]  # prepares a run with a seed, outside of the time that is taken


def arrays(rows: int) -> dict[str, tuple[NDArray[np.float64], NDArray[np.float64]]]:
    """Features and targets of each kind, of one shape."""
    draw = np.random.default_rng(SEED)

    def ordinary() -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        features = draw.normal(size=(rows, COLUMNS))
        return features, np.sign(features[:, 0] + draw.normal(size=rows))

    x, y = ordinary()
    order, missing = np.argsort(x[:, 0]), x.copy()
    missing[::2, 0], missing[1::4, 1] = np.nan, np.inf
    return {
        "ordinary": (x, y),
        "again": ordinary(),
        "zeros": (np.zeros_like(x), y),
        "subnormal": (x * 1e-310, y),
        "beside 1e-40": (np.where(np.arange(COLUMNS) == 0, x, x * 1e-40), y),  # subnormal in float32
        "tiny": (x * 1e-20, y),
        "huge": (x * 1e300, y),
        "NaN, inf": (missing, y),
        "clipped": (x * 1e3, y),
        "sorted": (x[order], y[order]),
    }


def contents(rows: int, *, by_user: bool) -> Kinds:
    """Units of each kind, of one public description."""
    keys = np.arange(rows) // PER_USER if by_user else None
    made = {
        name: Units.from_arrays(x, y, row_bound=5.0, groups=keys, noise=NoiseSource(SEED), **_cap(by_user))
        for name, (x, y) in arrays(rows).items()
    }
    if by_user:
        x, y = arrays(rows)["ordinary"]
        few = np.minimum(np.arange(rows), rows // PER_USER - 1)  # the last user has most records
        made["uneven"] = Units.from_arrays(
            x, y, row_bound=5.0, groups=few, noise=NoiseSource(SEED), **_cap(by_user)
        )
    return made


def _cap(by_user: bool) -> dict[str, int]:
    return {"max_records_per_user": PER_USER} if by_user else {}


def storages(rows: int) -> Kinds:
    """Sparse rows of one public shape, with other numbers of entries."""
    draw = np.random.default_rng(SEED)
    dense, y = draw.normal(size=(rows, WIDE)), draw.choice([-1.0, 1.0], rows)

    def kept(share: float) -> Units:
        return Units.from_arrays(
            sparse.csr_array(np.where(draw.random(dense.shape) < share, dense, 0.0)), y, row_bound=5.0
        )

    return {"ordinary": kept(0.5), "again": kept(0.5), "1 % entries": kept(0.01), "all entries": kept(1.0)}


def presences(rows: int) -> Kinds:
    """Of the public number of records some are not there, under add-or-remove-one."""
    x, y = arrays(rows)["ordinary"]

    def there(count: int) -> Units:
        return Units.from_arrays(x[:count], y[:count], row_bound=5.0, relation="add-or-remove-one", n=rows)

    return {"ordinary": there(rows), "again": there(rows), "half there": there(rows // 2)}


def tables(rows: int) -> Kinds:
    """Coded tables of one shape."""
    draw = np.random.default_rng(SEED)

    def made(codes: NDArray[np.int64]) -> Units:
        return Units.from_codes(codes, levels=LEVELS)

    plain = np.stack([draw.integers(0, level, rows) for level in LEVELS], axis=1)
    again = np.stack([draw.integers(0, level, rows) for level in LEVELS], axis=1)
    return {
        "ordinary": made(plain),
        "again": made(again),
        "all alike": made(np.zeros_like(plain)),
        "missing": made(np.full_like(plain, -1)),
        "sorted": made(np.sort(plain, axis=0)),
    }


def compared(work: Work, data: Kinds, repeats: int) -> dict[str, tuple[float, bool]]:
    """For each content the median ratio to ordinary data, and whether it is marked."""
    order, times = random.Random(SEED), {name: list[float]() for name in data}
    for turn in range(repeats + 1):
        for name in order.sample(list(data), len(data)):
            run = work(data[name], turn)
            begun = time.process_time()
            run()
            if turn:
                times[name].append(time.process_time() - begun)
    found: dict[str, tuple[float, bool]] = {}
    for name in data:
        ratios = [one / plain for one, plain in zip(times[name], times["ordinary"], strict=True)]
        ratio, longer = statistics.median(ratios), sum(ratio > 1 for ratio in ratios)
        one_sided = max(longer, repeats - longer) >= repeats - 1
        found[name] = (ratio, one_sided and abs(ratio - 1) > LEAST)
    return found


def solving(solver: Solver | str, data: Kinds) -> Work | None:
    """A solver on the first problem that it applies to; None where there is none."""
    public = data["ordinary"].public
    for problem in (
        Problem(losses.logistic, Ridge(0.1)),
        Problem(losses.logistic, constraint=L1Ball(1.0)),
        Problem(losses.logistic),
        Problem(losses.logistic, growth=KL(gamma=2.0, kappa=2.0)),
    ):
        instance = Instance(problem, public, BUDGET)
        work = _run_of(partial(_chosen, solver, instance), instance, problem)
        if work is not None:
            return work
    return None


def _chosen(solver: Solver | str, instance: Instance) -> Any:
    return choose(solver, instance).solver


def playing(name: str, data: Kinds) -> Work | None:
    """A solver of games on a matrix game of these rows."""
    game = BilinearGame(rows=4, columns=4)
    return _run_of(partial(games.named, name), Task(game, data["ordinary"].public, BUDGET), game)


def modelling(name: str, data: Kinds) -> Work | None:
    """A synthesizer on all pairs of columns."""
    workload = Workload.ways(LEVELS, 2)
    return _run_of(partial(synthesis.named, name), Task(workload, data["ordinary"].public, BUDGET), workload)


def _run_of(made: Callable[[], Any], task: Any, question: Any) -> Work | None:
    """A priced run of what is made and configured for a task; None where it does not apply to that."""
    try:
        configured = made().configure(task)
        event = configured.plan(task).event
    except (ValueError, TypeError):
        return None

    def prepared(units: Units, seed: int) -> Callable[[], object]:
        curator = Run(configured.title, event, BUDGET, units.public, noise=NoiseSource(seed)).curator(units)
        return lambda: configured.solve(curator, question)

    return prepared


def releasing(query: Query, mechanism: Mechanism, times: int = 10) -> Work:
    """A query asked several times."""

    def prepared(units: Units, seed: int) -> Callable[[], object]:
        curator = LocalCurator(units, Unlimited(units.public.relation), noise=NoiseSource(seed))
        return lambda: [curator.release(query, mechanism) for _ in range(times)]

    return prepared


def values() -> Kinds:
    """What a mechanism is given, of one length."""
    draw = np.random.default_rng(SEED)
    value = draw.normal(size=VALUES)
    return {
        "ordinary": value,
        "again": draw.normal(size=VALUES),
        "zeros": 0.0 * value,
        "subnormal": value * 1e-310,
        "huge": value * 1e300,
        "sorted": np.sort(value),
    }


def adding(mechanism: Mechanism, times: int = 5) -> Work:
    """A mechanism on a value, several times."""

    def prepared(value: NDArray[np.float64], seed: int) -> Callable[[], object]:
        noise = NoiseSource(seed)
        return lambda: [mechanism.release(noise, value, 1.0) for _ in range(times)]

    return prepared


def line(title: str, work: Work | None, data: Kinds, repeats: int) -> str:
    """What is measured of one thing; what is marked carries a star."""
    if work is None:
        return f"{title}: left out, it applies to none of the problems"
    for _ in range(2):  # the first compiles
        run, begun = work(data["ordinary"], 0), time.process_time()
        run()
        lasts = time.process_time() - begun
    if lasts > SLOWEST:
        return f"{title}: left out, one run takes {lasts:.1f} s"
    found = compared(work, data, repeats)
    ratios = [f"{name} {ratio:.2f}{'*' if marked else ''}" for name, (ratio, marked) in found.items()]
    return f"{title} ({1e3 * lasts:.1f} ms): {', '.join(ratios[1:])}"


def all_lines(rows: int, repeats: int) -> Iterator[tuple[str, Callable[[], str]]]:
    """Every line by its title, to be measured."""
    records, users = contents(rows, by_user=False), contents(rows, by_user=True)
    sparse_rows, absent = storages(rows), presences(rows)
    for name, mechanism in {
        "Gaussian": Gaussian(3.0),
        "Laplace": Laplace(3.0),
        "exponential": ExponentialMechanism(1.0),
        "permute and flip": PermuteAndFlip(1.0),
    }.items():
        yield f"mechanism {name}", partial(line, f"mechanism {name}", adding(mechanism), values(), repeats)
    kinds = {"": records, ", users": users, ", sparse": sparse_rows, ", absent": absent}
    for how, data in kinds.items():
        width = data["ordinary"].public.d
        for name, query in {
            "gradient": ClippedGradient(loss=losses.logistic, at=jnp.full(width, 0.1), clip=0.5),
            "second moment": SecondMoment(row_bound=5.0),
            "magnitudes": ColumnMagnitudes(levels=40, columns=width),
        }.items():
            work = releasing(query, Gaussian(3.0))
            yield f"query {name}{how}", partial(line, f"query {name}{how}", work, data, repeats)
    minimiser = {"output-perturbation of a minimiser": OutputPerturbation(form="minimiser")}
    for name, asked in ({name: name for name in NAMES} | minimiser).items():
        data = users if name.startswith("user-") else records
        work = partial(solving, asked)
        yield f"solver {name}", partial(_prepared_line, f"solver {name}", work, data, repeats)
    coded = tables(rows)
    for kind, names, work, data in (
        ("game", games.NAMES, playing, records),
        ("synthesizer", synthesis.NAMES, modelling, coded),
    ):
        for name in names:
            yield (
                f"{kind} {name}",
                partial(_prepared_line, f"{kind} {name}", partial(work, name), data, repeats),
            )


def _prepared_line(title: str, work: Callable[[Kinds], Work | None], data: Kinds, repeats: int) -> str:
    return line(title, work(data), data, repeats)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--rows", type=int, default=2000)
    parser.add_argument("--only", nargs="*", default=[""], help="titles that begin so")
    asked = parser.parse_args(arguments)
    with double_precision():
        for title, measured in all_lines(asked.rows, asked.repeats):
            if title.startswith(tuple(asked.only)):
                print(measured(), flush=True)


if __name__ == "__main__":
    main()
