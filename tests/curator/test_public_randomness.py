"""Public random numbers, and lots that units draw: repeated where they must be, fresh where they must be."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array, Float

from privopt.curator.audit import Audit
from privopt.curator.dry_run import DryRun
from privopt.curator.local import LocalCurator
from privopt.curator.replay import Replay
from privopt.data.units import Units
from privopt.ledger.unlimited import Unlimited
from privopt.mechanisms.additive import Gaussian
from privopt.mechanisms.noise import NoiseSource
from privopt.precision import double_precision
from privopt.public import Relation
from privopt.queries.base import Scalar, query
from privopt.queries.lots import Lots, LotSum, no_lots


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
    from privopt.ledger.sampling import Poisson

    units = units_of(ROWS)
    curator = curator_of(units, 2)

    def step(state, release):
        return state + release(Jittered(clip=2.0), Gaussian(1.0), Poisson(0.5))

    end = curator.iterate(step, jnp.zeros(3), 4)
    replayed = Replay(curator.transcript, units.public).iterate(step, jnp.zeros(3), 4)
    assert np.array_equal(np.asarray(end), np.asarray(replayed))
