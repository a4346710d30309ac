"""The number format of every solve: 64-bit JAX, entered once around the whole solve."""

import contextlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


def double_precision() -> Any:
    """A context in which JAX computes in float64; the package never changes the global configuration.

    Estimators, `minimize` and `Program.solve` enter it themselves. Code of your own that calls a curator directly wraps
    the whole run in it: arrays made outside it are float32.
    """
    if jax.config.read("jax_enable_x64"):  # entered again, JAX would compile anew
        return contextlib.nullcontext()
    return jax.enable_x64(True)


def require_double_precision() -> None:
    """Refuse to release anything computed in single precision.

    Raises:
        RuntimeError: outside `double_precision()`.
    """
    if not jax.config.read("jax_enable_x64"):
        raise RuntimeError(
            "a release was asked for in single precision, whose rounding no sensitivity covers: wrap the run in "
            "`with privopt.double_precision():`."
        )


def as_jax(value: Any) -> jax.Array:
    """`jnp.asarray`; a NumPy array goes through a compiled identity, which takes a quarter of the time."""
    return _identity(value) if isinstance(value, np.ndarray) else jnp.asarray(value)


@jax.jit
def _identity(value: jax.Array) -> jax.Array:
    return value
