"""The public side of an optimisation problem: a loss, a regulariser, a constraint set, the parameters' shape."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from privopt.later import Array, Float, jax, jnp
from privopt.problems.black_box import BlackBox, CallsOfPoints, quiet_calls
from privopt.problems.constraints import Box, Constraint, L1Ball, L2Ball, Product, Unconstrained
from privopt.problems.glm import GLMLoss, Loss, RecordLoss
from privopt.problems.growth import KL
from privopt.problems.layout import PytreeLayout, RaveledFunction
from privopt.problems.regularisers import (
    GroupLasso,
    NoRegulariser,
    Regulariser,
    SeparableRegulariser,
    Step,
    leaves_free,
)
from privopt.public import Public


@jax.tree_util.register_pytree_node_class
@dataclass(frozen=True)
class Problem:
    """Minimise `(1/n) sum over units of loss + regulariser` over the constraint set.

    Attributes:
        loss: a generalised linear loss, a `RecordLoss` of the user's own, or a `BlackBox`.
        regulariser: penalty of the parameters.
        constraint: closed convex set of parameters.
        layout: how a pytree of parameters lies in the flat vector; None for a plain vector or matrix.
        growth: what is known of how fast the objective grows, for bounds and for solvers that rest on it; utility only.
        constant: the number of the column that is 1 in every row, so that its coefficient is an intercept, which no
            penalty may shrink; None without an intercept. Only for a generalised linear loss. Utility only.

    Raises:
        TypeError: `constant` is not an integer.
        ValueError: `constant` is negative, penalised or beside a loss of the user's own; or `prox` would not be the
            exact proximal map of the non-smooth penalty plus the set.
    """

    loss: Loss
    regulariser: Regulariser = field(default_factory=NoRegulariser)
    constraint: Constraint = field(default_factory=Unconstrained)
    layout: PytreeLayout | None = None
    growth: KL | None = None
    constant: int | None = None

    def __post_init__(self) -> None:
        if self.constant is not None:
            _check_constant(self.constant, self.loss, self.regulariser)
        if not _prox_then_project_is_exact(self.regulariser, self.constraint):
            raise ValueError(
                f"the proximal map of {self.regulariser!r} together with {self.constraint!r} is not the one after "
                "the other. Right are: a smooth penalty with any set; L1 and ElasticNet with Box, L2Ball or a "
                "Product of these; GroupLasso with L2Ball; unweighted L1 and ElasticNet with L1Ball."
            )

    def tree_flatten(self) -> tuple[tuple[Regulariser], tuple[Any, ...]]:
        """For `jit`: a regulariser may hold arrays, everything else is a constant of the compiled program."""
        return (self.regulariser,), (self.loss, self.constraint, self.layout, self.growth, self.constant)

    @classmethod
    def tree_unflatten(cls, constants: tuple[Any, ...], parts: tuple[Any]) -> "Problem":
        """The inverse of `tree_flatten`; nothing is checked again, since a part may be a stand-in of `jit`."""
        made = object.__new__(cls)
        loss, *others = constants
        names = ("loss", "regulariser", "constraint", "layout", "growth", "constant")
        for name, value in zip(names, (loss, parts[0], *others), strict=True):
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

    @classmethod
    def of_values(
        cls,
        loss: BlackBox,
        template: Any,
        *,
        regulariser: Regulariser | None = None,
        constraint: Constraint | None = None,
    ) -> "Problem":
        """A problem whose loss is known by its values only.

        Args:
            loss: the black box.
            template: parameters of the right structure, an array or any pytree; only the shapes are kept.
            regulariser: penalty of the flat vector in units of the loss's `scale`, none by default.
            constraint: set of the flat vector in these units, everything by default.
        """
        layout = PytreeLayout.of(template)
        return cls(
            loss.laid_out(layout), regulariser or NoRegulariser(), constraint or Unconstrained(), layout
        )

    def parameter_shape(self, public: Public) -> tuple[int, ...]:
        """Shape of the parameters: (d,), (d, outputs), or (p,) for a raveled pytree."""
        if self.layout is not None:
            return (self.layout.size,)
        return (public.d,) if self.loss.outputs == 1 else (public.d, self.loss.outputs)

    def ravel(self, tree: Any) -> Float[Array, "..."]:
        """A pytree of parameters as the library's array; without a layout, the array itself in float64."""
        flat = jnp.asarray(tree, float) if self.layout is None else self.layout.ravel(tree)
        return self.loss.inward(flat) if isinstance(self.loss, BlackBox) else flat

    def unravel(self, params: Float[Array, "..."]) -> Any:
        """The library's array as the user's pytree; without a layout, the array itself as NumPy's."""
        flat = self.loss.outward(params) if isinstance(self.loss, BlackBox) else params
        return np.asarray(flat) if self.layout is None else self.layout.unravel(flat)

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
        """The gradient of one record's loss, of the parameters' shape; not clipped, without the penalty.

        Raises:
            ValueError: the loss is known by its values only.
        """
        if not isinstance(self.loss, GLMLoss):
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
        if isinstance(self.loss, BlackBox) and self.loss.host:
            private_losses = _called(self.loss, params, private_features, private_targets)
        else:
            private_losses = jax.vmap(self.record_value, (None, 0, 0))(
                params, private_features, private_targets
            )
        return jnp.mean(private_losses) + self.regulariser.value(params)

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

    @property
    def shrinks_exactly(self) -> bool:
        """Whether `shrinking_step` is exact: the proximal map of the whole penalty, its ridge included, and the set."""
        if not isinstance(self.regulariser, SeparableRegulariser):
            return False
        # A ridge of equal weights turns |u - w|^2 into a multiple of |u - w / (1 + step l2)|^2, for any set.
        alike = len(set(self.regulariser.terms[2] or (1.0,))) == 1
        return alike or isinstance(self.constraint, Unconstrained | Box)

    def shrinking_step(
        self, at: Float[Array, "..."], gradient: Float[Array, "..."], step_size: Step
    ) -> Float[Array, "..."]:
        """`proximal_step` with the ridge in the proximal map, which no step size makes diverge.

        Exact where `shrinks_exactly`.
        """
        return self.constraint.project(self.regulariser.full_prox(at - step_size * gradient, step_size))

    def prox(self, params: Float[Array, "..."], step: Step) -> Float[Array, "..."]:
        """The proximal map of `step` times the non-smooth penalty, within the constraint set: exact."""
        return self.constraint.project(self.regulariser.prox(params, step))


