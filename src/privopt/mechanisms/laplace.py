"""The Laplace mechanism."""

from dataclasses import dataclass
from typing import ClassVar, SupportsFloat

import jax
import numpy as np
from numpy.typing import ArrayLike, NDArray

from privopt.ledger.events import Event, LaplaceEvent, NonPrivateEvent
from privopt.mechanisms.base import Mechanism, Sensitivity, check_multiplier, host_release, traced_release
from privopt.mechanisms.noise import Noise, Shape


@dataclass(frozen=True)
class Laplace(Mechanism):
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

    noise_multiplier: float

    def __post_init__(self) -> None:
        check_multiplier(self.noise_multiplier)

    def event(self) -> Event:
        """One Laplace release, or a release that nothing protects."""
        return LaplaceEvent(self.noise_multiplier) if self.noise_multiplier > 0 else NonPrivateEvent()

    def noise_shape(self, value_shape: Shape) -> Shape:
        """One Laplace draw a coordinate."""
        return value_shape

    def draw(self, noise: Noise, shape: Shape) -> NDArray[np.float64]:
        """Laplace draws of scale 1; zeros, without touching the stream, when the noise is off."""
        return noise.laplace(shape) if self.noise_multiplier > 0 else np.zeros(shape)

    def combine(
        self, private_value: jax.Array, sensitivity: Sensitivity, standard_noise: jax.Array
    ) -> jax.Array:
        """Scale the noise and add it, in pure JAX."""
        return traced_release(private_value, sensitivity, self.noise_multiplier, standard_noise)

    def release(
        self, noise: Noise, private_value: ArrayLike, sensitivity: SupportsFloat
    ) -> NDArray[np.float64]:
        """Release the value plus Laplace noise."""
        standard_noise = self.draw(noise, self.noise_shape(np.shape(private_value)))
        return host_release(private_value, sensitivity, self.noise_multiplier, standard_noise)
