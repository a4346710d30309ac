"""A ridge on w = B v, as a penalty of v: what a ridge becomes in other coordinates."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from privopt.problems.regularisers import Regulariser, Step


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class MappedRidge(Regulariser, is_static=False):
    """`strength/2 * sum_j u_j (B v)_j^2`.

    Attributes:
        matrix: B, (d, d), public or released.
        strengths: strength * u, (d,).
    """

    matrix: Float[Array, "d d"]
    strengths: Float[Array, " d"]

    @property
    def strong_convexity(self) -> float:
        """The smallest eigenvalue of `B^T diag(strengths) B`."""
        return max(0.0, float(jnp.linalg.eigvalsh(self._form())[0]))

    @property
    def smoothness(self) -> float:
        """The largest eigenvalue of `B^T diag(strengths) B`."""
        return float(jnp.linalg.eigvalsh(self._form())[-1])

    @property
    def is_smooth(self) -> bool:
        """Always."""
        return True

    def value(self, params: Float[Array, "..."]) -> Float[Array, ""]:
        """The ridge of `B params`."""
        return 0.5 * jnp.sum(params * self.gradient(params))

    def gradient(self, params: Float[Array, "..."]) -> Float[Array, "..."]:
        """`B^T (strengths * B params)`, for a vector or a matrix with one column an output."""
        mapped = self.matrix @ params
        strengths = self.strengths if params.ndim == 1 else self.strengths[:, None]
        return self.matrix.T @ (strengths * mapped)

    def prox(self, params: Float[Array, "..."], step: Step) -> Float[Array, "..."]:
        """The identity: there is no non-smooth part."""
        del step
        return params

    def full_prox(self, params: Float[Array, "..."], step: Step) -> Float[Array, "..."]:
        """`(I + step B^T diag(strengths) B)^-1 params`."""
        return jnp.linalg.solve(jnp.eye(len(self.strengths)) + step * self._form(), params)

    def _form(self) -> Float[Array, "d d"]:
        return self.matrix.T @ (self.strengths[:, None] * self.matrix)


def strongest(regulariser: Regulariser) -> float:
    """The largest strength on a coordinate of w of a ridge in other coordinates; 0 for no penalty."""
    return float(jnp.max(regulariser.strengths)) if isinstance(regulariser, MappedRidge) else 0.0
