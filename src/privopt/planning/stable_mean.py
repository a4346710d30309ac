"""The public numbers of a stable mean: how strict its test is, how many points must be close, what it costs.

K points, b* a radius around their mean that holds a fraction 1 - o of them, rho the price of test and mean together.
The cost is K times the noise over b*, in units where clipping around the *known* mean at b* costs 2.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

from scipy import stats

from privopt.errors import BudgetTooSmall, NotPriceable
from privopt.ledger.amounts import Budget
from privopt.ledger.calibration import calibrate
from privopt.ledger.events import DeltaEvent, Event, GaussianEvent, PureEvent, Sequence
from privopt.mechanisms.tests import GaussianTest, SparseTest
from privopt.proofs import huber_centre as proof
from privopt.public import Relation

OUTLIERS = 0.05  # o
RADII = 52  # of a search, each 1.25 times the one before: from c_max / 87,600
RATIO = 1.25
FALSE_HALT = 1e-3  # chance that the noise fails a test of points that are as planned
FALSE_SKIP = 1e-2  # likewise, for one radius of a search
TEST_SHARES = (0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5)  # of rho
SEARCH_SHARES = (0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5)  # of epsilon
BAD_EVENT_SHARE = 0.1  # of delta
_SAMPLE_STRAY = 3.0  # standard deviations by which a sample may be smaller or larger than planned for
_LEAST_INNER = 0.1  # b(l*) / c
_MOST_POINTS = 10**9


class StableNumbers(NamedTuple):
    """What a test fixes, from public numbers.

    Attributes:
        threshold: of the noisy score.
        slack: l*, the score of points that are as planned.
        least: N0: with the score at least 1, more than this many points are close to the centre.
        inner: b(l*) / c: where N0 + l* points are within b* of the centre, c = b* / inner.
        shift: Delta / c, how far one point moves the centre, in radii.
    """

    threshold: float
    slack: int
    least: int
    inner: float
    shift: float

    def steps(self, most: int) -> int:
        """Of the solver, where there are at most `most` points, or more of them than it needs to serve."""
        return proof.descent_steps(self.least, min(most, 2 * self.least - 1))


def stable_numbers(
    points: int,
    threshold: float,
    slack: int,
    *,
    replaced: bool,
    outliers: float = OUTLIERS,
    sampled: bool = False,
) -> StableNumbers | None:
    """The numbers of a test, or None where there are too few points for it.

    Args:
        points: K, nominal under add-or-remove-one.
        threshold: of the noisy score.
        slack: l*.
        replaced: whether a neighbour replaces a point.
        outliers: o, the fraction of points that may lie outside of b*.
        sampled: whether the points are a secret sample, of K on average.
    """
    stray = _SAMPLE_STRAY * math.sqrt(points) if sampled else 0.0
    least = math.floor((1.0 - outliers) * (points - stray)) - slack
    secret = sampled or not replaced
    if least <= points / 2 or (secret and 2 * least - 1 - (points + stray) < slack):
        return None
    if sampled and least < proof.LEAST_OF_SAMPLE:
        return None
    inner = float(proof.inner_radii(slack, least, replaced=replaced, sampled=sampled)[-1])
    if inner < _LEAST_INNER:
        return None
    shift = proof.centre_shift(least, replaced=replaced, sampled=sampled)
    return StableNumbers(threshold, slack, least, inner, shift)


def gaussian_test_numbers(
    points: int,
    noise_multiplier: float,
    bad_event_delta: float,
    *,
    replaced: bool,
    outliers: float = OUTLIERS,
) -> StableNumbers | None:
    """The numbers of a Gaussian test of this noise and this probability of a bad event."""
    scale = noise_multiplier
    test = GaussianTest(noise_multiplier, bad_event_delta=bad_event_delta)
    threshold = max(1.0, test.threshold(0.0, 1.0))
    slack = max(1, math.ceil(threshold + scale * float(stats.norm.isf(FALSE_HALT))))
    return stable_numbers(points, threshold, slack, replaced=replaced, outliers=outliers)


def sparse_test_numbers(
    points: int, search: SparseTest, *, replaced: bool, outliers: float = OUTLIERS
) -> StableNumbers | None:
    """The numbers of a search over radii."""
    slack = max(1, math.ceil(search.threshold + search.threshold_for(FALSE_SKIP, 1)))
    return stable_numbers(points, search.threshold, slack, replaced=replaced, outliers=outliers)


@dataclass(frozen=True, kw_only=True)
class StableMeanPlan:
    """A stable mean at a known radius.

    Attributes:
        share: of rho, for the test.
        numbers: of the test.
        cost: K times the standard deviation of the noise over b* and 1 / sqrt(2 rho).
        test_multiplier: noise of the test over its sensitivity.
        noise_multiplier: noise of the mean over its sensitivity.
    """

    share: float
    numbers: StableNumbers
    cost: float
    test_multiplier: float
    noise_multiplier: float


def plan_stable_mean(
    *, points: int, replaced: bool, rho: float, bad_event_delta: float, outliers: float = OUTLIERS
) -> StableMeanPlan:
    """The share of the test that makes a stable mean cheapest.

    Args:
        points: K.
        replaced: whether a neighbour replaces a point.
        rho: price of test and mean, in zCDP, without the bad event.
        bad_event_delta: delta_1.
        outliers: o.
    Raises:
        BudgetTooSmall: there are too few points; it names how many are enough.
    """
    found = _cheapest(points, replaced, rho, bad_event_delta, outliers)
    if found is None:
        enough = smallest_enough(
            lambda count: _cheapest(count, replaced, rho, bad_event_delta, outliers) is not None
        )
        raise too_few(points, enough)
    return found


def _cheapest(
    points: int, replaced: bool, rho: float, bad_event_delta: float, outliers: float
) -> StableMeanPlan | None:
    plans: list[StableMeanPlan] = []
    for share in TEST_SHARES:
        test = 1.0 / math.sqrt(2.0 * rho * share)
        numbers = gaussian_test_numbers(points, test, bad_event_delta, replaced=replaced, outliers=outliers)
        if numbers is not None:
            cost = points * numbers.shift / numbers.inner / math.sqrt(1.0 - share)
            noise = 1.0 / math.sqrt(2.0 * rho * (1.0 - share))
            plans.append(
                StableMeanPlan(
                    share=share, numbers=numbers, cost=cost, test_multiplier=test, noise_multiplier=noise
                )
            )
    return min(plans, key=lambda plan: plan.cost, default=None)


@dataclass(frozen=True, kw_only=True)
class RadiusSearchPlan:
    """A stable mean at a radius that is searched for.

    Attributes:
        search_epsilon: of the search, pure.
        search: the search.
        numbers: of its tests.
        noise_multiplier: noise of the mean over its sensitivity; 1 / mu.
        cost: K times the standard deviation of the noise over b*, where the radius found is the smallest that holds.
    """

    search_epsilon: float
    search: SparseTest
    numbers: StableNumbers
    noise_multiplier: float
    cost: float


def plan_radius_search(
    *,
    points: int,
    replaced: bool,
    budget: Budget,
    relation: Relation = Relation.REPLACE_ONE,
    radii: int = RADII,
    outliers: float = OUTLIERS,
) -> RadiusSearchPlan:
    """The share of the search that makes a stable mean of unknown radius cheapest.

    Args:
        points: K.
        replaced: whether a neighbour replaces a point.
        budget: of search and mean, the bad event included.
        relation: the neighbouring relation that the ledger prices under.
        radii: how many are tried.
        outliers: o.
    Raises:
        BudgetTooSmall: there are too few points; it names how many are enough.
    """
    searches = _searches(budget, relation, radii)
    found = _cheapest_search(points, replaced, searches, outliers)
    if found is None:
        enough = smallest_enough(
            lambda count: _cheapest_search(count, replaced, searches, outliers) is not None
        )
        raise too_few(points, enough)
    return found


def _cheapest_search(
    points: int, replaced: bool, searches: tuple[tuple[float, SparseTest, float], ...], outliers: float
) -> RadiusSearchPlan | None:
    plans: list[RadiusSearchPlan] = []
    for epsilon, search, noise in searches:
        numbers = sparse_test_numbers(points, search, replaced=replaced, outliers=outliers)
        if numbers is not None:
            plans.append(
                RadiusSearchPlan(
                    search_epsilon=epsilon,
                    search=search,
                    numbers=numbers,
                    noise_multiplier=noise,
                    cost=points * numbers.shift / numbers.inner * noise,
                )
            )
    return min(plans, key=lambda plan: plan.cost, default=None)


@cache
def _searches(budget: Budget, relation: Relation, radii: int) -> tuple[tuple[float, SparseTest, float], ...]:
    """(epsilon of the search, search, noise multiplier of the mean) for each share of the budget."""
    found: list[tuple[float, SparseTest, float]] = []
    bad = BAD_EVENT_SHARE * budget.delta
    for share in SEARCH_SHARES:
        epsilon = share * budget.epsilon
        search = SparseTest.of(epsilon, tests=radii, bad_event_delta=bad)

        def event(scale: float, epsilon: float = epsilon) -> Event:
            return Sequence((PureEvent(epsilon), DeltaEvent(bad), GaussianEvent(scale)))

        try:
            found.append((epsilon, search, calibrate(event, budget, relation)))
        except NotPriceable:
            continue
    return tuple(found)


def smallest_enough(workable: Callable[[int], bool]) -> int | None:
    """The smallest number of points that is workable, if any is; workable numbers are taken to be upwards closed."""
    high = 4
    while not workable(high):
        high *= 2
        if high > _MOST_POINTS:
            return None
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if workable(middle) else (middle, high)
    return high


def too_few(points: int, enough: int | None) -> BudgetTooSmall:
    """The error for too few points."""
    remedy = (
        "no number of points is enough: raise epsilon or delta."
        if enough is None
        else f"give at least {enough:,}, raise epsilon, or use a clipped mean, which needs no test."
    )
    return BudgetTooSmall(
        f"{points:,} points are too few for a stable mean at this noise: its test would hardly ever pass; {remedy}"
    )
