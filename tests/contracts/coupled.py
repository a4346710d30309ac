"""One run on two data sets: recorded on the first, forced to the same outputs on the second.

What is asked for, how often, at which sensitivity and with how much noise must not depend on whose data it is; each
statistic may move by its sensitivity; and what all of them reveal together may not exceed what was paid.
"""

import math
from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
from tests.support.formula_noise import FormulaNoise, silence
from tests.support.plain_logistic import PlainLogistic

from privopt.curator.audit import distance
from privopt.curator.local import LocalCurator
from privopt.data.units import Units
from privopt.ledger import accounting
from privopt.ledger.amounts import Budget
from privopt.ledger.ledger import Ledger
from privopt.mechanisms.noise import NoiseSource
from privopt.papers.dp_spider import DPSpider
from privopt.problems.growth import KL
from privopt.problems.losses import RecordLoss
from privopt.problems.problem import Problem
from privopt.solvers.adaptive_gradient_descent import AdaptiveGradientDescent
from privopt.solvers.continuous_spider import ContinuousSpider
from privopt.solvers.gradient_descent import GradientDescent
from privopt.solvers.kl_proximal_point import KLProximalPoint
from privopt.solvers.kl_spider import KLSpider

WIDE = Budget(1e12, 1e-6)
RELATIONS = ("replace-one", "add-or-remove-one")
SLACK = 1.0 + 1e-9
CURVATURE = 0.25
LOGISTIC = Problem(PlainLogistic())

_GIVEN = {"clip": 1.0, "step_size": 1.0, "curvature": CURVATURE}
_TRACKED = {"window": 10, "noise_ratio": 0.5, "trace_ratio": 1.0, **_GIVEN}
_SMOOTH = {"clip": 1.0, "curvature": CURVATURE, "smoothness": CURVATURE}
_SHARP = KL(gamma=2.0, kappa=2.0, gap=0.7)

# Every method for objectives with a KL condition, with all that could be derived given.
METHODS = {
    "geometric gradient descent": GradientDescent.geometric(
        steps=6,
        ratio=0.5**-2.5,
        contraction=0.5,
        clip=1.0,
        step_size=1.0,
        smoothness=CURVATURE,
        noise_multiplier=2.0,
    ),
    "continuous spider": ContinuousSpider(
        steps=6, difference_clip=1.0, momentum=0.0, distance=10.0, noise_multiplier=2.0, **_GIVEN
    ),
    "continuous spider, momentum": ContinuousSpider(
        steps=6,
        difference_clip=1.0,
        momentum=0.5,
        gain="average",
        distance=10.0,
        noise_multiplier=2.0,
        **_GIVEN,
    ),
    "adaptive gradient descent": AdaptiveGradientDescent(
        most_steps=8, noise_multiplier=0.5, returns="last", **_TRACKED
    ),
    "adaptive gradient descent, selected": AdaptiveGradientDescent(
        most_steps=4, noise_multiplier=0.5, returns="selected", **_TRACKED
    ),
    "adaptive gradient descent, the paper's": AdaptiveGradientDescent(
        variant="paper", most_steps=4, noise_multiplier=0.05, returns="last", **_TRACKED
    ),
    "kl spider": KLSpider(growth=_SHARP, noise_multiplier=0.1, most_steps=30, **_SMOOTH),
    "kl spider, no recycling": KLSpider(
        growth=_SHARP, noise_multiplier=0.1, most_steps=30, recycle=False, **_SMOOTH
    ),
    "kl spider, the paper's": KLSpider(
        variant="paper", growth=KL(gamma=0.5, kappa=1.2), noise_multiplier=1e-4, most_steps=8, **_SMOOTH
    ),
    "kl proximal point": KLProximalPoint(
        outer_steps=2, inner_steps=3, weight=0.5, clip=1.0, noise_multiplier=2.0
    ),
    "dp spider": DPSpider(steps=7, period=3, noise_multiplier=2.0, **_GIVEN),
}
PAPER_MODES = {name for name in METHODS if "the paper's" in name}
OF_DIFFERENCES = {name for name in METHODS if "spider" in name}


class Recording(LocalCurator):
    """A curator that remembers each statistic before its noise, and the norm it is measured in."""

    def __init__(self, *args, seen=None, **options):
        super().__init__(*args, **options)
        self.seen = [] if seen is None else seen

    def _child(self, private_engine, ledger):
        return type(self)(
            private_engine,
            ledger,
            noise=self._noise,
            transcript=self.transcript,
            seen=self.seen,
            **self._rest(),
        )

    def _rest(self):
        return {}

    def _answer(self, query, mechanism, sampling, sensitivity):
        private_value = np.asarray(self.private_value(query, sampling, self.private_draw(sampling)))
        self.seen.append((private_value, query.norm))
        return self._said(mechanism, private_value, float(sensitivity))

    def _said(self, mechanism, private_value, sensitivity):
        return mechanism.release(self._noise, private_value, sensitivity)


