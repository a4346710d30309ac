"""The optimal distinguishing attack on whole runs: it reaches what is claimed and no more, and notices less noise."""

from dataclasses import replace

import numpy as np
import pytest
from scipy import stats
from tests.support.worst_pair import counted_bound, worst_pair

from privopt.curator.local import LocalCurator
from privopt.ledger.amounts import Budget
from privopt.ledger.curves import gaussian_epsilon
from privopt.ledger.ledger import Ledger
from privopt.ledger.payer import Unlimited
from privopt.mechanisms.noise import NoiseSource
from privopt.planning.task import Instance
from privopt.problems import losses
from privopt.problems.problem import Problem
from privopt.solvers.gradient_descent import GradientDescent
from privopt.solvers.stochastic_gradient_descent import StochasticGradientDescent

pytestmark = pytest.mark.audit

RELATIONS = ["replace-one", "add-or-remove-one"]
SQUARED = Problem(losses.squared)
N, CLIP = 16, 0.7
FULL_BUDGET, FULL_STEPS = Budget(2.0, 0.2), 2
SAMPLED_BUDGET, SAMPLED_STEPS, RATE = Budget(1.5, 0.02), 10, 0.25


def first_coordinates(solver, units, copies, seed):
    """The first coordinate of every release of `copies` runs, (copies, steps).

    The gradients do not depend on where the run stands, so one long run is as good as many: the releases of both are
    independent and of one law.
    """
    long = replace(solver, steps=solver.steps * copies)
    curator = LocalCurator(
        units, Unlimited(units.public.relation), noise=NoiseSource(seed + 100 * units.public.relation.factor)
    )
    long.solve(curator, SQUARED)
    released = np.concatenate([np.asarray(release.released)[:, 0] for release in curator.transcript])
    return released.reshape(copies, solver.steps)


# Full batches --------------------------------------------------------------------------------------------------------


def full_solver(relation):
    public = worst_pair(relation, n=N, others=1.0)[0].public
    solver = GradientDescent(steps=FULL_STEPS, clip=CLIP, step_size=1e-9, momentum=0.0, returns="last")
    return solver.configure(Instance(SQUARED, public, FULL_BUDGET))


def full_log_ratios(relation, solver, claimed, copies, seed):
    """Log-likelihood ratios under the claimed noise: the linear statistic of the transcript, scaled and shifted."""
    pair = worst_pair(relation, n=N, others=1.0)
    factor = pair[0].public.relation.factor
    means = (
        CLIP,
        CLIP - factor * CLIP / N,
    )  # every unit pulls by C; in the neighbour one is turned or absent
    scale = claimed.noise_multiplier * factor * CLIP / N
    ratios = []
    for side, units in enumerate(pair):
        z = (first_coordinates(solver, units, copies, seed + side) - means[1]) / scale
        shift = (means[0] - means[1]) / scale
        ratios.append(np.sum(shift * z - shift**2 / 2, axis=1))
    return ratios


@pytest.mark.parametrize("relation", RELATIONS)
def test_the_attack_on_gradient_descent_reaches_the_claim_and_no_more(relation, evidence):
    solver = full_solver(relation)
    left, right = full_log_ratios(relation, solver, solver, 10_000, seed=10)
    claim = FULL_BUDGET.epsilon
    found = counted_bound(left, right, FULL_BUDGET)
    assert 0.8 * claim <= found <= claim
    evidence("attacks", f"gradient descent, {relation}", tried=20_000, of="runs", largest=found, bound=claim)
    # The statistic is exactly normal, so its mean and spread alone give a sharper bound.
    mu = np.sqrt(FULL_STEPS) / solver.noise_multiplier
    observed = (np.mean(left) - np.mean(right)) / np.sqrt((np.var(left) + np.var(right)) / 2)
    error = 4 * np.sqrt(2 / len(left) + mu**2 / (4 * len(left)))
    assert gaussian_epsilon(observed + error, FULL_BUDGET.delta) >= 0.999 * claim
    assert gaussian_epsilon(observed - error, FULL_BUDGET.delta) <= claim
    for ratios, centre in ((left, mu**2 / 2), (right, -(mu**2) / 2)):
        assert stats.kstest((ratios - centre) / mu, "norm").pvalue > 1e-4


