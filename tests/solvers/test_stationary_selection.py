import math

import jax.numpy as jnp
import numpy as np
import pytest
from tests.support.kl_reference import twelve_records
from tests.support.plain_logistic import PlainLogistic

from privopt.curator.local import LocalCurator
from privopt.errors import BudgetExceeded
from privopt.ledger import accounting
from privopt.ledger.amounts import Budget
from privopt.ledger.ledger import Ledger
from privopt.mechanisms.choice import ExponentialMechanism
from privopt.mechanisms.noise import NoiseSource
from privopt.precision import double_precision
from privopt.public import Public
from privopt.queries.gradient_norms import GradientNorms
from privopt.solvers.stationary_selection import FlattestPoints, select_stationary

LOSS = PlainLogistic()
POINTS = [np.full(3, at) for at in (0.0, 1.0, -3.0)]


@pytest.fixture(autouse=True)
def double():
    with double_precision():
        yield


def chances(norms, epsilon, sensitivity):
    """The mechanism's own formula."""
    weights = np.exp(-epsilon * (np.asarray(norms) - min(norms)) / sensitivity)
    return weights / weights.sum()


def open_curator(seed=0, budget=None):
    budget = Budget(1e6, 1e-6) if budget is None else budget
    return LocalCurator(
        twelve_records(), Ledger(budget, "replace-one", composition="zcdp"), noise=NoiseSource(seed)
    )


def test_the_probabilities_have_their_reference_values():
    rho, public = 0.01, Public(n=1000, d=3)
    query = GradientNorms(loss=LOSS, points=jnp.asarray(np.stack(POINTS)), clip=1.0)
    mechanism = ExponentialMechanism(math.sqrt(8.0 * rho))
    assert accounting.zcdp_rho(mechanism.event()) == pytest.approx(rho)
    found = chances((0.1, 0.2, 0.4), mechanism.epsilon, float(query.sensitivity(public)))
    np.testing.assert_allclose(found, [0.99915139443, 8.4860496219e-04, 6.1214471348e-10], rtol=1e-8)


@pytest.mark.audit
def test_it_chooses_with_these_probabilities():
    units = twelve_records()
    rows, targets = np.asarray(units.private_features, np.float64), np.asarray(units.private_targets)
    norms = [
        np.linalg.norm(rows.T @ (-targets / (1.0 + np.exp(targets * (rows @ np.asarray(w))))) / 12)
        for w in POINTS
    ]
    curator, epsilon, times = open_curator(), 90.0, 500
    chosen = [
        select_stationary(curator, LOSS, POINTS, clip=1.0, mechanism=ExponentialMechanism(epsilon))
        for _ in range(times)
    ]
    expected = chances(norms, epsilon, 4.0 / 12)  # 2 Delta, Delta = 2 clip / n
    found = np.bincount(chosen, minlength=3) / times
    assert np.all(np.abs(found - expected) <= 4.5 * np.sqrt(expected * (1 - expected) / times))
    half = chances(norms, epsilon / 2.0, 4.0 / 12)
    assert np.any(np.abs(found - half) > 4.5 * np.sqrt(half * (1 - half) / times))


def test_one_point_is_chosen_whatever_the_data():
    assert (
        select_stationary(open_curator(), LOSS, POINTS[1:2], clip=1.0, mechanism=ExponentialMechanism(0.1))
        == 0
    )
    with pytest.raises(ValueError, match="at least one point"):
        select_stationary(open_curator(), LOSS, [], clip=1.0, mechanism=ExponentialMechanism(0.1))


def test_a_penalty_counts_and_without_noise_the_flattest_wins():
    sure = ExponentialMechanism(math.inf)
    everything = open_curator(budget=Budget(math.inf, 1e-6))
    first = select_stationary(everything, LOSS, POINTS, clip=1.0, mechanism=sure)
    away = [jnp.full(3, 9.0 if k == first else 0.0, jnp.float64) for k in range(3)]
    second = select_stationary(everything, LOSS, POINTS, clip=1.0, mechanism=sure, offsets=away)
    assert second != first


def test_a_choice_that_cannot_be_paid_is_refused():
    with pytest.raises(BudgetExceeded, match="would cost"):
        select_stationary(
            open_curator(budget=Budget(0.1, 1e-6)),
            LOSS,
            POINTS,
            clip=1.0,
            mechanism=ExponentialMechanism(1.0),
        )


def test_the_flattest_points_are_kept_in_order():
    flat = FlattestPoints(3)
    for k, norm in enumerate([5.0, 1.0, 3.0, 1.0, 2.0, 7.0]):
        flat.add(norm, jnp.asarray(float(k)))
    assert flat.least == (1.0, 1.0)
    assert flat.in_order() == ([1.0, 1.0, 2.0], [1.0, 3.0, 4.0])
