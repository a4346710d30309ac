"""A private clip: the length of gradients is asked for with a small part of the budget, then a method runs with it.

`clip="auto"` in a solver that `minimize` or `plan` is given means this front end around it.

Source: ours; the choice is that of a quantile by the exponential mechanism (Smith 2011).
"""

import math
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from privopt.curator.base import Curator
from privopt.later import Array, jax, jnp
from privopt.ledger.events import Event, GaussianEvent, NoEvent, NonPrivateEvent, Sequence, leaf_counts
from privopt.mechanisms.additive import Gaussian
from privopt.mechanisms.choice import ExponentialMechanism
from privopt.planning import descent_theory
from privopt.planning.averaging import MOST_DIRECTIONS, two_point_values
from privopt.planning.plan import Finding
from privopt.planning.task import Instance
from privopt.problems.ball import haar_block
from privopt.problems.black_box import BlackBox
from privopt.problems.losses import Loss
from privopt.problems.problem import Problem
from privopt.public import Public
from privopt.queries.base import MeanQuery
from privopt.queries.gradient_norms import NormCounts, ValueNormCounts
from privopt.result import Outcome
from privopt.solvers.base import Solver
from privopt.solvers.fields import asks_for_clip, declared, derived, number
from privopt.solvers.front_end import FilteredFrontEnd, choice_range
from privopt.solvers.gradient_descent import GradientDescent

# ---- How a budget is split around a private choice of the clip, and the lengths that are tried -------------
#
#     C_k = C_max 2^(-k / 2),  k = 0, ..., 30;  C_max = 32 guessed clips
#
# The choice has a share of rho = mu^2 / 2: with an exponential mechanism of range e it costs e^2 / 8. The clip of
# gradients is the length below which a tenth of them are at the start, where most are long: one too small costs next to
# nothing, as long as steps do not scale with it, and one too large costs noise. Estimates from values are hardly ever
# longer than a gradient can be, so most of them fit: eight tenths. Utility only.
#
# A clip that stays keeps its bias however large the budget is, so it is the chosen length times max(1, sqrt(0.01 / x)),
# x = factor sqrt(p) / (n mu), where the method does not follow the lengths of gradients itself.
SHARE = 0.05
LENGTHS = 31
WIDEST = 32.0  # guessed clips
QUANTILE, VALUE_QUANTILE = 0.1, 0.8
QUIET = 0.01  # x
# Of the units, for a length that is sqrt(2) times as long: decides where lengths have equal counts.
BONUS = 0.02


