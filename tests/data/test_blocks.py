import itertools
import pickle

import numpy as np
import pytest
from scipy import stats

from privopt.data import blocks, places
from privopt.data import blocks as block_counts
from privopt.data.blocks import block_assignment
from privopt.data.places import Deal, DealtPlaces, GivenPlaces, Stretch
from privopt.data.room import MEMORY
from privopt.data.units import Units
from privopt.engine.in_process import InProcessEngine
from privopt.ledger.events import FixedSize
from privopt.public import Public, Relation

FIXED = Public(n=11, d=2)
USERS = Public(n=7, d=2, unit="user")
OPEN = Public(n=20_000, d=2, relation=Relation.ADD_OR_REMOVE_ONE)


def by_hands_of(length, monkeypatch):
    for module in (blocks, places):
        monkeypatch.setattr(module, "DEALT", length)


def positions_of(assigned, count):
    return [found.within(0, count) for found, _ in assigned]


@pytest.mark.parametrize(
    ("sizes", "expected"), [(3, [4, 4, 3]), ([5, 2, 4], [5, 2, 4]), ([2, 3], [2, 3]), (1, [11])]
)
def test_blocks_of_a_fixed_number_of_units_are_disjoint_and_have_their_public_sizes(sizes, expected):
    parts = block_assignment(FIXED, sizes, np.random.default_rng(0), private_count=FIXED.n)
    assert [size for _, size in parts] == [len(found) for found, _ in parts] == expected
    joined = np.concatenate(positions_of(parts, 11))
    assert len(np.unique(joined)) == len(joined)
    assert set(joined) <= set(range(11))


@pytest.mark.parametrize("length", [2**19, 1024])
@pytest.mark.parametrize(("sizes", "shares"), [(4, [0.25] * 4), ([10_000, 5_000, 2_500], [0.5, 0.25, 0.125])])
def test_units_that_may_be_added_join_a_block_independently_with_its_share(
    sizes, shares, length, monkeypatch
):
    by_hands_of(length, monkeypatch)
    parts = block_assignment(OPEN, sizes, np.random.default_rng(0), private_count=OPEN.n)
    assert [size for _, size in parts] == [round(share * OPEN.n) for share in shares]
    found = np.array([len(found) for found, _ in parts])
    spread = np.sqrt(OPEN.n * np.array(shares) * (1 - np.array(shares)))
    assert np.all(found != [size for _, size in parts])  # no count is balanced
    assert np.all(np.abs(found - OPEN.n * np.array(shares)) < 5 * spread)
    joined = np.concatenate(positions_of(parts, OPEN.n))
    assert len(np.unique(joined)) == len(joined)


@pytest.mark.parametrize("sizes", [0, 6, [], [1, 4], [6, 6]])
def test_blocks_that_cannot_be_are_refused(sizes):
    with pytest.raises(ValueError, match="got"):
        block_assignment(FIXED, sizes, np.random.default_rng(0), private_count=FIXED.n)


def test_a_fixed_sample_of_everybody_is_everybody_also_in_a_block_that_drew_more_than_its_size():
    units = Units.from_arrays(np.ones((25, 2)), row_bound=2.0, n=40, relation="add-or-remove-one")
    engine = InProcessEngine(units.subset(Stretch(0, 25), 20))
    assert len(engine.draw(FixedSize(20, 20), np.random.default_rng(0))) == 25


@pytest.mark.later("sizes0", "sizes1", "sizes3", "sizes4")
@pytest.mark.parametrize("sizes", [[5, 2, 4], [3, 3, 2], [11], [2, 2, 2, 2, 2], [9, 2]])
def test_blocks_of_several_hands_keep_their_sizes_and_every_position_its_chance(sizes, monkeypatch):
    """Of 11 positions, four at a time; the law that is tried is that of a random permutation, position by position."""
    by_hands_of(4, monkeypatch)
    generator, times = np.random.default_rng(1), 2000
    counts = np.zeros((len(sizes), 11))
    for _ in range(times):
        found = positions_of(block_assignment(FIXED, sizes, generator, private_count=11), 11)
        assert [len(positions) for positions in found] == sizes
        assert all(np.all(np.diff(positions) > 0) for positions in found)
        assert len(np.unique(np.concatenate(found))) == sum(sizes)
        for block, positions in enumerate(found):
            counts[block, positions] += 1
    chance = np.array(sizes)[:, None] / 11
    spread = np.sqrt(times * chance * (1 - chance))
    assert np.all(np.abs(counts - times * chance) <= 4.5 * spread)


@pytest.mark.later("3")
@pytest.mark.parametrize("length", [3, 7])
def test_users_are_assigned_by_a_law_that_does_not_know_their_order(length, monkeypatch):
    """Any two of them are in one block as often as any other two, within a hand of the positions and across."""
    by_hands_of(length, monkeypatch)
    generator, times = np.random.default_rng(1), 4000
    together = np.zeros((7, 7))
    for _ in range(times):
        assigned = block_assignment(USERS, [2, 3], generator, private_count=7)
        assert [len(found) for found, _ in assigned] == [2, 3]
        for positions in positions_of(assigned, 7):
            assert np.all(np.diff(positions) > 0)
            together[np.ix_(positions, positions)] += 1
    alone, pair = 5 / 7, (2 + 6) / 42
    for counts, chance in ((np.diag(together), alone), (together[~np.eye(7, dtype=bool)], pair)):
        assert np.all(np.abs(counts - times * chance) <= 4.5 * np.sqrt(times * chance * (1 - chance)))


