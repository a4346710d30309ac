"""Gradients from values: reference values, no bias, and no way for one record to move them further than stated."""

import itertools
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from privopt.curator.audit import Audit
from privopt.curator.local import LocalCurator
from privopt.data.units import Units
from privopt.engine.in_process import InProcessEngine
from privopt.engine.reference import ReferenceEngine
from privopt.ledger.events import FixedSize, Poisson
from privopt.ledger.payer import Unlimited
from privopt.mechanisms.additive import Gaussian
from privopt.mechanisms.noise import NoiseSource
from privopt.precision import double_precision
from privopt.problems import losses
from privopt.problems.ball import first_coordinate_cdf, haar_block
from privopt.problems.black_box import BlackBox
from privopt.problems.losses import RecordLoss
from privopt.problems.problem import Problem
from privopt.public import Relation
from privopt.queries.values import PlacedValueGradient, ValueDifference, ValueGradient, differences

RELATIONS = [Relation.REPLACE_ONE, Relation.ADD_OR_REMOVE_ONE]


@pytest.fixture(autouse=True)
def in_double_precision():
    with double_precision():
        yield


def relu_loss(params, features, target):
    """|max(<a, x>, 0) - b|."""
    return jnp.abs(jnp.maximum(features @ params, 0.0) - target)


def relu_values(params, features, target):
    return abs(max(float(features @ params), 0.0) - target)


def reference_data():
    i, j = np.meshgrid(np.arange(1, 41), np.arange(1, 4), indexing="ij")
    rows = np.cos(0.7 * i * j) + 0.1 * j
    return rows / np.linalg.norm(rows, axis=1, keepdims=True), 1.5 * np.abs(np.sin(np.arange(1, 41)))


def cosines(d):
    k, j = np.meshgrid(np.arange(d), np.arange(d), indexing="ij")
    rows = np.sqrt(2.0 / d) * np.cos(np.pi * (j + 0.5) * k / d)
    rows[0] /= np.sqrt(2.0)
    return rows


AT = np.array([0.3, -0.2, 0.5])
ANCHOR = AT + np.array([0.02, 0.01, -0.03])
OWN = RecordLoss(relu_loss)
BOX = Problem.of_values(
    BlackBox(relu_values, value_range=(-1e6, 1e6), scale=1.0), np.zeros(3)
).loss  # of flat parameters
TRACED = Problem.of_values(
    BlackBox(relu_loss, value_range=(-1e6, 1e6), scale=1.0, host=False), np.zeros(3)
).loss


def float64_units(relation="replace-one"):
    """The reference data; stored rows are rounded to float32, so its values hold to that."""
    rows, targets = reference_data()
    return Units.from_arrays(rows, targets, row_bound=1.0 + 1e-6, relation=relation)


def exact_mean(query):
    """The mean of clipped contributions straight from the definition, on rows that are not rounded."""
    rows, targets = reference_data()
    private_each = jax.vmap(lambda row, target: query.clip_unit(query.record_contribution(row, target)))
    return np.mean(private_each(rows, targets), axis=0)


@pytest.mark.later("1.0-expected0-loss0", "1.0-expected0-loss1")
@pytest.mark.parametrize("loss", [OWN, TRACED])
@pytest.mark.parametrize(
    ("clip", "expected"),
    [
        (1.0, (-0.2348927104, 0.0913262123, -0.1176863399)),
        (0.6, (-0.1666030432, 0.0508724530, -0.0596115974)),
    ],
)
def test_the_estimate_has_its_reference_values(loss, clip, expected):
    query = ValueGradient(loss=loss, at=AT, directions=cosines(3), smoothing=0.2, clip=clip)
    assert np.allclose(query.gradient(exact_mean(query)), expected, rtol=0, atol=1e-8)


@pytest.mark.parametrize(
    ("clip", "expected"),
    [
        (0.324037034920, (0.0153242815, 0.0051310995, 0.0085381990)),
        (0.1, (0.0138519922, 0.0055764916, 0.0034573687)),
    ],
)
def test_the_difference_has_its_reference_values(clip, expected):
    distance = np.linalg.norm(AT - ANCHOR)
    assert np.isclose(np.sqrt(3.0) * distance / 0.2, 0.324037034920, rtol=0, atol=1e-11)
    query = ValueDifference(
        loss=OWN,
        at=AT,
        anchor=ANCHOR,
        directions=cosines(3),
        smoothing=0.2,
        slope_clip=clip / distance,
    )
    assert np.allclose(query.gradient(exact_mean(query)), expected, rtol=0, atol=1e-8)


QUERIES = {
    "gradient": ValueGradient(loss=OWN, at=AT, directions=cosines(3), smoothing=0.2, clip=0.6),
    "difference": ValueDifference(
        loss=OWN, at=AT, anchor=ANCHOR, directions=cosines(3), smoothing=0.2, slope_clip=2.0
    ),
}


