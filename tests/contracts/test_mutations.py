"""Methods for the KL condition with one mistake put in: the promises that the sound ones keep must be seen broken.

A mistake is a query of another class, or another piece of a solver's bookkeeping, in the solver's own place. What is
compiled with a mistake belongs to a query or a loss that no other test has.
"""

import functools
import math
from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest
from tests.contracts.coupled import (
    CURVATURE,
    LOGISTIC,
    METHODS,
    WIDE,
    couple,
    outlier_pair,
    tight_pair,
    tilted,
)
from tests.support.formula_noise import FormulaNoise, silence

from privopt.curator.audit import Audit
from privopt.data.units import Units
from privopt.errors import BudgetExceeded
from privopt.ledger.amounts import Budget
from privopt.ledger.events import EveryUnit
from privopt.ledger.ledger import Ledger
from privopt.mechanisms.additive import Gaussian
from privopt.mechanisms.noise import NoiseSource
from privopt.planning.task import Instance
from privopt.precision import double_precision
from privopt.problems import losses
from privopt.problems.losses import RecordLoss
from privopt.problems.problem import Problem
from privopt.public import Relation
from privopt.queries.base import clip_to_ball, query
from privopt.queries.moments import TopCurvature
from privopt.queries.slopes import (
    ClippedGradient,
    ClippedGradientDifference,
    GradientNorm,
    MixedGradient,
    record_gradient,
)
from privopt.solvers import adaptive_gradient_descent as adaptive_course
from privopt.solvers import adaptive_gradient_descent as adaptive_paper
from privopt.solvers.curvature_probe import CurvatureProbe
from privopt.solvers.gradient_descent import GradientDescent

pytestmark = pytest.mark.evidence
ON_PURPOSE = "A mistake; without an argument the curator would refuse it."
MOVED, REVEALED = "moved too far", "revealed more than was paid"


@pytest.fixture(autouse=True)
def double():
    with double_precision():
        yield


@pytest.fixture(autouse=True)
def told(evidence, request):
    evidence("mutants", request.node.name.replace("_", " "), tried=1, of="mistakes")


def own_problem():
    """The tilted loss, as a function that no other test has compiled."""
    return Problem(
        RecordLoss(lambda params, features, target: tilted(params, features, target), curvature=CURVATURE)
    )


OWN = own_problem()  # for mutants that no solver compiles itself


# The sensitivity that is stated --------------------------------------------------------------------------------------


@functools.cache
def understated(kind):
    """The same query, with a sensitivity that is 0.2 % too small."""

    class Mutant(kind):
        sensitivity_argument = ON_PURPOSE

        def sensitivity(self, public, sampling=EveryUnit()):
            return 0.998 * super().sensitivity(public, sampling)

    return query(Mutant)


@functools.cache
def of_the_other_relation(kind):
    """The same query, with the sensitivity of adding or removing a unit, whatever the relation."""

    class Mutant(kind):
        sensitivity_argument = ON_PURPOSE

        def sensitivity(self, public, sampling=EveryUnit()):
            return super().sensitivity(replace(public, relation=Relation.ADD_OR_REMOVE_ONE), sampling)

    return query(Mutant)


ASKED = [  # method, module, query
    ("geometric gradient descent", "solvers.gradient_descent", ClippedGradient),
    ("continuous spider", "solvers.continuous_spider", ClippedGradient),
    ("continuous spider", "solvers.continuous_spider", MixedGradient),
    ("continuous spider, momentum", "solvers.continuous_spider", MixedGradient),
    ("adaptive gradient descent", "solvers.adaptive_gradient_descent", ClippedGradient),
    ("adaptive gradient descent, the paper's", "solvers.adaptive_gradient_descent", ClippedGradient),
    ("adaptive gradient descent, the paper's", "solvers.adaptive_gradient_descent", GradientNorm),
    ("kl spider", "solvers.kl_spider", ClippedGradient),
    ("kl spider", "solvers.kl_spider", ClippedGradientDifference),
    ("kl spider, the paper's", "solvers.kl_spider", ClippedGradientDifference),
    ("kl proximal point", "solvers.kl_proximal_point", ClippedGradient),
    ("dp spider", "papers.dp_spider", ClippedGradient),
    ("dp spider", "papers.dp_spider", ClippedGradientDifference),
]


