"""Accounting: pinned numbers, the table of samplers, and the promises of every accountant over every event."""

import itertools
import json
import math

import dp_accounting
import pytest
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant

from privopt.errors import NotPriceable
from privopt.ledger.accounting import delta, epsilon, is_closed_form, zcdp_rho
from privopt.ledger.amounts import Budget
from privopt.ledger.calibration import calibrate
from privopt.ledger.curves import gaussian_delta, gaussian_epsilon, gaussian_mu
from privopt.ledger.events import (
    BoundedRangeEvent,
    DeltaEvent,
    Event,
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
    ZCDPEvent,
    event_from_dict,
    repeat,
)
from privopt.ledger.ledger import Ledger
from privopt.public import Relation

ADD, REPLACE = Relation.ADD_OR_REMOVE_ONE, Relation.REPLACE_ONE
POISSON = SampledEvent(Poisson(0.05), GaussianEvent(1.0))
FIXED = SampledEvent(FixedSize(50, 1000), GaussianEvent(1.5))
# Every kind of event with every relation under which it has a price.
PRICED = [
    *((event, relation) for relation in Relation for event in (
        GaussianEvent(4.0), LaplaceEvent(6.0), BoundedRangeEvent(0.3), PureEvent(0.2), ZCDPEvent(0.01),
        SelectionsEvent(0.01, 0.9), Sequence((SelectionsEvent(0.01, 0.9), RoundingEvent(1e-10))),
        Sequence((GaussianEvent(4.0), RoundingEvent(1e-10))),
        Sequence((LaplaceEvent(6.0), RoundingEvent(1e-11), DeltaEvent(1e-9))),
        ShiftedGaussianEvent(0.2, 0.05), ShiftedGaussianEvent(0.2, 0.05, two_signed=True),
        Sequence((GaussianEvent(4.0), ShiftedGaussianEvent(0.2, 0.05))),
        Sequence((GaussianEvent(4.0), BoundedRangeEvent(0.3))),
        Parallel((GaussianEvent(4.0), LaplaceEvent(6.0))), POISSON,
    )),
    (FIXED, REPLACE), (MixtureEvent(40.0, 0.1, 5.0), ADD),
]  # fmt: skip


def test_the_two_accountants_of_the_library_read_the_same_event_differently() -> None:
    event = dp_accounting.GaussianDpEvent(2.0)
    relation = dp_accounting.NeighboringRelation.REPLACE_ONE
    pld, renyi = PLDAccountant(relation), RdpAccountant(neighboring_relation=relation)
    assert pld.compose(event).get_epsilon(1e-5) == pytest.approx(4.3772, abs=1e-4)
    assert renyi.compose(event).get_epsilon(1e-5) == pytest.approx(2.1657, abs=1e-4)
    # sigma = 2, C = 1: under replace-one the sensitivity is 2, so our noise multiplier is 1.
    assert epsilon(GaussianEvent(1.0), 1e-5, REPLACE) == pytest.approx(4.3772, abs=1e-4)
    assert epsilon(GaussianEvent(2.0), 1e-5, ADD, accountant="renyi") == pytest.approx(2.1657, abs=1e-4)


def test_the_user_level_reference_values_hold() -> None:  # user-level reference R1, R9; z there is sigma / C
    sampled = {ADD: 1.0, REPLACE: 0.5}
    plain = {ADD: 5.0, REPLACE: 2.5}
    expected = {ADD: (5.48586, 2.92160), REPLACE: (7.95711, 6.39928)}
    for relation in Relation:
        event = SampledEvent(Poisson(0.05), GaussianEvent(sampled[relation]))
        found = epsilon(Repeated(event, 200), 1e-6, relation)
        assert found == pytest.approx(expected[relation][0], rel=1e-4)
        found = epsilon(Repeated(GaussianEvent(plain[relation]), 10), 1e-6, relation)
        assert found == pytest.approx(expected[relation][1], abs=1e-5)
    pure_and_gaussian = Sequence((PureEvent(0.2), GaussianEvent(5.0)))
    assert delta(pure_and_gaussian, 1, ADD) == pytest.approx(1.1668925316158962e-06, rel=1e-6)


def test_a_grid_in_proportion_to_a_large_epsilon_overstates_by_a_few_millionths() -> None:
    event = Sequence((BoundedRangeEvent(5.0), GaussianEvent(0.105)))
    coarse, fine = (epsilon(event, 1e-7, REPLACE, near=near, accountant="pld") for near in (100.0, 10.0))
    assert 90 < fine <= coarse <= fine * (1 + 2e-6)


