"""A solver that breaks its promise is told by the name of its fault; a sound one passes."""

import itertools
from dataclasses import dataclass, field
from typing import ClassVar

import jax.numpy as jnp
import numpy as np
import pytest

from privopt.ledger.events import EveryUnit, Repeated
from privopt.mechanisms.additive import AdditiveNoise, Gaussian
from privopt.queries.base import RecordsQuery, query
from privopt.queries.slopes import ClippedGradient, record_gradient
from privopt.result import Outcome
from privopt.solvers.base import Solver
from privopt.solvers.fields import number
from privopt.status import Status
from privopt.testing import ContractViolation, Rule, check_solver

ON_PURPOSE = "A mistake; without an argument the curator would refuse it."


@dataclass(frozen=True, kw_only=True)
class Descent(Solver):
    """Gradient descent of which one part may be wrong.

    Attributes:
        steps: T.
        clip: L0, the longest gradient.
    """

    name: ClassVar[str] = "descent"

    steps: int = number(4, at_least=0)
    clip: float = number(0.4, above=0)

    def event(self, public):
        return Repeated(Gaussian(self.noise_multiplier).event(), self.steps)

    def releases(self):
        return self.steps

    def passes(self):
        return float(self.steps)

    def mechanism(self):
        return Gaussian(self.noise_multiplier)

    def asked(self, problem, at):
        return ClippedGradient(loss=problem.loss, at=at, clip=self.clip)

    def stops(self, curator):
        return False

    def end(self, curator, params):
        return params

    def run(self, curator, problem, start):
        params = start
        for _ in range(self.steps):
            if self.stops(curator):
                break
            params = params - curator.release(self.asked(problem, params), self.mechanism())
        return Outcome(self.end(curator, params), Status.FINISHED)


@query
class Unclipped(ClippedGradient):
    def clip_unit(self, private_vector):
        return private_vector


@query
class OfAllRecords(RecordsQuery):
    """The gradient of the squared loss at a point, each record's as long as it is."""

    at: jnp.ndarray
    clip: float

    def sensitivity(self, public, sampling=EveryUnit()):
        return public.relation.factor * self.clip / public.n

    def shape(self, public):
        return (public.d,)

    def value(self, public, private_features, private_targets):
        rows = np.nan_to_num(np.asarray(private_features, np.float64))
        each = (rows @ np.asarray(self.at) - 3.0 * np.nan_to_num(private_targets))[:, None] * rows
        return each.sum(axis=0) / public.n


@query
class Halved(ClippedGradient):
    sensitivity_argument: ClassVar[str] = ON_PURPOSE

    def sensitivity(self, public, sampling=EveryUnit()):
        return 0.5 * super().sensitivity(public, sampling)


@query
class OverThePrivateCount(OfAllRecords):
    def value(self, public, private_features, private_targets):
        rows = np.nan_to_num(np.asarray(private_features, np.float64))
        signs = np.sign(np.nan_to_num(private_targets))
        lengths = np.maximum(np.linalg.norm(rows, axis=1), 1e-30)
        each = (self.clip * (1 - 1e-9) * signs / lengths)[:, None] * rows
        return each.sum(axis=0) / max(len(rows), 1)


@query
class NothingIsBad(ClippedGradient):
    def record_contribution(self, private_features, private_target):
        return record_gradient(self.loss, self.at, private_features, private_target) / jnp.sqrt(
            private_target
        )

    def without_bad(self, private_vector):
        return private_vector

    def clip_unit(self, private_vector):
        return private_vector * jnp.minimum(1.0, self.clip / jnp.sqrt(jnp.sum(private_vector**2)))


@dataclass(frozen=True)
class SameNoiseAgain(AdditiveNoise):
    kept: dict = field(default_factory=dict, compare=False, hash=False, repr=False)

    def event(self):
        return Gaussian(self.noise_multiplier).event()

    def standard(self, noise, shape):
        return self.kept.setdefault(shape, noise.normal(shape))


class HalfTheNoise(AdditiveNoise):
    def event(self):
        return Gaussian(self.noise_multiplier).event()

    def standard(self, noise, shape):
        return 0.5 * noise.normal(shape)


def asking(kind):
    """A descent that asks a query of this kind."""

    class Asking(Descent):
        def asked(self, problem, at):
            rest = {"loss": problem.loss} if issubclass(kind, ClippedGradient) else {}
            return kind(at=at, clip=self.clip, **rest)

    return Asking()


