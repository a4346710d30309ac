"""Phases of one-pass SGD on random groups of users; a private mean of the groups' iterates ends each phase.

Minimises F(w) + r(w) over a closed convex set, F the mean loss of the users' records. In phase i = 0, 1, ..., from w_i,

    for each of C_i random groups j of users:
        x = w_i;  for each record of the group once:  x = project(prox(x - eta_i grad f(x; record)))
        y_j = mean of the iterates x
    w_{i+1} = private mean of y_1, ..., y_C                  the only releases; `mode` says which mean

Source: Lowy, Liu, Asi 2024, Algorithm 1.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple, Self

from privopt.curator.base import Curator
from privopt.curator.handles import Held
from privopt.errors import BudgetTooSmall
from privopt.later import Array, jnp
from privopt.ledger.curves import part_of
from privopt.ledger.events import Event, Parallel, sequence
from privopt.mechanisms.additive import Gaussian
from privopt.mechanisms.tests import GaussianTest, SparseTest
from privopt.planning import descent_theory
from privopt.planning import users as phases
from privopt.planning.plan import Finding
from privopt.planning.stable_mean import OUTLIERS, RADII, StableMeanPlan, plan_radius_search, plan_stable_mean
from privopt.planning.task import Forecast, Instance
from privopt.problems.problem import Problem
from privopt.public import Public
from privopt.queries.lots import LocalPass
from privopt.result import Outcome
from privopt.solvers.base import Solver
from privopt.solvers.fields import choice, derived, number, optional
from privopt.solvers.held_means import (
    ClippedMean,
    MeanRelease,
    NormQuantile,
    PaperOutlierMean,
    PrivateMean,
    StableMean,
    StableMeanAuto,
)
from privopt.status import Status

# ---- Rules and forecast of phased SGD on groups of users ---------------------------------------------------
# With n users of m typical records, d parameters, C groups, T = n m / C steps per pass, step sizes eta_i = eta 2^(-p i)
# and disjoint phases with users proportional to 2^(-q i); L and L0 the smoothness and the largest gradient norm of one
# record's loss, lam the smoothness of the penalty:
#
#     groups      C = n / ceil(30 / m): about 30 records per group, or one user
#     step size   eta = 1.5 / (L + lam), three quarters of what one record's loss allows
#     phases      3, and 4 at most: later ones only add the risk of a failed test
#     radius      0.8 R 2^-i around the phase's start, R the distance to the optimum
#     spread      0.28 eta_i L0 sqrt(T) / sqrt(1 + eta_i L T / 40): the distance from their own mean within which the
#                 groups' mean iterates are expected; with 0.25 for 0.28 it held for 95 % of them on generated logistic
#                 regressions, T from 30 to 300
#
# In theory two passes from one start end within eta L0 sqrt(T) (4 + 8 sqrt(2 ln(1 / zeta))) of each other with
# probability 1 - zeta (scalar Azuma with stopping; the dimension does not enter). With rho the zCDP cost of one phase,
# c the spread over eta L0 sqrt(T) and noise of standard deviation s c eta L0 sqrt(T) / (C sqrt(2 rho)) per coordinate,
# the number of groups that balances statistical error and noise is C* = s c sqrt(2^(p+q) d / (2 rho)).
# The paper's constants (C = 100 log(20 n m e^eps / delta) / eps groups, accepted points within tau = 1000 eta L0
# sqrt(T) log(n d m)) need n = 1.7e5 users at m = 100, epsilon = 1, delta = 1e-6. Utility only.
#
# Source:
#     Lowy, Liu, Asi 2024, Theorem 2.1 and Lemma 2.3 (their L is L0 here), with constants of ours.
RECORDS_OF_A_GROUP = 30
STEP_FACTOR = 1.5
PHASES = 3
RADIUS_SHARE = 0.8  # the radius of a phase over the distance R 2^-i that is expected to be left
SPREAD, CONTRACTION = 0.28, 40.0  # the factor of the spread; T eta_i L at which contraction halves its square
# For `radius_quantile`: the share of a phase's rho and the number of its counts, and the least radius over the largest.
QUANTILE_SHARE, QUANTILE_STEPS, LEAST_RADIUS = 0.1, 10, 1e-3
PAPER_RADIUS = 2.0  # tau over the spread: points within the spread of their mean are at most twice it apart


def group_units(public: Public) -> int:
    """The number of users in a group: ceil(30 / m), so that a group has about 30 records or more."""
    return math.ceil(RECORDS_OF_A_GROUP / public.typical_records)


def balanced_groups(*, cost: float, spread: float, decay: float, dimensions: int, rho: float) -> float:
    """C*, about sqrt(d) / epsilon: the number of groups that balances statistical error and noise in the bound.

    Args:
        cost: s, the standard deviation of the mean's noise per coordinate over spread / (C sqrt(2 rho)); 2 around a
            known centre.
        spread: c, the spread of the groups over eta L0 sqrt(T).
        decay: p + q, the exponents by which step sizes and users shrink from phase to phase.
        dimensions: d, the number of parameters.
        rho: zCDP cost of one phase.
    """
    return cost * spread * math.sqrt(2.0**decay * dimensions / (2.0 * rho))


def paper_groups(n: int, m: float, epsilon: float, delta: float) -> float:
    """The paper's number of groups, 100 log(20 n m e^eps / delta) / eps, as printed."""
    return 100.0 * (math.log(20.0 * n * m / delta) + epsilon) / epsilon


