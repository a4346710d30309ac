"""The stages of the default beside its second moment and its descent: what each spends, and those that end a fit.

Stages before the descent find what it is relative to (the level of counts); stages after it correct the predictions of
the result, each by a few released gradients of two numbers.
"""

import math
from typing import NamedTuple

import numpy as np

from privopt.curator.base import Curator
from privopt.later import Array
from privopt.mechanisms.additive import Gaussian
from privopt.planning import counts
from privopt.planning.coordinates import RowSpectrum
from privopt.planning.shrinkage import STEPS, Estimate, NoisePath, constants_of, shrinkage, two_columns
from privopt.precision import run_arrays
from privopt.problems.losses import GLMLoss, Quantile
from privopt.problems.problem import Problem
from privopt.queries.slopes import ClippedGradient


class Stage(NamedTuple):
    """A stage that releases beside the second moment and the descent.

    Attributes:
        share: of mu^2, for all its releases; 0 where it does not run.
        releases: how many, all of one Gaussian noise.
        is_first: whether it runs before the second moment; else after the descent.
    """

    share: float
    releases: int
    is_first: bool = False

    def noise(self, noise_multiplier: float, share: float) -> Gaussian:
        """The noise of each release, given that of the second moment and its share.

        z spends `share` of mu^2, so each of K releases that spend q together has z sqrt(K share / q).
        """
        return Gaussian(noise_multiplier * math.sqrt(share / self.share * self.releases))


# ---- The intercept of a quantile fit at which the share of targets below it is its level -------------------
# The rows are mapped to two columns: the released model's prediction (scaled down) and the column of ones. The slope by
# the second is the share of targets below the fit less the level, so a release is a clipped gradient of two entries;
# see `planning.counts`.
def at_level(curator: Curator, loss: Quantile, params: Array, constant: int, *, noise: Gaussian) -> Array:
    """The parameters (d,) with the intercept moved by bisection, one released gradient per halving.

    Args:
        curator: answers K gradients of two entries, K by `planning.counts`.
        loss: the pinball loss that was minimised; its smoothing is left out here.
        params: the released result, (d,).
        constant: the index of the column of ones.
        noise: of each of the gradients.
    """
    found = np.nan_to_num(np.asarray(params, np.float64))
    longest = curator.public.row_bound * max(float(np.linalg.norm(found)), 1e-3)
    # The column of predictions times this is at most THIN long, so it adds next to nothing to the clip and sensitivity.
    thin = counts.THIN / longest
    basis = np.zeros((len(found), 2))
    basis[:, 0], basis[constant, 1] = thin * found, 1.0
    corner = Quantile(loss.level)
    clip = corner.facts.lipschitz * math.hypot(1.0, counts.THIN) * (1.0 + 1e-6)
    curator.announce("level of the quantile")
    view = curator.view(basis, curator.public.row_bound * float(np.linalg.norm(basis)) * (1.0 + 1e-6))
    low, high = -counts.FARTHEST, counts.FARTHEST
    for _ in range(counts.steps(is_private=noise.noise_multiplier > 0)):
        at = run_arrays().asarray([1.0 / thin, 0.5 * (low + high)])
        slope = view.release(ClippedGradient(loss=corner, at=at, clip=clip), noise)[1]
        low, high = counts.halved(low, high, float(slope))
    found[constant] += 0.5 * (low + high)
    return run_arrays().asarray(found)


# ---- Scale and shift of a result's predictions, learnt from gradients by these two numbers alone -----------
# The rows are mapped to two columns that follow from the result and the released second moment, so every release is a
# clipped gradient of two entries; `planning.shrinkage` has the columns, the prior and the update of the estimate.
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
    """The parameters (d,) with their predictions scaled and shifted.

    Args:
        curator: answers `STEPS` gradients of two entries.
        problem: of a generalised-linear loss, with a ridge or no penalty.
        params: the released result, (d,).
        rows: the spectrum of the released second moment.
        path: how the noise of the descent entered the result; None if it is not known, then nothing is shrunk.
        clip: C, the clipping norm of the gradients by (shift, scale); public.
        noise: of each of these gradients.
    """
    loss, columns = problem.loss, two_columns(rows, params)
    assert isinstance(loss, GLMLoss)
    kept = 1.0 if path is None else shrinkage(path, columns.found, loss)
    basis = run_arrays().asarray(columns.basis)
    ridge = basis.T @ problem.regulariser.gradient(basis)
    estimate = Estimate.before(columns.found, kept, loss, np.asarray(ridge, np.float64))
    longest = curator.public.row_bound * float(np.linalg.norm(columns.basis)) * (1.0 + 1e-6)
    curator.announce("scale and shift of the predictions")
    view = curator.view(columns.basis, longest)
    for _ in range(STEPS):
        query = ClippedGradient(
            loss=loss,
            at=run_arrays().asarray(estimate.theta),
            clip=clip,
            balanced=constants_of(loss).two_classes,
        )
        gradient = view.release(query, noise)
        deviation = noise.noise_multiplier * float(query.sensitivity(view.public))
        estimate = estimate.after(gradient, deviation)
    return run_arrays().asarray(columns.basis @ estimate.theta)
