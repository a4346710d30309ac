"""The exponential mechanism, accounted by bounded range."""

import math
from dataclasses import dataclass
from types import ModuleType
from typing import Any, ClassVar, SupportsFloat

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike

from privopt.ledger.events import BoundedRangeEvent, Event, NonPrivateEvent
from privopt.mechanisms.base import Mechanism, Sensitivity, checked_sensitivity
from privopt.mechanisms.lattice import is_integral
from privopt.mechanisms.noise import Draws, Noise, Shape
from privopt.mechanisms.noisy_choice import choice_exponent, choice_spacing, noisy_choice
from privopt.precision import require_double_precision


@dataclass(frozen=True)
class ExponentialMechanism(Mechanism):
    """Choose index i with probability proportional to exp(epsilon * score_i / sensitivity): larger scores are better.

    `sensitivity` is the largest **range**, max_i v_i - min_i v_i, of the vector v by which one unit moves the scores.
    Adding a constant to every score changes nothing, so the range is what counts. It is at most twice the largest
    entry of |v|: scores that each move by at most D, in either direction, have sensitivity 2 D; scores that all move
    the same way (a mean of losses in [0, B] when a unit joins) have sensitivity D. For scores of sensitivity D in the
    l_inf sense this is the textbook exp(epsilon * score / (2 D)).

    Args:
        epsilon: the bounded range of one choice; `math.inf` takes the best score and protects nobody.
    Privacy:
        The logits move by a vector of range at most epsilon, so the log-likelihood ratio of the choice lies in an
        interval of length epsilon: epsilon-bounded range, pure epsilon-DP, and rho-zCDP with rho = epsilon^2 / 8.
        The choice is drawn on a lattice, as the largest sum of integers: `noisy_choice` shows that rounding them costs
        no part of delta, and pays for what it costs in epsilon with a little more noise.
    Source:
        McSherry and Talwar 2007 (mechanism); Dong, Durfee, Rogers 2020 and Cesar and Rogers 2021, Lemma 3.2
        (bounded range). Drawn by adding Gumbel noise, which gives the same distribution.
    """

    norm: ClassVar[str] = "range"

    epsilon: float

    @property
    def exact(self) -> bool:
        """It is: integers are compared, see `noisy_choice`."""
        return True

    def __post_init__(self) -> None:
        if not self.epsilon > 0:
            raise ValueError(
                f"epsilon must be positive, got {self.epsilon!r}: it is the bounded range of one choice."
            )

    def event(self) -> Event:
        """One choice of bounded range, or a choice that nothing protects."""
        return BoundedRangeEvent(self.epsilon) if math.isfinite(self.epsilon) else NonPrivateEvent()

    def require_room(self, entries: int) -> None:
        """See `Mechanism.require_room`; for any number of scores alike."""
        if math.isfinite(self.epsilon):
            choice_spacing(np.float64(1.0), self.epsilon)

    def noise_shape(self, value_shape: Shape) -> Shape:
        """One Gumbel draw a score."""
        return value_shape

    def standard(self, noise: Noise, shape: Shape) -> Draws:
        """Gumbel noise of scale 1: integers for a lattice from an exact source, float64 from another."""
        if noise.exact:
            return noise.rounded_gumbel(shape, choice_exponent(self.epsilon))
        return noise.gumbel(shape)

    def draw(self, noise: Noise, shape: Shape) -> Draws:
        """Noise of scale 1; zeros, without touching the stream, when the noise is off."""
        if math.isfinite(self.epsilon):
            return self.standard(noise, shape)
        return np.zeros(shape, np.int64) if noise.exact else np.zeros(shape)

    def combine(
        self, private_value: jax.Array, sensitivity: Sensitivity, standard_noise: jax.Array
    ) -> jax.Array:
        """The chosen index, in pure JAX; -1 for any scores if the noise is on and the sensitivity infinite."""
        require_double_precision()
        private_scores = jnp.asarray(private_value, jnp.float64)
        scale = jnp.asarray(sensitivity, jnp.float64)
        private_chosen = self._chosen(jnp, private_scores, scale, jnp.asarray(standard_noise))
        if math.isinf(self.epsilon):
            return private_chosen
        return jnp.where((scale >= 0) & (scale < math.inf), private_chosen, -1)

    def release(self, noise: Noise, private_value: ArrayLike, sensitivity: SupportsFloat) -> int:
        """Release the index of one score."""
        scale = checked_sensitivity(sensitivity, noisy=math.isfinite(self.epsilon))
        private_scores = np.asarray(private_value, dtype=np.float64)
        standard_noise = self.draw(noise, self.noise_shape(private_scores.shape))
        with np.errstate(all="ignore"):  # a warning must not depend on the data
            return int(self._chosen(np, private_scores, np.float64(scale), standard_noise))

    def _chosen(self, xp: ModuleType, private_scores: Any, sensitivity: Any, standard_noise: Any) -> Any:
        """The index of the largest sum; of the largest score where no unit moves it or the noise is off."""
        if math.isinf(self.epsilon):
            return xp.argmax(private_scores)
        usable = (sensitivity > 0) & (sensitivity < math.inf)
        scale = xp.where(usable, sensitivity, 1.0)
        if is_integral(standard_noise):
            private_chosen = noisy_choice(private_scores, scale, self.epsilon, standard_noise)
        else:
            private_chosen = xp.argmax(private_scores / scale * self.epsilon + standard_noise)
        return xp.where(usable, private_chosen, xp.argmax(private_scores))
