"""Plans of KL Spider: reference values, prices, and what more units or more budget buy."""

import math

import numpy as np
import pytest

from privopt.ledger.curves import gaussian_mu
from privopt.planning.kl_phases import PhasePlanner
from privopt.problems.growth import KL

RHO = gaussian_mu(1.0, 1e-6) ** 2 / 2


def power(p, n, **options):
    """|w|^p / p from |w| = 1 with records of norm 1 and ten parameters, under replace-one."""
    kappa = p / (p - 1)
    fields = {
        "growth": KL(gamma=p ** (-1 / kappa), kappa=kappa, gap=1 / p),
        "clip": 2.0,
        "curvature": p - 1.0,
        "smoothness": p - 1.0,
        "parameters": 10,
        "units": n,
        "factor": 2,
    }
    return PhasePlanner(**{**fields, **options})


@pytest.mark.parametrize(
    ("p", "n", "goal", "steps"),
    [
        (2.0, 10**4, 2.05926364e-03, [8] * 5),
        (2.0, 10**5, 1.40213721e-05, [29] * 5),
        (2.0, 10**6, 1.28760755e-07, [80] * 5),
        (4.0, 10**4, 1.03510192e-02, [5, 6, 7, 9, 11, 14, 17]),
        (4.0, 10**6, 1.65923088e-05, [12, 17, 25, 37, 55, 82, 123, 183, 273, 407, 607, 906]),
    ],
)
def test_the_lowest_goal_is_the_reference_value(p, n, goal, steps):
    planner = power(p, n)
    found = planner.lowest(1 / p, RHO)
    assert found is not None
    assert found.goal == pytest.approx(goal, rel=1e-8)
    phases = planner.phases(1 / p, found.goal, found.phases)
    assert [phase.steps for phase in phases] == steps
    assert found.steps == sum(steps)
    assert found.cost == pytest.approx(sum(phase.cost for phase in phases), rel=1e-12)


def test_the_number_of_phases_and_the_price_are_the_reference_values():
    planner = power(4.0, 10**5)
    found = planner.lowest(0.25, RHO)
    assert found is not None
    assert found.goal == pytest.approx(4.10681415e-04, rel=1e-8)
    assert found.phases == 10
    phases = planner.phases(0.25, 1e-3, 8)
    assert sum(phase.cost for phase in phases) == pytest.approx(8.0952038483e-03, rel=1e-10)
    assert sum(phase.steps for phase in phases) == 306


@pytest.mark.parametrize("p", [2.0, 3.0, 4.0])
@pytest.mark.parametrize("n", [3 * 10**3, 10**5])
def test_the_goal_costs_what_there_is_and_a_lower_one_more(p, n):
    planner = power(p, n)
    found = planner.lowest(1 / p, RHO)
    assert found is not None
    assert 0.98 * RHO <= found.cost <= RHO < planner.cheapest(1 / p, 0.9 * found.goal).cost


def test_more_units_and_more_budget_promise_more():
    goals = [power(4.0, n).lowest(0.25, RHO).goal for n in (3_000, 10_000, 30_000, 100_000)]
    assert goals == sorted(goals, reverse=True)
    planner = power(4.0, 10_000)
    goals = [planner.lowest(0.25, factor * RHO).goal for factor in (0.5, 1.0, 2.0, 8.0)]
    assert goals == sorted(goals, reverse=True)


def test_adding_a_unit_costs_a_quarter_of_replacing_one():
    replaced = power(4.0, 10**4).first_plan(0.25, 4 * RHO)
    added = power(4.0, 10**4, factor=1).first_plan(0.25, RHO)
    assert [phase._replace(anchor_cost=0, difference_cost=0) for phase in replaced[0]] == [
        phase._replace(anchor_cost=0, difference_cost=0) for phase in added[0]
    ]
    assert [phase.cost for phase in replaced[0]] == [4 * phase.cost for phase in added[0]]


@pytest.mark.parametrize("zeta", [0.05, 1.0, 2.0, 1e6])
def test_the_errors_of_a_phase_have_the_planned_variance(zeta):
    planner, events = power(4.0, 10**4, difference_clip=zeta), 500
    for phase in planner.phases(0.25, 1e-2, 6, events):
        gradient = phase.threshold / 0.75
        sensitivities = np.array([2 * 2.0, *[2 * phase.radius] * (phase.steps - 1)]) / 10**4
        costs = np.array([phase.anchor_cost, *[phase.difference_cost] * (phase.steps - 1)])
        variance = np.sum(sensitivities**2 / (2 * costs))
        spread = math.sqrt(10) + math.sqrt(2 * math.log(events / 0.1))
        assert variance == pytest.approx((0.25 * gradient / spread) ** 2, rel=1e-10)
        assert phase.radius <= 4.0


