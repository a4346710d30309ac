"""From a tree of events to what a single unit meets: counted leaves, one list for each way through the blocks.

A unit lies in one branch of every `Parallel` node, so its loss is that of one *alternative*: the leaves outside all
parallel nodes and those of one branch each. A tree costs what its dearest alternative costs. Alternatives that
another one dominates are dropped; where too many are left, the branches of a node are replaced by their join, which
dominates every one of them.
"""

import functools
import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from privopt.ledger.event import Event, Leaf
from privopt.ledger.events import (
    GaussianEvent,
    NonPrivateEvent,
    Poisson,
    SampledEvent,
    TestedSampleEvent,
    leaf_counts,
)
from privopt.ledger.privacy_losses import ShiftedCurve, inflated_rate

MOST_ALTERNATIVES = 64
MOST_SHIFTED = 4  # objective perturbations that are summed directly


@dataclass(frozen=True)
class Alternative:
    """What one unit meets.

    Attributes:
        mu_squared: sum of 1 / z^2 over the Gaussian releases on everybody.
        leaves: the other leaves with their counts.
        delta: sum of the bad-event probabilities.
        private: False if something was released without noise.
        rounding: sum of the total variation distances to the releases that are priced.
    """

    mu_squared: float
    leaves: frozenset[tuple[Leaf, int]]
    delta: float
    private: bool
    rounding: float = 0.0

    @property
    def rho(self) -> float | None:
        """The zCDP cost, None where a leaf has none."""
        rhos = [(count, leaf.zcdp) for leaf, count in self.leaves]
        if any(rho is None for _, rho in rhos):
            return None
        return math.fsum([self.mu_squared / 2, *(count * rho for count, rho in rhos if rho is not None)])

    @property
    def pure_epsilon(self) -> float | None:
        """The sum of pure epsilons, None where a release has none."""
        epsilons = [(count, leaf.pure) for leaf, count in self.leaves]
        if self.mu_squared > 0 or any(pure is None for _, pure in epsilons):
            return None
        return math.fsum(count * pure for count, pure in epsilons if pure is not None)

    @property
    def concentrated(self) -> tuple[dict[Leaf, int], float]:
        """The leaves that a privacy-loss distribution takes one by one, and the rho of all others together."""
        of_kind: Counter[type[Leaf]] = Counter()
        for leaf, count in self.leaves:
            of_kind[type(leaf)] += count
        merged = {leaf for leaf, _ in self.leaves if of_kind[type(leaf)] >= leaf.merged_from}
        rest = {leaf: count for leaf, count in self.counted.items() if leaf not in merged}
        return rest, math.fsum(count * (leaf.zcdp or 0.0) for leaf, count in self.leaves if leaf in merged)

    @property
    def is_concentrated(self) -> bool:
        """Whether all that is known of every release is a zCDP bound: then no loss distribution is below it."""
        return self.mu_squared == 0 and not self.concentrated[0]

    @property
    def counted(self) -> dict[Leaf, int]:
        """The leaves as a dictionary, in an order that is the same in every process."""
        return dict(sorted(self.leaves, key=repr))

    @property
    def shifted(self) -> tuple[ShiftedCurve, ...] | None:
        """The objective perturbations, None if there are none, too many, or other leaves as well."""
        found: list[ShiftedCurve] = []
        for leaf, count in self.counted.items():
            if leaf.shifted is None or count > MOST_SHIFTED:
                return None
            found += [leaf.shifted] * count
        return tuple(found) if 0 < len(found) <= MOST_SHIFTED else None

    @property
    def single_shifted(self) -> ShiftedCurve | None:
        """The one objective perturbation, where there is nothing else."""
        curves = self.shifted or ()
        return curves[0] if len(curves) == 1 and self.mu_squared == 0 else None

    def untested(self) -> "tuple[Alternative, float] | None":
        """The same with sampled Gaussians of the inflated rate in place of tested samples, and e1; None without any."""
        tested = {leaf: count for leaf, count in self.counted.items() if isinstance(leaf, TestedSampleEvent)}
        if not tested:
            return None
        others = {leaf: count for leaf, count in self.counted.items() if leaf not in tested}
        shift, mu_squared = 0.0, self.mu_squared
        for leaf, count in tested.items():
            shift += count * (leaf.epsilon_threshold + leaf.epsilon_queries)
            rate, releases = inflated_rate(leaf.rate, leaf.epsilon_queries), count * leaf.tests
            if rate >= 1.0:
                mu_squared += releases / leaf.noise_multiplier**2
            else:
                sampled = SampledEvent(Poisson(rate), GaussianEvent(leaf.noise_multiplier))
                others[sampled] = others.get(sampled, 0) + releases
        return Alternative(mu_squared, frozenset(others.items()), 0.0, self.private), shift

    def plus(self, other: "Alternative") -> "Alternative":
        """Both, one after the other."""
        counts = dict(self.leaves)
        for leaf, count in other.leaves:
            counts[leaf] = counts.get(leaf, 0) + count
        return Alternative(
            mu_squared=self.mu_squared + other.mu_squared,
            leaves=frozenset(counts.items()),
            delta=self.delta + other.delta,
            private=self.private and other.private,
            rounding=self.rounding + other.rounding,
        )

    def times(self, count: int) -> "Alternative":
        """This, `count` times."""
        return Alternative(
            mu_squared=count * self.mu_squared,
            leaves=frozenset((leaf, count * times) for leaf, times in self.leaves),
            delta=count * self.delta,
            private=self.private,
            rounding=count * self.rounding,
        )

    def join(self, other: "Alternative") -> "Alternative":
        """The least alternative that dominates both."""
        counts = dict(self.leaves)
        for leaf, count in other.leaves:
            counts[leaf] = max(counts.get(leaf, 0), count)
        return Alternative(
            mu_squared=max(self.mu_squared, other.mu_squared),
            leaves=frozenset(counts.items()),
            delta=max(self.delta, other.delta),
            private=self.private and other.private,
            rounding=max(self.rounding, other.rounding),
        )

    def dominates(self, other: "Alternative") -> bool:
        """Whether this costs at least as much as `other` whatever else is composed with both."""
        return self.join(other) == self


