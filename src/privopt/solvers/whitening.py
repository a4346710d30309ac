"""Private whitening: release the second moment of the rows once, then solve in coordinates where they look alike.

Isotropic noise costs a gradient method tr(H^-1), and the columns of real tables are rarely alike. In v = B^-1 w, B the
inverse square root of the released second moment plus a floor, the loss is about equally curved in every direction.

Source:
    Amin, Dick, Kulesza, Munoz, Vassilvitskii 2019 release second moments for regression; the floor that sinks into
    ordinary clipped descent where the moment is all noise, and the clip that follows the signal, are ours.
"""

import math
from dataclasses import dataclass, field
from typing import ClassVar, Self

from jaxtyping import Array

from privopt.curator.base import Curator
from privopt.ledger.calibration import calibrate
from privopt.ledger.events import Event, sequence
from privopt.mechanisms.additive import Gaussian
from privopt.planning import whitening as planning
from privopt.planning.effort import mapping_seconds, second_moment_seconds
from privopt.planning.forecast import Forecast
from privopt.planning.instance import Instance
from privopt.planning.user_whitening import UserWhiteningRule
from privopt.planning.whitening import WhiteningRule
from privopt.problems.constraints import Unconstrained
from privopt.problems.losses import GLMLoss
from privopt.problems.problem import Problem
from privopt.problems.regularisers import NoRegulariser, Ridge
from privopt.public import Public
from privopt.queries.second_moment import SecondMoment, unpack
from privopt.result import Outcome
from privopt.solvers.base import Solver
from privopt.solvers.fields import number, optional
from privopt.solvers.gradient_descent import GradientDescent
from privopt.solvers.user_gradient_descent import UserGradientDescent

WIDEST = 2_000  # d^2 numbers are released and d^3 operations spent


