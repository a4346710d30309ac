"""Full-batch private gradient descent, with fixed momentum, proximal steps and averaging.

Solves min_x F(x) + r(x) over a constraint set, F = (1/n) sum_i f(x, z_i).
Source: Wang, Ye, Xu 2017, Algorithm 4; Bassily, Smith, Thakurta 2014 for the privacy argument.
"""

from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple, Self

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from privopt.curator import Door
from privopt.ledger.amounts import Budget
from privopt.ledger.events import Event, Repeated
from privopt.mechanisms.gaussian import Gaussian
from privopt.problems.constraints import Constraint
from privopt.problems.problem import Problem
from privopt.problems.regularisers import Regulariser
from privopt.public import Public
from privopt.queries.gradient import ClippedGradient
from privopt.result import Status, ending
from privopt.solvers import practical
from privopt.solvers.averaging import Average, halted_at_divergence, mixing_ratios
from privopt.solvers.base import Solver, required


class DescentState(NamedTuple):
    """Where the descent stands; every entry is a function of released values."""

    params: Float[Array, " *shape"]  # x_t
    probe: Float[Array, " *shape"]  # u_t = x_t + b (x_t - x_{t-1}), where the next gradient is taken
    average: Float[Array, " *shape"]  # running average of x
    gradient: Float[Array, " *shape"]  # the same average of the released gradients
    finite: Bool[
        Array, ""
    ]  # whether every iterate so far was finite; from the first that was not, nothing moves


@dataclass(frozen=True, kw_only=True)
class GradientDescent(Solver):
    """Full-batch private gradient descent.

    Attributes:
        steps: T, at least 0; 0 returns the start and spends nothing.
        step_size: eta, in params^2 / objective units.
        clip: C, the largest norm of one unit's gradient.
        momentum: b in [0, 1), fixed; growing momentum amplifies noise until it diverges.
        average: "tail" (mean of the last half), "weighted" (weights (t + 1)^2) or "last".
    Guarantee:
        T Gaussian releases of sensitivity factor * C / n: exactly (epsilon, delta)-DP by Gaussian-DP composition, under
        the door's relation, for any data, loss and parameters.
    Differs from the paper:
        fixed momentum, averaging, and few calibrated steps in place of T = 1000 and the last iterate; exact noise in
        place of the theorem's constant.
    Source:
        Wang, Ye, Xu 2017, Algorithm 4.
    """

    steps: int | None = None
    step_size: float | None = None
    clip: float | None = None
    momentum: float | None = None
    average: Average = "weighted"

    @property
    def name(self) -> str:
        """The solver's name."""
        return "gradient-descent"

    def event(self, public: Public) -> Event:
        """T Gaussian releases."""
        del public
        event = Gaussian(required(self.noise_multiplier, "noise_multiplier")).event()
        return Repeated(event, required(self.steps, "steps"))

    def derived(self, problem: Problem, public: Public, budget: Budget) -> Self:
        """The practical setting of `practical`, where a field was left open."""
        setting = practical.descent_setting(problem, public, budget, clip=self.clip, steps=self.steps)
        return replace(
            self,
            steps=setting.steps,
            clip=setting.clip,
            step_size=setting.step_size if self.step_size is None else self.step_size,
            momentum=setting.momentum if self.momentum is None else self.momentum,
            average=self.average if budget.is_private else "last",  # without noise the average only lags
        )

    def releases(self) -> int:
        """One a step."""
        return int(required(self.steps, "steps"))

    def passes(self) -> float:
        """One a step."""
        return float(required(self.steps, "steps"))

    def predicted_excess(self, problem: Problem, public: Public, budget: Budget) -> tuple[float | None, str]:
        """See `practical.predicted_excess`."""
        return practical.predicted_excess(
            problem, public, budget, steps=required(self.steps, "steps"), clip=self.clip
        )

    def notices(self, problem: Problem, public: Public, budget: Budget) -> tuple[str, ...]:
        """See `practical.notices`."""
        return practical.notices(problem, public, budget, steps=self.steps, clip=self.clip)

    def run(self, door: Door, problem: Problem, start: Array) -> tuple[Array, Status]:
        """Algorithm 4, with momentum and averaging."""
        steps = required(self.steps, "steps")
        noise = Gaussian(required(self.noise_multiplier, "noise_multiplier"))
        step = partial(
            _step,
            step_size=required(self.step_size, "step_size"),
            momentum=required(self.momentum, "momentum"),
            regulariser=problem.regulariser,
            constraint=problem.constraint,
        )
        state = DescentState(
            params=start, probe=start, average=start, gradient=jnp.zeros_like(start), finite=jnp.asarray(True)
        )
        for ratio in mixing_ratios(self.average, steps):
            at_probe = ClippedGradient(loss=problem.loss, at=state.probe, clip=required(self.clip, "clip"))
            gradient = door.release(at_probe, noise)
            state = step(state, gradient, ratio=float(ratio))
        if steps and self.average != "last" and not problem.regulariser.is_smooth:
            # An average of sparse iterates is not sparse: one more proximal step from it, on released gradients.
            state = step(state._replace(probe=state.average), state.gradient, ratio=1.0, momentum=0.0)
        return state.average, ending(state.finite)


@partial(jax.jit, static_argnames=("regulariser", "constraint"))
def _step(
    state: DescentState,
    gradient: Array,
    *,
    ratio: float,
    step_size: float,
    momentum: float,
    regulariser: Regulariser,
    constraint: Constraint,
) -> DescentState:
    """One step from the probe u: x = prox(u - eta (g + grad r(u))), then the next probe and the averages."""
    slope = gradient + regulariser.gradient(state.probe)
    params = constraint.project(regulariser.prox(state.probe - step_size * slope, step_size))
    moved = DescentState(
        params=params,
        probe=params + momentum * (params - state.params),
        average=state.average + ratio * (params - state.average),
        gradient=state.gradient + ratio * (gradient - state.gradient),
        finite=state.finite & jnp.all(jnp.isfinite(params)),
    )
    return halted_at_divergence(moved, state)
