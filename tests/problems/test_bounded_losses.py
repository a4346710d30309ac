"""The ramp and the capped losses: their formulas, their constants, and that they are not convex."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from privopt.problems import losses
from privopt.problems.bounded_losses import Capped, Ramp
from privopt.problems.losses import GLMLoss, KernelCode

SIGNS = (-1.0, 1.0, 0.4)
REALS = (-3.0, 0.2, 1.3)
EVERY: list[tuple[GLMLoss, tuple[float, ...]]] = [
    (losses.ramp(0.0), SIGNS),
    (losses.ramp(), SIGNS),
    (losses.ramp(1.0), SIGNS),
    (losses.capped(1.5, width=0.0), REALS),
    (losses.capped(1.5), REALS),
    (losses.capped(1.5, "squared", width=0.0), REALS),
    (losses.capped(1.5, "squared"), REALS),
    (losses.capped(1.5, "squared", width=0.75), REALS),
    (losses.capped(1.5, "quantile", quantile=0.2, width=0.0), REALS),
    (losses.capped(1.5, "quantile", quantile=0.8), REALS),
]
every = pytest.mark.parametrize(("loss", "targets"), EVERY, ids=str)
STEP = 1e-6


def sharp(loss: GLMLoss, t: np.ndarray, y: np.ndarray) -> np.ndarray:
    """The loss with corners, as its docstring says it."""
    if isinstance(loss, Ramp):
        return np.clip((1 - y * t) / 2, 0, 1)
    assert isinstance(loss, Capped)
    r = np.clip(t - y, -loss.cap, loss.cap)
    if loss.of == "absolute":
        return np.abs(r)
    if loss.of == "squared":
        return 0.5 * r**2
    return (1 - loss.level) * np.maximum(r, 0) + loss.level * np.maximum(-r, 0)


def formula(loss: GLMLoss, t: np.ndarray, y: np.ndarray) -> np.ndarray:
    """The slope as `KernelCode` states it, in NumPy."""
    p0, p1 = loss.kernel_parameters

    def step(x: np.ndarray, width: float) -> np.ndarray:
        return np.clip((x + width) / (2 * width), 0, 1) if width > 0 else 0.5 * (np.sign(x) + 1.0)

    r = t - y
    match loss.kernel_code:
        case KernelCode.RAMP:
            return -y * (step(1 - y * t, p0) - step(-1 - y * t, p0)) / 2
        case KernelCode.CAPPED_ABSOLUTE:
            return 2 * step(r, p1) - step(r + p0, p1) - step(r - p0, p1)
        case KernelCode.CAPPED_SQUARED:
            if p1 == 0:
                return r * (step(r + p0, 0.0) - step(r - p0, 0.0))
            return (np.clip(r + p1, -p0, p0) ** 2 - np.clip(r - p1, -p0, p0) ** 2) / (4 * p1)
        case _:
            raise AssertionError(loss)


def grid(targets: tuple[float, ...]) -> tuple[np.ndarray, np.ndarray]:
    t, y = np.meshgrid(np.linspace(-6.0, 6.0, 1201) + 1.234e-3, targets, indexing="ij")
    return t, y


@pytest.mark.later(
    "Capped(cap=1.5, of='quantile', level=0.8, width=0.375)-(-3.0, 0.2, 1.3)",
    "Capped(cap=1.5, of='quantile', level=0.2, width=0.0)-(-3.0, 0.2, 1.3)",
)
@every
def test_the_value_is_the_sharp_loss_averaged_over_the_width(
    loss: GLMLoss, targets: tuple[float, ...]
) -> None:
    t, y = grid(targets)
    width = loss.width if isinstance(loss, Ramp | Capped) else math.nan
    if isinstance(loss, Ramp):  # over margins
        width = width / np.abs(y)
    nodes, weights = np.polynomial.legendre.leggauss(400)
    means = sum(w * sharp(loss, t + width * x, y) for x, w in zip(nodes, weights, strict=True)) / 2
    np.testing.assert_allclose(loss.value(t, y), means, atol=2e-5)


@every
def test_the_slope_is_the_derivative_of_the_value(loss: GLMLoss, targets: tuple[float, ...]) -> None:
    t, y = grid(targets)
    slope = np.asarray(loss.slope(t, y))
    finite = (loss.value(t + STEP, y) - loss.value(t - STEP, y)) / (2 * STEP)
    automatic = jax.jit(jax.vmap(jax.vmap(jax.grad(loss.value))))(t, y)
    np.testing.assert_allclose(slope, finite, rtol=1e-6, atol=2e-8)
    np.testing.assert_allclose(slope, automatic, atol=1e-12)
    if loss.kernel_code is not None:
        np.testing.assert_allclose(slope, formula(loss, t, y), rtol=1e-12, atol=1e-14)


@every
def test_the_constants_are_bounds_and_are_tight(loss: GLMLoss, targets: tuple[float, ...]) -> None:
    t, y = grid(targets)
    slope, value = np.asarray(loss.slope(t, y)), np.asarray(loss.value(t, y))
    assert 0.99 * loss.lipschitz <= np.abs(slope).max() <= loss.lipschitz
    bend = np.abs(np.diff(slope, axis=0) / np.diff(t, axis=0)).max()
    if math.isfinite(loss.curvature):
        assert 0.97 * loss.curvature <= bend <= loss.curvature * (1 + 1e-9)
    else:
        assert bend > 30.0
    assert loss.value_at_zero is not None
    at_zero = float(jnp.max(loss.value(jnp.zeros(601), jnp.linspace(-6.0, 6.0, 601))))
    assert at_zero == pytest.approx(loss.value_at_zero, rel=1e-9)
    assert value.min() >= -1e-15
    one_signed = np.all(np.all(slope >= 0.0, axis=0) | np.all(slope <= 0.0, axis=0))
    assert bool(one_signed) is loss.monotone


@every
def test_the_loss_is_not_convex_and_says_so(loss: GLMLoss, targets: tuple[float, ...]) -> None:
    slope = np.asarray(loss.slope(*grid(targets)))
    assert np.diff(slope, axis=0).min() < -1e-3
    assert loss.convex is False
    assert loss.facts.convex is False


@every
def test_far_records_pull_no_more_and_huge_predictions_are_harmless(
    loss: GLMLoss, targets: tuple[float, ...]
) -> None:
    t, y = np.meshgrid([-1e300, -1e12, -1e3, 1e3, 1e12, 1e300], targets, indexing="ij")
    value, slope = np.asarray(loss.value(t, y)), np.asarray(loss.slope(t, y))
    assert np.all(slope == 0.0)
    assert np.all(np.isfinite(value))
    np.testing.assert_allclose(value, sharp(loss, t, y), rtol=1e-12, atol=1e-12)
    np.testing.assert_array_equal(loss.predict_mean(t), t)


def test_every_other_loss_of_the_library_is_convex() -> None:
    convex = [losses.logistic, losses.squared, losses.hinge, losses.huber(1.0), losses.softmax(3)]
    assert all(loss.convex for loss in convex)
    assert losses.RecordLoss(lambda params, features, target: params[0]).convex is None


@pytest.mark.parametrize("width", [-0.1, 1.1, math.nan])
def test_a_ramp_is_not_rounded_by_more_than_half_its_length(width: float) -> None:
    with pytest.raises(ValueError, match=r"width must lie in \[0, 1\]"):
        losses.ramp(width)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"cap": 0.0}, "cap must be positive and finite"),
        ({"cap": math.inf}, "cap must be positive and finite"),
        ({"cap": 1.0, "of": "logistic"}, "of must be one of"),
        ({"cap": 1.0, "of": "quantile", "quantile": 1.0}, "quantile must lie strictly"),
        ({"cap": 1.0, "width": 0.6}, "width must lie in"),
        ({"cap": 1.0, "width": -0.1}, "width must lie in"),
    ],
)
def test_a_capped_loss_refuses_what_it_cannot_be(arguments: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        losses.capped(**arguments)