@dataclass(frozen=True, kw_only=True)
class QuantileMean(PrivateMean):
    """A clipped mean whose radius is a released quantile of the points' distances from the centre.

    Attributes:
        quantile: the mechanism that releases the radius, by bisection on noisy counts.
        noise: of the mean, over its sensitivity at that radius.
    """

    quantile: NormQuantile
    noise: Gaussian

    def event(self) -> Event:
        """The event of the counts and of the mean, composed."""
        return sequence((self.quantile.event(), self.noise.event()))

    def check(self, points: int, *, replaced: bool) -> None:
        """Accept any number of points."""
        del points, replaced

    def release(self, curator: Curator, held: Held, centre: Array) -> MeanRelease:
        """See `PrivateMean`."""
        radius = self.quantile.release(curator, held, centre)
        return ClippedMean(radius=radius, noise=self.noise).release(curator, held, centre)


class Phase(NamedTuple):
    """The public settings of one phase."""

    groups: int  # C_i
    step_size: float  # eta_i, params^2 / objective units
    mean: PrivateMean  # of the groups' mean iterates


@dataclass(frozen=True, kw_only=True)
class PhasedGroupSGD(Solver):
    """Phased SGD on groups of users, in one pass per phase; see the module for the algorithm.

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
    spread: float = number(SPREAD, above=0, below=math.inf)
    bad_event_delta: float = derived(at_least=0, below=1)
    test_share: float = derived(above=0, below=1)
    search_epsilon: float = derived(above=0)
    after_failure: Literal["clip", "halt"] = choice("clip")

    def default_groups(self, instance: Instance) -> int:
        """C of all n users: n over the users of a group, at least 2."""
        return max(2, instance.public.n // group_units(instance.public))

    def default_phases(self, instance: Instance) -> int:
        """Three, or fewer if the phase with the fewest groups would have too few of them for its test."""
        wanted = PHASES
        while wanted > 1 and self.tests and not self.with_(phases=wanted)._has_enough_groups(instance):
            wanted -= 1
        return wanted

    def default_smoothness(self, instance: Instance) -> float:
        """L + lam, the smoothness of one record's loss and of the penalty."""
        return descent_theory.smoothness(instance) + instance.penalty_smoothness

    def default_step_size(self, instance: Instance) -> float:
        """eta of the first phase, 1.5 / (L + lam)."""
        del instance
        return STEP_FACTOR / self.smoothness

    def default_distance(self, instance: Instance) -> float:
        return phases.distance(instance)

    def default_gradient_norm(self, instance: Instance) -> float:
        return phases.steepest_gradient(instance)

    def default_bad_event_delta(self, instance: Instance) -> float:
        """delta_1 of a phase's test; 0 without tests."""
        return phases.bad_event_delta(instance, self, 1) if self.tests else 0.0

    def default_test_share(self, instance: Instance) -> float:
        """The test's part of a phase's rho that leaves the least noise in the mean, for the phase of the fewest groups.

        Raises:
            BudgetTooSmall: there are too few groups for the noise of a test.
        """
        if self.mode not in ("stable", "paper") or self.phases == 0 or not instance.is_private:
            return 0.1
        return self._stable_plan(instance).share

    def default_search_epsilon(self, instance: Instance) -> float:
        """The epsilon of the search of a phase's spread that leaves the least noise, for the fewest groups.

        Raises:
            BudgetTooSmall: there are too few groups for the noise of a search.
        """
        if self.mode != "stable-auto" or self.phases == 0 or not instance.is_private:
            return 1.0
        plan = plan_radius_search(
            points=min(self.groups_of(instance.public.n)),
            replaced=True,
            budget=part_of(instance.budget, 1.0 / phases.parts(self)),
            relation=instance.public.relation,
        )
        return plan.search_epsilon

    @property
    def tests(self) -> bool:
        """Whether a phase releases its mean only after a private test of the groups' iterates."""
        return self.mode != "clip"

    @property
    def mean_multiplier(self) -> float:
        """The noise multiplier of a phase's released mean.

        If test or radius spend the share a of the phase's rho, it is z / sqrt(1 - a).
        """
        share = self.test_share if self.mode in ("stable", "paper") else 0.0
        if self.mode == "clip" and self.radius_quantile is not None:
            share = QUANTILE_SHARE
        return self.noise_multiplier / math.sqrt(1.0 - share)

    def means(self, public: Public) -> tuple[PrivateMean, ...]:
        """The private mean of each phase, with its radius, spread and noise."""
        return tuple(
            self._mean(radius, spread)
            for radius, spread in zip(self.radii(), self.spreads(public), strict=True)
        )

    def event(self, public: Public) -> Event:
        """The composition of the phases: sequential on all users, parallel on disjoint blocks of users."""
        events = tuple(mean.event() for mean in self.means(public))
        return sequence(events) if self.reuse or not events else Parallel(events)

    def releases(self) -> int:
        """Per phase the mean, and its test or the counts for its radius."""
        if self.mode == "clip" and self.radius_quantile is not None:
            return self.phases * (1 + QUANTILE_STEPS)
        return self.phases * (2 if self.tests else 1)

    def passes(self) -> float:
        """One per phase on all users; together one on disjoint blocks."""
        return float(self.phases) if self.reuse else float(min(self.phases, 1))

    def held_numbers(self, problem: Problem, public: Public) -> int:
        """One vector per group of the largest phase, y_j - w_i."""
        return max(self.groups_of(public.n), default=0) * math.prod(problem.parameter_shape(public))

    def configure(self, instance: Instance) -> Self:
        """Derive the open fields, calibrate the noise, and refuse phases with too few groups for their mean."""
        solver = super().configure(instance)
        counts = solver.groups_of(instance.public.n)
        for mean, count in zip(solver.means(instance.public), counts, strict=True):
            mean.check(count, replaced=True)
        return solver

    def forecast(self, instance: Instance) -> Forecast:
        """The bound by localised regret with the noise that will be added, and the balanced number of groups.

        With T_i steps per pass and s_i the noise of phase i per coordinate, l phases: R^2 / (2 eta_0 T_0)
        + sum_i eta_i L0^2 / 2 + sum_{i > 0} d s_{i-1}^2 / (2 eta_i T_i) + L0 sqrt(d) s_{l-1}.
        """
        public = instance.public
        if self.phases == 0:
            return Forecast()
        L0, eta, stddevs = self.gradient_norm, self._phase_step_sizes(), self._noise_stddevs(public)
        sizes = zip(phases.users_of(self, public.n), self.groups_of(public.n), strict=True)
        steps = [users / count * public.typical_records for users, count in sizes]
        excess = self.distance**2 / (2.0 * eta[0] * steps[0])
        excess += math.fsum(eta_i * L0**2 / 2.0 for eta_i in eta)
        for i in range(1, self.phases):
            excess += instance.parameters * stddevs[i - 1] ** 2 / (2.0 * eta[i] * steps[i])
        excess += L0 * math.sqrt(instance.parameters) * stddevs[-1]
        found = Forecast(
            excess=instance.capped(excess),
            meaning="the bound for convex smooth losses, clipping left out; an upper estimate, often 10 times too high",
        )
        return self._with_indicators(found, instance)

    def run(self, curator: Curator, problem: Problem, start: Array) -> Outcome:
        """Algorithm 1; see the class for the differences. Points are y_j - w_i, so their centre is 0."""
        params, status = start, Status.FINISHED
        for part, phase in self._phases(curator):  # lines 3 to 5
            local_pass = LocalPass(
                loss=problem.loss,
                regulariser=problem.regulariser,
                constraint=problem.constraint,
                at=params,
                step_size=phase.step_size,
                clip=math.inf,
                returns="average",
            )
            held = part.hold(local_pass, groups=phase.groups)  # lines 6 to 10
            centre = jnp.zeros(params.size)
            released = phase.mean.release(part, held, centre)  # lines 11 to 25
            if released.status is Status.HALTED:  # line 22, but what is private already is returned
                return Outcome(params, Status.HALTED)
            if not bool(jnp.all(jnp.isfinite(released.value))):
                return Outcome(params, Status.DIVERGED)
            params = problem.constraint.project(params + jnp.reshape(released.value, params.shape))
            status = status if released.status is Status.FINISHED else released.status
        return Outcome(params, status)

    def _phases(self, curator: Curator) -> Iterator[tuple[Curator, Phase]]:
        """Each phase with the curator of its users: all of them, or a block of their own."""
        public = curator.public
        sizes = phases.users_of(self, public.n)
        parts = [curator] * self.phases if self.reuse or not sizes else curator.blocks(sizes)
        groups, step_sizes = self.groups_of(public.n), self._phase_step_sizes()
        planned = (Phase(*one) for one in zip(groups, step_sizes, self.means(public), strict=True))
        yield from zip(parts, planned, strict=True)

    def _mean(self, radius: float, spread: float) -> PrivateMean:
        """The private mean of `mode` for a phase of this radius and this expected spread, in parameter units."""
        noise = Gaussian(self.mean_multiplier)
        fallback = radius if self.after_failure == "clip" else None
        if self.mode == "clip" and self.radius_quantile is not None:
            counts = Gaussian(self.noise_multiplier * math.sqrt(QUANTILE_STEPS / QUANTILE_SHARE))
            quantile = NormQuantile(
                quantile=self.radius_quantile,
                smallest=LEAST_RADIUS * radius,
                largest=radius,
                steps=QUANTILE_STEPS,
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
                within=PAPER_RADIUS * spread,
                test=test,
                noise=noise,
                coupling_delta=self.bad_event_delta / 2.0,
                fallback=fallback,
            )
        return StableMean(spread=spread, test=test, noise=noise, outliers=OUTLIERS, fallback=fallback)

    def groups_of(self, n: int) -> tuple[int, ...]:
        """C_i of each phase: groups of the same size in all phases, at least two."""
        return tuple(max(2, self.groups * users // n) for users in phases.users_of(self, n))

    def _phase_step_sizes(self) -> tuple[float, ...]:
        """eta_i = eta 2^(-p i) of each phase."""
        return tuple(self.step_size * 2.0 ** (-self.step_decay * i) for i in range(self.phases))

    def radii(self) -> tuple[float, ...]:
        """The clipping radius 0.8 R 2^-i of each phase, in parameter units."""
        return tuple(RADIUS_SHARE * self.distance * 0.5**i for i in range(self.phases))

    def spreads(self, public: Public) -> tuple[float, ...]:
        """b*_i of each phase: the distance from their own mean at which the groups' mean iterates are expected."""
        sizes = zip(phases.users_of(self, public.n), self.groups_of(public.n), strict=True)
        steps = (users / count * public.typical_records for users, count in sizes)
        return tuple(
            self.spread
            * self.gradient_norm
            * eta
            * math.sqrt(taken / (1.0 + eta * self.smoothness * taken / CONTRACTION))
            for eta, taken in zip(self._phase_step_sizes(), steps, strict=True)
        )

    def _stable_plan(self, instance: Instance) -> StableMeanPlan:
        """The plan of the stable mean for the phase of the fewest groups."""
        delta = phases.BAD_EVENTS * instance.budget.delta
        return plan_stable_mean(
            points=min(self.groups_of(instance.public.n)),
            replaced=True,
            rho=phases.rho_of_phase(instance, self, delta),
            bad_event_delta=delta / phases.parts(self),
            outliers=OUTLIERS,
        )

    def _noise_stddevs(self, public: Public) -> tuple[float, ...]:
        """The standard deviation of the noise in each phase's mean, per coordinate: 2 c_i z / C_i at radius c_i."""
        counts = self.groups_of(public.n)
        multiplier = self.mean_multiplier
        if self.mode == "clip":
            lengths = self.radii()
        else:  # around an unknown centre, whose ball is a fifth to a half wider than the spread
            lengths = tuple(1.3 * spread for spread in self.spreads(public))
        return tuple(2.0 * length * multiplier / count for length, count in zip(lengths, counts, strict=True))

    def _with_indicators(self, found: Forecast, instance: Instance) -> Forecast:
        """The forecast with the balanced and the planned number of groups, and a notice on the search."""
        if not instance.is_private:
            return found
        best = balanced_groups(
            cost=2.0,
            spread=self.spread,
            decay=self.step_decay + (0.0 if self.reuse else self.share_decay),
            dimensions=instance.parameters,
            rho=phases.rho_of_phase(instance, self, phases.BAD_EVENTS * instance.budget.delta),
        )
        indicators = {
            "balanced_groups": Finding(best, "groups that balance statistics and privacy in the bound"),
            "groups": Finding(self.groups, "groups that will run"),
        }
        notices = found.notices
        if self.mode == "stable-auto":
            notices += (
                "the search for the groups' spread is part of the noise; its result is not foreseen.",
            )
        return Forecast(excess=found.excess, meaning=found.meaning, indicators=indicators, notices=notices)

    def _has_enough_groups(self, instance: Instance) -> bool:
        """Whether the phase of the fewest groups has enough of them for its test."""
        if not instance.is_private:
            return True
        try:
            if self.mode == "stable-auto":
                self.default_search_epsilon(instance)
            else:
                self._stable_plan(instance)
        except BudgetTooSmall:
            return False
        return True
