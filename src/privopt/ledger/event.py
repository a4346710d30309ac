"""What every privacy event has: a range for each of its numbers, its words, its JSON; and every leaf its curves."""

import functools
import math
import typing
from abc import ABC
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from typing import Annotated, Any, ClassVar, NamedTuple, TypeVar, dataclass_transform

from privopt.ledger.privacy_losses import ShiftedCurve
from privopt.public import Relation

_Kind = TypeVar("_Kind", bound="type[Event]")
KINDS: "dict[str, type[Event]]" = {}


class Number(NamedTuple):
    """The range of a float, as the second half of its `Annotated` type: positive, or at least 0 and below `below`.

    Attributes:
        advice: for whoever gives another number.
        below: what a number that may be 0 stays under; None for one that may not.
        most: the largest of all.
    """

    advice: str
    below: float | None = None
    most: float = math.inf

    def checked(self, value: Any, name: str, kind: str) -> float:
        """The float, or a refusal with advice."""
        try:
            value = float(value)
        except (TypeError, ValueError):
            raise TypeError(f"{name} of {kind} must be a number, got {value!r}.") from None
        if self.below is None and not (value > 0 and math.isfinite(value)):
            raise ValueError(f"{name} of {kind} must be positive and finite, got {value!r}; {self.advice}.")
        if self.below is not None and not 0.0 <= value < self.below:
            allowed = f"at least 0 and below {self.below:g}"
            raise ValueError(f"{name} of {kind} must be {allowed}, got {value!r}: {self.advice}.")
        if value > self.most:
            allowed = f"at most {self.most:g}"
            raise ValueError(f"{name} of {kind} must be {allowed}, got {value!r}: it is a probability.")
        return value


Noise = Annotated[float, Number("for no noise use NonPrivateEvent()")]
Spent = Annotated[float, Number("a release that cannot depend on data is NoEvent()")]


@functools.cache
def _ranges(kind: "type[Event]") -> dict[str, Number]:
    hints = typing.get_type_hints(kind, include_extras=True)
    return {name: hint.__metadata__[0] for name, hint in hints.items() if hasattr(hint, "__metadata__")}


@dataclass_transform(frozen_default=True)
def event(words: str = "") -> Callable[[_Kind], _Kind]:
    """A class is a kind of event: frozen, its numbers within their ranges, and known to `event_from_dict`.

    Args:
        words: its description, in which {field:.3g} is the number in a field.
    """

    def declare(kind: _Kind) -> _Kind:
        if kind.__name__ in KINDS:
            raise TypeError(f"there is a kind of event named {kind.__name__} already.")
        KINDS[kind.__name__] = kind
        kind.words = words
        return dataclass(frozen=True)(kind)

    return declare


class Event(ABC):
    """What one release, or a tree of releases, costs."""

    words: ClassVar[str]

    def __post_init__(self) -> None:
        for name, number in _ranges(type(self)).items():
            object.__setattr__(self, name, number.checked(getattr(self, name), name, type(self).__name__))

    def describe(self) -> str:
        """A phrase for reports, such as "Gaussian noise, 37.2 times the sensitivity"."""
        return self.words.format_map(vars(self))

    def to_dict(self) -> dict[str, Any]:
        """A dictionary of JSON values from which `event_from_dict` rebuilds the event."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}  # type: ignore[arg-type]
        if "event" in values:
            values["of"] = values.pop("event").to_dict()
        elif "events" in values:
            values["of"] = [event.to_dict() for event in values.pop("events")]
        return {"event": type(self).__name__, **values}


def checked_event(value: object) -> Event:
    """An event, or a refusal."""
    if not isinstance(value, Event):
        raise TypeError(f"expected a privacy event such as GaussianEvent(2.0), got {value!r}.")
    return value


def checked_events(values: Iterable[Event]) -> tuple[Event, ...]:
    """A tuple of events, or a refusal."""
    if isinstance(values, Event):
        raise TypeError(f"expected a tuple of events, got the single event {values!r}: write ({values!r},).")
    return tuple(checked_event(value) for value in values)


class Known:
    """What is known of a leaf, by a formula in its numbers; None where nothing is."""

    def __init__(self, formula: Callable[[Any], float | None]) -> None:
        self._formula = formula

    def __get__(self, leaf: "Leaf", kind: object = None) -> float | None:
        known = self._formula(leaf)
        if known is not None and not known >= 0:
            raise ValueError(f"what is known of {leaf!r} must be at least 0, got {known!r}.")
        return known


class Leaf(Event):
    """What an accountant prices as a whole: it says what is known of its privacy.

    Attributes:
        variance: z^2 where Gaussian differential privacy is exact: n releases have mu^2 = n / z^2; infinity: free.
        pure: epsilon of pure differential privacy.
        zcdp: rho of zero-concentrated differential privacy; where pure epsilon is known, epsilon^2 / 2 at most.
        bad_event: the probability of a bad event.
        rounding: the total variation distance to what is priced.
        approximate_rho: about its zCDP, be it no bound: where the search for a noise multiplier begins.
        merged_from: how many of a kind cost less as one zCDP bound than one by one in a privacy-loss distribution.

    Source:
        Bun, Steinke 2016: rho is 1 / (2 z^2) of Gaussian noise and epsilon^2 / 2 of a pure mechanism.
    """

    variance = Known(lambda self: None)
    pure = Known(lambda self: None)
    zcdp = Known(lambda self: None if self.pure is None else self.pure**2 / 2)
    bad_event = Known(lambda self: None)
    rounding = Known(lambda self: None)
    approximate_rho = Known(lambda self: self.zcdp)
    merged_from: ClassVar[float] = math.inf

    @property
    def shifted(self) -> ShiftedCurve | None:
        """The curve of an objective perturbation."""
        return None

    def law(self, relation: Relation) -> tuple[Any, ...] | None:
        """The name and the numbers of what an accountant makes a privacy-loss distribution or Renyi curve of.

        Args:
            relation: the neighbouring relation that it is priced under.
        """
        return None if self.pure is None else ("pure", self.pure)


class Free(Leaf):
    """What costs delta alone, if anything."""

    variance = Known(lambda self: math.inf)
    pure = Known(lambda self: 0.0)