def alternatives(event: Event) -> tuple[Alternative, ...]:
    """The ways through a tree that no other way dominates.

    Args:
        event: any tree.
    """
    leaves, parallels = leaf_counts(event)
    ways = [_alternative(leaves)]
    for node, count in parallels:
        branches = _undominated(way for branch in dict.fromkeys(node.events) for way in alternatives(branch))
        choices = math.comb(count + len(branches) - 1, count)
        if len(ways) * choices > MOST_ALTERNATIVES:
            branches = [functools.reduce(Alternative.join, branches)]
        if len(branches) == 1:
            passes = [branches[0].times(count)]
        else:
            passes = [
                functools.reduce(Alternative.plus, chosen)
                for chosen in itertools.combinations_with_replacement(branches, count)
            ]
        ways = _undominated(way.plus(extra) for way in ways for extra in passes)
    return tuple(ways)


def _alternative(counts: Mapping[Leaf, int]) -> Alternative:
    flat: Counter[Leaf] = Counter()
    for leaf, count in counts.items():
        inner: dict[Leaf, int] = {leaf: 1}
        if isinstance(leaf, SampledEvent) and leaf.sampling.rate >= 1:  # everybody takes part
            found, parallels = leaf_counts(leaf.event)
            inner = inner if parallels else found
        for inside, times in inner.items():
            flat[inside] += count * times
    return Alternative(
        mu_squared=math.fsum(
            count / leaf.variance
            for leaf, count in flat.items()
            if leaf.variance is not None and not _is_bare(leaf)
        ),
        leaves=frozenset((leaf, count) for leaf, count in flat.items() if leaf.variance is None),
        delta=math.fsum(count * (leaf.bad_event or 0.0) for leaf, count in flat.items()),
        private=not any(_is_bare(leaf) for leaf in flat),
        rounding=math.fsum(count * (leaf.rounding or 0.0) for leaf, count in flat.items()),
    )


def _is_bare(leaf: Event) -> bool:
    """Whether something is released without noise, be it on a sample."""
    if isinstance(leaf, SampledEvent):
        inside, parallels = leaf_counts(leaf.event)
        return not parallels and any(_is_bare(event) for event in inside)
    return isinstance(leaf, NonPrivateEvent)


def _undominated(ways: Iterable[Alternative]) -> list[Alternative]:
    kept: list[Alternative] = []
    for way in dict.fromkeys(ways):
        if not any(other.dominates(way) for other in kept):
            kept = [other for other in kept if not way.dominates(other)] + [way]
    return kept


# ---- The price of one of several releases, when which one it is depends on earlier releases ----------------


def dominating(events: Sequence[Event]) -> Event:
    """One event that costs as much as the dearest of several, whichever of them is released.

    Args:
        events: alternatives; which one is released may depend on releases before it.
    Privacy:
        Gaussian releases on everybody compose to exactly one with 1 / z^2 summed, and a smaller sum is dominated by a
        larger one whatever it is composed with. Equal events need no argument, and nothing costs more than a release
        without noise. Nothing else is totally ordered: the maximum of two curves need not bound a choice between them
        that depends on earlier releases.
    Raises:
        ValueError: the alternatives are not ordered.
    """
    if not comparable(events):
        raise ValueError(
            "the price of the refit would depend on which candidate is chosen: it can be bounded beforehand where all "
            "candidates release Gaussian noise on everybody (gradient descent, whitening), or cost exactly the same. "
            "Solvers that sample, or put noise inside the objective, cannot be compared with others: give steps and "
            "sampling rate that are the same for all candidates, or use refit=False."
        )
    if len(set(events)) == 1:
        return events[0]
    counts = [leaf_counts(event)[0] for event in events]
    if any(isinstance(leaf, NonPrivateEvent) for leaves in counts for leaf in leaves):
        return NonPrivateEvent()
    squares = [
        math.fsum(
            count / leaf.noise_multiplier**2
            for leaf, count in leaves.items()
            if isinstance(leaf, GaussianEvent)
        )
        for leaves in counts
    ]
    return GaussianEvent(1.0 / math.sqrt(max(squares)))


