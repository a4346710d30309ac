"""The KL condition: its constructors, its consequences, and its estimate from public data."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from privopt import zoo
from privopt.problems import losses
from privopt.problems.growth import KL
from privopt.problems.problem import Problem
from privopt.problems.regularisers import L1, Ridge
from privopt.zoo.problem import fit_growth

KNOWN = {
    "quadratic": zoo.power(2.0, 4),
    "flat": zoo.power(4.0, 4),
    "sharp": zoo.power(1.5, 4),
}


def test_strong_convexity_is_kappa_two():
    growth = KL.of_strong_convexity(0.5, gap=3.0)
    assert (growth.gamma, growth.kappa, growth.gap) == (1.0, 2.0, 3.0)
    assert growth.excess_at(2.0) == pytest.approx(2.0**2 / (2 * 0.5))


@pytest.mark.parametrize("p", [1.5, 2.0, 4.0])
def test_growth_of_a_convex_objective_implies_the_condition(p):
    problem = zoo.power(p, 4)  # F = |w|^p / p >= (p^(-1/p) dist)^p
    growth = KL.of_growth(p ** (-1.0 / p), p)
    assert growth.kappa == pytest.approx(problem.growth.kappa)
    for scale in (1.0, 0.3, 1e-3):
        point = problem.start * scale
        assert problem.excess(point) <= growth.excess_at(float(np.linalg.norm(problem.gradient(point)))) * (
            1 + 1e-9
        )


@pytest.mark.parametrize("problem", KNOWN.values(), ids=KNOWN)
def test_the_consequences_hold_for_powers_of_the_norm(problem):
    growth = problem.growth
    strength, tau = growth.growth_within()
    for scale in (1.0, 0.3, 1e-3):
        point = problem.start * scale
        excess, distance = problem.excess(point), float(np.linalg.norm(point))
        assert excess >= (strength * distance) ** tau * (1 - 1e-9)
        assert distance <= growth.path_length(excess) * (1 + 1e-9)
        assert growth.gradient_at(excess) == pytest.approx(float(np.linalg.norm(problem.gradient(point))))
        if growth.kappa <= 2.0:
            curvature = (problem.growth.kappa - 1.0) ** -1.0 * scale ** (1 / (problem.growth.kappa - 1) - 1)
            assert growth.least_smoothness(excess) <= curvature * (1 + 1e-9)


def test_gradient_flow_is_no_longer_than_the_path():
    problem = zoo.sine(3)
    point, travelled = problem.start.copy(), 0.0
    for _ in range(4000):
        step = 0.002 * problem.gradient(point)
        point, travelled = point - step, travelled + float(np.linalg.norm(step))
    assert travelled <= problem.growth.path_length(problem.growth.gap)
    assert KL(gamma=1.0, kappa=1.0).path_length(1.0) == math.inf


def test_the_gap_is_at_most_what_the_gradients_prove():
    growth = KL(gamma=0.5, kappa=2.0, gap=10.0)
    assert growth.gap_within(2.0) == 1.0
    assert growth.gap_within(100.0) == 10.0


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: KL(gamma=0.0, kappa=2.0), "gamma must be positive"),
        (lambda: KL(gamma=1.0, kappa=0.9), "kappa must be at least 1"),
        (lambda: KL(gamma=1.0, kappa=2.0, gap=0.0), "gap must be positive"),
        (lambda: KL(gamma=1.0, kappa=math.nan), "kappa must be at least 1"),
        (lambda: KL.of_strong_convexity(0.0), "mu must be positive"),
        (lambda: KL.of_growth(1.0, 1.0), "tau above 1"),
        (lambda: KL(gamma=1.0, kappa=1.0).growth_within(), "infinitely far"),
    ],
)
def test_constants_out_of_range_are_refused(build, message):
    with pytest.raises(ValueError, match=message):
        build()


@pytest.mark.parametrize(
    ("problem", "n"),
    [
        (zoo.power(4.0, 4), 4),
        (zoo.least_squares(4, condition=5.0), 100),
        (zoo.ball_logistic(3), 200),
    ],
    ids=lambda p: getattr(p, "name", p),
)
def test_the_fit_to_public_records_finds_the_exponent_and_a_safe_gamma(problem, n):
    found = fit_growth(problem.problem, *problem.records(n), start=problem.start, steps=4000)
    assert found.kappa == pytest.approx(problem.growth.kappa, abs=0.05)
    assert found.gap == pytest.approx(problem.growth.gap, rel=1e-3)
    # doubled, and never below what the end of the path shows; the constant of the table is that of the worst point
    assert 1.0 <= found.gamma / problem.growth.gamma <= 2.5 or problem.name.startswith("ball")
    generator = np.random.default_rng(0)
    centre = problem.minimiser
    for _ in range(20):
        point = centre + 0.05 * generator.standard_normal(problem.d)
        assert problem.excess(point) <= found.excess_at(float(np.linalg.norm(problem.gradient(point))))


def test_a_ridge_shows_in_the_fit():
    features, targets = zoo.separable_logistic(3).records(100)
    found = fit_growth(Problem(losses.logistic, Ridge(0.1)), features, targets, steps=2000)
    assert found.kappa == pytest.approx(2.0, abs=0.02)
    assert found.gamma <= 2.1 / math.sqrt(2 * 0.1)


def test_what_cannot_be_fitted_is_refused():
    features, targets = zoo.ball_logistic(3).records(200)
    with pytest.raises(ValueError, match="more steps"):
        fit_growth(Problem(losses.logistic), features, targets, steps=60)
    with pytest.raises(ValueError, match="smooth penalty"):
        fit_growth(Problem(losses.logistic, L1(0.1)), features, targets)
    with pytest.raises(ValueError, match="give step_size"):
        fit_growth(zoo.power(1.5, 3).problem, *zoo.power(1.5, 3).records(4))
    with pytest.raises(ValueError, match="steps must be"):
        fit_growth(Problem(losses.logistic), features, targets, steps=2)
    assert jax.config.read("jax_enable_x64")
    assert jnp.zeros(1).dtype == jnp.float64
