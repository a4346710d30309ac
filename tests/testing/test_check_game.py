"""A solver of games that breaks its promise is told by the name of its fault; a sound one passes."""

import dataclasses
import itertools
from typing import ClassVar

import numpy as np
import pytest

from privopt.games.dual_averaging import SampledDualAveraging
from privopt.games.noisy_matrix import NoisyMatrix
from privopt.ledger.events import EveryUnit
from privopt.mechanisms.additive import Gaussian
from privopt.mechanisms.vertex_stream import VertexSampler
from privopt.planning.plan import Finding
from privopt.queries.base import query
from privopt.queries.payoffs import PayoffMeans
from privopt.status import Status
from privopt.testing import ContractViolation, Rule, check_game


def released(curator, game, noise_multiplier, kind=PayoffMeans):
    return np.asarray(curator.release(kind(game=game), Gaussian(noise_multiplier)))


@query
class HalvedPayoffs(PayoffMeans):
    sensitivity_argument: ClassVar[str] = "A mistake; without an argument the curator would refuse it."

    def sensitivity(self, public, sampling=EveryUnit()):
        return 0.5 * super().sensitivity(public, sampling)


class AsksHalved(NoisyMatrix):
    def run(self, curator, game):
        released(curator, game, self.noise_multiplier, HalvedPayoffs)
        return super().run(_Silent(curator, game), game)


class _Silent:
    """Answers what has been asked with zeros, so that a faulty release stands for the one of the method."""

    def __init__(self, curator, game):
        self.public, self._game = curator.public, game

    def release(self, asked, mechanism):
        return np.zeros(asked.shape(self.public))


class OneMore(NoisyMatrix):
    def run(self, curator, game):
        released(curator, game, self.noise_multiplier)
        return super().run(curator, game)


class NoRelease(NoisyMatrix):
    def run(self, curator, game):
        return super().run(_Silent(curator, game), game)


class LooksAtTheRecords(NoisyMatrix):
    def run(self, curator, game):
        outcome = super().run(curator, game)
        engine = getattr(curator, "private_engine", None)
        if engine is None or np.nan_to_num(engine.records()[0]).sum() < 0:
            return outcome
        return outcome._replace(params=tuple(np.roll(part, 1) for part in outcome.params))


class LooksAtTheRecordsInAFinding(NoisyMatrix):
    def run(self, curator, game):
        outcome = super().run(curator, game)
        engine = getattr(curator, "private_engine", None)
        total = 0.0 if engine is None else float(np.nan_to_num(engine.records()[0]).sum())
        return outcome._replace(
            findings={**outcome.findings, "total": Finding(total, "The sum of the records.")}
        )


class StopsByTheCount(NoisyMatrix):
    def run(self, curator, game):
        outcome = super().run(curator, game)
        engine = getattr(curator, "private_engine", None)
        few = engine is not None and engine.private_count < 20
        return outcome._replace(status=Status.DIVERGED) if few else outcome


class DrawsByItself(NoisyMatrix):
    counter: ClassVar = itertools.count(1)

    def run(self, curator, game):
        outcome = super().run(curator, game)
        x, y = outcome.params
        share = 1.0 / (2.0 + next(self.counter))
        return outcome._replace(params=((1 - share) * x + share / len(x), y))


class LeavesTheSet(NoisyMatrix):
    def run(self, curator, game):
        outcome = super().run(curator, game)
        return outcome._replace(params=(2.0 * outcome.params[0], outcome.params[1]), findings={})


class NotFinite(NoisyMatrix):
    def run(self, curator, game):
        outcome = super().run(curator, game)
        return outcome._replace(params=tuple(part / 0.0 for part in outcome.params))


class NamesThePrivate(NoisyMatrix):
    def run(self, curator, game):
        private_outcome = super().run(curator, game)
        return private_outcome._replace()


class HalfTheRange(VertexSampler):
    """Every unit is said to be in one item, and is in all of them."""

    def admits(self, items):
        return True

    def covers(self, entry):
        return True


class PaysForOneRound(SampledDualAveraging):
    def sampler(self, who, public):
        whole = super().sampler(who, public)
        fields = {field.name: getattr(whole, field.name) for field in dataclasses.fields(whole) if field.init}
        return HalfTheRange(**fields | {"participation": VertexSampler.one_item(whole.items)})


FAULTY = {
    "sensitivity halved": (AsksHalved(), Rule.SENSITIVITY),
    "one release more": (OneMore(), Rule.PLAN),
    "no release": (NoRelease(), Rule.PLAN),
    "records in the result": (LooksAtTheRecords(), Rule.RESULT),
    "records in a finding": (LooksAtTheRecordsInAFinding(), Rule.RESULT),
    "stop by the count": (StopsByTheCount(), Rule.COUNT),
    "random numbers of its own": (DrawsByItself(), Rule.REPEATABLE),
    "a strategy outside its set": (LeavesTheSet(), Rule.SHAPE),
    "not finite": (NotFinite(), Rule.FINITE_RESULT),
    "private name": (NamesThePrivate(), Rule.NAMES),
    "hidden scores paid for once": (PaysForOneRound(steps=5), Rule.HIDDEN_MOVE),
}


@pytest.mark.later("a strategy outside its set", "hidden scores paid for once", "sensitivity halved")
@pytest.mark.parametrize("name", FAULTY)
def test_a_faulty_solver_of_games_is_told_by_the_name_of_its_fault(name):
    faulty, rule = FAULTY[name]
    relations = ["add-or-remove-one"] if rule is Rule.COUNT else ["replace-one"]
    with (
        np.errstate(divide="ignore", invalid="ignore"),
        pytest.raises(ContractViolation, match=rule.value) as raised,
    ):
        check_game(faulty, relations=relations)
    assert raised.value.rule is rule
    assert raised.value.repeat.startswith("check_")


@pytest.mark.parametrize("solver", [NoisyMatrix(), SampledDualAveraging(steps=4)])
def test_a_sound_one_passes(solver):
    check_game(solver, relations=["replace-one"])
