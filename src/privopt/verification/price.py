"""The second accountant: what recorded events cost, computed without the ledger.

Gaussian noise on everybody has a closed curve, evaluated in 50 digits. Pure and zero-concentrated events alone have
closed bounds too. Everything else is composed on a grid (`privopt.verification.losses`). Bad events are taken off
delta, and a run that is within total variation eta of the priced one costs (1 + e^epsilon) eta more.

What has no price here: anything but Gaussian noise on a secret sample, several Gaussian releases on one sample under
replace-one, fixed-size samples under add-or-remove-one, and mixtures under replace-one.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from privopt.verification import losses
from privopt.verification.losses import Grid, Loss, TooFine
from privopt.verification.tree import (
    HALVINGS,
    IN_DIGITS,
    Fields,
    Leaf,
    TooLong,
    Way,
    gaussian_delta,
    mp,
    mpf,
    spend,
    ways_through,
    zcdp_delta,
)

ADD_OR_REMOVE, REPLACE = "add-or-remove-one", "replace-one"
RELATIONS = (ADD_OR_REMOVE, REPLACE)
MOST_EPSILON = 1e3  # on a grid
MANY_SELECTIONS = 8  # from here on zero-concentrated privacy is the cheaper of two bounds
_GRID_SLACK = 1e-3  # an epsilon within this share of the claimed one counts as the same
_PURE = ("PureEvent", "BoundedRangeEvent", "SelectionsEvent", "LaplaceEvent")


@dataclass(frozen=True)
class Price:
    """What a claim is held against.

    Attributes:
        delta: an upper bound on the delta at the claimed epsilon.
        least: a lower bound on it, from Gaussian noise on everybody; the price itself where `exact`.
        exact: whether the closed Gaussian curve is the whole price.
        how: the accountant, in words.
    """

    delta: float
    least: float
    exact: bool
    how: str


class NotChecked(ValueError):
    """No independent price for an event; the sentence says which."""


def price(event: Fields, relation: str, epsilon: float, delta: float) -> Price:
    """Bounds on the delta of recorded events at a claimed epsilon.

    Args:
        event: the recorded tree.
        relation: the neighbouring relation.
        epsilon: the claim, at least 0, finite.
        delta: the claim, which sets the grid.

    Raises:
        NotChecked: an event has no price here.
        Malformed: it describes no event.
    """
    ways, exact = ways_through(event)
    try:
        prices = [_way(way, relation, epsilon, delta) for way in ways]
    except TooLong as error:
        raise NotChecked(str(error)) from None
    dearest = max(prices, key=lambda one: one.delta)
    least = max(one.least for one in prices) if exact else 0.0
    return replace(dearest, least=least, exact=dearest.exact and exact)


def vouched_epsilon(event: Fields, relation: str, claimed: float, delta: float) -> float:
    """An epsilon above the claimed one for which the second accountant vouches at `delta`, within a hundredth.

    Raises:
        NotChecked, Malformed: as `price`.
    """
    low, high = claimed, max(2 * claimed, 1e-3)
    while price(event, relation, high, delta).delta > delta:
        low, high = high, 2 * high
        if high > 1e5:
            return math.inf
    while high - low > 0.01 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if price(event, relation, middle, delta).delta > delta else (low, middle)
    return high


def is_private(event: Fields) -> bool:
    """Whether noise was added to everything that was released."""
    return not any(way.bare for way in ways_through(event)[0])


def _way(way: Way, relation: str, epsilon: float, delta: float) -> Price:
    spend((2 + len(way.leaves)) * IN_DIGITS)
    if way.bare:
        return Price(1.0, 1.0, True, "a release without noise")
    if not way.leaves:
        gaussian = gaussian_delta(mp.sqrt(way.mu_squared), epsilon) if way.mu_squared else mpf(0)
        total = _with_extras(gaussian, way, epsilon)
        return Price(_up(total), float(gaussian), not way.rounding, "the exact Gaussian curve, in 50 digits")
    untested, shift = _untested(way)
    if epsilon < shift:
        return Price(1.0, 0.0, False, "a sparse vector's threshold alone")
    least = gaussian_delta(mp.sqrt(way.mu_squared), epsilon) if way.mu_squared else mpf(0)
    available = (delta - float(way.bad)) * math.exp(-shift)
    bound, how = _least_bound(untested, relation, epsilon - shift, available)
    return Price(_up(_with_extras(mp.exp(shift) * bound, way, epsilon)), float(least), False, how)


def _with_extras(bound: Any, way: Way, epsilon: float) -> Any:
    return bound + way.bad + (1 + mp.exp(epsilon)) * way.rounding


def _up(value: Any) -> float:
    return min(1.0, float(value))


def _least_bound(way: Way, relation: str, epsilon: float, delta: float) -> tuple[Any, str]:
    """The least bound on delta of those that apply, and its name."""
    bounds: list[tuple[Any, str]] = []
    pure, rho = _pure_epsilon(way), _rho(way)
    if pure is not None:
        bounds.append((mpf(0) if pure <= epsilon else mpf(1), "the sum of pure epsilons, in 50 digits"))
    if rho is not None:
        spend(HALVINGS * IN_DIGITS // 4)
        bounds.append((zcdp_delta(rho, epsilon), "zero-concentrated privacy, in 50 digits"))
    enough = bounds and min(bound for bound, _ in bounds) <= delta
    if not enough and delta > 0 and 0 < epsilon <= MOST_EPSILON:
        try:
            with np.errstate(all="ignore"):  # what is not finite is refused by the grid
                bounds.append(
                    (mpf(_on_grid(way, relation, epsilon, delta)), "privacy losses composed on a grid")
                )
        except (TooFine, ArithmeticError) as error:
            if not bounds:
                reason = f"{error}" if isinstance(error, TooFine) else "its numbers are beyond the grid"
                raise NotChecked(reason) from None
    if not bounds:
        raise NotChecked(
            f"there is no closed bound for a delta of 0, or an epsilon of 0 or above {MOST_EPSILON:g}"
        )
    return min(bounds)


def _pure_epsilon(way: Way) -> Any | None:
    total = mpf(0)
    for leaf, count in way.leaves.items():
        if leaf.kind not in _PURE:
            return None
        number = mpf(leaf.numbers[-1])
        total += count * (1 / number if leaf.kind == "LaplaceEvent" else number)
    return None if way.mu_squared else total


def _rho(way: Way) -> Any | None:
    total = way.mu_squared / 2
    for leaf, count in way.leaves.items():
        rho = _leaf_rho(leaf)
        if rho is None:
            return None
        total += count * rho
    return total


def _leaf_rho(leaf: Leaf) -> Any | None:
    if leaf.kind in ("ZCDPEvent", "SelectionsEvent"):
        return mpf(leaf.numbers[0])
    if leaf.kind == "BoundedRangeEvent":
        return mpf(leaf.numbers[0]) ** 2 / 8
    if leaf.kind == "PureEvent":
        return mpf(leaf.numbers[0]) ** 2 / 2
    return 1 / (2 * mpf(leaf.numbers[0]) ** 2) if leaf.kind == "LaplaceEvent" else None


def _untested(way: Way) -> tuple[Way, float]:
    """Tested samples as Poisson samples of a larger rate, and the epsilon by which the curve moves for the tests."""
    rest = Way(way.mu_squared, {}, way.bad, way.rounding, way.bare)
    shift = 0.0
    for leaf, count in way.leaves.items():
        if leaf.kind != "TestedSampleEvent":
            rest.leaves[leaf] = rest.leaves.get(leaf, 0) + count
            continue
        rate, multiplier, threshold, queries, tests = leaf.numbers
        shift += count * (threshold + queries)
        grown = rate * math.exp(min(queries / 2, 700.0))
        inflated, releases = grown / (grown + 1 - rate), count * int(tests)
        if inflated >= 1:
            rest.mu_squared += releases / mpf(multiplier) ** 2
        else:
            sampled = Leaf("Poisson", (inflated, float(1 / mpf(multiplier) ** 2), 1.0))
            rest.leaves[sampled] = rest.leaves.get(sampled, 0) + releases
    return rest, shift


def _on_grid(way: Way, relation: str, epsilon: float, delta: float) -> float:
    symmetric: list[tuple[Loss, int]] = []
    either: list[tuple[tuple[Loss, Loss], int]] = []
    selections = sum(count for leaf, count in way.leaves.items() if leaf.kind == "BoundedRangeEvent")
    rho = 0.0
    for leaf, count in way.leaves.items():
        grouped = leaf.kind in ("ZCDPEvent", "SelectionsEvent") or (
            leaf.kind == "BoundedRangeEvent" and selections >= MANY_SELECTIONS
        )
        if grouped:
            rho += count * float(_leaf_rho(leaf) or 0)
            continue
        found = _loss(leaf, relation)
        if isinstance(found, tuple):
            either.append((found, count))
        else:
            symmetric.append((found, count))
    if rho > 0:
        symmetric.append((losses.zero_concentrated(rho), 1))
    if way.mu_squared > 0:
        symmetric.append((losses.gaussian(float(mp.sqrt(way.mu_squared))), 1))
    worst = 0.0
    for direction in (0, 1) if either else (0,):
        parts = [*symmetric, *((pair[direction], count) for pair, count in either)]
        worst = max(worst, Grid.of(parts, epsilon, delta).delta(epsilon * (1 + _GRID_SLACK), epsilon))
    return worst


def _loss(leaf: Leaf, relation: str) -> Loss | tuple[Loss, Loss]:
    simple: dict[str, Callable[..., Loss]] = {
        "PureEvent": losses.pure,
        "BoundedRangeEvent": losses.pure,
        "LaplaceEvent": losses.laplace,
        "ShiftedGaussianEvent": lambda mu, shift, two: losses.shifted(mu, shift, bool(two)),
    }
    if leaf.kind in simple:
        return simple[leaf.kind](*leaf.numbers)
    if leaf.kind == "MixtureEvent" and relation == ADD_OR_REMOVE:
        multiplier, rate, ratio = leaf.numbers
        if rate < 1 and ratio > 0:
            return losses.mixture(rate, ratio, multiplier)
        return losses.gaussian((1 + ratio) / multiplier)
    if leaf.kind in ("Poisson", "FixedSize"):
        rate, total, releases = leaf.numbers
        multiplier = 1 / math.sqrt(total)
        if leaf.kind == "Poisson" and relation == ADD_OR_REMOVE:
            return losses.poisson(rate, multiplier)
        if relation == REPLACE and releases == 1:
            sampler = losses.poisson_replaced if leaf.kind == "Poisson" else losses.fixed_size
            return sampler(rate, multiplier)
    raise NotChecked(f"there is no independent price for {_WORDS.get(leaf.kind, 'what was released')}")


_WORDS = {
    "Unknown": "anything but Gaussian noise on a secret sample",
    "Poisson": "several releases on one Poisson sample under replace-one",
    "FixedSize": "this sample of fixed size",
    "MixtureEvent": "a mixture under replace-one",
}

__all__ = ["RELATIONS", "NotChecked", "Price", "is_private", "price", "vouched_epsilon"]
