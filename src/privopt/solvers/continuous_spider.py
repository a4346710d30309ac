"""Continuous Spider: gradient descent on a running estimate of the gradient that every release improves.

Solves min_x F(x) + r(x) over a constraint set, F = (1/n) sum_i f(x, xi_i). A step releases one vector, a mixture of the
gradient and of its change since the last point, whose sensitivity shrinks with the distance; nothing that was released
is thrown away, so that the last estimate is about as accurate as one gradient bought with the whole budget.
Source: Menart, Ullah, Arora, Bassily, Guzman 2023, Algorithm 1, whose phases are dissolved here.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Literal, NamedTuple, Self

import numpy as np

from privopt.curator.base import Curator
from privopt.later import Array, Bool, Float, jax, jnp
from privopt.mechanisms.additive import Gaussian
from privopt.planning import descent_theory
from privopt.planning.coordinates import Coordinates
from privopt.planning.gradient_certificate import EstimateError, certificate, mixed
from privopt.planning.kl_theory import horizon
from privopt.planning.notices import NOISE_IS_OFF, large_delta, long_steps
from privopt.planning.plan import Finding
from privopt.planning.task import Forecast, Instance
from privopt.problems.constraints import Unconstrained
from privopt.problems.growth import KL
from privopt.problems.losses import GLMLoss
from privopt.problems.problem import Problem
from privopt.public import Public
from privopt.queries.slopes import ClippedGradient, MixedGradient
from privopt.result import Outcome, Status
from privopt.solvers.base import StepwiseSolver
from privopt.solvers.fields import choice, derived, guarded, number, optional

# ---- Defaults, predicted excess, notices and findings of Continuous Spider ---------------------------------
# With s the noise of one gradient bought with the whole budget, p parameters, eta the step size, over 1 - b with
# momentum b, and `distance` a guess of how far the optimum is:
#
#     horizon     h = distance / (2 sqrt(p) s), the sum of step sizes beyond which more steps mostly fit noise
#     steps       h / eta, and no more than a ridge needs to shrink the start's excess below that of the noise s, or
#                 than a prediction from a known growth gains by
#     prediction  dw = eta (min(L_0, sqrt(2 L1 Phi)) + sqrt(p V)), the length of a step
#                 Phi <- max(Phi - (eta / 2) Phi^(2 / kappa) / gamma^2, 0) + (eta / 2) p V
#                 V by the recursion of `gradient_certificate`, for a change clipped to c L1 dw
#
# The prediction overestimates the noise of long paths, is never more than the start's excess, and is no bound.
#
# Source: ours. Utility only.
DISTANCE = 10.0  # over R: how far the optimum is guessed to be
WHITENED_DISTANCE = 5.0  # in coordinates in which predictions vary as much as parameters
WHITENED_STEPS = 100  # whitened problems are well conditioned
LEAST_WORK = 500.0  # L1 h below which noise decides and descent with falling noise is better
FEWEST_STEPS = 10
FLAT = 1.05  # more steps are not worth a gain of less than this factor


@dataclass(frozen=True, kw_only=True)
class SpiderFacts:
    """What the number of steps and the predicted excess follow from.

    Attributes:
        step_size: eta, over 1 - b with momentum b: about how far a gradient moves the parameters in the end.
        curvature: L1.
        steepest: L_0, the largest gradient norm.
        slope_ratio: c L1 / C, the change's clip over the gradient's for a step of length 1.
        strong: strong convexity of the penalty.
        parameters: p.
        noise: s; 0 without privacy.
        distance: from the start to the optimum, a guess.
        gap: a bound on the start's excess; infinite if not known.
    """

    step_size: float
    curvature: float
    steepest: float
    slope_ratio: float
    strong: float
    parameters: int
    noise: float
    distance: float
    gap: float

    @property
    def horizon(self) -> float:
        """h; infinite without noise."""
        return horizon(self.distance, self.parameters, self.noise)

    def steps(self, growth: KL | None, most: int) -> int:
        """T of the table above, at most `most`."""
        if self.noise == 0.0:
            needed = 40.0 / (self.step_size * self.strong) if self.strong > 0 else math.inf
            return math.ceil(min(needed, most))
        found = min(max(FEWEST_STEPS, math.ceil(min(self.horizon / self.step_size, most))), most)
        if self.strong > 0:
            found = min(found, self._steps_to_the_floor(most))
        return found if growth is None or growth.kappa > 2.0 else self._steps_that_gain(growth, found)

    def _steps_to_the_floor(self, most: int) -> int:
        """Steps after which a ridge alone has shrunk the start's excess below that of one gradient's noise."""
        floor = 0.5 * self.parameters * self.noise**2 * self.step_size
        ratio = min(self.gap, 1e6 * floor) / floor
        pull = 2.0 * self.step_size * self.strong
        return max(FEWEST_STEPS, math.ceil(min(math.log(max(ratio, math.e)) / pull, most)))

    def _steps_that_gain(self, growth: KL, most: int) -> int:
        """The fewest steps whose predicted excess is within `FLAT` of the least up to `most`."""
        counts = sorted({min(most, math.ceil(FEWEST_STEPS * 1.5**k)) for k in range(20)})
        predicted = [self.predicted_excess(growth, steps) for steps in counts]
        if not min(predicted) < 0.5 * growth.gap_within(self.steepest):
            return most  # constants that promise nothing say nothing about the steps either
        flat = FLAT * min(predicted)
        return next(steps for steps, excess in zip(counts, predicted, strict=True) if excess <= flat)

    def predicted_excess(self, growth: KL, steps: int) -> float:
        """Phi after so many steps, by the recursion above."""
        fresh = self.noise * math.sqrt(steps)
        gap = growth.gap_within(self.steepest)
        error, excess, change = EstimateError(), gap, math.inf
        for _ in range(steps):
            gain = error.optimal_gain(fresh, change)
            error = error.after(gain, mixed(gain, fresh, change))
            wobble = self.parameters * error.variance
            pull = min(self.steepest, math.sqrt(2.0 * self.curvature * excess))
            change = fresh * min(2.0, self.slope_ratio * self.step_size * (pull + math.sqrt(wobble)))
            descent = 0.5 * self.step_size * growth.gradient_at(excess) ** 2
            excess = max(excess - descent, 0.0) + 0.5 * self.step_size * wobble
        return min(excess, gap)


class SpiderState(NamedTuple):
    """Where the descent stands; every entry is a function of released values."""

    params: Float[Array, " *shape"]  # x_t
    at: Float[Array, " *shape"]  # w_t = x_t + b (x_t - x_{t-1}), where the next release is taken
    previous: Float[Array, " *shape"]  # where the last one was
    estimate: Float[Array, " *shape"]  # v, of the gradient of the mean loss at `previous`
    finite: Bool[Array, ""]


class Measures(NamedTuple):
    """What the run reads of a state, in one array."""

    distance: float  # |w_t - w_{t-1}|
    sensitivity: float  # of the gradient at w_t
    slope: float  # |x_t - w_{t-1}| / eta
    finite: float  # 1 if all is

    @classmethod
    def read(cls, measured: Float[Array, " 4"]) -> "Measures":
        """From `_measured`."""
        return cls(*np.asarray(measured).tolist())


@dataclass(frozen=True, kw_only=True)
class ContinuousSpider(StepwiseSolver):
    """Private descent with a running gradient estimate.

    Step t releases `q = (1 - u) mean clip(g, C) + u mean clip(g - h, C')`, g and h a unit's gradients at this and the
    last point, C' = min(2 C, c L1 |w_t - w_{t-1}|), and descends along v <- u v + q. The gain u makes the variance of v
    smallest, see `gradient_certificate`; where a change would be no less noisy than a gradient it is 0, which is a step
    of gradient descent.

    Attributes:
        steps: T releases and steps, at least 0; 0 returns the start and spends nothing.
        step_size: eta.
        clip: C (L_0), the largest norm of one unit's gradient.
        curvature: L1 of one record's loss; with `difference_clip` it sets C'. Utility only.
        difference_clip: c, a fraction of the change that the curvature allows. 1 clips no change if L1 is right, and
            gives the certificate; above 2 there is nothing to gain. Less clips a change below its worst case, which
            biases v and makes it less noisy. Default 0.15 for generalised linear losses, whose gradients seldom change
            by more than that; else 1 if the loss states its curvature, and 0.5 if it does not. Utility only.
        smoothness: L of the objective, ridge included, if it is known better than by `curvature`. It only decides
            whether a step size is called too large.
        gain: "optimal", or "average": u = t / (t + 1).
        momentum: b in [0, 1), fixed. It saves passes, not privacy: a step counts as eta / (1 - b) in T. Default 0.8 for
            generalised linear losses, 0 for others.
        distance: guess of the distance from the start to the optimum, from which `steps` are derived.
        growth: the KL condition for predictions and findings; default that of the problem.
        most_steps: largest number of steps that is derived.
        failure: beta, the probability with which the certificate may fail.
    Guarantee:
        T Gaussian releases of one fixed multiplier: exactly (epsilon, delta)-DP by Gaussian-DP composition, under the
        curator's relation, for any data, loss and parameters. The sensitivity of a release is (1 - u) times that of the
        clipped gradient plus u factor C' / n; u and C' are functions of earlier releases.
        Utility: the risk settles near gamma sqrt(p V) to the power kappa, with neither gamma nor kappa known, and V
        tends to the variance of one gradient bought with the whole budget.
    Differs from the paper:
        its phases, each an accurate gradient and then changes that are added to it, are dissolved into one estimate
        with the best gain at every step, which needs no growth condition. Its stated sensitivity L_0 / n is that of
        adding or removing a unit, while its data sets differ by a replacement; its loop buys one change a phase that no
        step uses.
    Source:
        Menart, Ullah, Arora, Bassily, Guzman 2023, Algorithm 1.
    """

    name: ClassVar[str] = "continuous-spider"
    preconditions: ClassVar[bool] = True

    step_size: float = derived(above=0)
    clip: float = derived(above=0)
    curvature: float = derived(above=0)
    difference_clip: float = derived(above=0, at_most=2)
    smoothness: float | None = optional(above=0)
    gain: Literal["optimal", "average"] = choice("optimal")
    momentum: float = derived(at_least=0, below=1)
    distance: float = derived(above=0)
    growth: KL | None = None
    most_steps: int = number(1_000, at_least=1)
    failure: float = number(0.1, above=0, below=1)

    def default_clip(self, instance: Instance) -> float:
        return descent_theory.default_clip(instance)

    def default_curvature(self, instance: Instance) -> float:
        return descent_theory.smoothness(instance)

    def default_difference_clip(self, instance: Instance) -> float:
        """c: small where rows of many features seldom lie along a step; 1 where L1 is known for sure."""
        if not instance.has_own_loss:
            return 0.15
        return 1.0 if math.isfinite(instance.problem.loss.curvature) else 0.5

    def default_step_size(self, instance: Instance) -> float:
        return 1.0 / (self.curvature + instance.penalty_smoothness)

    def default_momentum(self, instance: Instance) -> float:
        return 0.0 if instance.has_own_loss else 0.8

    def default_distance(self, instance: Instance) -> float:
        return DISTANCE / instance.public.row_bound

    def default_growth(self, instance: Instance) -> KL | None:
        return instance.growth

    def default_steps(self, instance: Instance) -> int:
        """T; a change clipped on purpose biases the estimate, which the prediction from a growth knows nothing of."""
        growth = self.growth if self.difference_clip >= 1.0 else None
        return self.facts(instance).steps(growth, self.most_steps)

    def longest_step(self, instance: Instance) -> float:
        """The stability limit of gradient steps."""
        return self.gradient_limit(instance)

    def forecast(self, instance: Instance) -> Forecast:
        """A predicted excess, and notices: a budget too small for this method, steps too long, guessed lengths."""
        if not instance.is_private:
            return Forecast(excess=0.0, meaning="the noise is off", notices=(NOISE_IS_OFF,))
        known = self.facts(instance)
        excess, meaning = self._predicted_excess(instance, known)
        found = Forecast(excess=excess, meaning=meaning, notices=large_delta(instance), for_convex=False)
        work = known.curvature * known.horizon
        if work < LEAST_WORK:
            found = found.noting(
                f"curvature times horizon is {work:.3g}, below {LEAST_WORK:g}: noise decides before a running estimate "
                "pays. Gradient descent, with equal or falling noise, is recommended for a budget this small."
            )
        smoothness = self.smoothness
        if smoothness is None:
            smoothness = self.curvature + instance.penalty_smoothness
        found = found.noting(*long_steps(self.step_size, smoothness))
        if instance.has_own_loss:
            return found.noting(
                "clip and curvature of a user-written loss are guesses where neither it nor you state them."
            )
        return found

    def in_coordinates(self, coordinates: Coordinates) -> Self:
        """Lengths of other coordinates; gradients are clipped, never balanced.

        A row there is at most about sqrt(d) long, so one record's loss is at most about d times as curved as the mean.
        """
        smoothness = coordinates.smoothness + coordinates.ridge_smoothness
        return self.with_(
            clip=coordinates.clip,
            curvature=coordinates.smoothness * len(coordinates.matrix),
            smoothness=smoothness,
            step_size=1.0 / smoothness,
            distance=self.distance if self.is_set("steps") else WHITENED_DISTANCE,
            growth=None,  # that of the problem is in other units
            momentum=self.momentum if self.is_set("momentum") else coordinates.momentum,
            most_steps=min(self.most_steps, WHITENED_STEPS),
        )

    @property
    def slope_clip(self) -> float:
        """c L1, the clip of a change over the distance."""
        return self.difference_clip * self.curvature

    def run(self, curator: Curator, problem: Problem, start: Array) -> Outcome:
        """Release a mixture, update the estimate, descend along it."""
        public, noise = curator.public, Gaussian(self.noise_multiplier)
        lengths = {"step_size": self.step_size, "clip": self.clip, "problem": problem, "public": public}
        step = partial(_step, momentum=self.momentum, **lengths)
        state = SpiderState(start, start, start, jnp.zeros_like(start), jnp.asarray(True))
        seen, error = Measures.read(_measured(state, **lengths)), EstimateError()
        for t in range(self.steps):
            change_clip = self._change_clip(seen.distance)
            fresh = self._stddev(seen.sensitivity)
            change = self._stddev(public.relation.factor * change_clip / public.n)
            gain = self._next_gain(t, error, fresh, change)
            released = curator.release(self._query(problem, state, gain, change_clip), noise)
            state, measured = step(state, released, gain)
            seen, error = Measures.read(measured), error.after(gain, mixed(gain, fresh, change))
            if not seen.finite:
                return Outcome(state.params, Status.DIVERGED)
        if not self.steps:
            return Outcome(state.params, Status.FINISHED)
        found = self._findings(
            problem,
            public,
            point=state.previous,
            estimate=state.estimate,
            slope=seen.slope,
            error=error,
        )
        return Outcome(state.params, Status.FINISHED, found)

    def _query(
        self, problem: Problem, state: SpiderState, gain: float, change_clip: float
    ) -> ClippedGradient | MixedGradient:
        """The gradient where nothing of the estimate is kept, else its mixture with the change."""
        if gain == 0.0:
            return ClippedGradient(loss=problem.loss, at=state.at, clip=self.clip)
        return MixedGradient(
            loss=problem.loss,
            at=state.at,
            previous=state.previous,
            clip=self.clip,
            change_clip=change_clip,
            gain=gain,
        )

    def _change_clip(self, distance: float) -> float:
        """C' = min(2 C, c L1 distance)."""
        return min(2.0 * self.clip, self.slope_clip * distance) if distance else 0.0

    def _stddev(self, sensitivity: float) -> float:
        """The noise of a release; 0 without noise, whatever the sensitivity."""
        return self.noise_multiplier * sensitivity if self.noise_multiplier else 0.0

    def _next_gain(self, t: int, error: EstimateError, fresh: float, change: float) -> float:
        """u of release t, from the noise of a gradient and of a change; without noise 0."""
        if not self.noise_multiplier:
            return 0.0
        return t / (t + 1.0) if self.gain == "average" else error.optimal_gain(fresh, change)

    def facts(self, instance: Instance) -> SpiderFacts:
        """What steps and prediction follow from, once the lengths are set."""
        steepest = instance.gradient_bound
        gap = instance.loss_at_zero
        return SpiderFacts(
            step_size=self.step_size / (1.0 - self.momentum),
            curvature=self.curvature,
            steepest=steepest if math.isfinite(steepest) else self.clip,
            slope_ratio=self.slope_clip / self.clip,
            strong=instance.ridge,
            parameters=instance.parameters,
            noise=descent_theory.noise_of_one(instance, self.clip),
            distance=self.distance,
            gap=math.inf if gap is None else gap,
        )

    def _predicted_excess(self, instance: Instance, known: SpiderFacts) -> tuple[float | None, str]:
        """The least of the predictions from what is known: a growth, a ridge, a convex loss with an optimum near."""
        growths: list[tuple[KL, str]] = []
        if self.growth is not None and self.growth.kappa <= 2.0:  # above, nothing is smooth
            growths.append((self.growth, "a prediction, not a bound, from the known growth"))
        if isinstance(instance.problem.loss, GLMLoss) and instance.problem.loss.convex:
            near = KL(gamma=known.distance, kappa=1.0, gap=known.gap)  # convex: excess <= |gradient| distance
            growths.append(
                (near, f"an upper estimate for an optimum within {known.distance:.3g} of the start")
            )
            if known.strong > 0:
                growths.append(
                    (KL.of_strong_convexity(known.strong, known.gap), "an upper estimate, from the ridge")
                )
        if not growths or not self.steps:
            return None, "no formula where the growth of the objective is not known"
        return min((known.predicted_excess(growth, self.steps), meaning) for growth, meaning in growths)

    def _findings(
        self,
        problem: Problem,
        public: Public,
        *,
        point: Float[Array, " *shape"],
        estimate: Float[Array, " *shape"],
        slope: float,
        error: EstimateError,
    ) -> Mapping[str, Finding]:
        """The estimate, its variance, and what they prove where no change is clipped on purpose; see `certificate`."""
        plain = problem.regulariser.is_smooth and isinstance(problem.constraint, Unconstrained)
        allowed = self.slope_clip * (1.0 + 1e-9)
        return certificate(
            point=point,
            estimate=estimate,
            slope=slope,
            error=error,
            failure=self.failure,
            clips_changes=self.difference_clip < 1.0,
            never_clipped=self.clip >= problem.gradient_bound(public)
            and allowed >= problem.loss_smoothness(public),
            growth=self.growth if plain else None,
            of="gradient of the objective" if plain else "proximal gradient map of the objective",
        )


