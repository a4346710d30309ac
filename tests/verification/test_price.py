"""The second accountant against the ledger's, which shares no line with it."""

import json
import math

import pytest

from privopt.ledger import accounting
from privopt.ledger.events import (
    BoundedRangeEvent,
    DeltaEvent,
    FixedSize,
    GaussianEvent,
    LaplaceEvent,
    MixtureEvent,
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
)
from privopt.public import Relation
from privopt.untrusted import parse_json
from privopt.verification.checks import Outcome, priced
from privopt.verification.price import ADD_OR_REMOVE, REPLACE, NotChecked, price, vouched_epsilon
from privopt.verification.tree import Fields, Malformed

SAMPLED = SampledEvent(Poisson(0.02), GaussianEvent(1.1))
# How much of epsilon the two accountants may differ by: the exact ones by rounding, the others by their grids.
EXACT, GRID = 1e-9, 5e-3
EVENTS = {
    "Gaussian": (Repeated(GaussianEvent(5.0), 10), REPLACE, 1e-6, EXACT),
    "much noise": (Repeated(GaussianEvent(1e5), 10), REPLACE, 1e-6, EXACT),
    "little delta": (Repeated(GaussianEvent(3.0), 7), ADD_OR_REMOVE, 1e-30, EXACT),
    "bad events": (Sequence((GaussianEvent(3.0), DeltaEvent(1e-7))), REPLACE, 1e-6, EXACT),
    "rounding": (Sequence((GaussianEvent(3.0), RoundingEvent(1e-9))), REPLACE, 1e-6, 1e-6),
    "zCDP": (Sequence((ZCDPEvent(0.02), SelectionsEvent(0.05, 30.0))), REPLACE, 1e-6, GRID),
    "pure": (Repeated(PureEvent(0.1), 3), REPLACE, 0.0, EXACT),
    "Laplace and pure": (
        Sequence((Repeated(GaussianEvent(30.0), 10), PureEvent(0.1), LaplaceEvent(7.0))),
        REPLACE,
        1e-6,
        GRID,
    ),
    "selections": (Repeated(BoundedRangeEvent(0.07), 40), REPLACE, 1e-6, GRID),
    "Gaussian and selections": (
        Sequence((GaussianEvent(18.9), Repeated(BoundedRangeEvent(0.07), 40))),
        REPLACE,
        1e-6,
        GRID,
    ),
    "Poisson": (Repeated(SAMPLED, 600), ADD_OR_REMOVE, 1e-6, GRID),
    "Poisson, replaced": (Repeated(SAMPLED, 600), REPLACE, 1e-6, GRID),
    "Poisson and a selection": (
        Sequence((Repeated(SAMPLED, 600), BoundedRangeEvent(0.1))),
        ADD_OR_REMOVE,
        1e-6,
        GRID,
    ),
    "mixture": (Repeated(MixtureEvent(30.0, 0.1, 3.0), 100), ADD_OR_REMOVE, 1e-6, GRID),
    "objective perturbation": (ShiftedGaussianEvent(0.2, 0.3), REPLACE, 1e-6, GRID),
    "folded": (
        Sequence((ShiftedGaussianEvent(0.2, 0.3, True), GaussianEvent(10.0))),
        REPLACE,
        1e-6,
        GRID,
    ),
    "tested": (
        Sequence((TestedSampleEvent(0.02, 2.0, 10, 0.1, 0.1), DeltaEvent(1e-7))),
        ADD_OR_REMOVE,
        1e-6,
        GRID,
    ),
    "blocks": (
        Parallel((GaussianEvent(3.0), SampledEvent(Poisson(0.1), GaussianEvent(1.0)))),
        ADD_OR_REMOVE,
        1e-5,
        GRID,
    ),
}


def recorded(event):
    return Fields(parse_json(json.dumps(event.to_dict()).encode(), "event"), "event")


@pytest.mark.later("Poisson", "Poisson and a selection", "mixture", "tested")
@pytest.mark.parametrize("name", EVENTS)
def test_both_accountants_say_the_same(name):
    """What the ledger claims holds; a claim that is a little bolder does not."""
    event, relation, delta, slack = EVENTS[name]
    claimed = accounting.epsilon(event, delta, relation)
    assert price(recorded(event), relation, claimed * (1 + slack), delta).delta <= delta * (1 + 1e-6)
    bold = claimed * (1 - 4 * slack)
    assert price(recorded(event), relation, bold, delta).delta > delta * (1 + 1e-9)


def test_a_sample_of_fixed_size_costs_less_than_its_renyi_price():
    event = Repeated(SampledEvent(FixedSize(20, 1000), GaussianEvent(1.1)), 600)
    claimed = accounting.epsilon(event, 1e-6, REPLACE)
    assert price(recorded(event), REPLACE, claimed, 1e-6).delta <= 1e-6
    # Everybody in every batch is a Gaussian with the exact curve, and so is nearly everybody.
    nearly = Repeated(SampledEvent(FixedSize(999_999, 1_000_000), GaussianEvent(20.0)), 5)
    everybody = accounting.epsilon(Repeated(GaussianEvent(20.0), 5), 1e-6, REPLACE)
    assert price(recorded(nearly), REPLACE, everybody * (1 + GRID), 1e-6).delta <= 1e-6
    assert price(recorded(nearly), REPLACE, everybody * (1 - 4 * GRID), 1e-6).delta > 1e-6


