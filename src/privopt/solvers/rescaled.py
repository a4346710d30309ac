"""Scale and shift of a result's predictions, learnt from gradients by these two numbers alone.

The rows are mapped to two columns that follow from the result and the released second moment, so every release is a
clipped gradient like any other; see `planning.rescaling` for what is made of them.
"""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from privopt.curator.base import Curator
from privopt.mechanisms.additive import Gaussian
from privopt.planning import rescaling
from privopt.planning.coordinates import RowSpectrum
from privopt.problems.problem import Problem
from privopt.queries.gradient import ClippedGradient


def rescaled(
    curator: Curator, problem: Problem, params: Array, rows: RowSpectrum, *, clip: float, noise: Gaussian
) -> Array:
    """The parameters with their predictions scaled and shifted, (d,).

    Args:
        curator: answers `rescaling.STEPS` gradients of two entries.
        problem: its loss; the penalty plays no part, the prior around the result does.
        params: the result, released.
        rows: the spectrum of the released second moment.
        clip: C of the gradients, public.
        noise: of each of them.
    """
    found = rescaling.two_columns(rows, params)
    longest = curator.public.row_bound * float(np.linalg.norm(found.basis)) * (1.0 + 1e-6)
    curator.announce("scale and shift of the predictions")
    view, estimate = curator.view(found.basis, longest), rescaling.Estimate.before(found.start)
    for _ in range(rescaling.STEPS):
        query = ClippedGradient(loss=problem.loss, at=jnp.asarray(estimate.theta), clip=clip, balanced=True)
        gradient = view.release(query, noise)
        deviation = noise.noise_multiplier * float(query.sensitivity(view.public))
        estimate = estimate.after(gradient, deviation)
    return jnp.asarray(found.basis @ estimate.theta)
