"""Renyi divergences of Gaussian mixtures: against quadrature, against the library, above the loss distribution."""

import itertools
import math

import dp_accounting
import numpy as np
import pytest
from dp_accounting.rdp import RdpAccountant
from scipy.integrate import quad
from scipy.stats import norm

from privopt.ledger.accounting import epsilon
from privopt.ledger.curves import mixture_add_or_remove, poisson_replace_one
from privopt.ledger.events import GaussianEvent, MixtureEvent, Poisson, Repeated, SampledEvent
from privopt.public import Relation

ADD, REPLACE = Relation.ADD_OR_REMOVE_ONE, Relation.REPLACE_ONE
Pair = tuple[tuple[float, float], ...]  # weight and mean of each part


def by_quadrature(p: Pair, q: Pair, stddev: float, order: float) -> float:
    def log_density(pair: Pair, x: float) -> float:
        return float(np.logaddexp.reduce([math.log(w) + norm.logpdf(x, m, stddev) for w, m in pair]))

    def integrand(x: float) -> float:
        return math.exp(order * log_density(p, x) + (1 - order) * log_density(q, x))

    edges = np.linspace(-2 * order - 12 * stddev, 2 * order + 12 * stddev, 13)
    total = sum(quad(integrand, a, b, epsabs=1e-14, epsrel=1e-10)[0] for a, b in itertools.pairwise(edges))
    return math.log(total) / (order - 1)


@pytest.mark.at_once("0.01-3.0")
@pytest.mark.parametrize("stddev", [0.8, 3.0])
@pytest.mark.parametrize("rate", [0.3, 0.01])
def test_the_trapezoid_is_the_integral(stddev: float, rate: float) -> None:
    orders = (1.1, 2.0, 4.7)
    near, far = ((1 - rate, 0.0), (rate, -1.0)), ((1 - rate, 0.0), (rate, 1.0))
    found = poisson_replace_one(rate, stddev, orders)
    expected = [by_quadrature(near, far, stddev, order) for order in orders]
    assert found == pytest.approx(expected, rel=1e-6, abs=1e-11)
    nothing, mixed = ((1.0, 0.0),), ((1 - rate, 1.0), (rate, 1.7))
    both = mixture_add_or_remove(stddev, rate, 0.7, orders)
    for value, order in zip(both, orders, strict=True):
        ways = [by_quadrature(*pair, stddev, order) for pair in ((nothing, mixed), (mixed, nothing))]
        assert value == pytest.approx(max(ways), rel=1e-6, abs=1e-11)


def test_known_divergences_are_found_from_above() -> None:
    orders = (1.1, 1.5, 2.0, 8.0, 64.0, 256.0)
    everybody = mixture_add_or_remove(5.0, 1.0, 0.5, orders)
    exact = np.asarray(orders) * 1.5**2 / (2 * 5.0**2)
    assert np.all(everybody >= exact)
    assert everybody == pytest.approx(exact, rel=1e-9)
    # Moving both means is at least as bad as moving one, and at most as bad as a Gaussian of twice the sensitivity.
    library = RdpAccountant([*orders])
    library.compose(dp_accounting.PoissonSampledDpEvent(0.05, dp_accounting.GaussianDpEvent(2.0)))
    replaced = poisson_replace_one(0.05, 2.0, orders)
    assert np.all(replaced >= library.rdp)
    assert np.all(replaced <= np.asarray(orders) * 4 / (2 * 2.0**2))


def test_too_much_work_is_an_infinite_bound_and_never_a_wrong_one() -> None:
    found = poisson_replace_one(0.01, 0.05, (1.1, 2.0, 256.0))
    assert math.isfinite(found[0])
    assert found[-1] == math.inf
    assert epsilon(Repeated(SampledEvent(Poisson(0.01), GaussianEvent(0.01)), 100), 1e-12, REPLACE) > 100


@pytest.mark.later("1e-05-0.5", "1e-05-6.0")
@pytest.mark.parametrize("multiplier", [0.5, 1.35, 6.0])
@pytest.mark.parametrize("at", [1e-5, 1e-9])
def test_it_is_above_the_loss_distribution_and_close(multiplier: float, at: float) -> None:
    for event, relation in (
        (SampledEvent(Poisson(0.01), GaussianEvent(multiplier)), REPLACE),
        (SampledEvent(Poisson(0.3), GaussianEvent(10 * multiplier)), REPLACE),
        (MixtureEvent(100 * multiplier, 0.01, 25.0), ADD),
    ):
        plan = Repeated(event, 500)
        renyi, pld = (epsilon(plan, at, relation, accountant=name) for name in ("renyi", "pld"))
        assert pld <= renyi <= 1.15 * pld


def test_stochastic_gradients_are_priced_at_one_over_n_squared() -> None:
    plan = Repeated(SampledEvent(Poisson(0.01), GaussianEvent(2.0)), 1000)
    at = 1 / 200_000**2
    absent = Repeated(SampledEvent(Poisson(0.01), GaussianEvent(4.0)), 1000)  # the same deviation
    assert epsilon(absent, at, ADD) < epsilon(plan, at, REPLACE)
    assert (
        epsilon(plan, 1.01e-10, REPLACE)
        < epsilon(plan, 0.99e-10, REPLACE)
        < epsilon(plan, at, REPLACE)
        < 1.02
    )
