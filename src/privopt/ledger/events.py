"""What a release costs: a small language of privacy events.

An event says what a mechanism did, in numbers that are relative to the sensitivity under the declared neighbouring
relation; it names no data and no accountant. Leaves are combined into a tree by `Repeated`, `Sequence` (composition
on the same units) and `Parallel` (disjoint units: the dearest branch counts). `privopt.ledger.accounting` prices a
tree: it asks the leaves for what is known of them, so that a new kind is one class. Every event is frozen, hashable,
prints as a sentence (`describe()`) and survives a round trip through JSON (`to_dict()`, `event_from_dict`).
"""

import math
import operator
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Protocol, runtime_checkable

from privopt.errors import NotPriceable
from privopt.ledger.event import (
    KINDS,
    Event,
    Free,
    Known,
    Leaf,
    Noise,
    Number,
    Spent,
    checked_event,
    checked_events,
    event,
)
from privopt.ledger.privacy_losses import ShiftedCurve, inflated_rate
from privopt.public import Relation

# ---- The leaves --------------------------------------------------------------------------------------------


@event("Gaussian noise, {noise_multiplier:.3g} times the sensitivity")
class GaussianEvent(Leaf):
    """N(0, s^2 I) noise; `noise_multiplier` is s over the l2 sensitivity under the declared relation."""

    noise_multiplier: Noise

    variance = Known(lambda self: self.noise_multiplier**2)
    zcdp = Known(lambda self: 1 / (2 * self.noise_multiplier**2))


@event("Laplace noise, {noise_multiplier:.3g} times the sensitivity")
class LaplaceEvent(Leaf):
    """Laplace noise; `noise_multiplier` is its scale over the l1 sensitivity. Pure epsilon 1 / noise_multiplier."""

    noise_multiplier: Noise

    pure = Known(lambda self: 1 / self.noise_multiplier)

    def law(self, relation: Relation) -> tuple[Any, ...] | None:
        return "laplace", self.noise_multiplier


@event("exponential-mechanism selection, epsilon {epsilon:.3g}")
class BoundedRangeEvent(Leaf):
    """A selection whose log-likelihood ratios lie in an interval of length `epsilon` (exponential mechanism).

    Source:
        Dong, Durfee, Rogers 2020 (bounded range); Cesar, Rogers 2021 (it is epsilon^2 / 8 zCDP).
    """

    merged_from: ClassVar[float] = 8

    epsilon: Annotated[float, Number("a selection that cannot depend on data is NoEvent()")]

    pure = Known(lambda self: self.epsilon)
    zcdp = Known(lambda self: self.epsilon**2 / 8)


@event("pure differential privacy, epsilon {epsilon:.3g}")
class PureEvent(Leaf):
    """Any mechanism with pure epsilon-differential privacy (AboveThreshold, permute-and-flip, ...)."""

    epsilon: Spent

    pure = Known(lambda self: self.epsilon)


@event("zero-concentrated differential privacy, rho {rho:.3g}")
class ZCDPEvent(Leaf):
    """Anything of which only a bound in zero-concentrated differential privacy is known."""

    merged_from: ClassVar[float] = 1

    rho: Spent
    zcdp = Known(lambda self: self.rho)


@event("exponential-mechanism selections, rho {rho:.3g} in all")
class SelectionsEvent(Leaf):
    """An adaptive sequence of bounded-range selections: rho-zCDP in all and, as well, `epsilon` of pure privacy in all.

    Source:
        Cesar, Rogers 2021: ranges e_t give rho = sum e_t^2 / 8; pure epsilon is their sum.
    """

    merged_from: ClassVar[float] = 1

    rho: Annotated[float, Number("selections that cannot depend on data are NoEvent()")]
    epsilon: Annotated[float, Number("selections that cannot depend on data are NoEvent()")]

    pure = Known(lambda self: self.epsilon)
    zcdp = Known(lambda self: self.rho)


