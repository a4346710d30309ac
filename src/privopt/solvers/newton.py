"""Newton's method with noise on the gradient and on the direction. Experimental.

Solves min_x (1/n) sum_i phi(<a_i, x>, y_i) + r(x), phi twice differentiable, r a ridge or nothing.
Source: Ganesh, Haghifam, Steinke, Thakurta 2023, Algorithm 1.
"""

import math
from dataclasses import dataclass, replace
from typing import NamedTuple, Self

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from privopt.curator.base import Curator
from privopt.ledger.amounts import Budget
from privopt.ledger.events import Event, Repeated
from privopt.ledger.gaussian_dp import gaussian_mu
from privopt.mechanisms.additive import Gaussian
from privopt.planning import descent_defaults
from privopt.planning.averaging import Average, mixing_ratios
from privopt.planning.effort import second_moment_seconds
from privopt.problems.constraints import Unconstrained
from privopt.problems.losses import Logistic, ScalarLoss
from privopt.problems.problem import Problem
from privopt.problems.regularisers import NoRegulariser, Ridge
from privopt.public import Public
from privopt.queries.gradient import ClippedGradient
from privopt.queries.hessian import Model, NewtonDirection
from privopt.result import Outcome, ending
from privopt.solvers.averaging import halted_at_divergence
from privopt.solvers.base import Solver, required

_PRIVATE_STEPS, _NOISELESS_STEPS = 20, 100
_DAMPING = 0.04  # of the largest curvature; the best of a few on one table


class NewtonState(NamedTuple):
    """Where the method stands; every entry is a function of released values."""

    params: Float[Array, " d"]  # x_t
    average: Float[Array, " d"]  # running average of x
    finite: Bool[
        Array, ""
    ]  # whether every iterate so far was finite; from the first that was not, nothing moves


