"""Newton's method with noise on the gradient and on the direction. Experimental.

Solves min_x (1/n) sum_i phi(<a_i, x>, y_i) + r(x), phi twice differentiable, r a ridge or nothing.
Source: Ganesh, Haghifam, Steinke, Thakurta 2023, Algorithm 1.
"""

import math
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from privopt.curator.base import Curator
from privopt.later import Array, Bool, Float, jax, jnp
from privopt.ledger.events import Event, Repeated
from privopt.mechanisms.additive import Gaussian
from privopt.planning import descent_theory
from privopt.planning.averaging import Average, mixing_ratios, second_moment_seconds
from privopt.planning.task import Forecast, Instance
from privopt.problems.losses import Logistic, ScalarLoss
from privopt.problems.problem import Problem
from privopt.problems.regularisers import Ridge
from privopt.public import Public
from privopt.queries.moments import Model, NewtonDirection
from privopt.queries.slopes import ClippedGradient
from privopt.result import Outcome, ending
from privopt.solvers.base import Solver
from privopt.solvers.fields import derived, guarded, number
from privopt.solvers.needs import Need, NoSet, RidgeAtMost

# ---- Defaults and forecast of Newton's method with double noise. Utility only ------------------------------
PRIVATE_STEPS, NOISELESS_STEPS = 20, 100
DAMPING = 0.04  # of the largest curvature; the best of a few on one table
EXPERIMENTAL = "this method is experimental: whitened gradient descent was far more accurate in our tests."


class NewtonState(NamedTuple):
    """Where the method stands; every entry is a function of released values."""

    params: Float[Array, " d"]  # x_t
    average: Float[Array, " d"]  # running average of x
    finite: Bool[Array, ""]  # whether every entry so far was; from the first that was not, nothing moves


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
        returns: which point: "tail" (mean of the last half), "last" (the default with the noise off), or another of
            `mixing_ratios`.
    Guarantee:
        2 T Gaussian releases with one noise multiplier, half of them gradients of sensitivity at most factor * C / n,
        half directions whose sensitivity follows from the released gradient, see `NewtonDirection`: exactly
        (epsilon, delta)-DP by Gaussian-DP composition, under the curator's relation, for any data, loss and parameters.
    Differs from the paper:
        exact composition; under replace-one the direction's sensitivity is not doubled; averaging; few steps.
    Source:
        Ganesh, Haghifam, Steinke, Thakurta 2023, Algorithm 1.
    """

    name: ClassVar[str] = "newton"
    needs: ClassVar[tuple[Need, ...]] = (
        RidgeAtMost("it takes a ridge or no penalty"),
        NoSet("its steps do not respect a constraint set"),
    )
    for_convex: ClassVar[str] = "its models of the objective"

    steps: int = derived(at_least=0)
    step_size: float = number(1.0, above=0)
    clip: float = derived(above=0)
    damping: float = derived(at_least=0)
    model: Model = derived()
    returns: Average = derived()

    def default_steps(self, instance: Instance) -> int:
        return PRIVATE_STEPS if instance.is_private else NOISELESS_STEPS

    def default_clip(self, instance: Instance) -> float:
        return descent_theory.default_clip(instance)

    def default_damping(self, instance: Instance) -> float:
        """lambda0: the noise of a direction, z sqrt(d) |g| b / (n l^2), is at most half of the longest, |g| / l.

        A ridge's part of g is at most its curvature times the parameters, and the noise for it at most half of these.
        """
        public = instance.public
        largest = instance.problem.loss.curvature * public.row_bound**2
        if not instance.is_private:
            return 0.0 if instance.ridge > 0 else 1e-6 * largest
        noise = math.sqrt(2.0 * self.steps * public.d) / instance.mu * largest / public.n
        return max(DAMPING * largest, 2.0 * noise, math.sqrt(2.0 * noise * instance.penalty_smoothness))

    def default_model(self, instance: Instance) -> Model:
        return "bound" if isinstance(instance.problem.loss, Logistic) else "hessian"

    def default_returns(self, instance: Instance) -> Average:
        return "tail" if instance.is_private else "last"

    def event(self, public: Public) -> Event:
        """2 T Gaussian releases."""
        del public
        return Repeated(Gaussian(self.noise_multiplier).event(), self.releases())

    def releases(self) -> int:
        """Two a step."""
        return 2 * self.steps

    def forecast(self, instance: Instance) -> Forecast:
        """No prediction; the notices of gradient descent, and that this method is an experiment."""
        common = descent_theory.forecast(instance, steps=self.steps, clip=self.clip)
        return Forecast(notices=(*common.notices, EXPERIMENTAL))

    def matrix_seconds(self, public: Public) -> float:
        """A Hessian a step."""
        return self.steps * second_moment_seconds(public)

    def applicable(self, problem: Problem, public: Public) -> str | None:
        """It needs a smooth scalar loss, a ridge or no penalty, and all of space."""
        loss = problem.loss
        if not (isinstance(loss, ScalarLoss) and math.isfinite(loss.curvature)):
            return "it needs a generalised linear loss with one output and a finite second derivative"
        if self.model == "bound" and not isinstance(loss, Logistic):
            return "model='bound' is for the logistic loss"
        return super().applicable(problem, public)

    def run(self, curator: Curator, problem: Problem, start: Array) -> Outcome:
        """Algorithm 1, with averaging."""
        self.check_applicable(problem, curator.public)
        loss = problem.loss
        assert isinstance(loss, ScalarLoss)  # `applicable` refuses the rest
        noise, ridge = Gaussian(self.noise_multiplier), _ridge(problem, curator.public)
        state = NewtonState(params=start, average=start, finite=jnp.asarray(True))
        for ratio in mixing_ratios(self.returns, self.steps):
            at_point = ClippedGradient(loss=loss, at=state.params, clip=self.clip)
            gradient = _finite(curator.release(at_point, noise) + problem.regulariser.gradient(state.params))
            towards = NewtonDirection(
                loss=loss,
                at=state.params,
                gradient=gradient,
                ridge=ridge,
                damping=self.damping,
                clip=loss.curvature * curator.public.row_bound**2,
                model=self.model,
            )
            direction = curator.release(towards, noise)
            state = _step(state, direction, step_size=self.step_size, ratio=float(ratio))
        return Outcome(state.average, ending(state.finite))


@jax.jit
@guarded
def _step(state: NewtonState, direction: Array, *, step_size: float, ratio: float) -> NewtonState:
    """x - eta p, and its average."""
    params = state.params - step_size * direction
    average = state.average + ratio * (params - state.average)
    return NewtonState(params=params, average=average, finite=state.finite)


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
