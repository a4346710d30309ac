"""Private Frank-Wolfe on the l1 ball: each step moves towards a vertex that was chosen privately.

Minimises F(w) + ridge over ||w||_1 <= R, F = (1/n) sum_i f(w, z_i) convex and smooth. T steps give at most T non-zero
parameters, and what privacy costs grows with the logarithm of their number only.
Source: Talwar, Thakurta, Zhang 2015.
"""

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import Self

import jax
import jax.numpy as jnp
from jaxtyping import Array

from privopt.curator.base import Curator
from privopt.ledger.amounts import Budget
from privopt.ledger.events import Event
from privopt.ledger.zcdp import zcdp_rho_budget
from privopt.mechanisms.exponential import ExponentialMechanism
from privopt.planning import mirror_geometry
from privopt.problems.constraints import L1Ball
from privopt.problems.problem import Problem
from privopt.public import Public
from privopt.queries.vertex_scores import VertexScores
from privopt.result import Outcome, Status
from privopt.solvers.base import required
from privopt.solvers.stepwise import StepwiseSolver

FEW_STEPS = 10
FEWEST_STEPS, MOST_STEPS = 20, 150
STEPS_SHARE = 0.05  # of the steps that minimise the bound, whose curvature is far above what data show


@dataclass(frozen=True, kw_only=True)
class FrankWolfe(StepwiseSolver):
    """Private Frank-Wolfe over an l1 ball, by the exponential mechanism.

    Attributes:
        noise_multiplier: z; each choice is epsilon_0-bounded-range with epsilon_0 = 2 / z, which costs the zCDP of a
            Gaussian release of noise multiplier z: rho = epsilon_0^2 / 8 = 1 / (2 z^2). 0 takes the best vertex.
        steps: T, at least 0; 0 returns the start and spends nothing. Any other run forgets the start: the first step
            goes all the way to a vertex, so fewer than 10 are hardly useful.
        clip: C_inf, the largest entry of one unit's gradient, enforced by scaling the gradient.
        entry_bound: public bound on the entries of a feature row, from which the clip and the number of steps are
            derived; default the row bound. Smaller is better, and a wrong one costs utility, never privacy.
    Guarantee:
        T choices of bounded range epsilon_0: (epsilon, delta)-DP by the best accountant for their composition, under
        the curator's relation, for any data, loss and parameters. See `VertexScores` for the sensitivity.
        Utility, for convex F: a gap of about 8 L_B / (T + 2) + R (factor C_inf / n) z log(2 p).
    Differs from the paper:
        selections are priced by bounded range, epsilon_0^2 / 8 each, in place of advanced composition; gradients are
        clipped, so that privacy does not rest on the loss's Lipschitz constant.
    Source:
        Talwar, Thakurta, Zhang 2015, Algorithm 2; Dong, Durfee, Rogers 2020 (bounded range).
    """

    clip: float | None = None
    entry_bound: float | None = None

    def __post_init__(self) -> None:
        mirror_geometry.check_entry_bound(self.entry_bound)

    @property
    def name(self) -> str:
        """The solver's name."""
        return "frank-wolfe"

    def choice(self) -> ExponentialMechanism:
        """The mechanism of each step."""
        multiplier = required(self.noise_multiplier, "noise_multiplier")
        return ExponentialMechanism(2.0 / multiplier if multiplier > 0 else math.inf)

    def step_event(self, public: Public) -> Event:
        """One choice."""
        del public
        return self.choice().event()

    def applicable(self, problem: Problem, public: Public) -> str | None:
        """An l1 ball, and a smooth penalty."""
        return mirror_geometry.obstacle(problem, public, vertices_only=True)

    def derived(self, problem: Problem, public: Public, budget: Budget) -> Self:
        """Steps and clip, where they were left open."""
        clip, steps = self.clip, self.steps
        if clip is None:
            entries = (
                public.row_bound if self.entry_bound is None else min(self.entry_bound, public.row_bound)
            )
            clip = mirror_geometry.default_slope(problem, public) * entries if budget.is_private else math.inf
        if steps is None:
            steps = default_steps(problem, public, budget, clip, self.entry_bound)
        return replace(self, clip=clip, steps=steps)

    def predicted_excess(self, problem: Problem, public: Public, budget: Budget) -> tuple[float | None, str]:
        """The utility bound of the class; no more than the loss at zero."""
        del budget
        multiplier, clip = required(self.noise_multiplier, "noise_multiplier"), required(self.clip, "clip")
        curvature = mirror_geometry.smoothness(problem, public, self.entry_bound)
        excess = 8.0 * curvature / (required(self.steps, "steps") + 2)
        if multiplier > 0:
            vertices = 2 * math.prod(problem.parameter_shape(public))
            score = _radius(problem) * public.relation.factor * clip / public.n
            excess += multiplier * score * math.log(vertices)
        return (
            mirror_geometry.capped(excess, problem),
            "a bound for convex losses, if few gradients are clipped; pessimistic",
        )

    def notices(self, problem: Problem, public: Public, budget: Budget) -> tuple[str, ...]:
        """Too few steps, and a row bound that stands in for the entry bound."""
        del problem, budget
        found: list[str] = []
        if 0 < required(self.steps, "steps") < FEW_STEPS:
            found.append(
                f"{self.steps} steps are few: the first goes all the way to a vertex, and {FEW_STEPS} or more are "
                "needed to come back."
            )
        if self.entry_bound is None and public.d > 1:
            found.append(
                f"the entries of a row are bounded by the row bound {public.row_bound:.3g} only: state `entry_bound` "
                "if they are known to be smaller, since the noise is proportional to it."
            )
        return tuple(found)

    def run(self, curator: Curator, problem: Problem, start: Array) -> Outcome:
        """Move towards one chosen vertex a step."""
        choice, clip = self.choice(), required(self.clip, "clip")
        radius = _radius(problem)
        params = start
        for t in range(required(self.steps, "steps")):
            scores = VertexScores(
                loss=problem.loss, at=params, clip=clip, offset=problem.regulariser.gradient(params)
            )
            chosen = curator.release(scores, choice)
            # A rehearsal without data answers zeros in the shape of the scores: the first vertex.
            params = _step(params, chosen, radius=radius, ratio=2.0 / (t + 2))
        return Outcome(params, Status.FINISHED)


