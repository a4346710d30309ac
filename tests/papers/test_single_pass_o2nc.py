"""Reference runs of single-pass O2NC, and what its file promises."""

import math
from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
import pytest
from tests.reference.promises import (
    assert_costs,
    assert_rehearses,
    assert_replays,
    hostile_rows,
    largest_move,
)
from tests.support.formula_noise import FormulaNoise, silence
from tests.support.nonsmooth_reference import ReluAbsolute, formula, reference_rows

from privopt.curator.local import LocalCurator
from privopt.data.units import Units
from privopt.ledger.amounts import Budget
from privopt.ledger.curves import gaussian_epsilon
from privopt.ledger.ledger import Ledger
from privopt.mechanisms.noise import NoiseSource
from privopt.mechanisms.strategies import prefix_noise
from privopt.papers.single_pass_o2nc import SinglePassO2NC
from privopt.planning.task import Instance
from privopt.precision import double_precision
from privopt.problems.black_box import BlackBox
from privopt.problems.problem import Problem

CLOSE = {"rtol": 0, "atol": 1e-8}
BUDGET = Budget(1.0, 1e-6)


@dataclass(frozen=True)
class SmoothedReluAbsolute(ReluAbsolute):
    """Averaged over the ball of radius 0.2 in three dimensions, for rows of norm 1."""

    def slope(self, prediction, target):
        def below(level):
            t = jnp.clip((level - prediction) / 0.2, -1.0, 1.0)
            return 0.5 + (3.0 * t - t**3) / 4.0

        return 1.0 - 2.0 * below(target) + below(0.0)


PROBLEM = Problem(SmoothedReluAbsolute())
REFERENCE = {
    "steps": 8,
    "window": 4,
    "variance_reduction": True,
    "period": 4,
    "share": 0.4,
    "estimate": "plain",
    "mode": "guarantee",
    "radius": 0.125,
    "step_size": 0.1,
    "clip": 1.0,
    "slope_clip": 1e3,
    "smoothing": 0.2,
}


@pytest.fixture(autouse=True)
def in_double_precision():
    with double_precision():
        yield


def units_of(count=40, relation="replace-one"):
    rows, targets = reference_rows()
    return Units.from_arrays(
        rows[:count], targets[:count], row_bound=1.0 + 1e-6, storage="float64", relation=relation, n=count
    )


def configured(units, problem=PROBLEM, noise_multiplier=3.0, **settings):
    settings = {**REFERENCE, "noise_multiplier": noise_multiplier, **settings}
    return SinglePassO2NC(**settings).filled(Instance(problem, units.public, BUDGET))


def run(solver, units, noise=None, problem=PROBLEM):
    ledger = Ledger(
        Budget(1e6, 1e-6) if solver.noise_multiplier else Budget(math.inf, 1e-6),
        units.public.relation,
        plan=solver.event(units.public),
    )
    curator = LocalCurator(units, ledger, noise=noise or FormulaNoise(formula))
    return solver.solve(curator, problem)


def sums_of(result):
    return [release for release in result.transcript if release.name == "PrefixSum.add"]


@pytest.mark.parametrize(
    ("count", "steps", "expected"),
    [
        (20, 4, [0.0068227029, 0.0004857898, 0.0074720191]),
        (40, 8, [0.0779959272, 0.0065900437, 0.0804736577]),
    ],
)
def test_the_reference_run_without_noise(count, steps, expected):
    units = units_of(count)
    solver = configured(units, noise_multiplier=0.0, steps=steps)
    assert solver.batches(count)[:4] == [8, 4, 4, 4]
    np.testing.assert_allclose(run(solver, units, FormulaNoise(silence)).params, expected, **CLOSE)


@pytest.mark.parametrize(
    ("count", "steps", "expected"),
    [
        (20, 4, [0.0141887370, -0.0041860683, 0.0039183638]),
        (40, 8, [0.1099766627, -0.0321810421, 0.0753279363]),
    ],
)
def test_the_reference_run_with_noise_on_every_sum(count, steps, expected):
    """The noise 0.05 cos(t + 2 j) on a period's sums, carried back through strategy and sensitivities."""
    units = units_of(count)
    solver = configured(units, steps=steps)
    t, j = np.arange(1, steps + 1)[:, None], np.arange(1, 4)[None, :]
    on_sums = 0.05 * np.cos(t + 2 * j)
    on_items = on_sums - np.where((t - 1) % 4 == 0, 0.0, np.roll(on_sums, 1, axis=0))
    clips = np.where(np.arange(steps) % 4 == 0, 1.0, 2.0)  # a change is at most 2 C long here
    scales = 3.0 * 2.0 * clips / solver.batches(count)
    draws = solver.stream(count, 3).strategy.dense() @ (on_items / scales[:, None])
    result = run(solver, units, FormulaNoise(lambda k, shape: draws[k]))
    np.testing.assert_allclose(result.params, expected, **CLOSE)


