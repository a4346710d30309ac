"""The table of distances of logistic gradients: an upper bound, a close one, and what its proof says of the maximum."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import minimize, minimize_scalar
from scipy.special import expit

from privopt.engine import kernels
from privopt.precision import double_precision
from privopt.problems import losses
from privopt.proofs.gradient_spread import DIAMETERS, PREDICTION_BOUNDS, diameter_bound, norm_bound

PUBLISHED = {0: 1.000, 0.5: 1.029, 1: 1.099, 2: 1.270, 3: 1.419, 5: 1.617, 8: 1.767, 12: 1.857, 20: 1.927}


def exact_diameter(reach):
    """2 max sqrt(1 - x^2) sigmoid(reach x), by bounded minimisation around the best point of a grid."""
    grid = np.linspace(0.0, 1.0, 501)
    best = int(np.argmax(height(grid, reach)))
    found = minimize_scalar(
        lambda x: -height(x, reach),
        bounds=(grid[max(best - 1, 0)], grid[min(best + 1, 500)]),
        method="bounded",
        options={"xatol": 1e-10},
    )
    return 2.0 * max(-found.fun, height(grid[best], reach))


def height(x, reach):
    return np.sqrt(1.0 - x * x) * expit(reach * x)


def recomputed_table():
    """D at the reaches, raised by what straight lines lack in between, rounded up to five places."""
    values = np.array([exact_diameter(reach) for reach in PREDICTION_BOUNDS])
    lacking = np.zeros(len(PREDICTION_BOUNDS) - 1)
    for k in range(len(lacking)):
        inside = np.linspace(PREDICTION_BOUNDS[k], PREDICTION_BOUNDS[k + 1], 41)
        line = np.interp(inside, PREDICTION_BOUNDS, values)
        lacking[k] = max(0.0, *(exact_diameter(reach) - on for reach, on in zip(inside, line, strict=True)))
    raised = values + np.maximum(np.append(lacking, 0.0), np.insert(lacking, 0, 0.0))
    return np.ceil((raised + 2e-6) * 1e5) / 1e5


def bounds_at(reaches):
    with double_precision():
        norms = norm_bound(losses.logistic, jnp.asarray(reaches))
        return np.asarray(norms), np.asarray(diameter_bound(losses.logistic, jnp.asarray(reaches)))


def gradient(a, y, w):
    return -y * expit(-y * (a @ w)) * a


def into_ball(a):
    return a / max(1.0, np.linalg.norm(a))


def test_the_table_is_what_its_rule_gives():
    np.testing.assert_allclose(DIAMETERS, recomputed_table(), rtol=0, atol=1.1e-5)


def test_the_bound_lies_above_the_diameter_by_less_than_a_thousandth():
    reaches = np.concatenate([np.linspace(0.0, 5.0, 1001), np.geomspace(5.0, 1e4, 800)])
    bound = bounds_at(reaches)[1]
    diameter = np.array([exact_diameter(reach) for reach in reaches])
    # The diameter does not decrease: at the next point it is still below the bound of this one, up to the grid's step.
    assert np.all(bound > diameter)
    assert np.all(np.diff(bound) >= 0)
    near = reaches <= PREDICTION_BOUNDS[-1]
    assert np.all(bound[near] < 1.001 * diameter[near])
    for reach, value in PUBLISHED.items():
        assert exact_diameter(reach) == pytest.approx(value, abs=5e-4)


@pytest.mark.at_once("0.0", "0.3", "4.0")
@pytest.mark.parametrize("reach", [0.0, 0.3, 1.0, 2.0, 4.0, 9.0, 25.0])
def test_no_two_records_are_further_apart_and_some_nearly_are(reach):
    # The proof puts the two farthest records into a plane with w; three dimensions could do better if it were wrong.
    w = np.array([reach, 0.0, 0.0])
    norm, diameter = (float(value) for value in bounds_at(reach))
    rng = np.random.default_rng(0)

    def distance(flat):
        a, b = into_ball(flat[:3]), into_ball(flat[3:6])
        return np.linalg.norm(
            gradient(a, np.clip(flat[6], -1.0, 1.0), w) - gradient(b, np.clip(flat[7], -1.0, 1.0), w)
        )

    farthest, longest = 0.0, 0.0
    for _ in range(2000):
        flat = rng.normal(size=8) * rng.choice([0.3, 1.0, 3.0])
        farthest = max(farthest, distance(flat))
        longest = max(longest, float(np.linalg.norm(gradient(into_ball(flat[:3]), 1.0, w))))
    for _ in range(6):
        found = minimize(lambda flat: -distance(flat), rng.normal(size=8), method="L-BFGS-B")
        farthest = max(farthest, -found.fun)
    longest = max(longest, float(np.linalg.norm(gradient(np.array([-1.0, 0.0, 0.0]), 1.0, w))))
    assert 0.999 * diameter < farthest <= diameter
    assert 0.999 * norm < longest <= norm * (1 + 1e-12)


@pytest.mark.parametrize("reach", [0.0, 0.7, 2.5, 6.0, 30.0])
def test_the_maximum_is_at_a_mirrored_pair(reach):
    """Steps 1 to 3 of the proof on a grid of all pairs of boundary points."""
    x = np.cos(np.linspace(0.0, np.pi, 801))
    f, h = x * expit(reach * x), height(np.clip(x, -1.0, 1.0), reach)
    squared = (f[:, None] - f) ** 2 + (h[:, None] + h) ** 2
    assert np.sqrt(squared.max()) <= exact_diameter(reach) * (1 + 1e-12)


@pytest.mark.parametrize("reach", [np.nan, np.inf, 1e300])
def test_a_reach_that_is_far_or_no_number_gives_the_largest_bounds(reach):
    assert [float(value) for value in bounds_at(reach)] == [1.0, 2.0]


def test_the_bounds_can_be_traced():
    with double_precision():
        traced = jax.jit(lambda bound: diameter_bound(losses.logistic, bound))(jnp.asarray(2.0))
    assert float(traced) == pytest.approx(1.2698, rel=1e-3)


@pytest.mark.parametrize(
    ("loss", "norm"),
    [
        (losses.huber(0.7), 0.7),
        (losses.softmax(3), np.sqrt(2.0)),
        (losses.squared, np.inf),
        (losses.ramp(0.3), 0.5),
        (losses.capped(0.7, width=0.2), 1.0),
        (losses.capped(0.7, "squared", width=0.2), 0.5),
        (losses.capped(0.7, "quantile", quantile=0.2), 0.8),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_other_losses_have_their_largest_slope(loss, norm):
    with double_precision():
        assert float(norm_bound(loss, jnp.asarray(0.0))) == pytest.approx(norm)
        assert float(diameter_bound(loss, jnp.asarray(0.0))) == pytest.approx(2.0 * norm)


@pytest.mark.parametrize(
    "loss",
    [
        *(losses.ramp(width) for width in (0.0, 0.3, 1.0)),
        *(losses.capped(0.7, width=width) for width in (0.0, 0.35)),
        *(losses.capped(0.7, "squared", width=width) for width in (0.0, 0.1, 0.35)),
        *(losses.capped(0.7, "quantile", quantile=level, width=0.2) for level in (0.1, 0.8)),
    ],
    ids=str,
)
def test_no_slope_of_a_bounded_loss_exceeds_its_bound_whatever_the_target(loss):
    # To the last bit, on both paths: what a sensitivity takes from the formula holds for hostile targets too.
    edges = [0.0, 0.35, 0.7, 1.0, 1.05, 1.3, 2.0, 1e-300, 1e-9, 1e9, 1e300]
    around = [np.nextafter(x, side) for x in edges for side in (-np.inf, np.inf)]
    values = np.concatenate([edges, around, np.linspace(0.0, 3.0, 301)])
    values = np.concatenate([values, -values])
    predictions, targets = (each.ravel() for each in np.meshgrid(values, values))
    with double_precision():
        assert np.max(np.abs(loss.slope(jnp.asarray(predictions), jnp.asarray(targets)))) <= loss.lipschitz
        assert loss.lipschitz == float(norm_bound(loss, jnp.asarray(2.0)))
    if loss.kernel_code is not None:
        found = np.empty(len(predictions))
        kernels.slopes(
            loss.kernel_code, *loss.kernel_parameters, predictions, targets, len(predictions), found
        )
        assert np.max(np.abs(found)) <= loss.lipschitz
