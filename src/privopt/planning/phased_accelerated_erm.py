"""Rules and forecast of accelerated phases on regularised problems.

With n users of m typical records, p parameters, zCDP budget rho, L0 the steepest gradient, beta the smoothness, R the
distance to the optimum and s = 2 (replace-one) or 1:

    strength    lam = 0.2 (L0 / R) (1 / sqrt(n m) + s sqrt(p) / (n sqrt(m) sqrt(2 rho))), doubled from phase to phase
    steps       T_i = min(25, 4 sqrt(1 + beta / lam_i)), the number that AC-SA needs to halve a gap without noise
    clip        0.5 L0 / sqrt(m), where users' mean gradients end
    curvature   the largest eigenvalue of the rows' second moment, released for 2 % of the budget, times the loss's own;
                of a loss with corners, which has none, times twice the guess of `descent_defaults`
    quantile    min(0.99, max(0.3, 0.99 - 15 N0)), N0 the noise of one mean over the clip
    spread      0.55 L0 / sqrt(m), where they are expected around their own mean

The theorem has no factor 0.2: the strengths that were best on generated logistic regressions were 3 to 7 times smaller
than its own. The paper's noise, 1000 tau sqrt(T) log(n d e^eps / delta) / (eps n), needs n = 1.5e6 users at m = 100,
epsilon = 1, delta = 1e-6. Utility only.

Source:
    Lowy, Liu, Asi 2024, Theorem 3.2, and Ghadimi, Lan 2012, with constants of ours.
"""

import math
from typing import TYPE_CHECKING, Literal

from privopt.errors import BudgetTooSmall
from privopt.mechanisms.tests import SparseTest, TestedSamples
from privopt.planning import users as phases
from privopt.planning.plan import Finding
from privopt.planning.stable_mean import OUTLIERS, plan_stable_mean
from privopt.planning.task import Forecast, Instance
from privopt.planning.users import one_shot_noise
from privopt.problems.glm import GLMLoss
from privopt.problems.problem import Problem
from privopt.public import Public

if TYPE_CHECKING:
    from privopt.solvers.phased_accelerated_erm import PhasedAcceleratedERM

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


def records(instance: Instance) -> float:
    """m."""
    return instance.public.typical_records


def strength(solver: "PhasedAcceleratedERM", instance: Instance) -> float:
    """lam of the first phase."""
    public = instance.public
    rate = 1.0 / math.sqrt(public.n * records(instance))
    if instance.is_private:
        mu = instance.mu  # sqrt(2 rho)
        noise = public.relation.factor * math.sqrt(instance.parameters) / (public.n * mu)
        rate += noise / math.sqrt(records(instance))
    return STRENGTH_FACTOR * phases.steepest_gradient(instance) / solver.distance * rate


def clip(solver: "PhasedAcceleratedERM", instance: Instance) -> float:
    """The clip of a user's weighted mean gradient; infinite with the noise off."""
    del solver
    if not instance.is_private:
        return math.inf
    share = max(LEAST_CLIP, CLIP_FACTOR / math.sqrt(records(instance)))
    return instance.public.typical_weight * phases.steepest_gradient(instance) * share


def spread(solver: "PhasedAcceleratedERM", instance: Instance) -> float:
    """b*, where users' weighted mean gradients are expected around their own mean."""
    del solver
    share = SPREAD_FACTOR / math.sqrt(records(instance))
    return instance.public.typical_weight * phases.steepest_gradient(instance) * share


def quantile(solver: "PhasedAcceleratedERM", instance: Instance) -> float:
    """The share of users that an adaptive clip leaves alone."""
    del solver
    return min(0.99, max(0.3, 0.99 - 15.0 * one_shot_noise(instance)))


def strengths(solver: "PhasedAcceleratedERM") -> tuple[float, ...]:
    """lam_i = lam 2^(p i)."""
    return tuple(solver.strength * 2.0 ** (solver.strength_growth * i) for i in range(solver.phases))


def lengths(solver: "PhasedAcceleratedERM", instance: Instance) -> tuple[tuple[int, ...], ...]:
    """The steps of every run of AC-SA, phase by phase: one run each, or several that halve the gap."""
    found: list[tuple[int, ...]] = []
    for lam in strengths(solver):
        smooth = solver.smoothness + lam
        strong = lam + instance.ridge
        least = math.ceil(4.0 * math.sqrt(smooth / strong))
        if solver.stages == "single":
            most = SINGLE_STEPS if instance.is_private else NOISELESS_STEPS
            found.append((min(solver.most_steps or most, least),))
        else:
            found.append(_halving(solver, instance, smooth, strong))
    return tuple(found)


