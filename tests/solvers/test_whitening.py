"""Whitening: its reference values, its plan, and what it does to a badly scaled problem."""

import math
from dataclasses import replace

import numpy as np
import pytest
from tests.support.reference_rows import reference_arrays

from privopt.curator.audit import Audit
from privopt.curator.local import LocalCurator
from privopt.data.units import Units
from privopt.ledger.amounts import Budget
from privopt.ledger.curves import gaussian_mu
from privopt.ledger.events import leaf_counts
from privopt.ledger.ledger import Ledger
from privopt.mechanisms.noise import NoiseSource
from privopt.planning import shrinkage
from privopt.planning.coordinates import RowSpectrum
from privopt.planning.descent_theory import accelerated_bound
from privopt.planning.task import Instance
from privopt.planning.user_whitening import UserWhiteningRule
from privopt.planning.whitening import LONGEST, WhiteningRule, default_ridge, denoised, signal_ridge
from privopt.precision import double_precision
from privopt.problems import losses
from privopt.problems.constraints import L2Ball
from privopt.problems.problem import Problem
from privopt.problems.regularisers import L1, NoRegulariser, Ridge
from privopt.public import Public
from privopt.solve import minimize, plan
from privopt.solvers.gradient_descent import GradientDescent
from privopt.solvers.objective_perturbation import ObjectivePerturbation
from privopt.solvers.user_gradient_descent import UserGradientDescent
from privopt.solvers.whitening import Whitening

BUDGET = Budget(1.0, 1e-6)
LOGISTIC = Problem(losses.logistic, Ridge(1e-3))


def public(n=10_000, d=100, relation="add-or-remove-one"):
    from privopt.public import Relation

    return Public(n=n, d=d, relation=Relation.parse(relation))


def rule(problem=LOGISTIC, budget=BUDGET, share=0.1, **sizes):
    return WhiteningRule.of(Instance(problem, public(**sizes), budget), share)


def test_coordinates_match_the_reference():
    rows, _ = reference_arrays()
    noise = np.cos(1.0 + 0.7 * (3 * np.arange(3)[:, None] + np.arange(3)[None, :]))
    noise = np.where(np.eye(3, dtype=bool), noise, noise / math.sqrt(2.0))
    noise = np.triu(noise) + np.triu(noise, 1).T
    deviation = math.sqrt(2.0) / (8 * 5.0)
    spectrum, axes = np.linalg.eigh(rows.T @ rows / 8 + deviation * noise)
    found = RowSpectrum(
        moment=rows.T @ rows / 8,
        eigenvalues=np.maximum(spectrum, 0.0),
        axes=axes,
        floor=max(0.1 / 0.25, deviation * math.sqrt(3.0)),
    )
    matrix, signal = found.map(), found.signal
    assert deviation == pytest.approx(0.035355339059, abs=1e-12)
    assert signal == pytest.approx(1.0468211535, abs=1e-9)
    expected = [
        [1.2054901333, -0.2068850481, 0.0500566268],
        [-0.2068850481, 1.3208911275, -0.2142641629],
        [0.0500566268, -0.2142641629, 1.1747431245],
    ]
    np.testing.assert_allclose(matrix, expected, atol=1e-9)


@pytest.mark.parametrize(
    ("n", "d", "epsilon", "delta", "relation", "at_most", "at_four"),
    [
        (10_000, 100, 1.0, 1e-6, "add-or-remove-one", 0.0066103377, 0.001057654),
        (100_000, 30, 0.3, 1e-6, "replace-one", 2.2506935e-4, 1.2003699e-4),
        (200_000, 55, 0.5, 1e-3, "replace-one", 2.3811545e-5, 6.9269949e-6),
    ],
)
def test_what_noise_would_leave_matches_the_reference(n, d, epsilon, delta, relation, at_most, at_four):
    """The reference counts all d directions."""
    found = rule(budget=Budget(epsilon, delta), n=n, d=d, relation=relation)
    crowded = (found.most_signal**2 / d) ** (2.0 / 3.0)
    assert found.noise_excess(math.sqrt(d)) == pytest.approx(at_most * crowded, rel=1e-7)
    assert found.noise_excess(4.0) == pytest.approx(at_four * crowded, rel=1e-7)


