"""The ledger: refuses before it records, never changes its currency, and tells what was spent."""

import json
import math

import hypothesis.strategies as st
import pytest
from hypothesis import given

from privopt.errors import BudgetExceeded, NotPriceable, PlanMismatch
from privopt.ledger import accounting
from privopt.ledger.amounts import Budget
from privopt.ledger.curves import gaussian_mu, zcdp_rho_budget
from privopt.ledger.events import (
    BoundedRangeEvent,
    DeltaEvent,
    Event,
    GaussianEvent,
    LaplaceEvent,
    NoEvent,
    NonPrivateEvent,
    Parallel,
    Poisson,
    PureEvent,
    Repeated,
    RoundingEvent,
    SampledEvent,
    Sequence,
    ShiftedGaussianEvent,
    ZCDPEvent,
    event_from_dict,
)
from privopt.ledger.ledger import Ledger

BUDGET = Budget(1.0, 1e-6)
NOISE = GaussianEvent(60.0)
RELATION = "replace-one"
STEP = SampledEvent(Poisson(0.01), GaussianEvent(2.0))
PLAN = Sequence((Repeated(STEP, 100), NOISE, Parallel((Repeated(NOISE, 3), BoundedRangeEvent(0.01)))))


# With a plan ---------------------------------------------------------------------------------------------------------


def test_a_plan_is_drawn_like_a_pack_of_cards() -> None:
    ledger = Ledger(BUDGET, RELATION, plan=Repeated(Sequence((NOISE, Repeated(LaplaceEvent(300.0), 2))), 5))
    ledger.charge("noise", NOISE)
    ledger.charge("noise", NOISE, count=3)
    assert ledger.affords(NOISE)
    assert not ledger.affords(NOISE, count=2)
    ledger.charge("all the rest", Sequence((Repeated(LaplaceEvent(300.0), 10), NOISE)))
    with pytest.raises(
        PlanMismatch, match=r"'noise' asked for 1 x \(Gaussian noise, 60 .*but 0 of it are left"
    ):
        ledger.charge("noise", NOISE)
    with pytest.raises(PlanMismatch, match="but the plan does not hold it"):
        ledger.charge("other", GaussianEvent(61.0))
    ledger.charge("free", NoEvent())
    assert (
        ledger.spent_epsilon()
        == ledger.epsilon()
        == accounting.epsilon(ledger.plan, 1e-6, RELATION, near=1.0)
    )


def test_a_plan_that_costs_too_much_is_refused_when_the_ledger_opens() -> None:
    with pytest.raises(
        BudgetExceeded, match=r"the plan costs epsilon = .* but the budget is epsilon = 1, delta"
    ):
        Ledger(BUDGET, RELATION, plan=Repeated(GaussianEvent(4.0), 2))
    with pytest.raises(BudgetExceeded, match="no finite epsilon"):
        Ledger(Budget(1.0, 0.0), RELATION, plan=NOISE)
    assert Ledger(Budget(1.0, 0.0), RELATION, plan=PureEvent(1.0)).epsilon() == 1


def test_a_refused_charge_records_nothing() -> None:
    ledger = Ledger(BUDGET, RELATION, plan=Sequence((NOISE, LaplaceEvent(300.0))))
    with pytest.raises(PlanMismatch, match="but 1 of it are left"):
        ledger.charge("two", Sequence((LaplaceEvent(300.0), NOISE, NOISE)))
    assert ledger.entries == []
    assert ledger.affords(Sequence((LaplaceEvent(300.0), NOISE)))


def test_blocks_are_bound_to_the_branches_of_the_plan_in_order() -> None:
    ledger = Ledger(BUDGET, RELATION, plan=PLAN)
    with pytest.raises(PlanMismatch, match="it has 2 branches"):
        ledger.parallel(3)
    first, second = ledger.parallel(2, "halves")
    first.charge("mean", NOISE, count=3)
    with pytest.raises(PlanMismatch, match="'mean' asked for"):
        first.charge("mean", NOISE)
    with pytest.raises(PlanMismatch, match="'mean' asked for"):
        second.charge("mean", NOISE)
    second.charge("choice", BoundedRangeEvent(0.01))
    ledger.charge("step", STEP, count=100)
    ledger.charge("mean", NOISE)
    with pytest.raises(PlanMismatch, match="no parallel node is left"):
        ledger.parallel(2)
    assert accounting.epsilon(ledger.spent_event(), 1e-6, RELATION, near=1.0) == ledger.epsilon()
    assert "halves, 2 disjoint blocks, the dearest counts:" in str(ledger)


