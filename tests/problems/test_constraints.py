import math
from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from privopt.problems.constraints import (
    Box,
    CentredBall,
    Constraint,
    L1Ball,
    L2Ball,
    LpBall,
    Polytope,
    Product,
    Simplex,
    Unconstrained,
)

SIZE = 5
BOUNDED = [
    L2Ball(0.8),
    CentredBall((0.3, -0.2, 0.0, 1.0, -0.4), 0.8),
    L1Ball(0.8),
    LpBall(0.8, 1.5),
    LpBall(2.0, 1.05),
    LpBall(1.0, 2.0),
    Box(-0.5, 1.0),
    Box((-1.0, 0.0, -0.2, 0.3, -2.0), (1.0, 0.0, 0.2, 0.5, 4.0)),
    Simplex(),
    Simplex(2.5),
    Polytope(
        np.random.default_rng(3).normal(size=(7, SIZE))[[0, 1, 2, 3, 4, 5, 6, 6]] + 0.7
    ),  # off the origin
    Product(((L1Ball(1.0), 2), (Box(-1.0, 2.0), 1), (Simplex(0.5), 2))),
]
EVERY = [Unconstrained(), Box(0.0, math.inf), *BOUNDED]
bounded = pytest.mark.parametrize("constraint", BOUNDED, ids=str)
every = pytest.mark.parametrize("constraint", EVERY, ids=str)
entries = st.floats(-1e6, 1e6) | st.floats(-2.0, 2.0) | st.sampled_from([0.0, 0.3, 1e-200, 1e200, -1e300])
vectors = st.lists(entries, min_size=SIZE, max_size=SIZE).map(np.asarray)


BATCH = 96  # one compilation for each set


class At(NamedTuple):
    """What a set says about one point w."""

    nearest: np.ndarray
    contained: np.ndarray  # the nearest point
    again: np.ndarray  # its own nearest point
    furthest: np.ndarray  # where <w - nearest, .> is largest
    minimiser: np.ndarray  # where <w, .> is least


@cache
def compiled(constraint: Constraint) -> Callable[[np.ndarray], At]:
    def at(w: jax.Array) -> At:
        nearest = constraint.project(w)
        furthest, minimiser = constraint.linear_minimiser(nearest - w), constraint.linear_minimiser(w)
        if furthest is None or minimiser is None:
            furthest, minimiser = nearest, nearest
        again = constraint.project(nearest)
        return At(nearest, constraint.contains(nearest), again, furthest, minimiser)

    return jax.jit(jax.vmap(at))


def answer(constraint: Constraint, points: np.ndarray) -> At:
    padded = np.zeros((BATCH, SIZE))
    padded[: len(points)] = points
    return At(*(np.asarray(each)[: len(points)] for each in compiled(constraint)(padded)))


def some_points() -> np.ndarray:
    rng = np.random.default_rng(5)
    points = rng.normal(size=(BATCH, SIZE)) * rng.choice([0.1, 0.5, 2.0, 20.0], (BATCH, 1))
    points[:20, :3] = 0.7  # ties
    corners = np.concatenate([np.eye(SIZE), -np.eye(SIZE), np.ones((1, SIZE)), -np.ones((1, SIZE))])
    points[20 : 20 + len(corners)] = corners
    return points


@pytest.mark.at_once(
    "Box(low=(-1.0, 0.0, -0.2, 0.3, -2.0), high=(1.0, 0.0, 0.2, 0.5, 4.0))",
    "Box(low=-0.5, high=1.0)",
    "Box(low=0.0, high=inf)",
    "L2Ball(radius=0.8)",
    "Unconstrained()",
)
@every
@given(left=vectors, right=vectors)
@example(left=np.zeros(SIZE), right=np.full(SIZE, 1e308))
@example(left=np.full(SIZE, 0.3), right=np.eye(SIZE)[1] * -1e300)
def test_projections_are_firmly_non_expansive_idempotent_and_land_in_the_set(
    constraint: Constraint, left: np.ndarray, right: np.ndarray
) -> None:
    at = answer(constraint, np.stack([left, right]))
    assert np.all(at.contained)
    np.testing.assert_allclose(at.again, at.nearest, rtol=1e-12, atol=1e-12)
    scale = max(np.abs(left).max(), np.abs(right).max(), 1.0)
    moved = at.nearest[0] / scale - at.nearest[1] / scale
    assert moved @ (left / scale - right / scale) >= moved @ moved - 1e-12