@pytest.mark.at_once("8")
@pytest.mark.parametrize("period", [1, 2, 3, 5, 8])
def test_every_sum_of_every_period_carries_noise(period):
    """With independent unit vectors for normals: the covariance of the sums is B B^T, and no sum repeats another's."""
    units = Units.from_arrays(np.zeros((60, 3)), np.zeros(60), row_bound=1.0, storage="float64")
    solver = configured(units, period=period, steps=10, window=5, noise_multiplier=2.0, share=0.5)
    strategy = solver.stream(60, 3).strategy.dense() if period > 1 else np.eye(10)
    norms = np.linalg.norm(strategy, axis=0)
    assert np.all((norms > 1 - 2e-4) & (norms <= 1))  # entries have 14 bits
    found = []
    for turn in range(4):  # changes are clipped by realised distances: every run has sensitivities of its own
        unit = np.eye(10, 12)[:, 3 * turn : 3 * turn + 3]
        result = run(solver, units, FormulaNoise(lambda k, shape, unit=unit: unit[k]))
        released = [entry for entry in result.transcript if len(entry.sensitivity)]
        sensitivities = np.array([float(entry.sensitivity[0]) for entry in released])
        noise = 2.0 * sensitivities[:, None] * np.linalg.inv(strategy)  # of the items
        if period > 1:
            noise = np.cumsum(noise, axis=0)
            scales = [float(entry.scale[0]) for entry in sums_of(result)]
            np.testing.assert_allclose(scales, np.linalg.norm(noise, axis=1), rtol=1e-10)
        values = np.array([entry.released[0] for entry in released])
        np.testing.assert_allclose(values, (noise @ unit[:10]), atol=1e-12)
        found.append((noise, int(np.sum(sensitivities > 0))))
    assert max(items for _, items in found) == 10
    for noise, items in found:  # a change between equal points is nothing, and enters without noise
        starts = np.arange(10) // period * period
        gradients = noise - np.where(starts[:, None] > 0, noise[starts - 1], 0.0) if period > 1 else noise
        assert np.all(np.linalg.norm(gradients, axis=1) > 0.01)
        assert np.linalg.matrix_rank(noise) == items  # equal rows would release an item exactly


def test_the_noise_of_a_period_is_the_one_of_the_block_strategy():
    """Items of sensitivities 0.02 and 0.005 in a period of eight, mu = 1/2; columns of norm 1 leave a little less."""
    expected = [0.04, 0.0420410519, 0.0425360148, 0.0428119168, 0.0430024739, 0.0431478004, 0.0432651570]
    units = units_of()
    solver = configured(units, period=8, strategy="blocks", noise_multiplier=2.0, share=0.5)
    one = solver.period_strategy(40, 3, 8)
    found = 2.0 * prefix_noise(one, np.append(0.02, np.full(7, 0.005)))
    assert found[0] == pytest.approx(0.04, abs=1e-12)
    assert np.all(found[1:7] <= np.array(expected[1:]) + 1e-10)
    assert np.all(found[1:7] >= np.array(expected[1:]) - 5e-4)
    best = configured(units, period=8, share=0.5)
    weights = best.relative_sensitivities(40, 3, 8)
    optimum = prefix_noise(best.period_strategy(40, 3, 8), weights)
    assert np.mean(optimum**2) < np.mean(prefix_noise(one, weights) ** 2)


@pytest.mark.parametrize("relation", ["replace-one", "add-or-remove-one"])
@pytest.mark.parametrize("reduced", [True, False])
def test_replay_and_price(relation, reduced):
    units = units_of(relation=relation)
    solver = configured(
        units, variance_reduction=reduced, period=4 if reduced else 1, places="uniform", slope_clip=1.0
    )
    plan = solver.event(units.public)
    result = run(solver, units, NoiseSource(3))
    program = lambda curator: solver.solve(curator, PROBLEM)  # noqa: E731
    assert_replays(program, result, units.public)
    assert_costs(result, plan, units.public)
    assert_rehearses(program, plan, units.public)
    assert result.transcript.epsilon(1e-6) == pytest.approx(gaussian_epsilon(1 / 3, 1e-6), rel=1e-10)


@pytest.mark.parametrize("kind", ["turned", "huge", "not a number", "infinite"])
def test_no_record_moves_an_item_by_more_than_its_sensitivity(kind):
    rows, targets = reference_rows()
    other = rows.copy()
    other[7] = hostile_rows(rows[3])[kind]
    left, right = (
        Units.from_arrays(x, targets, row_bound=1.0 + 1e-6, storage="float64") for x in (rows, other)
    )
    solver = configured(left, clip=0.4, slope_clip=1.0)
    program = lambda curator: solver.solve(curator, PROBLEM)  # noqa: E731
    assert largest_move(program, left, right, plan=solver.event(left.public)) <= 1.0


