"""Online-to-non-convex descent (O2NC): near-stationary points of losses that need be neither smooth nor convex.

Minimises F(x) + r(x), F = (1/n) sum_i f(x, xi_i), r smooth. For t = 1, ..., T, from x_0 = start and Delta_1 = 0,

    z_t = x_{t-1} + s_t Delta_t,   x_t = x_{t-1} + Delta_t             s_t in [0, 1] public, see `places`
    g_t = released mean of clipped gradients at z_t, plus grad r(z_t)
    Delta_{t+1} = project(Delta_t - eta_t g_t)                         onto the ball of radius D_t

The points z_t of a window of M steps lie within a small ball, so the mean of their g_t, with the noise of M releases
averaged, shows how flat F is near the mean of the points. A point is nearly stationary in the sense of Goldstein if
some average of gradients within a radius of it is short. The step and the windows are in
`solvers.online_to_nonconvex`.
Source: Kornowski, Liu, Talwar 2024, Algorithm 2, with mean gradients over all units in place of their gradient oracle.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from privopt.curator.base import Curator
from privopt.curator.loops import ReleaseCall
from privopt.later import Array, Float, jax, jnp
from privopt.ledger.events import Event, EveryUnit, NoEvent, Parallel, Poisson, Sampling, repeat, sequence
from privopt.mechanisms.additive import Gaussian
from privopt.planning import descent_theory
from privopt.planning.averaging import MOST_DIRECTIONS, two_point_values
from privopt.planning.goldstein_bounds import Oracle as BoundedOracle
from privopt.planning.goldstein_bounds import task_of, with_method_bounds, with_own_bound
from privopt.planning.goldstein_certificate import (
    CERTIFICATE_SHARE,
    Certified,
    certificate_picture,
    free_findings,
    released_findings,
)
from privopt.planning.notices import NOISE_IS_OFF, large_delta
from privopt.planning.plan import Finding, Picture
from privopt.planning.task import Forecast, Instance
from privopt.problems.ball import ball_point, haar_block
from privopt.problems.black_box import BlackBox
from privopt.problems.glm import GLMLoss
from privopt.problems.losses import RecordLoss
from privopt.problems.problem import Problem
from privopt.problems.regularisers import NoRegulariser
from privopt.proofs.gradient_spread import is_bounded
from privopt.public import Public
from privopt.queries.base import MeanQuery
from privopt.queries.gradient_norms import AveragedGradient, GradientAndCount, share_inside
from privopt.queries.slopes import ClippedGradient
from privopt.queries.smoothed import JitteredGradient, SmoothedGradient
from privopt.queries.values import ValueGradient
from privopt.result import Outcome, ending
from privopt.solvers.fields import choice, derived, number, optional
from privopt.solvers.online_to_nonconvex import (
    FAINT,
    PROVED_STEP_FACTOR,
    STEP_FACTOR,
    ConversionState,
    Mode,
    Places,
    Returns,
    Vector,
    WindowedSolver,
    flattest_block,
    mean_of_points,
    moved,
)

# ---- Defaults: see also the comment on windows in `solvers.online_to_nonconvex` -----------------------------
#     T = 300 steps (100 where a black box is called record by record), windows of M = 20 (T / 5 where T / 20 < 5)
#     eta_t = 4 D_t / (sqrt(M) sqrt(G^2 + p sigma^2)),  G = 0.3 C          "guarantee": 2 D / (sqrt(M) sqrt(C^2 + ...))
#             twice that, 4 times at little noise, for a user-written loss
#
# with p parameters and sigma the noise of a released gradient. The practical numbers were chosen by the loss on
# generated problems; those of user-written losses on the first three of benchmarks/own_losses_data.py. Utility only.
#
# Source:
#     Kornowski, Liu, Talwar 2024, Algorithm 2 and Proposition 2.6, with steps twice as large for the same radius and
#     eta = 2 D / (G sqrt(M)), since a window after the first starts anywhere in the ball of radius D.
OWN_STEP_FACTOR = 8.0  # of a user-written loss
LITTLE_NOISE = 0.004  # x below which steps of a user-written loss grow, to twice their size
SHORTENED, LEAST_SHORTENED, MOST_SHORTENED = 40.0, 0.01, 0.2  # of the units of a user-written loss, in x
STEPS_BY_CALLS = 100  # of a black box that is called record by record, where steps are dear
SMOOTHING, SMOOTHING_OF_PLATEAUS = 1.0 / 64.0, 1.0 / 16.0  # of the distance
VALUE_SMOOTHING = 0.1  # of a parameter's scale
HEIGHT = 0.19  # the entry that counts a unit as within the clip, over the clip; it adds 1.8 % to the noise
START_JITTER = 1e-3  # how far the start is moved off a possible kink, over D_1

Oracle = Literal["gradients", "exact", "jitter", "values"]


@dataclass(frozen=True, kw_only=True)
class O2NC(WindowedSolver):
    """Online-to-non-convex descent on private gradients; see the module for the symbols.

    Attributes:
        steps: T, rounded down to whole windows; 0 returns the start and spends nothing.
        window: M, over how many steps gradients and points are averaged; at most T.
        mode: "practical": the radius falls from a quarter of the distance; "guarantee": it is constant, as the bound
            supposes.
        distance: R, a guess of how far a good point is from the start; sets the radii of the practical mode.
        radius: a of the guarantee mode: the points of a window lie this close to their mean.
        clip: C, the largest norm of one unit's gradient.
        quantile: the share of the units whose gradients the clip is to leave as they are: it follows the shares that
            the steps release, from `clip` on and never below it. None for a clip that stays.
        clip_rate: how fast: each step multiplies it by exp(-clip_rate (share - quantile)).
        typical: G, the norm of a mean gradient that the step size allows for, beside the noise.
        step_factor: the step size in units of D / sqrt(M) over that norm, noise included.
        step_size: eta, the same at every step; default the schedule of `solvers.online_to_nonconvex`.
        places: where on each step the gradient is taken: "uniform" (anywhere, by public chance) or in its "middle".
        returns: "tail" (mean of the last tenth of the points), "last" (of the last window), "random" (of a uniformly
            random window) or "best" (of the window whose released gradients have the shortest mean).
        rate: q, each step on a secret Poisson sample of so large a part of the units; default everybody.
        oracle: what is asked for at a point: "gradients"; "exact", gradients of the loss averaged over a ball, by a
            formula; "jitter", gradients at a random point of the ball, another one for each unit; or "values",
            two-point differences along random orthonormal directions.
        smoothing: radius of that ball; 0 for gradients.
        directions: k, of values; fewer than parameters leave the rest to chance.
        blocks: each step on the next of so many disjoint random parts of the units, in turns; 1 is everybody.
        certificate_share: part of the budget, about, for a release of the mean gradient at the points of the result,
            which certifies it; 0 leaves the certificate that the steps' own releases give.
    Guarantee:
        T Gaussian releases, of sensitivity factor * C / n or what the loss allows at the point if that is less (see
        `ClippedGradient`; with a count of units beside it where the clip follows a quantile), with fixed multipliers:
        exactly (epsilon, delta)-DP by Gaussian-DP composition, under the curator's relation, for any data, loss and
        parameters. Samples are priced by numerical accounting; of disjoint parts the one that is used most often is
        charged. The places on the steps, directions and where the start is moved to are public random numbers;
        certificates are arithmetic on releases, the released one is one more of them.
    Differs from the paper:
        all units at every step, no differences of gradients: less noise, and a better bound by d^(1/4); radius
        D (M + 1) / 2 in place of D M; see docs/algorithms/o2nc.md for the errata.
    Source:
        Kornowski, Liu, Talwar 2024, Algorithm 2.
    """

    name: ClassVar[str] = "o2nc"

    window: int = derived(at_least=1)
    mode: Mode = choice("practical")
    distance: float = derived(above=0)
    radius: float = derived(above=0)
    clip: float = derived(above=0)
    quantile: float | None = optional(above=0, below=1)
    clip_rate: float = number(0.2, above=0)
    typical: float = derived(above=0)
    step_factor: float = derived(above=0)
    step_size: float | None = optional(above=0)
    places: Places = choice("uniform")
    returns: Returns = derived()
    oracle: Oracle = derived()
    smoothing: float = derived(at_least=0)
    directions: int = derived(at_least=1)
    rate: float | None = optional(above=0, at_most=1)
    blocks: int = number(1, at_least=1)
    certificate_share: float = derived(at_least=0, below=1)

    def default_oracle(self, instance: Instance) -> Oracle:
        """Values of a black box, the closed average of a generalised-linear loss with kinks, else gradients."""
        loss = instance.problem.loss
        if isinstance(loss, BlackBox):
            return "values"
        if self.smoothing == 0 or self.mode == "guarantee":
            return "gradients"
        if isinstance(loss, GLMLoss) and loss.outputs == 1 and math.isinf(loss.curvature):
            return "exact"
        return "jitter" if self.smoothing else "gradients"

    def default_smoothing(self, instance: Instance) -> float:
        """alpha_s: a tenth of a parameter's scale for values, R / 64 for kinks, R / 16 for plateaus."""
        loss = instance.problem.loss
        if self.oracle == "gradients":
            return 0.0
        if self.oracle == "values":
            return VALUE_SMOOTHING * (1.0 if isinstance(loss, BlackBox) else self.distance)
        return self.distance * (SMOOTHING_OF_PLATEAUS if loss.convex is False else SMOOTHING)

    def default_directions(self, instance: Instance) -> int:
        """k of values."""
        return min(instance.parameters, MOST_DIRECTIONS)

    def default_steps(self, instance: Instance) -> int:
        loss = instance.problem.loss
        return STEPS_BY_CALLS if isinstance(loss, BlackBox) and loss.host else super().default_steps(instance)

    def default_clip(self, instance: Instance) -> float:
        """C; of values as long as an estimate along one direction can be."""
        loss = instance.problem.loss
        if isinstance(loss, BlackBox) and instance.is_private:
            return (loss.high - loss.low) / (2.0 * self.smoothing)
        return descent_theory.default_clip(instance)

    def default_typical(self, instance: Instance) -> float:
        return self.usual_gradient(instance)

    def default_step_factor(self, instance: Instance) -> float:
        """The step size in units of D / (sqrt(M) |g|); at little noise more of it for a user-written loss."""
        if self.mode == "guarantee":
            return PROVED_STEP_FACTOR
        if not isinstance(instance.problem.loss, RecordLoss):
            return STEP_FACTOR
        noise = descent_theory.relative_noise(instance)
        return OWN_STEP_FACTOR * (2.0 if noise == 0 else min(max(LITTLE_NOISE / noise, 1.0), 2.0))

    def default_certificate_share(self, instance: Instance) -> float:
        """A tenth of the budget where a guarantee is asked for and there are gradients."""
        by_gradients = not isinstance(instance.problem.loss, BlackBox)
        return CERTIFICATE_SHARE if self.mode == "guarantee" and by_gradients else 0.0

    def check(self) -> None:
        """Refuse samples with values or with blocks, and a smoothed oracle without a radius."""
        if self.oracle == "values" and self.rate is not None:
            raise ValueError(
                "samples are drawn in a compiled loop, which values have no part in: leave out `rate`."
            )
        if self.oracle not in (None, "gradients") and self.smoothing == 0:
            raise ValueError(
                f"smoothing must be positive for oracle={self.oracle!r}: it is the radius of the ball."
            )
        if self.rate is not None and self.blocks > 1:
            raise ValueError(
                f"rate={self.rate!r} draws secret samples and blocks={self.blocks!r} takes parts in turns: give one "
                "of them."
            )

    def forecast(self, instance: Instance) -> Forecast:
        """The bounds on how flat the result is, and notices; no prediction of the excess."""
        meaning = "the method says how flat its result is, not how far it is from a minimum"
        notices: tuple[str, ...] = ()
        if self.oracle == "values" and self.directions < instance.parameters:
            notices += (
                f"values are taken along {self.directions} random directions a step of {instance.parameters} "
                "parameters: steps are noisier than with all of them. `directions` says how many.",
            )
        if not instance.is_private:
            return Forecast(meaning=meaning, notices=(NOISE_IS_OFF, *notices))
        notices = (*large_delta(instance), *notices)
        noise = self.deviation(instance.public)
        parameters = self.directions if self.oracle == "values" else instance.parameters
        if parameters * noise**2 > FAINT * self.clip**2 * self.window:
            notices += (
                "the noise of a window of steps is more than ten times the clip: the steps say next to nothing. More "
                "units, a larger epsilon or fewer parameters would help.",
            )
        return self._bounded(instance, Forecast(meaning=meaning, notices=notices))

    def _bounded(self, instance: Instance, found: Forecast) -> Forecast:
        """The forecast with what theorems say: of each method, and of this run where it meets their conditions."""
        lengths = {"clip": self.clip, "radius": self.radius + self.smoothing, "distance": self.distance}
        by_values = self.oracle == "values"
        found = with_method_bounds(found, instance, **lengths, values=by_values)
        proved = (
            self.mode == "guarantee"
            and self.returns == "random"
            and self.places == "uniform"
            and self.step_size is None
            and self.typical == self.clip
            and self.rate is None
            and self.blocks == 1
            and not (by_values and self.directions < instance.parameters)
        )
        if not proved:
            return found
        windows = self.windows
        oracle: BoundedOracle = "smoothed" if self.oracle == "exact" else self.oracle
        return with_own_bound(
            found,
            task_of(instance, **lengths),
            window=windows.window,
            blocks=windows.steps // windows.window,
            noise=self.deviation(instance.public),
            smoothing=self.smoothing,
            oracle=oracle,
        )

    def applicable(self, problem: Problem, public: Public) -> str | None:
        """Smooth penalties and no constraint set."""
        refused = super().applicable(problem, public)
        if refused is not None:
            return refused
        if self.quantile is not None and (self.oracle not in (None, "gradients") or self.rate is not None):
            return (
                "a clip that follows a quantile is for gradients on all units or parts: leave out `quantile`"
            )
        loss = problem.loss
        if isinstance(loss, BlackBox):
            if self.oracle not in (None, "values"):
                return "the loss is a black box, known by its values only: use oracle='values'"
            if self.rate is not None:
                return "values are not asked of samples: leave out `rate`"
            if self.certificate_share:
                return (
                    "the loss is a black box, without the gradients that a certificate needs: use "
                    "certificate_share=0"
                )
        if self.oracle == "exact" and not (isinstance(loss, GLMLoss) and loss.outputs == 1):
            return f"the {loss.name} loss has no closed average over a ball: use oracle='jitter'"
        if self.blocks > 1 and public.n < 2 * self.blocks:
            return f"{self.blocks} parts of n = {public.n} units have less than two units each: use fewer"
        return None

    @property
    def rounds(self) -> int:
        """T, rounded down to whole windows."""
        return self.windows.steps

    def deviation(self, public: Public) -> float:
        """sigma of the configured solver: the noise of a coordinate of one released gradient."""
        if self.noise_multiplier == 0.0:
            return 0.0
        units = public.n * (self.rate or 1.0) / self.blocks
        return self.noise_multiplier * public.relation.factor * self.clip / units

    def schedule(self, *, parameters: int, stddev: float) -> Vector:
        """eta_t, (T,), for p released numbers a step with noise of standard deviation sigma each."""
        return self.step_sizes(self.step_factor, math.hypot(self.typical, math.sqrt(parameters) * stddev))

    @property
    def certificate_noise(self) -> Gaussian:
        """The noise of the release that certifies the result, for about the share `certificate_share` of mu^2."""
        # The number of steps on all units that cost about as much as the run's steps on samples or blocks.
        turns = self.rounds * (self.rate or 1.0) ** 2 / self.blocks
        odds = (1.0 - self.certificate_share) / self.certificate_share
        return Gaussian(self.noise_multiplier * math.sqrt(odds / turns))

    def sampling(self) -> Sampling:
        """The units that take part in a step: all of them, or a Poisson sample at `rate`."""
        return EveryUnit() if self.rate is None or self.rate >= 1.0 else Poisson(self.rate)

    def step_event(self, public: Public) -> Event:
        """The event of one step: a Gaussian release, on a Poisson sample if `rate` is set."""
        return self.sampling().event(super().step_event(public))

    def event(self, public: Public) -> Event:
        """The T steps, with `blocks` as a parallel composition of the blocks' steps, and the certificate's release."""
        once, total = self.step_event(public), self.rounds
        if not total:
            return NoEvent()
        steps = repeat(once, total)
        if self.blocks > 1:
            turns = [len(range(part, total, self.blocks)) for part in range(self.blocks)]
            steps = Parallel(tuple(repeat(once, times) if times else NoEvent() for times in turns))
        return sequence((steps, self.certificate_noise.event())) if self.certificate_share else steps

    def releases(self) -> int:
        """One per step, and one for the certificate if it is released."""
        return self.rounds + (1 if self.rounds and self.certificate_share else 0)

    def passes(self) -> float:
        """Per step a pass, or the fraction of one that its sample or block is; one pass for a released certificate."""
        steps = self.rounds * (self.rate or 1.0) / self.blocks
        return steps + (1.0 if self.rounds and self.certificate_share else 0.0)

    def loss_values(self, problem: Problem, public: Public) -> float:
        """Two per direction and record of every pass, for the oracle "values"; 0 for the others."""
        del problem
        return two_point_values(public, self.directions, self.passes()) if self.oracle == "values" else 0.0

    def run(self, curator: Curator, problem: Problem, start: Array) -> Outcome:
        """Algorithm 2, then a certificate of near-stationarity from its releases, or from one more."""
        total = self.rounds
        if not total:
            return Outcome(start, ending(jnp.asarray(True)))
        drawn, windows = self.public_numbers(curator), self.windows
        if drawn.seed is not None and not self.smoothing:  # off a possible kink
            point = ball_point(jax.random.key(drawn.seed), start.size).reshape(start.shape)
            start = start + START_JITTER * float(windows.longest[0]) * point
        step_sizes = self.schedule(
            parameters=self.directions if self.oracle == "values" else start.size,
            stddev=self.deviation(curator.public),
        )
        # The result is the mean of `count` points z from number `first` on; only those are kept in the state.
        window, (first, count) = windows.window, windows.kept(self.returns, drawn.chosen)
        state = self.opened(start, step_sizes, drawn)
        if isinstance(self.sampling(), EveryUnit):
            state, seen = self._descend(curator, problem, state)
        else:
            state, seen = self._descend_on_samples(curator, problem, state), Seen()
        if self.returns == "best":
            first, count = window * int(flattest_block(state)), window
            state = state._replace(points=state.points[first : first + count])
        params = mean_of_points(state) if bool(state.finite) else state.at
        certified = self._certified_facts(curator.public, problem, params, state.points)
        clip_follows = (
            self.quantile is not None
        )  # a mean of gradients clipped at several norms certifies nothing
        findings, pictures = seen.shown(certified, slice(first, first + count), window, self.returns)
        findings = {} if clip_follows else findings
        if self.certificate_share:
            certified = replace(certified, oracle="gradients", smoothing=0.0)
            penalty = jnp.mean(jax.vmap(problem.regulariser.gradient)(state.points), axis=0)
            query = AveragedGradient(loss=problem.loss, points=state.points, clip=self.clip)
            released = curator.release(query, self.certificate_noise)
            scale = curator.transcript[-1].scale  # standard deviation of the noise per entry
            if scale is not None:
                findings = {**findings, **released_findings(certified, released + penalty, float(scale[0]))}
        return Outcome(params, ending(state.finite), findings, pictures)

    def _descend(
        self, curator: Curator, problem: Problem, state: ConversionState
    ) -> tuple[ConversionState, "Seen"]:
        """All T steps, on all units or on disjoint blocks in turns; the last state and the released gradients."""
        noise, seen, ask = Gaussian(self.noise_multiplier), Seen(), self._query_of_step(curator, problem)
        curators = curator.blocks(self.blocks) if self.blocks > 1 else [curator]
        clip = self.clip
        for turn in range(self.rounds):
            here = curators[turn % self.blocks]
            if self.quantile is None:
                query = ask(state.at, turn)
                gradient = in_parameters(query, here.release(query, noise))
            else:
                gradient, clip = self._gradient_and_next_clip(here, problem, state.at, clip)
            state, slope = _step(state, gradient, problem)
            seen.add(slope, curator.transcript[-1].scale)
        return state, seen

    def _gradient_and_next_clip(
        self, curator: Curator, problem: Problem, at: Array, clip: float
    ) -> tuple[Array, float]:
        """One release of a gradient and of the share of units that the clip leaves as they are; the next clip.

        The clip is multiplied by exp(-clip_rate (share - quantile)) and never falls below its start. Post-processing.
        """
        assert self.quantile is not None
        height = HEIGHT * clip if math.isfinite(clip) else 1.0
        query = GradientAndCount(loss=problem.loss, at=at, clip=clip, height=height)
        released = curator.release(query, Gaussian(self.noise_multiplier))
        inside = float(share_inside(released[-1], height))
        followed = clip * math.exp(-self.clip_rate * (inside - self.quantile))
        return jnp.reshape(released[:-1], at.shape), max(followed, self.clip)

    def _descend_on_samples(
        self, curator: Curator, problem: Problem, state: ConversionState
    ) -> ConversionState:
        """All T steps on Poisson samples, in one loop that the curator charges as a whole before the first step."""
        step = SampledStep(
            noise=Gaussian(self.noise_multiplier),
            sampling=self.sampling(),
            oracle=self.oracle,
            smoothing=self.smoothing,
        )
        first = SampledState(state, problem, jnp.asarray(self.clip, jnp.float64))
        return curator.iterate(step, first, self.rounds).conversion

    def _query_of_step(self, curator: Curator, problem: Problem) -> Callable[[Array, int], MeanQuery]:
        """The query of a step, as a function of the point z_t and of the index t - 1, which seeds the directions."""
        if self.oracle != "values":
            return lambda at, turn: gradient_query(self.oracle, problem, at, self.clip, self.smoothing)
        key = jax.random.key(curator.public_seed("directions"))

        def values(at: Array, turn: int) -> MeanQuery:
            return ValueGradient(
                loss=problem.loss,
                at=at,
                directions=haar_block(jax.random.fold_in(key, turn), self.directions, at.size),
                smoothing=self.smoothing,
                clip=self.clip,
            )

        return values

    def _certified_facts(self, public: Public, problem: Problem, params: Array, points: Array) -> Certified:
        """The facts that a certificate of this run depends on: points, clip, oracle, smoothing and who took part."""
        return Certified(
            point=params,
            points=points,
            clip=self.clip,
            oracle="smoothed" if self.oracle == "exact" else self.oracle,
            smoothing=self.smoothing,
            every_unit=self.blocks == 1,
            never_clipped=problem.gradient_bound(public) <= self.clip,
            unit=public.unit,
            penalised=not isinstance(problem.regulariser, NoRegulariser),
            scaled=isinstance(problem.loss, BlackBox),
            moving=(self.oracle == "gradients" and is_bounded(problem.loss)) or None,
        )


