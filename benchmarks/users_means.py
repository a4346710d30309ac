"""Private means of K points N(mu, I / d): the error of every mean that the library has, beside the mean itself.

The points are within about b = 1 of mu; clipping around 0 knows that |mu| + 1.2 bounds them, the means behind a test
know b, or search for it. Budget (epsilon, delta = 1e-6), replace-one, one point a user.
"""

import math
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray
from scipy import stats

from benchmarks.bars import Verdict
from benchmarks.results import Record, machine, select
from privopt import user_mean
from privopt.curator.base import Curator
from privopt.curator.handles import Held
from privopt.curator.run import Run
from privopt.data.units import Units
from privopt.errors import BudgetTooSmall
from privopt.ledger.amounts import Budget
from privopt.ledger.calibration import calibrate
from privopt.ledger.events import DeltaEvent, Event, GaussianEvent, Repeated, sequence
from privopt.mechanisms.additive import Gaussian
from privopt.mechanisms.noise import NoiseSource
from privopt.mechanisms.tests import GaussianTest
from privopt.precision import double_precision
from privopt.public import Relation
from privopt.queries.moments import UserAverage
from privopt.solvers.held_means import ClippedMean, PaperOutlierMean, PrivateMean, SoftFriendlyMean

DELTA = 1e-6
BAD_EVENT_DELTA = 1e-7
SLACK = 1.2  # of the radius that the points are promised to be within
OUTLIERS = 0.05
TEST_SHARE = 0.2  # of rho, for the tests of the friendly means
RECENTRINGS = 3
CELLS = (  # K, d, |mu|, epsilon
    (500, 100, 10, 1.0),
    (500, 1000, 10, 1.0),
    (1000, 100, 10, 1.0),
    (1000, 100, 100, 1.0),
    (1000, 1000, 10, 1.0),
    (1000, 10_000, 1, 1.0),
    (3000, 1000, 10, 1.0),
    (3000, 10_000, 10, 1.0),
    (1000, 1000, 10, 4.0),
)
STATED = (3000, 1000, 10, 1.0)  # the cell whose stable mean is held against its stated cost
STATED_WITHIN = 0.15
QUICK_CELLS = ((1000, 20, 10, 4.0),)
SEEDS, QUICK_SEEDS = 8, 1
WIDE, WIDE_SEEDS = 10_000, 2  # from so many numbers a point on, fewer runs


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Points:
    """Points and what is public about them.

    Attributes:
        values: (K, d), one a user.
        centre: mu.
        epsilon: of the budget.
        seed: of the noise.
    """

    values: NDArray[np.float64]
    centre: NDArray[np.float64]
    epsilon: float
    seed: int

    @property
    def bound(self) -> float:
        """A public bound on a point's length."""
        return float(np.linalg.norm(self.centre)) + SLACK

    @property
    def radius(self) -> float:
        """Within which all but a twentieth of the points lie of mu."""
        d = self.values.shape[1]
        return math.sqrt(float(stats.chi2.ppf(1.0 - OUTLIERS, d)) / d)

    @property
    def pair_radius(self) -> float:
        """Within which all but a twentieth of the pairs of points lie."""
        return math.sqrt(2.0) * self.radius


Ended = tuple[NDArray[np.float64], str, float | None]  # the mean, how it ended, the noise its plan stated
Way = Callable[[Points], Ended]


def _without_privacy(points: Points) -> Ended:
    return points.values.mean(axis=0), "finished", None


def _around_zero(points: Points) -> Ended:
    multiplier = calibrate(GaussianEvent, Budget(points.epsilon, DELTA), Relation.REPLACE_ONE)
    return _released(points, ClippedMean(radius=points.bound, noise=Gaussian(multiplier)))


def _recentred(points: Points) -> Ended:
    """Three clipped means with a third of the budget each, every one around the last and as wide as its noise."""
    K, d = points.values.shape

    def event(z: float) -> Event:
        return Repeated(GaussianEvent(z), RECENTRINGS)

    z = calibrate(event, Budget(points.epsilon, DELTA), Relation.REPLACE_ONE)

    def release(curator: Curator, held: Held) -> tuple[Any, str]:
        centre, radius, status = jnp.zeros(d), points.bound, "finished"
        for _ in range(RECENTRINGS):
            found = ClippedMean(radius=radius, noise=Gaussian(z)).release(curator, held, centre)
            centre, status = found.value, found.status.name.lower()
            radius = min(points.bound, SLACK * (points.radius + 2.0 * radius * z * math.sqrt(d) / K))
        return centre, status

    return _run(points, event(z), release)


def _stable(points: Points) -> Ended:
    return _user_mean(points, points.radius)


def _searched(points: Points) -> Ended:
    return _user_mean(points, None)


def _soft(points: Points) -> Ended:
    """Nearly all pairs are within the radius, so W is nearly K."""
    K = len(points.values)

    def mean(scale: float) -> SoftFriendlyMean:
        test = GaussianTest(scale / math.sqrt(TEST_SHARE), BAD_EVENT_DELTA)
        slack = test.threshold(0.0, 3.0) + 9.0 * test.noise_multiplier
        return SoftFriendlyMean(
            within=points.pair_radius,
            least_weight=max((1.0 - 4.0 * OUTLIERS) * K - slack, 3.1),
            test=test,
            noise=Gaussian(scale / math.sqrt(1.0 - TEST_SHARE)),
            fallback=points.bound,
        )

    return _released(points, mean(_scale(points, BAD_EVENT_DELTA)))


