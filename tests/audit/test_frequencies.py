"""What the curator draws, counted: noise tails against delta, who is sampled, who shares a block."""

import math

import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats
from tests.support.worst_pair import worst_pair

from privopt.curator import loops, scan
from privopt.curator.local import LocalCurator
from privopt.data.units import Units
from privopt.engine.in_process import InProcessEngine
from privopt.ledger.amounts import Budget
from privopt.ledger.curves import gaussian_delta, gaussian_epsilon, gaussian_mu
from privopt.ledger.events import FixedSize, Poisson
from privopt.ledger.ledger import Ledger
from privopt.ledger.payer import Unlimited
from privopt.mechanisms.additive import Gaussian, Laplace
from privopt.mechanisms.base import noise_exponent
from privopt.mechanisms.noise import NoiseSource
from privopt.planning.task import Instance
from privopt.precision import double_precision
from privopt.problems import losses
from privopt.problems.problem import Problem
from privopt.queries.slopes import ClippedGradient
from privopt.solvers.gradient_descent import GradientDescent

pytestmark = pytest.mark.audit

LEVEL = 1e-5  # a fixed seed is judged once
RELATIONS = ["replace-one", "add-or-remove-one"]


@pytest.fixture(autouse=True)
def x64():
    with double_precision():
        yield


# Noise ---------------------------------------------------------------------------------------------------------------


def wide_units(width):
    return Units.from_arrays(np.zeros((8, width)), np.ones(8), row_bound=1.0)


def released_noise(how, width, releases, multiplier):
    """(releases, width) noise over sensitivity of a zero gradient, through the eager or the compiled curator."""
    units = wide_units(width)
    curator = LocalCurator(units, Unlimited("replace-one"), noise=NoiseSource(60))
    query = ClippedGradient(loss=losses.logistic, at=jnp.zeros(width), clip=0.3)
    if how == "eager":
        for _ in range(releases):
            curator.release(query, Gaussian(multiplier))
    else:
        sampling = Poisson(0.5)
        curator.iterate(
            lambda state, release: state + release(query, Gaussian(multiplier), sampling),
            jnp.zeros(width),
            releases,
        )
    return np.concatenate([r.released / r.sensitivity[:, None] for r in curator.transcript])


@pytest.mark.parametrize("how", ["eager", "compiled"])
def test_the_tails_of_released_noise_weigh_what_delta_counts_on(how):
    multiplier = 3.0
    noise = released_noise(how, 20_000, 400, multiplier)
    flat = noise.reshape(-1)
    for delta in (1e-2, 1e-4, 1e-5):
        # The event on which the claim is tight: the log-likelihood ratio of a unit's shift exceeds epsilon.
        mu = 1 / multiplier
        threshold = gaussian_epsilon(mu, delta) * multiplier**2 + 0.5
        moved, still = (int(np.sum(flat + shift > threshold)) for shift in (1.0, 0.0))
        for count, mass in (
            (moved, stats.norm.sf((threshold - 1) / multiplier)),
            (still, stats.norm.sf(threshold / multiplier)),
        ):
            assert stats.binomtest(count, flat.size, mass).pvalue > LEVEL
        exceeded = moved / flat.size - math.exp(gaussian_epsilon(mu, delta)) * still / flat.size
        spread = math.sqrt(stats.norm.sf((threshold - 1) / multiplier) / flat.size)
        assert abs(exceeded - gaussian_delta(mu, gaussian_epsilon(mu, delta))) < 8 * spread
    assert np.max(np.abs(flat)) > 5.0 * multiplier  # 8 million draws: float32 samplers stop near 5.4
    # On the lattice two of m draws meet by chance alone: a standard deviation is 2^t spacings, t = 32 for 3.
    expected = flat.size**2 / (4.0 * math.sqrt(math.pi) * 2.0 ** noise_exponent(multiplier))
    assert abs(flat.size - len(np.unique(flat)) - expected) < 6.0 * math.sqrt(expected)
    for column in (0, 1, 10_000, -2, -1):
        assert stats.kstest(noise[:, column] / multiplier, "norm").pvalue > LEVEL
    means, spreads = noise.mean(axis=0) / multiplier, noise.var(axis=0) / multiplier**2
    assert stats.kstest(means * math.sqrt(len(noise)), "norm").pvalue > LEVEL  # every coordinate
    assert stats.kstest(spreads * len(noise), stats.chi2(len(noise) - 1).cdf).pvalue > LEVEL
    neighbours = np.sum(noise[:, 1:] * noise[:, :-1]) / multiplier**2 / math.sqrt(noise[:, 1:].size)
    later = np.sum(noise[1:] * noise[:-1]) / multiplier**2 / math.sqrt(noise[1:].size)
    assert max(abs(neighbours), abs(later)) < 4.5


@pytest.mark.parametrize("mechanism", [Gaussian(2.0), Laplace(2.0)], ids=["Gaussian", "Laplace"])
def test_released_scalars_have_the_stated_scale(mechanism):
    curator = LocalCurator(wide_units(1), Unlimited("replace-one"), noise=NoiseSource(61))
    query = ClippedGradient(loss=losses.logistic, at=jnp.zeros(1), clip=0.3)
    value = np.zeros(20_000)
    law = stats.norm if isinstance(mechanism, Gaussian) else stats.laplace
    sensitivity = float(curator._sensitivity(query, Poisson(1.0)))
    noise = np.array([mechanism.release(curator._noise, v, sensitivity) for v in value]) / sensitivity
    assert stats.kstest(noise / 2.0, law.cdf).pvalue > LEVEL
    for wrong in (2 / 3, 3 / 2):
        assert stats.kstest(noise / 2.0 / wrong, law.cdf).pvalue < LEVEL


