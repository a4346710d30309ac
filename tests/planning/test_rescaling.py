"""Scale and shift: the two columns, the curvature, and what releases with more or less noise make of the start."""

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy.optimize import minimize

from privopt.ledger.amounts import Budget
from privopt.planning import shrinkage
from privopt.planning.coordinates import RowSpectrum
from privopt.planning.shrinkage import Estimate, clip_for, default_share, two_column_curvature, two_columns
from privopt.planning.task import Instance
from privopt.problems import losses
from privopt.problems.problem import Problem
from privopt.problems.regularisers import Ridge
from privopt.public import Public, Relation

FREE = Problem(losses.logistic, Ridge(1e-3, (1.0, 1.0, 0.0)), constant=2)
NUMBERS = Problem(losses.squared, FREE.regulariser, constant=2)


def instance(problem=FREE, epsilon=1.0, n=10_000, by_user=False):
    public = Public(n=n, d=3, relation=Relation.REPLACE_ONE, unit="user" if by_user else "record")
    return Instance(problem, public, Budget(epsilon, 1e-6))


def spectrum(moment, constant=2):
    values, axes = np.linalg.eigh(moment)
    return RowSpectrum(moment=moment, eigenvalues=values, axes=axes, floor=0.1, constant=constant)


def test_the_columns_have_mean_square_one_are_uncorrelated_and_give_the_parameters_back():
    rows = np.random.default_rng(0).normal(size=(50, 3))
    rows[:, 2] = 0.7
    moment, params = rows.T @ rows / 50, np.array([1.0, -2.0, 0.5])
    found = two_columns(spectrum(moment), params)
    np.testing.assert_allclose(found.basis.T @ moment @ found.basis, np.eye(2), atol=1e-12)
    np.testing.assert_allclose(found.basis @ found.found, params, atol=1e-12)
    assert found.found[0] == pytest.approx(np.mean(rows @ params))
    assert found.found[1] == pytest.approx(np.std(rows @ params))


@pytest.mark.parametrize("params", [np.zeros(3), np.array([0.0, 0.0, 2.0]), np.full(3, np.nan)])
@pytest.mark.parametrize("moment", [np.zeros((3, 3)), np.diag([1.0, 1e-9, 0.5])])
def test_models_without_spread_and_moments_without_signal_give_finite_columns(params, moment):
    found = two_columns(spectrum(moment), params)
    assert np.isfinite(found.basis).all()
    np.testing.assert_allclose(found.basis @ found.found, np.nan_to_num(params), atol=1e-12)


def test_a_shift_needs_a_column_of_ones():
    with pytest.raises(ValueError, match="column of ones"):
        two_columns(spectrum(np.eye(3), constant=None), np.ones(3))


@pytest.mark.parametrize("theta", [(0.0, 1.0), (-4.0, 2.0), (1.0, 0.0), (900.0, 1e6)])
def test_the_curvature_is_that_of_normal_predictions(theta):
    drawn = np.random.default_rng(1).standard_normal(400_000)
    half = 0.5 * np.clip(np.abs(theta[0] + theta[1] * drawn), 0.0, 600.0)
    weights = 0.25 / np.cosh(half) ** 2
    entries = np.stack([np.ones_like(drawn), drawn])
    np.testing.assert_allclose(
        two_column_curvature(losses.logistic, *theta), (entries * weights) @ entries.T / len(drawn), atol=2e-3
    )


def logistic_data(theta, n=200_000):
    generator = np.random.default_rng(2)
    drawn = generator.standard_normal(n)
    share = 1.0 / (1.0 + np.exp(-(theta[0] + theta[1] * drawn)))
    return np.stack([np.ones(n), drawn], axis=1), (generator.uniform(size=n) < share).astype(float)


def gradient(rows, ones, theta):
    return rows.T @ (1.0 / (1.0 + np.exp(-(rows @ theta))) - ones) / len(rows)


@pytest.mark.parametrize(("truth", "left"), [((-1.0, 1.0), 0.02), ((-1.2, 1.4), 0.2), ((-1.5, 2.5), 0.4)])
def test_three_exact_gradients_go_most_of_the_way_to_scale_and_shift(truth, left):
    rows, ones = logistic_data(truth)
    start = np.array([-1.0, 1.0])
    estimate = Estimate.before(start, 1.0, losses.logistic)
    for _ in range(shrinkage.STEPS):
        estimate = estimate.after(gradient(rows, ones, estimate.theta), 1e-4)
    assert np.linalg.norm(estimate.theta - truth) < max(left * np.linalg.norm(start - truth), 0.02)


