"""Gradient descent on users' average gradients, clipped at their spread; the clip follows a released quantile.

Minimises F_u(w) + r(w) over a constraint set, F_u = sum_j u_j F_j / sum_j u_j, F_j the mean loss of user j's records
and u_j what the weighting gives them. Every user who is different moves a clipped mean by the clip, whatever they own,
so the clip is what the noise costs; the mean gradient vanishes at the optimum, and a clip near the spread of users'
gradients keeps nearly all of the signal.

Source:
    Lowy, Liu, Asi 2024 set the problem; Levy et al. 2021 clip at the concentration radius; Andrew, Thakkar, McMahan,
    Ramaswamy 2021 follow a quantile. Clipping around 0 without a test, the rule for every constant and the release of
    gradient and count as one vector are ours.
"""

import math
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal, NamedTuple, Self

from privopt.curator.base import Curator
from privopt.later import Array, Bool, Float, jax, jnp
from privopt.ledger.events import Event, EveryUnit, Poisson, Repeated, Sampling, sequence
from privopt.mechanisms.additive import Gaussian
from privopt.planning import user_gradient_descent as planning
from privopt.planning.averaging import Average, mixing_ratios
from privopt.planning.coordinates import Coordinates
from privopt.planning.plan import Finding
from privopt.planning.task import Forecast, Instance
from privopt.planning.users import require_workable
from privopt.problems.problem import Problem
from privopt.public import Public
from privopt.queries.gradient_norms import GradientAndCount, share_inside
from privopt.queries.moments import TotalWeight
from privopt.result import Outcome, ending
from privopt.solvers.base import StepwiseSolver, in_original
from privopt.solvers.fields import choice, derived, guarded, number, optional

LEAST_WEIGHT = 0.01  # the mean weight is not taken for less: few users own a hundredth of the cap


class UserDescentState(NamedTuple):
    """Where the descent stands; every entry is a function of released values."""

    params: Float[Array, " *shape"]  # w_t
    velocity: Float[Array, " *shape"]  # v_t
    average: Float[Array, " *shape"]  # running average of w
    centre: Float[Array, " k"]  # v0, what the next gradients are clipped around
    tightness: Float[Array, ""]  # c_t / c_1
    finite: Bool[Array, ""]  # whether every entry so far was; from the first that was not, nothing moves


