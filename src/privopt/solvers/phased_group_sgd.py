"""Phases of one-pass SGD on random groups of users; a private mean of the groups' iterates ends each phase.

Source: Lowy, Liu, Asi 2024, Algorithm 1.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, NamedTuple, Self

import jax.numpy as jnp
from jaxtyping import Array

from privopt.curator.base import Curator
from privopt.curator.handles import Held
from privopt.ledger.events import Event, Parallel, sequence
from privopt.mechanisms.additive import Gaussian
from privopt.mechanisms.gaussian_test import GaussianTest
from privopt.mechanisms.sparse_test import SparseTest
from privopt.planning import phased_group_sgd as planning
from privopt.planning import phases as phase_planning
from privopt.planning.forecast import Forecast
from privopt.planning.instance import Instance
from privopt.planning.stable_mean import OUTLIERS, RADII
from privopt.problems.problem import Problem
from privopt.public import Public
from privopt.queries.local_pass import LocalPass
from privopt.result import Outcome
from privopt.solvers.base import Defaults, Solver
from privopt.solvers.fields import choice, derived, number, optional
from privopt.solvers.friendly_means import PaperOutlierMean
from privopt.solvers.held_means import (
    ClippedMean,
    MeanRelease,
    PrivateMean,
    StableMean,
    StableMeanAuto,
)
from privopt.solvers.norm_quantile import NormQuantile
from privopt.status import Status


@dataclass(frozen=True, kw_only=True)
class QuantileMean(PrivateMean):
    """A clipped mean whose radius is a released quantile of the points' distances from the centre.

    Attributes:
        quantile: how the radius is found.
        noise: of the mean.
    """

    quantile: NormQuantile
    noise: Gaussian

    def event(self) -> Event:
        """The counts of the quantile, and the mean."""
        return sequence((self.quantile.event(), self.noise.event()))

    def scaled(self, factor: float) -> Self:
        """See `PrivateMean`."""
        noise = Gaussian(self.noise.noise_multiplier * factor)
        return replace(self, quantile=self.quantile.scaled(factor), noise=noise)

    def check(self, points: int, *, replaced: bool) -> None:
        """Any points will do."""
        del points, replaced

    def release(self, curator: Curator, held: Held, centre: Array) -> MeanRelease:
        """See `PrivateMean`."""
        radius = self.quantile.release(curator, held, centre)
        return ClippedMean(radius=radius, noise=self.noise).release(curator, held, centre)


class Phase(NamedTuple):
    """What one phase runs with, all of it public."""

    groups: int  # C_i
    step_size: float  # eta_i
    mean: PrivateMean


@dataclass(frozen=True, kw_only=True)
class PhasedGroupSGD(Solver):
    """Linear time: each group of users passes once over its records, and the mean of the groups' iterates is released.

    Attributes:
        noise_multiplier: z of a phase: of its test and its released mean together, where both are Gaussian.
        mode: how the groups' iterates are averaged: "clip" around the phase's start, "stable" (around an unknown
            centre, behind a test that most groups are near it), "stable-auto" (the same, their spread searched for),
            "paper" (outliers removed at random).
        phases: l, at least 0; 0 returns the start and spends nothing.
        reuse: whether all users take part in every phase, which divide the budget; else each phase has its own.
        share_decay: q, users of disjoint phases are proportional to 2^(-q i).
        groups: C, of all users; a phase with fewer users has as many users a group.
        smoothness: L of one record's loss and the penalty; utility only.
        step_size: eta of the first phase.
        step_decay: p, eta_i = eta 2^(-p i).
        distance: R, a guess of the distance to the optimum; phase i clips to 0.8 R 2^-i; utility only.
        gradient_norm: L0, of one record; utility only.
        radius_quantile: in the mode "clip", clip to about this quantile of the groups' distances from the phase's
            start, found by released counts for a tenth of the budget; None for the radius of the rule.
        spread: of the groups around their mean, over eta_i L0 sqrt(T) for T records a group, where a pass does not
            contract; utility only.
        bad_event_delta: delta_1, the probability of a test that passes though it should not.
        test_share: of a phase's rho, for a Gaussian test.
        search_epsilon: of a phase, for the search of the spread.
        after_failure: "clip" around the phase's start instead, or "halt" with the last private iterate.
    Guarantee:
        (epsilon, delta)-DP for a unit, under replace-one and under add-or-remove-one, for any data, loss and
        parameters: a unit changes one group's iterate, by any amount, so it replaces one point of the mean. A clipped
        mean is a Gaussian release. A tested mean is one as well, but for data on which a test passes that should not,
        which has probability `bad_event_delta` a test: an additive part of delta.
    Differs from the paper:
        Noise is calibrated and the groups' spread is measured or searched for: with the printed constants nothing runs
        below 1.7e5 users. All users are in all phases by default, 3 phases in place of log2 n. Accepted points are
        within 4 tau of each other, not tau, and for an odd number of points one is left out. A failed test returns the
        last private iterate or clips, never 0.
    Source:
        Lowy, Liu, Asi 2024, Algorithm 1.
    """

    name: ClassVar[str] = "phased-group-sgd"
    made_for_users: ClassVar[bool] = True
    for_convex: ClassVar[str] = "its phases and their bound"
    defaults: ClassVar[Defaults] = planning.DEFAULTS

    mode: Literal["clip", "stable", "stable-auto", "paper"] = choice("clip")
    reuse: bool = True
    share_decay: float = number(1.0, above=0, below=math.inf)
    groups: int = derived(at_least=2)
    phases: int = derived(at_least=0)
    smoothness: float = derived(above=0, below=math.inf)
    step_size: float = derived(above=0, below=math.inf)
    step_decay: float = number(1.0, at_least=0, below=math.inf)
    distance: float = derived(above=0, below=math.inf)
    gradient_norm: float = derived(above=0, below=math.inf)
    radius_quantile: float | None = optional(above=0, below=1)
    spread: float = number(planning.SPREAD, above=0, below=math.inf)
    bad_event_delta: float = derived(at_least=0, below=1)
    test_share: float = derived(above=0, below=1)
    search_epsilon: float = derived(above=0)
    after_failure: Literal["clip", "halt"] = choice("clip")

    @property
    def tests(self) -> bool:
        """Whether a phase asks before it releases."""
        return self.mode != "clip"

    @property
    def mean_multiplier(self) -> float:
        """Of a phase's released mean, over its sensitivity."""
        share = self.test_share if self.mode in ("stable", "paper") else 0.0
        if self.mode == "clip" and self.radius_quantile is not None:
            share = planning.QUANTILE_SHARE
        return self.noise_multiplier / math.sqrt(1.0 - share)

    def means(self, public: Public) -> tuple[PrivateMean, ...]:
        """How each phase averages."""
        return tuple(
            self._mean(radius, spread)
            for radius, spread in zip(planning.radii(self), planning.spreads(self, public), strict=True)
        )

    def event(self, public: Public) -> Event:
        """The phases, on all users one after the other, or each on its own."""
        events = tuple(mean.event() for mean in self.means(public))
        return sequence(events) if self.reuse or not events else Parallel(events)

    def releases(self) -> int:
        """The mean of every phase, and its test."""
        if self.mode == "clip" and self.radius_quantile is not None:
            return self.phases * (1 + planning.QUANTILE_STEPS)
        return self.phases * (2 if self.tests else 1)

    def passes(self) -> float:
        """One a phase, over those who take part."""
        return float(self.phases) if self.reuse else float(min(self.phases, 1))

    def held_numbers(self, problem: Problem, public: Public) -> int:
        """A move of every group of a phase."""
        return max(planning.groups_of(self, public.n), default=0) * math.prod(problem.parameter_shape(public))

    def configure(self, instance: Instance) -> Self:
        """Derive what was left open, calibrate the noise, and refuse means that the groups are too few for."""
        solver = super().configure(instance)
        counts = planning.groups_of(solver, instance.public.n)
        for mean, count in zip(solver.means(instance.public), counts, strict=True):
            mean.check(count, replaced=True)
        return solver

    def forecast(self, instance: Instance) -> Forecast:
        return planning.forecast(self, instance)

    def run(self, curator: Curator, problem: Problem, start: Array) -> Outcome:
        """Algorithm 1; see the class for where it differs."""
        params, status = start, Status.FINISHED
        for part, phase in self._phases(curator):  # lines 3 to 5
            moved = LocalPass(
                loss=problem.loss,
                regulariser=problem.regulariser,
                constraint=problem.constraint,
                at=params,
                step_size=phase.step_size,
                clip=math.inf,
                returns="average",
            )
            held = part.hold(moved, groups=phase.groups)  # lines 6 to 10
            centre = jnp.zeros(params.size)  # points are held as distances from the start
            released = phase.mean.release(part, held, centre)  # lines 11 to 25
            if released.status is Status.HALTED:  # line 22, but what is private already is returned
                return Outcome(params, Status.HALTED)
            if not bool(jnp.all(jnp.isfinite(released.value))):
                return Outcome(params, Status.DIVERGED)
            params = problem.constraint.project(params + jnp.reshape(released.value, params.shape))
            status = status if released.status is Status.FINISHED else released.status
        return Outcome(params, status)

    def _phases(self, curator: Curator) -> Iterator[tuple[Curator, Phase]]:
        public = curator.public
        sizes = phase_planning.users_of(self, public.n)
        parts = [curator] * self.phases if self.reuse or not sizes else curator.blocks(sizes)
        groups, step_sizes = planning.groups_of(self, public.n), planning.step_sizes(self)
        phases = (Phase(*one) for one in zip(groups, step_sizes, self.means(public), strict=True))
        yield from zip(parts, phases, strict=True)

    def _mean(self, radius: float, spread: float) -> PrivateMean:
        noise = Gaussian(self.mean_multiplier)
        fallback = radius if self.after_failure == "clip" else None
        if self.mode == "clip" and self.radius_quantile is not None:
            steps = planning.QUANTILE_STEPS
            counts = Gaussian(self.noise_multiplier * math.sqrt(steps / planning.QUANTILE_SHARE))
            quantile = NormQuantile(
                quantile=self.radius_quantile,
                smallest=planning.LEAST_RADIUS * radius,
                largest=radius,
                steps=steps,
                noise=counts,
            )
            return QuantileMean(quantile=quantile, noise=noise)
        if self.mode == "clip":
            return ClippedMean(radius=radius, noise=noise)
        if self.mode == "stable-auto":
            search = SparseTest.of(self.search_epsilon, tests=RADII, bad_event_delta=self.bad_event_delta)
            return StableMeanAuto(largest=2.0 * radius, search=search, noise=noise, fallback=fallback)
        test = GaussianTest(self.noise_multiplier / math.sqrt(self.test_share), self.bad_event_delta)
        if self.mode == "paper":
            return PaperOutlierMean(
                within=planning.PAPER_RADIUS * spread,
                test=test,
                noise=noise,
                coupling_delta=self.bad_event_delta / 2.0,
                fallback=fallback,
            )
        return StableMean(spread=spread, test=test, noise=noise, outliers=OUTLIERS, fallback=fallback)
