"""Reference values of Wang, Ye, Xu 2017's Algorithm 4 in its practical form, and what the solver's file promises."""

import math
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import minimize as scipy_minimize
from tests.support.formula_noise import FormulaNoise
from tests.support.plain_logistic import PlainLogistic
from tests.support.reference_rows import reference_arrays

from privopt.curator.audit import Audit
from privopt.curator.local import LocalCurator
from privopt.curator.replay import Replay
from privopt.data.units import Units
from privopt.ledger import accounting
from privopt.ledger.amounts import Budget
from privopt.ledger.curves import gaussian_mu
from privopt.ledger.events import Repeated, Sequence, leaf_counts
from privopt.ledger.ledger import Ledger
from privopt.mechanisms.noise import NoiseSource
from privopt.planning.averaging import mixing_ratios
from privopt.planning.coordinates import Coordinates
from privopt.planning.descent_theory import ShownCurvature, SmoothObjective, budget_shares, objective_facts
from privopt.planning.task import Instance
from privopt.precision import double_precision
from privopt.problems import losses
from privopt.problems.problem import Problem
from privopt.problems.regularisers import L1, ElasticNet, NoRegulariser, Ridge
from privopt.public import Public, Relation
from privopt.queries.moments import unpack
from privopt.result import Status
from privopt.solve import minimize, plan
from privopt.solvers import gradient_descent as planning
from privopt.solvers.gradient_descent import (
    WINDOW,
    GradientDescent,
    flattest,
    still_grows,
)
from privopt.solvers.whitening import Whitening

CLOSE = {"rtol": 0, "atol": 2e-9}


def reference_units():
    # A row that lies on the bound would be moved inwards a little.
    return Units.from_arrays(*reference_arrays(), row_bound=1.0 + 1e-6, storage="float64")


def solve(problem, **settings):
    """Five steps of size 2 with noise of standard deviation 0.1: 0.4 times the sensitivity 2 / 8."""
    units = reference_units()
    settings = {"steps": 5, "step_size": 2.0, "clip": 1.0, "noise_multiplier": 0.4} | settings
    solver = GradientDescent(**settings)
    ledger = Ledger(Budget(1000.0, 1e-6), "replace-one", plan=solver.event(units.public))
    return solver.solve(LocalCurator(units, ledger, noise=FormulaNoise()), problem)


def test_the_last_iterate_with_ridge():
    result = solve(Problem(PlainLogistic(), Ridge(0.1)), momentum=0.0, returns="last")
    np.testing.assert_allclose(result.params, [0.0044201432, -0.3333645686, -0.5143627149], **CLOSE)


def test_momentum_and_the_mean_of_the_last_three():
    result = solve(Problem(PlainLogistic(), Ridge(0.1)), momentum=0.5, returns="tail")
    np.testing.assert_allclose(result.params, [0.1265191730, -0.1228649468, -0.3144637623], **CLOSE)


def test_proximal_steps_for_l1():
    result = solve(Problem(PlainLogistic(), L1(0.05)), momentum=0.0, returns="last")
    np.testing.assert_allclose(result.params, [0.0, -0.1949809442, -0.3745501352], **CLOSE)
    assert float(result.params[0]) == 0.0


def test_the_average_of_sparse_iterates_gets_one_more_proximal_step():
    result = solve(Problem(losses.logistic, L1(0.4)), momentum=0.0, returns="tail")
    assert np.count_nonzero(result.params) < 3


@pytest.mark.parametrize(
    ("average", "expected"),
    [("last", [0, 0, 0, 0, 1]), ("tail", [0, 0, 1, 1, 1]), ("weighted", [1, 4, 9, 16, 25])],
)
def test_mixing_ratios_give_the_weighted_mean(average, expected):
    points = np.array([3.0, -1.0, 4.0, 1.0, -5.0])
    mean = 17.0  # where a running mean starts does not matter
    for ratio, point in zip(mixing_ratios(average, 5), points, strict=True):
        mean += ratio * (point - mean)
    assert mean == pytest.approx(np.average(points, weights=expected))


def test_an_unknown_average_is_refused():
    with pytest.raises(ValueError, match="average must be"):
        mixing_ratios("mean", 3)


