"""Private whitening: release the second moment of the rows once, then solve in coordinates where they look alike.

Isotropic noise costs a gradient method tr(H^-1), and the columns of real tables are rarely alike. In v = B^-1 w, B the
inverse square root of the released second moment plus a floor, the loss is about equally curved in every direction.

Source:
    Amin, Dick, Kulesza, Munoz, Vassilvitskii 2019 release second moments for regression; the floor that sinks into
    ordinary clipped descent where the moment is all noise, and the clip that follows the signal, are ours.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Self

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from privopt.curator.base import Curator
from privopt.ledger.calibration import calibrate
from privopt.ledger.events import Event, sequence
from privopt.mechanisms.additive import Gaussian
from privopt.planning import counts, improvement_words, quantile_level, rescaling
from privopt.planning import whitening as planning
from privopt.planning.coordinates import RowSpectrum
from privopt.planning.counts import RELATIVE_TO_THE_MEAN, CountsRule
from privopt.planning.effort import mapping_seconds, second_moment_seconds
from privopt.planning.forecast import Forecast
from privopt.planning.improvement_share import improvement_share
from privopt.planning.improvement_words import expected
from privopt.planning.instance import Instance
from privopt.planning.plan import IMPROVEMENT_SHARE, Finding
from privopt.planning.shrinkage import NoisePath, shrinkage
from privopt.planning.usable import Usable, announced, moment_deviation, tells
from privopt.planning.user_whitening import UserCountsRule, UserWhiteningRule
from privopt.planning.whitening import WhiteningRule
from privopt.problems.losses import GLMLoss, Huber, Logistic, Loss, Quantile, SmoothedHinge, Softmax, Squared
from privopt.problems.problem import Problem
from privopt.public import Public
from privopt.queries.gradient import ClippedGradient
from privopt.queries.second_moment import SecondMoment, unpack
from privopt.queries.target_magnitudes import TargetMagnitudes
from privopt.result import Outcome
from privopt.solvers.base import Solver
from privopt.solvers.fields import number, optional
from privopt.solvers.gradient_descent import GradientDescent
from privopt.solvers.needs import FewFeatures, GeneralisedLinear, Need, NoSet, RidgeAtMost
from privopt.solvers.user_gradient_descent import UserGradientDescent

WIDEST = 2_000  # d^2 numbers are released and d^3 operations spent

# ---- What to expect of a whitened descent, from public numbers: fitted to measurements on the panel --------
# With n units of d columns, the constant included, factor 2 (replace-one) or 1, and budget mu (Gaussian DP):
#
#     noise       x = factor d / (2 kappa n mu)
#     excess      C x / (1 + x)             above the best model without privacy; C: the constant's excess, typically
#     share       1 / (1 + x)               of the achievable improvement over a constant prediction
#
# kappa, C and how far tables lie apart stand in `FITTED`, by loss; targets to predict are scaled to [-1, 1]. They were
# fitted on the half of the panel that there is to choose on (`python -m benchmarks.panel_forecast`), so that tables,
# not cells, weigh alike. Two tables with the same public numbers can differ much in how far the optimum is and in how
# many directions carry it, and no public number tells which; so the prediction is a range.
FITTED_ON = "fitted on other tables; about eight of ten end in this range"


@dataclass(frozen=True, kw_only=True)
class Fitted:
    """What was fitted for a loss.

    Attributes:
        learnable: C, units of the loss.
        signal: kappa.
        spread: the range is the excess divided by this to the excess times this.
        shares: whether its share holds well enough to be said.
    """

    learnable: float
    signal: float
    spread: float
    shares: bool = True

    def noise(self, instance: Instance) -> float:
        """x."""
        public = instance.public
        return public.relation.factor * public.d / (2.0 * self.signal * public.n * instance.mu)

    def excess(self, noise: float) -> float:
        """C x / (1 + x)."""
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
    """What was fitted for a loss; None where nothing was."""
    return FITTED.get(type(loss))


@dataclass(frozen=True, kw_only=True)
class Whitening(Solver):
    """A charged front end: one noisy second moment, then any solver that runs in other coordinates.

    Attributes:
        inner: the solver; its steps, clip and step size are derived for the whitened problem where left open.
        share: fraction of mu^2 (Gaussian DP) that the second moment may spend.
        coarse: c; gradient descent takes the first half of its steps in coordinates whose floor is at least c R^2, and
            goes on from there in its own; 0 for none. Default 0.1 where the loss is not convex, else 0.
        level_share: fraction of mu^2 that tells how large counts are, see `planning.counts`; 0 for no such release.
            Default: by n and the budget for counts with a constant column, else 0.
        rescaling_share: fraction of mu^2 that tells scale and shift of the predictions after the inner solver, see
            `planning.rescaling`; 0 for no such releases. Default: by n and the budget for records of two classes and
            for the squared loss with a constant column, where `share` leaves room for it, else 0.
        quantile_share: fraction of mu^2 that sets the share of targets below a quantile fit to its level after the
            inner solver, see `planning.quantile_level`; 0 for no such releases. Default: by n and the budget for
            records with a constant column, else 0.
        rule: how the coordinates follow from the released second moment, set by `configure`.
        rescaling_clip: C of those releases, set by `configure`.
        moment_bound: R of the second moment, set by `configure`: 1 where rows have a constant 1 in them, and each is
            divided by its length there; else that of the rows.
        noise_multiplier: of the second moment; those of the other releases here follow from the shares.
    Guarantee:
        One Gaussian release of the second moment, sensitivity sqrt(factor) R^2 / n in the Frobenius norm for
        R = `moment_bound`, for counts one of their magnitudes, sensitivity sqrt(factor) / n, composed with the releases
        of `inner`, and of scale and shift or a quantile's shares; everything between is post-processing. All noise
        multipliers are fixed beforehand.
    Source:
        See the module.
    """

    name: ClassVar[str] = "whitening"
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
        """Only steps that are all alike can be cut in two."""
        if self.coarse and not _can_be_cut(self.inner):
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
        if self.share + self._beside() >= 1.0:
            raise ValueError(
                f"share={self.share!r}, level_share={self.level_share!r} and rescaling_share="
                f"{self.rescaling_share!r} leave nothing for the inner solver: let them add up to less than 1."
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
    def makes(self) -> tuple[int, int]:
        """The inner solver's, of a map of the rows; scale and shift, and a quantile's level, map them again."""
        blocks, maps = self.inner.makes
        return blocks, maps + 1 + sum(share != 0 for share in (self.rescaling_share, self.quantile_share))

    @property
    def rests_on_convexity(self) -> str:
        """As the inner solver."""
        return self.inner.rests_on_convexity

    @property
    def weighs_groups(self) -> bool:
        """As the inner solver."""
        return self.inner.weighs_groups

    def event(self, public: Public) -> Event:
        """The counts' magnitudes if there are any, the second moment, the inner solver's, scale and shift."""
        first = [self._level_noise().event()] if self.level_share else []
        last = [self._rescaling_noise().event()] * rescaling.STEPS if self.rescaling_share else []
        if self.quantile_share:
            last += [self._quantile_noise().event()] * self._quantile_steps()
        return sequence([*first, Gaussian(self.noise_multiplier).event(), self.inner.event(public), *last])

    def scaled(self, factor: float) -> Self:
        """All noise times `factor`."""
        return super().scaled(factor).with_(inner=self.inner.scaled(factor))

    def filled(self, instance: Instance) -> Self:
        """The rule, and the inner solver's own settings for a problem of those lengths."""
        inner = self.inner
        if isinstance(inner, UserGradientDescent):
            level_share = self.level_share
            if level_share is None or not instance.is_private:
                level_share = counts.level_share(instance, self.share)
            users_rule: UserWhiteningRule | UserCountsRule = UserWhiteningRule.of(instance, self.share)
            users = users_rule
            if level_share:
                users_rule = UserCountsRule.of(instance, self.share, level_share)
                users = users_rule.users
            inner = inner.with_(**users.fields(inner))
            rest = planning.inner_instance(instance, self.share, level_share)
            inner = inner.in_coordinates(users.planned()).filled(rest)
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
            plain = _can_be_cut(inner) and not self.coarse and not instance.public.by_user
            level_share = counts.level_share(instance, self.share) if plain else 0.0
        rescaling_share = self.rescaling_share
        if rescaling_share is None or not instance.is_private:
            rescaling_share = rescaling.default_share(instance) if isinstance(inner, GradientDescent) else 0.0
            rescaling_share = rescaling_share if self.share + rescaling_share < 1.0 else 0.0
        quantile_share = self.quantile_share
        if quantile_share is None:
            quantile_share = quantile_level.default_share(instance)
            quantile_share = quantile_share if self.share + quantile_share < 1.0 else 0.0
        beside = level_share + rescaling_share + quantile_share
        rest = planning.inner_instance(instance, self.share, beside)
        if level_share:
            rule: WhiteningRule | CountsRule = CountsRule.of(instance, self.share, level_share)
            public_rule, coarse = rule.whitening, 0.0
        else:
            rule = public_rule = WhiteningRule.of(instance, self.share, beside=beside)
            coarse = self.coarse
            if coarse is None:
                coarse = planning.coarse(instance) if _can_be_cut(inner) else 0.0
        if isinstance(inner, GradientDescent) and not inner.is_set("steps"):
            inner = inner.with_(steps=public_rule.steps() * (2 if coarse else 1))
            if instance.is_private and not inner.is_set("returns"):
                constants = public_rule.constants
                inner = inner.with_(returns="corrected" if constants.corrected else constants.returns)
        inner = inner.in_coordinates(public_rule.planned()).filled(rest)
        return self.with_(
            inner=inner,
            rule=rule,
            coarse=coarse,
            level_share=level_share,
            rescaling_share=rescaling_share,
            quantile_share=quantile_share,
            moment_bound=public_rule.row_bound,
            rescaling_clip=rescaling.clip_for(instance, rescaling_share) if rescaling_share else None,
        )

    def configure(self, instance: Instance) -> Self:
        """Derive what was left open; split the budget and calibrate both parts together."""
        solver = self.filled(instance)
        if solver.is_set("noise_multiplier"):
            return solver
        rest = planning.inner_instance(instance, self.share, solver._beside())
        inner = solver.inner.configure(rest)
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
        refused = super().applicable(problem, public)
        if refused is not None:
            return refused
        if self.level_share and counts.constant_column(problem) is None:
            return "level_share is for counts with a constant column: Problem(..., constant=...)"
        if self.level_share and not (_can_be_cut(self.inner) or isinstance(self.inner, UserGradientDescent)):
            return f"level_share is for gradient descent, all steps alike, not for {self.inner.title}"
        if self.quantile_share and not quantile_level.applies(problem, public):
            return "quantile_share is for records, a quantile loss and Problem(..., constant=...)"
        if self.rescaling_share and (self.weighs_groups or not rescaling.applies(problem, public)):
            return "rescaling_share is for records of two classes, or the squared loss, and Problem(..., constant=...)"
        if not self.inner.preconditions:
            return f"{self.inner.title} does not run in other coordinates"
        return self.inner.obstacle(problem, public)

    def releases(self) -> int:
        """The counts' magnitudes if there are any, the second moment, the inner solver's, scale and shift."""
        return (2 if self.level_share else 1) + self.inner.releases() + self._last_releases()

    def passes(self) -> float:
        """The second moment, the map of the rows, and the inner solver's; the magnitudes ask for targets alone."""
        return 2.0 + self.inner.passes() + self._last_releases()

    def matrix_seconds(self, public: Public) -> float:
        """The second moment, its eigenvectors and the map of the rows, beside the inner solver's."""
        return second_moment_seconds(public) + mapping_seconds(public) + self.inner.matrix_seconds(public)

    def forecast(self, instance: Instance) -> Forecast:
        """The range of the excess and the expected share; of other losses what noise leaves at the rule's clip.

        The notices are those of the inner solver, for counts with what the planned clip and step size are relative to.
        """
        of_users = isinstance(self.inner, UserGradientDescent) and not self.level_share
        if of_users or self.weighs_groups:
            return self.inner.forecast(instance)
        notices = self.inner.forecast(instance).notices
        if self.quantile_share:
            public, ratio = instance.public, self.share / self.quantile_share
            steps = quantile_level.steps(is_private=instance.is_private)
            noise = self.noise_multiplier * math.sqrt(ratio * steps) / public.n
            notices += quantile_level.level_notice(instance.problem.loss, noise)
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

    def run(self, curator: Curator, problem: Problem, start: Array) -> Outcome:
        """Release the second moment, change coordinates, run the inner solver there."""
        assert self.rule is not None
        public, rule = curator.public, self.rule
        found, stddev = None, 0.0
        if isinstance(rule, CountsRule | UserCountsRule):
            noise, query = self._level_noise(), TargetMagnitudes(largest=rule.largest)
            magnitudes = curator.release(query, noise)
            stddev = noise.noise_multiplier * float(query.sensitivity(public))
            found = counts.level(magnitudes, stddev, rule.largest)
            start = rule.begin(start, found)
        curator.announce("second moment of the rows")
        assert self.moment_bound is not None
        moment = curator.release(SecondMoment(row_bound=self.moment_bound), Gaussian(self.noise_multiplier))
        released, inner = unpack(moment, public.d), self.inner
        usable = self._usable(released, public)
        if isinstance(rule, CountsRule | UserCountsRule):
            assert found is not None
            outcome = inner.run_in(curator, problem, start, rule.coordinates(released, found, start))
            if isinstance(rule, CountsRule):
                outcome = outcome._replace(params=rule.levelled(outcome.params, released, found, stddev))
            who = "users" if public.by_user else "records"
            mean = Finding(found.mean, f"of the {who}, as released before the descent")
            return outcome._replace(findings={**usable, "mean_count": mean, **outcome.findings})
        if self.coarse and isinstance(rule, WhiteningRule) and isinstance(inner, GradientDescent):
            first, rough = inner.steps // 2, rule.with_floor(self.coarse)
            begun = inner.with_(steps=first).run_in(curator, problem, start, rough.coordinates(released))
            start, inner = begun.params, inner.with_(steps=inner.steps - first)
        outcome = inner.run_in(curator, problem, start, rule.coordinates(released))
        if self.rescaling_share and isinstance(rule, WhiteningRule):
            assert self.rescaling_clip is not None
            assert isinstance(problem.loss, GLMLoss)
            path, coordinates = None, rule.coordinates(released)
            if isinstance(inner, GradientDescent):
                inward = coordinates.inward(outcome.params)
                path = inner.in_coordinates(coordinates).noise_path(inward, public, problem.loss, rule.ridge)
            params = rescaled(
                curator,
                problem,
                outcome.params,
                rule.rows(released),
                path=path,
                clip=self.rescaling_clip,
                noise=self._rescaling_noise(),
            )
            outcome = outcome._replace(params=params)
        if self.quantile_share:
            assert isinstance(problem.loss, Quantile)
            assert problem.constant is not None
            params = at_level(
                curator, problem.loss, outcome.params, problem.constant, noise=self._quantile_noise()
            )
            outcome = outcome._replace(params=params)
        outcome = outcome._replace(findings={**usable, **outcome.findings})
        return self._telling(outcome, released, problem, public)

    @property
    def _divides(self) -> bool:
        """Whether rows enter the second moment divided by their length."""
        rule = self.rule
        if isinstance(rule, UserCountsRule):
            rule = rule.users
        if isinstance(rule, CountsRule | UserWhiteningRule):
            rule = rule.whitening
        return rule is not None and rule.divided

    def _usable(self, released: Array, public: Public) -> dict[str, Finding]:
        """How many units the second moment says are usable; nothing where rows enter it as they are."""
        if not self._divides:
            return {}
        return Usable.in_moment(released, self.noise_multiplier, public).findings

    def tells_usable(self, instance: Instance) -> bool:
        """Whether the trace of its second moment does."""
        if not planning.divides(instance):
            return False
        return tells(
            moment_deviation(1.0 / (instance.mu * math.sqrt(self.share)), instance.public), instance.public
        )

    def indicators(self, instance: Instance) -> Mapping[str, Finding]:
        """As of any solver, and how exactly the number of usable units will be known."""
        found = super().indicators(instance)
        if not self._divides:
            return found
        deviation = moment_deviation(self.noise_multiplier, instance.public)
        return {**found, **announced(deviation, instance.public, "at no further price")}

    def _telling(self, outcome: Outcome, released: Array, problem: Problem, public: Public) -> Outcome:
        """With the share of the achievable improvement that the releases tell, for losses where that holds."""
        rule = self.rule
        if outcome.evidence is None or not isinstance(rule, WhiteningRule):
            return outcome
        found = improvement_share(rule, released, outcome.evidence, problem.loss, outcome.params, public)
        if found is None:
            return outcome
        said = improvement_words.findings(found, public, rule.budget)
        return outcome._replace(findings={**outcome.findings, **said})

    def _beside(self) -> float:
        """The share of mu^2 for neither the second moment nor the inner solver."""
        return (self.level_share or 0.0) + (self.rescaling_share or 0.0) + (self.quantile_share or 0.0)

    def _last_releases(self) -> int:
        """How many there are after the inner solver's."""
        shares = self._quantile_steps() if self.quantile_share else 0
        return shares + (rescaling.STEPS if self.rescaling_share else 0)

    def _quantile_steps(self) -> int:
        """How many shares of targets are released."""
        return quantile_level.steps(is_private=self.noise_multiplier > 0)

    def _quantile_noise(self) -> Gaussian:
        """That of each share of the targets."""
        assert self.quantile_share
        factor = self.share / self.quantile_share * self._quantile_steps()
        return Gaussian(self.noise_multiplier * math.sqrt(factor))

    def _rescaling_noise(self) -> Gaussian:
        """That of each gradient by scale and shift."""
        assert self.rescaling_share
        factor = self.share / self.rescaling_share * rescaling.STEPS
        return Gaussian(self.noise_multiplier * math.sqrt(factor))

    def _level_noise(self) -> Gaussian:
        """That of the counts' magnitudes, whose noise is to the second moment's as the shares say."""
        assert self.level_share
        return Gaussian(self.noise_multiplier * math.sqrt(self.share / self.level_share))


