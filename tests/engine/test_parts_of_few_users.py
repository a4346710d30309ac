"""Few users with many records each: their parts follow from n and M, and are what other parts of users are."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from privopt.curator.local import LocalCurator
from privopt.curator.replay import Replay
from privopt.data import user_parts
from privopt.data.record_source import ArrayRecords, Description
from privopt.data.units import Units
from privopt.data.user_parts import MEAN_USERS, part_count
from privopt.engine.in_process import InProcessEngine
from privopt.engine.placement import Placement
from privopt.engine.rounding import rounding_bound
from privopt.engine.streamed import open_streamed
from privopt.errors import DataUnavailable
from privopt.ledger.amounts import Budget
from privopt.ledger.ledger import Ledger
from privopt.mechanisms.noise import NoiseSource
from privopt.planning.task import Instance
from privopt.precision import double_precision
from privopt.problems import losses
from privopt.problems.problem import Problem
from privopt.queries.slopes import ClippedGradient
from privopt.solvers.gradient_descent import GradientDescent
from privopt.solvers.stochastic_gradient_descent import StochasticGradientDescent

pytest.importorskip("ray")

from tests.support.sharded import on_shards

ROWS, USERS, CAP, D, CLIP = 300, 40, 12, 4, 0.3
RECORDS = 90  # of a part that may be kept, in the mean: 6 parts
QUERY = ClippedGradient(loss=losses.logistic, at=np.linspace(-1, 2, D), clip=CLIP)
BUDGET = Budget(1.0, 1e-6)
RELATIONS = ("replace-one", "add-or-remove-one")


@pytest.fixture(autouse=True)
def _few_records(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(user_parts, "MEAN_RECORDS", RECORDS)
    monkeypatch.setattr(user_parts, "LEAST_USERS", 1)
    with double_precision():
        yield


def records(unit: int = 0, change: str = "") -> ArrayRecords:
    """Some with hundreds of records and some with few; one, whose records stand last, is left out or is another.

    So the others' records keep their places, and with these their lottery numbers.
    """
    rng = np.random.default_rng(1)
    keys = np.r_[np.arange(USERS), rng.integers(0, 4, 120), rng.integers(4, USERS, ROWS - USERS - 120)]
    features, targets = rng.normal(size=(ROWS, D)), rng.choice([-1.0, 1.0], ROWS)
    order = rng.permutation(ROWS)
    order = np.r_[order[keys[order] != unit], order[keys[order] == unit][: 0 if change == "gone" else ROWS]]
    names = np.array([f"user {key}" for key in keys])
    if change == "another":
        names[keys == unit], targets[keys == unit] = "somebody else", -targets[keys == unit]
    return ArrayRecords(features[order], targets[order], names[order])


def about(relation: str = "replace-one", cap: int = CAP) -> Description:
    return Description(row_bound=1.5, max_records_per_user=cap, relation=relation, n=USERS)


def engines(
    source: ArrayRecords, described: Description, folder: Path, workers: tuple[int, ...] = (3,)
) -> Iterator[Any]:
    """The same records in memory, streamed, and with workers."""
    private = source._private
    yield InProcessEngine(
        Units.from_arrays(
            private.private_features,
            private.private_targets,
            groups=private.private_keys,
            noise=NoiseSource(7),
            **described.arguments(),
        )
    )
    yield open_streamed(source, described, Placement(spool=folder, memory=1), noise=NoiseSource(7))
    for count in workers:
        yield on_shards(source, described, workers=count, backwards=count > 2, noise=NoiseSource(7))


@pytest.mark.at_once("solver0-add-or-remove-one")
@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize(
    "solver", [GradientDescent(steps=3, clip=1.0), StochasticGradientDescent(steps=3, clip=1.0, rate=0.3)]
)
def test_transcript_and_model_are_the_same_in_every_place_and_replayed(
    solver: Any, relation: str, tmp_path: Path
) -> None:
    problem, found = Problem(losses.logistic), set()
    for engine in engines(records(), about(relation), tmp_path, (1, 2, 3, 8)):
        assert len(engine._private_ranges) == part_count(USERS, CAP) == 6
        configured = solver.configure(Instance(problem, engine.public, BUDGET))
        ledger = Ledger(BUDGET, engine.public.relation, plan=configured.event(engine.public))
        curator = LocalCurator(engine, ledger, noise=NoiseSource(3))
        params = np.asarray(configured.solve(curator, problem).params)
        again = configured.solve(Replay(curator.transcript, engine.public), problem).params
        assert np.asarray(again).tobytes() == params.tobytes()
        found.add((params.tobytes(), curator.transcript.to_json(values=True), engine.public))
        engine.close()
    assert len(found) == 1


def test_parts_are_as_many_whoever_has_how_many_records() -> None:
    some, none = np.zeros(CAP * USERS, np.int64), np.arange(USERS)
    for keys in (some, none, np.repeat(none, 3), np.full(5, -1.0)):
        units = Units.from_arrays(
            np.ones((len(keys), 1)),
            groups=keys,
            row_bound=1.0,
            n=USERS,
            max_records_per_user=CAP,
            relation="add-or-remove-one",
        )
        assert units.private_ranges is not None
        assert len(units.private_ranges) == 6


@pytest.mark.later("add-or-remove-one")
@pytest.mark.parametrize("relation", RELATIONS)
def test_no_neighbour_moves_a_sum_beyond_its_clip(relation: str, tmp_path: Path) -> None:
    reach = 2.0 if relation == "replace-one" else 1.0
    allowed = reach * CLIP + 2.0 * float(rounding_bound(CLIP, USERS))
    change = "another" if relation == "replace-one" else "gone"
    worst, tried = 0.0, 0
    for unit in (0, 3, 4, 9, USERS - 1):
        before, after = (
            [engine.clipped_sum(QUERY) for engine in engines(records(unit, which), about(relation), tmp_path)]
            for which in ("", change)
        )
        moves = [float(np.linalg.norm(one - other)) for one, other in zip(before, after, strict=True)]
        worst, tried = max(worst, max(moves) / allowed), tried + len(moves)
    assert tried == 15
    assert 0.5 < worst <= 1.0 + 1e-12


class AnotherTime(ArrayRecords):
    """Records whose keys are others when they are read again, as if a file had been written anew in between."""

    times = 0

    def blocks(self, start: int, stop: int) -> Iterator[Any]:
        type(self).times += 1
        for block in super().blocks(start, stop):
            yield block if self.times == 1 else block._replace(private_keys=np.roll(block.private_keys, 1))


def test_every_part_looks_at_the_hash_of_every_record(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    private = records()._private
    arrays = private.private_features, private.private_targets, private.private_keys
    AnotherTime.times = 0
    with pytest.raises(DataUnavailable, match="belong to another part"):
        open_streamed(AnotherTime(*arrays), about(), Placement(spool=tmp_path, memory=1))
    monkeypatch.setattr(
        "privopt.data.units.parts_of_digests", lambda digests, parts: np.arange(len(digests)) % parts
    )
    with pytest.raises(DataUnavailable, match="belong to another part"):
        Units.from_arrays(arrays[0], groups=arrays[2], row_bound=1.0, max_records_per_user=CAP)


def test_small_tables_are_one_part_whatever_their_cap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    private = records()._private
    for cap in (1, 100, 10**6):
        keys = private.private_keys[:31]
        units = Units.from_arrays(
            private.private_features[:31], groups=keys, row_bound=1.0, max_records_per_user=cap
        )
        assert units.private_ranges is None
    assert part_count(5000, 200) == 1 < part_count(5000, 300) < part_count(MEAN_USERS, 300)
