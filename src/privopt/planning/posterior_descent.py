"""Formulas of whitened descent with posterior shrinkage: evidence, ridge, heat, cooling and curvature. Utility only.

All of it is in the eigenbasis of the released second moment, in which w = B v and the loss is logistic. With h the
eigenvalues, f their floor, lam the ridge, s the noise of one released gradient, T steps:

    signal          D_j = h_j / (h_j + f), at least 0.05: the second moment of the mapped rows
    curvature       A_j = D_j / 4 + lam / (h_j + f)
    evidence        b = A u - y, of weighted means of points u and released gradients y, is A v* + N(0, p) for a linear
                    gradient, wherever the points were; p is known. See `evidence`
    ridge           rho_j = min(A_j (1 / gain_j - 1), 3 sqrt(p), 2.5)
    heat            H = min(10, 16 s^2 sum(D) / 0.05): what the noise of one step does to predictions
    mean curvature  c0 = max(k sigma'(k m), 0.08), k = (1 + pi / 8 (sum D u^2 - m^2))^-1/2, m the mean prediction
    step            1.25 cool / (c0 + lam max_j 1 / (h_j + f) + rho_j), cool = (1 + H (1/4) / c0 (t + 1) / 4)^-0.67

The constants were chosen by the training excess of logistic regression on twelve tables at epsilon 0.1 to 3.

Source:
    Ours. The variance of a prior from data: empirical Bayes, Morris 1983. The mean of a sigmoid under a normal law:
    MacKay 1992.
"""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from numpy.typing import NDArray

from privopt.planning.coordinates import RowSpectrum
from privopt.planning.whitening import NOISELESS_STEPS

STEPS = 60
MOMENTUM, STEP_FACTOR = 0.6, 1.25
LEAST_SIGNAL = 0.05  # of D
EXPONENTS = (0.0, 0.5, 1.0)  # alpha: the prior's variance is like (h + f)^alpha
VARIANCES = np.geomspace(1e-4, 1e5, 46)  # tau^2
LEAST_GAIN, RIDGE_NOISES, LARGEST_RIDGE = 0.001, 3.0, 2.5
MOST_HEAT, HEAT_FACTOR = 10.0, 16.0 / 0.05
COOLING_STEPS, COOLING_POWER = 4.0, 0.67
LEAST_CURVATURE = 0.08
LARGEST_PREDICTION = 50.0


DEFAULTS = {
    "steps": lambda solver, instance: STEPS if instance.is_private else NOISELESS_STEPS,
    "constant": lambda solver, instance: solver.coordinates.rows.constant,
}


class Frame(NamedTuple):
    """What does not change during a run: the whitened problem in the eigenbasis of the released moment.

    Attributes:
        axes: U, from the eigenbasis to the coordinates of the run.
        signal: D.
        curvature: A.
        shapes: g, the variance of the prior over tau^2, one row for each exponent.
        constant: the mean prediction at v is `constant . v`.
        stiffness: `lam max_j u_j / (h_j + f)`, u_j what of axis j is penalised.
        noise: s.
        heat: H.
    """

    axes: Float[Array, "d d"]
    signal: Float[Array, " d"]
    curvature: Float[Array, " d"]
    shapes: Float[Array, "a d"]
    constant: Float[Array, " d"]
    stiffness: Float[Array, ""]
    noise: Float[Array, ""]
    heat: Float[Array, ""]


def frame(rows: RowSpectrum, *, ridge: float, noise: float, constant: int | None) -> Frame:
    """The frame of a released moment.

    Args:
        rows: the moment.
        ridge: lam, the largest strength of the ridge on w.
        noise: s, standard deviation of every entry of a released gradient.
        constant: the column of ones; None for none, whose mean prediction counts as 0.
    """
    signal = np.maximum(rows.damping, LEAST_SIGNAL)
    relative = rows.scale / np.exp(np.mean(np.log(rows.scale)))
    values = (
        rows.axes,
        signal,
        signal / 4.0 + rows.ridge(ridge),
        np.stack([relative**exponent for exponent in EXPONENTS]),
        rows.mean_prediction(constant),
        np.max(rows.ridge(ridge)),
        noise,
        heat(noise, signal),
    )
    return Frame(*(jnp.asarray(value, jnp.float64) for value in values))