@pytest.mark.parametrize(
    ("rate", "count", "target", "relation", "sigma"),
    [(0.01, 1000, 1, ADD, 1.5698), (0.01, 1000, 1, REPLACE, 2.6919), (0.02, 600, 0.5, ADD, 4.0993)],
)
def test_sampled_noise_has_its_reference_values(
    rate: float, count: int, target: float, relation: Relation, sigma: float
) -> None:  # ERM reference RV13, sigma / C
    event = Repeated(SampledEvent(Poisson(rate), GaussianEvent(sigma / relation.factor)), count)
    assert epsilon(event, 1e-6, relation, near=target) == pytest.approx(target, rel=2e-3)


def test_variance_reduced_gradients_have_their_reference_price() -> None:  # ERM reference RV14
    growth = [3.0**epoch for epoch in range(6)]
    shares = [0.8 * part / math.fsum(growth) for part in growth]
    anchors = [1 / (gaussian_mu(1, 1e-6) * math.sqrt(share)) for share in shares]
    expected = [90.1154805, 52.0281969, 30.0384935, 17.3427323, 10.0128312, 5.7809108]
    assert anchors == pytest.approx(expected, rel=1e-7)

    def plan(multiplier: float) -> Event:
        steps = Repeated(SampledEvent(Poisson(0.02), GaussianEvent(multiplier)), 600)
        return Sequence((*(GaussianEvent(z) for z in anchors), steps))

    assert epsilon(plan(4.8009), 1e-6, ADD, near=1) == pytest.approx(1, rel=2e-3)
    assert calibrate(plan, Budget(1, 1e-6), ADD) == pytest.approx(4.8009, rel=2e-3)


def test_the_mixed_query_has_its_reference_noise() -> None:  # ERM reference RV15, in units of C / n
    def mixed(multiplier: float) -> Event:
        return Repeated(MixtureEvent(multiplier, 0.01, 25.0), 600)

    found = calibrate(mixed, Budget(1, 1e-6), ADD)
    assert found == pytest.approx(130.310, rel=2e-3)
    everybody = math.sqrt(600 / 0.8) / gaussian_mu(1, 1e-6)

    def split(multiplier: float) -> Event:
        sampled = SampledEvent(Poisson(0.01), GaussianEvent(multiplier))
        return Repeated(Sequence((GaussianEvent(everybody), sampled)), 600)

    total = math.hypot(everybody, 25 * calibrate(split, Budget(1, 1e-6), ADD))
    assert total == pytest.approx(131.41, rel=2e-3)
    for name in ("pld", "renyi"):
        assert epsilon(mixed(found), 1e-6, ADD, accountant=name) <= {"pld": 1, "renyi": 1.1}[name]


def test_a_mixture_without_a_jump_or_without_chance_is_a_gaussian() -> None:
    assert epsilon(MixtureEvent(3.0, 0.4, 0.0), 1e-6, ADD) == pytest.approx(
        gaussian_epsilon(1 / 3, 1e-6), rel=1e-4
    )
    assert epsilon(MixtureEvent(3.0, 1.0, 0.5), 1e-6, ADD) == pytest.approx(
        gaussian_epsilon(0.5, 1e-6), rel=1e-4
    )


def test_objective_perturbation_composes_with_a_gaussian() -> None:  # ERM reference 3.9 (4)
    plan = Sequence((GaussianEvent(1 / 0.0746789), ShiftedGaussianEvent(0.22401, 0.0025)))
    for name in ("direct", "pld", "best"):
        assert epsilon(plan, 1e-6, REPLACE, near=1, accountant=name) == pytest.approx(1, rel=3e-4)
    together = math.hypot(0.0746789, 0.22401)
    for at in (1e-3, 1e-6, 2.5e-11, 1e-40):
        assert epsilon(plan, at, REPLACE) == pytest.approx(0.0025 + gaussian_epsilon(together, at), rel=1e-4)
    alone = ShiftedGaussianEvent(0.22401, 0.0025)
    assert epsilon(alone, 1e-6, REPLACE) == 0.0025 + gaussian_epsilon(0.22401, 1e-6)
    assert delta(alone, 1, REPLACE) == gaussian_delta(0.22401, 1 - 0.0025)
    assert delta(alone, 0.001, REPLACE) == pytest.approx(gaussian_delta(0.22401, 0), rel=0.02)