def test_infinite_epsilon_reaches_the_optimum():
    from sklearn.linear_model import LogisticRegression

    units = reference_units()
    rows, targets = np.asarray(units.private_features, np.float64), units.private_targets
    result = minimize(
        Problem(losses.logistic, Ridge(0.1)), units, budget=Budget(np.inf, 1e-6), random_state=1
    )
    direct = LogisticRegression(C=1 / (0.1 * 8), fit_intercept=False, tol=1e-12).fit(rows, targets)
    np.testing.assert_allclose(result.params, direct.coef_[0], atol=1e-4)


def test_a_diverging_run_gives_finite_parameters_and_says_so():
    result = solve(Problem(losses.squared, Ridge(1e200)), momentum=0.5)
    assert result.status is Status.DIVERGED
    assert np.all(np.isfinite(result.params))


def test_a_solver_that_was_not_configured_says_what_to_do():
    units = reference_units()
    ledger = Ledger(Budget(1.0, 1e-6), "replace-one")
    with pytest.raises(ValueError, match=r"not set\. Call `configure"):
        GradientDescent().solve(LocalCurator(units, ledger), Problem(losses.logistic))


def test_a_start_of_the_wrong_shape_is_refused():
    units = reference_units()
    with pytest.raises(ValueError, match=r"start must have shape \(3,\)"):
        minimize(losses.logistic, units, budget=Budget(1.0, 1e-6), start=np.zeros(4))


def test_what_is_given_is_kept_and_the_rest_is_derived():
    units = reference_units()
    given = GradientDescent(steps=9, clip=0.3)
    derived = given.configure(Instance(Problem(losses.logistic), units.public, Budget(1.0, 1e-6)))
    assert (derived.steps, derived.clip) == (9, 0.3)
    assert None not in (derived.step_size, derived.momentum, derived.noise_multiplier)
    assert (
        replace(derived, noise_multiplier=None).configure(
            Instance(Problem(losses.logistic), units.public, Budget(1.0, 1e-6))
        )
        == derived
    )


@pytest.mark.parametrize("average", ["tail", "weighted"])
def test_an_average_weighs_iterates_by_their_precision(average):
    precision = np.array([0.2, 0.5, 1.0, 2.0, 4.0, 8.0])
    points = np.array([3.0, -1.0, 4.0, 1.0, -5.0, 9.0])
    mean = 17.0
    for ratio, point in zip(mixing_ratios(average, 6, precision), points, strict=True):
        mean += ratio * (point - mean)
    weights = (np.arange(6) >= 3) if average == "tail" else (np.arange(6) + 1.0) ** 2
    assert mean == pytest.approx(np.average(points, weights=weights * precision))


def test_geometric_shares():
    shares = budget_shares("geometric", 4, 0.8)
    np.testing.assert_allclose(shares, [0.2098382022, 0.2346062422, 0.2622977528, 0.2932578028], atol=1e-10)


@pytest.mark.parametrize(("steps", "contraction"), [(1, 0.5), (7, 0.9), (200, 0.99), (5_000, 0.01), (3, 1.0)])
def test_shares_sum_to_one_and_cost_what_equal_ones_do(steps, contraction):
    assert budget_shares("geometric", steps, contraction).sum() == pytest.approx(1.0)
    public = Public(n=100, d=3)
    equal = GradientDescent(steps=steps, noise_multiplier=20.0)
    split = replace(equal, shares="geometric", contraction=contraction)
    assert isinstance(equal.event(public), Repeated)
    assert isinstance(split.event(public), Sequence)
    prices = [
        accounting.epsilon(solver.event(public), 1e-6, Relation.REPLACE_ONE) for solver in (equal, split)
    ]
    assert prices[1] == pytest.approx(prices[0], rel=1e-6)


def test_geometric_shares_minimise_the_noise_of_the_last_iterate():
    steps, a = 30, 0.85

    def noise(shares):  # sum of a^(T-1-t) sigma_t^2, up to a constant
        return np.sum(a ** (steps - 1.0 - np.arange(steps)) / shares)

    best = budget_shares("geometric", steps, a)
    rng = np.random.default_rng(0)
    for _ in range(50):
        other = best * np.exp(0.1 * rng.normal(size=steps))
        assert noise(best) <= noise(other / other.sum())
    kappa = 1.0 / (1.0 - a)
    objective = SmoothObjective(smoothness=1.0, gap=1.0, noise=1.0, parameters=1)
    bounds = [
        objective.last_iterate_bound(1.0 / kappa, steps, kind) - a**steps for kind in ("equal", "geometric")
    ]
    assert noise(best) / 2.0 == pytest.approx(bounds[1])
    assert noise(np.full(steps, 1.0 / steps)) / 2.0 == pytest.approx(bounds[0])
    assert bounds[1] <= 2.0 * kappa**2


