"""Blocks of blocks: every unit in exactly one, by a draw of its own, whatever the other units are."""

import jax.numpy as jnp
import numpy as np
import pytest

from privopt.curator.dry_run import DryRun
from privopt.curator.local import LocalCurator
from privopt.curator.replay import Replay
from privopt.data.units import Units
from privopt.ledger.amounts import Budget
from privopt.ledger.events import Poisson
from privopt.ledger.ledger import Ledger
from privopt.mechanisms.additive import Gaussian
from privopt.mechanisms.noise import NoiseSource
from privopt.precision import double_precision
from privopt.problems import losses
from privopt.queries.moments import ColumnMagnitudes, SecondMoment
from privopt.queries.slopes import ClippedGradient

N, RECORDS = 64, 3
RELATIONS = ("replace-one", "add-or-remove-one")
SILENT = Gaussian(0.0)


@pytest.fixture(autouse=True)
def double():
    with double_precision():
        yield


def units(relation, *, users, changed=None, n=N):
    """Unit j has one feature, (j + 1) / (2 n); one unit may be replaced, or absent under add-or-remove-one."""
    features = np.arange(1, n + 1) / (2.0 * n)
    if changed is not None:
        features[changed] = 0.875 if relation == "replace-one" else np.nan
    groups = None
    if users:
        features, groups = np.repeat(features, RECORDS), np.repeat(np.arange(n), RECORDS)
    return Units.from_arrays(
        features[:, None],
        np.ones(len(features)),
        relation=relation,
        row_bound=1.0,
        n=n,
        groups=groups,
        max_records_per_user=RECORDS,
        user_weighting="user",
    )


def curator(data, seed, plan=None):
    ledger = Ledger(Budget(np.inf, 1e-6), data.public.relation, plan=plan)
    return LocalCurator(data, ledger, noise=NoiseSource(seed))


def leaves(parent, depth):
    """The curators that `depth` cuts into two leave, or the one that was there."""
    if depth == 0:
        return [parent]
    return [leaf for block in parent.blocks(2) for leaf in leaves(block, depth - 1)]


def members(parent):
    """The present units' features of a curator."""
    private_units = parent.private_engine.units
    return sorted(set(np.ravel(private_units.private_features)[private_units.private_present].tolist()))


@pytest.mark.parametrize("users", [False, True], ids=["records", "users"])
@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize("depth", [2, 3])
def test_every_unit_is_in_exactly_one_block_at_every_depth(depth, relation, users):
    for seed in range(10):
        parent = curator(units(relation, users=users), seed)
        found = [feature for leaf in leaves(parent, depth) for feature in members(leaf)]
        assert sorted(found) == members(parent)


@pytest.mark.later(
    "3-add-or-remove-one-records", "3-add-or-remove-one-users", "3-replace-one-records", "3-replace-one-users"
)
@pytest.mark.parametrize("users", [False, True], ids=["records", "users"])
@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize("depth", [2, 3])
def test_one_unit_changes_the_block_it_is_in_and_moves_no_other(depth, relation, users):
    for seed in range(10):
        changed = 7 * seed % N
        left = leaves(curator(units(relation, users=users), seed), depth)
        right = leaves(curator(units(relation, users=users, changed=changed), seed), depth)
        own, new = (changed + 1) / (2.0 * N), {0.875} if relation == "replace-one" else set()
        differing = 0
        for one, other in zip(left, right, strict=True):
            before, after = set(members(one)), set(members(other))
            if before != after:
                differing += 1
                assert before - after == {own}
                assert after - before == new
        assert differing == 1


@pytest.mark.parametrize("relation", RELATIONS)
def test_a_block_of_a_block_keeps_its_public_size_which_is_exact_where_units_are_replaced(relation):
    spread = []
    for seed in range(20):
        for leaf in leaves(curator(units(relation, users=False), seed), 2):
            assert leaf.public.n == N // 4
            spread.append(leaf.private_engine.units.private_count - leaf.public.n)
    assert any(spread) is (relation == "add-or-remove-one")
    assert abs(np.mean(spread)) < 1.0


def nested_program(parent):
    """Releases on blocks of blocks, in loops and out of them."""
    found = []
    for leaf in leaves(parent, 2):
        query = ClippedGradient(loss=losses.squared, at=jnp.zeros(1), clip=1.0)
        found.append(leaf.release(query, SILENT))

        def step(at, release):
            moved = ClippedGradient(loss=losses.squared, at=at, clip=1.0)
            return at - release(moved, SILENT, Poisson(0.5))

        found.append(leaf.iterate(step, jnp.zeros(1), 3))
    return np.concatenate(found)


@pytest.mark.later("add-or-remove-one")
@pytest.mark.parametrize("relation", RELATIONS)
def test_programs_on_blocks_of_blocks_run_replay_and_rehearse(relation):
    """Blocks of two units that may be added are empty now and then."""
    data = units(relation, users=False, n=8)
    rehearsal = DryRun(data.public)
    nested_program(rehearsal)
    plan = rehearsal.transcript.event()
    for seed in range(2):
        parent = curator(data, seed, plan)
        found = nested_program(parent)
        assert np.all(np.isfinite(found))
        assert np.array_equal(nested_program(Replay(parent.transcript, parent.public)), found)
        assert parent.transcript.event() == plan


@pytest.mark.parametrize("relation", RELATIONS)
def test_the_means_of_blocks_of_blocks_add_up_to_the_mean_of_all(relation):
    parent = curator(units(relation, users=False), 1)
    query = ClippedGradient(loss=losses.squared, at=jnp.zeros(1), clip=1.0)
    whole = np.asarray(parent.release(query, SILENT))
    parts = [np.asarray(leaf.release(query, SILENT)) for leaf in leaves(parent, 2)]
    np.testing.assert_allclose(np.mean(parts, axis=0), whole, rtol=1e-12)


@pytest.mark.later("users")
@pytest.mark.parametrize("users", [False, True], ids=["records", "users"])
def test_a_block_that_nobody_was_drawn_into_answers_zero(users):
    data = units("add-or-remove-one", users=users, n=8)
    all_leaves = (leaf for seed in range(100) for leaf in leaves(curator(data, seed), 2))
    empty = next(parent for parent in all_leaves if parent.private_engine.units.private_count == 0)
    for query in (
        ClippedGradient(loss=losses.squared, at=jnp.ones(1), clip=1.0),
        ClippedGradient(loss=losses.softmax(2), at=jnp.ones((1, 2)), clip=1.0),
        SecondMoment(row_bound=1.0),
        ColumnMagnitudes(columns=1, levels=2),
    ):
        assert np.all(np.asarray(empty.release(query, SILENT)) == 0)
    assert [block.private_engine.units.private_count for block in empty.blocks([2])] == [0]
    assert empty.view(np.ones((1, 1)), 1.0).public.n == 2
