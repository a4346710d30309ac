"""Matrix games on generated records: `auto`, every solver of games, and baselines at their best.

    python -m benchmarks games

A record pays ((u . x)(v . y) + p . x - q . y) / 2, all entries of u, v, p, q signs. Each record has one of 8 hidden
types; u_j is +1 with a probability that is uniform on [0.05, 0.95] for each type and action, and so is v_j; p_j is +1
with probability 0.65, but with 0.2 for 12 good actions (half of the actions where there are fewer than 24), and so is
q_j. So the uniform strategies have a gap of 0.5 to 0.9, and L = 1.

Reported is the duality gap on the records, n = 20 000, (1, 1e-6)-differential privacy, replace-one; the mean over
seeds, each with a game of its own. "At its best" is the best of a few settings, chosen with knowledge of the gaps. A
round of the reference solver of the tests is timed beside a round of ours.
"""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.bars import Verdict
from benchmarks.results import Record, select
from privopt.curator.local import LocalCurator
from privopt.data.units import Units
from privopt.games.base import GameSolver
from privopt.games.dual_averaging import NoisyExponentiatedGradient, SampledDualAveraging
from privopt.games.gradients import Noised
from privopt.games.noisy_extragradient import SaddleGradientDescent
from privopt.games.registry import NAMES, choose_game, named
from privopt.ledger.amounts import Budget
from privopt.ledger.ledger import Ledger
from privopt.ledger.payer import Unlimited
from privopt.mechanisms.noise import NoiseSource
from privopt.papers.saddle_mirror_descent import SaddleMirrorDescent
from privopt.planning.task import Task
from privopt.problems.saddle import BilinearGame
from privopt.queries.payoffs import PayoffMeans, unpacked

PAGE = Path(__file__).resolve().parent.parent / "docs" / "benchmarks-games.md"
N, EPSILON, DELTA = 20_000, 1.0, 1e-6
SIZES = (10, 30, 100, 300, 1000)
TYPES, GOOD = 8, 12
AUTO, PAPER, TUNED_EG, TUNED_DESCENT, NO_PRIVACY = (
    "auto",
    "the paper's calibration, at its best",
    "noisy-exponentiated-gradient, at its best",
    "saddle-gradient-descent, at its best",
    "no privacy",
)
ONE_PASS = "sampled-dual-averaging, one pass"
SLOW = {"saddle-mirror-descent", "bias-reduced-mirror-descent", "boosted-saddle"}  # two seeds, up to
SLOW_SIZE = 100
HEAD = ("method", *(f"{size} actions" for size in SIZES))
SPEED_SIZE, SPEED_STEPS, REFERENCE_STEPS = 300, 300, 4


@dataclass(frozen=True, kw_only=True, eq=False)
class Generated:
    """A game of one seed.

    Attributes:
        game: its shape.
        units: the records.
        matrix, p, q: mean payoffs, known to nobody but this file.
    """

    game: BilinearGame
    units: Units
    matrix: NDArray[np.float64]
    p: NDArray[np.float64]
    q: NDArray[np.float64]

    def gap(self, x: NDArray[np.float64], y: NDArray[np.float64]) -> float:
        """max over y' of F(x, y') less min over x' of F(x', y)."""
        best_y = np.max(self.matrix.T @ x - self.q) + self.p @ x
        best_x = np.min(self.matrix @ y + self.p) - self.q @ y
        return float(best_y - best_x)


