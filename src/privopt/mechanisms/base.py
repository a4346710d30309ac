"""What every mechanism and every stream is, and the noise addition that some of them share."""

import abc
import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar, NoReturn, Protocol, SupportsFloat, SupportsIndex

import numpy as np
from numpy.typing import ArrayLike, NDArray

from privopt.compilation import compiled
from privopt.later import Array, is_jax, jax, jnp, namespace
from privopt.ledger.events import Event
from privopt.mechanisms.exact_noise import COARSEST, FEW, FINEST
from privopt.mechanisms.noise import Draws, Noise, Shape
from privopt.precision import require_double_precision

Sensitivity = float | NDArray[np.float64] | Array  # a scalar, perhaps traced


class Mechanism(abc.ABC):
    """A frozen value that turns a private value into a released one and says what that costs.

    Every mechanism acts on `private_value / sensitivity`, so one event prices a release whatever its scale. `release`
    runs on the host. A compiled loop draws `draw(noise, (times, *noise_shape(value_shape)))` ahead on the host and
    hands one row a step to `combine`, which is pure; both ways give the same number (a compiled loop may fuse one
    multiplication into the addition: one rounding less).

    Sensitivity, always public: 0 says that the value does not depend on the data, and it is released as it is. With
    the noise off the value is released as it is whatever the sensitivity, infinite included. With noise, an infinite
    sensitivity cannot be served: `release` refuses it, and `combine`, which cannot raise, gives NaN for any data.

    Attributes:
        norm: the norm of the sensitivity that the noise is scaled by: "l1", "l2" or "range". The curator refuses a
            query that states another one.
        exact: whether the release is exact over the real numbers, given a source of exact noise: it is drawn on
            integers, and what rounding is left has been proved and is in its price or its noise.
    """

    norm: ClassVar[str] = "l2"

    @property
    def exact(self) -> bool:
        """See the class; False unless a mechanism says otherwise."""
        return False

    def require_room(self, entries: int) -> None:
        """Refuse a value of so many numbers whose noise is beyond the integers of exact noise. Needs no data.

        Raises:
            ValueError: it is.
        """
        del entries

    @abc.abstractmethod
    def event(self) -> Event:
        """What one release costs, whatever the value and its sensitivity."""

    @abc.abstractmethod
    def noise_shape(self, value_shape: Shape) -> Shape:
        """The shape of the standard noise that one release of a value of this shape needs."""

    @abc.abstractmethod
    def draw(self, noise: Noise, shape: Shape) -> Draws:
        """Standard noise of this shape, drawn on the host: integers for a lattice, or float64."""

    @abc.abstractmethod
    def combine(self, private_value: Array, sensitivity: Sensitivity, standard_noise: Array) -> Array:
        """The released value, in pure JAX inside `jax.enable_x64(True)`; the sensitivity may be traced."""

    @abc.abstractmethod
    def release(self, noise: Noise, private_value: ArrayLike, sensitivity: SupportsFloat) -> Any:
        """Draw the noise and release the value, on the host in float64.

        Raises:
            ValueError: the sensitivity, which is public, is negative, NaN, or infinite while the noise is on.
        """


class HiddenState:
    """What a stream keeps secret between its releases. It prints as `<private>` and is neither pickled nor copied."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "<private>"

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        raise TypeError(
            "the hidden state of a stream cannot be pickled or copied: it stays with the curator."
        )

    def __copy__(self) -> NoReturn:
        self.__reduce_ex__(4)

    def __deepcopy__(self, memo: dict[int, Any]) -> NoReturn:
        self.__reduce_ex__(4)


@dataclass(frozen=True, kw_only=True)
class Request:
    """What a stream may be asked for under one name.

    Attributes:
        fed: whether it is fed the value of a query.
        releases: whether it releases something.
        arguments: the public arguments that it knows.
    """

    fed: bool
    releases: bool = True
    arguments: frozenset[str] = frozenset()


class AnswerScales(Protocol):
    """The noise scales of a stream's answers, one after the other."""

    def next(self, sensitivity: float) -> float:
        """That of the answer to an item of this sensitivity."""
        ...


class Entry(Protocol):
    """What is public about the item that is about to enter a stream: which earlier ones may hold the same units.

    Attributes:
        items: the number of the new item and those of all items that may share a unit with it.
        most: in how many items, the new one included, a unit of it may be at most.
        gap: how far the new item is from the last one that may share a unit with it; None if none may.
    """

    @property
    def items(self) -> frozenset[int]: ...
    @property
    def most(self) -> int: ...
    @property
    def gap(self) -> int | None: ...


