"""Recorded events as a stranger reads them: a JSON tree in, what a single unit meets out.

A tree is read without the ledger's own classes. `Repeated` and `Sequence` compose on the same units; of a `Parallel`
node, whose branches are disjoint blocks, a unit meets one branch. Each way through the blocks is a `Way`.
"""

import functools
import itertools
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, cast

from privopt.verification.curves import mpf
from privopt.verification.fields import Fields, Malformed
from privopt.verification.work import TooLong, spend

MOST_REPEATS = 10**12
MOST_WAYS = 64
MOST_EVENTS = 200_000  # in a tree
MOST_BLOCKS = 5_000  # nodes of a tree that divide the units
_A_WAY = 20  # points of a grid, that putting two ways together takes
_MOST_MU_SQUARED = 1e300
_POSITIVE = (5e-324, 1.7976931348623157e308)
_PROBABILITY = (0.0, 1.0)
# The numbers of each event, with the range that each must lie in.
LEAVES: dict[str, dict[str, tuple[float, float]]] = {
    "GaussianEvent": {"noise_multiplier": _POSITIVE},
    "LaplaceEvent": {"noise_multiplier": _POSITIVE},
    "BoundedRangeEvent": {"epsilon": _POSITIVE},
    "PureEvent": {"epsilon": _POSITIVE},
    "ZCDPEvent": {"rho": _POSITIVE},
    "SelectionsEvent": {"rho": _POSITIVE, "epsilon": _POSITIVE},
    "ShiftedGaussianEvent": {"mu": _POSITIVE, "shift": (0.0, _POSITIVE[1])},
    "MixtureEvent": {
        "noise_multiplier": _POSITIVE,
        "rate": (5e-324, 1.0),
        "sampled_ratio": (0.0, _POSITIVE[1]),
    },
    "TestedSampleEvent": {
        "rate": (5e-324, 1.0),
        "noise_multiplier": _POSITIVE,
        "epsilon_threshold": _POSITIVE,
        "epsilon_queries": _POSITIVE,
    },
    "DeltaEvent": {"delta": _PROBABILITY},
    "RoundingEvent": {"total_variation": _PROBABILITY},
    "NoEvent": {},
    "NonPrivateEvent": {},
}


@dataclass(frozen=True)
class Leaf:
    """One event that is no tree.

    Attributes:
        kind: the name of the event; "Poisson" or "FixedSize" for Gaussian noise on a secret sample, "Unknown" for
            anything else on one.
        numbers: its numbers, in the order of `LEAVES`; of a sample (rate, sum of 1 / z^2, number of Gaussians); of
            objective perturbation a third one, 1 where the derivative has two signs; of a tested sample a fifth, how
            many tests.
    """

    kind: str
    numbers: tuple[float, ...] = ()


@dataclass
class Way:
    """What one unit meets.

    Attributes:
        mu_squared: the sum of 1 / z^2 over Gaussian noise on everybody.
        leaves: every other leaf, and how often.
        bad: the sum of the probabilities of bad events.
        rounding: the sum of total variation distances.
        bare: whether something was released without noise.
    """

    mu_squared: Any = field(default_factory=lambda: mpf(0))
    leaves: dict[Leaf, int] = field(default_factory=dict[Leaf, int])
    bad: Any = field(default_factory=lambda: mpf(0))
    rounding: Any = field(default_factory=lambda: mpf(0))
    bare: bool = False

    @property
    def key(self) -> tuple[Any, ...]:
        """What two ways that cost the same have in common."""
        return self.mu_squared, frozenset(self.leaves.items()), self.bad, self.rounding, self.bare

    def plus(self, other: "Way", count: int = 1) -> "Way":
        """This, and `count` times the other."""
        spend(_A_WAY + len(self.leaves) + len(other.leaves))
        leaves = dict(self.leaves)
        for leaf, times in other.leaves.items():
            leaves[leaf] = leaves.get(leaf, 0) + count * times
        return Way(
            self.mu_squared + count * other.mu_squared,
            leaves,
            self.bad + count * other.bad,
            self.rounding + count * other.rounding,
            self.bare or (count > 0 and other.bare),
        )

    def join(self, other: "Way") -> "Way":
        """A way that costs at least as much as both: of everything the larger amount."""
        spend(_A_WAY + len(self.leaves) + len(other.leaves))
        leaves = dict(self.leaves)
        for leaf, times in other.leaves.items():
            leaves[leaf] = max(leaves.get(leaf, 0), times)
        return Way(
            max(self.mu_squared, other.mu_squared),
            leaves,
            max(self.bad, other.bad),
            max(self.rounding, other.rounding),
            self.bare or other.bare,
        )