@pytest.mark.parametrize("relation", Relation)
def test_a_price_is_recomputed_from_what_was_recorded(relation: Relation) -> None:
    plan = Sequence(
        (
            GaussianEvent(9.0),
            ShiftedGaussianEvent(0.1, 0.01, two_signed=True),
            Repeated(SampledEvent(Poisson(0.01), GaussianEvent(1.5)), 200),
        )
    )
    ledger = Ledger(Budget(2.0, 1e-6), relation, plan=plan)
    for event in plan.events:
        ledger.charge("release", event)
    recorded = json.loads(json.dumps(ledger.to_dict()))["entries"]
    again = Sequence(
        tuple(repeat(event_from_dict(entry["event"]), entry.get("count", 1)) for entry in recorded)
    )
    assert epsilon(again, 1e-6, relation, near=2) == ledger.epsilon() < 2


@pytest.mark.later("Relation.ADD_OR_REMOVE_ONE")
@pytest.mark.parametrize("relation", Relation)
def test_a_price_is_monotone_in_its_other_argument(relation: Relation) -> None:
    plans = (
        Repeated(SampledEvent(Poisson(0.05), GaussianEvent(3.0)), 50),
        Sequence((GaussianEvent(4.0), ShiftedGaussianEvent(0.2, 0.05, two_signed=True))),
        ShiftedGaussianEvent(0.2, 0.05, two_signed=True),
    )
    for plan in plans:
        prices = [epsilon(plan, at, relation) for at in (1e-12, 1e-11, 1e-9, 1e-6, 1e-3, 0.05)]
        assert all(later <= earlier for earlier, later in itertools.pairwise(prices))
        deltas = [delta(plan, price, relation) for price in (0.04, 0.1, 0.5, 2, 20)]
        assert all(later <= earlier for earlier, later in itertools.pairwise(deltas))


@pytest.mark.later("event31-Relation.ADD_OR_REMOVE_ONE")
@pytest.mark.parametrize(("event", "relation"), PRICED)
def test_listing_an_event_costs_what_repeating_it_costs(event: Event, relation: Relation) -> None:
    prices = [
        epsilon(plan, 1e-6, relation, near=2)
        for plan in (
            Repeated(event, 6),
            Sequence((event,) * 6),
            Sequence((event, Repeated(Repeated(event, 2), 2), NoEvent(), event)),
        )
    ]
    assert prices[0] == prices[1] == prices[2]


@pytest.mark.later(
    "event13-Relation.REPLACE_ONE",
    "event28-Relation.ADD_OR_REMOVE_ONE",
    "event29-Relation.ADD_OR_REMOVE_ONE",
    "event30-Relation.REPLACE_ONE",
    "event31-Relation.ADD_OR_REMOVE_ONE",
)
@pytest.mark.parametrize(("event", "relation"), PRICED)
def test_more_releases_cost_more(event: Event, relation: Relation) -> None:
    prices = [epsilon(Repeated(event, count), 1e-6, relation, near=2) for count in (0, 1, 2, 3, 10, 30)]
    assert prices[0] == 0
    assert all(earlier < later for earlier, later in itertools.pairwise(prices))


@pytest.mark.later(
    "event23-Relation.ADD_OR_REMOVE_ONE", "event31-Relation.ADD_OR_REMOVE_ONE", "event8-Relation.REPLACE_ONE"
)
@pytest.mark.parametrize(("event", "relation"), PRICED)
def test_epsilon_and_delta_are_two_readings_of_one_curve(event: Event, relation: Relation) -> None:
    plan = Repeated(event, 4)
    price = epsilon(plan, 1e-6, relation)
    found = delta(plan, price, relation)
    assert found <= 1e-6 * (1 + 1e-2)  # the two may use grids that differ
    if epsilon(plan, 1e-6, relation, near=price) < 0.999 * (zcdp_rho(plan) or math.inf):
        assert found >= 0.9e-6


@pytest.mark.parametrize("z", [0.5, 3.0, 40.0])
@pytest.mark.parametrize("at", [1e-3, 1e-6, 1e-9])
def test_renyi_is_above_pld_is_above_exact(z: float, at: float) -> None:
    exact, pld, renyi, zcdp = (
        epsilon(GaussianEvent(z), at, ADD, accountant=name) for name in ("exact", "pld", "renyi", "zcdp")
    )
    assert renyi >= zcdp >= pld >= exact
    assert pld == pytest.approx(exact, rel=1e-4)


