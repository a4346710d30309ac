"""The intercept of a quantile fit at which the share of targets below it is its level, from released shares.

The rows are mapped to two columns, one that is a released result's prediction and one of ones, so every release is a
clipped gradient like any other; see `planning.quantile_level`.
"""

import math

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from privopt.curator.base import Curator
from privopt.mechanisms.additive import Gaussian
from privopt.planning import quantile_level
from privopt.problems.losses import Quantile
from privopt.queries.gradient import ClippedGradient


def at_level(curator: Curator, loss: Quantile, params: Array, constant: int, *, noise: Gaussian) -> Array:
    """The parameters with the intercept moved, (d,).

    Args:
        curator: answers K gradients of two entries.
        loss: the pinball loss that was minimised, with its corner made smooth; here it has its corner.
        params: the result, released.
        constant: the number of the column of ones.
        noise: of each of the gradients.
    """
    found = np.nan_to_num(np.asarray(params, np.float64))
    longest = curator.public.row_bound * max(float(np.linalg.norm(found)), 1e-3)
    thin = (
        quantile_level.THIN / longest
    )  # the first column, a prediction times this, adds nothing to a length of 1
    basis = np.zeros((len(found), 2))
    basis[:, 0], basis[constant, 1] = thin * found, 1.0
    corner = Quantile(loss.level)
    clip = corner.facts.lipschitz * math.hypot(1.0, quantile_level.THIN) * (1.0 + 1e-6)
    curator.announce("level of the quantile")
    view = curator.view(basis, curator.public.row_bound * float(np.linalg.norm(basis)) * (1.0 + 1e-6))
    low, high = -quantile_level.FARTHEST, quantile_level.FARTHEST
    for _ in range(quantile_level.steps(is_private=noise.noise_multiplier > 0)):
        at = jnp.asarray([1.0 / thin, 0.5 * (low + high)])
        slope = view.release(ClippedGradient(loss=corner, at=at, clip=clip), noise)[1]
        low, high = quantile_level.halved(low, high, float(slope))
    found[constant] += 0.5 * (low + high)
    return jnp.asarray(found)
