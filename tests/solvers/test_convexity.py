"""What rests on a convex loss refuses one that is not; the others take it, and predict nothing from convexity."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from privopt import minimize
from privopt.data.units import Units
from privopt.ledger.amounts import Budget
from privopt.papers.strongly_convex_stages import StronglyConvexStages
from privopt.planning.task import Instance
from privopt.problems import losses
from privopt.problems.constraints import L1Ball
from privopt.problems.grouped_loss import GroupedLoss
from privopt.problems.growth import KL
from privopt.problems.problem import Problem
from privopt.problems.regularisers import Ridge
from privopt.public import Public
from privopt.solvers.gradient_descent import GradientDescent
from privopt.solvers.kl_proximal_point import KLProximalPoint
from privopt.solvers.registry import NAMES, automatic, named
from privopt.solvers.whitening import Whitening

BUDGET = Budget(2.0, 1e-5)
REFUSE = {
    *(
        "svrg",
        "svrg-plus-plus",
        "objective-perturbation",
        "output-perturbation",
        "phased-sgd",
        "snowball-sgd",
    ),
    *("accelerated-mirror-descent", "mirror-descent", "anytime-mirror-descent", "vertex-anytime", "newton"),
    *("kl-proximal-point", "strongly-convex-stages", "phased-group-sgd", "phased-accelerated-erm"),
    *("worst-group-whitening", "worst-group-descent", "worst-group-two-stage"),
}
LOGISTIC_ALONE = {"posterior-descent"}  # which refuses a ramp as any other loss
NOT_CONVEX = "rest on a convex loss, and the ramp.* loss is not convex$"
RECORDS = Public(n=20_000, d=5)
USERS = Public(n=2_000, d=5, unit="user", records_per_unit=20, weighting="user", typical_records=10.0)


def instances(loss: losses.GLMLoss) -> Iterator[Instance]:
    """Tasks of every kind that some solver is for."""
    for shown in (loss, GroupedLoss(loss, 2)):  # pyright: ignore[reportArgumentType]
        for problem in (
            Problem(shown, growth=KL(gamma=2.0, kappa=2.0)),
            Problem(shown, Ridge(0.1)),
            Problem(shown, constraint=L1Ball(2.0)),
        ):
            for public in (RECORDS, USERS):
                yield Instance(problem, public, BUDGET)


def fitting(name: str) -> Instance:
    """A task with a smooth loss that is convex and that the solver takes."""
    solver = named(name)
    loss = losses.smoothed_hinge(0.5)
    return next(one for one in instances(loss) if solver.obstacle(one.problem, one.public) is None)


@pytest.mark.later(
    "correlated-noise-descent",
    "curvature-probe",
    "kl-spider",
    "o2nc",
    "private-clip",
    "geometric-gradient-descent",
    "single-pass-o2nc",
    "stochastic-gradient-descent",
    "user-whitening",
    "variance-reduced-frank-wolfe",
)
@pytest.mark.parametrize("name", [name for name in NAMES if name not in LOGISTIC_ALONE])
def test_a_solver_refuses_the_ramp_if_it_rests_on_convexity_and_predicts_nothing_otherwise(name: str) -> None:
    instance, solver = fitting(name), named(name)
    convex = instance.problem.loss
    loss = losses.ramp()
    loss = replace(convex, base=loss) if isinstance(convex, GroupedLoss) else loss
    instance = replace(instance, problem=replace(instance.problem, loss=loss))
    if name in REFUSE:
        with pytest.raises(ValueError, match=rf"cannot solve this problem: [^.]* {NOT_CONVEX[:-1]}\.$"):
            solver.configure(instance)
        return
    assert solver.obstacle(instance.problem, instance.public) is None
    unknown = replace(instance, problem=replace(instance.problem, growth=None))
    if solver.obstacle(unknown.problem, unknown.public) is None:
        plan = solver.plan(unknown)
        assert (plan.predicted_excess, plan.bound) == (None, None)
    else:
        assert solver.plan(instance).settings["growth"]  # what it predicts it takes from there


def test_a_loss_of_the_users_own_is_believed_what_it_says_of_convexity() -> None:
    def value(params, features, target):
        return (features @ params - target) ** 2

    solver, public = named("svrg"), RECORDS
    for convex, obstacle in ((None, None), (True, None), (False, "not convex")):
        found = solver.obstacle(Problem(losses.RecordLoss(value, convex=convex), Ridge(0.1)), public)
        assert found is None if obstacle is None else obstacle in str(found)


def test_a_front_end_refuses_what_its_inner_solver_refuses() -> None:
    problem = Problem(losses.ramp(), Ridge(0.1))
    inside = Whitening(inner=named("svrg"))
    with pytest.raises(ValueError, match="not convex"):
        inside.check_applicable(problem, RECORDS)
    with pytest.raises(ValueError, match="not convex"):
        StronglyConvexStages().check_applicable(problem, RECORDS)


def test_proximal_points_take_a_loss_whose_weak_convexity_is_given() -> None:
    problem = Problem(losses.ramp(), growth=KL(gamma=2.0, kappa=2.0))
    assert "not convex" in str(KLProximalPoint().obstacle(problem, RECORDS))
    assert KLProximalPoint(weak_convexity=0.5).obstacle(problem, RECORDS) is None


def test_the_default_choice_takes_nothing_that_rests_on_convexity() -> None:
    for instance in instances(losses.ramp()):
        if not isinstance(instance.problem.loss, GroupedLoss):
            solver = automatic(instance).solver
            assert solver.obstacle(instance.problem, instance.public) is None


def test_the_setting_for_a_sharp_minimum_wants_a_constant() -> None:
    instance = Instance(Problem(losses.ramp(), Ridge(0.1)), RECORDS, BUDGET)
    with pytest.raises(ValueError, match="the ramp loss is not convex"):
        GradientDescent.for_pl(instance)


@pytest.mark.parametrize("loss", [losses.ramp(), losses.logistic], ids=str)
def test_records_that_are_surely_wrong_lead_the_logistic_model_astray_and_not_the_ramp(loss) -> None:
    position = np.random.default_rng(0).normal(size=2_000)
    features = np.stack([position, np.ones(2_000)], axis=1)
    truth = np.sign(position)
    units = Units.from_arrays(features / 5.0, np.where(position > 1.3, -1.0, truth), row_bound=1.0)
    curved = float(np.sum(features**2)) / 25.0 / 2_000 / 2.0  # at most; the row bound allows six times that
    solver = GradientDescent(clip=1.0, step_size=8.0, steps=50, momentum=0.8, smoothness=curved)
    result = minimize(loss, units, budget=Budget(1e4, 1e-6), solver=solver, random_state=0)
    agree = np.mean(np.sign(features @ np.asarray(result.params)) == truth)
    assert agree > 0.98 if loss == losses.ramp() else agree < 0.9
