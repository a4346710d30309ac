"""Calibration proves itself: the price is at most the target and at least the target less a thousandth."""

import math
from collections.abc import Callable

import pytest

from privopt.errors import BudgetExceeded, NotPriceable
from privopt.ledger.accounting import epsilon
from privopt.ledger.amounts import Budget
from privopt.ledger.calibration import calibrate
from privopt.ledger.curves import gaussian_mu
from privopt.ledger.events import (
    BoundedRangeEvent,
    DeltaEvent,
    Event,
    FixedSize,
    GaussianEvent,
    LaplaceEvent,
    Parallel,
    Poisson,
    PureEvent,
    Repeated,
    SampledEvent,
    Sequence,
    ShiftedGaussianEvent,
)
from privopt.ledger.filters import Composition
from privopt.ledger.ledger import Ledger
from privopt.public import Relation

ADD, REPLACE = Relation.ADD_OR_REMOVE_ONE, Relation.REPLACE_ONE
PLANS: dict[str, tuple[Callable[[float], Event], Relation]] = {
    "gaussian": (lambda s: Repeated(GaussianEvent(s), 100), REPLACE),
    "with a fixed part": (lambda s: Sequence((ShiftedGaussianEvent(1e-5, 0.0), GaussianEvent(s))), REPLACE),
    "selections": (lambda s: Repeated(BoundedRangeEvent(1 / s), 30), REPLACE),
    "mixed": (lambda s: Sequence((LaplaceEvent(s), Repeated(GaussianEvent(s), 10))), REPLACE),
    "blocks": (lambda s: Parallel((GaussianEvent(s), LaplaceEvent(3 * s))), REPLACE),
    "objective": (lambda s: ShiftedGaussianEvent(1 / s, 0.001), REPLACE),
    "folded objective": (lambda s: ShiftedGaussianEvent(1 / s, 0.001, two_signed=True), REPLACE),
    "whitened objective": (
        lambda s: Sequence((GaussianEvent(3 * s), ShiftedGaussianEvent(1 / s, 0.001, two_signed=True))),
        REPLACE,
    ),
    "poisson add": (lambda s: Repeated(SampledEvent(Poisson(0.01), GaussianEvent(s)), 500), ADD),
    "poisson replace": (lambda s: Repeated(SampledEvent(Poisson(0.01), GaussianEvent(s)), 500), REPLACE),
}


def assert_proved(make_event: Callable[[float], Event], budget: Budget, relation: Relation) -> float:
    scale = calibrate(make_event, budget, relation)
    price = epsilon(make_event(scale), budget.delta, relation, near=budget.epsilon)
    assert budget.epsilon * (1 - 1e-3) <= price <= budget.epsilon * (1 - 1e-9)
    assert Ledger(budget, relation, plan=make_event(scale)).epsilon() == price
    return scale


@pytest.mark.parametrize("target", [10.0**k for k in range(-4, 5)])
@pytest.mark.parametrize("at", [1e-3, 1e-6, 1e-12])
def test_gaussian_calibration_proves_itself_over_eight_decades(target: float, at: float) -> None:
    scale = assert_proved(PLANS["gaussian"][0], Budget(target, at), REPLACE)
    assert 10 / scale == pytest.approx(gaussian_mu(target, at), rel=1e-7)
    pure = assert_proved(lambda s: Repeated(PureEvent(1 / s), 3), Budget(target, 0.0), ADD)
    assert pure == pytest.approx(3 / target, rel=1e-7)


@pytest.mark.later("1.0-poisson add", "1.0-poisson replace", "8.0-poisson add", "8.0-poisson replace")
@pytest.mark.parametrize("name", PLANS)
@pytest.mark.parametrize("target", [0.03, 1.0, 8.0])
def test_calibration_proves_itself_with_every_accountant(name: str, target: float) -> None:
    assert_proved(*(PLANS[name][0], Budget(target, 1e-6), PLANS[name][1]))


@pytest.mark.audit
def test_fixed_size_samples_are_calibrated_with_the_renyi_accountant() -> None:
    assert_proved(
        lambda s: Repeated(SampledEvent(FixedSize(100, 10000), GaussianEvent(s)), 200),
        Budget(2.0, 1e-6),
        REPLACE,
    )


