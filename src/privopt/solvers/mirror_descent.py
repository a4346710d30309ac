"""Noisy mirror descent on a bounded convex body: the baseline of the accelerated form.

Source: Talwar, Thakurta, Zhang 2014.
"""

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple, Self

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from privopt.curator.base import Curator
from privopt.ledger.amounts import Budget
from privopt.mechanisms.additive import Gaussian
from privopt.planning import descent_defaults, mirror_geometry
from privopt.problems.mirror_maps import MirrorMap
from privopt.problems.problem import Problem
from privopt.problems.regularisers import Regulariser
from privopt.public import Public
from privopt.queries.gradient import ClippedGradient
from privopt.result import Outcome, ending
from privopt.solvers.averaging import halted_at_divergence
from privopt.solvers.base import required
from privopt.solvers.stepwise import StepwiseSolver

FEWEST_STEPS, MOST_STEPS = 10, 100


class MirrorState(NamedTuple):
    """Where the descent stands; every entry is a function of released values."""

    mirror: Any  # z_t, as the mirror map keeps it
    params: Float[Array, " *shape"]  # z_t, where the next gradient is taken
    average: Float[Array, " *shape"]  # mean of the points where gradients were taken
    finite: Bool[Array, ""]  # whether every iterate so far was finite


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

    step_size: float | None = None
    clip: float | None = None
    entry_bound: float | None = None

    def __post_init__(self) -> None:
        mirror_geometry.check_entry_bound(self.entry_bound)

    @property
    def name(self) -> str:
        """The solver's name."""
        return "mirror-descent"

    def applicable(self, problem: Problem, public: Public) -> str | None:
        """A bounded body with a mirror map, and a smooth penalty."""
        return mirror_geometry.obstacle(problem, public)

    def derived(self, problem: Problem, public: Public, budget: Budget) -> Self:
        """Steps, step size and clip, where they were left open."""
        clip = mirror_geometry.default_clip(problem, public, budget) if self.clip is None else self.clip
        body = mirror_geometry.geometry(problem, public, self.entry_bound)
        steps = self.steps
        if steps is None:
            one = descent_defaults.noise_of_one(public, budget, clip) * math.sqrt(body.width)
            # From here on the bound B_w / (eta T) + eta T (s h)^2 / 2 no longer falls with T.
            enough = math.inf if one == 0 else body.smoothness * math.sqrt(2.0 * body.divergence) / one
            most = mirror_geometry.NOISELESS_STEPS if one == 0 else MOST_STEPS
            steps = mirror_geometry.clipped_steps(enough, FEWEST_STEPS, most)
        chosen = replace(self, clip=clip, steps=steps)
        step_size = self.step_size
        if step_size is None:
            noise = chosen._noise_square(body, public, budget)
            limit = math.inf if noise == 0 else math.sqrt(2.0 * body.divergence / (max(steps, 1) * noise))
            step_size = min(1.0 / body.smoothness, limit)
        return replace(chosen, step_size=step_size)

    def predicted_excess(self, problem: Problem, public: Public, budget: Budget) -> tuple[float | None, str]:
        """The bound B_w / (eta T) + eta E h_B(b)^2 / 2; no more than the loss at zero."""
        body = mirror_geometry.geometry(problem, public, self.entry_bound)
        step_size, steps = required(self.step_size, "step_size"), max(required(self.steps, "steps"), 1)
        noise = self._noise_square(body, public, budget)
        excess = body.divergence / (step_size * steps) + step_size * noise / 2.0
        return mirror_geometry.capped(excess, problem), "a bound for convex losses; pessimistic"

    def run(self, curator: Curator, problem: Problem, start: Array) -> Outcome:
        """Mirror steps from released gradients."""
        noise = Gaussian(required(self.noise_multiplier, "noise_multiplier"))
        mirror = mirror_geometry.mirror_of(problem, curator.public)
        step = partial(
            _step,
            step_size=required(self.step_size, "step_size"),
            mirror=mirror,
            regulariser=problem.regulariser,
        )
        centre = mirror.start()
        state = MirrorState(centre, mirror.point(centre), start, jnp.asarray(True))
        for t in range(required(self.steps, "steps")):
            at_params = ClippedGradient(loss=problem.loss, at=state.params, clip=required(self.clip, "clip"))
            state = step(state, curator.release(at_params, noise), ratio=1.0 / (t + 1))
        return Outcome(state.average, ending(state.finite))

    def _noise_square(self, body: mirror_geometry.Geometry, public: Public, budget: Budget) -> float:
        return mirror_geometry.noise_square(
            body,
            public,
            budget,
            clip=required(self.clip, "clip"),
            steps=required(self.steps, "steps"),
            noise_multiplier=self.noise_multiplier,
        )


@partial(jax.jit, static_argnames=("mirror",))
def _step(
    state: MirrorState,
    gradient: Array,
    *,
    ratio: float,
    step_size: float,
    mirror: MirrorMap,
    regulariser: Regulariser,
) -> MirrorState:
    """One mirror step from z_t, and the mean of z_0, ..., z_t."""
    moved = mirror.step(state.mirror, gradient + regulariser.gradient(state.params), step_size)
    params = mirror.point(moved)
    stepped = MirrorState(
        mirror=moved,
        params=params,
        average=state.average + ratio * (state.params - state.average),
        finite=state.finite & jnp.all(jnp.isfinite(params)),
    )
    return halted_at_divergence(stepped, state)
