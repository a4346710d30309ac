"""What a fixed tree of events costs. The only file that talks to `dp_accounting`.

A tree is priced by every accountant that can price it, and the least of the valid bounds is the answer:

    accountant  prices                                                                  source
    exact       Gaussian releases only, or one objective perturbation: the curve        Dong, Roth, Su 2022
    direct      Gaussian releases and up to four objective perturbations, any delta     `privopt.ledger.privacy_losses`
    pure        pure events only: the sum of their epsilons
    zcdp        all but sampled and shifted events: the sum of their rhos               Bun, Steinke 2016
    pld         numerical privacy-loss distributions, for delta from 1e-10 on           Doroshenko et al. 2022
    renyi       fixed-size samples; anything sampled where delta is below 1e-10         Mironov 2017

Sampling: one table, everything else is `NotPriceable`. z is the noise multiplier of our events, the standard
deviation over the sensitivity under the declared relation (2 C under replace-one, C under add-or-remove-one).

    sampler      relation             accountant   its noise multiplier
    Poisson      add-or-remove-one    PLD, Renyi   z
    Poisson      replace-one          PLD, Renyi   2 z: the library moves both means, so it wants the deviation over C;
                                                   its Renyi accountant has no such event, ours is `ledger.curves`
    mixture      add-or-remove-one    PLD, Renyi   z: a Poisson sample and everybody under one noise
    fixed size   replace-one          Renyi        z: this accountant does not double the sensitivity
    tested       both                 PLD, Renyi   as Poisson, at a larger rate, shifted: `ledger.privacy_losses`

A plain Gaussian is always priced with add-or-remove semantics: z is already relative to the declared sensitivity.
Bad events are taken off delta, rounding is priced around all else: `ledger.composition`.

These prices hold for a tree that is fixed before the first release: queries may depend on earlier releases, and so may
the order (concurrent composition: Vadhan, Zhang 2023), events may not. Otherwise see `privopt.ledger.ledger`.
"""

import functools
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from privopt.errors import NotPriceable
from privopt.later import deferred
from privopt.ledger.composition import Alternative, alternatives, rounded_delta, rounded_epsilon
from privopt.ledger.curves import (
    check_delta,
    check_epsilon,
    gaussian_delta,
    gaussian_epsilon,
    mixture_add_or_remove,
    poisson_replace_one,
    zcdp_delta,
    zcdp_deltas,
    zcdp_epsilon,
    zcdp_rho_budget,
)
from privopt.ledger.events import Event, Leaf, MixtureEvent, SampledEvent, additive_cost
from privopt.ledger.privacy_losses import UNDERFLOW, ShiftedCurve, direct_delta, direct_epsilon
from privopt.public import Relation

__all__ = ["Accountant", "delta", "epsilon", "zcdp_epsilon", "zcdp_rho", "zcdp_rho_budget"]

Accountant = Literal["best", "exact", "direct", "pure", "zcdp", "pld", "renyi"]

SMALLEST_PLD_DELTA = 1e-10  # the library's convolutions are floating point and truncate tails of 1e-15 each
LARGEST_PLD_RHO = 100.0  # e^epsilon must not overflow on the grid
MOST_PLD_LEAVES = 200  # different leaves; a thousand of them would cost seconds
FINEST_GRID, COARSEST_GRID = 1e-5, 2e-3  # steps for an epsilon of up to 10
WIDEST_GRID = 20.0  # beyond: a 5,000th of the epsilon that is expected; e^step must not overflow
TAIL_MASS = 1e-15
# The library's own orders, thinned where a fixed-size sample costs 30 ms for each.
RENYI_ORDERS = [1 + k / 10 for k in range(1, 100)] + [*range(11, 25), *range(26, 64, 4), 64, 128]

# dp_accounting has no type information, and takes half a second to load: most budgets need nothing of it.
_Pld = Any
dp_accounting = deferred("dp_accounting")
rdp_privacy_accountant = deferred("dp_accounting.rdp.rdp_privacy_accountant")
pld_pmf = deferred("dp_accounting.pld.pld_pmf")
privacy_loss_distribution = deferred("dp_accounting.pld.privacy_loss_distribution")