@pytest.mark.parametrize(
    ("loss", "factor", "slope"),
    [(losses.squared, 0.018, 1.0), (losses.huber(0.2), 0.08, 0.2), (losses.quantile(0.5, 0.1), 0.14, 0.5)],
)
def test_the_clip_of_numbers_to_predict_follows_the_records_for_each_column(loss, factor, slope):
    n, d, share = 100_000, 50, 0.1
    found = rule(Problem(loss, Ridge(1e-5)), n=n, d=d, share=share)
    noise = math.sqrt(d) / (n * gaussian_mu(1.0, 1e-6) * math.sqrt(1.0 - share))
    longer = (1e-6 / found.noise_excess(found.most_signal)) ** (
        1 / 3
    )  # of the typical row, where noise is faint
    expected = max(min(factor * noise**-0.7, found.most_signal), longer * found.most_signal) * slope
    assert found.planned().clip == pytest.approx(expected, rel=1e-9)
    smaller = rule(Problem(loss, Ridge(1e-5)), n=n // 10, d=d, share=share).planned().clip
    assert smaller < found.planned().clip
    plenty = rule(Problem(loss, Ridge(1e-5)), n=10**9, d=2, share=share)
    assert plenty.planned().clip == pytest.approx(slope * LONGEST * plenty.most_signal)


def test_the_floor_is_a_quarter_for_the_quantile_loss_of_records_but_not_of_users():
    problem = Problem(losses.quantile(0.5, 0.1), NoRegulariser())
    squared = Problem(losses.squared, NoRegulariser())
    whole = rule(squared).floor
    assert rule(problem).floor == pytest.approx(0.25 * whole)
    users = UserWhiteningRule.of(Instance(problem, public(), BUDGET), 0.1)
    assert users.whitening.floor == pytest.approx(whole)


@pytest.mark.parametrize("noise", [0.0, 0.01, 0.1])
def test_the_spectrum_comes_back_from_noise(noise):
    rng = np.random.default_rng(0)
    d, true = 200, np.array([0.5, 0.2])
    axes = np.linalg.qr(rng.normal(size=(d, 2)))[0]
    steps = rng.normal(size=(d, d)) * noise / math.sqrt(2.0)
    symmetric = np.triu(steps) + np.triu(steps, 1).T
    found = denoised(np.linalg.eigvalsh((axes * true) @ axes.T + symmetric), noise, 1.0)
    edge = noise * math.sqrt(2.0 * d)
    for eigenvalue, estimate in zip(true, sorted(found, reverse=True), strict=False):
        if eigenvalue > edge:  # below it, nothing tells it from noise
            assert estimate == pytest.approx(eigenvalue, abs=0.02)
    assert np.all(found >= 0)


@pytest.mark.parametrize(
    ("n", "d", "epsilon", "delta", "factor", "steps", "predicted"),
    [
        (10_000, 100, 1.0, 1e-6, 1, 53, 0.0696086),
        (100_000, 30, 0.3, 1e-6, 2, 92, 0.0233647),
        (200_000, 55, 0.5, 1e-3, 2, 189, 0.0055980),
    ],
)
def test_the_bound_of_accelerated_steps_matches_the_reference(n, d, epsilon, delta, factor, steps, predicted):
    numbers = {
        "smoothness": 0.25,
        "distance": 10.0,
        "noise": factor / (n * gaussian_mu(epsilon, delta)),
        "parameters": d,
    }
    assert accelerated_bound(steps=steps, **numbers) == pytest.approx(predicted, rel=1e-5)
    assert (
        accelerated_bound(steps=steps - 9, **numbers)
        > predicted
        < accelerated_bound(steps=steps + 9, **numbers)
    )


def test_the_bound_on_the_typical_row_holds_for_any_data():
    rng = np.random.default_rng(0)
    for _ in range(20):
        d = int(rng.integers(2, 12))
        rows = rng.normal(size=(50, d)) ** 3
        rows /= np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1.0)
        found = rule(n=500, d=d)
        exact = replace(
            found, unit_noise=1e-12, gram_noise=0.0
        )  # the cap is the largest, so the clip is that times r
        assert exact.coordinates(rows.T @ rows / 50).clip <= LONGEST * found.most_signal * (1 + 1e-9)


