"""Accelerated mirror descent on a bounded convex body, whose error follows the body's Gaussian width.

Minimises F(x) + ridge over a body B, F = (1/n) sum_i f(x, z_i) convex and smooth. With the l1 ball the error hardly
grows with the number of parameters.
Source: Wang, Ye, Xu 2017, Algorithm 3, corrected.
"""

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, NamedTuple, Self

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from privopt.curator.base import Curator
from privopt.ledger.amounts import Budget
from privopt.mechanisms.additive import Gaussian
from privopt.planning import descent_defaults, mirror_geometry
from privopt.problems.constraints import Constraint, L1Ball, L2Ball, LpBall, Simplex
from privopt.problems.mirror_maps import MirrorMap
from privopt.problems.problem import Problem
from privopt.problems.regularisers import Regulariser
from privopt.public import Public
from privopt.queries.gradient import ClippedGradient
from privopt.result import Outcome, ending
from privopt.solvers.averaging import halted_at_divergence
from privopt.solvers.base import required
from privopt.solvers.stepwise import StepwiseSolver

YStep = Literal["couple", "gradient"]
MOST_STEPS = 1_000
FEWEST_ENTROPIC_STEPS, MOST_ENTROPIC_STEPS = 20, 150
# In the l1 norm both terms of the theorem are far above what data show; the shares were chosen on four problems.
CURVATURE_SHARE, NOISE_SHARE = 0.04, 0.5


class AcceleratedState(NamedTuple):
    """Where the descent stands; every entry is a function of released values."""

    mirror: Any  # z_k, as the mirror map keeps it
    params: Float[Array, " *shape"]  # y_k
    probe: Float[Array, " *shape"]  # x_{k+1} = r_k z_k + (1 - r_k) y_k, where the next gradient is taken
    finite: Bool[Array, ""]  # whether every iterate so far was finite