@pytest.mark.parametrize(
    "event",
    [Repeated(POISSON, 50), Sequence((LaplaceEvent(6.0), GaussianEvent(3.0))), Repeated(PureEvent(0.1), 20)],
)
def test_renyi_is_above_pld(event: Event) -> None:
    assert epsilon(event, 1e-6, ADD, accountant="renyi") >= epsilon(event, 1e-6, ADD, accountant="pld")
    assert epsilon(event, 1e-6, ADD) <= epsilon(event, 1e-6, ADD, accountant="pld")


def test_a_bound_of_any_kind_composes_with_samples() -> None:
    selections = Repeated(BoundedRangeEvent(0.02), 30)
    both = epsilon(Sequence((selections, Repeated(POISSON, 50))), 1e-6, ADD)
    assert both > max(epsilon(selections, 1e-6, ADD), epsilon(Repeated(POISSON, 50), 1e-6, ADD))
    assert both < epsilon(selections, 5e-7, ADD) + epsilon(Repeated(POISSON, 50), 5e-7, ADD)
    # A PLD built from a zCDP bound says no less than the bound itself.
    alone = [epsilon(ZCDPEvent(0.01), 1e-6, ADD, accountant=name) for name in ("pld", "zcdp")]
    assert alone[0] == pytest.approx(alone[1], rel=1e-4)
    assert alone[0] >= alone[1]


def test_pure_events_need_no_delta() -> None:
    plan = Sequence((PureEvent(0.1), Repeated(BoundedRangeEvent(0.2), 3), LaplaceEvent(4.0)))
    assert epsilon(plan, 0, REPLACE) == pytest.approx(0.95)
    assert delta(plan, 0.95 + 1e-12, REPLACE) == 0
    assert epsilon(plan, 1e-6, REPLACE) <= 0.95
    assert epsilon(GaussianEvent(1.0), 0, REPLACE) == math.inf
    assert epsilon(Repeated(POISSON, 3), 0, ADD) == math.inf


def test_bad_events_are_taken_off_delta_once() -> None:
    noise = GaussianEvent(3.0)
    plan = Sequence((noise, Repeated(DeltaEvent(1e-8), 10)))
    assert epsilon(plan, 1e-6, ADD) == epsilon(noise, 1e-6 - math.fsum([1e-8] * 10), ADD)
    assert delta(plan, 1, ADD) == pytest.approx(delta(noise, 1, ADD) + 1e-7, rel=1e-12)
    blocks = Parallel((DeltaEvent(1e-7), DeltaEvent(2e-7)))
    assert epsilon(Sequence((noise, blocks)), 1e-6, ADD) == pytest.approx(
        epsilon(noise, 8e-7, ADD), rel=1e-12
    )
    with pytest.raises(NotPriceable, match="use up delta"):
        epsilon(plan, 1e-7, ADD)
    assert epsilon(Sequence((PureEvent(0.5), DeltaEvent(1e-6))), 1e-6, ADD) == 0.5


def test_selections_have_two_prices_and_the_better_one_counts() -> None:
    few, many = SelectionsEvent(0.01, 0.05), SelectionsEvent(0.01, 5.0)
    assert epsilon(few, 1e-6, REPLACE) == 0.05
    assert epsilon(many, 1e-6, REPLACE) == epsilon(ZCDPEvent(0.01), 1e-6, REPLACE)
    assert epsilon(Repeated(few, 3), 0, REPLACE) == pytest.approx(0.15)
    assert is_closed_form(many, 1e-6)
    mixed = [Sequence((one, GaussianEvent(4.0))) for one in (many, ZCDPEvent(0.01))]
    assert epsilon(mixed[0], 1e-6, REPLACE) == epsilon(mixed[1], 1e-6, REPLACE)
    assert zcdp_rho(Parallel((many, ZCDPEvent(0.02)))) == 0.02
    scale = calibrate(lambda s: SelectionsEvent(0.5 / s**2, 40 / s), Budget(1.0, 0.0), REPLACE)
    assert 0.999 < 40 / scale <= 1


# Rounding ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "noise",
    [
        GaussianEvent(4.0),
        LaplaceEvent(3.0),
        pytest.param(Repeated(POISSON, 3), marks=pytest.mark.audit),
        PureEvent(0.3),
    ],
)
def test_rounding_is_priced_at_the_epsilon_that_comes_out(noise: Event) -> None:
    eta = 3e-8
    plan = Sequence((noise, Repeated(RoundingEvent(eta / 3), 3), DeltaEvent(1e-8)))
    found = epsilon(plan, 1e-6, ADD, near=1)
    left = 1e-6 - 1e-8 - (1 + math.exp(found)) * eta
    assert found == pytest.approx(epsilon(noise, left, ADD, near=1), rel=1e-9)
    assert found >= epsilon(Sequence((noise, DeltaEvent(1e-8))), 1e-6, ADD, near=1)
    assert delta(plan, found * (1 + 1e-4), ADD) <= 1e-6 * (1 + 1e-2)


