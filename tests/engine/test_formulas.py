"""The compiled formulas: equal to the losses they stand for."""

from collections.abc import Iterator

import jax.numpy as jnp
import numpy as np
import pytest

from privopt import compilation
from privopt.engine import kernels
from privopt.precision import double_precision
from privopt.problems import losses

SCALAR_LOSSES = [
    losses.logistic,
    losses.squared,
    losses.huber(0.5),
    losses.smoothed_hinge(0.5),
    losses.quantile(0.3),
    losses.quantile(0.3, smoothing=0.2),
    losses.poisson(2.0, 5.0),
    losses.ramp(0.0),
    losses.ramp(0.5),
    losses.capped(0.7, width=0.0),
    losses.capped(0.7, width=0.3),
    losses.capped(0.7, "squared", width=0.0),
    losses.capped(0.7, "squared", width=0.3),
]


@pytest.fixture(autouse=True)
def _double() -> Iterator[None]:
    with double_precision():
        yield


def test_the_exponential_is_right_to_1e_13() -> None:
    at = np.concatenate([np.linspace(-707, 707, 2001), np.linspace(-1, 1, 2001), [0.0, 1e-300, -1e-17]])
    found = np.array([kernels.exponential(x) for x in at])
    assert np.max(np.abs(found / np.exp(at) - 1)) < 1e-13
    assert kernels.exponential(0.0) == 1.0
    assert 0 < kernels.exponential(-1e9) < 1e-300
    assert 1e300 < kernels.exponential(1e9) < np.inf


@pytest.mark.parametrize("loss", SCALAR_LOSSES, ids=str)
def test_a_formula_equals_the_losses_slope(loss: losses.GLMLoss) -> None:
    predictions = np.concatenate([np.linspace(-3, 3, 61), [-1e3, 1e3, -40.0, 40.0, 1e-9]])
    facts = loss.facts
    assert facts.kernel_code in kernels.FORMULAS
    for target in (-1.0, 1.0, 0.0, 0.7, 9.0):
        found = np.empty(len(predictions))
        targets = np.full(len(predictions), target)
        kernels.slopes(
            int(facts.kernel_code), *facts.kernel_parameters, predictions, targets, len(predictions), found
        )
        expected = loss.slope(jnp.asarray(predictions), jnp.asarray(targets))
        np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-13)


def test_a_prediction_that_is_not_finite_has_no_slope() -> None:
    for loss in SCALAR_LOSSES:
        found = np.empty(3)
        code = int(loss.facts.kernel_code or 0)
        kernels.slopes(
            code, *loss.facts.kernel_parameters, np.array([np.nan, np.inf, -np.inf]), np.ones(3), 3, found
        )
        assert np.isnan(found).all()


def test_an_unknown_formula_has_no_slope() -> None:
    found = np.zeros(1)
    kernels.slopes(99, 0.0, 0.0, np.zeros(1), np.zeros(1), 1, found)
    assert np.isnan(found).all()


def test_cached_kernels_count_as_old_when_any_file_of_the_engine_changes():
    compiled = [thing for thing in vars(kernels).values() if hasattr(thing, "_cache")]
    assert len(compiled) > 5
    for function in compiled:
        assert function._cache._cache_file._source_stamp[1] == compilation._digest_of_sources()