def on_the_tight_pair(name, module, kind, mutate, monkeypatch):
    monkeypatch.setattr(f"privopt.{module}.{kind.__name__}", mutate(kind))
    left, right = tight_pair(-1)
    compiled_by_the_solver = module == "solvers.continuous_spider" and kind is ClippedGradient
    return couple(
        METHODS[name], own_problem() if compiled_by_the_solver else OWN, left, right, FormulaNoise(silence)
    )


@pytest.mark.parametrize(("name", "module", "kind"), ASKED)
def test_a_sensitivity_understated_by_two_in_a_thousand_is_noticed(name, module, kind, monkeypatch):
    coupling = on_the_tight_pair(name, module, kind, understated, monkeypatch)
    assert MOVED in coupling.faults
    assert coupling.ratios.max() == pytest.approx(1.0 / 0.998, rel=1e-6)


@pytest.mark.parametrize(("name", "module", "kind"), ASKED)
def test_the_factor_of_the_other_relation_is_noticed(name, module, kind, monkeypatch):
    coupling = on_the_tight_pair(name, module, kind, of_the_other_relation, monkeypatch)
    assert MOVED in coupling.faults
    assert coupling.ratios.max() == pytest.approx(2.0, rel=1e-6)


def test_every_release_twice_as_telling_is_more_than_was_paid(monkeypatch):
    coupling = on_the_tight_pair(
        "geometric gradient descent",
        "solvers.gradient_descent",
        ClippedGradient,
        of_the_other_relation,
        monkeypatch,
    )
    assert coupling.faults == [MOVED, REVEALED]
    assert coupling.revealed == pytest.approx(4.0 * coupling.paid, rel=1e-6)


def test_an_understated_sensitivity_of_the_probe_is_noticed(monkeypatch):
    monkeypatch.setattr("privopt.solvers.curvature_probe.TopCurvature", understated(TopCurvature))
    rows = np.zeros((2, 40, 4))
    rows[1, 0, 0] = 1.0
    left, right = (Units.from_arrays(x, np.ones(40), row_bound=1.0, n=40, storage="float64") for x in rows)
    problem = Problem(losses.logistic)
    probe = CurvatureProbe(inner=GradientDescent.geometric(most_steps=2))
    probe = probe.configure(Instance(problem, left.public, Budget(2.0, 1e-5)))
    assert MOVED in couple(probe, problem, left, right).faults


# What is computed ----------------------------------------------------------------------------------------------------


@query
class ChangeClippedAsAGradient(MixedGradient):
    def clip_unit(self, private_vector):
        gradient, change = (clip_to_ball(part, self.clip) for part in private_vector)
        return (1.0 - self.weight()) * gradient + self.weight() * change


@query
class WeightsSwapped(MixedGradient):
    def clip_unit(self, private_vector):
        gradient = clip_to_ball(private_vector[0], self.clip)
        change = clip_to_ball(private_vector[1], self.change_clip)
        return self.weight() * gradient + (1.0 - self.weight()) * change


@query
class GradientUnclipped(MixedGradient):
    def clip_unit(self, private_vector):
        change = clip_to_ball(private_vector[1], self.change_clip)
        return (1.0 - self.weight()) * private_vector[0] + self.weight() * change


@query
class ChangeUnclipped(MixedGradient):
    def clip_unit(self, private_vector):
        gradient = clip_to_ball(private_vector[0], self.clip)
        return (1.0 - self.weight()) * gradient + self.weight() * private_vector[1]


@query
class NothingIsBadInAMixture(MixedGradient):
    def without_bad(self, private_vector):
        return private_vector

    def clip_unit(self, private_vector):
        gradient, change = private_vector
        return (1.0 - self.weight()) * _shortened(gradient, self.clip) + self.weight() * _shortened(
            change, self.change_clip
        )


@query
class DifferenceClippedAsAGradient(ClippedGradientDifference):
    def clip_unit(self, private_vector):
        return clip_to_ball(private_vector, 1.0)


@query
class DifferenceUnclipped(ClippedGradientDifference):
    def clip_unit(self, private_vector):
        return private_vector


@query
class NothingIsBadInADifference(ClippedGradientDifference):
    def record_contribution(self, private_features, private_target):
        at, anchor = (
            record_gradient(self.loss, w, private_features, private_target) for w in (self.at, self.anchor)
        )
        return at - anchor

    def without_bad(self, private_vector):
        return private_vector

    def clip_unit(self, private_vector):
        return _shortened(private_vector, self.radius())