@pytest.mark.parametrize(("times", "gain"), [(6, 1.7), (10, 2.5)])
def test_what_geometric_shares_gain(times, gain):
    objective = SmoothObjective(smoothness=100.0, gap=1e-30, noise=1.0, parameters=1)
    equal, split = (objective.last_iterate_bound(1.0, 100 * times, kind) for kind in ("equal", "geometric"))
    assert equal / split == pytest.approx(gain, rel=0.06)


@pytest.mark.parametrize("arguments", [("rising", 3, 0.5), ("geometric", 3, 0.0), ("geometric", 3, 1.5)])
def test_shares_that_make_no_sense_are_refused(arguments):
    with pytest.raises(ValueError, match=r"shares must be|contraction must be"):
        budget_shares(*arguments)


def test_a_run_with_geometric_shares_holds_its_plan_and_is_replayed():
    units = reference_units()
    problem = Problem(losses.logistic, Ridge(0.1))
    solver = GradientDescent(steps=6, shares="geometric", returns="tail").configure(
        Instance(problem, units.public, Budget(2.0, 1e-5))
    )
    ledger = Ledger(Budget(2.0, 1e-5), "replace-one", plan=solver.event(units.public))
    result = solver.solve(LocalCurator(units, ledger, noise=NoiseSource(1)), problem)
    assert leaf_counts(result.transcript.event()) == leaf_counts(solver.event(units.public))
    assert len({release.event for release in result.transcript}) == 6
    again = solver.solve(Replay(result.transcript, units.public), problem)
    assert np.array_equal(again.params, result.params)
    assert solver.scaled(2.0).mechanisms()[3].noise_multiplier == 2 * solver.mechanisms()[3].noise_multiplier


def test_the_setting_for_the_last_iterate():
    public = Public(n=10_000, d=20, relation=Relation.ADD_OR_REMOVE_ONE)
    problem, budget = Problem(losses.logistic, Ridge(0.05)), Budget(1.0, 1e-6)
    solver = GradientDescent.for_pl(Instance(problem, public, budget), clip=1.0).configure(
        Instance(problem, public, budget)
    )
    noise = 1.0 / (10_000 * gaussian_mu(1.0, 1e-6))
    kappa = 0.3 / 0.05
    assert solver.steps == math.ceil(kappa * math.log(2 * 0.05 * math.log(2.0) / (20 * noise**2)))
    assert (solver.step_size, solver.momentum) == (pytest.approx(1 / 0.3), 0.0)
    assert (solver.returns, solver.shares) == ("last", "geometric")
    assert solver.contraction == pytest.approx(1 - 1 / kappa)
    facts = objective_facts(Instance(problem, public, budget), clip=1.0)
    assert facts.noise == pytest.approx(noise)
    equal, split = (facts.last_iterate_bound(0.05, solver.steps, kind) for kind in ("equal", "geometric"))
    assert split < equal < math.log(2.0)


@pytest.mark.audit
def test_the_bound_for_the_last_iterate_holds():
    generator = np.random.default_rng(0)
    rows = generator.normal(size=(2_000, 3))
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    targets = np.where(rows @ [2.0, -1.0, 0.5] + generator.logistic(size=2_000) > 0, 1.0, -1.0)
    units = Units.from_arrays(rows, targets, row_bound=1.0)
    problem, budget = Problem(losses.logistic, Ridge(0.1)), Budget(0.5, 1e-5)

    def objective(w):
        return np.mean(np.logaddexp(0.0, -targets * (rows @ w))) + 0.05 * w @ w

    best = scipy_minimize(objective, np.zeros(3), tol=1e-12).fun
    for shares in ("equal", "geometric"):
        solver = GradientDescent.for_pl(Instance(problem, units.public, budget), clip=1.0, shares=shares)
        excess = [
            objective(
                np.asarray(minimize(problem, units, budget=budget, solver=solver, random_state=k).params)
            )
            - best
            for k in range(20)
        ]
        facts = objective_facts(Instance(problem, units.public, budget), clip=1.0, gap=math.log(2.0) - best)
        assert np.mean(excess) <= facts.last_iterate_bound(0.1, solver.steps, shares)


