"""Accelerated phases on regularised problems, from private means of users' gradients.

Source: Lowy, Liu, Asi 2024, Algorithms 2 and 3; Ghadimi, Lan 2012 (AC-SA, single and multi-stage).
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple, Self

from privopt.curator.base import Curator
from privopt.curator.handles import Stream
from privopt.errors import BudgetTooSmall
from privopt.later import Array, jnp
from privopt.ledger.events import Event, EveryUnit, NoEvent, Parallel, Poisson, Sampling, sequence
from privopt.mechanisms.additive import Gaussian
from privopt.mechanisms.tests import GaussianTest, SparseTest, TestedSamples
from privopt.planning import descent_theory, users
from privopt.planning.plan import Finding
from privopt.planning.stable_mean import OUTLIERS, plan_stable_mean
from privopt.planning.task import Forecast, Instance
from privopt.planning.users import one_shot_noise
from privopt.problems.glm import GLMLoss
from privopt.problems.problem import Problem
from privopt.public import Public
from privopt.queries.gradient_norms import GradientAndCount, share_inside
from privopt.queries.moments import TopCurvature
from privopt.queries.slopes import ClippedGradient
from privopt.result import Outcome, ending
from privopt.solvers.ac_sa import ACSAState, ac_sa_step, gradient_point, stage_lengths
from privopt.solvers.base import Solver
from privopt.solvers.fields import choice, derived, number, optional
from privopt.solvers.held_means import MeanRelease, StableMean, StableMeans
from privopt.status import Status

# ---- Rules and forecast ------------------------------------------------------------------------------------
# With n users of m typical records, p parameters, zCDP budget rho, L0 the steepest gradient, beta the smoothness, R the
# distance to the optimum and s = 2 (replace-one) or 1:
#
#     strength    lam = 0.2 (L0 / R) (1 / sqrt(n m) + s sqrt(p) / (n sqrt(m) sqrt(2 rho))), doubled from phase to phase
#     steps       T_i = min(25, 4 sqrt(1 + beta / lam_i)), the number that AC-SA needs to halve a gap without noise
#     clip        0.5 L0 / sqrt(m), where users' mean gradients end
#     curvature   the largest eigenvalue of the rows' second moment, released for 2 % of the budget, times the loss's
#                 own; of a loss with corners, which has none, times twice the guess of `descent_theory`
#     quantile    min(0.99, max(0.3, 0.99 - 15 N0)), N0 the noise of one mean over the clip
#     spread      0.55 L0 / sqrt(m), where they are expected around their own mean
#
# The theorem has no factor 0.2: the strengths that were best on generated logistic regressions were 3 to 7 times
# smaller than its own. The paper's noise, 1000 tau sqrt(T) log(n d e^eps / delta) / (eps n), needs n = 1.5e6 users at
# m = 100, epsilon = 1, delta = 1e-6. Utility only.
#
# Source:
#     Lowy, Liu, Asi 2024, Theorem 3.2, and Ghadimi, Lan 2012, with constants of ours.
PHASES = 3
STRENGTH_FACTOR = 0.2
CLIP_FACTOR, LEAST_CLIP = 0.5, 0.05
SPREAD_FACTOR = 0.55
SINGLE_STEPS, ALL_STAGES = 25, 60  # of a phase, at most
STAGES = 6  # at most: each halves the gap
NOISELESS_STEPS = 500
PROBE_SHARE = 0.02  # of mu^2
LEAST_EIGENVALUE = 1e-3  # of the squared row bound
CORNER_FACTOR = (
    2.0  # of the guessed curvature of a loss with corners: they are met on a part of the records at a time
)
WIDEST = 2_000  # features: the probe sums d^2 numbers
COUNT_HEIGHT = 0.23  # of the clip: 5 % of rho for the count
QUANTILE_RATE = 0.4
DEAREST_TEST = 10.0  # K times the noise of a tested mean over its spread; around a known centre it is 2


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
        return PHASES

    def default_probe_share(self, instance: Instance) -> float:
        """The probe's part of the budget, where the rows say how curved the loss is and nobody else does."""
        public = instance.public
        useful = (
            isinstance(instance.problem.loss, GLMLoss)
            and public.d <= WIDEST
            and not self.is_set("smoothness")
        )
        return PROBE_SHARE if useful and self.phases > 0 else 0.0

    def default_distance(self, instance: Instance) -> float:
        return users.distance(instance)

    def default_smoothness(self, instance: Instance) -> float:
        return descent_theory.smoothness(instance) + instance.penalty_smoothness

    def default_strength(self, instance: Instance) -> float:
        """lam of the first phase."""
        public = instance.public
        rate = 1.0 / math.sqrt(public.n * instance.public.typical_records)
        if instance.is_private:
            mu = instance.mu  # sqrt(2 rho)
            noise = public.relation.factor * math.sqrt(instance.parameters) / (public.n * mu)
            rate += noise / math.sqrt(instance.public.typical_records)
        return STRENGTH_FACTOR * users.steepest_gradient(instance) / self.distance * rate

    def default_lengths(self, instance: Instance) -> tuple[tuple[int, ...], ...]:
        """The steps of every run of AC-SA, phase by phase: one run each, or several that halve the gap."""
        found: list[tuple[int, ...]] = []
        for lam in self.strengths:
            smooth = self.smoothness + lam
            strong = lam + instance.ridge
            least = math.ceil(4.0 * math.sqrt(smooth / strong))
            if self.stages == "single":
                most = SINGLE_STEPS if instance.is_private else NOISELESS_STEPS
                found.append((min(self.most_steps or most, least),))
            else:
                found.append(self._halving(instance, smooth, strong))
        return tuple(found)

    def default_clip(self, instance: Instance) -> float:
        """The clip of a user's weighted mean gradient; infinite with the noise off."""
        if not instance.is_private:
            return math.inf
        share = max(LEAST_CLIP, CLIP_FACTOR / math.sqrt(instance.public.typical_records))
        return instance.public.typical_weight * users.steepest_gradient(instance) * share

    def default_quantile(self, instance: Instance) -> float:
        """The share of users that an adaptive clip leaves alone."""
        return min(0.99, max(0.3, 0.99 - 15.0 * one_shot_noise(instance)))

    def default_spread(self, instance: Instance) -> float:
        """b*, where users' weighted mean gradients are expected around their own mean."""
        share = SPREAD_FACTOR / math.sqrt(instance.public.typical_records)
        return instance.public.typical_weight * users.steepest_gradient(instance) * share

    def default_tests(self, instance: Instance) -> Literal["none", "gaussian", "sparse-vector"]:
        """Gaussian tests for up to 40 steps, the sparse vector beyond; on samples nothing else has a price."""
        del instance
        if self.aggregator != "stable":
            return "none"
        if self.rate < 1.0:
            return "sparse-vector"
        taken = sum(self.steps) if self.reuse else max(self.steps, default=0)
        return "gaussian" if taken <= users.MOST_GAUSSIAN_TESTS else "sparse-vector"

    def default_bad_event_delta(self, instance: Instance) -> float:
        """delta_1 of a step's test; 0 without tests."""
        if self.aggregator != "stable":
            return 0.0
        return users.bad_event_delta(instance, self, max(self.steps, default=1))

    def default_test_share(self, instance: Instance) -> float:
        """The Gaussian test's part of a step's rho.

        Raises:
            BudgetTooSmall: a mean behind a test would be more than five times as noisy as one around a known centre.
            ValueError: there are too few users for the noise of a test.
        """
        if self.tests != "gaussian" or not any(self.steps) or not instance.is_private:
            return 0.1
        delta, public = users.BAD_EVENTS * instance.budget.delta, instance.public
        points = min(users.users_of(self, public.n))
        each = users.rho_of_phase(instance, self, delta) / max(self.steps)
        plan = plan_stable_mean(
            points=points,
            replaced=public.relation.factor == 2,
            rho=each,
            bad_event_delta=self.bad_event_delta,
            outliers=OUTLIERS,
        )
        if plan.cost > DEAREST_TEST:
            raise _too_dear(plan.cost, points, sum(self.steps), instance)
        return plan.share

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

    @property
    def steps(self) -> tuple[int, ...]:
        """T_i, of each phase."""
        return tuple(sum(stages) for stages in self.lengths)

    @property
    def strengths(self) -> tuple[float, ...]:
        """lam_i = lam 2^(p i)."""
        return tuple(self.strength * 2.0 ** (self.strength_growth * i) for i in range(self.phases))

    def event(self, public: Public) -> Event:
        """The steps of every phase, on all users one after the other, or each phase on its own."""
        del public
        events = tuple(self._phase_event(count) for count in self.steps)
        probe = (Gaussian(self._probe_multiplier()).event(),) if self.probe_share > 0 else ()
        return sequence((*probe, *(events if self.reuse or not events else (Parallel(events),))))

    def releases(self) -> int:
        """One a step, and one a test."""
        taken = sum(self.steps) * (1 if self.tests == "none" else 2)
        return taken + (1 if self.probe_share > 0 else 0)

    def passes(self) -> float:
        """A pass a step, over those who take part."""
        counts = self.steps
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
        """The theorem's lam R^2 / 2 + c L0^2 / (lam n m) + d sigma^2 / (lam T), with the noise that will be added."""
        public, taken = instance.public, self.steps
        if not any(taken):
            return Forecast()
        lam, weight = self.strength + instance.ridge, public.typical_weight
        length = self.clip if self.aggregator != "stable" else 1.3 * self.spread
        noise = 0.0
        if instance.is_private:
            units = min(users.users_of(self, public.n)) * self.rate
            noise = public.relation.factor * length / weight * self._mean_multiplier() / units
        steepest = users.steepest_gradient(instance)
        excess = self.strength * self.distance**2 / 2.0
        excess += 2.0 * steepest**2 / (lam * public.n * instance.public.typical_records)
        excess += instance.parameters * noise**2 / (lam * max(taken))
        return Forecast(
            excess=instance.capped(excess),
            meaning="the terms of the theorem with the noise that is added; an upper estimate",
            indicators={"steps": Finding(sum(taken), "accelerated steps in all phases together")},
        )

    def configure(self, instance: Instance) -> Self:
        """Derive what was left open, calibrate the noise, and refuse tests that there are too few users for."""
        solver = super().configure(instance)
        solver._require_worthwhile(instance)
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
        query, noise = TopCurvature(row_bound=public.row_bound), Gaussian(self._probe_multiplier())
        released = float(curator.release(query, noise))
        stddev = noise.noise_multiplier * float(query.sensitivity(public))
        return probed_smoothness(self.smoothness, released, stddev, problem, public)

    def _phases(self, curator: Curator) -> Iterator[tuple[Curator, float, tuple[int, ...]]]:
        if self.reuse or self.phases == 0:
            parts = [curator] * self.phases
        else:
            sizes = users.phase_sizes(curator.public.n, self.phases, self.share_decay)
            parts = curator.blocks(sizes)
        yield from zip(parts, self.strengths, self.lengths, strict=True)

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
        noise, scale = Gaussian(self._mean_multiplier()), curator.public.typical_weight
        if not mean.stable and self.aggregator == "adaptive":
            height = COUNT_HEIGHT * mean.clip
            both = GradientAndCount(loss=problem.loss, at=at, clip=mean.clip, height=height)
            released = curator.release(both, noise, self._sampling())
            inside = float(share_inside(released[-1], height)) if math.isfinite(height) else self.quantile
            moved = mean.clip * math.exp(-QUANTILE_RATE * (inside - self.quantile))
            return jnp.reshape(released[:-1], at.shape) / scale, mean._replace(clip=moved)
        if not mean.stable and (tests is None or not tests.means.sampled):
            clipped = ClippedGradient(loss=problem.loss, at=at, clip=mean.clip)
            return curator.release(clipped, noise, self._sampling()) / scale, mean
        return self._stable_gradient(curator, problem, at, mean, tests)

    def _tested_mean(self, fallback: float | None) -> StableMean:
        """One step's mean behind a Gaussian test."""
        test = GaussianTest(self.noise_multiplier / math.sqrt(self.test_share), self.bad_event_delta)
        noise = Gaussian(self._mean_multiplier())
        return StableMean(spread=self.spread, test=test, noise=noise, outliers=OUTLIERS, fallback=fallback)

    def means(self, count: int) -> StableMeans:
        """The means of a phase of `count` steps behind one sparse vector."""
        return StableMeans(
            spread=self.spread,
            search=self._search(count),
            noise=Gaussian(self._mean_multiplier()),
            steps=count,
            outliers=OUTLIERS,
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

    def _search(self, count: int) -> SparseTest:
        """The sparse vector of a phase of `count` steps."""
        vector = SparseTest.of(
            self.test_epsilon / users.parts(self),
            tests=count,
            bad_event_delta=count * self.bad_event_delta,
            reversed=True,
        )
        if self.rate >= 1.0:
            return vector
        return TestedSamples(
            vector.threshold,
            vector.epsilon_threshold,
            vector.epsilon_queries,
            reversed=True,
            bad_event_delta=vector.bad_event_delta,
            rate=self.rate,
            noise_multiplier=self._mean_multiplier(),
            tests=count,
        )

    def _probe_multiplier(self) -> float:
        """Of the probe, as a part of what the steps that one user is in release."""
        counts = self.steps
        together = sum(counts) if self.reuse else max(counts, default=1)
        return self.noise_multiplier * math.sqrt(
            (1.0 - self.probe_share) / (self.probe_share * max(1, together))
        )

    def _mean_multiplier(self) -> float:
        """Of a step's released mean, over its sensitivity."""
        if self.tests == "gaussian":
            return self.noise_multiplier / math.sqrt(1.0 - self.test_share)
        return self.noise_multiplier

    def _require_worthwhile(self, instance: Instance) -> None:
        """Refuse tests whose means would be more than five times as noisy as those around a known centre.

        Raises:
            BudgetTooSmall: they would, or there are too few users for the noise of a test.
        """
        if self.tests != "sparse-vector" or not any(self.steps) or not instance.is_private:
            return
        public = instance.public
        for count, size in zip(self.steps, users.users_of(self, public.n), strict=True):
            points = round(self.rate * size)
            cost = self.means(count).cost(points, replaced=public.relation.factor == 2)
            if cost > DEAREST_TEST:
                raise _too_dear(cost, points, sum(self.steps), instance)

    def _halving(self, instance: Instance, smooth: float, strong: float) -> tuple[int, ...]:
        """As many runs that halve the gap as fit the steps of a phase, at least one."""
        most = self.most_steps or (ALL_STAGES if instance.is_private else STAGES * NOISELESS_STEPS)
        gap = smooth * self.distance**2 / 2.0
        planned = stage_lengths(
            smoothness=smooth,
            strong_convexity=strong,
            variance=self._variance(instance, most),
            gap=gap,
            stages=STAGES,
        )
        kept: list[int] = []
        for length in planned:
            if sum(kept) + length > most:
                break
            kept.append(length)
        return tuple(kept) or (min(most, planned[0]),)

    def _variance(self, instance: Instance, most: int) -> float:
        """V^2 of a step, if every phase takes as many as it may."""
        if not instance.is_private:
            return 0.0
        public = instance.public
        length = self.default_clip(instance) / public.typical_weight
        stddev = (
            public.relation.factor * length / (public.n * instance.mu) * math.sqrt(most * users.parts(self))
        )
        return instance.parameters * stddev**2


def probed_smoothness(most: float, released: float, stddev: float, problem: Problem, public: Public) -> float:
    """beta from a released eigenvalue of the second moment: two standard deviations more, and never above `most`.

    Args:
        most: what is known without it, the penalty's curvature included.
        released: the eigenvalue with its noise.
        stddev: of that noise.
        problem: loss and penalty.
        public: what is public about the data.
    """
    if not math.isfinite(released):
        return most
    squared, penalty = public.row_bound**2, problem.regulariser.smoothness
    eigenvalue = max(released + 2.0 * stddev, LEAST_EIGENVALUE * squared)
    curvature = problem.loss.curvature
    if math.isinf(curvature):
        curvature = CORNER_FACTOR * (most - penalty) / squared
    return min(most, curvature * eigenvalue + penalty)


def _too_dear(cost: float, points: int, taken: int, instance: Instance) -> BudgetTooSmall:
    return BudgetTooSmall(
        f"a tested mean of {points:,} users in each of {taken} steps at epsilon {instance.budget.epsilon:.3g} would be "
        f"{cost / 2:.2g} times as noisy as one around a known centre (limit: {DEAREST_TEST / 2:g}): clip around zero "
        "(aggregator='clip'), take fewer steps, raise epsilon, or collect more users."
    )
