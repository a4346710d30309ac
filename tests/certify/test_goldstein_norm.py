"""The certifier: exact cases, never too small a norm, records of a problem, and what it refuses."""

import jax.numpy as jnp
import numpy as np
import pytest

from privopt import GroupedLoss, Problem, certify, constraints, losses, regularisers
from privopt.precision import double_precision
from privopt.problems.black_box import BlackBox
from privopt.problems.losses import RecordLoss


def length(x):
    return np.linalg.norm(x)


def direction(x):
    return x / np.linalg.norm(x)


@pytest.mark.parametrize("dimension", [2, 3, 10])
@pytest.mark.parametrize("seed", [0, 1])
def test_of_the_norm_it_finds_the_exact_value_from_above_and_less_on_larger_balls(dimension, seed):
    x = np.zeros(dimension)
    x[0] = 1.0
    radii = (0.05, 0.2, 0.4, 0.6, 0.8)
    found = [certify.goldstein(direction, x, radius=radius, value=length, seed=seed) for radius in radii]
    exact = [np.sqrt(1.0 - radius**2) for radius in radii]
    for one, truth, radius in zip(found, exact, radii, strict=True):
        assert truth <= one.norm <= 1.02 * truth
        assert one.decrease == pytest.approx(radius, rel=0.01)
    assert exact[3] == pytest.approx(0.8)
    assert all(np.diff([one.norm for one in found]) < 0)
    assert certify.goldstein(direction, x, radius=1.05, seed=seed).norm < 1e-12


def test_what_it_reports_can_be_checked_from_its_points_and_weights():
    x = np.array([0.3, -1.0, 0.2])
    found = certify.goldstein(lambda at: np.sign(at) + 0.1 * at, x, radius=0.5, seed=4)
    assert np.all(found.weights >= 0)
    assert found.weights.sum() == pytest.approx(1.0, abs=1e-12)
    assert np.all(np.linalg.norm(found.points - x, axis=1) <= 0.5)
    gradients = np.sign(found.points) + 0.1 * found.points
    assert found.norm == pytest.approx(np.linalg.norm(found.weights @ gradients), rel=1e-12)
    # Only the second coordinate keeps its sign in the ball: the norm is at least its slope there.
    assert 1.0 + 0.1 * 0.5 <= found.norm <= 1.08


def test_a_kink_at_the_point_itself_is_seen_from_beside_it():
    """Automatic differentiation at a tie may give what is no limit of gradients; it is not asked for."""
    asked = []

    def gradient(at):
        asked.append(at)
        return np.array([5.0]) if at[0] == 0.0 else np.sign(at)

    assert certify.goldstein(gradient, [0.0], radius=1e-3).norm == 0.0
    assert all(at[0] != 0.0 for at in asked)
    assert certify.goldstein(gradient, [0.3], radius=0.2).norm == 1.0
    assert certify.goldstein(gradient, [0.3], radius=0.4).norm == 0.0


def test_arrays_of_any_shape_and_repeated_gradients_work():
    found = certify.goldstein(lambda at: np.full(at.shape, 2.0), np.zeros((2, 3)), radius=0.1)
    assert found.norm == pytest.approx(2.0 * np.sqrt(6.0))
    assert found.points.shape[1:] == (2, 3)


def reference_records():
    """The made-up records of the specification's reference values."""
    i, j = np.arange(1, 41)[:, None], np.arange(1, 4)[None, :]
    rows = np.cos(0.7 * i * j) + 0.1 * j
    return rows / np.linalg.norm(rows, axis=1, keepdims=True), 1.5 * np.abs(np.sin(np.arange(1, 41)))


def relu_distance(params, features, target):
    return jnp.abs(jnp.maximum(features @ params, 0.0) - target)


def test_the_gradient_of_a_loss_of_ones_own_is_the_mean_over_the_records():
    rows, targets = reference_records()
    x = np.array([0.3, -0.2, 0.5])
    problem = Problem(RecordLoss(relu_distance))
    found = certify.goldstein(problem, x, radius=1e-6, X=rows, y=targets)
    expected = np.array([-0.2902217277, 0.0857168925, -0.0803271829])
    np.testing.assert_allclose(found.weights @ found.gradients, expected, atol=1e-9)
    assert found.decrease == pytest.approx(1e-6 * found.norm, rel=1e-3)


@pytest.mark.parametrize(("loss", "shape"), [(losses.quantile(0.3), (3,)), (losses.softmax(3), (3, 3))])
def test_a_generalised_linear_loss_with_a_penalty_has_the_gradient_of_its_objective(loss, shape):
    rows, targets = reference_records()
    targets = np.arange(40) % 3.0 if shape == (3, 3) else targets
    problem = Problem(loss, regularisers.Ridge(0.3))
    found = certify.goldstein(problem, np.full(shape, 0.1), radius=1e-5, X=rows, y=targets)
    with double_precision():
        gradient = np.asarray(found.weights @ found.gradients.reshape(len(found.weights), -1))
        step = 1e-5 * gradient.reshape(shape) / found.norm
        below, above = (
            float(problem.objective(jnp.asarray(np.full(shape, 0.1) + sign * step), rows, targets))
            for sign in (-1, 1)
        )
    assert (above - below) / 2e-5 == pytest.approx(found.norm, rel=1e-3)