class Forced(Recording):
    """Computes the statistics of its own data, and answers what was answered in another run."""

    def __init__(self, *args, answers, **options):
        super().__init__(*args, **options)
        self.answers = answers

    def _rest(self):
        return {"answers": self.answers}

    def _said(self, mechanism, private_value, sensitivity):
        return next(self.answers)


@dataclass(frozen=True)
class Coupling:
    """What a run on one data set and the forced run on its neighbour have in common, release by release."""

    names: tuple[tuple[str, ...], tuple[str, ...]]
    sensitivities: tuple[np.ndarray, np.ndarray]
    scales: tuple[np.ndarray, np.ndarray]  # not a number for a selection
    moved: np.ndarray
    paid: float  # rho
    params: tuple[np.ndarray, np.ndarray]

    @property
    def ratios(self):
        """Distance moved over stated sensitivity; infinite where the distance is not a number."""
        stated = np.where(self.moved == 0.0, 1.0, self.sensitivities[0])
        with np.errstate(divide="ignore"):
            return np.where(np.isnan(self.moved), np.inf, self.moved / stated)

    @property
    def revealed(self):
        """The sum of |moved|^2 / (2 variance) over the releases with Gaussian noise."""
        noisy = (self.moved != 0.0) & ~np.isnan(self.scales[0])
        with np.errstate(divide="ignore"):
            return float(np.sum(self.moved[noisy] ** 2 / (2.0 * self.scales[0][noisy] ** 2)))

    @property
    def faults(self):
        """Which of the promises are broken; none of a sound method."""
        found = []
        if self.names[0] != self.names[1]:
            return ["different releases"]
        for what, (left, right) in {"sensitivity": self.sensitivities, "noise": self.scales}.items():
            if not np.array_equal(left, right, equal_nan=True):
                found.append(f"{what} depends on data")
        if not np.array_equal(*self.params):
            found.append("the result is no function of the releases")
        if not np.all(self.ratios <= SLACK):
            found.append("moved too far")
        if not self.revealed <= self.paid * SLACK:
            found.append("revealed more than was paid")
        return found


def couple(solver, problem, left, right, noise=None):
    """Run a solver, all fields given, on `left`, and on `right` with the same outputs."""
    public, noise = left.public, NoiseSource(5) if noise is None else noise
    ledgers = [Ledger(WIDE, public.relation, plan=solver.event(public)) for _ in range(2)]
    first = Recording(left, ledgers[0], noise=noise)
    one = solver.solve(first, problem)
    answers = iter([value for release in one.transcript for value in release.released])
    second = Forced(right, ledgers[1], noise=FormulaNoise(silence), answers=answers)
    other = solver.solve(second, problem)
    moved = [distance(a, b, norm) for (a, norm), (b, _) in zip(first.seen, second.seen, strict=False)]
    lines = one.transcript, other.transcript
    return Coupling(
        names=tuple(tuple(r.name for r in line for _ in range(r.count)) for line in lines),
        sensitivities=tuple(np.concatenate([r.sensitivity for r in line]) for line in lines),
        scales=tuple(
            np.concatenate([np.full(r.count, np.nan) if r.scale is None else r.scale for r in line])
            for line in lines
        ),
        moved=np.asarray(moved),
        paid=accounting.zcdp_rho(solver.event(public)),
        params=(np.asarray(one.params), np.asarray(other.params)),
    )


def outlier_pair(relation, *, n=40, d=4, users=False, seed=1):
    """Records, and the same with the last one replaced by a huge one of the wrong class, or with that one added."""
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(n, d)) / math.sqrt(d)
    targets = np.where(rows[:, 0] + 0.3 * rng.normal(size=n) > 0, 1.0, -1.0)
    other, turned = rows.copy(), targets.copy()
    other[-1], turned[-1] = 1e6 * rows[0], -targets[0]
    kept = n if relation == "replace-one" else n - (2 if users else 1)
    groups = {"groups": np.arange(n) // 2, "max_records_per_user": 2} if users else {}

    def units(x, y, count):
        own = groups | {"groups": groups["groups"][:count]} if users else {}
        return Units.from_arrays(
            x[:count], y[:count], row_bound=1.0, relation=relation, n=n // 2 if users else n,
            storage="float64", **own,
        )  # fmt: skip

    return units(rows, targets, kept), units(other, turned, n)


def tilted(params, features, target):
    """<features, params> + target L1 |params|^2 / 2: a bowl or a hill; -features and -target give its opposite."""
    return features @ params + 0.5 * target * CURVATURE * jnp.sum(params**2)


TILTED = Problem(RecordLoss(tilted, curvature=CURVATURE))


def tight_pair(sign, *, n=12, relation="replace-one", turned=None):
    """All records alike, of norm 1 and this sign; and one of them replaced by its opposite."""
    row = np.array([0.6, 0.0, 0.8])
    rows, targets = np.tile(row, (n, 1)), np.full(n, float(sign))
    other, opposite = rows.copy(), targets.copy()
    other[4], opposite[4] = -row, -float(sign) if turned is None else turned
    return tuple(
        Units.from_arrays(x, y, row_bound=1.0, relation=relation, n=n, storage="float64")
        for x, y in ((rows, targets), (other, opposite))
    )
