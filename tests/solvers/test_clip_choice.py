"""The private clip: what is chosen, what it costs, and what runs afterwards."""

import math

import jax.numpy as jnp
import numpy as np
import pytest

from privopt.data.units import Units
from privopt.ledger.amounts import Budget
from privopt.ledger.events import BoundedRangeEvent, GaussianEvent
from privopt.planning.task import Instance
from privopt.problems import losses
from privopt.problems.problem import Problem
from privopt.public import Public
from privopt.solve import minimize, plan
from privopt.solvers import clip_choice as planning
from privopt.solvers.adaptive_gradient_descent import AdaptiveGradientDescent
from privopt.solvers.clip_choice import PrivateClip
from privopt.solvers.curvature_probe import CurvatureProbe
from privopt.solvers.gradient_descent import GradientDescent
from privopt.solvers.o2nc import O2NC
from privopt.solvers.stochastic_gradient_descent import StochasticGradientDescent

BUDGET = Budget(1.0, 1e-6)


def scaled_residual(params, features, target):
    """A loss whose gradient at 0 is 100 |target| times a row of norm 1."""
    return 100.0 * jnp.log1p(0.5 * (features @ params - target) ** 2)


PROBLEM = Problem(losses.RecordLoss(scaled_residual))


def units_of(n=3_000, relation="replace-one"):
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(n, 3))
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    return Units.from_arrays(rows, rng.uniform(0.0, 0.1, n), row_bound=1.001, relation=relation, n=n)


def test_the_clip_grows_beyond_the_chosen_length_as_the_noise_falls():
    public = units_of().public

    def stretch(inner, epsilon):
        return PrivateClip(inner=inner).configure(Instance(PROBLEM, public, Budget(epsilon, 1e-6))).stretch

    assert stretch(GradientDescent(), 0.1) == 1.0
    assert 1.0 < stretch(GradientDescent(), 3.0) < stretch(GradientDescent(), 100.0)
    assert stretch(O2NC(), 100.0) == 1.0  # its clip follows the gradients by itself


@pytest.mark.later("replace-one")
@pytest.mark.parametrize("relation", ["replace-one", "add-or-remove-one"])
def test_the_clip_is_near_the_quantile_of_the_norms(relation):
    units = units_of(relation=relation)
    solver = PrivateClip(inner=GradientDescent(steps=3), quantile=0.5, stretch=1.0)
    result = minimize(PROBLEM, units, budget=BUDGET, solver=solver, random_state=1)
    assert 3.5 < result.findings["clip"].value < 7.1  # half of the norms are below 5; lengths go by sqrt(2)
    assert result.transcript.epsilon(1e-6) == pytest.approx(1.0, rel=2e-3)
    assert result.transcript.epsilon(1e-6) <= 1.0


def test_the_choice_has_a_twentieth_of_the_budget_and_the_rest_goes_on():
    solver = PrivateClip(inner=GradientDescent()).configure(Instance(PROBLEM, Public(n=3_000, d=3), BUDGET))
    choice, rest = solver.event(Public(n=3_000, d=3)).events
    assert isinstance(choice, BoundedRangeEvent)
    assert isinstance(rest, GaussianEvent)
    by_choice, by_rest = choice.epsilon**2 / 8.0, 0.5 / rest.noise_multiplier**2
    assert by_choice / (by_choice + by_rest) == pytest.approx(0.05, rel=1e-6)


@pytest.mark.audit
def test_auto_as_a_clip_means_the_front_end():
    units = units_of()
    given = minimize(PROBLEM, units, budget=BUDGET, solver=O2NC(clip="auto", steps=3), random_state=2)
    meant = minimize(PROBLEM, units, budget=BUDGET, solver=PrivateClip(inner=O2NC(steps=3)), random_state=2)
    assert np.array_equal(given.params, meant.params)
    assert given.plan.solver == "privately clipped o2nc"
    plans = plan(PROBLEM, n=3_000, d=3, epsilon=1.0, delta=1e-6, solver=GradientDescent(clip="auto"))
    assert "privately clipped gradient-descent" in str(plans)


def test_elsewhere_auto_is_refused_by_name():
    with pytest.raises(ValueError, match="use PrivateClip"):
        GradientDescent(clip="auto").configure(Instance(PROBLEM, Public(n=50, d=3), BUDGET))
    with pytest.raises(TypeError, match="clip must be a number or 'auto', got"):
        GradientDescent(clip="automatic")


@pytest.mark.parametrize(
    ("inner", "why"),
    [
        (GradientDescent(clip=1.0), "clip is given"),
        (CurvatureProbe(), "no clip"),
        (StochasticGradientDescent(), "samples or parts"),
        (O2NC(blocks=2, steps=10), "samples or parts"),
    ],
)
def test_what_cannot_follow_a_chosen_clip_is_refused(inner, why):
    with pytest.raises(ValueError, match=why):
        PrivateClip(inner=inner).configure(Instance(PROBLEM, Public(n=3_000, d=3), BUDGET))


@pytest.mark.audit
def test_adaptive_methods_run_behind_it():
    units = units_of(500)
    inner = AdaptiveGradientDescent(most_steps=30, window=10)
    result = minimize(PROBLEM, units, budget=BUDGET, solver=PrivateClip(inner=inner), random_state=2)
    assert result.transcript.epsilon(1e-6) <= 1.0
    assert {"clip", "gradient_norm"} <= set(result.findings)


def test_without_noise_nothing_is_clipped():
    units = units_of(300)
    result = minimize(
        PROBLEM,
        units,
        budget=Budget(math.inf, 1e-6),
        solver=PrivateClip(inner=GradientDescent(steps=5, step_size=1e-3)),
    )
    plain = minimize(
        PROBLEM, units, budget=Budget(math.inf, 1e-6), solver=GradientDescent(steps=5, step_size=1e-3)
    )
    np.testing.assert_allclose(result.params, plain.params, rtol=1e-12)


def test_lengths_span_four_and_a_half_powers_of_ten():
    lengths = planning.candidate_lengths(32.0)
    assert len(lengths) == 31
    assert lengths[0] == 32.0
    assert lengths[-1] == pytest.approx(32.0 * 2.0**-15)
