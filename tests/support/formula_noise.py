"""Noise that follows a formula, so that a run can be compared with reference values."""

from types import SimpleNamespace

import numpy as np


def cosines(k, shape):
    """Entry j of the k-th draw, k = 0, 1, ..., is cos(1 + k + 0.7 j)."""
    return np.cos(1 + k + 0.7 * np.arange(np.prod(shape))).reshape(shape)


def silence(k, shape):
    return np.zeros(shape)


class FormulaNoise:
    """A source of noise whose k-th draw is `formula(k, shape)`, whatever the law; blocks are drawn in order."""

    seeded, exact = True, False
    units_generator = SimpleNamespace(permutation=np.arange)

    def __init__(self, formula=cosines):
        self._formula, self._drawn = formula, 0

    def normal(self, shape):
        self._drawn += 1
        return self._formula(self._drawn - 1, shape)

    gumbel = normal