@pytest.mark.parametrize("name", ["gradient", pytest.param("difference", marks=pytest.mark.audit)])
@pytest.mark.parametrize("loss", [BOX, pytest.param(TRACED, marks=pytest.mark.audit)])
def test_every_engine_sums_a_black_box_like_a_loss_that_is_traced(name, loss):
    units, plain = float64_units(), QUERIES[name]
    traced = ReferenceEngine(units).clipped_sum(plain) / 40
    query = replace(plain, loss=loss)
    some = np.array([3, 17, 18])
    for engine in (InProcessEngine(units), ReferenceEngine(units)):
        assert np.allclose(engine.clipped_sum(query) / 40, traced, rtol=0, atol=1e-12)
        assert np.allclose(engine.gather(query)[some].sum(axis=0), engine.clipped_sum(query, some))


@pytest.mark.later("loss1")
@pytest.mark.parametrize("loss", [losses.logistic, losses.softmax(3)])
def test_predictions_of_linear_models_come_from_one_product(loss):
    rng = np.random.default_rng(2)
    X, y = rng.normal(size=(700, 3)), rng.integers(0, 2, 700) * 1.0
    at = rng.normal(size=(3,) if loss.outputs == 1 else (3, 3))
    query = ValueGradient(
        loss=loss, at=at, directions=np.eye(at.size)[: at.size - 1], smoothing=0.3, clip=0.4
    )
    units = Units.from_arrays(X, y, row_bound=2.0, classes=None)
    fast, plain = (kind(units).clipped_sum(query) for kind in (InProcessEngine, ReferenceEngine))
    assert np.allclose(fast, plain, rtol=0, atol=1e-10)
    assert query.gradient(fast).shape == at.shape


def test_it_is_unbiased_for_the_gradient_of_the_ball_average():
    # A kink: f(x) = |<a, x> - b| has the smoothed gradient a E sign(<a, at + r u> - b), u uniform in the ball.
    a, b, at, r, d = np.array([0.6, -0.8, 0.0, 0.0]), 0.1, np.array([0.2, 0.1, -0.3, 0.4]), 0.5, 4
    offset = (a @ at - b) / r
    exact = a * (2.0 * float(first_coordinate_cdf(offset, d)) - 1.0)

    def estimate(key, rows):
        directions = haar_block(key, rows, d)
        points = jnp.concatenate([at[None, :] + r * directions, at[None, :] - r * directions])
        return (d / rows) * directions.T @ differences(jnp.abs(points @ a - b), r)

    for rows in (4, 2):
        keys = jax.random.split(jax.random.key(rows), 40_000)
        found = jax.jit(jax.vmap(lambda key, rows=rows: estimate(key, rows)))(keys)
        assert np.allclose(found.mean(axis=0), exact, rtol=0, atol=3.5 * np.asarray(found).std() / 200.0)
        assert np.linalg.norm(np.asarray(found), axis=1).max() <= (1.0 if rows == 4 else 2.0) + 1e-9


def test_equal_points_give_exactly_nothing():
    curator = LocalCurator(float64_units(), Unlimited(Relation.REPLACE_ONE), noise=NoiseSource(1))
    for slope in (2.0, np.inf):
        query = ValueDifference(
            loss=OWN, at=AT, anchor=AT, directions=np.eye(3), smoothing=0.2, slope_clip=slope
        )
        assert np.array_equal(curator.release(query, Gaussian(1.0)), np.zeros(3))


def test_the_norm_of_pooled_blocks_would_break_the_guarantee():
    """Two blocks see a linear loss along orthogonal parts: the pooled norm is sqrt(J) below that of a block."""
    blocks = np.concatenate([np.eye(2), np.eye(2)])
    steep = RecordLoss(lambda params, features, target: features @ params)
    query = ValueGradient(loss=steep, at=np.zeros(2), directions=blocks, smoothing=0.1, clip=1.0, blocks=2)
    far = jnp.array([1e6, 0.0])
    estimate = query.gradient(query.clip_unit(query.record_contribution(far, 0.0)))
    assert np.isclose(
        np.linalg.norm(estimate), 1.0, atol=1e-6
    )  # both blocks agree: the whole radius in parameters
    numbers = query.record_contribution(far, 0.0)
    pooled = query.gradient(
        numbers / np.linalg.norm(numbers)
    )  # shortened by the norm of all numbers together
    assert np.linalg.norm(pooled) > 1.4
    released = query.clip_unit(numbers)
    assert np.linalg.norm(released) <= query.radius()
    assert np.isclose(np.linalg.norm(released), query.radius(), rtol=1e-8)


