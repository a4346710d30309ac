"""Noise that follows a formula, and passes in the order of the records: for comparisons with plain references."""

import numpy as np
from tests.support.formula_noise import FormulaNoise


class OrderedNoise(FormulaNoise):
    """The places of a pass are those of the records."""

    def order(self, count):
        return np.arange(count)


def plain_pass(
    slope, rows, targets, start, *, clip, step, ridge=0.0, lasso=0.0, radius=np.inf, batches=None, noise=None
):
    """One pass, written from the paper: the iterates after each step."""
    w, visited, first = np.array(start, float), [], 0
    for t, size in enumerate(np.ones(len(rows), int) if batches is None else batches):
        gradient = np.zeros_like(w)
        for a, y in zip(rows[first : first + size], targets[first : first + size], strict=True):
            g = slope(a @ w, y) * a
            gradient += g * min(1.0, clip / max(np.linalg.norm(g), 1e-300))
        first += size
        w = w - step * (gradient / size + ridge * w + (0.0 if noise is None else noise[t]))
        w = np.sign(w) * np.maximum(np.abs(w) - step * lasso, 0.0)
        w = w * min(1.0, radius / max(np.linalg.norm(w), 1e-300))
        visited.append(w)
    return np.array(visited)


def logistic_slope(prediction, target):
    return -target / (1.0 + np.exp(target * prediction))