@functools.lru_cache(maxsize=8)  # by the node itself: a verdict asks for the ways of one tree again and again
def ways_through(event: Fields) -> tuple[tuple[Way, ...], bool]:
    """The ways through a recorded tree.

    Args:
        event: what `Event.to_dict` wrote.

    Returns:
        The ways, and whether they are exact: where there are too many, the branches of a node are joined, and what
        comes out bounds the price from above only.

    Raises:
        Malformed: it describes no event, or is larger than what is read.
    """
    return _ways(event, _way)


def met_by_units(event: Fields) -> tuple[tuple[Way, ...], bool]:
    """The ways through a tree with every leaf counted, Gaussian noise included: what is held against what was made.

    Raises:
        Malformed: as `ways_through`.
    """
    return _ways(event, lambda leaves: Way(leaves=dict(leaves)))


def _ways(event: Fields, met: Callable[[dict[Leaf, int]], Way]) -> tuple[tuple[Way, ...], bool]:
    _require_size(event)
    try:
        ways, exact = _reduced(event, met)
    except TooLong:
        raise Malformed(
            f"{event.place} takes more work than is spent on one file: too many runs, or units that are divided "
            "in too many ways."
        ) from None
    return tuple(ways), exact


def _require_size(event: Fields) -> None:
    """Refuse a tree that would take long.

    Raises:
        Malformed: it has too many nodes.
    """
    events = blocks = 0
    pending: list[Any] = [event.values]
    while pending:
        node = pending.pop()
        if isinstance(node, list):
            pending.extend(cast("list[Any]", node))
        elif isinstance(node, dict):
            members = cast("dict[str, Any]", node)
            events, blocks = events + 1, blocks + (members.get("event") == "Parallel")
            pending.append(members.get("of"))
        if events > MOST_EVENTS or blocks > MOST_BLOCKS:
            raise Malformed(
                f"{event.place} has more than {MOST_EVENTS:,} events, or divides the units more than {MOST_BLOCKS:,} "
                "times: beyond what is read."
            )


def _reduced(event: Fields, met: Callable[[dict[Leaf, int]], Way]) -> tuple[list[Way], bool]:
    leaves, parallels = _flat(event)
    spend(_A_WAY * (1 + len(leaves)))
    ways, exact = [met(leaves)], True
    for branches, count in parallels:
        found: dict[Any, Way] = {}
        for branch in branches:
            inner, inner_exact = _reduced(branch, met)
            exact = exact and inner_exact
            found |= {way.key: way for way in inner}
        different = list(found.values())
        if len(ways) * math.comb(count + len(different) - 1, count) > MOST_WAYS:
            exact = exact and len(different) == 1
            different = [_joined(different)]
        if len(different) == 1:
            ways = [way.plus(different[0], count) for way in ways]
            continue
        ways = [
            _summed([way, *chosen])
            for way in ways
            for chosen in itertools.combinations_with_replacement(different, count)
        ]
    return ways, exact


