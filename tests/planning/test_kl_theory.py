"""Rates, floors and lower bounds under the KL condition, against reference values."""

import math
from dataclasses import replace

import pytest

from privopt.ledger.amounts import Budget
from privopt.ledger.curves import gaussian_mu
from privopt.planning import descent_theory
from privopt.planning.kl_theory import (
    KLRates,
    growth_rate,
    horizon,
    lower_bound_indicators,
    one_query_floor,
    sharp_lower_bound,
    smooth_rate,
)
from privopt.planning.task import Instance
from privopt.problems import losses
from privopt.problems.growth import KL
from privopt.problems.problem import Problem
from privopt.public import Public, Relation

RHO = 0.5 * gaussian_mu(1.0, 1e-6) ** 2
QUARTIC = KL(gamma=4.0**-0.75, kappa=4.0 / 3.0, gap=0.25)


@pytest.mark.parametrize(
    ("epsilon", "delta", "rho"),
    [
        (0.1, 1e-6, 3.7935387853e-04),
        (0.5, 1e-6, 7.7011681136e-03),
        (1.0, 1e-6, 2.8014481913e-02),
        (1.0, 1e-5, 3.5925702327e-02),
        (2.0, 1e-6, 1.0050201972e-01),
        (4.0, 1e-6, 3.5100364842e-01),
        (8.0, 1e-6, 1.1728152236e00),
    ],
)
def test_rho_of_a_budget(epsilon, delta, rho):
    assert 0.5 * gaussian_mu(epsilon, delta) ** 2 == pytest.approx(rho, rel=1e-9)


def test_the_reference_values_of_horizon_and_rate():
    public = Public(n=20_000, d=10)
    noise = descent_theory.noise_of_one(Instance(Problem(losses.logistic), public, Budget(1.0, 1e-6)), 1.0)
    assert noise == pytest.approx(2.0 / (20_000 * math.sqrt(2.0 * RHO)), rel=1e-12)
    assert horizon(20.0, 10, noise) == pytest.approx(7485.24975036, rel=1e-9)
    assert horizon(20.0, 10, 0.0) == math.inf
    assert one_query_floor(noise, 40.0) == pytest.approx(20.0 * noise**2)
    assert smooth_rate(QUARTIC, 100_000, RHO, 2.0, 10) == pytest.approx(6.8295424072e-06, rel=1e-9)


def test_a_lower_bound_is_never_above_the_excess_that_every_start_has():
    assert smooth_rate(QUARTIC, 2, 1e-12, 2.0, 10) == pytest.approx(QUARTIC.excess_at(2.0))
    assert growth_rate(QUARTIC, 2, 1e-12, 2.0, 10) <= QUARTIC.excess_at(2.0)


def test_the_rate_for_epsilon_and_delta():
    lam, tau = 1.0 / QUARTIC.gamma, 4.0
    expected = tau ** (-1.0 / (tau - 1.0)) * (2.0 * math.sqrt(10) / (lam * 1e5 * 0.5)) ** (tau / (tau - 1.0))
    assert growth_rate(QUARTIC, 100_000, 0.5, 2.0, 10) == pytest.approx(expected, rel=1e-12)


def test_the_true_lower_bound_holds_for_small_epsilon_and_delta_only():
    sharp, public = KL(gamma=0.8, kappa=3.0), Public(n=1000, d=7)
    expected = 0.25 * (0.8 * 2.0 / (1000 * 0.5)) ** 3
    assert sharp_lower_bound(sharp, public, 0.5, 1e-6, 2.0) == pytest.approx(expected)
    assert sharp_lower_bound(sharp, public, 0.7, 1e-6, 2.0) is None
    assert sharp_lower_bound(sharp, public, 0.5, 0.03, 2.0) is None
    assert sharp_lower_bound(replace(sharp, kappa=1.9), public, 0.5, 1e-6, 2.0) is None
    present = replace(public, relation=Relation.ADD_OR_REMOVE_ONE)
    assert sharp_lower_bound(sharp, present, 0.25, 1e-6, 2.0) == pytest.approx(expected)
    assert sharp_lower_bound(sharp, present, 0.5, 1e-6, 2.0) is None


