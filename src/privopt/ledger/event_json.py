"""Events from JSON: what `Event.to_dict` wrote becomes the event again."""

from collections.abc import Mapping
from typing import Any

from privopt.ledger.events import (
    BoundedRangeEvent,
    DeltaEvent,
    Event,
    GaussianEvent,
    LaplaceEvent,
    MixtureEvent,
    NoEvent,
    NonPrivateEvent,
    Parallel,
    PureEvent,
    Repeated,
    RoundingEvent,
    SampledEvent,
    SelectionsEvent,
    Sequence,
    ShiftedGaussianEvent,
    TestedSampleEvent,
    ZCDPEvent,
)
from privopt.ledger.sampling import FixedSize, Poisson


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