def test_changes_are_clipped_by_the_distance_that_was_released():
    units = units_of()
    solver = configured(units, slope_clip=1.5)
    sums = sums_of(run(solver, units))
    sensitivities = np.array([float(entry.sensitivity[0]) for entry in sums])
    sizes = solver.batches(40)
    longest = 2.0 * 1.5 * 0.05 / sizes[1]
    later = np.arange(8) % 4 != 0
    assert np.all(sensitivities[later] <= longest * (1 + 1e-9))
    assert np.std(sensitivities[later]) > 0
    np.testing.assert_allclose(sensitivities[~later], 2.0 / sizes[0], rtol=1e-9)


def by_hand(params, features, target):
    """The loss of the reference as a black box: a Python function of one record."""
    return abs(max(float(features @ params), 0.0) - target)


@pytest.mark.later("True")
@pytest.mark.parametrize("reduced", [True, pytest.param(False, marks=pytest.mark.audit)])
def test_losses_known_by_their_values(reduced):
    rows, targets = reference_rows()
    problem = Problem.of_values(BlackBox(by_hand, value_range=(0.0, 3.0), scale=1.0), np.zeros(3))
    other = rows.copy()
    other[7] = np.nan
    left, right = (Units.from_arrays(x, targets, row_bound=1.0 + 1e-6) for x in (rows, other))
    solver = SinglePassO2NC(
        steps=4, window=2, variance_reduction=reduced, distance=0.3, clip=0.5, noise_multiplier=0.5
    ).filled(Instance(problem, left.public, BUDGET))
    assert solver.estimate == "values"
    assert solver.period == (4 if reduced else 1)
    result = run(solver, left, NoiseSource(3), problem)
    program = lambda curator: solver.solve(curator, problem)  # noqa: E731
    assert_replays(program, result, left.public)
    assert largest_move(program, left, right, plan=solver.event(left.public)) <= 1.0


def test_budgets_are_spent_whole():
    units = units_of()
    instance = Instance(PROBLEM, units.public, BUDGET)
    for reduced in (False, True):
        solver = SinglePassO2NC(steps=8, variance_reduction=reduced, estimate="lune").configure(instance)
        assert solver.plan(instance).epsilon == pytest.approx(1.0, rel=1e-3)


def test_plans_count_evaluations_and_state_the_bounds():
    problem = Problem.of_values(BlackBox(by_hand, value_range=(0.0, 3.0), scale=1.0), np.zeros(3))
    public = units_of().public
    solver = SinglePassO2NC(steps=8, variance_reduction=True, period=4, mode="guarantee")
    plan = solver.plan(Instance(problem, public, BUDGET))
    sizes = [12, 2, 2, 2] * 2  # 0.6 of 40 units at two starts
    assert plan.evaluations == pytest.approx(2 * 3 * (sum(sizes) + 2 * 6))
    assert "vacuous at this budget" in plan.indicators["stationarity_bound"].meaning
    wide = Problem.of_values(BlackBox(by_hand, value_range=(0.0, 3.0), scale=1.0), np.zeros(300))
    assert any(
        "along 200 random directions" in note for note in solver.plan(Instance(wide, public, BUDGET)).notices
    )


@pytest.mark.parametrize("count", [2, 3, 8, 21, 37])
@pytest.mark.parametrize("reduced", [True, False])
def test_few_units_are_shared_among_few_steps(count, reduced):
    units = units_of(count)
    solver = SinglePassO2NC(variance_reduction=reduced, period=4 if reduced else None)
    solver = solver.filled(Instance(PROBLEM, units.public, BUDGET))
    sizes = solver.batches(count)
    assert min(sizes, default=2) >= 2
    assert sum(sizes) <= count


def test_without_privacy_nothing_is_clipped():
    units = units_of()
    instance = Instance(PROBLEM, units.public, Budget(math.inf, 1e-6))
    solver = SinglePassO2NC(
        variance_reduction=True, period=2, steps=8, distance=1.0, estimate="plain", slope_clip=1.0
    ).configure(instance)
    result = run(solver, units)
    assert solver.clip == math.inf
    assert np.all(np.isfinite(np.asarray(result.params)))
    assert any("not private" in note for note in solver.plan(instance).notices)


def test_what_does_not_fit_is_refused_before_data_is_read():
    units = units_of()
    with pytest.raises(ValueError, match="give variance_reduction=True"):
        SinglePassO2NC(period=4)
    with pytest.raises(ValueError, match="take fewer steps"):
        configured(units, steps=40)
    with pytest.raises(ValueError, match="a batch needs at least 2"):
        configured(units, steps=16, share=0.9).event(units.public)
    with pytest.raises(ValueError, match="no known curvature"):
        configured(units, slope_clip=None)


@pytest.mark.parametrize("steps", [0, 3])
def test_few_steps_and_none(steps):
    units = units_of()
    solver = configured(units, steps=steps)
    result = run(solver, units)
    assert result.params.shape == (3,)
    assert result.transcript.releases == (4 if steps else 0)
    assert math.isfinite(float(jnp.sum(result.params)))