@pytest.mark.parametrize("moment", [np.full((4, 4), np.nan), np.full((4, 4), -1e300), np.zeros((4, 4))])
def test_a_hopeless_second_moment_gives_finite_coordinates(moment):
    found = rule(n=1000, d=4).coordinates(moment)
    assert np.all(np.isfinite(found.matrix))
    assert math.isfinite(found.clip)
    assert found.clip > 0


def test_the_default_ridge_shrinks_where_there_is_little_noise():
    strengths = [
        signal_ridge(
            Instance(LOGISTIC, public(n=n, d=55, relation="replace-one"), Budget(epsilon, 1.0 / n**2))
        )
        * n
        for n, epsilon in ((2_000, 1.0), (32_561, 1.0), (200_000, 1.0), (200_000, 3.0))
    ]
    assert strengths[0] == 1.0
    assert sorted(strengths, reverse=True) == strengths
    assert strengths[-1] == pytest.approx(0.1)


@pytest.mark.parametrize("epsilon", [0.01, 0.3, 1.0, 3.0, math.inf])
def test_the_default_ridge_of_two_classes_is_no_larger_than_the_noise_of_the_moment(epsilon):
    two = Instance(LOGISTIC, public(n=2_000, d=55, relation="replace-one"), Budget(epsilon, 1e-7))
    noise = WhiteningRule.of(two, 0.1).gram_noise
    noisy = 0.03 * noise if noise > 0 else math.inf
    assert default_ridge(two) == pytest.approx(min(signal_ridge(two), noisy))
    squared = replace(two, problem=Problem(losses.squared, Ridge(1e-3)))
    assert default_ridge(squared) == signal_ridge(squared)


def test_the_whole_budget_is_planned_and_split():
    solver = Whitening().configure(Instance(LOGISTIC, public(), BUDGET))
    assert isinstance(solver.inner, GradientDescent)
    assert solver.noise_multiplier is not None
    assert solver.inner.noise_multiplier is not None
    mu = gaussian_mu(BUDGET.epsilon, BUDGET.delta)
    moment = 1.0 / solver.noise_multiplier**2
    steps = solver.inner.steps / solver.inner.noise_multiplier**2
    assert moment + steps == pytest.approx(mu**2, rel=1e-6)
    assert moment == pytest.approx(0.1 * mu**2, rel=1e-6)
    leaves, _ = leaf_counts(solver.event(public()))
    assert sum(leaves.values()) == 1 + solver.inner.steps == solver.releases()


def test_calibration_scales_the_event_and_builds_no_solvers(monkeypatch):
    checked = []
    monkeypatch.setattr(GradientDescent, "check", lambda self: checked.append(self))
    solver = Whitening().configure(Instance(LOGISTIC, public(), BUDGET))
    assert (
        len(checked) <= 7
    )  # open, with steps, in coordinates, filled (twice), with its noise, with all noise scaled
    known = solver.with_(noise_multiplier=0.1 + 0.2, rescaling_share=0.05)
    for one in (known, known.inner, known.inner.with_(shares="geometric", contraction=0.9)):
        assert one.scaled_event(public(), 1.1) == one.scaled(1.1).event(public())
        assert one.event(public()) == one.scaled_event(public(), 1.0)


def test_the_rule_chooses_which_average_is_returned_unless_the_inner_solver_says_so():
    instance = Instance(LOGISTIC, public(), BUDGET)
    assert Whitening().configure(instance).inner.returns == "corrected"
    softmax = Instance(Problem(losses.softmax(3), Ridge(1e-3)), public(), BUDGET)
    assert Whitening().configure(softmax).inner.returns == "settled"
    assert Whitening(inner=GradientDescent(returns="last")).configure(instance).inner.returns == "last"


