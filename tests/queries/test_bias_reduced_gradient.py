"""The bias-reduced gradient: its reference values, unbiasedness over levels, and the paper's constant broken."""

import itertools

import jax.numpy as jnp
import numpy as np
import pytest
from tests.support.bent_game import BENT, ROWS

from privopt.curator.local import LocalCurator
from privopt.data.units import Units
from privopt.ledger.events import EveryUnit
from privopt.ledger.payer import Unlimited
from privopt.papers.bias_reduced_mirror_descent import mass
from privopt.precision import double_precision
from privopt.problems.constraints import Simplex
from privopt.problems.saddle import SaddleProblem
from privopt.queries.payoffs import BiasReducedGradient

HIGHEST = 3
X_DRAWS, Y_DRAWS = np.eye(3)[[0, 2, 1, 2]], np.eye(4)[[3, 0, 1, 1]]
WIDE = 1e6  # a clip that nothing reaches


@pytest.fixture(autouse=True)
def double():
    with double_precision():
        yield


def points(draws, *, both):
    half = len(draws) // 2
    rows = [draws.mean(0), draws[0], draws[:half].mean(0), draws[half:].mean(0)]
    return np.stack(rows if both else rows[:3])


def value_of(game, rows, **fields):
    units = Units.from_arrays(rows, relation="replace-one", row_bound=1e4, storage="float64")
    curator = LocalCurator(units, Unlimited(units.public.relation))
    asked = BiasReducedGradient(game=game, **fields)
    stated = float(asked.sensitivity(units.public))
    return np.asarray(curator.private_value(asked, EveryUnit(), None)), stated


def centred(vector):
    vector = np.asarray(vector)
    return vector - (vector.max() + vector.min()) / 2


@pytest.mark.later("x-False-expected0", "x-True-expected2")
@pytest.mark.parametrize(
    ("who", "both", "expected"),
    [
        ("x", False, [0.391127551045, -0.436119977607, -0.028147652972]),
        ("y", False, [-0.932425528355, -0.526368929959, -1.128043170491, -0.350347702681]),
        ("x", True, [0.679244035249, -0.513360551644, -0.251977296099]),
        ("y", True, [-0.788395690029, -0.842343098840, -0.479846732690, -1.135641040293]),
    ],
)
def test_the_reference_values(who, both, expected):
    value, _ = value_of(
        BENT,
        ROWS[:4],
        who=who,
        x=points(X_DRAWS, both=both),
        y=points(Y_DRAWS, both=both),
        gain=mass(HIGHEST) * 2.0,
        difference_clip=WIDE,
        half_range=WIDE,
    )
    # A record's vector is centred, which adds a number to all entries and changes no draw.
    np.testing.assert_allclose(centred(value), centred(expected), atol=1e-9)


@pytest.mark.later("False")
@pytest.mark.parametrize("both", [False, True])
def test_its_mean_over_draws_and_levels_is_that_of_the_most_draws(both):
    """M = 1, enumerated: the gradient at the average of 4 draws in the mean, where one draw alone is biased."""
    highest, weights = 1, np.array([0.6, 0.3, 0.1])
    rows, y = ROWS[:3], np.full(4, 0.25)

    def mean(draws, function):
        total = 0.0
        for drawn in itertools.product(range(3), repeat=draws):
            total = total + np.prod(weights[list(drawn)]) * function(np.eye(3)[list(drawn)])
        return total

    slopes = {
        tuple(x): np.mean(
            [np.asarray(BENT.vertex_slope("x", jnp.asarray(x), y, jnp.asarray(row), 0.0)) for row in rows],
            axis=0,
        )
        for count in (1, 2, 4)
        for x in {tuple(np.eye(3)[list(d)].mean(0)) for d in itertools.product(range(3), repeat=count)}
    }

    def reduced(draws, level):
        plus, one, *minus = (slopes[tuple(point)] for point in points(draws, both=both))
        return mass(highest) * 2.0**level * (plus - np.mean(minus, axis=0)) + one

    chances = [2.0**-level / mass(highest) for level in (0, 1)]
    found = sum(
        chance * mean(2 ** (level + 1), lambda draws, level=level: reduced(draws, level))
        for level, chance in enumerate(chances)
    )
    most = mean(4, lambda draws: slopes[tuple(draws.mean(0))])
    single = mean(1, lambda draws: slopes[tuple(draws[0])])
    np.testing.assert_allclose(found, most, atol=1e-12)
    assert np.max(np.abs(single - most)) > 1e-3


