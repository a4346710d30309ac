"""Privacy filters: currencies in which adaptively chosen events may be added up and stopped at a cap.

    composition   pays for                                   adds up                       cap
    gaussian      Gaussian releases only                     rho = sum 1 / (2 z^2)         mu(epsilon, delta)^2 / 2
    zcdp          all but sampled and shifted events         rho                           rho(epsilon, delta)
    basic         pure events; whole blocks (eps_i, delta_i) epsilons and deltas           (epsilon, delta)

Bad events (`DeltaEvent`) are additive in all three: they draw on a delta that is set aside when the ledger opens
(`bad_event_delta`), or, under basic composition, on delta itself. So does rounding (`RoundingEvent`): a total variation
eta draws (1 + e^epsilon) eta, at the budget's epsilon. At a larger one what was set aside counts for more, up to
(1 + e^larger) / (1 + e^epsilon) times as much: `filter_epsilon` and `filter_delta` say so.

Source:
    Smith, Thakurta 2022 (Gaussian); Whitehouse, Ramdas, Rogers, Wu 2023 (zCDP); Rogers, Roth, Ullman, Vadhan 2016
    (basic composition with adaptively chosen parameters).
"""

import functools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from privopt.errors import BudgetExceeded, NotPriceable
from privopt.ledger.amounts import Budget
from privopt.ledger.composition import rounded_delta, rounded_epsilon, rounding_delta
from privopt.ledger.curves import (
    gaussian_delta,
    gaussian_epsilon,
    gaussian_epsilons,
    gaussian_mu,
    zcdp_delta,
    zcdp_epsilon,
    zcdp_rho_budget,
)
from privopt.ledger.event import Event, Leaf
from privopt.ledger.events import Parallel, additive_cost, repeat, sequence

Composition = Literal["plan", "gaussian", "zcdp", "basic"]
TOLERANCE = 1e-9  # relative, for sums of floats; calibration leaves ten times as much
COMPOSITIONS = ("plan", "gaussian", "zcdp", "basic")
KEPT_BY = {
    "plan": "for a plan priced before the data was read",
    "gaussian": "kept by a Gaussian filter",
    "zcdp": "kept by a zCDP filter",
    "basic": "kept by basic composition",
}


@dataclass(frozen=True)
class Cost:
    """What something costs in a filter's currency: rho, or epsilon under basic composition, and an additive delta."""

    amount: float
    delta: float = 0.0


def sum_of_costs(costs: Iterable[Cost]) -> Cost:
    """All of them together, rounded up: at least the exact sum."""
    amounts, deltas = zip((0.0, 0.0), *((cost.amount, cost.delta) for cost in costs), strict=True)
    return Cost(rounded_up(math.fsum(amounts)), rounded_up(math.fsum(deltas)))


def rounded_up(value: float) -> float:
    """The next larger number; 0 stays 0."""
    return math.nextafter(value, math.inf) if value > 0 else value


@dataclass(frozen=True)
class SetAside:
    """The part of delta that bad events and rounding may take, rounding priced at `epsilon`, the budget's."""

    delta: float
    epsilon: float

    @property
    def total_variation(self) -> float:
        """The rounding that it pays for if nothing else draws on it."""
        return self.delta / rounding_delta(1.0, self.epsilon)


def filter_cap(composition: Composition, budget: Budget, bad_event_delta: float) -> Cost:
    """All that a filter may spend.

    Args:
        composition: the filter.
        budget: the guarantee it keeps.
        bad_event_delta: the part of delta that is set aside for bad events.

    Raises:
        ValueError: the currency needs a delta, and there is none.
    """
    if not budget.is_private:
        return Cost(math.inf, math.inf)
    if composition == "basic":
        return Cost(budget.epsilon, budget.delta)
    if budget.delta == 0:
        raise ValueError(
            f"a ledger with composition={composition!r} needs a delta above 0, got 0: only pure mechanisms do "
            "without. Give a delta, or use composition='basic' and pure mechanisms."
        )
    available = budget.delta - bad_event_delta
    if composition == "gaussian":
        return Cost(gaussian_mu(budget.epsilon, available) ** 2 / 2, bad_event_delta)
    return Cost(zcdp_rho_budget(budget.epsilon, available), bad_event_delta)