@dataclass(frozen=True, kw_only=True)
class AcceleratedMirrorDescent(StepwiseSolver):
    """Private accelerated mirror descent (DP-AccMD) over a bounded body.

    Attributes:
        steps: T, at least 0; 0 returns the start and spends nothing. Any other run begins at the body's centre (the
            minimiser of the mirror map), wherever the start is: the first step gives it no weight.
        smoothness: Lt, in the norm of the body; a larger one takes shorter steps. The theorem asks for at least 2 L_B.
        clip: C, the largest l2 norm of one unit's gradient.
        y_step: "couple" (y = (1 - r) y + r z) or "gradient" (the paper's step from x, with the noisy gradient; for an
            l2 ball, and for an lp ball while the step stays inside). Both have the same error bound.
        entry_bound: public bound on the entries of a feature row, utility only; default the row bound.
    Guarantee:
        T Gaussian releases of l2 sensitivity factor * C / n: exactly (epsilon, delta)-DP by Gaussian-DP composition,
        under the curator's relation, for any data, loss and parameters.
        Utility, for convex F, Lt >= 2 L_B and noise b of each gradient that is centred given the past:
        E F(y_T) - F* <= 4 Lt B_w(x*, x_0) / (T + 1)^2 + (T + 3) E h_B(b)^2 / (3 Lt), with either y-step.
    Differs from the paper:
        its Algorithm 3 feeds the exact gradient into the y-step, whose result is returned and probed: not private for
        any amount of noise. Here both steps use the one released gradient. Its alpha and r hold the smoothness in the
        l2 norm where the proof needs the body's. Noise is calibrated exactly.
    Source:
        Wang, Ye, Xu 2017, Algorithm 3, Theorems 5.3 and 5.4; Nesterov 2005; Allen-Zhu and Orecchia 2017.
    """

    smoothness: float | None = None
    clip: float | None = None
    y_step: YStep = "couple"
    entry_bound: float | None = None

    def __post_init__(self) -> None:
        if self.y_step not in ("couple", "gradient"):
            raise ValueError(f"y_step must be 'couple' or 'gradient', got {self.y_step!r}.")
        mirror_geometry.check_entry_bound(self.entry_bound)

    @property
    def name(self) -> str:
        """The solver's name."""
        return "accelerated-mirror-descent"

    def applicable(self, problem: Problem, public: Public) -> str | None:
        """A bounded body with a mirror map, a smooth penalty, and a y-step that the body has."""
        reason = mirror_geometry.obstacle(problem, public)
        if (
            reason is None
            and self.y_step == "gradient"
            and not isinstance(problem.constraint, L2Ball | LpBall)
        ):
            return (
                f"the gradient y-step is computed for L2Ball and LpBall only, and the set is {problem.constraint!r}: "
                'use y_step="couple", which has the same error bound'
            )
        return reason

    def derived(self, problem: Problem, public: Public, budget: Budget) -> Self:
        """Steps, step lengths and clip, where they were left open."""
        clip = mirror_geometry.default_clip(problem, public, budget) if self.clip is None else self.clip
        steps = (
            default_steps(problem, public, budget, clip, self.entry_bound)
            if self.steps is None
            else self.steps
        )
        chosen = replace(self, clip=clip, steps=steps)
        if self.smoothness is None:
            shares = _shares(problem.constraint) if budget.is_private else (0.5, 0.0)  # L_B itself
            return replace(chosen, smoothness=chosen._balanced_smoothness(problem, public, budget, *shares))
        return chosen

    def _balanced_smoothness(
        self,
        problem: Problem,
        public: Public,
        budget: Budget,
        curvature_share: float = 1.0,
        noise_share: float = 1.0,
    ) -> float:
        """Lt that balances the two terms of the error bound, at least 2 L_B; of each a share."""
        body = mirror_geometry.geometry(problem, public, self.entry_bound)
        steps = required(self.steps, "steps")
        noise = (steps + 3) * self._noise_square(body, public, budget)
        balanced = (steps + 1) * math.sqrt(noise / (12.0 * body.divergence))
        return max(curvature_share * 2.0 * body.smoothness, noise_share * balanced)

    def predicted_excess(self, problem: Problem, public: Public, budget: Budget) -> tuple[float | None, str]:
        """The theorem's bound at the theorem's own step length; no more than the loss at zero."""
        body = mirror_geometry.geometry(problem, public, self.entry_bound)
        steps = required(self.steps, "steps")
        step_smoothness = self._balanced_smoothness(problem, public, budget)
        optimisation = 4.0 * step_smoothness * body.divergence / (steps + 1) ** 2
        noise = (steps + 3) * self._noise_square(body, public, budget) / (3.0 * step_smoothness)
        excess = mirror_geometry.capped(optimisation + noise, problem)
        return excess, "the theorem's bound for convex losses, if few gradients are clipped; pessimistic"

    def run(self, curator: Curator, problem: Problem, start: Array) -> Outcome:
        """Algorithm 3, with the released gradient in both steps."""
        noise = Gaussian(required(self.noise_multiplier, "noise_multiplier"))
        step_smoothness = required(self.smoothness, "smoothness")
        mirror = mirror_geometry.mirror_of(problem, curator.public)
        step = partial(
            _step,
            step_smoothness=step_smoothness,
            mirror=mirror,
            regulariser=problem.regulariser,
            body=problem.constraint if self.y_step == "gradient" else None,
        )
        centre = mirror.start()
        state = AcceleratedState(centre, start, mirror.point(centre), jnp.asarray(True))  # r_0 = 1: x_1 = z_0
        for k in range(required(self.steps, "steps")):
            at_probe = ClippedGradient(loss=problem.loss, at=state.probe, clip=required(self.clip, "clip"))
            gradient = curator.release(at_probe, noise)
            state = step(state, gradient, ratio=2.0 / (k + 2), next_ratio=2.0 / (k + 3))
        return Outcome(state.params, ending(state.finite))

    def _noise_square(self, body: mirror_geometry.Geometry, public: Public, budget: Budget) -> float:
        return mirror_geometry.noise_square(
            body,
            public,
            budget,
            clip=required(self.clip, "clip"),
            steps=required(self.steps, "steps"),
            noise_multiplier=self.noise_multiplier,
        )


