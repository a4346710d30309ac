"""The forty records and the loss |max(u, 0) - b| that reference values of non-smooth methods are computed on."""

from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np

from privopt.problems.glm import GLMLoss, LossFacts


def reference_rows():
    """Rows of norm 1, and targets in [0, 1.5]."""
    i, j = np.arange(1, 41)[:, None], np.arange(1, 4)[None, :]
    rows = np.cos(0.7 * i * j) + 0.1 * j
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    return rows, 1.5 * np.abs(np.sin(np.arange(1, 41)))


@dataclass(frozen=True)
class ReluAbsolute(GLMLoss):
    """|max(u, 0) - b|, neither smooth nor convex; slope 0 for u <= 0, sign(u - b) above."""

    @property
    def facts(self):
        return LossFacts(name="relu absolute", lipschitz=1.0)

    def value(self, prediction, target):
        return jnp.abs(jnp.maximum(prediction, 0.0) - target)

    def slope(self, prediction, target):
        return jnp.where(prediction > 0.0, jnp.sign(prediction - target), 0.0)

    def predict_mean(self, prediction):
        return jnp.maximum(prediction, 0.0)


def formula(k, shape):
    """Coordinate j of the k-th draw, both from 1: cos(k + 2 j)."""
    return np.cos(k + 1 + 2.0 * (np.arange(np.prod(shape)) + 1)).reshape(shape)
