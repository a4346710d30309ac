"""The Gaussian and the Laplace mechanism: independent noise added to every coordinate."""

import abc
from dataclasses import dataclass
from typing import ClassVar, SupportsFloat

import numpy as np
from numpy.typing import ArrayLike, NDArray

from privopt.later import Array
from privopt.ledger.events import Event, GaussianEvent, LaplaceEvent, NonPrivateEvent
from privopt.mechanisms.base import (
    Mechanism,
    Sensitivity,
    check_multiplier,
    host_release,
    noise_exponent,
    spacing_ratio,
    traced_release,
)
from privopt.mechanisms.noise import Draws, Noise, Shape


@dataclass(frozen=True)
class AdditiveNoise(Mechanism):
    """Add independent noise of scale noise_multiplier * sensitivity to every coordinate.

    Args:
        noise_multiplier: scale of the noise over the sensitivity, no unit; 0 turns the noise off.
    """

    noise_multiplier: float

    def __post_init__(self) -> None:
        check_multiplier(self.noise_multiplier)

    @property
    def exact(self) -> bool:
        """It is: the release is on a lattice, see `lattice`."""
        return True

    def require_room(self, entries: int) -> None:
        """See `Mechanism.require_room`."""
        if self.noise_multiplier > 0:
            spacing_ratio(self.noise_multiplier, entries, self.norm)

    @abc.abstractmethod
    def standard(self, noise: Noise, shape: Shape) -> Draws:
        """Independent noise of scale 1: integers for a lattice from an exact source, float64 from another."""

    def noise_shape(self, value_shape: Shape) -> Shape:
        """One draw a coordinate."""
        return value_shape

    def draw(self, noise: Noise, shape: Shape) -> Draws:
        """Noise of scale 1; zeros, without touching the stream, when the noise is off."""
        if self.noise_multiplier > 0:
            return self.standard(noise, shape)
        return np.zeros(shape, np.int64) if noise.exact else np.zeros(shape)

    def combine(self, private_value: Array, sensitivity: Sensitivity, standard_noise: Array) -> Array:
        """Scale the noise and add it, in pure JAX."""
        return traced_release(
            private_value, sensitivity, self.noise_multiplier, standard_noise, norm=self.norm
        )

    def release(
        self, noise: Noise, private_value: ArrayLike, sensitivity: SupportsFloat
    ) -> NDArray[np.float64]:
        """Release the value plus noise."""
        standard_noise = self.draw(noise, self.noise_shape(np.shape(private_value)))
        return host_release(private_value, sensitivity, self.noise_multiplier, standard_noise, norm=self.norm)


@dataclass(frozen=True)
class Gaussian(AdditiveNoise):
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

    def event(self) -> Event:
        """One Gaussian release, or a release that nothing protects."""
        return GaussianEvent(self.noise_multiplier) if self.noise_multiplier > 0 else NonPrivateEvent()

    def standard(self, noise: Noise, shape: Shape) -> Draws:
        """Standard normals."""
        if noise.exact:
            return noise.rounded_normal(shape, noise_exponent(self.noise_multiplier))
        return noise.normal(shape)


@dataclass(frozen=True)
class Laplace(AdditiveNoise):
    """Add independent Laplace noise of scale b = noise_multiplier * sensitivity to a value of bounded l1 sensitivity.

    Pure epsilon-DP with epsilon = 1 / noise_multiplier under the relation that the sensitivity was stated for.

    Args:
        noise_multiplier: noise scale b (standard deviation over sqrt 2) over the l1 sensitivity; 0 turns it off.
    Privacy:
        The value over its sensitivity moves by at most 1 in the l1 norm.
    Source:
        Dwork, McSherry, Nissim, Smith 2006, Proposition 1.
    """

    norm: ClassVar[str] = "l1"

    def event(self) -> Event:
        """One Laplace release, or a release that nothing protects."""
        return LaplaceEvent(self.noise_multiplier) if self.noise_multiplier > 0 else NonPrivateEvent()

    def standard(self, noise: Noise, shape: Shape) -> Draws:
        """Laplace draws of scale 1."""
        if noise.exact:
            return noise.rounded_laplace(shape, noise_exponent(self.noise_multiplier))
        return noise.laplace(shape)
