"""Descent with correlated noise: against a plain reference, its price, its noise, and what it refuses."""

import jax.numpy as jnp
import numpy as np
import pytest

import privopt
from privopt.curator.local import LocalCurator
from privopt.data.units import Units
from privopt.ledger.amounts import Budget
from privopt.ledger.events import GaussianEvent
from privopt.ledger.ledger import Ledger
from privopt.mechanisms.additive import Gaussian
from privopt.mechanisms.noise import NoiseSource
from privopt.mechanisms.strategies import prefix_map
from privopt.planning.task import Instance
from privopt.precision import double_precision
from privopt.problems import losses
from privopt.problems.problem import Problem
from privopt.problems.regularisers import L1, Ridge
from privopt.public import Public, Relation
from privopt.queries.slopes import ClippedGradient
from privopt.solvers.correlated_noise_descent import CorrelatedNoiseDescent
from privopt.solvers.registry import SOLVERS

ADD, REPLACE = Relation.ADD_OR_REMOVE_ONE, Relation.REPLACE_ONE
NO_PRIVACY = Budget(np.inf, 1e-6)
STRATEGIES = ("bands", "square-root", "optimum", "tree", "independent")


def toy_units(n=60, relation=REPLACE):
    generator = np.random.default_rng(0)
    rows = generator.normal(size=(n, 3))
    targets = np.where(rows @ [1.0, -2.0, 0.5] + generator.normal(size=n) > 0, 1.0, -1.0)
    rows /= np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1.0)
    return (
        rows,
        targets,
        Units.from_arrays(rows, targets, row_bound=1.0, relation=relation, n=n, storage="float64"),
    )


def solve(solver, problem, units, budget, seed=1):
    ledger = Ledger(budget, units.public.relation, plan=solver.event(units.public))
    return solver.solve(LocalCurator(units, ledger, noise=NoiseSource(seed)), problem)


def reference(rows, targets, solver, noise, ridge=0.0, l1=0.0):
    """Algorithm 1 of Kairouz et al. with momentum and an average, on blocks in order, from the paper."""
    blocks = np.array_split(np.arange(len(rows)), solver.blocks)
    x = u = average = np.zeros(rows.shape[1])
    total, before, weights = np.zeros_like(x), np.zeros_like(x), 0.0
    for t in range(solver.epochs * solver.blocks):
        block = blocks[t % solver.blocks]
        slopes = -targets[block] / (1.0 + np.exp(targets[block] * (rows[block] @ u)))
        gradients = slopes[:, None] * rows[block]
        gradients *= np.minimum(1.0, solver.clip / np.linalg.norm(gradients, axis=1))[:, None]
        total = total + gradients.sum(axis=0) / len(block)
        released = total + noise[t]
        moved = u - solver.step_size * (released - before + ridge * u)
        moved = np.sign(moved) * np.maximum(np.abs(moved) - solver.step_size * l1, 0.0)
        x, u, before = moved, moved + solver.momentum * (moved - x), released
        weights += (t + 1.0) ** 2
        average = average + (t + 1.0) ** 2 / weights * (x - average)
    return average if solver.returns == "weighted" else x


@pytest.mark.parametrize(
    ("returns", "penalty", "strengths"),
    [
        ("weighted", Ridge(0.05), {"ridge": 0.05}),
        pytest.param("last", L1(0.01), {"l1": 0.01}, marks=pytest.mark.audit),
    ],
)
def test_without_noise_it_is_the_algorithm(returns, penalty, strengths):
    rows, targets, units = toy_units(61)
    solver = CorrelatedNoiseDescent(
        epochs=3,
        blocks=4,
        clip=0.4,
        step_size=2.0,
        momentum=0.6,
        in_order=True,
        returns=returns,
        noise_multiplier=0.0,
    )
    result = solve(solver, Problem(losses.logistic, penalty), units, NO_PRIVACY)
    expected = reference(rows, targets, solver, np.zeros((12, 3)), **strengths)
    np.testing.assert_allclose(result.params, expected, rtol=1e-9, atol=1e-12)
    assert result.pictures == ()


@pytest.mark.at_once("optimum")
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_with_the_recorded_noise_it_is_the_algorithm(strategy):
    """The released sums are the exact ones with noise of the strategy's covariance, and lead to the same point."""
    rows, targets, units = toy_units(60)
    solver = CorrelatedNoiseDescent(
        epochs=2,
        blocks=4,
        clip=0.4,
        step_size=2.0,
        momentum=0.6,
        strategy=strategy,
        in_order=True,
        noise_multiplier=2.0,
    )
    result = solve(solver, Problem(losses.logistic), units, Budget(1e3, 1e-6))
    sums = result.transcript[-1]
    normal = NoiseSource(1).rounded_normal((8, 3), 45) * 2.0**-45
    noise = 2.0 * prefix_map(solver.stream().strategy, sums.sensitivity) @ normal
    np.testing.assert_allclose(result.params, reference(rows, targets, solver, noise), rtol=1e-6, atol=1e-8)
    (picture,) = result.pictures
    np.testing.assert_allclose(picture.series[0].ys, sums.scale)
    if strategy == "independent":
        np.testing.assert_allclose(picture.series[1].ys, sums.scale)
    else:
        assert picture.series[0].ys[-1] != pytest.approx(picture.series[1].ys[-1], rel=0.05)


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("epochs", [1, 3])
def test_the_price_is_one_gaussian_release_whatever_the_strategy(strategy, epochs):
    public, budget = Public(n=2_000, d=5, relation=REPLACE), Budget(1.0, 1e-6)
    solver = CorrelatedNoiseDescent(epochs=epochs, blocks=8, strategy=strategy).configure(
        Instance(Problem(losses.logistic), public, budget)
    )
    assert 1.0 / solver.noise_multiplier == pytest.approx(0.236704380663, rel=1e-3)
    assert 1.0 / solver.noise_multiplier <= 0.236704380663
    assert solver.stream().event() == GaussianEvent(solver.noise_multiplier)
    assert solver.stream().event() in solver.event(public).events
    assert solver.stream().participation.most == epochs


