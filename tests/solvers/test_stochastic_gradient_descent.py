"""Sampled descent: the noise it needs, its batches, and where it ends without noise."""

import numpy as np
import pytest

from privopt.curator.local import LocalCurator
from privopt.curator.replay import Replay
from privopt.data.units import Units
from privopt.ledger.amounts import Budget
from privopt.ledger.events import EveryUnit, FixedSize, GaussianEvent, Poisson, Repeated, SampledEvent
from privopt.ledger.ledger import Ledger
from privopt.mechanisms.noise import NoiseSource
from privopt.planning.coordinates import Coordinates
from privopt.planning.task import Instance
from privopt.problems import losses
from privopt.problems.problem import Problem
from privopt.problems.regularisers import L1, Ridge
from privopt.public import Public, Relation
from privopt.solvers.gradient_descent import GradientDescent
from privopt.solvers.stochastic_gradient_descent import StochasticGradientDescent

ADD, REPLACE = Relation.ADD_OR_REMOVE_ONE, Relation.REPLACE_ONE
LOGISTIC = Problem(losses.logistic, Ridge(0.1))


def toy_units(n=60, relation=REPLACE):
    generator = np.random.default_rng(0)
    rows = generator.normal(size=(n, 3))
    targets = np.where(rows @ [1.0, -2.0, 0.5] + generator.normal(size=n) > 0, 1.0, -1.0)
    return Units.from_arrays(rows, targets, row_bound=1.0, relation=relation, n=n)


def solve(solver, problem, units, budget, seed=1):
    ledger = Ledger(budget, units.public.relation, plan=solver.event(units.public))
    return solver.solve(LocalCurator(units, ledger, noise=NoiseSource(seed)), problem)


@pytest.mark.parametrize(
    ("rate", "steps", "epsilon", "relation", "noise_over_clip"),
    [(0.01, 1000, 1.0, ADD, 1.5698), (0.01, 1000, 1.0, REPLACE, 2.6919), (0.02, 600, 0.5, ADD, 4.0993)],
)
def test_the_noise_of_poisson_batches(rate, steps, epsilon, relation, noise_over_clip):
    public = Public(n=10_000, d=3, relation=relation)
    solver = StochasticGradientDescent(rate=rate, steps=steps).configure(
        Instance(LOGISTIC, public, Budget(epsilon, 1e-6))
    )
    assert solver.noise_multiplier * relation.factor == pytest.approx(noise_over_clip, rel=2e-3)


@pytest.mark.later("Relation.ADD_OR_REMOVE_ONE")
@pytest.mark.parametrize("relation", [ADD, REPLACE])
def test_the_rate_is_the_smallest_that_keeps_the_noise(relation):
    public, budget = Public(n=20_000, d=10, relation=relation), Budget(1.0, 1e-6)
    solver = StochasticGradientDescent().configure(Instance(LOGISTIC, public, budget))
    assert solver.noise_multiplier * relation.factor >= 1.5 * (1 - 1e-3)
    assert solver.rate >= 256 / 20_000
    if solver.rate > 256 / 20_000:
        rarer = StochasticGradientDescent(rate=solver.rate / 2, steps=solver.steps)
        assert rarer.configure(Instance(LOGISTIC, public, budget)).noise_multiplier * relation.factor < 1.5
    assert solver.step_size == pytest.approx(1.0 / 0.35)
    assert solver.momentum == 0.9


@pytest.mark.parametrize("sampler", ["poisson", "fixed-size"])
def test_less_than_one_unit_a_batch_is_refused(sampler):
    solver = StochasticGradientDescent(rate=0.009, steps=10, sampler=sampler)
    with pytest.raises(
        ValueError, match=r"less than one unit a batch: give a rate of at least 1 / n = 0\.01"
    ):
        solver.configure(Instance(LOGISTIC, Public(n=100, d=3), Budget(1.0, 1e-4)))


@pytest.mark.parametrize("rate", [0.0, -1.0, np.nan])
def test_a_rate_that_is_no_fraction_is_refused(rate):
    with pytest.raises(
        ValueError, match=r"rate must be above 0, got .*: it is q, the expected fraction of the units"
    ):
        StochasticGradientDescent(rate=rate, steps=10)


@pytest.mark.parametrize("sampler", ["poisson", "fixed-size"])
def test_who_takes_part(sampler):
    public = Public(n=100, d=3)

    def sampling(rate):
        return StochasticGradientDescent(rate=rate, sampler=sampler).sampling(public)

    assert sampling(1.0) == sampling(3.0) == EveryUnit()
    assert sampling(0.25) == (Poisson(0.25) if sampler == "poisson" else FixedSize(25, 100))


