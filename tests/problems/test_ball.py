"""Ball averages: their constants, and points of balls and lunes."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special

from privopt.precision import double_precision
from privopt.problems.ball import (
    ball_point,
    first_coordinate_cdf,
    haar_block,
    lune_points,
    moved_share,
    smoothing_constant,
)


@pytest.mark.parametrize(
    ("dimension", "expected"),
    [(1, 1.0), (2, 1.273239544735), (3, 1.5), (10, 2.586899392478), (100, 7.998817343488)],
)
def test_the_smoothing_constant_has_its_reference_values(dimension, expected):
    assert smoothing_constant(dimension) == pytest.approx(expected, abs=1e-11)


def test_a_ball_needs_a_dimension():
    with pytest.raises(ValueError, match="dimension of at least 1"):
        smoothing_constant(0)


@pytest.mark.parametrize(
    ("distance", "radius", "dimension", "expected"),
    [
        (0.1, 1.0, 2, 0.063635441457),
        (0.1, 0.5, 3, 0.1495),
        (0.1, 0.5, 10, 0.254850092009),
        (0.3, 0.5, 10, 0.680684527521),
        (1.2, 0.5, 10, 1.0),
    ],
)
def test_the_moved_share_has_its_reference_values(distance, radius, dimension, expected):
    assert float(moved_share(distance, radius, dimension)) == pytest.approx(expected, abs=1e-11)


def test_the_moved_share_is_at_most_linear_in_the_distance():
    distances = np.linspace(0.0, 2.0, 50)
    for dimension in (1, 2, 7, 40):
        share = moved_share(distances, 1.0, dimension)
        assert np.all(share <= smoothing_constant(dimension) * distances / 2.0 + 1e-12)
        assert share[-1] == pytest.approx(1.0)


def test_a_haar_block_is_orthonormal_with_uniform_rows():
    with double_precision():
        blocks = jax.jit(jax.vmap(lambda key: haar_block(key, 3, 5)))(
            jax.random.split(jax.random.key(1), 4000)
        )
        products = jnp.einsum("bik,bjk->bij", blocks, blocks)
    np.testing.assert_allclose(products, np.broadcast_to(np.eye(3), products.shape), atol=1e-12)
    second_moments = np.mean(np.asarray(blocks)[:, :, :, None] * np.asarray(blocks)[:, :, None, :], axis=0)
    np.testing.assert_allclose(second_moments, np.broadcast_to(np.eye(5) / 5, (3, 5, 5)), atol=0.015)


def test_ball_points_follow_the_stated_law_of_a_coordinate():
    with double_precision():
        points = np.asarray(
            jax.jit(jax.vmap(lambda key: ball_point(key, 4)))(jax.random.split(jax.random.key(2), 8000))
        )
        assert np.all(np.linalg.norm(points, axis=1) <= 1.0)
        for place in (-0.6, -0.1, 0.0, 0.3, 0.8):
            share = float(first_coordinate_cdf(place, 4))
            assert np.mean(points[:, 0] <= place) == pytest.approx(share, abs=0.02)


@pytest.mark.audit
def test_lune_points_are_in_one_ball_and_outside_of_the_other():
    with double_precision():
        keys = jax.random.split(jax.random.key(3), 3000)
        for dimension, shift in ((1, 0.3), (6, 1.4), (6, 2.5)):
            at, anchor = jnp.zeros(dimension), jnp.zeros(dimension).at[0].set(shift)
            drawn = jax.jit(jax.vmap(lambda key, a=at, b=anchor: jnp.stack(lune_points(key, a, b, 1.0))))(
                keys
            )
            inside, mirrored = np.asarray(drawn)[:, 0], np.asarray(drawn)[:, 1]
            at, anchor = np.asarray(at), np.asarray(anchor)
            assert np.all(np.linalg.norm(inside - at, axis=1) <= 1.0 + 1e-12)
            assert np.all(np.linalg.norm(inside - anchor, axis=1) >= 1.0 - 1e-9)
            assert np.all(np.linalg.norm(mirrored - anchor, axis=1) <= 1.0 + 1e-12)
            assert np.all(np.linalg.norm(mirrored - at, axis=1) >= 1.0 - 1e-9)


def test_equal_centres_have_themselves_as_lune_points():
    with double_precision():
        at = jnp.asarray([0.2, -1.0])
        u, v = lune_points(jax.random.key(0), at, at, 0.5)
    assert np.array_equal(u, at)
    assert np.array_equal(v, at)


@pytest.mark.later("8")
@pytest.mark.parametrize("dimension", [1, 8])
def test_lunes_give_the_difference_of_ball_averages_of_a_sign(dimension):
    with double_precision():
        radius, shift = 0.5, 0.35
        direction = jnp.zeros(dimension).at[0].set(1.0)
        at, anchor = 0.1 * direction, (0.1 - shift) * direction
        keys = jax.random.split(jax.random.key(5), 20000)
        drawn = jax.jit(jax.vmap(lambda key: jnp.stack(lune_points(key, at, anchor, radius))))(keys)
        signs = np.sign(np.asarray(drawn)[:, :, 0])
        share = float(moved_share(shift, radius, dimension))
        estimated = share * np.mean(signs[:, 0] - signs[:, 1])
        exact = 2.0 * float(
            first_coordinate_cdf(0.1 / radius, dimension)
            - first_coordinate_cdf((0.1 - shift) / radius, dimension)
        )
    assert estimated == pytest.approx(exact, abs=0.02)


@pytest.mark.parametrize("dimension", [1, 2, 3, 10, 54, 1000, 100_000])
def test_the_law_of_a_coordinate_is_exact_and_of_one_number_alone(dimension: int) -> None:
    """The last bit too follows from the position itself, not from those that are computed beside it."""
    width = min(1.0, 12 / math.sqrt(dimension))
    places = np.concatenate((np.linspace(-width, width, 101), [-1.0, 0.0, 1.0, 1e-200, -1e-17]))
    share = special.betainc(0.5, (dimension + 1) / 2, places * places)
    with double_precision():
        found = np.asarray(first_coordinate_cdf(places, dimension))
        beside = np.asarray(first_coordinate_cdf(np.where(np.arange(106) % 2, places, 0.0), dimension))
    np.testing.assert_allclose(found, 0.5 + 0.5 * np.sign(places) * share, atol=1e-14)
    np.testing.assert_array_equal(found[1::2], beside[1::2])
    assert np.all(beside[::2] == 0.5)
