"""The number format of every solve: 64-bit JAX, entered once around the whole solve."""

import contextlib
from typing import Any

import numpy as np

from privopt.later import Array, DoublePrecision, is_double, jax, jnp


def double_precision(*, host: bool = False) -> Any:
    """A context in which JAX computes in float64; the package never changes the global configuration.

    Estimators, `minimize` and `Program.solve` enter it themselves. Code of your own that calls a curator directly wraps
    the whole run in it: arrays made outside it are float32.

    Args:
        host: whether the run inside is in NumPy; JAX is then loaded only if something asks for it after all.
    """
    if not host:
        jax.config  # noqa: B018 - loaded now, since code of others may import JAX itself
    if is_double():  # entered again, JAX would compile anew
        return contextlib.nullcontext()
    return DoublePrecision()


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


def as_jax(value: Any) -> Array:
    """`jnp.asarray`; a NumPy array goes through a compiled identity, which takes a quarter of the time."""
    return _identity(value) if isinstance(value, np.ndarray) else jnp.asarray(value)


@jax.jit
def _identity(value: Array) -> Array:
    return value
