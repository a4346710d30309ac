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

from privopt.curator.base import Curator
from privopt.curator.handles import Held
from privopt.later import Array, Bool, Float, jax, jnp
from privopt.ledger.events import Event, repeat, sequence
from privopt.mechanisms.additive import Gaussian
from privopt.mechanisms.tests import GaussianTest
from privopt.planning import averaging, descent_theory, stable_mean
from privopt.planning.averaging import RELEASE_SECONDS, Average, mixing_ratios
from privopt.planning.notices import NOISE_IS_OFF, large_delta, long_steps
from privopt.planning.plan import Finding
from privopt.planning.task import Forecast, Instance
from privopt.planning.users import faint_users, one_shot_noise, require_workable
from privopt.problems.constraints import Constraint
from privopt.problems.glm import GLMLoss
from privopt.problems.problem import Problem
from privopt.public import Public, Relation
from privopt.queries.lots import LocalPass
from privopt.queries.scores import HeldCount
from privopt.result import Outcome, ending
from privopt.solvers.base import Solver
from privopt.solvers.fields import choice, derived, guarded, number
from privopt.solvers.held_means import ClippedMean, PrivateMean, StableMean
from privopt.solvers.needs import Need, Users
from privopt.status import Status

# ---- Constants of federated averaging from public numbers --------------------------------------------------
# With n users, p parameters, rows of norm at most R, budget mu (Gaussian DP) and s = 2 (replace-one) or 1:
#
#     rounds         P = 12
#     local steps    eta_t = 0.9^t / (L + l), L the largest curvature of a record's loss, l that of the penalty. A step
#                    is stable up to 2 / (L + l)
#     first clip     between 10^-3 and 10 times sqrt(d) / R: parameters of columns of about standard deviation 1 are
#                    about 1 long; of a user-written loss, times 1
#     quantile       q = 1/2; with the noise off everything is kept
#                    with the stable aggregator 0.9, since c is then a radius that nearly all moves share
#     budget         90 % of mu^2 for the means, 10 % for all counts
#
# P, the first step size and its decay were chosen by the excess of logistic regression (epsilon 1) on generated users:
# 300 x 300, 1000 x 100 (all alike, or each with an optimum of their own) and 500 x 30 records of 20 columns, and 800
# users with a median of 36 records of 41 columns. With 6 rounds and half the step, always the same, it was 1.2 to 6
# times as large. The forecast is 0.3 times `noise_excess`, and 0.0015 times the loss at zero: on the same data, epsilon
# 1 and 3, it was off by factors of 0.4 to 2.4, and by more where nothing was left to be lost. All of it concerns
# utility only.
#
# Source:
#     Lowy, Liu, Asi 2024, for the setting; the rule when to use it, and the formula of the noise, are ours.
ROUNDS = 12
DECAY = 0.9
QUANTILE, STABLE_QUANTILE = 0.5, 0.9
OUTLIERS, TEST_SHARE = 0.2, 0.3
FIRST_COUNTS, LATER_COUNTS = 10, 5
COUNT_SHARE = 0.1
LONGEST, SPAN = 10.0, 1e4
ENOUGH_RECORDS, FEW_USERS = 20.0, 0.04
FOR_CORNERS, FOR_CORNERS_OF_FEW = 8.0, 3.0  # records a parameter
DISTANCE = 3.0  # D times R: predictions of the optimum
LEFT_BY_ROUNDS = 0.3  # of the noise of all means
LEFT_BY_DRIFT = 0.0015  # of the loss at zero, by users' optima that pull apart and by rounds that are too few
SEQUENTIAL = 3.0  # time of a local step over that of a record in a pass of gradients


def step_size(instance: Instance) -> float:
    """eta of the first round."""
    return 1.0 / (descent_theory.smoothness(instance) + instance.penalty_smoothness)


def longest(instance: Instance) -> float:
    """The longest first clip."""
    if instance.has_own_loss:
        return LONGEST
    return LONGEST * math.sqrt(instance.public.d) / instance.public.row_bound


def wins(instance: Instance) -> bool:
    """Whether averaging local passes is expected to be better than descent on users' gradients, by public numbers.

    It takes many records a user, for a pass to lead anywhere, and few users: the noise of one mean that the whole
    budget buys is at least 4 % of the longest contribution. On a loss with corners, where every record moves the
    parameters as far as the last, a pass takes eight records a parameter, or three of few users, and then serves any
    number of users; by the median of generated users with 4 to 30 columns at epsilon 0.3 to 3.
    """
    public = instance.public
    if not (public.by_user and instance.is_private and public.typical_records >= ENOUGH_RECORDS):
        return False
    few = one_shot_noise(instance) >= FEW_USERS
    if has_corners(instance):
        wanted = FOR_CORNERS_OF_FEW if few else FOR_CORNERS
        return public.typical_records >= wanted * instance.parameters
    return few


def has_corners(instance: Instance) -> bool:
    """Whether it is a convex generalised-linear loss of infinite curvature."""
    loss = instance.problem.loss
    return bool(loss.convex) and not instance.has_own_loss and math.isinf(loss.curvature)


