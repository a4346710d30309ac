"""What a release costs: a small language of privacy events.

An event says what a mechanism did, in numbers that are relative to the sensitivity under the declared neighbouring
relation; it names no data and no accountant. Leaves are combined into a tree by `Repeated`, `Sequence` (composition
on the same units) and `Parallel` (disjoint units: the dearest branch counts). `privopt.ledger.accounting` prices a
tree. Every event is frozen, hashable, prints as a sentence (`describe()`) and survives a round trip through JSON
(`to_dict()`, `event_json.event_from_dict`).
"""

import math
import operator
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Protocol, runtime_checkable


@runtime_checkable
class SamplingDescription(Protocol):
    """A public description of who takes part: `kind` is "poisson" or "fixed-size", `rate` the expected fraction."""

    kind: ClassVar[str]

    @property
    def rate(self) -> float:
        """Expected fraction of the units that take part."""
        ...


class Event(ABC):
    """What one release, or a tree of releases, costs."""

    @abstractmethod
    def describe(self) -> str:
        """A phrase for reports, such as "Gaussian noise, 37.2 times the sensitivity"."""

    @abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """A dictionary of JSON values from which `event_json.event_from_dict` rebuilds the event."""


class _Leaf(Event):
    """An event whose fields are plain numbers."""

    def to_dict(self) -> dict[str, Any]:
        values: dict[str, Any] = {"event": type(self).__name__}
        for field in fields(self):  # type: ignore[arg-type]  # every leaf is a dataclass
            values[field.name] = getattr(self, field.name)
        return values


@dataclass(frozen=True)
class GaussianEvent(_Leaf):
    """N(0, s^2 I) noise; `noise_multiplier` is s over the l2 sensitivity under the declared relation."""

    noise_multiplier: float

    def __post_init__(self) -> None:
        check_positive(self, "noise_multiplier", "for no noise use NonPrivateEvent()")

    def describe(self) -> str:
        return f"Gaussian noise, {short(self.noise_multiplier)} times the sensitivity"


@dataclass(frozen=True)
class LaplaceEvent(_Leaf):
    """Laplace noise; `noise_multiplier` is its scale over the l1 sensitivity. Pure epsilon 1 / noise_multiplier."""

    noise_multiplier: float

    def __post_init__(self) -> None:
        check_positive(self, "noise_multiplier", "for no noise use NonPrivateEvent()")

    def describe(self) -> str:
        return f"Laplace noise, {short(self.noise_multiplier)} times the sensitivity"


@dataclass(frozen=True)
class BoundedRangeEvent(_Leaf):
    """A selection whose log-likelihood ratios lie in an interval of length `epsilon` (exponential mechanism).

    Source:
        Dong, Durfee, Rogers 2020 (bounded range); Cesar, Rogers 2021 (it is epsilon^2 / 8 zCDP).
    """

    epsilon: float

    def __post_init__(self) -> None:
        check_positive(self, "epsilon", "a selection that cannot depend on data is NoEvent()")

    def describe(self) -> str:
        return f"exponential-mechanism selection, epsilon {short(self.epsilon)}"


@dataclass(frozen=True)
class PureEvent(_Leaf):
    """Any mechanism with pure epsilon-differential privacy (AboveThreshold, permute-and-flip, ...)."""

    epsilon: float

    def __post_init__(self) -> None:
        check_positive(self, "epsilon", "a release that cannot depend on data is NoEvent()")

    def describe(self) -> str:
        return f"pure differential privacy, epsilon {short(self.epsilon)}"


@dataclass(frozen=True)
class ZCDPEvent(_Leaf):
    """Anything of which only a bound in zero-concentrated differential privacy is known."""

    rho: float

    def __post_init__(self) -> None:
        check_positive(self, "rho", "a release that cannot depend on data is NoEvent()")

    def describe(self) -> str:
        return f"zero-concentrated differential privacy, rho {short(self.rho)}"


