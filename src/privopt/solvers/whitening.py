"""Private whitening: release the second moment of the rows once, then solve in coordinates where they look alike.

Isotropic noise costs a gradient method tr(H^-1), and the columns of real tables are rarely alike. In v = B^-1 w, B the
inverse square root of the released second moment plus a floor, the loss is about equally curved in every direction.

Source:
    Amin, Dick, Kulesza, Munoz, Vassilvitskii 2019 release second moments for regression; the floor that sinks into
    ordinary clipped descent where the moment is all noise, and the clip that follows the signal, are ours.
"""

import math
from dataclasses import dataclass, field, replace
from typing import Self

from jaxtyping import Array

from privopt.curator.base import Curator
from privopt.ledger.amounts import Budget
from privopt.ledger.calibration import calibrate
from privopt.ledger.events import Event, sequence
from privopt.ledger.gaussian_dp import gaussian_mu, part_of
from privopt.mechanisms.additive import Gaussian
from privopt.planning.effort import mapping_seconds, second_moment_seconds
from privopt.planning.whitening import SHARE, WhiteningRule
from privopt.problems.constraints import Unconstrained
from privopt.problems.losses import GLMLoss, Logistic, Softmax
from privopt.problems.problem import Problem
from privopt.problems.regularisers import NoRegulariser, Ridge
from privopt.public import Public
from privopt.queries.second_moment import SecondMoment, unpack
from privopt.result import Outcome
from privopt.solvers.base import Solver, required
from privopt.solvers.gradient_descent import GradientDescent

WIDEST = 2_000  # d^2 numbers are released and d^3 operations spent


@dataclass(frozen=True, kw_only=True)
class Whitening(Solver):
    """A charged front end: one noisy second moment, then any solver that runs in other coordinates.

    Attributes:
        inner: the solver; its steps, clip and step size are derived for the whitened problem where left open.
        share: fraction of mu^2 (Gaussian DP) that the second moment may spend.
        noise_multiplier: of the second moment.
    Guarantee:
        One Gaussian release of the second moment, sensitivity sqrt(factor) R^2 / n in the Frobenius norm, composed with
        the releases of `inner`; everything between is post-processing.
    Source:
        See the module.
    """

    inner: Solver = field(default_factory=GradientDescent)
    share: float = SHARE
    rule: WhiteningRule | None = field(default=None, repr=False)

    @property
    def name(self) -> str:
        """The solver's name."""
        return f"whitened {self.inner.name}"

    @property
    def adaptive(self) -> bool:
        """As the inner solver."""
        return self.inner.adaptive

    def event(self, public: Public) -> Event:
        """The second moment, then what the inner solver releases."""
        moment = Gaussian(required(self.noise_multiplier, "noise_multiplier")).event()
        return sequence([moment, self.inner.event(public)])

    def scaled(self, factor: float) -> Self:
        """All noise times `factor`."""
        return replace(super().scaled(factor), inner=self.inner.scaled(factor))

    def derived(self, problem: Problem, public: Public, budget: Budget) -> Self:
        """The rule of `whitening_rule`; the inner solver's own settings for a problem of those lengths."""
        rule = WhiteningRule.of(problem, public, budget, self.share)
        inner = self.inner
        if isinstance(inner, GradientDescent) and inner.steps is None:
            inner = replace(inner, steps=rule.steps(), average=rule.constants.average)
        part = part_of(budget, 1.0 - self.share)
        inner = inner.in_coordinates(rule.planned()).derived(replace(problem, growth=None), public, part)
        return replace(self, inner=inner, rule=rule)

    def configure(self, problem: Problem, public: Public, budget: Budget) -> Self:
        """Derive what was left open; split the budget and calibrate both parts together."""
        solver = self.derived(problem, public, budget)
        if solver.noise_multiplier is not None:
            return solver
        if math.isinf(budget.epsilon):
            return replace(
                solver, noise_multiplier=0.0, inner=solver.inner.configure(problem, public, budget)
            )
        inner = solver.inner.configure(problem, public, part_of(budget, 1.0 - self.share))
        alone = 1.0 / (gaussian_mu(budget.epsilon, budget.delta) * math.sqrt(self.share))
        split = replace(solver, noise_multiplier=alone, inner=inner)
        return split.scaled(calibrate(lambda z: split.scaled(z).event(public), budget, public.relation))

    def applicable(self, problem: Problem, public: Public) -> str | None:
        """Generalised linear losses with a ridge or no penalty on a moderate number of features."""
        if not isinstance(problem.loss, GLMLoss):
            return "whitening maps the rows of a generalised-linear loss, and this loss is the user's own"
        if not isinstance(problem.regulariser, Ridge | NoRegulariser):
            return "the penalty is not smooth, and its proximal map is not exact in other coordinates"
        if not isinstance(problem.constraint, Unconstrained):
            return "the projection on the constraint set is not exact in other coordinates"
        if public.d > WIDEST:
            return f"the second moment of {public.d} features has {public.d**2:,} entries (limit: {WIDEST} features)"
        if not self.inner.preconditions:
            return f"{self.inner.name} does not run in other coordinates"
        return self.inner.applicable(problem, public)

    def releases(self) -> int:
        """The second moment and the inner solver's."""
        return 1 + self.inner.releases()

    def passes(self) -> float:
        """The second moment, the map of the rows, and the inner solver's."""
        return 2.0 + self.inner.passes()

    def matrix_seconds(self, public: Public) -> float:
        """The second moment, its eigenvectors and the map of the rows, beside the inner solver's."""
        return second_moment_seconds(public) + mapping_seconds(public) + self.inner.matrix_seconds(public)

    def predicted_excess(self, problem: Problem, public: Public, budget: Budget) -> tuple[float | None, str]:
        """Fitted to measurements for logistic and softmax regression; else what noise leaves at the rule's clip."""
        if math.isinf(budget.epsilon):
            return 0.0, "the noise is off"
        rule = WhiteningRule.of(problem, public, budget, self.share)
        drowned = rule.drowned(rule.most_signal)
        excess, meaning = rule.cap(rule.most_signal) ** 2 * drowned, "what noise alone would leave"
        at_zero = problem.loss.value_at_zero if isinstance(problem.loss, GLMLoss) else None
        if at_zero is not None and isinstance(problem.loss, Logistic | Softmax):
            excess = 0.304 * drowned**0.514 * at_zero / math.log(2.0)
            meaning = "fitted on eight tables of two classes; often off by a factor of 2 to 3"
        return (excess if at_zero is None else min(excess, at_zero)), meaning

    def notices(self, problem: Problem, public: Public, budget: Budget) -> tuple[str, ...]:
        """The inner solver's."""
        return self.inner.notices(problem, public, budget)

    def run(self, curator: Curator, problem: Problem, start: Array) -> Outcome:
        """Release the second moment, change coordinates, run the inner solver there."""
        public = curator.public
        curator.announce("second moment of the rows")
        moment = curator.release(
            SecondMoment(row_bound=public.row_bound),
            Gaussian(required(self.noise_multiplier, "noise_multiplier")),
        )
        rule: WhiteningRule = required(self.rule, "rule")
        return self.inner.run_in(curator, problem, start, rule.coordinates(unpack(moment, public.d)))
