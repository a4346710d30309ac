"""Reference values of the continuous form of Menart et al. 2023's Algorithm 1, and what the solver's file promises."""

import math

import jax.numpy as jnp
import numpy as np
import pytest
from tests.support.formula_noise import FormulaNoise, cosines, silence
from tests.support.kl_reference import LOGISTIC, RHO, reference_run

from privopt.curator.audit import Audit
from privopt.curator.local import LocalCurator
from privopt.data.units import Units
from privopt.ledger.amounts import Budget
from privopt.ledger.ledger import Ledger
from privopt.mechanisms.noise import NoiseSource
from privopt.planning.gradient_certificate import EstimateError
from privopt.planning.task import Instance
from privopt.precision import double_precision
from privopt.problems import losses
from privopt.problems.constraints import L2Ball
from privopt.problems.growth import KL
from privopt.problems.losses import RecordLoss
from privopt.problems.problem import Problem
from privopt.problems.regularisers import L1, Ridge
from privopt.public import Public
from privopt.result import Status
from privopt.solve import minimize
from privopt.solvers.continuous_spider import ContinuousSpider
from privopt.solvers.gradient_descent import GradientDescent
from privopt.solvers.whitening import Whitening

GIVEN = {
    "momentum": 0.0,
    "steps": 5,
    "step_size": 4.0,
    "clip": 1.0,
    "curvature": 0.25,
    "difference_clip": 0.5,
    "distance": 10.0,
    "noise_multiplier": math.sqrt(5 / (2 * RHO)),
}
CLOSE = {"rtol": 1e-8}


REFERENCE = {  # noise, relation, gain: parameters, variance, norm of the estimate
    ("zero", "replace-one", "optimal"): (
        [1.4367121544e-01, -1.4274960374e-02, -1.3179025624e-01],
        7.0744960517e-03,
        4.5736749148e-03,
    ),
    ("cos", "replace-one", "optimal"): (
        [-8.6898625925e-03, 4.4911185787e-02, -4.5079239353e-01],
        8.0358784227e-03,
        3.6166199071e-02,
    ),
    ("cos", "add-or-remove-one", "optimal"): (
        [5.5671899255e-02, 2.2072682659e-02, -3.0458756945e-01],
        1.8666457965e-03,
        1.7890307824e-02,
    ),
    ("zero", "replace-one", "average"): (
        [1.4367216783e-01, -1.4274843036e-02, -1.3179130629e-01],
        7.0745936183e-03,
        None,
    ),
    ("cos", "replace-one", "average"): (
        [4.8052226609e-03, 3.4246118295e-02, -4.4019504590e-01],
        8.0195033111e-03,
        None,
    ),
}


@pytest.mark.parametrize(("noise", "relation", "gain"), REFERENCE)
def test_the_reference_values(noise, relation, gain):
    expected, variance, slope = REFERENCE[noise, relation, gain]
    result = reference_run(ContinuousSpider(gain=gain, **GIVEN), noise, relation=relation)
    np.testing.assert_allclose(result.params, expected, **CLOSE)
    np.testing.assert_allclose(result.findings["estimate_variance"].value, variance, **CLOSE)
    if slope is not None:
        np.testing.assert_allclose(result.findings["gradient_norm_estimate"].value, slope, **CLOSE)
        np.testing.assert_allclose(np.linalg.norm(result.findings["gradient_estimate"].value), slope, **CLOSE)


GAINS = [0.49685153, 0.65218505, 0.72979323, 0.7879272]


def test_the_reference_gains_variance_and_proved_error():
    """The gains and the bound on the error of the run on cosine noise, from the transcript's noise scales."""
    result = reference_run(ContinuousSpider(**GIVEN), "cos")
    scales = np.concatenate([release.scale for release in result.transcript])
    error = EstimateError()
    for gain, scale in zip([0.0, *GAINS], scales, strict=True):
        error = error.after(gain, float(scale))
    np.testing.assert_allclose(error.variance, 8.0358784227e-03, rtol=1e-7)
    np.testing.assert_allclose(error.proved_bound(3, 0.1), 3.5305659572e-01, rtol=1e-7)
    kept = np.cumprod([1.0, *GAINS[::-1]])[::-1]  # the product of all later gains
    np.testing.assert_allclose(error.variance, np.sum((kept * scales) ** 2), rtol=1e-12)


