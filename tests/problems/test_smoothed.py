"""Randomized smoothing: points uniform in the ball, new ones at each step, unbiased for the smoothed loss."""

import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import sparse, stats

from privopt.data.units import Units
from privopt.engine.in_process import InProcessEngine
from privopt.engine.reference import ReferenceEngine
from privopt.precision import double_precision
from privopt.problems import losses
from privopt.queries.slopes import ClippedGradient
from privopt.solvers.randomized_smoothing import ball_point, randomly_smoothed

D, MANY = 4, 5_000
AT = np.array([0.3, -0.2, 0.5, 1.0])


@pytest.fixture(autouse=True)
def double():
    with double_precision():
        yield


@partial(jax.jit, static_argnames="seed")
def _points(params, rows, targets, *, seed):
    return jax.vmap(lambda a, y: ball_point(params, a, y, seed=seed))(rows, targets)


def points(params, rows, targets, seed=0):
    """Of many records at once, padded to one shape: one compilation serves all."""
    padded = np.zeros((MANY, D)), np.zeros(MANY)
    padded[0][: len(rows)], padded[1][: len(rows)] = rows, targets
    found = _points(jnp.asarray(params), *(jnp.asarray(part) for part in padded), seed=seed)
    return np.asarray(found)[: len(rows)]


def table(count=MANY, seed=0):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(count, D)), np.sign(rng.normal(size=count))


def uniform_in_the_ball(z):
    """p-values: of the radius, of each direction's projection, and of the signs."""
    radii = np.linalg.norm(z, axis=1)
    found = [stats.kstest(radii**D, "uniform").pvalue]
    # A coordinate of a uniform direction in D dimensions: (1 + u) / 2 is Beta((D - 1) / 2, (D - 1) / 2).
    beta = stats.beta((D - 1) / 2, (D - 1) / 2)
    directions = z / radii[:, None]
    found += [stats.kstest((1.0 + directions[:, j]) / 2.0, beta.cdf).pvalue for j in range(D)]
    return min(found)


def test_points_are_uniform_in_the_ball():
    rows, targets = table()
    assert uniform_in_the_ball(points(AT, rows, targets)) > 1e-4


def test_records_that_differ_little_have_points_that_have_nothing_to_do_with_one_another():
    rows, targets = np.tile(AT, (MANY, 1)), np.arange(MANY) * 1e-3
    z = points(AT, rows, targets)
    assert uniform_in_the_ball(z) > 1e-4
    assert abs(np.corrcoef(z[:-1].ravel(), z[1:].ravel())[0, 1]) < 5.0 / math.sqrt(D * MANY)
    binary = (np.arange(2**12)[:, None] >> np.arange(12)) % 2  # tables of zeros and ones
    draw = jax.jit(jax.vmap(lambda a: ball_point(jnp.asarray(AT), a, jnp.asarray(1.0))))
    z = np.asarray(draw(jnp.asarray(binary, np.float64)))
    assert len(np.unique(z[:, 0])) == len(z)
    assert uniform_in_the_ball(z) > 1e-4


@pytest.mark.parametrize("step", [1e-6, 1e-2, 1.0])
def test_each_step_has_points_of_its_own(step):
    rows, targets = table()
    first, second = points(AT, rows, targets), points(AT + step, rows, targets)
    for other in (second, points(AT, rows, targets, seed=1)):
        assert abs(np.mean(np.sum(first * other, axis=1))) < 5.0 / math.sqrt(MANY)
        assert uniform_in_the_ball(other) > 1e-4


def test_a_point_is_a_function_of_parameters_and_record():
    rows, targets = table(50)
    order = np.random.default_rng(1).permutation(50)
    np.testing.assert_array_equal(points(AT, rows, targets)[order], points(AT, rows[order], targets[order]))
    np.testing.assert_array_equal(points(AT + 1e-12, rows, targets), points(AT, rows, targets))
    zeros = np.zeros((2, D)) * np.array([[1.0], [-1.0]])
    left, right = points(AT, zeros, np.array([1.0, 1.0]))
    np.testing.assert_array_equal(left, right)