def stage_lengths(
    *, smoothness: float, strong_convexity: float, variance: float, gap: float, stages: int
) -> tuple[int, ...]:
    """N_k = ceil(max(4 sqrt(L / mu), 32 V^2 / (mu gap_(k-1)))), which halves the bound on the gap every time.

    Args:
        smoothness: L.
        strong_convexity: mu.
        variance: V^2, the mean squared norm of a gradient's noise.
        gap: a bound on the gap at the start.
        stages: how many.
    """
    least = 4.0 * math.sqrt(smoothness / strong_convexity)
    return tuple(
        math.ceil(max(least, 32.0 * variance / (strong_convexity * gap * 0.5**k))) for k in range(stages)
    )


def gap_bound(
    *, smoothness: float, strong_convexity: float, distance: float, variance: float, steps: int
) -> float:
    """2 L D^2 / (T (T + 1)) + 8 V^2 / (mu (T + 1)), the expected gap of one run of AC-SA.

    Args:
        smoothness: L.
        strong_convexity: mu.
        distance: D, from the start to the minimum.
        variance: V^2.
        steps: T, at least 1.
    """
    optimisation = 2.0 * smoothness * distance**2 / (steps * (steps + 1))
    return optimisation + 8.0 * variance / (strong_convexity * (steps + 1))


def steps(solver: "PhasedAcceleratedERM") -> tuple[int, ...]:
    """T_i, of each phase."""
    return tuple(sum(stages) for stages in solver.lengths)


def tests_by(
    solver: "PhasedAcceleratedERM", instance: Instance
) -> Literal["none", "gaussian", "sparse-vector"]:
    """Gaussian tests for up to 40 steps, the sparse vector beyond; on samples nothing else has a price."""
    del instance
    if solver.aggregator != "stable":
        return "none"
    if solver.rate < 1.0:
        return "sparse-vector"
    taken = sum(steps(solver)) if solver.reuse else max(steps(solver), default=0)
    return "gaussian" if taken <= phases.MOST_GAUSSIAN_TESTS else "sparse-vector"


def bad_event_delta(solver: "PhasedAcceleratedERM", instance: Instance) -> float:
    """delta_1 of a step's test; 0 without tests."""
    if solver.aggregator != "stable":
        return 0.0
    return phases.bad_event_delta(instance, solver, max(steps(solver), default=1))


def test_share(solver: "PhasedAcceleratedERM", instance: Instance) -> float:
    """The Gaussian test's part of a step's rho.

    Raises:
        BudgetTooSmall: a mean behind a test would be more than five times as noisy as one around a known centre.
        ValueError: there are too few users for the noise of a test.
    """
    if solver.tests != "gaussian" or not any(steps(solver)) or not instance.is_private:
        return 0.1
    delta, public = phases.BAD_EVENTS * instance.budget.delta, instance.public
    users = min(phases.users_of(solver, public.n))
    each = phases.rho_of_phase(instance, solver, delta) / max(steps(solver))
    plan = plan_stable_mean(
        points=users,
        replaced=public.relation.factor == 2,
        rho=each,
        bad_event_delta=solver.bad_event_delta,
        outliers=OUTLIERS,
    )
    if plan.cost > DEAREST_TEST:
        raise _too_dear(plan.cost, users, sum(steps(solver)), instance)
    return plan.share


def probe_share(solver: "PhasedAcceleratedERM", instance: Instance) -> float:
    """The probe's part of the budget, where the rows say how curved the loss is and nobody else does."""
    public = instance.public
    useful = (
        isinstance(instance.problem.loss, GLMLoss) and public.d <= WIDEST and not solver.is_set("smoothness")
    )
    return PROBE_SHARE if useful and solver.phases > 0 else 0.0


def search(solver: "PhasedAcceleratedERM", count: int) -> SparseTest:
    """The sparse vector of a phase of `count` steps."""
    vector = SparseTest.of(
        solver.test_epsilon / phases.parts(solver),
        tests=count,
        bad_event_delta=count * solver.bad_event_delta,
        reversed=True,
    )
    if solver.rate >= 1.0:
        return vector
    return TestedSamples(
        vector.threshold,
        vector.epsilon_threshold,
        vector.epsilon_queries,
        reversed=True,
        bad_event_delta=vector.bad_event_delta,
        rate=solver.rate,
        noise_multiplier=mean_multiplier(solver),
        tests=count,
    )


