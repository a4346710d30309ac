import math
from functools import cache
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import integrate, special

from privopt.problems import losses
from privopt.problems.losses import GLMLoss, KernelCode, RecordLoss, ScalarLoss

SIGNS = (-1.0, 1.0, -1.0, 1.0, -1.0)  # as many as the others: one compilation serves all losses
REALS = (-3.0, -0.4, 0.0, 0.2, 1.3)
COUNTS = (0.0, 0.3, 4.0, 10.0, 25.0)  # the last is above the cap
CAPS = (1e-3, 0.05, 0.31, 0.7, 0.95, 3.0, math.inf)
EVERY_SCALAR: list[tuple[ScalarLoss, tuple[float, ...]]] = [
    (losses.logistic, SIGNS),
    (losses.squared, REALS),
    (losses.huber(0.7), REALS),
    (losses.smoothed_hinge(), SIGNS),
    (losses.smoothed_hinge(2.0), SIGNS),
    (losses.hinge, SIGNS),
    (losses.absolute(), REALS),
    (losses.absolute(0.4), REALS),
    (losses.quantile(0.3), REALS),
    (losses.quantile(0.9, 0.5), REALS),
    (losses.poisson(2.0, 10.0), COUNTS),
    (losses.poisson(-0.5, 10.0), COUNTS),
]
scalar = pytest.mark.parametrize(("loss", "targets"), EVERY_SCALAR, ids=str)


STEP = 1e-6


class OnGrid(NamedTuple):
    """A loss on predictions (first axis, increasing, avoiding every corner) against all targets."""

    t: np.ndarray
    y: np.ndarray
    value: np.ndarray
    slope: np.ndarray
    second: np.ndarray
    automatic_slope: np.ndarray
    finite_slope: np.ndarray
    finite_second: np.ndarray


@cache
def on_grid(loss: ScalarLoss, targets: tuple[float, ...]) -> OnGrid:
    t, y = np.meshgrid(np.linspace(-12.0, 12.0, 1201) + 1.234e-3, targets, indexing="ij")

    @jax.jit
    def evaluate(t: jax.Array, y: jax.Array) -> tuple[jax.Array, ...]:
        return (
            loss.value(t, y),
            loss.slope(t, y),
            loss.second_derivative(t, y),
            jax.vmap(jax.vmap(jax.grad(loss.value)))(t, y),
            (loss.value(t + STEP, y) - loss.value(t - STEP, y)) / (2 * STEP),
            (loss.slope(t + STEP, y) - loss.slope(t - STEP, y)) / (2 * STEP),
        )

    return OnGrid(t, y, *(np.asarray(each) for each in evaluate(t, y)))


@scalar
def test_the_slope_is_the_derivative_of_the_value(loss: ScalarLoss, targets: tuple[float, ...]) -> None:
    at = on_grid(loss, targets)
    np.testing.assert_allclose(at.slope, at.finite_slope, rtol=1e-6, atol=2e-8)
    np.testing.assert_allclose(at.slope, at.automatic_slope, rtol=1e-12, atol=1e-14)


@scalar
def test_the_second_derivative_is_that_of_the_slope(loss: ScalarLoss, targets: tuple[float, ...]) -> None:
    at = on_grid(loss, targets)
    np.testing.assert_allclose(at.second, at.finite_second, rtol=1e-6, atol=2e-8)


@scalar
def test_the_constants_are_bounds_and_are_tight(loss: ScalarLoss, targets: tuple[float, ...]) -> None:
    at = on_grid(loss, targets)
    if math.isfinite(loss.lipschitz):
        assert 0.99 * loss.lipschitz <= np.abs(at.slope).max() <= loss.lipschitz
    if math.isfinite(loss.curvature):
        assert 0.97 * loss.curvature <= at.second.max() <= loss.curvature
        rise = np.diff(at.slope, axis=0) / np.diff(at.t, axis=0)
        assert rise.max() <= loss.curvature * (1 + 1e-9)
    if loss.value_at_zero is not None:
        worst = float(jnp.max(loss.value(jnp.zeros(len(targets)), jnp.asarray(targets))))
        assert worst == pytest.approx(loss.value_at_zero, rel=1e-12)


@scalar
def test_the_loss_is_convex_in_the_prediction(loss: ScalarLoss, targets: tuple[float, ...]) -> None:
    assert np.diff(on_grid(loss, targets).slope, axis=0).min() >= 0.0


@scalar
def test_monotone_means_that_the_target_fixes_the_sign_of_the_slope(
    loss: ScalarLoss, targets: tuple[float, ...]
) -> None:
    slope = on_grid(loss, targets).slope
    one_signed = np.all(np.all(slope >= 0.0, axis=0) | np.all(slope <= 0.0, axis=0))
    assert bool(one_signed) is loss.monotone


