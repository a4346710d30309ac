"""Choices on a lattice: the first index with the largest sum of a score, as an integer, and integer noise.

For scores v of range sensitivity s (the largest max_i - min_i of the vector by which one unit moves them), a lattice of
spacing g, a public number, and an epsilon,

    chosen = argmax_i (k_i + J_i),    k_i = round(max(v_i - max v, -F) / g),    J_i = round(2^t X_i),

X_i independent, exact exponential variables (permute-and-flip) or exact Gumbel variables (the exponential mechanism),
see `exact_noise`. Equals go to the lowest index.

**The scores.** If a unit moves v by a vector of range s, then v - max v moves by one whose entries lie in an interval
of length s that holds 0; cutting at the public -F from below moves every entry between 0 and what it was. Rounding:
the difference to the largest score is off by 2^-53 of itself, F = 2^(t + 7) spacings at most, and t is at most 34; a
place is off by 1/2 + 2^-8 (`lattice`), so k_i is by 1/2 + 2^-8 + 2^-12. What two data sets' k differ by has a range
of at most

    R = s / g + 4 (1/2 + 2^-8 + 2^-12)  <=  s / g + 2 + 2^-5.

No place is far from 0, so nothing else is cut. What is not a number, or infinite, counts as the least. Scores that far
below the best are chosen with a probability of e^-128 at most each, as if they were F below it: a loss of utility only.

**Permute-and-flip.** J = round(2^t X) is at least r, an integer above 0, with probability e^-((r - 1/2) / 2^t), and
always if r <= 0. So P(J >= r + m) >= e^(-m / 2^t) P(J >= r) for all integers r and m >= 0. Fix the other J_j: i is
chosen exactly if J_i >= r = max_j (k_j + J_j + [j < i]) - k_i, an integer that moves by at most R between neighbours.
Hence the probability of i changes by at most e^(R / 2^t), given the rest, and so without: (R / 2^t)-DP, with no
delta.

**The exponential mechanism.** Let h = 2^-t, w_i = exp(h k_i), W their sum, c_m = exp(-h (m + 1/2)). Then P(k_j + J_j
<= m) is exp(-c_m w_j). Index i is chosen with m as the largest sum if the sums before it are at most m - 1 and those
after it at most m:

    p_i = sum over m of (exp(-c_m w_i) - exp(-c_(m-1) w_i)) exp(-c_(m-1) W_before) exp(-c_m W_after).

The difference is the integral of w_i exp(-x w_i) for x from c_m to c_(m-1) = e^h c_m. For these x, with q = e^h - 1,
the other factors are between exp(-x (W_before + W_after) (1 + q)) and exp(-x (W_before + W_after) (1 - q)): c_(m-1)
is at most (1 + q) x, and c_m at least x / (1 + q) >= (1 - q) x. Over all m the integrals run from 0 to infinity, so

    w_i / (W (1 + q))  <=  p_i  <=  w_i / (W (1 - q)):

p_i is softmax(h k)_i up to a factor whose logarithm is in an interval of length log((1 + q) / (1 - q)) <= 2 h (1 +
h), for t >= 8. The logarithms of the softmax move within an interval of length h R, those factors by 2 h (1 + h) in
either direction: the choice is (h (R + 4 + 4 h))-bounded range, with no delta.

**The lattice.** Both are at most epsilon if (s / g + 7) 2^-t <= epsilon. With z = 1 / epsilon and w = 7 z 2^-t that
holds for g >= s z 2^-t / (1 - w); the spacing is that number, rounded up. Noise is larger than it need be by w and
1e-10 of itself: w is 3e-9 to 7e-9 up to z = 16, and 4.1e-10 z beyond, where t stops to grow. An epsilon above 2^22
has the noise of 2^22.

What is drawn: Gumbel variables are exact (`exact_gumbel`). Of Laplace variables, whose size is the exponential one,
every slab has its probability up to a factor of 1 + 2^-330 (`exact_noise`: a table of 400 bits, no slot of which is
rarer than 2^-52); the 1e-12 that the spacing is rounded up by is far above that.

Source:
    The proofs on integers are ours; over the reals, McKenna and Sheldon 2020, Dong, Durfee and Rogers 2020.
"""

import functools
import math
from dataclasses import dataclass
from types import ModuleType
from typing import Any, ClassVar, SupportsFloat

import numpy as np
from numpy.typing import ArrayLike

from privopt.later import Array, is_jax, jnp
from privopt.ledger.events import BoundedRangeEvent, Event, NonPrivateEvent, PureEvent
from privopt.mechanisms.base import (
    MARGIN,
    SPACINGS,
    Mechanism,
    Sensitivity,
    checked_sensitivity,
    is_integral,
    noise_exponent,
    places_of,
    spacing_of,
)
from privopt.mechanisms.noise import Draws, Noise, Shape
from privopt.precision import require_double_precision