def test_changes_as_long_as_gradients_are_plain_descent_release_by_release():
    """C' = 2 C at every step: a change is no less noisy than a gradient, and the gain is 0."""
    spider = ContinuousSpider(**(GIVEN | {"curvature": 1e9, "difference_clip": 1.0}))
    plain = GradientDescent(
        steps=5, step_size=4.0, clip=1.0, momentum=0.0, returns="last", noise_multiplier=GIVEN["noise_multiplier"]
    )  # fmt: skip
    left, right = reference_run(spider, "cos"), reference_run(plain, "cos")
    np.testing.assert_allclose(left.params, right.params, rtol=1e-12)
    for ours, theirs in zip(left.transcript, right.transcript, strict=True):
        assert ours.name == theirs.name
        np.testing.assert_allclose(ours.released, theirs.released, rtol=1e-11)


def test_the_same_noise_and_four_times_the_budget_under_the_other_relation_is_the_same_run():
    """Only the sensitivity knows the relation: factor 2 with half the noise multiplier is factor 1."""
    halved = GIVEN | {"noise_multiplier": GIVEN["noise_multiplier"] / 2.0}
    doubled = reference_run(ContinuousSpider(**halved), "cos").params
    single = reference_run(ContinuousSpider(**GIVEN), "cos", relation="add-or-remove-one").params
    np.testing.assert_allclose(doubled, single, rtol=1e-9)


def test_one_step_is_a_step_along_one_gradient():
    result = reference_run(ContinuousSpider(**(GIVEN | {"steps": 1})), "cos")
    (release,) = result.transcript
    np.testing.assert_allclose(result.params, -4.0 * np.asarray(release.released[0]), rtol=1e-12)
    assert release.name == "ClippedGradient"
    np.testing.assert_allclose(result.findings["estimate_variance"].value, float(release.scale[0]) ** 2)


# Invariances ---------------------------------------------------------------------------------------------------------


def random_rows(n=30, d=3, seed=1):
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(n, d))
    return rows / np.linalg.norm(rows, axis=1, keepdims=True), np.where(rng.random(n) < 0.5, 1.0, -1.0)


def units_of(rows, targets, relation="replace-one", n=None):
    return Units.from_arrays(
        rows, targets, row_bound=1.0, relation=relation, n=len(rows) if n is None else n, storage="float64"
    )


def run_on(units, solver, problem=LOGISTIC, noise=None, curator_type=LocalCurator, other=None, **options):
    """A curator and the result of a solver whose fields are all given."""
    ledger = Ledger(Budget(1e6, 1e-6), units.public.relation, plan=solver.event(units.public))
    both = (units,) if other is None else (units, other)
    curator = curator_type(*both, ledger, noise=FormulaNoise() if noise is None else noise, **options)
    return curator, solver.solve(curator, problem)


def test_rotated_rows_and_noise_rotate_the_run_and_row_order_does_not_matter():
    rows, targets = random_rows()
    turn = np.linalg.qr(np.random.default_rng(2).normal(size=(3, 3)))[0]
    solver = ContinuousSpider(**GIVEN)
    plain = run_on(units_of(rows, targets), solver)[1]
    turned = run_on(
        units_of(rows @ turn.T, targets), solver, noise=FormulaNoise(lambda k, s: turn @ cosines(k, s))
    )[1]
    np.testing.assert_allclose(turned.params, turn @ np.asarray(plain.params), rtol=1e-7)
    order = np.random.default_rng(3).permutation(len(rows))
    shuffled = run_on(units_of(rows[order], targets[order]), solver)[1]
    np.testing.assert_allclose(shuffled.params, plain.params, rtol=1e-9)


def test_users_with_one_record_each_are_records():
    rows, targets = random_rows()
    users = Units.from_arrays(
        rows, targets, row_bound=1.0, relation="replace-one", n=30, storage="float64",
        groups=np.arange(30), max_records_per_user=1,
    )  # fmt: skip
    solver = ContinuousSpider(**GIVEN)
    np.testing.assert_allclose(
        run_on(users, solver)[1].params, run_on(units_of(rows, targets), solver)[1].params, rtol=1e-12
    )


