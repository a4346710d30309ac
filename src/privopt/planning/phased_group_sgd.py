"""Rules and forecast of phased SGD on groups of users.

With n users of m typical records, p parameters, C groups, T = n m / C steps a pass, step sizes eta_i = eta 2^(-p i):

    groups      C = n / ceil(30 / m): about 30 records a group, or one user
    step size   eta = 1.5 / (L + lam), three quarters of what one record's loss allows
    phases      3, and 4 at most: later ones only add the risk of a failed test
    radius      0.8 R 2^-i around the phase's start, R the distance to the optimum
    spread      0.28 eta_i L0 sqrt(T) / sqrt(1 + eta_i L T / 40): where the groups' mean iterates are expected around
                their own mean; 95 % of them were within 0.25 on generated logistic regressions, T from 30 to 300

In theory two passes from one start end within eta L sqrt(T) (4 + 8 sqrt(2 ln(1 / zeta))) of each other with probability
1 - zeta (scalar Azuma with stopping; the dimension does not enter), and the number of groups that balances statistics
and privacy is C* = s c sqrt(2^(p+q) d / (2 rho)) for noise s c eta L sqrt(T) / (C sqrt(2 rho)). The paper's constants
(C = 100 log(20 n m e^eps / delta) / eps groups, tau = 1000 eta L sqrt(T) log(n d m)) need n = 1.7e5 users at m = 100,
epsilon = 1, delta = 1e-6. Utility only.

Source:
    Lowy, Liu, Asi 2024, Theorem 2.1 and Lemma 2.3, with constants of ours.
"""

import math
from typing import Any

from privopt.errors import BudgetTooSmall
from privopt.ledger.gaussian_dp import part_of
from privopt.planning import descent_defaults, phases
from privopt.planning.forecast import Forecast
from privopt.planning.instance import Instance
from privopt.planning.plan import Finding
from privopt.planning.stable_mean import OUTLIERS, StableMeanPlan, plan_radius_search, plan_stable_mean
from privopt.public import Public

RECORDS_OF_A_GROUP = 30
STEP_FACTOR = 1.5
PHASES = 3
RADIUS_SHARE = 0.8  # k: of the distance that is left, how much one phase may go
SPREAD, CONTRACTION = 0.28, 40.0
QUANTILE_SHARE, QUANTILE_STEPS, LEAST_RADIUS = 0.1, 10, 1e-3  # of a private radius, where one is asked for
PAPER_RADIUS = 2.0  # tau over the spread: two points that far from their mean may be that far apart


def group_units(public: Public) -> int:
    """ceil(30 / m) users."""
    return math.ceil(RECORDS_OF_A_GROUP / public.typical_records)