@scalar
def test_huge_predictions_are_harmless(loss: ScalarLoss, targets: tuple[float, ...]) -> None:
    t, y = np.meshgrid([-1e12, -1e3, 1e3, 1e12], targets, indexing="ij")
    pieces = (loss.value, loss.slope, loss.second_derivative)
    results = jax.jit(lambda t, y: [piece(t, y) for piece in pieces] + [loss.predict_mean(t)])(t, y)
    assert np.all(np.isfinite(results))
    assert np.all(np.abs(results[1]) <= loss.lipschitz)


@pytest.mark.later(
    "Logistic()-(-1.0, 1.0, -1.0, 1.0, -1.0)",
    "Poisson(max_log_rate=-0.5, max_count=10.0)-(0.0, 0.3, 4.0, 10.0, 25.0)",
    "Poisson(max_log_rate=2.0, max_count=10.0)-(0.0, 0.3, 4.0, 10.0, 25.0)",
    "Quantile(level=0.9, smoothing=0.5)-(-3.0, -0.4, 0.0, 0.2, 1.3)",
)
@scalar
def test_the_huberised_loss_is_convex_with_the_clipped_slope(
    loss: ScalarLoss, targets: tuple[float, ...]
) -> None:
    at = on_grid(loss, targets)
    t, y = (np.stack([each] * len(CAPS), axis=-1) for each in (at.t, at.y))
    caps = np.broadcast_to(CAPS, t.shape)

    @jax.jit
    def evaluate(t: jax.Array, y: jax.Array, caps: jax.Array):
        automatic = jax.vmap(jax.grad(loss.huberised_value))(t.ravel(), y.ravel(), caps.ravel())
        pieces = (loss.huberised_value, loss.huberised_slope, loss.huberised_second_derivative)
        return automatic.reshape(t.shape), *(piece(t, y, caps) for piece in pieces)

    automatic, value, slope, bend = (np.asarray(each) for each in evaluate(t, y, caps))
    full_slope = at.slope[..., None]
    np.testing.assert_allclose(slope, np.clip(full_slope, -caps, caps), rtol=1e-14)
    np.testing.assert_allclose(automatic, slope, rtol=1e-9, atol=1e-12)
    # The value rises by the integral of the slope: no jumps, convex, and the loss itself where nothing is clipped.
    gap, rise = np.diff(t, axis=0), np.diff(value, axis=0)
    assert np.all(rise >= slope[:-1] * gap - 1e-9)
    assert np.all(rise <= slope[1:] * gap + 1e-9)
    excess = value - at.value[..., None]
    np.testing.assert_allclose(np.where(np.abs(full_slope) <= caps, excess, 0.0), 0.0, atol=1e-12)
    assert np.all((bend >= 0.0) & (bend <= at.second[..., None] * (1 + 1e-14)))


@pytest.mark.parametrize("smoothing", [0.2, 1.5])
def test_a_smoothed_quantile_loss_is_the_pinball_loss_averaged_over_a_uniform_shift(smoothing: float) -> None:
    loss = losses.quantile(0.8, smoothing)

    def pinball(r: float) -> float:
        return 0.8 * max(r, 0.0) + 0.2 * max(-r, 0.0)

    residuals = np.asarray([-2.0, -0.7, -0.1, 0.0, 0.15, 1.0, 3.0])
    means = [
        integrate.quad(lambda u, r=r: pinball(r + u), -smoothing, smoothing, points=[-r])[0] / (2 * smoothing)
        for r in residuals
    ]
    np.testing.assert_allclose(jax.jit(loss.value)(np.ones(7), 1.0 + residuals), means, atol=1e-9)


def formula(loss: GLMLoss, t: np.ndarray, y: np.ndarray) -> np.ndarray:
    """The slope as `KernelCode` states it, in NumPy."""
    p0, p1 = loss.kernel_parameters
    match loss.kernel_code:
        case KernelCode.LOGISTIC:
            return -y / (1.0 + np.exp(y * t))
        case KernelCode.SQUARED:
            return t - y
        case KernelCode.HUBER:
            return np.clip(t - y, -p0, p0)
        case KernelCode.SMOOTHED_HINGE:
            return -y * np.clip((1 + p0 - y * t) / (2 * p0), 0, 1)
        case KernelCode.QUANTILE:
            x = t - y
            step = np.clip((x + p1) / (2 * p1), 0, 1) if p1 > 0 else 0.5 * (np.sign(x) + 1.0)
            return step - p0
        case KernelCode.POISSON:
            return np.exp(np.minimum(t, p0)) - np.clip(y, 0, p1)
        case _:
            raise AssertionError(loss)


@pytest.mark.parametrize(
    ("loss", "targets"), [pair for pair in EVERY_SCALAR if pair[0].kernel_code is not None], ids=str
)
def test_the_slope_is_the_formula_that_the_kernel_code_names(
    loss: ScalarLoss, targets: tuple[float, ...]
) -> None:
    at = on_grid(loss, targets)
    np.testing.assert_allclose(at.slope, formula(loss, at.t, at.y), rtol=1e-12)
    at_target = jnp.asarray(targets)
    expected = formula(loss, np.asarray(targets), np.asarray(targets))
    np.testing.assert_allclose(loss.slope(at_target, at_target), expected, rtol=1e-12, atol=1e-16)


