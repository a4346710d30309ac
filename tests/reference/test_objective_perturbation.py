import math
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats
from tests.reference.objective_perturbation import PerturbedMinimiser, PerturbedRegression
from tests.reference.promises import (
    FormulaNoise,
    assert_costs,
    assert_rehearses,
    assert_replays,
    assert_tight,
    hostile_rows,
    largest_move,
    solve,
)

from privopt.data import Units
from privopt.ledger.amounts import Budget
from privopt.ledger.calibration import calibrate
from privopt.ledger.events import ShiftedGaussianEvent
from privopt.ledger.gaussian_dp import gaussian_delta
from privopt.mechanisms.noise import NoiseSource
from privopt.problems import losses
from privopt.public import Public, Relation

SOLVER = PerturbedRegression(loss=losses.logistic, clip=1.0, ridge=0.5, noise_multiplier=1.5)
LINE = np.sin(1.0 + np.arange(6))[:, None]
SIGNS = np.sign(np.cos(2.0 * np.arange(6)))


def on_the_line(record, relation):
    """Six records in one dimension and one more, (1, sign) or none."""
    rows = LINE if record is None else np.concatenate([LINE, [[1.0]]])
    targets = SIGNS if record is None else np.append(SIGNS, record)
    return Units.from_arrays(rows, targets, relation=relation, row_bound=1.0, n=7)


@pytest.mark.parametrize(
    ("relation", "sigma"), [("add-or-remove-one", 4.2344892110), ("replace-one", 8.4689784221)]
)
def test_the_calibrated_noise_has_its_reference_scale(relation, sigma):
    """Slopes of one sign, C = 1, beta = 1/4, Lambda = 100, at (1, 1e-6)."""
    public = Public(n=1000, d=1, relation=Relation.parse(relation))
    solver = replace(SOLVER, ridge=0.1)
    assert solver.event(public) == ShiftedGaussianEvent(1 / 1.5, math.log1p(0.25 / 100))
    multiplier = calibrate(
        lambda z: replace(solver, noise_multiplier=z).event(public), Budget(1.0, 1e-6), relation
    )
    assert multiplier * solver.query(public).sensitivity(public) == pytest.approx(sigma, rel=3e-8)


def test_the_minimiser_has_its_reference_value():
    """Eight records in three dimensions, lambda = 0.1, b_j = 0.8 cos(1 + 0.7 j)."""
    i, j = np.arange(8)[:, None], np.arange(3)[None, :]
    rows = np.sin(0.5 + 1.3 * i + 0.7 * j)
    rows /= np.maximum(1.0, np.linalg.norm(rows, axis=1, keepdims=True))
    units = Units.from_arrays(rows, np.where(np.cos(2 * np.arange(8)) > 0, 1.0, -1.0), row_bound=1.0)
    solver = replace(SOLVER, ridge=0.1, noise_multiplier=0.4)  # sigma = 0.4 * 2 C
    noise = FormulaNoise(lambda k, shape: np.cos(1 + 0.7 * np.arange(3)))
    result = solve(solver.solve, units, plan=solver.event(units.public), noise=noise)
    # The rows are stored in float32.
    np.testing.assert_allclose(result.params, [-0.3767323049, -0.1900758049, 0.0859763161], atol=1e-7)
    query = solver.query(units.public)
    implied = query.implied_noise(units.private_features, units.private_targets, result.params)
    np.testing.assert_allclose(implied, 0.8 * noise.normal(3), atol=1e-11)


@jax.jit
def noise_and_volume(query, rows, targets, points):
    """b(w) and |b'(w)| on a line of minimisers."""

    def implied(w):
        return query.implied_noise(rows, targets, w[None])[0]

    noise, slope = jax.vmap(jax.value_and_grad(implied))(points)
    return noise, jnp.abs(slope)


def hockey_stick(left, right, epsilon, points):
    """The larger of the two directions, by quadrature."""
    return max(
        np.trapezoid(np.maximum(one - math.exp(epsilon) * other, 0.0), points)
        for one, other in ((left, right), (right, left))
    )


