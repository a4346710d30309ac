"""The probe of the curvature: what it costs, which steps follow from it, and that the filter never refuses."""

import math
from dataclasses import replace

import numpy as np
import pytest
from tests.contracts.cases import own_loss
from tests.support.formula_noise import FormulaNoise, silence

from privopt.curator.local import LocalCurator
from privopt.curator.replay import Replay
from privopt.data.units import Units
from privopt.ledger.amounts import Budget
from privopt.ledger.curves import gaussian_mu
from privopt.ledger.ledger import Ledger
from privopt.mechanisms.noise import NoiseSource
from privopt.planning.task import Instance
from privopt.problems import losses
from privopt.problems.problem import Problem
from privopt.problems.regularisers import Ridge
from privopt.public import Public
from privopt.solvers.adaptive_gradient_descent import AdaptiveGradientDescent
from privopt.solvers.continuous_spider import ContinuousSpider
from privopt.solvers.curvature_probe import CurvatureProbe
from privopt.solvers.frank_wolfe import FrankWolfe
from privopt.solvers.gradient_descent import GradientDescent

BUDGET = Budget(1.0, 1e-6)
LOGISTIC = Problem(losses.logistic, Ridge(0.01))
INNER = [
    GradientDescent.geometric(most_steps=30),
    GradientDescent(),
    ContinuousSpider(most_steps=30),
]


def alike(n=400, d=5, seed=0):
    """Rows on a sphere: the largest eigenvalue is about 1 / d of the square of the row bound."""
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(n, d))
    rows /= np.linalg.norm(rows, axis=1, keepdims=True) * (1 + 1e-6)
    targets = np.where(rows @ np.arange(1.0, d + 1) + 0.3 * rng.normal(size=n) > 0, 1.0, -1.0)
    return Units.from_arrays(rows, targets, row_bound=1.0, storage="float64")


def solve(solver, units, problem=LOGISTIC, budget=BUDGET, noise=None):
    solver = solver.configure(Instance(problem, units.public, budget))
    ledger = Ledger(budget, "replace-one", plan=solver.event(units.public))
    curator = LocalCurator(units, ledger, noise=NoiseSource(0) if noise is None else noise)
    return solver, ledger, solver.solve(curator, problem)


@pytest.mark.at_once("gradient-descent")
@pytest.mark.parametrize("inner", INNER, ids=lambda inner: inner.title)
def test_the_whole_budget_is_paid_and_the_inner_solver_fits(inner):
    solver, ledger, result = solve(CurvatureProbe(inner=inner), alike())
    assert ledger.epsilon() == pytest.approx(1.0, rel=1e-6)
    assert len(result.transcript) <= solver.releases()
    probe = 1.0 / solver.noise_multiplier**2
    assert probe == pytest.approx(0.01 * gaussian_mu(1.0, 1e-6) ** 2, rel=1e-6)
    replayed = solver.solve(Replay(result.transcript, alike().public), LOGISTIC)
    assert np.array_equal(replayed.params, result.params)


def test_steps_follow_the_eigenvalue():
    """Without noise, exactly; there are fewer of them than without the probe."""
    units = alike(n=2_000)
    rows = np.asarray(units.private_features)
    top = np.linalg.eigvalsh(rows.T @ rows / units.public.n)[-1]
    problem = Problem(losses.logistic)
    probe = CurvatureProbe(inner=GradientDescent.geometric())
    solver, _, result = solve(probe, units, problem, noise=FormulaNoise(silence))
    sigma = solver.noise_multiplier / units.public.n
    curvature = result.findings["curvature"].value
    assert curvature == pytest.approx(0.25 * (top + 2.0 * sigma), rel=1e-6)
    inner = solver.configured_inner(problem, units.public, curvature)
    assert inner.step_size == pytest.approx(1.0 / curvature)
    assert inner.steps < solver.planned.steps
    assert len(result.transcript) == 1 + inner.steps


@pytest.mark.parametrize("inner", INNER, ids=lambda inner: inner.title)
def test_each_inner_solver_takes_steps_of_the_curvature(inner):
    public = Public(n=1000, d=5)
    solver = CurvatureProbe(inner=inner).configure(Instance(LOGISTIC, public, BUDGET))
    longer = solver.configured_inner(LOGISTIC, public, 0.05)
    factor = 1.25 if inner == GradientDescent() else 1.0
    assert longer.step_size == pytest.approx(factor / 0.06)
    assert longer.releases() <= solver.planned.releases()


def test_a_curvature_that_nothing_is_known_of_stays_within_its_limits():
    """Rows of zeros, and a probe that drowns in noise."""
    empty = Units.from_arrays(np.zeros((100_000, 2)), np.ones(100_000), row_bound=1.0)
    _, _, result = solve(CurvatureProbe(inner=GradientDescent.geometric(steps=1)), empty)
    assert result.findings["curvature"].value == pytest.approx(0.02 * 0.25)
    _, _, result = solve(
        CurvatureProbe(inner=GradientDescent.geometric(steps=1)), alike(n=50), budget=Budget(0.05, 1e-6)
    )
    assert result.findings["curvature"].value == pytest.approx(0.25)


def test_without_privacy_the_probe_is_exact():
    solver = CurvatureProbe(inner=GradientDescent.geometric(most_steps=20))
    solver, _, result = solve(solver, alike(), budget=Budget(math.inf, 1e-6))
    assert solver.noise_multiplier == solver.remainder == 0.0
    assert result.findings["curvature"].value < 0.1


def test_scaling_scales_both_parts():
    solver = CurvatureProbe().configure(Instance(LOGISTIC, Public(n=1000, d=5), BUDGET))
    twice = solver.scaled(2.0)
    assert twice.noise_multiplier == 2.0 * solver.noise_multiplier
    assert twice.remainder == 2.0 * solver.remainder


def test_a_budget_that_leaves_the_inner_solver_no_epsilon_at_its_delta_is_still_spent():
    public = Public(n=1000, d=5)
    solver = CurvatureProbe(share=0.9).configure(Instance(LOGISTIC, public, Budget(1e-3, 1e-2)))
    assert solver.planned.noise_multiplier > 0


def test_it_says_what_it_cannot_do():
    public = Public(n=1000, d=5)
    own = Problem(losses.RecordLoss(own_loss))
    assert "user's own" in (CurvatureProbe().applicable(own, public) or "")
    for inner, message in [
        (FrankWolfe(), "does not gain from longer steps"),
        (GradientDescent(step_size=1.0), "leave it open"),
        (GradientDescent(returns="random"), "random iterate"),
        (AdaptiveGradientDescent(), "does not gain from longer steps"),
    ]:
        assert message in (CurvatureProbe(inner=inner).applicable(LOGISTIC, public) or "")
    assert "entries" in (CurvatureProbe().applicable(LOGISTIC, replace(public, d=3000)) or "")
    with pytest.raises(ValueError, match="share must"):
        CurvatureProbe(share=1.0)