@pytest.mark.audit
def test_the_setting_for_a_small_gradient():
    public = Public(n=5_000, d=8)
    problem, budget = Problem(losses.logistic), Budget(1.0, 1e-6)
    solver = GradientDescent.for_stationarity(Instance(problem, public, budget), clip=1.0, returns="random")
    spread = 8 * (2.0 / (5_000 * gaussian_mu(1.0, 1e-6))) ** 2
    assert solver.steps == round(math.sqrt(2 * 0.25 * math.log(2.0) / spread))
    facts = objective_facts(Instance(problem, public, budget), clip=1.0)
    assert facts.stationarity_bound(solver.steps) == pytest.approx(
        2 * math.sqrt(2 * 0.25 * math.log(2.0) * spread), rel=1e-3
    )
    drawn = {solver.configure(Instance(problem, public, budget)).chosen for _ in range(200)}
    assert drawn <= set(range(solver.steps))
    assert len(drawn) > 1
    kept = replace(solver, chosen=4).configure(Instance(problem, public, budget))
    assert kept.chosen == 4


@pytest.mark.parametrize("setting", [GradientDescent.for_pl, GradientDescent.for_stationarity])
def test_a_setting_without_known_constants_says_what_to_give(setting):
    with pytest.raises(ValueError, match="give `smoothness` and `gap`"):
        setting(Instance(Problem(losses.squared, Ridge(0.1)), Public(n=100, d=3), Budget(1.0, 1e-6)))


def test_no_strong_convexity_has_no_setting_for_the_last_iterate():
    with pytest.raises(ValueError, match="constant must be positive"):
        GradientDescent.for_pl(Instance(Problem(losses.logistic), Public(n=100, d=3), Budget(1.0, 1e-6)))


def test_without_noise_the_settings_are_finite():
    problem, public, budget = Problem(losses.logistic, Ridge(0.1)), Public(n=100, d=3), Budget(math.inf, 1e-6)
    assert GradientDescent.for_pl(Instance(problem, public, budget)).steps < 1_000
    assert GradientDescent.for_stationarity(Instance(problem, public, budget)).steps == 5_000


@pytest.mark.parametrize("chosen", [0, 3])
def test_a_random_iterate_is_the_point_where_its_gradient_was_taken(chosen):
    problem = Problem(PlainLogistic(), Ridge(0.1))
    result = solve(problem, momentum=0.0, returns="random", chosen=chosen)
    shorter = solve(problem, momentum=0.0, returns="last", steps=chosen)
    assert np.array_equal(result.params, shorter.params)


def test_the_flattest_window():
    points = [np.array([float(t)]) for t in range(30)]
    slopes = [np.array([1.0, (-1.0) ** t]) * (5.0 if not 12 <= t < 22 else 0.1) for t in range(30)]
    assert flattest(points, slopes) == 12 + WINDOW // 2
    assert flattest(points[:3], slopes[:3]) == 1  # fewer than a window
    slopes[14] = np.full(2, np.nan)
    assert np.isfinite(flattest(points, slopes))


def test_the_least_released_gradient_is_post_processing():
    result = solve(Problem(losses.logistic, L1(0.05)), momentum=0.3, returns="flattest", steps=14)
    assert result.status is Status.FINISHED
    solver = GradientDescent(
        steps=14, step_size=2.0, clip=1.0, noise_multiplier=0.4, momentum=0.3, returns="flattest"
    )
    again = solver.solve(
        Replay(result.transcript, reference_units().public), Problem(losses.logistic, L1(0.05))
    )
    assert np.array_equal(again.params, result.params)