@event()
class ShiftedGaussianEvent(Leaf):
    """Objective perturbation: delta(eps) <= curve(mu, eps - shift) for every eps >= shift, in both directions.

    The curve is that of Gaussian noise, `gaussian_delta`, for losses whose derivative has one sign. For all others
    (`two_signed`) it is that of the privacy loss mu |Z| + mu^2 / 2 with Z standard normal: twice the Gaussian curve
    from mu^2 / 2 on. See `privopt.ledger.privacy_losses`.

    Source:
        Objective perturbation: Redberg, Koskela, Wang 2023, sharpened for losses whose derivative has one sign.
    """

    mu: Noise
    shift: Annotated[float, Number("it is the ln(1 + curvature / ridge) term", below=math.inf)]
    two_signed: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.two_signed not in (True, False):
            raise ValueError(f"two_signed must be True or False, got {self.two_signed!r}.")
        object.__setattr__(self, "two_signed", bool(self.two_signed))

    def describe(self) -> str:
        folded = " (folded)" if self.two_signed else ""
        return f"objective perturbation, mu {self.mu:.3g} shifted by {self.shift:.3g}{folded}"

    @property
    def shifted(self) -> ShiftedCurve:
        return ShiftedCurve(self.mu, self.shift, self.two_signed)

    def law(self, relation: Relation) -> tuple[Any, ...] | None:
        return "shifted", self.shifted

    approximate_rho = Known(lambda self: self.mu**2 / 2)


@event()
class MixtureEvent(Leaf):
    """One noise on a sum over everybody plus a sum over a secret Poisson sample; add-or-remove-one only.

    The pair N(0, z^2) against (1 - rate) N(1, z^2) + rate N(1 + sampled_ratio, z^2).

    Attributes:
        noise_multiplier: z, the standard deviation over the l2 sensitivity of the sum over everybody.
        rate: the probability with which a unit is in the sample.
        sampled_ratio: the l2 sensitivity of the sampled sum, given who was drawn, over that of the sum over everybody.

    Source:
        Choquette-Choo, Ganesh, Steinke, Thakurta 2023 (mixtures of Gaussians; vectors are dominated by their norms).
    """

    noise_multiplier: Noise
    rate: Annotated[float, Number("where nobody is drawn use GaussianEvent()", most=1)]
    sampled_ratio: Annotated[float, Number("it is a ratio of sensitivities", below=math.inf)]

    def describe(self) -> str:
        return (
            f"Gaussian noise, {self.noise_multiplier:.3g} times the sensitivity of a sum over everybody, plus a "
            f"Poisson sample of {100 * self.rate:.3g} % that adds {self.sampled_ratio:.3g} times as much"
        )

    def law(self, relation: Relation) -> tuple[Any, ...] | None:
        known = relation is Relation.ADD_OR_REMOVE_ONE
        return ("mixture", self.noise_multiplier, self.rate, self.sampled_ratio) if known else None

    @Known
    def approximate_rho(self) -> float:
        inverse, jump = 1 / self.noise_multiplier**2, self.sampled_ratio
        sampled = self.rate**2 * math.expm1(min(jump**2 * inverse, 600.0)) / 2
        return inverse / 2 + self.rate * jump * inverse + sampled


@event()
class TestedSampleEvent(Leaf):
    """A sparse vector whose every test looks at a fresh secret sample, with one Gaussian release on it if it passes.

    A test reveals something of the sample that it is made on, so tests and releases are no independent mechanisms, and
    the releases are not amplified at the rate that the sample was drawn with. See `privopt.ledger.privacy_losses`,
    which holds the price and its proof. The probability of a wrong pass is a `DeltaEvent` beside this one.

    Attributes:
        rate: the probability with which a unit is in a sample (Poisson), each sample drawn anew.
        noise_multiplier: of the Gaussian releases, over the sensitivity given who was drawn.
        tests: T, how many samples, tests and releases there are at most.
        epsilon_threshold: spent on the threshold's noise, drawn once for all tests.
        epsilon_queries: spent on the tests' noise.
    """

    __test__: ClassVar[bool] = False  # no class of tests

    rate: Annotated[float, Number("where nobody is drawn nothing is released", most=1)]
    noise_multiplier: Noise
    tests: int
    epsilon_threshold: Annotated[float, Number("a threshold without noise is NonPrivateEvent()")]
    epsilon_queries: Annotated[float, Number("tests without noise are NonPrivateEvent()")]

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "tests", _whole(self.tests, "tests", least=1))

    def describe(self) -> str:
        return (
            f"{self.tests} Poisson samples of {100 * self.rate:.3g} % of the units, on each a test of a sparse "
            f"vector of epsilon {self.epsilon_threshold + self.epsilon_queries:.3g} and Gaussian noise, "
            f"{self.noise_multiplier:.3g} times the sensitivity"
        )

    @Known
    def approximate_rho(self) -> float:
        rate = inflated_rate(self.rate, self.epsilon_queries)
        return self.tests * rate**2 * math.expm1(min(1 / self.noise_multiplier**2, 600.0)) / 2