def _check_constant(constant: Any, loss: Loss, regulariser: Regulariser) -> None:
    if isinstance(constant, bool) or not isinstance(constant, int | np.integer):
        raise TypeError(f"constant must be the number of a column, or None, got {constant!r}.")
    if constant < 0:
        raise ValueError(f"constant must be the number of a column, 0 for the first, got {constant}.")
    if not isinstance(loss, GLMLoss):
        raise ValueError(
            f"constant={constant} is for the rows of a generalised linear loss, got the {loss.name} loss: leave it out."
        )
    if not leaves_free(regulariser, int(constant)):
        raise ValueError(
            f"constant={constant} is penalised by {type(regulariser).__name__}, and an intercept must not be: give "
            "the penalty `weights` with a 0 there."
        )


def _called(loss: BlackBox, params: Array, private_features: Any, private_targets: Any) -> Float[Array, " n"]:
    """The values of a black box for some records, one call after the other."""
    call = CallsOfPoints(loss, np.asarray(params, np.float64)[None, :])
    private_rows, private_labels = np.asarray(private_features), np.asarray(private_targets)
    with quiet_calls():
        return jnp.asarray(
            [
                call(private_row, float(label))[0]
                for private_row, label in zip(private_rows, private_labels, strict=True)
            ]
        )


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
