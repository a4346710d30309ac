"""A candidate for the default with two classes: what the descent found is scaled and shifted by gradients of its own.

With every seed's best scale and shift in hindsight, the landed rule would leave 0.4 to 0.97 of its excess and be above
the constant model almost nowhere: few steps from 0 leave predictions too small where classes are far apart, too large
where noise is all there is, and the rate of a rare class too high. Two numbers are cheap to learn, so a share
of the budget is spent on them after the descent.

With the released second moment, the noise taken out, M = U diag(h) U^T, and w the result of `panel_halfway`, in two
columns, the constant and what is left of the prediction w . a when that is taken out,

    b = e_c / sqrt(M_cc),    m = b^T M w,    s^2 = w^T M w - m^2,    u = (w - m b) / s,

the model is theta = (shift, scale), w = shift b + scale u, and starts at theta_0 = (m, s). K gradients of the loss by
theta are released, each clipped at C without regard to the target. Their curvature is that of predictions shift + scale x
with x standard normal (Gauss-Hermite sums over sigma'), and a normal prior around theta_0 keeps what the releases say
little about:

    prior       variances tau^2 + (tau m)^2 of the shift, (tau s)^2 of the scale
    precision   J = prior + sum_t H_t^2 / r^2,    r the noise of one release
    estimate    theta_{t+1} = J^-1 (prior theta_0 + sum_t H_t (H_t theta_t - g_t) / r^2)

    share       q = 0.1 of mu^2, K = 3
    clip        C = 0.25 x^(-1/4), x = factor / (n mu sqrt(q)), between 0.3 and 4
    prior       tau = 0.3

Privacy: K Gaussian releases of a clipped mean gradient in coordinates that follow from earlier releases; K, C and the
noise are public.

Source: the two numbers are Platt's (1999); learnt privately and with a prior, ours.
"""

import math

import numpy as np
from numpy.typing import NDArray

from benchmarks.panel_cells import Cell
from benchmarks.panel_halfway import halfway
from benchmarks.panel_rules import whitened
from privopt.planning.whitening import SHARE, WhiteningRule

Floats = NDArray[np.float64]

CALIBRATION, STEPS = 0.1, 3
CLIP_FACTOR, CLIP_POWER, LEAST_CLIP, MOST_CLIP = 0.25, 0.25, 0.3, 4.0
WIDTH = 0.3  # tau
NORMAL, WEIGHTS = np.polynomial.hermite_e.hermegauss(31)
WEIGHTS = WEIGHTS / np.sum(WEIGHTS)
LEAST_SPREAD = 0.14  # of s over the length of w
MOST_SHIFT, MOST_SCALE = 9.0, 6.0  # the second over s


def calibrated(cell: Cell, *, share: float = CALIBRATION) -> Floats:
    """Halfway, then scale and shift of its predictions, learnt for a tenth of the budget, (seeds, d)."""
    params = halfway(cell, beside=share)
    constant = WhiteningRule.of(cell.instance, SHARE).constant
    return params if constant is None else _calibrate(cell, params, constant, share)


def clip_of(noise: float) -> float:
    """C.

    Args:
        noise: x.
    """
    return min(max(CLIP_FACTOR * noise**-CLIP_POWER, LEAST_CLIP), MOST_CLIP)


def curvature(theta: Floats) -> Floats:
    """H: second derivatives of the mean logistic loss by shift and scale, of standard normal u, (2, 2)."""
    at = 1.0 / (1.0 + np.exp(-(theta[0] + theta[1] * NORMAL)))
    weights = at * (1.0 - at) * WEIGHTS
    first, second, third = (float(np.sum(weights * NORMAL**k)) for k in range(3))
    return np.asarray([[first, second], [second, third]])


def _calibrate(cell: Cell, params: Floats, constant: int, share: float) -> Floats:
    rule = WhiteningRule.of(cell.instance, SHARE)
    _, _, spectra, axes = whitened(cell, rule, SHARE)
    moment = np.einsum("sij,sj,skj->sik", axes, spectra, axes)
    noise = float(cell.noise_of_one(1.0, share)[0])
    clip = clip_of(noise)
    deviation = noise * clip * math.sqrt(STEPS)
    drawn = deviation * cell.generator("calibration").standard_normal((STEPS, cell.seeds, 2))
    ones = np.asarray(cell.arrays.targets == 1, float)
    found = np.zeros_like(params)
    for s in range(cell.seeds):
        basis, begun = two_columns(moment[s], params[s], constant)
        rows = np.asarray(cell.rows @ np.asarray(basis, np.float32), np.float64)
        lengths = np.linalg.norm(rows, axis=1)
        prior = np.diag([1.0 / (WIDTH**2 * (1.0 + begun[0] ** 2)), 1.0 / max(WIDTH * begun[1], 0.02) ** 2])
        precision, shown, theta = prior.copy(), prior @ begun, begun
        for t in range(STEPS):
            share_of_ones = 0.5 * (1.0 + np.tanh(0.5 * (rows @ theta)))
            steepest = np.maximum(share_of_ones, 1.0 - share_of_ones) * lengths
            slopes = (share_of_ones - ones) * np.minimum(1.0, clip / np.maximum(steepest, 1e-12))
            gradient = rows.T @ slopes / cell.n + drawn[t, s]
            bend = curvature(theta)
            precision = precision + bend @ bend / deviation**2
            shown = shown + bend @ (bend @ theta - gradient) / deviation**2
            theta = np.linalg.solve(precision, shown)
            most = MOST_SCALE * begun[1] + 0.1
            theta = np.clip(theta, [-MOST_SHIFT, -most], [MOST_SHIFT, most])
        found[s] = basis @ theta
    return found


def two_columns(moment: Floats, params: Floats, constant: int) -> tuple[Floats, Floats]:
    """(b, u) as columns (d, 2), and theta_0 with b theta_0[0] + u theta_0[1] = w.

    Args:
        moment: M, positive semidefinite.
        params: w.
        constant: the number of the column of ones.
    """
    first = np.zeros(len(params))
    first[constant] = 1.0 / math.sqrt(max(float(moment[constant, constant]), 0.02))
    mean = float(first @ moment @ params)
    rest = params - mean * first
    length = math.sqrt(max(float(params @ moment @ params), 1e-6))
    spread = math.sqrt(max(float(rest @ moment @ rest), (LEAST_SPREAD * length) ** 2, 1e-8))
    return np.stack([first, rest / spread], axis=1), np.asarray([mean, spread])