def test_releases_that_drown_leave_the_start():
    rows, ones = logistic_data((-3.0, 0.1))
    estimate = Estimate.before(np.array([-1.0, 1.0]), 1.0, losses.logistic)
    for _ in range(shrinkage.STEPS):
        estimate = estimate.after(gradient(rows, ones, estimate.theta), 50.0)
    np.testing.assert_allclose(estimate.theta, [-1.0, 1.0], atol=0.01)


def test_what_is_not_finite_says_nothing_and_the_estimate_stays_within_its_limits():
    estimate = Estimate.before(np.array([0.0, 1.0]), 1.0, losses.logistic)
    assert estimate.after(np.array([np.nan, 0.0]), 0.1) is estimate
    for sign in (-1.0, 1.0):
        far = estimate.after(np.full(2, sign * 1e6), 1e-6).theta
        assert np.all(np.abs(far) <= [shrinkage.MOST_SHIFT, shrinkage.MOST_SCALE + 0.1])


def test_the_clip_grows_without_bound_as_the_noise_falls():
    clips = [clip_for(instance(epsilon=epsilon, n=500), 0.1) for epsilon in (0.01, 0.1, 1.0, 3.0)]
    assert clips == sorted(clips)
    assert clips[0] == shrinkage.LEAST_CLIP
    assert clip_for(instance(n=10**9, epsilon=3.0), 0.1) > 100.0


@pytest.mark.parametrize("strength", [0.1, 10.0])
def test_a_ridge_keeps_its_part_of_scale_and_shift(strength):
    rows, ones = logistic_data((-1.0, 1.0))
    ridge = np.diag([0.0, strength])
    best = minimize(
        lambda theta: (
            np.mean(np.logaddexp(0.0, rows @ theta) - ones * (rows @ theta)) + theta @ ridge @ theta / 2
        ),
        np.zeros(2),
    ).x
    estimate = Estimate.before(best + np.array([0.1, 0.02]), 1.0, losses.logistic, ridge)
    for _ in range(shrinkage.STEPS):
        estimate = estimate.after(gradient(rows, ones, estimate.theta), 1e-4)
    np.testing.assert_allclose(estimate.theta, best, atol=2e-3)


def test_where_the_scale_is_at_its_limit_the_shift_is_the_best_for_it():
    estimate = Estimate.before(np.array([0.0, 0.1]), 1.0, losses.squared)
    tied = replace(estimate, precision=np.array([[2.0, 1.0], [1.0, 2.0]]), shown=np.array([0.0, 9.0]))
    np.testing.assert_allclose(tied.theta, [-0.5 * tied.largest[1], tied.largest[1]])


@pytest.mark.parametrize(
    ("given", "share"),
    [
        ({}, 0.1),
        ({"problem": NUMBERS}, 0.05),
        ({"n": 50}, 0.0),
        ({"n": 50, "problem": NUMBERS}, 0.0),
        ({"epsilon": math.inf}, 0.0),
        ({"by_user": True}, 0.0),
        ({"problem": Problem(losses.logistic, FREE.regulariser)}, 0.0),
        ({"problem": Problem(losses.softmax(3), FREE.regulariser, constant=2)}, 0.0),
    ],
)
def test_it_is_for_records_with_a_constant_column_where_not_everything_is_noise(given, share):
    assert default_share(instance(**given)) == share


@pytest.mark.parametrize("length", [1e200, 1.7e308, math.inf])
def test_a_result_that_ran_away_leaves_finite_columns_and_a_finite_estimate(length):
    found = two_columns(spectrum(np.eye(3)), [0.0, length, -length])
    estimate = Estimate.before(found.found, 1.0, losses.logistic).after(np.asarray([0.1, -0.2]), 0.01)
    assert np.all(np.isfinite(found.basis))
    assert np.all(np.isfinite(found.basis @ estimate.theta))


def test_the_squared_loss_reaches_scale_and_shift_in_one_step_and_no_scale_is_negative():
    rng = np.random.default_rng(2)
    rows = np.stack([np.ones(20_000), rng.normal(size=20_000)], axis=1)
    targets = rows @ [0.2, 0.5] + 0.3 * rng.normal(size=20_000)
    estimate = Estimate.before(np.array([0.0, 0.4]), 0.5, losses.squared)
    np.testing.assert_allclose(estimate.theta, [0.0, 0.2])  # the scale, shrunk by half
    estimate = estimate.after(rows.T @ (rows @ estimate.theta - targets) / len(rows), 1e-6)
    np.testing.assert_allclose(estimate.theta, [0.2, 0.5], atol=0.02)
    assert estimate.after(np.array([0.0, 5.0]), 1e-7).theta[1] == 0.0
