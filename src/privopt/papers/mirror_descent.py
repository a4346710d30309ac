"""Noisy mirror descent on a bounded convex body: the baseline of the accelerated form.

Source: Talwar, Thakurta, Zhang 2014.
"""

import math
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, NamedTuple

from privopt.curator.base import Curator
from privopt.later import Array, Bool, Float, jax, jnp
from privopt.mechanisms.additive import Gaussian
from privopt.planning import descent_theory, mirror_geometry
from privopt.planning.task import Forecast, Instance
from privopt.problems.problem import Problem
from privopt.public import Public
from privopt.queries.slopes import ClippedGradient
from privopt.result import Outcome, ending
from privopt.solvers.base import StepwiseSolver
from privopt.solvers.fields import derived, guarded, optional

# ---- Defaults and forecast of mirror descent ---------------------------------------------------------------
# The error of T steps of size eta on a convex loss is at most `B_w / (eta T) + eta E h_B(b)^2 / 2`, B_w the body's
# divergence and b the noise of one gradient; `mirror_geometry` has both. Utility only.
FEWEST_STEPS, MOST_STEPS = 10, 100


class MirrorState(NamedTuple):
    """Where the descent stands; every entry is a function of released values."""

    mirror: Any  # z_t, as the mirror map keeps it
    at: Float[Array, " *shape"]  # z_t, where the next gradient is taken
    average: Float[Array, " *shape"]  # mean of the points where gradients were taken
    finite: Bool[Array, ""]  # whether every entry so far was; from the first that was not, nothing moves


@dataclass(frozen=True, kw_only=True)
class MirrorDescent(StepwiseSolver):
    """Private mirror descent over a bounded body, the uniform mean of the points where gradients were taken.

    Attributes:
        steps: T, at least 0; 0 returns the start and spends nothing. Any other run begins at the body's centre.
        step_size: eta, over the smoothness in the norm of the body.
        clip: C, the largest l2 norm of one unit's gradient.
        entry_bound: public bound on the entries of a feature row, utility only; default the row bound.
    Guarantee:
        T Gaussian releases of l2 sensitivity factor * C / n: exactly (epsilon, delta)-DP by Gaussian-DP composition,
        under the curator's relation, for any data, loss and parameters.
    Differs from the paper:
        full gradients with exactly calibrated noise.
    Source:
        Talwar, Thakurta, Zhang 2014, Algorithm 1.
    """

    name: ClassVar[str] = "mirror-descent"
    for_convex: ClassVar[str] = "its average and its bound"

    step_size: float = derived(above=0)
    clip: float = derived(above=0)
    entry_bound: float | None = optional(above=0, below=math.inf)

    def default_clip(self, instance: Instance) -> float:
        return mirror_geometry.default_clip(instance)

    def default_steps(self, instance: Instance) -> int:
        """T = L_B sqrt(2 B_w) / (s sqrt(E h_B^2)), from where on the error bound no longer falls, within limits."""
        body = mirror_geometry.geometry(instance, self.entry_bound)
        noise = descent_theory.noise_of_one(instance, self.clip) * math.sqrt(body.width)
        if noise == 0:
            return mirror_geometry.NOISELESS_STEPS
        enough = body.smoothness * math.sqrt(2.0 * body.divergence) / noise
        return mirror_geometry.clipped_steps(enough, FEWEST_STEPS, MOST_STEPS)

    def default_step_size(self, instance: Instance) -> float:
        """eta that minimises the error bound, at most 1 / L_B."""
        body = mirror_geometry.geometry(instance, self.entry_bound)
        noise = mirror_geometry.noise_square(self, instance, body)
        limit = math.inf if noise == 0 else math.sqrt(2.0 * body.divergence / (max(self.steps, 1) * noise))
        return min(1.0 / body.smoothness, limit)

    def applicable(self, problem: Problem, public: Public) -> str | None:
        """A bounded body with a mirror map, and a smooth penalty."""
        return mirror_geometry.obstacle(problem, public)

    def forecast(self, instance: Instance) -> Forecast:
        """The error bound; no more than the loss at zero."""
        body = mirror_geometry.geometry(instance, self.entry_bound)
        noise = mirror_geometry.noise_square(self, instance, body)
        excess = body.divergence / (self.step_size * max(self.steps, 1)) + self.step_size * noise / 2.0
        return Forecast(excess=instance.capped(excess), meaning="a bound for convex losses; pessimistic")

    def run(self, curator: Curator, problem: Problem, start: Array) -> Outcome:
        """Mirror steps from released gradients."""
        noise = Gaussian(self.noise_multiplier)
        step = partial(_step, step_size=self.step_size, problem=problem)
        mirror = mirror_geometry.mirror_of(problem, start.shape)
        centre = mirror.start()
        state = MirrorState(centre, mirror.point(centre), start, jnp.asarray(True))
        for t in range(self.steps):
            gradient = curator.release(ClippedGradient(loss=problem.loss, at=state.at, clip=self.clip), noise)
            state = step(state, gradient, ratio=1.0 / (t + 1))
        return Outcome(state.average, ending(state.finite))


@jax.jit
@guarded
def _step(
    state: MirrorState, gradient: Array, *, ratio: float, step_size: float, problem: Problem
) -> MirrorState:
    """One mirror step from z_t, and the mean of z_0, ..., z_t."""
    mirror = mirror_geometry.mirror_of(problem, state.at.shape)
    moved = mirror.step(state.mirror, gradient + problem.regulariser.gradient(state.at), step_size)
    return MirrorState(
        mirror=moved,
        at=mirror.point(moved),
        average=state.average + ratio * (state.at - state.average),
        finite=state.finite,
    )
