"""Accelerated mirror descent on a bounded convex body, whose error follows the body's Gaussian width.

Minimises F(x) + ridge over a body B, F = (1/n) sum_i f(x, xi_i) convex and smooth. With the l1 ball the error hardly
grows with the number of parameters.
Source: Wang, Ye, Xu 2017, Algorithm 3, corrected.
"""

import math
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal, NamedTuple

from privopt.curator.base import Curator
from privopt.later import Array, Bool, Float, jax, jnp
from privopt.mechanisms.additive import Gaussian
from privopt.planning import descent_theory, mirror_geometry
from privopt.planning.task import Forecast, Instance
from privopt.problems.constraints import Constraint, L1Ball, L2Ball, LpBall, Simplex
from privopt.problems.problem import Problem
from privopt.public import Public
from privopt.queries.slopes import ClippedGradient
from privopt.result import Outcome, ending
from privopt.solvers.base import StepwiseSolver
from privopt.solvers.fields import choice, derived, guarded, optional

# ---- Defaults and forecast of accelerated mirror descent ---------------------------------------------------
# With Lt at least 2 L_B, B_w the body's divergence and b the noise of one of T gradients, the error is at most
#
#     4 Lt B_w / (T + 1)^2 + (T + 3) E h_B(b)^2 / (3 Lt).
#
# The best Lt balances the two terms. Utility only.
# Source: Wang, Ye, Xu 2017, Theorems 5.3 and 5.4; see docs/algorithms/accelerated-mirror-descent.md for the proof.
MOST_STEPS = 1_000
FEWEST_ENTROPIC_STEPS, MOST_ENTROPIC_STEPS = 20, 150
# In the l1 norm both terms of the theorem are far above what data show; the shares were chosen on four problems.
CURVATURE_SHARE, NOISE_SHARE = 0.04, 0.5

YStep = Literal["couple", "gradient"]


class AcceleratedState(NamedTuple):
    """Where the descent stands; every entry is a function of released values."""

    mirror: Any  # z_k, as the mirror map keeps it
    params: Float[Array, " *shape"]  # y_k
    at: Float[Array, " *shape"]  # x_{k+1} = r_k z_k + (1 - r_k) y_k, where the next gradient is taken
    finite: Bool[Array, ""]  # whether every entry so far was; from the first that was not, nothing moves


