"""A ridge on w = B v beside one in v around a point: where data say little, a solution stays near that point."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from privopt.problems.mapped_ridge import MappedRidge
from privopt.problems.regularisers import Regulariser, Step


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class AnchoredRidge(Regulariser, is_static=False):
    """`mapped(v) + pull/2 * |v - centre|^2`, for a vector v.

    Attributes:
        mapped: the ridge that was asked for, in v.
        pull: strength of the other, public or released.
        centre: v_0, (d,), public or released.
    """

    mapped: MappedRidge
    pull: Float[Array, ""]
    centre: Float[Array, " d"]

    @property
    def strong_convexity(self) -> float:
        """The two ridges' sum."""
        return self.mapped.strong_convexity + float(self.pull)

    @property
    def smoothness(self) -> float:
        """The two ridges' sum."""
        return self.mapped.smoothness + float(self.pull)

    @property
    def is_smooth(self) -> bool:
        """Always."""
        return True

    def value(self, params: Float[Array, "..."]) -> Float[Array, ""]:
        """See the class."""
        return self.mapped.value(params) + 0.5 * self.pull * jnp.sum((params - self.centre) ** 2)

    def gradient(self, params: Float[Array, "..."]) -> Float[Array, "..."]:
        """The two gradients' sum."""
        return self.mapped.gradient(params) + self.pull * (params - self.centre)

    def prox(self, params: Float[Array, "..."], step: Step) -> Float[Array, "..."]:
        """The identity: there is no non-smooth part."""
        del step
        return params

    def full_prox(self, params: Float[Array, "..."], step: Step) -> Float[Array, "..."]:
        """The minimiser of `value(v) + |v - params|^2 / (2 step)`: of both ridges in one, around a moved point."""
        longer = 1.0 + step * self.pull
        return self.mapped.full_prox((params + step * self.pull * self.centre) / longer, step / longer)
