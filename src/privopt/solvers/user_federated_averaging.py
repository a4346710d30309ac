"""Federated averaging of users' models: each user walks over their own records, the mean of their moves is released.

For few users with many records each. How far a user's pass moves the model is bounded by the curvature of their own
data (it stops at their own optimum), while a clipped gradient keeps pushing in flat directions.

Source:
    McMahan, Ramage, Talwar, Zhang 2018, Algorithm 1 (DP-FedAvg). The clip at a released median, bisected, and every
    constant are ours.
"""

import math
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Literal, NamedTuple, Self

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from privopt.curator.base import Curator
from privopt.curator.handles import Held
from privopt.ledger.events import Event, repeat, sequence
from privopt.mechanisms.additive import Gaussian
from privopt.mechanisms.gaussian_test import GaussianTest
from privopt.planning import user_federated_averaging as planning
from privopt.planning.averaging import Average, mixing_ratios
from privopt.planning.effort import RELEASE_SECONDS
from privopt.planning.forecast import Forecast
from privopt.planning.instance import Instance
from privopt.planning.plan import Finding
from privopt.planning.users import require_workable
from privopt.problems.constraints import Constraint
from privopt.problems.problem import Problem
from privopt.public import Public, Relation
from privopt.queries.held_count import HeldCount
from privopt.queries.local_pass import LocalPass
from privopt.result import Outcome, ending
from privopt.solvers.base import Defaults, Solver
from privopt.solvers.fields import choice, derived, number
from privopt.solvers.guarded import guarded
from privopt.solvers.held_means import ClippedMean, PrivateMean, StableMean
from privopt.status import Status


class FederatedState(NamedTuple):
    """Where the averaging stands; every entry is a function of released values."""

    params: Float[Array, " *shape"]  # w_t
    average: Float[Array, " *shape"]  # running average of w
    finite: Bool[Array, ""]  # whether every entry so far was; from the first that was not, nothing moves