@functools.lru_cache(maxsize=4096)
def filter_cost(composition: Composition, event: Event, epsilon: float) -> Cost:
    """What a tree of events costs in a filter's currency; "plan" stands for zCDP here.

    Args:
        composition: the filter.
        event: the tree.
        epsilon: of the filter's budget, at which rounding is priced.

    Raises:
        NotPriceable: the currency cannot price one of the events.
    """

    def amount_of(leaf: Leaf) -> float | None:
        if composition == "basic":
            return leaf.pure
        return None if composition == "gaussian" and leaf.variance is None else leaf.zcdp

    def delta_of(leaf: Leaf) -> float:
        return (leaf.bad_event or 0.0) + rounding_delta(leaf.rounding or 0.0, epsilon)

    amount = additive_cost(event, amount_of)
    if amount is None:
        raise NotPriceable(f"{_ADVICE[composition]} It was asked to pay for: {event.describe()}.")
    return Cost(amount, additive_cost(event, delta_of) or 0.0)


def filter_epsilon(composition: Composition, cost: Cost, delta: float, aside: SetAside) -> float:
    """The epsilon of an amount at `delta`.

    Args:
        composition: the filter.
        cost: the amount, a cap or what was spent.
        delta: at least 0 and below 1.
        aside: what is set aside for bad events and rounding.
    """
    if composition == "basic":
        return cost.amount if delta >= cost.delta else math.inf
    if delta < aside.delta or math.isinf(cost.amount):
        return math.inf
    curve = gaussian_epsilon if composition == "gaussian" else zcdp_epsilon
    amount = math.sqrt(2 * cost.amount) if composition == "gaussian" else cost.amount
    found = curve(amount, delta - aside.delta)
    if aside.delta == 0 or found <= aside.epsilon or math.isinf(found):
        return found
    return rounded_epsilon(lambda left: curve(amount, left), aside.total_variation, delta, start=found)


def largest_payable(composition: Composition, left: Cost, delta: float) -> float:
    """The epsilon, at `delta`, of the largest fit with Gaussian noise that what is left pays for.

    A fit is calibrated on the exact curve of Gaussian noise, and pays the rho of that noise. So this is no more than
    the account's own epsilon, and under zCDP, whose conversion is looser, less.

    Args:
        composition: the filter.
        left: of its cap.
        delta: of the fit.
    """
    if composition == "basic":
        return left.amount
    return gaussian_epsilon(math.sqrt(2.0 * left.amount), delta) if left.amount < math.inf else math.inf


def largest_payables(composition: Composition, lefts: Sequence[Cost], delta: float) -> list[float]:
    """`largest_payable` of many amounts that are left, at once."""
    amounts = np.asarray([left.amount for left in lefts], np.float64)
    found = amounts if composition == "basic" else gaussian_epsilons(np.sqrt(2.0 * amounts), delta)
    return found.tolist()


def filter_delta(composition: Composition, cost: Cost, epsilon: float, aside: SetAside) -> float:
    """The delta of an amount at `epsilon`, bad events and rounding included."""
    if composition == "basic":
        return min(1.0, cost.delta) if epsilon >= cost.amount else 1.0

    def curve(at: float) -> float:
        if composition == "gaussian":
            return gaussian_delta(math.sqrt(2 * cost.amount), at)
        return zcdp_delta(cost.amount, at)

    if epsilon <= aside.epsilon or aside.delta == 0:
        return min(1.0, aside.delta + curve(epsilon))
    return rounded_delta(curve, aside.total_variation, epsilon, start=aside.epsilon)


def require_room(name: str, cost: Cost, spent: Cost, cap: Cost, composition: Composition) -> None:
    """Refuse what does not fit under a cap.

    Raises:
        BudgetExceeded: it does not.
    """
    if spent.amount + cost.amount > cap.amount * (1 + TOLERANCE):
        left = max(0.0, cap.amount - spent.amount)
        unit = "epsilon" if composition == "basic" else "rho"
        raise BudgetExceeded(
            f"{name!r} would cost {unit}={cost.amount:.4g}, but {left:.4g} of {cap.amount:.4g} is left. "
            "Release less often or raise the noise."
        )
    if spent.delta + cost.delta > cap.delta * (1 + TOLERANCE):
        left = max(0.0, cap.delta - spent.delta)
        raise BudgetExceeded(
            f"{name!r} would cost delta={cost.delta:.3g}, but {left:.3g} of {cap.delta:.3g} is left. "
            "Set more aside when the ledger opens (`bad_event_delta`), or make bad events and rounding rarer."
        )


_ADVICE = {
    "plan": (
        "a part of a plan that is measured in rho holds events with a zCDP cost only. "
        "Give the part its own plan instead."
    ),
    "gaussian": (
        "a ledger opened with composition='gaussian' pays for Gaussian releases only. "
        "Open it with composition='zcdp' for selections and Laplace noise, or declare a plan."
    ),
    "zcdp": (
        "a ledger opened with composition='zcdp' pays for events that have a zCDP cost; sampled releases and objective "
        "perturbation have none. Declare a plan (composition='plan'), or open an account with composition='basic'."
    ),
    "basic": (
        "a ledger opened with composition='basic' pays for pure events, and for anything else as a block with its own "
        "epsilon and delta: use `spend`, or open it with composition='gaussian' or 'zcdp'."
    ),
}


