"""A private probe of the curvature: longer steps, and so fewer passes, where rows are less alike than they might be.

The curvature of one record's loss is at most L1 = phi'' R^2, but that of the mean loss is at most phi'' lam, lam the
largest eigenvalue of the rows' second moment (1/n) sum_i a_i a_i^T, and lam is R^2 only if all rows are as long as they
can be and parallel. One release of lam lets a gradient method take steps of size

    eta = 1 / min(L1, max(phi'' (released lam + 2 sigma), 0.02 L1)),    sigma the noise of that release.

Source:
    Menart, Ullah, Arora, Bassily, Guzman 2023 assume that the smoothness is known; the probe is ours.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Self

from jaxtyping import Array

from privopt.curator.base import Curator
from privopt.ledger.amounts import Budget
from privopt.ledger.calibration import calibrate
from privopt.ledger.events import Event, Sequence
from privopt.ledger.gaussian_dp import gaussian_budget, gaussian_mu
from privopt.mechanisms.additive import Gaussian
from privopt.planning import descent_defaults
from privopt.planning.effort import second_moment_seconds
from privopt.planning.plan import Finding
from privopt.problems.losses import GLMLoss
from privopt.problems.problem import Problem
from privopt.public import Public
from privopt.queries.top_curvature import TopCurvature
from privopt.result import Outcome
from privopt.solvers.base import Solver, required
from privopt.solvers.continuous_spider import ContinuousSpider
from privopt.solvers.gradient_descent import GradientDescent
from privopt.solvers.scheduled_gradient_descent import ScheduledGradientDescent

SHARE = 0.01
CONFIDENCE = 2.0  # standard deviations of noise that are added to the released eigenvalue
WIDEST = 2_000  # d^2 numbers are summed, and d^3 operations spent
LEAST = 0.02  # of L1: steps get at most 50 times as long


@dataclass(frozen=True, kw_only=True)
class CurvatureProbe(Solver):
    """A charged front end: one noisy eigenvalue, then a gradient method whose steps follow it.

    Attributes:
        inner: the method, its step size left open; its other open fields are derived once the curvature is known.
            `AdaptiveGradientDescent` is refused: short steps are what averages its noise, and longer ones made its
            excess several times larger.
        share: fraction of mu^2 (Gaussian DP) that the probe may spend.
        noise_multiplier: of the probe.
        remainder: noise multiplier of the one Gaussian release that pays for everything `inner` releases.
        delta: of the budget, at which the remainder is handed to `inner`.
        planned: `inner` as it would run if the probe found nothing: what it does at most.
    Guarantee:
        The probe is one Gaussian release of sensitivity R^2 / n. How often `inner` releases, and with which noise,
        depends on the probe, so it runs under a Gaussian filter worth one release of multiplier `remainder`. Together
        two Gaussian releases: exactly (epsilon, delta)-DP.
    Source:
        See the module.
    """

    inner: Solver = field(default_factory=GradientDescent)
    share: float = SHARE
    remainder: float | None = None
    delta: float | None = None
    planned: Solver | None = None

    def __post_init__(self) -> None:
        if not (0.0 < self.share < 1.0):
            raise ValueError(
                f"share must lie strictly between 0 and 1, got {self.share!r}: the probe's part of the budget."
            )

    @property
    def name(self) -> str:
        """The solver's name."""
        return f"probed {self.inner.name}"

    @property
    def adaptive(self) -> bool:
        """Noise and number of releases follow what was released."""
        return True

    def event(self, public: Public) -> Event:
        """The probe, and one release that pays for the rest."""
        del public
        probe = Gaussian(required(self.noise_multiplier, "noise_multiplier"))
        return Sequence((probe.event(), Gaussian(required(self.remainder, "remainder")).event()))

    def scaled(self, factor: float) -> Self:
        """All noise times `factor`."""
        return replace(super().scaled(factor), remainder=required(self.remainder, "remainder") * factor)

    def derived(self, problem: Problem, public: Public, budget: Budget) -> Self:
        """The plan for the case that the probe finds nothing."""
        self.check_applicable(problem, public)
        solver = replace(self, delta=budget.delta) if self.delta is None else self
        if solver.remainder is None:
            mu = gaussian_mu(budget.epsilon, budget.delta) * math.sqrt(1.0 - self.share)
            solver = replace(solver, remainder=1.0 / mu if budget.is_private else 0.0)
        if solver.planned is None:
            at_most = descent_defaults.smoothness(problem, public)
            solver = replace(solver, planned=solver.configured_inner(problem, public, at_most))
        return solver

    def configure(self, problem: Problem, public: Public, budget: Budget) -> Self:
        """Split the budget, calibrate both parts together, and plan for the case that the probe finds nothing."""
        if self.noise_multiplier is not None:
            return self.derived(problem, public, budget)
        if not budget.is_private:
            return replace(self, noise_multiplier=0.0, remainder=0.0).derived(problem, public, budget)
        mu = gaussian_mu(budget.epsilon, budget.delta)
        split = replace(
            self,
            noise_multiplier=1.0 / (mu * math.sqrt(self.share)),
            remainder=1.0 / (mu * math.sqrt(1.0 - self.share)),
        )
        split = split.scaled(calibrate(lambda z: split.scaled(z).event(public), budget, public.relation))
        return split.derived(problem, public, budget)

    def applicable(self, problem: Problem, public: Public) -> str | None:
        """Generalised-linear losses, and methods whose steps can follow a curvature and a budget."""
        inner = self.inner
        if not isinstance(problem.loss, GLMLoss):
            return "the rows say how curved a generalised-linear loss is, and this loss is the user's own"
        if not isinstance(inner, GradientDescent | ContinuousSpider):
            return (
                f"{inner.name} does not gain from longer steps: use scheduled or ordinary gradient descent, or the "
                "continuous spider"
            )
        if public.d > WIDEST:
            return f"the second moment of {public.d} features has {public.d**2:,} entries (limit: {WIDEST} features)"
        if inner.step_size is not None:
            return "the inner solver's step size is given: leave it open"
        if isinstance(inner, GradientDescent) and inner.average == "random":
            return "the random iterate is drawn before the probe says how many there are: use another average"
        return inner.applicable(problem, public)

    def configured_inner(self, problem: Problem, public: Public, curvature: float) -> Solver:
        """`inner` for a curvature of the mean loss, with all the noise that the remainder can pay.

        Args:
            problem: the problem.
            public: what is public about the data.
            curvature: public or released.
        """
        penalty, inner = problem.regulariser.smoothness, self.inner
        if isinstance(inner, ScheduledGradientDescent):
            inner = replace(inner, curvature=curvature)
        elif isinstance(inner, GradientDescent):
            inner = replace(inner, smoothness=curvature + penalty)
        elif isinstance(inner, ContinuousSpider):
            # Its curvature stays that of one record's loss: the differences of single records are clipped by it.
            inner = replace(inner, step_size=1.0 / (curvature + penalty))
        if isinstance(inner, ScheduledGradientDescent | ContinuousSpider) and self.planned is not None:
            inner = replace(inner, most_steps=max(1, min(inner.most_steps, self.planned.releases())))
        return replace(inner, noise_multiplier=None).configure(problem, public, self._rest())

    def releases(self) -> int:
        """The probe and at most as many as without it."""
        return 1 + required(self.planned, "planned").releases()

    def passes(self) -> float:
        """The probe and at most as many as without it."""
        return 1.0 + required(self.planned, "planned").passes()

    def matrix_seconds(self, public: Public) -> float:
        """The second moment for the probe, and the inner solver's."""
        return second_moment_seconds(public) + required(self.planned, "planned").matrix_seconds(public)

    def predicted_excess(self, problem: Problem, public: Public, budget: Budget) -> tuple[float | None, str]:
        """The inner solver's, as if the probe found nothing."""
        return required(self.planned, "planned").predicted_excess(problem, public, self._rest())

    def indicators(self, problem: Problem, public: Public, budget: Budget) -> Mapping[str, Finding]:
        """The inner solver's."""
        return required(self.planned, "planned").indicators(problem, public, self._rest())

    def notices(self, problem: Problem, public: Public, budget: Budget) -> tuple[str, ...]:
        """The inner solver's."""
        return required(self.planned, "planned").notices(problem, public, self._rest())

    def run(self, curator: Curator, problem: Problem, start: Array) -> Outcome:
        """Release the eigenvalue, then run the inner solver under a filter that holds the rest of the budget."""
        public = curator.public
        noise = Gaussian(required(self.noise_multiplier, "noise_multiplier"))
        query = TopCurvature(row_bound=public.row_bound)
        curator.announce("second moment of the rows")
        released = curator.release(query, noise)
        stddev = noise.noise_multiplier * float(query.sensitivity(public))
        largest = descent_defaults.smoothness(problem, public)
        per_row = largest / public.row_bound**2  # phi''
        cautious = per_row * (float(released) + CONFIDENCE * stddev)
        curvature = min(largest, max(cautious, LEAST * largest))
        inner = self.configured_inner(problem, public, curvature)
        rest = curator.filtered(inner.name, Gaussian(required(self.remainder, "remainder")))
        outcome = inner.run(rest, problem, start)
        found = Finding(
            curvature, "curvature of the mean loss by the probe, two standard deviations of its noise added"
        )
        return outcome._replace(findings={"curvature": found, **outcome.findings})

    def _rest(self) -> Budget:
        """The remainder as an (epsilon, delta); where epsilon would be 0 at this delta, at a smaller one."""
        remainder = required(self.remainder, "remainder")
        delta = required(self.delta, "delta")
        if remainder == 0.0:
            return Budget(math.inf, delta)
        return gaussian_budget(1.0 / remainder, delta)