# Privacy -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("relation", ["replace-one", "add-or-remove-one"])
@pytest.mark.parametrize("difference_clip", [0.05, 1.0, 2.0])
@pytest.mark.parametrize("grouped", [False, True], ids=["records", "users"])
def test_an_outlier_moves_no_release_by_more_than_its_sensitivity(difference_clip, relation, grouped):
    rows, targets = random_rows(40, 4)
    other, turned = rows.copy(), targets.copy()
    other[-1], turned[-1] = 1e6 * rows[0], -targets[0]
    kept = slice(None) if relation == "replace-one" else slice(-1)
    groups = np.arange(40) // 2 if grouped else np.arange(40)
    pair = [
        Units.from_arrays(
            x[part], y[part], row_bound=1.0, relation=relation, n=20 if grouped else 40, storage="float64",
            groups=groups[part] if grouped else None, max_records_per_user=2,
        )
        for x, y, part in ((other, turned, slice(None)), (rows, targets, kept))
    ]  # fmt: skip
    solver = ContinuousSpider(**(GIVEN | {"steps": 8, "difference_clip": difference_clip}))
    audit, result = run_on(pair[0], solver, curator_type=Audit, other=pair[1])
    assert len(audit.moves) == 8
    assert max(ratio for _, ratio in audit.moves) <= 1.0
    assert {name for name, _ in audit.moves} >= {"MixedGradient"} if difference_clip < 2 else True
    assert result.transcript.releases == 8


def hill(params, features, target):
    """<features, params> - target |params|^2 / 8: gradients and changes of one direction, both as long as may be."""
    return features @ params - 0.125 * target * jnp.sum(params**2)


@pytest.mark.later("0.0")
@pytest.mark.parametrize("understate", [0.0, 0.002])
def test_the_tight_pair_moves_every_release_by_its_sensitivity(understate):
    """Descent on a hill: gradient and change of a record point the same way, and its mirror image's the other way."""
    row = np.array([0.6, 0.0, 0.8])
    rows, targets = np.tile(row, (12, 1)), np.ones(12)
    other, turned = rows.copy(), targets.copy()
    other[4], turned[4] = -row, -1.0
    solver = ContinuousSpider(**(GIVEN | {"difference_clip": 1.0, "step_size": 1.0}))
    audit, _ = run_on(
        units_of(rows, targets), solver, Problem(RecordLoss(hill)), FormulaNoise(silence), Audit,
        units_of(other, turned), understate=understate,
    )  # fmt: skip
    ratios = [ratio for _, ratio in audit.moves]
    assert [name for name, _ in audit.moves] == ["ClippedGradient"] + ["MixedGradient"] * 4
    assert min(ratios) >= 0.999
    assert max(ratios) > 1.0 if understate else max(ratios) <= 1.0 + 1e-9


def test_two_records_one_feature_and_a_tiny_budget():
    units = units_of(np.array([[1.0], [-1.0]]), np.array([1.0, -1.0]))
    budget = Budget(1e-4, 1e-6)
    solver = ContinuousSpider().configure(Instance(LOGISTIC, units.public, budget))
    ledger = Ledger(budget, "replace-one", plan=solver.event(units.public))
    result = solver.solve(LocalCurator(units, ledger, noise=NoiseSource(1)), LOGISTIC)
    assert np.all(np.isfinite(result.params))
    assert 0.999 * budget.epsilon <= ledger.epsilon() <= budget.epsilon


# Endings -------------------------------------------------------------------------------------------------------------


def test_a_step_that_overflows_ends_the_run_at_the_last_finite_point():
    rows, targets = random_rows()
    wild = ContinuousSpider(**(GIVEN | {"step_size": 1e300, "steps": 9}))
    _, result = run_on(units_of(rows, targets), wild, noise=FormulaNoise(lambda k, s: 1e10 * cosines(k, s)))
    assert result.status is Status.DIVERGED
    assert np.all(np.isfinite(result.params))
    assert len(result.transcript) < 9
    assert result.findings == {}


