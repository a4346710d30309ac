"""Private whitening: release the second moment of the rows once, then solve in coordinates where they look alike.

Minimises F(w) + (lam / 2) |w|^2 over w of shape (d,) or (d, K), F the mean over n units of a generalised-linear loss.
Noise of standard deviation s per coordinate costs a gradient method 0.5 s^2 tr(H^-1) of excess, H the Hessian at the
optimum; tr(H^-1) is large where columns are correlated or of unequal size. In v = B^-1 w, B the inverse square root of
the released second moment plus a floor, the loss is about equally curved in every direction. The formulas of the floor,
the clip in v and the number of steps stand in `planning.whitening`.

Source:
    Amin, Dick, Kulesza, Munoz, Vassilvitskii 2019 release second moments for regression. The floor, which turns the
    method into ordinary clipped descent where the moment is mostly noise, and the clip by the signal are ours.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Self

from privopt.curator.base import Curator
from privopt.later import Array
from privopt.ledger.events import Event, sequence
from privopt.mechanisms.additive import Gaussian
from privopt.planning import counts, improvement, shrinkage
from privopt.planning import whitening as planning
from privopt.planning.averaging import mapping_seconds, second_moment_seconds
from privopt.planning.counts import RELATIVE_TO_THE_MEAN, CountsRule
from privopt.planning.improvement import expected, improvement_share
from privopt.planning.plan import IMPROVEMENT_SHARE, Finding
from privopt.planning.row_length import Usable, announced, moment_deviation, tells
from privopt.planning.task import Forecast, Instance
from privopt.planning.user_whitening import UserCountsRule, UserWhiteningRule
from privopt.planning.whitening import WhiteningRule
from privopt.problems.losses import GLMLoss, Huber, Logistic, Loss, Quantile, SmoothedHinge, Softmax, Squared
from privopt.problems.problem import Problem
from privopt.public import Public
from privopt.queries.moments import SecondMoment, TargetMagnitudes, unpack
from privopt.result import Outcome
from privopt.solvers.base import Solver
from privopt.solvers.fields import number, optional
from privopt.solvers.front_end import FrontEnd
from privopt.solvers.gradient_descent import GradientDescent
from privopt.solvers.needs import FewFeatures, GeneralisedLinear, Need, NoSet, RidgeAtMost
from privopt.solvers.stages import Stage, at_level, rescaled
from privopt.solvers.user_gradient_descent import UserGradientDescent

WIDEST = 2_000  # the largest d: d^2 numbers are released, and their eigenvectors take d^3 operations

# ---- Expected excess of a whitened descent, from public numbers: fitted to measurements on the panel -------
# With n units of d columns, the constant included, factor 2 (replace-one) or 1 (add-or-remove-one), budget mu (Gaussian
# DP), and two numbers per loss: kappa, and C, the typical excess of the best constant prediction,
#
#     noise       x = factor d / (2 kappa n mu)
#     excess      C x / (1 + x)             above the best model without privacy, in units of the loss
#     share       1 / (1 + x)               of the achievable improvement over a constant prediction
#
# `FITTED` has kappa, C and the spread of tables around this formula; numeric targets are scaled to [-1, 1]. They were
# fitted on the panel's development set (`python -m benchmarks.panel_forecast`), every table with the same weight. Two
# tables with the same public numbers can differ much in the distance of the optimum and in the number of directions
# that matter, and no public number tells which; so the prediction is a range.
FITTED_ON = "fitted on other tables; about eight of ten end in this range"


@dataclass(frozen=True, kw_only=True)
class Fitted:
    """The fitted constants of one loss, for the formulas above.

    Attributes:
        learnable: C, in units of the loss.
        signal: kappa, without a unit.
        spread: the predicted range goes from the excess over this to the excess times this.
        shares: whether 1 / (1 + x) was accurate enough to be stated in the plan.
    """

    learnable: float
    signal: float
    spread: float
    shares: bool = True

    def noise(self, instance: Instance) -> float:
        """x, the noise of a whitened descent relative to the signal."""
        public = instance.public
        return public.relation.factor * public.d / (2.0 * self.signal * public.n * instance.mu)

    def excess(self, noise: float) -> float:
        """C x / (1 + x), the expected excess at relative noise x."""
        return self.learnable * noise / (1.0 + noise)


FITTED: dict[type[Loss], Fitted] = {
    Logistic: Fitted(learnable=0.321, signal=0.832, spread=4.4),
    Softmax: Fitted(learnable=2.1, signal=1.26, spread=3.7),
    SmoothedHinge: Fitted(learnable=0.133, signal=0.274, spread=7.2, shares=False),
    Squared: Fitted(learnable=0.0306, signal=0.651, spread=6.2),
    Huber: Fitted(learnable=0.0186, signal=1.19, spread=3.7),
    Quantile: Fitted(learnable=0.0555, signal=1.19, spread=4.8),
}


def fitted(loss: Loss) -> Fitted | None:
    """The fitted constants of a loss; None for a loss without any."""
    return FITTED.get(type(loss))


@dataclass(frozen=True, kw_only=True)
class Whitening(FrontEnd):
    """Release one noisy second moment of the rows, then run an inner solver in the coordinates that it gives.

    Attributes:
        inner: the solver; its steps, clip and step size are derived for the whitened problem where left open.
        share: fraction of mu^2 (Gaussian DP) that the second moment may spend.
        coarse: c; gradient descent takes the first half of its steps in coordinates whose floor is at least c R^2, and
            the other half in its own; 0 takes all steps in its own. Default 0.1 where the loss is not convex, else 0.
        level_share: fraction of mu^2 that tells how large counts are, see `planning.counts`; 0 for no such release.
            Default: by n and the budget for counts with a constant column, else 0.
        rescaling_share: fraction of mu^2 that tells scale and shift of the predictions after the inner solver, see
            `planning.shrinkage`; 0 for no such releases. Default: by n and the budget for records of two classes and
            for the squared loss with a constant column, where `share` leaves room for it, else 0.
        quantile_share: fraction of mu^2 that sets the share of targets below a quantile fit to its level after the
            inner solver, see `planning.counts`; 0 for no such releases. Default: by n and the budget for
            records with a constant column, else 0.
        rule: from the released second moment to coordinates, one class per unit and kind of target; set by `configure`.
        rescaling_clip: C of those releases, set by `configure`.
        moment_bound: R of the second moment, set by `configure`: 1 where rows have a constant 1 in them, and each is
            divided by its length there; else that of the rows.
        noise_multiplier: of the second moment; those of the other releases here follow from the shares.
    Guarantee:
        (epsilon, delta)-DP under the curator's relation, for any data. One Gaussian release of the second moment,
        sensitivity sqrt(factor) R^2 / n in the Frobenius norm for R = `moment_bound` (sqrt(2), not 2: both units' parts
        are positive semidefinite), for counts one of their magnitudes, sensitivity sqrt(factor) / n, composed with the
        releases of `inner`, and of scale and shift or a quantile's shares; everything between is post-processing. All
        noise multipliers are fixed beforehand.
    Source:
        See the module.
    """

    name: ClassVar[str] = "whitening"
    title_of: ClassVar[str] = "whitened {}"
    needs: ClassVar[tuple[Need, ...]] = (
        GeneralisedLinear(
            "whitening maps the rows of a generalised-linear loss, and this loss is the user's own"
        ),
        RidgeAtMost("the penalty is not smooth, and its proximal map is not exact in other coordinates"),
        NoSet("the projection on the constraint set is not exact in other coordinates"),
        FewFeatures(most=WIDEST),
    )

    inner: Solver = field(default_factory=GradientDescent)
    share: float = number(planning.SHARE, above=0, below=1)
    coarse: float | None = optional(at_least=0, below=math.inf)
    level_share: float | None = optional(at_least=0, below=1)
    rescaling_share: float | None = optional(at_least=0, below=1)
    quantile_share: float | None = optional(at_least=0, below=1)
    rule: WhiteningRule | UserWhiteningRule | CountsRule | UserCountsRule | None = field(
        default=None, repr=False
    )
    rescaling_clip: float | None = field(default=None)
    moment_bound: float | None = field(default=None)

    def check(self) -> None:
        """Refuse `coarse` for steps that cannot be taken in two parts, and shares that add up to 1 or more."""
        if self.coarse and not _splits_in_two(self.inner):
            raise ValueError(
                f"coarse={self.coarse!r} cuts the steps of gradient descent in two: that is for "
                "inner=GradientDescent(...) with equal shares that returns an average or its last point."
            )
        if self.coarse and self.level_share:
            raise ValueError(
                f"coarse={self.coarse!r} is for losses that are not convex, level_share={self.level_share!r} for "
                "counts: give one of them."
            )
        if self.level_share and self.rescaling_share:
            raise ValueError(
                f"level_share={self.level_share!r} is for counts, rescaling_share={self.rescaling_share!r} for two "
                "classes: give one of them."
            )
        if self.share + self._beside_shares() >= 1.0:
            raise ValueError(
                f"share={self.share!r}, level_share={self.level_share!r} and rescaling_share="
                f"{self.rescaling_share!r} leave nothing for the inner solver: let them add up to less than 1."
            )

    @property
    def makes(self) -> tuple[int, int]:
        """The inner solver's blocks and maps, one map to v, and one for each stage that corrects predictions."""
        blocks, maps = self.inner.makes
        return blocks, maps + 1 + sum(share != 0 for share in (self.rescaling_share, self.quantile_share))

    @property
    def weighs_groups(self) -> bool:
        """As the inner solver."""
        return self.inner.weighs_groups

    def event(self, public: Public) -> Event:
        """Counts' magnitudes, the second moment, the inner solver's, scale and shift, a quantile's shares; in order."""
        return self._event_around(self.inner.event(public), self.noise_multiplier)

    def scaled_event(self, public: Public, factor: float) -> Event:
        """The event with all this noise times `factor`."""
        return self._event_around(self.inner.scaled_event(public, factor), self._scaled_noise(factor))

    def _event_around(self, inner: Event, noise_multiplier: float) -> Event:
        """The event of a run, given that of the inner solver and the noise multiplier of the second moment."""
        own = [
            (each.is_first, each.noise(noise_multiplier, self.share).event())
            for each in self._beside()
            for _ in range(each.releases)
        ]
        first, last = ([event for is_first, event in own if is_first is place] for place in (True, False))
        return sequence([*first, Gaussian(noise_multiplier).event(), inner, *last])

    def filled(self, instance: Instance) -> Self:
        """The shares, the rule, and the inner solver filled for the public bounds of the whitened problem.

        Coordinates are known only after a release, so the inner solver is filled in `planned()` ones, whose typical row
        is the longest that the rule allows; `run` replaces its lengths (clip, step size) and nothing that is priced.
        """
        inner = self.inner
        if isinstance(inner, UserGradientDescent):
            # By user the rule also sets fields of the inner solver, and no release corrects the predictions.
            level_share = self.level_share
            if level_share is None or not instance.is_private:
                level_share = counts.level_share(instance, self.share)
            users_rule: UserWhiteningRule | UserCountsRule = UserWhiteningRule.of(instance, self.share)
            users = users_rule
            if level_share:
                users_rule = UserCountsRule.of(instance, self.share, level_share)
                users = users_rule.users
            inner = inner.with_(**users.fields(inner))
            inner_task = planning.inner_instance(instance, self.share, level_share)
            inner = inner.in_coordinates(users.planned()).filled(inner_task)
            bound = users.whitening.row_bound
            return self.with_(
                inner=inner,
                rule=users_rule,
                level_share=level_share,
                rescaling_share=0.0,
                quantile_share=0.0,
                moment_bound=bound,
            )
        level_share = self.level_share
        if level_share is None or not instance.is_private:
            plain = _splits_in_two(inner) and not self.coarse and not instance.public.by_user
            level_share = counts.level_share(instance, self.share) if plain else 0.0
        rescaling_share = self.rescaling_share
        if rescaling_share is None or not instance.is_private:
            rescaling_share = shrinkage.default_share(instance) if isinstance(inner, GradientDescent) else 0.0
            rescaling_share = rescaling_share if self.share + rescaling_share < 1.0 else 0.0
        quantile_share = self.quantile_share
        if quantile_share is None:
            quantile_share = counts.default_share(instance)
            quantile_share = quantile_share if self.share + quantile_share < 1.0 else 0.0
        beside = level_share + rescaling_share + quantile_share
        inner_task = planning.inner_instance(instance, self.share, beside)
        if level_share:
            rule: WhiteningRule | CountsRule = CountsRule.of(instance, self.share, level_share)
            public_rule, coarse = rule.whitening, 0.0
        else:
            rule = public_rule = WhiteningRule.of(instance, self.share, beside=beside)
            coarse = self.coarse
            if coarse is None:
                coarse = planning.coarse(instance) if _splits_in_two(inner) else 0.0
        if isinstance(inner, GradientDescent) and not inner.is_set("steps"):
            returns, constants = inner.returns, public_rule.constants
            if instance.is_private and not returns:
                returns = "corrected" if constants.corrected else constants.returns
            inner = inner.with_(steps=public_rule.steps() * (2 if coarse else 1), returns=returns)
        inner = inner.in_coordinates(public_rule.planned()).filled(inner_task)
        return self.with_(
            inner=inner,
            rule=rule,
            coarse=coarse,
            level_share=level_share,
            rescaling_share=rescaling_share,
            quantile_share=quantile_share,
            moment_bound=public_rule.row_bound,
            rescaling_clip=shrinkage.clip_for(instance, rescaling_share) if rescaling_share else None,
        )

    def configure(self, instance: Instance) -> Self:
        """Fill the fields, configure the inner solver for its part of mu^2, then scale all noise by one factor."""
        solver = self.filled(instance)
        inner_task = planning.inner_instance(instance, self.share, solver._beside_shares())
        inner = solver.inner.configure(inner_task)
        if solver.is_set("noise_multiplier"):
            return solver.with_(inner=inner)
        if not instance.is_private:
            return solver.with_(noise_multiplier=0.0, inner=inner)
        split = solver.with_(noise_multiplier=1.0 / (instance.mu * math.sqrt(self.share)), inner=inner)
        return split.to_budget(instance)

    def applicable(self, problem: Problem, public: Public) -> str | None:
        """Generalised-linear losses with a ridge or no penalty and no constraint set, on at most `WIDEST` features."""
        refused = super().applicable(problem, public)
        if refused is not None:
            return refused
        if self.level_share and counts.constant_column(problem) is None:
            return "level_share is for counts with a constant column: Problem(..., constant=...)"
        if self.level_share and not (
            _splits_in_two(self.inner) or isinstance(self.inner, UserGradientDescent)
        ):
            return f"level_share is for gradient descent, all steps alike, not for {self.inner.title}"
        if self.quantile_share and not counts.applies(problem, public):
            return "quantile_share is for records, a quantile loss and Problem(..., constant=...)"
        if self.rescaling_share and (self.weighs_groups or not shrinkage.applies(problem, public)):
            return "rescaling_share is for records of two classes, or the squared loss, and Problem(..., constant=...)"
        if not self.inner.preconditions:
            return f"{self.inner.title} does not run in other coordinates"
        return self.inner.obstacle(problem, public)

    def releases(self) -> int:
        """The number of releases in `event`."""
        return 1 + self.inner.releases() + sum(stage.releases for stage in self._beside())

    def passes(self) -> float:
        """One each for second moment and map, the inner solver's, the corrections'; magnitudes read targets alone."""
        after = sum(stage.releases for stage in self._beside() if not stage.is_first)
        return 2.0 + self.inner.passes() + after

    def matrix_seconds(self, public: Public) -> float:
        """Seconds for the second moment, its eigenvectors and the map of the rows, and the inner solver's."""
        return second_moment_seconds(public) + mapping_seconds(public) + self.inner.matrix_seconds(public)

    def forecast(self, instance: Instance) -> Forecast:
        """The excess with its range and the share, by `FITTED`; for other losses the excess of the noise alone.

        The notices are the inner solver's; for counts one more says that clip and step size are relative to the mean.
        """
        of_users = isinstance(self.inner, UserGradientDescent) and not self.level_share
        if of_users or self.weighs_groups:
            return self.inner.forecast(instance)
        notices = self.inner.forecast(instance).notices
        if self.quantile_share:
            public, ratio = instance.public, self.share / self.quantile_share
            steps = counts.steps(is_private=instance.is_private)
            noise = self.noise_multiplier * math.sqrt(ratio * steps) / public.n
            notices += counts.level_notice(instance.problem.loss, noise)
        if not instance.is_private:
            return Forecast(excess=0.0, meaning="the noise is off", notices=notices)
        if self.level_share:
            meaning = "no formula for counts: it would be relative to their mean, which is released first"
            return Forecast(excess=None, meaning=meaning, notices=(*notices, RELATIVE_TO_THE_MEAN))
        found = fitted(instance.problem.loss)
        if found is None:
            rule = WhiteningRule.of(instance, self.share)
            excess = rule.cap(rule.most_signal) ** 2 * rule.noise_excess(rule.most_signal)
            return Forecast(
                excess=instance.capped(excess), meaning="what noise alone would leave", notices=notices
            )
        noise = found.noise(instance)
        excess = instance.capped(found.excess(noise))
        indicators: dict[str, Finding] = {}
        if found.shares:
            said = expected(noise, found.spread, instance.public, instance.budget)
            indicators[IMPROVEMENT_SHARE] = Finding(1.0 / (1.0 + noise), said)
        return Forecast(
            excess=excess,
            excess_range=(excess / found.spread, instance.capped(excess * found.spread)),
            meaning=FITTED_ON,
            indicators=indicators,
            notices=notices,
        )

    def steps_in_numpy(self, problem: Problem) -> bool:
        """As its inner solver."""
        inner = self.inner
        return (
            type(self) is Whitening and isinstance(inner, GradientDescent) and inner.steps_in_numpy(problem)
        )

    def run(self, curator: Curator, problem: Problem, start: Array) -> Outcome:
        """Release the second moment, run the inner solver in its coordinates, then correct the predictions."""
        assert self.rule is not None
        public, rule = curator.public, self.rule
        counts_level, counts_stddev = None, 0.0
        if isinstance(rule, CountsRule | UserCountsRule):
            noise, query = self._noise(self._level()), TargetMagnitudes(largest=rule.largest)
            magnitudes = curator.release(query, noise)
            counts_stddev = noise.noise_multiplier * float(query.sensitivity(public))
            counts_level = counts.level(magnitudes, counts_stddev, rule.largest)
            start = rule.begin(start, counts_level)
        curator.announce("second moment of the rows")  # to the progress observer; it releases nothing
        assert self.moment_bound is not None
        moment = curator.release(SecondMoment(row_bound=self.moment_bound), Gaussian(self.noise_multiplier))
        released, inner = unpack(moment, public.d), self.inner
        usable = self._usable_units(released, public)
        if isinstance(rule, CountsRule | UserCountsRule):
            assert counts_level is not None
            there = rule.coordinates(released, counts_level, start)
            outcome = inner.in_coordinates(there).run_in(curator, problem, start, there)
            if isinstance(rule, CountsRule):
                outcome = outcome._replace(
                    params=rule.levelled(outcome.params, released, counts_level, counts_stddev)
                )
            who = "users" if public.by_user else "records"
            mean = Finding(counts_level.mean, f"of the {who}, as released before the descent")
            return outcome._replace(findings={**usable, "mean_count": mean, **outcome.findings})
        if self.coarse and isinstance(rule, WhiteningRule) and isinstance(inner, GradientDescent):
            # Less whitened first: on a loss that is not convex, fully whitened steps from 0 end in poor local minima.
            first, rough = inner.steps // 2, rule.with_floor(self.coarse).coordinates(released)
            begun = inner.with_(steps=first).in_coordinates(rough).run_in(curator, problem, start, rough)
            start, inner = begun.params, inner.with_(steps=inner.steps - first)
        there = rule.coordinates(released)
        inner = inner.in_coordinates(there)
        outcome = inner.run_in(curator, problem, start, there)
        if self.rescaling_share and isinstance(rule, WhiteningRule):
            assert self.rescaling_clip is not None
            assert isinstance(problem.loss, GLMLoss)
            path = None  # of the noise into the result
            if isinstance(inner, GradientDescent):
                path = inner.noise_path(there.inward(outcome.params), public, problem.loss, rule.ridge)
            params = rescaled(
                curator,
                problem,
                outcome.params,
                rule.rows(released),
                path=path,
                clip=self.rescaling_clip,
                noise=self._noise(self._rescaling()),
            )
            outcome = outcome._replace(params=params)
        if self.quantile_share:
            assert isinstance(problem.loss, Quantile)
            assert problem.constant is not None
            params = at_level(
                curator, problem.loss, outcome.params, problem.constant, noise=self._noise(self._quantile())
            )
            outcome = outcome._replace(params=params)
        outcome = outcome._replace(findings={**usable, **outcome.findings})
        return self._with_improvement_share(outcome, released, problem, public)

    @property
    def _divides_rows(self) -> bool:
        """Whether each row is divided by its length in the second moment, so that its trace counts usable units."""
        rule = self.rule
        if isinstance(rule, UserCountsRule):
            rule = rule.users
        if isinstance(rule, CountsRule | UserWhiteningRule):
            rule = rule.whitening
        return rule is not None and rule.divided

    def _usable_units(self, released: Array, public: Public) -> dict[str, Finding]:
        """The number of usable units by the trace of the second moment; empty where rows are not divided."""
        if not self._divides_rows:
            return {}
        return Usable.in_moment(released, self.noise_multiplier, public).findings

    def tells_usable(self, instance: Instance) -> bool:
        """Whether the second moment will tell how many units are usable: if its trace has little enough noise."""
        if not planning.divides(instance):
            return False
        return tells(
            moment_deviation(1.0 / (instance.mu * math.sqrt(self.share)), instance.public), instance.public
        )

    def indicators(self, instance: Instance) -> Mapping[str, Finding]:
        """The indicators of any solver, and the standard deviation of the number of usable units."""
        found = super().indicators(instance)
        if not self._divides_rows:
            return found
        deviation = moment_deviation(self.noise_multiplier, instance.public)
        return {**found, **announced(deviation, instance.public, "at no further price")}

    def _with_improvement_share(
        self, outcome: Outcome, released: Array, problem: Problem, public: Public
    ) -> Outcome:
        """The outcome with the improvement share by its releases; unchanged where no formula for it holds."""
        rule = self.rule
        if outcome.evidence is None or not isinstance(rule, WhiteningRule):
            return outcome
        found = improvement_share(rule, released, outcome.evidence, problem.loss, outcome.params, public)
        if found is None:
            return outcome
        said = improvement.findings(found, public, rule.budget)
        return outcome._replace(findings={**outcome.findings, **said})

    # The stages that release beside the second moment and the inner solver, and what each spends ---------------------
    def _level(self) -> Stage:
        """The magnitudes of the counts, before the second moment."""
        return Stage(self.level_share or 0.0, 1, is_first=True)

    def _rescaling(self) -> Stage:
        """The gradients by scale and shift of the predictions."""
        return Stage(self.rescaling_share or 0.0, shrinkage.STEPS)

    def _quantile(self) -> Stage:
        """The shares of targets below a quantile fit."""
        is_private = bool(self.quantile_share) and self.noise_multiplier > 0
        return Stage(self.quantile_share or 0.0, counts.steps(is_private=is_private))

    def _beside(self) -> list[Stage]:
        """Those that release something, in the order in which they run."""
        return [stage for stage in (self._level(), self._rescaling(), self._quantile()) if stage.share]

    def _beside_shares(self) -> float:
        """The share of mu^2 for all of them."""
        return (self.level_share or 0.0) + (self.rescaling_share or 0.0) + (self.quantile_share or 0.0)

    def _noise(self, stage: Stage) -> Gaussian:
        """The noise of each release of a stage."""
        return stage.noise(self.noise_multiplier, self.share)


def _splits_in_two(inner: Solver) -> bool:
    """Whether the steps of a solver may be taken in two parts: equal steps of gradient descent, no chosen iterate."""
    if not isinstance(inner, GradientDescent):
        return False
    return inner.shares == "equal" and inner.returns not in ("random", "flattest", "corrected")