def _can_be_cut(inner: Solver) -> bool:
    """Whether the steps of a solver may be taken in two parts: gradient descent, all steps alike."""
    if not isinstance(inner, GradientDescent):
        return False
    return inner.shares == "equal" and inner.returns not in ("random", "flattest", "corrected")


# ---- The intercept of a quantile fit at which the share of targets below it is its level -------------------
# The rows are mapped to two columns, one that is a released result's prediction and one of ones, so every release is a
# clipped gradient like any other; see `planning.quantile_level`.
def at_level(curator: Curator, loss: Quantile, params: Array, constant: int, *, noise: Gaussian) -> Array:
    """The parameters with the intercept moved, (d,).

    Args:
        curator: answers K gradients of two entries.
        loss: the pinball loss that was minimised, with its corner made smooth; here it has its corner.
        params: the result, released.
        constant: the number of the column of ones.
        noise: of each of the gradients.
    """
    found = np.nan_to_num(np.asarray(params, np.float64))
    longest = curator.public.row_bound * max(float(np.linalg.norm(found)), 1e-3)
    # The first column, a prediction times this, adds nothing to a length of 1.
    thin = quantile_level.THIN / longest
    basis = np.zeros((len(found), 2))
    basis[:, 0], basis[constant, 1] = thin * found, 1.0
    corner = Quantile(loss.level)
    clip = corner.facts.lipschitz * math.hypot(1.0, quantile_level.THIN) * (1.0 + 1e-6)
    curator.announce("level of the quantile")
    view = curator.view(basis, curator.public.row_bound * float(np.linalg.norm(basis)) * (1.0 + 1e-6))
    low, high = -quantile_level.FARTHEST, quantile_level.FARTHEST
    for _ in range(quantile_level.steps(is_private=noise.noise_multiplier > 0)):
        at = jnp.asarray([1.0 / thin, 0.5 * (low + high)])
        slope = view.release(ClippedGradient(loss=corner, at=at, clip=clip), noise)[1]
        low, high = quantile_level.halved(low, high, float(slope))
    found[constant] += 0.5 * (low + high)
    return jnp.asarray(found)


