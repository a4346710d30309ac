"""Secret randomness: where the noise and the choice of who takes part come from.

A stream is AES-128 in counter mode (randomgen's `AESCounter`; ChaCha20 on a processor without AES instructions) keyed
by the operating system. Gaussian, Laplace and Gumbel noise is read from it as integers, exactly (`exact_noise`); what
has no exact form yet, through NumPy's float64 samplers. Their tails are limited by the 53 bits of a uniform only: a
normal reaches 12.2 standard deviations (mass beyond: 1e-33), a Laplace 44 scales (mass beyond: 1e-19).
"""

import hashlib
import operator
import os
import threading
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, Literal, NoReturn, Protocol, SupportsIndex, runtime_checkable

import numpy as np
from numpy.typing import NDArray
from randomgen import AESCounter, ChaCha

from privopt.mechanisms.exact_noise import ExactNoise
from privopt.process import this_process

Shape = tuple[int, ...]
NoiseName = Literal["exact", "float"]
Draws = NDArray[np.int64] | NDArray[np.float64]


@runtime_checkable
class Noise(Protocol):
    """What a mechanism needs from a source of noise; tests put deterministic ones in its place."""

    @property
    def exact(self) -> bool:
        """Whether noise is added as integers, drawn exactly, wherever a mechanism can: see `Mechanism.exact`."""
        ...

    def rounded_normal(self, shape: Shape, exponent: int) -> NDArray[np.int64]:
        """Independent round(2^exponent N), N exact standard normals."""
        ...

    def rounded_laplace(self, shape: Shape, exponent: int) -> NDArray[np.int64]:
        """Independent round(2^exponent L), L exact Laplace variables of scale 1."""
        ...

    def rounded_gumbel(self, shape: Shape, exponent: int) -> NDArray[np.int64]:
        """Independent round(2^exponent G), G exact Gumbel variables."""
        ...

    def normal(self, shape: Shape) -> NDArray[np.float64]:
        """Independent N(0, 1) draws."""
        ...

    def laplace(self, shape: Shape) -> NDArray[np.float64]:
        """Independent Laplace draws of scale 1, variance 2."""
        ...

    def gumbel(self, shape: Shape) -> NDArray[np.float64]:
        """Independent Gumbel draws, P(G <= x) = exp(-exp(-x))."""
        ...

    def uniform(self, shape: Shape) -> NDArray[np.float64]:
        """Independent draws from [0, 1), multiples of 2^-53."""
        ...

    def words(self, shape: Shape) -> NDArray[np.int64]:
        """Independent integers, all of 0, ..., 2^53 - 1 equally likely."""
        ...

    def order(self, count: int) -> NDArray[np.int64]:
        """A random order of so many places."""
        ...


