"""No method for the KL condition tells neighbours apart by more than it pays for, measured release by release."""

import dataclasses
from dataclasses import dataclass, replace

import numpy as np
import pytest
from tests.contracts.coupled import (
    LOGISTIC,
    METHODS,
    OF_DIFFERENCES,
    RELATIONS,
    SLACK,
    TILTED,
    WIDE,
    couple,
    outlier_pair,
    tight_pair,
)
from tests.support.formula_noise import FormulaNoise, silence
from tests.support.turns import in_turn

from privopt.curator.audit import Audit
from privopt.data.units import Units
from privopt.ledger.amounts import Budget
from privopt.ledger.ledger import Ledger
from privopt.mechanisms.noise import NoiseSource
from privopt.planning.task import Instance
from privopt.precision import double_precision
from privopt.problems import losses
from privopt.problems.problem import Problem
from privopt.result import Outcome, Status
from privopt.solvers.continuous_spider import ContinuousSpider
from privopt.solvers.curvature_probe import CurvatureProbe
from privopt.solvers.gradient_descent import GradientDescent

CLIPS = [
    (name, clip) for name in METHODS for clip in ((0.05, 1.0, 2.0) if name in OF_DIFFERENCES else (None,))
]


@pytest.fixture(autouse=True)
def double():
    with double_precision():
        yield


def configured(name, difference_clip=None, **fields):
    if difference_clip is not None:
        fields["difference_clip"] = difference_clip
    return replace(METHODS[name], **fields)


@pytest.mark.at_once(
    "adaptive gradient descent, None-add-or-remove-one-records",
    "adaptive gradient descent, None-replace-one-users",
    "adaptive gradient descent, the paper's, None-add-or-remove-one-records",
    "adaptive gradient descent, the paper's, None-replace-one-users",
    "continuous spider, 2.0-add-or-remove-one-records",
    "continuous spider, momentum, 0.05-add-or-remove-one-users",
    "continuous spider, momentum, 0.05-replace-one-records",
    "continuous spider, momentum, 1.0-add-or-remove-one-records",
    "continuous spider, momentum, 1.0-replace-one-users",
    "continuous spider, momentum, 2.0-add-or-remove-one-users",
    "continuous spider, momentum, 2.0-replace-one-records",
    "dp spider, 2.0-add-or-remove-one-users",
    "dp spider, 2.0-replace-one-records",
    "kl proximal point, None-add-or-remove-one-records",
    "kl proximal point, None-replace-one-users",
)
@pytest.mark.parametrize(("clipped", "relation", "unit"), in_turn(CLIPS, RELATIONS, ("records", "users")))
def test_an_outlier_moves_no_release_too_far_and_all_of_them_reveal_no_more_than_was_paid(
    clipped, relation, unit
):
    solver = configured(*clipped, clip=0.4)
    pair = outlier_pair(relation, users=unit == "users")
    for left, right in (pair, pair[::-1]):
        coupling = couple(solver, LOGISTIC, left, right)
        assert coupling.faults == []
        assert len(coupling.moved) >= 2
        assert coupling.ratios.max() > 0.1  # the outlier is one
        assert coupling.revealed > 0.0


@pytest.mark.later(
    "adaptive gradient descent, selected",
    "adaptive gradient descent, the paper's",
    "continuous spider",
    "kl spider",
    "geometric gradient descent",
)
@pytest.mark.parametrize("name", METHODS)
def test_a_record_of_ones_own_loss_that_curves_far_more_than_stated_moves_no_release_too_far(name):
    """The clips hold where the curvature that a solver was told is wrong a thousandfold."""
    left, right = tight_pair(1, turned=-1000.0)
    coupling = couple(METHODS[name], TILTED, left, right)
    assert coupling.faults == []
    assert coupling.ratios.max() > 0.1


