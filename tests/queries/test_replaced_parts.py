"""What the library says of a query, its sensitivity and its row form, holds for no class that replaces a part of it."""

import dataclasses
from typing import Any

import numpy as np
import pytest

from privopt.curator.local import LocalCurator
from privopt.data.units import Units
from privopt.ledger.amounts import Budget
from privopt.ledger.ledger import Ledger
from privopt.mechanisms.additive import Gaussian
from privopt.mechanisms.choice import ExponentialMechanism
from privopt.precision import double_precision
from privopt.problems import losses
from privopt.queries.base import MeanQuery, query, static
from privopt.queries.gradient_norms import AveragedGradient, GradientNorms
from privopt.queries.groups import GroupedGradient
from privopt.queries.safeguards import _owner_of_row_form, argues_its_sensitivity, is_ours
from privopt.queries.slopes import ClippedGradient, GradientNorm

N, D, NOISE = 30, 3, Gaussian(50.0)
LOGISTIC = {"loss": losses.logistic, "at": np.zeros(D), "clip": 3.0}


@pytest.fixture(autouse=True)
def double():
    with double_precision():
        yield


def curator(composition="gaussian"):
    data = Units.from_arrays(np.eye(N, D), np.ones(N), row_bound=1.0)
    return LocalCurator(data, Ledger(Budget(100.0, 1e-6), data.public.relation, composition=composition))


class Still:
    """A mix-in that says of whatever follows it that nothing moves."""

    def moves(self, public, sampling):
        return 0.0 * super().moves(public, sampling)


class ShorterMoves(GradientNorms):
    """Says that nothing moves."""

    def moves(self, public, sampling):
        return 0.0 * super().moves(public, sampling)


class MixedIn(Still, GradientNorms):
    """Defines nothing of its own."""


class MixedInAbove(Still, type("Between", (GradientNorms,), {})):
    """The mix-in comes before a class that replaces nothing."""


class TwoQueries(GradientNorm, GradientNorms):
    """The parts of one query are those of another."""


class LongerColumns(AveragedGradient):
    """Computes its columns otherwise."""

    def columns_form(self, public):
        return dataclasses.replace(super().columns_form(public), radius=1e9)


class ClippedElsewhere(GroupedGradient):
    """Clips in another norm than that of its radius."""

    clipped_in = "linf"


def moves_nowhere(query, public, sampling):
    """In place of a method."""
    return 0.0 * GradientNorms.moves(query, public, sampling)


FORGED = type(
    "GradientNorms", (GradientNorms,), {"__module__": GradientNorms.__module__, "moves": moves_nowhere}
)
SET_LATER = type("SetLater", (GradientNorms,), {})
SET_LATER.moves = moves_nowhere
REPLACED = [
    ShorterMoves,
    MixedIn,
    MixedInAbove,
    TwoQueries,
    LongerColumns,
    ClippedElsewhere,
    FORGED,
    SET_LATER,
]


@pytest.mark.parametrize(
    "kind", REPLACED, ids=lambda kind: f"{kind.__module__}.{kind.__name__}".split(".", 1)[1]
)
def test_a_part_that_a_subclass_replaces_is_trusted_no_more(kind):
    library = next(one for one in kind.__mro__ if is_ours(one))
    assert _owner_of_row_form(library) is not None
    assert _owner_of_row_form(kind) is None
    # The sensitivity of the grouped gradient is what its radius gives, which holds whatever it clips.
    assert argues_its_sensitivity(kind) == (kind.sensitivity is MeanQuery.sensitivity)


@pytest.mark.parametrize("kind", [ShorterMoves, MixedIn, FORGED])
def test_no_release_has_the_noise_of_a_sensitivity_that_a_replaced_part_makes_too_small(kind):
    asked, where = (
        query(kind)(loss=losses.logistic, points=np.zeros((2, D)), clip=3.0),
        curator(composition="zcdp"),
    )
    with pytest.raises(ValueError, match="or say why less is enough in `sensitivity_argument`"):
        where.release(asked, ExponentialMechanism(0.1))
    assert where.ledger.spent == 0.0


def test_a_subclass_that_only_has_another_name_or_more_than_its_base_keeps_what_that_says():
    @query
    class Renamed(GradientNorms):
        """The same."""

        name = "renamed"
        clip: float = 3.0
        remark: str = ""

        def printed(self):
            return f"{self.name}: {self.remark}"

    assert _owner_of_row_form(Renamed) is _owner_of_row_form(GradientNorms)
    assert argues_its_sensitivity(Renamed)


def test_only_what_a_module_of_the_library_holds_under_its_name_is_the_library_s():
    assert is_ours(GradientNorms)
    assert is_ours(MeanQuery)
    assert not is_ours(FORGED)
    assert not is_ours(MixedIn)
    assert not is_ours(object)
    assert not is_ours(query(type("Anonymous", (GradientNorms,), {"__module__": "privopt.no_such_module"})))


def without_noise(*_, **__):
    """In place of a sensitivity: no noise."""
    return 0.0


def as_it_is(private_vector):
    """In place of a clip: none."""
    return private_vector


@query
class HeldSensitivity(ClippedGradient):
    sensitivity: Any = static()


@query
class HeldClip(ClippedGradient):
    clip_unit: Any = static()


@query
class HeldNorm(ClippedGradient):
    radius_norm: str = static()


def with_attribute(**values):
    asked = ClippedGradient(**LOGISTIC)
    for name, value in values.items():
        object.__setattr__(asked, name, value)
    return asked


@pytest.mark.parametrize(
    ("asked", "part"),
    [
        (HeldSensitivity(**LOGISTIC, sensitivity=without_noise), "sensitivity"),
        (HeldClip(**LOGISTIC, clip_unit=as_it_is), "clip_unit"),
        (HeldNorm(**LOGISTIC, radius_norm="linf"), "radius_norm"),
        (with_attribute(sensitivity=without_noise), "sensitivity"),
        (with_attribute(row_form=without_noise), "row_form"),
    ],
)
def test_a_value_under_the_name_of_a_part_is_refused_before_it_is_charged(asked, part):
    where = curator()
    for ask in (
        lambda: where.release(asked, NOISE),
        lambda: where.hold(asked),
        lambda: where.hold_mean(asked),
    ):
        with pytest.raises(ValueError, match=rf"under the name of a part of its class \({part}\)"):
            ask()
    assert where.ledger.spent == 0.0
    assert len(where.transcript) == 0
