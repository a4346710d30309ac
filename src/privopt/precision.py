"""The numbers of every run: float64, by JAX or by NumPy, entered once around the whole run."""

import contextlib
import functools
from collections.abc import Callable, Generator
from contextvars import ContextVar
from typing import Any

import numpy as np

from privopt.later import Array, DoublePrecision, is_double, is_jax, jax, jnp

_IN_NUMPY: ContextVar[bool] = ContextVar("privopt_in_numpy", default=False)


def double_precision() -> Any:
    """A context in which JAX computes in float64; the package never changes the global configuration.

    Estimators, `minimize` and `Program.solve` enter it themselves. Code of your own that calls a curator directly wraps
    the whole run in it: arrays made outside it are float32.
    """
    jax.config  # noqa: B018 - loaded now, since code of others may import JAX itself
    return in_float64()


def in_float64() -> Any:
    """`double_precision`, for our own code: JAX is not loaded for it."""
    return (
        contextlib.nullcontext() if is_double() else DoublePrecision()
    )  # entered again, JAX would compile anew


def require_double_precision() -> None:
    """Refuse to release anything computed in single precision.

    Raises:
        RuntimeError: outside `double_precision()`.
    """
    if not is_double():
        raise RuntimeError(
            "a release was asked for in single precision, whose rounding no sensitivity covers: wrap the run in "
            "`with privopt.double_precision():`."
        )


# ---- Runs in NumPy: of few records, where JAX and compiled kernels take longer to load than to run ---------


@contextlib.contextmanager
def run_in_numpy(*, is_so: bool = True) -> Generator[None]:
    """A run in which points, releases and steps are NumPy's, in float64, and sums of few records as well.

    Args:
        is_so: whether it is; if not, they are JAX's, also in a run in NumPy.
    """
    before = _IN_NUMPY.set(is_so)
    try:
        # In JAX nothing warns of overflow either: what is not finite is seen to by the steps.
        with in_float64() if is_so else double_precision(), np.errstate(all="ignore" if is_so else None):
            yield
    finally:
        _IN_NUMPY.reset(before)


def is_in_numpy() -> bool:
    """Whether this is within a run in NumPy."""
    return _IN_NUMPY.get()


def run_arrays() -> Any:
    """`numpy` within a run in NumPy, else `jax.numpy`."""
    return np if is_in_numpy() else jnp


def arrays_of(*values: Any) -> Any:
    """The namespace that computes with values: `numpy` within a run in NumPy, unless one of them is JAX's."""
    return np if is_in_numpy() and not any(map(is_jax, values)) else jnp


def jitted(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    """`jax.jit(function, **options)`; within a run in NumPy the function as it is."""
    by_jax = jax.jit(function, **options)

    @functools.wraps(function)
    def called(*arguments: Any, **named: Any) -> Any:
        return (function if is_in_numpy() else by_jax)(*arguments, **named)

    return called


def as_released(value: Any) -> Any:
    """A released array for a run, which does not write to it: NumPy's in a run in NumPy, else JAX's."""
    if is_in_numpy():
        copy = np.array(value)  # of its own: what is recorded stays as it is
        copy.flags.writeable = False
        return copy
    # A NumPy array goes through a compiled identity, which takes a quarter of the time of `asarray`.
    return _identity(value) if isinstance(value, np.ndarray) else jnp.asarray(value)


@jax.jit
def _identity(value: Array) -> Array:
    return value