@dataclass(frozen=True, kw_only=True)
class DoubleNoiseNewton(Solver):
    """Newton's method with two releases a step: the gradient, then the direction for that gradient. Experimental.

    Attributes:
        steps: T, at least 0; 0 returns the start and spends nothing.
        step_size: eta, the fraction of the direction that is taken.
        clip: C, the largest norm of one unit's gradient.
        damping: lambda0, added to the Hessian; little damping makes the noise of the direction large.
        model: "hessian", or "bound" (logistic loss only): a matrix whose parabola lies above the loss, which makes
            full steps safe from everywhere.
        average: what is returned: "tail" (mean of the last half), "weighted" or "last".
    Guarantee:
        2 T Gaussian releases with one noise multiplier, half of them gradients of sensitivity at most factor * C / n,
        half directions whose sensitivity follows from the released gradient, see `NewtonDirection`: exactly
        (epsilon, delta)-DP by Gaussian-DP composition, under the curator's relation, for any data, loss and parameters.
    Differs from the paper:
        exact composition; under replace-one the direction's sensitivity is not doubled; averaging; few steps.
    Source:
        Ganesh, Haghifam, Steinke, Thakurta 2023, Algorithm 1.
    """

    steps: int | None = None
    step_size: float = 1.0
    clip: float | None = None
    damping: float | None = None
    model: Model | None = None
    average: Average = "tail"

    @property
    def name(self) -> str:
        """The solver's name."""
        return "newton"

    def event(self, public: Public) -> Event:
        """2 T Gaussian releases."""
        del public
        event = Gaussian(required(self.noise_multiplier, "noise_multiplier")).event()
        return Repeated(event, 2 * required(self.steps, "steps"))

    def derived(self, problem: Problem, public: Public, budget: Budget) -> Self:
        """Twenty steps; a damping beyond which the noise of a direction is at most half of its length."""
        steps = self.steps
        if steps is None:
            steps = _PRIVATE_STEPS if budget.is_private else _NOISELESS_STEPS
        model = self.model
        if model is None:
            model = "bound" if isinstance(problem.loss, Logistic) else "hessian"
        return replace(
            self,
            steps=steps,
            clip=descent_defaults.default_clip(problem, public, budget) if self.clip is None else self.clip,
            damping=_default_damping(problem, public, budget, steps)
            if self.damping is None
            else self.damping,
            model=model,
            average=self.average if budget.is_private else "last",
        )

    def releases(self) -> int:
        """Two a step."""
        return 2 * int(required(self.steps, "steps"))

    def passes(self) -> float:
        """Two a step."""
        return 2.0 * required(self.steps, "steps")

    def matrix_seconds(self, public: Public) -> float:
        """A Hessian a step."""
        return required(self.steps, "steps") * second_moment_seconds(public)

    def applicable(self, problem: Problem, public: Public) -> str | None:
        """It needs a smooth scalar loss, a ridge or no penalty, and all of space."""
        del public
        loss = problem.loss
        if not (isinstance(loss, ScalarLoss) and math.isfinite(loss.curvature)):
            return "it needs a generalised linear loss with one output and a finite second derivative"
        if self.model == "bound" and not isinstance(loss, Logistic):
            return "model='bound' is for the logistic loss"
        if not isinstance(problem.regulariser, Ridge | NoRegulariser):
            return "it takes a ridge or no penalty"
        if not isinstance(problem.constraint, Unconstrained):
            return "its steps do not respect a constraint set"
        return None

    def notices(self, problem: Problem, public: Public, budget: Budget) -> tuple[str, ...]:
        """That this method is an experiment."""
        common = descent_defaults.notices(problem, public, budget)
        return (
            *common,
            "this method is experimental: whitened gradient descent was far more accurate in our tests.",
        )

    def run(self, curator: Curator, problem: Problem, start: Array) -> Outcome:
        """Algorithm 1, with averaging."""
        self.check_applicable(problem, curator.public)
        loss = problem.loss
        assert isinstance(loss, ScalarLoss)  # `applicable` refuses the rest
        noise = Gaussian(required(self.noise_multiplier, "noise_multiplier"))
        state = NewtonState(params=start, average=start, finite=jnp.asarray(True))
        for ratio in mixing_ratios(self.average, required(self.steps, "steps")):
            at_point = ClippedGradient(loss=loss, at=state.params, clip=required(self.clip, "clip"))
            gradient = _finite(curator.release(at_point, noise) + problem.regulariser.gradient(state.params))
            towards = NewtonDirection(
                loss=loss,
                at=state.params,
                gradient=gradient,
                ridge=_ridge(problem, curator.public),
                damping=required(self.damping, "damping"),
                clip=loss.curvature * curator.public.row_bound**2,
                model=required(self.model, "model"),
            )
            direction = curator.release(towards, noise)
            state = _step(state, direction, step_size=self.step_size, ratio=float(ratio))
        return Outcome(state.average, ending(state.finite))


@jax.jit
def _step(state: NewtonState, direction: Array, *, step_size: float, ratio: float) -> NewtonState:
    """x - eta p, and its average."""
    params = state.params - step_size * direction
    moved = NewtonState(
        params=params,
        average=state.average + ratio * (params - state.average),
        finite=state.finite & jnp.all(jnp.isfinite(params)),
    )
    return halted_at_divergence(moved, state)


def _ridge(problem: Problem, public: Public) -> Array:
    """The second derivatives of the penalty, (d,)."""
    regulariser = problem.regulariser
    if not isinstance(regulariser, Ridge):
        return jnp.zeros(public.d)
    return regulariser.strength * jnp.asarray(regulariser.weights or (1.0,) * public.d, float)


def _finite(gradient: Array) -> Array:
    """A released gradient whose direction has a price; zero, and so is the direction, if it has none."""
    length = jnp.sqrt(jnp.sum(gradient * gradient))
    return jnp.where(jnp.isfinite(length), gradient, jnp.zeros_like(gradient))


def _default_damping(problem: Problem, public: Public, budget: Budget, steps: int) -> float:
    """lambda0: the noise of a direction, z sqrt(d) |g| b / (n l^2), is at most half of the longest, |g| / l."""
    largest = problem.loss.curvature * public.row_bound**2
    if not budget.is_private:
        return 0.0 if problem.regulariser.strong_convexity > 0 else 1e-6 * largest
    multiplier = math.sqrt(2.0 * steps) / gaussian_mu(budget.epsilon, budget.delta)
    return max(_DAMPING * largest, 2.0 * multiplier * math.sqrt(public.d) * largest / public.n)