def test_parameters_of_a_loss_of_ones_own_may_be_a_pytree():
    def loss(params, features, target):
        return relu_distance(params["slopes"] + params["shift"], features, target)

    rows, targets = reference_records()
    start = {"slopes": np.array([0.3, -0.2, 0.4]), "shift": np.array(0.1)}
    problem = Problem.from_pytree(loss, start)
    found = certify.goldstein(problem, start, radius=0.1, X=rows, y=targets)
    flat = np.asarray(problem.layout.ravel(start))
    assert found.points.shape[1:] == (4,)
    assert found.norm == certify.goldstein(problem, flat, radius=0.1, X=rows, y=targets).norm


def test_from_values_it_is_an_estimate_and_called_one():
    x = np.array([1.0, 0.0])
    found = certify.goldstein_of_values(length, x, radius=0.6, smoothing=0.05, blocks=20)
    assert found.norm == pytest.approx(np.sqrt(1 - 0.55**2), rel=0.1)
    assert found.estimated
    assert np.all(np.linalg.norm(found.points - x, axis=1) <= 0.55)
    assert "from values alone" in str(found)
    assert "estimate" in repr(found)
    assert certify.goldstein_of_values(lambda at: abs(at[0]), [0.0], radius=0.1, blocks=5).norm < 1e-9


def test_it_says_wherever_it_is_printed_that_it_is_not_private():
    found = certify.goldstein(direction, [1.0, 0.0], radius=0.6, value=length)
    assert "NOT PRIVATE" in repr(found)
    assert "Not private" in str(found)
    assert "gains 0.6" in str(found)
    assert "Not private" in type(found).__doc__
    assert "None: do not publish" in certify.goldstein.__doc__


@pytest.mark.parametrize("radius", [0.0, -1.0, np.inf, np.nan])
def test_a_radius_that_is_no_length_is_refused(radius):
    with pytest.raises(ValueError, match="radius must be positive and finite"):
        certify.goldstein(direction, [1.0, 0.0], radius=radius)
    with pytest.raises(ValueError, match="smoothing must lie between 0 and the radius"):
        certify.goldstein_of_values(length, [1.0, 0.0], radius=radius)


def test_what_cannot_be_certified_is_refused_with_the_way_out():
    rows, targets = reference_records()
    squared = Problem(losses.squared)
    with pytest.raises(ValueError, match="lost beside the size of x"):
        certify.goldstein(direction, [1e9, 0.0], radius=1.0)
    with pytest.raises(ValueError, match="x must hold numbers"):
        certify.goldstein(direction, [np.nan], radius=1.0)
    with pytest.raises(ValueError, match="not finite"):
        certify.goldstein(lambda at: at * np.nan, [1.0], radius=1.0)
    with pytest.raises(ValueError, match="as many entries as x, 2, got 3"):
        certify.goldstein(lambda at: np.ones(3), [1.0, 2.0], radius=1.0)
    with pytest.raises(ValueError, match="give X, of shape"):
        certify.goldstein(squared, [1.0], radius=1.0)
    with pytest.raises(ValueError, match="a gradient is a function of the point alone"):
        certify.goldstein(direction, [1.0], radius=1.0, X=rows)
    with pytest.raises(TypeError, match=r"give a Problem\(loss, ...\).*, got Hinge"):
        certify.goldstein(losses.hinge, np.zeros(3), radius=1.0, X=rows, y=targets)
    with pytest.raises(ValueError, match=r"x must have shape \(3,\), for the columns of X, got \(2,\)"):
        certify.goldstein(squared, np.zeros(2), radius=1.0, X=rows, y=targets)
    with pytest.raises(ValueError, match=r"got \(40, 3\) and \(3,\)"):
        certify.goldstein(squared, np.zeros(3), radius=1.0, X=rows, y=targets[:3])
    ball = Problem(losses.squared, constraint=constraints.L2Ball(1.0))
    box = Problem(BlackBox(relu_distance, value_range=(0.0, 9.0), scale=1.0))
    groups = Problem(GroupedLoss(losses.logistic, 2, (0.5, 0.5)))
    with pytest.raises(ValueError, match="constraint set"):
        certify.goldstein(ball, np.zeros(3), radius=1.0, X=rows, y=targets)
    with pytest.raises(ValueError, match="worst of several groups"):
        certify.goldstein(groups, np.zeros(3), radius=1.0, X=rows, y=targets)
    with pytest.raises(TypeError, match="goldstein_of_values"):
        certify.goldstein(box, np.zeros(3), radius=1.0, X=rows, y=targets)
    with pytest.raises(ValueError, match="blocks must be at least 1"):
        certify.goldstein_of_values(length, [1.0], radius=1.0, blocks=0)
