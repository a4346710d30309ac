"""The Huber centre and its score: reference values, and a search for neighbours that move them further than stated."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.support.held_samples import neighbouring, reference_points

from privopt.curator.handles import Held
from privopt.precision import double_precision
from privopt.proofs import huber_centre as proof
from privopt.public import Public
from privopt.queries.users import HuberCentre, HuberScore, huber_centre

PUBLIC = Public(n=40, d=3)


@pytest.fixture(autouse=True)
def x64():
    with double_precision():
        yield


def asked(points, *, least, radius, replaced=True, k=3, steps=600, origin=None):
    held = Held(points=points, replaced=replaced)
    origin = jnp.zeros(k) if origin is None else jnp.asarray(origin)
    fields = {"held": held, "origin": origin, "radius": radius, "least": least, "steps": steps}
    return HuberScore(**fields), HuberCentre(**fields)


def values(queries, vectors, present=None):
    present = np.ones(len(vectors), bool) if present is None else present
    return [np.asarray(query.value(jnp.asarray(vectors), jnp.asarray(present))) for query in queries]


def test_reference_values():
    points = reference_points()
    for least, expected in ((25, 5), (21, 5)):
        score, centre = values(asked(40, least=least, radius=0.6), points)
        assert score == expected
        np.testing.assert_allclose(centre, [0.0013664577, 0.0065494772, 0.0025997176], atol=1e-10)
    joined = asked(40, least=25, radius=0.6, replaced=False)
    assert values(joined, points)[0] == 9  # 10, cut at 2 N0 - 1 - K
    _, _, distances = huber_centre(jnp.asarray(points), jnp.ones(40, bool), 0.6, least=25, steps=600)
    inner = 0.6 * proof.inner_radii(15, 25, replaced=False)
    assert max(level for level in range(1, 16) if distances[24 + level] <= inner[level]) == 10
    np.testing.assert_allclose(
        proof.inner_radii(3, 25, replaced=True), [0.95, 0.8723076923, 0.7974928775, 0.7253500204], atol=1e-10
    )
    centre = asked(40, least=25, radius=0.6)[1]
    assert centre.sensitivity(PUBLIC) == pytest.approx(0.046615384615384614, rel=1e-12)
    assert joined[1].sensitivity(PUBLIC) == pytest.approx(0.02353846153846154, rel=1e-12)
    other = points.copy()
    other[7] = (9, -9, 9)
    score, moved = values(asked(40, least=25, radius=0.6), other)
    assert score == 5
    np.testing.assert_allclose(moved, [0.0118448028, -0.0078656734, 0.0143025887], atol=1e-10)
    first = values([centre], points)[0]
    assert np.linalg.norm(moved - first) == pytest.approx(0.02132016587311301, abs=1e-9)


def compiled(queries):
    """What the queries say of many sets of points at once, by one program: they share the centre."""
    read = jax.jit(jax.vmap(lambda points, present: [query.value(points, present) for query in queries]))
    return lambda points, present: [
        np.asarray(one) for one in read(jnp.asarray(points), jnp.asarray(present))
    ]


def search(left, right, masks, *, least, replaced, points, steps):
    """(largest move of the score, largest move of the centre over Delta where a score is at least 1)."""
    queries = asked(points, least=least, radius=1.0, replaced=replaced, k=2, steps=steps)
    read = compiled(queries)
    found = [read(x, mask) for x, mask in zip((left, right), masks, strict=True)]
    scores = np.stack([found[0][0], found[1][0]])
    apart = np.linalg.norm(found[0][1] - found[1][1], axis=1)
    certified = scores.max(axis=0) >= 1
    assert certified.mean() > 0.05
    moved = apart[certified] / float(queries[1].sensitivity(PUBLIC))
    return float(np.abs(scores[0] - scores[1]).max()), float(moved.max())


def replaced_points(points, least, count):
    both = neighbouring(np.random.default_rng(points), count, points, radius=1.0)
    masks = [np.ones((count, points), bool)] * 2
    steps = proof.descent_steps(least, points)
    return search(both[:, :-1], both[:, 1:], masks, least=least, replaced=True, points=points, steps=steps)


def points_that_come_and_go(points, least, count):
    """Some rows are absent, so that the number of points goes from far below to above 2 N0."""
    rng = np.random.default_rng(points)
    rows = 2 * points
    both = neighbouring(rng, count, rows - 1, radius=1.0)
    present = rng.random((count, rows)) < rng.uniform(0.3, 1.0, (count, 1))
    fewer, places = present.copy(), rng.integers(0, rows, count)
    fewer[np.arange(count), places] = False
    left, right = (np.where(mask[:, :, None], both, 0.0) for mask in (present, fewer))
    steps = proof.descent_steps(least, 2 * least - 1)
    return search(left, right, (present, fewer), least=least, replaced=False, points=points, steps=steps)


@pytest.mark.parametrize(
    ("points", "least", "count"),
    [
        (15, 8, 60),
        (16, 9, 60),
        *(
            pytest.param(*sizes, 3000, marks=pytest.mark.audit)
            for sizes in ((15, 8), (16, 9), (31, 17), (40, 24))
        ),
    ],
)
def test_no_replaced_point_moves_score_or_centre_further_than_stated(points, least, count):
    score, centre = replaced_points(points, least, count)
    assert score == 1.0
    assert 0.1 < centre <= 1.0


@pytest.mark.parametrize(
    ("points", "least", "count"),
    [
        (15, 10, 60),
        *(pytest.param(*sizes, 3000, marks=pytest.mark.audit) for sizes in ((15, 10), (24, 15), (40, 26))),
    ],
)
def test_no_added_point_moves_score_or_centre_further_than_stated(points, least, count):
    score, centre = points_that_come_and_go(points, least, count)
    assert score == 1.0
    assert 0.1 < centre <= 1.0


def sampled(least, steps, points):
    held = Held(points=points, replaced=True, drawn_for=0)
    fields = {"held": held, "origin": jnp.zeros(1), "radius": 1.0, "least": least, "steps": steps}
    return HuberScore(**fields), HuberCentre(**fields)


@pytest.mark.at_once("21")
@pytest.mark.parametrize("least", [21, 25, 45])
def test_entering_a_sample_moves_the_centre_by_half_of_what_is_stated_whichever_sample_scores(least):
    """Samples S, S + y and S + y': the scores of S and S + y' may both be 0 where that of S + y is not."""
    rng = np.random.default_rng(least)
    points, count = 2 * least - 4, 60
    queries = sampled(least, proof.descent_steps(least, 2 * least - 1), points)
    half = 0.5 * float(queries[1].sensitivity(PUBLIC))
    rows, present = np.zeros((count, points + 1, 1)), np.zeros((count, points + 1), bool)
    present[:, :least] = True  # the first set: N0 equal points, one too few for a score
    for one in range(1, count):
        outside, turned = rng.integers(0, points - least), rng.integers(0, least + 1)
        rows[one, :least] = rng.uniform(0.8, 0.95)
        rows[one, :turned] *= rng.choice([-1.0, 0.0])
        rows[one, least : least + outside] = rng.choice([5.0, -5.0, 100.0], size=(outside, 1))
        present[one, least : least + outside] = True
    ask = compiled(queries)

    def with_one(at):
        vectors, mask = rows.copy(), present.copy()
        vectors[:, -1], mask[:, -1] = at, True
        return ask(vectors, mask)

    score, centre = ask(rows, present)
    found = [with_one(at) for at in (centre, centre + 0.3, 5.0, -100.0)]
    for score_left, left in found:
        assert np.abs(score_left - score).max() <= 1
        for score_right, right in found:
            safe = np.maximum.reduce([score, score_left, score_right]) >= 1
            assert np.abs(left - centre)[safe].max(initial=0.0) <= half
            assert np.abs(left - right)[safe].max(initial=0.0) <= 2.0 * half
    assert (score[0], found[0][0][0], found[2][0][0]) == (0, 1, 0)
    assert np.abs(found[2][1] - centre)[0] > 0.95 * half


def test_a_sample_needs_enough_close_points():
    held = Held(points=30, replaced=True, drawn_for=0)
    fields = {"held": held, "origin": jnp.zeros(1), "radius": 1.0, "steps": 10}
    with pytest.raises(ValueError, match="at least 21 points must be close"):
        HuberCentre(**fields, least=20).sensitivity(PUBLIC)
    assert HuberCentre(**fields, least=21).sensitivity(PUBLIC) == pytest.approx(2.04 / 21, rel=1e-12)


def test_points_are_cut_nearer_the_more_entries_they_have():
    """So that distances from a matrix product of k entries are known to 1e-4 c^2 in the worst case."""
    k = 20_000
    vectors = np.zeros((12, k))
    vectors[:, 0] = 1e9
    centre = asked(12, least=8, radius=1.0, k=k, steps=5)[1]
    length = np.linalg.norm(values([centre], vectors)[0])
    worst = 4.0 * (k + 3) * 2.0**-53 * length**2
    assert 0.9e-4 < worst <= 1.001e-4


def test_absent_rows_read_as_points_move_the_centre_further_than_stated():
    """N1: a unit that comes replaces a row of zeros, and the smaller constant does not cover that."""
    rows, least = 30, 25
    statistics = asked(rows, least=least, radius=1.0, replaced=False, k=2)
    there, gone = np.full((rows, 2), [5.0, 0.0]), np.full((rows, 2), [5.0, 0.0])
    there[9], gone[9] = [50.0, 0.0], 0.0
    everybody, fewer = np.ones(rows, bool), np.arange(rows) != 9
    stated = float(statistics[1].sensitivity(PUBLIC))

    def moved(mask):
        (first, one), (second, other) = values(statistics, there), values(statistics, gone, mask)
        assert min(first, second) >= 1
        return np.linalg.norm(one - other)

    assert moved(everybody) > 1.7 * stated
    assert moved(fewer) <= stated


def test_one_unit_changes_one_candidate_at_most():
    """N2: candidates are the first points in the secret order; drawn among those present, all would change."""
    rng = np.random.default_rng(0)
    naive = 0
    for seed in range(200):
        present = rng.random(300) < 0.6
        fewer = present.copy()
        fewer[rng.choice(np.flatnonzero(present))] = False
        ours, drawn = [], []
        for mask in (present, fewer):
            ours.append(set(np.asarray(jnp.argsort(~jnp.asarray(mask), stable=True))[: proof.CANDIDATES]))
            lots = np.random.default_rng(seed).permutation(int(mask.sum()))[: proof.CANDIDATES]
            drawn.append(set(np.flatnonzero(mask)[lots]))
        assert len(ours[0] - ours[1]) <= 1
        naive = max(naive, len(drawn[0] - drawn[1]))
    assert naive > 10


@pytest.mark.later("0.51")
@pytest.mark.parametrize("share", [0.51, 0.6, 0.9])
def test_the_steps_suffice_from_the_worst_starts(share):
    """N3: a fixed public number of steps; everything but a bare majority pulls away from the cluster."""
    points = 200
    least = int(share * points)
    steps = proof.descent_steps(least, points)
    for height in (2.0, 1e3, 1e9):
        vectors = np.zeros((points, 2))
        vectors[least + 1 :, 0] = height
        _, residual, distances = huber_centre(
            jnp.asarray(np.minimum(vectors, 1e5)), jnp.ones(points, bool), 1.0, least=least, steps=steps
        )
        assert float(residual) <= 0.5 * proof.TOLERANCE
        assert float(distances[least]) <= 1.0


def test_the_number_of_steps_is_the_same_for_every_data_set():
    """N3: one program whatever the data, without a loop that ends by a condition on them."""
    program = partial(huber_centre, least=25, steps=50)
    jaxpr = str(jax.make_jaxpr(program)(jnp.zeros((40, 2)), jnp.ones(40, bool), 1.0))
    assert "while[" not in jaxpr
    assert "length=50" in jaxpr


def test_a_cluster_far_beyond_float64_does_not_make_the_score_jump():
    """Without the first clip the centre of a cluster at 1e15 c cannot be represented."""
    vectors = np.zeros((120, 2))
    vectors[:, 0] = 1e15
    vectors[:, 1] = np.linspace(-0.3, 0.3, 120)
    other = vectors.copy()
    other[3] = 0.0
    queries = asked(120, least=80, radius=1.0, k=2)
    scores = [float(values(queries, one)[0]) for one in (vectors, other)]
    assert abs(scores[0] - scores[1]) <= 1


@pytest.mark.later("0.0")
@pytest.mark.parametrize("value", [0.0, 1e300])
def test_all_points_equal_or_huge(value):
    queries = asked(50, least=30, radius=1.0, k=2)
    score, centre = values(queries, np.full((50, 2), value))
    assert np.isfinite(centre).all()
    assert score >= 1


def test_nobody_is_there():
    score, centre = values(
        asked(50, least=30, radius=1.0, k=2, replaced=False), np.zeros((50, 2)), np.zeros(50, bool)
    )
    assert score == 0
    assert np.isfinite(centre).all()


def test_fewer_rows_than_are_needed():
    assert values(asked(20, least=30, radius=1.0, k=2), np.zeros((20, 2)))[0] == 0