def require_worthwhile(solver: "PhasedAcceleratedERM", instance: Instance) -> None:
    """Refuse tests whose means would be more than five times as noisy as those around a known centre.

    Raises:
        BudgetTooSmall: they would, or there are too few users for the noise of a test.
    """
    if solver.tests != "sparse-vector" or not any(steps(solver)) or not instance.is_private:
        return
    public = instance.public
    users = zip(steps(solver), phases.users_of(solver, public.n), strict=True)
    for count, size in users:
        points = round(solver.rate * size)
        cost = solver.means(count).cost(points, replaced=public.relation.factor == 2)
        if cost > DEAREST_TEST:
            raise _too_dear(cost, points, sum(steps(solver)), instance)


def probe_multiplier(solver: "PhasedAcceleratedERM") -> float:
    """Of the probe, as a part of what the steps that one user is in release."""
    counts = steps(solver)
    together = sum(counts) if solver.reuse else max(counts, default=1)
    return solver.noise_multiplier * math.sqrt(
        (1.0 - solver.probe_share) / (solver.probe_share * max(1, together))
    )


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


def mean_multiplier(solver: "PhasedAcceleratedERM") -> float:
    """Of a step's released mean, over its sensitivity."""
    if solver.tests == "gaussian":
        return solver.noise_multiplier / math.sqrt(1.0 - solver.test_share)
    return solver.noise_multiplier


def forecast(solver: "PhasedAcceleratedERM", instance: Instance) -> Forecast:
    """The theorem's lam R^2 / 2 + c L0^2 / (lam n m) + d sigma^2 / (lam T), with the noise that will be added."""
    public, taken = instance.public, steps(solver)
    if not any(taken):
        return Forecast()
    lam, weight = solver.strength + instance.ridge, public.typical_weight
    length = solver.clip if solver.aggregator != "stable" else 1.3 * solver.spread
    noise = 0.0
    if instance.is_private:
        users = min(phases.users_of(solver, public.n)) * solver.rate
        noise = public.relation.factor * length / weight * mean_multiplier(solver) / users
    steepest = phases.steepest_gradient(instance)
    excess = solver.strength * solver.distance**2 / 2.0
    excess += 2.0 * steepest**2 / (lam * public.n * records(instance))
    excess += instance.parameters * noise**2 / (lam * max(taken))
    return Forecast(
        excess=instance.capped(excess),
        meaning="the terms of the theorem with the noise that is added; an upper estimate",
        indicators={"steps": Finding(sum(taken), "accelerated steps in all phases together")},
    )


def _halving(
    solver: "PhasedAcceleratedERM", instance: Instance, smooth: float, strong: float
) -> tuple[int, ...]:
    """As many runs that halve the gap as fit the steps of a phase, at least one."""
    most = solver.most_steps or (ALL_STAGES if instance.is_private else STAGES * NOISELESS_STEPS)
    gap = smooth * solver.distance**2 / 2.0
    planned = stage_lengths(
        smoothness=smooth,
        strong_convexity=strong,
        variance=_variance(solver, instance, most),
        gap=gap,
        stages=STAGES,
    )
    kept: list[int] = []
    for length in planned:
        if sum(kept) + length > most:
            break
        kept.append(length)
    return tuple(kept) or (min(most, planned[0]),)


def _variance(solver: "PhasedAcceleratedERM", instance: Instance, most: int) -> float:
    """V^2 of a step, if every phase takes as many as it may."""
    if not instance.is_private:
        return 0.0
    public = instance.public
    length = clip(solver, instance) / public.typical_weight
    stddev = (
        public.relation.factor * length / (public.n * instance.mu) * math.sqrt(most * phases.parts(solver))
    )
    return instance.parameters * stddev**2


def _too_dear(cost: float, users: int, taken: int, instance: Instance) -> BudgetTooSmall:
    return BudgetTooSmall(
        f"a tested mean of {users:,} users in each of {taken} steps at epsilon {instance.budget.epsilon:.3g} would be "
        f"{cost / 2:.2g} times as noisy as one around a known centre (limit: {DEAREST_TEST / 2:g}): clip around zero "
        "(aggregator='clip'), take fewer steps, raise epsilon, or collect more users."
    )
