"""What plans of online-to-non-convex descent say of stationarity, before any data are read."""

import pytest

from privopt import Budget, Problem, losses, regularisers
from privopt.papers.single_pass_o2nc import SinglePassO2NC
from privopt.papers.variance_reduced_o2nc import VarianceReducedO2NC
from privopt.planning.goldstein_bounds import StationarityTask, plain_bound, task_of
from privopt.planning.task import Instance
from privopt.precision import double_precision
from privopt.problems.black_box import BlackBox
from privopt.public import Public
from privopt.solvers import O2NC

PROVED = {"mode": "guarantee", "returns": "random", "steps": 20_000, "window": 1000, "radius": 0.5}


def instance(n=200_000, epsilon=1.0, **parts):
    return Instance(Problem(losses.ramp(), **parts), Public(n=n, d=10), Budget(epsilon, 1e-6))


@pytest.fixture(autouse=True)
def double():
    with double_precision():
        yield


def test_a_run_that_meets_the_theorems_conditions_states_its_bound():
    here = instance()
    plan = O2NC(**PROVED).plan(here)
    solver = O2NC(**PROVED).configure(here)
    task = task_of(here, clip=solver.clip, radius=0.5, distance=solver.distance)
    assert isinstance(task, StationarityTask)
    stated = plain_bound(task, window=1000, blocks=20, noise=solver.deviation(here.public))
    assert plan.bound.value == pytest.approx(stated)
    assert stated == pytest.approx(
        plain_bound(task, window=1000, blocks=20), rel=0.1
    )  # 0.9 of rho is for steps
    assert plan.bound.probability is None
    assert "within 0.5 of the result" in plan.bound.sentence


@pytest.mark.parametrize(
    "changes",
    [{"mode": "practical"}, {"returns": "last"}, {"places": "middle"}, {"step_size": 0.1}, {"rate": 0.1}],
)
def test_a_run_that_does_not_states_none(changes):
    assert O2NC(**{**PROVED, **changes}).plan(instance()).bound is None


def test_a_bound_that_says_nothing_is_a_notice():
    plan = O2NC(**{**PROVED, "steps": 20, "window": 5}).plan(instance(n=200))
    assert plan.bound is None
    assert any("vacuous at this budget" in notice for notice in plan.notices)


@pytest.mark.parametrize("kind", [O2NC, SinglePassO2NC, VarianceReducedO2NC])
def test_every_method_of_the_family_says_what_each_could_promise(kind):
    found = kind().plan(instance(n=20_000)).indicators["stationarity_bound"]
    assert 0 < found.value < 1
    for phrase in (
        "for plain steps",
        "variance-reduced single-pass",
        "vacuous at this budget",
        "no gradient is longer",
    ):
        assert phrase in found.meaning


def test_nothing_is_said_where_nothing_bounds_the_gradient():
    assert "stationarity_bound" not in O2NC().plan(instance(regulariser=regularisers.Ridge(0.1))).indicators
    assert task_of(instance(), clip=float("inf"), radius=1.0, distance=1.0) is None


def test_a_black_box_cannot_improve_by_more_than_its_range():
    box = BlackBox(lambda params, features, target: 0.0, value_range=(2.0, 5.0), scale=1.0)
    here = Instance(Problem(box), Public(n=100, d=2), Budget(1.0, 1e-6))
    assert task_of(here, clip=10.0, radius=0.1, distance=4.0).drop == pytest.approx(3.0, abs=2e-3)