def test_a_repeated_block_of_the_plan_is_drawn_once_for_each_time() -> None:
    node = Parallel((NOISE, NOISE))
    ledger = Ledger(BUDGET, RELATION, plan=Repeated(node, 3))
    ledger.parallel(2)
    ledger.charge("both halves at once", node)
    with pytest.raises(PlanMismatch, match="is not the plan's next parallel node"):
        ledger.charge("wrong", Parallel((NOISE,)))
    ledger.parallel(2)
    assert not ledger.affords(node)


def test_a_part_of_a_plan_draws_from_the_whole() -> None:
    ledger = Ledger(BUDGET, RELATION, plan=Repeated(NOISE, 10))
    inner = ledger.sub_ledger("inner", plan=Repeated(NOISE, 4))
    inner.charge("step", NOISE, count=4)
    with pytest.raises(PlanMismatch, match="0 of it are left"):
        inner.charge("step", NOISE)
    ledger.charge("outer", NOISE, count=6)
    measured = Ledger(BUDGET, RELATION, plan=Repeated(NOISE, 10))
    half = measured.sub_ledger("half", share=0.5)
    half.charge("step", NOISE, count=5)
    with pytest.raises(BudgetExceeded, match="'step' would cost rho"):
        half.charge("step", NOISE)
    assert measured.remaining == pytest.approx(5 / (2 * 60**2))
    with pytest.raises(ValueError, match="give exactly one of share, rho and plan"):
        ledger.sub_ledger("both", share=0.5, rho=0.1)
    with pytest.raises(ValueError, match="has no rho to take a share of"):
        Ledger(BUDGET, RELATION, plan=STEP).sub_ledger("half", share=0.5)


def test_a_million_releases_are_charged_one_by_one_in_no_time() -> None:
    ledger = Ledger(BUDGET, RELATION, plan=Repeated(GaussianEvent(10000.0), 10**6))
    for _ in range(2000):
        ledger.charge("step", GaussianEvent(10000.0))
    ledger.charge("step", GaussianEvent(10000.0), count=10**6 - 2000)
    assert len(ledger.entries) == 1
    assert not ledger.affords(GaussianEvent(10000.0))


# Filters -------------------------------------------------------------------------------------------------------------


def test_the_caps_of_the_filters() -> None:
    gaussian = Ledger(BUDGET, RELATION, composition="gaussian", bad_event_delta=1e-7)
    assert gaussian.remaining == pytest.approx(gaussian_mu(1, 9e-7) ** 2 / 2)
    assert Ledger(BUDGET, RELATION, composition="zcdp").remaining == zcdp_rho_budget(1, 1e-6)
    assert Ledger(BUDGET, RELATION, composition="basic").remaining == 1
    for composition in ("gaussian", "zcdp", "basic"):
        assert Ledger(BUDGET, RELATION, composition=composition).epsilon() == 1
        assert Ledger(BUDGET, RELATION, composition=composition).delta(1.0) == pytest.approx(1e-6)
    assert gaussian.delta(1.0) == pytest.approx(1e-6)
    assert gaussian.epsilon(1e-8) == math.inf
    assert gaussian.epsilon(1e-5) < 1


@pytest.mark.parametrize("composition", ["gaussian", "zcdp"])
def test_a_filter_stops_before_the_sum_would_pass_the_cap(composition: str) -> None:
    ledger = Ledger(BUDGET, RELATION, composition=composition)  # type: ignore[arg-type]
    for step in range(100):  # the noise depends on what came before
        if ledger.affords(GaussianEvent(20.0 + step % 7)):
            ledger.charge("step", GaussianEvent(20.0 + step % 7))
    before = (ledger.spent, len(ledger.entries))
    message = r"'step' would cost rho=[\d.e-]+, but [\d.e-]+ of 0.02\d+ is left. Release less often or raise the noise."
    with pytest.raises(BudgetExceeded, match=message):
        ledger.charge("step", GaussianEvent(20.0))
    assert (ledger.spent, len(ledger.entries)) == before
    assert ledger.spent + ledger.remaining == pytest.approx(
        ledger.spent / (1 - ledger.remaining / 0.0280145), rel=1
    )
    assert ledger.spent_epsilon() <= 1


