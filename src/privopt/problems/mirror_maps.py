"""Mirror maps: the geometry of a bounded body B, for mirror descent and its accelerated form.

Each map has a distance function `w`, 1-strongly convex in the Minkowski norm of B around its centre, whose
Bregman divergence from the start never exceeds `divergence_bound` on B. Lengths are in units of the body:
`step_size` multiplies a gradient whose smoothness is measured in that norm. A map keeps a dual state (a public
function of the gradients it was given), so that entropic steps lose nothing to rounding.

Source:
    Guzman and Nemirovski 2015; Nemirovski and Yudin 1983 for `w`, bounds and steps.
"""

import abc
import math
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from scipy import integrate, special

from privopt.later import Array, Float, jax, jnp
from privopt.problems.projections import project_l2_ball, scale_of

Shape: TypeAlias = tuple[int, ...]
Bounds: TypeAlias = tuple[float, ...]
DualState: TypeAlias = Any  # an array, or a tuple of states


class MirrorMap(abc.ABC):
    """Mirror steps `z' = argmin_{u in B} D_w(u, z) + step_size <gradient, u>` for parameters of one shape."""

    @property
    @abc.abstractmethod
    def divergence_bound(self) -> float:
        """Largest Bregman divergence `D_w(u, start)` over u in B."""

    @property
    @abc.abstractmethod
    def support_moments(self) -> tuple[float, float]:
        """`E h(G)` and `E h(G)^2` (or upper bounds), h(v) = max of `<u - centre, v>` over B, G standard normal."""

    @abc.abstractmethod
    def start(self) -> DualState:
        """The state of the minimiser of `w`."""

    @abc.abstractmethod
    def step(
        self, state: DualState, gradient: Float[Array, "..."], step_size: Float[Array, ""] | float
    ) -> DualState:
        """The state after one mirror step."""

    @abc.abstractmethod
    def point(self, state: DualState) -> Float[Array, "..."]:
        """The parameters of a state, in B."""


@dataclass(frozen=True)
class BallMirror(MirrorMap):
    """l2 ball: `w = ||z||^2 / (2 R^2)`; the state is the point."""

    radius: float
    shape: Shape

    @property
    def divergence_bound(self) -> float:
        return 0.5

    @property
    def support_moments(self) -> tuple[float, float]:
        size = math.prod(self.shape)
        mean = math.sqrt(2.0) * math.exp(math.lgamma((size + 1) / 2) - math.lgamma(size / 2))
        return self.radius * mean, self.radius**2 * size

    def start(self) -> DualState:
        return jnp.zeros(self.shape)

    def step(
        self, state: DualState, gradient: Float[Array, "..."], step_size: Float[Array, ""] | float
    ) -> DualState:
        return project_l2_ball(state - (step_size * self.radius**2) * gradient, self.radius)

    def point(self, state: DualState) -> Float[Array, "..."]:
        return state


@dataclass(frozen=True)
class BoxMirror(MirrorMap):
    """Box: `w = sum_j (z_j - centre_j)^2 / (2 R_j^2)`, R_j the half-widths; the state is the point.

    `low` and `high` hold one number per entry of the parameters, row by row.
    """

    low: Bounds
    high: Bounds
    shape: Shape

    @property
    def divergence_bound(self) -> float:
        return 0.5 * sum(high > low for low, high in zip(self.low, self.high, strict=True))

    @property
    def support_moments(self) -> tuple[float, float]:
        halfwidths = self._halfwidths
        total, squares = float(halfwidths.sum()), float((halfwidths**2).sum())
        return total * math.sqrt(2.0 / math.pi), squares + (total**2 - squares) * 2.0 / math.pi

    def start(self) -> DualState:
        return jnp.asarray((np.asarray(self.low) + self._halfwidths).reshape(self.shape), float)

    def step(
        self, state: DualState, gradient: Float[Array, "..."], step_size: Float[Array, ""] | float
    ) -> DualState:
        scales = jnp.asarray((self._halfwidths**2).reshape(self.shape), state.dtype)
        low = jnp.asarray(np.reshape(self.low, self.shape), state.dtype)
        high = jnp.asarray(np.reshape(self.high, self.shape), state.dtype)
        return jnp.clip(state - step_size * scales * gradient, low, high)

    def point(self, state: DualState) -> Float[Array, "..."]:
        return state

    @property
    def _halfwidths(self) -> np.ndarray:
        return 0.5 * (np.asarray(self.high) - np.asarray(self.low))