def law_of(public, sizes, count, times, generator):
    """How often each assignment of `count` positions comes out: the block of each, one after the other."""
    found = dict.fromkeys(itertools.product(range(len(sizes) + 1), repeat=count), 0)
    for _ in range(times):
        owners = np.full(count, len(sizes))
        for block, positions in enumerate(
            positions_of(block_assignment(public, sizes, generator, private_count=count), count)
        ):
            owners[positions] = block
        found[tuple(owners.tolist())] += 1
    return found


@pytest.mark.at_once("Relation.REPLACE_ONE-False-3000")
@pytest.mark.parametrize("times", [3_000, 12_000])
@pytest.mark.parametrize("halved", [False, True])
@pytest.mark.parametrize("relation", list(Relation))
def test_every_assignment_of_several_hands_comes_out_as_often_as_its_law_says(
    relation, halved, times, monkeypatch
):
    """Users: all with the public sizes alike. Units that come and go: each joins by itself, whoever else is there."""
    by_hands_of(2, monkeypatch)
    if halved:
        monkeypatch.setattr(block_counts, "_LOTS", 0)
        monkeypatch.setattr(block_counts, "_ORDERED", 0)
    joins = relation is Relation.ADD_OR_REMOVE_ONE
    public = Public(n=6 if joins else 5, d=2, relation=relation, unit="user")
    found = law_of(public, [2, 2], 5, times, np.random.default_rng(3))
    for owners, seen in found.items():
        if joins:
            chance = (1 / 3) ** 5
        else:
            chance = 1 / 30 if (owners.count(0), owners.count(1)) == (2, 2) else 0.0
        assert abs(seen - times * chance) <= 5.0 * np.sqrt(times * chance)


def test_no_hand_gives_a_block_more_or_less_than_its_share(monkeypatch):
    """Rounded up or down, a share among those left: within two of that among all, however many hands there are."""
    by_hands_of(100, monkeypatch)
    public = Public(n=1_000, d=2)
    for found, size in block_assignment(public, [500, 130, 7], np.random.default_rng(0), private_count=1000):
        dealt = np.diff(found.before([*range(0, 1001, 100)]))
        assert dealt.sum() == len(found) == size
        assert np.all(np.abs(dealt - size / 10) <= 2.0)


@pytest.mark.later("public2-False", "public2-True")
@pytest.mark.parametrize("held", [False, True])
@pytest.mark.parametrize("public", [FIXED, USERS, OPEN])
def test_dealt_places_are_found_from_any_stretch_of_positions(public, held, monkeypatch):
    by_hands_of(4, monkeypatch)
    generator, n = np.random.default_rng(2), min(public.n, 90)
    for found, _ in block_assignment(public, [2, 3], generator, private_count=n):
        assert isinstance(found, DealtPlaces)
        everyone = found.within(0, n)
        given = GivenPlaces(everyone)
        assert len(found) == len(given) == len(everyone)
        if held:
            found.hold(MEMORY, n)
        edges = [*range(n + 1)]
        assert found.before(edges).tolist() == given.before(edges).tolist()
        for start in range(n):
            for stop in range(start, n + 1, 3):
                expected = given.within(start, stop).tolist()
                assert found.within(start, stop).tolist() == expected
                sent = pickle.loads(pickle.dumps(found.near(start, stop)))
                assert sent.within(start, stop).tolist() == expected
                assert given.near(start, stop).within(0, n).tolist() == expected


def test_who_holds_some_units_is_told_keys_of_their_hands_alone(monkeypatch):
    by_hands_of(4, monkeypatch)
    found, _ = block_assignment(Public(n=40, d=2), [9, 8], np.random.default_rng(2), private_count=40)[1]
    near = found.near(9, 16)
    assert near.deal.private_keys == found.deal.private_keys[2:4]
    assert near.deal.private_edges.shape == (2, 2)
    assert len(set(found.deal.private_keys)) == 10


def test_a_kept_order_is_that_of_its_key_and_only_of_those_asked_for(monkeypatch):
    by_hands_of(4, monkeypatch)
    found, _ = block_assignment(Public(n=40, d=2), [9, 8], np.random.default_rng(2), private_count=40)[0]
    expected = [found.deal.order(hand).tolist() for hand in range(10)]
    found.hold(MEMORY, 30)
    assert len(found.deal._private_orders) == 28  # of whole hands: room is there for the units, and no more
    assert [found.deal.order(hand).tolist() for hand in range(10)] == expected
    assert found.deal._private_orders.dtype.itemsize == places.ORDER_BYTES


