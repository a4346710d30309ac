"""The optimal distinguishing attack on user-level descent: it reaches what is claimed for a user and no more."""

import math
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
from privopt.solvers.gradient_descent import GradientDescent
from privopt.solvers.group_privacy import GroupPrivacy
from privopt.solvers.user_gradient_descent import UserGradientDescent

pytestmark = pytest.mark.audit

USERS, CAP, CLIP, HEIGHT, ROUNDS, COPIES, STILL = 24, 3, 0.7, 0.19, 2, 1000, 1e-12
BUDGET, SQUARED = Budget(2.0, 0.2), Problem(losses.squared)
SOLVERS = {
    "user-level descent": UserGradientDescent(
        steps=ROUNDS, step_size=STILL, clip=CLIP, typical=1, quantile=1.0, clip_rate=0.0, height=HEIGHT, momentum=0.0
    ),
    "group privacy": GroupPrivacy(
        inner=GradientDescent(steps=ROUNDS, step_size=STILL, clip=CLIP, momentum=0.0, returns="last")
    ),
}  # fmt: skip


def pair(relation):
    """Users clipped from one side; the first one is just inside the clip on the other, or absent, in the neighbour."""
    owners = np.arange(USERS * CAP) // CAP
    rows, targets = np.tile([1.0, 0.0], (len(owners), 1)), np.full(len(owners), -HUGE)
    turned = np.where(owners == 0, CLIP * (1.0 - 1e-6), targets)
    first = CAP if relation == "add-or-remove-one" else 0
    common = {
        "relation": relation, "row_bound": 1.0, "n": USERS, "max_records_per_user": CAP, "user_weighting": "user",
    }  # fmt: skip
    return (
        Units.from_arrays(rows, targets, groups=owners, noise=NoiseSource(1), **common),
        Units.from_arrays(
            rows[first:], turned[first:], groups=owners[first:], noise=NoiseSource(1), **common
        ),
    )


def scaled_steps(solver, times, quieter):
    """The same noise for many more steps: the parameters hardly move, so one long run is as good as many short ones."""
    quiet = solver.noise_multiplier * quieter
    if isinstance(solver, GroupPrivacy):
        return replace(solver, inner=replace(solver.inner, steps=times), noise_multiplier=quiet)
    return replace(solver, steps=times, noise_multiplier=quiet)


def log_ratios(name, relation, *, quieter=1.0):
    """Log-likelihood ratios of both data sets' transcripts under the claimed noise."""
    both = pair(relation)
    public = both[0].public
    claimed = SOLVERS[name].configure(Instance(SQUARED, public, BUDGET))
    gone = 1.0 if relation == "add-or-remove-one" else 2.0
    if name == "group privacy":
        left = np.array([CLIP, 0.0])
        moved, sensitivity = np.array([gone * CLIP, 0.0]), public.relation.factor * CLIP / USERS
    else:
        left = np.array([CLIP, 0.0, -HEIGHT * CLIP])
        moved = gone * np.array([CLIP, 0.0, -HEIGHT * CLIP])
        sensitivity = public.relation.factor * CLIP * math.hypot(1.0, HEIGHT) / USERS
    means, noise = (left, left - moved / USERS), claimed.noise_multiplier * sensitivity
    found = []
    for seed, units in enumerate(both):
        solver = scaled_steps(claimed, ROUNDS * COPIES, quieter)
        curator = LocalCurator(units, Unlimited(public.relation), noise=NoiseSource(10 + seed))
        solver.solve(curator, SQUARED)
        released = np.concatenate([np.asarray(release.released) for release in curator.transcript])
        away = [np.sum((released - mean) ** 2, axis=1) for mean in means]
        found.append(((away[1] - away[0]) / (2 * noise**2)).reshape(COPIES, ROUNDS).sum(axis=1))
    return found


def epsilons(left, right, delta):
    """The interval of epsilons that the statistic, which is exactly normal, leaves open at four standard errors."""
    mu = (np.mean(left) - np.mean(right)) / np.sqrt((np.var(left) + np.var(right)) / 2)
    error = 4 * np.sqrt(2 / len(left) + mu**2 / (4 * len(left)))
    return gaussian_epsilon(mu - error, delta), gaussian_epsilon(mu + error, delta)


@pytest.mark.parametrize("name", SOLVERS)
@pytest.mark.parametrize("relation", ["replace-one", "add-or-remove-one"])
def test_the_attack_reaches_the_claim_and_no_more(name, relation):
    ratios = log_ratios(name, relation)
    low, high = epsilons(*ratios, BUDGET.delta)
    assert low <= BUDGET.epsilon <= high / 0.999
    assert counted_bound(*ratios, BUDGET) <= BUDGET.epsilon


@pytest.mark.parametrize("name", SOLVERS)
@pytest.mark.parametrize("relation", ["replace-one", "add-or-remove-one"])
def test_the_attack_notices_a_quarter_less_noise(name, relation):
    low, _ = epsilons(*log_ratios(name, relation, quieter=0.75), BUDGET.delta)
    assert low > BUDGET.epsilon