# Who takes part ------------------------------------------------------------------------------------------------------


def draws(how, sampling, times, n=25):
    """(times, n) indicators of who was drawn, by the engine or for a compiled loop."""
    units = Units.from_arrays(np.ones((n, 2)), np.ones(n), row_bound=1.0)
    engine, noise = InProcessEngine(units), NoiseSource(62)
    drawn = np.zeros((times, n), bool)
    if how == "eager":
        for t in range(times):
            drawn[t, engine.draw(sampling, noise.units_generator)] = True
        return drawn
    slot = loops.Slot("gradient", ClippedGradient, Gaussian(1.0), sampling, (2,))
    capacity = scan._capacity(sampling, n, times)
    (indices,), _, _ = scan.SecretDraws(noise, engine, {}).stretch([slot], times, times, [capacity])
    for t in range(times):
        inside = indices[t][indices[t] < n]
        assert len(np.unique(inside)) == len(inside)
        drawn[t, inside] = True
    return drawn


@pytest.mark.parametrize("how", ["eager", "compiled"])
@pytest.mark.parametrize("sampling", [Poisson(0.2), Poisson(0.9), FixedSize(6, 25)], ids=str)
def test_units_are_drawn_as_often_as_is_priced(how, sampling):
    times, n = 40_000, 25
    drawn = draws(how, sampling, times)
    rate = sampling.rate
    fixed = isinstance(sampling, FixedSize)
    together = rate * (sampling.batch - 1) / (n - 1) if fixed else rate**2
    counts = drawn.sum(axis=0)
    assert min(stats.binomtest(int(c), times, rate).pvalue for c in counts) > LEVEL / n
    pairs = (drawn.T.astype(float) @ drawn)[np.triu_indices(n, 1)]
    assert min(stats.binomtest(int(c), times, together).pvalue for c in pairs) > LEVEL / len(pairs)
    sizes = np.bincount(drawn.sum(axis=1), minlength=n + 1)
    if fixed:
        assert sizes[sampling.batch] == times
    else:
        expected = stats.binom.pmf(np.arange(n + 1), n, rate) * times
        usual = expected >= 5
        statistic = np.sum((sizes[usual] - expected[usual]) ** 2 / expected[usual])
        assert stats.chi2.sf(statistic, usual.sum()) > LEVEL
    # One draw says nothing about the next.
    repeated = np.sum(drawn[1:] & drawn[:-1], axis=0)
    assert min(stats.binomtest(int(c), times - 1, rate**2).pvalue for c in repeated) > LEVEL / n / 10


@pytest.mark.parametrize("relation", RELATIONS)
def test_units_join_blocks_evenly(relation):
    n, count, times = 12, 3, 6_000
    units = Units.from_arrays(
        np.eye(n), np.ones(n), relation=relation, row_bound=1.0, n=n
    )  # a row names its unit
    joined = np.zeros((times, n), int)
    noise = NoiseSource(63)
    for t in range(times):
        curator = LocalCurator(units, Unlimited(relation), noise=noise)
        for index, block in enumerate(curator.blocks(count)):
            members = np.asarray(block.private_engine.units.private_features).argmax(axis=1)
            joined[t, members] = index + 1
    assert np.all(joined > 0)
    for index in range(1, count + 1):
        frequencies = (joined == index).sum(axis=0)
        assert min(stats.binomtest(int(c), times, 1 / count).pvalue for c in frequencies) > LEVEL / n
    same = np.sum(joined[:, 0] == joined[:, 1])
    expected = 1 / count if relation == "add-or-remove-one" else (n / count - 1) / (n - 1)
    assert stats.binomtest(int(same), times, expected).pvalue > LEVEL


# The whole price -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize("budget", [Budget(0.1, 1e-9), Budget(1.0, 1e-6), Budget(8.0, 1e-3)], ids=str)
def test_the_total_mu_of_a_run_is_the_calibrated_one(relation, budget):
    units = worst_pair(relation, n=16, others=1.0)[0]
    solver = GradientDescent(steps=17).configure(Instance(Problem(losses.logistic), units.public, budget))
    ledger = Ledger(budget, relation, plan=solver.event(units.public))
    result = solver.solve(LocalCurator(units, ledger), Problem(losses.logistic))
    ratios = np.concatenate([release.sensitivity / release.scale for release in result.transcript])
    total = math.sqrt(math.fsum(ratios**2))
    assert len(ratios) == 17
    assert total == pytest.approx(math.sqrt(17) / solver.noise_multiplier, rel=1e-10)
    assert gaussian_epsilon(total, budget.delta) == pytest.approx(budget.epsilon * (1 - 1e-8), rel=2e-9)
    assert gaussian_epsilon(total, budget.delta) <= budget.epsilon
    assert total == pytest.approx(gaussian_mu(budget.epsilon * (1 - 1e-8), budget.delta), rel=2e-9)
    assert result.transcript.epsilon(budget.delta) <= budget.epsilon
