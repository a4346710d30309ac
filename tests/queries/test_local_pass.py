"""A pass over a unit's own records: equal to plain loops, and bounded whatever the records hold."""

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.query_neighbours import LOSSES, PUBLIC, D, as_units, pairs
from tests.support.turns import in_turn

from privopt.curator.audit import Audit
from privopt.data.units import Units
from privopt.engine.choose import engine_on
from privopt.ledger.amounts import Budget
from privopt.ledger.ledger import Ledger
from privopt.mechanisms.additive import Gaussian
from privopt.mechanisms.noise import NoiseSource
from privopt.precision import double_precision
from privopt.problems import losses
from privopt.problems.constraints import L2Ball
from privopt.problems.regularisers import L1, Ridge
from privopt.queries.lots import LocalPass, visiting_order

CAP, USERS = 6, 9
AT = np.array([0.1, 0.2, -0.3])
SLOPES = {
    "logistic": lambda t, y: -y / (1.0 + np.exp(y * t)),
    "squared": lambda t, y: t - y,
}


@pytest.fixture(autouse=True)
def double():
    with double_precision():
        yield


def users_of_three_columns(**options):
    rng = np.random.default_rng(0)
    rows, owners = rng.normal(size=(40, 3)), rng.integers(0, USERS - 1, 40)  # the last user owns nothing
    labels = np.where(rows[:, 0] + 0.3 * rng.normal(size=40) > 0, 1.0, -1.0)
    return Units.from_arrays(
        rows,
        labels,
        row_bound=1.5,
        groups=owners,
        max_records_per_user=CAP,
        n=USERS,
        storage="float64",
        noise=NoiseSource(1),
        **options,
    )


def moves_by_plain_loops(
    units, slope, step_size, *, after=lambda y: y, order=None, returns="last", ridge=0.0
):
    """y_j - at of each user, by the definition."""
    ends, moves = units.private_offsets, np.zeros((USERS, 3))
    for user in range(len(ends) - 1):
        rows = units.private_features[ends[user] : ends[user + 1]]
        targets = units.private_targets[ends[user] : ends[user + 1]]
        places = [place for place in (range(CAP) if order is None else order) if place < len(rows)]
        params, visited = AT.copy(), []
        for place in places:
            gradient = slope(rows[place] @ params, targets[place]) * rows[place] + ridge * params
            params = after(params - step_size * gradient)
            visited.append(params)
        if visited:
            moves[user] = (visited[-1] if returns == "last" else np.mean(visited, axis=0)) - AT
    return moves


def into_ball(vectors, radius):
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors * np.minimum(1.0, radius / np.maximum(lengths, 1e-300))


@pytest.mark.at_once("squared-average-None")
@pytest.mark.parametrize(("loss", "returns", "shuffle"), in_turn(SLOPES, ("last", "average"), (None, 3)))
def test_a_pass_is_what_a_plain_loop_computes(loss, returns, shuffle):
    units = users_of_three_columns()
    query = LocalPass(
        loss=LOSSES[loss],
        at=AT,
        step_size=0.4,
        clip=0.3,
        regulariser=Ridge(0.2),
        constraint=L2Ball(0.6),
        returns=returns,
        shuffle=shuffle,
    )
    order = None if shuffle is None else np.asarray(visiting_order(shuffle, CAP))
    shorten = lambda y: y * min(1.0, 0.6 / np.linalg.norm(y))  # noqa: E731
    moves = moves_by_plain_loops(
        units, SLOPES[loss], 0.4, after=shorten, order=order, returns=returns, ridge=0.2
    )
    for name in ("fast", "reference"):
        held = engine_on(units, name).gather(query)
        np.testing.assert_allclose(held, into_ball(moves, 0.3), rtol=2e-9, atol=1e-12)
        total = engine_on(units, name).clipped_sum(query)
        np.testing.assert_allclose(total, into_ball(moves, 0.3).sum(axis=0), rtol=1e-8, atol=1e-8)


def test_the_proximal_map_is_part_of_every_step_and_the_reach_ends_it():
    units = users_of_three_columns()
    query = LocalPass(
        loss=losses.squared, at=AT, step_size=0.4, clip=9.0, regulariser=L1(0.5), reach=jnp.asarray(0.25)
    )

    def after(params):
        soft = np.sign(params) * np.maximum(np.abs(params) - 0.4 * 0.5, 0.0)
        return AT + (soft - AT) * min(1.0, 0.25 / np.linalg.norm(soft - AT))

    moves = moves_by_plain_loops(units, SLOPES["squared"], 0.4, after=after)
    np.testing.assert_allclose(engine_on(units, "fast").gather(query), moves, rtol=1e-7, atol=1e-9)


@pytest.mark.audit
def test_the_order_is_public_and_visits_every_place_once():
    first, again, other = (np.asarray(visiting_order(seed, 50)) for seed in (4, 4, 5))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)
    assert np.array_equal(np.sort(first), np.arange(50))
    places = np.array([visiting_order(seed, 8) for seed in range(4000)])
    for place in range(8):  # each comes about as often at every turn: 500 times, standard deviation 21
        assert np.all(np.abs(np.bincount(places[:, place], minlength=8) - 500) < 110)
    assert np.abs(np.mean(places[:, 0] < places[:, 1]) - 0.5) < 0.04


def test_a_unit_without_records_or_with_a_pass_that_diverges_stays_where_it_is():
    rows, targets = np.ones((4, 3)), np.array([1e300, 1e300, 0.2, 0.1])
    units = Units.from_arrays(
        rows, targets, row_bound=1.5, groups=[0, 0, 1, 1], max_records_per_user=4, n=4, noise=NoiseSource(1)
    )
    query = LocalPass(loss=losses.squared, at=AT, step_size=1e200, clip=1e90)
    held = engine_on(units, "fast").gather(query)
    assert np.all(held[[0, 2, 3]] == 0.0)


@pytest.mark.at_once("softmax-sparse users")
@pytest.mark.parametrize(
    ("loss", "layout"), in_turn(("logistic", "squared", "own", "softmax"), ("users", "sparse users"))
)
@given(data=st.data(), clip=st.sampled_from([1e-6, 0.3, 50.0]), step_size=st.sampled_from([0.3, 1e3]))
def test_one_unit_moves_a_local_pass_by_at_most_its_sensitivity(loss, layout, data, clip, step_size):
    pair = data.draw(pairs(5, PUBLIC[:2]))
    left, right = (as_units(owned, pair, layout) for owned in pair.sides())
    formula = LOSSES[loss]
    at = np.full(D, 0.3) if formula.outputs == 1 else np.outer(np.full(D, 0.3), [1.0, -0.5, 0.0])
    query = LocalPass(loss=formula, at=at, step_size=step_size, clip=clip, shuffle=1)
    ledger = Ledger(Budget(10.0, 1e-5), pair.relation, composition="gaussian")
    audit = Audit(left, right, ledger, noise=NoiseSource(1))
    released = audit.release(query, Gaussian(5.0))
    assert np.all(np.isfinite(released))
    assert audit.moves[0][1] <= 1.0