class StreamMechanism(abc.ABC):
    """A frozen value that opens a hidden state, charged once for its whole declared schedule.

    A request is a method: `method(state, noise, private_value, sensitivity, **public)` when it is fed a private value,
    `method(state, noise, **public)` when not. It returns what is released, or None if nothing is.

    Attributes:
        requests: the methods that a solver may ask for, by name. No other method is reached through a curator.
        norm: the norm of an item's sensitivity; see `Mechanism`.
        exact: see `Mechanism`.
    """

    exact: ClassVar[bool] = False
    requests: ClassVar[Mapping[str, Request]] = MappingProxyType({})
    norm: ClassVar[str] = "l2"

    def require_room(self, entries: int) -> None:
        """See `Mechanism.require_room`; the entries are those of an item."""
        del entries

    def request(self, name: str) -> Request:
        """The declared request of this name.

        Raises:
            ValueError: there is none.
        """
        if name not in self.requests:
            known = ", ".join(repr(one) for one in self.requests) or "nothing: it declares no `requests`"
            raise ValueError(f"{type(self).__name__} cannot be asked for {name!r}: it answers {known}.")
        return self.requests[name]

    @abc.abstractmethod
    def event(self) -> Event:
        """What the whole stream costs."""

    @abc.abstractmethod
    def open(self, noise: Noise, shape: Shape) -> HiddenState:
        """The hidden state of a stream of values of this shape."""

    @abc.abstractmethod
    def admits(self, items: frozenset[int]) -> bool:
        """Whether the price covers a unit that is in all of these items (0 is the first that was fed in)."""

    def covers(self, entry: Entry) -> bool:
        """Whether the price covers every unit of an item that is about to enter, as it covered all earlier items.

        All items of a unit are among those that may share a unit with its last one, so to admit these is enough.
        """
        return self.admits(entry.items)

    def scales(self) -> "AnswerScales | None":
        """The noise scales of its answers, from the sensitivities of the items as they come; None if they have none."""
        return None


def check_multiplier(noise_multiplier: float) -> None:
    """Refuse a noise multiplier that is not a finite number of at least 0."""
    if not (math.isfinite(noise_multiplier) and noise_multiplier >= 0):
        raise ValueError(
            f"noise_multiplier must be finite and at least 0, got {noise_multiplier!r}: "
            "it is the scale of the noise over the sensitivity, and 0 turns the noise off (epsilon = inf)."
        )


def checked_sensitivity(sensitivity: SupportsFloat, *, noisy: bool) -> float:
    """The sensitivity as a float, refused where no noise can match it."""
    amount = float(sensitivity)
    if not amount >= 0:
        raise ValueError(
            f"the sensitivity must be at least 0, got {amount!r}: bound what one unit may contribute."
        )
    if noisy and math.isinf(amount):
        raise ValueError(
            "the sensitivity is infinite, so no noise can hide one unit: clip the contributions."
        )
    return amount


def traced_release(
    private_value: Array,
    sensitivity: Sensitivity,
    noise_multiplier: float,
    standard_noise: Array,
    *,
    norm: str = "l2",
    exponent: int | None = None,
) -> Array:
    """The value with noise, in pure JAX, with the guards of `Mechanism`.

    With integers for noise the release is on a lattice, and exact, see `lattice`; with floats for noise it is
    `(value / sensitivity + multiplier * noise) * sensitivity`.

    Args:
        private_value: any shape.
        sensitivity: a scalar, at least 0, perhaps traced. Public.
        noise_multiplier: the scale of the noise over the sensitivity, a Python number.
        standard_noise: noise of scale 1, of the value's shape; or integers, drawn for this multiplier.
        norm: of the sensitivity.
        exponent: at which the integers were drawn, see `spacing_ratio`.
    Privacy:
        The sum before the last multiplication is a unit-sensitivity release; multiplying by a public number is
        post-processing. Where the sensitivity is 0 no unit moves the value.
    """
    require_double_precision()
    value = jnp.asarray(private_value, jnp.float64)
    if noise_multiplier == 0:
        return value
    scale = jnp.asarray(sensitivity, jnp.float64)
    usable = (scale > 0) & (scale < math.inf)
    divisor = jnp.where(usable, scale, 1.0)
    if is_integral(standard_noise):
        spacing = spacing_of(divisor, spacing_ratio(noise_multiplier, value.size, norm, exponent))
        released = on_lattice(value, spacing, jnp.asarray(standard_noise))
    else:
        released = (value / divisor + noise_multiplier * jnp.asarray(standard_noise, jnp.float64)) * divisor
    return jnp.where(usable, released, jnp.where(scale == 0, value, math.nan))


