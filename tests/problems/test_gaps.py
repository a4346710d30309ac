"""Gaps: exact for matrix games, enclosed for others, and never less than what an answer shows."""

import numpy as np
import pytest
from tests.support.bent_game import BENT, ROWS, U, V

from privopt.problems.constraints import L1Ball, Simplex
from privopt.problems.gaps import nonprivate_best_payoff, nonprivate_gap, nonprivate_gap_bilinear
from privopt.problems.saddle import BilinearGame, SaddleProblem

UNIFORM = np.full(3, 1 / 3), np.full(4, 1 / 4)


def round_payoff(x, y, features, target):
    """Strongly convex in x, strongly concave in y."""
    return (features[:3] @ x - target) ** 2 + x @ x + features[0] * (x[0] * y[0]) - y @ y


ROUND = SaddleProblem(round_payoff, x=L1Ball(1.0), y=Simplex(), sizes=(3, 2))


def test_the_gap_of_a_matrix_game_is_the_specified_one():
    matrix = U.T @ V / 12
    assert nonprivate_gap_bilinear(matrix, 0.0, 0.0, *UNIFORM) == pytest.approx(0.012952120730, abs=1e-11)
    game = BilinearGame(rows=3, columns=4)
    gap = nonprivate_gap(game, ROWS, None, *UNIFORM, tolerance=1e-12)
    assert gap.low == pytest.approx(0.012952120730, abs=1e-11)
    assert gap.high == pytest.approx(gap.low, abs=1e-12)


def test_offsets_enter_the_gap():
    rng = np.random.default_rng(0)
    rows = rng.uniform(-1, 1, (20, 14))
    game = BilinearGame(rows=3, columns=4, offsets=True)
    u, v, p, q = np.split(rows, [3, 7, 10], axis=1)
    exact = nonprivate_gap_bilinear(u.T @ v / 40, p.mean(0) / 2, q.mean(0) / 2, *UNIFORM)
    assert nonprivate_gap(game, rows, None, *UNIFORM).low == pytest.approx(exact, abs=1e-12)


def test_the_gap_of_a_bent_game_is_the_specified_one():
    gap = nonprivate_gap(BENT, ROWS, None, *UNIFORM, tolerance=1e-10)
    assert gap.low <= 0.0268279514 + 1e-10 <= gap.high + 2e-10
    assert gap.high - gap.low < 3e-10
    best = nonprivate_best_payoff(BENT, ROWS, None, "y", UNIFORM[0])
    assert best.low == pytest.approx(0.772799068219, abs=1e-11)
    least = nonprivate_best_payoff(BENT, ROWS, None, "x", UNIFORM[1], tolerance=1e-10)
    assert least.low == pytest.approx(0.7459711168, abs=2e-10)


@pytest.mark.parametrize("most_steps", [1, 5, 20_000])
def test_an_interval_holds_every_answer(most_steps):
    """Few steps leave it longer, and as certain."""
    rng = np.random.default_rng(1)
    rows, targets = rng.normal(size=(30, 3)), rng.normal(size=30)
    x, y = np.array([0.3, -0.2, 0.1]), np.array([0.7, 0.3])
    best = {
        who: nonprivate_best_payoff(
            ROUND, rows, targets, who, y if who == "x" else x, tolerance=1e-9, most_steps=most_steps
        )
        for who in ("x", "y")
    }
    assert all(one.low <= one.high for one in best.values())

    def mean(one, other):
        return float(
            np.mean([round_payoff(one, other, *record) for record in zip(rows, targets, strict=True)])
        )

    for _ in range(50):
        other_x = rng.dirichlet(np.ones(6)) @ np.vstack([np.eye(3), -np.eye(3)])
        assert mean(other_x, y) >= best["x"].low - 1e-12
        assert mean(x, rng.dirichlet(np.ones(2))) <= best["y"].high + 1e-12
    if most_steps > 5:
        assert best["x"].high - best["x"].low < 1e-8


def test_the_gap_is_zero_at_a_saddle_point():
    rows = np.array([[1.0, -1.0, 1.0, -1.0]])
    gap = nonprivate_gap(BilinearGame(rows=2, columns=2), rows, None, [0.5, 0.5], [0.5, 0.5])
    assert gap == pytest.approx((0.0, 0.0), abs=1e-12)