@pytest.mark.audit
def test_blocks_change_neither_the_noise_nor_the_reach_in_parameters():
    one = ValueGradient(loss=OWN, at=AT, directions=np.eye(3), smoothing=0.1, clip=1.0)
    four = ValueGradient(
        loss=OWN, at=AT, directions=np.tile(np.eye(3), (4, 1)), smoothing=0.1, clip=1.0, blocks=4
    )
    public = float64_units().public
    assert np.isclose(four.sensitivity(public), one.sensitivity(public) / 2.0)
    noise = np.random.default_rng(0).normal(size=(4000, 12)) * float(four.radius())
    spread = np.std(noise @ np.asarray(four.directions))
    assert np.isclose(spread, float(one.radius()), rtol=0.03)
    assert np.allclose(four.gradient(exact_mean(four)), one.gradient(exact_mean(one)))


def hostile(params, features, target):
    """Whatever may happen in somebody's function, by the record's first entry."""
    first = round(float(features[0]), 3)
    if first == 0.1:
        raise RuntimeError
    if first == 0.2:
        return np.nan
    if first == 0.3:
        return np.inf * params[0]
    if first == 0.4:
        return 1e300 * params.sum()
    if first == 0.5:
        return np.ones(3)
    return float(features @ params) + target


def hostile_query(blocks=1, kind=ValueGradient, clip=0.5):
    loss = Problem.of_values(BlackBox(hostile, value_range=(-50.0, 50.0), scale=1.0), np.zeros(3)).loss
    others = {"loss": loss, "at": AT, "smoothing": 0.1, "blocks": blocks}
    directions = np.concatenate([np.asarray(haar_block(jax.random.key(b), 3, 3)) for b in range(blocks)])
    if kind is ValueGradient:
        return ValueGradient(directions=directions, clip=clip, **others)
    return ValueDifference(directions=directions, anchor=ANCHOR, slope_clip=clip, **others)


BAD = [np.array([first, 0.9, -0.2]) for first in (0.1, 0.2, 0.3, 0.4, 0.5)] + [
    np.array([np.nan, 0.0, 0.0]),
    np.array([1e300, np.inf, 0.0]),
]


def pairs(relation, users):
    rng = np.random.default_rng(4)
    size = 3 if users else 1
    plain = rng.uniform(-1, 1, size=(24 * size, 3))
    groups = np.repeat(np.arange(24), size) if users else None
    for bad in BAD:
        other = plain.copy()
        other[-size:] = bad
        keep = slice(None) if relation is Relation.REPLACE_ONE else slice(0, 23 * size)
        yield tuple(
            Units.from_arrays(
                X,
                np.ones(len(X)),
                row_bound=3.0,
                relation=relation,
                n=24,
                **({"groups": groups[: len(X)], "max_records_per_user": size} if users else {}),
            )
            for X in (plain[keep], other)
        )


@pytest.mark.later(
    "ValueGradient-1-False-Relation.REPLACE_ONE", "ValueGradient-1-True-Relation.ADD_OR_REMOVE_ONE"
)
@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize("users", [False, True])
@pytest.mark.parametrize(
    ("kind", "blocks"),
    [
        (ValueGradient, 1),
        pytest.param(ValueGradient, 3, marks=pytest.mark.audit),
        pytest.param(ValueDifference, 2, marks=pytest.mark.audit),
    ],
)
def test_a_record_moves_the_sum_by_no_more_than_stated_whatever_its_values_are(relation, users, kind, blocks):
    for left, right in pairs(relation, users):
        audit = Audit(left, right, Unlimited(relation))
        audit.release(hostile_query(blocks, kind), Gaussian(1.0))
        assert all(ratio <= 1.0 for _, ratio in audit.moves)


@pytest.mark.parametrize("relation", RELATIONS)
def test_the_stated_sensitivity_is_nearly_reached(relation):
    loss = Problem.of_values(
        BlackBox(lambda p, f, t: float(f @ p), value_range=(-50.0, 50.0), scale=1.0), np.zeros(3)
    ).loss
    query = ValueGradient(loss=loss, at=AT, directions=np.eye(3), smoothing=0.1, clip=0.5)
    X = np.tile([1.0, 0.0, 0.0], (24, 1))
    other = X.copy()
    other[-1] *= -1
    sides = [X[:23], X] if relation is Relation.ADD_OR_REMOVE_ONE else [X, other]
    left, right = (
        Units.from_arrays(one, np.ones(len(one)), row_bound=3.0, relation=relation, n=24) for one in sides
    )
    audit = Audit(left, right, Unlimited(relation))
    audit.release(query, Gaussian(1.0))
    assert 0.999 < audit.moves[0][1] <= 1.0


def test_a_bad_record_changes_nothing_but_its_own_share():
    for left, right in itertools.islice(pairs(Relation.REPLACE_ONE, False), 3):
        query = hostile_query(clip=np.inf)
        fewer = InProcessEngine(left).gather(query)
        changed = InProcessEngine(right).gather(query)
        assert np.array_equal(fewer[:-1], changed[:-1])
        assert np.array_equal(changed[-1], np.zeros(3))


