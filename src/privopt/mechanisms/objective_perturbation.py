"""Noise inside an objective: the released value is the minimiser that belongs to it."""

import math
from dataclasses import dataclass
from typing import Any, SupportsFloat

import numpy as np
from numpy.typing import NDArray

from privopt.later import Array
from privopt.ledger.events import Event, GaussianEvent, NonPrivateEvent, Sequence, ShiftedGaussianEvent
from privopt.mechanisms.additive import Gaussian
from privopt.mechanisms.base import Mechanism, Sensitivity, check_multiplier, checked_sensitivity
from privopt.mechanisms.noise import Noise, Shape

LARGEST_NORMAL = 13.0  # standard normals from 53-bit uniforms reach 12.2


@dataclass(frozen=True, kw_only=True)
class ObjectiveNoise(Mechanism):
    """Draw b ~ N(0, sigma^2 I), minimise `J(w) + <b, w>` to a residual, and add N(0, sigma_out^2 I) to the result.

    It is made by the query whose minimiser it releases (`PerturbedMinimiser.mechanism`), and the curator refuses it
    with any other: shift, tolerance and modulus are facts about that objective.

    Attributes:
        noise_multiplier: sigma over the l2 sensitivity of the implied noise; 0 turns both noises off.
        shift: c = ln(1 + beta / Lam); one record changes the volume element of w -> b(w) by a factor within e^{+-c}.
        two_signed: whether a record's slope can have either sign, which costs a little more.
        size: coordinates of the noise.
        tolerance: tau, the largest subgradient of J at the computed minimiser.
        modulus: Lam, the strong convexity of J; the computed minimiser is within tau / Lam of the exact one.
        output_share: mu of the second noise over mu of the first.
    Privacy:
        The exact minimiser w* costs `ShiftedGaussianEvent`. Given w*, the computed one lies within tau / Lam of it on
        both data sets, so its release with Gaussian noise has l2 sensitivity 2 tau / Lam under both relations. With a
        non-smooth penalty many b share one w*; the computed minimiser is then random given w*, within the same
        distance, and a mixture of such pairs is dominated by the same Gaussian. Nothing is released in between.
    Source:
        Kifer, Smith, Thakurta 2012, Algorithm 1; approximate minima: Iyengar et al. 2019, Algorithm 1; privacy profile:
        Redberg, Koskela, Wang 2023, sharpened for slopes of one sign.
    """

    noise_multiplier: float
    shift: float
    two_signed: bool
    size: int
    tolerance: float
    modulus: float
    output_share: float

    def __post_init__(self) -> None:
        check_multiplier(self.noise_multiplier)
        for name in ("output_share", "modulus"):
            value = getattr(self, name)
            if not 0.0 < value < math.inf:
                raise ValueError(f"{name} must be positive and finite, got {value!r}.")

    @property
    def output_stddev(self) -> float:
        """sigma_out: the second noise multiplier times the sensitivity 2 tau / Lam."""
        return self.noise_multiplier / self.output_share * 2.0 * self.tolerance / self.modulus

    def event(self) -> Event:
        """The perturbed minimum, then the noise that hides its residual."""
        return objective_event(
            self.noise_multiplier, self.shift, two_signed=self.two_signed, output_share=self.output_share
        )

    def noise_shape(self, value_shape: Shape) -> Shape:
        """One normal a coordinate, twice."""
        return (2, *value_shape)

    def draw(self, noise: Noise, shape: Shape) -> NDArray[np.float64]:
        """Standard normals; zeros, without touching the stream, when the noise is off."""
        return noise.normal(shape) if self.noise_multiplier > 0 else np.zeros(shape)

    def combine(self, private_value: Array, sensitivity: Sensitivity, standard_noise: Array) -> Array:
        """Refused: a minimiser cannot be computed inside a compiled loop."""
        del private_value, sensitivity, standard_noise
        raise TypeError("the noise sits inside a minimisation: use `release`, not a compiled loop.")

    def release(
        self,
        noise: Noise,
        private_value: Any,
        sensitivity: SupportsFloat,
    ) -> NDArray[np.float64]:
        """Draw the noise and release the minimiser; `private_value(b, tolerance)` computes it."""
        scale = checked_sensitivity(sensitivity, noisy=self.noise_multiplier > 0)
        inside = self.draw(noise, (self.size,))
        outside = self.draw(noise, (self.size,))
        if self.noise_multiplier == 0:
            return np.array(private_value(inside, self.tolerance), np.float64)
        private_minimiser = private_value(self.noise_multiplier * scale * inside, self.tolerance)
        return np.asarray(private_minimiser, np.float64) + self.output_stddev * outside


def objective_event(noise_multiplier: float, shift: float, *, two_signed: bool, output_share: float) -> Event:
    """What `ObjectiveNoise` costs."""
    if noise_multiplier == 0:
        return NonPrivateEvent()
    inside = ShiftedGaussianEvent(1.0 / noise_multiplier, shift, two_signed=two_signed)
    return Sequence((inside, GaussianEvent(noise_multiplier / output_share)))


# ---- The secrets of one pass over the records: its order, and noise at every step or at its end ------------


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

    def combine(self, private_value: Array, sensitivity: Sensitivity, standard_noise: Array) -> Array:
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
