"""Averages over balls and envelopes of losses: closed formulas against integrals, and the constants they promise."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special

from privopt.problems import losses
from privopt.problems.ball import Smoothed, smoothed_slope, smoothed_value
from privopt.problems.losses import GLMLoss
from privopt.problems.smoothing import Envelope

PIECEWISE = [
    losses.hinge,
    losses.smoothed_hinge(0.4),
    losses.smoothed_hinge(2.0),
    losses.ramp(0.0),
    losses.ramp(0.5),
    losses.absolute(),
    losses.absolute(0.3),
    losses.quantile(0.2),
    losses.quantile(0.2, 0.3),
    losses.huber(0.7),
    losses.capped(0.8, width=0.0),
    losses.capped(0.8),
    losses.capped(0.8, "quantile", quantile=0.3),
    losses.capped(0.8, "squared", width=0.0),
]
AVERAGED = [*PIECEWISE, losses.capped(0.8, "squared", width=0.2), losses.logistic, losses.squared]
LINEAR = [losses.hinge, losses.ramp(0.0), losses.absolute(), losses.capped(0.8, width=0.0)]


def sampled(every_loss: list[GLMLoss], every: int) -> list:
    """Some of the losses in the inner loop, the others in the audit: they differ in little and compile anew."""
    return [
        loss if k % every == 0 else pytest.param(loss, marks=pytest.mark.audit)
        for k, loss in enumerate(every_loss)
    ]


def draws(dimension: int, count: int = 20_001) -> np.ndarray:
    """Quantiles of the first coordinate of a uniform point of the ball."""
    shares = (np.arange(count) + 0.5) / count
    square = special.betaincinv(0.5, (dimension + 1) / 2, np.abs(2 * shares - 1))
    return np.sign(shares - 0.5) * np.sqrt(square)


@pytest.mark.at_once("Quantile(level=0.2, smoothing=0.0)")
@pytest.mark.parametrize("loss", sampled(AVERAGED, every=7), ids=str)
def test_the_average_is_that_over_the_first_coordinate_of_a_ball(loss: GLMLoss) -> None:
    rng = np.random.default_rng(0)
    t, y = rng.normal(size=4) * 1.5, np.array([-1.0, 1.0, 0.5, -1.0])
    for dimension in (1, 5):
        evaluate = jax.jit(
            lambda reach, d=dimension: (
                smoothed_slope(loss, t, y, reach, dimension=d),
                smoothed_value(loss, t, y, reach, dimension=d),
            )
        )
        for reach in (0.0, 0.3, 2.0):
            at, beside = np.broadcast_arrays(t[:, None] + reach * draws(dimension), y[:, None])
            slope, value = evaluate(reach)
            np.testing.assert_allclose(slope, np.mean(loss.slope(at, beside), axis=1), atol=6e-5)
            np.testing.assert_allclose(value, np.mean(loss.value(at, beside), axis=1), atol=6e-5)


@pytest.mark.later("3-Ramp(width=0.0)0")
@pytest.mark.parametrize("loss", sampled([losses.ramp(0.0), losses.logistic, *PIECEWISE], every=20), ids=str)
@pytest.mark.parametrize("dimension", [1, 3])
def test_a_smoothed_loss_has_its_derivative_and_its_constants(loss: GLMLoss, dimension: int) -> None:
    smooth = Smoothed(loss, radius=0.25, dimension=dimension, row_norm=2.0)
    assert (smooth.convex, smooth.monotone, smooth.outputs) == (loss.convex, loss.monotone, 1)
    t, y = np.meshgrid(np.linspace(-4.0, 4.0, 801) + 1.2e-3, [-1.0, 1.0], indexing="ij")

    @jax.jit
    def evaluate(t: jax.Array, y: jax.Array) -> tuple[jax.Array, ...]:
        finite = (smooth.value(t + 1e-5, y) - smooth.value(t - 1e-5, y)) / 2e-5
        return smooth.value(t, y), smooth.slope(t, y), finite

    value, slope, finite = (np.asarray(each) for each in evaluate(t, y))
    np.testing.assert_allclose(slope, finite, atol=2e-5)
    assert np.abs(slope).max() <= loss.lipschitz * (1 + 1e-12)
    assert np.abs(np.diff(slope, axis=0) / np.diff(t, axis=0)).max() <= smooth.curvature * (1 + 1e-9)
    assert np.abs(value - np.asarray(loss.value(t, y))).max() <= loss.lipschitz * smooth.reach
    if smooth.value_at_zero is not None:
        assert float(jnp.max(smooth.value(jnp.zeros(2), jnp.asarray([-1.0, 1.0])))) <= smooth.value_at_zero


@pytest.mark.audit
def test_averages_reproduce_the_reference_values() -> None:
    """The mean smoothed gradient of |max(u, 0) - b| over a ball of radius 0.2 in three dimensions."""
    i, j = np.arange(1, 41)[:, None], np.arange(1, 4)
    rows = np.cos(0.7 * i * j) + 0.1 * j
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    b = 1.5 * np.abs(np.sin(i[:, 0]))
    at = np.array([0.3, -0.2, 0.5])

    def step(target: np.ndarray, params: np.ndarray) -> np.ndarray:  # of the smoothed slope, up at the target
        found = smoothed_slope(losses.quantile(0.5), rows @ params, target, 0.2, dimension=3)
        return np.asarray(found) + 0.5

    def gradients(params: np.ndarray) -> np.ndarray:
        return rows * (2.0 * step(b, params) - step(np.zeros(40), params))[:, None]

    expected = [-0.2316410979, 0.0878943716, -0.1244579626]
    np.testing.assert_allclose(gradients(at).mean(axis=0), expected, atol=1e-10)
    moved = gradients(at) - gradients(at + np.array([0.02, 0.01, -0.03]))
    np.testing.assert_allclose(moved.mean(axis=0), [0.0117638433, 0.0024480972, 0.0026128687], atol=1e-10)
    assert np.linalg.norm(moved, axis=1).max() == pytest.approx(0.267663067801, abs=1e-10)


@pytest.mark.later(
    "0.1-Capped(cap=0.8, of='absolute', level=0.5, width=0.0)",
    "0.1-Hinge()",
    "0.1-Ramp(width=0.0)",
    "0.25-Absolute(smoothing=0.0)",
)
@pytest.mark.parametrize("loss", LINEAR, ids=str)
@pytest.mark.parametrize("strength", [0.1, 0.25])
def test_an_envelope_is_the_one_of_its_definition(loss: GLMLoss, strength: float) -> None:
    grid = np.linspace(-4.0, 4.0, 2001)
    y = np.full(2001, 1.0 if loss.monotone else 0.0)
    raw = np.asarray(loss.value(grid, y))
    below = np.array([np.min(raw + (z - grid) ** 2 / (4 * strength)) for z in grid])
    expected = np.array([np.max(below - (grid - x) ** 2 / (2 * strength)) for x in grid])
    envelope = Envelope(loss, strength)
    inner = np.abs(grid) < 2.5  # the grid's ends would be minima of their own
    value = np.asarray(envelope.value(grid, y))
    np.testing.assert_allclose(value[inner], expected[inner], atol=1e-3)
    slope = np.asarray(envelope.slope(grid, y))
    np.testing.assert_allclose(slope[1:-1], (value[2:] - value[:-2]) / 0.008, atol=0.05)
    assert np.all(value <= raw + 1e-12)
    assert np.all(value >= raw - strength * loss.lipschitz**2 - 1e-12)
    assert np.abs(np.diff(slope) / np.diff(grid)).max() <= envelope.curvature * (1 + 1e-9)


@pytest.mark.later("Ramp(width=0.0)-3.0", "Ramp(width=0.5)-0.3")
@pytest.mark.parametrize(
    ("loss", "strength"),
    [(losses.ramp(0.0), 3.0), (losses.ramp(0.5), 0.3), (losses.capped(0.8), 0.1)],
    ids=str,
)
def test_where_kinks_share_their_room_a_table_serves(loss: GLMLoss, strength: float) -> None:
    grid = np.linspace(-12.0, 12.0, 6001)
    y = np.full(6001, 1.0 if loss.monotone else 0.0)
    raw = np.asarray(loss.value(grid, y))
    below = np.array([np.min(raw + (z - grid) ** 2 / (4 * strength)) for z in grid])
    expected = np.array([np.max(below - (grid - x) ** 2 / (2 * strength)) for x in grid])
    envelope = Envelope(loss, strength)
    inner = np.abs(grid) < 8.0
    np.testing.assert_allclose(np.asarray(envelope.value(grid, y))[inner], expected[inner], atol=1e-3)
    rise = np.gradient(expected, grid)
    np.testing.assert_allclose(np.asarray(envelope.slope(grid, y))[inner], rise[inner], atol=0.02)


def test_the_envelope_of_three_times_the_absolute_value_has_the_reference_values() -> None:
    # 3 |u| with lam = 0.2 is three times the envelope of |u| with three times the strength.
    envelope = Envelope(losses.absolute(), 0.6)
    found = 3.0 * np.asarray(envelope.value(np.array([0.1, 0.5, 1.5]), np.zeros(3)))
    np.testing.assert_allclose(found, [0.025, 0.625, 3.6], atol=1e-12)


def test_smoothed_makes_each_kind_with_its_curvature() -> None:
    loss = losses.ramp(0.0)
    assert losses.smoothed(loss, radius=0.2).curvature == pytest.approx(0.5 / 0.2)
    assert losses.smoothed(loss, radius=0.2, kind="exact", dimension=3).curvature == pytest.approx(1.5 * 2.5)
    assert losses.smoothed(loss, radius=0.2, kind="lasry-lions").curvature == pytest.approx(3 * 2.5)
    assert losses.smoothed(loss, radius=0.2, row_norm=2.0).curvature == pytest.approx(1.25)
    assert losses.smoothed(loss, radius=0.2) == losses.smoothed(loss, radius=0.2)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"radius": 0.0}, "radius and row_norm must be positive"),
        ({"radius": math.inf}, "radius and row_norm must be positive"),
        ({"radius": 1.0, "kind": "gauss"}, "kind must be one of"),
        ({"radius": 1.0, "kind": "exact"}, "dimension must be given"),
        ({"radius": 1.0, "dimension": 3}, "dimension must be given"),
        ({"radius": 1.0, "kind": "exact", "dimension": 0}, "dimension must be at least 1"),
        ({"radius": 0.0, "kind": "lasry-lions"}, "strength must be positive"),
    ],
)
def test_smoothed_says_what_is_wrong(arguments: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        losses.smoothed(losses.ramp(0.0), **arguments)


def test_losses_without_such_a_smoothing_are_refused() -> None:
    with pytest.raises(ValueError, match="the softmax loss has 3 outputs"):
        losses.smoothed(losses.softmax(3), radius=1.0)
    with pytest.raises(ValueError, match="the logistic loss has no kinks"):
        losses.smoothed(losses.logistic, radius=1.0, kind="lasry-lions")
