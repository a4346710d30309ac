"""Reference values of Wang, Ye, Xu 2017's Algorithm 3 as corrected, and why the printed one is not private."""

import math
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.support.mirror_reference import (
    CLOSE,
    largest_move,
    neighbours,
    plain_problem,
    reference_units,
    solve_on,
)

from privopt.curator.replay import Replay
from privopt.data.units import Units
from privopt.ledger.amounts import Budget
from privopt.mechanisms.noise import NoiseSource
from privopt.planning import mirror_geometry
from privopt.planning.task import Instance
from privopt.precision import double_precision
from privopt.problems import losses
from privopt.problems.constraints import Box, L1Ball, L2Ball, LpBall, Product, Simplex, Unconstrained
from privopt.problems.problem import Problem
from privopt.problems.regularisers import L1, Ridge
from privopt.public import Public
from privopt.solve import minimize
from privopt.solvers import accelerated_mirror_descent as module
from privopt.solvers import accelerated_mirror_descent as planning
from privopt.solvers.accelerated_mirror_descent import AcceleratedMirrorDescent

FOUR = AcceleratedMirrorDescent(steps=4, step_smoothness=2.0, clip=1.0, noise_multiplier=0.4)
SHORT = replace(FOUR, step_smoothness=0.05)
BUDGET = Budget(1.0, 1e-6)


@pytest.fixture(autouse=True)
def double():
    with double_precision():
        yield


@pytest.mark.at_once("RV6f", "RV6g")
@pytest.mark.parametrize(
    ("solver", "body", "expected"),
    [
        (FOUR, L2Ball(2.0), [0.2110142742, -0.0658589956, -0.3117577507]),  # RV6a
        (replace(FOUR, y_step="gradient"), L2Ball(2.0), [0.2110142742, -0.0658589956, -0.3117577507]),  # RV6b
        (FOUR, LpBall(2.0, 1.5), [0.0627361034, -0.0087543863, -0.1375003164]),  # RV6c
        (FOUR, L1Ball(2.0), [0.0653610214, -0.0212492781, -0.0996111307]),  # RV6d
        (SHORT, L2Ball(0.3), [0.1006298855, -0.0040257688, -0.1067880412]),  # RV6f
        (
            replace(SHORT, y_step="gradient"),
            L2Ball(0.3),
            [0.1663054738, -0.0510582957, -0.2444085510],
        ),  # RV6g
    ],
    ids=["RV6a", "RV6b", "RV6c", "RV6d", "RV6f", "RV6g"],
)
def test_reference_values(solver, body, expected):
    result = solve_on(reference_units(), solver, plain_problem(body))
    np.testing.assert_allclose(result.params, expected, **CLOSE)


def test_without_an_active_constraint_both_y_steps_are_the_same():
    problem, units = plain_problem(L2Ball(5.0)), reference_units()
    long = replace(FOUR, steps=9, step_smoothness=20.0)
    couple = solve_on(units, long, problem)
    gradient = solve_on(units, replace(long, y_step="gradient"), problem)
    np.testing.assert_allclose(couple.params, gradient.params, rtol=0, atol=1e-12)


@pytest.mark.later(
    "L1Ball(radius=0.4)-couple",
    "LpBall(radius=0.3, p=1.3)-couple",
    "LpBall(radius=0.3, p=1.3)-gradient",
    "Product(parts=((L1Ball(radius=0.2), 2), (Box(low=-1.0, high=1.0), 1)))-couple",
    "Simplex(radius=1.0)-couple",
)
@pytest.mark.parametrize("y_step", ["couple", "gradient"])
@pytest.mark.parametrize(
    "body",
    [
        L2Ball(0.3),
        L1Ball(0.4),
        LpBall(0.3, 1.3),
        Box(-0.2, 0.1),
        Simplex(),
        Product(((L1Ball(0.2), 2), (Box(-1.0, 1.0), 1))),
    ],
    ids=str,
)
def test_whatever_is_released_the_result_stays_in_the_body(body, y_step):
    if y_step == "gradient" and not isinstance(body, L2Ball | LpBall):
        return
    units = reference_units()
    for steps in (1, 2, 7):
        solver = replace(FOUR, steps=steps, step_smoothness=0.01, noise_multiplier=30.0, y_step=y_step)
        result = solve_on(units, solver, plain_problem(body), noise=NoiseSource(steps))
        assert body.contains(jnp.asarray(result.params))


def test_the_lp_gradient_step_minimises_its_model_and_couples_when_it_leaves_the_body():
    body, gradient = LpBall(2.0, 1.5), jnp.asarray([0.3, -0.2, 0.05])
    other = jnp.full(3, 7.0)
    at = jnp.asarray([0.2, 0.1, -0.4])
    stepped = module._gradient_step(body, at, gradient, 3.0, otherwise=other)
    far = module._gradient_step(body, at, gradient, 0.05, otherwise=other)

    def model(y):
        away = np.sum(np.abs(y - at) ** 1.5) ** (1 / 1.5) / 2.0
        return 1.5 * away**2 + float(gradient @ (y - at))

    best = model(np.asarray(stepped))
    for seed in range(50):
        assert model(np.asarray(stepped) + 1e-3 * np.random.default_rng(seed).normal(size=3)) >= best
    np.testing.assert_array_equal(far, other)


