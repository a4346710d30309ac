import numpy as np
import pytest

from privopt.data.blocks import block_assignment
from privopt.data.units import Units
from privopt.engine.in_process import InProcessEngine
from privopt.ledger.sampling import FixedSize
from privopt.public import Public, Relation

FIXED = Public(n=11, d=2)
OPEN = Public(n=20_000, d=2, relation=Relation.ADD_OR_REMOVE_ONE)


@pytest.mark.parametrize(
    ("sizes", "expected"), [(3, [4, 4, 3]), ([5, 2, 4], [5, 2, 4]), ([2, 3], [2, 3]), (1, [11])]
)
def test_blocks_of_a_fixed_number_of_units_are_disjoint_and_have_their_public_sizes(sizes, expected):
    parts = block_assignment(FIXED, sizes, np.random.default_rng(0), private_count=FIXED.n)
    assert [size for _, size in parts] == [len(positions) for positions, _ in parts] == expected
    joined = np.concatenate([positions for positions, _ in parts])
    assert len(np.unique(joined)) == len(joined)
    assert set(joined) <= set(range(11))


@pytest.mark.parametrize(("sizes", "shares"), [(4, [0.25] * 4), ([10_000, 5_000, 2_500], [0.5, 0.25, 0.125])])
def test_units_that_may_be_added_join_a_block_independently_with_its_share(sizes, shares):
    parts = block_assignment(OPEN, sizes, np.random.default_rng(0), private_count=OPEN.n)
    assert [size for _, size in parts] == [round(share * OPEN.n) for share in shares]
    found = np.array([len(positions) for positions, _ in parts])
    spread = np.sqrt(OPEN.n * np.array(shares) * (1 - np.array(shares)))
    assert np.all(found != [size for _, size in parts])  # no count is balanced
    assert np.all(np.abs(found - OPEN.n * np.array(shares)) < 5 * spread)
    joined = np.concatenate([positions for positions, _ in parts])
    assert len(np.unique(joined)) == len(joined)


@pytest.mark.parametrize("sizes", [0, 6, [], [1, 4], [6, 6]])
def test_blocks_that_cannot_be_are_refused(sizes):
    with pytest.raises(ValueError, match="got"):
        block_assignment(FIXED, sizes, np.random.default_rng(0), private_count=FIXED.n)


def test_a_fixed_sample_of_everybody_is_everybody_also_in_a_block_that_drew_more_than_its_size():
    units = Units.from_arrays(np.ones((25, 2)), row_bound=2.0, n=40, relation="add-or-remove-one")
    engine = InProcessEngine(units.subset(np.arange(25), 20))
    assert len(engine.draw(FixedSize(20, 20), np.random.default_rng(0))) == 25


@pytest.mark.parametrize("sizes", [[5, 2, 4], [3, 3, 2], [11], [2, 2, 2, 2, 2], [9, 2]])
def test_blocks_of_several_parts_keep_their_sizes_and_every_position_its_chance(sizes, monkeypatch):
    """Of 11 positions, four at a time; the law that is tried is that of a random permutation, position by position."""
    monkeypatch.setattr("privopt.data.blocks._DEALT", 4)
    generator, times = np.random.default_rng(1), 2000
    counts = np.zeros((len(sizes), 11))
    for _ in range(times):
        parts = [positions for positions, _ in block_assignment(FIXED, sizes, generator, private_count=11)]
        assert [len(positions) for positions in parts] == sizes
        assert all(np.all(np.diff(positions) > 0) for positions in parts)
        assert len(np.unique(np.concatenate(parts))) == sum(sizes)
        for block, positions in enumerate(parts):
            counts[block, positions] += 1
    chance = np.array(sizes)[:, None] / 11
    spread = np.sqrt(times * chance * (1 - chance))
    assert np.all(np.abs(counts - times * chance) <= 4.5 * spread)


def test_users_are_assigned_by_a_law_that_does_not_know_their_order(monkeypatch):
    """Any two of them are in one block as often as any other two, within a part of the positions and across."""
    monkeypatch.setattr("privopt.data.blocks._DEALT", 3)
    public = Public(n=7, d=2, unit="user")
    generator, times = np.random.default_rng(1), 4000
    together = np.zeros((7, 7))
    for _ in range(times):
        blocks = block_assignment(public, [2, 3], generator, private_count=7)
        assert [len(positions) for positions, _ in blocks] == [2, 3]
        for positions, _ in blocks:
            assert np.all(np.diff(positions) > 0)
            together[np.ix_(positions, positions)] += 1
    alone, pair = 5 / 7, (2 + 6) / 42
    for counts, chance in ((np.diag(together), alone), (together[~np.eye(7, dtype=bool)], pair)):
        assert np.all(np.abs(counts - times * chance) <= 4.5 * np.sqrt(times * chance * (1 - chance)))


def test_no_part_of_the_positions_gives_a_block_more_or_less_than_its_share(monkeypatch):
    """Rounded up or down, a share among those left: within two of that among all, however many parts there are."""
    monkeypatch.setattr("privopt.data.blocks._DEALT", 100)
    public = Public(n=1_000, d=2)
    for positions, size in block_assignment(
        public, [500, 130, 7], np.random.default_rng(0), private_count=1000
    ):
        dealt = np.bincount(positions // 100, minlength=10)
        assert np.all(np.abs(dealt - size / 10) <= 2.0)


def test_units_that_may_be_added_join_alike_however_many_are_drawn_for_at_a_time(monkeypatch):
    def drawn():
        return block_assignment(OPEN, [9_000, 600], np.random.default_rng(4), private_count=OPEN.n)

    whole = drawn()
    monkeypatch.setattr("privopt.data.blocks._DEALT", 512)
    for (left, _), (right, _) in zip(whole, drawn(), strict=True):
        assert np.array_equal(left, right)
        assert left.dtype == np.int64
