"""Adaptive private gradient descent: each step's noise follows the norm of the gradient, which the releases show.

Solves min_x F(x) + r(x) over a constraint set, F = (1/n) sum_i f(x, z_i), convex or not. See `norm_tracking`.
Source: Menart, Ullah, Arora, Bassily, Guzman 2023, Algorithm 3, rebuilt.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, Literal, Self, get_args

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from privopt.curator.base import Curator
from privopt.ledger.amounts import Budget
from privopt.ledger.events import Event, NoEvent, sequence
from privopt.ledger.gaussian_dp import gaussian_mu
from privopt.mechanisms.additive import Gaussian
from privopt.mechanisms.exponential import ExponentialMechanism
from privopt.planning import descent_defaults
from privopt.planning.adaptive_gradient_descent import AdaptiveDescentFacts
from privopt.planning.coordinates import Coordinates
from privopt.planning.notices import NOISE_IS_OFF, large_delta
from privopt.planning.plan import Finding
from privopt.problems.constraints import Unconstrained
from privopt.problems.glm import GLMLoss, ScalarLoss
from privopt.problems.growth import KL
from privopt.problems.problem import Problem
from privopt.problems.regularisers import NoRegulariser
from privopt.public import Public
from privopt.queries.gradient import ClippedGradient
from privopt.result import Outcome, Status
from privopt.solvers.adaptive_course import Course, let_through, step_from
from privopt.solvers.adaptive_paper import PaperNoise
from privopt.solvers.base import Solver, required
from privopt.solvers.norm_tracking import NormTracker, Vector
from privopt.solvers.stationary_selection import MOST_CANDIDATES, FlattestPoints, select_stationary

FLOOR = 0.3  # of the noise of one gradient bought with the whole budget: no norm below it can be told from 0
WINDOW, SHORTEST, LONGEST = 300, 30, 500
ALIKE_WINDOW, ALIKE_RATIO = (
    100,
    0.5,
)  # where all directions look alike; the ratio is divided by sqrt(parameters)
Returned = Literal["last", "average", "flattest", "selected"]


@dataclass(frozen=True, kw_only=True)
class AdaptiveGradientDescent(Solver):
    """Gradient descent whose noise shrinks with the gradient, until the budget is spent.

    A gradient is released with standard deviation `max(a0 N, s)` a coordinate, N the tracked norm of the gradient and
    s the noise of one gradient bought with the whole budget. The last step takes exactly what is left.

    Attributes:
        mode: "practical", or "paper": Algorithm 3 with its price corrected, for comparisons.
        most_steps: T; few runs take as many. With the noise off all of them are taken.
        step_size: eta; default 1 / L, half of it in the paper's mode.
        clip: L0, the largest norm of one unit's gradient.
        noise_ratio: a0; default min(1, 3 / sqrt(parameters)), less in whitened coordinates.
        trace_ratio: bound on the trace of a record's Hessian over its largest eigenvalue: 1 for a generalised-linear
            loss with one output, 2 with more; default for any other loss the number of parameters. For predictions.
        window: W, the time constant of the schedule in steps, one to ten condition numbers; default 300, fewer where
            the problem is known to be well conditioned.
        probe: share of rho for the first gradient.
        curvature: L1 of one record's loss, from which step size and window are derived; utility only.
        balanced: see `ClippedGradient`.
        returns: "last" (the default); "average" (of the iterates, by one over their noise variance: better where the
            problem is well conditioned, the default in whitened coordinates); "flattest" (the iterate with the least
            tracked norm, free); or "selected" (the exponential mechanism among the 64 iterates with the least tracked
            norms, see `stationary_selection`).
        selection_share: share of rho for "selected".
        growth: the KL condition, for the window and the prediction; default that of the problem.
        failure: beta of the paper's mode.
    Guarantee:
        Every release is Gaussian, of sensitivity factor * L0 / n or less (see `ClippedGradient`); its noise is a
        function of earlier releases. All are paid for by a filter that costs as much as one release of
        `noise_multiplier`, whatever is released under it: (epsilon, delta)-DP under the curator's relation, for any
        data, loss and parameters. "selected" adds one choice of bounded range, and the two are priced together.
    Differs from the paper:
        No separate releases of the norm, whose fixed noise dominates the published bound; noise of the order of the
        norm in every coordinate, since descent averages it; a smooth schedule that ends by itself. Every gradient is
        charged by its noise; see `adaptive_paper` for what is wrong with the published charge.
    Source:
        Menart, Ullah, Arora, Bassily, Guzman 2023, Algorithm 3. The filter: Smith, Thakurta 2022.
    """

    mode: Literal["practical", "paper"] = "practical"
    most_steps: int = 3000
    step_size: float | None = None
    clip: float | None = None
    noise_ratio: float | None = None
    trace_ratio: float | None = None
    window: int | None = None
    probe: float = 0.02
    curvature: float | None = None
    balanced: bool = False
    returns: Returned | None = None
    selection_share: float = 0.05
    growth: KL | None = None
    failure: float = 0.1

    preconditions: ClassVar[bool] = True

    def __post_init__(self) -> None:
        for field in ("probe", "selection_share", "failure"):
            if not 0.0 < getattr(self, field) < 1.0:
                raise ValueError(f"{field} must be between 0 and 1, got {getattr(self, field)!r}.")
        for field in ("step_size", "clip", "noise_ratio", "trace_ratio", "window", "curvature"):
            value = getattr(self, field)
            if value is not None and not value > 0:
                raise ValueError(f"{field} must be positive, got {value!r}: leave it out for the default.")
        if self.most_steps < 0:
            raise ValueError(f"most_steps must be at least 0, got {self.most_steps!r}.")
        if self.mode not in ("practical", "paper"):
            raise ValueError(f"mode must be 'practical' or 'paper', got {self.mode!r}.")
        if self.returns is not None and self.returns not in get_args(Returned):
            raise ValueError(f"returns must be one of {get_args(Returned)}, got {self.returns!r}.")

    @property
    def name(self) -> str:
        """The solver's name."""
        return "adaptive-gradient-descent"

    @property
    def adaptive(self) -> bool:
        """Noise and number of releases follow what was released."""
        return True

    def event(self, public: Public) -> Event:
        """What the filter costs, and the choice among iterates if there is one."""
        del public
        if self.most_steps == 0:
            return NoEvent()
        whole = Gaussian(required(self.noise_multiplier, "noise_multiplier")).event()
        return sequence([whole, self.selection.event()]) if self.returns == "selected" else whole

    @property
    def selection(self) -> ExponentialMechanism:
        """The choice among iterates: of the share q of rho, hence of range 2 sqrt(q / (1 - q)) / noise multiplier."""
        multiplier = required(self.noise_multiplier, "noise_multiplier")
        if multiplier == 0.0:
            return ExponentialMechanism(math.inf)
        # range^2 / 8 = q / (1 - q) * 1 / (2 multiplier^2)
        odds = self.selection_share / (1.0 - self.selection_share)
        return ExponentialMechanism(2.0 * math.sqrt(odds) / multiplier)

    def derived(self, problem: Problem, public: Public, budget: Budget) -> Self:
        """The defaults of the attributes."""
        growth = problem.growth if self.growth is None else self.growth
        curvature = self.curvature or descent_defaults.smoothness(problem, public)
        step_size = 1.0 / (curvature + problem.regulariser.smoothness)
        parameters = math.prod(problem.parameter_shape(public))
        return replace(
            self,
            step_size=self.step_size or (0.5 * step_size if self.mode == "paper" else step_size),
            clip=self.clip or descent_defaults.default_clip(problem, public, budget),
            noise_ratio=self.noise_ratio or min(1.0, 3.0 / math.sqrt(parameters)),
            trace_ratio=self.trace_ratio or _trace_ratio(problem, public),
            window=self.window or _window(growth, 1.0 / step_size, problem.regulariser.strong_convexity),
            curvature=curvature,
            growth=growth,
            returns=self.returns or "last",
        )

    def in_coordinates(self, coordinates: Coordinates) -> Self:
        """The same filter, with the lengths of other coordinates, where all directions should look alike."""
        smoothness = coordinates.smoothness + coordinates.ridge_smoothness
        return replace(
            self,
            clip=coordinates.clip,
            step_size=1.0 / smoothness,
            curvature=coordinates.smoothness,
            balanced=coordinates.balanced,
            window=self.window or ALIKE_WINDOW,
            noise_ratio=self.noise_ratio or ALIKE_RATIO / math.sqrt(len(coordinates.matrix)),
            returns=self.returns or "average",
        )

    def applicable(self, problem: Problem, public: Public) -> str | None:
        """A norm that is computed from data is that of a gradient, in the paper's mode of the loss alone."""
        del public
        loss = problem.loss
        if self.balanced and not (isinstance(loss, GLMLoss) and loss.balances):
            return f"the {loss.name} loss has no balanced clip: use balanced=False"
        if not isinstance(problem.regulariser, NoRegulariser):
            if self.mode == "paper":
                return "the paper's mode measures the loss's gradient alone, without a penalty: use mode='practical'"
            if self.returns == "selected" and not problem.regulariser.is_smooth:
                return "the choice among iterates is by gradients, and the penalty has none: use returns='flattest'"
        return None

    def releases(self) -> int:
        """The most there can be."""
        each = 2 if self.mode == "paper" and self.noise_multiplier != 0.0 else 1
        return each * self.most_steps + (1 if self.returns == "selected" and self.most_steps else 0)

    def passes(self) -> float:
        """The most there can be."""
        return float(self.releases() + (MOST_CANDIDATES - 1 if self.returns == "selected" else 0))

    def predicted_excess(self, problem: Problem, public: Public, budget: Budget) -> tuple[float | None, str]:
        """For exact norms and a step size of 1 / (L (1 + a^2)); see `adaptive_theory`."""
        growth = problem.growth if self.growth is None else self.growth
        if not budget.is_private:
            return None, "the noise is off"
        if growth is None or growth.kappa > 2.0:
            return None, "no formula unless the problem's growth is known, with an exponent of at most 2"
        return self._facts(problem, public, budget).excess(growth), "in expectation, had norms been exact"

    def indicators(self, problem: Problem, public: Public, budget: Budget) -> Mapping[str, Finding]:
        """How flat the flattest iterate can be expected to be, where the start's excess is bounded."""
        growth = problem.growth if self.growth is None else self.growth
        gap = math.inf if growth is None else growth.gap_within(required(self.clip, "clip"))
        at_zero = problem.loss.value_at_zero
        if isinstance(problem.loss, GLMLoss) and at_zero is not None:
            gap = min(gap, at_zero)
        flows = problem.regulariser.is_smooth and isinstance(problem.constraint, Unconstrained)
        if not (budget.is_private and math.isfinite(gap) and self.most_steps and flows):
            return {}
        flat = self._facts(problem, public, budget).stationarity(gap, self.most_steps)
        meaning = (
            "least gradient norm of an iterate, expected at steps of 1 / (L (1 + a^2)), with exact norms, from a start "
            "no worse than 0"
        )
        return {"stationarity": Finding(flat, meaning)}

    def notices(self, problem: Problem, public: Public, budget: Budget) -> tuple[str, ...]:
        """What a user should be told, from public quantities."""
        if not budget.is_private:
            return (NOISE_IS_OFF,)
        found = large_delta(public, budget)
        if not isinstance(problem.loss, GLMLoss):
            found += (
                "step size and clip of a user-written loss, where not given, are guesses: `clip_from` "
                "finds a better clip from made-up records.",
            )
        return found

    def run(self, curator: Curator, problem: Problem, start: Array) -> Outcome:
        """Descend under the filter, then return an iterate."""
        if self.most_steps == 0:
            return Outcome(start, Status.FINISHED)
        multiplier = required(self.noise_multiplier, "noise_multiplier")
        rho = math.inf if multiplier == 0.0 else 0.5 / multiplier**2
        kept = MOST_CANDIDATES if self.returns == "selected" else 1
        course = Course(params=start, rho=rho, left=rho, flat=FlattestPoints(kept))
        inner = curator.filtered(self.name, Gaussian(multiplier))
        if multiplier == 0.0:
            self._descend(inner, problem, course)
        elif self.mode == "paper":
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
        ratio, window = required(self.noise_ratio, "noise_ratio"), required(self.window, "window")
        cap = required(self.clip, "clip")
        flows = problem.regulariser.is_smooth and isinstance(problem.constraint, Unconstrained)
        track: NormTracker | None = None
        while course.goes_on and course.steps < self.most_steps:
            query = self._gradient_at(problem, course.params)
            sensitivity = float(_sensitivity(query, curator.public))  # at this point; at most factor L0 / n
            full = sensitivity / math.sqrt(2.0 * course.rho)
            if track is None:
                multiplier = 1.0 / math.sqrt(2.0 * self._first_share * course.rho)
            else:
                multiplier = max(ratio * track.norm, full) / sensitivity
                if course.dries_up(multiplier):
                    break
            multiplier = course.charge(multiplier)
            gradient = curator.release(query, Gaussian(multiplier))
            slope, moved = self._step(problem, course.params, gradient)
            scale, released = multiplier * sensitivity, np.asarray(slope)
            if track is None:
                track = NormTracker.of_first(released, scale, cap)
            else:
                flow = None if flows else self._flow(problem, course.params)
                track = track.updated(released, scale, window=window, floor=FLOOR * full, cap=cap, flow=flow)
            course.advance(track.norm, moved, weight=1.0 / scale**2)

    def _descend_as_published(self, curator: Curator, problem: Problem, course: Course) -> None:
        """Algorithm 3, with its price corrected."""
        clip, public = required(self.clip, "clip"), curator.public
        noise = PaperNoise.of(
            n=public.n,
            rho=course.rho,
            clip=clip,
            sensitivity=public.relation.factor * clip / public.n,
            parameters=course.params.size,
            failure=self.failure,
        )
        while course.goes_on and course.steps < self.most_steps:
            if noise.stops(course.left):
                course.status = Status.BUDGET_SPENT
                break
            gradient, norm, course.left, last = noise.gradient(
                curator, self._gradient_at(problem, course.params), course.left
            )
            _, moved = self._step(problem, course.params, gradient)
            course.advance(max(norm, 0.0), moved)
            if last and course.goes_on:
                course.status = Status.BUDGET_SPENT

    def _descend(self, curator: Curator, problem: Problem, course: Course) -> None:
        """Plain descent, with the noise off."""
        while course.goes_on and course.steps < self.most_steps:
            gradient = curator.release(self._gradient_at(problem, course.params), Gaussian(0.0))
            slope, moved = self._step(problem, course.params, gradient)
            course.advance(float(np.linalg.norm(np.asarray(slope))), moved)

    def _returned(self, curator: Curator, problem: Problem, course: Course) -> tuple[Array, float]:
        """The point to return and its estimated norm."""
        if self.returns == "average" and course.weights > 0.0:
            return jnp.asarray(course.average), course.norm
        if self.returns in (None, "last", "average"):
            return course.params, course.norm
        if self.returns == "flattest":
            norm, point = course.flat.least
            return point, norm
        norms, points = course.flat.in_order()
        chosen = select_stationary(
            curator,
            problem.loss,
            points,
            clip=required(self.clip, "clip"),
            mechanism=self.selection,
            offsets=[problem.regulariser.gradient(point) for point in points],
        )
        return points[chosen], norms[chosen]

    @property
    def _first_share(self) -> float:
        """A single step gets everything."""
        return 1.0 if self.most_steps == 1 else self.probe

    def _gradient_at(self, problem: Problem, params: Array) -> ClippedGradient:
        return ClippedGradient(
            loss=problem.loss, at=params, clip=required(self.clip, "clip"), balanced=self.balanced
        )

    def _step(self, problem: Problem, params: Array, gradient: Array) -> tuple[Array, Array]:
        step_size = required(self.step_size, "step_size")
        return step_from(params, gradient, step_size, problem.regulariser, problem.constraint)

    def _flow(self, problem: Problem, params: Array) -> Callable[[Vector], Vector]:
        """What penalty and set let through of a gradient at this point."""
        step_size = required(self.step_size, "step_size")

        def flow(gradient: Vector) -> Vector:
            return np.asarray(
                let_through(params, gradient, step_size, problem.regulariser, problem.constraint)
            )

        return flow

    def _facts(self, problem: Problem, public: Public, budget: Budget) -> AdaptiveDescentFacts:
        trace_ratio = required(self.trace_ratio, "trace_ratio")
        multiplier = self.noise_multiplier
        rho = 0.5 * gaussian_mu(budget.epsilon, budget.delta) ** 2 if not multiplier else 0.5 / multiplier**2
        return AdaptiveDescentFacts(
            factor=public.relation.factor,
            n=public.n,
            rho=rho,
            clip=required(self.clip, "clip"),
            curvature=required(self.curvature, "curvature") + problem.regulariser.smoothness,
            trace_ratio=trace_ratio,
            noise_to_norm=required(self.noise_ratio, "noise_ratio") * math.sqrt(trace_ratio),
        )


@partial(jax.jit, static_argnames=("public",))
def _sensitivity(query: ClippedGradient, public: Public) -> Any:
    return query.sensitivity(public) * jnp.ones((), jnp.float64)


def _trace_ratio(problem: Problem, public: Public) -> float:
    """One for one output, since a record's Hessian has rank one; at most two for a softmax."""
    if isinstance(problem.loss, ScalarLoss):
        return 1.0
    if isinstance(problem.loss, GLMLoss):
        return 2.0
    return float(math.prod(problem.parameter_shape(public)))


def _window(growth: KL | None, smoothness: float, strong_convexity: float) -> int:
    """W: six condition numbers where there is one, within limits."""
    if growth is not None and growth.kappa == 2.0:
        return round(min(max(12.0 * growth.gamma**2 * smoothness, SHORTEST), LONGEST))
    if strong_convexity > 0:
        return round(min(max(6.0 * smoothness / strong_convexity, SHORTEST), WINDOW))
    return WINDOW