def test_reference_noise_is_found() -> None:
    sampled = calibrate(
        lambda s: Repeated(SampledEvent(Poisson(0.01), GaussianEvent(s)), 1000), Budget(1, 1e-6), REPLACE
    )
    assert 2 * sampled == pytest.approx(2.6919, rel=2e-3)  # ERM reference RV13, sigma / C


@pytest.mark.parametrize(
    ("two_signed", "relation", "sigma"),
    [
        (False, ADD, 4.2344892110),
        (False, REPLACE, 8.4689784221),
        (True, ADD, 4.3753352705),
        (True, REPLACE, 8.75067054),
    ],
)
def test_objective_perturbation_has_its_reference_noise(
    two_signed: bool, relation: Relation, sigma: float
) -> None:  # ERM reference RV12, C = 1
    shift = math.log(1 + 0.25 / 100)
    multiplier = calibrate(
        lambda s: ShiftedGaussianEvent(1 / s, shift, two_signed), Budget(1, 1e-6), relation
    )
    assert relation.factor * multiplier == pytest.approx(sigma, rel=2e-8)


@pytest.mark.later("1.0-poisson add", "8.0-poisson add", "8.0-poisson replace", "8.0-whitened objective")
@pytest.mark.parametrize("name", ["poisson add", "poisson replace", "whitened objective", "folded objective"])
@pytest.mark.parametrize("target", [0.1, 1.0, 8.0])
def test_calibration_proves_itself_at_one_over_n_squared(name: str, target: float) -> None:
    assert_proved(PLANS[name][0], Budget(target, 1 / 200_000**2), PLANS[name][1])


@pytest.mark.parametrize("composition", ["gaussian", "zcdp"])
def test_a_filter_pays_for_the_last_of_many_calibrated_releases(composition: Composition) -> None:
    budget, count = Budget(1.0, 1e-6), 5000
    scale = calibrate(lambda s: Repeated(GaussianEvent(s), count), budget, REPLACE, composition=composition)
    ledger = Ledger(budget, REPLACE, composition=composition)
    for _ in range(count):
        ledger.charge("step", GaussianEvent(scale))
    assert not ledger.affords(GaussianEvent(scale))
    assert 0 <= ledger.remaining < 1e-7 * ledger.spent
    assert 0.999 <= ledger.spent_epsilon() <= 1


def test_a_basic_filter_adds_epsilons() -> None:
    scale = calibrate(lambda s: Repeated(LaplaceEvent(s), 4), Budget(1.0), ADD, composition="basic")
    assert scale == pytest.approx(4, rel=1e-3)
    with pytest.raises(NotPriceable, match="pays for pure events"):
        calibrate(GaussianEvent, Budget(1.0), ADD, composition="basic")


def test_bad_events_leave_less_delta_for_the_noise() -> None:
    def with_bad_event(scale: float) -> Event:
        return Sequence((DeltaEvent(1e-7), GaussianEvent(scale)))

    for composition in ("plan", "gaussian"):
        scale = calibrate(with_bad_event, Budget(1, 1e-6), ADD, composition=composition)
        assert 1 / scale == pytest.approx(gaussian_mu(1, 9e-7), rel=1e-7)
        with pytest.raises(NotPriceable, match="use up delta"):
            calibrate(with_bad_event, Budget(1, 1e-7), ADD, composition=composition)


def test_what_cannot_be_met_is_said() -> None:
    with pytest.raises(BudgetExceeded, match="no amount of noise meets the budget"):
        calibrate(lambda s: Sequence((GaussianEvent(3.0), GaussianEvent(s))), Budget(1, 1e-6), ADD)
    with pytest.raises(BudgetExceeded, match="no amount of noise meets the budget"):
        calibrate(GaussianEvent, Budget(1, 0.0), ADD)
    with pytest.raises(ValueError, match="nothing to calibrate"):
        calibrate(lambda s: GaussianEvent(30.0), Budget(1, 1e-6), ADD)
    assert calibrate(lambda s: GaussianEvent(1.0), Budget(math.inf, 1e-6), ADD) == 0


def test_an_accountant_that_cannot_reach_the_budget_is_a_clear_refusal() -> None:
    def event(scale: float) -> Repeated:
        return Repeated(FixedSize(256, 200_000).event(GaussianEvent(scale)), 200)

    with pytest.raises(BudgetExceeded, match="no amount of noise meets the budget"):
        calibrate(event, Budget(0.1, 2.5e-11), "replace-one")
