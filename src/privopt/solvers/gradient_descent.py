"""Full-batch private gradient descent, with fixed momentum, proximal steps and averaging.

Solves min_x F(x) + r(x) over a constraint set, F = (1/n) sum_i f(x, z_i).
Source: Wang, Ye, Xu 2017, Algorithm 4; Bassily, Smith, Thakurta 2014 for the privacy argument.
"""

import math
import secrets
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar, Literal, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float
from numpy.typing import NDArray

from privopt.curator.base import Curator
from privopt.ledger.amounts import Budget
from privopt.ledger.events import Event, Sequence
from privopt.mechanisms.additive import Gaussian
from privopt.planning import descent_defaults
from privopt.planning.averaging import Average, mixing_ratios
from privopt.planning.coordinates import Coordinates
from privopt.planning.descent_theory import Shares, SmoothObjective, budget_shares
from privopt.problems.constraints import Constraint
from privopt.problems.losses import GLMLoss
from privopt.problems.problem import Problem
from privopt.problems.regularisers import Regulariser
from privopt.public import Public
from privopt.queries.gradient import ClippedGradient
from privopt.result import Outcome, ending
from privopt.solvers.averaging import flattest, halted_at_divergence
from privopt.solvers.base import required
from privopt.solvers.stepwise import StepwiseSolver

