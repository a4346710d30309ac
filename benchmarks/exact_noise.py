"""What exact noise costs beside floating point: releases, selections, thresholds, streams, fits, by turns.

`python -m benchmarks.exact_noise [REPEATS]` prints, for each, the time with exact noise over that with float64 noise:
the ratio of the least times, and the median of the ratios. Processor time of the process; data are made up.
"""

import statistics
import sys
import time
from collections.abc import Callable, Sequence

import jax.numpy as jnp
import numpy as np

from privopt.curator.local import LocalCurator
from privopt.data.units import Units
from privopt.ledger.amounts import Budget
from privopt.ledger.payer import Unlimited
from privopt.mechanisms.additive import Gaussian
from privopt.mechanisms.choice import ExponentialMechanism
from privopt.mechanisms.noise import NoiseName, NoiseSource
from privopt.mechanisms.prefix_sum import PrefixSum
from privopt.mechanisms.strategies import banded
from privopt.mechanisms.tests import AboveThreshold
from privopt.precision import double_precision
from privopt.problems import losses
from privopt.problems.constraints import L1Ball
from privopt.problems.problem import Problem
from privopt.queries.slopes import GradientNorm
from privopt.solve import Loss, minimize

ROWS, COLUMNS = 20_000, 54
ITEMS, BANDS, ITEM_SIZE = 200, 20, 5_000
BUDGET = Budget(1.0, 1e-6)
CANDIDATES, TESTS = 1_000, 50


def compared(work: Callable[[NoiseName], object], repeats: int) -> str:
    """The two sides by turns, after one run of each."""
    times: dict[NoiseName, list[float]] = {"exact": [], "float": []}
    for turn in range(repeats + 1):
        for noise, found in times.items():
            begun = time.process_time()
            work(noise)
            if turn:
                found.append(time.process_time() - begun)
    ratios = [exact / plain for exact, plain in zip(times["exact"], times["float"], strict=True)]
    least = {noise: min(found) for noise, found in times.items()}
    return (
        f"{least['exact'] / least['float']:.3f} (median {statistics.median(ratios):.3f}); "
        f"{1e3 * least['exact']:.3f} against {1e3 * least['float']:.3f} ms"
    )


def main(arguments: Sequence[str]) -> None:
    """Measure and print."""
    repeats = int(arguments[0]) if arguments else 9
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(ROWS, COLUMNS))
    targets = np.sign(rows @ rng.normal(size=COLUMNS) + rng.normal(size=ROWS))
    units = Units.from_arrays(rows, targets, row_bound=10.0)
    value = np.zeros(100_000)

    def draws(noise: NoiseName) -> object:
        return Gaussian(3.0).release(NoiseSource.named(noise), value, 1.0)

    def stream(noise: NoiseName) -> object:
        mechanism, source = (
            PrefixSum(strategy=banded(ITEMS, BANDS), noise_multiplier=3.0),
            NoiseSource.named(noise),
        )
        state = mechanism.open(source, (ITEM_SIZE,))
        return [mechanism.add(state, source, value[:ITEM_SIZE], 1.0) for _ in range(ITEMS)]

    def choices(noise: NoiseName) -> object:
        source, choice = NoiseSource.named(noise), ExponentialMechanism(0.5)
        return [choice.release(source, value[:CANDIDATES], 1.0) for _ in range(20)]

    def answers(noise: NoiseName) -> object:
        curator = LocalCurator(units, Unlimited("replace-one"), noise=NoiseSource.named(noise))
        with double_precision():
            length = GradientNorm(loss=losses.logistic, at=jnp.zeros(COLUMNS), clip=1.0)
            stream = curator.stream("test", AboveThreshold(1e6, 0.5, 0.5))
            return [stream.ask("answer", length) for _ in range(TESTS)]

    def fit(solver: str, problem: Loss = losses.logistic) -> Callable[[NoiseName], object]:
        return lambda noise: minimize(problem, units, budget=BUDGET, solver=solver, noise=noise)

    print(f"one release of {value.size:,} numbers:", compared(draws, 20 * repeats))
    print(f"20 choices among {CANDIDATES:,}:", compared(choices, 20 * repeats))
    print(f"a sparse test of {TESTS} answers, {ROWS:,} x {COLUMNS}:", compared(answers, repeats))
    print(f"a stream of {ITEMS} items of {ITEM_SIZE:,} numbers, {BANDS} bands:", compared(stream, repeats))
    ball = fit("frank-wolfe", Problem(losses.logistic, constraint=L1Ball(1.0)))
    print(f"frank-wolfe, a choice a step, {ROWS:,} x {COLUMNS}:", compared(ball, repeats))
    solvers = ("auto", "gradient-descent", "stochastic-gradient-descent", "correlated-noise-descent")
    for solver in solvers:
        print(f"{solver}, {ROWS:,} x {COLUMNS}:", compared(fit(solver), repeats))


if __name__ == "__main__":
    main(sys.argv[1:])
