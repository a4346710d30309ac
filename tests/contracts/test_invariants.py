"""What does not change, and what is never exceeded, whichever method for the KL condition runs on whatever data."""

import math
from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest
from tests.contracts.coupled import (
    LOGISTIC,
    METHODS,
    PAPER_MODES,
    SLACK,
    WIDE,
    outlier_pair,
)
from tests.support.formula_noise import FormulaNoise, cosines

from privopt.curator.local import LocalCurator
from privopt.data.units import Units
from privopt.ledger import accounting
from privopt.ledger.amounts import Budget
from privopt.ledger.curves import gaussian_epsilon
from privopt.ledger.ledger import Ledger
from privopt.mechanisms.noise import NoiseSource
from privopt.papers.dp_spider import DPSpider
from privopt.planning.task import Instance
from privopt.precision import double_precision
from privopt.problems import losses
from privopt.problems.growth import KL
from privopt.problems.losses import RecordLoss
from privopt.problems.problem import Problem
from privopt.problems.regularisers import Ridge
from privopt.public import Public
from privopt.result import Status
from privopt.solve import minimize
from privopt.solvers import adaptive_gradient_descent
from privopt.solvers.adaptive_gradient_descent import AdaptiveGradientDescent, NormTracker
from privopt.solvers.continuous_spider import ContinuousSpider
from privopt.solvers.curvature_probe import CurvatureProbe
from privopt.solvers.gradient_descent import GradientDescent
from privopt.solvers.kl_proximal_point import KLProximalPoint
from privopt.solvers.kl_spider import KLSpider

BUDGET = Budget(1.0, 1e-6)
HERE = Public(n=40, d=4)
ONE_CHOICE = "GradientNorms"


@pytest.fixture(autouse=True)
def double():
    with double_precision():
        yield


def run(solver, units, problem=LOGISTIC, noise=None, start=None):
    """The result on a ledger that holds the plan and refuses anything else."""
    ledger = Ledger(WIDE, units.public.relation, plan=solver.event(units.public))
    curator = LocalCurator(units, ledger, noise=NoiseSource(3) if noise is None else noise)
    return solver.solve(curator, problem, start)


def spent(transcript):
    """rho of the releases with Gaussian noise, each by what it was charged."""
    return sum(
        release.count * accounting.zcdp_rho(release.event)
        for release in transcript
        if release.name != ONE_CHOICE
    )


def rho_of(solver):
    """What the Gaussian releases of a solver are paid with."""
    whole = accounting.zcdp_rho(solver.event(HERE))
    if getattr(solver, "returns", None) == "selected":
        whole -= accounting.zcdp_rho(solver.selection.event())
    return whole


def of_rho(solver, rho):
    """The same solver with this much to spend."""
    return solver.scaled(math.sqrt(rho_of(solver) / rho))


# Spending ------------------------------------------------------------------------------------------------------------


def never_a_number(params, features, target):
    """Its gradient is not a number, anywhere."""
    return jnp.sqrt(-1.0 - (features @ params) ** 2 - target**2)


NOT_A_NUMBER = Problem(RecordLoss(never_a_number, curvature=0.25))
ODD = {
    "constant": (np.ones((2, 1)), LOGISTIC),
    "empty": (np.zeros((2, 1)), LOGISTIC),
    "not a number": (np.full((2, 1), np.nan), LOGISTIC),
    "a loss that is not a number": (np.ones((2, 1)), NOT_A_NUMBER),
}
ONE_STEP = {
    "steps": 1,
    "most_steps": 1,
    "outer_steps": 1,
    "inner_steps": 1,
}


def of_one_step(solver):
    return replace(
        solver, **{field: n for field, n in ONE_STEP.items() if getattr(solver, field, None) is not None}
    )


@pytest.mark.later(
    "adaptive gradient descent, selected-a loss that is not a number",
    "adaptive gradient descent, selected-constant",
    "adaptive gradient descent, selected-empty",
    "adaptive gradient descent, the paper's-a loss that is not a number",
    "continuous spider, momentum-a loss that is not a number",
    "continuous spider-a loss that is not a number",
    "continuous spider-constant",
    "dp spider-a loss that is not a number",
    "dp spider-constant",
    "kl spider, the paper's-a loss that is not a number",
    "kl spider, the paper's-constant",
    "kl spider, the paper's-not a number",
    "geometric gradient descent-a loss that is not a number",
    "geometric gradient descent-constant",
)
@pytest.mark.parametrize("odd", ODD)
@pytest.mark.parametrize("name", METHODS)
def test_no_data_and_no_budget_make_it_spend_more_than_it_has(name, odd):
    rows, problem = ODD[odd]
    units = Units.from_arrays(rows, [1.0, -1.0], row_bound=1.0, n=2, storage="float64")
    for solver in (METHODS[name], of_one_step(METHODS[name])):
        for rho in (1e-12, rho_of(solver)):
            priced = of_rho(solver, rho).configure(Instance(problem, units.public, WIDE))
            result = run(priced, units, problem)
            assert spent(result.transcript) <= rho * SLACK
            assert np.all(np.isfinite(result.params))
            assert result.transcript.releases <= priced.releases()


