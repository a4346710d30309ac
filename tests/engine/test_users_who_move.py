"""Neighbours whose user lies in another part, or comes to one: no sum moves further than its sensitivity."""

import numpy as np
import pytest
from tests.contracts.queries import D

from privopt.data import user_parts
from privopt.data.units import Units
from privopt.engine.in_process import InProcessEngine
from privopt.ledger.events import EveryUnit
from privopt.mechanisms.noise import NoiseSource, RepeatedChoice
from privopt.precision import double_precision
from privopt.problems import losses
from privopt.queries.slopes import ClippedGradient
from privopt.testing.toy_data import hostile_numbers, hostile_targets

RELATIONS = ("replace-one", "add-or-remove-one")
MEAN = 3
MOST = 4 * MEAN + 1


@pytest.fixture(autouse=True)
def _small_parts(monkeypatch):
    monkeypatch.setattr(user_parts, "MEAN_USERS", MEAN)
    with double_precision():
        yield


def neighbours(seed: int, relation: str) -> tuple[Units, Units]:
    """All but the last user are the same: it has another key and other records, or none. Their records stand last."""
    rng, choice = np.random.default_rng(seed), RepeatedChoice(NoiseSource(seed))
    others = int(rng.integers(2 * MEAN, MOST))
    keys = [*range(others), *rng.integers(0, others, 12)]
    rows, targets = hostile_numbers(rng, (len(keys), D)), hostile_targets(rng, len(keys))
    sides = []
    for side in range(2):
        more = 0 if side and relation == "add-or-remove-one" else int(rng.integers(1, 7))
        name = f"user {rng.integers(0, 10**9)}"
        sides.append(
            Units.from_arrays(
                np.concatenate([rows, hostile_numbers(rng, (more, D))]),
                np.concatenate([targets, hostile_targets(rng, more)]),
                target_bounds=(-1.0, 1.0),
                row_bound=1.0,
                groups=[*keys, *[name] * more],
                n=None if relation == "replace-one" else MOST,
                relation=relation,
                max_records_per_user=3,
                user_weighting=("user", "sqrt", "record")[seed % 3],
                noise=choice,
            )
        )
    return sides[0], sides[1]


def moves_over(seeds: range, relation: str) -> tuple[float, int, int]:
    """How far a sum moved at most, over its sensitivity; how often a user went to another part, and how often not."""
    worst, moved, stayed = 0.0, 0, 0
    for seed in seeds:
        rng = np.random.default_rng(seed)
        one, other = (InProcessEngine(units, threads=1) for units in neighbours(seed, relation))
        query = ClippedGradient(
            loss=losses.squared, at=rng.normal(size=D) * 10.0 ** rng.integers(-3, 4), clip=0.3
        )
        apart = one.clipped_sum(query) - other.clipped_sum(query)
        stated = float(one.sensitivity(query, EveryUnit())) * one.public.n
        worst = max(worst, float(np.linalg.norm(apart)) / stated)
        sizes = [np.diff(engine.units.private_ranges, axis=1).ravel() for engine in (one, other)]
        assert len(sizes[0]) == len(sizes[1]) > 2
        changed = int(np.sum(sizes[0] != sizes[1]))
        assert changed <= (2 if relation == "replace-one" else 1)
        moved, stayed = moved + (changed > 0), stayed + (changed == 0)
    return worst, moved, stayed


@pytest.mark.later("replace-one")
@pytest.mark.parametrize("relation", RELATIONS)
def test_a_user_who_moves_to_another_part_or_comes_to_one_moves_no_sum_too_far(relation):
    worst, moved, stayed = moves_over(range(60), relation)
    assert 0.5 < worst <= 1.0 + 1e-9
    assert moved > 20
    assert (stayed > 0) == (relation == "replace-one")


@pytest.mark.audit
@pytest.mark.parametrize("relation", RELATIONS)
def test_of_many_users_who_move_none_moves_a_sum_too_far(relation):
    worst, _, _ = moves_over(range(1000, 6000), relation)
    assert 0.9 < worst <= 1.0 + 1e-9


def test_a_user_spread_over_parts_would_move_a_sum_too_far(monkeypatch):
    """What the check of every record's hash is there for, seen without it: one user who counts as several."""
    monkeypatch.setattr("privopt.data.user_parts.require_own", lambda *_: None)
    monkeypatch.setattr(
        "privopt.data.units.parts_of_digests", lambda digests, parts: np.arange(len(digests)) % parts
    )
    rows = np.zeros((40, D))
    query = ClippedGradient(loss=losses.squared, at=np.zeros(D), clip=1.0)
    sums = []
    for target in (-1.0, 1.0):
        targets = np.r_[np.zeros(30), np.full(10, target)]
        rows[30:, 0] = 1.0
        units = Units.from_arrays(
            rows,
            targets,
            target_bounds=(-1, 1),
            row_bound=1.0,
            groups=[*range(30), *[99] * 10],
            user_weighting="user",
            n=31,
            noise=NoiseSource(1),
        )
        sums.append(InProcessEngine(units).clipped_sum(query))
    stated = float(query.sensitivity(units.public)) * 31
    assert np.linalg.norm(sums[0] - sums[1]) > 4 * stated


@pytest.mark.audit
def test_a_users_records_are_kept_with_equal_chances_in_every_part():
    """Of 6 records a user keeps 2: each record in a third of all layouts, and each pair in a fifteenth."""
    users, each, times = 12, 6, 3000
    keys = np.tile(np.arange(users), each)
    tags = np.arange(users * each)
    counts = np.zeros((users, each, each))
    for _ in range(times):
        units = Units.from_arrays(
            np.zeros((len(keys), 1)), tags / 100.0, row_bound=1.0, groups=keys, max_records_per_user=2
        )
        places = np.rint(units.private_targets * 100).astype(int).reshape(users, 2)
        assert np.all(keys[places[:, 0]] == keys[places[:, 1]])
        first, second = places.T // users
        np.add.at(counts, (keys[places[:, 0]], first, first), 1)
        np.add.at(counts, (keys[places[:, 0]], second, second), 1)
        np.add.at(counts, (keys[places[:, 0]], first, second), 1)
    alone = counts[:, np.arange(each), np.arange(each)]
    pairs = counts[:, *np.triu_indices(each, 1)]
    for found, chance in ((alone, 1 / 3), (pairs, 1 / 15)):
        assert np.all(np.abs(found - times * chance) < 5 * np.sqrt(times * chance * (1 - chance)))
