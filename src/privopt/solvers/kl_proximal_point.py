"""The private proximal point method for objectives with a sharp minimum: non-smooth losses, kappa >= 2.

Solves min_x F(x) + r(x) over a constraint set by T proximal steps, each an approximate minimum of

    F_t(x) = F(x) + r(x) + lam |x - x_(t-1)|^2,

found by m noisy subgradient steps that need no smoothness. A sharp minimum (gradients that stay large near it) makes
the proximal steps contract fast, and each gets `ratio` times the budget of the one before. `planning.kl_proximal_point`
has the default weight lam, the prediction of the excess and its proof.
Source: Menart, Ullah, Arora, Bassily, Guzman 2023, Algorithms 2 and 4; Lacoste-Julien, Schmidt, Bach 2012.
"""

import math
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, NamedTuple, Self

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from privopt.curator.base import Curator
from privopt.ledger.events import Event, Repeated, Sequence
from privopt.mechanisms.additive import Gaussian
from privopt.planning import kl_proximal_point as planning
from privopt.planning.forecast import Forecast
from privopt.planning.instance import Instance
from privopt.problems.growth import KL
from privopt.problems.problem import Problem
from privopt.public import Public
from privopt.queries.gradient import ClippedGradient
from privopt.result import Outcome, ending
from privopt.solvers.base import Defaults, Solver
from privopt.solvers.fields import derived, number
from privopt.solvers.guarded import guarded


class ProximalState(NamedTuple):
    """Where the inner method stands; every entry is a function of released values."""

    params: Float[Array, " *shape"]  # x_t
    average: Float[Array, " *shape"]  # mean of the points whose gradients were released, weights 1, 2, 3, ...
    finite: Bool[Array, ""]  # whether every iterate so far was; from the first that was not, nothing moves