@pytest.mark.at_once("problem1-projection")
@pytest.mark.parametrize(
    ("problem", "word"),
    [
        (Problem(losses.logistic, L1(0.1)), "smooth"),
        (Problem(losses.logistic, NoRegulariser(), L2Ball(1.0)), "projection"),
        (Problem(losses.RecordLoss(lambda params, features, target: params @ features)), "own"),
    ],
)
def test_what_it_cannot_solve_it_refuses_in_words(problem, word):
    with pytest.raises(ValueError, match=word):
        plan(problem, n=1000, d=4, epsilon=1.0, delta=1e-6, solver=Whitening())
    chosen = plan(problem, n=1000, d=4, epsilon=1.0, delta=1e-6).default.solver
    assert chosen in ("gradient-descent", "probed gradient-descent", "privately clipped gradient-descent")


def skewed(n=20_000, d=10, seed=0):
    """Columns of very different sizes, labels that depend on the small ones too."""
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(n, d)) * 10.0 ** -np.linspace(0.0, 1.0, d) * 0.3
    weights = 2.0 / np.linalg.norm(rows, axis=0) * math.sqrt(n)
    labels = np.where(rng.uniform(size=n) < 1.0 / (1.0 + np.exp(-rows @ weights)), 1.0, -1.0)
    return rows, labels


@pytest.mark.audit
def test_it_beats_plain_descent_where_columns_differ():
    rows, labels = skewed()
    units = Units.from_arrays(rows, labels, row_bound=1.0)
    excess = {}
    for solver in ("whitening", "gradient-descent"):
        problem = Problem(losses.logistic, Ridge(1.0 / len(rows)))
        runs = [
            minimize(problem, units, budget=BUDGET, solver=solver, random_state=seed).params
            for seed in range(3)
        ]
        excess[solver] = np.mean([np.mean(np.logaddexp(0.0, -labels * (rows @ np.asarray(w)))) for w in runs])
    assert excess["whitening"] < excess["gradient-descent"]


@pytest.mark.audit
def test_with_the_noise_off_it_reaches_the_optimum_of_the_original_problem():
    rows, labels = skewed(n=2000, d=4)
    units = Units.from_arrays(rows, labels, row_bound=2.0)
    problem = Problem(losses.logistic, Ridge(1e-2, weights=(1.0, 1.0, 1.0, 0.0)))
    found = np.asarray(minimize(problem, units, budget=Budget(math.inf), solver=Whitening()).params)
    stored, targets = np.asarray(units.private_features, np.float64), units.private_targets
    slopes = -targets / (1.0 + np.exp(targets * (stored @ found)))
    gradient = stored.T @ slopes / len(rows) + 1e-2 * np.array([1.0, 1.0, 1.0, 0.0]) * found
    assert np.max(np.abs(gradient)) < 1e-6


def test_no_unit_moves_the_releases_in_new_coordinates_too_far():
    rng = np.random.default_rng(1)
    ratios = []
    for seed in range(10):
        rows = rng.normal(size=(40, 5))
        labels = np.where(rng.uniform(size=40) < 0.5, 1.0, -1.0)
        other, other_labels = rows.copy(), labels.copy()
        other[-1], other_labels[-1] = -rows[-1], labels[-1] * (-1.0) ** seed
        left, right = (
            Units.from_arrays(a, y, row_bound=1.0) for a, y in ((rows, labels), (other, other_labels))
        )
        problem = Problem(losses.logistic, Ridge(0.1))
        solver = Whitening().configure(Instance(problem, left.public, BUDGET))
        audit = Audit(
            left,
            right,
            Ledger(BUDGET, left.public.relation, plan=solver.event(left.public)),
            noise=NoiseSource(seed),
        )
        with double_precision():
            solver.solve(audit, problem)
        ratios += [ratio for _, ratio in audit.moves]
    assert 0.5 < max(ratios) <= 1.0