def _flat(event: Fields) -> tuple[dict[Leaf, int], list[tuple[list[Fields], int]]]:
    """The leaves that every unit meets, and the parallel nodes with their branches, each with its count."""
    leaves: dict[Leaf, int] = {}
    parallels: list[tuple[list[Fields], int]] = []
    pending = [(event, 1)]
    while pending:
        node, count = pending.pop()
        if count > MOST_REPEATS:
            raise Malformed(f"{node.place} is repeated more than {MOST_REPEATS:,} times.")
        kind = node.text("event")
        if kind == "Repeated":
            times = node.whole("count", 0, MOST_REPEATS)
            pending.append((node.fields("of"), count * times))
        elif kind == "Sequence":
            pending.extend((child, count) for child in reversed(node.each("of")))
        elif kind == "Parallel":
            branches = node.each("of")
            if not branches:
                raise Malformed(f"{node.place} has no branch.")
            parallels.append((branches, count))
        else:
            leaf = _sampled(node) if kind == "SampledEvent" else _leaf(kind, node)
            if count:
                leaves[leaf] = leaves.get(leaf, 0) + count
    return leaves, parallels


def _leaf(kind: str, node: Fields) -> Leaf:
    if kind not in LEAVES:
        raise Malformed(f"{node.place} is an event that is not known here.")
    ranges = LEAVES[kind]
    numbers = tuple(node.number(name, *ends) for name, ends in ranges.items())
    extra = {"ShiftedGaussianEvent": {"two_signed"}, "TestedSampleEvent": {"tests"}}.get(kind, set[str]())
    if set(node.values) - {"event", *ranges, *extra}:
        raise Malformed(f"{node.place} has a field that {kind} has not.")
    if kind == "ShiftedGaussianEvent":
        numbers += (float(node.truth("two_signed")),)
    if kind == "TestedSampleEvent":
        numbers += (float(node.whole("tests", 1, MOST_REPEATS)),)
    return Leaf(kind, numbers)


def _sampled(node: Fields) -> Leaf:
    sampling = node.fields("sampling")
    how = sampling.text("kind")
    if how == "poisson":
        kind, rate = "Poisson", sampling.number("rate", 5e-324, 1.0)
    elif how == "fixed-size":
        n = sampling.whole("n", 1, 10**15)
        kind, rate = "FixedSize", sampling.whole("batch", 1, n) / n
    else:
        raise Malformed(f"{sampling.place} is a way of drawing units that is not known here.")
    inner, parallels = _flat(node.fields("of"))
    if parallels or not inner or any(leaf.kind != "GaussianEvent" for leaf in inner):
        bare = any(leaf.kind == "NonPrivateEvent" for leaf in inner)
        return Leaf("NonPrivateEvent") if bare else Leaf("Unknown")
    total = sum((count / mpf(leaf.numbers[0]) ** 2 for leaf, count in inner.items()), mpf(0))
    return Leaf(kind, (rate, float(min(total, mpf(_MOST_MU_SQUARED))), float(sum(inner.values()))))


def _way(leaves: dict[Leaf, int]) -> Way:
    way = Way()
    for leaf, count in leaves.items():
        everybody = leaf.kind in ("Poisson", "FixedSize") and leaf.numbers[0] >= 1
        if leaf.kind == "GaussianEvent":
            way.mu_squared += count / mpf(leaf.numbers[0]) ** 2
        elif everybody:
            way.mu_squared += count * mpf(leaf.numbers[1])
        elif leaf.kind == "DeltaEvent":
            way.bad += count * mpf(leaf.numbers[0])
        elif leaf.kind == "RoundingEvent":
            way.rounding += count * mpf(leaf.numbers[0])
        elif leaf.kind == "NonPrivateEvent":
            way.bare = True
        elif leaf.kind != "NoEvent":
            way.leaves[leaf] = way.leaves.get(leaf, 0) + count
    return way


def _joined(ways: list[Way]) -> Way:
    total = ways[0]
    for way in ways[1:]:
        total = total.join(way)
    return total


def _summed(ways: Iterable[Way]) -> Way:
    total = Way()
    for way in ways:
        total = total.plus(way)
    return total
