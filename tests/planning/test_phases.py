"""Who is in a phase and what it may spend: the reference values, and the rules that nothing may break."""

import math

import numpy as np
import pytest

from privopt.data.units import Units
from privopt.ledger.amounts import Budget
from privopt.papers import phased_group_sgd
from privopt.papers.phased_group_sgd import PhasedGroupSGD
from privopt.planning import users as phases
from privopt.planning.task import Instance
from privopt.problems import losses
from privopt.problems.problem import Problem
from privopt.problems.regularisers import NoRegulariser, Ridge
from privopt.public import Public, Relation
from privopt.solve import minimize
from privopt.solvers import phased_accelerated_erm
from privopt.solvers.phased_accelerated_erm import PhasedAcceleratedERM
from privopt.solvers.registry import choose
from privopt.solvers.user_gradient_descent import UserGradientDescent
from privopt.solvers.whitening import Whitening


def users(n=1000, d=20, m=100.0, cap=100, relation="replace-one", weighting="user"):
    return Public(
        n=n,
        d=d,
        row_bound=math.sqrt(d),
        unit="user",
        records_per_unit=cap,
        typical_records=m,
        weighting=weighting,
        relation=Relation.parse(relation),
    )


def instance(public=None, budget=Budget(1.0, 1e-6), problem=Problem(losses.logistic)):
    return Instance(problem, users() if public is None else public, budget)


def test_the_sizes_have_their_reference_values():
    """user-level reference, R8."""
    paper = phases.paper_sizes(10_000, 0.5)
    assert paper[:3] == pytest.approx((2071.067811865475, 1464.466094067262, 1035.533905932738), rel=1e-9)
    assert len(paper) == 13
    assert paper[-1] == pytest.approx(32.360435, rel=1e-6)
    assert phases.phase_sizes(10_000, 4, 1.0) == (5333, 2666, 1333, 666)


@pytest.mark.parametrize("n", [7, 100, 9999])
@pytest.mark.parametrize("decay", [0.1, 1.0, 2.0])
def test_disjoint_phases_use_almost_everybody_and_nobody_twice(n, decay):
    for count in (1, 2, 4):
        sizes = phases.phase_sizes(n, count, decay)
        assert n - count <= sum(sizes) <= n
        assert list(sizes) == sorted(sizes, reverse=True)


def test_the_paper_wants_three_thousand_groups_where_the_default_takes_one_for_thirty_records():
    assert phased_group_sgd.paper_groups(10_000, 100, 1.0, 1e-6) == pytest.approx(3163, abs=1)
    for m, expected in ((1, 33), (10, 333), (30, 1000), (100, 1000)):
        public = users(m=float(m))
        assert PhasedGroupSGD().configure(instance(public)).groups == expected


def test_disjoint_phases_spend_the_whole_budget_and_reused_ones_a_part():
    reused, disjoint = PhasedGroupSGD(phases=4), PhasedGroupSGD(phases=4, reuse=False)
    assert phases.rho_of_phase(instance(), disjoint, 1e-7) == pytest.approx(
        4 * phases.rho_of_phase(instance(), reused, 1e-7)
    )
    assert disjoint.configure(instance()).noise_multiplier == pytest.approx(
        reused.configure(instance()).noise_multiplier / 2, rel=1e-3
    )


def test_the_balanced_number_of_groups_is_about_root_d_over_epsilon():
    rho = instance().mu ** 2 / 2
    found = phased_group_sgd.balanced_groups(cost=2.0, spread=0.15, decay=2.0, dimensions=20, rho=rho)
    assert found == pytest.approx(2.0 * 0.15 * math.sqrt(4.0 * 20 / (2.0 * rho)))


def test_an_accelerated_phase_is_as_long_as_a_gap_takes_to_halve_and_no_longer_than_25_steps():
    solver = PhasedAcceleratedERM(smoothness=5.0, strength=1.0).configure(instance())
    assert solver.strengths == (1.0, 2.0, 4.0)
    assert solver.lengths == tuple((math.ceil(4 * math.sqrt(1 + 5.0 / lam)),) for lam in (1.0, 2.0, 4.0))
    weak = PhasedAcceleratedERM(smoothness=5.0, strength=1e-3).configure(instance())
    assert weak.lengths == ((25,),) * 3


