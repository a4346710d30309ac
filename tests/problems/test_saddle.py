"""Games: signs, half-ranges, and what a description of one refuses."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from privopt.precision import double_precision
from privopt.problems.constraints import Box, L1Ball, L2Ball, Simplex
from privopt.problems.saddle import BilinearGame, SaddleProblem
from privopt.problems.vertices import CrossPolytopeVertices, ListedVertices, vertices_of
from privopt.public import Public


@pytest.fixture(autouse=True)
def double():
    with double_precision():
        yield


@pytest.mark.parametrize("offsets", [False, True])
def test_both_players_descend(offsets):
    """The y player's slope is that of -f: following it raises f."""
    game = BilinearGame(rows=3, columns=4, offsets=offsets)
    rng = np.random.default_rng(0)
    record = jnp.asarray(rng.uniform(-1, 1, game.width))
    x, y = np.full(3, 1 / 3), np.full(4, 1 / 4)
    for who in ("x", "y"):
        slope = np.asarray(game.vertex_slope(who, x, y, record, 0.0))
        step = -1e-3 * (slope - slope.mean())
        moved = (x + step, y) if who == "x" else (x, y + step)
        change = float(game.payoff(*moved, record, 0.0) - game.payoff(x, y, record, 0.0))
        assert change < 0 if who == "x" else change > 0


@pytest.mark.later("False-entries0")
@pytest.mark.parametrize("entries", [(-1.0, 1.0), (0.0, 1.0), (-0.5, 2.0)])
@pytest.mark.parametrize("offsets", [False, True])
def test_no_record_has_a_wider_range_than_is_stated(offsets, entries):
    game = BilinearGame(rows=3, columns=2, offsets=offsets, entries=entries)
    rng = np.random.default_rng(1)
    records = rng.choice([*entries, 1e300, -1e300], (300, game.width))
    strategies = rng.dirichlet(np.ones(3), 300), np.eye(2)[rng.integers(2, size=300)]
    slope_of = jax.vmap(lambda x, y, record: game.vertex_slope("x", x, y, record, 0.0))
    widest = np.max(np.ptp(slope_of(*strategies, records), axis=1)) / 2.0
    assert widest <= game.half_range * (1 + 1e-12)
    assert widest >= 0.999 * game.half_range


def test_vertices_agree_with_their_list():
    rng = np.random.default_rng(2)
    cases = {
        vertices_of(Simplex(2.0), 3): 2.0 * np.eye(3),
        vertices_of(L1Ball(1.5), 2): 1.5 * np.array([[1, 0], [0, 1], [-1, 0], [0, -1]]),
        vertices_of(Box(-1.0, (2.0, 3.0)), 2): np.array([[-1, -1], [-1, 3], [2, -1], [2, 3]]),
    }
    for vertices, rows in cases.items():
        direction = rng.normal(size=vertices.dimension)
        drawn = rng.integers(vertices.count, size=7)
        assert rows.shape == (vertices.count, vertices.dimension)
        np.testing.assert_allclose(vertices.along(direction), rows @ direction)
        np.testing.assert_allclose(vertices.average(drawn), rows[drawn].mean(axis=0))
        np.testing.assert_allclose(vertices.mix(vertices.uniform()), rows.mean(axis=0), atol=1e-15)
        assert vertices.largest == np.max(np.abs(rows))


def test_equal_descriptions_are_equal():
    def pay(x, y, features, target):
        return x @ features * y[0]

    sets = {"x": L1Ball(2.0), "y": Simplex(), "sizes": (3, 2)}
    assert SaddleProblem(pay, **sets) == SaddleProblem(pay, **sets)
    assert hash(SaddleProblem(pay, **sets)) == hash(SaddleProblem(pay, **sets))
    assert SaddleProblem(pay, **sets) != SaddleProblem(pay, **sets, clip="scale")
    assert ListedVertices(np.eye(2)) == ListedVertices(np.eye(2))
    assert SaddleProblem(pay, **sets).x.vertices == CrossPolytopeVertices(3, 2.0)
    assert SaddleProblem(pay, **sets).x.half_range == 2.0


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: BilinearGame(rows=0, columns=2), "rows must be a whole number of at least 1, got 0"),
        (lambda: BilinearGame(rows=2, columns=2, entries=(1.0, 0.0)), "entries must be finite bounds"),
        (lambda: SaddleProblem("pay", x=Simplex(), y=Simplex(), sizes=(2, 2)), "payoff must be a function"),
        (lambda: SaddleProblem(min, x=Simplex(), y=Simplex(), sizes=(2,)), "sizes must be two whole numbers"),
        (lambda: SaddleProblem(min, x=L2Ball(1.0), y=Simplex(), sizes=(2, 2)), "lists none"),
        (lambda: SaddleProblem(min, x=Box(0.0, 1.0), y=Simplex(), sizes=(20, 2)), "has 2\\^20 vertices"),
        (
            lambda: SaddleProblem(min, x=Simplex(), y=Simplex(), sizes=(2, 2), half_ranges=(1.0, 0.0)),
            "half_ranges must be two positive numbers",
        ),
        (
            lambda: SaddleProblem(min, x=Simplex(), y=Simplex(), sizes=(2, 2), clip="both"),
            "clip must be 'entries' or 'scale'",
        ),
    ],
)
def test_what_is_no_game_gets_one_sentence(make, message):
    with pytest.raises((TypeError, ValueError), match=message):
        make()


def test_a_game_says_how_many_features_it_needs():
    game = BilinearGame(rows=3, columns=4, offsets=True)
    assert game.obstacle(Public(n=10, d=14)) is None
    assert game.obstacle(Public(n=10, d=7)) == "a record needs 14 features for u, v, p and q, and has 7"