@bounded
def test_the_projection_is_the_nearest_point(constraint: Constraint) -> None:
    # <w - P(w), u - P(w)> <= 0 for all u in the set; the linear minimiser gives the worst u.
    points = some_points()
    at = answer(constraint, points)
    excess = np.sum((points - at.nearest) * (at.furthest - at.nearest), axis=1)
    assert np.all(excess <= 1e-11 * (1.0 + np.sum(points**2, axis=1)))


@bounded
def test_the_linear_minimiser_beats_every_point_and_lies_in_the_set(constraint: Constraint) -> None:
    rng = np.random.default_rng(2)
    points = answer(constraint, some_points()).nearest
    gradients = np.stack(
        [rng.normal(size=SIZE), 1e150 * rng.normal(size=SIZE), np.eye(SIZE)[2], np.zeros(SIZE)]
    )
    best = answer(constraint, gradients).minimiser
    np.testing.assert_allclose(answer(constraint, best).nearest, best, rtol=1e-11, atol=1e-13)
    scaled = gradients / np.maximum(np.abs(gradients).max(axis=1, keepdims=True), 1.0)
    assert np.all(points @ scaled.T >= np.sum(best * scaled, axis=1) - 1e-12)


@bounded
def test_no_two_points_are_further_apart_than_the_diameter(constraint: Constraint) -> None:
    diameter = constraint.diameter_in((SIZE,))
    at = answer(constraint, some_points())
    points = np.concatenate([at.nearest, at.minimiser[:40]])
    distances = np.linalg.norm(points[:, None] - points[None], axis=-1)
    assert 0.999 * diameter <= distances.max() <= diameter * (1 + 1e-9)
    if math.isfinite(constraint.diameter):
        assert constraint.diameter == diameter


@pytest.mark.parametrize("constraint", [L2Ball(0.8), L1Ball(0.8), Simplex()], ids=str)
def test_projections_have_derivatives(constraint: Constraint) -> None:
    derivative = jax.jit(jax.jacobian(constraint.project))
    assert np.all(np.isfinite(derivative(np.zeros(SIZE))))
    w, step = np.asarray([-2.0, 0.4, 0.9, 1.0, 3.0]), 1e-6 * np.eye(SIZE)
    moved = answer(constraint, w + step).nearest - answer(constraint, w - step).nearest
    np.testing.assert_allclose(derivative(w), moved.T / 2e-6, atol=1e-8)


def test_a_matrix_is_the_vector_of_its_entries() -> None:
    matrix = np.random.default_rng(0).normal(size=(SIZE, 2))
    sets = (L2Ball(0.8), L1Ball(0.8), LpBall(0.8, 1.5))  # the l1 ball projects onto the simplex
    pairs = jax.jit(lambda w: [(each.project(w).ravel(), each.project(w.ravel())) for each in sets])
    for as_matrix, as_vector in pairs(matrix):
        np.testing.assert_array_equal(as_matrix, as_vector)
    by_rows = Box((-1.0, 0.0, -0.2, 0.3, -2.0), (1.0, 0.0, 0.2, 0.5, 4.0))
    column = by_rows.project(jnp.asarray(matrix[:, 1]))
    np.testing.assert_array_equal(by_rows.project(jnp.asarray(matrix))[:, 1], column)


def test_reference_value_of_the_specification() -> None:
    np.testing.assert_allclose(
        jax.jit(L1Ball(0.8).project)(np.asarray([1.0, -0.3, 0.05])), [0.75, -0.05, 0.0], atol=1e-12
    )


