"""The rows by which solvers on l1 balls are compared with reference values."""

import numpy as np

from privopt.mechanisms.noise import NoiseSource


def reference_signs(n):
    """a_ij = sin(i + 2j + 1), n x 3, and labels sign(cos i), counted from 0."""
    i, j = np.arange(n)[:, None], np.arange(3)[None, :]
    return np.sin(i + 2 * j + 1), np.sign(np.cos(np.arange(n)))


def logistic_loss(rows, labels, params):
    """The mean logistic loss."""
    return float(np.mean(np.logaddexp(0.0, -labels * (rows @ np.asarray(params)))))


class InOrder(NoiseSource):
    """Units enter blocks in the order of their positions."""

    @property
    def units_generator(self):
        return _Identity()


class _Identity:
    def permutation(self, count):
        return np.arange(count)
