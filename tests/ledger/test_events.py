"""Events are values: checked when they are built, equal when they say the same, and JSON keeps them."""

import json
import math

import hypothesis.strategies as st
import pytest
from hypothesis import given

from privopt.errors import NotPriceable
from privopt.ledger.accounting import epsilon
from privopt.ledger.event import KINDS, Free, Known, Leaf, Spent, event
from privopt.ledger.events import (
    BoundedRangeEvent,
    DeltaEvent,
    Event,
    EveryUnit,
    FixedSize,
    GaussianEvent,
    LaplaceEvent,
    MixtureEvent,
    NoEvent,
    NonPrivateEvent,
    Parallel,
    Poisson,
    PureEvent,
    Repeated,
    RoundingEvent,
    SampledEvent,
    SelectionsEvent,
    Sequence,
    ShiftedGaussianEvent,
    TestedSampleEvent,
    ZCDPEvent,
    event_from_dict,
    leaf_counts,
    repeat,
    sequence,
)
from privopt.ledger.filters import filter_cost

POSITIVE = st.floats(1e-6, 1e6)
LEAVES = st.one_of(
    st.builds(GaussianEvent, POSITIVE),
    st.builds(LaplaceEvent, POSITIVE),
    st.builds(BoundedRangeEvent, POSITIVE),
    st.builds(PureEvent, POSITIVE),
    st.builds(ZCDPEvent, POSITIVE),
    st.builds(SelectionsEvent, POSITIVE, POSITIVE),
    st.builds(ShiftedGaussianEvent, POSITIVE, st.floats(0, 3), st.booleans()),
    st.builds(MixtureEvent, POSITIVE, st.floats(1e-6, 1), st.floats(0, 100)),
    st.builds(TestedSampleEvent, st.floats(1e-6, 1), POSITIVE, st.integers(1, 99), POSITIVE, POSITIVE),
    st.builds(DeltaEvent, st.floats(0, 0.5)),
    st.builds(RoundingEvent, st.floats(0, 0.5)),
    st.just(NoEvent()),
    st.just(NonPrivateEvent()),
    st.builds(SampledEvent, st.just(Poisson(0.25)), st.builds(GaussianEvent, POSITIVE)),
    st.builds(SampledEvent, st.just(FixedSize(3, 12)), st.builds(GaussianEvent, POSITIVE)),
)
TREES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.builds(Repeated, inner, st.integers(0, 1000)),
        st.builds(Sequence, st.lists(inner, max_size=3).map(tuple)),
        st.builds(Parallel, st.lists(inner, min_size=1, max_size=3).map(tuple)),
    ),
    max_leaves=6,
)


@given(TREES)
def test_an_event_survives_json_and_prints_as_words(event: Event) -> None:
    again = event_from_dict(json.loads(json.dumps(event.to_dict())))
    assert again == event
    assert hash(again) == hash(event)
    assert event.describe()


def test_a_description_names_the_noise_the_sampler_and_the_count() -> None:
    event = Repeated(SampledEvent(Poisson(0.01), GaussianEvent(37.2)), 100)
    assert event.describe() == (
        "100 times: Gaussian noise, 37.2 times the sensitivity, on a Poisson sample of 1 % of the units"
    )


@pytest.mark.parametrize(
    "build",
    [
        GaussianEvent,
        LaplaceEvent,
        BoundedRangeEvent,
        PureEvent,
        ZCDPEvent,
        lambda v: SelectionsEvent(v, 1.0),
        lambda v: SelectionsEvent(1.0, v),
        lambda v: ShiftedGaussianEvent(v, 0),
        lambda v: MixtureEvent(v, 0.1, 1.0),
        lambda v: MixtureEvent(1.0, v, 1.0),
        lambda v: TestedSampleEvent(v, 1.0, 1, 1.0, 1.0),
        lambda v: TestedSampleEvent(0.1, v, 1, 1.0, 1.0),
        lambda v: TestedSampleEvent(0.1, 1.0, 1, v, 1.0),
        lambda v: TestedSampleEvent(0.1, 1.0, 1, 1.0, v),
    ],
)
@pytest.mark.parametrize("value", [0.0, -1.0, math.inf, math.nan])
def test_a_cost_must_be_positive_and_finite(build: type, value: float) -> None:
    with pytest.raises(ValueError, match="must be positive and finite, got"):
        build(value)


