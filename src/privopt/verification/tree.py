"""Recorded events as a stranger reads them: a JSON tree in, what a single unit meets out.

A tree is read without the ledger's own classes. `Repeated` and `Sequence` compose on the same units; of a `Parallel`
node, whose branches are disjoint blocks, a unit meets one branch. Each way through the blocks is a `Way`.
"""

import contextlib
import functools
import itertools
import json
import math
import time
from collections.abc import Callable, Generator
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, cast

import mpmath

from privopt.untrusted import UntrustedFile

# ---- Fields of a JSON document that nobody vouches for, each of the type that is asked for or a refusal ----


_NAMED = {"infinity": math.inf, "-infinity": -math.inf}


class Malformed(UntrustedFile):
    """A document lacks a field, or holds something else in its place."""


class Fields:
    """An object of a document.

    Args:
        value: what stands there.
        place: where, for a refusal: "report.guarantee".
    """

    def __init__(self, value: Any, place: str) -> None:
        if not isinstance(value, dict):
            raise Malformed(f"{place} must be an object, got {_kind(value)}.")
        self.values = cast("dict[str, Any]", value)
        self.place = place

    def __contains__(self, name: str) -> bool:
        return self.values.get(name) is not None

    def raw(self, name: str) -> Any:
        """Whatever stands there.

        Raises:
            Malformed: nothing does.
        """
        if name not in self.values:
            raise Malformed(f"{self.place} has no {name!r}.")
        return self.values[name]

    def fields(self, name: str) -> "Fields":
        """An object."""
        return Fields(self.raw(name), f"{self.place}.{name}")

    def each(self, name: str) -> "list[Fields]":
        """A list of objects."""
        return [
            Fields(value, f"{self.place}.{name}[{index}]") for index, value in enumerate(self.items(name))
        ]

    def items(self, name: str) -> list[Any]:
        """A list."""
        return self._of(name, list, "a list")

    def text(self, name: str) -> str:
        """A text."""
        return self._of(name, str, "a text")

    def truth(self, name: str) -> bool:
        """A truth value."""
        return self._of(name, bool, "true or false")

    def _of(self, name: str, kind: type, words: str) -> Any:
        """What stands there, of a type."""
        value = self.raw(name)
        if not isinstance(value, kind):
            raise Malformed(f"{self.place}.{name} must be {words}, got {_kind(value)}.")
        return value

    def number(self, name: str, low: float = -math.inf, high: float = math.inf) -> float:
        """A number of at least `low` and at most `high`; infinity is the text "infinity"."""
        return number(self.raw(name), f"{self.place}.{name}", low, high)

    def whole(self, name: str, low: int, high: int) -> int:
        """A whole number of at least `low` and at most `high`."""
        value = self.raw(name)
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise Malformed(
                f"{self.place}.{name} must be a whole number from {low:,} to {high:,}, got {_kind(value)}."
            )
        return value

    def pair(self, name: str) -> tuple[float, float] | None:
        """A least and a largest number of at least 0; None where nothing stands there."""
        if name not in self:
            return None
        ends = self.items(name)
        place = f"{self.place}.{name}"
        if len(ends) != 2:
            raise Malformed(f"{place} must be two numbers, got a list of {len(ends)}.")
        low, high = (number(end, place, 0.0, math.inf) for end in ends)
        if low > high:
            raise Malformed(f"{place} must be a least and a largest number, and is in the wrong order.")
        return low, high


def layout_free(document: Any) -> bytes:
    """JSON values as bytes that depend neither on layout nor on the order of members; 1, 1.0 and true are three."""
    text = json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return text.encode("utf-8", "surrogatepass")


def number(value: Any, place: str, low: float, high: float) -> float:
    """A number of at least `low` and at most `high`, from what JSON has in its place."""
    found = _NAMED.get(value, value) if isinstance(value, str) else value
    if isinstance(found, bool) or not isinstance(found, int | float):
        raise Malformed(f"{place} must be a number, got {_kind(value)}.")
    if not low <= found <= high:
        raise Malformed(f"{place} must lie between {low:g} and {high:g}, got {found:.6g}.")
    return float(found)


def _kind(value: Any) -> str:
    """What something is, without quoting more than a number."""
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    if isinstance(value, int | float):
        return f"{value:.6g}"
    return {str: "a text", list: "a list", dict: "an object"}.get(type(value), type(value).__name__)