@pytest.mark.parametrize("relation", ["replace-one", "add-or-remove-one"])
@pytest.mark.parametrize("name", METHODS)
def test_noise_over_sensitivity_is_what_was_charged_and_adds_up_to_what_was_spent(name, relation):
    solver, rho = METHODS[name], rho_of(METHODS[name])
    units = outlier_pair(relation)[0]
    result = run(solver, units)
    by_noise = sum(
        float(np.sum(release.sensitivity**2 / (2.0 * release.scale**2)))
        for release in result.transcript
        if release.name != ONE_CHOICE
    )
    assert by_noise == pytest.approx(spent(result.transcript), rel=1e-9)
    used = result.findings["budget_used"].value if "budget_used" in result.findings else 1.0
    assert by_noise == pytest.approx(used * rho, rel=1e-9)
    assert by_noise <= rho * SLACK
    if name != "adaptive gradient descent, selected":
        price = accounting.epsilon(solver.event(units.public), 1e-6, units.public.relation)
        assert price == pytest.approx(gaussian_epsilon(math.sqrt(2.0 * rho), 1e-6), rel=1e-6)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("rho", [0.05, 2.0])
def test_adaptive_descent_stops_at_its_last_release_and_its_norm_stays_in_its_range(seed, rho, monkeypatch):
    norms = []

    class Watched(NormTracker):
        def updated(self, *args, **options):
            following = super().updated(*args, **options)
            norms.append(following.norm)
            return Watched(*following)

    monkeypatch.setattr(adaptive_gradient_descent, "NormTracker", Watched)
    monkeypatch.setattr(
        Watched, "of_first", staticmethod(lambda *first: Watched(*NormTracker.of_first(*first)))
    )
    solver = of_rho(replace(METHODS["adaptive gradient descent"], most_steps=3000), rho)
    units = outlier_pair("replace-one")[0]
    result = run(solver, units, noise=NoiseSource(seed))
    assert result.status is Status.BUDGET_SPENT
    costs = [accounting.zcdp_rho(release.event) for release in result.transcript]
    assert sum(costs[:-1]) < rho * (1.0 - 1e-12)
    assert sum(costs) <= rho * SLACK
    full = 2.0 * solver.clip / units.public.n / math.sqrt(2.0 * rho)
    assert len(norms) >= 1
    assert min(norms) >= min(0.3 * full, solver.clip) * (1.0 - 1e-9)
    assert max(norms) <= solver.clip


# Symmetries ----------------------------------------------------------------------------------------------------------


