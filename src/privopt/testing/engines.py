"""The contract of an engine: the plain engine's sums, no unit beyond its radius, and nothing that data can show."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from privopt.curator.audit import Audit
from privopt.data.places import GivenPlaces, Stretch
from privopt.data.units import Units
from privopt.engine.protocol import Engine
from privopt.engine.reference import ReferenceEngine
from privopt.later import jnp
from privopt.ledger.events import EveryUnit, FixedSize, Poisson, Sampling
from privopt.ledger.payer import Unlimited
from privopt.mechanisms.noise import NoiseSource
from privopt.precision import in_float64
from privopt.problems import losses
from privopt.public import Relation
from privopt.queries.base import MeanQuery
from privopt.queries.safeguards import lengths_of
from privopt.queries.slopes import ClippedGradient, GradientNorm
from privopt.testing.queries import SLACK, quietly
from privopt.testing.toy_data import (
    ContractViolation,
    Layout,
    Rule,
    Setting,
    Storage,
    hostile_pair,
    ordinary_pair,
    settings,
)

Made: TypeAlias = Callable[[Units], Engine]
_CLOSE = 1e-8  # relative to n times the radius; the plain engine's own roundings are 1e-14


def check_engine(
    engine: Made,
    *,
    queries: Sequence[MeanQuery] = (),
    columns: int = 4,
    relations: Sequence[Relation | str] = ("replace-one", "add-or-remove-one"),
    layouts: Sequence[Layout] = ("dense",),
    storages: Sequence[Storage] = ("float64",),
    pairs: int = 4,
    seed: int = 0,
) -> None:
    """Hold an engine to its promises, on ordinary and on hostile records.

    Args:
        engine: makes one from units: the class, if it is made from them alone.
        queries: what it is asked, of rows of `columns` features; by default clipped gradients and their norms.
        columns: features of a record.
        relations: which data sets are neighbours.
        layouts: how records are laid out.
        storages: of the rows.
        pairs: hostile neighbours in each way.
        seed: of the first pair.
    Raises:
        ContractViolation: which names the promise that was broken.
    """
    trials: list[_Trial] = []
    with in_float64():
        asked = list(queries) or plain_queries(columns)
        for setting in settings(columns, 1.5, (), relations=relations, layouts=layouts, storages=storages):
            again = (
                f"check_engine(engine, columns={columns}, {setting.arguments}, pairs={pairs}, seed={seed})"
            )
            trial = _Trial(engine, setting, again)
            trials.append(trial)
            with quietly(engine, again):
                trial.require_same_draws(seed)
                for query in asked:
                    trial.require_sensitivity(query)
                    for number in range(seed, seed + pairs):
                        trial.require_points(query, number)
                        trial.require_near(query, number)
                    trial.require_sums(query)
        # Two queries of one form that differ in their numbers: an engine that keeps queries must not mix them up.
        again_asked = [*asked, *([] if queries else [moved_on(columns)])]
        for trial in trials:
            trial.require_public()
            trial.require_made(asked[0])
            trial.require_again(again_asked)


def plain_queries(columns: int) -> list[MeanQuery]:
    """Clipped gradients, near the records and far from them, and their norms. Inside `double_precision`."""
    at = jnp.linspace(-0.5, 1.0, columns)
    return [
        ClippedGradient(loss=losses.logistic, at=at, clip=0.3),
        ClippedGradient(loss=losses.squared, at=100.0 * at, clip=0.3),
        GradientNorm(loss=losses.squared, at=at, clip=0.4),
    ]


def moved_on(columns: int) -> MeanQuery:
    """The first of `plain_queries` at another point."""
    return ClippedGradient(loss=losses.logistic, at=jnp.linspace(2.0, -1.5, columns), clip=0.3)


@dataclass(frozen=True)
class _Trial:
    """An engine on data of one setting."""

    make: Made
    setting: Setting
    again: str

    def violated(self, rule: Rule, found: str, case: str) -> ContractViolation:
        subject = self.make if isinstance(self.make, type) else self.engine
        return ContractViolation(rule, subject, found, case=f"{self.setting}, {case}", repeat=self.again)

    @cached_property
    def units(self) -> Units:
        """All units, of ordinary records."""
        return ordinary_pair(0, self.setting, target_scale=1.0, present=self.setting.units)[1]

    @cached_property
    def engine(self) -> Engine:
        return self.make(self.units)

    def asked(self, ask: Callable[[], Any], what: str, case: str) -> Any:
        """What an engine answers; nothing may be raised."""
        try:
            with np.errstate(all="raise"):  # as a user may have set it
                return ask()
        except Exception as error:
            raise self.violated(Rule.QUIET, f"{what} raises a {type(error).__name__}", case) from error

    def require_public(self) -> None:
        """It describes the units as they are, and so do its views and parts, which are of its own kind."""
        engine, case = self.engine, "ordinary records"
        if engine.public != self.units.public or engine.private_count != self.units.private_count:
            raise self.violated(Rule.PATHS, "`public` or the number of units is not that of the units", case)
        part = engine.subset(Stretch(0, 3), 3)
        others = {"subset": part, "view": engine.view(np.eye(self.setting.columns), 1.5)}
        for name, other in others.items():
            if type(other) is not type(engine):
                what = f"`{name}` makes a {type(other).__name__}, an engine of another kind"
                raise self.violated(Rule.PATHS, what, case)
        if part.public.n != 3 or part.private_count != 3:
            raise self.violated(Rule.PATHS, "three of the units are not three", case)

    def require_same_draws(self, seed: int) -> None:
        """Who takes part is drawn from the generator, whatever the units hold."""
        samplings: list[Sampling] = [EveryUnit(), Poisson(0.5), FixedSize(3, self.setting.units)]
        rows = np.full((self.setting.records, self.setting.columns), 1e300)
        rows[::2] = np.nan
        other = self.make(self.setting.stored(rows, np.full(self.setting.records, -1e300)))
        for sampling in samplings:
            for number in range(seed, seed + 5):
                drawn = [
                    np.asarray(one.draw(sampling, np.random.default_rng(number)))
                    for one in (self.engine, other)
                ]
                case = f"{type(sampling).__name__}, seed {number}"
                if not np.array_equal(drawn[0], drawn[1]):
                    raise self.violated(Rule.DRAW, "who takes part depends on the records", case)
                inside = np.all((drawn[0] >= 0) & (drawn[0] < self.engine.private_count))
                if len(np.unique(drawn[0])) != len(drawn[0]) or not inside:
                    raise self.violated(Rule.DRAW, "a unit takes part twice, or is none", case)

    def require_sensitivity(self, query: MeanQuery) -> None:
        """Its sensitivity is no smaller than the query's."""
        for sampling in (EveryUnit(), Poisson(0.5)):
            least = float(query.sensitivity(self.units.public, sampling))
            stated = float(self.engine.sensitivity(query, sampling))
            if not stated >= least * (1.0 - 1e-12):
                what = f"it states {stated:.4g} for a {query.name}, which may move by {least:.4g}"
                raise self.violated(Rule.SENSITIVITY, what, type(sampling).__name__)

    def require_points(self, query: MeanQuery, number: int) -> None:
        """There are as many points as the plain engine has, each within the radius; nothing is raised for a sum."""
        for side, units in zip(("left", "right"), hostile_pair(number, self.setting)[:2], strict=True):
            case = f"{query.name}, {side} of hostile pair {number}"
            engine, plain = self.make(units), ReferenceEngine(units)
            points = self.asked(lambda engine=engine: np.asarray(engine.gather(query)), "`gather`", case)
            if points.shape != plain.gather(query).shape:
                what = f"`gather` has {len(points)} rows where n = {units.public.n} units have one each, absent or not"
                raise self.violated(Rule.COUNT, what, case)
            self._require_radius(query, points, case)
            if not np.array_equal(np.asarray(engine.presence()), plain.presence()):
                raise self.violated(Rule.COUNT, "`presence` is not who is there by the public rule", case)

    def require_sums(self, query: MeanQuery) -> None:
        """Sums are those of the plain engine, of all units and of some, where no number is near the largest."""
        for number, target_scale in enumerate((1.0, 1e-20, 1e6)):
            _, units, _ = ordinary_pair(
                number, self.setting, target_scale=target_scale, present=self.setting.units
            )
            engine, plain = self.make(units), ReferenceEngine(units)
            for draw in (None, np.arange(0, units.private_count, 2)):
                case = (
                    f"{query.name} of {'all' if draw is None else 'some'} units, targets of {target_scale:g}"
                )
                found = self.asked(
                    lambda engine=engine, draw=draw: np.asarray(engine.clipped_sum(query, draw)),
                    "a sum",
                    case,
                )
                self._require_close(query, found, plain.clipped_sum(query, draw), case)

    def require_made(self, query: MeanQuery) -> None:
        """Sums over some units, over mapped rows, and over mapped rows of some, are those of the plain engine."""
        matrix = np.diag(np.linspace(1.0, -0.5, self.setting.columns))
        some = GivenPlaces(np.arange(0, self.setting.units, 2))

        def made(engine: Engine) -> dict[str, Engine]:
            subset = engine.subset(some, len(some))
            return {
                "a subset": subset,
                "a view": engine.view(matrix, 1.5),
                "a view of a subset": subset.view(matrix, 1.5),
            }

        plain = made(ReferenceEngine(self.units))
        for case, engine in made(self.engine).items():
            found = self.asked(lambda engine=engine: np.asarray(engine.clipped_sum(query)), "a sum", case)
            self._require_close(query, found, plain[case].clipped_sum(query), case)

    def require_again(self, queries: Sequence[MeanQuery]) -> None:
        """What was asked before does not show: each query has its own sum, and the same to the last bit once more."""
        rng, shape = np.random.default_rng(0), (self.setting.records, self.setting.columns)
        rows = rng.normal(size=shape) * 10.0 ** rng.uniform(-1.0, 0.5, (shape[0], 1))  # of different lengths
        units = self.setting.stored(rows, rng.choice([-1.0, 1.0], shape[0]))
        engine, plain = self.make(units), ReferenceEngine(units)
        first: dict[int, bytes] = {}
        for turn in range(2):
            for place, query in enumerate(queries):
                case = f"{query.name}, after others" if turn or place else query.name
                found = self.asked(lambda query=query: np.asarray(engine.clipped_sum(query)), "a sum", case)
                self._require_close(query, found, plain.clipped_sum(query), case)
                if found.tobytes() != first.setdefault(place, found.tobytes()):
                    raise self.violated(Rule.PATHS, "a sum that is asked for again has other bits", case)

    def _require_close(
        self, query: MeanQuery, found: NDArray[np.float64], wanted: NDArray[np.float64], case: str
    ) -> None:
        room = _CLOSE * self.units.public.n * float(query.radius())
        if found.shape != wanted.shape or not np.allclose(found, wanted, rtol=0.0, atol=room):
            raise self.violated(Rule.PATHS, "a sum is not that of the plain engine", case)

    def _require_radius(self, query: MeanQuery, points: NDArray[np.float64], case: str) -> None:
        if not np.all(np.isfinite(points)):
            raise self.violated(Rule.NOT_FINITE, "a unit's contribution is not finite", case)
        lengths, radius = np.asarray(lengths_of(query, jnp.asarray(points))), float(query.radius())
        if np.max(lengths, initial=0.0) > radius * (1.0 + 1e-12):
            what = f"a unit contributes {np.max(lengths):.4g}, where its radius is {radius:.4g}"
            raise self.violated(Rule.CLIP, what, case)

    def require_near(self, query: MeanQuery, number: int) -> None:
        """No unit moves a mean by more than its sensitivity, the rounding that is added to it included."""
        pair = hostile_pair(number, self.setting)
        left, right = (self.make(units) for units in pair[:2])
        audit = Audit(left, right, Unlimited(self.setting.relation), noise=NoiseSource(0), place=pair.place)
        case = f"{query.name}, hostile pair {number}"
        ratio = self.asked(lambda: audit.compare(query), "a mean", case)
        if not ratio <= SLACK:
            what = f"one unit moves a mean by {ratio:.4g} times its sensitivity"
            raise self.violated(Rule.SENSITIVITY, what, case)
