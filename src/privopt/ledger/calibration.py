"""The least noise that a budget allows, found by asking the accountant that will price the run."""

import functools
import math
from collections.abc import Callable

from privopt.errors import BudgetExceeded, NotPriceable
from privopt.ledger import accounting
from privopt.ledger.amounts import Budget
from privopt.ledger.composition import rounding_delta
from privopt.ledger.events import Event, additive_cost
from privopt.ledger.filters import Composition, filter_cap, filter_cost
from privopt.public import Relation

MARGIN = 1e-8  # left unspent, so that sums of floats in the ledger never refuse the last release
EXACT_SLACK = 1e-9  # closed formulas cost nothing: solve them to the margin
NUMERICAL_SLACK = 3e-4  # a PLD is evaluated until the price is this close below the target
GOAL = math.log1p(-MARGIN)  # of log(price / epsilon)
LARGEST_LOG_SCALE, SMALLEST_LOG_SCALE = 35.0, -25.0
# e times the noise that lowers the logarithm of epsilon by less than this lowers it no further.
PLATEAU_STEP, PLATEAU_GAIN = 1.0, 1e-4
_LEAST_ROOM = 0.1  # of the cap, for the parts that depend on the scale: where the search for it begins


def calibrate(
    make_event: Callable[[float], Event],
    budget: Budget,
    relation: Relation | str,
    *,
    composition: Composition = "plan",
) -> float:
    """The smallest noise scale with which a tree of events fits a budget.

    The price p of `make_event(scale)` satisfies epsilon (1 - 1e-3) <= p <= epsilon (1 - 1e-8) wherever the tree's
    price is continuous in the scale.

    Args:
        make_event: the tree of a run whose noise multipliers are proportional to (or increase with) `scale`. It may
            hold parts that do not depend on the scale.
        budget: the target; an infinite epsilon gives scale 0.
        relation: the neighbouring relation that the noise multipliers are relative to.
        composition: how the ledger will price the run; "plan" is the best accountant for a fixed tree, the others
            are the currencies of a filter.

    Raises:
        BudgetExceeded: the parts that do not depend on the scale already cost more than the budget.
        NotPriceable: no accountant can price the tree.
    """
    relation = Relation.parse(relation)
    if not budget.is_private:
        return 0.0

    @functools.cache
    def log_excess(log_scale: float) -> float:
        price = _price(make_event(math.exp(log_scale)), budget, relation, composition)
        return (
            math.log(price / budget.epsilon) if 0 < price < math.inf else math.copysign(math.inf, price - 1)
        )

    start = _first_guess(make_event, budget, composition)
    closed = composition != "plan" or accounting.is_closed_form(make_event(start), budget.delta)
    low, high = _bracket(log_excess, math.log(start), first_step=1e-6 if closed else 0.05)
    return math.exp(_solve(log_excess, low, high, slack=EXACT_SLACK if closed else NUMERICAL_SLACK))


def _price(event: Event, budget: Budget, relation: Relation, composition: Composition) -> float:
    if composition == "plan":
        return accounting.epsilon(event, budget.delta, relation, near=budget.epsilon)
    cost = filter_cost(composition, event, budget.epsilon)
    if composition == "basic":
        return cost.amount if cost.delta <= budget.delta else math.inf
    if cost.delta >= budget.delta:
        raise NotPriceable(
            f"bad events of probability {cost.delta:.3g} use up delta = {budget.delta:.3g}: nothing is left for the "
            "noise. Raise delta, or make the bad events rarer."
        )
    # The filter compares amounts, so the price is read off the cap: homogeneous, and equal to epsilon at the cap.
    cap = filter_cap(composition, budget, cost.delta)
    return budget.epsilon * math.sqrt(cost.amount / cap.amount)


def _first_guess(make_event: Callable[[float], Event], budget: Budget, composition: Composition) -> float:
    """A scale near the answer: exact for Gaussian releases, the central limit theorem for sampled ones.

    It only sets where the search begins; a PLD far from its answer would be slow.

    Source:
        Bu, Dong, Long, Su 2020, theorem 5: T Poisson samples of rate q cost about mu = q sqrt(T (e^(1/z^2) - 1)).
    """
    filtered = composition in ("gaussian", "zcdp")
    sample = make_event(1.0)
    set_aside = (additive_cost(sample, lambda leaf: leaf.bad_event or 0.0) or 0.0) + rounding_delta(
        additive_cost(sample, lambda leaf: leaf.rounding or 0.0) or 0.0, budget.epsilon
    )
    available = max(budget.delta - set_aside, min(budget.delta, 1e-12))
    cap = filter_cap(
        composition if filtered else "gaussian", Budget(budget.epsilon, max(available, 1e-12)), 0.0
    )

    def rho(log_scale: float) -> float:
        return additive_cost(make_event(math.exp(log_scale)), lambda leaf: leaf.approximate_rho or 0.0) or 0.0

    # Parts without the scale, such as a sparse vector, may cost more in zCDP than the cap and yet fit the budget.
    fixed = rho(LARGEST_LOG_SCALE)
    room = max(cap.amount - fixed, _LEAST_ROOM * cap.amount)

    def excess(log_scale: float) -> float:
        return math.log(max(rho(log_scale) - fixed, 1e-300) / room)

    low = high = 0.0
    while excess(high) > 0 and high < 30:
        low, high = high, high + 1 + high / 2
    while excess(low) <= 0 and low > -20:
        low, high = low - 1 + low / 2, low
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if excess(middle) > 0 else (low, middle)
    return math.exp(high) * (1 + 1.5 * MARGIN)


def _bracket(log_excess: Callable[[float], float], start: float, *, first_step: float) -> tuple[float, float]:
    """Logarithms of a scale that costs too much and of a larger one that does not."""
    low = high = start
    step = first_step
    while log_excess(high) > GOAL:
        low, high = high, high + step
        flat = step > PLATEAU_STEP and log_excess(high) > max(GOAL, log_excess(low) - PLATEAU_GAIN)
        if flat or high > LARGEST_LOG_SCALE:
            raise BudgetExceeded(
                "no amount of noise meets the budget: either the parts of the plan whose cost does not depend on the "
                "noise scale use it up, or the accountant cannot show a smaller epsilon at this delta (fixed-size "
                "samples at a small delta). Raise epsilon or delta, give those parts less, or use Poisson samples."
            )
        step *= 2
    step = first_step
    while log_excess(low) <= GOAL:
        low, high = low - step, low
        step *= 2
        if low < SMALLEST_LOG_SCALE:
            raise ValueError(
                "make_event(scale) stays within the budget however small the scale is: nothing in it depends on the "
                "scale, so there is nothing to calibrate."
            )
    return low, high


def _solve(log_excess: Callable[[float], float], low: float, high: float, *, slack: float) -> float:
    """The upper end of a bracket around the goal, by regula falsi guarded by bisection."""
    aim = GOAL - slack / 2
    at_low, at_high = log_excess(low) - aim, log_excess(high) - aim
    for step in range(200):
        if at_high >= -slack / 2 or high - low < 1e-14 * max(1.0, abs(high)):
            break
        usable = math.isfinite(at_low) and math.isfinite(at_high) and step % 4 != 3
        middle = high - at_high * (high - low) / (at_high - at_low) if usable else (low + high) / 2
        if not low < middle < high:
            middle = (low + high) / 2
        found = log_excess(middle) - aim
        if found <= GOAL - aim:
            high, at_high = middle, found
        else:
            low, at_low = middle, found
    return high
