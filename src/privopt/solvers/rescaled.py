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
from privopt.planning.shrinkage import NoisePath, shrinkage
from privopt.problems.losses import GLMLoss
from privopt.problems.problem import Problem
from privopt.queries.gradient import ClippedGradient


def rescaled(
    curator: Curator,
    problem: Problem,
    params: Array,
    rows: RowSpectrum,
    *,
    path: NoisePath | None,
    clip: float,
    noise: Gaussian,
) -> Array:
    """The parameters with their predictions scaled and shifted, (d,).

    Args:
        curator: answers `rescaling.STEPS` gradients of two entries.
        problem: of a generalised linear loss, with a ridge or no penalty.
        params: the result, released.
        rows: the spectrum of the released second moment.
        path: of the noise of the descent that found them; None if it is not known, then nothing is shrunk.
        clip: C of the gradients, public.
        noise: of each of them.
    """
    loss, columns = problem.loss, rescaling.two_columns(rows, params)
    assert isinstance(loss, GLMLoss)
    kept = 1.0 if path is None else shrinkage(path, columns.found, loss)
    basis = jnp.asarray(columns.basis)
    ridge = basis.T @ problem.regulariser.gradient(basis)
    estimate = rescaling.Estimate.before(columns.found, kept, loss, np.asarray(ridge, np.float64))
    longest = curator.public.row_bound * float(np.linalg.norm(columns.basis)) * (1.0 + 1e-6)
    curator.announce("scale and shift of the predictions")
    view = curator.view(columns.basis, longest)
    for _ in range(rescaling.STEPS):
        query = ClippedGradient(
            loss=loss,
            at=jnp.asarray(estimate.theta),
            clip=clip,
            balanced=rescaling.constants_of(loss).two_classes,
        )
        gradient = view.release(query, noise)
        deviation = noise.noise_multiplier * float(query.sensitivity(view.public))
        estimate = estimate.after(gradient, deviation)
    return jnp.asarray(columns.basis @ estimate.theta)