def algorithm_3_as_printed(rows, signs, releases, smoothness, radius):
    """The l2 ball, with the exact gradient in the y-step; `releases` stand for the noised ones of the z-step."""
    y = z = np.zeros(rows.shape[1])

    def project(v):
        return v * min(1.0, radius / max(np.linalg.norm(v), 1e-300))

    for k, released in enumerate(releases):
        r, alpha = 2.0 / (k + 2), (k + 2) / (2.0 * smoothness)
        x = r * z + (1 - r) * y
        exact = rows.T @ (-signs / (1.0 + np.exp(signs * (rows @ x)))) / len(rows)
        y = project(x - radius**2 / smoothness * exact)
        z = project(z - alpha * radius**2 * released)
    return y


def test_algorithm_3_as_printed_is_no_function_of_its_releases_and_the_corrected_one_is():
    left, right = neighbours(3, keep_label=True)
    solver = replace(FOUR, noise_multiplier=2.0, y_step="gradient")
    problem = plain_problem(L2Ball(2.0))
    result = solve_on(left, solver, problem, noise=NoiseSource(1))
    releases = [np.asarray(release.released)[0] for release in result.transcript]
    printed = [
        algorithm_3_as_printed(
            np.asarray(units.private_features, np.float64), units.private_targets, releases, 2.0, 2.0
        )
        for units in (left, right)
    ]
    assert np.max(np.abs(printed[0] - printed[1])) > 1e-4  # equal releases, other results: not private
    for units in (left, right):
        again = solver.solve(Replay(result.transcript, units.public), problem)
        assert np.array_equal(again.params, result.params)


@pytest.mark.at_once("L2Ball(radius=2.0)")
@pytest.mark.parametrize("body", [L2Ball(2.0), L1Ball(2.0), LpBall(2.0, 1.5)], ids=str)
def test_no_neighbour_moves_a_release_further_than_its_sensitivity_and_some_move_it_so_far(body):
    solver = replace(FOUR, clip=0.4, noise_multiplier=3.0)
    problem = Problem(losses.logistic, constraint=body)
    moves = [largest_move(solver, problem, *neighbours(seed, keep_label=seed < 15)) for seed in range(20)]
    assert 1.0 - 1e-6 <= max(moves) <= 1.0


def bound(steps, problem, public):
    """The theorem's bound with the best step length."""
    solver = AcceleratedMirrorDescent(steps=steps, clip=0.5).filled(Instance(problem, public, BUDGET))
    return solver.forecast(Instance(problem, public, BUDGET)).excess


def test_the_bound_of_the_l2_ball_is_flat_beyond_the_least_number_of_steps():
    public = Public(n=20_000, d=100)
    problem = Problem(losses.logistic, constraint=L2Ball(10.0))
    least = AcceleratedMirrorDescent(clip=0.5).least_steps(Instance(problem, public, BUDGET))
    assert 30 < least < 300
    at_least = bound(math.ceil(least), problem, public)
    for factor in (1.5, 4, 20):
        assert bound(math.ceil(factor * least), problem, public) == pytest.approx(at_least, rel=0.05)
    assert bound(math.ceil(least / 3), problem, public) > 1.5 * at_least


@pytest.mark.at_once("Box(low=-0.5, high=0.5)")
@pytest.mark.parametrize(
    "body", [L2Ball(1.0), L1Ball(1.5), LpBall(1.0, 1.5), Box(-0.5, 0.5), Simplex()], ids=str
)
def test_without_noise_the_optimum_is_reached(body):
    units = reference_units()
    result = minimize(
        Problem(losses.logistic, Ridge(0.05), body),
        units,
        budget=Budget(np.inf, 1e-6),
        solver=AcceleratedMirrorDescent(steps=300),
    )
    rows, signs = np.asarray(units.private_features), units.private_targets
    problem = Problem(losses.logistic, Ridge(0.05), body)
    value = jax.jit(lambda w: problem.objective(w, jnp.asarray(rows), jnp.asarray(signs)))
    slope = jax.grad(value)(result.params)
    gap = slope @ (result.params - body.linear_minimiser(slope))  # bounds the excess of a convex objective
    assert 0.0 <= float(gap) + 1e-12 <= 1e-4


