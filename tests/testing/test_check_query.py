"""A query that breaks its promise is told by the name of its fault; a sound one passes."""

from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np
import pytest

from privopt.errors import ArgumentError
from privopt.ledger.events import EveryUnit
from privopt.problems import losses
from privopt.queries.base import MeanQuery, RecordsQuery, RecordSum, StatisticOfHeld, clip_to_ball, query
from privopt.queries.slopes import ClippedGradient
from privopt.testing import ContractViolation, Rule, check_query

D = 3
ON_PURPOSE = "A mistake; without an argument the curator would refuse it."
QUICK = {"columns": D, "layouts": ("dense",), "storages": ("float64",)}


class Moment(RecordSum):
    """The record's row times its target."""

    def radius(self):
        return 0.5

    def shape(self, public):
        return (public.d,)

    def record_contribution(self, private_features, private_target):
        return private_target * private_features


@query
class Sound(Moment):
    pass


@query
class ClipForgotten(Moment):
    def clip_unit(self, private_vector):
        return private_vector


@query
class ClipOfTheTextbook(Moment):
    """Through which what is not a number passes."""

    def record_contribution(self, private_features, private_target):
        return private_features / jnp.sqrt(private_target)

    def without_bad(self, private_vector):
        return private_vector

    def clip_unit(self, private_vector):
        return private_vector * jnp.minimum(1.0, 0.5 / jnp.sqrt(jnp.sum(private_vector**2)))


@query
class Halved(Moment):
    sensitivity_argument: ClassVar[str] = ON_PURPOSE

    def sensitivity(self, public, sampling=EveryUnit()):
        return 0.5 * MeanQuery.sensitivity(self, public, sampling)


@query
class SlightlyUnderstated(Moment):
    sensitivity_argument: ClassVar[str] = ON_PURPOSE

    def sensitivity(self, public, sampling=EveryUnit()):
        return 0.998 * MeanQuery.sensitivity(self, public, sampling)


@query
class HalvedWithoutAWord(Moment):
    def sensitivity(self, public, sampling=EveryUnit()):
        return 0.5 * MeanQuery.sensitivity(self, public, sampling)


class OfAllTargets(RecordsQuery):
    """The mean of the targets, each between -1 and 1."""

    norm: ClassVar[str] = "l2"

    def sensitivity(self, public, sampling=EveryUnit()):
        return public.relation.factor / public.n * (1 + 1e-9)

    def shape(self, public):
        return ()

    def value(self, public, private_features, private_targets):
        return np.sum(np.clip(np.nan_to_num(private_targets), -1.0, 1.0)) / public.n


@query
class SoundOfAll(OfAllTargets):
    pass


@query
class NothingIsClipped(OfAllTargets):
    def value(self, public, private_features, private_targets):
        with np.errstate(all="ignore"):
            return np.nan_to_num(np.sum(np.nan_to_num(private_targets)) / public.n)


@query
class OverThePrivateCount(OfAllTargets):
    def value(self, public, private_features, private_targets):
        return np.sum(np.clip(np.nan_to_num(private_targets), -1.0, 1.0)) / max(len(private_targets), 1)


@query
class NotANumberStays(OfAllTargets):
    def value(self, public, private_features, private_targets):
        with np.errstate(all="ignore"):
            return np.sum(np.clip(np.sqrt(private_targets + 1.5), -1.0, 1.0)) / public.n


@query
class OfOneRelation(OfAllTargets):
    """The sensitivity of adding or removing a record, whatever the relation."""

    def sensitivity(self, public, sampling=EveryUnit()):
        return 1.0 / public.n * (1 + 1e-9)


@query
class OfAnotherShape(OfAllTargets):
    def shape(self, public):
        return (2,)


@query
class Complains(OfAllTargets):
    def value(self, public, private_features, private_targets):
        if np.any(np.abs(private_targets) > 1e200):
            raise ValueError("a target is out of range")
        return super().value(public, private_features, private_targets)


@query
class LargestOfHeld(StatisticOfHeld):
    """The sum of the points, each at most 0.5 long; `share` of 1 is enough where they are replaced."""

    held: Any
    share: float = 1.0

    def sensitivity(self, public, sampling=EveryUnit()):
        return self.share * (2.0 if self.held.replaced else 1.0) * 0.5 * (1 + 1e-9)

    def shape(self, public):
        return (public.d,)

    def value(self, private_vectors, private_present):
        return jnp.sum(private_vectors, axis=0)


def of_held(share):
    return lambda curator: LargestOfHeld(held=curator.hold(Sound()), share=share)


FAULTY = {
    "clip forgotten": (ClipForgotten(), Rule.CLIP),
    "clip of the textbook": (ClipOfTheTextbook(), Rule.NOT_FINITE),
    "sensitivity halved": (Halved(), Rule.SENSITIVITY),
    "sensitivity understated by two in a thousand": (SlightlyUnderstated(), Rule.SENSITIVITY),
    "sensitivity halved, without an argument": (HalvedWithoutAWord(), Rule.SENSITIVITY),
    "records, clip forgotten": (NothingIsClipped(), Rule.CLIP),
    "records, private count": (OverThePrivateCount(), Rule.COUNT),
    "records, not a number": (NotANumberStays(), Rule.NOT_FINITE),
    "records, the other relation": (OfOneRelation(), Rule.SENSITIVITY),
    "records, another shape": (OfAnotherShape(), Rule.SHAPE),
    "records, raises": (Complains(), Rule.QUIET),
    "held points, sensitivity halved": (of_held(0.5), Rule.SENSITIVITY),
}


@pytest.mark.later("clip forgotten", "clip of the textbook", "sensitivity halved")
@pytest.mark.parametrize("name", FAULTY)
def test_a_faulty_query_is_told_by_the_name_of_its_fault(name):
    faulty, rule = FAULTY[name]
    with pytest.raises(ContractViolation, match=rule.value) as raised:
        check_query(faulty, **QUICK)
    assert raised.value.rule is rule
    assert "check_query(query, columns=3" in raised.value.repeat


@pytest.mark.parametrize(
    "sound", [Sound(), SoundOfAll(), of_held(1.0)], ids=["mean", "records", "held points"]
)
def test_a_sound_query_passes_and_its_bound_is_tight(sound):
    assert 0.999 < check_query(sound, **QUICK) <= 1.0


def test_what_a_violation_says_is_enough_to_see_it_again():
    with pytest.raises(ContractViolation, match="sensitivity understated") as raised:
        check_query(Halved(), **QUICK)
    first = raised.value
    namespace = {"check_query": check_query, "query": Halved()}
    with pytest.raises(ContractViolation, match="sensitivity understated") as raised:
        eval(first.repeat, namespace)
    assert str(raised.value) == str(first)
    assert first.subject == "Halved"
    assert "replace-one, float64, dense" in first.case


def test_a_query_that_clips_by_itself_passes_for_records_and_users():
    @query
    class Own(ClippedGradient):
        def clip_unit(self, private_vector):
            return clip_to_ball(private_vector, self.clip)

    asked = Own(loss=losses.logistic, at=np.array([0.3, -1.0, 2.0]), clip=0.4)
    assert (
        check_query(asked, columns=D, pairs=2, layouts=("dense", "dense users"), storages=("float64",)) <= 1.0
    )


def test_a_check_that_compared_nothing_does_not_pass():
    with pytest.raises(ArgumentError, match="nothing was checked"):
        check_query(OfAllTargets(), columns=D, layouts=("dense users",))
    with pytest.raises(ArgumentError, match="nothing was checked"):
        check_query(Sound(), columns=D, relations=())