@dataclass(frozen=True)
class SelectionsEvent(_Leaf):
    """An adaptive sequence of bounded-range selections: rho-zCDP in all and, as well, `epsilon` of pure privacy in all.

    Source:
        Cesar, Rogers 2021: ranges e_t give rho = sum e_t^2 / 8; pure epsilon is their sum.
    """

    rho: float
    epsilon: float

    def __post_init__(self) -> None:
        check_positive(self, "rho", "selections that cannot depend on data are NoEvent()")
        check_positive(self, "epsilon", "selections that cannot depend on data are NoEvent()")

    def describe(self) -> str:
        return f"exponential-mechanism selections, rho {short(self.rho)} in all"


@dataclass(frozen=True)
class ShiftedGaussianEvent(_Leaf):
    """Objective perturbation: delta(eps) <= curve(mu, eps - shift) for every eps >= shift, in both directions.

    The curve is that of Gaussian noise, `gaussian_delta`, for losses whose derivative has one sign. For all others
    (`two_signed`) it is that of the privacy loss mu |Z| + mu^2 / 2 with Z standard normal: twice the Gaussian curve
    from mu^2 / 2 on. See `privopt.ledger.privacy_losses`.

    Source:
        Objective perturbation: Redberg, Koskela, Wang 2023, sharpened for losses whose derivative has one sign.
    """

    mu: float
    shift: float
    two_signed: bool = False

    def __post_init__(self) -> None:
        check_positive(self, "mu", "for no noise use NonPrivateEvent()")
        check_number(self, "shift", low=0.0, high=math.inf, advice="it is the ln(1 + curvature / ridge) term")

        if self.two_signed not in (True, False):
            raise ValueError(f"two_signed must be True or False, got {self.two_signed!r}.")
        object.__setattr__(self, "two_signed", bool(self.two_signed))

    def describe(self) -> str:
        folded = " (folded)" if self.two_signed else ""
        return f"objective perturbation, mu {short(self.mu)} shifted by {short(self.shift)}{folded}"


@dataclass(frozen=True)
class MixtureEvent(_Leaf):
    """One noise on a sum over everybody plus a sum over a secret Poisson sample; add-or-remove-one only.

    The pair N(0, z^2) against (1 - rate) N(1, z^2) + rate N(1 + sampled_ratio, z^2).

    Attributes:
        noise_multiplier: z, the standard deviation over the l2 sensitivity of the sum over everybody.
        rate: the probability with which a unit is in the sample.
        sampled_ratio: the l2 sensitivity of the sampled sum, given who was drawn, over that of the sum over everybody.

    Source:
        Choquette-Choo, Ganesh, Steinke, Thakurta 2023 (mixtures of Gaussians; vectors are dominated by their norms).
    """

    noise_multiplier: float
    rate: float
    sampled_ratio: float

    def __post_init__(self) -> None:
        check_positive(self, "noise_multiplier", "for no noise use NonPrivateEvent()")
        check_positive(self, "rate", "where nobody is drawn use GaussianEvent()")
        if self.rate > 1:
            raise ValueError(
                f"rate of MixtureEvent must be at most 1, got {self.rate!r}: it is a probability."
            )
        check_number(self, "sampled_ratio", low=0.0, high=math.inf, advice="it is a ratio of sensitivities")

    def describe(self) -> str:
        return (
            f"Gaussian noise, {short(self.noise_multiplier)} times the sensitivity of a sum over everybody, plus a "
            f"Poisson sample of {short(100 * self.rate)} % that adds {short(self.sampled_ratio)} times as much"
        )


@dataclass(frozen=True)
class TestedSampleEvent(_Leaf):
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

    rate: float
    noise_multiplier: float
    tests: int
    epsilon_threshold: float
    epsilon_queries: float

    def __post_init__(self) -> None:
        check_positive(self, "rate", "where nobody is drawn nothing is released")
        if self.rate > 1:
            raise ValueError(
                f"rate of TestedSampleEvent must be at most 1, got {self.rate!r}: it is a probability."
            )
        check_positive(self, "noise_multiplier", "for no noise use NonPrivateEvent()")
        check_positive(self, "epsilon_threshold", "a threshold without noise is NonPrivateEvent()")
        check_positive(self, "epsilon_queries", "tests without noise are NonPrivateEvent()")
        object.__setattr__(self, "tests", checked_count(self.tests, "tests", least=1))

    def describe(self) -> str:
        return (
            f"{self.tests} Poisson samples of {short(100 * self.rate)} % of the units, on each a test of a sparse "
            f"vector of epsilon {short(self.epsilon_threshold + self.epsilon_queries)} and Gaussian noise, "
            f"{short(self.noise_multiplier)} times the sensitivity"
        )


