"""Models as JAX pytrees, so that results are compared and printed like those of other programs."""

from typing import Any

import jax


def as_leaves(model: type[Any], *arrays: str) -> None:
    """Make a model's arrays the leaves of a JAX pytree; its levels are part of the structure."""

    def flatten(node: Any) -> tuple[tuple[Any, ...], Any]:
        return tuple(getattr(node, name) for name in arrays), node.levels

    def unflatten(levels: Any, leaves: Any) -> Any:
        return model(levels, *leaves)

    jax.tree_util.register_pytree_node(model, flatten, unflatten)