@pytest.mark.at_once("l1-0.9")
@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.9])
@pytest.mark.parametrize("regulariser", [L1(0.03), ElasticNet(0.02, 0.05)], ids=["l1", "elastic net"])
def test_without_noise_proximal_momentum_ends_at_the_optimum(momentum, regulariser):
    units = reference_units()
    rows, targets = np.asarray(units.private_features, np.float64), units.private_targets
    problem = Problem(losses.logistic, regulariser)
    solver = GradientDescent(
        steps=1500, step_size=3.0, clip=np.inf, momentum=momentum, returns="last", noise_multiplier=0.0
    )
    ledger = Ledger(Budget(np.inf, 1e-6), "replace-one", plan=solver.event(units.public))
    w = np.asarray(solver.solve(LocalCurator(units, ledger, noise=NoiseSource(1)), problem).params)
    l1, l2, _ = regulariser.terms
    gradient = rows.T @ (-targets / (1.0 + np.exp(targets * (rows @ w)))) / 8 + l2 * w
    moving = w != 0
    assert moving.any()
    np.testing.assert_allclose(gradient[moving], -l1 * np.sign(w[moving]), atol=1e-9)
    assert np.all(np.abs(gradient[~moving]) <= l1 + 1e-9)


def test_every_release_moves_by_its_sensitivity_and_some_by_all_of_it():
    generator = np.random.default_rng(7)
    ratios, sequences = [], []
    solver = GradientDescent(
        steps=5, step_size=1.0, clip=0.4, momentum=0.5, noise_multiplier=3.0, returns="tail"
    )
    problem = Problem(losses.logistic, Ridge(0.1))
    for trial in range(20):
        rows = generator.normal(size=(40, 5))
        targets = np.where(generator.random(40) < 0.5, 1.0, -1.0)
        other, turned = rows.copy(), targets.copy()
        other[3] = -other[3]
        turned[3] *= -1.0 if trial % 2 else 1.0
        if trial % 2:
            other[3] = rows[3]  # the label is turned instead of the row
        left, right = (Units.from_arrays(x, y, row_bound=1.0) for x, y in ((rows, targets), (other, turned)))
        ledger = Ledger(Budget(1e6, 1e-6), "replace-one", plan=solver.event(left.public))
        audit = Audit(left, right, ledger, noise=NoiseSource(trial))
        result = solver.solve(audit, problem)
        ratios += [ratio for _, ratio in audit.moves]
        sequences.append([(release.name, release.event) for release in result.transcript])
    assert len(ratios) == 100
    assert 1.0 - 1e-6 < max(ratios) <= 1.0
    assert all(sequence == sequences[0] for sequence in sequences)


def test_other_coordinates_change_lengths_and_no_price():
    public, budget = Public(n=1_000, d=3), Budget(1.0, 1e-6)
    solver = GradientDescent(steps=7).configure(Instance(Problem(losses.logistic), public, budget))
    there = solver.in_coordinates(
        Coordinates(
            matrix=np.eye(3), stretch=1.0, clip=0.7, smoothness=0.3, ridge_smoothness=0.2, momentum=0.5
        )
    )
    assert (there.clip, there.step_size, there.momentum) == (0.7, pytest.approx(2.0), 0.5)
    assert there.event(public) == solver.event(public)
    assert not any(
        "step_size" in notice
        for notice in there.forecast(Instance(Problem(losses.squared), public, budget)).notices
    )


def test_a_step_size_beyond_the_curvature_is_called_too_large():
    public, budget = Public(n=100_000, d=3), Budget(1.0, 1e-6)
    problem = Problem(losses.logistic, NoRegulariser())
    for step_size, expected in ((7.9, False), (8.1, True)):
        solver = GradientDescent(step_size=step_size).configure(Instance(problem, public, budget))
        notices = solver.forecast(Instance(problem, public, budget)).notices
        assert any("step_size" in notice for notice in notices) is expected
    for loss in (
        losses.logistic,
        losses.softmax(3),
        losses.huber(0.5),
        losses.poisson(2.0, 5.0),
        losses.squared,
    ):
        solver = GradientDescent().configure(Instance(Problem(loss, Ridge(0.1)), public, budget))
        assert not any(
            "step_size" in notice
            for notice in solver.forecast(Instance(Problem(loss, Ridge(0.1)), public, budget)).notices
        )


