"""Adaptive private gradient descent: each step's noise follows the norm of the gradient, which the releases show.

Solves min_x F(x) + r(x) over a constraint set, F = (1/n) sum_i f(x, xi_i), convex or not. See `norm_tracking`.
Source: Menart, Ullah, Arora, Bassily, Guzman 2023, Algorithm 3, rebuilt.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal, Self

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from privopt.curator.base import Curator
from privopt.ledger.events import Event, NoEvent, sequence
from privopt.mechanisms.additive import Gaussian
from privopt.mechanisms.exponential import ExponentialMechanism
from privopt.planning import adaptive_gradient_descent as planning
from privopt.planning.coordinates import Coordinates
from privopt.planning.forecast import Forecast
from privopt.planning.instance import Instance
from privopt.planning.plan import Finding
from privopt.problems.constraints import Unconstrained
from privopt.problems.glm import GLMLoss
from privopt.problems.growth import KL
from privopt.problems.problem import Problem
from privopt.problems.regularisers import NoRegulariser
from privopt.public import Public
from privopt.queries.gradient import ClippedGradient
from privopt.result import Outcome, Status
from privopt.solvers.adaptive_course import Course, DescentState, let_through, step_from
from privopt.solvers.adaptive_paper import PaperNoise
from privopt.solvers.base import Defaults, Solver
from privopt.solvers.fields import choice, derived, number
from privopt.solvers.norm_tracking import NormTracker, Vector
from privopt.solvers.stationary_selection import MOST_CANDIDATES, FlattestPoints, select_stationary

FLOOR = 0.3  # of the noise of one gradient bought with the whole budget: no norm below it can be told from 0


@dataclass(frozen=True, kw_only=True)
class AdaptiveGradientDescent(Solver):
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
        charged by its noise; see `adaptive_paper` for what is wrong with the published charge.
    Source:
        Menart, Ullah, Arora, Bassily, Guzman 2023, Algorithm 3. The filter: Smith, Thakurta 2022.
    """

    name: ClassVar[str] = "adaptive-gradient-descent"
    preconditions: ClassVar[bool] = True
    defaults: ClassVar[Defaults] = planning.DEFAULTS

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
    def adaptive(self) -> bool:
        return True

    @property
    def makes(self) -> tuple[int, int]:
        """Nothing: it asks for sums over all units."""
        return 0, 0

    @property
    def rho(self) -> float:
        """What the filter holds, in zCDP; infinite without noise."""
        return 0.5 / self.noise_multiplier**2 if self.noise_multiplier else math.inf

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
        del public
        if self.most_steps == 0:
            return NoEvent()
        whole = Gaussian(self.noise_multiplier).event()
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
        step = partial(step_from, step_size=self.step_size, problem=problem)
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
            _, moved = step_from(course.state, gradient, step_size=self.step_size, problem=problem)
            course.advance(max(norm, 0.0), moved)

    def _descend(self, curator: Curator, problem: Problem, course: Course) -> None:
        """Plain descent, with the noise off."""
        while course.goes_on and course.steps < self.most_steps:
            gradient = curator.release(self._gradient_at(problem, course.params), Gaussian(0.0))
            slope, moved = step_from(course.state, gradient, step_size=self.step_size, problem=problem)
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
            return np.asarray(let_through(params, gradient, step_size=self.step_size, problem=problem))

        return flow


@partial(jax.jit, static_argnames=("public",))
def _sensitivity(query: ClippedGradient, public: Public) -> Any:
    return query.sensitivity(public) * jnp.ones((), jnp.float64)