@dataclass(frozen=True, kw_only=True)
class Whitening(Solver):
    """A charged front end: one noisy second moment, then any solver that runs in other coordinates.

    Attributes:
        inner: the solver; its steps, clip and step size are derived for the whitened problem where left open.
        share: fraction of mu^2 (Gaussian DP) that the second moment may spend.
        coarse: c; gradient descent takes the first half of its steps in coordinates whose floor is at least c R^2, and
            goes on from there in its own; 0 for none. Default 0.1 where the loss is not convex, else 0.
        rule: how the coordinates follow from the released second moment, set by `configure`.
        noise_multiplier: of the second moment.
    Guarantee:
        One Gaussian release of the second moment, sensitivity sqrt(factor) R^2 / n in the Frobenius norm, composed with
        the releases of `inner`; everything between is post-processing.
    Source:
        See the module.
    """

    name: ClassVar[str] = "whitening"

    inner: Solver = field(default_factory=GradientDescent)
    share: float = number(planning.SHARE, above=0, below=1)
    coarse: float | None = optional(at_least=0, below=math.inf)
    rule: WhiteningRule | UserWhiteningRule | None = field(default=None, repr=False)

    def check(self) -> None:
        """Only steps that are all alike can be cut in two."""
        if self.coarse and not _can_be_cut(self.inner):
            raise ValueError(
                f"coarse={self.coarse!r} cuts the steps of gradient descent in two: that is for "
                "inner=GradientDescent(...) with equal shares that returns an average or its last point."
            )

    @property
    def title(self) -> str:
        """What runs inside, and that it does so in whitened coordinates."""
        return f"whitened {self.inner.title}"

    @property
    def adaptive(self) -> bool:
        """As the inner solver."""
        return self.inner.adaptive

    @property
    def rests_on_convexity(self) -> str:
        """As the inner solver."""
        return self.inner.rests_on_convexity

    @property
    def weighs_groups(self) -> bool:
        """As the inner solver."""
        return self.inner.weighs_groups

    def event(self, public: Public) -> Event:
        """The second moment, then what the inner solver releases."""
        return sequence([Gaussian(self.noise_multiplier).event(), self.inner.event(public)])

    def scaled(self, factor: float) -> Self:
        """All noise times `factor`."""
        return super().scaled(factor).with_(inner=self.inner.scaled(factor))

    def filled(self, instance: Instance) -> Self:
        """The rule of the planning file, and the inner solver's own settings for a problem of those lengths."""
        inner = self.inner
        if isinstance(inner, UserGradientDescent):
            rule = UserWhiteningRule.of(instance, self.share)
            inner = inner.with_(**rule.fields(inner))
            rest = planning.inner_instance(instance, self.share)
            return self.with_(inner=inner.in_coordinates(rule.planned()).filled(rest), rule=rule)
        rule = WhiteningRule.of(instance, self.share)
        coarse = self.coarse
        if coarse is None:
            coarse = planning.coarse(instance) if _can_be_cut(inner) else 0.0
        if isinstance(inner, GradientDescent) and not inner.is_set("steps"):
            inner = inner.with_(steps=rule.steps() * (2 if coarse else 1))
            if instance.is_private and not inner.is_set("returns"):
                returns = "corrected" if rule.constants.corrected else rule.constants.returns
                inner = inner.with_(returns=returns)
        inner = inner.in_coordinates(rule.planned()).filled(planning.inner_instance(instance, self.share))
        return self.with_(inner=inner, rule=rule, coarse=coarse)

    def configure(self, instance: Instance) -> Self:
        """Derive what was left open; split the budget and calibrate both parts together."""
        solver = self.filled(instance)
        if solver.is_set("noise_multiplier"):
            return solver
        inner = solver.inner.configure(planning.inner_instance(instance, self.share))
        if not instance.is_private:
            return solver.with_(noise_multiplier=0.0, inner=inner)
        split = solver.with_(noise_multiplier=1.0 / (instance.mu * math.sqrt(self.share)), inner=inner)
        return split.scaled(
            calibrate(
                lambda z: split.scaled(z).event(instance.public), instance.budget, instance.public.relation
            )
        )

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
            return f"{self.inner.title} does not run in other coordinates"
        return self.inner.obstacle(problem, public)

    def releases(self) -> int:
        """The second moment and the inner solver's."""
        return 1 + self.inner.releases()

    def passes(self) -> float:
        """The second moment, the map of the rows, and the inner solver's."""
        return 2.0 + self.inner.passes()

    def matrix_seconds(self, public: Public) -> float:
        """The second moment, its eigenvectors and the map of the rows, beside the inner solver's."""
        return second_moment_seconds(public) + mapping_seconds(public) + self.inner.matrix_seconds(public)

    def forecast(self, instance: Instance) -> Forecast:
        if isinstance(self.inner, UserGradientDescent) or self.weighs_groups:
            return self.inner.forecast(instance)
        return planning.forecast(self, instance)

    def run(self, curator: Curator, problem: Problem, start: Array) -> Outcome:
        """Release the second moment, change coordinates, run the inner solver there."""
        assert self.rule is not None
        public = curator.public
        curator.announce("second moment of the rows")
        moment = curator.release(SecondMoment(row_bound=public.row_bound), Gaussian(self.noise_multiplier))
        released, inner = unpack(moment, public.d), self.inner
        if self.coarse and isinstance(self.rule, WhiteningRule) and isinstance(inner, GradientDescent):
            first, rough = inner.steps // 2, self.rule.with_floor(self.coarse)
            begun = inner.with_(steps=first).run_in(curator, problem, start, rough.coordinates(released))
            start, inner = begun.params, inner.with_(steps=inner.steps - first)
        return inner.run_in(curator, problem, start, self.rule.coordinates(released))


def _can_be_cut(inner: Solver) -> bool:
    """Whether the steps of a solver may be taken in two parts: gradient descent, all steps alike."""
    if not isinstance(inner, GradientDescent):
        return False
    return inner.shares == "equal" and inner.returns not in ("random", "flattest")
