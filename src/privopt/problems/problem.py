"""The public side of an optimisation problem: a loss, a regulariser, a constraint set, the parameters' shape."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from privopt.problems.constraints import Box, Constraint, L1Ball, L2Ball, Product, Unconstrained
from privopt.problems.glm import GLMLoss, Loss, RecordLoss
from privopt.problems.growth import KL
from privopt.problems.regularisers import GroupLasso, NoRegulariser, Regulariser, SeparableRegulariser, Step
from privopt.public import Public


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


@jax.tree_util.register_pytree_node_class
@dataclass(frozen=True)
class Problem:
    """Minimise `(1/n) sum over units of loss + regulariser` over the constraint set.

    Attributes:
        loss: a generalised linear loss, or a `RecordLoss` of the user's own.
        regulariser: penalty of the parameters.
        constraint: closed convex set of parameters.
        layout: how a pytree of parameters lies in the flat vector; None for a plain vector or matrix.
        growth: what is known of how fast the objective grows, for bounds and for solvers that rest on it; utility only.

    Raises:
        ValueError: `prox` would not be the exact proximal map of the non-smooth penalty plus the set.
    """

    loss: Loss
    regulariser: Regulariser = field(default_factory=NoRegulariser)
    constraint: Constraint = field(default_factory=Unconstrained)
    layout: PytreeLayout | None = None
    growth: KL | None = None

    def __post_init__(self) -> None:
        if not _prox_then_project_is_exact(self.regulariser, self.constraint):
            raise ValueError(
                f"the proximal map of {self.regulariser!r} together with {self.constraint!r} is not the one after "
                "the other. Right are: a smooth penalty with any set; L1 and ElasticNet with Box, L2Ball or a "
                "Product of these; GroupLasso with L2Ball; unweighted L1 and ElasticNet with L1Ball."
            )

    def tree_flatten(self) -> tuple[tuple[Regulariser], tuple[Any, ...]]:
        """For `jit`: a regulariser may hold arrays, everything else is a constant of the compiled program."""
        return (self.regulariser,), (self.loss, self.constraint, self.layout, self.growth)

    @classmethod
    def tree_unflatten(cls, constants: tuple[Any, ...], parts: tuple[Any]) -> "Problem":
        """The inverse of `tree_flatten`; nothing is checked again, since a part may be a stand-in of `jit`."""
        made = object.__new__(cls)
        loss, constraint, layout, growth = constants
        for name, value in zip(
            ("loss", "regulariser", "constraint", "layout", "growth"),
            (loss, parts[0], constraint, layout, growth),
            strict=True,
        ):
            object.__setattr__(made, name, value)
        return made

    @classmethod
    def from_pytree(
        cls,
        value: Callable[[Any, Float[Array, " d"], Float[Array, ""]], Float[Array, ""]],
        template: Any,
        *,
        regulariser: Regulariser | None = None,
        constraint: Constraint | None = None,
        name: str = "custom",
        lipschitz: float = math.inf,
        curvature: float = math.inf,
        convex: bool | None = None,
        growth: KL | None = None,
    ) -> "Problem":
        """A problem whose loss takes its parameters as a pytree, like a neural network's.

        Args:
            value: `value(params, features, target)`, the loss of one record, with the template's structure.
            template: parameters of the right structure; only the shapes are kept.
            regulariser: penalty of the flat vector, none by default.
            constraint: set of the flat vector, everything by default.
            name: the loss's name in reports.
            lipschitz: bound on a record's gradient norm, utility only.
            curvature: bound on a record's Hessian norm, utility only.
            convex: whether the loss is convex in the parameters, if that is known, utility only.
            growth: the KL condition of the objective, if it is known, utility only.
        """
        layout = PytreeLayout.of(template)
        function = RaveledFunction(value, layout)
        loss = RecordLoss(function, name=name, lipschitz=lipschitz, curvature=curvature, convex=convex)
        return cls(loss, regulariser or NoRegulariser(), constraint or Unconstrained(), layout, growth)

    def parameter_shape(self, public: Public) -> tuple[int, ...]:
        """Shape of the parameters: (d,), (d, outputs), or (p,) for a raveled pytree."""
        if self.layout is not None:
            return (self.layout.size,)
        return (public.d,) if self.loss.outputs == 1 else (public.d, self.loss.outputs)

    def ravel(self, tree: Any) -> Float[Array, "..."]:
        """A pytree of parameters as the library's array; without a layout, the array itself in float64."""
        return jnp.asarray(tree, float) if self.layout is None else self.layout.ravel(tree)

    def unravel(self, params: Float[Array, "..."]) -> Any:
        """The library's array as the user's pytree; without a layout, the array itself."""
        return params if self.layout is None else self.layout.unravel(params)

    def smoothness(self, public: Public) -> float:
        """A bound on the curvature of the objective, ridge included; infinite if not known. Utility only."""
        return self.loss_smoothness(public) + self.regulariser.smoothness

    def loss_smoothness(self, public: Public) -> float:
        """A bound on the curvature of one record's loss; infinite if not known. Utility only."""
        return self.loss.curvature * (public.row_bound**2 if isinstance(self.loss, GLMLoss) else 1.0)

    def gradient_bound(self, public: Public) -> float:
        """A bound on one record's loss gradient by the loss's formula; infinite if not known. Utility only."""
        return self.loss.lipschitz * (public.row_bound if isinstance(self.loss, GLMLoss) else 1.0)

    def record_value(
        self, params: Float[Array, "..."], features: Float[Array, " d"], target: Float[Array, ""]
    ) -> Float[Array, ""]:
        """The loss of one record, without the penalty."""
        if isinstance(self.loss, GLMLoss):
            return self.loss.value(features @ params, target)
        return self.loss.value(params, features, target)

    def record_gradient(
        self, params: Float[Array, "..."], features: Float[Array, " d"], target: Float[Array, ""]
    ) -> Float[Array, "..."]:
        """The gradient of one record's loss, of the parameters' shape; not clipped, without the penalty."""
        if isinstance(self.loss, RecordLoss):
            return self.loss.gradient(params, features, target)
        slope = self.loss.slope(features @ params, target)
        return features * slope if self.loss.outputs == 1 else jnp.outer(features, slope)

    def objective(
        self,
        params: Float[Array, "..."],
        private_features: Float[Array, "n d"],
        private_targets: Float[Array, " n"],
    ) -> Float[Array, ""]:
        """Mean loss of these records plus the penalty: as private as the records. For tests and benchmarks."""
        losses = jax.vmap(self.record_value, (None, 0, 0))(params, private_features, private_targets)
        return jnp.mean(losses) + self.regulariser.value(params)

    def proximal_step(
        self, at: Float[Array, "..."], gradient: Float[Array, "..."], step_size: Step
    ) -> Float[Array, "..."]:
        """A step of a gradient method: `prox(at - step_size (gradient + grad r(at)))` within the constraint set.

        Args:
            at: where the gradient was taken.
            gradient: of the mean loss, without the penalty.
            step_size: eta.
        """
        return self.prox(at - step_size * (gradient + self.regulariser.gradient(at)), step_size)

    def prox(self, params: Float[Array, "..."], step: Step) -> Float[Array, "..."]:
        """The proximal map of `step` times the non-smooth penalty, within the constraint set: exact."""
        return self.constraint.project(self.regulariser.prox(params, step))