def epsilon(
    event: Event,
    delta: float,
    relation: Relation | str,
    *,
    near: float | None = None,
    accountant: Accountant = "best",
) -> float:
    """The smallest epsilon that is known to hold for a fixed tree of events.

    Args:
        event: the tree.
        delta: at least 0 and below 1; bad events are taken off it first.
        relation: the neighbouring relation that the noise multipliers are relative to.
        near: about the epsilon to expect (the target of a calibration). It sets the grid of the PLD accountant, so
            asking again with the same `near` gives the same number to the last digit.
        accountant: one accountant instead of the best one.

    Raises:
        NotPriceable: no accountant can price the tree under this relation, or bad events or rounding use up delta.
    """
    check_delta(delta)
    if near is not None and not near > 0:
        raise ValueError(f"near must be positive, got {near!r}: it is about the epsilon to expect.")
    near = None if near is None or math.isinf(near) else float(near)
    relation = Relation.parse(relation)
    return max(_epsilon(way, float(delta), relation, near, accountant) for way in alternatives(event))


def delta(
    event: Event, epsilon: float, relation: Relation | str, *, accountant: Accountant = "best"
) -> float:
    """The smallest delta that is known to hold for a fixed tree of events; its bad events are included.

    Args:
        event: the tree.
        epsilon: at least 0.
        relation: the neighbouring relation that the noise multipliers are relative to.
        accountant: one accountant instead of the best one.

    Raises:
        NotPriceable: no accountant can price the tree under this relation.
    """
    check_epsilon(epsilon)
    relation = Relation.parse(relation)
    return max(_delta(way, float(epsilon), relation, accountant) for way in alternatives(event))


def zcdp_rho(event: Event) -> float | None:
    """The zCDP cost of a tree, None if a leaf has none (sampled and shifted events). Bad events are left out."""
    return additive_cost(event, lambda leaf: leaf.zcdp)


def is_closed_form(event: Event, delta: float) -> bool:
    """Whether pricing a tree at `delta` takes no numerical privacy-loss distribution, and is therefore free."""
    return all(
        not way.leaves
        or way.is_concentrated
        or (delta == 0 and way.pure_epsilon is not None)
        or way.single_shifted is not None
        for way in alternatives(event)
    )


@functools.lru_cache(maxsize=4096)
def _epsilon(
    way: Alternative, delta: float, relation: Relation, near: float | None, name: Accountant
) -> float:
    if not way.private:
        return math.inf
    if spent := used_up(way, delta):
        raise NotPriceable(spent)
    if way.rounding > 0:
        ideal = replace(way, rounding=0.0)
        return rounded_epsilon(
            lambda left: math.inf if used_up(ideal, left) else _epsilon(ideal, left, relation, near, name),
            way.rounding,
            delta,
        )
    if way.mu_squared == 0 and not way.leaves:
        return 0.0
    available = max(0.0, delta - way.delta)
    tested = way.untested()
    if tested is not None:
        rest, shift = tested
        nearby = None if near is None or near <= shift else near - shift
        return shift + _epsilon(rest, available * math.exp(-shift), relation, nearby, name)
    return _least(
        name,
        way,
        relation,
        {
            "exact": lambda: _exact(
                way, lambda mu: gaussian_epsilon(mu, available), lambda c: c.epsilon(available)
            ),
            "direct": lambda: _direct(way, available, direct_epsilon),
            "pure": lambda: way.pure_epsilon,
            "zcdp": lambda: None if (rho := way.rho) is None else zcdp_epsilon(rho, available),
            "pld": lambda: _pld_epsilon(way, available, relation, near, needed=name == "pld"),
            "renyi": lambda: _renyi_epsilon(way, available, relation),
        },
        none_left=math.inf if available == 0 else None,
    )