@query
class NothingIsClipped(ClippedGradient):
    def clip_unit(self, private_vector):
        return private_vector


@query
class NothingIsBad(ClippedGradient):
    def without_bad(self, private_vector):
        return private_vector

    def clip_unit(self, private_vector):
        return _shortened(private_vector, self.clip)


def _shortened(private_vector, radius):
    """The clip of the textbooks, through which what is not a number passes."""
    return private_vector * jnp.minimum(1.0, radius / jnp.sqrt(jnp.sum(private_vector**2)))


MIXED, DIFFERENCE = (
    ("solvers.continuous_spider", MixedGradient),
    ("solvers.kl_spider", ClippedGradientDifference),
)
DP_DIFFERENCE = ("papers.dp_spider", ClippedGradientDifference)
GRADIENT = ("solvers.gradient_descent", ClippedGradient)
METHOD_OF = {
    MIXED: "continuous spider",
    DIFFERENCE: "kl spider",
    DP_DIFFERENCE: "dp spider",
    GRADIENT: "geometric gradient descent",
}
WRONG = [  # where, the mutant, the target of the record that is put in
    (MIXED, ChangeClippedAsAGradient, 1000.0),
    (MIXED, WeightsSwapped, 1.0),
    (MIXED, GradientUnclipped, 1000.0),
    (MIXED, ChangeUnclipped, 1000.0),
    (DIFFERENCE, DifferenceClippedAsAGradient, 1000.0),
    (DIFFERENCE, DifferenceUnclipped, 1000.0),
    (DP_DIFFERENCE, DifferenceClippedAsAGradient, 1000.0),
    (DP_DIFFERENCE, DifferenceUnclipped, 1000.0),
    (GRADIENT, NothingIsClipped, 1000.0),
]


@pytest.mark.later(
    "continuous spider, ChangeClippedAsAGradient",
    "continuous spider, WeightsSwapped",
    "kl spider, DifferenceClippedAsAGradient",
    "kl spider, DifferenceUnclipped",
)
@pytest.mark.parametrize(
    ("place", "mutant", "target"), WRONG, ids=[f"{METHOD_OF[p]}, {m.__name__}" for p, m, _ in WRONG]
)
def test_a_statistic_that_is_not_what_its_sensitivity_is_stated_for_is_noticed(
    place, mutant, target, monkeypatch
):
    module, kind = place
    monkeypatch.setattr(f"privopt.{module}.{kind.__name__}", mutant)
    monkeypatch.setattr("privopt.engine.general_path.into_radius", lambda query, vectors: vectors)
    coupling = couple(METHODS[METHOD_OF[place]], OWN, *tight_pair(-1, turned=target), FormulaNoise(silence))
    assert MOVED in coupling.faults


@pytest.mark.at_once(
    "continuous spider, ChangeClippedAsAGradient",
    "dp spider, DifferenceClippedAsAGradient",
    "dp spider, DifferenceUnclipped",
    "geometric gradient descent, NothingIsClipped",
)
@pytest.mark.parametrize(
    ("place", "mutant", "target"), WRONG, ids=[f"{METHOD_OF[p]}, {m.__name__}" for p, m, _ in WRONG]
)
def test_the_engine_holds_a_statistic_to_its_radius_whatever_its_clip_does(
    place, mutant, target, monkeypatch
):
    module, kind = place
    monkeypatch.setattr(f"privopt.{module}.{kind.__name__}", mutant)
    pair = tight_pair(-1, turned=target)
    assert couple(METHODS[METHOD_OF[place]], own_problem(), *pair, FormulaNoise(silence)).faults == []


@pytest.mark.parametrize("target", [1.0, 1000.0])
@pytest.mark.parametrize("place", METHOD_OF)
def test_the_methods_that_were_mutated_are_sound_on_the_same_records(place, target):
    pair = tight_pair(-1, turned=target)
    assert couple(METHODS[METHOD_OF[place]], OWN, *pair, FormulaNoise(silence)).faults == []


def smudged(params, features, target):
    """The tilted loss, whose gradient is not a number where the target is below -2."""
    return tilted(params, features, target) + jnp.sqrt(target + 2.0) * params[0]