def test_enough_steps_of_a_phase_remove_its_share_of_the_excess():
    """Each of them lowers the objective by at least (theta^2 / 2) G^2 / L."""
    for error in (0.1, 0.25, 0.4):
        planner, gap = power(3.0, 10**4, relative_error=error), 1 / 3
        for phase in planner.phases(gap, 1e-3, 7):
            gradient = planner.growth.gradient_at(phase.goal)
            assert phase.threshold == pytest.approx((1 - error) * gradient)
            gain = phase.length * ((1 - error) * gradient - error * gradient) - phase.length**2  # L / 2 is 1
            assert phase.steps * gain >= (gap - phase.goal) * (1 - 1e-9)
            gap = phase.goal


def test_a_plan_for_the_rest_never_ends_above_what_is_left_of_the_old_one():
    planner, rng = power(4.0, 10**5), np.random.default_rng(0)
    phases, events = planner.first_plan(0.25, RHO)
    left, taken = RHO, 0
    while len(phases) > 1:
        phase, *phases = phases
        left -= phase.cost * rng.uniform(0.3, 1.0)
        taken += phase.steps
        again = planner.plan_again(phases, phase.goal, left, events, events - taken)
        assert again[-1].goal <= phases[-1].goal
        assert sum(phase.cost for phase in again) <= left * (1 + 1e-12)
        assert sum(phase.steps for phase in again) <= events - taken


def test_nothing_is_planned_where_nothing_can_be_proved():
    planner = power(2.0, 20)
    assert planner.lowest(0.5, RHO) is None
    assert planner.first_plan(0.5, RHO) == ([], 0)
    needed = planner.units_needed(0.5, RHO)
    assert 20 < needed < math.inf
    assert power(2.0, math.floor(needed)).lowest(0.5, RHO) is None
    assert power(2.0, math.ceil(needed)).lowest(0.5, RHO) is not None


def test_no_plan_takes_more_steps_than_allowed():
    planner = power(4.0, 10**6, most_steps=300)
    found = planner.lowest(0.25, RHO)
    assert found is not None
    assert found.steps <= 300
    assert power(4.0, 10**6, most_steps=0).lowest(0.25, RHO) is None
    assert math.isinf(power(4.0, 10**6, most_steps=0).units_needed(0.25, RHO))


def test_without_noise_everything_is_free():
    planner = power(2.0, 100, factor=0, clip=math.inf, most_steps=500)
    found = planner.lowest(0.5, math.inf)
    assert found is not None
    assert found.cost == 0.0
    assert found.goal < 1e-20
    assert found.steps <= 500


def test_a_gentle_condition_makes_finitely_many_plans():
    """kappa = 1: gradients do not shrink slower than the excess, and phases grow longer and longer."""
    planner = PhasePlanner(
        growth=KL(gamma=3.0, kappa=1.0, gap=0.7),
        clip=1.0,
        curvature=0.25,
        smoothness=0.25,
        parameters=5,
        units=10**6,
        factor=2,
    )
    found = planner.lowest(0.7, RHO)
    assert found is not None
    assert 0 < found.goal < 0.1
    steps = [phase.steps for phase in planner.phases(0.7, found.goal, found.phases)]
    assert steps == sorted(steps)


@pytest.mark.parametrize("draws", [30, pytest.param(150, marks=pytest.mark.audit)])
def test_no_plan_has_more_steps_than_it_has_events(draws):
    """With N fixed a long plan is cheaper than one that pays for its own events: it must be limited."""
    rng = np.random.default_rng(0)
    planned = 0
    for _ in range(draws):
        kappa, gamma, clip = rng.uniform(1, 2), 10 ** rng.uniform(-2, 2), 10 ** rng.uniform(-2, 2)
        growth = KL(gamma=gamma, kappa=kappa)
        planner = PhasePlanner(
            growth=growth,
            clip=clip,
            curvature=10 ** rng.uniform(-3, 3),
            smoothness=10 ** rng.uniform(-2, 3),
            parameters=int(10 ** rng.uniform(0, 3)),
            units=int(10 ** rng.uniform(1, 7)),
            factor=2,
            relative_error=rng.uniform(0.02, 0.48),
            failure=10 ** rng.uniform(-6, -0.01),
            most_steps=100_000,
        )
        phases, events = planner.first_plan(growth.gap_within(clip), 10 ** rng.uniform(-4, 2))
        assert sum(phase.steps for phase in phases) <= events
        planned += bool(phases)
    assert planned >= draws // 5
    known = PhasePlanner(
        growth=KL(gamma=0.5, kappa=2.0),
        clip=1.0,
        curvature=0.25,
        smoothness=0.25,
        parameters=5,
        units=1_000_000,
        factor=2,
        relative_error=0.1,
        failure=0.1,
        most_steps=100_000,
    )
    phases, events = known.first_plan(0.25, 2.0)
    assert phases
    assert sum(phase.steps for phase in phases) <= events  # 104 steps for 42 events, without the limit
