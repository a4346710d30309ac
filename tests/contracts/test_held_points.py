"""What the curator promises about points it holds: of units, and of random groups of units."""

import jax.numpy as jnp
import numpy as np
import pytest

from privopt.curator.audit import Audit
from privopt.curator.dry_run import DryRun
from privopt.curator.handles import Held
from privopt.curator.local import LocalCurator
from privopt.curator.replay import Replay
from privopt.data.participants import GroupedUnits, draw_groups, group_records
from privopt.data.units import Units
from privopt.engine.in_process import InProcessEngine
from privopt.ledger.amounts import Budget
from privopt.ledger.ledger import Ledger
from privopt.mechanisms.additive import Gaussian
from privopt.mechanisms.noise import NoiseSource
from privopt.precision import double_precision
from privopt.public import Public
from privopt.queries.base import RecordSum, StatisticOfHeld, UnitSum, query, static

RELATIONS = ("replace-one", "add-or-remove-one")
N, M, D, C = 23, 4, 2, 5


@pytest.fixture(autouse=True)
def x64():
    with double_precision():
        yield


@query
class Row(RecordSum):
    """The average row of a unit."""

    def radius(self):
        return jnp.inf

    def shape(self, public):
        return (public.d,)

    def record_contribution(self, private_features, private_target):
        del private_target
        return private_features


@query
class Records(UnitSum):
    """The number of records, the sum of the first column, the first record's, the weight, and the padded length."""

    def radius(self):
        return jnp.inf

    def shape(self, public):
        del public
        return (5,)

    def unit_contribution(self, private_features, private_targets, private_mask, private_weight):
        del private_targets
        length = jnp.asarray(float(private_features.shape[0]))
        column = private_features[:, 0]
        return jnp.stack([private_mask.sum(), column.sum(), column[0], private_weight, length])


@query
class Sums(StatisticOfHeld):
    """(number of points, sum of all entries)."""

    held: Held = static()

    def sensitivity(self, public, sampling=None):
        return 100.0 * self.held.factor

    def shape(self, public):
        return (2,)

    def value(self, private_vectors, private_present):
        return jnp.stack([jnp.sum(private_present.astype(private_vectors.dtype)), jnp.sum(private_vectors)])


@query
class Sorted(StatisticOfHeld):
    """The first entries of the points, smallest first: how many of them differ is what the audit of groups sees."""

    held: Held = static()

    def sensitivity(self, public, sampling=None):
        return 1.0

    def shape(self, public):
        return (self.held.points,)

    def value(self, private_vectors, private_present):
        return jnp.where(private_present, private_vectors[:, 0], -1.0)[: self.held.points]


def columns(users=N, records=M, first=0.0):
    """User j owns `records` rows (j + 1, r)."""
    owners = np.repeat(np.arange(users), records)
    rows = np.stack([owners + 1.0 + first, np.tile(np.arange(records), users)], axis=1)
    return rows, owners


def user_units(relation, users=N, n=N, **options):
    rows, owners = columns(users)
    return Units.from_arrays(
        rows, relation=relation, groups=owners, row_bound=1e3, n=n, max_records_per_user=M, **options
    )


def record_units(relation, rows=N, n=N, bad=()):
    features = np.stack([np.arange(rows) + 1.0, np.ones(rows)], axis=1)
    features[list(bad)] = np.nan
    return Units.from_arrays(features, relation=relation, row_bound=1e3, n=n)


def curator_of(units, seed=1):
    return LocalCurator(units, Ledger(Budget(np.inf, 1e-6), units.public.relation), noise=NoiseSource(seed))


def read(curator, held, kind=Sums):
    return np.asarray(curator.release(kind(held=held), Gaussian(0.0)))