def pass_seconds(problem: Problem, public: Public) -> float:
    """Rough time of one round of local passes."""
    own = None if isinstance(problem.loss, GLMLoss) else math.prod(problem.parameter_shape(public))
    return SEQUENTIAL * averaging.pass_seconds(public, problem.loss.outputs, own=own)


def reading_seconds(problem: Problem, public: Public) -> float:
    """Rough time of reading every user's kept move once."""
    return public.n * math.prod(problem.parameter_shape(public)) * 8 * 8 * averaging.BYTE_SECONDS


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
    needs: ClassVar[tuple[Need, ...]] = (
        Users("a unit is a record, and a pass over one record is a gradient step: use gradient descent"),
    )
    made_for_users: ClassVar[bool] = True

    rounds: int = number(ROUNDS, at_least=0)
    step_size: float = derived(above=0)
    decay: float = number(DECAY, above=0, at_most=1)
    quantile: float = derived(above=0, at_most=1)
    longest: float = derived(above=0, below=math.inf)
    span: float = number(SPAN, above=1, below=math.inf)
    first_counts: int = number(FIRST_COUNTS, at_least=1)
    later_counts: int = number(LATER_COUNTS, at_least=0)
    count_share: float = number(COUNT_SHARE, above=0, below=1)
    returns: Average = choice("last")
    aggregator: Literal["clip", "stable"] = choice("clip")
    outliers: float = number(OUTLIERS, at_least=0, below=0.5)
    test_share: float = derived(at_least=0, below=1)
    bad_event_delta: float = derived(at_least=0, below=1)

    def default_step_size(self, instance: Instance) -> float:
        return step_size(instance)

    def default_quantile(self, instance: Instance) -> float:
        """q."""
        if not instance.is_private:
            return 1.0
        return QUANTILE if self.aggregator == "clip" else STABLE_QUANTILE

    def default_longest(self, instance: Instance) -> float:
        return longest(instance)

    def default_bad_event_delta(self, instance: Instance) -> float:
        """delta_1 of each round: a tenth of delta for all of them."""
        if self.aggregator == "clip" or not instance.is_private or self.rounds == 0:
            return 0.0
        return stable_mean.BAD_EVENT_SHARE * instance.budget.delta / self.rounds

    def default_test_share(self, instance: Instance) -> float:
        """The share of a round's test.

        Raises:
            BudgetTooSmall: there are too few users for a test; it names how many are enough.
        """
        if self.aggregator == "clip" or not self.bad_event_delta > 0.0:
            return TEST_SHARE
        return stable_mean.plan_stable_mean(
            points=instance.public.n,
            replaced=instance.public.relation is Relation.REPLACE_ONE,
            rho=0.5 * instance.mu**2 * (1.0 - self.count_share) / self.rounds,
            bad_event_delta=self.bad_event_delta,
            outliers=self.outliers,
        ).share

    def applicable(self, problem: Problem, public: Public) -> str | None:
        """Users who may have several records, whatever the loss."""
        refused = super().applicable(problem, public)
        if refused is not None:
            return refused
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
        work = pass_seconds(problem, public) * self.rounds
        reading = reading_seconds(problem, public) * self.releases()
        return work + reading + self.releases() * RELEASE_SECONDS

    def longest_step(self, instance: Instance) -> float:
        """Of local gradient steps."""
        return self.gradient_limit(instance)

    def forecast(self, instance: Instance) -> Forecast:
        """The noise of the means, where a formula says how the objective feels it."""
        curved = descent_theory.smoothness(instance) + instance.penalty_smoothness
        steps = long_steps(self.step_size, curved)
        if not instance.is_private:
            return Forecast(
                meaning="the noise is off; users' local optima pull apart where they differ",
                notices=(NOISE_IS_OFF, *steps),
            )
        notices = (*large_delta(instance), *faint_users(instance), *steps)
        if instance.has_own_loss:
            return Forecast(meaning="no formula for a user-written loss", notices=notices)
        whole = self.noise_excess(instance)
        drift = LEFT_BY_DRIFT * (instance.loss_at_zero or 0.0)
        meaning = (
            "of the noise of the means if no round contracted what the rounds before left: an upper estimate"
        )
        return Forecast(
            excess=instance.capped(LEFT_BY_ROUNDS * whole + drift),
            meaning="for users who agree, with 30 records and more; often off by a factor of 3",
            indicators={"uncontracted_noise": Finding(whole, meaning)},
            notices=notices,
        )

    def run(self, curator: Curator, problem: Problem, start: Array) -> Outcome:
        """Rounds of local passes, counts and a mean."""
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

    def noise_excess(self, instance: Instance) -> float:
        """What the noise of all means does to the objective if no round contracts it.

        (phi'' R^2 / 2) (s c / n)^2 P^2 / (2 rho), R^2 standing for the trace of the rows' second moment and
        c = D / 2, half of the way to the optimum.
        """
        public, curvature = instance.public, descent_theory.smoothness(instance)
        clip = DISTANCE / public.row_bound / 2.0
        spread = public.relation.factor * clip / (public.n * instance.mu)
        return 0.5 * curvature * spread**2 * self.rounds**2 / (1.0 - self.count_share)


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
