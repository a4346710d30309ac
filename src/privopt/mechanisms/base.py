"""What every mechanism and every stream is, and the noise addition that some of them share."""

import abc
import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar, NoReturn, Protocol, SupportsFloat, SupportsIndex

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike, NDArray

from privopt.ledger.events import Event
from privopt.mechanisms.lattice import is_integral, on_lattice, spacing_of, spacing_ratio
from privopt.mechanisms.noise import Draws, Noise, Shape
from privopt.precision import require_double_precision

Sensitivity = float | NDArray[np.float64] | jax.Array  # a scalar, perhaps traced


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
    def combine(
        self, private_value: jax.Array, sensitivity: Sensitivity, standard_noise: jax.Array
    ) -> jax.Array:
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
    private_value: jax.Array,
    sensitivity: Sensitivity,
    noise_multiplier: float,
    standard_noise: jax.Array,
    *,
    norm: str = "l2",
    exponent: int | None = None,
) -> jax.Array:
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