def comparable(events: Sequence[Event]) -> bool:
    """Whether the dearest of several events is known to dominate the others."""
    if len(set(events)) == 1:
        return True
    counts = [leaf_counts(event) for event in events]
    if any(isinstance(leaf, NonPrivateEvent) for leaves, _ in counts for leaf in leaves):
        return True
    return all(
        not parallels and all(isinstance(leaf, GaussianEvent) for leaf in leaves)
        for leaves, parallels in counts
    )


# ------------------------------------------------------------------------------------------------------------
# What it costs that a run is not quite the run that is priced: a total variation distance, at every
# epsilon.
# Let P and Q be the laws of a run on two neighbouring data sets, P' and Q' those of the ideal run, each within total
# variation eta of the real one on the same data. If the ideal run is (epsilon, delta(epsilon))-private, then for any E
#
#     P(E) <= P'(E) + eta <= e^epsilon Q'(E) + delta(epsilon) + eta
#          <= e^epsilon (Q(E) + eta) + delta(epsilon) + eta = e^epsilon Q(E) + delta(epsilon) + (1 + e^epsilon) eta,
#
# for both sides of the pair are off by eta, and one of them is multiplied by e^epsilon.
#
# A run whose step t is, given what was released before, within eta_t of the ideal step is within sum eta_t of the ideal
# run: couple the two step by step; while they agree, step t separates them with probability eta_t at most. The same
# holds where eta_t depends on earlier releases, with the largest sum over all ways that the run may take. So distances
# add up, under a filter too, and the sum is priced once, outside of everything else. Of disjoint blocks the dearest
# counts: only steps on a unit's own block need be replaced by ideal ones, the others are the same for both data sets.
#
# A run that is (epsilon, delta)-private is (larger, delta)-private, so the term does not grow with epsilon for ever:
# the bound at a large epsilon is the least of those at smaller ones. delta(epsilon) is convex in e^epsilon, hence so is
# the sum, and the least is found by a search.
#
# Source:
#     The two sides: Dwork, Roth 2014, lemma 3.17 (approximate max divergence), applied at one epsilon.


_STEPS = 50
_GOLDEN = (math.sqrt(5.0) - 1) / 2


def rounding_delta(total_variation: float, epsilon: float) -> float:
    """What a total variation distance adds to delta at `epsilon`: (1 + e^epsilon) total_variation."""
    return (1 + math.exp(min(epsilon, 700.0))) * total_variation


def rounded_epsilon(
    ideal: Callable[[float], float], total_variation: float, delta: float, *, start: float = 0.0
) -> float:
    """The smallest epsilon of a run within `total_variation` of an ideal one.

    Args:
        ideal: the epsilon of the ideal run at a delta of at least 0, decreasing.
        total_variation: the distance.
        delta: what the run may spend in all.
        start: below the answer.

    Returns:
        An epsilon with ideal(delta - (1 + e^epsilon) total_variation) <= epsilon; infinity where none was found.
    """
    epsilon, slack = start, 0.0
    for _ in range(_STEPS):  # from below to the least fixed point, then a little above it
        left = delta - rounding_delta(total_variation, epsilon)
        needed = ideal(left) if left >= 0 else math.inf
        if needed <= epsilon or math.isinf(needed):
            return max(epsilon, needed)
        epsilon, slack = needed * (1 + slack), max(1e-15, 2 * slack)
    return math.inf


def rounded_delta(
    ideal: Callable[[float], float], total_variation: float, epsilon: float, *, start: float = 0.0
) -> float:
    """The smallest delta of a run within `total_variation` of an ideal one, at `epsilon` or between it and `start`.

    Args:
        ideal: the delta of the ideal run at an epsilon of at least 0, decreasing, a convex function of e^epsilon.
        total_variation: the distance, above 0.
        epsilon: at least `start`; infinity is allowed.
        start: at least 0.
    """

    @functools.cache
    def bound(at: float) -> float:
        return min(1.0, ideal(at) + rounding_delta(total_variation, at))

    # From the logarithm on at which the term is 1 nothing is gained; the golden section finds where the sum turns.
    low, high = start, max(start, math.log1p(1 / total_variation))
    while high - low > 1e-3 * high and low < epsilon:
        left, right = high - _GOLDEN * (high - low), low + _GOLDEN * (high - low)
        low, high = (low, right) if bound(left) <= bound(right) else (left, high)
    return min(bound(start), bound(min(epsilon, low)), bound(min(epsilon, high)))
