"""How parameters of any shape lie in the flat vector that solvers see."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from privopt.later import Array, Float, is_array, jax, jnp


@dataclass(frozen=True)
class PytreeLayout:
    """How a pytree of parameters lies in one flat vector: leaf after leaf, row by row.

    Hashable and equal by content, so that what is compiled for one problem serves its equals. Leaves take the flat
    vector's dtype (float64 inside the library) whatever the template's was.
    """

    treedef: Any
    shapes: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, template: Any) -> "PytreeLayout":
        """The layout of a pytree of arrays or numbers.

        Raises:
            TypeError: a leaf is no array of real numbers.
            ValueError: there is none.
        """
        paths, treedef = jax.tree_util.tree_flatten_with_path(template)
        for path, leaf in paths:
            if not _is_real(leaf):
                what = (
                    f"{type(leaf).__name__} of {leaf.dtype}"
                    if isinstance(leaf, np.ndarray)
                    else type(leaf).__name__
                )
                place = f"but {jax.tree_util.keystr(path)}" if path else "but it"
                raise TypeError(
                    f"start must hold arrays of real numbers only, {place} is a {what}: "
                    "leave out what is not learned, such as the activation functions of a module, and put it together "
                    "again inside the loss (Equinox: eqx.partition and eqx.combine)."
                )
        if not paths:
            raise ValueError("start holds no numbers: give the parameters at which the loss function begins.")
        return cls(treedef, tuple(np.shape(leaf) for _, leaf in paths))

    @property
    def size(self) -> int:
        """How many numbers there are."""
        return sum(math.prod(shape) for shape in self.shapes)

    def ravel(self, tree: Any) -> Float[Array, " p"]:
        """The flat vector of a pytree of this layout.

        Raises:
            ValueError: the pytree has another structure or other shapes.
        """
        leaves, treedef = jax.tree_util.tree_flatten(tree)
        shapes = tuple(np.shape(leaf) for leaf in leaves)
        if treedef != self.treedef or shapes != self.shapes:
            raise ValueError(
                f"the parameters are {treedef} with shapes {shapes}, the problem was built for {self.treedef} "
                f"with shapes {self.shapes}: pass the same structure."
            )
        return jnp.concatenate([jnp.ravel(jnp.asarray(leaf, float)) for leaf in leaves])

    def unravel(self, params: Float[Array, " p"]) -> Any:
        """The pytree of a flat vector."""
        sizes = [math.prod(shape) for shape in self.shapes]
        blocks = jnp.split(params, np.cumsum(sizes)[:-1].tolist())
        leaves = [block.reshape(shape) for block, shape in zip(blocks, self.shapes, strict=True)]
        return jax.tree_util.tree_unflatten(self.treedef, leaves)


@dataclass(frozen=True)
class RaveledFunction:
    """A loss of pytree parameters as a loss of the flat vector; equal when function and layout are."""

    function: Callable[[Any, Float[Array, " d"], Float[Array, ""]], Float[Array, ""]]
    layout: PytreeLayout

    def __call__(
        self, params: Float[Array, " p"], features: Float[Array, " d"], target: Float[Array, ""]
    ) -> Float[Array, ""]:
        """The loss of one record at the flat parameters."""
        return self.function(self.layout.unravel(params), features, target)


def _is_real(leaf: Any) -> bool:
    """Whether a leaf of parameters holds real numbers, by its type."""
    if is_array(leaf) or isinstance(leaf, np.generic | jax.ShapeDtypeStruct):
        return jnp.issubdtype(leaf.dtype, jnp.floating) or jnp.issubdtype(leaf.dtype, jnp.integer)
    return isinstance(leaf, int | float) and not isinstance(leaf, bool)
