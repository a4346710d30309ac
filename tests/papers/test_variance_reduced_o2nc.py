"""Reference runs of variance-reduced O2NC on all units, and what its file promises."""

import math

import numpy as np
import pytest
from tests.papers.test_single_pass_o2nc import CLOSE, PROBLEM, SmoothedReluAbsolute, units_of
from tests.reference.promises import (
    assert_costs,
    assert_rehearses,
    assert_replays,
    hostile_rows,
    largest_move,
)
from tests.support.formula_noise import FormulaNoise
from tests.support.nonsmooth_reference import reference_rows

from privopt.curator.local import LocalCurator
from privopt.data.units import Units
from privopt.ledger.amounts import Budget
from privopt.ledger.curves import gaussian_epsilon
from privopt.ledger.ledger import Ledger
from privopt.mechanisms.noise import NoiseSource
from privopt.papers.variance_reduced_o2nc import VarianceReducedO2NC
from privopt.planning.task import Instance
from privopt.precision import double_precision

BUDGET = Budget(1.0, 1e-6)
REFERENCE = {
    "steps": 6,
    "window": 3,
    "period": 3,
    "estimate": "plain",
    "mode": "guarantee",
    "radius": 0.1,
    "step_size": 0.1,
    "clip": 1.0,
    "slope_clip": 1.5,
    "smoothing": 0.2,
}


@pytest.fixture(autouse=True)
def in_double_precision():
    with double_precision():
        yield


def configured(units, noise_multiplier=3.0, **settings):
    settings = {**REFERENCE, "noise_multiplier": noise_multiplier, **settings}
    return VarianceReducedO2NC(**settings).filled(Instance(PROBLEM, units.public, BUDGET))


def run(solver, units, noise):
    ledger = Ledger(Budget(1e6, 1e-6), units.public.relation, plan=solver.event(units.public))
    return solver.solve(LocalCurator(units, ledger, noise=noise), PROBLEM)


def mean_gradient(at):
    rows, targets = reference_rows()
    slopes = np.asarray(SmoothedReluAbsolute().slope(rows @ at, targets))
    return slopes[:, None] * rows


def followed(noise, steps):
    """The run of the reference, by hand: the means of its windows, those of the gradients, and the sensitivities."""
    x = step = gradient = before = np.zeros(3)
    points, gradients, sensitivities = [], [], []
    for t in range(steps):
        z, x = x + step / 2, x + step
        if t % 3 == 0:
            gradient, length = mean_gradient(z).mean(axis=0), 1.0
        else:
            length = 1.5 * np.linalg.norm(z - before)
            changes = mean_gradient(z) - mean_gradient(before)
            norms = np.linalg.norm(changes, axis=1, keepdims=True)
            gradient = gradient + (changes * np.minimum(1.0, length / np.maximum(norms, 1e-300))).mean(axis=0)
        gradient, before = gradient + noise[t], z
        step = step - 0.1 * gradient
        step *= min(1.0, 0.05 / np.linalg.norm(step))
        points.append(z)
        gradients.append(gradient)
        sensitivities.append(2.0 * length / 40)
    means = np.array(points).reshape(-1, 3, 3).mean(axis=1)
    return means, np.array(gradients).reshape(-1, 3, 3).mean(axis=1), np.array(sensitivities)


def test_the_reference_run():
    t, j = np.arange(1, 7)[:, None], np.arange(1, 4)[None, :]
    wanted = 0.05 * np.cos(t + 2 * j)
    means, gradients, sensitivities = followed(wanted, 6)
    np.testing.assert_allclose(means[0], [0.0107744500, -0.0009153804, 0.0031288805], **CLOSE)
    np.testing.assert_allclose(np.linalg.norm(gradients, axis=1), [0.1639073887, 0.1533911545], **CLOSE)
    units = units_of()
    solver = configured(units)
    first, later = solver.multipliers()
    scales = np.where(np.arange(6) % 3 == 0, first, later) * sensitivities
    noise = FormulaNoise(lambda k, shape: wanted[k] / scales[k])
    result = run(solver, units, noise)
    np.testing.assert_allclose(result.params, [0.1049726078, -0.0244611115, 0.0417971279], **CLOSE)
    np.testing.assert_allclose(result.params, means[1], **CLOSE)
    found = [float(release.sensitivity[0]) for release in result.transcript]
    np.testing.assert_allclose(found, sensitivities, rtol=1e-8)


@pytest.mark.parametrize(("steps", "period"), [(6, 3), (7, 2), (4, 1), (3, 8), (0, 2)])
def test_the_multipliers_spend_the_whole_of_mu(steps, period):
    solver = configured(units_of(), steps=steps, period=period, window=1, noise_multiplier=2.5)
    gradients, changes = solver.counts()
    assert (gradients, changes) == (math.ceil(steps / period), steps - math.ceil(steps / period))
    first, later = solver.multipliers()
    if steps:
        squares = gradients / first**2 + (changes / later**2 if changes else 0.0)
        assert squares == pytest.approx(1 / 2.5**2, rel=1e-12)
        assert gradients / first**2 == pytest.approx((0.8 if changes else 1.0) / 2.5**2, rel=1e-12)


@pytest.mark.parametrize("relation", ["replace-one", "add-or-remove-one"])
def test_replay_and_price(relation):
    units = units_of(relation=relation)
    solver = configured(units, places="uniform", returns="random")
    plan = solver.event(units.public)
    result = run(solver, units, NoiseSource(3))
    program = lambda curator: solver.solve(curator, PROBLEM)  # noqa: E731
    assert_replays(program, result, units.public)
    assert_costs(result, plan, units.public)
    assert_rehearses(program, plan, units.public)
    assert result.transcript.epsilon(1e-6) == pytest.approx(gaussian_epsilon(1 / 3, 1e-6), rel=1e-10)


@pytest.mark.parametrize("kind", ["turned", "huge", "not a number", "infinite"])
def test_no_record_moves_a_release_by_more_than_its_sensitivity(kind):
    rows, targets = reference_rows()
    other = rows.copy()
    other[7] = hostile_rows(rows[3])[kind]
    left, right = (
        Units.from_arrays(x, targets, row_bound=1.0 + 1e-6, storage="float64") for x in (rows, other)
    )
    solver = configured(left, clip=0.4, slope_clip=1.0)
    program = lambda curator: solver.solve(curator, PROBLEM)  # noqa: E731
    assert largest_move(program, left, right, plan=solver.event(left.public)) <= 1.0


def test_the_budget_is_spent_whole():
    units = units_of()
    instance = Instance(PROBLEM, units.public, BUDGET)
    solver = VarianceReducedO2NC(steps=20, estimate="lune").configure(instance)
    assert solver.plan(instance).epsilon == pytest.approx(1.0, rel=1e-3)


def test_gradients_at_equal_points_are_not_asked_for_again():
    """Without data and noise nothing moves: every change is between equal points, and is nothing without noise."""
    units = Units.from_arrays(np.zeros((10, 3)), np.zeros(10), row_bound=1.0)
    solver = configured(units)
    result = run(solver, units, FormulaNoise(lambda k, shape: np.zeros(shape)))
    assert [float(release.sensitivity[0]) > 0 for release in result.transcript] == [True, False, False] * 2
    np.testing.assert_array_equal(result.params, np.zeros(3))