def test_who_holds_no_unit_is_told_no_key(monkeypatch):
    by_hands_of(4, monkeypatch)
    found, _ = block_assignment(Public(n=40, d=2), [9, 8], np.random.default_rng(2), private_count=40)[1]
    for place in (0, 9, 12, 39, 40):
        near = found.near(place, place)
        assert near.deal.private_keys == []
        assert near.within(place, place).tolist() == []


@pytest.mark.parametrize("public", [FIXED, USERS])
def test_how_many_of_each_block_lie_before_is_counted_once_for_all_blocks(public, monkeypatch):
    by_hands_of(4, monkeypatch)
    monkeypatch.setattr("privopt.engine.parts.PART_UNITS", 3)
    units = Units.from_arrays(np.ones((public.n, 2)), row_bound=2.0)
    engine, asked, count = InProcessEngine(units), [], Deal._before

    def counted(self, edges):
        asked.append(edges)
        return count(self, edges)

    monkeypatch.setattr(Deal, "_before", counted)
    for found, size in block_assignment(public, 3, np.random.default_rng(0), private_count=public.n):
        assert engine.subset(found, size).private_count == size
    assert len(asked) == len(set(asked)) > 1


def test_places_that_do_not_ascend_are_refused():
    for wrong in ([1, 1], [2, 1]):
        with pytest.raises(ValueError, match="must ascend"):
            GivenPlaces(np.array(wrong))


def test_places_in_order_are_a_stretch():
    first, second = (found for found, _ in block_assignment(FIXED, [3, 4], None, private_count=11))
    assert (first, second) == (Stretch(0, 3), Stretch(3, 7))
    assert second.within(5, 20).tolist() == [5, 6]
    assert second.within(9, 20).tolist() == []
    assert second.before([1, 4, 30]).tolist() == [0, 1, 4]


@pytest.mark.at_once(
    "0-0-3",
    "0-1-1000000000",
    "0-1-2",
    "0-1-3",
    "0-3-8",
    "0-5-7",
    "0-7-7",
    "0-999999999-1000000000",
    "1-0-3",
    "1-1-1000000000",
    "1-1-2",
    "1-3-8",
    "1-7-7",
    "1000-0-3",
    "1000-7-7",
    "3-0-3",
    "3-1-2",
    "3-7-7",
    "64-0-3",
    "64-1-2",
    "64-7-7",
    "65-0-3",
    "65-7-7",
)
@pytest.mark.parametrize(
    ("share", "whole"), [(1, 2), (3, 8), (1, 3), (5, 7), (1, 10**9), (10**9 - 1, 10**9), (7, 7), (0, 3)]
)
@pytest.mark.parametrize("count", [0, 1, 3, 64, 65, 1000])
def test_successes_are_binomial(share, whole, count):
    generator, times = np.random.default_rng(count), 2000
    found = np.array([block_counts.successes(count, share, whole, generator) for _ in range(times)])
    law, exact = stats.binom(count, share / whole), share in (0, whole) or count == 0
    likely = np.flatnonzero(times * law.pmf(np.arange(count + 1)) >= 20)
    for value in likely:
        chance = law.pmf(value)
        assert abs(np.sum(found == value) - times * chance) <= 5.0 * np.sqrt(times * chance * (1 - chance))
    assert np.sum(np.isin(found, likely)) >= (times if exact else times * (law.pmf(likely).sum() - 0.03))


def test_successes_take_the_bits_of_the_quotient_one_after_the_other():
    """Of three events with U = .1..., .01..., .00... in binary, those below 3/8 = .011 are told by three rounds."""

    class Bits:
        def __init__(self):
            self.bit_generator, self.rounds = self, [0b011 << 61, 0b01 << 62, 0b0 << 63]

        def random_raw(self, words):
            assert words == 1
            return np.array([self.rounds.pop(0)], np.uint64)

    # Bit 0: two have 0, and are undecided. Bit 1: one of them has 0, and is below. Bit 1: the other has 1; the end.
    assert block_counts.successes(3, 3, 8, Bits()) == 1


@pytest.mark.audit
def test_counts_of_many_hands_are_those_of_their_law():
    """Of 2^21 positions, halved and corrected: each hand's numbers have the mean and the variance of their law."""
    n, sizes, generator = 2**21, [2**19 + 17, 2**20 - 101, 900], np.random.default_rng(5)
    chance = np.array(sizes) / n
    for law, other in ((block_counts.wanted, 1.0), (block_counts.joining, 0.0)):
        drawn = np.array([law(sizes, *([] if other else [n]), [2**19] * 4, generator) for _ in range(400)])
        assert drawn.shape == (400, 4, 3)
        if other:
            assert np.all(drawn.sum(axis=1) == sizes)
        spread = np.sqrt(2**19 * chance * (1 - chance) * (1 - other * 2**19 / n))
        scaled = (drawn - 2**19 * chance) / spread
        assert np.all(np.abs(scaled.mean(axis=0)) <= 5 / np.sqrt(400))
        assert np.all(np.abs(scaled.var(axis=0) - 1) <= 5 * np.sqrt(2 / 400))