@event("a bad event of probability {delta:.3g}")
class DeltaEvent(Free):
    """A bad event of probability `delta`: it is taken off the delta of the budget once, with no factor e^epsilon."""

    delta: Annotated[float, Number("it is a probability below 1", below=1.0)]

    bad_event = Known(lambda self: self.delta)


@event("rounding, total variation {total_variation:.3g}")
class RoundingEvent(Free):
    """The run's law is within total variation `total_variation` of the one that the other events price, on any data.

    It adds (1 + e^epsilon) total_variation to delta at every epsilon: see `privopt.ledger.composition`.
    """

    total_variation: Annotated[float, Number("it is a distance between probabilities", below=1.0)]

    rounding = Known(lambda self: self.total_variation)


@event("nothing that depends on data")
class NoEvent(Free):
    """Nothing that depends on data: free."""


@event("no noise: not private")
class NonPrivateEvent(Leaf):
    """A release without noise: no finite epsilon."""

    variance = Known(lambda self: 0.0)
    pure = Known(lambda self: math.inf)


# ---- Releases on a secret sample, and trees of events ------------------------------------------------------


@runtime_checkable
class SamplingDescription(Protocol):
    """A public description of who takes part: `kind` is "poisson" or "fixed-size", `rate` the expected fraction."""

    kind: ClassVar[str]

    @property
    def rate(self) -> float:
        """Expected fraction of the units that take part."""
        ...


@event()
class SampledEvent(Leaf):
    """`event`, applied to a random subset of the units that stays secret.

    `sampling` is a public description such as `privopt.ledger.events.Poisson(0.01)`. Inside, sums are divided by the
    expected number of units and noise multipliers are relative to the sensitivity given who was drawn.
    """

    sampling: SamplingDescription
    event: Event

    def __post_init__(self) -> None:
        kind = getattr(self.sampling, "kind", None)
        if kind not in ("poisson", "fixed-size"):
            raise ValueError(
                f"sampling must be Poisson(rate) or FixedSize(batch, n), got {self.sampling!r}: no other way of "
                "drawing units has a tested price. Where everybody takes part use the event itself."
            )
        checked_event(self.event)

    def describe(self) -> str:
        how = "Poisson sample" if self.sampling.kind == "poisson" else "fixed-size sample"
        return f"{self.event.describe()}, on a {how} of {100 * self.sampling.rate:.3g} % of the units"

    def to_dict(self) -> dict[str, Any]:
        names = ("kind", "rate") if self.sampling.kind == "poisson" else ("kind", "batch", "n")
        return {**super().to_dict(), "sampling": {name: getattr(self.sampling, name) for name in names}}

    def noise_multiplier(self, relation: Relation) -> float | None:
        """The noise multiplier of the Gaussian on the sample, None if something else is inside.

        Several Gaussians on one Poisson sample are one of multiplier (sum 1 / z^2)^(-1/2) under add-or-remove-one,
        where the divergence of the mixture is a function of the divergence of its parts; under replace-one both sides
        are mixtures and only a single Gaussian has a proof.
        """
        inner, parallels = leaf_counts(self.event)
        gaussians = [(leaf, count) for leaf, count in inner.items() if isinstance(leaf, GaussianEvent)]
        if parallels or not gaussians or len(gaussians) < len(inner):
            return None
        if relation is Relation.REPLACE_ONE and sum(count for _, count in gaussians) > 1:
            return None
        if len(gaussians) == 1 and gaussians[0][1] == 1:
            return gaussians[0][0].noise_multiplier
        return 1 / math.sqrt(math.fsum(count / leaf.noise_multiplier**2 for leaf, count in gaussians))

    def law(self, relation: Relation) -> tuple[Any, ...] | None:
        multiplier, sampling = self.noise_multiplier(relation), self.sampling
        if multiplier is None:
            return None
        if sampling.kind == "poisson":
            return "poisson", multiplier, sampling.rate, relation
        known = relation is Relation.REPLACE_ONE
        return ("fixed-size", multiplier, sampling) if known else None

    @Known
    def approximate_rho(self) -> float:
        inside = additive_cost(self.event, lambda leaf: leaf.approximate_rho or 0.0) or 0.0
        return self.sampling.rate**2 * math.expm1(min(2 * inside, 600.0)) / 2


