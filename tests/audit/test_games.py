"""How far solvers of games end from a saddle point, and how that falls: generated games of the benchmark."""

import itertools
import math

import numpy as np
import pytest
from benchmarks.games import generated

from privopt.curator.local import LocalCurator
from privopt.games.dual_averaging import NoisyExponentiatedGradient, SampledDualAveraging
from privopt.games.gradients import Drawn
from privopt.ledger.amounts import Budget
from privopt.ledger.payer import Unlimited
from privopt.mechanisms.noise import NoiseSource
from privopt.papers.saddle_mirror_descent import SaddleMirrorDescent
from privopt.planning.task import Task

pytestmark = pytest.mark.audit
BUDGET = Budget(1.0, 1e-6)


def mean_gap(games, solver, budget=BUDGET):
    """The mean over games, each with a seed of its own."""
    gaps = []
    for seed, made in enumerate(games):
        configured = solver.configure(Task(made.game, made.units.public, budget))
        curator = LocalCurator(
            made.units, Unlimited(made.units.public.relation), noise=NoiseSource(seed + 100)
        )
        gaps.append(made.gap(*configured.solve(curator, made.game).params))
    return float(np.mean(gaps))


@pytest.fixture(scope="module")
def large():
    return [generated(20_000, 300, seed) for seed in range(3)]


def test_three_hundred_actions_end_near_the_saddle_point(large):
    ours = mean_gap(large, SampledDualAveraging())
    assert 0.008 <= ours <= 0.025
    assert mean_gap(large, NoisyExponentiatedGradient()) >= 1.5 * ours
    paper = SaddleMirrorDescent(schedule="paper", output="fresh", calibration="paper", steps=12, draws=1)
    assert mean_gap(large, paper) >= 8.0 * ours


def test_full_batches_are_better_than_one_pass(large):
    full = mean_gap(large, SampledDualAveraging())
    assert full <= mean_gap(large, SampledDualAveraging(batches="one pass"))


def test_the_gap_falls_with_the_root_of_the_number_of_units():
    sizes = (1250, 5000, 20_000, 80_000)
    gaps = [mean_gap([generated(n, 60, seed) for seed in range(4)], SampledDualAveraging()) for n in sizes]
    slope = np.polyfit(np.log(sizes), np.log(gaps), 1)[0]
    assert -0.65 <= slope <= -0.42


def test_at_a_large_budget_the_rule_for_draws_is_not_worse_than_one():
    games = [generated(20_000, 60, seed) for seed in range(3)]
    rich = Budget(10.0, 1e-6)
    once = Drawn(draws=1)
    ruled = mean_gap(games, SampledDualAveraging(steps=300), rich)
    assert ruled <= 1.05 * mean_gap(games, SampledDualAveraging(steps=300, x=once, y=once), rich)


def test_twice_the_draws_halve_what_playing_draws_costs():
    """E <grad F(h), h - z> for h the average of K draws from z, F a sum of logistic losses: Theorem A's second term."""
    rng = np.random.default_rng(0)
    rows = 3.0 * rng.choice([-1.0, 1.0], (12, 6))
    z = rng.dirichlet(np.ones(6))

    def cost(draws):
        drawn = rng.multinomial(draws, z, size=200_000) / draws
        slopes = (1.0 / (1.0 + np.exp(-drawn @ rows.T))) @ rows / len(rows)
        return float(np.mean(np.sum(slopes * (drawn - z), axis=1)))

    costs = [cost(draws) for draws in (4, 8, 16)]
    for more, less in itertools.pairwise(costs):
        assert math.isclose(more / less, 2.0, rel_tol=0.2)