@pytest.mark.parametrize(
    ("composition", "event", "advice"),
    [
        ("gaussian", LaplaceEvent(1.0), "Open it with composition='zcdp'"),
        ("zcdp", STEP, "Declare a plan"),
        ("zcdp", ShiftedGaussianEvent(0.1, 0.1), "Declare a plan"),
        ("basic", NOISE, "use `spend`"),
    ],
)
def test_a_filter_never_changes_its_currency(composition: str, event: Event, advice: str) -> None:
    ledger = Ledger(BUDGET, RELATION, composition=composition)  # type: ignore[arg-type]
    with pytest.raises(NotPriceable, match=advice):
        ledger.charge("odd", event)
    with pytest.raises(NotPriceable, match=advice):
        ledger.affords(event)
    assert ledger.entries == []
    assert ledger.spent == 0


def test_basic_composition_adds_blocks_that_are_worth_what_they_pay() -> None:
    ledger = Ledger(BUDGET, RELATION, composition="basic")
    block = Repeated(STEP, 100)
    price = accounting.epsilon(block, 4e-7, RELATION, near=0.6)
    assert price < 0.6
    ledger.spend("sgd", block, 0.6, 4e-7)
    ledger.charge("count", PureEvent(0.3))
    ledger.charge("rounding", DeltaEvent(1e-7))
    assert ledger.remaining == pytest.approx(0.1)
    with pytest.raises(ValueError, match=r"'sgd' pays epsilon = 0.01 .* calibrate them to what is paid"):
        ledger.spend("sgd", block, 0.01, 4e-7)
    with pytest.raises(BudgetExceeded, match="would cost delta=6e-07, but 5e-07 of 1e-06 is left"):
        ledger.spend("more", NoEvent(), 0.01, 6e-7)
    assert not ledger.affords_block(NoEvent(), 0.2, 0.0)
    assert ledger.affords_block(NoEvent(), 0.1, 5e-7)
    with pytest.raises(ValueError, match="are paid by composition='basic'"):
        Ledger(BUDGET, RELATION).spend("block", NOISE, 1, 1e-6)


def test_bad_events_draw_on_the_delta_that_was_set_aside() -> None:
    ledger = Ledger(BUDGET, RELATION, composition="gaussian", bad_event_delta=1e-7)
    ledger.charge("test", DeltaEvent(6e-8))
    with pytest.raises(BudgetExceeded, match="Set more aside when the ledger opens"):
        ledger.charge("test", DeltaEvent(6e-8))
    with pytest.raises(BudgetExceeded, match="Set more aside"):
        Ledger(BUDGET, RELATION, composition="gaussian").charge("test", DeltaEvent(1e-9))
    with pytest.raises(ValueError, match="bad_event_delta must be at least 0 and below delta"):
        Ledger(BUDGET, RELATION, bad_event_delta=1e-6)
    with pytest.raises(ValueError, match="bad_event_delta must be 0 with composition='basic'"):
        Ledger(BUDGET, RELATION, composition="basic", bad_event_delta=1e-7)
    planned = Ledger(BUDGET, RELATION, plan=NOISE, bad_event_delta=1e-7)
    assert planned.epsilon() == accounting.epsilon(NOISE, 9e-7, RELATION)


