"""Randomized smoothing in front of any solver: gradients at random points near the iterate, for losses with corners.

Source: Lowy, Liu, Asi 2024, Section 4; Duchi, Bartlett, Wainwright 2012.
"""

import math
from dataclasses import dataclass, field, replace
from typing import ClassVar, Self

from jaxtyping import Array

from privopt.curator.base import Curator
from privopt.ledger.events import Event
from privopt.planning.forecast import Forecast
from privopt.planning.indicators import DISTANCE
from privopt.planning.instance import Instance
from privopt.problems.problem import Problem
from privopt.problems.smoothed import randomly_smoothed
from privopt.public import Public
from privopt.result import Outcome
from privopt.solvers.base import Solver
from privopt.solvers.fields import derived, number
from privopt.solvers.gradient_descent import GradientDescent


# ---- The problem that is solved in place of the given one. Utility only ------------------------------------
def smoothed_problem(problem: Problem, public: Public, radius: float, seed: int) -> Problem:
    """The problem with its loss smoothed; the problem itself for a radius of 0."""
    if radius == 0.0:
        return problem
    smooth = randomly_smoothed(problem.loss, radius, row_bound=public.row_bound, seed=seed)
    return replace(problem, loss=smooth, growth=None, constant=None)


@dataclass(frozen=True, kw_only=True)
class RandomizedSmoothing(Solver):
    """A solver that runs on the smoothed loss f_r(w) = E f(w + r z), z uniform in the unit ball.

    Attributes:
        inner: the solver; it must take losses of the user's own.
        radius: r, in units of the parameters; 0 for none.
        seed: public, of the points.
        noise_multiplier: that of `inner`, set by `configure`.
    Guarantee:
        That of `inner`, for the same events: z is a pseudo-random function of a public point and of the record alone,
        so a record's clipped contribution is a function of that record. See `problems.smoothed`.
    Differs from the paper:
        mu in place of epsilon in the radius; one z a record and step, from a hash instead of a stream of its own.
    Source:
        Lowy, Liu, Asi 2024, Section 4 and Appendix D.
    """

    name: ClassVar[str] = "randomized-smoothing"

    inner: Solver = field(default_factory=GradientDescent)
    radius: float = derived(at_least=0, below=math.inf)
    seed: int = number(0, at_least=0)

    def default_radius(self, instance: Instance) -> float:
        """r = W sqrt(p) / (mu n sqrt(m)), W the distance that the optimum is guessed at; 0 without noise.

        With it the bias, at most L r, is about the error that the noise leaves anyway.
        """
        public = instance.public
        if not instance.is_private:
            return 0.0
        distance = DISTANCE / public.row_bound
        units = public.n * math.sqrt(public.typical_records)
        return distance * math.sqrt(instance.parameters) / (instance.mu * units)

    @property
    def title(self) -> str:
        """What runs inside, and that its loss is smoothed."""
        return f"randomly smoothed {self.inner.title}"

    @property
    def adaptive(self) -> bool:
        """As the inner solver."""
        return self.inner.adaptive

    @property
    def makes(self) -> tuple[int, int]:
        """As the inner solver."""
        return self.inner.makes

    @property
    def rests_on_convexity(self) -> str:
        """As the inner solver."""
        return self.inner.rests_on_convexity

    def event(self, public: Public) -> Event:
        """What the inner solver releases."""
        return self.inner.event(public)

    def scaled(self, factor: float) -> Self:
        """All noise times `factor`."""
        return super().scaled(factor).with_(inner=self.inner.scaled(factor))

    def filled(self, instance: Instance) -> Self:
        """The radius, then the inner solver for the smoothed loss."""
        solver = super().filled(instance)
        return solver.with_(inner=solver.inner.filled(solver.smoothed(instance)))

    def configure(self, instance: Instance) -> Self:
        """The inner solver has the whole budget."""
        solver = self.filled(instance)
        inner = solver.inner
        if self.is_set("noise_multiplier"):
            inner = inner.with_(noise_multiplier=self.noise_multiplier)
        inner = inner.configure(solver.smoothed(instance))
        return solver.with_(inner=inner, noise_multiplier=inner.noise_multiplier)

    def smoothed(self, instance: Instance) -> Instance:
        """The instance that the inner solver plans for."""
        return replace(instance, problem=self._smoothed(instance.problem, instance.public))

    def applicable(self, problem: Problem, public: Public) -> str | None:
        """Where the inner solver takes a loss of the user's own."""
        radius = self.radius if self.is_set("radius") else 1.0
        return self.inner.applicable(self.with_(radius=radius)._smoothed(problem, public), public)

    def releases(self) -> int:
        """The inner solver's."""
        return self.inner.releases()

    def passes(self) -> float:
        """The inner solver's."""
        return self.inner.passes()

    def matrix_seconds(self, public: Public) -> float:
        """The inner solver's."""
        return self.inner.matrix_seconds(public)

    def seconds(self, problem: Problem, public: Public) -> float:
        """The inner solver's on the smoothed loss."""
        return self.inner.seconds(self._smoothed(problem, public), public)

    def forecast(self, instance: Instance) -> Forecast:
        """The inner solver's, and the bias where the loss states its slope."""
        inner = self.inner.forecast(self.smoothed(instance))
        bias = instance.gradient_bound * self.radius
        if math.isinf(bias):
            return inner
        return inner.noting(
            f"smoothing over a radius of {self.radius:.3g} moves the objective by at most {bias:.3g}."
        )

    def run(self, curator: Curator, problem: Problem, start: Array) -> Outcome:
        """The inner solver, on the smoothed loss."""
        return self.inner.run(curator, self._smoothed(problem, curator.public), start)

    def _smoothed(self, problem: Problem, public: Public) -> Problem:
        return smoothed_problem(problem, public, self.radius, self.seed)