@pytest.mark.later("adaptive gradient descent, selected", "dp spider", "kl spider, the paper's")
@pytest.mark.parametrize("name", METHODS)
def test_rotated_rows_start_and_noise_rotate_the_run_and_row_order_does_not_matter(name):
    rng = np.random.default_rng(2)
    rows, d = rng.normal(size=(40, 5)) / 2.0, 5
    targets, start = np.where(rng.random(40) < 0.5, 1.0, -1.0), jnp.asarray([0.3, -0.2, 0.1, 0.4, 0.0])
    turn, order = np.linalg.qr(rng.normal(size=(d, d)))[0], rng.permutation(40)

    def turned(k, shape):
        return turn @ cosines(k, shape) if shape == (d,) else cosines(k, shape)

    def units(x, y):
        return Units.from_arrays(x, y, row_bound=1.0, n=40, storage="float64")

    solver = METHODS[name]
    plain = run(solver, units(rows, targets), noise=FormulaNoise(), start=start)
    other = run(
        solver, units(rows @ turn.T, targets), noise=FormulaNoise(turned), start=jnp.asarray(turn @ start)
    )
    np.testing.assert_allclose(other.params, turn @ np.asarray(plain.params), rtol=1e-7, atol=1e-9)
    for left, right in zip(plain.transcript, other.transcript, strict=True):
        assert left.name == right.name
        if left.released.shape == (1, d):
            np.testing.assert_allclose(right.released[0], turn @ left.released[0], rtol=1e-6, atol=1e-8)
    shuffled = run(solver, units(rows[order], targets[order]), noise=FormulaNoise(), start=start)
    np.testing.assert_allclose(shuffled.params, plain.params, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", sorted(set(METHODS) - PAPER_MODES))
def test_the_relation_is_a_factor_of_the_sensitivity_and_nothing_else(name):
    """Replacing a unit at four times the budget is adding one at the budget, with the same noise."""
    rows, targets = np.random.default_rng(4).normal(size=(40, 4)) / 2.0, np.tile([1.0, -1.0], 20)
    results = [
        run(
            of_rho(METHODS[name], rho),
            Units.from_arrays(rows, targets, row_bound=1.0, relation=relation, n=40, storage="float64"),
            noise=FormulaNoise(),
        )
        for relation, rho in (
            ("replace-one", 4.0 * rho_of(METHODS[name])),
            ("add-or-remove-one", rho_of(METHODS[name])),
        )
    ]
    np.testing.assert_allclose(results[0].params, results[1].params, rtol=1e-9)
    for left, right in zip(*(result.transcript for result in results), strict=True):
        np.testing.assert_allclose(left.released, right.released, rtol=1e-8, atol=1e-12)


@pytest.mark.later("adaptive gradient descent, selected", "kl spider", "kl spider, the paper's")
@pytest.mark.parametrize("name", METHODS)
def test_users_with_one_record_each_are_records(name):
    units = outlier_pair("replace-one")[0]
    rows, targets = np.asarray(units.private_features), np.asarray(units.private_targets)
    users = Units.from_arrays(
        rows, targets, row_bound=1.0, n=40, storage="float64", groups=np.arange(40), max_records_per_user=1
    )
    one, other = (run(METHODS[name], data, noise=FormulaNoise()) for data in (units, users))
    np.testing.assert_allclose(other.params, one.params, rtol=1e-9)


# Endings -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", METHODS)
def test_a_release_that_is_not_finite_ends_the_run_at_the_last_finite_point(name):
    """Whatever it is that is not finite."""
    units, last = outlier_pair("replace-one")[0], 1 if name == "kl spider, the paper's" else 3
    ends = []
    for value in (np.inf, np.nan):

        def breaking(k, shape, value=value):
            return np.full(shape, value) if k == last and shape else cosines(k, shape)

        result = run(METHODS[name], units, noise=FormulaNoise(breaking))
        assert result.status is Status.DIVERGED
        assert np.all(np.isfinite(result.params))
        assert not {"risk_bound", "gradient_norm_bound"} & set(result.findings)
        ends.append(np.asarray(result.params))
    np.testing.assert_array_equal(*ends)


# Without privacy -----------------------------------------------------------------------------------------------------

RIDGE = Problem(losses.logistic, Ridge(0.1))
STRONG = KL.of_strong_convexity(0.1, gap=0.7)
REACHING = {
    "geometric gradient descent": GradientDescent.geometric(most_steps=300),
    "continuous spider": ContinuousSpider(momentum=0.0, difference_clip=1.0, most_steps=300),
    "adaptive gradient descent": AdaptiveGradientDescent(most_steps=300),
    "kl spider": KLSpider(growth=STRONG),
    "kl proximal point": KLProximalPoint(weight=0.5, outer_steps=25, inner_steps=40),
    "dp spider": DPSpider(steps=600, period=5, returns="last"),
    "curvature probe": CurvatureProbe(inner=GradientDescent.geometric(most_steps=300)),
}


@pytest.mark.at_once("adaptive gradient descent", "geometric gradient descent")
@pytest.mark.parametrize("name", REACHING)
def test_without_privacy_it_reaches_the_optimum(name):
    rows, targets = np.random.default_rng(7).normal(size=(50, 3)), np.tile([1.0, -1.0], 25)
    units = Units.from_arrays(rows, targets, row_bound=1.0, n=50, storage="float64")
    rows = np.asarray(units.private_features)
    result = minimize(RIDGE, units, budget=Budget(math.inf, 1e-6), solver=REACHING[name])
    params = np.asarray(result.params)
    gradient = rows.T @ (-targets / (1.0 + np.exp(targets * (rows @ params)))) / 50 + 0.1 * params
    excess = float(gradient @ gradient) / (2.0 * 0.1)  # at most this, by strong convexity
    assert excess < 1e-6


# Plans ---------------------------------------------------------------------------------------------------------------

MANY = Public(n=200_000, d=5)
OF_A_PLAN = {
    "geometric gradient descent": GradientDescent.geometric(),
    "continuous spider": ContinuousSpider(),
    "adaptive gradient descent": AdaptiveGradientDescent(),
    "adaptive gradient descent, the paper's": AdaptiveGradientDescent(variant="paper"),
    "kl spider": KLSpider(growth=KL.of_strong_convexity(0.05, gap=0.7)),
    "kl spider, the paper's": KLSpider(variant="paper", growth=KL.of_strong_convexity(0.05, gap=0.7)),
    "kl proximal point": KLProximalPoint(weight=0.5),
    "dp spider": DPSpider(),
    "curvature probe": CurvatureProbe(),
}


@pytest.mark.later("geometric gradient descent")
@pytest.mark.parametrize("name", OF_A_PLAN)
def test_a_plan_says_its_bound_or_that_there_is_none(name):
    plan = OF_A_PLAN[name].plan(Instance(Problem(losses.logistic), MANY, BUDGET))
    lines = [line for line in str(plan).splitlines() if line.split()[:1] == ["bound"]]
    assert len(lines) == 1
    assert (plan.bound is not None) == (name == "kl spider")
    if plan.bound is None:
        assert lines[0].split() == ["bound", "no", "bound"]
    else:
        assert plan.bound.value < 0.7
        assert "excess at most" in lines[0]


def test_more_units_and_more_budget_lower_the_target_of_kl_spider():
    def target(n, epsilon):
        solver = KLSpider(growth=KL.of_strong_convexity(0.05, gap=0.7))
        return solver.plan(
            Instance(Problem(losses.logistic), Public(n=n, d=5), Budget(epsilon, 1e-6))
        ).bound.value

    assert target(400_000, 1.0) < target(200_000, 1.0)
    assert target(200_000, 2.0) < target(200_000, 1.0)