@dataclass(frozen=True)
class CrossPolytopeMirror(MirrorMap):
    """l1 ball: `z = R (p+ - p-)`, w the negative entropy of `(p+, p-)` on the doubled simplex, start uniform.

    Steps add `-+step_size R gradient` to the logarithms of `p+` and `p-`, which stay opposite: the state holds
    those of `p+` only, un-normalised.
    """

    radius: float
    shape: Shape

    @property
    def divergence_bound(self) -> float:
        return math.log(2.0 * math.prod(self.shape))

    @property
    def support_moments(self) -> tuple[float, float]:
        size = math.prod(self.shape)

        def exceeds(t: float) -> float:  # P(max |G_j| > t)
            return -math.expm1(size * math.log1p(-special.erfc(t / math.sqrt(2.0)))) if t > 0.0 else 1.0

        return _moments_of_maximum(exceeds, self.radius)

    def start(self) -> DualState:
        return jnp.zeros(math.prod(self.shape))

    def step(
        self, state: DualState, gradient: Float[Array, "..."], step_size: Float[Array, ""] | float
    ) -> DualState:
        return state - (step_size * self.radius) * gradient.reshape(-1)

    def point(self, state: DualState) -> Float[Array, "..."]:
        sizes = jnp.abs(state)
        larger = jnp.exp(sizes - jnp.max(sizes))  # of the two masses of each coordinate
        ratios = jnp.exp(-2.0 * sizes)  # of the smaller to the larger
        differences = jnp.sign(state) * larger * -jnp.expm1(-2.0 * sizes)
        return (self.radius * differences / jnp.sum(larger * (1.0 + ratios))).reshape(self.shape)


@dataclass(frozen=True)
class SimplexMirror(MirrorMap):
    """Simplex: `z = R p`, w the negative entropy of p, start uniform; the state is `log p`, un-normalised."""

    radius: float
    shape: Shape

    @property
    def divergence_bound(self) -> float:
        return math.log(math.prod(self.shape))

    @property
    def support_moments(self) -> tuple[float, float]:
        size = math.prod(self.shape)
        mean, mean_square = _moments_of_maximum(
            lambda t: -math.expm1(size * float(special.log_ndtr(t))), self.radius
        )
        below = _integrals(lambda t: math.exp(size * float(special.log_ndtr(-t))))  # P(max G_j < -t)
        return mean - self.radius * below[0], mean_square + self.radius**2 * below[1]

    def start(self) -> DualState:
        return jnp.zeros(math.prod(self.shape))

    def step(
        self, state: DualState, gradient: Float[Array, "..."], step_size: Float[Array, ""] | float
    ) -> DualState:
        return state - (step_size * self.radius) * gradient.reshape(-1)

    def point(self, state: DualState) -> Float[Array, "..."]:
        return (self.radius * jax.nn.softmax(state)).reshape(self.shape)