def test_an_epsilon_is_found_where_the_claim_is_too_bold():
    event = Repeated(SAMPLED, 600)
    claimed = accounting.epsilon(event, 1e-6, ADD_OR_REMOVE)
    found = vouched_epsilon(recorded(event), ADD_OR_REMOVE, claimed / 3, 1e-6)
    assert claimed * (1 - GRID) <= found <= 1.02 * claimed


def test_a_release_without_noise_has_no_price():
    assert price(recorded(NonPrivateEvent()), REPLACE, 5.0, 1e-6).delta == 1.0
    assert math.isinf(vouched_epsilon(recorded(NonPrivateEvent()), REPLACE, 5.0, 1e-6))


@pytest.mark.parametrize(
    ("event", "relation"),
    [
        (SampledEvent(Poisson(0.1), PureEvent(1.0)), ADD_OR_REMOVE),
        (SampledEvent(Poisson(0.1), Repeated(GaussianEvent(2.0), 2)), REPLACE),
        (SampledEvent(FixedSize(2, 10), GaussianEvent(2.0)), ADD_OR_REMOVE),
        (MixtureEvent(30.0, 0.1, 3.0), REPLACE),
        (SampledEvent(Poisson(0.5), GaussianEvent(1e-8)), ADD_OR_REMOVE),
    ],
)
def test_what_has_no_independent_price_is_said_so(event, relation):
    with pytest.raises(NotChecked, match=r"no independent price|reveals too much|finer grid"):
        price(recorded(event), relation, 1.0, 1e-6)


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"event": 3},
        {"event": "GaussianEvent"},
        {"event": "GaussianEvent", "noise_multiplier": -1.0},
        {"event": "GaussianEvent", "noise_multiplier": 0},
        {"event": "GaussianEvent", "noise_multiplier": "infinity"},
        {"event": "GaussianEvent", "noise_multiplier": True},
        {"event": "GaussianEvent", "noise_multiplier": 1.0, "epsilon": 1.0},
        {"event": "Unheard", "epsilon": 1.0},
        {"event": "Repeated", "count": -1, "of": {"event": "NoEvent"}},
        {"event": "Repeated", "count": 1.5, "of": {"event": "NoEvent"}},
        {"event": "Repeated", "count": 10**30, "of": {"event": "NoEvent"}},
        {"event": "Sequence", "of": {"event": "NoEvent"}},
        {"event": "Sequence", "of": [3]},
        {"event": "Parallel", "of": []},
        {"event": "SampledEvent", "sampling": {"kind": "shuffle"}, "of": {"event": "NoEvent"}},
        {"event": "SampledEvent", "sampling": {"kind": "poisson", "rate": 2}, "of": {"event": "NoEvent"}},
    ],
)
def test_what_describes_no_event_is_refused(values):
    with pytest.raises(Malformed, match="event"):
        price(Fields(values, "event"), REPLACE, 1.0, 1e-6)


@pytest.mark.later("1.0-1000.0")
@pytest.mark.parametrize(
    "size", [*(pytest.param(size, marks=pytest.mark.audit) for size in (1e-300, 1e150)), 1e3, 1e300]
)
@pytest.mark.parametrize("epsilon", [1e-300, 1.0, 1e300])
def test_numbers_of_any_size_have_a_price_or_none_but_always_an_end(size, epsilon):
    leaves = [
        GaussianEvent(size),
        LaplaceEvent(size),
        BoundedRangeEvent(size),
        ZCDPEvent(size),
        ShiftedGaussianEvent(size, 0.1),
        ShiftedGaussianEvent(0.1, size, True),
        SampledEvent(Poisson(0.1), GaussianEvent(size)),
        SampledEvent(Poisson(min(size, 1.0)), GaussianEvent(1.0)),
        MixtureEvent(size, 0.1, 1.0),
        MixtureEvent(10.0, 0.1, size),
        TestedSampleEvent(0.1, size, 3, size, size),
    ]
    for leaf in leaves:
        for event in (leaf, Repeated(leaf, 10**9)):
            try:
                found = price(recorded(event), ADD_OR_REMOVE, epsilon, 1e-6)
            except NotChecked:
                continue
            assert 0 <= found.delta <= 1


def test_many_blocks_are_read_in_a_moment():
    blocks = [{"event": "GaussianEvent", "noise_multiplier": 1.0 + k / 1e5} for k in range(5_000)]
    values = {"event": "Parallel", "of": blocks}
    assert (
        price(Fields(values, "event"), REPLACE, 5.0, 1e-6).delta
        == price(Fields(blocks[0], "event"), REPLACE, 5.0, 1e-6).delta
    )


def test_repeats_within_repeats_have_a_limit():
    values = {"event": "GaussianEvent", "noise_multiplier": 1.0}
    for _ in range(3):
        values = {"event": "Repeated", "count": 10**9, "of": values}
    with pytest.raises(Malformed, match="more than 1,000,000,000,000 times"):
        price(Fields(values, "event"), REPLACE, 1.0, 1e-6)


@pytest.mark.parametrize("delta", [1e-3, 0.05, 0.15])
def test_large_deltas_of_a_true_curve_are_confirmed(delta):
    event = Sequence((LaplaceEvent(3.0), GaussianEvent(2.0)))
    epsilon = accounting.epsilon(event, delta, Relation.REPLACE_ONE)
    assert priced("curve", recorded(event), REPLACE, epsilon, delta).outcome is Outcome.HOLDS