def generated(n: int, size: int, seed: int) -> Generated:
    """Records of hidden types, see the module."""
    rng = np.random.default_rng([size, seed])
    kinds = rng.integers(TYPES, size=n)
    tables = [rng.uniform(0.05, 0.95, (TYPES, size)) for _ in range(2)]
    parts = [rng.random((n, size)) < chances[kinds] for chances in tables]
    for _ in range(2):
        chances = np.full(size, 0.65)
        chances[rng.choice(size, min(GOOD, size // 2), replace=False)] = 0.2
        parts.append(rng.random((n, size)) < chances)
    game = BilinearGame(rows=size, columns=size, offsets=True)
    signs = np.where(np.concatenate(parts, axis=1), np.float32(1.0), np.float32(-1.0))
    units = Units.from_arrays(signs, row_bound=game.row_bound)
    everything = LocalCurator(units, Unlimited(units.public.relation))
    mean = everything.private_engine.clipped_sum(PayoffMeans(game=game)) / n
    matrix, p, q = unpacked(game, mean)
    return Generated(game=game, units=units, matrix=matrix, p=p, q=q)


def candidates(size: int, *, quick: bool) -> dict[str, list[GameSolver | str]]:
    """The methods; of several candidates the best is chosen by its gaps."""
    drawn = {name: [named(name)] for name in NAMES}
    gains = (0.5, 2.0) if quick else (0.4, 1.0, 2.5)
    return {
        AUTO: ["auto"],
        **drawn,
        ONE_PASS: [SampledDualAveraging(batches="one pass")],
        TUNED_EG: [Scaled(NoisyExponentiatedGradient(), gain) for gain in gains],
        TUNED_DESCENT: [Scaled(SaddleGradientDescent(), gain) for gain in gains],
        PAPER: [
            SaddleMirrorDescent(schedule="paper", output="fresh", calibration="paper", steps=steps, draws=1)
            for steps in ((20,) if quick else (6, 12, 25, 50, 100))
        ],
        NO_PRIVACY: [NoisyExponentiatedGradient()],
    }


@dataclass(frozen=True)
class Scaled:
    """A solver whose steps, or temperatures, are multiplied once they are derived."""

    solver: GameSolver
    gain: float

    def configure(self, task: Task[Any]) -> GameSolver:
        """The configured solver with longer or shorter steps."""
        solver: Any = self.solver.configure(task)
        if isinstance(solver, NoisyExponentiatedGradient):
            moves = {who: _hotter(move, self.gain) for who, move in solver.moves().items()}
            return solver.with_(**moves)
        return solver.with_(step_x=solver.step_x * self.gain, step_y=solver.step_y * self.gain)


def _hotter(move: Any, gain: float) -> Noised:
    return Noised(scale=move.scale * gain, clip=move.clip, noise_multiplier=move.noise_multiplier)


def play(made: Generated, solver: Any, budget: Budget, seed: int) -> tuple[float, float, float, str]:
    """One run: gap, seconds, epsilon spent, which solver ran."""
    task = Task(made.game, made.units.public, budget)
    begun = time.perf_counter()
    chosen = choose_game(solver, task).solver if isinstance(solver, str) else solver
    configured = chosen.configure(task)
    public = made.units.public
    ledger = Ledger(budget, public.relation, plan=configured.event(public), seeded=True)
    result = configured.solve(LocalCurator(made.units, ledger, noise=NoiseSource(seed)), made.game)
    seconds = time.perf_counter() - begun
    spent = result.transcript.epsilon(budget.delta) if budget.is_private else math.inf
    return made.gap(*result.params), seconds, spent, configured.title


def measure(
    *, seeds: int, quick: bool, sizes: Sequence[int] | None = None, methods: Sequence[str] | None = None
) -> Iterator[Record]:
    """One record a size and method, and one of speed."""
    n = 4_000 if quick else N
    for size in sizes or ((10, 30) if quick else SIZES):
        made = [generated(n, size, seed) for seed in range(seeds)]
        for method, solvers in candidates(size, quick=quick).items():
            if methods and method not in methods:
                continue
            if method in SLOW and size > SLOW_SIZE:
                continue
            games = made[:2] if method in SLOW else made
            budget = Budget(math.inf if method == NO_PRIVACY else EPSILON, DELTA)
            first = Task(games[0].game, games[0].units.public, budget)
            if any(
                not isinstance(one, str | Scaled) and one.applicable(first.problem, first.public)
                for one in solvers
            ):
                continue
            runs = [
                [play(made, solver, budget, seed) for seed, made in enumerate(games)] for solver in solvers
            ]
            best = min(runs, key=lambda run: np.mean([one[0] for one in run]))
            gaps = [one[0] for one in best]
            yield {
                "benchmark": "games",
                "data": f"{size} actions",
                "method": method,
                "relation": "replace-one",
                "epsilon": EPSILON if budget.is_private else None,
                "delta": DELTA,
                "n": n,
                "size": size,
                "seeds": len(games),
                "gap": float(np.mean(gaps)),
                "gap_error": float(np.std(gaps, ddof=1) / math.sqrt(len(gaps))) if len(games) > 1 else None,
                "gap_uniform": float(np.mean([made.gap(*_uniform(size)) for made in games])),
                "ran": best[0][3],
                "spent": best[0][2] if budget.is_private else None,
                "chosen": int(runs.index(best)),
                "candidates": len(runs),
                "fit_s": float(np.mean([one[1] for one in best])),
            }
    if methods is None:
        yield speed(n, quick=quick)


def _uniform(size: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    return np.full(size, 1.0 / size), np.full(size, 1.0 / size)


def speed(n: int, *, quick: bool) -> Record:
    """300 rounds of ours, from the held payoffs on, beside a few rounds of the reference solver of the tests."""
    from tests.reference.sampled_dual_averaging import SampledDualAveraging as Reference

    size = 30 if quick else SPEED_SIZE
    made = generated(n, size, 0)
    halves = Units.from_arrays(
        np.asarray(made.units.private_features)[:, : 2 * size], row_bound=math.sqrt(2.0 * size) * (1 + 1e-6)
    )
    game = BilinearGame(rows=size, columns=size)
    solver = SampledDualAveraging(steps=SPEED_STEPS).configure(
        Task(game, halves.public, Budget(EPSILON, DELTA))
    )
    reference = Reference(rows=size, steps=REFERENCE_STEPS, draws=1, scale=1.0, clip=1.0)

    def ours(curator: LocalCurator) -> Any:
        return solver.solve(curator, game)

    seconds = [_seconds(run, halves) for run in (ours, reference.solve)]
    per_round = seconds[1] / (REFERENCE_STEPS - 1)
    return {
        "benchmark": "games",
        "data": f"{size} actions",
        "method": "speed",
        "relation": "replace-one",
        "epsilon": EPSILON,
        "n": n,
        "size": size,
        "steps": SPEED_STEPS,
        "fit_s": seconds[0],
        "reference_round_s": per_round,
        "ratio": per_round * (SPEED_STEPS - 1) / seconds[0],
    }


def _seconds(run: Callable[[LocalCurator], Any], units: Units) -> float:
    """Processor time of the second of two runs: compilation is left out, and so is what else the machine does."""
    from privopt.precision import double_precision

    with double_precision():
        for _ in range(2):
            curator = LocalCurator(units, Unlimited(units.public.relation), noise=NoiseSource(0))
            begun = time.process_time()
            run(curator)
    return time.process_time() - begun


def _gap(records: Sequence[Record], size: int, method: str) -> float | None:
    found = select(records, benchmark="games", size=size, method=method)
    return found[-1]["gap"] if found else None


def verdicts(records: Sequence[Record]) -> Iterator[Verdict]:
    """What was asked of `auto` and of the speed."""
    auto = {size: gap for size in SIZES if (gap := _gap(records, size, AUTO)) is not None}
    if 300 in auto:
        yield Verdict("auto's gap, 300 actions", auto[300], "at most 0.018", auto[300] <= 0.018)
        for rival, part, words in ((PAPER, 1 / 8, "1/8"), (TUNED_EG, 2 / 3, "2/3")):
            other = _gap(records, 300, rival)
            if other is not None:
                ratio = auto[300] / other
                yield Verdict(
                    f"auto's gap over {rival}, 300 actions", ratio, f"at most {words}", ratio <= part
                )
    for size in (10, 30):
        other = _gap(records, size, "noisy-matrix")
        if size in auto and other is not None:
            ratio = auto[size] / other
            yield Verdict(f"auto's gap over noisy-matrix, {size} actions", ratio, "at most 1.1", ratio <= 1.1)
    for size, gap in auto.items():
        ours = [one["gap"] for one in select(records, benchmark="games", size=size) if one["method"] in NAMES]
        if ours:
            ratio = gap / min(ours)
            yield Verdict(
                f"auto's gap over the best of our methods, {size} actions", ratio, "at most 1.1", ratio <= 1.1
            )
    for one in select(records, benchmark="games", method="speed", size=SPEED_SIZE):
        yield Verdict(
            "times faster than the reference, 300 rounds", one["ratio"], "at least 50", one["ratio"] >= 50
        )


def table_rows(records: Sequence[Record]) -> list[list[str]]:
    """A row a method, a column a size."""
    found = [one for one in select(records, benchmark="games") if one["method"] != "speed"]
    rows: list[list[str]] = []
    for method in dict.fromkeys(one["method"] for one in found):
        cells = {one["size"]: one for one in found if one["method"] == method}
        rows.append([method, *(_text(cells.get(size)) for size in SIZES)])
    uniform = {one["size"]: one["gap_uniform"] for one in found}
    return [
        *rows,
        ["uniform strategies", *(f"{uniform[size]:.2f}" if size in uniform else "" for size in SIZES)],
    ]


def _text(record: Record | None) -> str:
    if record is None:
        return ""
    error = "" if record["gap_error"] is None else f" ± {record['gap_error']:.1g}"
    return f"{record['gap']:.4f}{error}"


SETTINGS_HEAD = ("method", "actions", "ran", "setting", "seconds")


def setting_rows(records: Sequence[Record]) -> list[list[str]]:
    """Which solver ran, which of the candidates was best, and how long it took."""
    return [
        [
            one["method"],
            str(one["size"]),
            one["ran"],
            f"{one['chosen'] + 1} of {one['candidates']}",
            f"{one['fit_s']:.2g}",
        ]
        for one in select(records, benchmark="games")
        if one["method"] != "speed"
    ]
