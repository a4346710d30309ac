"""The Gaussian mechanism."""

from dataclasses import dataclass
from typing import SupportsFloat

import jax
import numpy as np
from numpy.typing import ArrayLike, NDArray

from privopt.ledger.events import Event, GaussianEvent, NonPrivateEvent
from privopt.mechanisms.base import Mechanism, Sensitivity, check_multiplier, host_release, traced_release
from privopt.mechanisms.noise import Noise, Shape


@dataclass(frozen=True)
class Gaussian(Mechanism):
    """Add N(0, s^2 I), s = noise_multiplier * sensitivity, to a value of bounded l2 sensitivity.

    Exactly mu-Gaussian-DP with mu = 1 / noise_multiplier, hence rho-zCDP with rho = 1 / (2 noise_multiplier^2), under
    the neighbouring relation that the sensitivity was stated for.

    Args:
        noise_multiplier: noise standard deviation over the l2 sensitivity, no unit; 0 turns the noise off.
    Privacy:
        The value over its sensitivity moves by at most 1 in the l2 norm. Symmetric matrices are released through an
        isometric vector, which is the query's business.
    Source:
        Dong, Roth, Su 2022, Theorem 1 (Gaussian DP); Bun and Steinke 2016, Proposition 1.6 (zCDP).
    """

    noise_multiplier: float

    def __post_init__(self) -> None:
        check_multiplier(self.noise_multiplier)

    def event(self) -> Event:
        """One Gaussian release, or a release that nothing protects."""
        return GaussianEvent(self.noise_multiplier) if self.noise_multiplier > 0 else NonPrivateEvent()

    def noise_shape(self, value_shape: Shape) -> Shape:
        """One normal a coordinate."""
        return value_shape

    def draw(self, noise: Noise, shape: Shape) -> NDArray[np.float64]:
        """Standard normals; zeros, without touching the stream, when the noise is off."""
        return noise.normal(shape) if self.noise_multiplier > 0 else np.zeros(shape)

    def combine(
        self, private_value: jax.Array, sensitivity: Sensitivity, standard_noise: jax.Array
    ) -> jax.Array:
        """Scale the noise and add it, in pure JAX."""
        return traced_release(private_value, sensitivity, self.noise_multiplier, standard_noise)

    def release(
        self, noise: Noise, private_value: ArrayLike, sensitivity: SupportsFloat
    ) -> NDArray[np.float64]:
        """Release the value plus Gaussian noise."""
        standard_noise = self.draw(noise, self.noise_shape(np.shape(private_value)))
        return host_release(private_value, sensitivity, self.noise_multiplier, standard_noise)