def least_steps(
    problem: Problem, public: Public, budget: Budget, clip: float, entry_bound: float | None
) -> float:
    """T_0 = (48 L_B^2 B_w / (s^2 E h^2))^(1/4): from here on the error bound no longer falls with T."""
    body = mirror_geometry.geometry(problem, public, entry_bound)
    stddev = descent_defaults.noise_of_one(public, budget, clip)
    if stddev == 0:
        return math.inf
    return (48.0 * body.smoothness**2 * body.divergence / (stddev**2 * body.width)) ** 0.25


def default_steps(
    problem: Problem, public: Public, budget: Budget, clip: float, entry_bound: float | None
) -> int:
    """T_0 for the shares of curvature and noise that the steps assume, within limits."""
    if math.isinf(budget.epsilon):
        return mirror_geometry.NOISELESS_STEPS
    curvature_share, noise_share = _shares(problem.constraint)
    steps = math.sqrt(curvature_share / noise_share) * least_steps(problem, public, budget, clip, entry_bound)
    if _is_entropic(problem.constraint):
        return mirror_geometry.clipped_steps(steps, FEWEST_ENTROPIC_STEPS, MOST_ENTROPIC_STEPS)
    return mirror_geometry.clipped_steps(steps, 1, MOST_STEPS)


def _is_entropic(body: Constraint) -> bool:
    return isinstance(body, L1Ball | Simplex)


def _shares(body: Constraint) -> tuple[float, float]:
    return (CURVATURE_SHARE, NOISE_SHARE) if _is_entropic(body) else (1.0, 1.0)


@partial(jax.jit, static_argnames=("mirror", "body"))
def _step(
    state: AcceleratedState,
    gradient: Array,
    *,
    ratio: float,
    next_ratio: float,
    step_smoothness: float,
    mirror: MirrorMap,
    regulariser: Regulariser,
    body: Constraint | None,
) -> AcceleratedState:
    """From x_{k+1} and its gradient: z_{k+1} by a mirror step, y_{k+1}, then x_{k+2}."""
    slope = gradient + regulariser.gradient(state.probe)
    length = 1.0 / (ratio * step_smoothness)  # alpha_{k+1} = (k + 2) / (2 Lt)
    moved = mirror.step(state.mirror, slope, length)
    point = mirror.point(moved)
    params = (1.0 - ratio) * state.params + ratio * point
    if body is not None:
        params = _gradient_step(body, state.probe, slope, step_smoothness, otherwise=params)
    stepped = AcceleratedState(
        mirror=moved,
        params=params,
        probe=next_ratio * point + (1.0 - next_ratio) * params,
        finite=state.finite & jnp.all(jnp.isfinite(params)) & jnp.all(jnp.isfinite(point)),
    )
    return halted_at_divergence(stepped, state)


def _gradient_step(
    body: Constraint, probe: Array, slope: Array, step_smoothness: float, *, otherwise: Array
) -> Array:
    """argmin over y in B of Lt / 2 |y - x|_B^2 + <slope, y - x>; for an lp ball `otherwise` where that is not exact."""
    if isinstance(body, L2Ball):
        return body.project(probe - (body.radius**2 / step_smoothness) * slope)
    assert isinstance(body, LpBall)  # `applicable` refuses the rest
    steepest = jnp.asarray(body.linear_minimiser(slope))  # of p-norm R; h_B(slope) = -<slope, steepest>
    moved = probe - (jnp.sum(slope * steepest) / step_smoothness) * steepest
    return jnp.where(body.contains(moved, 0.0), moved, otherwise)