def check_composition(composition: str) -> None:
    """Refuse a name that is no composition.

    Raises:
        ValueError: it is none of the four.
    """
    if composition not in COMPOSITIONS:
        names = ", ".join(repr(name) for name in COMPOSITIONS)
        raise ValueError(f"composition must be one of {names}, got {composition!r}.")


def check_bad_event_delta(composition: Composition, budget: Budget, bad_event_delta: float) -> None:
    """Refuse a share of delta for bad events that leaves nothing.

    Raises:
        ValueError: it is negative, or not below delta, or the composition needs none.
    """
    if not (bad_event_delta == 0 or 0 < bad_event_delta < budget.delta):
        raise ValueError(
            f"bad_event_delta must be at least 0 and below delta = {budget.delta:g}, got {bad_event_delta!r}: it is "
            "the part of delta set aside for bad events, a tenth is usual."
        )
    if composition == "basic" and bad_event_delta > 0:
        raise ValueError(
            f"bad_event_delta must be 0 with composition='basic', got {bad_event_delta!r}: there bad events and "
            "rounding are charged to delta like everything else."
        )


# ------------------------------------------------------------------------------------------------------------
# The lines of a ledger: charges, parts that were lent, and disjoint blocks, as events, as text and as JSON.


@dataclass
class Charge:
    """`count` equal releases in a row."""

    name: str
    event: Event
    count: int


@dataclass
class Part:
    """The lines of a ledger that borrowed a part of this one."""

    name: str
    entries: "list[Entry]"


@dataclass
class Blocks:
    """The lines of each disjoint block of units; `paid` is what the dearest has cost in a filter so far."""

    name: str
    blocks: "tuple[list[Entry], ...]"
    paid: Cost = Cost(0.0)


@dataclass
class Filtered:
    """One event that was paid for, and the lines of the filter that it was handed out as."""

    name: str
    event: Event
    entries: "list[Entry]"


Entry = Charge | Part | Blocks | Filtered


def add_charge(entries: list[Entry], name: str, event: Event, count: int) -> None:
    """Write a line, or raise the count of the last one if it says the same."""
    last = entries[-1] if entries else None
    if isinstance(last, Charge) and last.name == name and last.event == event:
        last.count += count
    else:
        entries.append(Charge(name, event, count))


def entries_to_event(entries: list[Entry]) -> Event:
    """Everything that was charged, as one tree."""
    events: list[Event] = []
    for entry in entries:
        if isinstance(entry, Charge):
            events.append(repeat(entry.event, entry.count))
        elif isinstance(entry, Filtered):
            events.append(entry.event)
        elif isinstance(entry, Part):
            events.append(entries_to_event(entry.entries))
        else:
            events.append(Parallel(tuple(entries_to_event(block) for block in entry.blocks)))
    return sequence(events)


def entries_to_list(entries: list[Entry]) -> list[dict[str, Any]]:
    """The lines as JSON values."""
    values: list[dict[str, Any]] = []
    for entry in entries:
        if isinstance(entry, Charge):
            values.append({"name": entry.name, "count": entry.count, "event": entry.event.to_dict()})
        elif isinstance(entry, Part):
            values.append({"name": entry.name, "entries": entries_to_list(entry.entries)})
        elif isinstance(entry, Filtered):
            inner = entries_to_list(entry.entries)
            values.append({"name": entry.name, "event": entry.event.to_dict(), "filter": inner})
        else:
            blocks = [entries_to_list(block) for block in entry.blocks]
            values.append({"name": entry.name, "parallel": blocks})
    return values


def entries_to_lines(entries: list[Entry], indent: str = "  ") -> list[str]:
    """The lines in words."""
    lines: list[str] = []
    for entry in entries:
        if isinstance(entry, Charge):
            lines.append(f"{indent}{entry.name}: {repeat(entry.event, entry.count).describe()}")
        elif isinstance(entry, Filtered):
            lines.append(f"{indent}{entry.name}, a filter of {entry.event.describe()}:")
            lines += entries_to_lines(entry.entries, indent + "  ")
        elif isinstance(entry, Part):
            lines += [f"{indent}{entry.name}:", *entries_to_lines(entry.entries, indent + "  ")]
        else:
            lines.append(f"{indent}{entry.name}, {len(entry.blocks)} disjoint blocks, the dearest counts:")
            for number, block in enumerate(entry.blocks, 1):
                lines += [f"{indent}  block {number}:", *entries_to_lines(block, indent + "    ")]
    return lines


def json_number(value: float) -> float | str:
    """A number, or "infinity", which JSON does not have."""
    return value if math.isfinite(value) else "infinity"
