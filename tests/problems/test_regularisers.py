from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from privopt.problems.regularisers import L1, ElasticNet, GroupLasso, NoRegulariser, Regulariser, Ridge

SIZE = 4
BATCH = 300  # one compilation for each regulariser
WEIGHTS = (1.0, 0.0, 2.0, 0.5)
EVERY = [
    NoRegulariser(),
    Ridge(0.7),
    Ridge(0.7, WEIGHTS),
    L1(0.4),
    L1(0.4, WEIGHTS),
    ElasticNet(0.4, 1.0),
    ElasticNet(0.4, 1.0, WEIGHTS),
    GroupLasso(0.4, ((0, 2), (3,))),
    GroupLasso(0.4, ((0, 1), (2, 3)), l1=0.2),
]
every = pytest.mark.parametrize("regulariser", EVERY, ids=str)
vectors = st.lists(
    st.floats(-1e6, 1e6) | st.floats(-2.0, 2.0) | st.sampled_from([0.0, 1e200, -1e300]),
    min_size=SIZE,
    max_size=SIZE,
).map(np.asarray)


class At(NamedTuple):
    """What a regulariser says about one point."""

    value: np.ndarray
    gradient: np.ndarray
    whole_gradient: np.ndarray
    prox: np.ndarray
    full_prox: np.ndarray


@cache
def compiled(regulariser: Regulariser) -> Callable[[np.ndarray, float], At]:
    def at(w: jax.Array, step: jax.Array) -> At:
        whole_gradient = jax.grad(regulariser.value)(w)
        proximal = (regulariser.prox(w, step), regulariser.full_prox(w, step))
        return At(regulariser.value(w), regulariser.gradient(w), whole_gradient, *proximal)

    return jax.jit(jax.vmap(at, (0, None)))


def answer(regulariser: Regulariser, points: np.ndarray, step: float = 0.5) -> At:
    padded = np.zeros((BATCH, SIZE))
    padded[: len(points)] = points
    return At(*(np.asarray(each)[: len(points)] for each in compiled(regulariser)(padded, step)))


@pytest.mark.later(
    "GroupLasso(strength=0.4, groups=((0, 1), (2, 3)), l1=0.2)",
    "GroupLasso(strength=0.4, groups=((0, 2), (3,)), l1=0.0)",
    "Ridge(strength=0.7, weights=(1.0, 0.0, 2.0, 0.5))",
    "Ridge(strength=0.7, weights=None)",
)
@every
@given(left=vectors, right=vectors)
@example(left=np.zeros(SIZE), right=np.full(SIZE, 1e300))
def test_the_proximal_maps_are_firmly_non_expansive(
    regulariser: Regulariser, left: np.ndarray, right: np.ndarray
) -> None:
    scale = max(np.abs(left).max(), np.abs(right).max(), 1.0)
    at = answer(regulariser, np.stack([left, right]))
    for a, b in (at.prox / scale, at.full_prox / scale):
        assert (a - b) @ (left / scale - right / scale) >= (a - b) @ (a - b) - 1e-12


@every
def test_the_full_proximal_map_minimises_its_definition(regulariser: Regulariser) -> None:
    rng = np.random.default_rng(3)
    for step in (0.1, 0.5, 3.0):
        w = rng.normal(size=SIZE)
        best = answer(regulariser, w[None], step).full_prox[0]
        moves = rng.normal(size=(BATCH, SIZE)) * rng.choice([1e-3, 0.1, 1.0], (BATCH, 1))
        moves[:50] = -best * (rng.random((50, SIZE)) < 0.5)
        moves[0] = 0.0
        others = best + moves
        costs = 0.5 * np.sum((others - w) ** 2, axis=1) + step * answer(regulariser, others).value
        assert np.all(costs - costs[0] >= 0.5 * np.sum(moves**2, axis=1) - 1e-12)


@every
def test_a_gradient_step_then_prox_has_the_minimiser_as_fixed_point(regulariser: Regulariser) -> None:
    anchor = np.asarray([[1.0, -0.3, 0.05, 0.6]])
    minimiser = answer(regulariser, anchor, 1.0).full_prox  # of ||w - anchor||^2 / 2 + penalty
    slope = minimiser - anchor + answer(regulariser, minimiser).gradient
    for step in (0.1, 0.8):
        again = answer(regulariser, minimiser - step * slope, step).prox
        np.testing.assert_allclose(again, minimiser, atol=1e-14)


