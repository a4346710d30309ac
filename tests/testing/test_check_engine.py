"""An engine that breaks its promise is told by the name of its fault; the library's own pass."""

from dataclasses import replace

import numpy as np
import pytest

from privopt.engine.in_process import InProcessEngine
from privopt.engine.reference import ReferenceEngine
from privopt.problems import losses
from privopt.queries.slopes import ClippedGradient
from privopt.testing import ContractViolation, Rule, check_engine

QUICK = {"queries": [ClippedGradient(loss=losses.squared, at=np.array([3.0, -2.0, 5.0, 1.0]), clip=0.3)]}


@pytest.mark.later("InProcessEngine")
@pytest.mark.parametrize("engine", [InProcessEngine, ReferenceEngine])
def test_the_engines_of_the_library_pass(engine):
    check_engine(engine, relations=["add-or-remove-one"], pairs=2)


class ClipForgotten(ReferenceEngine):
    def gather(self, query):
        return super().gather(replace(query, clip=3.0))

    def clipped_sum(self, query, private_draw=None):
        return super().clipped_sum(replace(query, clip=3.0), private_draw)


class SumsAnother(ReferenceEngine):
    def clipped_sum(self, query, private_draw=None):
        return 1.001 * super().clipped_sum(query, private_draw)


class ForgetsTheDraw(ReferenceEngine):
    def clipped_sum(self, query, private_draw=None):
        return super().clipped_sum(query)


class CountsThoseWhoAreThere(ReferenceEngine):
    def gather(self, query):
        return super().gather(query)[: self.private_count]


class LeavesOutTheEmpty(ReferenceEngine):
    def presence(self):
        return super().presence() & np.any(self.gather(*QUICK["queries"]) != 0, axis=1)


class PrefersLargeRows(ReferenceEngine):
    def draw(self, sampling, generator):
        drawn = super().draw(sampling, generator)
        sizes = np.nansum(np.abs(np.asarray(self.units.private_features, float)), axis=1)
        return drawn[sizes[drawn] > 0] if len(drawn) < self.private_count else drawn


class NotANumber(ReferenceEngine):
    def gather(self, query):
        points = super().gather(query)
        points[~np.any(points != 0, axis=1)] = np.nan
        return points


class Checks(ReferenceEngine):
    def clipped_sum(self, query, private_draw=None):
        if np.any(np.abs(self.units.private_targets) > 1e100):
            raise ValueError("a target is out of range")
        return super().clipped_sum(query, private_draw)


class HalvesTheSensitivity(ReferenceEngine):
    def sensitivity(self, query, sampling):
        return 0.5 * super().sensitivity(query, sampling)


class AnotherView(ReferenceEngine):
    def view(self, matrix, row_bound):
        return InProcessEngine(self.units.mapped(matrix, row_bound))

    def subset(self, private_places, size):
        return AnotherView(self.units.subset(private_places, size))


FAULTY = {
    ClipForgotten: Rule.CLIP,
    SumsAnother: Rule.PATHS,
    ForgetsTheDraw: Rule.PATHS,
    AnotherView: Rule.PATHS,
    CountsThoseWhoAreThere: Rule.COUNT,
    LeavesOutTheEmpty: Rule.COUNT,
    PrefersLargeRows: Rule.DRAW,
    NotANumber: Rule.NOT_FINITE,
    Checks: Rule.QUIET,
    HalvesTheSensitivity: Rule.SENSITIVITY,
}


@pytest.mark.parametrize(("engine", "rule"), FAULTY.items(), ids=lambda one: getattr(one, "__name__", ""))
def test_a_faulty_engine_is_told_by_the_name_of_its_fault(engine, rule):
    with pytest.raises(ContractViolation, match=rule.value) as raised:
        check_engine(engine, **QUICK)
    assert raised.value.rule is rule
    assert raised.value.subject == engine.__name__