def test_softmax_has_its_derivative_its_constants_and_is_convex() -> None:
    loss = losses.softmax(4)
    rng = np.random.default_rng(1)
    t, y = rng.normal(scale=3.0, size=(60, 4)), rng.integers(0, 4, 60).astype(float)
    t[0], t[1], t[2], y[1] = 0.0, (30.0, 30.0, -30.0, -30.0), 1e3, 2.0

    @jax.jit
    def evaluate(t: jax.Array, y: jax.Array) -> tuple[jax.Array, ...]:
        derivatives = (jax.vmap(jax.grad(loss.value))(t, y), jax.vmap(jax.hessian(loss.value))(t, y))
        return loss.value(t, y), loss.slope(t, y), loss.predict_mean(t), *derivatives

    value, slope, mean, automatic, hessians = (np.asarray(each) for each in evaluate(t, y))
    np.testing.assert_allclose(slope, automatic, atol=1e-14)
    assert np.linalg.norm(slope, axis=1).max() <= loss.lipschitz
    curvatures = np.linalg.eigvalsh(hessians)
    assert curvatures.min() >= -1e-12
    assert 0.49 <= curvatures.max() <= loss.curvature + 1e-12
    assert curvatures.sum(axis=1).max() <= 1.0
    assert value[0] == pytest.approx(loss.value_at_zero)
    np.testing.assert_allclose(mean, special.softmax(t, axis=1), atol=1e-14)
    assert (loss.outputs, loss.kernel_code) == (4, KernelCode.SOFTMAX)


def test_two_classes_of_softmax_are_the_logistic_loss() -> None:
    t, two = np.linspace(-4.0, 4.0, 9), losses.softmax(2)

    @jax.jit
    def both(t: jax.Array) -> tuple[tuple[jax.Array, jax.Array], tuple[jax.Array, jax.Array]]:
        pair, ones = jnp.stack([-0.5 * t, 0.5 * t], axis=-1), jnp.ones_like(t)
        left = (two.value(pair, ones), two.slope(pair, 0.0 * ones)[:, 1])
        return left, (losses.logistic.value(t, ones), losses.logistic.slope(t, -ones))

    for left, right in zip(*both(t), strict=True):
        np.testing.assert_allclose(left, right, rtol=1e-12)


def test_a_softmax_target_that_is_no_class_has_no_term() -> None:
    t, targets = np.tile([0.2, -1.0, 0.5], (4, 1)), np.asarray([-1.0, 7.0, 0.5, np.nan])
    slope = jax.jit(losses.softmax(3).slope)(t, targets)
    np.testing.assert_allclose(slope, special.softmax(t, axis=1), rtol=1e-14)


def test_losses_are_values_that_hash_by_content() -> None:
    assert losses.huber(0.5) == losses.Huber(0.5)
    assert len({losses.huber(0.5), losses.Huber(0.5), losses.logistic, losses.Logistic()}) == 2


def _halved(params: jax.Array, features: jax.Array, target: jax.Array) -> jax.Array:
    return 0.5 * (jnp.sum(params * features) - target) ** 2


def test_a_record_loss_differentiates_and_is_equal_by_its_function() -> None:
    loss = RecordLoss(_halved)
    params, features, target = jnp.asarray([1.0, 2.0]), jnp.asarray([0.5, -1.0]), jnp.asarray(0.25)
    np.testing.assert_allclose(loss.gradient(params, features, target), -1.75 * features)
    assert loss == RecordLoss(_halved)
    assert hash(loss) == hash(RecordLoss(_halved))
    assert loss != RecordLoss(lambda params, features, target: _halved(params, features, target))
    assert (loss.kernel_code, loss.outputs, loss.lipschitz) == (None, 1, math.inf)


def test_wrong_constants_are_refused_with_a_sentence() -> None:
    with pytest.raises(ValueError, match="threshold must be positive and finite, got 0"):
        losses.huber(0.0)
    with pytest.raises(ValueError, match="width must be positive"):
        losses.smoothed_hinge(math.nan)
    with pytest.raises(ValueError, match="quantile must lie strictly between 0 and 1, got 1"):
        losses.quantile(1.0)
    with pytest.raises(ValueError, match="smoothing must be at least 0"):
        losses.quantile(0.5, -1.0)
    with pytest.raises(ValueError, match="max_log_rate must lie in"):
        losses.poisson(math.inf, 3.0)
    with pytest.raises(ValueError, match="max_count must be positive"):
        losses.poisson(2.0, 0.0)
    with pytest.raises(ValueError, match="classes must be at least 2"):
        losses.softmax(1)
