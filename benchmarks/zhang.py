"""The baseline of Zhang, Tran, Cutkosky 2024: single-pass variance reduction from values, by independent directions.

It differs from ours in the estimate alone: p independent directions of the sphere, the same at both points of a change,
and a clip of every two-point difference in place of one of the vector, whose norm may then be p times as long. The
noise is ours (a factorisation in place of their tree), so that what is compared is the sensitivity.

Source: Zhang, Tran, Cutkosky 2024, Private zeroth-order nonsmooth nonconvex optimization, Algorithms 1 to 3.
"""

from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from privopt.curator.base import Curator
from privopt.papers.reduced_o2nc import Estimates
from privopt.papers.single_pass_o2nc import SinglePassO2NC
from privopt.planning.task import Instance
from privopt.problems.losses import Loss
from privopt.problems.problem import Problem
from privopt.public import Public
from privopt.queries.base import MeanQuery, Scalar, query, static
from privopt.queries.values import ValueSum, along, around, differences
from privopt.solvers.online_to_nonconvex import TYPICAL


@query
class SphereGradient(ValueSum):
    """Mean over units of `(p / m) sum_j clip(c_j) y_j`, y_j any m unit vectors, each difference c_j within +- C.

    Privacy:
        The norm of a unit's vector is at most p C by the triangle inequality, and it is clipped there.
    """

    loss: Loss = static()
    at: Float[Array, " *shape"]
    directions: Float[Array, "m p"]
    smoothing: Scalar
    clip: Scalar

    def radius(self) -> Scalar:
        """p C."""
        return self.clip * jnp.shape(self.directions)[1]

    def shape(self, public: Public) -> tuple[int, ...]:
        """The shape of the parameters."""
        del public
        return tuple(jnp.shape(self.at))

    def points(self) -> Float[Array, "2m p"]:
        """Both ends of every difference."""
        return around(self.at, self.directions, self.smoothing)

    def of_values(self, private_values: Float[Array, " 2m"]) -> Array:
        """The clipped differences along their directions."""
        rows, size = jnp.shape(self.directions)
        private_clipped = jnp.clip(differences(private_values, self.smoothing), -self.clip, self.clip)
        return along(self.directions, private_clipped * (size / rows), jnp.shape(self.at))


@query
class SphereDifference(ValueSum):
    """Likewise of the change between two points, each difference of differences within `C |at - anchor| / smoothing`.

    Privacy:
        As for `SphereGradient`.
    """

    loss: Loss = static()
    at: Float[Array, " *shape"]
    anchor: Float[Array, " *shape"]
    directions: Float[Array, "m p"]
    smoothing: Scalar
    clip: Scalar

    def change_clip(self) -> Scalar:
        """C |at - anchor| / smoothing."""
        apart = jnp.asarray(self.at, float) - jnp.asarray(self.anchor, float)
        return self.clip * jnp.sqrt(jnp.sum(apart * apart)) / self.smoothing

    def radius(self) -> Scalar:
        """p times that."""
        return self.change_clip() * jnp.shape(self.directions)[1]

    def shape(self, public: Public) -> tuple[int, ...]:
        """The shape of the parameters."""
        del public
        return tuple(jnp.shape(self.at))

    def points(self) -> Float[Array, "4m p"]:
        """Those around `at`, then those around `anchor`."""
        here = around(self.at, self.directions, self.smoothing)
        return jnp.concatenate([here, around(self.anchor, self.directions, self.smoothing)])

    def of_values(self, private_values: Float[Array, " 4m"]) -> Array:
        """The clipped differences of differences along their directions."""
        rows, size = jnp.shape(self.directions)
        half = private_values.shape[0] // 2
        private_change = differences(private_values[:half], self.smoothing) - differences(
            private_values[half:], self.smoothing
        )
        cap = self.change_clip()
        return along(self.directions, jnp.clip(private_change, -cap, cap) * (size / rows), jnp.shape(self.at))


@dataclass(frozen=True, kw_only=True)
class SphereEstimates(Estimates):
    """Directions from the sphere, with a clip of every difference."""

    def gradient(self, at: Float[Array, " *shape"], turn: int) -> MeanQuery:
        """The query of step `turn` for the gradient."""
        return SphereGradient(
            loss=self.loss,
            at=at,
            directions=self._sphere(at.size, turn),
            smoothing=self.smoothing,
            clip=self.clip / at.size,
        )

    def change(self, at: Float[Array, " *shape"], before: Float[Array, " *shape"], turn: int) -> MeanQuery:
        """The query of step `turn` for the change of the gradient."""
        return SphereDifference(
            loss=self.loss,
            at=at,
            anchor=before,
            directions=self._sphere(at.size, turn),
            smoothing=self.smoothing,
            clip=self.clip / at.size,
        )

    def _sphere(self, parameters: int, turn: int) -> Float[Array, "m p"]:
        assert self.key is not None
        drawn = jax.random.normal(jax.random.fold_in(self.key, turn), (parameters, parameters), jnp.float64)
        return drawn / jnp.sqrt(jnp.sum(drawn * drawn, axis=1, keepdims=True))


@dataclass(frozen=True, kw_only=True)
class ZhangO2NC(SinglePassO2NC):
    """Their method: `clip` is p C and `slope_clip` p C / smoothing, the worst case of one unit's estimate."""

    name: ClassVar[str] = "zhang-tran-cutkosky"

    @classmethod
    def of(cls, instance: Instance, lipschitz: float, *, smoothing: float, **settings: float) -> "ZhangO2NC":
        """The method for losses of this slope."""
        longest = lipschitz * instance.parameters
        return cls(
            variance_reduction=True,
            estimate="values",
            smoothing=smoothing,
            clip=longest,
            slope_clip=longest / smoothing,
            typical=TYPICAL * lipschitz,
            **settings,  # type: ignore[arg-type]  # numbers by name
        )

    def estimates(self, curator: Curator, problem: Problem) -> Estimates:
        """Theirs."""
        ours = super().estimates(curator, problem)
        return SphereEstimates(**{name: getattr(ours, name) for name in ours.__dataclass_fields__})