@pytest.mark.parametrize("composition", ["gaussian", "zcdp"])
def test_rounding_draws_on_what_was_set_aside_at_the_budgets_epsilon(composition: str) -> None:
    def opened(aside: float) -> Ledger:
        return Ledger(BUDGET, RELATION, composition=composition, bad_event_delta=aside)  # type: ignore[arg-type]

    ledger = opened(1e-8)
    ledger.charge("draws", Repeated(RoundingEvent(1e-9), 2))
    assert not ledger.affords(RoundingEvent(1e-9))
    with pytest.raises(BudgetExceeded, match=r"would cost delta=3\.72e-09, but 2.56e-09 of 1e-08 is left"):
        ledger.charge("draws", RoundingEvent(1e-9))
    assert ledger.delta(1.0) == pytest.approx(1e-6)
    # At a larger epsilon, what was set aside stands for more.
    at, eta = ledger.epsilon(2e-8), 1e-8 / (1 + math.e)
    spent = (
        ZCDPEvent(ledger.remaining)
        if composition == "zcdp"
        else GaussianEvent((2 * ledger.remaining) ** -0.5)
    )
    assert at == pytest.approx(accounting.epsilon(spent, 2e-8 - (1 + math.exp(at)) * eta, RELATION), rel=1e-9)
    assert ledger.delta(at) == pytest.approx(2e-8, rel=1e-6)
    assert ledger.delta(50.0) <= ledger.delta(2.0) <= ledger.delta(1.0)
    assert opened(0.0).epsilon(2e-8) < at


def test_basic_composition_charges_rounding_to_delta() -> None:
    ledger = Ledger(BUDGET, RELATION, composition="basic")
    ledger.charge("draws", Sequence((PureEvent(0.4), RoundingEvent(1e-7))))
    assert ledger.remaining == pytest.approx(0.6)
    with pytest.raises(BudgetExceeded, match="would cost delta"):
        ledger.charge("draws", Sequence((PureEvent(0.1), RoundingEvent(2e-7))))
    ledger.spend("block", Sequence((PureEvent(0.1), RoundingEvent(1e-8))), 0.1, 2.2e-8)


def test_a_filter_pays_for_the_dearest_of_disjoint_blocks() -> None:
    ledger = Ledger(BUDGET, RELATION, composition="zcdp", bad_event_delta=5e-7)
    first, second = ledger.parallel(2)
    first.charge("a", ZCDPEvent(0.010))
    assert ledger.spent == pytest.approx(0.010)
    second.charge("b", Sequence((ZCDPEvent(0.008), DeltaEvent(2e-7))))
    first.charge("b", DeltaEvent(3e-7))
    assert ledger.spent == pytest.approx(0.010)
    assert second.remaining == pytest.approx(ledger.remaining + 0.002)
    inner = second.sub_ledger("inner", rho=0.003)
    inner.charge("c", ZCDPEvent(0.003))
    assert ledger.spent == pytest.approx(0.011)
    cap = zcdp_rho_budget(1, 5e-7)
    with pytest.raises(BudgetExceeded, match="'d' would cost"):
        first.charge("d", ZCDPEvent(cap - 0.009))
    first.charge("d", ZCDPEvent(cap - 0.0101))
    assert second.affords(ZCDPEvent(cap - 0.0111))
    assert not second.affords(ZCDPEvent(cap - 0.0109))
    whole = accounting.zcdp_rho(ledger.spent_event())
    assert whole == pytest.approx(ledger.spent)


def test_a_part_has_its_own_cap_and_pays_the_whole() -> None:
    ledger = Ledger(BUDGET, RELATION, composition="gaussian")
    tenth = ledger.sub_ledger("tenth", share=0.1)
    nested = tenth.sub_ledger("half of it", share=0.5)
    assert nested.remaining == pytest.approx(ledger.remaining / 20)
    nested.charge("step", GaussianEvent(100.0), count=10)
    assert ledger.spent == tenth.spent == nested.spent == pytest.approx(10 / (2 * 100**2))
    with pytest.raises(BudgetExceeded, match="'step' would cost rho"):
        nested.charge("step", GaussianEvent(10.0))
    assert tenth.epsilon() == 1  # a part answers for the whole
    with pytest.raises(ValueError, match="share must be above 0 and at most 1"):
        ledger.sub_ledger("more than all", share=1.5)
    with pytest.raises(ValueError, match="rho must be positive"):
        ledger.sub_ledger("nothing", rho=0.0)
    with pytest.raises(ValueError, match="plan= divides a declared plan"):
        ledger.sub_ledger("plan", plan=NOISE)
    basic = Ledger(BUDGET, RELATION, composition="basic")
    with pytest.raises(ValueError, match="rho= is no amount of a basic filter"):
        basic.sub_ledger("rho", rho=0.1)
    half = basic.sub_ledger("half", share=0.5)
    half.charge("pure", PureEvent(0.5))
    assert not half.affords(PureEvent(0.1))
    assert basic.affords(PureEvent(0.5))