@pytest.mark.parametrize(
    ("relation", "neighbour", "exact", "bound"),
    [("replace-one", -1.0, 3.095e-2, 0.2713), ("add-or-remove-one", None, 3.667e-3, 3.892e-2)],
)
def test_the_exact_privacy_loss_stays_below_the_curve(relation, neighbour, exact, bound):
    """The density of the released minimiser is that of the noise, by the change of variables w -> b(w)."""
    sides = [on_the_line(record, relation) for record in (1.0, neighbour)]
    factor = Relation.parse(relation).factor
    points = jnp.linspace(-60.0, 60.0, 60_001)
    for ridge in (0.5, 1.0, 3.0):
        query = PerturbedMinimiser(loss=losses.logistic, clip=1.0, ridge=ridge)
        maps = [
            noise_and_volume(query, side.private_features, side.private_targets, points) for side in sides
        ]
        for sigma in (1.5, 2.0, 3.0):
            densities = [np.asarray(volume) * stats.norm.pdf(noise, scale=sigma) for noise, volume in maps]
            assert np.trapezoid(densities[0], points) == pytest.approx(1.0, abs=1e-6)
            for epsilon in (0.5, 1.0, 2.0):
                curve = gaussian_delta(factor / sigma, epsilon - math.log1p(0.25 / ridge))
                found = hockey_stick(*densities, epsilon, np.asarray(points))
                assert found <= curve
                if (ridge, sigma, epsilon) == (3.0, 1.5, 1.0):
                    assert found == pytest.approx(exact, rel=2e-4)
                    assert curve == pytest.approx(bound, rel=2e-4)


@pytest.mark.parametrize("relation", ["replace-one", "add-or-remove-one"])
def test_replay_and_price(relation):
    units = on_the_line(1.0, relation)
    plan = SOLVER.event(units.public)
    result = solve(SOLVER.solve, units, plan=plan)
    assert_replays(SOLVER.solve, result, units.public)
    assert_costs(result, plan, units.public)
    assert_rehearses(SOLVER.solve, plan, units.public)


@pytest.mark.parametrize("kind", hostile_rows(np.ones(1)))
def test_no_record_moves_the_implied_noise_by_more_than_its_sensitivity(kind):
    rows, targets = np.concatenate([LINE, [[1.0]]]), np.append(SIGNS, 1.0)
    other = rows.copy()
    other[6] = hostile_rows(rows[6])[kind]
    left, right = (Units.from_arrays(x, targets, row_bound=1.0) for x in (rows, other))
    assert largest_move(SOLVER.solve, left, right, plan=SOLVER.event(left.public)) <= 1.0


@pytest.mark.parametrize("relation", ["replace-one", "add-or-remove-one"])
def test_the_audit_notices_an_understated_sensitivity(relation):
    """Near w = 0 the slopes are about 1/2, clipped to 0.3; one record is turned, or not there."""
    solver = replace(SOLVER, clip=0.3, ridge=5.0, noise_multiplier=0.05)
    rows = np.array([1.0, 1.0, 1.0, -1.0, -1.0, -1.0])[:, None]
    other = rows.copy()
    other[1] = -1.0 if relation == "replace-one" else np.nan
    left, right = (
        Units.from_arrays(x, np.ones(6), relation=relation, row_bound=1.0, n=6) for x in (rows, other)
    )
    assert_tight(solver.solve, left, right, plan=solver.event(left.public))


def test_the_solver_reaches_its_certificate_where_gradients_are_clipped():
    rng = np.random.default_rng(0)
    rows, targets = rng.normal(size=(30, 2)), np.sign(rng.normal(size=30))
    units = Units.from_arrays(rows, targets, row_bound=1.0)
    query = PerturbedMinimiser(loss=losses.smoothed_hinge(0.2), clip=0.4, ridge=0.5)
    for b in NoiseSource(2).normal((5, 2)) * 3:
        w = query.minimise(units.private_features, units.private_targets, b)
        np.testing.assert_allclose(
            query.implied_noise(units.private_features, units.private_targets, w), b, atol=1e-10
        )


def test_a_loss_without_the_theorems_assumptions_is_refused():
    query = PerturbedMinimiser(loss=losses.squared, clip=1.0, ridge=1.0)
    with pytest.raises(ValueError, match="no slope of one sign"):
        query.mechanism(1.0, Public(n=10, d=1))