def host_release(
    private_value: ArrayLike,
    sensitivity: SupportsFloat,
    noise_multiplier: float,
    standard_noise: Draws,
    *,
    norm: str = "l2",
    exponent: int | None = None,
) -> NDArray[np.float64]:
    """`traced_release` on the host, into an array of its own: the same number, by the same operations."""
    scale = checked_sensitivity(sensitivity, noisy=noise_multiplier > 0)
    value = np.array(private_value, dtype=np.float64)
    if noise_multiplier == 0 or scale == 0:
        return value
    with np.errstate(all="ignore"):  # a warning must not depend on the data
        if is_integral(standard_noise):
            ratio = spacing_ratio(noise_multiplier, value.size, norm, exponent)
            spacing = spacing_of(np.float64(scale), ratio)
            return np.asarray(on_lattice(value, spacing, standard_noise), np.float64)
        return np.asarray((value / scale + noise_multiplier * standard_noise) * scale, dtype=np.float64)


# ------------------------------------------------------------------------------------------------------------
# Releases on a lattice: a value is rounded to integers, an integer noise is added, and nothing else is ever
# seen.
# For a value v of l2 sensitivity s, and noise of multiplier z, the lattice has the spacing g, a public number, and
#
#     released = g (k + J),    k = round(v / g),    J = round(2^t X),    X exact standard noise (see `exact_noise`).
#
# Privacy, for normal X: k is a vector of integers, so k + round(2^t X) = round(k + 2^t X). The release is
# post-processing of the Gaussian mechanism on k over the real numbers, and costs exactly what that costs:
# mu-Gaussian-DP, with mu the sensitivity of k over 2^t. Of two neighbours, v / g moves by at most s / g, and each of
# the p entries of k is off by at most 1/2 + 2^-8 from that of v / g, see below. So k moves by at most
#
#     D = s / g + sqrt(p) (1 + 2^-7)        (in the l1 norm, for Laplace noise: p in place of sqrt(p)),
#
# and z D <= 2^t is all that must hold. It does for g >= z s 2^-t / (1 - w), w = z 2^-t sqrt(p) (1 + 2^-7), since then
# z D <= 2^t (1 - w) + 2^t w. The spacing is that number, rounded up to 35 significant bits: the noise is larger than z
# s by little more than w of it, and 1e-10; w is 2^-30 sqrt(p) up to z = 2^15, where t stops to grow, and z 2^-45
# sqrt(p) beyond.
#
# One thing is not in the price: what is drawn is X up to a total variation of 1e-87 an entry (`exact_noise`), which a
# guarantee carries as that much delta, 1e-70 after more draws than anybody makes.
#
# The entries of k. Values far away are moved to 2^62 spacings, which brings no two values further apart; what is not a
# number counts as 0. Then v = q g + r with q a multiple of 2^44: the float64 product q g is exact, because q has 18
# significant bits and g has 35, and so is r, by Sterbenz' lemma, up to 2^-9 g where the first quotient falls on a tie.
# What is left, r / g, is below 2^44 and known to 2^-9. So |k - v / g| <= 1/2 + 2^-8, however large v is. A compiler
# that fuses products into sums changes nothing of this, since the product is exact.
#
# How fine. A sensitivity is 2^30 to 2^31 spacings wherever t may follow z. Finer would buy nothing: w is 1e-6 of the
# noise for a million entries. And it would take from the other end: k goes to 2^62, so answers are cut off 2^31
# sensitivities from 0, which a sum over 2e9 units reaches; with 2^40 spacings one over four million would. Coarser
# would show, by 2^-b sqrt(p), in models of 10^8 parameters and more.
#
# No sum overflows: |k| <= 2^62, and |J| < 2^50 for normals (20 deviations), 2^62 for Laplace noise except with
# probability e^-130000. The release is a function of the integer k + J, whatever its last multiplication rounds.


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
    if is_jax(scale):
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
    if not is_jax(private_value) and (_find_places.is_made or private_value.size > FEW):
        private_places = np.empty(private_value.shape, np.int64)
        _find_places(private_value.reshape(-1), float(spacing), private_places.reshape(-1))
        return private_places
    xp = namespace(private_value)
    private_number = xp.nan_to_num(private_value, nan=0.0, posinf=_LARGEST, neginf=-_LARGEST)
    limit = xp.minimum(spacing * _FARTHEST, _LARGEST)
    private_held = xp.clip(private_number, -limit, limit)
    # As an integer: XLA would else reorder the product to 2^44 spacings first, which may be infinite.
    private_far = xp.rint(private_held / spacing * 2.0**-_FAR).astype(np.int64) << _FAR
    private_near = xp.rint((private_held - private_far.astype(np.float64) * spacing) / spacing)
    return private_far + private_near.astype(np.int64)


@compiled()
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


def is_integral(noise: NDArray[Any] | Array) -> bool:
    """Whether noise was drawn for a lattice."""
    return bool(np.issubdtype(noise.dtype, np.integer))