def test_batches_of_everybody_cost_what_descent_costs():
    public, budget = Public(n=100, d=3), Budget(1.0, 1e-4)
    solver = StochasticGradientDescent(rate=1.5, steps=30).configure(Instance(LOGISTIC, public, budget))
    full = GradientDescent(steps=30).configure(Instance(LOGISTIC, public, budget))
    assert solver.event(public) == full.event(public)
    assert solver.passes() == 30
    assert isinstance(solver.event(public).event, GaussianEvent)
    half = StochasticGradientDescent(rate=0.5, steps=30, noise_multiplier=5.0).event(public)
    assert isinstance(half, Repeated)
    assert isinstance(half.event, SampledEvent)


def test_batches_of_everybody_run_and_are_replayed():
    units, budget = toy_units(), Budget(2.0, 1e-4)
    solver = StochasticGradientDescent(rate=1.0, steps=9).configure(Instance(LOGISTIC, units.public, budget))
    result = solve(solver, LOGISTIC, units, budget)
    again = solver.solve(Replay(result.transcript, units.public), LOGISTIC)
    assert np.array_equal(again.params, result.params)
    assert result.transcript.releases == 9


@pytest.mark.at_once("ridge-0.9")
@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("regulariser", [Ridge(0.1), L1(0.03)], ids=["ridge", "l1"])
def test_without_noise_batches_of_everybody_end_at_the_optimum(momentum, regulariser):
    units, budget = toy_units(), Budget(np.inf, 1e-4)
    solver = StochasticGradientDescent(
        rate=1.0, steps=500, step_size=3.0, momentum=momentum, clip=np.inf, noise_multiplier=0.0
    )
    result = solve(solver, Problem(losses.logistic, regulariser), units, budget)
    w = np.asarray(result.params)
    rows, targets = np.asarray(units.private_features, np.float64), units.private_targets
    slope = rows.T @ (-targets / (1.0 + np.exp(targets * (rows @ w)))) / len(rows)
    if regulariser.is_smooth:
        np.testing.assert_allclose(slope, -0.1 * w, atol=1e-5)
    else:
        moving = w != 0
        np.testing.assert_allclose(slope[moving], -0.03 * np.sign(w[moving]), atol=1e-5)
        assert np.all(np.abs(slope[~moving]) <= 0.03 + 1e-5)


@pytest.mark.audit
def test_without_noise_a_batch_is_an_unbiased_sample():
    """The step's mean over many draws is the gradient: sums are divided by the expected number of units."""
    units, budget = toy_units(), Budget(np.inf, 1e-4)
    rows, targets = np.asarray(units.private_features, np.float64), units.private_targets
    gradient = rows.T @ (-0.5 * targets) / len(rows)
    for sampler in ("poisson", "fixed-size"):
        solver = StochasticGradientDescent(
            rate=0.2, sampler=sampler, steps=1, step_size=1.0, clip=np.inf, noise_multiplier=0.0, momentum=0.0
        )
        moved = [
            -np.asarray(solve(solver, Problem(losses.logistic), units, budget, seed).params)
            for seed in range(80)
        ]
        error = np.std(moved, axis=0) / np.sqrt(len(moved))
        assert np.all(np.abs(np.mean(moved, axis=0) - gradient) < 4.5 * error)


def test_other_coordinates_change_lengths_and_no_price():
    units, budget = toy_units(200), Budget(2.0, 1e-4)
    stretch = np.diag([2.0, 1.0, 0.5])
    coordinates = Coordinates(
        matrix=stretch, stretch=2.0, clip=1.2, smoothness=0.4, ridge_smoothness=0.4, momentum=0.5
    )
    solver = StochasticGradientDescent(rate=0.2, steps=20).configure(Instance(LOGISTIC, units.public, budget))
    there = solver.in_coordinates(coordinates)
    assert (there.clip, there.step_size, there.momentum) == (1.2, pytest.approx(1.25), 0.9)
    assert there.event(units.public) == solver.event(units.public)
    ledger = Ledger(budget, "replace-one", plan=solver.event(units.public))
    result = _run_in(there, LocalCurator(units, ledger, noise=NoiseSource(1)), coordinates)
    assert np.all(np.isfinite(result))


def _run_in(solver, curator, coordinates):
    from privopt.precision import double_precision

    with double_precision():
        params, *_ = solver.run_in(curator, LOGISTIC, np.zeros(3), coordinates)
    return np.asarray(params)


def test_a_step_size_beyond_the_limit_of_heavy_ball_is_called_too_large():
    public, budget = Public(n=1_000, d=3), Budget(1.0, 1e-4)
    for step_size, expected in ((10.8, False), (10.9, True)):  # 2 (1 + 0.9) / (0.25 + 0.1)
        solver = StochasticGradientDescent(rate=0.5, steps=5, step_size=step_size, noise_multiplier=9.0)
        instance = Instance(LOGISTIC, public, budget)
        notices = solver.configure(instance).forecast(instance).notices
        assert bool(notices) is expected
