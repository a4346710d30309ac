"""Accelerated mirror descent on a bounded convex body, whose error follows the body's Gaussian width.

Minimises F(x) + ridge over a body B, F = (1/n) sum_i f(x, xi_i) convex and smooth. With the l1 ball the error hardly
grows with the number of parameters.
Source: Wang, Ye, Xu 2017, Algorithm 3, corrected.
"""

import math
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from privopt.curator.base import Curator
from privopt.mechanisms.additive import Gaussian
from privopt.planning import accelerated_mirror_descent as planning
from privopt.planning import mirror_geometry
from privopt.planning.forecast import Forecast
from privopt.planning.instance import Instance
from privopt.problems.constraints import Constraint, L2Ball, LpBall
from privopt.problems.problem import Problem
from privopt.public import Public
from privopt.queries.gradient import ClippedGradient
from privopt.result import Outcome, ending
from privopt.solvers.base import Defaults
from privopt.solvers.fields import choice, derived, optional
from privopt.solvers.guarded import guarded
from privopt.solvers.stepwise import StepwiseSolver

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
    defaults: ClassVar[Defaults] = planning.DEFAULTS

    step_smoothness: float = derived(above=0)
    clip: float = derived(above=0)
    y_step: YStep = choice("couple")
    entry_bound: float | None = optional(above=0, below=math.inf)

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
        return planning.forecast(self, instance)

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
    moved = mirror.step(
        state.mirror, slope, 1.0 / (ratio * step_smoothness)
    )  # alpha_{k+1} = (k + 2) / (2 Lt)
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