class NoiseSource:
    """Four independent cryptographic streams of noise, of who takes part, and of what is public.

    They are `integers` (exact noise), `noise` (any other), `units` (who is sampled), `public` (directions, shuffles).
    Drawing an array of shape `(T, *shape)` consumes the noise stream exactly as T draws of `shape` do, so noise can be
    drawn ahead in blocks. A secret source draws fresh keys in a forked child process: two processes that used the same
    noise would let an observer subtract it.

    Args:
        seed: None (the default) takes keys from the operating system. A number makes the run reproducible: keys are
            derived from it, whoever knows it can remove the noise, and `seeded` says so to ledger and report.
        exact: whether mechanisms that can add their noise as integers do so. False is for comparisons only: then all
            noise is float64, whose gaps may betray a value, and the report says so.
    Raises:
        TypeError, ValueError: the seed is not a non-negative integer; or the source is pickled or copied, which would
            publish or repeat the noise.
    Source:
        AES: FIPS 197; ChaCha20: RFC 8439. Normals and exponentials: NumPy's ziggurat, Marsaglia and Tsang 2000.
    """

    __slots__ = ("_exact", "_floats", "_integers", "_noise", "_process", "_public", "_seed", "_units")

    def __init__(self, seed: SupportsIndex | None = None, *, exact: bool = True) -> None:
        self._exact = exact
        self._floats = threading.local()
        self._seed = None if seed is None else _checked_seed(seed)
        self._open()

    @classmethod
    def named(cls, noise: NoiseName, seed: SupportsIndex | None = None) -> "NoiseSource":
        """The source that "exact" or "float" stands for.

        Raises:
            ValueError: any other name.
        """
        if noise not in ("exact", "float"):
            raise ValueError(f"noise must be 'exact' or, for comparisons only, 'float', got {noise!r}.")
        return cls(seed, exact=noise == "exact")

    def _open(self) -> None:
        """Key the streams; until all are, another thread of a child process finds that they are to be keyed."""
        process = this_process()
        self._noise = _stream("noise", self._seed)
        self._integers = ExactNoise(_stream("integers", self._seed).bit_generator)
        self._units = _stream("units", self._seed)
        self._public = _stream("public", self._seed)
        self._process = process

    def _after_fork(self) -> None:
        """Take new keys in a child process; a seeded source is not secret and stays as it is."""
        if self._seed is None and this_process() != self._process:
            self._open()

    @property
    def seeded(self) -> bool:
        """Whether the noise follows from a seed, so that the run is not private."""
        return self._seed is not None

    @property
    def exact(self) -> bool:
        """Whether noise is added as integers wherever a mechanism can."""
        return self._exact

    @property
    def units_generator(self) -> np.random.Generator:
        """The secret stream that decides who takes part. Used by the curator only."""
        self._after_fork()
        return self._units

    @property
    def public_generator(self) -> np.random.Generator:
        """The public stream: its draws may be published and say nothing about the other two."""
        self._after_fork()
        return self._public

    def rounded_normal(self, shape: Shape, exponent: int) -> NDArray[np.int64]:
        """Independent round(2^exponent N), N exact standard normals: see `exact_noise`."""
        self._after_fork()
        return self._integers.normal(shape, exponent)

    def rounded_laplace(self, shape: Shape, exponent: int) -> NDArray[np.int64]:
        """Independent round(2^exponent L), L exact Laplace variables of scale 1: see `exact_noise`."""
        self._after_fork()
        return self._integers.laplace(shape, exponent)

    def rounded_gumbel(self, shape: Shape, exponent: int) -> NDArray[np.int64]:
        """Independent round(2^exponent G), G exact Gumbel variables: see `exact_gumbel`."""
        self._after_fork()
        return self._integers.gumbel(shape, exponent)

    def normal(self, shape: Shape) -> NDArray[np.float64]:
        """Independent N(0, 1) draws."""
        return self._float_stream().standard_normal(shape)

    def laplace(self, shape: Shape) -> NDArray[np.float64]:
        """Independent Laplace draws of scale 1, each a difference of two exponentials.

        Source:
            Holohan and Braghin 2021: a sum of several draws leaves no lattice that the low bits betray.
        """
        pairs = self._float_stream().standard_exponential((*shape, 2))
        return np.asarray(pairs[..., 0] - pairs[..., 1])

    def gumbel(self, shape: Shape) -> NDArray[np.float64]:
        """Independent Gumbel draws, minus the logarithm of an exponential."""
        exponentials = self._float_stream().standard_exponential(shape)
        return np.asarray(
            -np.log(np.maximum(exponentials, 2.0**-60))
        )  # an exponential is 0 with probability about 2^-53

    def uniform(self, shape: Shape) -> NDArray[np.float64]:
        """Independent draws from [0, 1), multiples of 2^-53."""
        return self._float_stream().random(shape)

    def words(self, shape: Shape) -> NDArray[np.int64]:
        """Independent integers, all of 0, ..., 2^53 - 1 equally likely."""
        self._after_fork()
        return (self._noise.random(shape) * 2.0**53).astype(np.int64)

    def order(self, count: int) -> NDArray[np.int64]:
        """A random order of so many places: that of uniform numbers, and by place where two agree. It is no noise."""
        self._after_fork()
        return np.argsort(self._noise.random((count,)), kind="stable").astype(np.int64)

    def _float_stream(self) -> np.random.Generator:
        """The stream of noise in floating point, of which note is taken."""
        self._after_fork()
        self._floats.drawn = True
        return self._noise

    def drew_floats(self) -> bool:
        """Whether this thread has drawn floats for noise since it last asked."""
        drawn = bool(getattr(self._floats, "drawn", False))
        self._floats.drawn = False
        return drawn

    def __repr__(self) -> str:
        floats = "" if self._exact else ", floating point"
        return f"NoiseSource({'seeded: not private' if self.seeded else '<private>'}{floats})"

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        raise TypeError(
            "a NoiseSource cannot be pickled or copied: the same noise twice protects nobody. Make a new one."
        )

    def __copy__(self) -> NoReturn:
        self.__reduce_ex__(4)

    def __deepcopy__(self, memo: dict[int, Any]) -> NoReturn:
        self.__reduce_ex__(4)