@dataclass(frozen=True, kw_only=True)
class KLProximalPoint(Solver):
    """The private proximal point method.

    Attributes:
        outer_steps: T, proximal steps; 0 returns the start and spends nothing.
        inner_steps: m, releases of each proximal step.
        weight: lam, in objective / params^2; default that of `planning.kl_proximal_point`, which needs the growth.
        weak_convexity: wc >= 0 such that F + wc |x|^2 / 2 is convex; 0 for convex losses.
        ratio: the budget of a proximal step over that of the one before it, at least 1.
        clip: C, the largest norm of one unit's gradient.
        growth: the KL condition of the objective, with kappa >= 2; default that of the problem.
        most_steps: T m is at most this: m is lowered first, then T.
        noise_multiplier: that of every release if all had the same; they differ as `ratio` says, at the same price.
    Guarantee:
        T m Gaussian releases, of sensitivity factor * C / n or what the loss allows at the point if that is less, with
        fixed multipliers: exactly (epsilon, delta)-DP by Gaussian-DP composition, for any data, loss and parameters.
    Differs from the paper:
        The weight is free instead of the smoothness, which a convex loss does not have; budgets double instead of being
        equal; the whole budget is spent, in a few thousand passes instead of n^2. The gradient is taken at the iterate,
        not at a fixed point; steps are 2 / (mu (t + 1)), which the weights 1, 2, ... of the average ask for; all m
        gradients are used, so the average weighs exactly the points that were released. The prediction replaces the
        theorem, whose proof compares F_t with F the wrong way round and applies the KL condition at another point than
        it contradicts.
    Source:
        Menart, Ullah, Arora, Bassily, Guzman 2023, Algorithms 2 and 4, Theorem 2; Lacoste-Julien, Schmidt, Bach 2012
        (steps and weights).
    """

    name: ClassVar[str] = "kl-proximal-point"
    for_convex: ClassVar[str] = "its subproblems"
    defaults: ClassVar[Defaults] = planning.DEFAULTS

    outer_steps: int = number(12, at_least=0)
    inner_steps: int = number(300, at_least=1)
    weight: float = derived(above=0, below=math.inf)
    weak_convexity: float = number(0.0, at_least=0, below=math.inf)
    ratio: float = number(2.0, at_least=1, below=math.inf)
    clip: float = derived(above=0)
    growth: KL | None = None
    most_steps: int = number(5000, at_least=1)

    def check(self) -> None:
        if self.is_set("weight") and not self.weight > 0.5 * self.weak_convexity:
            raise ValueError(
                f"weight must be above half of weak_convexity = {self.weak_convexity:g}, got {self.weight!r}: the "
                "subproblems must be strongly convex."
            )

    def filled(self, instance: Instance) -> Self:
        solver = super().filled(instance)
        return solver.with_(**planning.within_most_steps(solver))

    def forecast(self, instance: Instance) -> Forecast:
        return planning.forecast(self, instance)

    def applicable(self, problem: Problem, public: Public) -> str | None:
        """A sharp minimum, or a weight of the user's own."""
        del public
        growth = problem.growth if self.growth is None else self.growth
        if growth is None:
            if self.is_set("weight"):
                return None
            return (
                "its weight follows from how sharp the minimum is: give `growth` (a KL condition) or `weight`"
            )
        if growth.kappa < 2.0:
            return (
                f"it needs a sharp minimum (kappa at least 2), and this objective has kappa = {growth.kappa:.4g}: use "
                "scheduled or adaptive gradient descent, or the variance-reduced solvers for smooth losses"
            )
        return None

    @property
    def rests_on_convexity(self) -> str:
        """Nothing where `weak_convexity` is given."""
        return "" if self.weak_convexity > 0.0 else self.for_convex

    @property
    def convexity(self) -> float:
        """mu, the strong convexity of a subproblem."""
        return 2.0 * self.weight - self.weak_convexity

    def mechanisms(self) -> tuple[Gaussian, ...]:
        """The noise of each proximal step's releases."""
        factors = planning.noise_factors(self.ratio, self.outer_steps)
        return tuple(Gaussian(float(self.noise_multiplier * factor)) for factor in factors)

    def event(self, public: Public) -> Event:
        """T times m Gaussian releases."""
        del public
        return Sequence(tuple(Repeated(noise.event(), self.inner_steps) for noise in self.mechanisms()))

    def releases(self) -> int:
        """T m."""
        return self.outer_steps * self.inner_steps

    def run(self, curator: Curator, problem: Problem, start: Array) -> Outcome:
        """Algorithm 2: each proximal step starts from the answer of the last."""
        state = ProximalState(start, start, jnp.asarray(True))
        for noise in self.mechanisms():
            state = self.proximal_step(curator, problem, state, noise)
        return Outcome(state.average, ending(state.finite))

    def proximal_step(
        self, curator: Curator, problem: Problem, state: ProximalState, noise: Gaussian
    ) -> ProximalState:
        """Algorithm 4: minimise `F(x) + r(x) + lam |x - centre|^2` over the set, the centre the answer of the last.

        Args:
            curator: answers m releases by `noise`.
            problem: F, r and the set.
            state: its `average` is the centre.
            noise: of each release.
        Returns:
            The last state; its `average` is the answer. Each step is `x <- x - 2 g / (mu (t + 1))`, t = 1, 2, ...
        """
        centre = state.average
        shrunk = problem.constraint.project(problem.regulariser.full_prox(centre, 1.0 / (2.0 * self.weight)))
        step = partial(
            _step,
            problem=problem,
            centre=centre,
            shrunk=shrunk,
            weight=self.weight,
            radius=self.clip / (2.0 * self.weight),
        )
        state = state._replace(params=centre)
        for t in range(1, self.inner_steps + 1):
            at_iterate = ClippedGradient(loss=problem.loss, at=state.params, clip=self.clip)
            gradient = curator.release(at_iterate, noise)
            state = step(state, gradient, step_size=2.0 / (self.convexity * (t + 1)), ratio=2.0 / (t + 1))
        return state


@jax.jit
@guarded
def _step(
    state: ProximalState,
    gradient: Array,
    *,
    step_size: float,
    ratio: float,
    problem: Problem,
    centre: Array,
    shrunk: Array,
    weight: float,
    radius: float,
) -> ProximalState:
    """One subgradient step on the subproblem, and the average with the point whose gradient it was.

    The set comes first and the ball last: the ball's centre is in the set, so moving towards it does not leave the set,
    and neither projection moves away from the subproblem's solution, which is in both. The solution is no farther from
    `shrunk`, the proximal map of (r + the set) / (2 lam) at the centre, than C / (2 lam).
    """
    slope = gradient + problem.regulariser.gradient(state.params) + 2.0 * weight * (state.params - centre)
    moved = problem.prox(state.params - step_size * slope, step_size)
    offset = moved - shrunk
    distance = jnp.sqrt(jnp.sum(offset * offset))
    inside = jnp.where(distance > radius, radius / jnp.where(distance > radius, distance, 1.0), 1.0)
    return ProximalState(
        params=jnp.where(inside < 1.0, shrunk + inside * offset, moved),
        average=state.average + ratio * (state.params - state.average),
        finite=state.finite,
    )