@dataclass(frozen=True)
class LpBallMirror(MirrorMap):
    """lp ball, 1 < p <= 2: `w = ||z||_p^2 / (2 (p-1) R^2)`, start 0.

    The step is exact by scaling, since `w` and the constraint use the same norm. The state is `grad w` of the
    point; moments are the upper bounds by the q-norm, q = p / (p - 1).
    """

    radius: float
    p: float
    shape: Shape

    @property
    def divergence_bound(self) -> float:
        return 1.0 / (2.0 * (self.p - 1.0))

    @property
    def support_moments(self) -> tuple[float, float]:
        q = self.p / (self.p - 1.0)
        log_moment = 0.5 * q * math.log(2.0) + math.lgamma((q + 1.0) / 2.0) - 0.5 * math.log(math.pi)
        bound = self.radius * math.exp((math.log(math.prod(self.shape)) + log_moment) / q)
        return bound, bound**2

    def start(self) -> DualState:
        return jnp.zeros(self.shape)

    def step(
        self, state: DualState, gradient: Float[Array, "..."], step_size: Float[Array, ""] | float
    ) -> DualState:
        moved = state - step_size * gradient
        largest_norm = 1.0 / ((self.p - 1.0) * self.radius)  # of grad w on the sphere
        norm = _power_norm(moved, self.p / (self.p - 1.0))
        outside = norm > largest_norm
        return jnp.where(outside, moved * (largest_norm / jnp.where(outside, norm, 1.0)), moved)

    def point(self, state: DualState) -> Float[Array, "..."]:
        q = self.p / (self.p - 1.0)
        norm = _power_norm(state, q)
        unit = jnp.abs(state) / jnp.where(norm > 0.0, norm, 1.0)
        return ((self.p - 1.0) * self.radius**2) * norm * jnp.sign(state) * unit ** (q - 1.0)


@dataclass(frozen=True)
class ProductMirror(MirrorMap):
    """Product of bodies on consecutive entries: `w` is the sum of the parts'."""

    parts: tuple[MirrorMap, ...]
    sizes: tuple[int, ...]
    shape: Shape

    @property
    def divergence_bound(self) -> float:
        return sum(part.divergence_bound for part in self.parts)

    @property
    def support_moments(self) -> tuple[float, float]:
        # h is the sum of independent parts.
        moments = [part.support_moments for part in self.parts]
        mean = sum(first for first, _ in moments)
        return mean, mean**2 + sum(second - first**2 for first, second in moments)

    def start(self) -> DualState:
        return tuple(part.start() for part in self.parts)

    def step(
        self, state: DualState, gradient: Float[Array, "..."], step_size: Float[Array, ""] | float
    ) -> DualState:
        blocks = split(gradient, self.sizes)
        return tuple(
            part.step(inner, block, step_size)
            for part, inner, block in zip(self.parts, state, blocks, strict=True)
        )

    def point(self, state: DualState) -> Float[Array, "..."]:
        points = [part.point(inner) for part, inner in zip(self.parts, state, strict=True)]
        return jnp.concatenate(points).reshape(self.shape)


def split(params: Float[Array, "..."], sizes: tuple[int, ...]) -> list[Float[Array, " block"]]:
    """Cut the entries, row by row, into consecutive blocks of the given sizes."""
    if sum(sizes) != params.size:
        raise ValueError(f"the parts have {sizes} entries, {sum(sizes)} in all, but there are {params.size}.")
    return jnp.split(params.reshape(-1), np.cumsum(sizes)[:-1].tolist())


def _power_norm(params: Float[Array, "..."], q: float) -> Float[Array, ""]:
    scale = scale_of(params)
    return scale * jnp.sum((jnp.abs(params) / scale) ** q) ** (1.0 / q)


def _moments_of_maximum(exceeds: Any, radius: float) -> tuple[float, float]:
    first, second = _integrals(exceeds)
    return radius * first, radius**2 * second


def _integrals(tail: Any) -> tuple[float, float]:
    """`int_0^oo tail dt` and `int_0^oo 2 t tail dt`; every tail here is 0 in floating point beyond 40."""
    knots = [1.0, 2.0, 4.0, 6.0, 8.0]
    first = integrate.quad(tail, 0.0, 40.0, points=knots, limit=400, epsabs=1e-13, epsrel=1e-12)[0]
    second = integrate.quad(
        lambda t: 2.0 * t * tail(t), 0.0, 40.0, points=knots, limit=400, epsabs=1e-13, epsrel=1e-12
    )[0]
    return float(first), float(second)