ROUNDING = 7  # lattice points that rounding of scores and noise may cost, all together
_LEAST_MULTIPLIER = 2.0**-22  # so that t is at least 8
_MOST = 34  # of t: noise of more bits is slower to draw, and hides no better
_DEEP = 7  # noise scales, as a power of two, from the best score to the least


def choice_exponent(epsilon: float) -> int:
    """t: noise of scale 1 is drawn as round(2^t X)."""
    return min(noise_exponent(_multiplier(epsilon)), _MOST)


def choice_spacing(sensitivity: Any, epsilon: float) -> Any:
    """g, of NumPy's kind or JAX's, as the sensitivity is.

    Args:
        sensitivity: s, in the range; a positive and finite float64 array of no dimensions.
        epsilon: of one choice, positive and finite.
    Raises:
        ValueError: an epsilon so small that nothing of the scores would be left.
    """
    return spacing_of(sensitivity, _ratio(epsilon))


@functools.lru_cache(maxsize=256)
def _ratio(epsilon: float) -> float:
    """g / s before it is rounded up."""
    a_unit = _multiplier(epsilon) * 2.0 ** -choice_exponent(epsilon)
    if not ROUNDING * a_unit <= 0.5:
        raise ValueError(
            f"an epsilon of {epsilon:.3g} for a choice asks for noise beyond the integers that exact noise is drawn "
            "as: nothing of the scores would be left in it. Take a larger epsilon."
        )
    return max(a_unit, 2.0 ** -(SPACINGS + 1)) / (1 - ROUNDING * a_unit) * MARGIN


def noisy_choice(private_scores: Any, sensitivity: Any, epsilon: float, private_noise: Any) -> Any:
    """The index of the largest sum, of NumPy's kind or JAX's, as the scores are.

    Args:
        private_scores: v, float64, one dimension.
        sensitivity: see `choice_spacing`; of the scores' kind.
        epsilon: likewise.
        private_noise: J, int64, drawn with the exponent `choice_exponent(epsilon)`.
    """
    xp: Any = jnp if is_jax(private_scores) else np
    return xp.argmax(places_of_scores(private_scores, sensitivity, epsilon) + private_noise)


def places_of_scores(private_scores: Any, sensitivity: Any, epsilon: float) -> Any:
    """k, int64: the scores below the best, on the lattice; see `noisy_choice` for the arguments."""
    xp: Any = jnp if is_jax(private_scores) else np
    spacing = choice_spacing(sensitivity, epsilon)
    deepest = -xp.minimum(spacing * 2.0 ** (choice_exponent(epsilon) + _DEEP), 2.0**1022)
    private_best = xp.max(xp.where(xp.isnan(private_scores), -math.inf, private_scores))
    private_below = private_scores - private_best
    private_held = xp.where(private_below > deepest, private_below, deepest)  # of no number, the deepest
    return places_of(private_held, spacing)


def _multiplier(epsilon: float) -> float:
    return max(1.0 / epsilon, _LEAST_MULTIPLIER)


# ---- The exponential mechanism, accounted by bounded range -------------------------------------------------


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

    def combine(self, private_value: Array, sensitivity: Sensitivity, standard_noise: Array) -> Array:
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


# ------------------------------------------------------------------------------------------------------------
# Permute-and-flip: a single selection under pure privacy, never worse than the exponential mechanism's.


@dataclass(frozen=True)
class PermuteAndFlip(ExponentialMechanism):
    """Choose the index with the largest epsilon * score_i / sensitivity + E_i, E_i exponential with mean 1.

    The sensitivity is the range by which one unit moves the scores, as in `ExponentialMechanism`. At the same pure
    epsilon the chosen score is, in expectation, at least as good, its shortfall between half and all of that
    mechanism's. It is for a final selection with delta = 0 only: it is not bounded range, so that several selections
    cost less with the exponential mechanism, and its choices are no unbiased draws from a softmax.

    Args:
        epsilon: the pure epsilon of one choice; `math.inf` takes the best score and protects nobody.
    Privacy:
        Pure epsilon-DP. A constant added to all scores changes no choice, so scores of range sensitivity D may be
        centred to move by at most D / 2 in either direction, and permute-and-flip with exp(epsilon score / (2 D / 2))
        is epsilon-DP. The largest of the scores with exponential noise has the same law; on integers, as it is drawn,
        `noisy_choice` shows the same without it.
    Source:
        McKenna and Sheldon 2020, theorem 1; Ding, Kifer, Steinke, Wang, Xiao, Zhang 2021 (exponential noise).
    """

    def event(self) -> Event:
        """Pure privacy, or a choice that nothing protects."""
        return PureEvent(self.epsilon) if math.isfinite(self.epsilon) else NonPrivateEvent()

    def standard(self, noise: Noise, shape: Shape) -> Draws:
        """Exponential noise of scale 1: the size of a Laplace variable."""
        if noise.exact:
            return np.abs(noise.rounded_laplace(shape, choice_exponent(self.epsilon)))
        return np.exp(-noise.gumbel(shape))
