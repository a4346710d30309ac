"""Accelerated phases on regularised problems, from private means of users' gradients.

Source: Lowy, Liu, Asi 2024, Algorithms 2 and 3; Ghadimi, Lan 2012 (AC-SA, single and multi-stage).
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple, Self

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from privopt.curator.base import Curator
from privopt.curator.handles import Held, Stream
from privopt.ledger.events import Event, EveryUnit, NoEvent, Parallel, Poisson, Sampling, sequence
from privopt.mechanisms.additive import Gaussian
from privopt.mechanisms.tests import GaussianTest, SparseTest, TestedSamples
from privopt.planning import descent_theory, stable_mean, users
from privopt.planning import phased_accelerated_erm as planning
from privopt.planning.stable_mean import OUTLIERS, StableNumbers
from privopt.planning.task import Forecast, Instance
from privopt.problems.problem import Problem
from privopt.public import Public
from privopt.queries.base import MeanQuery, StatisticOfHeld
from privopt.queries.gradient_norms import GradientAndCount, share_inside
from privopt.queries.moments import TopCurvature
from privopt.queries.slopes import ClippedGradient
from privopt.queries.users import HeldMean, HuberCentre, HuberScore
from privopt.result import Outcome, ending
from privopt.solvers.base import Solver
from privopt.solvers.fields import choice, derived, guarded, number, optional
from privopt.solvers.held_means import MeanRelease, StableMean
from privopt.status import Status


# ---- Stable means in many steps behind one sparse vector: each is released if its test says to go on -------
@dataclass(frozen=True, kw_only=True)
class StableMeans:
    """The Huber centres of points that are held anew in every step, see `StableMean`, behind one sparse vector.

    Attributes:
        spread: b*, a radius around their mean that holds all but a fraction `outliers` of the points.
        search: the tests: reversed, it goes on while scores reach the threshold. `TestedSamples` asks about a fresh
            sample in every step, and releases the centres as well.
        noise: of every centre.
        steps: how many tests and centres there are at most.
        outliers: o.
    """

    spread: float
    search: SparseTest
    noise: Gaussian
    steps: int
    outliers: float = OUTLIERS

    def event(self) -> Event:
        """The tests with their bad event, and the centres."""
        if self.sampled:
            return self.search.event()
        return sequence((self.search.event(), *(self.noise.event() for _ in range(self.steps))))

    @property
    def sampled(self) -> bool:
        """Whether every step looks at a secret sample."""
        return isinstance(self.search, TestedSamples)

    def numbers(self, points: int, *, replaced: bool) -> StableNumbers:
        """The public numbers of a test.

        Args:
            points: K.
            replaced: whether a neighbour replaces a point.
        Raises:
            BudgetTooSmall: there are too few points for the noise.
        """

        def found(count: int) -> StableNumbers | None:
            slack = self.search.threshold + self.search.threshold_for(
                stable_mean.FALSE_SKIP, max(1, self.steps)
            )
            return stable_mean.stable_numbers(
                count,
                self.search.threshold,
                int(slack) + 1,
                replaced=replaced,
                outliers=self.outliers,
                sampled=self.sampled,
            )

        numbers = found(points)
        if numbers is None:
            raise stable_mean.too_few(
                points, stable_mean.smallest_enough(lambda count: found(count) is not None)
            )
        return numbers

    def cost(self, points: int, *, replaced: bool) -> float:
        """K times a centre's noise over the spread, for a noise multiplier of 1: around a known centre it is 2."""
        numbers = self.numbers(points, replaced=replaced)
        return points * numbers.shift / numbers.inner

    def open(self, curator: Curator) -> Stream:
        """Pay for the tests."""
        return curator.stream("tests of steps", self.search)

    def release(self, curator: Curator, tests: Stream, query: MeanQuery, centre: Array) -> MeanRelease:
        """One step: its test, and if it passes its centre.

        Args:
            curator: whose units the points are of.
            tests: from `open`; a failed test closes it.
            query: the points of this step.
            centre: v0, (k,), public or released.
        Returns:
            The centre given and `HALTED` where the test failed.
        """
        held = self._held(curator, tests, query)
        numbers = self.numbers(held.points, replaced=held.replaced)
        origin = jnp.asarray(centre, jnp.float64)
        place: dict[str, Any] = {
            "held": held,
            "origin": origin,
            "radius": self.spread / numbers.inner,
            "least": numbers.least,
            # A drawn block may hold more units than its public size; the score is cut where N0 is not more than half.
            "steps": numbers.steps(2 * held.points if curator.public.drawn or self.sampled else held.points),
        }
        if bool(tests.ask("answer", HuberScore(**place))):
            return MeanRelease(origin, Status.HALTED)
        moved = self._released(curator, tests, HuberCentre(**place))
        return MeanRelease(origin + moved, Status.FINISHED)

    def clipped(
        self, curator: Curator, tests: Stream, query: MeanQuery, centre: Array, radius: float
    ) -> MeanRelease:
        """A step after a failed test: the points clipped around the centre given, with the noise that was paid for.

        Args:
            curator: whose units the points are of.
            tests: from `open`, closed by now.
            query: the points of this step, held anew: of a fresh sample, if there are samples.
            centre: v0, (k,), public or released.
            radius: of the clip.
        """
        origin = jnp.asarray(centre, jnp.float64)
        mean = HeldMean(held=self._held(curator, tests, query), centre=origin, radius=radius)
        return MeanRelease(origin + self._released(curator, tests, mean), Status.FELL_BACK)

    def _held(self, curator: Curator, tests: Stream, query: MeanQuery) -> Held:
        return curator.hold(query, sample=tests) if self.sampled else curator.hold(query)

    def _released(self, curator: Curator, tests: Stream, statistic: StatisticOfHeld) -> Array:
        """By the stream where the points are its sample, else on its own."""
        if self.sampled:
            return jnp.asarray(tests.ask("mean", statistic))
        return curator.release(statistic, self.noise)


