"""Public random numbers, and lots that units draw: repeated where they must be, fresh where they must be."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array, Float
from randomgen import ChaCha

from privopt.curator import audit as audits
from privopt.curator.audit import Audit
from privopt.curator.dry_run import DryRun
from privopt.curator.local import LocalCurator
from privopt.curator.replay import Replay
from privopt.data.units import Units
from privopt.ledger.events import Poisson
from privopt.ledger.payer import Unlimited
from privopt.mechanisms.additive import Gaussian
from privopt.mechanisms.noise import NoiseSource
from privopt.precision import double_precision
from privopt.problems import losses
from privopt.public import Relation
from privopt.queries.base import Scalar, query
from privopt.queries.lots import Lots, LotSum, chacha_blocks, drawn_lots, lots_of, no_lots, without_lot
from privopt.queries.smoothed import JitteredGradient
from privopt.testing import search_neighbours


@query
class Jittered(LotSum):
    """The mean of rows, each moved by a random vector of its own, clipped."""

    clip: Scalar
    lots: Lots = no_lots()

    def radius(self):
        return self.clip

    def shape(self, public):
        return (public.d,)

    def record_contribution_of_lot(
        self, private_features: Float[Array, " d"], private_target: Scalar, lot: Array
    ) -> Array:
        return private_features + jax.random.normal(lot, private_features.shape, jnp.float64)


def units_of(X, relation="replace-one", **others):
    return Units.from_arrays(X, np.zeros(len(X)), row_bound=10.0, relation=relation, **others)


def curator_of(units, seed=None):
    return LocalCurator(units, Unlimited(units.public.relation), noise=NoiseSource(seed))


@pytest.fixture(autouse=True)
def in_double_precision():
    with double_precision():
        yield


ROWS = np.random.default_rng(0).normal(size=(60, 3))


def test_a_public_seed_is_recorded_at_no_price_and_repeated_by_a_replay():
    curator = curator_of(units_of(ROWS))
    seeds = [curator.public_seed("directions") for _ in range(3)]
    assert len(set(seeds)) == 3
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert curator.transcript.releases == 0
    assert curator.transcript.epsilon(1e-6) == 0.0
    replay = Replay(curator.transcript, curator.public)
    assert [replay.public_seed("directions") for _ in range(3)] == seeds


def test_a_seeded_run_fixes_its_public_seed():
    assert curator_of(units_of(ROWS), 3).public_seed("a") == curator_of(units_of(ROWS), 3).public_seed("a")
    assert curator_of(units_of(ROWS)).public_seed("a") != curator_of(units_of(ROWS)).public_seed("a")


def test_blocks_and_dry_runs_have_public_seeds():
    block = curator_of(units_of(ROWS)).blocks(2)[1]
    assert 0 <= block.public_seed("x") < 2**63
    assert DryRun(block.public).public_seed("x") == 0


@pytest.mark.later("fast")
@pytest.mark.parametrize("engine", ["fast", "reference"])
def test_lots_are_fresh_at_every_release_and_alike_for_a_seed(engine):
    units = units_of(ROWS)
    silent = Gaussian(0.0)

    def two(seed):
        curator = LocalCurator(
            units, Unlimited(units.public.relation), noise=NoiseSource(seed), engine=engine
        )
        return [np.asarray(curator.release(Jittered(clip=50.0), silent)) for _ in range(2)]

    first, second = two(5)
    assert not np.allclose(first, second)
    assert np.array_equal(two(5), [first, second])
    assert np.allclose(first, ROWS.mean(axis=0), atol=1.0)


@pytest.mark.parametrize("relation", [Relation.ADD_OR_REMOVE_ONE, Relation.REPLACE_ONE])
@pytest.mark.parametrize("bad", [np.nan, np.inf, 1e300, -4.0])
def test_a_unit_moves_its_own_jittered_contribution_only(relation, bad):
    other = ROWS.copy()
    other[7] = bad
    left, right = units_of(ROWS, relation, n=60), units_of(other, relation, n=60)
    if relation is Relation.ADD_OR_REMOVE_ONE:
        other[59] = bad
        left, right = units_of(other[:59], relation, n=60), units_of(other, relation, n=60)
    audit = Audit(left, right, Unlimited(relation))
    for _ in range(3):
        audit.release(Jittered(clip=2.0), Gaussian(1.0))
    assert all(ratio <= 1.0 for _, ratio in audit.moves)


def moved_by_a_unit_that_leaves(place, query, engine="fast", releases=1):
    left, right = (
        Units.from_arrays(
            rows, np.sign(rows[:, 0]), row_bound=10.0, relation="add-or-remove-one", n=60, classes=[-1.0, 1.0]
        )
        for rows in (ROWS, np.delete(ROWS, place, axis=0))
    )
    audit = Audit(left, right, Unlimited("add-or-remove-one"), engine=engine, place=place)
    for _ in range(releases):
        audit.release(query, Gaussian(1.0))
    return max(ratio for _, ratio in audit.moves)


def queries_with_lots():
    at = np.linspace(-1.0, 2.0, 3)
    yield Jittered(clip=2.0)
    yield JitteredGradient(loss=losses.logistic, at=at, smoothing=2.0, clip=0.5)


@pytest.mark.later("JitteredGradient")
@pytest.mark.parametrize("asked", list(queries_with_lots()), ids=lambda asked: asked.name)
def test_a_unit_that_leaves_takes_its_lot_along_wherever_it_stands(asked):
    assert 0.0 < max(moved_by_a_unit_that_leaves(place, asked) for place in (0, 29, 59)) <= 1.0


@pytest.mark.parametrize("engine", ["fast", "reference"])
def test_lots_by_position_alone_would_move_a_value_much_further(engine, monkeypatch):
    """What the proof couples matters: with the lots of their new positions, those who stay count as well."""
    asked = JitteredGradient(loss=losses.logistic, at=np.linspace(-1.0, 2.0, 3), smoothing=20.0, clip=0.5)
    assert moved_by_a_unit_that_leaves(0, asked, engine, releases=5) <= 1.0
    monkeypatch.setattr(audits, "without_lot", lambda query, _: query)
    assert moved_by_a_unit_that_leaves(0, asked, engine, releases=5) > 2.0
    assert moved_by_a_unit_that_leaves(59, asked, engine, releases=5) <= 1.0


@pytest.mark.parametrize("place", [0, 29, 59])
def test_what_is_drawn_for_those_who_stay_is_the_same_on_both_sides(place):
    """Samples, blocks, and blocks of blocks, with lots in them."""
    left, right = (
        units_of(rows, "add-or-remove-one", n=60) for rows in (ROWS, np.delete(ROWS, place, axis=0))
    )
    relation = "add-or-remove-one"
    for seed in range(3):
        audit = Audit(left, right, Unlimited(relation), noise=NoiseSource(seed), place=place)
        audit.release(Jittered(clip=2.0), Gaussian(1.0), Poisson(0.5))
        for block in audit.blocks(2):
            block.release(Jittered(clip=2.0), Gaussian(1.0))
            for part in block.blocks(3):
                part.release(Jittered(clip=2.0), Gaussian(1.0), Poisson(0.7))
        assert len(audit.moves) == 1 + 2 * (1 + 3)
        assert 0.0 < max(ratio for _, ratio in audit.moves) <= 1.0


def test_lots_are_blocks_of_chacha20_under_256_secret_bits():
    """As RFC 8439 has it (A.1, vectors 1 and 2), and another implementation beyond 32 bits."""
    none = np.asarray(chacha_blocks(jnp.zeros(8, jnp.uint32), jnp.arange(2, dtype=jnp.uint64))).astype("<u4")
    assert (
        none[0].tobytes().hex().startswith("76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7")
    )
    assert (
        none[1].tobytes().hex().startswith("9f07e7be5551387a98ba977c732d080dcb0f29a048e3656912c6533e32ee7aed")
    )
    key = np.frombuffer(bytes(range(32)), "<u4")
    for counter in (0, 1, 77, 2**32 - 1, 2**32 + 5, 2**45):
        theirs = ChaCha(key=int.from_bytes(bytes(range(32)), "little"), rounds=20, counter=16 * counter)
        ours = np.asarray(chacha_blocks(jnp.asarray(key), jnp.asarray([counter], jnp.uint64)))[0]
        assert ours.astype("<u4").tobytes() == theirs.random_raw(8).astype("<u8").tobytes()
    drawn = drawn_lots(Jittered(clip=1.0), np.random.default_rng(0))
    assert drawn.lots[:8].tobytes() == np.random.default_rng(0).bytes(32)


def test_units_have_lots_of_their_own_and_one_that_leaves_takes_its_own_along():
    query = drawn_lots(Jittered(clip=1.0), np.random.default_rng(0))
    data = jax.random.key_data(lots_of(query.lots, jnp.arange(100)))
    assert len(np.unique(np.asarray(data), axis=0)) == 100
    for place in (0, 50, 99):
        rest = jax.random.key_data(lots_of(without_lot(query, place).lots, jnp.arange(99)))
        assert np.array_equal(rest, np.delete(data, place, axis=0))


@pytest.mark.later("replace-one")
@pytest.mark.parametrize("relation", ["replace-one", "add-or-remove-one"])
def test_no_neighbour_in_any_place_moves_a_query_with_lots_further(relation):
    found = search_neighbours(
        Jittered(clip=2.0), columns=3, relations=[relation], layouts=["dense", "dense users"], neighbours=96
    )
    assert 0.3 < found.largest <= 1.0


def test_users_draw_one_lot_for_all_their_records():
    users = np.repeat(np.arange(20), 3)
    twice = np.repeat(ROWS[:20], 3, axis=0)
    units = units_of(twice, groups=users, max_records_per_user=3)
    plain = curator_of(units, 1).release(Jittered(clip=1e6), Gaussian(0.0))
    single = curator_of(units_of(ROWS[:20]), 1).release(Jittered(clip=1e6), Gaussian(0.0))
    assert np.isfinite(np.asarray(plain)).all()
    assert np.asarray(single).shape == (3,)


def test_a_mean_that_is_kept_draws_no_lots():
    with pytest.raises(ValueError, match="draws a lot for each unit"):
        curator_of(units_of(ROWS)).hold_mean(Jittered(clip=1.0))


def test_loops_with_lots_run_step_by_step_and_replay():
    units = units_of(ROWS)
    curator = curator_of(units, 2)

    def step(state, release):
        return state + release(Jittered(clip=2.0), Gaussian(1.0), Poisson(0.5))

    end = curator.iterate(step, jnp.zeros(3), 4)
    replayed = Replay(curator.transcript, units.public).iterate(step, jnp.zeros(3), 4)
    assert np.array_equal(np.asarray(end), np.asarray(replayed))