@pytest.mark.parametrize("relation", RELATIONS)
def test_the_attack_notices_a_quarter_less_noise(relation):
    claimed = full_solver(relation)
    quiet = replace(claimed, noise_multiplier=0.75 * claimed.noise_multiplier)
    left, right = full_log_ratios(relation, quiet, claimed, 4_000, seed=20)
    assert counted_bound(left, right, FULL_BUDGET) > FULL_BUDGET.epsilon


@pytest.mark.parametrize("relation", RELATIONS)
def test_whole_runs_with_their_own_ledgers_are_of_the_same_law(relation):
    solver, units = full_solver(relation), worst_pair(relation, n=N, others=1.0)[0]
    statistics = []
    for _ in range(200):
        ledger = Ledger(FULL_BUDGET, relation, plan=solver.event(units.public))
        result = solver.solve(LocalCurator(units, ledger), SQUARED)  # secret noise
        for release in result.transcript:
            statistics.append((release.released[0, 0] - CLIP) / release.scale[0])
            assert release.scale[0] == solver.noise_multiplier * release.sensitivity[0]
    assert stats.kstest(statistics, "norm").pvalue > 1e-6  # no seed: a false alarm in a million


# Samples -------------------------------------------------------------------------------------------------------------


def sampled_solver(relation):
    public = worst_pair(relation, n=N, others=0.0)[0].public
    solver = StochasticGradientDescent(
        steps=SAMPLED_STEPS, rate=RATE, clip=CLIP, step_size=1e-12, momentum=0.0
    )
    return solver.configure(Instance(SQUARED, public, SAMPLED_BUDGET))


def sampled_log_ratios(relation, solver, copies, seed):
    """Log-likelihood ratios of the two mixtures: everybody but unit 0 is empty, and it may or may not be drawn."""
    pair = worst_pair(relation, n=N, others=0.0)
    spread = solver.noise_multiplier * pair[0].public.relation.factor  # deviation over C
    other = -1.0 if relation == "replace-one" else 0.0
    ratios = []
    for side, units in enumerate(pair):
        x = first_coordinates(solver, units, copies, seed + side) / (CLIP / (solver.rate * N))
        empty = (1 - solver.rate) * stats.norm.pdf(x, 0.0, spread)
        densities = [empty + solver.rate * stats.norm.pdf(x, at, spread) for at in (1.0, other)]
        ratios.append(np.sum(np.log(densities[0] / densities[1]), axis=1))
    return ratios


@pytest.mark.parametrize("relation", RELATIONS)
def test_the_attack_on_sampled_descent_reaches_the_claim_and_no_more(relation, evidence):
    solver = sampled_solver(relation)
    left, right = sampled_log_ratios(relation, solver, 50_000, seed=30)
    found, claim = counted_bound(left, right, SAMPLED_BUDGET), SAMPLED_BUDGET.epsilon
    assert 0.8 * claim <= found <= claim
    evidence("attacks", f"sampled descent, {relation}", tried=100_000, of="runs", largest=found, bound=claim)


@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize("mutation", ["less noise", "more often"])
def test_the_attack_notices_less_noise_and_larger_samples(relation, mutation):
    claimed = sampled_solver(relation)
    mutant = (
        replace(claimed, noise_multiplier=0.75 * claimed.noise_multiplier)
        if mutation == "less noise"
        else replace(claimed, rate=2 * RATE)
    )
    left, right = sampled_log_ratios(relation, mutant, 20_000, seed=40)
    assert counted_bound(left, right, SAMPLED_BUDGET) > SAMPLED_BUDGET.epsilon


@pytest.mark.parametrize("relation", RELATIONS)
def test_sampling_amplifies_only_while_the_sample_is_secret(relation):
    """The same noise with everybody taking part costs far more than is claimed for the sample, and it shows."""
    solver = sampled_solver(relation)
    everybody = replace(solver, rate=1.0)
    left, right = sampled_log_ratios(relation, everybody, 3_000, seed=50)
    assert counted_bound(left, right, SAMPLED_BUDGET) > 1.3 * SAMPLED_BUDGET.epsilon
    assert SAMPLED_BUDGET.epsilon < 0.5 * gaussian_epsilon(
        np.sqrt(SAMPLED_STEPS) / solver.noise_multiplier, SAMPLED_BUDGET.delta
    )
