"""Descent on the worst group's loss: gradient steps against a player who weights the groups.

Solves min over w max over y of sum_g y_g F_g(w) + r(w), F_g the mean loss of the records of group g.
Source: Sagawa, Koh, Hashimoto, Liang 2020; the private form and its settings are ours.
"""

import math
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from privopt.curator.base import Curator
from privopt.later import Array, Bool, Float, jax, jnp
from privopt.ledger.events import Event, Repeated, sequence
from privopt.mechanisms.additive import Gaussian
from privopt.planning import descent_theory
from privopt.planning.coordinates import Coordinates
from privopt.planning.notices import NOISE_IS_OFF, large_delta
from privopt.planning.plan import Finding
from privopt.planning.task import Forecast, Instance
from privopt.problems.constraints import L1Ball, Product
from privopt.problems.grouped_loss import GroupedLoss
from privopt.problems.problem import Problem
from privopt.public import Public
from privopt.queries.groups import GroupedGradient, GroupLosses, GroupShares
from privopt.result import Outcome, ending
from privopt.solvers.base import Solver
from privopt.solvers.fields import derived, guarded, number
from privopt.solvers.group_weights import GroupPlayer, findings, weights_picture

# ---- Defaults and forecast of descent for the worst group. Utility only ------------------------------------
# clip        1.5 times the steepest slope times the length of a row: what was best on generated records of 50 features;
#             balanced, a rare group's weight then shortens both labels alike. Whitened, 1 to 2 times, see `whitening`
# step size   with rows in a ball: 1.25 / (L + l), l the largest curvature of the penalty; with an l1 ball, whose rows
#             have d entries of size R / sqrt(d) at most, 1 / (4 curvature R^2 / d + l), which is 1 for entries in [-1,
#             1] and no penalty; whitened, half of one over the curvature
# steps       30 sqrt(0.02 / x) within 30..120, x = factor sqrt(d) / (n mu p), p the rarest group's share: with 30 the
#             worst loss on generated records stayed 1 % above its minimum however small the noise; with more, Adult and
#             COMPAS, some of whose groups are rare, lost at epsilon 1. 30 with an l1 ball, one group or drawn groups
# weights     in proportion to sqrt(share) at first, then to the exponential of the sum of the losses too, for 20 % of
#             the budget: with equal weights at first, small groups, whose gradients are mostly noise, counted too much
#             on Adult and COMPAS; with weights in proportion to the shares descent was slow on generated records
# draws       16 a step from 51 groups on
STEPS, MOST_STEPS, NOISELESS_STEPS = 30, 120, 300
CLEAR = 0.02  # x, the noise of a group's gradient below which more steps are taken
CLIP_SHARE = 1.5  # of the steepest slope times the row bound
STEP_SHARE = 0.4  # of what whitened descent without groups takes
GROUP_SHARE = 0.2  # of mu^2, for the losses of the groups
SHARES_SHARE = 0.05  # of mu^2, for the shares where they are released
MOST_GROUPS = 50  # from more on, groups are drawn
DRAWS = 16
STEADY = 4.0  # largest weight over a share at which unclipped steps keep their size


def grouped(problem: Problem) -> GroupedLoss:
    """The problem's loss.

    Raises:
        ValueError: it is not one of groups.
    """
    if isinstance(problem.loss, GroupedLoss):
        return problem.loss
    raise ValueError(f"the {problem.loss.name} loss knows no groups: use GroupedLoss(loss, groups, shares).")


def group_obstacle(problem: Problem, public: Public) -> str | None:
    """Why the worst group cannot be solved for, or None."""
    del public
    if not isinstance(problem.loss, GroupedLoss):
        return f"the {problem.loss.name} loss knows no groups"
    if not problem.regulariser.is_smooth:
        return "the penalty is not smooth"
    return None


def _on_l1_ball(problem: Problem) -> bool:
    constraint = problem.constraint
    parts = [part for part, _ in constraint.parts] if isinstance(constraint, Product) else [constraint]
    return any(isinstance(part, L1Ball) for part in parts)


def share_of_groups(problem: Problem) -> float:
    """Of mu^2; nothing where there is one group."""
    return GROUP_SHARE if grouped(problem).groups > 1 else 0.0


def share_of_shares(problem: Problem) -> float:
    """Of mu^2; nothing where the shares are public."""
    loss = grouped(problem)
    return SHARES_SHARE if loss.shares is None and loss.groups > 1 else 0.0


