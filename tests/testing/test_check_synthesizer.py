"""A synthesizer that breaks its promise is told by the name of its fault; a sound one passes."""

import itertools
from typing import ClassVar

import numpy as np
import pytest

from privopt.ledger.events import EveryUnit
from privopt.problems.workload import Workload
from privopt.queries.base import query
from privopt.queries.marginals import MarginalMeans
from privopt.status import Status
from privopt.synthesis.base import Histogram
from privopt.synthesis.registry import GaussianMarginals
from privopt.testing import ContractViolation, Rule, check_synthesizer


class Plain(GaussianMarginals):
    """One release, and a model that shows the first released answer; one part of it may be wrong."""

    def asked(self, workload):
        return MarginalMeans(workload=workload)

    def shown(self, curator, answer):
        return answer

    def run(self, curator, workload):
        answers = np.asarray(curator.release(self.asked(workload), self.gaussian(1.0)))
        weights = np.ones(
            workload.universe if hasattr(workload, "universe") else int(np.prod(workload.levels))
        )
        weights[0] += np.clip(self.shown(curator, answers[0]), 0.0, 1.0)
        outcome = super().run(_Answered(curator, workload), workload)
        return outcome._replace(params=Histogram(workload.levels, weights / weights.sum()))


class _Answered:
    """Answers with zeros what a subclass has asked for already."""

    def __init__(self, curator, workload):
        self.public, self._workload = curator.public, workload

    def release(self, asked, mechanism):
        return np.zeros(asked.shape(self.public))


class OfOtherMarginals(Plain):
    """Releases marginals that it chose itself, of other columns than it was asked for."""

    def asked(self, workload):
        return MarginalMeans(workload=Workload(workload.levels, sets=((1,), (0,))))


@query
class HalvedMarginals(MarginalMeans):
    sensitivity_argument: ClassVar[str] = "A mistake; without an argument the curator would refuse it."

    def sensitivity(self, public, sampling=EveryUnit()):
        return 0.5 * super().sensitivity(public, sampling)


class AsksHalved(Plain):
    def asked(self, workload):
        return HalvedMarginals(workload=workload)


class OneMore(Plain):
    def run(self, curator, workload):
        curator.release(self.asked(workload), self.gaussian(1.0))
        return super().run(curator, workload)


class LooksAtTheCount(Plain):
    def shown(self, curator, answer):
        engine = getattr(curator, "private_engine", None)
        return answer if engine is None else 1.0 / engine.private_count


class StopsByTheCount(Plain):
    def run(self, curator, workload):
        outcome = super().run(curator, workload)
        engine = getattr(curator, "private_engine", None)
        few = engine is not None and engine.private_count < 20
        return outcome._replace(status=Status.DIVERGED) if few else outcome


class DrawsByItself(Plain):
    counter: ClassVar = itertools.count(1)

    def shown(self, curator, answer):
        return 1.0 / (1.0 + next(self.counter))


class _Shifted(Histogram):
    def sample(self, rows, generator):
        return super().sample(rows, generator) + 10


class SamplesOtherCells(Plain):
    def run(self, curator, workload):
        params = super().run(curator, workload).params
        return (
            super(Plain, self)
            .run(_Answered(curator, workload), workload)
            ._replace(params=_Shifted(params.levels, params.weights))
        )


class NamesThePrivate(Plain):
    def shown(self, curator, answer):
        private_answer = answer
        return 1.0 * private_answer


FAULTY = {
    "sensitivity halved": (AsksHalved(), Rule.SENSITIVITY),
    "one release more": (OneMore(), Rule.PLAN),
    "the count in the model": (LooksAtTheCount(), Rule.COUNT),
    "stop by the count": (StopsByTheCount(), Rule.COUNT),
    "random numbers of its own": (DrawsByItself(), Rule.REPEATABLE),
    "other cells": (SamplesOtherCells(), Rule.SHAPE),
    "private name": (NamesThePrivate(), Rule.NAMES),
}


@pytest.mark.parametrize("name", FAULTY)
def test_a_faulty_synthesizer_is_told_by_the_name_of_its_fault(name):
    faulty, rule = FAULTY[name]
    relations = ["add-or-remove-one"] if rule is Rule.COUNT else ["replace-one"]
    with pytest.raises(ContractViolation, match=rule.value) as raised:
        check_synthesizer(faulty, relations=relations)
    assert raised.value.rule is rule
    assert raised.value.repeat.startswith("check_")


@pytest.mark.parametrize("synthesizer", [OfOtherMarginals(), GaussianMarginals(iterations=3)])
def test_a_sound_one_passes(synthesizer):
    check_synthesizer(synthesizer)