def groups(solver: Any, instance: Instance) -> int:
    """C, of all n users."""
    del solver
    return max(2, instance.public.n // group_units(instance.public))


def smoothness(solver: Any, instance: Instance) -> float:
    """L + lam, of one record's loss."""
    del solver
    return descent_defaults.smoothness(instance) + instance.penalty_smoothness


def step_size(solver: Any, instance: Instance) -> float:
    """eta of the first phase."""
    del instance
    return STEP_FACTOR / solver.smoothness


def groups_of(solver: Any, n: int) -> tuple[int, ...]:
    """C_i of every phase: as many users a group in each of them, at least two groups."""
    return tuple(max(2, solver.groups * users // n) for users in phases.users_of(solver, n))


def step_sizes(solver: Any) -> tuple[float, ...]:
    """eta_i = eta 2^(-p i)."""
    return tuple(solver.step_size * 2.0 ** (-solver.step_decay * i) for i in range(solver.phases))


def radii(solver: Any) -> tuple[float, ...]:
    """0.8 R 2^-i."""
    return tuple(RADIUS_SHARE * solver.distance * 0.5**i for i in range(solver.phases))


def spreads(solver: Any, public: Public) -> tuple[float, ...]:
    """b*_i, where the groups' mean iterates are expected around their own mean."""
    sizes = zip(phases.users_of(solver, public.n), groups_of(solver, public.n), strict=True)
    steps = (users / count * public.typical_records for users, count in sizes)
    return tuple(
        solver.spread
        * solver.gradient_norm
        * eta
        * math.sqrt(taken / (1.0 + eta * solver.smoothness * taken / CONTRACTION))
        for eta, taken in zip(step_sizes(solver), steps, strict=True)
    )


def number_of_phases(solver: Any, instance: Instance) -> int:
    """Three; of disjoint ones with a test, as many as there are groups enough for the last."""
    wanted = PHASES
    while wanted > 1 and solver.tests and not _has_room(solver.with_(phases=wanted), instance):
        wanted -= 1
    return wanted


def bad_event_delta(solver: Any, instance: Instance) -> float:
    """delta_1 of a phase's test; 0 without tests."""
    return phases.bad_event_delta(instance, solver, 1) if solver.tests else 0.0


def test_share(solver: Any, instance: Instance) -> float:
    """The test's part of a phase's rho: that of the least noise, for the phase of the fewest groups.

    Raises:
        BudgetTooSmall: there are too few groups for the noise of a test.
    """
    if solver.mode not in ("stable", "paper") or solver.phases == 0 or not instance.is_private:
        return 0.1
    return stable_plan(solver, instance).share


def search_epsilon(solver: Any, instance: Instance) -> float:
    """Of the search of a phase's spread: that of the least noise, for the phase of the fewest groups.

    Raises:
        BudgetTooSmall: there are too few groups for the noise of a search.
    """
    if solver.mode != "stable-auto" or solver.phases == 0 or not instance.is_private:
        return 1.0
    plan = plan_radius_search(
        points=min(groups_of(solver, instance.public.n)),
        replaced=True,
        budget=part_of(instance.budget, 1.0 / phases.parts(solver)),
        relation=instance.public.relation,
    )
    return plan.search_epsilon


def stable_plan(solver: Any, instance: Instance) -> StableMeanPlan:
    """What `plan_stable_mean` says of the phase of the fewest groups."""
    delta = phases.BAD_EVENTS * instance.budget.delta
    return plan_stable_mean(
        points=min(groups_of(solver, instance.public.n)),
        replaced=True,
        rho=phases.rho_of_phase(instance, solver, delta),
        bad_event_delta=delta / phases.parts(solver),
        outliers=OUTLIERS,
    )


DEFAULTS = {
    "groups": groups,
    "phases": number_of_phases,
    "smoothness": smoothness,
    "step_size": step_size,
    "distance": lambda solver, instance: phases.distance(instance),
    "gradient_norm": lambda solver, instance: phases.steepest_gradient(instance),
    "bad_event_delta": bad_event_delta,
    "test_share": test_share,
    "search_epsilon": search_epsilon,
}


def balanced_groups(*, cost: float, spread: float, decay: float, dimensions: int, rho: float) -> float:
    """C*, about sqrt(d) / epsilon: the number of groups at which statistics and privacy cost the same.

    Args:
        cost: s, the aggregator's noise over spread / (C sqrt(2 rho)); 2 around a known centre.
        spread: c, the spread of the groups over eta L sqrt(T).
        decay: p + q, by which step sizes and users shrink from phase to phase.
        dimensions: number of parameters.
        rho: of one phase.
    """
    return cost * spread * math.sqrt(2.0**decay * dimensions / (2.0 * rho))


def stability_radius(zeta: float) -> float:
    """How far two passes end from each other with probability 1 - zeta, over eta L sqrt(T)."""
    return 4.0 + 8.0 * math.sqrt(2.0 * math.log(1.0 / zeta))


def paper_groups(n: int, m: float, epsilon: float, delta: float) -> float:
    """100 log(20 n m e^eps / delta) / eps, as printed."""
    return 100.0 * (math.log(20.0 * n * m / delta) + epsilon) / epsilon


def noise_stddevs(solver: Any, public: Public) -> tuple[float, ...]:
    """The noise of each phase's mean a coordinate."""
    counts = groups_of(solver, public.n)
    multiplier = solver.mean_multiplier
    if solver.mode == "clip":
        lengths = radii(solver)
    else:  # around an unknown centre: a ball a fifth to a half wider than the spread
        lengths = tuple(1.3 * spread for spread in spreads(solver, public))
    return tuple(2.0 * length * multiplier / count for length, count in zip(lengths, counts, strict=True))


def forecast(solver: Any, instance: Instance) -> Forecast:
    """The bound of the localised regret with the noise that will be added, and what theory would choose."""
    public = instance.public
    if solver.phases == 0:
        return Forecast()
    loss, eta, stddevs = solver.gradient_norm, step_sizes(solver), noise_stddevs(solver, public)
    sizes = zip(phases.users_of(solver, public.n), groups_of(solver, public.n), strict=True)
    steps = [users / count * public.typical_records for users, count in sizes]
    excess = solver.distance**2 / (2.0 * eta[0] * steps[0])
    excess += math.fsum(one * loss**2 / 2.0 for one in eta)
    for i in range(1, solver.phases):
        excess += instance.parameters * stddevs[i - 1] ** 2 / (2.0 * eta[i] * steps[i])
    excess += loss * math.sqrt(instance.parameters) * stddevs[-1]
    found = Forecast(
        excess=instance.capped(excess),
        meaning="the bound for convex smooth losses, clipping left out; an upper estimate, often 10 times too high",
    )
    return _with_indicators(found, solver, instance)


def _with_indicators(found: Forecast, solver: Any, instance: Instance) -> Forecast:
    if not instance.is_private:
        return found
    best = balanced_groups(
        cost=2.0,
        spread=solver.spread,
        decay=solver.step_decay + (0.0 if solver.reuse else solver.share_decay),
        dimensions=instance.parameters,
        rho=phases.rho_of_phase(instance, solver, phases.BAD_EVENTS * instance.budget.delta),
    )
    indicators = {
        "balanced_groups": Finding(best, "groups that balance statistics and privacy in the bound"),
        "groups": Finding(solver.groups, "groups that will run"),
    }
    notices = found.notices
    if solver.mode == "stable-auto":
        notices += ("the search for the groups' spread is part of the noise; its result is not foreseen.",)
    return Forecast(excess=found.excess, meaning=found.meaning, indicators=indicators, notices=notices)


def _has_room(solver: Any, instance: Instance) -> bool:
    """Whether the phase of the fewest groups has enough of them for its test."""
    if not instance.is_private:
        return True
    try:
        stable_plan(solver, instance) if solver.mode != "stable-auto" else search_epsilon(solver, instance)
    except BudgetTooSmall:
        return False
    return True
