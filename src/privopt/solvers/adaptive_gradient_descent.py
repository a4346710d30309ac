"""Adaptive private gradient descent: each step's noise follows the norm of the gradient, which the releases show.

Solves min_x F(x) + r(x) over a constraint set, F = (1/n) sum_i f(x, xi_i), convex or not.
Source: Menart, Ullah, Arora, Bassily, Guzman 2023, Algorithm 3, rebuilt.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from privopt.curator.base import Curator
from privopt.later import Array, Bool, Float, jax, jnp
from privopt.ledger.events import Event, NoEvent, sequence
from privopt.mechanisms.additive import Gaussian
from privopt.mechanisms.choice import ExponentialMechanism
from privopt.planning import adaptive_gradient_descent as planning
from privopt.planning import descent_theory
from privopt.planning.coordinates import Coordinates
from privopt.planning.plan import Finding
from privopt.planning.task import Forecast, Instance
from privopt.problems.constraints import Unconstrained
from privopt.problems.glm import GLMLoss
from privopt.problems.growth import KL
from privopt.problems.problem import Problem
from privopt.problems.regularisers import NoRegulariser
from privopt.public import Public
from privopt.queries.slopes import ClippedGradient, GradientNorm
from privopt.result import Outcome, Status
from privopt.solvers.base import FilteredSolver
from privopt.solvers.fields import choice, derived, guarded, number
from privopt.solvers.stationary_selection import MOST_CANDIDATES, FlattestPoints, select_stationary

# ---- The norm of the gradient, followed from noisy gradients that are released anyway ----------------------
# It costs nothing more. With g_t = grad F(w_t) + noise of standard deviation s_t a coordinate, p coordinates and a
# window W,
#
#     m <- b m + (1 - b) g_t,   v <- b^2 v + (1 - b)^2 s_t^2,   b = 1 - 1 / min(t + 1, W)
#     N^2 <- |m|^2 - p v, at most a factor 1 -+ 1/W from the N before, within [floor, cap]
#
# `|m|^2 - p v` is an unbiased estimate of the squared norm of the averaged gradient. Averaging vectors before squaring
# divides its error by W, squaring first only by sqrt(W). The slow change makes N, and so the noise, a smooth schedule.
#
# Source:
#     Menart, Ullah, Arora, Bassily, Guzman 2023, Algorithm 3, whose separate releases of the norm this replaces.
FLOOR = 0.3  # of the noise of one gradient bought with the whole budget: no norm below it can be told from 0

Vector = NDArray[np.float64]


class NormTracker(NamedTuple):
    """Where the estimate stands; all of it is a function of released values."""

    mean: Vector  # m, an average of released gradients
    variance: float  # v, of the noise of one coordinate of m
    norm: float  # N
    gradients: int  # how many gradients were averaged

    @classmethod
    def of_first(cls, gradient: Vector, scale: float, cap: float) -> "NormTracker":
        """From the first gradient; at least half the norm of its noise, since below that nothing can be told."""
        square, noise = float(np.vdot(gradient, gradient)), gradient.size * scale**2
        return cls(gradient, scale**2, min(cap, math.sqrt(max(square - noise, 0.25 * noise))), 1)

    def updated(
        self,
        gradient: Vector,
        scale: float,
        *,
        window: int,
        floor: float,
        cap: float,
        flow: Callable[[Vector], Vector] | None = None,
    ) -> "NormTracker":
        """After one more gradient.

        Args:
            gradient: the released gradient, that of a smooth penalty included.
            scale: the standard deviation of its noise.
            window: W.
            floor: least N.
            cap: largest N; it wins over the floor.
            flow: from a gradient to the step that a penalty or a constraint set lets through, over the step size; None
                if that is the gradient. Its coordinates that are exactly 0 carry no noise.
        """
        gradients = self.gradients + 1
        keep = 1.0 - 1.0 / min(gradients, window)
        mean = keep * self.mean + (1.0 - keep) * gradient
        variance = keep**2 * self.variance + (1.0 - keep) ** 2 * scale**2
        moved = mean if flow is None else flow(mean)
        free = mean.size if flow is None else int(np.count_nonzero(moved))
        square = float(np.vdot(moved, moved)) - free * variance
        slowest, fastest = self.norm * (1.0 - 1.0 / window), self.norm * (1.0 + 1.0 / window)
        norm = math.sqrt(min(max(square, slowest**2), fastest**2))
        return NormTracker(mean, variance, min(max(norm, floor), cap), gradients)


# ---- How far a run has come, and what it has left to spend -------------------------------------------------
class DescentState(NamedTuple):
    """Where the descent stands; every entry is a function of released values."""

    params: Float[Array, " *shape"]  # w_t
    finite: Bool[Array, ""]  # whether every iterate so far was


@dataclass
class Course:
    """A run so far; every value is a function of releases."""

    state: DescentState
    rho: float  # the whole budget
    left: float  # of it
    flat: FlattestPoints
    norm: float = math.inf
    steps: int = 0
    status: Status = Status.FINISHED
    last: bool = False
    weights: float = 0.0
    average: Vector | float = 0.0

    @property
    def params(self) -> Array:
        return self.state.params

    @property
    def goes_on(self) -> bool:
        return self.status is Status.FINISHED

    @property
    def used(self) -> float:
        return 0.0 if math.isinf(self.rho) else 1.0 - self.left / self.rho

    def dries_up(self, multiplier: float) -> bool:
        """Whether what is left buys only a release of more than twice the noise; then that is the end."""
        if self.left * 8.0 * multiplier**2 >= 1.0:  # 1 / sqrt(2 left) <= 2 multiplier
            return False
        self.status = Status.BUDGET_SPENT
        return True

    def charge(self, multiplier: float) -> float:
        """Take the price off what is left, or all of it; the noise multiplier that this buys."""
        cost = 0.5 / multiplier**2
        self.last = cost >= self.left
        if self.last:
            multiplier, cost = 1.0 / math.sqrt(2.0 * self.left), self.left
        self.left -= cost
        return multiplier

    def advance(self, norm: float, moved: DescentState, weight: float = 0.0) -> None:
        """One step: `norm` belongs to the point that is left, `moved` has the next one, averaged in if weighed."""
        self.flat.add(norm, self.params)
        self.norm, self.steps, self.state = norm, self.steps + 1, moved
        if not np.asarray(moved.finite):  # half the time of asking the array of JAX
            self.status = Status.DIVERGED
            return
        if self.last:
            self.status = Status.BUDGET_SPENT
        if weight > 0.0:
            self.weights += weight
            self.average = self.average + weight / self.weights * (np.asarray(self.params) - self.average)


@dataclass(frozen=True, kw_only=True)
class AdaptiveGradientDescent(FilteredSolver):
    """Gradient descent whose noise shrinks with the gradient, until the budget is spent.

    A gradient is released with standard deviation `max(a0 N, s)` a coordinate, N the tracked norm of the gradient and
    s the noise of one gradient bought with the whole budget. The last step takes exactly what is left.

    Attributes:
        variant: "practical", or "paper": Algorithm 3 with its price corrected, for comparisons.
        most_steps: T; few runs take as many. With the noise off all of them are taken.
        step_size: eta; default 1 / L, half of it in the paper's variant.
        clip: L0, the largest norm of one unit's gradient.
        noise_ratio: a0; default min(1, 3 / sqrt(parameters)), less in whitened coordinates.
        trace_ratio: bound on the trace of a record's Hessian over its largest eigenvalue: 1 for a generalised-linear
            loss with one output, 2 with more; default for any other loss the number of parameters. For predictions.
        window: W, the time constant of the schedule in steps, one to ten condition numbers; default 300, fewer where
            the problem is known to be well conditioned.
        first_share: share of rho for the first gradient.
        curvature: L1 of one record's loss, from which step size and window are derived; utility only.
        balanced: see `ClippedGradient`.
        returns: "last" (the default); "average" (of the iterates, by one over their noise variance: better where the
            problem is well conditioned, the default in whitened coordinates); "flattest" (the iterate with the least
            tracked norm, free, and often farther from the minimum than the last one); or "selected" (the exponential
            mechanism among the 64 iterates with the least tracked norms, see `stationary_selection`).
        selection_share: share of rho for "selected".
        growth: the KL condition, for the window and the prediction; default that of the problem.
        failure: beta of the paper's variant.
    Guarantee:
        Every release is Gaussian, of sensitivity factor * L0 / n or less (see `ClippedGradient`); its noise is a
        function of earlier releases. All are paid for by a filter that costs as much as one release of
        `noise_multiplier`, whatever is released under it: (epsilon, delta)-DP under the curator's relation, for any
        data, loss and parameters. "selected" adds one choice of bounded range, and the two are priced together.
    Differs from the paper:
        No separate releases of the norm, whose fixed noise dominates the published bound; noise of the order of the
        norm in every coordinate, since descent averages it; a smooth schedule that ends by itself. Every gradient is
        charged by its noise; the comment on `PaperNoise` says what is wrong with the published charge.
    Source:
        Menart, Ullah, Arora, Bassily, Guzman 2023, Algorithm 3. The filter: Smith, Thakurta 2022.
    """

    name: ClassVar[str] = "adaptive-gradient-descent"
    preconditions: ClassVar[bool] = True

    variant: Literal["practical", "paper"] = choice("practical")
    most_steps: int = number(3000, at_least=0)
    step_size: float = derived(above=0)
    clip: float = derived(above=0)
    noise_ratio: float = derived(above=0)
    trace_ratio: float = derived(above=0)
    window: int = derived(at_least=1)
    first_share: float = number(0.02, above=0, below=1)
    curvature: float = derived(above=0)
    balanced: bool = False
    returns: Literal["last", "average", "flattest", "selected"] = derived()
    selection_share: float = number(0.05, above=0, below=1)
    growth: KL | None = None
    failure: float = number(0.1, above=0, below=1)

    def default_curvature(self, instance: Instance) -> float:
        return descent_theory.smoothness(instance)

    def default_clip(self, instance: Instance) -> float:
        return descent_theory.default_clip(instance)

    def default_step_size(self, instance: Instance) -> float:
        return planning.step_size(self, instance)

    def default_noise_ratio(self, instance: Instance) -> float:
        return min(1.0, 3.0 / math.sqrt(instance.parameters))

    def default_trace_ratio(self, instance: Instance) -> float:
        return planning.trace_ratio(self, instance)

    def default_growth(self, instance: Instance) -> KL | None:
        return instance.growth

    def default_window(self, instance: Instance) -> int:
        return planning.window(self, instance)

    def default_returns(self, instance: Instance) -> Literal["last", "average", "flattest", "selected"]:
        del instance
        return "last"

    def forecast(self, instance: Instance) -> Forecast:
        return planning.forecast(self, instance)

    def in_coordinates(self, coordinates: Coordinates) -> Self:
        return self.with_(**planning.in_coordinates(self, coordinates))

    def applicable(self, problem: Problem, public: Public) -> str | None:
        """A norm that is computed from data is that of a gradient, in the paper's variant of the loss alone."""
        del public
        loss = problem.loss
        if self.balanced and not (isinstance(loss, GLMLoss) and loss.balances):
            return f"the {loss.name} loss has no balanced clip: use balanced=False"
        if not isinstance(problem.regulariser, NoRegulariser):
            if self.variant == "paper":
                return (
                    "the paper's variant measures the loss's gradient alone, without a penalty: use "
                    "variant='practical'"
                )
            if self.returns == "selected" and not problem.regulariser.is_smooth:
                return "the choice among iterates is by gradients, and the penalty has none: use returns='flattest'"
        return None

    @property
    def selection(self) -> ExponentialMechanism:
        """The choice among iterates: of the share q of rho, hence of range 2 sqrt(q / (1 - q)) / noise multiplier."""
        if self.noise_multiplier == 0.0:
            return ExponentialMechanism(math.inf)
        # range^2 / 8 = q / (1 - q) * 1 / (2 multiplier^2)
        odds = self.selection_share / (1.0 - self.selection_share)
        return ExponentialMechanism(2.0 * math.sqrt(odds) / self.noise_multiplier)

    def event(self, public: Public) -> Event:
        """What the filter costs, and the choice among iterates if there is one."""
        if self.most_steps == 0:
            return NoEvent()
        whole = super().event(public)
        return sequence([whole, self.selection.event()]) if self.returns == "selected" else whole

    def releases(self) -> int:
        each = 2 if self.variant == "paper" and self.noise_multiplier != 0.0 else 1
        return each * self.most_steps + (1 if self.returns == "selected" and self.most_steps else 0)

    def passes(self) -> float:
        return float(self.releases() + (MOST_CANDIDATES - 1 if self.returns == "selected" else 0))

    def run(self, curator: Curator, problem: Problem, start: Array) -> Outcome:
        """Descend under the filter, then return an iterate."""
        if self.most_steps == 0:
            return Outcome(start, Status.FINISHED)
        flat = FlattestPoints(MOST_CANDIDATES if self.returns == "selected" else 1)
        course = Course(DescentState(start, jnp.asarray(True)), rho=self.rho, left=self.rho, flat=flat)
        inner = curator.filtered(self.name, Gaussian(self.noise_multiplier))
        if self.noise_multiplier == 0.0:
            self._descend(inner, problem, course)
        elif self.variant == "paper":
            self._descend_as_published(inner, problem, course)
        else:
            self._follow_the_norm(inner, problem, course)
        if course.steps == 0:  # the budget did not pay for one
            course.flat.add(math.inf, start)
        chosen, norm = self._returned(curator, problem, course)
        findings = {
            "gradient_norm": Finding(
                norm,
                "estimate of the gradient's norm at the point that was chosen, else at the last released one",
            ),
            "steps_taken": Finding(course.steps, "steps that the budget bought"),
            "budget_used": Finding(course.used, "share of the filter's rho that was used"),
            "flattest_point": Finding(course.flat.least[1], "the iterate with the least estimated gradient"),
        }
        return Outcome(chosen, course.status, findings)

    def _follow_the_norm(self, curator: Curator, problem: Problem, course: Course) -> None:
        """Noise in proportion to the tracked norm, until the budget is spent."""
        step = partial(_step, step_size=self.step_size, problem=problem)
        flows = problem.regulariser.is_smooth and isinstance(problem.constraint, Unconstrained)
        track: NormTracker | None = None
        while course.goes_on and course.steps < self.most_steps:
            query = self._gradient_at(problem, course.params)
            sensitivity = float(_sensitivity(query, curator.public))  # at this point; at most factor L0 / n
            full = sensitivity / math.sqrt(2.0 * course.rho)
            if track is None:
                first_share = 1.0 if self.most_steps == 1 else self.first_share
                multiplier = 1.0 / math.sqrt(2.0 * first_share * course.rho)
            else:
                multiplier = max(self.noise_ratio * track.norm, full) / sensitivity
                if course.dries_up(multiplier):
                    break
            multiplier = course.charge(multiplier)
            gradient = curator.release(query, Gaussian(multiplier))
            slope, moved = step(course.state, gradient)
            scale, released = multiplier * sensitivity, np.asarray(slope)
            if track is None:
                track = NormTracker.of_first(released, scale, self.clip)
            else:
                track = track.updated(
                    released,
                    scale,
                    window=self.window,
                    floor=FLOOR * full,
                    cap=self.clip,
                    flow=None if flows else self._flow(problem, course.params),
                )
            course.advance(track.norm, moved, weight=1.0 / scale**2 if self.returns == "average" else 0.0)

    def _descend_as_published(self, curator: Curator, problem: Problem, course: Course) -> None:
        """Algorithm 3, with its price corrected."""
        public = curator.public
        noise = PaperNoise.of(
            n=public.n,
            rho=course.rho,
            clip=self.clip,
            sensitivity=public.relation.factor * self.clip / public.n,
            parameters=course.params.size,
            failure=self.failure,
        )
        while course.goes_on and course.steps < self.most_steps:
            if noise.stops(course.left):
                course.status = Status.BUDGET_SPENT
                break
            query = self._gradient_at(problem, course.params)
            gradient, norm, course.left, course.last = noise.gradient(curator, query, course.left)
            _, moved = _step(course.state, gradient, step_size=self.step_size, problem=problem)
            course.advance(max(norm, 0.0), moved)

    def _descend(self, curator: Curator, problem: Problem, course: Course) -> None:
        """Plain descent, with the noise off."""
        while course.goes_on and course.steps < self.most_steps:
            gradient = curator.release(self._gradient_at(problem, course.params), Gaussian(0.0))
            slope, moved = _step(course.state, gradient, step_size=self.step_size, problem=problem)
            course.advance(float(np.linalg.norm(np.asarray(slope))), moved)

    def _returned(self, curator: Curator, problem: Problem, course: Course) -> tuple[Array, float]:
        """The point to return and its estimated norm."""
        if course.weights > 0.0:
            return jnp.asarray(course.average), course.norm
        if self.returns in ("last", "average"):
            return course.params, course.norm
        if self.returns == "flattest":
            norm, point = course.flat.least
            return point, norm
        norms, points = course.flat.in_order()
        chosen = select_stationary(
            curator,
            problem.loss,
            points,
            clip=self.clip,
            mechanism=self.selection,
            offsets=[problem.regulariser.gradient(point) for point in points],
        )
        return points[chosen], norms[chosen]

    def _gradient_at(self, problem: Problem, params: Array) -> ClippedGradient:
        return ClippedGradient(loss=problem.loss, at=params, clip=self.clip, balanced=self.balanced)

    def _flow(self, problem: Problem, params: Array) -> Callable[[Vector], Vector]:
        """What penalty and set let through of a gradient at this point."""

        def flow(gradient: Vector) -> Vector:
            return np.asarray(_let_through(params, gradient, step_size=self.step_size, problem=problem))

        return flow


