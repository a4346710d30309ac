"""Online-to-non-convex descent (O2NC): near-stationary points of losses that need be neither smooth nor convex.

Minimises F(x) + r(x), F = (1/n) sum_i f(x, xi_i), r smooth. For t = 1, ..., T, from x_0 = start and Delta_1 = 0,

    z_t = x_{t-1} + s_t Delta_t,   x_t = x_{t-1} + Delta_t             s_t in [0, 1] public, see `places`
    g_t = released mean of clipped gradients at z_t, plus grad r(z_t)
    Delta_{t+1} = project(Delta_t - eta_t g_t)                         onto the ball of radius D_t

The points z_t of a window of M steps lie within a small ball, so the mean of their g_t, with the noise of M releases
averaged, shows how flat F is near the mean of the points. A point is nearly stationary in the sense of Goldstein if
some average of gradients within a radius of it is short. The step is in `solvers.online_to_nonconvex`, the defaults of
T, M, D_t and eta_t are in `planning.o2nc`.
Source: Kornowski, Liu, Talwar 2024, Algorithm 2, with mean gradients over all units in place of their gradient oracle.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from numpy.typing import NDArray

from privopt.curator.base import Curator
from privopt.curator.loops import ReleaseCall
from privopt.ledger.events import Event, EveryUnit, NoEvent, Parallel, Poisson, Sampling, repeat, sequence
from privopt.mechanisms.additive import Gaussian
from privopt.planning import o2nc as planning
from privopt.planning.averaging import two_point_values
from privopt.planning.goldstein_certificate import (
    Certified,
    certificate_picture,
    free_findings,
    released_findings,
)
from privopt.planning.o2nc import Places, places_of, step_length, whole_blocks
from privopt.planning.plan import Finding, Picture
from privopt.planning.task import Forecast, Instance
from privopt.problems.ball import ball_point, haar_block
from privopt.problems.black_box import BlackBox
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
from privopt.solvers.base import StepwiseSolver
from privopt.solvers.fields import choice, derived, number, optional
from privopt.solvers.needs import Need, NoSet, SmoothPenalty
from privopt.solvers.online_to_nonconvex import (
    ConversionState,
    flattest_block,
    mean_of_points,
    moved,
    opened,
    schedule,
)

HEIGHT = 0.19  # the entry that counts a unit as within the clip, over the clip; it adds 1.8 % to the noise
START_JITTER = 1e-3  # how far the start is moved off a possible kink, over D_1


@dataclass(frozen=True, kw_only=True)
class O2NC(StepwiseSolver):
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
        step_size: eta, the same at every step; default the schedule of `planning.o2nc`.
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
    needs: ClassVar[tuple[Need, ...]] = (
        NoSet("its points move in balls around each other and cannot be kept in a set: leave the set out"),
        SmoothPenalty("it adds the penalty's gradient, and the penalty has none: use a ridge or no penalty"),
    )
    by_values: ClassVar[bool] = True

    window: int = derived(at_least=1)
    mode: Literal["practical", "guarantee"] = choice("practical")
    distance: float = derived(above=0)
    radius: float = derived(above=0)
    clip: float = derived(above=0)
    quantile: float | None = optional(above=0, below=1)
    clip_rate: float = number(0.2, above=0)
    typical: float = derived(above=0)
    step_factor: float = derived(above=0)
    step_size: float | None = optional(above=0)
    places: Places = choice("uniform")
    returns: planning.Returns = derived()
    oracle: planning.Oracle = derived()
    smoothing: float = derived(at_least=0)
    directions: int = derived(at_least=1)
    rate: float | None = optional(above=0, at_most=1)
    blocks: int = number(1, at_least=1)
    certificate_share: float = derived(at_least=0, below=1)

    def default_distance(self, instance: Instance) -> float:
        return planning.distance(self, instance)

    def default_radius(self, instance: Instance) -> float:
        del instance
        return self.distance * planning.GUARANTEE_RADIUS

    def default_oracle(self, instance: Instance) -> planning.Oracle:
        return planning.oracle(self, instance)

    def default_smoothing(self, instance: Instance) -> float:
        return planning.smoothing(self, instance)

    def default_directions(self, instance: Instance) -> int:
        return planning.directions(self, instance)

    def default_steps(self, instance: Instance) -> int:
        return planning.steps(self, instance)

    def default_window(self, instance: Instance) -> int:
        return planning.window(self, instance)

    def default_clip(self, instance: Instance) -> float:
        return planning.clip(self, instance)

    def default_typical(self, instance: Instance) -> float:
        return planning.typical(self, instance)

    def default_step_factor(self, instance: Instance) -> float:
        return planning.step_factor(self, instance)

    def default_returns(self, instance: Instance) -> planning.Returns:
        del instance
        return "last" if self.mode == "guarantee" else "tail"

    def default_certificate_share(self, instance: Instance) -> float:
        return planning.certificate_share(self, instance)

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
        return planning.forecast(self, instance)

    def applicable(self, problem: Problem, public: Public) -> str | None:
        """Smooth penalties and no constraint set."""
        refused = super().applicable(problem, public)
        if refused is not None:
            return refused
        if self.quantile is not None and (self.oracle not in (None, "gradients") or self.rate is not None):
            return (
                "a clip that follows a quantile is for gradients on all units or parts: leave out `quantile`"
            )
        missing = planning.oracle_obstacle(self, problem)
        if missing is not None:
            return missing
        if self.blocks > 1 and public.n < 2 * self.blocks:
            return f"{self.blocks} parts of n = {public.n} units have less than two units each: use fewer"
        return None

    @property
    def rounds(self) -> int:
        """T, rounded down to whole windows."""
        return planning.rounds(self)

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
        start, places, chosen = self._draw_public_numbers(curator, start)
        longest, step_sizes = planning.schedule(
            self,
            parameters=self.directions if self.oracle == "values" else start.size,
            stddev=planning.deviation(self, curator.public),
        )
        window = whole_blocks(self.steps, self.window)[1]
        # The result is the mean of `count` points z from number `first` on; only those are kept in the state.
        first, count = planning.kept(self, chosen)
        state = opened(start, schedule(longest, step_sizes, places), window=window, first=first, kept=count)
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

    def _draw_public_numbers(self, curator: Curator, start: Array) -> tuple[Array, NDArray[np.float64], int]:
        """The start, moved off a possible kink; s_1, ..., s_T, (T,); the index of a random window: by public seeds."""
        total, window = whole_blocks(self.steps, self.window)
        chosen = 0
        if self.returns == "random":
            generator = np.random.default_rng(curator.public_seed("random window"))
            chosen = int(generator.integers(total // window))
        if self.places == "middle":
            return start, places_of("middle", total), chosen
        seed = curator.public_seed("places on the steps")
        if self.smoothing:
            return start, places_of("uniform", total, seed), chosen
        point = ball_point(jax.random.key(seed), start.size).reshape(start.shape)
        first = step_length(float(planning.radii(self)[0]), window)
        return start + START_JITTER * first * point, places_of("uniform", total, seed), chosen


def gradient_query(
    oracle: planning.Oracle, problem: Problem, at: Array, clip: Any, smoothing: float
) -> MeanQuery:
    """The query for the mean gradient of the loss, or of its average over a ball, at a point."""
    loss: Any = problem.loss  # of the kind that the oracle needs: `applicable` has refused others
    match oracle:
        case "exact":
            return SmoothedGradient(loss=loss, at=at, smoothing=smoothing, clip=clip)
        case "jitter":
            return JitteredGradient(loss=loss, at=at, smoothing=smoothing, clip=clip)
        case _:
            return ClippedGradient(loss=loss, at=at, clip=clip)


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
        self, of: Certified, used: slice, window: int, returns: planning.Returns
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
    oracle: planning.Oracle
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
