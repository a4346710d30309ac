"""Posterior descent in plain NumPy, step by step as it is specified, on released gradients that are given.

Nothing is shared with the library: sums over the grid are loops, weighted means are kept as sums, and the run is not
shifted to its start.
"""

import math

import numpy as np

TAUS = [1e-4 * (1e9) ** (k / 45) for k in range(46)]  # of tau^2
PRIORS = (0.0, 0.5, 1.0)


def coordinates(moment, gram_noise, floor, row_bound):
    """h and U of a released moment: large eigenvalues lose what noise pushed them out by, the others share the rest."""
    d = len(moment)
    values, axes = np.linalg.eigh(moment)
    values = np.minimum(np.maximum(values, 0.0), 2.0 * row_bound**2)
    out = [g > 0 and g * g > 2 * d * gram_noise**2 for g in values]
    h = [
        0.5 * (g + math.sqrt(g * g - 2 * d * gram_noise**2)) if big else 0.0
        for g, big in zip(values, out, strict=True)
    ]
    trace = min(max(sum(values), row_bound**2 / 4), row_bound**2)
    rest = max(trace - sum(h), 0.0) / max(1, d - sum(out))
    return np.array([one if big else rest for one, big in zip(h, out, strict=True)]), axes


def shrunk(b, p, bend, scale):
    """(share of signal in each direction, tau^2 and weight of each prior)."""
    middle = math.exp(sum(math.log(one) for one in scale) / len(scale))
    tops, taus, kept = [], [], []
    for alpha in PRIORS:
        g = (scale / middle) ** alpha
        likelihoods = []
        for tau in TAUS:
            spread = [a * a * tau * one + p for a, one in zip(bend, g, strict=True)]
            likelihoods.append(
                -0.5 * sum(math.log(one) + x * x / one for one, x in zip(spread, b, strict=True))
            )
        best = int(np.argmax(likelihoods))
        tops.append(likelihoods[best])
        taus.append(TAUS[best])
        kept.append(bend**2 * TAUS[best] * g / (bend**2 * TAUS[best] * g + p))
    weights = np.exp(np.array(tops) - max(tops))
    weights /= weights.sum()
    gain = sum(weight * share for weight, share in zip(weights, kept, strict=True))
    return np.maximum(gain, 0.001), np.array(taus), weights


def run(moment, gradients, *, gram_noise, floor, row_bound, noise, strengths, constant, start):
    """Parameters w, the last gains, tau^2 and weights of the priors, and H.

    Args:
        moment: M, (d, d), released.
        gradients: released in the coordinates `U diag(h + f)^-1/2 U^T`, (T, d).
        gram_noise, floor, row_bound: of the whitening.
        noise: s of one released gradient.
        strengths: of the ridge on each column of w.
        constant: the column of ones, or None.
        start: w at the start.
    """
    h, axes = coordinates(moment, gram_noise, floor, row_bound)
    scale, steps = h + floor, len(gradients)
    inward = np.diag(np.sqrt(scale)) @ axes.T  # v = inward w, in the eigenbasis
    outward = axes @ np.diag(1.0 / np.sqrt(scale))
    d = np.maximum(h / scale, 0.05)
    strongest = max(strengths)
    bend = d / 4 + strongest / scale
    heat = min(10.0, 16 * noise**2 * d.sum() / 0.05)
    origin = inward @ start
    v = v_prev = z = origin
    late, weights = np.zeros_like(v), 0.0
    y_sum, u_sum, total, squares = np.zeros_like(v), np.zeros_like(v), 0.0, 0.0
    gain = taus = shares = None
    for t in range(steps):
        u = v + 0.6 * (v - v_prev)
        w = outward @ u
        y = axes.T @ gradients[t] + outward.T @ (strengths * w)
        total, squares = total + t + 1, squares + (t + 1) ** 2 * noise**2
        p = squares / total**2
        y_sum, u_sum = y_sum + (t + 1) * y, u_sum + (t + 1) * u
        b = bend * (u_sum / total - origin) - y_sum / total
        gain, taus, shares = shrunk(b, p, bend, scale)
        rho = np.minimum(bend * (1 / gain - 1), min(3 * math.sqrt(p), 2.5))
        m = 0.0
        if constant is not None:
            m = (moment @ w)[constant] / math.sqrt(max(moment[constant, constant], 1e-3))
        k = 1 / math.sqrt(1 + math.pi / 8 * max((d * u * u).sum() - m * m, 0.0))
        at = min(max(k * m, -50.0), 50.0)
        c0 = max(k * math.exp(-at) / (1 + math.exp(-at)) ** 2, 0.08)
        cool = (1 + heat * 0.25 / c0 * (t + 1) / 4) ** -0.67
        eta = 1.25 * cool / (c0 + strongest * max(1 / scale) + rho)
        v_prev, v = v, u - eta * (y + rho * (u - z))
        late, weights = late + (t + 1) ** 2 * v, weights + (t + 1) ** 2
        z = z + (v - z) / steps
    return outward @ (late / weights), gain, taus, shares, heat
