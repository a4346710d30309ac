"""Private Frank-Wolfe on the l1 ball: each step moves towards a vertex that was chosen privately.

Minimises F(w) + ridge over ||w||_1 <= R, F = (1/n) sum_i f(w, xi_i) convex and smooth. T steps give at most T non-zero
parameters, and what privacy costs grows with the logarithm of their number only.
Source: Talwar, Thakurta, Zhang 2015.
"""

import math
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array

from privopt.curator.base import Curator
from privopt.ledger.events import Event
from privopt.mechanisms.exponential import ExponentialMechanism
from privopt.planning import frank_wolfe as planning
from privopt.planning import mirror_geometry
from privopt.planning.forecast import Forecast
from privopt.planning.instance import Instance
from privopt.problems.problem import Problem
from privopt.public import Public
from privopt.queries.vertex_scores import VertexScores
from privopt.result import Outcome, Status
from privopt.solvers.base import Defaults
from privopt.solvers.fields import derived, optional
from privopt.solvers.stepwise import StepwiseSolver


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

    name: ClassVar[str] = "frank-wolfe"
    defaults: ClassVar[Defaults] = planning.DEFAULTS

    clip: float = derived(above=0)
    entry_bound: float | None = optional(above=0, below=math.inf)

    def mechanism(self) -> ExponentialMechanism:
        """The mechanism of each step."""
        return ExponentialMechanism(2.0 / self.noise_multiplier if self.noise_multiplier > 0 else math.inf)

    def step_event(self, public: Public) -> Event:
        """One choice."""
        del public
        return self.mechanism().event()

    def applicable(self, problem: Problem, public: Public) -> str | None:
        """An l1 ball, and a smooth penalty."""
        return mirror_geometry.obstacle(problem, public, vertices_only=True)

    def forecast(self, instance: Instance) -> Forecast:
        return planning.forecast(self, instance)

    def run(self, curator: Curator, problem: Problem, start: Array) -> Outcome:
        """Move towards one chosen vertex a step."""
        mechanism, radius, params = self.mechanism(), planning.radius(problem), start
        for t in range(self.steps):
            scores = VertexScores(
                loss=problem.loss, at=params, clip=self.clip, offset=problem.regulariser.gradient(params)
            )
            chosen = curator.release(scores, mechanism)
            # A rehearsal without data answers zeros in the shape of the scores: the first vertex.
            params = _step(params, chosen, radius=radius, ratio=2.0 / (t + 2))
        return Outcome(params, Status.FINISHED)


@partial(jax.jit, static_argnames=("radius",))
def _step(params: Array, chosen: Array, *, radius: float, ratio: float) -> Array:
    """(1 - g) w + g v, v the vertex +R e_j for j < p and -R e_{j - p} beyond."""
    flat = jnp.ravel(params)
    index = chosen.astype(jnp.int64)
    entry, sign = index % flat.size, jnp.where(index < flat.size, 1.0, -1.0)
    moved = ((1.0 - ratio) * flat).at[entry].add(ratio * radius * sign)
    return jnp.reshape(moved, params.shape)
