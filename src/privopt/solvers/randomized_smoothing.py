"""Randomized smoothing in front of any solver: gradients at random points near the iterate, for losses with corners.

Source: Lowy, Liu, Asi 2024, Section 4; Duchi, Bartlett, Wainwright 2012.
"""

import math
from dataclasses import dataclass, field, replace
from typing import ClassVar, Self

from privopt.curator.base import Curator
from privopt.later import Array, Float, UInt32, jax, jnp
from privopt.planning.kl_theory import DISTANCE
from privopt.planning.task import Forecast, Instance
from privopt.problems.glm import GLMLoss, Loss, RecordLoss
from privopt.problems.problem import Problem
from privopt.public import Public
from privopt.result import Outcome
from privopt.solvers.base import Solver
from privopt.solvers.fields import derived, number
from privopt.solvers.front_end import FrontEnd
from privopt.solvers.gradient_descent import GradientDescent


# ---- The problem that is solved in place of the given one. Utility only ------------------------------------
def smoothed_problem(problem: Problem, public: Public, radius: float, seed: int) -> Problem:
    """The problem with its loss smoothed; the problem itself for a radius of 0."""
    if radius == 0.0:
        return problem
    smooth = randomly_smoothed(problem.loss, radius, row_bound=public.row_bound, seed=seed)
    return replace(problem, loss=smooth, growth=None, constant=None)


@dataclass(frozen=True, kw_only=True)
class RandomizedSmoothing(FrontEnd):
    """A solver that runs on the smoothed loss f_r(w) = E f(w + r z), z uniform in the unit ball.

    Attributes:
        inner: the solver; it must take losses of the user's own.
        radius: r, in units of the parameters; 0 for none.
        seed: public, of the points.
        noise_multiplier: that of `inner`, set by `configure`.
    Guarantee:
        That of `inner`, for the same events: z is a pseudo-random function of a public point and of the record alone,
        so a record's clipped contribution is a function of that record. See `solvers.randomized_smoothing`.
    Differs from the paper:
        mu in place of epsilon in the radius; one z a record and step, from a hash instead of a stream of its own.
    Source:
        Lowy, Liu, Asi 2024, Section 4 and Appendix D.
    """

    name: ClassVar[str] = "randomized-smoothing"
    title_of: ClassVar[str] = "randomly smoothed {}"

    inner: Solver = field(default_factory=GradientDescent)
    radius: float = derived(at_least=0, below=math.inf)
    seed: int = number(0, at_least=0)

    def default_radius(self, instance: Instance) -> float:
        """r = W sqrt(p) / (mu n sqrt(m)), W the distance that the optimum is guessed at; 0 without noise.

        With it the bias, at most L r, is about the error that the noise leaves anyway.
        """
        public = instance.public
        if not instance.is_private:
            return 0.0
        distance = DISTANCE / public.row_bound
        units = public.n * math.sqrt(public.typical_records)
        return distance * math.sqrt(instance.parameters) / (instance.mu * units)

    def filled(self, instance: Instance) -> Self:
        """The radius, then the inner solver for the smoothed loss."""
        solver = super().filled(instance)
        return solver.with_(inner=solver.inner.filled(solver.smoothed(instance)))

    def configure(self, instance: Instance) -> Self:
        """The inner solver has the whole budget."""
        solver = self.filled(instance)
        inner = solver.inner
        if self.is_set("noise_multiplier"):
            inner = inner.with_(noise_multiplier=self.noise_multiplier)
        inner = inner.configure(solver.smoothed(instance))
        return solver.with_(inner=inner, noise_multiplier=inner.noise_multiplier)

    def smoothed(self, instance: Instance) -> Instance:
        """The instance that the inner solver plans for."""
        return replace(instance, problem=self._smoothed(instance.problem, instance.public))

    def applicable(self, problem: Problem, public: Public) -> str | None:
        """Where the inner solver takes a loss of the user's own."""
        radius = self.radius if self.is_set("radius") else 1.0
        return self.inner.applicable(self.with_(radius=radius)._smoothed(problem, public), public)

    def seconds(self, problem: Problem, public: Public) -> float:
        """The inner solver's on the smoothed loss."""
        return self.inner.seconds(self._smoothed(problem, public), public)

    def forecast(self, instance: Instance) -> Forecast:
        """The inner solver's, and the bias where the loss states its slope."""
        inner = self.inner.forecast(self.smoothed(instance))
        bias = instance.gradient_bound * self.radius
        if math.isinf(bias):
            return inner
        return inner.noting(
            f"smoothing over a radius of {self.radius:.3g} moves the objective by at most {bias:.3g}."
        )

    def run(self, curator: Curator, problem: Problem, start: Array) -> Outcome:
        """The inner solver, on the smoothed loss."""
        return self.inner.run(curator, self._smoothed(problem, curator.public), start)

    def _smoothed(self, problem: Problem, public: Public) -> Problem:
        return smoothed_problem(problem, public, self.radius, self.seed)


