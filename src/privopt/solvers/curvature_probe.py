"""A private probe of the curvature: longer steps, and so fewer passes, where rows are less alike than they might be.

The curvature of one record's loss is at most L1 = phi'' R^2, but that of the mean loss is at most phi'' lam, lam the
largest eigenvalue of the rows' second moment (1/n) sum_i a_i a_i^T, and lam is R^2 only if all rows are as long as they
can be and parallel. One release of lam lets a gradient method take longer steps; the comment below says
how long.

Source:
    Menart, Ullah, Arora, Bassily, Guzman 2023 assume that the smoothness is known; the probe is ours.
"""

import math
from dataclasses import dataclass, field, replace
from typing import ClassVar, Self

from privopt.curator.base import Curator
from privopt.later import Array
from privopt.ledger.events import Event, Sequence
from privopt.mechanisms.additive import Gaussian
from privopt.planning import descent_theory
from privopt.planning.averaging import second_moment_seconds
from privopt.planning.plan import Finding
from privopt.planning.task import Instance
from privopt.planning.user_gradient_descent import STEP_FACTOR
from privopt.problems.problem import Problem
from privopt.public import Public
from privopt.queries.moments import TopCurvature
from privopt.result import Outcome
from privopt.solvers.base import Solver
from privopt.solvers.continuous_spider import ContinuousSpider
from privopt.solvers.fields import derived, number
from privopt.solvers.front_end import FilteredFrontEnd
from privopt.solvers.gradient_descent import GradientDescent
from privopt.solvers.needs import FewFeatures, GeneralisedLinear, Need
from privopt.solvers.user_gradient_descent import UserGradientDescent

# ---- How a budget is split around the probe, and the curvature that its release stands for -----------------
#
#     curvature = min(L1, max(phi'' (released + 2 sigma), 0.02 L1)),    sigma the noise of that release
#
# with L1 = phi'' R^2 the largest curvature of one record's loss. Source: ours. Utility only.
SHARE = 0.01
CONFIDENCE = 2.0  # standard deviations of noise that are added to the released eigenvalue
LEAST = 0.02  # of L1: steps get at most 50 times as long
WIDEST = 2_000  # features: d^2 numbers are summed, and d^3 operations spent