def test_a_callable_that_keeps_state_is_caught_by_the_audit():
    shared = np.random.default_rng(5)

    def stateful(params, features, target):
        if round(float(features[0]), 3) == 0.1:
            shared.random()  # one record draws a number more
        return 20.0 * shared.random()

    loss = Problem.of_values(BlackBox(stateful, value_range=(-50.0, 50.0), scale=1.0), np.zeros(3)).loss
    query = ValueGradient(loss=loss, at=AT, directions=np.eye(3), smoothing=0.1, clip=0.5)
    rows = np.random.default_rng(0).uniform(-1, 1, size=(24, 3))
    other = rows.copy()
    other[0, 0] = 0.1
    left, right = (Units.from_arrays(X, np.ones(24), row_bound=3.0) for X in (rows, other))
    ratios = []
    for _ in range(3):
        audit = Audit(left, right, Unlimited(Relation.REPLACE_ONE))
        audit.release(query, Gaussian(1.0))
        ratios += [ratio for _, ratio in audit.moves]
    assert max(ratios) > 1.5


@pytest.mark.parametrize("sampling", [Poisson(0.3), pytest.param(FixedSize(7, 40), marks=pytest.mark.audit)])
def test_loops_of_black_boxes_run_step_by_step_and_those_of_others_compiled_alike(sampling):
    units = float64_units()

    def end(loss):
        curator = LocalCurator(units, Unlimited(Relation.REPLACE_ONE), noise=NoiseSource(3))

        def step(at, release):
            query = ValueGradient(loss=loss, at=at, directions=cosines(3), smoothing=0.2, clip=0.6)
            return at - 0.1 * query.gradient(release(query, Gaussian(0.1), sampling))

        return np.asarray(curator.iterate(step, jnp.asarray(AT), 3))

    assert np.allclose(end(BOX), end(OWN), rtol=0, atol=1e-9)


def test_chunks_of_any_length_give_the_same_for_a_black_box():
    units = float64_units()
    query = ValueGradient(loss=BOX, at=AT, directions=cosines(3), smoothing=0.2, clip=0.6)
    whole = ReferenceEngine(units).clipped_sum(query)
    assert np.allclose(ReferenceEngine(units, at_once=8).clipped_sum(query), whole, rtol=0, atol=1e-12)
    assert np.array_equal(ReferenceEngine(units).clipped_sum(query, np.array([], np.int64)), np.zeros(3))


def test_directions_that_are_no_numbers_leave_no_column_longer_than_the_clip():
    """Their stretch is none, so what is released must be, whatever else the directions hold."""
    query = PlacedValueGradient(
        loss=RecordLoss(lambda params, features, target: jnp.abs(params[1] - target)),
        at=np.zeros(2),
        directions=np.array([[np.nan, 1e6]]),
        smoothing=1.0,
        clip=0.5,
    )
    assert not np.any(np.isfinite(query.finish(jnp.asarray([0.5]))))


def test_the_rounding_of_the_map_into_parameters_is_in_the_sensitivity():
    rows = cosines(3)
    numbers = {"loss": BOX, "at": AT, "directions": rows, "smoothing": 0.2, "clip": 0.6}
    placed, along = PlacedValueGradient(**numbers), ValueGradient(**numbers)
    public = float64_units().public
    more = float(placed.sensitivity(public)) - float(along.sensitivity(public))
    rng = np.random.default_rng(0)
    for mean in rng.normal(size=(50, 3)):
        short = 0.6 * mean / np.linalg.norm(mean)
        exact = np.asarray(rows, np.longdouble).T @ short.astype(np.longdouble)
        assert 2.0 * np.linalg.norm(np.asarray(placed.finish(jnp.asarray(short))) - exact) < more


def test_a_distance_whose_square_vanishes_is_none_for_values_too():
    """See the same of gradients: in a compiled program the root of the square of one number does not vanish."""

    def above(params, features, target):
        return features[0] * jnp.where(params[0] > target, 1.0, 0.0)

    query = ValueDifference(
        loss=RecordLoss(above),
        at=np.array([1e-160]),
        anchor=np.zeros(1),
        directions=np.ones((1, 1)),
        smoothing=7e-161,
        slope_clip=np.inf,
    )
    released = [
        LocalCurator(
            Units.from_arrays(row * np.ones((6, 1)), np.full(6, 5e-161), row_bound=1.0, storage="float64"),
            Unlimited(Relation.REPLACE_ONE),
        ).release(query, Gaussian(1.0))
        for row in (1.0, -1.0)
    ]
    assert float(query.radius()) == 0.0
    assert released[0] == released[1] == 0.0
