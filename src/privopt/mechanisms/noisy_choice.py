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
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from privopt.mechanisms.lattice import MARGIN, SPACINGS, noise_exponent, places_of, spacing_of

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
    xp: Any = jnp if isinstance(private_scores, jax.Array) else np
    return xp.argmax(places_of_scores(private_scores, sensitivity, epsilon) + private_noise)


def places_of_scores(private_scores: Any, sensitivity: Any, epsilon: float) -> Any:
    """k, int64: the scores below the best, on the lattice; see `noisy_choice` for the arguments."""
    xp: Any = jnp if isinstance(private_scores, jax.Array) else np
    spacing = choice_spacing(sensitivity, epsilon)
    deepest = -xp.minimum(spacing * 2.0 ** (choice_exponent(epsilon) + _DEEP), 2.0**1022)
    private_best = xp.max(xp.where(xp.isnan(private_scores), -math.inf, private_scores))
    private_below = private_scores - private_best
    private_held = xp.where(private_below > deepest, private_below, deepest)  # of no number, the deepest
    return places_of(private_held, spacing)


def _multiplier(epsilon: float) -> float:
    return max(1.0 / epsilon, _LEAST_MULTIPLIER)