def test_the_strength_is_that_of_the_theorem_times_a_fifth():
    solver = PhasedAcceleratedERM(distance=1.0).configure(instance())
    n, m, d, steepest = 1000, 100, 20, math.sqrt(20)
    theorem = steepest * (1 / math.sqrt(n * m) + 2 * math.sqrt(d) / (n * math.sqrt(m) * instance().mu))
    assert solver.strength == pytest.approx(0.2 * theorem)


def test_the_probe_shortens_the_guessed_curvature_of_a_loss_with_corners():
    def probed(loss, most, released, ridge=0.0):
        problem = Problem(loss, Ridge(ridge) if ridge else NoRegulariser())
        return phased_accelerated_erm.probed_smoothness(
            most, released, 0.0, problem, Public(n=100, d=5, row_bound=2.0)
        )

    assert probed(losses.logistic, 1.0, 0.8) == pytest.approx(0.25 * 0.8)
    assert probed(losses.quantile(0.5), 20.0, 0.8) == pytest.approx(2 * 20.0 / 4.0 * 0.8)
    assert probed(losses.quantile(0.5), 20.1, 0.8, ridge=0.1) == pytest.approx(2 * 20.0 / 4.0 * 0.8 + 0.1)
    assert probed(losses.quantile(0.5), 20.0, 3.0) == 20.0
    assert probed(losses.quantile(0.5), 20.0, math.nan) == 20.0


@pytest.mark.parametrize(
    ("loss", "taken"),
    [
        (losses.quantile(0.5), "phased-accelerated-erm"),
        (losses.hinge, "phased-accelerated-erm"),
        (losses.quantile(0.5, 0.5), "whitened user-gradient-descent"),
        (losses.logistic, "whitened user-gradient-descent"),
    ],
    ids=str,
)
def test_auto_takes_accelerated_phases_for_users_where_the_loss_has_corners(loss, taken):
    choice = choose("auto", Instance(Problem(loss), users(), Budget(1.0, 1e-6)))
    assert choice.solver.title == taken
    assert choice.reason


def test_accelerated_phases_are_ahead_of_whitened_descent_on_absolute_errors_of_users():
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(3000, 10))
    rows /= np.maximum(np.sqrt(10), np.linalg.norm(rows, axis=1, keepdims=True))
    targets, groups = 1.5 * rows @ rng.normal(size=10) + 0.2 * rng.laplace(size=3000), np.arange(3000) // 3
    units = Units.from_arrays(rows, targets, row_bound=1.0, groups=groups, typical_records=3)
    asked = {"budget": Budget(0.3, 1e-6), "random_state": 0}
    fits = [
        minimize(Problem(losses.quantile(0.5)), units, solver=solver, **asked)
        for solver in ("auto", Whitening(inner=UserGradientDescent()))
    ]
    errors = [np.mean(np.abs(rows @ np.asarray(fit.params) - targets)) for fit in fits]
    least = np.mean(np.abs(rows @ np.linalg.lstsq(rows, targets, rcond=None)[0] - targets))
    assert errors[0] - least < 0.3 * (errors[1] - least)


def test_the_multi_stage_form_restarts_within_the_steps_of_a_phase():
    solver = PhasedAcceleratedERM(stages="multi", strength=2.0, smoothness=5.0).configure(
        instance(users(n=10**6))
    )
    assert all(
        len(stages) > 1 and sum(stages) <= phased_accelerated_erm.ALL_STAGES for stages in solver.lengths
    )


@pytest.mark.parametrize("solver", [PhasedGroupSGD(), PhasedAcceleratedERM()])
@pytest.mark.parametrize("weighting", ["user", "sqrt", "record"])
def test_plans_need_no_data(solver, weighting):
    plan = solver.plan(instance(users(m=10.0, weighting=weighting)))
    assert 0.999 <= plan.epsilon <= 1.0
    assert plan.predicted_excess is not None
    assert plan.predicted_excess > 0