@dataclass(frozen=True, kw_only=True)
class UserGradientDescent(StepwiseSolver):
    """Private gradient descent on the clipped mean of users' average gradients.

    Where a unit is a record it is gradient descent with a clip that adapts.

    Attributes:
        steps: T, at least 0; 0 returns the start and spends nothing.
        step_size: the longest step, in params^2 / objective units; step t is 1 / sqrt(t) of it where `fading`.
        clip: C_0, the first clip of a user of weight 1 with `typical` records: the clip is C_0 times the mean weight.
        typical: m, the records that C_0 is meant for. Where the mean weight is released the clip is that for the number
            of records that it stands for.
        reach: the steps are shortened so that together they are at most reach (1 - momentum) / C_0; None for any
            length.
        quantile: q, the share of users that the clip tends to leave unchanged.
        clip_rate: how fast: each round multiplies the clip by exp(-clip_rate (share - q)); 0 keeps it.
        height: h over the clip: what the count of users inside weighs in a release. 0.19 costs 1.8 % more noise.
        momentum: theta in [0, 1), of a heavy ball.
        fading: whether steps shrink like 1 / sqrt(t), for losses that are not smooth.
        returns: which average of w_1 .. w_T, see `mixing_ratios`; default "tail", "last" with the noise off.
        centre: what users' gradients are clipped around: "zero", or "last", the last released mean, which is better
            where the gradient does not vanish at the optimum (constraint sets).
        weighted: whether the mean weight is released: by default where not everybody with a record weighs 1. If not, it
            counts as 1.
        weight_share: part of mu^2 that the mean weight may spend.
        rate: of a Poisson sample of the users in each round; None for all of them.
    Guarantee:
        T Gaussian releases of sensitivity factor sqrt(1 + h^2) c_t / n with one multiplier, c_t a function of earlier
        releases, and one of the mean weight: (epsilon, delta)-DP for everything that a user owns, under the curator's
        relation, for any data and any loss. Nothing is asked of how alike users are.
    Differs from the paper:
        no test and nothing to halt on: where users' gradients are not concentrated the clip biases, and stays private.
    Source:
        See the module.
    """

    name: ClassVar[str] = "user-gradient-descent"
    made_for_users: ClassVar[bool] = True
    preconditions: ClassVar[bool] = True

    step_size: float = derived(above=0)
    clip: float = derived(above=0)
    typical: float = derived(at_least=1)
    reach: float | None = optional(above=0)
    quantile: float = derived(above=0, at_most=1)
    clip_rate: float = number(planning.CLIP_RATE, at_least=0)
    height: float = number(planning.HEIGHT, above=0)
    momentum: float = derived(at_least=0, below=1)
    fading: bool | None = derived()
    weighted: bool | None = derived()
    returns: Average | None = optional()
    centre: Literal["zero", "last"] = choice("zero")
    weight_share: float = number(planning.WEIGHT_SHARE, above=0, below=1)
    rate: float | None = optional(above=0, at_most=1)

    def default_clip(self, instance: Instance) -> float:
        return planning.first_clip(instance)

    def default_typical(self, instance: Instance) -> float:
        return instance.public.typical_records

    def default_quantile(self, instance: Instance) -> float:
        return planning.quantile(instance)

    def default_momentum(self, instance: Instance) -> float:
        del instance
        return planning.MOMENTUM

    def default_fading(self, instance: Instance) -> bool | None:
        return math.isinf(instance.problem.loss.curvature)

    def default_weighted(self, instance: Instance) -> bool | None:
        return instance.public.by_user and instance.public.weighting != "user"

    def default_reach(self, instance: Instance) -> float | None:
        return planning.reach(instance)

    def default_step_size(self, instance: Instance) -> float:
        return planning.STEP_FACTOR / planning.smoothness(instance)

    def default_steps(self, instance: Instance) -> int:
        return planning.steps(self, instance)

    def default_returns(self, instance: Instance) -> Average | None:
        return "tail" if instance.is_private else "last"

    def applicable(self, problem: Problem, public: Public) -> str | None:
        """Everything; a sample must hold somebody."""
        del problem
        if self.rate is not None and self.rate * public.n < 1.0:
            return f"a sample at rate {self.rate!r} of n = {public.n} units is expected to hold less than one"
        return None

    def filled(self, instance: Instance) -> Self:
        """Every field but the noise from public numbers.

        Raises:
            BudgetTooSmall: so few users that the noise of one mean drowns them.
        """
        if instance.public.by_user and not self.is_set("noise_multiplier"):
            require_workable(instance)
        return super().filled(instance)

    def weight_noise(self) -> Gaussian:
        """The mean weight's noise, for its share of mu^2 beside T releases of multiplier z."""
        ratio = (1.0 - self.weight_share) / (self.weight_share * self.steps)
        amplified = 1.0 if self.rate is None else 1.0 / self.rate
        return Gaussian(self.noise_multiplier * amplified * math.sqrt(ratio))

    def sampling(self) -> Sampling:
        """Who takes part in a round."""
        return EveryUnit() if self.rate is None else Poisson(self.rate)

    def step_event(self, public: Public) -> Event:
        """A Gaussian release of gradient and count."""
        return self.sampling().event(super().step_event(public))

    def event(self, public: Public) -> Event:
        """The mean weight, then T releases."""
        weight = [self.weight_noise().event()] if self.weighted and self.steps else []
        return sequence([*weight, Repeated(self.step_event(public), self.steps)])

    def releases(self) -> int:
        """One a step, and the mean weight."""
        return self.steps + 1 if self.weighted and self.steps else self.steps

    def passes(self) -> float:
        """One a step, or the sampled part of one."""
        return self.steps * (1.0 if self.rate is None else self.rate)

    def longest_step(self, instance: Instance) -> float:
        """Of heavy ball."""
        return self.gradient_limit(instance, momentum=self.momentum or 0.0)

    def forecast(self, instance: Instance) -> Forecast:
        return planning.forecast(self, instance)

    def in_coordinates(self, coordinates: Coordinates) -> Self:
        return self.with_(**planning.in_coordinates(coordinates))

    def run(self, curator: Curator, problem: Problem, start: Array) -> Outcome:
        """The descent in the data's own coordinates."""
        return self._descend(curator, problem, start, None)

    def run_in(self, curator: Curator, problem: Problem, start: Array, coordinates: Coordinates) -> Outcome:
        """The descent in other coordinates. Averages are mapped after they are formed: the rows stay as they are."""
        row_map = jnp.asarray(coordinates.matrix)
        outcome = self._descend(curator, coordinates.problem(problem), coordinates.inward(start), row_map)
        return in_original(outcome, coordinates)

    def _descend(self, curator: Curator, problem: Problem, start: Array, row_map: Any) -> Outcome:
        """Rounds of release, step and clip; parameters are in the coordinates of the map."""
        weight = 1.0
        if self.weighted and self.steps:
            released = float(curator.release(TotalWeight(), self.weight_noise()))
            weight = min(max(released, LEAST_WEIGHT), 1.0) if math.isfinite(released) else LEAST_WEIGHT
        public, clip = curator.public, self.clip
        if self.weighted and self.steps:
            clip = planning.rescaled_clip(self, weight, public)
        longest = self.step_size
        if self.reach is not None:
            longest = min(longest, self.reach * (1.0 - self.momentum) / (max(self.steps, 1) * clip))
        step = partial(
            _step,
            weight=weight,
            momentum=self.momentum,
            quantile=self.quantile,
            clip_rate=self.clip_rate,
            keeps_centre=self.centre == "last",
            problem=problem,
        )
        state = UserDescentState(
            params=start,
            velocity=jnp.zeros_like(start),
            average=start,
            centre=jnp.zeros(start.size),
            tightness=jnp.ones(()),
            finite=jnp.asarray(True),
        )
        noise, sampling, first = Gaussian(self.noise_multiplier), self.sampling(), clip * weight
        for t, ratio in enumerate(mixing_ratios(self.returns or "tail", self.steps)):
            limit = first * float(state.tightness)
            query = GradientAndCount(
                loss=problem.loss,
                at=state.params if row_map is None else row_map @ state.params,
                clip=limit,
                height=self.height * limit if math.isfinite(limit) else 1.0,
                row_map=row_map,
                centre=state.centre if self.centre == "last" else None,
            )
            released = curator.release(query, noise, sampling)
            inside = share_inside(released[-1], query.height)
            eta = longest / math.sqrt(t + 1.0) if self.fading else longest
            state = step(state, released[:-1], inside, ratio=float(ratio), step_size=eta)
        last = first * float(state.tightness)
        found = {"clip": Finding(last, "the last clip of users' gradients")}
        return Outcome(state.average, ending(state.finite), findings=found)


@partial(jax.jit, static_argnames="keeps_centre")
@guarded
def _step(
    state: UserDescentState,
    released: Float[Array, " k"],
    inside: Float[Array, ""],
    *,
    ratio: float,
    step_size: float,
    weight: float,
    momentum: float,
    quantile: float,
    clip_rate: float,
    keeps_centre: bool,
    problem: Problem,
) -> UserDescentState:
    """One round after its release: velocity, parameters, average, the next centre and clip."""
    mean = state.centre + released
    gradient = jnp.reshape(mean / weight, state.params.shape)
    velocity = momentum * state.velocity + gradient + problem.regulariser.gradient(state.params)
    params = problem.prox(state.params - step_size * velocity, step_size)
    return UserDescentState(
        params=params,
        velocity=velocity,
        average=state.average + ratio * (params - state.average),
        centre=mean if keeps_centre else state.centre,
        tightness=state.tightness * jnp.exp(-clip_rate * (inside - quantile)),
        finite=state.finite,
    )
