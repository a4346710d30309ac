import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from privopt.problems import losses
from privopt.problems.constraints import Box, Constraint, L1Ball, L2Ball, Product, Simplex, Unconstrained
from privopt.problems.losses import RecordLoss
from privopt.problems.problem import Problem, PytreeLayout
from privopt.problems.regularisers import L1, ElasticNet, GroupLasso, NoRegulariser, Regulariser, Ridge
from privopt.public import Public

PUBLIC = Public(n=8, d=3, row_bound=2.0)


def reference_data() -> tuple[jax.Array, jax.Array]:
    rows = np.sin(0.5 + 1.3 * np.arange(8)[:, None] + 0.7 * np.arange(3)[None])
    rows /= np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1.0)
    return jnp.asarray(rows), jnp.asarray(np.where(np.cos(2.0 * np.arange(8)) > 0, 1.0, -1.0))


def test_the_objective_is_that_of_the_specification() -> None:
    rows, signs = reference_data()
    assert float(rows.sum()) == pytest.approx(1.478221637971805, rel=1e-14)
    problem = Problem(losses.logistic, Ridge(0.1))
    at = jnp.asarray([-0.0559294056, -0.2324524522, -0.2996494784])
    value, gradient = jax.jit(jax.value_and_grad(problem.objective))(at, rows, signs)
    assert float(value) == pytest.approx(0.6748366266343765, rel=1e-14)
    assert float(jnp.max(jnp.abs(gradient))) < 1e-9


@pytest.mark.parametrize("loss", [losses.logistic, losses.softmax(4)], ids=str)
def test_record_gradients_are_derivatives_of_record_values(loss: losses.GLMLoss) -> None:
    problem = Problem(loss)
    rng = np.random.default_rng(0)
    params = jnp.asarray(rng.normal(size=problem.parameter_shape(PUBLIC)))
    features, target = jnp.asarray(rng.normal(size=3)), jnp.asarray(1.0)
    automatic = jax.jit(jax.grad(problem.record_value))(params, features, target)
    by_slope = jax.jit(problem.record_gradient)(params, features, target)
    np.testing.assert_allclose(by_slope, automatic, rtol=1e-13)


def test_parameters_have_a_row_per_feature_and_a_column_per_output() -> None:
    assert Problem(losses.squared).parameter_shape(PUBLIC) == (3,)
    assert Problem(losses.softmax(4)).parameter_shape(PUBLIC) == (3, 4)


def test_the_bounds_follow_from_the_row_bound() -> None:
    problem = Problem(losses.logistic, ElasticNet(0.3, 0.1))
    assert problem.smoothness(PUBLIC) == pytest.approx(0.25 * 4.0 + 0.1)
    assert problem.gradient_bound(PUBLIC) == 2.0
    assert Problem(losses.quantile(0.5)).smoothness(PUBLIC) == math.inf


def network(params: dict[str, jax.Array], features: jax.Array, target: jax.Array) -> jax.Array:
    hidden = jnp.tanh(params["inner"] @ features)
    return 0.5 * (jnp.sum(params["outer"] * hidden) + params["shift"] - target) ** 2


