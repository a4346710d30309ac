"""Solvers and problems are written as JSON values and come back; nothing else is built from them."""

import json

import numpy as np
import pytest

from privopt import Problem, losses, regularisers
from privopt.problems.constraints import Box, L1Ball, Product, Simplex
from privopt.problems.glm import RecordLoss
from privopt.replays.recipes import Unwritten, read, written
from privopt.solvers.gradient_descent import GradientDescent
from privopt.solvers.registry import NAMES, named


@pytest.mark.parametrize("name", NAMES)
def test_every_solver_comes_back(name):
    solver = named(name)
    assert read(json.loads(json.dumps(written(solver)))) == solver


@pytest.mark.parametrize(
    "problem",
    [
        Problem(losses.softmax(4), regularisers.ElasticNet(0.1, 0.2)),
        Problem(losses.capped(0.4, "quantile", quantile=0.3), regularisers.GroupLasso(0.1, ((0, 1), (2,)))),
        Problem(losses.huber(0.3), regularisers.Ridge(0.1, weights=(1.0, 0.0)), L1Ball(2.0)),
        Problem(losses.poisson(3.0, 9.0), constraint=Product(((Box(-1.0, 1.0), 2), (Simplex(), 3)))),
    ],
)
def test_a_problem_comes_back(problem):
    assert read(json.loads(json.dumps(written(problem)))) == problem


def test_numbers_that_json_has_not_and_arrays_come_back():
    values = [np.inf, -np.inf, (1, 2.5, None), "text"]
    assert read(json.loads(json.dumps(written(values)))) == values
    labels = np.asarray(["a", "b"])
    assert np.array_equal(read(written(labels)), labels)


@pytest.mark.parametrize("value", [print, object(), RecordLoss(lambda w, x, y: 0.0), np.asarray([object()])])
def test_what_is_the_users_own_is_not_written(value):
    with pytest.raises(Unwritten, match="no plain form"):
        written(value)


@pytest.mark.parametrize(
    "form",
    [
        {"$kind": "Popen", "args": "ls"},
        {"$kind": "GradientDescent", "surprise": 1},
        {"$tuple": 3},
        {"other": 1},
        {"$kind": "__import__"},
    ],
)
def test_nothing_else_is_built(form):
    with pytest.raises(Unwritten, match=r"no such fields|names no solver|list is missing"):
        read(form)


def test_a_field_out_of_range_is_refused_by_its_class():
    form = written(GradientDescent(steps=3)) | {"steps": -3}
    with pytest.raises(ValueError, match="steps"):
        read(form)