def test_several_outputs_share_one_map():
    rng = np.random.default_rng(2)
    rows = rng.normal(size=(3000, 4)) * 0.3
    classes = np.argmax(rows @ rng.normal(size=(4, 3)) * 5.0, axis=1).astype(float)
    units = Units.from_arrays(rows, classes, row_bound=1.0, classes=[0.0, 1.0, 2.0])
    problem = Problem(losses.softmax(3), Ridge(1e-3))
    result = minimize(problem, units, budget=Budget(3.0, 1e-6), solver="whitening", random_state=0)
    assert result.params.shape == (4, 3)
    assert np.mean(np.argmax(rows @ np.asarray(result.params), axis=1) == classes) > 0.7


def test_the_contract_holds_for_any_curator():
    rows, labels = skewed(n=500, d=3)
    units = Units.from_arrays(rows, labels, row_bound=1.0)
    solver = Whitening().configure(Instance(LOGISTIC, units.public, BUDGET))
    ledger = Ledger(BUDGET, units.public.relation, plan=solver.event(units.public))
    result = solver.solve(LocalCurator(units, ledger, noise=NoiseSource(0)), LOGISTIC)
    assert result.transcript.releases == solver.releases()


COUNTS = Problem(losses.poisson(math.log(60.0), 60.0), Ridge(1e-5, (1.0, 1.0, 1.0, 0.0)), constant=3)


def counted_units(**options):
    rng = np.random.default_rng(5)
    rows = rng.uniform(-1, 1, (4_000, 3))
    counts = rng.poisson(np.exp(1.0 + rows @ [0.8, -0.6, 0.0]))
    options = {"row_bound": math.sqrt(3.0), "intercept": 1.0, "target_bounds": (0.0, 60.0)} | options
    return Units.from_arrays(rows, counts, **options)


@pytest.mark.later("replace-one")
@pytest.mark.parametrize("relation", ["replace-one", "add-or-remove-one"])
def test_counts_begin_at_their_released_mean_and_cost_what_was_planned(relation):
    units = counted_units(relation=relation, n=4_000)
    instance = Instance(COUNTS, units.public, Budget(1.0, 1e-7))
    solver = Whitening().configure(instance)
    ledger = Ledger(instance.budget, units.public.relation, plan=solver.event(units.public))
    with double_precision():
        result = solver.solve(LocalCurator(units, ledger, noise=NoiseSource(0)), COUNTS)
    assert [one.name for one in result.transcript][:2] == ["TargetMagnitudes", "SecondMoment"]
    assert result.transcript.releases == solver.releases() == 2 + solver.inner.steps
    assert ledger.epsilon() == pytest.approx(1.0, rel=2e-3)
    assert result.findings["mean_count"].value == pytest.approx(np.mean(units.private_targets), rel=0.2)
    np.testing.assert_allclose(result.params, [0.8, -0.6, 0.0, 1.0], atol=0.2)


def test_the_two_shares_are_those_of_the_whole_budget():
    instance = Instance(COUNTS, Public(n=4_000, d=4, row_bound=2.0), Budget(1.0, 1e-7))
    solver = Whitening(level_share=0.2).configure(instance)
    leaves, _ = leaf_counts(solver.event(instance.public))
    prices = {1.0 / leaf.noise_multiplier**2 for leaf in leaves}
    whole = instance.mu**2
    assert any(price == pytest.approx(0.2 * whole, rel=1e-2) for price in prices)
    assert any(price == pytest.approx(0.1 * whole, rel=1e-2) for price in prices)


def test_a_share_for_the_level_asks_for_counts_and_for_descent():
    with pytest.raises(ValueError, match="leave nothing for the inner solver"):
        Whitening(share=0.6, level_share=0.5)
    sizes = Public(n=4_000, d=4)
    assert "level_share is for counts" in str(Whitening(level_share=0.1).obstacle(LOGISTIC, sizes))
    other = Whitening(level_share=0.1, inner=ObjectivePerturbation())
    assert "all steps alike" in str(other.obstacle(COUNTS, sizes))
    assert Whitening(level_share=0.1).obstacle(COUNTS, sizes) is None