class WorstGroupState(NamedTuple):
    """Where the descent stands; every entry is a function of released values."""

    params: Float[Array, " d"]
    average: Float[Array, " d"]  # of the params so far, weights 1, 2, 3, ...
    finite: Bool[Array, ""]


@dataclass(frozen=True, kw_only=True)
class WorstGroupDescent(Solver):
    """Private descent-ascent for the worst group, or for CVaR over groups; see `GroupedLoss` for the objective.

    Attributes:
        noise_multiplier: z of the whole run: all its releases together cost what one Gaussian release of noise
            multiplier z would. The gradients have what the shares below leave.
        steps: T, at least 0; 0 returns the start and spends nothing.
        step_size: eta, in params^2 / objective units; where nothing is clipped, shortened where a weight over its
            share passes 4.
        clip: C, the largest norm of one unit's weighted gradient.
        balanced: whether records' gradients are shortened without regard to their labels, see `GroupedGradient`.
        ascent: of the weights: y_t is in proportion to sqrt(share) times the exponential of `ascent` times the sum
            of the released losses.
        group_share: share of mu^2 (Gaussian DP) for the losses of the groups.
        draws: groups drawn a step where there are many of them; 0 for noisy losses.
        shares_share: share of mu^2 for the groups' shares, where they are not public.
        report_share: share of mu^2 for the groups' losses at the result, for the report.
    Guarantee:
        T clipped mean gradients and T vectors of group losses, each with Gaussian noise of fixed multiplier, and at
        most two more vectors: exactly (epsilon, delta)-DP by Gaussian-DP composition, under the curator's relation,
        for any data, labels and groups; a replaced record may change groups. With draws, one `VertexSampler` in place
        of the losses, by zCDP.
    Differs from the paper:
        full batches, few steps and the linearly weighted average; losses around the midrange of [0, cap]; gradients
        shortened alike for both labels.
    Source:
        Sagawa, Koh, Hashimoto, Liang 2020, Algorithm 1.
    """

    name: ClassVar[str] = "worst-group-descent"
    for_convex: ClassVar[str] = "the weights of its groups"
    preconditions: ClassVar[bool] = True

    steps: int = derived(at_least=0)
    step_size: float = derived(above=0)
    clip: float = derived(above=0)
    balanced: bool = True
    ascent: float = number(1.0, above=0, below=math.inf)
    group_share: float = derived(at_least=0, below=1)
    draws: int = derived(at_least=0)
    shares_share: float = derived(at_least=0, below=1)
    report_share: float = number(0.0, at_least=0, below=1)

    def default_steps(self, instance: Instance) -> int:
        """T."""
        if not instance.is_private:
            return NOISELESS_STEPS
        public, loss = instance.public, grouped(instance.problem)
        if not 1 < loss.groups <= MOST_GROUPS or _on_l1_ball(instance.problem):
            return STEPS
        shares = np.zeros(1) if loss.shares is None else np.asarray(loss.shares)
        rarest = float(np.min(loss.divisors(shares)))
        noise = public.relation.factor * math.sqrt(public.d) / (public.n * instance.mu * rarest)
        return min(max(round(STEPS * math.sqrt(CLEAR / noise)), STEPS), MOST_STEPS)

    def default_clip(self, instance: Instance) -> float:
        """C; infinite with the noise off."""
        if not instance.is_private:
            return math.inf
        loss = grouped(instance.problem)
        slope = loss.lipschitz if math.isfinite(loss.lipschitz) else 1.0
        return CLIP_SHARE * slope * instance.public.row_bound

    def default_step_size(self, instance: Instance) -> float:
        """eta."""
        public, curvature = instance.public, grouped(instance.problem).curvature
        if _on_l1_ball(instance.problem) and math.isfinite(curvature):
            return 1.0 / (4.0 * curvature * public.row_bound**2 / public.d + instance.penalty_smoothness)
        return descent_theory.STEP_FACTOR / (
            descent_theory.smoothness(instance) + instance.penalty_smoothness
        )

    def default_group_share(self, instance: Instance) -> float:
        return share_of_groups(instance.problem)

    def default_shares_share(self, instance: Instance) -> float:
        return share_of_shares(instance.problem)

    def default_draws(self, instance: Instance) -> int:
        """K; 0 where there are few groups, for CVaR, and with the noise off."""
        loss = grouped(instance.problem)
        many = loss.groups > MOST_GROUPS and loss.alpha is None and instance.is_private
        return DRAWS if many else 0

    def check(self) -> None:
        """The shares of the budget leave something for the gradients."""
        if not self.gradient_share > 0:
            raise ValueError(
                "group_share, shares_share and report_share must sum to less than 1, got "
                f"{1.0 - self.gradient_share:g}: the rest is for the gradients."
            )

    @property
    def gradient_share(self) -> float:
        """What is left of mu^2 for the gradients."""
        return 1.0 - ((self.group_share or 0.0) + (self.shares_share or 0.0) + self.report_share)

    @property
    def weighs_groups(self) -> bool:
        return True

    def longest_step(self, instance: Instance) -> float:
        """Of gradient steps."""
        return self.gradient_limit(instance)

    def forecast(self, instance: Instance) -> Forecast:
        """What can be said of the noise and of the groups; there is no formula for the excess."""
        if not instance.is_private:
            return Forecast(meaning="no formula for the worst group", notices=(NOISE_IS_OFF,))
        return Forecast(
            meaning="no formula for the worst group",
            notices=large_delta(instance) + self.notices(instance),
        )

    def applicable(self, problem: Problem, public: Public) -> str | None:
        """Losses of groups with a smooth penalty."""
        obstacle = group_obstacle(problem, public)
        if obstacle is None and self.draws and grouped(problem).alpha is not None:
            return "CVaR over groups needs noisy losses: use draws=0"
        return obstacle

    def in_coordinates(self, coordinates: Coordinates) -> Self:
        """Clip and step size of whitened coordinates, whose rule knows the weights of groups."""
        return self.with_(
            clip=coordinates.clip,
            step_size=STEP_SHARE / (coordinates.smoothness + STEP_SHARE * coordinates.ridge_smoothness),
            balanced=coordinates.balanced,
        )

    def player(self) -> GroupPlayer | None:
        """Who weights the groups; None where nobody does."""
        if not (self.group_share and self.steps):
            return None
        return GroupPlayer(
            steps=self.steps,
            noise_multiplier=self.noise_multiplier / math.sqrt(self.group_share),
            ascent=self.ascent,
            draws=self.draws if self.noise_multiplier > 0 else 0,
        )

    def mechanism(self) -> Gaussian:
        """Of each gradient."""
        return Gaussian(self.noise_multiplier * math.sqrt(self.steps / self.gradient_share))

    def event(self, public: Public) -> Event:
        """The shares, the gradients, the losses, and those at the end."""
        if not self.steps:
            return sequence([])
        player = self.player()
        return sequence(
            [
                *(self._once(share).event() for share in (self.shares_share, self.report_share) if share),
                Repeated(self.mechanism().event(), self.steps),
                *([] if player is None else [player.event(public)]),
            ]
        )

    def releases(self) -> int:
        """Of gradients, losses and shares."""
        if not self.steps:
            return 0
        player = self.player()
        once = (self.shares_share > 0) + (self.report_share > 0)
        return self.steps + once + (0 if player is None else player.releases())

    def run(self, curator: Curator, problem: Problem, start: Array) -> Outcome:
        """The shares, where they are not public, then the descent."""
        loss = grouped(problem)
        histogram = self._once(self.shares_share) if self.shares_share and self.steps else None
        return self.run_with(curator, problem, start, released_shares(curator, loss, histogram))

    def run_with(
        self, curator: Curator, problem: Problem, start: Array, shares: NDArray[np.float64]
    ) -> Outcome:
        """Steps against the weights; the average of the iterates, later ones weighing more.

        Args:
            curator: answers the releases.
            problem: with a loss of groups.
            start: w_0.
            shares: of the groups, public or released.
        """
        loss = grouped(problem)
        state = WorstGroupState(start, start, jnp.asarray(True))
        if not self.steps:
            return Outcome(start, ending(state.finite))
        divisors, player = loss.divisors(shares), self.player()
        play = None if player is None else player.open(curator, loss, shares)
        weights = shares
        for t in range(self.steps):
            weights = shares if play is None else play.weights()
            asked = GroupedGradient(
                loss=loss,
                at=state.params,
                weights=jnp.asarray(weights / divisors),
                clip=self.clip,
                balanced=self.balanced,
            )
            gradient = curator.release(asked, self.mechanism())
            if play is not None:
                play.see(state.params)
            step_size = self.step_size
            if math.isinf(self.clip):  # nothing else keeps a rare group's weighted curvature down
                step_size /= max(1.0, float(np.max(weights / divisors)) / STEADY)
            state = _step(state, gradient, ratio=2.0 / (t + 2.0), step_size=step_size, problem=problem)
        found = dict(findings(loss, shares, play, self._loss_noise(curator.public, loss)))
        if self.report_share:
            sums = curator.release(GroupLosses(loss=loss, at=state.average), self._once(self.report_share))
            noise = self._once(self.report_share).noise_multiplier * one_loss(loss, curator.public)
            found["group_losses"] = Finding(
                loss.mean_losses(sums, shares),
                f"released mean loss of each group at the result, each record's cut at {loss.cap:g}; its noise has "
                f"standard deviation {noise:.2g} over the group's share of the records",
            )
        pictures = () if play is None else (weights_picture(np.asarray(play.history)),)
        return Outcome(state.average, ending(state.finite), found, pictures)

    def _once(self, share: float) -> Gaussian:
        """A release that costs this share of mu^2."""
        return Gaussian(self.noise_multiplier / math.sqrt(share))

    def _loss_noise(self, public: Public, loss: GroupedLoss) -> float:
        """Standard deviation of one released sum of losses, before it is divided by a share."""
        player = self.player()
        if player is None or player.draws:
            return 0.0
        return player.each().noise_multiplier * one_loss(loss, public)

    def _rarest_loss_noise(self, instance: Instance) -> float:
        """The standard deviation of the rarest group's loss, averaged over the steps; 0 without shares or noise."""
        loss = grouped(instance.problem)
        if loss.shares is None or not self.group_share or not self.steps:
            return 0.0
        once = instance.public.relation.factor * 0.5 * loss.cap / instance.public.n
        rarest = float(np.min(loss.divisors(np.asarray(loss.shares))))
        return once * self.noise_multiplier / math.sqrt(self.group_share) / rarest

    def notices(self, instance: Instance) -> tuple[str, ...]:
        """What is known of the groups beforehand."""
        loss = grouped(instance.problem)
        if loss.groups == 1:
            return (
                "there is one group: nothing is to be gained by weighting groups, and a plain fit is the same model.",
            )
        found: list[str] = []
        if loss.shares is not None:
            least = min(loss.floor, 1.0 / loss.groups)
            rare = sum(share < least for share in loss.shares)
            if rare:
                found.append(
                    f"{rare} of {loss.groups} groups have a share below the floor {least:.3g}: they count less than "
                    "their own share, since noise on a group's loss is in proportion to one over its share."
                )
        else:
            found.append(
                f"shares are released, for {100 * self.shares_share:.3g} % of the budget (of its rho); those below the "
                f"floor {min(loss.floor, 1.0 / loss.groups):.3g} count less."
            )
        noise = self._rarest_loss_noise(instance)
        if noise > 0.1 * loss.cap and not self.draws:
            found.append(
                f"the noise on the loss of the rarest group is about {noise:.2g}, over all steps: which group is worst "
                "will hardly be seen, and there is nothing to gain over a plain fit at this budget. Fewer groups, more "
                "units or a larger epsilon would help."
            )
        return tuple(found)