# ---- Accelerated stochastic approximation (AC-SA): Nesterov's two sequences, for gradients with noise ------
# Minimises a function h, mu-strongly convex with a Lipschitz gradient, plus a simple penalty over a closed convex set,
# from one unbiased gradient a step. With D the distance from the start to the minimum and V^2 the mean squared noise of
# a gradient,
#
#     E h(average) - min h <= 2 L D^2 / (T (T + 1)) + 8 V^2 / (mu (T + 1)).
#
# Source:
#     Ghadimi, Lan 2012, sections 2.2 and 3; their step sizes for strongly convex functions.
class ACSAState(NamedTuple):
    """Where AC-SA stands; every entry is a function of released values."""

    params: Float[Array, " *shape"]  # x, moves by long steps
    average: Float[Array, " *shape"]  # x_ag, what is returned
    time: Float[Array, ""]  # t, steps taken
    finite: Bool[Array, ""]  # whether every entry so far was; from the first that was not, nothing moves

    @classmethod
    def at(cls, params: Float[Array, " *shape"]) -> Self:
        """Before the first step."""
        return cls(params, params, jnp.zeros(()), jnp.asarray(True))

    def restarted(self) -> Self:
        """A new run that begins where this one ended."""
        return self._replace(params=self.average, time=jnp.zeros_like(self.time))


@jax.jit
def gradient_point(
    state: ACSAState, *, strong_convexity: Array, smoothness: Array
) -> Float[Array, " *shape"]:
    """x_md, where the next gradient is taken.

    Args:
        state: where AC-SA stands.
        strong_convexity: mu.
        smoothness: L.
    """
    alpha, gamma = _step_sizes(state.time + 1.0, smoothness)
    mu = strong_convexity
    to_average, to_params = (1.0 - alpha) * (mu + gamma), alpha * ((1.0 - alpha) * mu + gamma)
    return (to_average * state.average + to_params * state.params) / (gamma + (1.0 - alpha**2) * mu)


