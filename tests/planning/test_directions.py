"""Whitening under a strong ridge: no direction is curved more than the loss, and the intercept is as fast as any."""

import numpy as np
import pytest

from privopt.ledger.amounts import Budget
from privopt.planning.task import Instance
from privopt.planning.whitening import WhiteningRule
from privopt.problems import losses
from privopt.problems.problem import Problem
from privopt.problems.regularisers import Ridge
from privopt.public import Public

D = 5


def rule(strength, constant=D - 1):
    weights = (1.0,) * (D - 1) + (0.0,)
    problem = Problem(losses.logistic, Ridge(strength, weights), constant=constant)
    return WhiteningRule.of(Instance(problem, Public(n=10**6, d=D, row_bound=2.0), Budget(1.0, 1e-8)), 0.1)


def moment():
    """Of rows with a constant 1, each divided by its length."""
    rng = np.random.default_rng(0)
    rows = np.concatenate([rng.uniform(-1.0, 1.0, (5_000, D - 1)), np.ones((5_000, 1))], axis=1)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    return rows.T @ rows / len(rows)


@pytest.mark.parametrize("strength", [1e-6, 1e-3, 0.03, 1.0, 100.0])
def test_no_direction_is_curved_more_than_the_loss_and_the_intercept_hardly_less(strength):
    found = rule(strength)
    rows, coordinates = found.directions(moment()), found.coordinates(moment())
    penalty = strength * np.diag([1.0] * (D - 1) + [0.0])
    curved = coordinates.matrix @ (0.25 * rows.moment + penalty) @ coordinates.matrix
    assert np.max(np.linalg.eigvalsh(curved)) <= 1.25 * (
        coordinates.smoothness + coordinates.ridge_smoothness
    )
    assert np.max(np.linalg.eigvalsh(curved)) <= 0.25 * 2.01
    constant = np.linalg.solve(coordinates.matrix, np.eye(D)[D - 1])
    along = constant @ curved @ constant / (constant @ constant)
    assert along >= 0.2
    np.testing.assert_allclose(rows.map(), coordinates.matrix)


def test_a_ridge_on_every_column_is_the_floor_of_every_direction():
    found = rule(1.0, constant=None)
    rows = found.directions(moment())
    assert rows.floor == 4.0
    np.testing.assert_allclose(rows.penalised, 1.0)
    np.testing.assert_array_equal(rows.axes, found.rows(moment()).axes)