@dataclass(frozen=True, kw_only=True)
class CurvatureProbe(FilteredFrontEnd):
    """A charged front end: one noisy eigenvalue, then a gradient method whose steps follow it.

    Attributes:
        inner: the method, its step size left open; its other open fields are derived once the curvature is known.
            `AdaptiveGradientDescent` is refused: short steps are what averages its noise, and longer ones made its
            excess several times larger.
        share: the probe's part of the budget, a fraction of mu^2 (Gaussian DP).
        noise_multiplier: of the probe.
        remainder: noise multiplier of the one Gaussian release that pays for everything `inner` releases.
        delta: of the budget, at which the remainder is handed to `inner`.
        planned: `inner` as it would run if the probe found nothing: what it does at most.
    Guarantee:
        The probe is one Gaussian release of sensitivity R^2 / n. How often `inner` releases, and with which noise,
        depends on the probe, so it runs under a Gaussian filter worth one release of multiplier `remainder`. Together
        two Gaussian releases: exactly (epsilon, delta)-DP.
    Source:
        Menart, Ullah, Arora, Bassily, Guzman 2023 assume that the smoothness is known; the probe is ours.
    """

    name: ClassVar[str] = "curvature-probe"
    title_of: ClassVar[str] = "probed {}"
    needs: ClassVar[tuple[Need, ...]] = (
        GeneralisedLinear(
            "the rows say how curved a generalised-linear loss is, and this loss is the user's own"
        ),
    )

    inner: Solver = field(default_factory=GradientDescent)
    share: float = number(SHARE, above=0, below=1)
    remainder: float = derived(at_least=0)
    delta: float = derived(at_least=0, below=1)
    planned: Solver = derived()

    def default_planned(self, instance: Instance) -> Solver:
        return self.configured_inner(instance.problem, instance.public, descent_theory.smoothness(instance))

    def event(self, public: Public) -> Event:
        """The probe, and one release that pays for the rest."""
        del public
        return Sequence((Gaussian(self.noise_multiplier).event(), Gaussian(self.remainder).event()))

    def split(self, instance: Instance) -> Self:
        """With the noise of the probe and of the rest."""
        probe = 1.0 / (instance.mu * math.sqrt(self.share))
        return self.with_(noise_multiplier=probe, remainder=self.default_remainder(instance))

    def applicable(self, problem: Problem, public: Public) -> str | None:
        """Generalised-linear losses, and methods whose steps can follow a curvature and a budget."""
        inner = self.inner
        refused = super().applicable(problem, public)
        if refused is not None:
            return refused
        if not isinstance(inner, GradientDescent | ContinuousSpider | UserGradientDescent):
            return (
                f"{inner.title} does not gain from longer steps: use gradient descent, for records or users, or the "
                "continuous spider"
            )
        if (wide := FewFeatures(most=WIDEST).refusal(self, problem, public)) is not None:
            return wide
        if inner.is_set("step_size"):
            return "the inner solver's step size is given: leave it open"
        if isinstance(inner, GradientDescent) and inner.returns == "random":
            return (
                "the random iterate is drawn before the probe says how many there are: return another point"
            )
        return inner.applicable(problem, public)

    def configured_inner(self, problem: Problem, public: Public, curvature: float) -> Solver:
        """`inner` for a curvature of the mean loss, with all the noise that the remainder can pay.

        Args:
            problem: the problem.
            public: what is public about the data.
            curvature: public or released.
        """
        instance, inner = Instance(problem, public, self.rest()), self.inner
        smoothness = curvature + instance.penalty_smoothness
        planned = max(1, self.planned.releases()) if self.is_set("planned") else math.inf
        if isinstance(inner, GradientDescent):
            inner = inner.with_(smoothness=smoothness)
            if inner.falling is not None:
                most = min(inner.falling.most_steps, planned)
                inner = inner.with_(falling=replace(inner.falling, most_steps=most))
        elif isinstance(inner, UserGradientDescent):
            inner = inner.with_(step_size=STEP_FACTOR / smoothness)
        elif isinstance(inner, ContinuousSpider):
            # Its curvature stays that of one record's loss: the differences of single records are clipped by it.
            inner = inner.with_(step_size=1.0 / smoothness, most_steps=min(inner.most_steps, planned))
        return inner.with_(noise_multiplier=None).configure(instance)

    def matrix_seconds(self, public: Public) -> float:
        """The second moment for the probe, and the inner solver's."""
        return second_moment_seconds(public) + super().matrix_seconds(public)

    def run(self, curator: Curator, problem: Problem, start: Array) -> Outcome:
        """Release the eigenvalue, then run the inner solver under a filter that holds the rest of the budget."""
        public, noise = curator.public, Gaussian(self.noise_multiplier)
        query = TopCurvature(row_bound=public.row_bound)
        curator.announce("second moment of the rows")
        released = curator.release(query, noise)
        stddev = noise.noise_multiplier * float(query.sensitivity(public))
        instance = Instance(problem, public, self.rest())
        curvature = cautious_curvature(float(released), stddev, instance)
        inner = self.configured_inner(problem, public, curvature)
        outcome = inner.run(curator.filtered(inner.title, Gaussian(self.remainder)), problem, start)
        found = Finding(
            curvature, "curvature of the mean loss by the probe, two standard deviations of its noise added"
        )
        return outcome._replace(findings={"curvature": found, **outcome.findings})


def cautious_curvature(released: float, stddev: float, instance: Instance) -> float:
    """That of the mean loss, cautiously, from a released eigenvalue. Post-processing."""
    largest = descent_theory.smoothness(instance)
    per_row = largest / instance.public.row_bound**2  # phi''
    cautious = per_row * (released + CONFIDENCE * stddev)
    return min(largest, max(cautious, LEAST * largest))