def test_a_smaller_entry_bound_lowers_the_smoothness_of_the_l1_ball_only():
    public = Public(n=1000, d=100)
    for body, factor in ((L1Ball(3.0), 0.01), (L2Ball(3.0), 1.0), (LpBall(3.0, 1.5), 0.1 ** (2 / 3))):
        problem = Problem(losses.logistic, constraint=body)
        loose, tight = (
            mirror_geometry.smoothness(Instance(problem, public, BUDGET), entry) for entry in (None, 0.1)
        )
        assert loose == pytest.approx(0.25 * 9.0)
        assert tight == pytest.approx(factor * loose)


@pytest.mark.audit
def test_the_smoothness_bounds_the_curvature_in_the_norm_of_the_body():
    rng = np.random.default_rng(0)
    rows = rng.uniform(-0.4, 0.4, size=(200, 6))
    row_bound = float(np.max(np.linalg.norm(rows, axis=1)))
    public = Public(n=200, d=6, row_bound=row_bound)
    for body in (
        L2Ball(2.0),
        L1Ball(2.0),
        LpBall(2.0, 1.4),
        Box(-1.0, 2.0),
        Product(((L2Ball(1.0), 2), (L1Ball(3.0), 4))),
    ):
        problem = Problem(losses.squared, Ridge(0.3), body)
        stated = mirror_geometry.smoothness(Instance(problem, public, BUDGET), 0.4)
        centre = np.asarray(body.mirror((6,)).point(body.mirror((6,)).start()))
        hessian = rows.T @ rows / 200 + 0.3 * np.eye(6)
        for _ in range(40):  # the curvature towards points of the boundary, of Minkowski norm 1
            point = body.linear_minimiser(jnp.asarray(rng.normal(size=6)))
            towards = np.asarray(point) - centre
            assert towards @ hessian @ towards <= stated * (1 + 1e-9)


@pytest.mark.parametrize(
    ("problem", "options", "message"),
    [
        (Problem(losses.logistic), {}, "needs a bounded constraint set, and Unconstrained"),
        (Problem(losses.logistic, constraint=Box(0.0, math.inf)), {}, "needs a bounded constraint set"),
        (Problem(losses.logistic, L1(0.1), L1Ball(1.0)), {}, "is not smooth"),
        (Problem(losses.logistic, constraint=L1Ball(1.0)), {"y_step": "gradient"}, 'use y_step="couple"'),
    ],
)
def test_what_it_cannot_solve_it_refuses_and_says_what_to_do(problem, options, message):
    with pytest.raises(ValueError, match=message):
        minimize(problem, reference_units(), budget=BUDGET, solver=AcceleratedMirrorDescent(**options))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"y_step": "both"}, r"one of \['couple', 'gradient'\], got 'both'"),
        ({"entry_bound": 0.0}, "above 0 and finite, got 0.0"),
    ],
)
def test_settings_out_of_range_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        AcceleratedMirrorDescent(**options)


def test_a_run_by_hand_without_a_mirror_map_is_refused():
    with pytest.raises(ValueError, match="has no mirror map"):
        solve_on(reference_units(), FOUR, plain_problem(Unconstrained()))


def test_zero_steps_return_the_start():
    result = solve_on(
        reference_units(), replace(FOUR, steps=0), plain_problem(L1Ball(1.0)), start=np.array([0.1, 0.0, 0.2])
    )
    np.testing.assert_array_equal(result.params, [0.1, 0.0, 0.2])
    assert len(result.transcript) == 0


def test_what_is_given_is_kept_and_what_is_derived_does_not_change_again():
    public = Public(n=1000, d=30)
    problem = Problem(losses.logistic, constraint=L1Ball(10.0))
    derived = AcceleratedMirrorDescent(steps=25, clip=0.3).configure(Instance(problem, public, BUDGET))
    assert (derived.steps, derived.clip) == (25, 0.3)
    assert derived.is_set("step_smoothness")
    assert replace(derived, noise_multiplier=None).configure(Instance(problem, public, BUDGET)) == derived
    by_default = AcceleratedMirrorDescent().configure(Instance(problem, public, BUDGET))
    assert planning.FEWEST_ENTROPIC_STEPS <= by_default.steps <= planning.MOST_ENTROPIC_STEPS


@pytest.mark.audit
def test_users_as_units_and_several_outputs():
    rng = np.random.default_rng(2)
    rows, codes = rng.normal(size=(60, 4)), rng.integers(0, 3, size=60)
    units = Units.from_arrays(
        rows,
        codes,
        row_bound=1.0,
        classes=[0, 1, 2],
        groups=np.arange(60) // 3,
        max_records_per_user=3,
        noise=NoiseSource(1),
    )
    problem = Problem(losses.softmax(3), Ridge(0.1), L1Ball(4.0))
    result = minimize(
        problem, units, budget=Budget(5.0, 1e-3), solver=AcceleratedMirrorDescent(), random_state=1
    )
    assert result.params.shape == (4, 3)
    assert np.sum(np.abs(result.params)) <= 4.0 * (1 + 1e-9)
