"""Accelerated phases on regularised problems, from private means of users' gradients.

Source: Lowy, Liu, Asi 2024, Algorithms 2 and 3; Ghadimi, Lan 2012 (AC-SA, single and multi-stage).
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple, Self

import jax.numpy as jnp
from jaxtyping import Array

from privopt.curator.base import Curator
from privopt.curator.handles import Stream
from privopt.ledger.events import Event, NoEvent, Parallel, sequence
from privopt.ledger.sampling import EveryUnit, Poisson, Sampling
from privopt.mechanisms.additive import Gaussian
from privopt.mechanisms.gaussian_test import GaussianTest
from privopt.planning import phased_accelerated_erm as planning
from privopt.planning import phases as phase_planning
from privopt.planning.forecast import Forecast
from privopt.planning.instance import Instance
from privopt.problems.problem import Problem
from privopt.public import Public
from privopt.queries.gradient import ClippedGradient
from privopt.queries.gradient_and_count import GradientAndCount, share_inside
from privopt.queries.top_curvature import TopCurvature
from privopt.result import Outcome, ending
from privopt.solvers.ac_sa import ACSAState, ac_sa_step, gradient_point
from privopt.solvers.base import Defaults, Solver
from privopt.solvers.fields import choice, derived, number, optional
from privopt.solvers.held_means import MeanRelease, StableMean
from privopt.solvers.stable_means import StableMeans
from privopt.status import Status


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
    defaults: ClassVar[Defaults] = planning.DEFAULTS

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
        weights = phase_planning.phase_sizes(10**9, self.phases, self.share_decay)
        return self.rate * math.fsum(
            count * weight / 1e9 for count, weight in zip(counts, weights, strict=True)
        )

    def held_numbers(self, problem: Problem, public: Public) -> int:
        """Where means are tested, a gradient of every unit of a phase."""
        if self.aggregator != "stable" or self.phases == 0:
            return 0
        units = public.n
        if not self.reuse:
            units = max(phase_planning.phase_sizes(public.n, self.phases, self.share_decay))
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
            sizes = phase_planning.phase_sizes(curator.public.n, self.phases, self.share_decay)
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
