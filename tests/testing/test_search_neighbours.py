"""The search for the worst neighbour: it reaches tight bounds, notices those that are too small, and repeats itself."""

import jax.numpy as jnp
import numpy as np
import pytest
from tests.audit.variations import varied

from privopt.ledger.events import EveryUnit
from privopt.problems import losses
from privopt.problems.problem import Problem
from privopt.queries.base import query
from privopt.queries.minimisers import DescentEnd
from privopt.queries.scores import Accuracy, HoldoutScores
from privopt.queries.slopes import ClippedGradient
from privopt.testing import ContractViolation, search_neighbours
from privopt.testing.search import ROUND, WAYS

AT = np.array([0.3, -0.2, 0.5])
GRADIENT = ClippedGradient(loss=losses.squared, at=AT, clip=0.4)


@query
class Understated(ClippedGradient):
    """Says 0.1 % less than it moves."""

    sensitivity_argument = "A mistake."

    def sensitivity(self, public, sampling=EveryUnit()):
        return 0.999 * super().sensitivity(public, sampling)


@query
class Raising(HoldoutScores):
    """Raises where a target is huge."""

    def record_contribution(self, private_features, private_target):
        raise ZeroDivisionError


def test_it_comes_near_a_tight_bound_in_every_way():
    only = {"relations": ["add-or-remove-one"], "storages": ["float64"], "layouts": ["dense"]}
    found = search_neighbours(GRADIENT, columns=3, **only, neighbours=180, vary=varied)
    assert 1.0 - 1e-6 < found.largest <= 1.0
    assert (found.tried, found.ways) == (192, len(WAYS))


def test_a_bound_that_is_too_small_is_noticed_and_the_call_shows_it_again():
    wrong = Understated(loss=losses.squared, at=AT, clip=0.4)
    with pytest.raises(ContractViolation, match=r"1\.00\d* times its sensitivity") as caught:
        search_neighbours(wrong, columns=3, ways=["fast"], neighbours=3_000, seed=7)
    call = caught.value.repeat
    assert f"neighbours={ROUND}" in call
    with pytest.raises(ContractViolation, match="times its sensitivity") as again:
        eval(call, {"search_neighbours": search_neighbours, "query": wrong})
    assert (again.value.found, again.value.case) == (caught.value.found, caught.value.case)


def test_what_raises_because_of_a_record_is_a_violation():
    wrong = Raising(score=Accuracy(), models=jnp.asarray(AT)[None, :, None])
    with pytest.raises(ContractViolation, match="a record makes it raise a ZeroDivisionError"):
        search_neighbours(wrong, columns=3, ways=["reference"], layouts=["dense"], neighbours=1)


def test_what_is_computed_in_none_of_the_ways_is_said():
    ending = DescentEnd(problem=Problem(losses.squared), clip=0.4, start=jnp.zeros(3), step_size=0.3, steps=2)
    with pytest.raises(ValueError, match="nothing was tried"):
        search_neighbours(ending, columns=3, ways=["loop"])


@query
class Picky(ClippedGradient):
    """Refuses some public numbers."""

    def sensitivity(self, public, sampling=EveryUnit()):
        if self.clip != 0.4:
            raise ValueError("another clip than 0.4.")
        return super().sensitivity(public, sampling)


def test_settings_that_are_refused_from_public_numbers_are_counted_and_replaced():
    def other(query, rng):
        return Picky(loss=losses.squared, at=AT, clip=0.5) if rng.random() < 0.5 else query

    only = {"relations": ["replace-one"], "ways": ["fast"], "layouts": ["dense"]}
    picky = Picky(loss=losses.squared, at=AT, clip=0.4)
    found = search_neighbours(picky, columns=3, **only, neighbours=320, vary=other)
    assert found.tried == 320
    assert 0 < found.refused < 10
    assert found.largest > 0.9
    assert search_neighbours(picky, columns=3, **only, neighbours=64).refused == 0