Output = Average | Literal["random", "min_grad"]


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
class GradientDescent(StepwiseSolver):
    """Full-batch private gradient descent.

    Attributes:
        steps: T, at least 0; 0 returns the start and spends nothing.
        step_size: eta, in params^2 / objective units.
        clip: C, the largest norm of one unit's gradient.
        momentum: b in [0, 1), fixed; growing momentum amplifies noise until it diverges.
        balanced: whether records' gradients are shortened without regard to their targets, see `ClippedGradient`.
        average: what is returned: "tail" (mean of the last half), "weighted" (weights (t + 1)^2), "settled" or "late"
            (see `mixing_ratios`; all divided by the noise variance where it differs), "last", "random" (a uniformly
            random iterate) or "min_grad" (the middle of the ten iterates over which the mean of the released gradients
            is smallest).
        shares: how the budget is split over the steps: "equal" or "geometric", which is best for the last iterate of a
            strongly convex objective; see `descent_theory`.
        contraction: a of the geometric shares; default 1 - eta * ridge strength.
        smoothness: L of the objective, ridge included, if it is known better than by the loss and the row bound: it
            sets the default step size, and with it the number of steps, and decides whether a step is called too large.
        chosen: the t in 0..T-1 of the iterate x_t that "random" returns; drawn by `configure`, before data is read.
    Guarantee:
        T Gaussian releases, of sensitivity factor * C / n or what the loss allows at the point if that is less (see
        `ClippedGradient`), with fixed multipliers: exactly (epsilon, delta)-DP by Gaussian-DP composition, under the
        curator's relation, for any data, loss and parameters.
    Differs from the paper:
        fixed momentum, averaging, and few calibrated steps in place of T = 1000 and the last iterate; exact noise in
        place of the theorem's constant.
    Source:
        Wang, Ye, Xu 2017, Algorithm 4.
    """

    step_size: float | None = None
    clip: float | None = None
    momentum: float | None = None
    balanced: bool = False
    average: Output = "weighted"
    shares: Shares = "equal"
    contraction: float | None = None
    smoothness: float | None = None
    chosen: int | None = None

    preconditions: ClassVar[bool] = True

    @classmethod
    def for_pl(
        cls,
        problem: Problem,
        public: Public,
        budget: Budget,
        *,
        clip: float | None = None,
        smoothness: float | None = None,
        constant: float | None = None,
        gap: float | None = None,
        shares: Shares = "geometric",
    ) -> Self:
        """The setting for an objective whose gradient is large where its excess is: no momentum, the last iterate.

        What it promises is `objective_facts(...).last_iterate_bound(constant, steps, shares)`, as long as no gradient
        is clipped.

        Args:
            problem: the problem.
            public: what is public about the data.
            budget: the budget it will be configured for.
            clip: C; default that of `practical`.
            smoothness: L, the ridge included; default that of the problem.
            constant: c with `|grad|^2 >= 2 c excess`; default the ridge's strength, right for a convex loss.
            gap: a bound on the excess of the start; default the bound on the loss at 0.
            shares: "geometric", or "equal" as in the paper.
        Raises:
            ValueError: a constant is neither given nor known.
        """
        plain, facts = cls._plain(problem, public, budget, clip=clip, smoothness=smoothness, gap=gap)
        constant = problem.regulariser.strong_convexity if constant is None else constant
        return replace(
            plain,
            steps=facts.steps_to_contract(constant),
            average="last",
            shares=shares,
            contraction=max(1.0 - constant / facts.smoothness, 1e-12),
        )

    @classmethod
    def for_stationarity(
        cls,
        problem: Problem,
        public: Public,
        budget: Budget,
        *,
        clip: float | None = None,
        smoothness: float | None = None,
        gap: float | None = None,
        average: Literal["random", "min_grad"] = "min_grad",
    ) -> Self:
        """The setting that makes the gradient small for any smooth objective, convex or not.

        What it promises for "random" is `objective_facts(...).stationarity_bound(steps)`, as long as no gradient is
        clipped; "min_grad" was at least as good wherever it was tried. `average` says which iterate is returned; the
        other arguments are those of `for_pl`.

        Raises:
            ValueError: a constant is neither given nor known.
        """
        plain, facts = cls._plain(problem, public, budget, clip=clip, smoothness=smoothness, gap=gap)
        return replace(plain, steps=facts.steps_to_flatten(), average=average)

    @classmethod
    def _plain(
        cls,
        problem: Problem,
        public: Public,
        budget: Budget,
        *,
        clip: float | None,
        smoothness: float | None,
        gap: float | None,
    ) -> tuple[Self, SmoothObjective]:
        """Steps of size 1 / L without momentum, as the bounds of `descent_theory` assume, and those bounds."""
        clip = descent_defaults.default_clip(problem, public, budget) if clip is None else clip
        facts = objective_facts(problem, public, budget, clip=clip, smoothness=smoothness, gap=gap)
        plain = cls(step_size=1.0 / facts.smoothness, clip=clip, momentum=0.0, smoothness=facts.smoothness)
        return plain, facts

    @property
    def name(self) -> str:
        """The solver's name."""
        return "gradient-descent"

    def event(self, public: Public) -> Event:
        """T Gaussian releases."""
        if self.shares == "equal":
            return super().event(public)
        return Sequence(tuple(mechanism.event() for mechanism in self.mechanisms()))

    def mechanisms(self) -> tuple[Gaussian, ...]:
        """The noise of each step: `noise_multiplier / sqrt(T share_t)`, which costs together what equal noise costs."""
        multiplier = required(self.noise_multiplier, "noise_multiplier")
        return tuple(Gaussian(float(multiplier * factor)) for factor in self._noise_factors())

    def derived(self, problem: Problem, public: Public, budget: Budget) -> Self:
        """The practical setting of `practical`, where a field was left open."""
        setting = descent_defaults.descent_setting(
            problem, public, budget, clip=self.clip, steps=self.steps, curvature=self.smoothness
        )
        step_size = setting.step_size if self.step_size is None else self.step_size
        strong = problem.regulariser.strong_convexity
        contraction, chosen = self.contraction, self.chosen
        if contraction is None and self.shares == "geometric":
            contraction = max(1.0 - step_size * strong, 1e-12)
        if chosen is None and self.average == "random" and setting.steps:
            chosen = secrets.randbelow(setting.steps)
        return replace(
            self,
            steps=setting.steps,
            clip=setting.clip,
            step_size=step_size,
            momentum=setting.momentum if self.momentum is None else self.momentum,
            average=self.average if budget.is_private else "last",  # without noise the average only lags
            contraction=contraction,
            chosen=chosen,
        )

    def in_coordinates(self, coordinates: Coordinates) -> Self:
        """The same releases, with the clip, step size and momentum of the other coordinates."""
        smoothness = coordinates.smoothness + coordinates.ridge_smoothness
        return replace(
            self,
            clip=coordinates.clip,
            step_size=1.0 / smoothness,
            momentum=coordinates.momentum,
            balanced=coordinates.balanced,
            smoothness=smoothness,
        )

    def applicable(self, problem: Problem, public: Public) -> str | None:
        """Balanced gradients need a loss that says how steep it can be."""
        del public
        loss = problem.loss
        if self.balanced and not (isinstance(loss, GLMLoss) and loss.balances):
            return f"the {loss.name} loss has no balanced clip: use balanced=False"
        return None

    def predicted_excess(self, problem: Problem, public: Public, budget: Budget) -> tuple[float | None, str]:
        """See `descent_defaults.predicted_excess`."""
        return descent_defaults.predicted_excess(
            problem, public, budget, steps=required(self.steps, "steps"), clip=self.clip
        )

    def notices(self, problem: Problem, public: Public, budget: Budget) -> tuple[str, ...]:
        """See `descent_defaults.notices`; and a step size that is too large."""
        found = descent_defaults.notices(problem, public, budget)
        smoothness = self.smoothness
        if smoothness is None:
            smoothness = descent_defaults.smoothness(problem, public) + problem.regulariser.smoothness
        if self.step_size is not None and self.step_size * smoothness > 2.0:
            found += (
                f"step_size {self.step_size:.3g} exceeds 2 / L = {2.0 / smoothness:.3g}, L the curvature of the "
                "objective: descent may diverge. A step size of 1 / L is safe.",
            )
        return found

    def run(self, curator: Curator, problem: Problem, start: Array) -> Outcome:
        """Algorithm 4, with momentum and averaging."""
        steps = required(self.steps, "steps")
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
        points: list[Array] = []
        slopes: list[Array] = []
        for ratio, noise in zip(self._mixing_ratios(steps), self.mechanisms(), strict=True):
            at_probe = ClippedGradient(
                loss=problem.loss,
                at=state.probe,
                clip=required(self.clip, "clip"),
                balanced=self.balanced,
            )
            gradient = curator.release(at_probe, noise)
            if self.average == "min_grad":
                points.append(state.probe)
                slopes.append(gradient + problem.regulariser.gradient(state.probe))
            state = step(state, gradient, ratio=float(ratio))
        if steps and self.average == "min_grad":
            return Outcome(problem.constraint.project(flattest(points, slopes)), ending(state.finite))
        averaged = self.average not in ("last", "random", "min_grad")
        if steps and averaged and not problem.regulariser.is_smooth:
            # An average of sparse iterates is not sparse: one more proximal step from it, on released gradients.
            state = step(state._replace(probe=state.average), state.gradient, ratio=1.0, momentum=0.0)
        return Outcome(state.average, ending(state.finite))

    def _noise_factors(self) -> NDArray[np.float64]:
        """What each step's noise multiplier is over `noise_multiplier`."""
        steps = required(self.steps, "steps")
        if self.shares == "equal":
            return np.ones(steps)
        shares = budget_shares(self.shares, steps, required(self.contraction, "contraction"))
        return 1.0 / np.sqrt(steps * shares)

    def _mixing_ratios(self, steps: int) -> NDArray[np.float64]:
        """How far the result moves to each iterate."""
        if self.average == "random":
            chosen = required(self.chosen, "chosen") if steps else 0
            return (np.arange(steps) < chosen).astype(np.float64)
        if self.average == "min_grad":
            return np.ones(steps)
        precision = None if self.shares == "equal" else 1.0 / self._noise_factors() ** 2
        return mixing_ratios(self.average, steps, precision)


def objective_facts(
    problem: Problem,
    public: Public,
    budget: Budget,
    *,
    clip: float,
    smoothness: float | None = None,
    gap: float | None = None,
) -> SmoothObjective:
    """The constants of the bounds in `descent_theory`, from public quantities.

    Raises:
        ValueError: a constant is neither given nor known.
    """
    if smoothness is None:
        smoothness = problem.smoothness(public)
    if gap is None and isinstance(problem.loss, GLMLoss):
        gap = problem.loss.value_at_zero
    if gap is None or not math.isfinite(smoothness):
        raise ValueError(
            f"the {problem.loss.name} loss has no known bound on its curvature or on its value at 0: give `smoothness` "
            "and `gap`."
        )
    parameters = math.prod(problem.parameter_shape(public))
    noise = descent_defaults.noise_of_one(public, budget, clip)
    return SmoothObjective(smoothness=smoothness, gap=gap, noise=noise, parameters=parameters)


@partial(jax.jit, static_argnames=("constraint",))
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
