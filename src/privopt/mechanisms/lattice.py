"""Releases on a lattice: a value is rounded to integers, an integer noise is added, and nothing else is ever seen.

For a value v of l2 sensitivity s, and noise of multiplier z, the lattice has the spacing g, a public number, and

    released = g (k + J),    k = round(v / g),    J = round(2^t X),    X exact standard noise (see `exact_noise`).

Privacy, for normal X: k is a vector of integers, so k + round(2^t X) = round(k + 2^t X). The release is post-processing
of the Gaussian mechanism on k over the real numbers, and costs exactly what that costs: mu-Gaussian-DP, with mu the
sensitivity of k over 2^t. Of two neighbours, v / g moves by at most s / g, and each of the p entries of k is off by at
most 1/2 + 2^-8 from that of v / g, see below. So k moves by at most

    D = s / g + sqrt(p) (1 + 2^-7)        (in the l1 norm, for Laplace noise: p in place of sqrt(p)),

and z D <= 2^t is all that must hold. It does for g >= z s 2^-t / (1 - w), w = z 2^-t sqrt(p) (1 + 2^-7), since then
z D <= 2^t (1 - w) + 2^t w. The spacing is that number, rounded up to 35 significant bits: the noise is larger than z s
by little more than w of it, and 1e-10; w is 2^-30 sqrt(p) up to z = 2^15, where t stops to grow, and z 2^-45 sqrt(p)
beyond.

One thing is not in the price: what is drawn is X up to a total variation of 1e-87 an entry (`exact_noise`), which a
guarantee carries as that much delta, 1e-70 after more draws than anybody makes.

The entries of k. Values far away are moved to 2^62 spacings, which brings no two values further apart; what is not a
number counts as 0. Then v = q g + r with q a multiple of 2^44: the float64 product q g is exact, because q has 18
significant bits and g has 35, and so is r, by Sterbenz' lemma, up to 2^-9 g where the first quotient falls on a tie.
What is left, r / g, is below 2^44 and known to 2^-9. So |k - v / g| <= 1/2 + 2^-8, however large v is. A compiler that
fuses products into sums changes nothing of this, since the product is exact.

How fine. A sensitivity is 2^30 to 2^31 spacings wherever t may follow z. Finer would buy nothing: w is 1e-6 of the
noise for a million entries. And it would take from the other end: k goes to 2^62, so answers are cut off 2^31
sensitivities from 0, which a sum over 2e9 units reaches; with 2^40 spacings one over four million would. Coarser would
show, by 2^-b sqrt(p), in models of 10^8 parameters and more.

No sum overflows: |k| <= 2^62, and |J| < 2^50 for normals (20 deviations), 2^62 for Laplace noise except with
probability e^-130000. The release is a function of the integer k + J, whatever its last multiplication rounds.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from privopt.mechanisms.compiled import compiled
from privopt.mechanisms.exact_noise import COARSEST, FINEST

SPACINGS = (
    30  # a sensitivity is 2^30 to 2^31 spacings, unless the noise is out of all proportion to it; see above
)
_DROPPED_BITS = 52 - 34  # of a spacing's significand, which keeps 35 bits with the leading one
_FAR = 44
_FARTHEST = 2.0**62  # spacings
_LARGEST = 2.0**1022
_LEAST_SPACING = 2.0**-960  # so that nothing is subnormal
MARGIN = 1 + 2.0**-40  # more than the float64 operations that form a spacing are off by


def noise_exponent(noise_multiplier: float) -> int:
    """t: noise of scale 1 is drawn as round(2^t X)."""
    _, exponent = math.frexp(noise_multiplier)  # 2^(exponent - 1) <= multiplier < 2^exponent
    return min(max(exponent + SPACINGS, COARSEST), FINEST)


def spacing_ratio(noise_multiplier: float, entries: int, norm: str, exponent: int | None = None) -> float:
    """g / s before it is rounded up: the spacing over the sensitivity.

    Args:
        noise_multiplier: z, positive.
        entries: p, of the value.
        norm: of the sensitivity.
        exponent: t; default `noise_exponent`.
    Raises:
        ValueError: the noise is so large that no lattice of 64-bit integers holds it.
    """
    drawn_at = noise_exponent(noise_multiplier) if exponent is None else exponent
    a_unit = noise_multiplier * 2.0**-drawn_at
    grown = a_unit * (entries if norm == "l1" else math.sqrt(entries)) * (1 + 2.0**-7)
    if grown > 0.5:
        raise ValueError(
            f"noise of {noise_multiplier:.3g} times the sensitivity on {entries} numbers is beyond the integers that "
            "exact noise is drawn as: nothing of the value would be left in it. Take a smaller noise multiplier."
        )
    return max(a_unit, 2.0 ** -(SPACINGS + 1)) / (1 - grown) * MARGIN


def spacing_of(scale: Any, ratio: float) -> Any:
    """g: the sensitivity times the ratio, rounded up to 35 significant bits; of NumPy's kind or JAX's, as `scale` is.

    Args:
        scale: the sensitivity, a positive and finite float64 array of no dimensions.
        ratio: from `spacing_ratio`.
    """
    if isinstance(scale, jax.Array):
        bits = jax.lax.bitcast_convert_type(jnp.maximum(scale * ratio, _LEAST_SPACING), jnp.int64)
        return jax.lax.bitcast_convert_type(_rounded_up(bits), jnp.float64)
    return _rounded_up(np.maximum(scale * ratio, _LEAST_SPACING).view(np.int64)).view(np.float64)


def _rounded_up(bits: Any) -> Any:
    """The bits of a positive float64, of which the last few are zero; upwards."""
    dropped = (1 << _DROPPED_BITS) - 1
    return (bits + dropped) & ~dropped


def on_lattice(private_value: Any, spacing: Any, private_noise: Any) -> Any:
    """g (k + J), of NumPy's kind or JAX's, as the value is.

    Args:
        private_value: v, float64.
        spacing: g, from `spacing_of`.
        private_noise: J, int64, of the value's shape.
    """
    return (places_of(private_value, spacing) + private_noise).astype(np.float64) * spacing


def places_of(private_value: Any, spacing: Any) -> Any:
    """k, int64: the nearest lattice points, up to 1/2 + 2^-8; see `on_lattice`."""
    if not isinstance(private_value, jax.Array):
        private_places = np.empty(private_value.shape, np.int64)
        _find_places(private_value.reshape(-1), float(spacing), private_places.reshape(-1))
        return private_places
    private_number = jnp.nan_to_num(private_value, nan=0.0, posinf=_LARGEST, neginf=-_LARGEST)
    limit = jnp.minimum(spacing * _FARTHEST, _LARGEST)
    private_held = jnp.clip(private_number, -limit, limit)
    # As an integer: XLA would else reorder the product to 2^44 spacings first, which may be infinite.
    private_far = jnp.rint(private_held / spacing * 2.0**-_FAR).astype(jnp.int64) << _FAR
    private_near = jnp.rint((private_held - private_far.astype(jnp.float64) * spacing) / spacing)
    return private_far + private_near.astype(jnp.int64)


@compiled
def _find_places(
    private_value: NDArray[np.float64], spacing: float, private_places: NDArray[np.int64]
) -> None:
    """`places_of` on the host, by the same operations, into an array."""
    limit = min(spacing * _FARTHEST, _LARGEST)
    for i in range(len(private_value)):
        private_number = private_value[i]
        if np.isnan(private_number):
            private_number = 0.0
        private_held = min(max(private_number, -limit), limit)
        private_far = np.rint(private_held / spacing * 2.0**-_FAR) * 2.0**_FAR
        private_near = np.rint((private_held - private_far * spacing) / spacing)
        private_places[i] = np.int64(private_far) + np.int64(private_near)


def is_integral(noise: NDArray[Any] | jax.Array) -> bool:
    """Whether noise was drawn for a lattice."""
    return bool(np.issubdtype(noise.dtype, np.integer))