def with_newton_step(solver, result, public, start):
    """Part the settled average and part the Newton step, in plain NumPy, from what was released."""
    d, steps = public.d, solver.inner.steps
    first, *others = result.transcript
    with double_precision():
        moment = np.asarray(unpack(np.asarray(first.released).reshape(-1), d))
    gradients = np.concatenate([np.asarray(one.released).reshape(-1, d) for one in others])
    coordinates = solver.rule.coordinates(moment)
    rows, matrix = coordinates.rows, coordinates.matrix
    origin = np.linalg.solve(matrix, start)
    step_size = 1.0 / (coordinates.smoothness + coordinates.ridge_smoothness)
    v = u = origin
    points, slopes, iterates = [], [], []
    for gradient in gradients:
        slope = gradient + matrix @ (np.array([0.1, 0.1, 0.1, 0.0]) * (matrix @ u))
        points.append(u)
        slopes.append(slope)
        moved = u - step_size * slope
        u, v = moved + coordinates.momentum * (moved - v), moved
        iterates.append(v)
    settled = np.average(iterates, axis=0, weights=np.minimum(np.arange(steps) + 1.0, 8.0) ** 3)
    scale = rows.eigenvalues + rows.floor
    penalised = 1.0 - rows.axes[-1] ** 2  # of each axis, what is not the column of ones
    bend = np.maximum(rows.eigenvalues / scale, 0.05) / 4.0 + 0.1 * penalised / scale
    noise = (
        solver.inner.noise_multiplier
        * public.relation.factor
        * coordinates.clip
        / public.n
        / math.sqrt(steps)
    )
    shown = bend * (rows.axes.T @ (np.mean(points, axis=0) - origin)) - rows.axes.T @ np.mean(slopes, axis=0)
    newton = origin + rows.axes @ (shown / (bend + noise))
    column = moment[-1] @ matrix / math.sqrt(moment[-1, -1])  # of ones
    share = 2.0 / (2.0 + 2.0 * math.cosh(column @ np.mean(points, axis=0)))
    return matrix @ ((1.0 - share) * settled + share * newton)


@pytest.mark.audit
def test_corrected_is_part_an_average_and_part_a_newton_step_from_the_mean_of_the_points():
    rng = np.random.default_rng(0)
    features = rng.normal(size=(2_000, 4)) * 0.3
    features[:, -1] = 0.8
    units = Units.from_arrays(features, np.sign(features @ [1.0, -2.0, 0.5, 0.6]), row_bound=1.0)
    problem = Problem(losses.logistic, Ridge(0.1, weights=(1.0, 1.0, 1.0, 0.0)), constant=3)
    budget, start = Budget(1.0, 1e-6), np.linspace(-1, 1, 4)
    solver = Whitening(inner=GradientDescent(returns="corrected", steps=12), rescaling_share=0.0)
    solver = solver.configure(Instance(problem, units.public, budget))
    result = minimize(problem, units, budget=budget, solver=solver, start=start, random_state=0)
    np.testing.assert_allclose(
        result.params, with_newton_step(solver, result, units.public, start), atol=1e-8
    )
    assert result.transcript.releases == 13
    none = Whitening(inner=GradientDescent(returns="corrected", steps=0), rescaling_share=0.0)
    still = minimize(problem, units, budget=budget, solver=none, start=start, random_state=0)
    np.testing.assert_allclose(still.params, start, atol=1e-9)


def test_corrected_asks_for_whitening_and_for_one_prediction():
    sizes = {"n": 1_000, "d": 4, "epsilon": 1.0, "delta": 1e-6}
    with pytest.raises(ValueError, match=r"second moment that whitening releases"):
        plan(Problem(losses.logistic), solver=GradientDescent(returns="corrected"), **sizes)
    with pytest.raises(ValueError, match="softmax loss has no known curvature of one prediction"):
        plan(
            Problem(losses.softmax(3)), solver=Whitening(inner=GradientDescent(returns="corrected")), **sizes
        )


def test_the_shown_curvature_is_that_of_a_parabola_and_noise_shows_none():
    generator, bend = np.random.default_rng(0), np.diag([1.0, 4.0, 0.5])
    points = generator.normal(size=(50, 3))
    exact, noisy = ShownCurvature(), ShownCurvature()
    for point in points:
        exact = exact.after(point, bend @ point, 0.0)
        noisy = noisy.after(0.1 * point, 20.0 * generator.normal(size=3), 20.0)
    assert 3.0 < exact.largest <= 4.0 + 1e-9
    assert exact.step_size(1.0) == pytest.approx(1.0 / exact.largest)
    assert exact.step_size(0.01) == 0.01
    assert noisy.largest == 0.0
    assert noisy.step_size(0.7) == 0.7


