"""Synthetic data: error of a sample's marginals, largest errors of the models, and models trained on samples.

    python -m benchmarks synthetic [--table TABLE ...] [--epsilon E ...] [--seeds S] [--quick]

Tables: `pairs` (adult_discrete and fars: total variation of all pairs and of 60 triples of a sample of n rows), `bits`
(randhie's 16 and 12 bits: largest error of all three-way cells), `half-spaces` (2000 random ones over 10 bits) and
`trained` (adult_discrete: a classifier trained on a sample, tested on real rows). Noise comes from seeds 0, 1, 2 and so
on, so no run here is private.
"""

import itertools
import resource
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.results import Record, machine
from benchmarks.synthetic_data import CodedTable, coded_table, half_spaces, randhie_bits
from privopt.curator.local import LocalCurator
from privopt.data.units import Units
from privopt.ledger.amounts import Budget
from privopt.ledger.ledger import Ledger
from privopt.mechanisms.noise import NoiseSource
from privopt.planning.task import Task
from privopt.problems.workload import Workload
from privopt.synthesis.adaptive_marginals import AdaptiveMarginals
from privopt.synthesis.base import Model, Synthesizer
from privopt.synthesis.mwem import MWEM
from privopt.synthesis.query_game import QueryGame, QueryGameML
from privopt.synthesis.registry import GaussianMarginals, choose_synthesizer

PAGE = Path(__file__).resolve().parent.parent / "docs" / "benchmarks-synthetic.md"
PAIRS, BITS, HALF_SPACES, TRAINED = "pairs", "bits", "half-spaces", "trained"
TABLES = (PAIRS, BITS, HALF_SPACES, TRAINED)
EPSILONS: Mapping[str, tuple[float, ...]] = {
    PAIRS: (0.1, 0.3, 1.0, 3.0),
    BITS: (0.3, 1.0),
    HALF_SPACES: (0.05, 0.2, 1.0),
    TRAINED: (0.3, 1.0, 3.0),
}
SEEDS, QUICK_SEEDS = 5, 1
ADD, REPLACE, BITS_DELTA = "add-or-remove-one", "replace-one", 1e-6
INDEPENDENT, AUTO, EXACT = "independent columns", "auto", "the rows themselves"
ADULT_BARS = {  # pairs, triples
    0.1: (0.123, 0.205),
    0.3: (0.083, 0.168),
    1.0: (0.049, 0.108),
    3.0: (0.0345, 0.085),
}
BITS_BARS = {0.3: 0.025, 1.0: 0.010}
TRIPLES = 60
Method = Synthesizer | str


def modelled(
    method: Method, units: Units, workload: Workload, budget: Budget, seed: int
) -> tuple[Model, str, float]:
    """A model, the synthesizer that made it, and its seconds."""
    relation = units.public.relation
    start = time.perf_counter()
    task = Task(workload, units.public, budget)
    program = choose_synthesizer(method, task).solver.configure(task)
    ledger = Ledger(budget, relation, plan=program.event(units.public))
    result = program.solve(LocalCurator(units, ledger, noise=NoiseSource(seed)), workload)
    return result.params, program.name, time.perf_counter() - start


def independent() -> Synthesizer:
    """The columns one by one, each nearest to its noisy marginal."""
    return AdaptiveMarginals(rounds=0)


def variations(
    real: NDArray[np.int64],
    sample: NDArray[np.int64],
    levels: Sequence[int],
    sets: Sequence[Sequence[int]],
) -> NDArray[np.float64]:
    """The total variation of two tables' marginals on each set of columns."""
    found: list[float] = []
    for columns in sets:
        sizes = [levels[column] for column in columns]
        shares = [
            np.bincount(np.ravel_multi_index(rows[:, list(columns)].T, sizes), minlength=int(np.prod(sizes)))
            / len(rows)
            for rows in (real, sample)
        ]
        found.append(float(np.abs(shares[0] - shares[1]).sum()) / 2)
    return np.array(found)