def default_steps(
    problem: Problem, public: Public, budget: Budget, clip: float, entry_bound: float | None
) -> int:
    """A share of the T = (16 L_B / (k log 2p))^(2/3) that minimises 8 L_B / T + k sqrt(T) log 2p, within limits."""
    if not budget.is_private:
        return mirror_geometry.NOISELESS_STEPS
    rho = zcdp_rho_budget(budget.epsilon, budget.delta)
    noise = _radius(problem) * public.relation.factor * clip / (public.n * math.sqrt(2.0 * rho))
    vertices = 2 * math.prod(problem.parameter_shape(public))
    curvature = mirror_geometry.smoothness(problem, public, entry_bound)
    best = (16.0 * curvature / (noise * math.log(vertices))) ** (2.0 / 3.0)
    return mirror_geometry.clipped_steps(STEPS_SHARE * best, FEWEST_STEPS, MOST_STEPS)


def _radius(problem: Problem) -> float:
    """R.

    Raises:
        ValueError: the set is not an l1 ball.
    """
    if isinstance(problem.constraint, L1Ball):
        return problem.constraint.radius
    raise ValueError(
        f"Frank-Wolfe moves between the vertices of an l1 ball, and the set is {problem.constraint!r}: use "
        "L1Ball(radius)."
    )


@partial(jax.jit, static_argnames=("radius",))
def _step(params: Array, chosen: Array, *, radius: float, ratio: float) -> Array:
    """(1 - g) w + g v, v the vertex +R e_j for j < p and -R e_{j - p} beyond."""
    flat = jnp.ravel(params)
    index = chosen.astype(jnp.int64)
    entry, sign = index % flat.size, jnp.where(index < flat.size, 1.0, -1.0)
    moved = ((1.0 - ratio) * flat).at[entry].add(ratio * radius * sign)
    return jnp.reshape(moved, params.shape)