@every
def test_the_gradient_is_that_of_the_smooth_part(regulariser: Regulariser) -> None:
    w = np.asarray([0.3, -0.2, 0.5, -1.1])
    at = answer(regulariser, np.stack([w, 2.0 * w]))
    rest = at.whole_gradient - at.gradient  # of the remainder
    if regulariser.is_smooth:
        np.testing.assert_allclose(rest, 0.0, atol=1e-15)
        np.testing.assert_array_equal(at.prox[0], w)
    else:  # The remainder is positively homogeneous, so its gradient does not change along the ray.
        np.testing.assert_allclose(rest[0], rest[1], atol=1e-14)
    grown, size = at.gradient[1] - at.gradient[0], np.linalg.norm(w)
    assert np.linalg.norm(grown) <= regulariser.smoothness * size * (1 + 1e-12)
    assert grown @ w >= regulariser.strong_convexity * size**2 * (1 - 1e-12)
    assert np.all(np.isfinite(answer(regulariser, np.zeros((1, SIZE))).whole_gradient))


def test_reference_values_of_the_specification() -> None:
    v = np.asarray([1.0, -0.3, 0.05])

    @jax.jit
    def three(v: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        grouped = GroupLasso(0.4, ((0, 1), (2,))).prox(v, 0.5)
        return L1(0.4).prox(v, 0.5), ElasticNet(0.4, 1.0).full_prox(v, 0.5), grouped

    soft, elastic, grouped = three(v)
    np.testing.assert_allclose(soft, [0.8, -0.1, 0.0], atol=1e-12)
    np.testing.assert_allclose(elastic, [0.5333333333, -0.0666666667, 0.0], atol=1e-9)
    np.testing.assert_allclose(grouped, [0.7290858154, -0.2187257446, 0.0], atol=1e-9)


def test_a_matrix_is_penalised_by_rows() -> None:
    w = np.random.default_rng(0).normal(size=(SIZE, 3))
    weighted, rows = ElasticNet(0.4, 1.0, WEIGHTS), GroupLasso(0.3, ((1,), (0, 3)))
    by_column = jax.vmap(lambda column: weighted.full_prox(column, 0.5), 1, 1)
    np.testing.assert_allclose(weighted.full_prox(jnp.asarray(w), 0.5), jax.jit(by_column)(w), rtol=1e-14)
    shrunk, value = jax.jit(lambda w: (rows.prox(w, 0.5), rows.value(w)))(w)
    pair = np.linalg.norm(w[[0, 3]])
    np.testing.assert_array_equal(shrunk[2], w[2])
    np.testing.assert_allclose(shrunk[0], max(1.0 - 0.15 * np.sqrt(2.0) / pair, 0.0) * w[0], rtol=1e-13)
    assert float(value) == pytest.approx(0.3 * (np.linalg.norm(w[1]) + np.sqrt(2.0) * pair), rel=1e-13)


def test_regularisers_are_static_values() -> None:
    assert hash(L1(0.4, WEIGHTS)) == hash(L1(0.4, WEIGHTS))
    assert ElasticNet(0.0, 0.4).is_smooth
    assert Ridge(2.0, WEIGHTS).strong_convexity == 0.0
    assert (Ridge(2.0).strong_convexity, Ridge(2.0, WEIGHTS).smoothness) == (2.0, 4.0)


def test_wrong_arguments_are_refused_with_a_sentence() -> None:
    with pytest.raises(ValueError, match="strength must be at least 0 and finite, got -1"):
        Ridge(-1.0)
    with pytest.raises(ValueError, match="weights must be a non-empty tuple"):
        L1(1.0, (1.0, -2.0))
    with pytest.raises(ValueError, match="groups must be disjoint"):
        GroupLasso(1.0, ((0, 1), (1, 2)))
    with pytest.raises(ValueError, match="got 4 weights for 3 coordinates"):
        L1(1.0, WEIGHTS).prox(jnp.ones(3), 0.5)
    with pytest.raises(ValueError, match="groups name coordinate 3, but there are 3"):
        GroupLasso(1.0, ((0, 3),)).prox(jnp.ones(3), 0.5)
