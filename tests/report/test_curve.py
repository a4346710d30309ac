import math

import pytest
from scipy.stats import norm

from privopt.ledger import accounting
from privopt.ledger.events import (
    GaussianEvent,
    NoEvent,
    NonPrivateEvent,
    Poisson,
    PureEvent,
    Repeated,
    SampledEvent,
)
from privopt.public import Relation
from privopt.report.curve import privacy_curve, sure

REPLACE = Relation.REPLACE_ONE


def test_the_gaussian_curve_is_dense_and_gives_the_exact_best_guess() -> None:
    multiplier, steps = 20.0, 25
    mu = math.sqrt(steps) / multiplier
    curve = privacy_curve(Repeated(GaussianEvent(multiplier), steps), REPLACE, 1e-6, None)
    assert curve.exact
    assert len(curve.deltas) > 50
    assert 1e-6 in curve.deltas
    assert curve.best_guess == pytest.approx(norm.cdf(mu / 2), abs=1e-9)
    assert list(curve.epsilons) == sorted(curve.epsilons, reverse=True)


@pytest.mark.parametrize("epsilon", [0.3, 1.0, 1.5])
def test_the_surprise_bounds_the_true_probability_of_a_large_privacy_loss(epsilon: float) -> None:
    mu = 0.25
    curve = privacy_curve(GaussianEvent(1 / mu), REPLACE, 1e-6, None)
    truth = norm.sf(epsilon / mu - mu / 2)  # the loss is N(mu^2 / 2, mu^2)
    assert truth <= curve.surprise(epsilon) <= 5 * truth


@pytest.mark.audit
def test_a_sampled_curve_has_few_points_and_contains_the_priced_one() -> None:
    event = Repeated(SampledEvent(Poisson(0.01), GaussianEvent(1.2)), 200)
    curve = privacy_curve(event, REPLACE, 1e-6, None)
    assert not curve.exact
    assert len(curve.deltas) <= 20
    priced = dict(zip(curve.deltas, curve.epsilons, strict=True))[1e-6]
    assert priced == accounting.epsilon(event, 1e-6, REPLACE)
    assert 0.5 < curve.best_guess < (math.exp(priced) + 1e-6) / (1 + math.exp(priced))


def test_pure_free_and_noiseless_runs_have_their_obvious_guesses() -> None:
    pure = privacy_curve(PureEvent(0.5), REPLACE, 0.0, None)
    assert 0.5 <= pure.best_guess <= sure(0.5) + 1e-6
    assert privacy_curve(NoEvent(), REPLACE, 1e-6, None).best_guess == pytest.approx(0.5, abs=1e-6)
    off = privacy_curve(NonPrivateEvent(), REPLACE, 1e-6, None)
    assert off.deltas == ()
    assert off.best_guess == 1.0
    assert off.surprise(1.0) == 1.0
