"""Objective perturbation: the noise sits inside an argmin, and the released value is the minimiser.

    J(w) = sum_i phi_c(a_i . w, y_i) + Lambda |w|^2 / 2 + b . w,   b ~ N(0, sigma^2 I),

phi_c a generalised-linear loss whose gradient is clipped to C, convex by its formula. With one-signed slopes phi' and
|phi''| |a|^2 <= beta, the exact minimiser satisfies, S the factor of the relation, in both directions

    delta(epsilon) <= GaussianDelta(mu = S C / sigma, epsilon - c),   c = ln(1 + beta / Lambda),   epsilon >= c.

The map from noise to minimiser is a bijection: b(w) = -(sum_i clip_C(grad_i(w)) + Lambda w).

Source:
    Kifer, Smith, Thakurta 2012, Algorithm 1; Redberg, Koskela, Wang 2023 for its privacy profile, sharpened for losses
    whose slope has one sign.
"""

import math
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from privopt.door import Door
from privopt.ledger.events import Event, NonPrivateEvent, ShiftedGaussianEvent
from privopt.mechanisms.base import Mechanism
from privopt.problems.glm import ScalarLoss
from privopt.public import Public
from privopt.queries.base import ArgminQuery, query, static
from privopt.result import Result, Status


@query
class PerturbedMinimiser(ArgminQuery):
    """The minimiser of J as a function of the noise.

    Attributes:
        loss: with a slope of one sign and bounded curvature.
        clip: C, of one record's gradient.
        ridge: Lambda, on the scale of the sum.
    Privacy:
        At a fixed w, b(w) moves by the difference of two clipped gradients: l2 sensitivity factor * C. The change of
        volume is the mechanism's business, see `mechanism`.
    """

    loss: ScalarLoss = static()
    clip: float = static()
    ridge: float = static()

    def sensitivity(self, public: Public, sampling=None):
        del sampling
        return public.relation.factor * self.clip

    def shape(self, public: Public) -> tuple[int, ...]:
        return (public.d,)

    def mechanism(self, noise_multiplier: float, public: Public) -> "ObjectivePerturbation":
        """The mechanism that fits this query; the curvature bound is that of the loss formula and the row bound."""
        if not self.loss.monotone or not math.isfinite(self.loss.curvature):
            raise ValueError(f"{self.loss.name} has no slope of one sign and bounded curvature.")
        curvature = self.loss.curvature * public.row_bound**2
        return ObjectivePerturbation(
            noise_multiplier=noise_multiplier, shift=math.log1p(curvature / self.ridge), size=public.d
        )

    def gradient_sum(self, private_features, private_targets, solution):
        """The sum of the records' clipped gradients."""
        private_rows = jnp.asarray(private_features).astype(jnp.float64)
        private_caps = self.clip / jnp.maximum(jnp.sqrt(jnp.sum(private_rows**2, axis=1)), 1e-300)
        private_slopes = self.loss.slope(private_rows @ solution, jnp.asarray(private_targets))
        return private_rows.T @ jnp.clip(private_slopes, -private_caps, private_caps)

    def implied_noise(self, private_features, private_targets, solution):
        private_sum = self.gradient_sum(private_features, private_targets, solution)
        return -(private_sum + self.ridge * solution)

    def minimise(self, private_features, private_targets, noise):
        """Newton with halving on the residual b - b(w), until it is below 1e-12 C n.

        Where ten halvings do not lower the residual (at a kink of the clip) a gradient step is taken: it contracts.
        """
        private_rows, private_targets = np.asarray(private_features, np.float64), np.asarray(private_targets)
        data = (self, private_rows, private_targets, jnp.asarray(noise))
        most = self.loss.curvature * np.sum(private_rows**2) + self.ridge  # of the Jacobian
        w = jnp.zeros(private_rows.shape[1], jnp.float64)
        private_error = _residual(*data, w)
        while (private_size := jnp.linalg.norm(private_error)) > 1e-12 * self.clip * len(private_targets):
            private_newton = jnp.linalg.solve(_jacobian(*data, w), private_error)
            for step in 2.0 ** -np.arange(10.0):
                private_trial = _residual(*data, w - step * private_newton)
                if jnp.linalg.norm(private_trial) < (1.0 - 0.1 * step) * private_size:
                    w, private_error = w - step * private_newton, private_trial
                    break
            else:
                w = w - private_error / most
                private_error = _residual(*data, w)
        return w


@jax.jit
def _residual(query, private_rows, private_targets, noise, w):
    return noise - query.implied_noise(private_rows, private_targets, w)


_jacobian = jax.jit(jax.jacfwd(_residual, argnums=4))


@dataclass(frozen=True, kw_only=True)
class ObjectivePerturbation(Mechanism):
    """Draws b ~ N(0, sigma^2 I) and releases the minimiser that belongs to it.

    Attributes:
        noise_multiplier: sigma over the l2 sensitivity S C of the implied noise.
        shift: c; one record changes the volume element of w -> b(w) by a factor within e^{+-c}.
        size: coordinates of the noise.
    Privacy:
        See the module: mu = 1 / noise_multiplier at epsilon - shift. The minimiser is computed to a residual of
        1e-12 C n, which no output noise covers here; a solver for users adds it.
    """

    noise_multiplier: float
    shift: float
    size: int

    def event(self) -> Event:
        if self.noise_multiplier == 0:
            return NonPrivateEvent()
        return ShiftedGaussianEvent(1.0 / self.noise_multiplier, self.shift)

    def noise_shape(self, value_shape):
        del value_shape
        return (self.size,)

    def draw(self, noise, shape):
        return noise.normal(shape) if self.noise_multiplier > 0 else np.zeros(shape)

    def combine(self, private_value, sensitivity, standard_noise):
        raise TypeError("the noise sits inside an argmin: release it by `release`, not in a compiled loop.")

    def release(self, noise, private_value, sensitivity):
        return private_value(self.noise_multiplier * sensitivity * self.draw(noise, (self.size,)))


@dataclass(frozen=True, kw_only=True)
class PerturbedRegression:
    """The solver of this file: one release.

    Attributes:
        loss: see `PerturbedMinimiser`.
        clip: C.
        ridge: lambda, on the scale of the mean; Lambda = n lambda.
        noise_multiplier: sigma / (S C).
    Guarantee:
        The curve of the module's docstring, for any records.
    """

    loss: ScalarLoss
    clip: float
    ridge: float
    noise_multiplier: float

    def query(self, public: Public) -> PerturbedMinimiser:
        return PerturbedMinimiser(loss=self.loss, clip=self.clip, ridge=public.n * self.ridge)

    def event(self, public: Public) -> Event:
        return self.query(public).mechanism(self.noise_multiplier, public).event()

    def solve(self, door: Door) -> Result:
        minimiser = self.query(door.public)
        mechanism = minimiser.mechanism(self.noise_multiplier, door.public)
        solution: Array = door.release(minimiser, mechanism)
        return Result(solution, Status.FINISHED, door.transcript)