def test_wrong_pieces_are_refused_with_advice() -> None:
    with pytest.raises(TypeError, match="noise_multiplier of GaussianEvent must be a number"):
        GaussianEvent("loud")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="count must be at least 0, got -1"):
        Repeated(NoEvent(), -1)
    with pytest.raises(TypeError, match="count must be a whole number"):
        Repeated(NoEvent(), 1.5)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="expected a privacy event"):
        Repeated(3.0, 1)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="expected a tuple of events"):
        Sequence(NoEvent())  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="at least one branch"):
        Parallel(())
    with pytest.raises(ValueError, match="sampling must be Poisson"):
        SampledEvent(EveryUnit(), GaussianEvent(1.0))
    with pytest.raises(ValueError, match="shift of ShiftedGaussianEvent must be at least 0"):
        ShiftedGaussianEvent(1.0, -0.1)
    with pytest.raises(ValueError, match="two_signed must be True or False, got 'both'"):
        ShiftedGaussianEvent(1.0, 0.1, two_signed="both")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="rate of MixtureEvent must be at most 1"):
        MixtureEvent(1.0, 1.5, 1.0)
    with pytest.raises(ValueError, match="rate of TestedSampleEvent must be at most 1"):
        TestedSampleEvent(1.5, 1.0, 1, 1.0, 1.0)
    with pytest.raises(ValueError, match="tests must be at least 1, got 0"):
        TestedSampleEvent(0.5, 1.0, 0, 1.0, 1.0)
    with pytest.raises(ValueError, match="sampled_ratio of MixtureEvent must be at least 0"):
        MixtureEvent(1.0, 0.5, -1.0)
    with pytest.raises(ValueError, match="delta of DeltaEvent must be at least 0 and below 1"):
        DeltaEvent(1.0)
    with pytest.raises(ValueError, match="total_variation of RoundingEvent must be at least 0 and below 1"):
        RoundingEvent(-1e-12)
    with pytest.raises(ValueError, match="event must be one of GaussianEvent"):
        event_from_dict({"event": "ShuffledEvent"})
    with pytest.raises(ValueError, match="not described completely"):
        event_from_dict({"event": "GaussianEvent"})
    with pytest.raises(ValueError, match="sampling kind must be"):
        event_from_dict(
            {"event": "SampledEvent", "sampling": {"kind": "shuffled"}, "of": {"event": "NoEvent"}}
        )


def test_a_new_kind_is_one_class_that_is_checked_kept_and_priced() -> None:
    @event("a coin that lies, epsilon {epsilon:.3g}")
    class CoinEvent(Leaf):
        epsilon: Spent
        pure = Known(lambda self: self.epsilon)

    try:
        coin = CoinEvent(0.25)
        assert coin.describe() == "a coin that lies, epsilon 0.25"
        assert event_from_dict(json.loads(json.dumps(coin.to_dict()))) == coin
        with pytest.raises(ValueError, match="epsilon of CoinEvent must be positive and finite"):
            CoinEvent(0)
        for delta in (0.0, 1e-6):
            known = epsilon(Repeated(PureEvent(0.25), 40), delta, "replace-one")
            assert epsilon(Repeated(coin, 40), delta, "replace-one") == known
    finally:
        del KINDS["CoinEvent"]


def test_what_is_no_declared_kind_of_event_has_no_price() -> None:
    class Odd(Event):
        words = "nobody knows"

    class Cheap(GaussianEvent):
        variance = Known(lambda self: math.inf)
        zcdp = Known(lambda self: 0.0)

    for undeclared in (Odd(), Cheap(0.1), Free()):
        with pytest.raises(NotPriceable, match="is no declared kind of event"):
            leaf_counts(undeclared)
        with pytest.raises(NotPriceable, match="is no declared kind of event"):
            epsilon(Sequence((undeclared,)), 1e-6, "replace-one")


def test_the_name_of_a_kind_is_taken_once() -> None:
    with pytest.raises(TypeError, match="a kind of event named GaussianEvent already"):
        event("free")(type("GaussianEvent", (Free,), {}))
    assert KINDS["GaussianEvent"] is GaussianEvent


@pytest.mark.parametrize("value", [math.nan, -5.0])
def test_what_a_kind_says_of_itself_is_a_price(value: float) -> None:
    @event("a mistake")
    class Mistaken(Leaf):
        zcdp = Known(lambda self: value)

    try:
        with pytest.raises(ValueError, match="must be at least 0"):
            filter_cost("zcdp", Mistaken(), 1.0)
    finally:
        del KINDS["Mistaken"]


def test_a_sequence_in_json_has_its_parts_under_one_name() -> None:
    with pytest.raises(ValueError, match="not described completely"):
        event_from_dict({"event": "Sequence", "events": []})


def test_leaves_are_counted_without_expanding_anything() -> None:
    block = Parallel((GaussianEvent(1.0), NoEvent()))
    tree = Repeated(Sequence((GaussianEvent(2.0), Repeated(GaussianEvent(2.0), 4), block, NoEvent())), 10**12)
    leaves, parallels = leaf_counts(tree)
    assert leaves == {GaussianEvent(2.0): 5 * 10**12}
    assert parallels == ((block, 10**12),)


def test_short_forms_are_short() -> None:
    assert repeat(GaussianEvent(1.0), 1) == GaussianEvent(1.0)
    assert sequence([NoEvent(), GaussianEvent(1.0)]) == GaussianEvent(1.0)
    assert sequence([]) == NoEvent()
