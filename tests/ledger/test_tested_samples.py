"""The price of tests and releases on one secret sample: by formula, and against mechanisms that are worked out."""

import math

import numpy as np
import pytest
from scipy import stats

from privopt.errors import NotPriceable
from privopt.ledger.accounting import delta, epsilon, zcdp_rho
from privopt.ledger.amounts import Budget
from privopt.ledger.calibration import calibrate
from privopt.ledger.events import (
    DeltaEvent,
    Event,
    GaussianEvent,
    Poisson,
    PureEvent,
    Repeated,
    SampledEvent,
    Sequence,
    TestedSampleEvent,
)
from privopt.ledger.ledger import Ledger
from privopt.ledger.privacy_losses import inflated_rate
from privopt.mechanisms.tests import AboveThreshold

RELATIONS = ["replace-one", "add-or-remove-one"]


def an_event(rate=0.05, multiplier=2.0, tests=20, threshold=0.1, queries=0.2) -> TestedSampleEvent:
    return TestedSampleEvent(rate, multiplier, tests, threshold, queries)


def test_the_inflated_rate_has_its_reference_value() -> None:
    """user-level reference, R4."""
    assert inflated_rate(0.05, 0.2) == pytest.approx(0.054969486336574176, rel=1e-12)
    assert inflated_rate(1.0, 0.2) == 1.0


@pytest.mark.later("add-or-remove-one")
@pytest.mark.parametrize("relation", RELATIONS)
def test_the_price_is_that_of_sampled_releases_at_the_larger_rate_shifted(relation: str) -> None:
    sampled = Repeated(SampledEvent(Poisson(inflated_rate(0.05, 0.2)), GaussianEvent(2.0)), 20)
    for at in (0.31, 0.5, 1.0, 2.0):
        expected = min(1.0, math.exp(0.3) * delta(sampled, at - 0.3, relation))
        assert delta(an_event(), at, relation) == pytest.approx(expected, rel=1e-8)
    assert delta(an_event(), 0.29, relation) == 1.0
    assert epsilon(an_event(), 1e-6, relation) == pytest.approx(
        0.3 + epsilon(sampled, math.exp(-0.3) * 1e-6, relation), rel=1e-9
    )


@pytest.mark.later("add-or-remove-one")
@pytest.mark.parametrize("relation", RELATIONS)
def test_epsilon_and_delta_are_inverse_and_bad_events_are_added_once(relation: str) -> None:
    event = Sequence((an_event(), DeltaEvent(1e-7), GaussianEvent(9.0)))
    price = epsilon(event, 1e-6, relation)
    assert delta(event, price, relation) == pytest.approx(1e-6, rel=2e-2)
    assert delta(event, price, relation) - delta(
        Sequence(event.events[:1] + event.events[2:]), price, relation
    ) == (pytest.approx(1e-7, rel=1e-6))


@pytest.mark.later("replace-one")
@pytest.mark.parametrize("relation", RELATIONS)
def test_the_price_is_monotone_in_everything(relation: str) -> None:
    base = epsilon(an_event(), 1e-6, relation)
    dearer: list[Event] = [
        an_event(rate=0.06),
        an_event(multiplier=1.9),
        an_event(tests=25),
        an_event(threshold=0.12),
        an_event(queries=0.25),
        Sequence((an_event(), GaussianEvent(20.0))),
        Sequence((an_event(), PureEvent(0.05))),
    ]
    for event in dearer:
        assert epsilon(event, 1e-6, relation) > base
    assert epsilon(an_event(), 1e-5, relation) < base


def test_two_vectors_compose_by_adding_their_shifts() -> None:
    sampled = Repeated(SampledEvent(Poisson(inflated_rate(0.05, 0.2)), GaussianEvent(2.0)), 40)
    twice = Repeated(an_event(), 2)
    assert delta(twice, 1.5, "replace-one") == pytest.approx(
        math.exp(0.6) * delta(sampled, 0.9, "replace-one"), rel=1e-8
    )


def test_everybody_in_every_sample_is_no_amplification() -> None:
    event = an_event(rate=1.0, multiplier=20.0)
    plain = Repeated(GaussianEvent(20.0), 20)
    assert delta(event, 1.3, "replace-one") == pytest.approx(
        math.exp(0.3) * delta(plain, 1.0, "replace-one"), rel=1e-8
    )


@pytest.mark.parametrize("composition", ["gaussian", "zcdp", "basic"])
def test_no_filter_pays_for_it(composition: str) -> None:
    ledger = Ledger(Budget(5.0, 1e-5), "replace-one", composition=composition)
    with pytest.raises(NotPriceable, match="asked to pay for: 20 Poisson samples of 5 %"):
        ledger.charge("tested", an_event())
    assert zcdp_rho(an_event()) is None


def test_a_plan_pays_for_it_and_is_calibrated() -> None:
    budget = Budget(1.0, 1e-6)
    multiplier = calibrate(lambda z: an_event(multiplier=z), budget, "replace-one")
    price = epsilon(an_event(multiplier=multiplier), 1e-6, "replace-one", near=1.0)
    assert 0.999 <= price <= 1.0
    Ledger(budget, "replace-one", plan=an_event(multiplier=multiplier)).charge(
        "t", an_event(multiplier=multiplier)
    )


def exact_delta(
    at: float,
    rate: float,
    stddev: float,
    threshold: float,
    queries: float,
    *,
    swapped: bool,
    with_unit: int = 1,
) -> float:
    """The hockey-stick divergence of one test and one release, by integration.

    The statistic is 0 without the unit; with it, `with_unit` on D and 0 on D' (the other way where `swapped`). The
    released mean is 0 without the unit, 1 on D and -1 on D'.
    """
    first, second = (0.0, float(with_unit)) if swapped else (float(with_unit), 0.0)

    def passes(statistic: float) -> float:
        return AboveThreshold(0.0, threshold, queries).tail(-statistic)

    without, left, right = passes(0.0), passes(first), passes(second)
    grid = np.linspace(-12 * stddev, 12 * stddev, 8_001)
    centre = (1 - rate) * without * stats.norm.pdf(grid, 0.0, stddev)
    one = centre + rate * left * stats.norm.pdf(grid, 1.0, stddev)
    other = centre + rate * right * stats.norm.pdf(grid, -1.0, stddev)
    passed = np.trapezoid(np.maximum(0.0, one - math.exp(at) * other), grid)
    failed = (1 - rate) * (1 - without) + rate * (1 - left), (1 - rate) * (1 - without) + rate * (1 - right)
    return float(passed + max(0.0, failed[0] - math.exp(at) * failed[1]))


@pytest.mark.later("0.05-2.0--1-False", "0.2-0.3--1-False", "0.5-1.0--1-False", "0.5-1.0--1-True")
@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize("with_unit", [-1, 1])
@pytest.mark.parametrize(("rate", "queries"), [(0.2, 0.3), (0.5, 1.0), (0.05, 2.0)])
def test_one_test_and_one_release_cost_no_more_than_the_price(swapped, with_unit, rate, queries) -> None:
    stddev, threshold = 1.5, queries / 2
    event = TestedSampleEvent(rate, stddev / 2.0, 1, threshold, queries)  # sensitivity 2 under replace-one
    for at in (threshold + queries + 0.05, threshold + queries + 0.5):
        exact = exact_delta(at, rate, stddev, threshold, queries, swapped=swapped, with_unit=with_unit)
        assert exact <= delta(event, at, "replace-one") * (1 + 1e-6) + 1e-9