def test_blocks_in_order_are_slices_and_need_records_that_stay():
    rows, targets, units = toy_units(60)
    curator = LocalCurator(units, Ledger(NO_PRIVACY, "replace-one"), noise=NoiseSource(4))
    with double_precision():
        query = ClippedGradient(loss=losses.logistic, at=np.zeros(3), clip=5.0)
        means = [block.release(query, Gaussian(0.0)) for block in curator.blocks(3, in_order=True)]
        at_random = [block.release(query, Gaussian(0.0)) for block in curator.blocks(3)]
    expected = -0.5 * (rows * targets[:, None]).reshape(3, 20, 3).mean(axis=1)
    np.testing.assert_allclose(np.stack(means), expected, rtol=1e-9)
    assert not np.allclose(np.stack(at_random), expected)
    ordered = CorrelatedNoiseDescent(in_order=True)
    for public in (Public(n=60, d=3, relation=ADD), Public(n=60, d=3, relation=REPLACE, unit="user")):
        with pytest.raises(ValueError, match="blocks in order need records under replace-one"):
            ordered.configure(Instance(Problem(losses.logistic), public, Budget(1.0, 1e-6)))
    curator = LocalCurator(toy_units(relation=ADD)[2], Ledger(Budget(1.0, 1e-6), "add-or-remove-one"))
    with pytest.raises(ValueError, match="blocks in order need records under replace-one"):
        curator.blocks(2, in_order=True)


def test_blocks_of_fewer_than_two_units_are_refused_before_anything_is_spent():
    public = Public(n=30, d=3, relation=REPLACE)
    with pytest.raises(ValueError, match="16 blocks of n = 30 units would have fewer than 2 units each"):
        CorrelatedNoiseDescent(blocks=16).configure(
            Instance(Problem(losses.logistic), public, Budget(1.0, 1e-6))
        )


def test_an_optimum_of_too_many_steps_is_refused_before_anything_is_spent():
    public = Public(n=2_000, d=3, relation=REPLACE)
    solver = CorrelatedNoiseDescent(epochs=2, blocks=257, strategy="optimum")
    with pytest.raises(ValueError, match="for at most 512 steps, and epochs x blocks are 514"):
        solver.configure(Instance(Problem(losses.logistic), public, Budget(1.0, 1e-6)))


def test_the_defaults_are_public_and_grow_with_the_signal():
    problem, blocks = Problem(losses.logistic), []
    for epsilon in (0.1, 1.0, 10.0):
        instance = Instance(problem, Public(n=32_561, d=109, relation=REPLACE), Budget(epsilon, 1e-6))
        solver = CorrelatedNoiseDescent().configure(instance)
        assert solver.epochs == 8
        assert (solver.step_size, solver.clip) == (5.0, 0.8)
        assert 0.0 < solver.momentum < 1.0
        blocks.append(solver.blocks)
    assert blocks == sorted(blocks)
    assert blocks[0] < blocks[-1]
    once = CorrelatedNoiseDescent(epochs=1).configure(instance)
    assert once.blocks > 2 * blocks[-1]
    small = Instance(problem, Public(n=50, d=3, relation=REPLACE), Budget(10.0, 1e-6))
    assert CorrelatedNoiseDescent().configure(small).blocks <= 2


def test_without_privacy_it_converges_by_name():
    rows, targets, units = toy_units(200)
    problem = Problem(losses.logistic, Ridge(0.1))
    assert type(SOLVERS["correlated-noise-descent"]()) is CorrelatedNoiseDescent
    found = privopt.minimize(
        problem, units, budget=NO_PRIVACY, solver="correlated-noise-descent", random_state=0
    )
    gradient = -(
        rows * (targets / (1.0 + np.exp(targets * (rows @ np.asarray(found.params)))))[:, None]
    ).mean(axis=0)
    assert np.linalg.norm(gradient + 0.1 * np.asarray(found.params)) < 1e-3


@pytest.mark.audit
def test_a_loss_of_ones_own_is_fitted_with_its_notice():
    rows, targets, units = toy_units(400)

    def own(params, features, target):
        return jnp.log1p(jnp.exp(-target * jnp.dot(features, params)))

    instance = Instance(
        Problem(losses.RecordLoss(own)), Public(n=400, d=3, relation=REPLACE), Budget(1.0, 1e-4)
    )
    plan = CorrelatedNoiseDescent().plan(instance)
    assert any("guesses from the row bound" in notice for notice in plan.notices)
    solver = CorrelatedNoiseDescent(epochs=2, blocks=5)
    found = privopt.minimize(
        own, units, budget=Budget(8.0, 1e-4), start=np.zeros(3), solver=solver, random_state=0
    )
    assert found.transcript.epsilon(1e-4) <= 8.0 * (1 + 1e-9)
    assert np.mean(np.log1p(np.exp(-targets * (rows @ np.asarray(found.params))))) < np.log(2.0)