KEPT_CHOICE: ContextVar[Callable[[], bytes | None] | None] = ContextVar("privopt_kept_choice", default=None)


class RepeatedChoice:
    """One secret choice of users' records, made alike each time that the records are laid out anew.

    Its key is drawn once from the stream of a source that decides who takes part. It never makes noise.
    """

    def __init__(self, noise: NoiseSource) -> None:
        self._key, self.seeded = noise.units_generator.bytes(32), noise.seeded

    @classmethod
    def of(cls, key: bytes) -> "RepeatedChoice":
        """The choice of a key of 32 secret bytes."""
        choice = cls.__new__(cls)
        choice._key, choice.seeded = key, False
        return choice

    @classmethod
    def lasting(cls, noise: NoiseSource) -> "RepeatedChoice":
        """The choice that is kept with a run that may be resumed, see `curator.journal`; without one, a fresh one."""
        kept = None if noise.seeded else KEPT_CHOICE.get()
        key = None if kept is None else kept()
        return cls(noise) if key is None else cls.of(key)

    @property
    def units_generator(self) -> np.random.Generator:
        """The same secret draws again."""
        return _chacha(self._key)

    def __repr__(self) -> str:
        return "RepeatedChoice(<private>)"

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        raise TypeError(
            "a RepeatedChoice cannot be pickled or copied: whoever has its key knows whose records were kept."
        )

    def __copy__(self) -> NoReturn:
        self.__reduce_ex__(4)

    def __deepcopy__(self, memo: dict[int, Any]) -> NoReturn:
        self.__reduce_ex__(4)


def repeated_draws(key: bytes, number: int) -> np.random.Generator:
    """The draws of the cut of this number under a secret key, the same each time. It never makes noise.

    Args:
        key: 32 secret bytes.
        number: which cut; the draws of different ones are independent of one another.
    """
    return _chacha(hashlib.blake2b(b"privopt cut %d" % number, key=key, digest_size=32).digest())


def _chacha(key: bytes) -> np.random.Generator:
    bits: Any = ChaCha(key=int.from_bytes(key, "little"), rounds=20)
    return np.random.Generator(bits)


def _checked_seed(seed: SupportsIndex) -> int:
    try:
        number = operator.index(seed)
    except TypeError:
        if isinstance(seed, np.random.Generator | np.random.RandomState | np.random.BitGenerator):
            raise TypeError(
                f"random_state must be an integer or None, got a {type(seed).__name__}: whoever holds a generator "
                "can repeat its draws, so noise from it is not secret, and a fit that moves it on is not reproducible. "
                "Give None for secret noise, or an integer such as 3 for tests."
            ) from None
        raise TypeError(f"random_state must be an integer or None, got a {type(seed).__name__}.") from None
    if number < 0:
        raise ValueError(
            f"random_state must be at least 0, got {number}: give a non-negative integer, or None for secret noise."
        )
    return number


def _stream(name: str, seed: int | None) -> np.random.Generator:
    """A generator under a fresh key, or under one derived from the seed and the stream's name."""
    bits: Any
    if seed is None:
        bits = AESCounter(key=int.from_bytes(os.urandom(16), "little"))
        if not bits.use_aesni:
            # AES in software is four times slower than ChaCha20, and its table look-ups can be timed.
            bits = ChaCha(key=int.from_bytes(os.urandom(32), "little"), rounds=20)
    else:
        digest = hashlib.sha256(f"privopt/{name}/{seed}".encode()).digest()
        bits = AESCounter(key=int.from_bytes(digest[:16], "little"))
    return np.random.Generator(bits)