@pytest.mark.at_once("Quantile(level=0.3, smoothing=0.0)")
@pytest.mark.parametrize("loss", [losses.absolute(), losses.quantile(0.3), losses.hinge], ids=str)
def test_the_gradient_is_unbiased_for_the_smoothed_loss(loss):
    """Against the closed form: z in a direction has density (1 - t^2)^((D - 1) / 2) over the ball."""
    radius, row, target = 0.7, np.array([0.3, -0.4, 0.5, 0.1]), 1.0
    smooth = randomly_smoothed(loss, radius)
    many = 8 * MANY
    at = AT + 1e-4 * np.arange(many)[:, None] / many * np.ones(D)  # new keys; the loss hardly moves
    gradients = jax.jit(jax.vmap(lambda w: smooth.gradient(w, jnp.asarray(row), jnp.asarray(target))))(at)
    t = np.linspace(-1.0, 1.0, 20_001)
    density = (1.0 - t**2) ** ((D - 1) / 2)
    slopes = np.asarray(loss.slope(jnp.asarray(row @ AT + radius * np.linalg.norm(row) * t), target))
    expected = np.sum(slopes * density) / np.sum(density) * row
    spread = np.linalg.norm(row) / math.sqrt(many)
    np.testing.assert_allclose(np.mean(gradients, axis=0), expected, atol=5.0 * spread)
    values = jax.jit(jax.vmap(lambda w: smooth.value(w, jnp.asarray(row), jnp.asarray(target))))(at)
    plain = float(loss.value(jnp.asarray(row @ AT), target))
    assert np.max(np.abs(np.asarray(values) - plain)) <= radius * np.linalg.norm(row) + 1e-4


@pytest.mark.audit
def test_the_gradient_is_that_of_the_loss_at_the_shifted_point():
    def own(params, features, target):
        return jnp.sum(jnp.abs(params)) * target + jnp.abs(features @ params)

    row, target = np.array([0.3, -0.4, 0.5, 0.1]), 0.5
    smooth = randomly_smoothed(losses.RecordLoss(own, lipschitz=3.0), 0.2)
    shifted = AT + 0.2 * points(AT, row[None], np.array([target]))[0]
    expected = jax.grad(own)(jnp.asarray(shifted), row, target)
    np.testing.assert_allclose(smooth.gradient(jnp.asarray(AT), row, target), expected, rtol=1e-12)
    assert smooth.lipschitz == 3.0
    assert smooth == randomly_smoothed(losses.RecordLoss(own, lipschitz=3.0), 0.2)


@pytest.mark.parametrize("radius", [-1.0, math.inf, math.nan])
def test_a_radius_that_is_none_is_refused(radius):
    with pytest.raises(ValueError, match="radius must be at least 0"):
        randomly_smoothed(losses.hinge, radius)


@pytest.mark.at_once("csr-records")
@pytest.mark.parametrize("groups", [None, np.arange(60) // 3], ids=["records", "users"])
@pytest.mark.parametrize("layout", ["dense", "csr"])
def test_every_engine_sums_the_same_gradients_in_any_order(groups, layout):
    rows, targets = table(60)
    smooth = randomly_smoothed(losses.hinge, 0.5)
    query = ClippedGradient(loss=smooth, at=jnp.asarray(AT), clip=0.4)
    order = np.random.default_rng(2).permutation(60)
    sums = []
    for place in (np.arange(60), order):
        x = sparse.csr_array(rows[place]) if layout == "csr" else rows[place]
        keys = None if groups is None else groups[place]
        units = Units.from_arrays(x, targets[place], row_bound=1.0, groups=keys)
        sums += [engine(units).clipped_sum(query) for engine in (InProcessEngine, ReferenceEngine)]
    for other in sums[1:]:
        np.testing.assert_allclose(other, sums[0], rtol=1e-12, atol=1e-14)