def _is_real(leaf: Any) -> bool:
    """Whether a leaf of parameters holds real numbers, by its type."""
    if isinstance(leaf, np.ndarray | np.generic | jax.Array | jax.ShapeDtypeStruct):
        return jnp.issubdtype(leaf.dtype, jnp.floating) or jnp.issubdtype(leaf.dtype, jnp.integer)
    return isinstance(leaf, int | float) and not isinstance(leaf, bool)


def _prox_then_project_is_exact(regulariser: Regulariser, constraint: Constraint) -> bool:
    """Whether the prox of penalty plus set is the prox of the penalty, then the projection.

    True in one dimension, hence for separable pairs; for a positively homogeneous penalty and a ball around 0 of
    the l2 norm (Yu 2013, On decomposing the proximal map, theorem 4); and for soft thresholds of equal height,
    which add up (l1 ball).
    """
    if regulariser.is_smooth or isinstance(constraint, Unconstrained):
        return True
    if isinstance(regulariser, SeparableRegulariser):
        if isinstance(constraint, Product):
            return all(_prox_then_project_is_exact(regulariser, part) for part, _ in constraint.parts)
        equal_weights = len(set(regulariser.terms[2] or (1.0,))) == 1
        return isinstance(constraint, Box | L2Ball) or (equal_weights and isinstance(constraint, L1Ball))
    return isinstance(regulariser, GroupLasso) and isinstance(constraint, L2Ball)