def test_linear_minimisers_are_vertices() -> None:
    gradient = jnp.asarray([0.1, -2.0, 1.5])
    cases = (
        (L1Ball(2.0), 1.0, [0.0, 2.0, 0.0]),
        (L1Ball(2.0), -1.0, [0.0, -2.0, 0.0]),
        (Simplex(2.0), 1.0, [0.0, 2.0, 0.0]),
        (Box(-1.0, 3.0), 1.0, [-1.0, 3.0, -1.0]),
    )
    vertices = jax.jit(lambda g: [each.linear_minimiser(sign * g) for each, sign, _ in cases])(gradient)
    for vertex, (_, _, expected) in zip(vertices, cases, strict=True):
        np.testing.assert_array_equal(vertex, expected)
    assert Unconstrained().linear_minimiser(gradient) is None
    assert Box(0.0, math.inf).linear_minimiser(gradient) is None
    assert Product(((L1Ball(1.0), 1), (Unconstrained(), 2))).linear_minimiser(gradient) is None


def test_diameters_that_depend_on_the_dimension_are_infinite_until_it_is_told() -> None:
    assert Box(-1.0, 1.0).diameter == math.inf
    assert Box(-1.0, 1.0).diameter_in((4, 4)) == pytest.approx(8.0)
    assert Unconstrained().diameter_in((3,)) == math.inf
    assert Product(((Box(0.0, 1.0), 9), (L2Ball(2.0), 3))).diameter == pytest.approx(5.0)


def test_constraints_are_static_values() -> None:
    assert hash(Product(((L1Ball(1.0), 2),))) == hash(Product(((L1Ball(1.0), 2),)))
    assert L1Ball(1.0) != L2Ball(1.0)


def test_wrong_arguments_are_refused_with_a_sentence() -> None:
    with pytest.raises(ValueError, match="radius must be positive and at most 1e\\+100, got 0"):
        L2Ball(0.0)
    with pytest.raises(ValueError, match=r"p must lie in \(1, 2\], got 1"):
        LpBall(1.0, 1.0)
    with pytest.raises(ValueError, match="low must be at most high"):
        Box((0.0, 1.0), (1.0, 0.5))
    with pytest.raises(ValueError, match="low must be at most high"):
        Box((0.0, 1.0), (1.0, 2.0, 3.0))
    with pytest.raises(ValueError, match="parts must be pairs"):
        Product(())
    with pytest.raises(ValueError, match="3 in all, but there are 4"):
        Product(((L2Ball(1.0), 3),)).project(jnp.ones(4))
    with pytest.raises(ValueError, match="the box has 2 coordinates, the parameters 3"):
        Box((0.0, 0.0), 1.0).project(jnp.ones(3))


def test_a_polytope_projects_as_the_set_that_it_is_written_for() -> None:
    points, simplex, same = some_points(), Polytope(2.5 * np.eye(SIZE)), Simplex(2.5)
    found, expected = answer(simplex, points).nearest, answer(same, points).nearest
    np.testing.assert_allclose(found, expected, rtol=1e-11, atol=1e-12)
    assert simplex.diameter == pytest.approx(same.diameter)


def test_a_polytope_of_one_point_is_that_point() -> None:
    point = Polytope([[1.0, -2.0]])
    np.testing.assert_array_equal(point.project(jnp.asarray([5.0, 5.0])), [1.0, -2.0])
    assert point.diameter == 0.0


@pytest.mark.parametrize("vertices", [[], [1.0, 2.0], [[1.0, math.nan]]])
def test_a_polytope_needs_a_matrix_of_finite_vertices(vertices: list[object]) -> None:
    with pytest.raises(ValueError, match=r"vertices must be a matrix of finite numbers with a point a row"):
        Polytope(vertices)


def test_a_polytope_refuses_parameters_of_another_size() -> None:
    with pytest.raises(ValueError, match=r"the vertices have 2 entries, the parameters 3"):
        Polytope([[0.0, 1.0]]).project(jnp.zeros(3))