@event()
class Repeated(Event):
    """`event`, `count` times on the same units, each release free to depend on the earlier ones."""

    event: Event
    count: int

    def __post_init__(self) -> None:
        checked_event(self.event)
        object.__setattr__(self, "count", _whole(self.count, "count", least=0))

    def describe(self) -> str:
        return f"{self.count} times: {self.event.describe()}"


@event()
class Sequence(Event):
    """Several events on the same units, each free to depend on the releases before it."""

    events: tuple[Event, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "events", checked_events(self.events))

    def describe(self) -> str:
        return "; ".join(event.describe() for event in self.events) or NoEvent().describe()


@event()
class Parallel(Event):
    """One branch per block of units; blocks are disjoint and chosen without looking at data. The dearest counts."""

    events: tuple[Event, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "events", checked_events(self.events))
        if not self.events:
            raise ValueError("Parallel needs at least one branch, got none: for a free step use NoEvent().")

    def describe(self) -> str:
        branches = " | ".join(event.describe() for event in self.events)
        return f"on {len(self.events)} disjoint blocks of units, the dearest counts: {branches}"


def repeat(event: Event, count: int) -> Event:
    """`event`, `count` times, in its shortest form."""
    return event if count == 1 else Repeated(event, count)


def sequence(events: Iterable[Event]) -> Event:
    """The events one after the other, in their shortest form: free ones dropped, a single one bare."""
    kept = tuple(event for event in events if event != NoEvent())
    return kept[0] if len(kept) == 1 else Sequence(kept) if kept else NoEvent()


def leaf_counts(event: Event) -> tuple[dict[Leaf, int], tuple[tuple[Parallel, int], ...]]:
    """Flatten a tree without expanding counts.

    Args:
        event: any tree.

    Returns:
        How often each leaf occurs on every unit (sampled events are leaves, free ones are dropped), and the
        parallel nodes in order with their counts.
    """
    leaves: dict[Leaf, int] = {}
    parallels: list[tuple[Parallel, int]] = []
    pending: list[tuple[Event, int]] = [(event, 1)]
    while pending:
        node, count = pending.pop()
        if count == 0 or isinstance(node, NoEvent):
            continue
        if isinstance(node, Repeated):
            pending.append((node.event, count * node.count))
        elif isinstance(node, Sequence):
            pending.extend((child, count) for child in reversed(node.events))
        elif isinstance(node, Parallel):
            parallels.append((node, count))
        elif isinstance(node, Leaf) and KINDS.get(type(node).__name__) is type(node):
            leaves[node] = leaves.get(node, 0) + count
        else:
            raise NotPriceable(
                f"{type(node).__name__} is no declared kind of event: nothing is known of its price."
            )
    return leaves, tuple(parallels)