def test_infinite_epsilon_pays_for_everything() -> None:
    for composition in ("gaussian", "zcdp", "basic"):
        ledger = Ledger(Budget(math.inf, 1e-6), RELATION, composition=composition)
        ledger.charge("noise off", NonPrivateEvent(), count=3)
        assert ledger.spent == math.inf
        assert ledger.spent_epsilon() == math.inf
    planned = Ledger(Budget(math.inf, 1e-6), RELATION, plan=Repeated(NonPrivateEvent(), 5))
    planned.charge("noise off", NonPrivateEvent(), count=5)
    assert planned.epsilon() == math.inf
    assert json.loads(json.dumps(planned.to_dict(), allow_nan=False))["guaranteed_epsilon"] == "infinity"
    with pytest.raises(BudgetExceeded, match="'noise off' would cost rho=inf"):
        Ledger(BUDGET, RELATION).charge("noise off", NonPrivateEvent())


@given(st.lists(st.tuples(st.floats(30, 300), st.integers(1, 5)), max_size=12))
def test_what_was_charged_is_what_is_recorded(charges: list[tuple[float, int]]) -> None:
    ledger = Ledger(Budget(8.0, 1e-6), RELATION, composition="gaussian")
    for z, count in charges:
        ledger.charge("step", GaussianEvent(z), count)
    assert accounting.zcdp_rho(ledger.spent_event()) == pytest.approx(ledger.spent, rel=1e-12)
    assert ledger.spent_epsilon() == pytest.approx(accounting.epsilon(ledger.spent_event(), 1e-6, RELATION))


# Words and JSON ------------------------------------------------------------------------------------------------------


def test_a_ledger_prints_and_exports_everything() -> None:
    ledger = Ledger(BUDGET, RELATION, composition="zcdp", seeded=True)
    ledger.charge("gradient", NOISE, count=2)
    ledger.charge("gradient", NOISE)
    ledger.sub_ledger("warm start", rho=0.01).charge("choice", BoundedRangeEvent(0.1))
    for block in ledger.parallel(2):
        block.charge("mean", GaussianEvent(50.0))
    text = str(ledger)
    assert text.startswith(
        "seeded: not private\nreplace-one differential privacy, epsilon = 1, delta = 1e-06"
    )
    assert "  gradient: 3 times: Gaussian noise, 60 times the sensitivity" in text
    assert "  warm start:\n    choice: exponential-mechanism selection, epsilon 0.1" in text
    values = json.loads(json.dumps(ledger.to_dict(), allow_nan=False))
    assert values["mark"] == "seeded: not private"
    assert values["budget"] == {"epsilon": 1.0, "delta": 1e-6}
    assert [entry["name"] for entry in values["entries"]] == ["gradient", "warm start", "blocks"]
    assert event_from_dict(values["entries"][0]["event"]) == NOISE
    assert values["entries"][2]["parallel"][1][0]["name"] == "mean"
    assert "mark" not in Ledger(BUDGET, RELATION).to_dict()


def test_nonsense_is_refused() -> None:
    with pytest.raises(ValueError, match="composition must be one of 'plan', 'gaussian', 'zcdp', 'basic'"):
        Ledger(BUDGET, RELATION, composition="advanced")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="got composition='plan' and no plan"):
        Ledger(BUDGET, RELATION, composition="plan")
    with pytest.raises(ValueError, match="got composition='zcdp' and a plan"):
        Ledger(BUDGET, RELATION, plan=NOISE, composition="zcdp")
    with pytest.raises(ValueError, match="needs a delta above 0"):
        Ledger(Budget(1.0), RELATION, composition="gaussian")
    with pytest.raises(ValueError, match="k must be at least 1"):
        Ledger(BUDGET, RELATION).parallel(0)
    with pytest.raises(ValueError, match="relation must be"):
        Ledger(BUDGET, "swap")