def test_rounding_at_a_large_epsilon_is_not_dearer_than_at_a_small_one() -> None:
    plan = Sequence((GaussianEvent(4.0), RoundingEvent(1e-9)))
    deltas = [delta(plan, at, REPLACE) for at in (0, 0.5, 1, 2, 2.1, 3, 5, 20, 1000, math.inf)]
    assert all(later <= earlier for earlier, later in itertools.pairwise(deltas))
    plain = [delta(GaussianEvent(4.0), at, REPLACE) for at in (0, 0.5, 1)]
    expected = [d + (1 + math.exp(at)) * 1e-9 for d, at in zip(plain, (0, 0.5, 1), strict=True)]
    assert deltas[:3] == pytest.approx(expected, rel=1e-12)
    assert 4e-9 < deltas[-1] < 1e-8


def test_rounding_that_delta_cannot_pay_is_refused() -> None:
    with pytest.raises(NotPriceable, match="rounding of total variation 6e-07"):
        epsilon(Sequence((GaussianEvent(4.0), RoundingEvent(6e-7))), 1e-6, REPLACE)
    with pytest.raises(NotPriceable, match="delta = 0 allows no rounding at all"):
        epsilon(Sequence((PureEvent(0.5), RoundingEvent(1e-15))), 0, REPLACE)
    # There is room at epsilon = 0, but not at the epsilon of so little noise.
    assert epsilon(Sequence((GaussianEvent(0.1), RoundingEvent(1e-9))), 1e-6, REPLACE) == math.inf
    blocks = Parallel((RoundingEvent(2e-8), Sequence((RoundingEvent(1e-8), GaussianEvent(9.0)))))
    joint = Sequence((GaussianEvent(4.0), blocks))
    assert epsilon(joint, 1e-6, REPLACE) == max(
        epsilon(Sequence((GaussianEvent(4.0), branch)), 1e-6, REPLACE) for branch in blocks.events
    )


def test_noise_is_calibrated_to_what_rounding_leaves() -> None:
    budget = Budget(1.0, 1e-6)

    def plan(scale: float) -> Event:
        return Sequence((Repeated(GaussianEvent(scale), 10), RoundingEvent(1e-8)))

    for composition in ("plan", "gaussian", "zcdp"):
        scale = calibrate(plan, budget, REPLACE, composition=composition)
        left = Budget(1.0, 1e-6 - (1 + math.e) * 1e-8)
        exact = calibrate(lambda s: Repeated(GaussianEvent(s), 10), left, REPLACE, composition=composition)
        assert scale == pytest.approx(exact, rel=1e-7)
    ledger = Ledger(budget, REPLACE, plan=plan(calibrate(plan, budget, REPLACE)))
    assert 0.999 < ledger.epsilon() <= 1


def test_no_noise_has_no_finite_price() -> None:
    plan = Sequence((GaussianEvent(3.0), NonPrivateEvent()))
    assert epsilon(plan, 1e-6, ADD) == math.inf
    assert delta(plan, 5, ADD) == 1
    assert delta(plan, math.inf, ADD) == 0
    assert epsilon(NoEvent(), 0, ADD) == 0
    assert delta(NoEvent(), 0, ADD) == 0


def test_several_statistics_of_one_sample_are_one_event_where_that_is_proved() -> None:
    joint = SampledEvent(Poisson(0.05), Sequence((GaussianEvent(2.0), GaussianEvent(2.0))))
    single = SampledEvent(Poisson(0.05), GaussianEvent(math.sqrt(2)))
    assert epsilon(joint, 1e-6, ADD, near=1) == pytest.approx(epsilon(single, 1e-6, ADD, near=1), rel=1e-9)
    with pytest.raises(NotPriceable, match="one release per sample under replace-one"):
        epsilon(joint, 1e-6, REPLACE)


