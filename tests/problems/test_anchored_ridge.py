"""Two ridges in one: value, gradient and proximal map agree."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from privopt.planning.coordinates import AnchoredRidge
from privopt.precision import double_precision
from privopt.problems.regularisers import MappedRidge


def penalty():
    rng = np.random.default_rng(0)
    matrix = rng.normal(size=(3, 3))
    mapped = MappedRidge(jnp.asarray(matrix @ matrix.T), jnp.asarray([0.2, 0.1, 0.0]))
    return AnchoredRidge(mapped, jnp.asarray(0.7), jnp.asarray(rng.normal(size=3)))


def test_the_gradient_is_that_of_the_value():
    with double_precision():
        ridge, at = penalty(), jnp.asarray([0.3, -1.0, 2.0])
        np.testing.assert_allclose(ridge.gradient(at), jax.grad(ridge.value)(at), rtol=1e-10)


def test_the_full_proximal_map_is_where_its_gradient_vanishes():
    with double_precision():
        ridge, at, step = penalty(), jnp.asarray([0.3, -1.0, 2.0]), 0.4
        found = ridge.full_prox(at, step)
        np.testing.assert_allclose(ridge.gradient(found) + (found - at) / step, 0.0, atol=1e-10)
        assert ridge.prox(at, step) is at


def test_the_curvatures_enclose_the_hessian():
    with double_precision():
        ridge = penalty()
        spectrum = np.linalg.eigvalsh(jax.hessian(ridge.value)(jnp.zeros(3)))
        assert ridge.is_smooth
        assert ridge.strong_convexity == pytest.approx(spectrum[0])
        assert ridge.smoothness == pytest.approx(spectrum[-1])