@functools.lru_cache(maxsize=4096)
def _delta(way: Alternative, epsilon: float, relation: Relation, name: Accountant) -> float:
    if way.rounding > 0:
        ideal = replace(way, rounding=0.0)
        return rounded_delta(lambda at: _delta(ideal, at, relation, name), way.rounding, epsilon)
    if math.isinf(epsilon):
        return way.delta
    if not way.private:
        return 1.0
    if way.mu_squared == 0 and not way.leaves:
        return way.delta
    tested = way.untested()
    if tested is not None:
        rest, shift = tested
        above = math.exp(shift) * _delta(rest, epsilon - shift, relation, name) if epsilon >= shift else 1.0
        return min(1.0, way.delta + above)
    pure = way.pure_epsilon
    curve = _least(
        name,
        way,
        relation,
        {
            "exact": lambda: _exact(way, lambda mu: gaussian_delta(mu, epsilon), lambda c: c.delta(epsilon)),
            "direct": lambda: _direct(way, epsilon, direct_delta),
            "pure": lambda: 0.0 if pure is not None and pure <= epsilon else None,
            "zcdp": lambda: None if (rho := way.rho) is None else zcdp_delta(rho, epsilon),
            "pld": lambda: _pld_delta(way, epsilon, relation, needed=name == "pld"),
            "renyi": lambda: _renyi_delta(way, epsilon, relation),
        },
        none_left=None if pure is None else 1.0,
    )
    return min(1.0, way.delta + curve)


def _least(
    name: Accountant,
    way: Alternative,
    relation: Relation,
    bounds: dict[str, Callable[[], float | None]],
    *,
    none_left: float | None,
) -> float:
    """The least bound of the accountants that can price `way`; each returns None where it cannot."""
    if name != "best":
        asked = {name: bounds[name]}
    else:
        closed = not way.leaves or way.is_concentrated or way.single_shifted is not None
        numerical = () if closed else ("pld",) if way.shifted is None else ("direct",)
        asked = {key: bounds[key] for key in ("exact", "pure", "zcdp", *numerical)}
    answers = [answer for bound in asked.values() if (answer := bound()) is not None]
    if not answers and name == "best":  # Renyi is never below PLD, and slower
        answers = [answer for answer in [bounds["renyi"]()] if answer is not None]
    if answers:
        return max(0.0, float(min(answers)))
    if none_left is not None:
        return none_left
    raise NotPriceable(no_price(way, relation.value, name))


def _exact(
    way: Alternative, gaussian: Callable[[float], float], shifted: Callable[[ShiftedCurve], float]
) -> float | None:
    """The reading of a curve where the tree is Gaussian releases only, or a single objective perturbation."""
    if not way.leaves:
        return gaussian(math.sqrt(way.mu_squared))
    return None if way.single_shifted is None else shifted(way.single_shifted)


def _direct(
    way: Alternative, at: float, read: Callable[[tuple[ShiftedCurve, ...], float, float], float]
) -> float | None:
    return None if way.shifted is None else read(way.shifted, math.sqrt(way.mu_squared), at)


def _grid(near: float) -> float:
    return min(max(near / 500, FINEST_GRID), max(near / 5_000, COARSEST_GRID), WIDEST_GRID)


def _pld_epsilon(
    way: Alternative, delta: float, relation: Relation, near: float | None, *, needed: bool
) -> float | None:
    if delta < SMALLEST_PLD_DELTA or not _pld_can_price(way, relation, needed=needed):
        return None
    interval = COARSEST_GRID if near is None else _grid(near)
    while True:  # a coarse grid overstates a small epsilon: refine until the grid fits what comes out
        found = float(_pld(way, relation, interval).get_epsilon_for_delta(delta))
        finer = _grid(found)
        if finer > 0.7 * interval or (near is not None and interval <= COARSEST_GRID):
            return found
        interval = finer


def _pld_delta(way: Alternative, epsilon: float, relation: Relation, *, needed: bool) -> float | None:
    if not _pld_can_price(way, relation, needed=needed):
        return None
    found = float(_pld(way, relation, _grid(epsilon)).get_delta_for_epsilon(epsilon))
    if found >= SMALLEST_PLD_DELTA:
        return found
    renyi = _renyi_delta(way, epsilon, relation)
    return SMALLEST_PLD_DELTA if renyi is None else min(SMALLEST_PLD_DELTA, renyi)


def _pld_can_price(way: Alternative, relation: Relation, *, needed: bool) -> bool:
    crowded = len(way.leaves) > MOST_PLD_LEAVES and not needed and way.rho is not None
    leaves, rho = way.concentrated
    if crowded or rho > LARGEST_PLD_RHO:
        return False
    laws = [leaf.law(relation) for leaf in leaves]
    return all(law is not None and law[0] in _LOSSES for law in laws)


