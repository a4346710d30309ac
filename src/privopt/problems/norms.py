"""Norms that neither overflow nor underflow, with a derivative at 0."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


def scale_of(params: Float[Array, "..."]) -> Float[Array, ""]:
    """A number to divide by so that the largest entry is about 1: its size, kept away from 0 and overflow.

    XLA multiplies by the reciprocal instead of dividing, and takes subnormal numbers for 0: a vector divided by a
    number beyond 4.5e307 would be zero. The margins leave room for that: the largest entry of the quotient is at most
    2^20, and about 1 or more unless the vector is below 2^20 times the smallest normal number. It is a constant
    to differentiation: use it where the result does not depend on it.
    """
    limits, largest = jnp.finfo(params.dtype), jnp.max(jnp.abs(params), initial=0.0)
    scale = jnp.clip(largest, float(limits.tiny) * 2.0**20, float(limits.max) * 2.0**-20)
    return jax.lax.stop_gradient(scale)


def l2_norm(params: Float[Array, "..."]) -> Float[Array, ""]:
    """The Euclidean norm of all entries; its derivative at 0 is 0."""
    scale = scale_of(params)
    squares = jnp.sum((params / scale) ** 2)
    present = squares > 0.0
    return jnp.where(present, scale * jnp.sqrt(jnp.where(present, squares, 1.0)), 0.0)