# ---- Randomized smoothing: any loss, its gradient taken at a random point near the parameters --------------
#     f_r(w) = E f(w + r z),   z uniform in the unit ball,   |f_r - f| <= L r,   curvature at most L sqrt(p) / r
#
# for a loss f that is L-Lipschitz in its p parameters. The gradient of f at w + r z is an unbiased gradient of f_r, so
# a method for smooth losses runs on one that is not. For losses of a linear prediction there is a closed form without
# its variance: `losses.quantile(level, h)`, `losses.absolute(h)` and `losses.smoothed_hinge(h)`.
#
# Which z a record gets. z is a pseudo-random function of the public point w and of the record itself: its features, its
# target, and a public seed, all rounded to float32, are hashed to a key of threefry. So a record's contribution is a
# pure function of that record at a public point, as for every loss: clips, sensitivities and prices are untouched,
# whatever z is, and z is the same on every engine and in every order. As w moves from step to step the keys are new.
# Someone who chooses their record so as to choose z chooses nothing but their own clipped contribution. Equal records
# have equal z, and steps that do not move w by a float32 rounding repeat it: that is variance, not bias.
#
# Source:
#     Duchi, Bartlett, Wainwright 2012, Randomized smoothing for stochastic optimization; Yousefian, Nedic, Shanbhag
#     2012, Lemma 8 (the curvature in the ball).


_GOLDEN = 0x9E3779B9  # 2^32 over the golden ratio
_LANES = (0x243F6A88, 0x85A308D3)  # digits of pi: what makes the two halves of a key differ


@dataclass(frozen=True)
class ShiftedValue:
    """A loss at a random point of the ball around the parameters; equal when loss, radius and seed are."""

    loss: Loss
    radius: float
    seed: int

    def __call__(
        self, params: Float[Array, "..."], features: Float[Array, " d"], target: Float[Array, ""]
    ) -> Float[Array, ""]:
        """The loss of one record at `params + radius z`; its derivative by the parameters is the gradient there."""
        shifted = params + self.radius * jax.lax.stop_gradient(
            ball_point(params, features, target, seed=self.seed)
        )
        if isinstance(self.loss, GLMLoss):
            return self.loss.value(features @ shifted, target)
        return self.loss.value(shifted, features, target)


def randomly_smoothed(loss: Loss, radius: float, *, row_bound: float = 1.0, seed: int = 0) -> RecordLoss:
    """The smoothed loss, as a loss of one record; its value is that at one random point.

    It states the curvature of the loss itself. That of f_r is at most L sqrt(p) / r, and steps as short as this allows
    are far too short: the bound is for losses whose records all have their corners at the same place.

    Args:
        loss: a generalised-linear loss, or one of the user's own.
        radius: r, in units of the parameters; 0 for none.
        row_bound: largest norm of a row, for the constants of a generalised-linear loss; utility only.
        seed: public; another one gives other points.
    Raises:
        ValueError: the radius is negative or not finite.
    """
    if not 0.0 <= radius < math.inf:
        raise ValueError(
            f"radius must be at least 0 and finite, got {radius!r}: it is how far a point is moved."
        )
    linear = isinstance(loss, GLMLoss)
    lipschitz = loss.lipschitz * (row_bound if linear else 1.0)
    return RecordLoss(
        ShiftedValue(loss, radius, seed),
        name=f"randomly smoothed {loss.name}",
        lipschitz=lipschitz,
        curvature=loss.curvature * (row_bound**2 if linear else 1.0),
        convex=loss.convex,
        outputs=loss.outputs,
    )


def ball_point(
    params: Float[Array, "..."], features: Float[Array, " d"], target: Float[Array, ""], *, seed: int = 0
) -> Float[Array, "..."]:
    """A point of the unit ball of the parameters' shape, uniform over keys: a normal's direction times U^(1/p)."""
    words = [_bits(part) for part in (params, features, target)]
    sizes = jnp.asarray([seed, *(len(part) for part in words)], jnp.uint32)
    key = jax.random.wrap_key_data(_digest(jnp.concatenate([sizes, *words])), impl="threefry2x32")
    towards, outwards = jax.random.split(key)
    direction = jax.random.normal(towards, params.shape, params.dtype)
    length = jnp.sqrt(jnp.sum(direction * direction))
    reach = jax.random.uniform(outwards, (), params.dtype) ** (1.0 / params.size)
    return direction * (reach / jnp.where(length > 0.0, length, 1.0))


def _bits(numbers: Float[Array, "..."]) -> UInt32[Array, " k"]:
    """The bits of float32 numbers; both zeros have the same."""
    single = jnp.asarray(jax.lax.stop_gradient(numbers), jnp.float32).reshape(-1)
    return jax.lax.bitcast_convert_type(jnp.where(single == 0.0, jnp.zeros_like(single), single), jnp.uint32)


def _digest(words: UInt32[Array, " k"]) -> UInt32[Array, " 2"]:
    """A key: each word mixed with its position, summed, mixed again; twice."""
    position = (jnp.arange(len(words), dtype=jnp.uint32) + jnp.uint32(1)) * jnp.uint32(_GOLDEN)
    halves = [
        _mixed(jnp.sum(_mixed(words ^ _mixed(position ^ jnp.uint32(lane))), dtype=jnp.uint32))
        for lane in _LANES
    ]
    return jnp.stack(halves)


def _mixed(word: UInt32[Array, "..."]) -> UInt32[Array, "..."]:
    """The finaliser of MurmurHash3: every bit of the word changes about half of the result's."""
    word = (word ^ (word >> 16)) * jnp.uint32(0x85EBCA6B)
    word = (word ^ (word >> 13)) * jnp.uint32(0xC2B2AE35)
    return word ^ (word >> 16)