@jax.jit
def _step(
    state: DescentState, gradient: Array, *, step_size: float, problem: Problem
) -> tuple[Array, DescentState]:
    """The slope g + grad r, and the state after x = prox(x - eta slope)."""
    slope = gradient + problem.regulariser.gradient(state.params)
    return slope, _moved(state, gradient, step_size=step_size, problem=problem)


@guarded
def _moved(state: DescentState, gradient: Array, *, step_size: float, problem: Problem) -> DescentState:
    return state._replace(params=problem.proximal_step(state.params, gradient, step_size))


@jax.jit
def _let_through(params: Array, slope: Array, *, step_size: float, problem: Problem) -> Array:
    """The gradient mapping (x - prox(x - eta slope)) / eta."""
    return (params - problem.prox(params - step_size * slope, step_size)) / step_size


@partial(jax.jit, static_argnames=("public",))
def _sensitivity(query: ClippedGradient, public: Public) -> Any:
    return query.sensitivity(public) * jnp.ones((), jnp.float64)


# ---- Adaptive noisy gradient descent as it was published, with its price corrected: for comparisons --------
# With n units, p parameters, rho the whole budget, D = factor L0 / n and failure probability beta:
#
#     l = ln(max(n sqrt(rho) / beta, e)),   sigma_N = L0 / (sqrt(n) rho^(1/4)),   c_N = D^2 / (2 sigma_N^2)
#     repeat: stop if less than 2 c_N is left
#         N = |grad F(w)| + noise of standard deviation sigma_N                       costs c_N
#         s = max(N, 0) / sqrt(p l), at least D / sqrt(2 rho_left): then it is the last step
#         w <- w - eta (grad F(w) + noise of standard deviation s)                    costs D^2 / (2 s^2)
#
# Differs from the paper:
#     Each gradient is charged by the noise it gets; the paper charges by N^2 where the noise was raised to a floor, so
#     that a negative N is nearly free. Both releases of a step are paid for before they are made, and the paper's last
#     release of the norm not at all. D has the factor of the relation. The noise of the scalar N is one number.
# Source:
#     Menart, Ullah, Arora, Bassily, Guzman 2023, Algorithm 3.
@dataclass(frozen=True, kw_only=True)
class PaperNoise:
    """The noise multipliers of the published method.

    Attributes:
        rho: the whole budget.
        norm_multiplier: of each release of the norm, sigma_N / D.
        per_norm: the noise multiplier of a gradient for each unit of N, 1 / (D sqrt(p l)).
    """

    rho: float
    norm_multiplier: float
    per_norm: float

    @classmethod
    def of(
        cls, *, n: int, rho: float, clip: float, sensitivity: float, parameters: int, failure: float
    ) -> "PaperNoise":
        """From public numbers; `sensitivity` is D and `failure` beta."""
        log = math.log(max(n * math.sqrt(rho) / failure, math.e))
        spread = clip / (math.sqrt(n) * rho**0.25)
        return cls(
            rho=rho,
            norm_multiplier=spread / sensitivity,
            per_norm=1.0 / (sensitivity * math.sqrt(parameters * log)),
        )

    @property
    def norm_cost(self) -> float:
        """c_N."""
        return 0.5 / self.norm_multiplier**2

    def stops(self, left: float) -> bool:
        """Whether what is left pays for no more than a norm and a gradient as noisy as that."""
        return left < 2.0 * self.norm_cost

    def gradient(
        self, curator: Curator, at_point: ClippedGradient, left: float
    ) -> tuple[Array, float, float, bool]:
        """One step's two releases.

        Returns:
            The noisy gradient, the noisy norm, what is left, and whether this was the last step.
        """
        at_norm = GradientNorm(
            loss=at_point.loss, at=at_point.at, clip=at_point.clip, balanced=at_point.balanced
        )
        norm = float(curator.release(at_norm, Gaussian(self.norm_multiplier)))
        left -= self.norm_cost
        least = 1.0 / math.sqrt(2.0 * left)
        multiplier = max(norm, 0.0) * self.per_norm
        last = multiplier <= least
        multiplier = least if last else multiplier
        gradient = curator.release(at_point, Gaussian(multiplier))
        return gradient, norm, (0.0 if last else left - 0.5 / multiplier**2), last