# ---- Recorded events as a stranger reads them: a JSON tree in, what a single unit meets out ----------------


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
        return self._with(other, lambda mine, others: mine + count * others, bare=count > 0 and other.bare)

    def join(self, other: "Way") -> "Way":
        """A way that costs at least as much as both: of everything the larger amount."""
        return self._with(other, max, bare=other.bare)

    def _with(self, other: "Way", amount: Callable[[Any, Any], Any], *, bare: bool) -> "Way":
        """A way whose amounts follow from those of both."""
        spend(_A_WAY + len(self.leaves) + len(other.leaves))
        leaves = dict(self.leaves)
        for leaf, times in other.leaves.items():
            leaves[leaf] = amount(leaves.get(leaf, 0), times)
        return Way(
            amount(self.mu_squared, other.mu_squared),
            leaves,
            amount(self.bad, other.bad),
            amount(self.rounding, other.rounding),
            self.bare or bare,
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
    """Refuse a tree that would take long."""
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
            different = [functools.reduce(Way.join, different)]
        if len(different) == 1:
            ways = [way.plus(different[0], count) for way in ways]
            continue
        ways = [
            functools.reduce(Way.plus, [way, *chosen], Way())
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


# ---- Closed privacy curves in 50 digits: Gaussian noise, pure and zero-concentrated privacy ----------------
# Source:
#     Balle, Wang 2018, theorem 8 (Gaussian); Canonne, Kamath, Steinke 2020, proposition 12 (zero-concentrated).


mp: Any = mpmath.mp.clone()  # a context of our own: whoever else uses mpmath keeps his precision
mp.dps = 50
mpf = mp.mpf
HALVINGS = 80
_FAR = 10**4


def gaussian_delta(mu: Any, epsilon: Any) -> Any:
    """The delta of Gaussian noise of sensitivity over deviation `mu`, at an epsilon of any sign; rounded up far out."""
    mu, epsilon = mpf(mu), mpf(epsilon)
    if mu == 0:
        return mpf(0) if epsilon >= 0 else 1 - mp.exp(epsilon)
    x, y = epsilon / mu - mu / 2, epsilon / mu + mu / 2
    if abs(x) > _FAR:
        return mpf(1) if x < 0 else mp.exp(-x * x / 2) / 2
    # Beyond what mpmath evaluates, Mills' ratio is 1 / y within 1 / y^2; y = x + mu, so its e^epsilon cancels.
    far = mp.exp(-x * x / 2) / (y * mp.sqrt(2 * mp.pi))
    later = far if y > _FAR else mp.exp(epsilon) * mp.erfc(y / mp.sqrt(2)) / 2
    return mp.erfc(x / mp.sqrt(2)) / 2 - later


def zcdp_delta(rho: Any, epsilon: Any) -> Any:
    """The delta that rho-zCDP guarantees at an epsilon of at least 0.

    Any order gives a bound, so nothing rests on the search for the best one.
    """
    rho, epsilon = mpf(rho), mpf(epsilon)
    if rho == 0:
        return mpf(0)
    # The exponent's derivative in the order rises: rho (2 a - 1) - epsilon + log(1 - 1 / a).
    low, high = mpf(-200), mp.log(2 + 2 / rho + epsilon / rho)
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        order = 1 + mp.exp(middle)
        rising = rho * (2 * order - 1) - epsilon + mp.log(1 - 1 / order) > 0
        low, high = (low, middle) if rising else (middle, high)
    order = 1 + mp.exp(high)
    exponent = (order - 1) * (order * rho - epsilon) + (order - 1) * mp.log(1 - 1 / order) - mp.log(order)
    return min(mpf(1), mp.exp(exponent))


# ------------------------------------------------------------------------------------------------------------
# How long a verdict may take: a report from anywhere is priced, or given up, within a stated amount of
# work.


MOST_POINTS = 2**24  # of all grids of one verdict; about 0.2 microseconds each
MOST_SECONDS = 5.0  # of processor time, on a machine that takes longer for them
IN_DIGITS = 1_000  # points, that one evaluation in 50 digits counts for


class TooLong(ValueError):
    """Pricing everything a second time would take too long."""

    def __init__(self) -> None:
        super().__init__("pricing everything a second time would take too long")


@dataclass
class _Left:
    points: int
    until: float


_left: ContextVar[_Left | None] = ContextVar("_left", default=None)


@contextlib.contextmanager
def limited_work() -> Generator[None]:
    """Where everything together may take so much work."""
    token = _left.set(_Left(MOST_POINTS, time.process_time() + MOST_SECONDS))
    try:
        yield
    finally:
        _left.reset(token)


def spend(points: int) -> None:
    """Count work, in points of a grid.

    Raises:
        TooLong: there has been too much, counted or in seconds.
    """
    left = _left.get()
    if left is None:
        return
    left.points -= points
    if left.points < 0 or time.process_time() > left.until:
        raise TooLong