@dataclass(frozen=True, kw_only=True)
class UserFederatedAveraging(Solver):
    """Rounds of local passes: the mean of users' clipped moves, released with Gaussian noise.

        y_j <- a pass of proximal gradient steps over user j's records, from w           (kept by the curator)
        c   <- a released quantile of |y_j - w|, by noisy bisection
        w   <- P( w + (1/n) sum_j clip_c(y_j - w) + noise )

    Objective: penalty and set are part of every local step. A user with k records takes k steps, so while passes are
    short the mean move is along -sum_j k_j (grad F_j + grad r), F_j the user's mean loss: the objective is the loss per
    *record*, whatever the data's `user_weighting`. Where a pass comes near the user's own optimum, or is clipped, a
    long history counts no more than a short one, and the fixed point lies between that of the loss per record and that
    of the loss per user. With users who differ it is no minimiser of either, even without noise.

    Attributes:
        rounds: P, at least 0; 0 returns the start and spends nothing.
        step_size: eta of the first round's local steps, in params^2 / objective units.
        decay: each round's local steps are this much shorter than those of the round before.
        quantile: q, the share of users' moves that the clip tends to leave unchanged; at 1 the clip is `longest`, and
            no counts are released.
        longest: the longest move that the first clip may be, in units of the parameters.
        span: the shortest first clip is `longest / span`.
        first_counts: bisections of the logarithm of the clip in the first round.
        later_counts: bisections in each later round, between a quarter and twice the clip before.
        count_share: part of mu^2 that all counts share.
        aggregator: "clip", or "stable": the Huber centre that users share, released behind a test that most moves are
            close to each other, at c; where the test fails, the clipped mean.
        outliers: of "stable", the fraction of users whose moves may be far from the others'.
        test_share: of "stable", part of a round's mu^2 beside the counts that its test has.
        bad_event_delta: of "stable", the probability that a round's test passes where it must not; added to delta.
        returns: which average of w_1 .. w_P, see `mixing_ratios`.
        noise_multiplier: of each round's mean.
    Guarantee:
        P Gaussian releases of sensitivity factor c_t / n, c_t a function of earlier releases, and the counts, of
        sensitivity 1; with "stable" also P tests, see `StableMean`: (epsilon, delta)-DP for everything that a user
        owns, under the curator's relation, for any data, any loss and any local steps. Local models stay with the
        curator.
    Differs from the paper:
        every user takes part in every round; the clip follows a private median; the mean is over the public n.
    Source:
        See the module.
    """

    name: ClassVar[str] = "user-federated-averaging"
    made_for_users: ClassVar[bool] = True
    defaults: ClassVar[Defaults] = planning.DEFAULTS

    rounds: int = number(planning.ROUNDS, at_least=0)
    step_size: float = derived(above=0)
    decay: float = number(planning.DECAY, above=0, at_most=1)
    quantile: float = derived(above=0, at_most=1)
    longest: float = derived(above=0, below=math.inf)
    span: float = number(planning.SPAN, above=1, below=math.inf)
    first_counts: int = number(planning.FIRST_COUNTS, at_least=1)
    later_counts: int = number(planning.LATER_COUNTS, at_least=0)
    count_share: float = number(planning.COUNT_SHARE, above=0, below=1)
    returns: Average = choice("last")
    aggregator: Literal["clip", "stable"] = choice("clip")
    outliers: float = number(planning.OUTLIERS, at_least=0, below=0.5)
    test_share: float = derived(at_least=0, below=1)
    bad_event_delta: float = derived(at_least=0, below=1)

    def applicable(self, problem: Problem, public: Public) -> str | None:
        """Users who may have several records, whatever the loss."""
        del problem
        if not public.by_user:
            return "a unit is a record, and a pass over one record is a gradient step: use gradient descent"
        if public.records_per_unit == 1:
            return (
                "at most one record a user is used, and a pass over one record is a gradient step: use user-level "
                "gradient descent"
            )
        return None

    def filled(self, instance: Instance) -> Self:
        """Every field but the noise from public numbers.

        Raises:
            BudgetTooSmall: so few users that the noise of one mean drowns them.
        """
        if not self.is_set("noise_multiplier"):
            require_workable(instance)
        return super().filled(instance)

    def configure(self, instance: Instance) -> Self:
        """See `Solver.configure`.

        Raises:
            BudgetTooSmall: too few users, for the noise or for the test of the stable aggregator.
        """
        solver, public = super().configure(instance), instance.public
        if solver.rounds:
            solver.mean(1.0).check(public.n, replaced=public.relation is Relation.REPLACE_ONE)
        return solver

    def mean(self, clip: float) -> PrivateMean:
        """The mean of a round at this clip."""
        noise = Gaussian(self.noise_multiplier)
        if self.aggregator == "clip":
            return ClippedMean(radius=clip, noise=noise)
        test = self.noise_multiplier * math.sqrt((1.0 - self.test_share) / self.test_share)
        return StableMean(
            spread=clip,
            test=GaussianTest(test, bad_event_delta=self.bad_event_delta),
            noise=noise,
            outliers=self.outliers,
            fallback=clip,
        )

    def counts(self) -> int:
        """How many counts are released in all rounds."""
        if self.quantile == 1.0 or self.rounds == 0:
            return 0
        return self.first_counts + self.later_counts * (self.rounds - 1)

    def count_noise(self) -> Gaussian:
        """A count's noise, where all counts have their share of mu^2 beside P means of multiplier z."""
        kept = 1.0 if self.aggregator == "clip" else 1.0 - self.test_share
        ratio = kept * (1.0 - self.count_share) * self.counts() / (self.count_share * self.rounds)
        return Gaussian(self.noise_multiplier * math.sqrt(ratio))

    def event(self, public: Public) -> Event:
        """The means and the counts."""
        del public
        means = [repeat(self.mean(1.0).event(), self.rounds)]
        return sequence(
            [*means, repeat(self.count_noise().event(), self.counts())] if self.counts() else means
        )

    def releases(self) -> int:
        """One mean a round, its test, and the counts."""
        return self.rounds * (1 if self.aggregator == "clip" else 2) + self.counts()

    def passes(self) -> float:
        """One a round: a count reads the kept moves."""
        return float(self.rounds)

    def held_numbers(self, problem: Problem, public: Public) -> int:
        """A move of every user."""
        return public.n * math.prod(problem.parameter_shape(public))

    def seconds(self, problem: Problem, public: Public) -> float:
        """Local steps are slower than a pass of gradients, since each waits for the one before."""
        work = planning.pass_seconds(problem, public) * self.rounds
        reading = planning.reading_seconds(problem, public) * self.releases()
        return work + reading + self.releases() * RELEASE_SECONDS

    def longest_step(self, instance: Instance) -> float:
        """Of local gradient steps."""
        return self.gradient_limit(instance)

    def forecast(self, instance: Instance) -> Forecast:
        return planning.forecast(self, instance)

    def run(self, curator: Curator, problem: Problem, start: Array) -> Outcome:
        """Rounds of local passes, counts and a mean, spec section 4.2."""
        state = FederatedState(params=start, average=start, finite=jnp.asarray(True))
        clip, centre, fallen = self.longest, jnp.zeros(start.size), 0
        for turn, ratio in enumerate(mixing_ratios(self.returns, self.rounds)):
            local = LocalPass(
                loss=problem.loss,
                regulariser=problem.regulariser,
                constraint=problem.constraint,
                at=state.params,
                step_size=self.step_size * self.decay**turn,
                clip=math.inf,
                shuffle=turn,
            )
            moves = curator.hold(local)
            clip = self._clip(curator, moves, centre, turn, clip)
            mean = self.mean(clip).release(curator, moves, centre)
            fallen += mean.status is Status.FELL_BACK
            state = _step(state, mean.value, ratio=float(ratio), constraint=problem.constraint)
        found = {"clip": Finding(clip, "the last clip of users' moves, in units of the parameters")}
        if self.aggregator == "stable":
            found["fallbacks"] = Finding(float(fallen), "rounds whose test failed, and took the clipped mean")
        status = ending(state.finite)
        if fallen and status is Status.FINISHED:
            status = Status.FELL_BACK
        return Outcome(state.average, status, findings=found)

    def _clip(self, curator: Curator, moves: Held, centre: Array, turn: int, before: float) -> float:
        """The quantile of the moves' lengths, by bisection of its logarithm with noisy counts."""
        if self.quantile == 1.0:
            return self.longest
        low, high = (self.longest / self.span, self.longest) if turn == 0 else (before / 4.0, before * 2.0)
        noise, wanted = self.count_noise(), self.quantile * moves.points
        for _ in range(self.first_counts if turn == 0 else self.later_counts):
            middle = math.sqrt(low * high)
            inside = HeldCount(held=moves, centre=centre, radius=middle)
            if float(curator.release(inside, noise)) >= wanted:
                high = middle
            else:
                low = middle
        return math.sqrt(low * high) if turn == 0 or self.later_counts else before


@partial(jax.jit, static_argnames="constraint")
@guarded
def _step(
    state: FederatedState, released: Float[Array, " k"], *, ratio: float, constraint: Constraint
) -> FederatedState:
    """One round after its release."""
    params = constraint.project(state.params + jnp.reshape(released, state.params.shape))
    return FederatedState(
        params=params, average=state.average + ratio * (params - state.average), finite=state.finite
    )