@partial(jax.jit, static_argnames=("public",))
def _measured(
    state: SpiderState, *, step_size: float, clip: float, problem: Problem, public: Public
) -> Float[Array, " 4"]:
    """The entries of `Measures`."""
    gradient = ClippedGradient(loss=problem.loss, at=state.at, clip=clip)
    return jnp.stack(
        [
            _length(state.at - state.previous),
            jnp.asarray(gradient.sensitivity(public), float),
            _length(state.previous - state.params) / step_size,
            jnp.asarray(state.finite, float),
        ]
    )


@partial(jax.jit, static_argnames=("public",))
def _step(
    state: SpiderState,
    released: Array,
    gain: float,
    *,
    momentum: float,
    step_size: float,
    clip: float,
    problem: Problem,
    public: Public,
) -> tuple[SpiderState, Float[Array, " 4"]]:
    """The next state, and what the run reads of it."""
    moved = _moved(state, released, gain, momentum=momentum, step_size=step_size, problem=problem)
    return moved, _measured(moved, step_size=step_size, clip=clip, problem=problem, public=public)


@guarded
def _moved(
    state: SpiderState, released: Array, gain: float, *, momentum: float, step_size: float, problem: Problem
) -> SpiderState:
    """The estimate at w, a step along it x = prox(w - eta (v + grad r(w))), and the next w."""
    estimate = gain * state.estimate + released
    params = problem.proximal_step(state.at, estimate, step_size)
    at = params + momentum * (params - state.params)
    return SpiderState(params=params, at=at, previous=state.at, estimate=estimate, finite=state.finite)


def _length(vector: Array) -> Array:
    return jnp.sqrt(jnp.sum(vector * vector))
