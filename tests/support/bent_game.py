"""The games of the reference values: u_ij = sin(i + 2 j + 1), v_ij = cos(2 i + j + 1), counted from 0."""

import jax.numpy as jnp
import numpy as np

from privopt.problems.constraints import Simplex
from privopt.problems.saddle import SaddleProblem

U = np.array([[np.sin(i + 2 * j + 1) for j in range(3)] for i in range(12)])
V = np.array([[np.cos(2 * i + j + 1) for j in range(4)] for i in range(12)])
ROWS = np.hstack([U, V])
STEEPNESS = (-0.5, 1.0, -1.5, 2.0)


def bent_payoff(x, y, features, target):
    """sum over k of y_k log(1 + exp(s_k u . x + v_k)): convex in x, linear in y."""
    del target
    u, v = features[:3], features[3:]
    return y @ jnp.logaddexp(0.0, jnp.asarray(STEEPNESS) * (u @ x) + v)


BENT = SaddleProblem(bent_payoff, x=Simplex(), y=Simplex(), sizes=(3, 4))