@pytest.mark.parametrize(
    ("event", "relation", "at"),
    [
        (FIXED, ADD, 1e-6),
        (SampledEvent(Poisson(0.1), LaplaceEvent(1.0)), ADD, 1e-6),
        (SampledEvent(Poisson(0.1), BoundedRangeEvent(1.0)), ADD, 1e-6),
        (MixtureEvent(40.0, 0.1, 5.0), REPLACE, 1e-6),
        (Sequence((FIXED, SampledEvent(Poisson(0.1), LaplaceEvent(1.0)))), REPLACE, 1e-6),
    ],
)
def test_what_is_not_in_the_table_is_refused(event: Event, relation: Relation, at: float) -> None:
    with pytest.raises(NotPriceable, match="no accountant can price this under"):
        epsilon(event, at, relation)


def test_tiny_deltas_have_the_accountants_that_are_exact_there() -> None:
    assert epsilon(Repeated(POISSON, 10), 1e-12, ADD) == epsilon(
        Repeated(POISSON, 10), 1e-12, ADD, accountant="renyi"
    )
    assert epsilon(GaussianEvent(3.0), 1e-200, ADD) == gaussian_epsilon(1 / 3, 1e-200)
    whitened = Sequence((GaussianEvent(3.0), ShiftedGaussianEvent(0.1, 0.1)))
    assert epsilon(whitened, 1e-12, ADD) == epsilon(whitened, 1e-12, ADD, accountant="direct")


@pytest.mark.parametrize(
    "event",
    [
        Repeated(POISSON, 20),
        Sequence((FIXED, POISSON, ShiftedGaussianEvent(0.1, 0.1), LaplaceEvent(6.0))),
        Sequence((Repeated(ShiftedGaussianEvent(0.1, 0.1, two_signed=True), 9), GaussianEvent(3.0))),
        Sequence((ShiftedGaussianEvent(0.1, 0.1), PureEvent(0.2), ZCDPEvent(0.01))),
    ],
)
def test_what_a_loss_distribution_cannot_reach_has_a_renyi_price(event: Event) -> None:
    at_small = epsilon(event, 1e-12, REPLACE)
    assert epsilon(event, 1e-6, REPLACE) < at_small < math.inf
    assert at_small == epsilon(event, 1e-12, REPLACE, accountant="renyi")


def test_one_accountant_can_be_asked_by_name() -> None:
    with pytest.raises(NotPriceable, match="the 'exact' accountant cannot price"):
        epsilon(LaplaceEvent(1.0), 1e-6, ADD, accountant="exact")
    with pytest.raises(NotPriceable, match="the 'zcdp' accountant cannot price"):
        epsilon(POISSON, 1e-6, ADD, accountant="zcdp")
    assert is_closed_form(Repeated(GaussianEvent(1.0), 9), 1e-6)
    assert is_closed_form(PureEvent(1.0), 0)
    assert is_closed_form(ShiftedGaussianEvent(1e6, 0.1), 1e-6)
    assert not is_closed_form(POISSON, 1e-6)


def test_a_poisson_rate_of_one_is_the_plain_gaussian() -> None:
    everybody = Repeated(SampledEvent(Poisson(1.0), GaussianEvent(8.0)), 5)
    assert epsilon(everybody, 1e-6, REPLACE) == epsilon(Repeated(GaussianEvent(8.0), 5), 1e-6, REPLACE)
    nearly = Repeated(SampledEvent(Poisson(1 - 1e-9), GaussianEvent(8.0)), 5)
    assert epsilon(nearly, 1e-6, REPLACE) == pytest.approx(epsilon(everybody, 1e-6, REPLACE), rel=1e-3)


def test_rho_adds_up_over_sequences_and_is_the_dearest_of_blocks() -> None:
    plan = Sequence(
        (GaussianEvent(2.0), Repeated(BoundedRangeEvent(0.4), 10), LaplaceEvent(5.0), ZCDPEvent(0.1))
    )
    assert zcdp_rho(plan) == pytest.approx(1 / 8 + 10 * 0.02 + 0.02 + 0.1)
    assert zcdp_rho(Parallel((plan, ZCDPEvent(1.0)))) == 1
    assert zcdp_rho(Sequence((plan, POISSON))) is None


def test_nonsense_is_refused() -> None:
    with pytest.raises(ValueError, match="delta must be at least 0 and below 1"):
        epsilon(NoEvent(), 1.0, ADD)
    with pytest.raises(ValueError, match="epsilon must be at least 0"):
        delta(NoEvent(), -1.0, ADD)
    with pytest.raises(ValueError, match="near must be positive"):
        epsilon(NoEvent(), 0.1, ADD, near=0)
    with pytest.raises(ValueError, match="relation must be"):
        epsilon(NoEvent(), 0.1, "swap")