@dataclass(frozen=True, kw_only=True)
class AcceleratedMirrorDescent(StepwiseSolver):
    """Private accelerated mirror descent (DP-AccMD) over a bounded body.

    Attributes:
        steps: T, at least 0; 0 returns the start and spends nothing. Any other run begins at the body's centre (the
            minimiser of the mirror map), wherever the start is: the first step gives it no weight.
        step_smoothness: Lt, in the norm of the body; a larger one takes shorter steps. The theorem asks for at least
            2 L_B, twice the objective's smoothness in that norm.
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
        its Algorithm 3 feeds the exact gradient into the y-step, whose result is returned, and where the next gradient
        is taken: not private for any amount of noise. Here both steps use the one released gradient. Its alpha and r
        hold the smoothness in the l2 norm where the proof needs the body's. Noise is calibrated exactly.
    Source:
        Wang, Ye, Xu 2017, Algorithm 3, Theorems 5.3 and 5.4; Nesterov 2005; Allen-Zhu and Orecchia 2017.
    """

    name: ClassVar[str] = "accelerated-mirror-descent"
    for_convex: ClassVar[str] = "its steps and its bound"

    step_smoothness: float = derived(above=0)
    clip: float = derived(above=0)
    y_step: YStep = choice("couple")
    entry_bound: float | None = optional(above=0, below=math.inf)

    def default_clip(self, instance: Instance) -> float:
        return mirror_geometry.default_clip(instance)

    def default_steps(self, instance: Instance) -> int:
        """T_0 for the shares of curvature and noise that the steps assume, within limits."""
        if not instance.is_private:
            return mirror_geometry.NOISELESS_STEPS
        curvature_share, noise_share = _shares(instance.problem.constraint)
        steps = math.sqrt(curvature_share / noise_share) * self.least_steps(instance)
        if _is_entropic(instance.problem.constraint):
            return mirror_geometry.clipped_steps(steps, FEWEST_ENTROPIC_STEPS, MOST_ENTROPIC_STEPS)
        return mirror_geometry.clipped_steps(steps, 1, MOST_STEPS)

    def default_step_smoothness(self, instance: Instance) -> float:
        """Lt: the best one for the shares; L_B itself with the noise off."""
        shares = _shares(instance.problem.constraint) if instance.is_private else (0.5, 0.0)
        return self._balanced_smoothness(instance, *shares)

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

    def forecast(self, instance: Instance) -> Forecast:
        """The theorem's bound at the theorem's own step length; no more than the loss at zero."""
        body = mirror_geometry.geometry(instance, self.entry_bound)
        smoothness = self._balanced_smoothness(instance)
        optimisation = 4.0 * smoothness * body.divergence / (self.steps + 1) ** 2
        noise = (self.steps + 3) * mirror_geometry.noise_square(self, instance, body) / (3.0 * smoothness)
        return Forecast(
            excess=instance.capped(optimisation + noise),
            meaning="the theorem's bound for convex losses, if few gradients are clipped; pessimistic",
        )

    def run(self, curator: Curator, problem: Problem, start: Array) -> Outcome:
        """Algorithm 3, with the released gradient in both steps."""
        noise = Gaussian(self.noise_multiplier)
        step = partial(_step, step_smoothness=self.step_smoothness, problem=problem, y_step=self.y_step)
        mirror = mirror_geometry.mirror_of(problem, start.shape)
        centre = mirror.start()
        state = AcceleratedState(centre, start, mirror.point(centre), jnp.asarray(True))  # r_0 = 1: x_1 = z_0
        for k in range(self.steps):
            gradient = curator.release(ClippedGradient(loss=problem.loss, at=state.at, clip=self.clip), noise)
            state = step(state, gradient, ratio=2.0 / (k + 2), next_ratio=2.0 / (k + 3))
        return Outcome(state.params, ending(state.finite))

    def least_steps(self, instance: Instance) -> float:
        """T_0 = (48 L_B^2 B_w / (s^2 E h^2))^(1/4): from here on the error bound no longer falls with T."""
        body = mirror_geometry.geometry(instance, self.entry_bound)
        stddev = descent_theory.noise_of_one(instance, self.clip)
        if stddev == 0:
            return math.inf
        return (48.0 * body.smoothness**2 * body.divergence / (stddev**2 * body.width)) ** 0.25

    def _balanced_smoothness(
        self, instance: Instance, curvature_share: float = 1.0, noise_share: float = 1.0
    ) -> float:
        """Lt that balances the two terms of the error bound, at least 2 L_B; of each a share."""
        body = mirror_geometry.geometry(instance, self.entry_bound)
        noise = (self.steps + 3) * mirror_geometry.noise_square(self, instance, body)
        balanced = (self.steps + 1) * math.sqrt(noise / (12.0 * body.divergence))
        return max(curvature_share * 2.0 * body.smoothness, noise_share * balanced)


@partial(jax.jit, static_argnames=("y_step",))
@guarded
def _step(
    state: AcceleratedState,
    gradient: Array,
    *,
    ratio: float,
    next_ratio: float,
    step_smoothness: float,
    problem: Problem,
    y_step: YStep,
) -> AcceleratedState:
    """From x_{k+1} and its gradient: z_{k+1} by a mirror step, y_{k+1}, then x_{k+2}."""
    mirror = mirror_geometry.mirror_of(problem, state.at.shape)
    slope = gradient + problem.regulariser.gradient(state.at)
    # alpha_{k+1} = (k + 2) / (2 Lt)
    moved = mirror.step(state.mirror, slope, 1.0 / (ratio * step_smoothness))
    point = mirror.point(moved)
    params = (1.0 - ratio) * state.params + ratio * point
    if y_step == "gradient":
        params = _gradient_step(problem.constraint, state.at, slope, step_smoothness, otherwise=params)
    return AcceleratedState(
        mirror=moved,
        params=params,
        at=next_ratio * point + (1.0 - next_ratio) * params,
        finite=state.finite,
    )


def _gradient_step(
    body: Constraint, at: Array, slope: Array, step_smoothness: float, *, otherwise: Array
) -> Array:
    """argmin over y in B of Lt / 2 |y - x|_B^2 + <slope, y - x>; for an lp ball `otherwise` where that is not exact."""
    if isinstance(body, L2Ball):
        return body.project(at - (body.radius**2 / step_smoothness) * slope)
    assert isinstance(body, LpBall)  # `applicable` refuses the rest
    steepest = jnp.asarray(body.linear_minimiser(slope))  # of p-norm R; h_B(slope) = -<slope, steepest>
    moved = at - (jnp.sum(slope * steepest) / step_smoothness) * steepest
    return jnp.where(body.contains(moved, 0.0), moved, otherwise)


def _is_entropic(body: Constraint) -> bool:
    return isinstance(body, L1Ball | Simplex)


def _shares(body: Constraint) -> tuple[float, float]:
    return (CURVATURE_SHARE, NOISE_SHARE) if _is_entropic(body) else (1.0, 1.0)
