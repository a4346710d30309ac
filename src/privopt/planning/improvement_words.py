"""Sentences on the share of the achievable improvement over a constant prediction, before a run and after it."""

import math
from collections.abc import Callable

from privopt.ledger.amounts import Budget
from privopt.ledger.gaussian_dp import gaussian_epsilon, gaussian_mu
from privopt.planning.improvement_share import ImprovementShare
from privopt.planning.plan import IMPROVEMENT_ENDS, IMPROVEMENT_SHARE, Finding, figure
from privopt.public import Public

GOAL = 0.9  # where a share cannot double, it is said what would bring it here
ENOUGH = 0.95 * GOAL  # a share from which on more is not worth saying
LEAST_SHARE = 0.01  # from which what would help is said
MOST_TIMES = 100.0  # as many records: more is not spelled out
MOST_EPSILON = 30.0
OF = "of the improvement that a model without privacy makes over a constant prediction"
NOTHING_FOUND = "nothing was found: the released gradients show no more than noise would"


def expected(noise: float, spread: float, public: Public, budget: Budget) -> str:
    """What a plan says where the share is 1 / (1 + x) of a noise x, on most data within a factor of the odds.

    Where most data leave little to gain, it is said what would help where less is reached, at the lower end.

    Args:
        noise: x; falls as one over the number of records, and over mu.
        spread: the factor.
        public: of the data.
        budget: of the run.
    """
    share, low, high = (1.0 / (1.0 + noise * times) for times in (1.0, spread, 1.0 / spread))
    at_low = share >= ENOUGH > low
    least, x = (low, noise * spread) if at_low else (share, noise)
    what = "the lower end" if at_low else "it"
    gain = more(least, lambda wanted: x * wanted / (1.0 - wanted), public, budget, what=what)
    return f"{between(low, share, high)} {OF}{gain}"


def findings(found: ImprovementShare, public: Public, budget: Budget) -> dict[str, Finding]:
    """By name, what a run says of its result: the share, and the range that it lies in."""
    said = reached(found, public, budget)
    if not found.is_found:
        return {IMPROVEMENT_SHARE: Finding(0.0, said)}
    ends = (found.low, "the share is seldom below"), (found.high, "the share is seldom above")
    return {IMPROVEMENT_SHARE: Finding(found.middle, said)} | {
        name: Finding(end, meaning) for name, (end, meaning) in zip(IMPROVEMENT_ENDS, ends, strict=True)
    }


def reached(found: ImprovementShare, public: Public, budget: Budget) -> str:
    """What the releases of a run say of its result; what would help only where something was found."""
    if not found.is_found:
        return NOTHING_FOUND
    share = min(max(found.middle, LEAST_SHARE), 1.0)
    odds = (1.0 - share) / share
    gain = more(share, lambda wanted: odds * wanted / (1.0 - wanted), public, budget)
    return f"{between(found.low, found.middle, found.high)} {OF}{gain}"


def more(
    share: float, times_for: Callable[[float], float], public: Public, budget: Budget, *, what: str = "it"
) -> str:
    """Which number of records, or which epsilon, would double a share or bring it to `GOAL`; begins with a semicolon.

    Args:
        share: the share.
        times_for: how many times as many records, or how many times the mu, another share takes.
        public: of the data.
        budget: of the run.
        what: is brought there.
    """
    if share >= ENOUGH:
        return f"; more {public.unit}s or a larger epsilon would add little"
    wanted = min(2.0 * share, GOAL)
    does = f"double {what}" if wanted < GOAL else f"bring {what} to {percent(GOAL)}"
    times = max(times_for(wanted), 1.0)
    if times > MOST_TIMES:
        return f"; more than {figure(int(MOST_TIMES))} times as many {public.unit}s would {does}"
    epsilon = gaussian_epsilon(times * gaussian_mu(budget.epsilon, budget.delta), budget.delta)
    units = f"; about {figure(int(two_digits(times * public.n)))} {public.unit}s at the same epsilon"
    if epsilon > MOST_EPSILON:
        return f"{units} would {does}"
    return f"{units}, or epsilon {two_digits(epsilon):.2g} with the same {public.unit}s, would {does}"


def between(low: float, share: float, high: float) -> str:
    """A range of shares in words; that of the middle where both ends round to the same. Shares below 0 are 0."""
    ends = percent(low), percent(high)
    if ends[0] == ends[1]:
        return about(share)
    if ends[0] == percent(0.0):
        return f"at most {ends[1]}"
    return f"between {ends[0]} and {'nearly all' if ends[1] == percent(1.0) else ends[1]}"


def about(share: float) -> str:
    """A share in words, as exactly as it is known."""
    if share < 0.075:
        return "less than 10 %"
    return f"about {percent(share)}" if share <= 0.925 else "more than 90 %"


def percent(share: float) -> str:
    """A share to the nearest five per cent."""
    return f"{5 * round(20 * min(max(share, 0.0), 1.0))} %"


def two_digits(value: float) -> float:
    """A number rounded to two digits."""
    return float(f"{value:.1e}") if math.isfinite(value) and value else value