@dataclass(frozen=True)
class DeltaEvent(_Leaf):
    """A bad event of probability `delta`: it is taken off the delta of the budget once, with no factor e^epsilon."""

    delta: float

    def __post_init__(self) -> None:
        check_number(self, "delta", low=0.0, high=1.0, advice="it is a probability below 1")

    def describe(self) -> str:
        return f"a bad event of probability {short(self.delta)}"


@dataclass(frozen=True)
class RoundingEvent(_Leaf):
    """The run's law is within total variation `total_variation` of the one that the other events price, on any data.

    It adds (1 + e^epsilon) total_variation to delta at every epsilon: see `privopt.ledger.composition`.
    """

    total_variation: float

    def __post_init__(self) -> None:
        check_number(
            self, "total_variation", low=0.0, high=1.0, advice="it is a distance between probabilities"
        )

    def describe(self) -> str:
        return f"rounding, total variation {short(self.total_variation)}"


@dataclass(frozen=True)
class NoEvent(_Leaf):
    """Nothing that depends on data: free."""

    def describe(self) -> str:
        return "nothing that depends on data"


@dataclass(frozen=True)
class NonPrivateEvent(_Leaf):
    """A release without noise: no finite epsilon."""

    def describe(self) -> str:
        return "no noise: not private"


@dataclass(frozen=True)
class SampledEvent(Event):
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
        _check_event(self.event)

    def describe(self) -> str:
        how = "Poisson sample" if self.sampling.kind == "poisson" else "fixed-size sample"
        return f"{self.event.describe()}, on a {how} of {short(100 * self.sampling.rate)} % of the units"

    def to_dict(self) -> dict[str, Any]:
        sampling: dict[str, Any] = {"kind": self.sampling.kind}
        for name in ("rate",) if self.sampling.kind == "poisson" else ("batch", "n"):
            sampling[name] = getattr(self.sampling, name)
        return {"event": "SampledEvent", "sampling": sampling, "of": self.event.to_dict()}


@dataclass(frozen=True)
class Repeated(Event):
    """`event`, `count` times on the same units, each release free to depend on the earlier ones."""

    event: Event
    count: int

    def __post_init__(self) -> None:
        _check_event(self.event)
        object.__setattr__(self, "count", checked_count(self.count, "count", least=0))

    def describe(self) -> str:
        return f"{self.count} times: {self.event.describe()}"

    def to_dict(self) -> dict[str, Any]:
        return {"event": "Repeated", "count": self.count, "of": self.event.to_dict()}


@dataclass(frozen=True)
class Sequence(Event):
    """Several events on the same units, each free to depend on the releases before it."""

    events: tuple[Event, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "events", _event_tuple(self.events))

    def describe(self) -> str:
        return "; ".join(event.describe() for event in self.events) or NoEvent().describe()

    def to_dict(self) -> dict[str, Any]:
        return {"event": "Sequence", "of": [event.to_dict() for event in self.events]}


@dataclass(frozen=True)
class Parallel(Event):
    """One branch per block of units; blocks are disjoint and chosen without looking at data. The dearest counts."""

    events: tuple[Event, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "events", _event_tuple(self.events))
        if not self.events:
            raise ValueError("Parallel needs at least one branch, got none: for a free step use NoEvent().")

    def describe(self) -> str:
        branches = " | ".join(event.describe() for event in self.events)
        return f"on {len(self.events)} disjoint blocks of units, the dearest counts: {branches}"

    def to_dict(self) -> dict[str, Any]:
        return {"event": "Parallel", "of": [event.to_dict() for event in self.events]}


def repeat(event: Event, count: int) -> Event:
    """`event`, `count` times, in its shortest form."""
    return event if count == 1 else Repeated(event, count)


def sequence(events: Iterable[Event]) -> Event:
    """The events one after the other, in their shortest form: free ones dropped, a single one bare."""
    kept = tuple(event for event in events if event != NoEvent())
    return kept[0] if len(kept) == 1 else Sequence(kept) if kept else NoEvent()