def additive_cost(event: Event, price: Callable[[Leaf], float | None]) -> float | None:
    """The cost of a tree in a currency that adds up: sums over sequences, the dearest branch of parallel nodes.

    Args:
        event: any tree.
        price: cost of a leaf, None where the currency cannot price it.
    """
    leaves, parallels = leaf_counts(event)
    terms: list[float] = []
    for leaf, count in leaves.items():
        cost = price(leaf)
        if cost is None:
            return None
        terms.append(count * cost)
    for node, count in parallels:
        branches = [additive_cost(branch, price) for branch in dict.fromkeys(node.events)]
        known = [cost for cost in branches if cost is not None]
        if len(known) < len(branches):
            return None
        terms.append(count * max(known))
    return math.fsum(terms)


def _whole(value: Any, name: str, *, least: int) -> int:
    """A whole number of at least `least`, or a refusal."""
    try:
        count = operator.index(value)
    except TypeError:
        raise TypeError(f"{name} must be a whole number, got {value!r}.") from None
    if count < least:
        raise ValueError(f"{name} must be at least {least}, got {count}.")
    return count


# ---- Who takes part in a release: public descriptions. The units themselves are drawn by the curator -------


@dataclass(frozen=True)
class EveryUnit:
    """Every unit takes part."""

    kind: ClassVar[str] = "every"
    rate: ClassVar[float] = 1.0

    def event(self, event: Event) -> Event:
        """The event itself: nothing is amplified."""
        return event


@dataclass(frozen=True)
class Poisson:
    """Each unit takes part independently with probability `rate`; sums are divided by rate * n."""

    rate: float
    kind: ClassVar[str] = "poisson"

    def __post_init__(self) -> None:
        if not 0 < self.rate <= 1:
            raise ValueError(f"the sampling rate must be in (0, 1], got {self.rate!r}.")

    def event(self, event: Event) -> Event:
        """The sampled event; a rate of 1 is everybody."""
        return event if self.rate == 1 else SampledEvent(self, event)


@dataclass(frozen=True)
class FixedSize:
    """`batch` of the n units take part, drawn uniformly without replacement (replace-one only)."""

    batch: int
    n: int
    kind: ClassVar[str] = "fixed-size"

    def __post_init__(self) -> None:
        if not 1 <= self.batch <= self.n:
            raise ValueError(f"the batch must be between 1 and n = {self.n} units, got {self.batch!r}.")

    @property
    def rate(self) -> float:
        """The fraction of units in a batch."""
        return self.batch / self.n

    def event(self, event: Event) -> Event:
        """The sampled event; a batch of n is everybody."""
        return event if self.batch == self.n else SampledEvent(self, event)


Sampling = EveryUnit | Poisson | FixedSize


def expected_units(sampling: Sampling, n: int) -> float:
    """The public number that a sampled sum is divided by.

    Args:
        sampling: who takes part.
        n: the public number of units.
    """
    return n * sampling.rate if math.isfinite(sampling.rate) else float(n)


# ---- Events from JSON: what `Event.to_dict` wrote becomes the event again ----------------------------------


def event_from_dict(values: Mapping[str, Any]) -> Event:
    """Rebuild an event from what `to_dict` gave.

    Args:
        values: the dictionary, possibly after a trip through JSON.

    Raises:
        ValueError: it does not describe an event.
    """
    name, given = values.get("event"), {key: value for key, value in values.items() if key != "event"}
    try:
        if name in KINDS:
            if "events" in given:
                raise KeyError("of")
            if "sampling" in given:
                given["sampling"] = _sampling_from_dict(given["sampling"])
            if isinstance(of := given.pop("of", None), Mapping):
                given["event"] = event_from_dict(of)
            elif of is not None:
                given["events"] = tuple(event_from_dict(child) for child in of)
            return KINDS[name](**given)
    except (KeyError, TypeError) as error:
        raise ValueError(f"{name} is not described completely by {dict(values)!r}: {error}.") from error
    raise ValueError(f"event must be one of {', '.join(KINDS)}; got {name!r}.")


def _sampling_from_dict(values: Mapping[str, Any]) -> FixedSize | Poisson:
    if values.get("kind") == "poisson":
        return Poisson(values["rate"])
    if values.get("kind") == "fixed-size":
        return FixedSize(values["batch"], values["n"])
    raise ValueError(f"sampling kind must be 'poisson' or 'fixed-size', got {values.get('kind')!r}.")