TWO_CLASSES = Problem(losses.logistic, Ridge(1e-3, (1.0, 1.0, 1.0, 0.0)), constant=3)


def units_of_two_classes(**options):
    rng = np.random.default_rng(7)
    rows = rng.uniform(-1, 1, (4_000, 3))
    signs = np.where(rng.uniform(size=4_000) < 1.0 / (1.0 + np.exp(2.0 - rows @ [3.0, -2.0, 0.0])), 1.0, -1.0)
    options = {"row_bound": math.sqrt(3.0), "intercept": 1.0} | options
    return Units.from_arrays(rows, signs, **options)


@pytest.mark.parametrize("relation", ["replace-one", "add-or-remove-one"])
def test_scale_and_shift_follow_from_releases_that_were_planned(relation):
    units = units_of_two_classes(relation=relation, n=4_000)
    instance = Instance(TWO_CLASSES, units.public, Budget(1.0, 1e-7))
    solver = Whitening().configure(instance)
    assert solver.rescaling_share == 0.1
    ledger = Ledger(instance.budget, units.public.relation, plan=solver.event(units.public))
    with double_precision():
        result = solver.solve(LocalCurator(units, ledger, noise=NoiseSource(0)), TWO_CLASSES)
    assert result.transcript.releases == solver.releases() == 1 + solver.inner.steps + shrinkage.STEPS
    assert ledger.epsilon() == pytest.approx(1.0, rel=2e-3)
    last = list(result.transcript)[-shrinkage.STEPS :]
    assert [one.released.shape[-1] for one in last] == [2] * shrinkage.STEPS
    price = sum(1.0 / leaf.noise_multiplier**2 * count for leaf, count in _leaves(solver, units)[-1:])
    assert price == pytest.approx(0.1 * instance.mu**2, rel=1e-2)


def _leaves(solver, units):
    leaves, _ = leaf_counts(solver.event(units.public))
    return list(leaves.items())


@pytest.mark.audit
def test_scale_and_shift_help_where_few_steps_stay_near_the_start():
    rng = np.random.default_rng(1)
    rows = rng.uniform(-1, 1, (4_000, 40))
    signs = np.where(rows @ np.linspace(-1, 1, 40) > 0.0, 1.0, -1.0)
    bound = math.sqrt(40.0)
    units = Units.from_arrays(rows, signs, row_bound=bound, intercept=1.0, relation="replace-one", n=4_000)
    problem = Problem(losses.logistic, Ridge(1e-5, (1.0,) * 40 + (0.0,)), constant=40)
    stored, found = np.asarray(units.private_features, float), {}
    for share in (0.0, 0.1):
        solver = Whitening(rescaling_share=share)
        result = minimize(problem, units, budget=Budget(0.3, 1e-7), solver=solver, random_state=0)
        found[share] = np.mean(np.logaddexp(0.0, -signs * (stored @ np.asarray(result.params))))
    assert found[0.1] < 0.95 * found[0.0]


def test_a_share_for_scale_and_shift_asks_for_two_classes_and_a_constant_column():
    sizes = Public(n=4_000, d=4)
    for problem in (TWO_CLASSES, replace(TWO_CLASSES, loss=losses.squared)):
        assert Whitening(rescaling_share=0.1).obstacle(problem, sizes) is None
    for problem in (LOGISTIC, COUNTS, Problem(losses.squared, TWO_CLASSES.regulariser)):
        assert "records of two classes" in str(Whitening(rescaling_share=0.1).obstacle(problem, sizes))
    with pytest.raises(ValueError, match="give one of them"):
        Whitening(level_share=0.1, rescaling_share=0.1)
    with pytest.raises(ValueError, match="leave nothing for the inner solver"):
        Whitening(share=0.6, rescaling_share=0.5)
    exact = Whitening(rescaling_share=0.1).configure(
        Instance(TWO_CLASSES, Public(n=4_000, d=4), Budget(math.inf, 0.0))
    )
    assert exact.rescaling_share == 0.0