@pytest.mark.parametrize("sign", [1, -1], ids=["bowl", "hill"])
@pytest.mark.parametrize("name", METHODS)
def test_the_tight_pair_moves_by_exactly_what_is_stated(name, sign):
    """In a bowl gradients shrink below the clip as the run goes; on a hill every one of them is as long as may be."""
    left, right = tight_pair(sign)
    coupling = couple(METHODS[name], TILTED, left, right, FormulaNoise(silence))
    assert coupling.faults == []
    assert 0.999 <= coupling.ratios.max() <= SLACK
    if sign < 0:
        moving = [
            r for r, kind in zip(coupling.ratios, coupling.names[0], strict=True) if kind != "GradientNorms"
        ]
        assert min(moving) >= 0.999
    if (
        name in ("geometric gradient descent", "continuous spider", "kl proximal point", "dp spider")
        and sign < 0
    ):
        assert coupling.revealed == pytest.approx(
            coupling.paid, rel=1e-6
        )  # and no less is paid than is revealed


INNER = {
    "geometric gradient descent": GradientDescent.geometric(most_steps=6),
    "continuous spider": ContinuousSpider(most_steps=6),
}


@pytest.mark.later("continuous spider-replace-one", "geometric gradient descent-replace-one")
@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize("inner", INNER)
def test_a_probe_of_the_curvature_and_what_follows_from_it(inner, relation):
    problem = Problem(losses.logistic)
    left, right = outlier_pair(relation)
    probe = CurvatureProbe(inner=INNER[inner]).configure(Instance(problem, left.public, Budget(2.0, 1e-5)))
    coupling = couple(probe, problem, left, right)
    assert coupling.faults == []
    assert coupling.names[0][0] == "TopCurvature"
    nothing, single = np.zeros((40, 4)), np.zeros((40, 4))
    single[0, 0] = 1.0
    empty, one = (
        Units.from_arrays(rows, np.ones(40), row_bound=1.0, relation=relation, n=40, storage="float64")
        for rows in (nothing, single)
    )
    coupling = couple(probe, problem, empty, one)
    assert coupling.faults == []
    assert 0.999 <= coupling.ratios[0] <= SLACK


@pytest.mark.later("kl spider", "kl spider, no recycling", "kl spider, the paper's")
@pytest.mark.parametrize("name", METHODS)
def test_the_library_s_audit_measures_the_same_moves(name):
    left, right = outlier_pair("replace-one")
    coupling = couple(METHODS[name], LOGISTIC, left, right, NoiseSource(5))
    ledger = Ledger(WIDE, "replace-one", plan=METHODS[name].event(left.public))
    audit = Audit(left, right, ledger, noise=NoiseSource(5))
    METHODS[name].solve(audit, LOGISTIC)
    assert [kind for kind, _ in audit.moves] == list(coupling.names[0])
    np.testing.assert_allclose([ratio for _, ratio in audit.moves], coupling.ratios, rtol=1e-12)


@dataclass(frozen=True, kw_only=True)
class Peeks(GradientDescent):
    """Looks at what it must not see: at its answer, or at when to stop."""

    at: str = "answer"

    def run(self, curator, problem, start):
        positive = float(np.mean(curator.private_engine.units.private_targets > 0.0))
        if self.at == "answer":
            return Outcome(super().run(curator, problem, start).params + positive, Status.FINISHED)
        stops = replace(self, steps=max(1, round(self.steps * positive)))
        return super(Peeks, stops).run(curator, problem, start)


@pytest.mark.parametrize(
    ("at", "fault"), [("answer", "the result is no function of the releases"), ("end", "different releases")]
)
def test_a_method_that_looks_behind_the_curator_is_noticed(at, fault):
    sound = replace(METHODS["geometric gradient descent"], contraction=1.0)
    fields = {field.name: getattr(sound, field.name) for field in dataclasses.fields(sound)}
    left, right = tight_pair(1, n=5)
    assert couple(Peeks(at=at, **fields), TILTED, left, right).faults == [fault]