def steep_payoff(x, y, features, target):
    """f' = clip((<a, x> - 0.25) / 0.15, -1, 1) a, of one strategy of y."""
    del target
    u = (features @ x - 0.25) / 0.15
    return 0.15 * jnp.where(jnp.abs(u) <= 1.0, 0.5 * u * u, jnp.abs(u) - 0.5) * y[0]


def test_the_printed_sensitivity_is_exceeded_and_ours_is_not():
    """Scores move by 8.5 tau alpha L0, not 4.5; with B = 2^N / alpha records."""
    game = SaddleProblem(steep_payoff, x=Simplex(), y=Simplex(), sizes=(5, 1), half_ranges=(1.0, 1.0))
    base = np.zeros((6, 5))
    left, right = base.copy(), base.copy()
    left[0], right[0] = [1, -1, 1, 1, 1], [1, -1, 1, 1, -1]
    x = np.stack([[0.25] * 4 + [0.0], np.eye(5)[0], [0.5, 0.5, 0, 0, 0]])
    fields = {
        "who": "x",
        "x": x,
        "y": np.ones((3, 1)),
        "gain": mass(3) * 2.0,
        "difference_clip": 2.0,
        "half_range": 1.0,
    }
    (one, stated), (other, _) = (value_of(game, rows, **fields) for rows in (left, right))
    moved = 6 / 2 * np.max(np.abs(one - other))  # in units of alpha = 2^N / B
    assert moved == pytest.approx(8.5, abs=1e-6)
    assert moved > 4.5
    assert np.ptp(one - other) <= stated


def signed_payoff(x, y, features, target):
    """The steep payoff of two features, times a third."""
    return features[2] * steep_payoff(x, y, features[:2], target)


def test_the_stated_range_is_attained():
    """Two records whose vectors are opposite and as long as the clips allow."""
    game = SaddleProblem(signed_payoff, x=Simplex(), y=Simplex(), sizes=(2, 1), half_ranges=(1.0, 1.0))
    left, right = np.zeros((4, 3)), np.zeros((4, 3))
    left[0], right[0] = [1, -1, 1], [1, -1, -1]
    # <a, x> is 1 at plus and one, and -1 at minus.
    x = np.stack([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    fields = {
        "who": "x",
        "x": x,
        "y": np.ones((3, 1)),
        "gain": 4.0,
        "difference_clip": 2.0,
        "half_range": 1.0,
    }
    (one, stated), (other, _) = (value_of(game, rows, **fields) for rows in (left, right))
    assert stated == pytest.approx(2 * 2 * 9.0 / 4)
    assert 0.999999 * stated < np.ptp(one - other) <= stated


@pytest.mark.parametrize("bad", [np.nan, 1e300, np.inf])
def test_a_part_that_is_not_finite_counts_as_zero_for_itself(bad):
    x = np.stack([[0.5, 0.5], [1.0, 0.0], [0.25, 0.75]])
    game = SaddleProblem(steep_payoff, x=Simplex(), y=Simplex(), sizes=(2, 1), half_ranges=(1.0, 1.0))
    asked = BiasReducedGradient(
        game=game, who="x", x=x, y=np.ones((3, 1)), gain=2.0, difference_clip=0.5, half_range=1.0
    )
    clipped = np.asarray(asked.clip_unit(asked.without_bad(jnp.asarray([[bad, 0.0], [1.0, 0.0]]))))
    alone = np.asarray(asked.clip_unit(jnp.asarray([[0.0, 0.0], [1.0, 0.0]])))
    assert np.ptp(clipped) <= float(asked.radius())
    if not np.isfinite(bad):
        np.testing.assert_array_equal(clipped, alone)