CONSTRAINED = {
    "ridge": Problem(losses.logistic, Ridge(0.05)),
    "l1": Problem(losses.logistic, L1(0.01)),
    "ball": Problem(losses.squared, constraint=L2Ball(0.4)),
}


@pytest.mark.at_once("0.5-ridge")
@pytest.mark.parametrize("kind", CONSTRAINED)
@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_without_noise_it_is_descent_to_the_optimum(kind, momentum):
    problem = CONSTRAINED[kind]
    rows, targets = random_rows()
    units = units_of(rows, targets)
    result = minimize(
        problem, units, budget=Budget(math.inf, 1e-6), solver=ContinuousSpider(momentum=momentum)
    )
    longer = GradientDescent(steps=400)
    best = minimize(problem, units, budget=Budget(math.inf, 1e-6), solver=longer).params
    np.testing.assert_allclose(result.params, best, atol=1e-5)
    assert result.findings["estimate_variance"].value == 0.0
    slope = result.findings["gradient_norm_estimate"].value
    assert slope < 1e-5
    assert "gradient_norm_bound" not in result.findings  # changes may be clipped on purpose


def test_without_noise_the_certificate_is_the_gradient_itself():
    rows, targets = random_rows()
    exact = ContinuousSpider(difference_clip=1.0, steps=20)
    result = minimize(
        Problem(losses.logistic), units_of(rows, targets), budget=Budget(math.inf, 1e-6), solver=exact
    )
    point = np.asarray(result.findings["estimated_point"].value)
    gradient = rows.T @ (-targets / (1.0 + np.exp(targets * (rows @ point)))) / len(rows)
    np.testing.assert_allclose(
        result.findings["gradient_norm_bound"].value, np.linalg.norm(gradient), rtol=1e-9
    )


# Settings ------------------------------------------------------------------------------------------------------------

PUBLIC = Public(n=20_000, d=10)


def test_the_horizon_of_the_paper_example():
    """distance / (2 sqrt(d) s) for rho = rho(1, 1e-6): 7485.24975036 at distance 20 and clip 1."""
    instance = Instance(LOGISTIC, PUBLIC, Budget(1.0, 1e-6))
    solver = ContinuousSpider(clip=1.0, distance=20.0, momentum=0.0).filled(instance)
    np.testing.assert_allclose(solver.facts(instance).horizon, 7485.24975036, rtol=1e-6)
    assert solver.steps == 1000  # ceil(h / eta) = 1872 is more than the most


def test_steps_follow_the_horizon_a_ridge_and_a_known_growth():
    small = ContinuousSpider().filled(Instance(LOGISTIC, PUBLIC, Budget(0.05, 1e-6)))
    assert 10 <= small.steps < 100
    notices = ContinuousSpider().plan(Instance(LOGISTIC, PUBLIC, Budget(0.05, 1e-6))).notices
    assert any("equal or falling noise" in notice for notice in notices)
    ridge = Problem(losses.logistic, Ridge(0.05))
    assert ContinuousSpider().filled(Instance(ridge, PUBLIC, Budget(1.0, 1e-6))).steps < 100
    sharp = Problem(losses.logistic, growth=KL.of_strong_convexity(0.05, gap=0.7))
    unclipped = ContinuousSpider(difference_clip=1.0, momentum=0.0)
    assert 10 <= unclipped.filled(Instance(sharp, PUBLIC, Budget(1.0, 1e-6))).steps < 500
    hopeless = Problem(losses.logistic, growth=KL.of_strong_convexity(1e-9, gap=0.7))
    for solver, problem in ((unclipped, hopeless), (ContinuousSpider(momentum=0.0), sharp)):
        assert solver.filled(Instance(problem, PUBLIC, Budget(1.0, 1e-6))).steps > 500
    assert ContinuousSpider(steps=7).filled(Instance(sharp, PUBLIC, Budget(1.0, 1e-6))).steps == 7


def test_momentum_counts_as_a_longer_step():
    plain, heavy = (
        ContinuousSpider(momentum=momentum).filled(Instance(LOGISTIC, PUBLIC, Budget(0.3, 1e-6))).steps
        for momentum in (0.0, 0.8)
    )
    assert heavy == pytest.approx(plain / 5, abs=1)


