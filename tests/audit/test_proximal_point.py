"""Statistics of the proximal point method: the excess on a sharp minimum falls with the exponent of its theory."""

import numpy as np
import pytest
from tests.support.exact_curator import exact_run

from privopt import zoo
from privopt.ledger.amounts import Budget
from privopt.solvers.kl_proximal_point import KLProximalPoint

pytestmark = pytest.mark.audit

RATES = {1_000: 1.1e-3, 3_000: 7.3e-5, 10_000: 3.8e-6, 30_000: 2.7e-7, 100_000: 1.6e-8}


def test_the_excess_on_the_power_three_halves():
    """kappa = 3, so 3 is the exponent that no method exceeds; the inner steps limit this one to about 2.4."""
    sharp = zoo.power(p=1.5, d=10)
    solver = KLProximalPoint(clip=sharp.lipschitz)
    means = {
        n: np.mean(
            [
                exact_run(solver, sharp, n, budget=Budget(1.0, 1e-6), noise=seed, bind=True)[1]
                for seed in range(6)
            ]
        )
        for n in RATES
    }
    slope = np.polyfit(np.log(list(means)), np.log(list(means.values())), 1)[0]
    assert -2.6 < slope < -2.2
    for n, expected in RATES.items():
        assert expected / 2.0 < means[n] < expected * 2.0