def triples_of(columns: int) -> list[tuple[int, ...]]:
    """60 triples of columns, drawn once."""
    every = list(itertools.combinations(range(columns), 3))
    drawn = np.random.default_rng(5).choice(len(every), min(TRIPLES, len(every)), replace=False)
    return [every[one] for one in drawn]


def pairs(epsilons: Collection[float], seeds: int, quick: bool) -> Iterator[Record]:
    """Total variation of pairs and triples."""
    for name in ("adult_discrete",) if quick else ("adult_discrete", "fars"):
        table = coded_table(name)
        methods: dict[str, Method] = {AUTO: "auto", INDEPENDENT: independent()}
        for epsilon, (label, method) in itertools.product(epsilons, methods.items()):
            yield _pairs(table, epsilon, label, method, seeds)


def _pairs(table: CodedTable, epsilon: float, label: str, method: Method, seeds: int) -> Record:
    n, columns = table.codes.shape
    units = Units.from_codes(table.codes, levels=table.levels, relation=ADD, n=n)
    workload = Workload.ways(table.levels, 2)
    two, three, seconds, name = [], [], [], ""
    for seed in range(seeds):
        model, name, took = modelled(method, units, workload, Budget(epsilon, 1.0 / n**2), seed)
        start = time.perf_counter()
        sample = model.sample(n, np.random.default_rng(seed))
        seconds.append(took + time.perf_counter() - start)
        two.append(variations(table.codes, sample, table.levels, workload.sets))
        three.append(variations(table.codes, sample, table.levels, triples_of(columns)))
    return _record(PAIRS, table.name, label, ADD, epsilon) | {
        "synthesizer": name,
        "pairs": float(np.mean(two)),
        "pairs_sd": _spread([float(np.mean(one)) for one in two]),
        "largest_pair": float(np.mean(np.max(two, axis=1))),
        "triples": float(np.mean(three)),
        "triples_sd": _spread([float(np.mean(one)) for one in three]),
        "largest_triple": float(np.mean(np.max(three, axis=1))),
        "seconds": float(np.mean(seconds)),
        "megabytes": _megabytes(),
        "seeds": seeds,
        "records": n,
    }


def bits(epsilons: Collection[float], seeds: int, quick: bool) -> Iterator[Record]:
    """Largest errors of all three-way cells."""
    rows = randhie_bits()
    methods: dict[str, Method] = {
        AUTO: "auto",
        "gaussian-marginals": GaussianMarginals(),
        "mwem": MWEM(),
        "query-game-ml": QueryGameML(),
        "query-game": QueryGame(),
        "adaptive-marginals": AdaptiveMarginals(),
    }
    for width, epsilon in itertools.product((12,) if quick else (12, 16), epsilons):
        workload = Workload.ways((2,) * width, 3)
        for label, method in methods.items():
            yield _largest(
                f"randhie, {width} bits", BITS, rows[:, :width], workload, epsilon, label, method, seeds
            )


def half_space_errors(epsilons: Collection[float], seeds: int, quick: bool) -> Iterator[Record]:
    """Largest errors of random half-spaces."""
    rows = randhie_bits()[:, :10]
    workload = Workload((2,) * 10, queries=half_spaces(10, 200 if quick else 2000))
    methods: dict[str, Method] = {
        AUTO: "auto",
        "query-game-ml": QueryGameML(),
        "gaussian-marginals": GaussianMarginals(),
        **{f"mwem, T = {rounds}": MWEM(rounds=rounds) for rounds in (15, 30, 60)},
        "query-game": QueryGame(),
    }
    for epsilon, (label, method) in itertools.product(epsilons, methods.items()):
        yield _largest("randhie, 10 bits", HALF_SPACES, rows, workload, epsilon, label, method, seeds)


def _largest(
    data: str,
    what: str,
    rows: NDArray[np.int64],
    workload: Workload,
    epsilon: float,
    label: str,
    method: Method,
    seeds: int,
) -> Record:
    units = Units.from_codes(rows, levels=workload.levels, relation=REPLACE)
    cells = rows @ (1 << np.arange(rows.shape[1]))
    truth = workload.answers(np.bincount(cells, minlength=workload.universe) / len(rows))
    errors, seconds, name = [], [], ""
    for seed in range(seeds):
        model, name, took = modelled(method, units, workload, Budget(epsilon, BITS_DELTA), seed)
        errors.append(float(np.max(np.abs(model.answers(workload) - truth))))
        seconds.append(took)
    return _record(what, data, label, REPLACE, epsilon) | {
        "synthesizer": name,
        "largest": float(np.mean(errors)),
        "largest_sd": _spread(errors),
        "seconds": float(np.mean(seconds)),
        "megabytes": _megabytes(),
        "seeds": seeds,
        "records": len(rows),
    }


