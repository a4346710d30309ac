"""Direct summation: above the exact integral, close to it, and trustworthy at any delta."""

import math

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import norm

from privopt.ledger.accounting import epsilon
from privopt.ledger.composition import alternatives
from privopt.ledger.curves import gaussian_delta, gaussian_epsilon
from privopt.ledger.events import Event, GaussianEvent, PureEvent, Repeated, Sequence, ShiftedGaussianEvent
from privopt.ledger.privacy_losses import ShiftedCurve, composed_losses, direct_delta, direct_epsilon

EVENTS = [
    ShiftedGaussianEvent(mu, shift, two_signed)
    for mu, shift in ((0.2, 0.0025), (0.02, 0.3), (1.5, 0.0))
    for two_signed in (False, True)
]


def exact_delta(event: ShiftedGaussianEvent, mu: float, at: float) -> float:
    """The expectation of the Gaussian curve over the loss of the dominating pair, by adaptive quadrature."""
    curve = event.shifted

    def integrand(z: float) -> float:
        loss = curve.loss(z)
        above = gaussian_delta(mu, at - loss) + math.exp(-loss) * gaussian_delta(mu, at + loss)
        return curve.weight * norm.pdf(z) * above

    total = sum(
        quad(integrand, curve.start + low, curve.start + low + 2, epsabs=0, epsrel=1e-10)[0]
        for low in range(0, 36, 2)
    )
    atoms = gaussian_delta(mu, at - curve.joint) + math.exp(-curve.joint) * gaussian_delta(
        mu, at + curve.joint
    )
    return total + curve.joint_mass * atoms


@pytest.mark.at_once("0.05-event2")
@pytest.mark.parametrize("event", EVENTS)
@pytest.mark.parametrize("mu", [0.05, 1.0])
def test_the_sum_is_above_the_integral_and_close(event: ShiftedGaussianEvent, mu: float) -> None:
    for at in (0.0, 0.5, 3.0):
        exact = exact_delta(event, mu, at)
        if exact > 1e-250:
            relative = direct_delta((event.shifted,), mu, at) / exact - 1
            assert 0 <= relative <= 2e-2
            assert relative <= 1e-3 or exact < 1e-15


@pytest.mark.parametrize("event", EVENTS)
def test_without_gaussian_releases_it_is_the_curve(event: ShiftedGaussianEvent) -> None:
    curve = event.shifted
    for at in (1e-3, 1e-6, 1e-9):
        assert direct_epsilon((event.shifted,), 0.0, at) >= curve.epsilon(at)
        assert direct_epsilon((event.shifted,), 0.0, at) == pytest.approx(curve.epsilon(at), rel=1e-3)


def test_the_discrete_losses_have_mass_one_under_both_distributions() -> None:
    for events in ((EVENTS[0],), (EVENTS[1],), tuple(EVENTS[:3]), (EVENTS[4], EVENTS[0])):
        losses = composed_losses(tuple(event.shifted for event in events))
        assert losses.masses.sum() == pytest.approx(1, abs=1e-12)
        assert (losses.masses * np.exp(-losses.values)).sum() == pytest.approx(1, abs=1e-12)
        assert losses.masses.min() >= 0


def test_two_events_cost_what_one_of_both_shifts_would() -> None:
    pair = (ShiftedCurve(0.2, 0.01), ShiftedCurve(0.1, 0.02))
    together = math.sqrt(0.2**2 + 0.1**2 + 0.05**2)
    for at in (1e-3, 1e-6, 2.5e-11, 1e-15):
        found = direct_epsilon(pair, 0.05, at)
        shifted_once = 0.03 + gaussian_epsilon(together, at)  # not proved, and never below what is
        assert 0.99 * shifted_once <= found <= shifted_once * (1 + 2e-4)
        swapped = direct_epsilon(pair[::-1], 0.05, at)
        assert swapped == pytest.approx(found, rel=1e-6)


@pytest.mark.parametrize("two_signed", [False, True])
@pytest.mark.parametrize("at", [1e-3, 1e-6, 1e-9])
def test_it_agrees_with_a_loss_distribution(two_signed: bool, at: float) -> None:
    plan = Sequence(
        (GaussianEvent(8.0), Repeated(ShiftedGaussianEvent(0.2, 0.01, two_signed), 2), GaussianEvent(20.0))
    )
    prices = [epsilon(plan, at, "replace-one", near=1, accountant=name) for name in ("direct", "pld")]
    assert prices[0] == pytest.approx(prices[1], rel=2e-3)


@pytest.mark.parametrize("two_signed", [False, True])
def test_it_is_monotone_and_below_renyi_down_to_the_smallest_deltas(two_signed: bool) -> None:
    plan = Sequence((GaussianEvent(13.0), ShiftedGaussianEvent(0.224, 0.0025, two_signed)))
    previous = 0.0
    for exponent in (2, 3, 10, 15, 30, 100, 250, 290):
        price = epsilon(plan, 10.0**-exponent, "add-or-remove-one")
        assert previous < price < math.inf
        assert price <= epsilon(plan, 10.0**-exponent, "add-or-remove-one", accountant="renyi")
        previous = price
    assert epsilon(plan, 0.0, "add-or-remove-one") == math.inf


def test_extremes_are_finite_and_sound() -> None:
    for mu in (1e-6, 30.0, 3000.0):
        for two_signed in (False, True):
            event = ShiftedGaussianEvent(mu, 0.1, two_signed)
            price = direct_epsilon((event.shifted,), 0.01, 1e-6)
            assert event.shifted.epsilon(1e-6) <= price < math.inf


@pytest.mark.parametrize(
    ("event", "expected"),
    [
        (Sequence((GaussianEvent(1.0), EVENTS[0])), (EVENTS[0].shifted,)),
        (Repeated(EVENTS[0], 4), (EVENTS[0].shifted,) * 4),
        (Repeated(EVENTS[0], 5), None),
        (GaussianEvent(1.0), None),
        (Sequence((EVENTS[0], PureEvent(1.0))), None),
    ],
)
def test_which_trees_are_summed_directly(event: Event, expected: tuple[ShiftedCurve, ...] | None) -> None:
    assert alternatives(event)[0].shifted == expected