@pytest.mark.later("continuous spider-")
@pytest.mark.parametrize(
    ("place", "mutant"),
    [
        (MIXED, NothingIsBadInAMixture),
        (DIFFERENCE, NothingIsBadInADifference),
        (DP_DIFFERENCE, NothingIsBadInADifference),
        (GRADIENT, NothingIsBad),
    ],
    ids=lambda value: METHOD_OF.get(value, ""),
)
def test_a_record_that_is_not_a_number_and_survives_is_noticed(place, mutant, monkeypatch):
    """Neither the query nor the engine zeroes it."""
    problem = Problem(RecordLoss(lambda params, features, target: smudged(params, features, target)))
    monkeypatch.setattr(f"privopt.{place[0]}.{place[1].__name__}", mutant)
    monkeypatch.setattr("privopt.engine.general_path._finite", lambda vectors: jnp.ones(len(vectors), bool))
    coupling = couple(METHODS[METHOD_OF[place]], problem, *tight_pair(-1, turned=-3.0), FormulaNoise(silence))
    assert MOVED in coupling.faults
    assert np.isnan(coupling.moved).any()
    left, right = tight_pair(-1, turned=-3.0)
    ledger = Ledger(WIDE, left.public.relation, plan=METHODS[METHOD_OF[place]].event(left.public))
    audit = Audit(left, right, ledger, noise=FormulaNoise(silence))
    METHODS[METHOD_OF[place]].solve(audit, problem)
    assert max(ratio for _, ratio in audit.moves) == math.inf


@pytest.mark.parametrize("name", ["geometric gradient descent", "continuous spider", "dp spider"])
def test_a_row_that_was_not_clipped_is_noticed(name):
    """The slopes are clipped by the lengths that rows are stored to have."""
    left, right = outlier_pair("replace-one")
    assert couple(METHODS[name], LOGISTIC, left, right).faults == []
    rows = np.array(right.private_features)
    rows[-1] *= 100.0
    assert MOVED in couple(METHODS[name], LOGISTIC, left, replace(right, private_features=rows)).faults


# What is charged -----------------------------------------------------------------------------------------------------


class ChargesByTheNorm(adaptive_course.Course):
    """Each release is booked as if its noise were that of the norm's estimate, not at its floor."""

    def charge(self, multiplier):
        super().charge(2.0 * multiplier)
        return multiplier


class GoesOn(adaptive_course.Course):
    """One release after the last."""

    @property
    def goes_on(self):
        return True


LONG = replace(METHODS["adaptive gradient descent"], most_steps=3000)


@pytest.mark.parametrize("mutation", [ChargesByTheNorm, GoesOn])
def test_an_adaptive_method_that_miscounts_is_refused_by_the_curator(mutation, monkeypatch):
    left, right = outlier_pair("replace-one")
    assert couple(LONG, LOGISTIC, left, right, NoiseSource(3)).faults == []
    monkeypatch.setattr("privopt.solvers.adaptive_gradient_descent.Course", mutation)
    monkeypatch.setattr(mutation, "dries_up", lambda self, multiplier: False)
    with pytest.raises((BudgetExceeded, ZeroDivisionError), match=r"would cost|division by zero"):
        couple(LONG, LOGISTIC, left, right, NoiseSource(3))


class ChargesAsPublished(adaptive_paper.PaperNoise):
    """The gradient's noise is at its floor where the norm is negative, and is booked by the square of the norm."""

    def gradient(self, curator, at_point, left):
        norm = float(curator.release(GradientNorm(loss=at_point.loss, at=at_point.at, clip=at_point.clip),
                                  Gaussian(self.norm_multiplier)))  # fmt: skip
        least = 1.0 / math.sqrt(self.rho)
        gradient = curator.release(at_point, Gaussian(max(norm * self.per_norm, least)))
        return gradient, norm, left - 0.5 / (norm * self.per_norm) ** 2, False


def test_a_published_charge_for_a_negative_norm_is_refused_by_the_curator(monkeypatch):
    solver = replace(METHODS["adaptive gradient descent, the paper's"], most_steps=50)
    left, right = outlier_pair("replace-one")

    def far_below(k, shape):
        return np.asarray(-100.0) if shape == () else np.zeros(shape)

    assert couple(solver, LOGISTIC, left, right, FormulaNoise(far_below)).faults == []
    monkeypatch.setattr("privopt.solvers.adaptive_gradient_descent.PaperNoise", ChargesAsPublished)
    with pytest.raises(BudgetExceeded, match="would cost"):
        couple(solver, LOGISTIC, left, right, FormulaNoise(far_below))