@dataclass(frozen=True, kw_only=True)
class PrivateClip(FilteredFrontEnd):
    """A charged front end: the clip is a quantile of the units' gradient norms at the start, privately chosen.

    Attributes:
        inner: the method, its clip left open; its other open fields are derived once the clip is known. All it
            releases must be Gaussian and on all units.
        share: the choice's part of the budget, a fraction of rho.
        quantile: the share of the units whose gradients, or estimates from values, are to be no longer than the clip.
        longest: the largest clip that may be chosen.
        stretch: the clip over the chosen length.
        noise_multiplier: 1 where there is noise, 0 where there is none: both parts state their own.
        choice_range: the bounded range of the choice.
        remainder: noise multiplier of the one Gaussian release that pays for everything `inner` releases.
        delta: of the budget, at which the remainder is handed to `inner`.
        planned: `inner` as it would run if the guessed clip were chosen.
    Guarantee:
        One choice by the exponential mechanism among 31 public lengths (see `NormCounts`). How often `inner` releases,
        and with which noise, may depend on it, so it runs under a Gaussian filter worth one release of multiplier
        `remainder`. The choice and that release are priced together: (epsilon, delta)-DP.
    Source:
        Ours; the choice is that of a quantile by the exponential mechanism (Smith 2011).
    """

    name: ClassVar[str] = "private-clip"
    title_of: ClassVar[str] = "privately clipped {}"
    by_values: ClassVar[bool] = True  # with an inner solver that can

    inner: Solver = field(default_factory=GradientDescent)
    share: float = number(SHARE, above=0, below=1)
    quantile: float = derived(above=0, below=1)
    delta: float = derived(at_least=0, below=1)
    longest: float = derived(above=0)
    stretch: float = derived(at_least=1)
    remainder: float = derived(at_least=0)
    choice_range: float = derived(above=0)
    planned: Solver = derived()

    def default_quantile(self, instance: Instance) -> float:
        return VALUE_QUANTILE if isinstance(instance.problem.loss, BlackBox) else QUANTILE

    def default_longest(self, instance: Instance) -> float:
        """C_max; of values as long as an estimate along one direction can be."""
        loss = instance.problem.loss
        if isinstance(loss, BlackBox):
            return (loss.high - loss.low) / (2.0 * self._inner_smoothing(instance))
        return WIDEST * descent_theory.guess(instance).slope * instance.public.row_bound

    def default_stretch(self, instance: Instance) -> float:
        """sqrt(0.01 / x) or 1, see the comment above; 1 where the method follows the lengths of gradients itself."""
        follows = hasattr(self.inner, "quantile") or isinstance(instance.problem.loss, BlackBox)
        if follows or not instance.is_private:
            return 1.0
        return max(1.0, math.sqrt(QUIET / descent_theory.relative_noise(instance)))

    def default_choice_range(self, instance: Instance) -> float:
        return choice_range(self.share, instance)

    def default_planned(self, instance: Instance) -> Solver:
        return self.configured_inner(instance.problem, instance.public, self._guessed_clip(instance))

    @property
    def choice(self) -> ExponentialMechanism:
        """The mechanism that chooses the clip."""
        return ExponentialMechanism(self.choice_range)

    def event(self, public: Public) -> Event:
        """The choice, and one release that pays for the rest."""
        del public
        return Sequence((self.choice.event(), Gaussian(self.remainder).event()))

    def scaled(self, factor: float) -> Self:
        """All noise times `factor`."""
        return super().scaled(factor).with_(choice_range=self.choice_range / factor)

    def split(self, instance: Instance) -> Self:
        """With the range of the choice and the noise of the rest."""
        return self.with_(
            noise_multiplier=1.0,
            remainder=self.default_remainder(instance),
            choice_range=self.default_choice_range(instance),
        )

    def applicable(self, problem: Problem, public: Public) -> str | None:
        """Methods that clip gradients and leave the clip open, with Gaussian releases on all units."""
        inner = self.inner
        if "clip" not in declared(type(inner)):
            return f"{inner.title} has no clip that could be chosen"
        if inner.is_set("clip"):
            return "the inner solver's clip is given: leave it open"
        if self.is_set("planned") and not _is_gaussian(self.planned.event(public)):
            return f"{inner.title} releases on samples or parts of the units, or without Gaussian noise: give its clip"
        return inner.obstacle(problem, public)

    def configured_inner(self, problem: Problem, public: Public, clip: float) -> Solver:
        """`inner` for a clip, with all the noise that the remainder can pay.

        Args:
            problem: the problem.
            public: what is public about the data.
            clip: public or released.
        """
        instance = Instance(problem, public, self.rest())
        clip = clip if instance.is_private else math.inf
        return self.inner.with_(clip=clip, noise_multiplier=None).configure(instance)

    def check_step_size(self, instance: Instance) -> None:
        """As the inner solver."""
        self.inner.check_step_size(instance)

    def loss_values(self, problem: Problem, public: Public) -> float:
        """Of a black box those of one step, and as many as with the guessed clip."""
        found = super().loss_values(problem, public)
        if not isinstance(problem.loss, BlackBox):
            return found
        directions = min(int(np.prod(problem.parameter_shape(public))), MOST_DIRECTIONS)
        return two_point_values(public, directions, 1.0) + found

    def run(self, curator: Curator, problem: Problem, start: Array) -> Outcome:
        """Choose the clip, then run the inner solver under a filter that holds the rest of the budget."""
        lengths = jnp.asarray(candidate_lengths(self.longest))
        curator.announce("lengths of gradients")
        counts = self._counts(curator, problem, start, lengths)
        index = int(curator.release(counts, self.choice))
        clip = float(lengths[index]) * self.stretch
        inner = self.configured_inner(problem, curator.public, clip)
        outcome = inner.run(curator.filtered(inner.title, Gaussian(self.remainder)), problem, start)
        what = f"about {self.quantile:.0%} of the gradients were no longer at the start"
        found = Finding(clip, what if self.stretch == 1.0 else f"{self.stretch:.3g} times a length: {what}")
        return outcome._replace(findings={"clip": found, **outcome.findings})

    def _counts(self, curator: Curator, problem: Problem, start: Array, lengths: Array) -> MeanQuery:
        """How many gradients, or estimates from values, are no longer than each length."""
        loss: Any = problem.loss
        rule: dict[str, Any] = {
            "lengths": lengths,
            "share": self.quantile,
            "bonus": jnp.asarray(_bonuses(loss)),
        }
        if not isinstance(loss, BlackBox):
            return NormCounts(loss=loss, at=start, **rule)
        key = jax.random.key(curator.public_seed("directions at the start"))
        rows = haar_block(key, min(start.size, MOST_DIRECTIONS), start.size)
        smoothing = self._inner_smoothing(Instance(problem, curator.public, self.rest()))
        return ValueNormCounts(loss=loss, at=start, directions=rows, smoothing=smoothing, **rule)

    def _inner_smoothing(self, instance: Instance) -> float:
        """r of the estimates from values that the inner solver makes."""
        inner: Any = self.inner
        if not inner.is_set("smoothing"):
            inner = inner.with_(clip=1.0, noise_multiplier=1.0).filled(instance)
        return float(inner.smoothing)

    def _guessed_clip(self, instance: Instance) -> float:
        """The clip that the plan supposes: a guess, of values a tenth of the longest."""
        if isinstance(instance.problem.loss, BlackBox):
            return 0.1 * self.longest
        return descent_theory.guess(instance).slope * instance.public.row_bound


def with_chosen_clip(solver: Solver) -> Solver:
    """The solver; one whose clip is "auto" in a `PrivateClip`."""
    if asks_for_clip("clip", getattr(solver, "clip", None)):
        return PrivateClip(inner=solver.with_(clip=None))
    return solver


def candidate_lengths(longest: float) -> NDArray[np.float64]:
    """C_0 > ... > C_30."""
    return longest * 2.0 ** (-np.arange(LENGTHS) / 2.0)


def _bonuses(loss: Loss) -> NDArray[np.float64]:
    """What is added to the scores: less for shorter lengths of gradients, of which many may be equal; else nothing."""
    each = 0.0 if isinstance(loss, BlackBox) else BONUS
    return np.asarray(-each * np.arange(LENGTHS), np.float64)


def _is_gaussian(event: Event) -> bool:
    """Whether nothing but Gaussian releases on all units makes up an event."""
    counts, parallels = leaf_counts(event)
    return not parallels and all(
        isinstance(leaf, GaussianEvent | NoEvent | NonPrivateEvent) for leaf in counts
    )