def leaf_counts(event: Event) -> tuple[dict[Event, int], tuple[tuple[Parallel, int], ...]]:
    """Flatten a tree without expanding counts.

    Args:
        event: any tree.

    Returns:
        How often each leaf occurs on every unit (sampled events are leaves, free ones are dropped), and the
        parallel nodes in order with their counts.
    """
    leaves: dict[Event, int] = {}
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
        else:
            leaves[node] = leaves.get(node, 0) + count
    return leaves, tuple(parallels)


def _check_event(event: object) -> None:
    if not isinstance(event, Event):
        raise TypeError(f"expected a privacy event such as GaussianEvent(2.0), got {event!r}.")


def _event_tuple(events: Iterable[Event]) -> tuple[Event, ...]:
    if isinstance(events, Event):
        raise TypeError(f"expected a tuple of events, got the single event {events!r}: write ({events!r},).")
    events = tuple(events)
    for event in events:
        _check_event(event)
    return events


# ---- The numbers in privacy events: checked when an event is built, short when it is printed ---------------
def check_positive(event: object, name: str, advice: str) -> None:
    """Make a field a positive, finite float, or refuse it with advice."""
    value = _as_float(event, name)
    if not (value > 0 and math.isfinite(value)):
        kind = type(event).__name__
        raise ValueError(f"{name} of {kind} must be positive and finite, got {value!r}; {advice}.")
    object.__setattr__(event, name, value)


def check_number(event: object, name: str, *, low: float, high: float, advice: str) -> None:
    """Make a field a float of at least `low` and below `high`, or refuse it with advice."""
    value = _as_float(event, name)
    if not low <= value < high:
        kind = type(event).__name__
        raise ValueError(
            f"{name} of {kind} must be at least {low:g} and below {high:g}, got {value!r}: {advice}."
        )
    object.__setattr__(event, name, value)


def checked_count(value: Any, name: str, *, least: int) -> int:
    """A whole number of at least `least`, or a refusal."""
    try:
        count = operator.index(value)
    except TypeError:
        raise TypeError(f"{name} must be a whole number, got {value!r}.") from None
    if count < least:
        raise ValueError(f"{name} must be at least {least}, got {count}.")
    return count


def _as_float(event: object, name: str) -> float:
    value = getattr(event, name)
    try:
        return float(value)
    except (TypeError, ValueError):
        raise TypeError(f"{name} of {type(event).__name__} must be a number, got {value!r}.") from None


def short(value: float) -> str:
    """A number for a sentence."""
    return f"{value:.3g}"


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
    name = values.get("event")
    try:
        if name == "SampledEvent":
            return SampledEvent(_sampling_from_dict(values["sampling"]), event_from_dict(values["of"]))
        if name == "Repeated":
            return Repeated(event_from_dict(values["of"]), values["count"])
        if name == "Sequence":
            return Sequence(tuple(event_from_dict(child) for child in values["of"]))
        if name == "Parallel":
            return Parallel(tuple(event_from_dict(child) for child in values["of"]))
        if name in _LEAVES:
            return _LEAVES[name](**{key: value for key, value in values.items() if key != "event"})
    except (KeyError, TypeError) as error:
        raise ValueError(f"{name} is not described completely by {dict(values)!r}: {error}.") from error
    known = ", ".join([*_LEAVES, "SampledEvent", "Repeated", "Sequence", "Parallel"])
    raise ValueError(f"event must be one of {known}; got {name!r}.")


_LEAVES: dict[str, type[Event]] = {
    leaf.__name__: leaf
    for leaf in (
        GaussianEvent,
        LaplaceEvent,
        BoundedRangeEvent,
        PureEvent,
        ZCDPEvent,
        SelectionsEvent,
        ShiftedGaussianEvent,
        MixtureEvent,
        TestedSampleEvent,
        DeltaEvent,
        RoundingEvent,
        NoEvent,
        NonPrivateEvent,
    )
}


def _sampling_from_dict(values: Mapping[str, Any]) -> FixedSize | Poisson:
    if values.get("kind") == "poisson":
        return Poisson(values["rate"])
    if values.get("kind") == "fixed-size":
        return FixedSize(values["batch"], values["n"])
    raise ValueError(f"sampling kind must be 'poisson' or 'fixed-size', got {values.get('kind')!r}.")
