"""Norms that neither overflow nor underflow, with a derivative at 0."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


def scale_of(params: Float[Array, "..."]) -> Float[Array, ""]:
    """A number to divide by so that the largest entry is about 1: its size, kept away from 0 and overflow.

    The margins leave room for its reciprocal, which XLA may multiply by instead of dividing. It is a constant to
    differentiation: use it where the result does not depend on it.
    """
    limits, largest = jnp.finfo(params.dtype), jnp.max(jnp.abs(params))
    scale = jnp.clip(largest, float(limits.tiny) * 2.0**20, float(limits.max) * 2.0**-20)
    return jax.lax.stop_gradient(scale)


def l2_norm(params: Float[Array, "..."]) -> Float[Array, ""]:
    """The Euclidean norm of all entries; its derivative at 0 is 0."""
    scale = scale_of(params)
    squares = jnp.sum((params / scale) ** 2)
    present = squares > 0.0
    return jnp.where(present, scale * jnp.sqrt(jnp.where(present, squares, 1.0)), 0.0)