def gradient_query(oracle: Oracle, problem: Problem, at: Array, clip: Any, smoothing: float) -> MeanQuery:
    """The query for the mean gradient of the loss, or of its average over a ball, at a point."""
    loss: Any = problem.loss  # of the kind that the oracle needs: `applicable` has refused others
    match oracle:
        case "exact":
            return SmoothedGradient(loss=loss, at=at, smoothing=smoothing, clip=clip)
        case "jitter":
            return JitteredGradient(loss=loss, at=at, smoothing=smoothing, clip=clip)
        case _:
            return ClippedGradient(loss=loss, at=at, clip=clip)


def own_quantile(instance: Instance) -> float:
    """The share of the units of a user-written loss whose gradients the clip is to leave as they are.

    A clip that shortens a fifth of them keeps its bias however large the budget is, so it shortens fewer where there is
    less noise.
    """
    return 1.0 - min(
        max(SHORTENED * descent_theory.relative_noise(instance), LEAST_SHORTENED), MOST_SHORTENED
    )


def in_parameters(query: MeanQuery, released: Array) -> Array:
    """A released gradient estimate in the shape of the parameters; values are released per direction, (k,)."""
    return query.gradient(released) if isinstance(query, ValueGradient) else released


class Seen:
    """The released gradients of all steps and their noise, from which a certificate follows by post-processing."""

    def __init__(self) -> None:
        self._slopes: list[NDArray[np.float64]] = []
        self._scales: list[float] = []

    def add(self, slope: Array, scale: NDArray[np.float64] | None) -> None:
        """Add one step's g_t, penalty included, and the standard deviation of its noise per entry; None for 0."""
        self._slopes.append(np.asarray(slope, np.float64).ravel())
        self._scales.append(0.0 if scale is None else float(scale[0]))

    def shown(
        self, of: Certified, used: slice, window: int, returns: Returns
    ) -> tuple[Mapping[str, Finding], tuple[Picture, ...]]:
        """The certificate by the steps' own releases and its picture; empty for samples and without noise.

        Args:
            of: the facts that it depends on.
            used: the steps whose points make the result.
            window: M.
            returns: how those steps were found: a window chosen by its releases ("best") is not certified by them.
        """
        if not any(self._scales) or not self._slopes:
            return {}, ()
        picture = certificate_picture(self._slopes, self._scales, window=window, moving=of.moving)
        if returns == "best":
            return {}, (picture,)
        slopes = np.stack(self._slopes[used])
        return free_findings(of, slopes, np.asarray(self._scales[used])), (picture,)


class SampledState(NamedTuple):
    """The iterates, and the settings that may differ between calls of one compiled loop."""

    conversion: ConversionState  # a function of released values
    problem: Problem
    clip: Float[Array, ""]  # C, gradient units


@dataclass(frozen=True, kw_only=True)
class SampledStep:
    """One step, hashable by value so that equal configurations share one compiled loop."""

    noise: Gaussian
    sampling: Sampling
    oracle: Oracle
    smoothing: float

    def __call__(self, state: SampledState, release: ReleaseCall) -> SampledState:
        """g = released mean over the sampled units, then a step along it."""
        query = gradient_query(self.oracle, state.problem, state.conversion.at, state.clip, self.smoothing)
        gradient = release(query, self.noise, self.sampling)
        return state._replace(conversion=_step(state.conversion, gradient, state.problem)[0])


@jax.jit
def _step(state: ConversionState, gradient: Array, problem: Problem) -> tuple[ConversionState, Array]:
    """One step on a released gradient of the mean loss; the new state and g_t, the penalty's gradient added."""
    slope = gradient + problem.regulariser.gradient(state.at)
    return moved(state, slope), slope