def test_a_gradient_that_is_not_finite_shows_no_curvature():
    shown = ShownCurvature().after([0.0], [1.0], 0.0).after([1.0], [math.nan], 0.0).after([2.0], [3.0], 0.0)
    assert shown.largest == pytest.approx(1.0)


def minimum_of(problem, rows, labels):
    """By L-BFGS."""
    with double_precision():
        both = jax.jit(jax.value_and_grad(problem.objective))

        def value(at):
            found, slope = both(jnp.asarray(at), jnp.asarray(rows), jnp.asarray(labels))
            return float(found), np.asarray(slope, np.float64)

        return scipy_minimize(value, np.zeros(rows.shape[1]), jac=True, method="L-BFGS-B").x


def test_parameters_grow_where_gradients_point_away_from_zero_beyond_their_noise():
    points = [[1.0, 0.0]] * 8
    outward, inward = [[-0.1, 5.0]] * 8, [[0.1, 5.0]] * 8
    assert still_grows(points, outward, 0.05)  # 0.1 against 2.5 * 0.05 / sqrt(4)
    assert not still_grows(points, outward, 0.2)
    assert not still_grows(points, inward, 0.05)
    assert not still_grows([], [], 0.05)
    assert not still_grows([[0.0, 0.0]] * 8, outward, 0.05)
    assert not still_grows(points, [[math.nan, 0.0]] * 8, 0.05)


@pytest.mark.audit
def test_a_hinge_on_classes_that_lie_apart_ends_nearer_to_its_minimum(monkeypatch):
    generator = np.random.default_rng(0)
    rows = generator.normal(size=(4_000, 10)) / 5.0
    rows /= np.maximum(1.0, np.linalg.norm(rows, axis=1, keepdims=True))
    odds = np.exp(8.0 * rows @ generator.normal(size=10))
    labels = np.where(generator.random(4_000) < odds / (1.0 + odds), 1.0, -1.0)
    units = Units.from_arrays(rows, labels, row_bound=1.0)
    problem, budget = Problem(losses.smoothed_hinge(0.1)), Budget(3.0, 1e-6)
    ends = []
    for growing in (planning.GROWING, math.inf):
        monkeypatch.setattr(planning, "GROWING", growing)
        found = minimize(problem, units, budget=budget, solver=Whitening(), random_state=0)
        ends.append(np.asarray(found.params))
    ends.append(minimum_of(problem, rows, labels))
    with double_precision():
        grown, short, least = (float(problem.objective(*map(jnp.asarray, (at, rows, labels)))) for at in ends)
    assert grown - least < 0.7 * (short - least)


def test_steps_too_long_for_the_curvature_are_shortened_as_it_shows():
    """A step of 6 / L diverges, for a user who states L / 6; with `secant` it ends at the least squares."""
    generator = np.random.default_rng(0)
    rows = generator.uniform(-1.0, 1.0, (200, 3))
    units = Units.from_arrays(rows, rows @ [0.3, -0.2, 0.1], row_bound=2.0)
    largest = float(np.linalg.eigvalsh(rows.T @ rows / 200)[-1])
    ends = []
    for secant in (False, True):
        solver = GradientDescent(
            steps=80,
            step_size=6.0 / largest,
            smoothness=largest / 6.0,
            momentum=0.5,
            clip=math.inf,
            returns="last",
            secant=secant,
        )
        found = minimize(Problem(losses.squared), units, budget=Budget(math.inf, 0.0), solver=solver)
        ends.append(float(np.max(np.abs(np.asarray(found.params) - [0.3, -0.2, 0.1]))))
    assert not ends[0] < 1.0
    assert ends[1] < 1e-3


def test_the_longest_step_counts_a_ridge_that_enters_by_its_gradient():
    instance = Instance(Problem(losses.logistic, Ridge(10.0)), Public(n=1_000, d=3), Budget(1.0, 1e-6))
    assert GradientDescent().longest_step(instance) == pytest.approx(4.0 / (3.0 * 0.25))
    assert GradientDescent(shrinks=False).longest_step(instance) == pytest.approx(4.0 / (3.0 * 10.25))
    with pytest.raises(ValueError, match="step_size must be at most"):
        GradientDescent(shrinks=False, step_size=1.0).check_step_size(instance)
