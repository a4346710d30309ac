"""What is predicted, as a value: it undoes its own scaling and is all that an estimator adds to its arguments."""

from typing import Any

import numpy as np
import pytest
from tests.support.configured_estimators import CLASSIFIERS, EVERY_ESTIMATOR, WIDTH, configured, toy_data

from privopt.estimators.base import PrivateLinearModel
from privopt.estimators.linear import HuberRegressor, LinearRegression, PoissonRegressor
from privopt.estimators.records import Shape


@pytest.mark.parametrize("kind", EVERY_ESTIMATOR)
def test_a_kind_of_target_goes_with_every_estimator(kind: Any) -> None:
    target = configured(kind)._target(toy_data(kind)[1])
    assert (target.labels is None) == (target.scaling is not None) == (kind not in CLASSIFIERS)
    assert ("max_rate_" in target.attributes) == (kind is PoissonRegressor)


@pytest.mark.parametrize("kind", EVERY_ESTIMATOR)
def test_an_estimator_adds_one_hidden_method_to_what_all_share(kind: Any) -> None:
    shared = {name for base in kind.__mro__[1:] for name in vars(base)}
    hidden = {name for name in vars(kind) if name.startswith("_") and not name.startswith("__")}
    assert {name for name in hidden if callable(getattr(kind, name))} - {"_abc_impl"} <= {"_target", "_loss"}
    assert "_target" in shared
    assert PrivateLinearModel.__abstractmethods__ == {"_target"}


@pytest.mark.parametrize("kind", EVERY_ESTIMATOR)
def test_released_numbers_come_back_from_the_given_units(kind: Any) -> None:
    setup = configured(kind, bounds=(-3.0, 5.0))._setup(Shape(width=WIDTH, n=50, by_user=False), None)
    params = np.linspace(-1.0, 2.0, WIDTH + 1)
    np.testing.assert_allclose(setup.scaled(*setup.unscaled(params))[0], params, rtol=0, atol=1e-12)


def test_a_threshold_in_given_units_is_scaled_with_the_target() -> None:
    loss = configured(HuberRegressor, target_bounds=(0.0, 4.0), threshold=1.0)._target(None).loss
    assert loss == configured(HuberRegressor, target_bounds=(0.0, 8.0), threshold=2.0)._target(None).loss


def test_a_specification_does_not_follow_the_model_that_it_was_made_of() -> None:
    model = configured(LinearRegression)
    given = model._specification()
    model.set_params(fit_intercept=False, alpha=None, penalty="l1")
    assert given.fit_intercept
    assert given.penalty.penalty is None
    with pytest.raises(AttributeError, match="cannot assign to field"):
        given.n = 3
