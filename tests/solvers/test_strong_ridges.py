"""No ridge is so strong that steps diverge, whichever solver takes them, and a step size that would is refused."""

import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.support.turns import but_later

from privopt import Account, minimize
from privopt.data.units import Units
from privopt.ledger.amounts import Budget
from privopt.papers.newton import DoubleNoiseNewton
from privopt.planning.task import Instance
from privopt.problems import losses
from privopt.problems.constraints import Box, L2Ball
from privopt.problems.grouped_loss import GroupedLoss
from privopt.problems.problem import Problem
from privopt.problems.regularisers import ElasticNet, Ridge
from privopt.solvers.correlated_noise_descent import CorrelatedNoiseDescent
from privopt.solvers.gradient_descent import GradientDescent
from privopt.solvers.registry import NAMES, choose, named
from privopt.solvers.stochastic_gradient_descent import StochasticGradientDescent
from privopt.solvers.svrg import SVRG
from privopt.solvers.user_federated_averaging import UserFederatedAveraging
from privopt.solvers.user_gradient_descent import UserGradientDescent
from privopt.solvers.worst_group_descent import WorstGroupDescent
from privopt.status import Status

N, D = 400, 4
FREE = (1.0,) * D + (0.0,)
EVERY = list(itertools.product(NAMES, (1.0, 10.0, 1e6), (10.0, math.inf)))
QUICK = [(name, alpha, 10.0) for name in ("gradient-descent", "newton") for alpha in (10.0, 1e6)]
DELTA = 1e-6


def rows() -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(0)
    features = np.hstack([generator.uniform(-1.0, 1.0, (N, D)), np.ones((N, 1))])
    odds = features @ np.array([2.0, -1.0, 1.0, 0.0, 0.5])
    return features, np.where(generator.random(N) < 1.0 / (1.0 + np.exp(-odds)), 1.0, -1.0)


def units(by_user: bool = False) -> Units:
    features, labels = rows()
    groups = np.arange(N) // 2 if by_user else None
    return Units.from_arrays(
        features, labels, relation="replace-one", row_bound=math.sqrt(D + 1) * 1.001, groups=groups
    )


def solved(problem: Problem, solver, epsilon: float, by_user: bool = False):
    budget = Budget(epsilon, DELTA if epsilon < math.inf else 0.0)
    return minimize(problem, units(by_user), budget=budget, solver=solver, random_state=0)


@pytest.mark.later("newton-10.0-10.0", "newton-1000000.0-10.0")
@pytest.mark.parametrize(("name", "alpha", "epsilon"), but_later(QUICK, EVERY))
def test_a_strong_ridge_shrinks_and_does_not_diverge(name, alpha, epsilon):
    for by_user in (False, True):
        problem, solver = Problem(losses.logistic, Ridge(alpha, FREE)), named(name)
        if solver.obstacle(problem, units(by_user).public) is None:
            break
    else:
        pytest.skip("not for a ridge without a set")
    result = solved(problem, name, epsilon, by_user)
    params = np.asarray(result.params)
    assert np.all(np.abs(params) < 3.0)  # the best are at most 0.6
    assert alpha * np.sum(params[:-1] ** 2) < 1.0 + alpha * (epsilon < math.inf)
    assert result.status in (Status.FINISHED, Status.BUDGET_SPENT)


@pytest.mark.parametrize("alpha", [10.0, 1e6])
def test_descent_ends_at_the_base_rate_under_a_ridge_that_leaves_nothing_else(alpha):
    result = solved(Problem(losses.logistic, Ridge(alpha, FREE)), GradientDescent(steps=300), math.inf)
    rate = np.mean(rows()[1] > 0)
    assert float(result.params[-1]) == pytest.approx(math.log(rate / (1.0 - rate)), abs=0.05)


def test_the_proximal_map_of_a_ridge_ends_where_its_gradient_does():
    problem = Problem(losses.logistic, ElasticNet(0.01, 0.5, FREE))
    by_gradient, by_map = (
        np.asarray(solved(problem, GradientDescent(shrinks=shrinks, steps=300), math.inf).params)
        for shrinks in (False, True)
    )
    np.testing.assert_allclose(by_map, by_gradient, atol=1e-8)