def test_a_step_that_is_too_long_is_noticed_and_whitened_steps_are_not():
    budget = Budget(1.0, 1e-6)
    long = ContinuousSpider(step_size=9.0).plan(Instance(LOGISTIC, PUBLIC, budget))
    assert any("may diverge" in notice for notice in long.notices)
    whitened = Whitening(inner=ContinuousSpider()).plan(Instance(Problem(losses.logistic), PUBLIC, budget))
    assert not any("may diverge" in notice for notice in whitened.notices)


def test_the_plan_says_what_can_be_hoped_for():
    ridge = Problem(losses.logistic, Ridge(0.01))
    plan = ContinuousSpider().plan(Instance(ridge, PUBLIC, Budget(1.0, 1e-6)))
    found = {name: finding.value for name, finding in plan.indicators.items()}
    assert found["one_query_floor"] < plan.predicted_excess < 0.2
    assert min(found[name] for name in ("gradient_noise", "horizon", "convex_rate")) > 0
    assert plan.bound is None
    assert plan.releases == plan.passes == int(plan.settings["steps"])
    own = Problem(RecordLoss(hill))
    assert ContinuousSpider().plan(Instance(own, PUBLIC, Budget(1.0, 1e-6))).predicted_excess is None


def test_changes_are_clipped_below_their_worst_case_unless_it_is_known_and_likely():
    def clip_of(loss):
        return ContinuousSpider().filled(Instance(Problem(loss), PUBLIC, Budget(1.0, 1e-6))).difference_clip

    assert clip_of(losses.squared) == 0.15
    assert clip_of(RecordLoss(hill, curvature=0.25)) == 1.0
    assert clip_of(RecordLoss(hill)) == 0.5


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (
            {"difference_clip": 0.0},
            "difference_clip must be above 0 and at most 2, got 0.0: it is c, a fraction of the",
        ),
        ({"difference_clip": 2.1}, "difference_clip must be above 0 and at most 2"),
        ({"gain": "best"}, "gain must be one of"),
        ({"momentum": 1.0}, "momentum must be at least 0 and below 1"),
        ({"failure": 0.0}, "failure must be above 0 and below 1, got 0.0: it is beta, the probability"),
        ({"steps": -1}, "steps must be at least 0"),
        ({"most_steps": 0}, "most_steps must be at least 1"),
        ({"step_size": 0.0}, "step_size must be above 0"),
        ({"distance": -1.0}, "distance must be above 0"),
    ],
)
def test_settings_out_of_range_are_refused(changed, message):
    with pytest.raises(ValueError, match=message):
        ContinuousSpider(**changed)


# Whitening -----------------------------------------------------------------------------------------------------------


def test_it_runs_inside_whitening_for_the_price_of_both():
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(5000, 5)) * np.array([1.0, 0.3, 0.3, 0.1, 0.1])
    rows /= np.maximum(1.0, np.linalg.norm(rows, axis=1, keepdims=True))
    targets = np.where(rows @ np.array([1.0, -2.0, 3.0, 8.0, -8.0]) + rng.logistic(size=5000) > 0, 1.0, -1.0)
    units, budget = units_of(rows, targets), Budget(4.0, 1e-6)
    problem = Problem(losses.logistic, Ridge(1e-3))
    result = minimize(
        problem, units, budget=budget, solver=Whitening(inner=ContinuousSpider()), random_state=1
    )
    assert result.transcript.epsilon(1e-6) <= budget.epsilon
    assert 10 <= result.transcript.releases - 1 <= 100
    assert "in the coordinates it ran in" in result.findings["gradient_estimate"].meaning
    exact = minimize(problem, units, budget=Budget(math.inf, 1e-6), solver=GradientDescent(steps=500))
    with double_precision():
        reached, best = (
            float(problem.objective(jnp.asarray(params), jnp.asarray(rows), jnp.asarray(targets)))
            for params in (result.params, exact.params)
        )
    assert best <= reached < 0.9 * best + 0.1 * math.log(2.0)
