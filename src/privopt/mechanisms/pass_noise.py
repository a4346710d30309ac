"""The secrets of one pass over the records: its order, and noise at every step or at its end."""

from dataclasses import dataclass
from typing import Any, SupportsFloat

import jax
import numpy as np
from numpy.typing import NDArray

from privopt.ledger.events import Event, GaussianEvent, NonPrivateEvent
from privopt.mechanisms.additive import Gaussian
from privopt.mechanisms.base import Mechanism, Sensitivity, check_multiplier, checked_sensitivity
from privopt.mechanisms.noise import Noise, Shape


@dataclass(frozen=True, kw_only=True)
class PassNoise(Mechanism):
    """Draw a random order of the places, walk through them, and add Gaussian noise at each step or to the result.

    It is made by the query whose pass it leads (`PassQuery`), and the curator refuses it with any other.

    Attributes:
        noise_multiplier: standard deviation of the noise over the query's sensitivity; 0 turns it off.
        places: n, the length of the order; a public number.
        size: coordinates of the noise.
        inside: whether there is noise at every step, and none at the end.
    Privacy:
        The order is independent of the data. Noise at the end hides a value that moves by at most the sensitivity, for
        every order. Noise at the steps hides the end of a pass whose sensitivity bounds how far the noise must be moved
        for the same end, as an adaptive composition of Gaussian mechanisms: see `proofs.one_pass`. Both cost one
        Gaussian release of this multiplier.
    """

    noise_multiplier: float
    places: int
    size: int
    inside: bool

    def __post_init__(self) -> None:
        check_multiplier(self.noise_multiplier)

    @property
    def exact(self) -> bool:
        """Noise at the end is; noise at the steps is in the middle of float64 arithmetic."""
        return not self.inside

    def require_room(self, entries: int) -> None:
        """See `Mechanism.require_room`."""
        if not self.inside:
            Gaussian(self.noise_multiplier).require_room(entries)

    def event(self) -> Event:
        """One Gaussian release."""
        return GaussianEvent(self.noise_multiplier) if self.noise_multiplier > 0 else NonPrivateEvent()

    def noise_shape(self, value_shape: Shape) -> Shape:
        """That of the value: the noise of one step, or of the end."""
        return value_shape

    def draw(self, noise: Noise, shape: Shape) -> NDArray[np.float64]:
        """Standard normals; zeros, without touching the stream, when the noise is off."""
        return noise.normal(shape) if self.noise_multiplier > 0 else np.zeros(shape)

    def combine(
        self, private_value: jax.Array, sensitivity: Sensitivity, standard_noise: jax.Array
    ) -> jax.Array:
        """Refused: a pass cannot be computed inside a compiled loop."""
        del private_value, sensitivity, standard_noise
        raise TypeError("this is the noise of a whole pass: use `release`, not a compiled loop.")

    def release(self, noise: Noise, private_value: Any, sensitivity: SupportsFloat) -> NDArray[np.float64]:
        """Draw the order, and release the end; `private_value(order, draw)` computes it."""
        scale = checked_sensitivity(sensitivity, noisy=self.noise_multiplier > 0)
        order = noise.order(self.places)
        stddev = self.noise_multiplier * scale if self.noise_multiplier > 0 else 0.0

        def at_steps(count: int) -> NDArray[np.float64]:
            return stddev * self.draw(noise, (count, self.size))

        private_end = private_value(order, at_steps)
        if self.inside:
            return np.array(private_end, np.float64)
        return Gaussian(self.noise_multiplier).release(noise, private_end, scale)