def _paper(points: Points) -> Ended:
    """Nearly all pairs are within the radius; half of the bad event is the coupling's."""

    def mean(scale: float) -> PaperOutlierMean:
        return PaperOutlierMean(
            within=points.pair_radius,
            test=GaussianTest(scale / math.sqrt(TEST_SHARE), BAD_EVENT_DELTA),
            noise=Gaussian(scale / math.sqrt(1.0 - TEST_SHARE)),
            coupling_delta=BAD_EVENT_DELTA / 2.0,
            fallback=points.bound,
        )

    return _released(points, mean(_scale(points, BAD_EVENT_DELTA)))


WAYS: Mapping[str, Way] = {
    "no privacy": _without_privacy,
    "clipped around 0": _around_zero,
    "recentred": _recentred,
    "paper": _paper,
    "soft": _soft,
    "stable": _stable,
    "user_mean": _searched,
}


def measure(
    *, seeds: int | None = None, quick: bool = False, done: Collection[tuple[str, str]] = ()
) -> Iterator[Record]:
    """One record a cell and way: the mean over seeds of the distance to mu.

    Args:
        seeds: runs of a cell.
        quick: one small cell, once.
        done: (data, method) that are not measured again.
    """
    for K, d, length, epsilon in QUICK_CELLS if quick else CELLS:
        name = f"K={K} d={d} |mu|={length}"
        runs = seeds or (QUICK_SEEDS if quick else WIDE_SEEDS if d >= WIDE else SEEDS)
        for way, taken in WAYS.items():
            if (f"{name} epsilon={epsilon:g}", way) not in done:
                yield _cell(f"{name} epsilon={epsilon:g}", way, taken, (K, d, length, epsilon), runs)


def verdicts(records: Sequence[Record]) -> Iterator[Verdict]:
    """The stable mean's error against the noise that its plan states, beside that of the mean itself."""
    K, d, length, epsilon = STATED
    cell = {"points": K, "features": d, "length": length, "epsilon": epsilon}
    stable, plain = (select(records, method=name, **cell) for name in ("stable", "no privacy"))
    if stable and plain and stable[0].get("stated") is not None:
        noise = math.sqrt(max(stable[0]["error"] ** 2 - plain[0]["error"] ** 2, 0.0))
        ratio = noise / stable[0]["stated"]
        title = f"stable mean's noise over its stated cost, K = {K}, d = {d}"
        yield Verdict(title, ratio, f"within {STATED_WITHIN} of 1", abs(ratio - 1.0) <= STATED_WITHIN)


def _cell(name: str, way: str, taken: Way, cell: tuple[int, int, float, float], runs: int) -> Record:
    K, d, length, epsilon = cell
    errors: list[float] = []
    statuses: list[str] = []
    stated: float | None = None
    begun = time.perf_counter()
    found: Record = {
        "benchmark": "users",
        "data": name,
        "method": way,
        "relation": Relation.REPLACE_ONE.value,
        "epsilon": epsilon,
        "delta": DELTA,
        "points": K,
        "features": d,
        "length": length,
        "seeds": runs,
        "machine": machine(),
        "command": "python -m benchmarks users --table means",
    }
    for seed in range(runs):
        rng = np.random.default_rng([seed, K, d])
        centre = rng.normal(size=d)
        centre *= length / np.linalg.norm(centre)
        points = Points(
            values=centre + rng.normal(size=(K, d)) / math.sqrt(d), centre=centre, epsilon=epsilon, seed=seed
        )
        try:
            value, status, stated = taken(points)
        except BudgetTooSmall as refusal:
            return {**found, "refused": str(refusal)}
        errors.append(float(np.linalg.norm(value - centre)))
        statuses.append(status)
    return {
        **found,
        "error": float(np.mean(errors)),
        "error_spread": float(np.std(errors, ddof=1)) if runs > 1 else None,
        "stated": stated,
        "statuses": {one: statuses.count(one) for one in sorted(set(statuses))},
        "run_s": (time.perf_counter() - begun) / runs,
    }


def _scale(points: Points, bad_event_delta: float) -> float:
    """1 / mu of what is left of the budget beside a bad event."""

    def event(scale: float) -> Event:
        return sequence([DeltaEvent(bad_event_delta), GaussianEvent(scale)])

    return calibrate(event, Budget(points.epsilon, DELTA), Relation.REPLACE_ONE)


def _user_mean(points: Points, radius: float | None) -> Ended:
    found = user_mean(
        points.values,
        np.arange(len(points.values)),
        bound=points.bound,
        radius=radius,
        epsilon=points.epsilon,
        delta=DELTA,
        random_state=points.seed,
    )
    stated = found.plan.indicators.get("noise")
    return np.asarray(found.value), found.status.name.lower(), None if stated is None else stated.value


def _released(points: Points, mean: PrivateMean) -> Ended:
    d = points.values.shape[1]

    def release(curator: Curator, held: Held) -> tuple[Any, str]:
        found = mean.release(curator, held, jnp.zeros(d))
        return found.value, found.status.name.lower()

    return _run(points, mean.event(), release)


def _run(points: Points, event: Event, release: Callable[[Curator, Held], tuple[Any, str]]) -> Ended:
    """Hold the points behind a curator and release from them."""
    noise = NoiseSource(points.seed)
    budget = Budget(points.epsilon, DELTA)
    with double_precision():
        units = Units.from_arrays(
            points.values, row_bound=points.bound, groups=np.arange(len(points.values)), noise=noise
        )
        run = Run("mean", event, budget, units.public, noise=noise, seeded=units.seeded)
        curator = run.curator(units)
        value, status = release(curator, curator.hold(UserAverage(bound=points.bound)))
    return np.asarray(value), status, None