def template(scale: float = 1.0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(3)
    return {
        "inner": (scale * rng.normal(size=(2, 3))).astype(np.float32),
        "outer": (scale * rng.normal(size=2)).astype(np.float32),
        "shift": np.asarray(0.5 * scale, np.float32),
    }


def test_a_pytree_loss_is_the_same_loss_of_its_flat_vector() -> None:
    problem = Problem.from_pytree(network, template())
    flat = problem.ravel(template())
    assert flat.shape == problem.parameter_shape(PUBLIC) == (9,)
    assert flat.dtype == jnp.float64
    tree = problem.unravel(flat)
    jax.tree_util.tree_map(np.testing.assert_array_equal, tree, template())
    features, target = jnp.asarray([0.2, -1.0, 0.7]), jnp.asarray(0.3)
    by_tree = problem.ravel(jax.jit(jax.grad(network))(tree, features, target))
    np.testing.assert_allclose(jax.jit(problem.record_gradient)(flat, features, target), by_tree, rtol=1e-13)
    np.testing.assert_allclose(
        jax.jit(problem.record_value)(flat, features, target), network(tree, features, target), rtol=1e-14
    )


def test_equal_pytree_problems_are_compiled_once() -> None:
    compilations = []

    def step(problem: Problem, params: jax.Array) -> jax.Array:
        compilations.append(problem)
        return problem.record_gradient(params, jnp.ones(3), jnp.ones(()))

    compiled = jax.jit(step, static_argnames="problem")
    for scale in (1.0, 2.0):  # only the template's shapes count
        problem = Problem.from_pytree(network, template(scale))
        compiled(problem, problem.ravel(template(scale)))
    assert len(compilations) == 1


def test_a_pytree_of_another_shape_is_refused_with_a_sentence() -> None:
    layout = PytreeLayout.of(template())
    with pytest.raises(ValueError, match="pass the same structure"):
        layout.ravel({**template(), "outer": np.ones(3)})


def test_a_plain_problem_ravels_to_itself() -> None:
    problem = Problem(RecordLoss(lambda params, features, target: jnp.sum(params * features) * target))
    np.testing.assert_array_equal(problem.unravel(problem.ravel([1, 2, 3])), [1.0, 2.0, 3.0])
    assert problem.parameter_shape(PUBLIC) == (3,)


WEIGHTS = (1.0, 0.0, 2.0, 0.5)
EXACT: list[tuple[Regulariser, Constraint]] = [
    (L1(0.4, WEIGHTS), Box((-0.5, -1.0, 0.1, 0.0), math.inf)),
    (L1(0.4, WEIGHTS), L2Ball(0.7)),
    (L1(0.4), L1Ball(0.7)),
    (ElasticNet(0.4, 0.3), L1Ball(0.7)),
    (GroupLasso(0.4, ((0, 1), (3,)), l1=0.1), L2Ball(0.7)),
    (L1(0.4, WEIGHTS), Product(((Box(-0.2, 0.4), 2), (L2Ball(0.5), 2)))),
    (Ridge(1.0), Simplex()),
    (NoRegulariser(), L1Ball(0.5)),
]


@pytest.mark.parametrize(("regulariser", "constraint"), EXACT, ids=str)
def test_the_prox_within_the_set_minimises_its_definition(
    regulariser: Regulariser, constraint: Constraint
) -> None:
    problem = Problem(losses.logistic, regulariser, constraint)
    rng = np.random.default_rng(6)

    @jax.jit
    def excess(w: jax.Array, moves: jax.Array) -> jax.Array:
        best = problem.prox(w, 0.6)
        points = jax.vmap(constraint.project)(jnp.concatenate([best[None], best[None] + moves]))
        # The ridge part is not in the prox: take it out of the penalty.
        smooth = 0.5 * regulariser.smoothness * jnp.sum(points**2, axis=1)
        penalty = jax.vmap(regulariser.value)(points) - smooth
        costs = 0.5 * jnp.sum((points - w[None]) ** 2, axis=1) + 0.6 * penalty
        return jnp.where(constraint.contains(best), costs[1:] - costs[0], -jnp.inf)

    for _ in range(5):
        moves = rng.normal(size=(400, 4)) * rng.choice([1e-3, 0.05, 0.5], (400, 1))
        assert np.all(excess(rng.normal(size=4), moves) >= -1e-12)


@pytest.mark.parametrize(
    ("regulariser", "constraint"),
    [
        (L1(0.4, WEIGHTS), L1Ball(1.0)),
        (L1(0.4), Simplex()),
        (GroupLasso(0.4, ((0, 1),)), Box(-1.0, 1.0)),
        (L1(0.4), Product(((Simplex(), 2), (Unconstrained(), 2)))),
    ],
    ids=str,
)
def test_a_penalty_and_a_set_that_do_not_compose_are_refused(
    regulariser: Regulariser, constraint: Constraint
) -> None:
    with pytest.raises(ValueError, match="is not the one after the other"):
        Problem(losses.logistic, regulariser, constraint)


def test_the_constant_column_is_declared_and_not_penalised():
    free = Ridge(0.1, (1.0, 1.0, 0.0))
    assert Problem(losses.logistic, free, constant=2).constant == 2
    assert Problem(losses.logistic).constant is None
    assert Problem(losses.logistic, constant=7).constant == 7
    assert Problem(losses.logistic, GroupLasso(0.1, ((0, 1),)), constant=2).constant == 2
    leaves, tree = jax.tree_util.tree_flatten(Problem(losses.logistic, free, constant=2))
    assert jax.tree_util.tree_unflatten(tree, leaves).constant == 2
    for penalty in (
        Ridge(0.1),
        Ridge(0.1, (0.0, 0.0, 1.0)),
        L1(0.1),
        Ridge(0.1, (1.0,)),
        GroupLasso(0.1, ((0, 2),)),
    ):
        with pytest.raises(ValueError, match="constant=2 is penalised by"):
            Problem(losses.logistic, penalty, constant=2)
    with pytest.raises(ValueError, match="0 for the first, got -1"):
        Problem(losses.logistic, constant=-1)
    for constant in (True, 1.0, "last"):
        with pytest.raises(TypeError, match="the number of a column"):
            Problem(losses.logistic, constant=constant)
    own = RecordLoss(lambda params, features, target: params @ features)
    with pytest.raises(ValueError, match="for the rows of a generalised linear loss"):
        Problem(own, constant=0)