@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize("units", [user_units, record_units])
def test_every_record_is_in_one_group(relation, units):
    curator = curator_of(units(relation))
    held = curator.hold(Records(), groups=C)
    assert (held.points, held.replaced, held.factor) == (C, True, 2)
    assert repr(held) == "<private>"
    vectors, present = curator._private_held[held]
    per_unit = M if units is user_units else 1
    assert vectors.shape == (C, 5)
    assert present.all()
    assert np.all(vectors[:, 3] == 1.0)
    assert np.all(vectors[:, 4] == group_records(curator.public, C))
    assert group_records(curator.public, C) == -(-N // C) * per_unit
    if relation == "replace-one":
        assert sorted(vectors[:, 0] / per_unit) == [4, 4, 5, 5, 5]
        assert vectors[:, 1].sum() == per_unit * N * (N + 1) / 2
    else:
        assert 0 < vectors[:, 0].sum() <= N * per_unit


@pytest.mark.parametrize("relation", RELATIONS)
def test_a_group_is_one_unit_whose_average_is_that_of_its_records(relation):
    units = user_units(relation)
    curator = curator_of(units)
    held = curator.hold(Row(), groups=C)
    vectors, _ = curator._private_held[held]
    draw = draw_groups(units.public, C, NoiseSource(1).units_generator, private_count=N)
    for group in range(C):
        members = np.flatnonzero(draw.private_groups == group)
        expected = [np.mean(members + 1.0), 1.5] if len(members) else [0.0, 0.0]
        kept = min(len(members) * M, group_records(units.public, C))
        if kept == len(members) * M:
            np.testing.assert_allclose(vectors[group], expected)


def test_groups_built_in_parts_equal_groups_built_at_once(monkeypatch):
    units = user_units("replace-one")
    draw = draw_groups(units.public, C, np.random.default_rng(3), private_count=N)
    engine = InProcessEngine(units)
    whole = engine.gather_groups(Records(), draw)
    monkeypatch.setattr("privopt.engine.reference._GROUPED_ROWS", 1)
    np.testing.assert_array_equal(engine.gather_groups(Records(), draw), whole)


def test_the_order_of_a_groups_records_is_random_and_repeats_with_the_draw():
    units = user_units("replace-one")
    draws = [draw_groups(units.public, 2, np.random.default_rng(s), private_count=N) for s in range(40)]
    firsts = [InProcessEngine(units).gather_groups(Records(), draw)[0, 2] for draw in draws]
    assert len(set(firsts)) > 10
    grouped = GroupedUnits(units, draws[0])
    again = GroupedUnits(units, draws[0])
    np.testing.assert_array_equal(grouped.part(0, 2).private_features, again.part(0, 2).private_features)


def test_a_group_with_too_many_records_is_cut_to_the_public_length():
    """Under add-or-remove-one a group may draw more users than its share."""
    units = user_units("add-or-remove-one")
    cap = group_records(units.public, C)
    counts = [
        InProcessEngine(units).gather_groups(
            Records(), draw_groups(units.public, C, np.random.default_rng(s), private_count=N)
        )[:, 0]
        for s in range(60)
    ]
    assert np.max(counts) == cap
    assert any(np.sum(one) < N * M for one in counts)


@pytest.mark.parametrize("relation", RELATIONS)
def test_one_unit_changes_one_group(relation):
    """Whatever the relation, and however many records the unit has on the other side."""
    rows, owners = columns()
    everybody = user_units(relation)
    for other in ("fewer records", "no record", "other values"):
        changed = rows.copy()
        mine = owners == N - 1
        changed[mine] = np.nan if other == "no record" else changed[mine] * 7.0
        if other == "fewer records":
            changed[mine][1:] = np.nan
        neighbour = Units.from_arrays(
            changed, relation=relation, groups=owners, row_bound=1e3, n=N, max_records_per_user=M
        )
        audit = Audit(everybody, neighbour, Ledger(Budget(np.inf, 1e-6), relation), noise=NoiseSource(4))
        held = audit.hold(Records(), groups=C)
        left, right = (side._private_held[held][0] for side in (audit._left, audit._right))
        assert np.sum(np.any(left != right, axis=1)) <= 1


def test_removing_a_unit_changes_one_group():
    left, right = user_units("add-or-remove-one"), user_units("add-or-remove-one", users=N - 1)
    for seed in range(10):
        audit = Audit(left, right, Ledger(Budget(np.inf, 1e-6), "add-or-remove-one"), noise=NoiseSource(seed))
        held = audit.hold(Row(), groups=C)
        one, other = (side._private_held[held][0] for side in (audit._left, audit._right))
        assert np.sum(np.any(one != other, axis=1)) <= 1
        audit.release(Sorted(held=held), Gaussian(1.0))


@pytest.mark.later("replace-one")
@pytest.mark.parametrize("relation", RELATIONS)
def test_absent_units_are_points_only_where_a_point_is_replaced(relation):
    for units in (record_units(relation, bad=(2, 5), n=N + 3), user_units(relation, users=N - 2, n=N + 3)):
        curator = curator_of(units)
        held = curator.hold(Row())
        assert (held.points, held.replaced) == (N + 3, relation == "replace-one")
        count, total = read(curator, held)
        assert count == (N + 3 if relation == "replace-one" else N - 2)
        vectors, present = curator._private_held[held]
        assert vectors.shape == (N + 3, 2)
        if relation != "replace-one":
            assert not np.any(vectors[~present])
        assert total > 0


def test_points_are_kept_in_a_random_order_that_both_sides_of_an_audit_share():
    left, right = record_units("add-or-remove-one"), record_units("add-or-remove-one", rows=N - 1)
    orders = []
    for seed in range(3):
        audit = Audit(left, right, Ledger(Budget(np.inf, 1e-6), "add-or-remove-one"), noise=NoiseSource(seed))
        held = audit.hold(Row())
        audit.release(Sorted(held=held), Gaussian(1.0))
        one, other = (side._private_held[held] for side in (audit._left, audit._right))
        moved = np.any(one[0] != other[0], axis=1) | (one[1] != other[1])
        assert moved.sum() == 1
        orders.append(tuple(one[0][:, 0]))
    assert len(set(orders)) == 3


def program(curator):
    users, groups = curator.hold(Row()), curator.hold(Records(), groups=C)
    values = [curator.release(Sums(held=held), Gaussian(3.0)) for held in (users, groups)]
    return np.concatenate([np.ravel(value) for value in values]), users, groups


@pytest.mark.parametrize("relation", RELATIONS)
def test_a_program_on_held_points_replays_and_rehearses_without_data(relation):
    curator = curator_of(user_units(relation))
    values, users, groups = program(curator)
    replayed, *handles = program(Replay(curator.transcript, curator.public))
    np.testing.assert_array_equal(values, replayed)
    dry = DryRun(curator.public)
    _, *rehearsed = program(dry)
    for mine, other, third in zip((users, groups), handles, rehearsed, strict=True):
        assert (
            (mine.points, mine.replaced) == (other.points, other.replaced) == (third.points, third.replaced)
        )
    assert [one.event for one in dry.transcript] == [one.event for one in curator.transcript]


@pytest.mark.parametrize("kind", [LocalCurator, DryRun])
@pytest.mark.parametrize("groups", [1, N + 1, 2.5, True])
def test_groups_that_cannot_be_drawn_are_refused(kind, groups):
    units = user_units("replace-one")
    curator = curator_of(units) if kind is LocalCurator else DryRun(units.public)
    with pytest.raises((ValueError, TypeError), match="groups must be"):
        curator.hold(Row(), groups=groups)


def test_the_larger_groups_are_chosen_at_random():
    public = Public(n=7, d=1)
    larger = set()
    for seed in range(40):
        draw = draw_groups(public, 3, np.random.default_rng(seed), private_count=7)
        sizes = np.bincount(draw.private_groups, minlength=3)
        assert sorted(sizes) == [2, 2, 3]
        larger.add(int(np.argmax(sizes)))
    assert larger == {0, 1, 2}