def test_indicators_say_what_they_are():
    public, budget = Public(n=100_000, d=10), Budget(0.5, 1e-6)
    found = lower_bound_indicators(QUARTIC, public, budget, 2.0, 10, distance=3.0)
    assert set(found) == {"least_excess_rate", "convex_rate"}
    assert all("(rate, without constants)" in finding.meaning for finding in found.values())
    rho = 0.5 * gaussian_mu(0.5, 1e-6) ** 2
    assert found["least_excess_rate"].value == smooth_rate(QUARTIC, 100_000, rho, 2.0, 10)
    assert found["convex_rate"].value == pytest.approx(6.0 * math.sqrt(10) / 5e4)
    both = lower_bound_indicators(KL(gamma=1.0, kappa=2.0), public, budget, 2.0, 10)
    assert set(both) == {"least_excess_rate", "least_excess"}
    assert "(true bound for the worst data set)" in both["least_excess"].meaning
    assert both["least_excess"].value < both["least_excess_rate"].value


def test_nothing_is_said_where_nothing_is_known():
    public = Public(n=1000, d=3)
    assert not lower_bound_indicators(QUARTIC, public, Budget(math.inf, 1e-6), 2.0, 3, 1.0)
    assert not lower_bound_indicators(QUARTIC, public, Budget(1.0, 1e-6), math.inf, 3, 1.0)
    assert not lower_bound_indicators(None, public, Budget(1.0, 1e-6), 1.0, 3)
    assert not lower_bound_indicators(KL(gamma=1.0, kappa=1.0), public, Budget(1.0, 1e-6), 1.0, 3)
    assert set(lower_bound_indicators(QUARTIC, public, Budget(1.0, 0.0), 1.0, 3, 1.0)) == {"convex_rate"}


def rates(n, kappa=4.0 / 3.0, **changes):
    settings = {
        "growth": KL(gamma=0.5, kappa=kappa, gap=0.25),
        "n": n,
        "rho": RHO,
        "parameters": 10,
        "lipschitz": 2.0,
        "curvature": 3.0,
    }
    return KLRates(**(settings | changes))


def exponent(rate):
    """The slope of a rate in n, far out."""
    return math.log10(rate(rates(10**12)) / rate(rates(10**13)))


def test_the_published_rates_have_their_exponents():
    assert exponent(KLRates.spider) == pytest.approx(4.0 / 3.0, abs=1e-9)
    proximal = [rates(n, kappa=3.0).proximal_point() for n in (10**6, 10**7)]
    assert math.log10(proximal[0] / proximal[1]) == pytest.approx(3.0, abs=1e-9)
    # the norm's noise dominates: kappa / 2, up to logarithms
    assert exponent(KLRates.adaptive) == pytest.approx(2.0 / 3.0, abs=0.03)
    assert exponent(lambda r: r.stationary(10**15)) == pytest.approx(0.5, abs=0.03)


def test_the_published_rates_by_hand():
    at = rates(10**5)
    relative = 0.5 * 2.0 * math.sqrt(10) / at.signal
    conditioning = 1.0 + 0.25 ** (-0.5) * 0.25 * 3.0
    assert at.spider() == pytest.approx((relative * math.sqrt(conditioning)) ** (4.0 / 3.0), rel=1e-12)
    convex = rates(10**5, kappa=3.0, curvature=0.0)
    assert convex.proximal_point() == pytest.approx(relative**3, rel=1e-12)
    square = rates(10**5, kappa=2.0)
    assert math.isfinite(square.adaptive())
    by_steps = math.sqrt(0.25 * 3.0 / 4.0) + 2.0 * math.sqrt(math.log(at.signal / 0.1) / at.signal)
    assert at.stationary(4) > 0
    assert rates(10**9).stationary(4) < by_steps


def test_a_rate_outside_of_its_theorem_is_refused():
    with pytest.raises(ValueError, match=r"kappa at least 2, got kappa = 1\.3"):
        rates(100).proximal_point()
    with pytest.raises(ValueError, match=r"kappa in \[1, 2\], got kappa = 3"):
        rates(100, kappa=3.0).spider()
