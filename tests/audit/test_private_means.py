"""Slow statistics of means of held points: the error that the plan states, and how often a test passes wrongly."""

import jax.numpy as jnp
import numpy as np
import pytest

from privopt.curator.local import LocalCurator
from privopt.data.units import Units
from privopt.ledger.amounts import Budget
from privopt.ledger.curves import gaussian_mu
from privopt.ledger.ledger import Ledger
from privopt.mechanisms.additive import Gaussian
from privopt.mechanisms.noise import NoiseSource
from privopt.mechanisms.tests import GaussianTest
from privopt.planning.stable_mean import plan_stable_mean
from privopt.precision import double_precision
from privopt.queries.moments import UserAverage
from privopt.solvers.held_means import StableMean
from privopt.status import Status

pytestmark = pytest.mark.audit


def released(rows, mean, seed):
    with double_precision():
        units = Units.from_arrays(rows, row_bound=1e3, storage="float64")
        ledger = Ledger(Budget(1e3, 1e-2), "replace-one", plan=mean.event())
        curator = LocalCurator(units, ledger, noise=NoiseSource(seed))
        held = curator.hold(UserAverage(bound=1e3))
        return mean.release(curator, held, jnp.zeros(rows.shape[1]))


def test_the_error_is_the_one_that_the_plan_states():
    """10c: within 15 % of sqrt(d) cost b* / (K sqrt(2 rho)) at K = 3000, d = 1000."""
    points, d, epsilon = 3000, 1000, 1.0
    mu = gaussian_mu(epsilon, 9e-7)
    plan = plan_stable_mean(points=points, replaced=True, rho=mu**2 / 2, bad_event_delta=1e-7)
    rng = np.random.default_rng(0)
    centre = rng.normal(size=d)
    centre *= 10.0 / np.linalg.norm(centre)
    spread = 1.1  # of N(mu, I / d): all but very few
    mean = StableMean(
        spread=spread,
        test=GaussianTest(plan.test_multiplier, 1e-7),
        noise=Gaussian(plan.noise_multiplier),
    )
    errors = []
    for seed in range(3):
        rows = centre + rng.normal(size=(points, d)) / np.sqrt(d)
        value, status = released(rows, mean, seed)
        assert status is Status.FINISHED
        errors.append(np.linalg.norm(np.asarray(value) - rows.mean(axis=0)))
    stated = np.sqrt(d) * plan.cost * spread / (points * mu)
    assert np.mean(errors) == pytest.approx(stated, rel=0.15)


def test_points_without_a_centre_pass_no_more_often_than_paid_for():
    """10d: 2000 runs whose score is 0, at delta_1 = 1e-3."""
    delta = 1e-3
    mean = StableMean(spread=0.1, test=GaussianTest(2.0, delta), noise=Gaussian(1.0), outliers=0.02)
    rows = 100.0 * np.random.default_rng(1).normal(size=(80, 2))
    passes = sum(released(rows, mean, seed).status is Status.FINISHED for seed in range(2000))
    assert passes <= 2000 * delta + 4 * np.sqrt(2000 * delta)
