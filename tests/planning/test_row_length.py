"""The mean square length of rows, from the corner of a released second moment of divided rows."""

import math
from typing import Any

import numpy as np
import pytest

from privopt.planning.row_length import length_shown, square_length, usable_share


def divided(x: Any) -> Any:
    """(n, d + 1), the constant 1 last, each row divided by its length."""
    whole = np.concatenate([x, np.ones((len(x), 1))], axis=1)
    return whole / np.linalg.norm(whole, axis=1, keepdims=True)


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


@pytest.mark.parametrize("columns", [8, 400])
def test_the_moment_of_divided_rows_becomes_that_of_rows_as_they_are(columns: int) -> None:
    x = np.zeros((8, columns))
    x[:, :8] = 1.0  # all of length 3 with the constant
    rows = divided(x)
    found = square_length(rows.T @ rows / 8, 0.0, columns, all_expected=True)
    assert found == pytest.approx(1.0 + 9.0, rel=0.02)


@pytest.mark.parametrize("square", [-3.0, 0.0, 0.3, 5.0, math.nan, math.inf])
@pytest.mark.parametrize("noise", [0.0, 1e-9, 0.1, 10.0, math.inf])
@pytest.mark.parametrize("columns", [1, 2_000])
def test_any_release_gives_a_length_between_the_shortest_row_and_the_longest(
    square: float, noise: float, columns: int
) -> None:
    assert 1.0 <= length_shown(square, noise, columns=columns) <= math.sqrt(1.0 + columns) * 1.1


def test_noise_alone_gives_a_length_in_the_middle() -> None:
    assert length_shown(0.0, 1e3, columns=80) == pytest.approx(81**0.25, rel=0.05)


def test_units_that_are_not_usable_do_not_count_under_either_relation() -> None:
    rows = divided(np.random.default_rng(2).uniform(-1.0, 1.0, (4_000, 5)))
    moment = rows.T @ rows / len(rows)
    whole = square_length(moment, 1e-4, 5, all_expected=True)
    for all_expected in (True, False):
        assert usable_share(0.5 * moment, 1e-4, all_expected=all_expected) == pytest.approx(0.5, abs=0.01)
        half = square_length(0.5 * moment, 1e-4, 5, all_expected=all_expected)
        assert half == pytest.approx(whole, rel=0.01)
        assert usable_share(np.full((6, 6), math.nan), 1e-4, all_expected=all_expected) == 1.0


def test_where_all_are_expected_noise_alone_does_not_take_any_away() -> None:
    moment = np.eye(6) / 6.0
    assert usable_share(0.97 * moment, 1e-4, all_expected=True) == 1.0
    assert usable_share(0.8 * moment, 0.1, all_expected=True) == 1.0
    assert usable_share(0.97 * moment, 1e-4, all_expected=False) == pytest.approx(0.97, abs=1e-3)