# ---- Scale and shift of a result's predictions, learnt from gradients by these two numbers alone -----------
# The rows are mapped to two columns that follow from the result and the released second moment, so every release is a
# clipped gradient like any other; see `planning.rescaling` for what is made of them.
def rescaled(
    curator: Curator,
    problem: Problem,
    params: Array,
    rows: RowSpectrum,
    *,
    path: NoisePath | None,
    clip: float,
    noise: Gaussian,
) -> Array:
    """The parameters with their predictions scaled and shifted, (d,).

    Args:
        curator: answers `rescaling.STEPS` gradients of two entries.
        problem: of a generalised linear loss, with a ridge or no penalty.
        params: the result, released.
        rows: the spectrum of the released second moment.
        path: of the noise of the descent that found them; None if it is not known, then nothing is shrunk.
        clip: C of the gradients, public.
        noise: of each of them.
    """
    loss, columns = problem.loss, rescaling.two_columns(rows, params)
    assert isinstance(loss, GLMLoss)
    kept = 1.0 if path is None else shrinkage(path, columns.found, loss)
    basis = jnp.asarray(columns.basis)
    ridge = basis.T @ problem.regulariser.gradient(basis)
    estimate = rescaling.Estimate.before(columns.found, kept, loss, np.asarray(ridge, np.float64))
    longest = curator.public.row_bound * float(np.linalg.norm(columns.basis)) * (1.0 + 1e-6)
    curator.announce("scale and shift of the predictions")
    view = curator.view(columns.basis, longest)
    for _ in range(rescaling.STEPS):
        query = ClippedGradient(
            loss=loss,
            at=jnp.asarray(estimate.theta),
            clip=clip,
            balanced=rescaling.constants_of(loss).two_classes,
        )
        gradient = view.release(query, noise)
        deviation = noise.noise_multiplier * float(query.sensitivity(view.public))
        estimate = estimate.after(gradient, deviation)
    return jnp.asarray(columns.basis @ estimate.theta)
