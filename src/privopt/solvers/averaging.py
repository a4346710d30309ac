"""The guard of steps."""

from typing import Any

import jax
import jax.numpy as jnp


def halted_at_divergence(moved: Any, state: Any) -> Any:
    """The moved state while its iterates are finite, else the old one, marked; both are functions of releases.

    Args:
        moved: the next state, a NamedTuple with a field `finite`.
        state: the state before.
    """
    kept = jax.tree.map(lambda new, old: jnp.where(moved.finite, new, old), moved, state)
    return kept._replace(finite=moved.finite)