@jax.jit
@guarded
def ac_sa_step(
    state: ACSAState,
    middle: Array,
    gradient: Array,
    *,
    problem: Problem,
    strong_convexity: Array,
    smoothness: Array,
) -> ACSAState:
    """x and x_ag after a gradient at x_md.

    Args:
        state: where AC-SA stands.
        middle: x_md.
        gradient: G, of everything but the problem's non-smooth penalty.
        problem: its proximal map is taken.
        strong_convexity: mu.
        smoothness: L.
    """
    alpha, gamma = _step_sizes(state.time + 1.0, smoothness)
    mu = strong_convexity
    kept = (1.0 - alpha) * mu + gamma
    moved = (alpha * mu * middle + kept * state.params - alpha * gradient) / (mu + gamma)
    params = problem.prox(moved, alpha / (mu + gamma))
    return ACSAState(
        params=params,
        average=alpha * params + (1.0 - alpha) * state.average,
        time=state.time + 1.0,
        finite=state.finite,
    )


def _step_sizes(t: Array, smoothness: Array) -> tuple[Array, Array]:
    """alpha_t = 2 / (t + 1) and gamma_t = 4 L / (t (t + 1))."""
    return 2.0 / (t + 1.0), 4.0 * smoothness / (t * (t + 1.0))


class MeanState(NamedTuple):
    """How the private mean of the next step is taken; a function of releases."""

    clip: float  # c
    stable: bool  # whether tests are asked, or all steps clip from here on
    status: Status


class OpenTests(NamedTuple):
    """The sparse vector of a phase, and the stream that answers it."""

    means: StableMeans
    stream: Stream


class Regularised(NamedTuple):
    """What a phase adds to the objective, (lam / 2) |x - anchor|^2, and the smoothness of the sum."""

    anchor: Array  # x_(i-1)
    strength: float  # lam_i
    smoothness: float  # L


