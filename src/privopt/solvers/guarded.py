"""Steps that stop by themselves: from the first state that is not finite on, nothing moves."""

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp

LARGEST = 1e30  # no descent on float32 rows ends there; squares of what is larger soon overflow

State = TypeVar("State", bound=tuple[Any, ...])


def guarded(step: Callable[..., State]) -> Callable[..., State]:
    """A step that keeps the last finite state.

    Args:
        step: `step(state, ...) -> state`; the state is a NamedTuple with a boolean field `finite`, which the step may
            leave as it is.
    Returns:
        The same step; where an entry of the new state is not finite, or beyond `LARGEST`, it returns the old one with
        `finite` false, and from there on it returns that. Both are functions of releases: looking costs nothing.
    """

    @functools.wraps(step)
    def kept(state: State, *arguments: Any, **options: Any) -> State:
        moved = step(state, *arguments, **options)
        finite = _is_finite(moved) & state.finite  # type: ignore[attr-defined]
        still = jax.tree.map(lambda new, old: jnp.where(finite, new, old), moved, state)
        return still._replace(finite=finite)

    return kept


def _is_finite(state: Any) -> Any:
    leaves = [leaf for leaf in jax.tree.leaves(state) if jnp.issubdtype(jnp.result_type(leaf), jnp.floating)]
    return functools.reduce(
        jnp.logical_and, (jnp.all(jnp.abs(leaf) <= LARGEST) for leaf in leaves), jnp.asarray(True)
    )