def noised_by(kind):
    """A descent whose noise is made by a mechanism of this kind."""

    class Noised(Descent):
        def mechanism(self):
            return kind(self.noise_multiplier)

    return Noised()


class StopsByTheRecords(Descent):
    """It stops when the training records look easy."""

    def stops(self, curator):
        engine = getattr(curator, "private_engine", None)
        return engine is not None and float(np.nan_to_num(engine.records()[0]).sum()) > 0.0


class StopsByTheCount(Descent):
    def stops(self, curator):
        engine = getattr(curator, "private_engine", None)
        return engine is not None and engine.private_count < 30


class ScalesByTheCount(Descent):
    def end(self, curator, params):
        engine = getattr(curator, "private_engine", None)
        return params if engine is None else params * (curator.public.n / engine.private_count)


class LooksAtTheRecords(Descent):
    def end(self, curator, params):
        engine = getattr(curator, "private_engine", None)
        return (
            params if engine is None else params + 1e-9 * np.nan_to_num(engine.records()[0].astype(float))[0]
        )


class NeedsAnEngine(Descent):
    """It reads what is the same for all data, from where a replay has nothing."""

    def end(self, curator, params):
        return params * curator.private_engine.public.row_bound


class DrawsByItself(Descent):
    """Its own random numbers are no part of the transcript."""

    counter: ClassVar = itertools.count(1)

    def end(self, curator, params):
        return params + 1e-3 * next(self.counter)


class OneMore(Descent):
    def run(self, curator, problem, start):
        outcome = super().run(curator, problem, start)
        curator.release(self.asked(problem, start), self.mechanism())
        return outcome


class OneFewer(Descent):
    def run(self, curator, problem, start):
        params = start
        for _ in range(self.steps - 1):
            params = params - curator.release(self.asked(problem, params), self.mechanism())
        return Outcome(params, Status.FINISHED)


class ForgetsToScale(Descent):
    def scaled_event(self, public, factor):
        return super().scaled_event(public, factor / self.steps)


class Overflows(Descent):
    def end(self, curator, params):
        return params / 0.0


class Mumbles(Descent):
    """It is sound, and has a name that a reader would look at twice."""

    def end(self, curator, params):
        private_average = params + 1.0
        return 0.5 * private_average


FAULTY = {
    "clip forgotten": (asking(Unclipped), Rule.CLIP),
    "clip forgotten, of all records": (asking(OfAllRecords), Rule.CLIP),
    "clip infinite": (Descent(clip=np.inf), Rule.CLIP),
    "not a number survives": (asking(NothingIsBad), Rule.NOT_FINITE),
    "sensitivity halved": (asking(Halved), Rule.SENSITIVITY),
    "private count": (asking(OverThePrivateCount), Rule.COUNT),
    "noise reused": (noised_by(SameNoiseAgain), Rule.NOISE_REUSED),
    "noise halved": (noised_by(HalfTheNoise), Rule.NOISE_AMOUNT),
    "data-dependent stop": (StopsByTheRecords(), Rule.CONTROL),
    "stop by the count": (StopsByTheCount(), Rule.COUNT),
    "leaked count": (ScalesByTheCount(), Rule.COUNT),
    "records in the result": (LooksAtTheRecords(), Rule.RESULT),
    "needs an engine": (NeedsAnEngine(), Rule.RESULT),
    "random numbers of its own": (DrawsByItself(), Rule.REPEATABLE),
    "one release more": (OneMore(), Rule.PLAN),
    "one release fewer": (OneFewer(), Rule.PLAN),
    "another event for louder noise": (ForgetsToScale(), Rule.PLAN),
    "overflow": (Overflows(), Rule.FINITE_RESULT),
    "private name": (Mumbles(), Rule.NAMES),
}


@pytest.mark.later("clip forgotten", "noise halved", "not a number survives", "private name")
@pytest.mark.parametrize("name", FAULTY)
def test_a_faulty_solver_is_told_by_the_name_of_its_fault(name):
    faulty, rule = FAULTY[name]
    relations = ["add-or-remove-one"] if rule is Rule.COUNT else ["replace-one"]
    with pytest.raises(ContractViolation, match=rule.value) as raised:
        check_solver(faulty, relations=relations)
    assert raised.value.rule is rule
    assert raised.value.repeat.startswith("check_")


def test_the_solver_that_was_mutated_is_sound():
    check_solver(Descent())


def test_a_count_does_not_show_where_it_is_public_but_its_name_does():
    with pytest.raises(ContractViolation, match="its source names `private_count`"):
        check_solver(StopsByTheCount(), relations=["replace-one"])
