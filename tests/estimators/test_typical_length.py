"""The typical length of rows, from the corner of a released second moment."""

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tests.support.configured_estimators import toy_data

from privopt import LogisticRegression
from privopt.estimators.typical_length import length_shown, typical_length
from privopt.public import Public, Relation
from privopt.queries.second_moment import pack
from privopt.solvers.gradient_descent import GradientDescent
from privopt.solvers.whitening import Whitening


def rows_of_length_one(x: Any) -> Any:
    """(n, d + 1), the constant 1 last."""
    whole = np.concatenate([x, np.ones((len(x), 1))], axis=1)
    return whole / np.linalg.norm(whole, axis=1, keepdims=True)


def release(matrix: Any, noise: float) -> Any:
    """One line of a transcript."""
    packed = np.asarray(pack(matrix))[None]
    return SimpleNamespace(name="SecondMoment", released=packed, scale=np.array([noise]))


def public(d: int, **changes: Any) -> Public:
    return Public(n=1_000, d=d, **changes)


@pytest.mark.parametrize("columns", [1, 3, 10, 60])
def test_even_columns_give_the_length_that_their_weights_see(columns: int) -> None:
    x = np.random.default_rng(1).uniform(-1.0, 1.0, (40_000, columns))
    squares, lengths = np.sum(x**2, axis=1), np.sqrt(1.0 + np.sum(x**2, axis=1))
    wanted = np.mean(squares / lengths) / np.mean(squares / lengths**2)
    found = length_shown(float(np.mean(lengths**-2.0)), 0.0, columns=columns)
    assert found == pytest.approx(wanted, rel=0.02)
    assert length_shown(float(np.mean(lengths**-2.0)), 1e-4, columns=columns) == pytest.approx(
        found, rel=5e-3
    )


def test_rows_of_one_length_have_that_length() -> None:
    x = np.zeros((8, 400))
    x[:, :8] = 1.0
    moment = rows_of_length_one(x).T @ rows_of_length_one(x) / 8
    assert typical_length([release(moment, 0.0)], public(401), 1.0) == pytest.approx(3.0, rel=0.01)
    assert typical_length([release(moment, 0.0)], public(401), 2.0) == pytest.approx(6.0, rel=0.01)


@pytest.mark.parametrize("square", [-3.0, 0.0, 0.3, 5.0, math.nan, math.inf])
@pytest.mark.parametrize("noise", [0.0, 1e-9, 0.1, 10.0, math.inf])
@pytest.mark.parametrize("columns", [1, 2_000])
def test_any_release_gives_a_length_between_the_shortest_row_and_the_longest(
    square: float, noise: float, columns: int
) -> None:
    assert 1.0 <= length_shown(square, noise, columns=columns) <= math.sqrt(1.0 + columns) * 1.1


def test_noise_alone_gives_a_length_in_the_middle() -> None:
    assert length_shown(0.0, 1e3, columns=80) == pytest.approx(81**0.25, rel=0.05)


def test_units_without_a_row_do_not_count_where_their_number_is_not_public() -> None:
    x = np.random.default_rng(2).uniform(-1.0, 1.0, (4_000, 5))
    moment = rows_of_length_one(x).T @ rows_of_length_one(x) / len(x)
    whole = typical_length([release(moment, 1e-4)], public(6), 1.0)
    half = [release(0.5 * moment, 1e-4)]
    relation = Relation.ADD_OR_REMOVE_ONE
    assert typical_length(half, public(6, relation=relation), 1.0) == pytest.approx(whole, rel=0.01)
    users = public(6, unit="user", records_per_unit=4)
    assert typical_length(half, users, 1.0) == pytest.approx(whole, rel=0.01)
    longer = typical_length(half, public(6), 1.0)
    assert longer is not None
    assert whole is not None
    assert longer > 1.2 * whole


def test_only_a_second_moment_of_all_columns_is_read() -> None:
    other = SimpleNamespace(name="ClippedGradient", released=np.ones((1, 21)), scale=np.ones(1))
    dropped = SimpleNamespace(name="SecondMoment", released=None, scale=np.ones(1))
    assert typical_length([other, dropped], public(6), 1.0) is None  # type: ignore[list-item]
    assert typical_length([release(np.eye(5), 0.1)], public(6), 1.0) is None


def test_a_fit_reads_its_length_off_its_own_release() -> None:
    X, y = toy_data()
    solver = Whitening(inner=GradientDescent(steps=5))
    model = LogisticRegression(epsilon=1e3, delta=1e-6, bounds=(-1, 1), classes=[0, 1], solver=solver)
    length = model.fit(X, y).typical_length_
    assert length == pytest.approx(1.45, abs=0.08)
    assert f"{length:.3g}" in model.privacy_.model.meaning
    said = " ".join(model.privacy_.to_dict()["utility_assumptions"])
    assert "predictions divide nothing" in said
