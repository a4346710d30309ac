"""Whitened descent with posterior shrinkage and cooling, for two classes: a candidate for the default's inner solver.

All in the eigenbasis of the released second moment, all seeds at once. Gradients are released at extrapolated points,
with noise s; the running mean of the released gradients says how much of it is signal, which sets a drifting ridge;
steps cool at a pace set by the noise that one step puts into predictions. `posterior` is the candidate as specified.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.panel_cells import Cell, Mapped
from benchmarks.panel_rules import outward, whitened
from privopt.planning.shrinkage import logistic_curvature
from privopt.planning.whitening import SHARE, WhiteningRule

Floats = NDArray[np.float64]

STEPS = 60
LEAST_SIGNAL = 0.05  # of D
LEAST_GAIN, LARGEST_RIDGE, RIDGE_NOISES = 0.001, 2.5, 3.0
MOMENTUM, STEP_FACTOR = 0.6, 1.25
MOST_HEAT, HEATS = 10.0, 16.0 / 0.05
COOLING_POWER = 0.67
LEAST_CURVATURE = 0.08
EXPONENTS = (0.0, 0.5, 1.0)
VARIANCES = np.geomspace(1e-4, 1e5, 46)


@dataclass(frozen=True, kw_only=True, eq=False)
class Frame:
    """The whitened problem in the eigenbasis of the released moment.

    Attributes:
        mapped: w = B v with B = U diag(h + f)^-1/2, so that v is in the eigenbasis.
        scale: h + f, (seeds, d).
        signal: D = h / (h + f), at least `LEAST_SIGNAL`, (seeds, d).
        clip: of a gradient in v, (seeds,).
        constant: the column of ones in v: (M w)_c / sqrt(M_cc) = constant . v, (seeds, d); zeros where there is none.
        moment: M, (seeds, d, d).
    """

    mapped: Mapped
    scale: Floats
    signal: Floats
    clip: Floats
    constant: Floats
    moment: Floats


def frame(cell: Cell, share: float = SHARE) -> Frame:
    """The coordinates of a cell."""
    rule = WhiteningRule.of(cell.instance, share)
    _, coordinates, spectrum, axes = whitened(cell, rule, share)
    scale = spectrum + rule.floor
    mapped = cell.mapped(("eigenbasis", share), lambda: axes / np.sqrt(scale)[:, None, :])
    moment = cell.moment(share)
    free = np.flatnonzero(cell.ridge == 0)
    constant = np.zeros_like(scale)
    if len(free) == 1:
        c = int(free[0])
        rows = moment[:, c, :] / np.sqrt(np.maximum(moment[:, c, c], 1e-3))[:, None]
        constant = np.einsum("sj,sjk->sk", rows, mapped.matrix)
    return Frame(
        mapped=mapped,
        scale=scale,
        signal=np.maximum(spectrum / scale, LEAST_SIGNAL),
        clip=np.asarray([one.clip for one in coordinates]),
        constant=constant,
        moment=moment,
    )


def priors(frame: Frame) -> Floats:
    """The variance of v* under every prior, (exponents, variances, seeds, d)."""
    shapes = [
        frame.scale**a / np.exp(a * np.mean(np.log(frame.scale), axis=1, keepdims=True)) for a in EXPONENTS
    ]
    return np.stack(shapes)[:, None] * VARIANCES[None, :, None, None]


def gains(energies: Floats, noise: float | Floats, b: Floats) -> Floats:
    """The share of each direction of b that is signal, by the best variance of each shape of prior.

    Args:
        energies: the variance of b that each prior expects, (exponents, variances, seeds, d).
        noise: the variance of the noise of b, (seeds, 1).
        b: (seeds, d).
    """
    variance = energies + noise
    likelihood = -0.5 * np.sum(np.log(variance) + b * b / variance, axis=-1)
    best = np.argmax(likelihood, axis=1)[:, None]
    top = np.take_along_axis(likelihood, best, axis=1)[:, 0]
    weights = np.exp(top - np.max(top, axis=0))
    weights = weights / np.sum(weights, axis=0)
    chosen = np.take_along_axis(energies, best[..., None], axis=1)[:, 0]
    found = np.sum(weights[..., None] * chosen / (chosen + noise), axis=0)
    return np.maximum(found, LEAST_GAIN)


def posterior(cell: Cell, *, steps: int = STEPS, share: float = SHARE) -> Floats:
    """The candidate as specified, (seeds, d)."""
    if cell.outputs > 1:
        raise ValueError("posterior shrinkage is for models of two classes")
    space = frame(cell, share)
    generator: Any = cell.generator("steps")
    noise = (cell.noise_of_one(space.clip, 1.0 - share) * math.sqrt(steps))[:, None]
    d, scale = space.signal, space.scale
    ridge = float(np.max(cell.ridge))
    bend = d / 4.0 + ridge / scale
    energies = bend**2 * priors(space)
    heat = np.minimum(MOST_HEAT, HEATS * noise**2 * np.sum(d, axis=1, keepdims=True))
    v = before = z = out = mean_gradient = mean_point = cell.start()
    weight = square = averaged = 0.0
    for t in range(steps):
        u = v + MOMENTUM * (v - before)
        y = cell.gradients(space.mapped, u, space.clip, balanced=True)
        y = y + noise * generator.standard_normal(u.shape) + cell.ridge_gradient(space.mapped, u)
        weight, square = weight + t + 1, square + (t + 1) ** 2
        p = square * noise**2 / weight**2
        mean_gradient = mean_gradient + (t + 1) / weight * (y - mean_gradient)
        mean_point = mean_point + (t + 1) / weight * (u - mean_point)
        gain = gains(energies, p, bend * mean_point - mean_gradient)
        rho = np.minimum(np.minimum(bend * (1.0 / gain - 1.0), RIDGE_NOISES * np.sqrt(p)), LARGEST_RIDGE)
        m = np.sum(space.constant * u, axis=1, keepdims=True)
        spread = np.maximum(np.sum(d * u * u, axis=1, keepdims=True) - m * m, 0.0)
        k = 1.0 / np.sqrt(1.0 + math.pi / 8.0 * spread)
        c0 = np.maximum(k * logistic_curvature(k * m), LEAST_CURVATURE)
        cool = (1.0 + heat * 0.25 / c0 * (t + 1) / 4.0) ** -COOLING_POWER
        eta = STEP_FACTOR * cool / (c0 + ridge * np.max(1.0 / scale, axis=1, keepdims=True) + rho)
        before, v = v, u - eta * (y + rho * (u - z))
        averaged += (t + 1) ** 2
        out = out + (t + 1) ** 2 / averaged * (v - out)
        z = z + (v - z) / steps
    return outward(space.mapped, out)