def trained(epsilons: Collection[float], seeds: int, quick: bool) -> Iterator[Record]:
    """Accuracy and area under the curve of logistic regression on Adult's target, tested on a fifth of the rows."""
    del quick
    table = coded_table("adult_discrete")
    order = np.random.default_rng(0).permutation(len(table.codes))
    cut = len(order) * 4 // 5
    train, test = table.codes[order[:cut]], table.codes[order[cut:]]
    units = Units.from_codes(train, levels=table.levels, relation=ADD, n=len(train))
    workload = Workload.ways(table.levels, 2)
    yield _scored([(train, 0.0)], test, table, EXACT, np.inf, len(train))
    for epsilon in epsilons:
        budget = Budget(epsilon, 1.0 / len(train) ** 2)
        for label, method in {AUTO: "auto", INDEPENDENT: independent()}.items():
            samples = []
            for seed in range(seeds):
                model, _, took = modelled(method, units, workload, budget, seed)
                samples.append((model.sample(len(train), np.random.default_rng(seed)), took))
            yield _scored(samples, test, table, label, epsilon, len(train))


def _scored(
    samples: Sequence[tuple[NDArray[np.int64], float]],
    test: NDArray[np.int64],
    table: CodedTable,
    label: str,
    epsilon: float,
    records: int,
) -> Record:
    """A plain classifier on the one-hot columns, fitted to each sample."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.metrics import roc_auc_score
    from sklearn.preprocessing import OneHotEncoder

    values: Any = [np.arange(level) for level in table.levels[:-1]]
    coder = OneHotEncoder(categories=values)
    features, target = coder.fit_transform(test[:, :-1]), test[:, -1] == 1
    accuracy, area = [], []
    for rows, _ in samples:
        fitted = LogisticRegression(C=1.0, max_iter=300).fit(coder.transform(rows[:, :-1]), rows[:, -1] == 1)
        accuracy.append(float(fitted.score(features, target)))
        area.append(float(roc_auc_score(target, fitted.decision_function(features))))
    return _record(TRAINED, table.name, label, ADD, float(epsilon)) | {
        "accuracy": float(np.mean(accuracy)),
        "accuracy_sd": _spread(accuracy),
        "area": float(np.mean(area)),
        "area_sd": _spread(area),
        "majority": float(max(np.mean(target), 1 - np.mean(target))),
        "seconds": float(np.mean([took for _, took in samples])),
        "seeds": len(samples),
        "records": records,
    }


PARTS: Mapping[str, Callable[[Collection[float], int, bool], Iterator[Record]]] = {
    PAIRS: pairs,
    BITS: bits,
    HALF_SPACES: half_space_errors,
    TRAINED: trained,
}


def measure(
    which: Collection[str], epsilons: Collection[float] | None, seeds: int | None, quick: bool
) -> Iterator[Record]:
    """The chosen tables' records as they come."""
    for name in which or TABLES:
        chosen = EPSILONS[name] if epsilons is None else tuple(epsilons)
        yield from PARTS[name](chosen, seeds or (QUICK_SEEDS if quick else SEEDS), quick)


def _record(what: str, data: str, method: str, relation: str, epsilon: float) -> Record:
    return {
        "benchmark": "synthetic",
        "what": what,
        "data": data,
        "method": method,
        "relation": relation,
        "epsilon": epsilon,
        "machine": machine(),
    }


def _spread(values: Sequence[float]) -> float | None:
    return float(np.std(values, ddof=1)) if len(values) > 1 else None


def _megabytes() -> float:
    """The most memory that this process has held so far."""
    used: Any = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return used / 1024.0
