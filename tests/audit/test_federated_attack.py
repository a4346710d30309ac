"""The optimal distinguishing attack on federated averaging: it reaches what is claimed for a user and no more."""

from dataclasses import replace

import numpy as np
import pytest
from tests.support.worst_pair import HUGE, counted_bound

from privopt.curator.local import LocalCurator
from privopt.data.units import Units
from privopt.ledger.amounts import Budget
from privopt.ledger.curves import gaussian_epsilon
from privopt.ledger.payer import Unlimited
from privopt.mechanisms.noise import NoiseSource
from privopt.planning.task import Instance
from privopt.problems import losses
from privopt.problems.problem import Problem
from privopt.solvers.user_federated_averaging import UserFederatedAveraging

pytestmark = pytest.mark.audit

USERS, CAP, CLIP, ROUNDS, COPIES = 24, 3, 0.7, 2, 1000
BUDGET, SQUARED = Budget(2.0, 0.2), Problem(losses.squared)


def pair(relation):
    """Users whose models run as far as they can; the first one's runs the other way, or is absent, in the neighbour."""
    owners = np.arange(USERS * CAP) // CAP
    rows, targets = np.tile([1.0, 0.0], (len(owners), 1)), np.full(len(owners), -HUGE)
    targets[:CAP] = HUGE
    turned = np.where(owners == 0, -targets, targets)
    first = CAP if relation == "add-or-remove-one" else 0
    common = {"relation": relation, "row_bound": 1.0, "n": USERS, "max_records_per_user": CAP}
    return (
        Units.from_arrays(rows, targets, groups=owners, noise=NoiseSource(1), **common),
        Units.from_arrays(
            rows[first:], turned[first:], groups=owners[first:], noise=NoiseSource(1), **common
        ),
    )


def log_ratios(relation, claimed, copies, *, quieter=1.0):
    """Log-likelihood ratios of both data sets' transcripts under the claimed noise.

    A round's release does not depend on where the model is, so one long run is as good as many short ones.
    """
    both = pair(relation)
    factor = both[0].public.relation.factor
    means = CLIP * (2 - USERS) / USERS, CLIP * (2 - USERS - factor) / USERS
    noise = claimed.noise_multiplier * factor * CLIP / USERS
    found = []
    for seed, units in enumerate(both):
        solver = replace(claimed, rounds=ROUNDS * copies, noise_multiplier=claimed.noise_multiplier * quieter)
        curator = LocalCurator(units, Unlimited(units.public.relation), noise=NoiseSource(10 * factor + seed))
        solver.solve(curator, SQUARED)
        released = np.concatenate([np.asarray(release.released)[:, 0] for release in curator.transcript])
        away = (released[:, None] - np.array(means)) ** 2
        found.append(((away[:, 1] - away[:, 0]) / (2 * noise**2)).reshape(copies, ROUNDS).sum(axis=1))
    return found


def claimed_solver(relation):
    solver = UserFederatedAveraging(rounds=ROUNDS, step_size=0.5, decay=1.0, quantile=1.0, longest=CLIP)
    return solver.configure(Instance(SQUARED, pair(relation)[0].public, BUDGET))


def epsilons(left, right, delta):
    """The interval of epsilons that the statistic, which is exactly normal, leaves open at four standard errors."""
    mu = (np.mean(left) - np.mean(right)) / np.sqrt((np.var(left) + np.var(right)) / 2)
    error = 4 * np.sqrt(2 / len(left) + mu**2 / (4 * len(left)))
    return gaussian_epsilon(mu - error, delta), gaussian_epsilon(mu + error, delta)


@pytest.mark.parametrize("relation", ["replace-one", "add-or-remove-one"])
def test_the_attack_on_federated_averaging_reaches_the_claim_and_no_more(relation):
    ratios = log_ratios(relation, claimed_solver(relation), COPIES)
    low, high = epsilons(*ratios, BUDGET.delta)
    assert low <= BUDGET.epsilon <= high / 0.999
    assert counted_bound(*ratios, BUDGET) <= BUDGET.epsilon


@pytest.mark.parametrize("relation", ["replace-one", "add-or-remove-one"])
def test_the_attack_notices_a_quarter_less_noise(relation):
    low, _ = epsilons(*log_ratios(relation, claimed_solver(relation), COPIES, quieter=0.75), BUDGET.delta)
    assert low > BUDGET.epsilon