@dataclass(frozen=True, kw_only=True)
class PhasedAcceleratedERM(Solver):
    """Phases of accelerated gradient descent on F(x) + (lam_i / 2) |x - x_(i-1)|^2, each from where the last one ended.

    Attributes:
        noise_multiplier: z of a step, of test and released mean together where both are Gaussian.
        aggregator: how a step's mean gradient is taken: "clip" around zero, "adaptive" (the clip follows a quantile
            of the users' norms), or "stable" (around an unknown centre, behind a test that most users are near it).
        phases: l, at least 0; 0 returns the start and spends nothing.
        reuse: whether all users take part in every phase, which divide the budget; else each phase has its own.
        share_decay: q, users of disjoint phases are proportional to 2^(-q i).
        distance: R, a guess of the distance to the optimum; utility only.
        probe_share: of mu^2, for a release of the rows' curvature that the steps then follow; 0 for none, as where
            `smoothness` is given.
        smoothness: beta of the mean loss and the penalty, at most; utility only.
        strength: lam of the first phase.
        strength_growth: p, lam_i = lam 2^(p i).
        stages: "single" run of AC-SA in a phase, or "multi": several, each of which halves the bound on the gap.
        most_steps: of a phase.
        lengths: the steps of every run of AC-SA, phase by phase.
        rate: of the users in a step, drawn anew each time; 1 is everybody. For less work a step, not for less noise.
        clip: c of a user's weighted mean gradient; where it starts if it is adaptive.
        quantile: the share of users that an adaptive clip leaves alone.
        spread: b*, around their centre, where most users' gradients are expected.
        tests: "gaussian", one noise a test; "sparse-vector", one noisy threshold a phase; "none" without tests.
        bad_event_delta: delta_1, the probability of a test that passes though it should not.
        test_share: of a step's rho, for a Gaussian test.
        test_epsilon: of the whole budget, for sparse vectors.
        after_failure: "clip" around zero from the failed test on, or "halt" with the last private iterate.
    Guarantee:
        (epsilon, delta)-DP for a unit, under replace-one and under add-or-remove-one, for any data, loss and
        parameters. Clipped means are Gaussian releases. A tested mean is one as well, but for data on which a test
        passes that should not, which has probability `bad_event_delta` a test: an additive part of delta.
    Differs from the paper:
        Noise is calibrated. The noisy threshold of a sparse vector is drawn once a phase: drawn anew in every step, as
        printed, it is not private. Users of a step are drawn without replacement, if at all, and the price of tests on
        a sample counts what they say about it. The gradient is taken at AC-SA's middle point, and the last step's
        gradient is used. All users are in all phases by default. A failed test ends nothing: the run clips around zero
        from there, or returns its last private iterate, never 0.
    Source:
        Lowy, Liu, Asi 2024, Algorithms 2 and 3.
    """

    name: ClassVar[str] = "phased-accelerated-erm"
    made_for_users: ClassVar[bool] = True
    for_convex: ClassVar[str] = "its accelerated stages and their bound"

    aggregator: Literal["clip", "adaptive", "stable"] = choice("adaptive")
    phases: int = derived(at_least=0)
    reuse: bool = True
    share_decay: float = number(1.0, above=0, below=math.inf)
    distance: float = derived(above=0)
    probe_share: float = derived(at_least=0, below=1)
    smoothness: float = derived(above=0, below=math.inf)
    strength: float = derived(above=0, below=math.inf)
    strength_growth: float = number(1.0, at_least=0, below=math.inf)
    stages: Literal["single", "multi"] = choice("single")
    most_steps: int | None = optional(at_least=1)
    lengths: tuple[tuple[int, ...], ...] = derived()
    rate: float = number(1.0, above=0, at_most=1)
    clip: float = derived(above=0)
    quantile: float = derived(above=0, below=1)
    spread: float = derived(above=0)
    tests: Literal["none", "gaussian", "sparse-vector"] = derived()
    bad_event_delta: float = derived(at_least=0, below=1)
    test_share: float = derived(above=0, below=1)
    test_epsilon: float = derived(above=0)
    after_failure: Literal["clip", "halt"] = choice("clip")

    def default_phases(self, instance: Instance) -> int:
        del instance
        return planning.PHASES

    def default_probe_share(self, instance: Instance) -> float:
        return planning.probe_share(self, instance)

    def default_distance(self, instance: Instance) -> float:
        return users.distance(instance)

    def default_smoothness(self, instance: Instance) -> float:
        return descent_theory.smoothness(instance) + instance.penalty_smoothness

    def default_strength(self, instance: Instance) -> float:
        return planning.strength(self, instance)

    def default_lengths(self, instance: Instance) -> tuple[tuple[int, ...], ...]:
        return planning.lengths(self, instance)

    def default_clip(self, instance: Instance) -> float:
        return planning.clip(self, instance)

    def default_quantile(self, instance: Instance) -> float:
        return planning.quantile(self, instance)

    def default_spread(self, instance: Instance) -> float:
        return planning.spread(self, instance)

    def default_tests(self, instance: Instance) -> Literal["none", "gaussian", "sparse-vector"]:
        return planning.tests_by(self, instance)

    def default_bad_event_delta(self, instance: Instance) -> float:
        return planning.bad_event_delta(self, instance)

    def default_test_share(self, instance: Instance) -> float:
        return planning.test_share(self, instance)

    def default_test_epsilon(self, instance: Instance) -> float:
        return 0.25 * instance.budget.epsilon if instance.is_private else 1.0

    def check(self) -> None:
        """Refuse tests that do not go with the aggregator or the sampling."""
        if not self.is_set("tests"):
            return
        if self.aggregator != "stable" and self.tests != "none":
            raise ValueError(
                f"tests={self.tests!r} would be paid for and never asked: only aggregator='stable' has tests, got "
                f"{self.aggregator!r}. Leave out tests, or use aggregator='stable'."
            )
        if self.aggregator == "stable" and self.tests == "none":
            raise ValueError(
                "aggregator='stable' releases every mean behind a test, got tests='none': use 'gaussian' or "
                "'sparse-vector', or leave out tests."
            )
        if self.aggregator == "stable" and self.tests == "gaussian" and self.rate < 1.0:
            raise ValueError(
                f"aggregator='stable' with rate = {self.rate!r} below 1 needs tests='sparse-vector', got 'gaussian': "
                "nothing else has a price on samples."
            )

    def event(self, public: Public) -> Event:
        """The steps of every phase, on all users one after the other, or each phase on its own."""
        del public
        events = tuple(self._phase_event(count) for count in planning.steps(self))
        probe = (Gaussian(planning.probe_multiplier(self)).event(),) if self.probe_share > 0 else ()
        return sequence((*probe, *(events if self.reuse or not events else (Parallel(events),))))

    def releases(self) -> int:
        """One a step, and one a test."""
        taken = sum(planning.steps(self)) * (1 if self.tests == "none" else 2)
        return taken + (1 if self.probe_share > 0 else 0)

    def passes(self) -> float:
        """A pass a step, over those who take part."""
        counts = planning.steps(self)
        if self.reuse:
            return self.rate * sum(counts)
        weights = users.phase_sizes(10**9, self.phases, self.share_decay)
        return self.rate * math.fsum(
            count * weight / 1e9 for count, weight in zip(counts, weights, strict=True)
        )

    def held_numbers(self, problem: Problem, public: Public) -> int:
        """Where means are tested, a gradient of every unit of a phase."""
        if self.aggregator != "stable" or self.phases == 0:
            return 0
        units = public.n
        if not self.reuse:
            units = max(users.phase_sizes(public.n, self.phases, self.share_decay))
        return units * math.prod(problem.parameter_shape(public))

    def forecast(self, instance: Instance) -> Forecast:
        return planning.forecast(self, instance)

    def configure(self, instance: Instance) -> Self:
        """Derive what was left open, calibrate the noise, and refuse tests that there are too few users for."""
        solver = super().configure(instance)
        planning.require_worthwhile(solver, instance)
        return solver

    def run(self, curator: Curator, problem: Problem, start: Array) -> Outcome:
        """Algorithm 3; every phase runs Algorithm 2."""
        state, mean = (
            ACSAState.at(start),
            MeanState(self.clip, self.aggregator == "stable", Status.FINISHED),
        )
        smoothness = self._smoothness(curator, problem)
        for part, lam, stages in self._phases(curator):  # Alg. 3, lines 3 to 6
            regularised = Regularised(anchor=state.average, strength=lam, smoothness=lam + smoothness)
            state, mean = self._phase(part, problem, regularised, stages, state, mean)  # line 7
            if mean.status is Status.HALTED:
                break
        return Outcome(state.average, mean.status if bool(state.finite) else ending(state.finite))

    def _smoothness(self, curator: Curator, problem: Problem) -> float:
        """beta, by the probe where there is one: with two standard deviations of its noise, at most the given one."""
        public = curator.public
        if self.probe_share == 0.0:
            return self.smoothness
        query, noise = TopCurvature(row_bound=public.row_bound), Gaussian(planning.probe_multiplier(self))
        released = float(curator.release(query, noise))
        stddev = noise.noise_multiplier * float(query.sensitivity(public))
        return planning.probed_smoothness(self.smoothness, released, stddev, problem, public)

    def _phases(self, curator: Curator) -> Iterator[tuple[Curator, float, tuple[int, ...]]]:
        if self.reuse or self.phases == 0:
            parts = [curator] * self.phases
        else:
            sizes = users.phase_sizes(curator.public.n, self.phases, self.share_decay)
            parts = curator.blocks(sizes)
        yield from zip(parts, planning.strengths(self), self.lengths, strict=True)

    def _phase(
        self,
        curator: Curator,
        problem: Problem,
        regularised: Regularised,
        stages: tuple[int, ...],
        state: ACSAState,
        mean: MeanState,
    ) -> tuple[ACSAState, MeanState]:
        """Algorithm 2, in runs of AC-SA that begin where the one before ended."""
        lam, anchor = regularised.strength, regularised.anchor
        strong = jnp.asarray(lam + problem.regulariser.strong_convexity, jnp.float64)
        smooth = jnp.asarray(regularised.smoothness, jnp.float64)
        if self.rate < 1.0 and self.aggregator == "stable":
            mean = mean._replace(stable=True)  # the noise of a phase is paid for with its tests
        tests = self._open_tests(curator, mean, sum(stages))
        for length in stages:
            state = state.restarted()
            for _ in range(length):  # Alg. 2, line 2
                middle = gradient_point(state, strong_convexity=strong, smoothness=smooth)
                gradient, mean = self._gradient(curator, problem, middle, mean, tests)  # lines 3 to 14
                if mean.status is Status.HALTED:  # line 18, but what is private already is returned
                    return state, mean
                slope = gradient + problem.regulariser.gradient(middle) + lam * (middle - anchor)
                state = ac_sa_step(  # line 15
                    state, middle, slope, problem=problem, strong_convexity=strong, smoothness=smooth
                )
        return state, mean

    def _gradient(
        self, curator: Curator, problem: Problem, at: Array, mean: MeanState, tests: OpenTests | None
    ) -> tuple[Array, MeanState]:
        """The private mean of the users' gradients, on the scale of an unweighted mean, and how to take the next."""
        noise, scale = Gaussian(planning.mean_multiplier(self)), curator.public.typical_weight
        if not mean.stable and self.aggregator == "adaptive":
            height = planning.COUNT_HEIGHT * mean.clip
            both = GradientAndCount(loss=problem.loss, at=at, clip=mean.clip, height=height)
            released = curator.release(both, noise, self._sampling())
            inside = float(share_inside(released[-1], height)) if math.isfinite(height) else self.quantile
            moved = mean.clip * math.exp(-planning.QUANTILE_RATE * (inside - self.quantile))
            return jnp.reshape(released[:-1], at.shape) / scale, mean._replace(clip=moved)
        if not mean.stable and (tests is None or not tests.means.sampled):
            clipped = ClippedGradient(loss=problem.loss, at=at, clip=mean.clip)
            return curator.release(clipped, noise, self._sampling()) / scale, mean
        return self._stable_gradient(curator, problem, at, mean, tests)

    def _tested_mean(self, fallback: float | None) -> StableMean:
        """One step's mean behind a Gaussian test."""
        test = GaussianTest(self.noise_multiplier / math.sqrt(self.test_share), self.bad_event_delta)
        noise = Gaussian(planning.mean_multiplier(self))
        return StableMean(
            spread=self.spread, test=test, noise=noise, outliers=planning.OUTLIERS, fallback=fallback
        )

    def means(self, count: int) -> StableMeans:
        """The means of a phase of `count` steps behind one sparse vector."""
        return StableMeans(
            spread=self.spread,
            search=planning.search(self, count),
            noise=Gaussian(planning.mean_multiplier(self)),
            steps=count,
            outliers=planning.OUTLIERS,
        )

    def _phase_event(self, count: int) -> Event:
        """What a phase of `count` steps releases."""
        if self.tests == "sparse-vector":
            return self.means(count).event() if count > 0 else NoEvent()
        if self.tests == "gaussian":
            mean = self._tested_mean(None)
            step = (mean.test.event(), mean.noise.event())
        else:
            step = (self._sampling().event(Gaussian(self.noise_multiplier).event()),)
        return sequence(step * count)

    def _stable_gradient(
        self, curator: Curator, problem: Problem, at: Array, mean: MeanState, tests: OpenTests | None
    ) -> tuple[Array, MeanState]:
        """The same around an unknown centre, behind a test; clipped around zero where it fails, from then on."""
        scale = curator.public.typical_weight
        points, centre = ClippedGradient(loss=problem.loss, at=at, clip=math.inf), jnp.zeros(at.size)
        if tests is None:
            fallback = mean.clip if self.after_failure == "clip" else None
            released = self._tested_mean(fallback).release(curator, curator.hold(points), centre)
        else:
            released = MeanRelease(centre, Status.HALTED)
            if mean.stable:
                released = tests.means.release(curator, tests.stream, points, centre)
            if released.status is Status.HALTED and self.after_failure == "clip":
                released = tests.means.clipped(curator, tests.stream, points, centre, mean.clip)
        failed = released.status is not Status.FINISHED
        moved = mean._replace(stable=not failed, status=released.status if failed else mean.status)
        return jnp.reshape(released.value, at.shape) / scale, moved

    def _open_tests(self, curator: Curator, mean: MeanState, count: int) -> OpenTests | None:
        """The sparse vector of a phase, where there is one to be asked."""
        if self.tests != "sparse-vector" or not mean.stable:
            return None
        means = self.means(count)
        return OpenTests(means, means.open(curator))

    def _sampling(self) -> Sampling:
        return EveryUnit() if self.rate >= 1.0 else Poisson(self.rate)