def test_a_share_that_leaves_no_room_is_planned_without_scale_and_shift():
    for share in (0.5, 0.9, 0.95):
        solver = Whitening(share=share).configure(Instance(TWO_CLASSES, Public(n=4_000, d=4), BUDGET))
        assert solver.rescaling_share == (0.1 if share < 0.9 else 0.0)


@pytest.mark.audit
def test_counts_with_a_free_column_are_whitened_by_default():
    sizes = {"n": 5000, "d": 4, "epsilon": 1.0, "delta": 1e-8}
    chosen = plan(COUNTS, **sizes).default
    assert chosen.solver == "whitened gradient-descent"
    assert chosen.predicted_excess is None


@pytest.mark.audit
def test_counts_without_a_constant_column_are_left_to_probed_descent_unless_asked_otherwise():
    counts = Problem(losses.poisson(2.5, 20.0), Ridge(1e-3))
    sizes = {"n": 5000, "d": 6, "epsilon": 1.0, "delta": 1e-8}
    assert plan(counts, **sizes).default.solver == "probed gradient-descent"
    assert plan(counts, **sizes, solver="whitening").default.solver == "whitened gradient-descent"


def test_steps_on_a_loss_that_is_not_convex_are_coarse_in_their_first_half():
    instance = Instance(Problem(losses.ramp()), Public(n=10_000, d=20), BUDGET)
    solver = Whitening().configure(instance)
    steps = WhiteningRule.of(instance, solver.share).steps()
    assert (solver.coarse, solver.inner.steps) == (0.1, 2 * steps)
    assert Whitening().configure(Instance(LOGISTIC, public(), BUDGET)).coarse == 0.0
    assert Whitening(coarse=0.0).configure(instance).inner.steps == steps
    assert Whitening(inner=GradientDescent(returns="flattest")).configure(instance).coarse == 0.0
    rough = solver.rule.with_floor(0.1)
    assert rough.floor == 0.1 > solver.rule.floor
    assert solver.rule.with_floor(1e-9) == solver.rule


def test_coarse_steps_cost_what_the_plan_says_and_start_where_the_last_ended():
    rng = np.random.default_rng(0)
    features = rng.normal(size=(500, 3)) / 4.0
    units = Units.from_arrays(features, np.sign(features[:, 0] + 0.1), row_bound=1.0)
    for steps in (1, 5):
        solver = Whitening(inner=GradientDescent(steps=steps, returns="last"))
        result = minimize(losses.ramp(), units, budget=BUDGET, solver=solver, random_state=0)
        assert result.transcript.releases == result.plan.releases == steps + 1
        assert result.transcript.epsilon(BUDGET.delta) <= BUDGET.epsilon * (1 + 1e-6)
    alone = Whitening(coarse=0.0, inner=GradientDescent(steps=1, returns="last"))
    found = [
        minimize(losses.ramp(), units, budget=BUDGET, solver=one, random_state=0).params
        for one in (alone, replace(alone, coarse=0.1))
    ]
    np.testing.assert_array_equal(found[0], found[1])  # of one step the first half is none


@pytest.mark.parametrize(
    "inner", [GradientDescent(returns="random"), GradientDescent(shares="geometric"), UserGradientDescent()]
)
def test_only_steps_that_are_alike_are_cut_in_two(inner):
    with pytest.raises(ValueError, match=r"coarse=0\.2 cuts the steps of gradient descent in two"):
        Whitening(coarse=0.2, inner=inner)


@pytest.mark.parametrize("share", [0.1, 0.5, 0.6])
def test_counts_of_few_units_leave_the_descent_a_part_whatever_the_second_moment_takes(share):
    sizes = Public(n=60, d=4, row_bound=2.0)
    solver = Whitening(share=share).configure(Instance(COUNTS, sizes, Budget(1.0, 1e-6)))
    assert 0.0 < solver.level_share <= 0.5 * (1.0 - share)
    assert 0.0 < solver.inner.noise_multiplier < math.inf