@functools.lru_cache(maxsize=32)
@np.errstate(over="ignore")
def _pld(way: Alternative, relation: Relation, interval: float) -> _Pld:
    """The privacy-loss distribution of one alternative, every step rounded so that it is never too private."""
    leaves, rho = way.concentrated
    parts = [_leaf_pld(leaf, count, relation, interval) for leaf, count in leaves.items()]
    if way.mu_squared > 0:
        parts.append(
            privacy_loss_distribution.from_gaussian_mechanism(
                1 / math.sqrt(way.mu_squared),
                value_discretization_interval=interval,
                neighboring_relation=_neighbouring(Relation.ADD_OR_REMOVE_ONE),
            )
        )
    if rho > 0:
        parts.append(_connected(zcdp_profile(rho, interval), interval))
    total = parts[0]
    for part in parts[1:]:
        total = total.compose(part, tail_mass_truncation=TAIL_MASS)
    return total


def _leaf_pld(leaf: Leaf, count: int, relation: Relation, interval: float) -> _Pld:
    law = leaf.law(relation)
    assert law is not None  # _pld_can_price asked
    single = _LOSSES[law[0]](interval, *law[1:])
    return single.self_compose(count, TAIL_MASS) if count > 1 else single


def _poisson_pld(interval: float, multiplier: float, rate: float, relation: Relation) -> _Pld:
    # Replace-one: the library's multiplier is sigma / C, ours is sigma / (2 C).
    return privacy_loss_distribution.from_gaussian_mechanism(
        relation.factor * multiplier,
        value_discretization_interval=interval,
        sampling_prob=rate,
        neighboring_relation=_neighbouring(relation),
    )


def _mixture_pld(interval: float, multiplier: float, rate: float, sampled_ratio: float) -> _Pld:
    means = [1.0, 1.0 + sampled_ratio]
    if means[0] == means[1] or rate == 1:  # a single Gaussian, which the library does faster
        return privacy_loss_distribution.from_gaussian_mechanism(
            multiplier / means[1],
            value_discretization_interval=interval,
            neighboring_relation=_neighbouring(Relation.ADD_OR_REMOVE_ONE),
        )
    return privacy_loss_distribution.from_mixture_gaussian_mechanism(
        multiplier, means, [1 - rate, rate], value_discretization_interval=interval
    )


def _pure_pld(interval: float, epsilon: float) -> _Pld:
    points, deltas = pure_profile(epsilon, interval)
    return privacy_loss_distribution.PrivacyLossDistribution(
        pld_pmf.create_pmf_pessimistic_connect_dots(interval, points, deltas)
    )


_LOSSES: dict[str, Callable[..., _Pld]] = {
    "laplace": lambda interval, multiplier: privacy_loss_distribution.from_laplace_mechanism(
        multiplier, value_discretization_interval=interval
    ),
    "poisson": _poisson_pld,
    "mixture": _mixture_pld,
    "shifted": lambda interval, curve: _connected(shifted_gaussian_profile(curve, interval), interval),
    "pure": _pure_pld,
}


def _connected(deltas: NDArray[np.float64], interval: float) -> _Pld:
    """Connect the dots of a curve on a symmetric grid."""
    half_width = len(deltas) // 2
    return privacy_loss_distribution.PrivacyLossDistribution(
        pld_pmf.create_pmf_pessimistic_connect_dots_fixed_gap(interval, -half_width, half_width, deltas)
    )


def _renyi_epsilon(way: Alternative, delta: float, relation: Relation) -> float | None:
    curve = _renyi_curve(way, relation)
    return None if curve is None else float(rdp_privacy_accountant.compute_epsilon(*curve, delta)[0])


def _renyi_delta(way: Alternative, epsilon: float, relation: Relation) -> float | None:
    curve = _renyi_curve(way, relation)
    if curve is None:
        return None
    return max(UNDERFLOW, float(rdp_privacy_accountant.compute_delta(*curve, epsilon)[0]))