def one_loss(loss: GroupedLoss, public: Public) -> float:
    """By how much one unit moves the sums of the groups' losses."""
    return public.relation.factor * 0.5 * loss.cap / public.n


def released_shares(curator: Curator, loss: GroupedLoss, histogram: Gaussian | None) -> NDArray[np.float64]:
    """Each group's share of the records: public, or released by a noisy histogram; else all alike."""
    if loss.shares is not None:
        return np.asarray(loss.shares, np.float64)
    if histogram is None:
        return np.full(loss.groups, 1.0 / loss.groups)
    return as_shares(np.asarray(curator.release(GroupShares(loss=loss), histogram)))


def as_shares(released: NDArray[np.float64]) -> NDArray[np.float64]:
    """Positive numbers that sum to 1, from noisy ones."""
    positive = np.maximum(np.where(np.isfinite(released), released, 0.0), 1e-6)
    return positive / np.sum(positive)


@jax.jit
@guarded
def _step(
    state: WorstGroupState, gradient: Array, *, ratio: Any, step_size: Any, problem: Problem
) -> WorstGroupState:
    """w_{t+1} within the set, and the average of w_1, ..., w_{t+1} with weights 1, ..., t + 1."""
    params = problem.proximal_step(state.params, gradient, step_size)
    return state._replace(params=params, average=state.average + ratio * (params - state.average))