def heat(noise: float, signal: NDArray[np.float64]) -> float:
    """H: the variance that one step of length 4 puts into a prediction, over 0.05 and at most 10."""
    return min(MOST_HEAT, HEAT_FACTOR * noise**2 * float(np.sum(signal)))


class Evidence(NamedTuple):
    """What the released gradients say about how much of them is signal.

    Attributes:
        gain: share of each direction of b that is signal, between `LEAST_GAIN` and 1.
        variances: tau^2 of each shape of prior.
        weights: of the shapes, which sum to 1.
    """

    gain: Float[Array, " d"]
    variances: Float[Array, " a"]
    weights: Float[Array, " a"]


def evidence(
    b: Float[Array, " d"], noise: Float[Array, ""], curvature: Float[Array, " d"], shapes: Float[Array, "a d"]
) -> Evidence:
    """Empirical Bayes for `b_j = A_j v*_j + N(0, p)` with `v*_j ~ N(0, tau^2 g_j)`.

    For each shape g the tau^2 of largest likelihood among `VARIANCES`; the shapes are weighted by that likelihood.

    Args:
        b: the observation.
        noise: p, the variance of its noise.
        curvature: A.
        shapes: g, one row for each shape.
    """
    signals = (
        curvature[None, None, :] ** 2 * jnp.asarray(VARIANCES, b.dtype)[None, :, None] * shapes[:, None, :]
    )
    expected = signals + noise
    likelihoods = -0.5 * jnp.sum(jnp.log(expected) + b[None, None, :] ** 2 / expected, axis=2)
    best = jnp.argmax(likelihoods, axis=1)
    weights = jax.nn.softmax(jnp.max(likelihoods, axis=1))
    chosen = jnp.take_along_axis(signals, best[:, None, None], axis=1)[:, 0]
    gain = jnp.sum(weights[:, None] * chosen / (chosen + noise), axis=0)
    return Evidence(jnp.maximum(gain, LEAST_GAIN), jnp.asarray(VARIANCES, b.dtype)[best], weights)


def ridge_of(gain: Float[Array, " d"], noise: Float[Array, ""], curvature: Float[Array, " d"]) -> Array:
    """rho: the ridge under which a quadratic of curvature A keeps the share `gain`, within bounds, (d,)."""
    most = jnp.minimum(RIDGE_NOISES * jnp.sqrt(noise), LARGEST_RIDGE)
    return jnp.minimum(curvature * (1.0 / gain - 1.0), most)


def mean_curvature(point: Float[Array, " d"], frame: Frame) -> Float[Array, ""]:
    """c0: the logistic density at the mean prediction, smoothed by the spread of predictions."""
    mean = jnp.dot(frame.constant, point)
    spread = jnp.maximum(jnp.sum(frame.signal * point**2) - mean**2, 0.0)
    flatter = (1.0 + math.pi / 8.0 * spread) ** -0.5
    at = jnp.clip(flatter * mean, -LARGEST_PREDICTION, LARGEST_PREDICTION)
    density = jax.nn.sigmoid(at) * jax.nn.sigmoid(-at)
    return jnp.maximum(flatter * density, LEAST_CURVATURE)


def cooling(steps: Array, curvature: Array, heat: Array) -> Array:
    """What is left of the step length after a number of steps."""
    return (1.0 + heat * 0.25 / curvature * steps / COOLING_STEPS) ** -COOLING_POWER


def refusal(problem: Any) -> str:
    """Why it is not for a loss, as the end of a sentence."""
    return (
        f"its evidence and its steps follow the curvature of the logistic loss of two classes, and the loss is "
        f"{problem.loss.name}: take Whitening() with its own descent"
    )