@functools.lru_cache(maxsize=256)
def _renyi_curve(way: Alternative, relation: Relation) -> tuple[Any, Any] | None:
    fixed_size = any(
        isinstance(leaf, SampledEvent) and leaf.sampling.kind == "fixed-size" for leaf, _ in way.leaves
    )
    orders = np.asarray(RENYI_ORDERS if fixed_size else [*RENYI_ORDERS, 256, 512, 1024], dtype=np.float64)
    total = orders * (way.mu_squared / 2)
    for leaf, count in way.counted.items():
        divergences = _leaf_renyi(leaf, relation, orders)
        if divergences is None:
            return None
        total = total + count * divergences
    return orders, total


def _leaf_renyi(leaf: Leaf, relation: Relation, orders: NDArray[np.float64]) -> NDArray[np.float64] | None:
    law = leaf.law(relation)
    if law is not None and law[0] in _RENYI:
        return _RENYI[law[0]](orders, *law[1:])
    return None if leaf.zcdp is None else leaf.zcdp * orders


def _poisson_renyi(
    orders: NDArray[np.float64], multiplier: float, rate: float, relation: Relation
) -> NDArray[np.float64]:
    if relation is Relation.REPLACE_ONE:
        return poisson_replace_one(rate, relation.factor * multiplier, tuple(orders.tolist()))
    sampled = dp_accounting.PoissonSampledDpEvent(rate, dp_accounting.GaussianDpEvent(multiplier))
    return _library_renyi(sampled, orders, Relation.ADD_OR_REMOVE_ONE)


def _fixed_size_renyi(orders: NDArray[np.float64], multiplier: float, sampling: Any) -> NDArray[np.float64]:
    gaussian = dp_accounting.GaussianDpEvent(multiplier)
    sampled = dp_accounting.SampledWithoutReplacementDpEvent(sampling.n, sampling.batch, gaussian)
    return _library_renyi(sampled, orders, Relation.REPLACE_ONE)


_RENYI: dict[str, Callable[..., NDArray[np.float64]]] = {
    "laplace": lambda orders, z: _library_renyi(
        dp_accounting.LaplaceDpEvent(z), orders, Relation.ADD_OR_REMOVE_ONE
    ),
    "poisson": _poisson_renyi,
    "fixed-size": _fixed_size_renyi,
    "mixture": lambda orders, z, rate, ratio: mixture_add_or_remove(z, rate, ratio, tuple(orders.tolist())),
    "shifted": lambda orders, curve: curve.renyi(orders),
}


def _library_renyi(event: Any, orders: NDArray[np.float64], relation: Relation) -> NDArray[np.float64]:
    neighbouring = _neighbouring(relation)
    accountant = rdp_privacy_accountant.RdpAccountant(orders.tolist(), neighboring_relation=neighbouring)
    return np.asarray(accountant.compose(event).rdp, dtype=np.float64)


def _neighbouring(relation: Relation) -> Any:
    """The relation as `dp_accounting` calls it."""
    known = dp_accounting.NeighboringRelation
    return known.REPLACE_ONE if relation is Relation.REPLACE_ONE else known.ADD_OR_REMOVE_ONE


# ---- Why a tree of events has no price, in sentences -------------------------------------------------------
def used_up(way: Alternative, delta: float) -> str | None:
    """Why nothing of `delta` is left for the noise, None if something is.

    Args:
        way: what one unit meets.
        delta: of the budget.
    """
    if way.delta > 0 and (way.delta > delta or (way.delta == delta and way.pure_epsilon is None)):
        return (
            f"bad events of probability {way.delta:.3g} use up delta = {delta:.3g}: nothing is left for the noise. "
            "Raise delta, or make the bad events rarer."
        )
    if way.rounding > 0 and way.delta + 2 * way.rounding > delta:
        return (
            f"rounding of total variation {way.rounding:.3g} adds (1 + e^epsilon) times as much to delta, more than "
            f"delta = {delta:.3g} allows at any epsilon. Give a larger delta; delta = 0 allows no rounding at all."
        )
    return None