@pytest.mark.later("problem0-True", "problem2-True", "problem1-True")
@pytest.mark.parametrize(
    ("problem", "exact"),
    [
        (Problem(losses.logistic, Ridge(1.0, FREE)), True),
        (Problem(losses.logistic, Ridge(1.0, FREE), Box(-1.0, 1.0)), True),
        (Problem(losses.logistic, Ridge(1.0), L2Ball(1.0)), True),
        (Problem(losses.logistic, Ridge(1.0, FREE), L2Ball(1.0)), False),
    ],
)
def test_the_proximal_map_with_a_set_is_taken_where_it_is_exact(problem, exact):
    assert problem.shrinks_exactly is exact
    point, gradient, step = jnp.linspace(-2.0, 2.0, D + 1), jnp.ones(D + 1), 0.7
    moved = np.asarray(problem.shrinking_step(point, gradient, step))

    def value(at):
        return jnp.sum((at - point + step * gradient) ** 2) / 2 + step * problem.regulariser.value(at)

    nearby = moved + 1e-3 * np.random.default_rng(0).normal(size=(500, D + 1))
    least = jnp.min(jax.vmap(lambda at: value(problem.constraint.project(at)))(jnp.asarray(nearby)))
    assert (float(value(jnp.asarray(moved))) <= float(least) + 1e-6) is exact


@pytest.mark.parametrize(
    "solver",
    [
        GradientDescent(step_size=2.0, shrinks=False),
        GradientDescent(step_size=60.0),
        StochasticGradientDescent(step_size=2.0),
        SVRG(step_size=2.0),
        CorrelatedNoiseDescent(step_size=2.0),
    ],
    ids=lambda solver: solver.name,
)
def test_a_step_size_that_diverges_is_refused_before_anything_is_paid(solver, tmp_path):
    account = Account.create(tmp_path / "account.json", epsilon=5.0, delta=1e-5, data_set="rows")
    problem = Problem(losses.logistic, Ridge(10.0, FREE))
    with pytest.raises(ValueError, match=r"step_size must be at most .*, got .*Leave step_size open"):
        minimize(problem, units(), budget=Budget(1.0, DELTA), solver=solver, account=account)
    assert not account.entries


def test_a_step_size_that_the_stated_curvature_allows_is_not_refused():
    instance = Instance(Problem(losses.logistic), units().public, Budget(1.0, DELTA))
    with pytest.raises(ValueError, match="give its `smoothness`"):
        choose(GradientDescent(step_size=10.0), instance)
    choose(GradientDescent(step_size=10.0, smoothness=0.05), instance)
    choose(GradientDescent(), instance)


@pytest.mark.parametrize("solver", [UserGradientDescent, UserFederatedAveraging, CorrelatedNoiseDescent])
def test_where_no_curvature_can_be_stated_only_the_penalty_limits_the_step(solver) -> None:
    by_user = solver is not CorrelatedNoiseDescent
    public, budget = units(by_user).public, Budget(1.0, DELTA)
    for ridge, allowed in ((0.01, 190.0), (10.0, 0.19)):
        instance = Instance(Problem(losses.logistic, Ridge(ridge, FREE)), public, budget)
        choose(solver(step_size=allowed), instance)
        with pytest.raises(
            ValueError, match=r"the penalty's curvature is .*Leave step_size open for a safe one\.$"
        ):
            choose(solver(step_size=1.1 * allowed), instance)
    choose(solver(step_size=1e9), Instance(Problem(losses.logistic), public, budget))


def test_descent_for_the_worst_group_takes_the_ridge_into_its_step():
    problem = Problem(GroupedLoss(losses.logistic, 2, (0.5, 0.5)), Ridge(1e3, FREE))
    instance = Instance(problem, units().public, Budget(1.0, DELTA))
    assert WorstGroupDescent().filled(instance).step_size <= 1.25 / 1e3


def test_the_noise_of_a_newton_direction_is_damped_for_the_ridge():
    instance = Instance(Problem(losses.logistic, Ridge(1e4, FREE)), units().public, Budget(1.0, DELTA))
    assert DoubleNoiseNewton().filled(instance).damping > 1.0


def test_parameters_beyond_all_bounds_are_no_success():
    problem = Problem(losses.RecordLoss(_steep, name="steep", convex=True))
    result = solved(problem, GradientDescent(step_size=1e3, steps=60), math.inf)
    assert result.status is Status.DIVERGED
    assert np.all(np.abs(np.asarray(result.params)) < 1e31)


def _steep(params, features, target):
    return (features @ params - target) ** 2