def no_price(way: Alternative, relation: str, name: str) -> str:
    """Why no accountant, or not the one that was asked for, can price what one unit meets.

    Args:
        way: what one unit meets.
        relation: the neighbouring relation, in words.
        name: the accountant that was asked for.
    """
    sampled = [leaf for leaf in way.counted if isinstance(leaf, SampledEvent | MixtureEvent)]
    events = sampled or list(way.counted)
    names = list(dict.fromkeys(event.describe() for event in events))
    what = "; ".join(names[:3]) + (f"; and {len(names) - 3} more" if len(names) > 3 else "")
    what = what or "Gaussian noise alone"
    if name != "best":
        return (
            f"the {name!r} accountant cannot price this under {relation}: {what}. Ask for accountant='best'."
        )
    return (
        f"no accountant can price this under {relation}: {what}. On samples, prices are known of "
        "Gaussian releases: on Poisson samples (one release per sample under replace-one), on fixed-size samples "
        "(replace-one only), and on a sample and everybody under one noise (add-or-remove-one only)."
    )


# ---- Upper bounds of privacy curves on a grid, ready for connecting the dots -------------------------------
# A curve delta(eps) is a convex function of e^eps, eps running over the whole line, with delta(-eps) = 1 - e^-eps +
# e^-eps delta(eps) for a relation that is symmetric. Any convex upper bound is the curve of a pair of distributions
# that dominates the mechanism (Zhu, Dong, Wang 2022), and the piecewise linear function through its grid points is
# another.
#
# Source:
#     Doroshenko, Ghazi, Kamath, Kumar, Manurangsi 2022, algorithm 1.
SMALLEST_MASS = 1e-15


def shifted_gaussian_profile(curve: ShiftedCurve, interval: float) -> NDArray[np.float64]:
    """The convex curve of an objective perturbation, see `privopt.ledger.privacy_losses`.

    Args:
        curve: at every epsilon.
        interval: distance of the grid points, the middle one being 0.
    """
    half_width = math.ceil((curve.shift + curve.mu * (curve.mu / 2 + 8.5)) / interval)
    return _tidy(curve.deltas(_even_grid(half_width, interval)))


def zcdp_profile(rho: float, interval: float) -> NDArray[np.float64]:
    """The greatest convex function of e^eps below the delta(eps) of rho-zCDP and its mirror, on a symmetric grid."""
    half_width = math.ceil(zcdp_epsilon(rho, SMALLEST_MASS) / interval)
    at = _even_grid(half_width, interval)
    above = zcdp_deltas(rho, at[half_width:])
    below = at[:half_width]
    deltas = np.concatenate((-np.expm1(below) + np.exp(below) * above[:0:-1], above))
    return _tidy(_convex_minorant(np.exp(at), deltas))


def pure_profile(epsilon: float, interval: float) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """The curve of randomized response, which dominates every pure mechanism, at the grid points beside its two bends.

    Args:
        epsilon: the pure privacy parameter.
        interval: distance of the grid points.

    Returns:
        The points in multiples of `interval`, increasing, and the curve there.

    Source:
        Kairouz, Oh, Viswanath 2015.
    """
    lowest, highest = math.floor(epsilon / interval), math.ceil(epsilon / interval)
    points = np.unique(np.asarray([-highest, -lowest, lowest, highest], dtype=np.int64))
    at = points * interval
    # (e^epsilon - e^at) / (1 + e^epsilon), written so that nothing overflows.
    chord = (1 - np.exp(at - epsilon)) / (1 + math.exp(-epsilon))
    return points, _tidy(np.maximum(chord, -np.expm1(np.minimum(at, 0.0))))


def _even_grid(half_width: int, interval: float) -> NDArray[np.float64]:
    return np.arange(-half_width, half_width + 1).astype(np.float64) * interval


def _convex_minorant(points: NDArray[np.float64], values: NDArray[np.float64]) -> NDArray[np.float64]:
    """The lower convex hull of a function on increasing points, evaluated at the same points."""
    hull: list[int] = []
    x, y = points.tolist(), values.tolist()
    for i in range(len(x)):
        while len(hull) > 1:
            a, b = hull[-2], hull[-1]
            if (y[b] - y[a]) * (x[i] - x[b]) < (y[i] - y[b]) * (x[b] - x[a]):
                break
            hull.pop()
        hull.append(i)
    return np.interp(points, points[hull], values[hull]).astype(np.float64)


def _tidy(deltas: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.minimum.accumulate(np.clip(deltas, 0.0, 1.0))
