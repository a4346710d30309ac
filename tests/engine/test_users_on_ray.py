"""Users on Ray: every record reaches whoever holds its user, once, whatever is lost on the way; the bits are the same.

Without a cluster: a `UserShard` is what an actor runs, and the exchange is told of answers in a random order.
"""

import dataclasses
import datetime
import decimal
import functools
import itertools
import pickle
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import sparse

from privopt.data.record_source import ArrayRecords, Description
from privopt.data.units import Units
from privopt.engine.in_process import InProcessEngine
from privopt.engine.parts import ExactSum, parts_of
from privopt.engine.placement import Placement
from privopt.errors import ArgumentError, DataUnavailable
from privopt.mechanisms.noise import NoiseSource
from privopt.precision import double_precision
from privopt.problems import losses
from privopt.queries.slopes import ClippedGradient
from privopt.tables.table import Table

ray = pytest.importorskip("ray")

from ray.exceptions import RayError  # noqa: E402

from privopt.engine.on_ray import user_fleet as user_fleet_module  # noqa: E402
from privopt.engine.on_ray.engine import open_on_ray  # noqa: E402
from privopt.engine.on_ray.fleet import checked  # noqa: E402
from privopt.engine.on_ray.layout import cut, lay_out  # noqa: E402
from privopt.engine.on_ray.shard import SOURCE, Failure, Preparation, question_of, total_of  # noqa: E402
from privopt.engine.on_ray.user_shard import LOST, Arrivals, Exchange, Owners, Piece, UserShard  # noqa: E402  # noqa: E402  # noqa: E402

N, D = 150, 4
USERS = 77  # the public number
QUERY = ClippedGradient(loss=losses.logistic, at=np.linspace(-1, 2, D), clip=0.3)
LAYOUTS = ("dense", "sparse", "int8")
RELATIONS = ("replace-one", "add-or-remove-one")


@pytest.fixture(autouse=True)
def _small_parts(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr("privopt.data.user_parts.MEAN_USERS", 12)
    monkeypatch.setattr("privopt.engine.on_ray.user_shard._LOOSE", 10)
    monkeypatch.setattr("privopt.engine.on_ray.shard.warm", lambda *_: None)
    with double_precision():
        yield


def records(layout: str = "dense", relation: str = "replace-one") -> tuple[ArrayRecords, Description]:
    rng = np.random.default_rng(1)
    features: Any = rng.normal(size=(N, D)) * (rng.random((N, D)) < 0.7)
    features[3], features[40], features[70] = np.nan, 1e200, 0.0
    keys = rng.integers(0, N // 2, N).astype(str)
    keys[rng.random(N) < 0.2] = "7"  # somebody with many records
    keys[5] = ""
    storage = layout if layout == "int8" else "float32"
    about = Description(
        row_bound=1.5, classes=(0, 1), max_records_per_user=2, relation=relation, n=USERS, storage=storage
    )
    rows = sparse.csr_array(features) if layout == "sparse" else features
    return ArrayRecords(rows, rng.integers(0, 2, N), keys), about


def spans(step: int) -> list[tuple[int, int]]:
    return [(start, min(start + step, N)) for start in range(0, N, step)]


def made(source: ArrayRecords, about: Description, workers: int) -> list[UserShard]:
    """Workers that hold nothing yet."""
    layout = lay_out(source, about, NoiseSource(1))
    shares = cut(layout.plans, workers)
    holders = np.repeat(np.arange(len(shares)), [len(plans) for plans in shares])
    owners = pickle.loads(pickle.dumps(Owners(layout.secret, holders, only_counted=False)))
    return [UserShard(source, about, layout.public, plans, 1, owners) for plans in shares]


def settled(shards: list[UserShard], private_units: list[int]) -> list[UserShard]:
    first = [0, *itertools.accumulate(private_units)]
    for shard in shards:
        assert [shard.settle(part, first[part]) for part in shard._plans] == [None] * len(shard._plans)
    return shards


def gathered(
    source: ArrayRecords, about: Description, workers: int, order: Any, step: int
) -> list[UserShard]:
    """Workers that hold their users, whose records arrived in some order."""
    shards = made(source, about, workers)
    sent = [
        (span, receiver, *pickle.loads(pickle.dumps(piece)))
        for span in spans(step)
        for receiver, piece in shards[0].cut(*span, range(len(shards))).items()
    ]
    for at in order(len(sent)):
        span, receiver, count, pieces = sent[at]
        assert shards[receiver].take(*span, count, pieces) is None
    return settled(shards, [units for shard in shards for units in shard.units()])


def engines_of(shards: list[UserShard]) -> dict[int, InProcessEngine]:
    return {part: engine for shard in shards for part, engine in shard._private_engines[SOURCE].items()}


def sum_of(shards: list[UserShard]) -> bytes:
    question = question_of(QUERY)
    answers = [
        shard.answer(Preparation([], []), SOURCE, question, dict.fromkeys(shard._plans)) for shard in shards
    ]
    return np.asarray(total_of(answers).value(question.radius)).tobytes()


def bytes_of(units: Units) -> list[Any]:
    names = ("targets", "norms", "present", "offsets", "weights")
    rows: Any = units.private_features
    stored = {
        "csr_array": lambda: (rows.data.tobytes(), rows.indices.tobytes(), rows.indptr.tobytes()),
        "GridRows": lambda: rows.private_steps.tobytes(),
    }.get(type(rows).__name__, lambda: rows.tobytes())
    return [stored(), *(getattr(units, f"private_{name}").tobytes() for name in names)]


def in_memory(source: ArrayRecords, about: Description) -> Units:
    private = source._private
    return Units.from_arrays(
        private.private_features,
        private.private_targets,
        groups=private.private_keys,
        noise=NoiseSource(1),
        **about.arguments(),
    )


def expected(layout: str, relation: str) -> list[list[Any]]:
    """What the parts hold in memory."""
    return [bytes_of(part) for part in parts_of(in_memory(*records(layout, relation)))]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_one_part_holds_what_memory_holds(layout: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("privopt.data.user_parts.MEAN_USERS", USERS)
    for relation in RELATIONS:
        source, about = records(layout, relation)
        shards = gathered(source, about, 3, np.random.default_rng(2).permutation, 17)
        memory = in_memory(source, about)
        (engine,) = engines_of(shards).values()
        assert engine.units.public == memory.public
        assert bytes_of(engine.units) == bytes_of(memory)


@pytest.mark.at_once("int8-add-or-remove-one")
@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_parts_are_the_same_whoever_holds_them_and_whatever_arrives_first(layout: str, relation: str) -> None:
    source, about = records(layout, relation)
    sums = {InProcessEngine(in_memory(source, about)).clipped_sum(QUERY).tobytes()}
    for workers, step in ((1, 50), (2, 17), (3, 40), (8, 9)):
        shards = gathered(source, about, workers, np.random.default_rng(workers).permutation, step)
        engines = engines_of(shards)
        assert len(shards) == min(workers, 7)
        assert [bytes_of(engine.units) for _, engine in sorted(engines.items())] == expected(layout, relation)
        sums.add(sum_of(shards))
        first = 0
        for _, engine in sorted(engines.items()):
            assert engine.units.first == first
            first += engine.private_count
    assert len(sums) == 1


def test_every_user_lies_whole_in_one_part_wherever_its_records_stand() -> None:
    source, about = records()
    about = dataclasses.replace(about, max_records_per_user=N)
    (shard,) = gathered(source, about, 1, range, 20)
    keys = source._private.private_keys
    usable = ~np.isnan(source._private.private_features).any(axis=1) & (keys != "")
    engines = shard._private_engines[SOURCE]
    counts = np.concatenate([np.diff(engine.units.private_offsets) for engine in engines.values()])
    assert len(counts) == len(set(keys) - {""})
    _, of_user = np.unique(keys[usable], return_counts=True)
    assert sorted(counts[counts > 0]) == sorted(of_user)


def test_users_of_a_table_are_counted_by_whoever_their_hash_is(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    who, where = rng.integers(0, 60, N), [None if k % 9 == 0 else f"place {k % 4}" for k in range(N)]
    pd.DataFrame({"who": who, "where": where, "more": 0.5}).to_parquet(
        tmp_path / "t.parquet", row_group_size=40
    )
    table = Table.open(tmp_path / "t.parquet", {"columns": {"who": {"kind": "id"}, "where": {"kind": "id"}}})
    for names in (("who",), ("who", "where")):
        source = pickle.loads(pickle.dumps(table.key_records(names)))
        layout = lay_out(source, Description(row_bound=1.0, n=40), None)
        owners = Owners(layout.secret, np.arange(len(layout.plans)), only_counted=True)
        shards = [
            UserShard(source, Description(row_bound=1.0), layout.public, [plan], 1, owners)
            for plan in layout.plans
        ]
        for span in spans(17):
            for receiver, piece in shards[0].cut(*span, range(len(shards))).items():
                assert shards[receiver].take(*span, *piece) is None
        assert len(shards) == 4
        assert sum(sum(shard.units()) for shard in shards) == table.user_count(names)
        assert source.fingerprint() == table.key_records(names).fingerprint()


# What must not arrive.


def one_piece() -> tuple[list[UserShard], int, int, list[Piece]]:
    """Two workers, and what the first one holds of the first ten records."""
    shards = made(*records(), 2)
    count, pieces = shards[1].cut(0, 10, [0])[0]
    assert count > 1
    return shards, 0, count, pieces


def test_records_of_another_worker_are_refused() -> None:
    shards, _, count, pieces = one_piece()
    assert shards[1].take(0, 10, count, pieces) == Failure("DataUnavailable", -1)
    assert shards[0].take(0, 10, count, pieces) is None


def test_a_part_refuses_records_of_another() -> None:
    shards, _, _, pieces = one_piece()
    nothing = shards[0]._private_loose[0]
    for part in (0, 6):
        arrivals = Arrivals(2, part, 7, nothing)
        arrivals.add(Piece.joined(pieces))
        with pytest.raises(DataUnavailable, match="belong to another part"):
            arrivals.finish()


@pytest.mark.parametrize("change", [-1, 1])
def test_a_piece_with_more_or_fewer_records_than_were_sent_is_refused(change: int) -> None:
    shards, start, count, pieces = one_piece()
    assert shards[0].take(start, 10, count + change, pieces) == Failure("DataUnavailable", -1)
    assert shards[0].take(start, 10, 1, []) == Failure("DataUnavailable", -1)


def test_records_that_come_twice_or_from_elsewhere_are_refused() -> None:
    shards, _, count, pieces = one_piece()
    assert shards[0].take(0, 10, 2 * count, [*pieces, *pieces]) == Failure("DataUnavailable", -1)
    assert shards[0].take(10, 20, count, pieces) == Failure("DataUnavailable", -1)
    assert shards[0].take(0, 5, count, pieces) == Failure("DataUnavailable", -1)


@pytest.mark.parametrize(
    "ranges", [[(0, 75)], [(0, 75), (75, N), (0, 75)], [(0, 75), (80, N)], [(0, 80), (75, N)]]
)
def test_a_range_that_is_missing_or_comes_twice_is_noticed(ranges: list[tuple[int, int]]) -> None:
    shards = made(*records(), 1)
    for span in ranges:
        count, pieces = shards[0].cut(*span, [0])[0]
        assert shards[0].take(*span, count, pieces) is None
    assert shards[0].units() == Failure("DataUnavailable", 0)


def test_what_goes_wrong_is_told_by_its_kind_alone() -> None:
    source, about = records()
    shards = made(source, about, 2)
    source.rows += 1
    source._private.private_keys[0] = "secret"
    assert shards[0].cut(0, N + 1, [0]) == Failure("DataUnavailable", -1)
    assert shards[0].settle(99, 0) == Failure("KeyError", 99)
    with pytest.raises(DataUnavailable, match=r"^a worker failed \(KeyError\): "):
        checked(Failure("KeyError", -1))


class Unprepared(ArrayRecords):
    """Records that do not look at their keys."""

    def require_portable(self) -> None:
        """See `RecordSource.require_portable`."""


@pytest.mark.parametrize("late", [False, True])
def test_keys_of_types_of_their_own_are_refused_in_plain_words(
    monkeypatch: pytest.MonkeyPatch, late: bool
) -> None:
    source, about = records()
    monkeypatch.setattr(
        "privopt.engine.on_ray.cluster.Cluster.joined", lambda *_, **__: pytest.fail("started")
    )
    keys = [*map(str, range(N - 1)), frozenset({22, 7})]
    private = source._private
    own = (Unprepared if late else ArrayRecords)(private.private_features, private.private_targets, keys)
    words = r"^keys of users that several processes read are numbers, texts, [^0-9]*\.$"
    if not late:
        with pytest.raises(ArgumentError, match=words):
            open_on_ray(own, about, Placement(engine="ray"))
        with pytest.raises(ArgumentError, match=words):
            open_on_ray(own.mapped(1, len), about, Placement(engine="ray"))
        return
    shard = made(own, about, 1)[0]
    elsewhere = dataclasses.replace(shard._owners.secret, process=b"")
    shard._owners = dataclasses.replace(shard._owners, secret=elsewhere)
    with pytest.raises(ArgumentError, match=words):
        checked(shard.cut(0, N, [0]))


@pytest.mark.parametrize(
    "keys",
    [
        np.arange(3),
        [1, "a", None],
        [uuid.UUID(int=3), decimal.Decimal("1.5"), True],
        [datetime.date(2020, 1, 1), datetime.timedelta(3), datetime.time(3)],
        pd.Series(["a", None, "b"], dtype="category"),
        [b"a", ("a", 2), np.float16(3)],
    ],
)
def test_keys_of_types_that_every_process_knows_are_not_refused(keys: Any) -> None:
    ArrayRecords(np.zeros((3, 1)), None, keys).require_portable()
    ArrayRecords(np.zeros((3, 1))).require_portable()


def test_rows_that_cannot_be_kept_are_let_go_on_the_way() -> None:
    source, about = records()
    (shard,) = made(source, about, 1)
    arrivals = Arrivals(about.max_records_per_user, 0, 1, shard._private_loose[0])
    crowd = Piece.joined(shard.cut(0, N, [0])[0][1])
    most = np.argmax(np.bincount(np.unique(crowd.private.private_digests, return_inverse=True)[1]))
    of_one = np.flatnonzero(crowd.private.private_digests == np.unique(crowd.private.private_digests)[most])
    assert len(of_one) > 11
    arrivals.add(crowd.at(of_one))
    (held,) = arrivals._pieces
    assert held.private_count <= 3
    assert held.rows is not None
    assert len(held.rows.private_targets) <= 3


def test_ranges_are_so_small_that_what_travels_fits_the_store() -> None:
    for layout, machine in itertools.product(LAYOUTS, (1, 8, 64)):
        source, about = records(layout)
        source.rows, source.width = 10**6, 300
        found = user_fleet_module._spans(source, about, machine)
        assert found[0][0] == 0
        assert found[-1][1] == source.rows
        assert all(one[1] == other[0] for one, other in itertools.pairwise(found))
        most = max(stop - start for start, stop in found) * (300 * 4 + 66)
        assert layout != "dense" or most * 3 * machine <= user_fleet_module.STORE_BYTES


# The exchange, with actors that answer in a random order and die at random.


class Answer:
    """What `remote` returns: answered when it is asked for."""

    def __init__(self, actor: "Actor", answer: Callable[[], Any]) -> None:
        self.actor, self.answer = actor, answer


class Method:
    def __init__(self, actor: "Actor", call: Callable[..., Any]) -> None:
        self._actor, self._call = actor, call

    def remote(self, *arguments: Any) -> Answer:
        return Answer(self._actor, functools.partial(self._call, *arguments))


class Actor:
    """One shard, whose pieces are gone when it dies."""

    def __init__(self, shard: UserShard) -> None:
        self.shard, self.alive = shard, True
        self.read, self.receive, self.units = (
            Method(self, call) for call in (self._read, self._receive, shard.units)
        )

    def _read(self, start: int, stop: int, receivers: list[int]) -> Any:
        found = self.shard.cut(start, stop, receivers)
        if isinstance(found, Failure):
            return found
        return {receiver: (count, [(self, pieces)]) for receiver, (count, pieces) in found.items()}

    def _receive(self, start: int, stop: int, count: int, references: Any) -> Any:
        ((reader, pieces),) = references
        return self.shard.take(start, stop, count, pieces) if reader.alive else LOST


class Crew:
    """Actors that die now and then; one of them at the fourth answer, if any do."""

    def __init__(self, workers: int, rng: np.random.Generator, death: float) -> None:
        self._source, self._about = records()
        self._workers, self._rng, self._death = workers, rng, death
        self.actors = [Actor(shard) for shard in made(self._source, self._about, workers)]
        self.deaths = self._turns = 0

    def actor(self, worker: int) -> Actor:
        return self.actors[worker]

    def restart(self, worker: int, what: str) -> None:
        assert what in ("was lost", "did not answer in time")
        self.actors[worker].alive = False
        self.actors[worker] = Actor(made(self._source, self._about, self._workers)[worker])
        self.deaths += 1

    def checked(self, answer: Any) -> Any:
        return checked(answer)

    def ready(self, references: list[Answer], seconds: float, *, fetch: bool) -> list[Answer]:
        return ray.wait(references, timeout=seconds, fetch_local=fetch)[0]

    def wait(self, answers: list[Answer], **_: Any) -> tuple[list[Answer], list[Answer]]:
        self._turns += 1
        if self._rng.random() < (self._death if self._turns != 4 else np.ceil(self._death)):
            self.actors[self._rng.integers(len(self.actors))].alive = False
        at = int(self._rng.integers(len(answers)))
        return [answers[at]], []

    def get(self, answer: Answer) -> Any:
        if not answer.actor.alive:
            raise RayError
        return answer.answer()


@pytest.mark.later("2", "3", "5")
@pytest.mark.parametrize("seed", range(6))
def test_whoever_dies_during_the_exchange_all_records_arrive_once(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(seed)
    workers = int(rng.integers(1, 5))
    crew = Crew(workers, rng, 0.0 if seed == 0 else 0.04)
    monkeypatch.setattr(ray, "wait", crew.wait)
    monkeypatch.setattr(ray, "get", crew.get)
    exchange = Exchange(crew, workers, spans(13), 1e9)
    found = exchange.run(range(workers))
    crew._death = 0.0
    while dead := [k for k in range(workers) if not crew.actors[k].alive]:  # after its last answer
        crew.restart(dead[0], "was lost")
        again = exchange.run(dead[:1])
        assert {k: found[k] for k in again} == again
    private_units = [units for k in range(workers) for units in found[k]]
    shards = settled([actor.shard for actor in crew.actors], private_units)
    held = [bytes_of(engine.units) for _, engine in sorted(engines_of(shards).items())]
    assert held == expected("dense", "replace-one")
    assert (crew.deaths > 0) == (seed > 0)


def test_who_is_late_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    crew = Crew(2, np.random.default_rng(0), 0.0)
    late = [True]

    def wait(answers: list[Answer], **_: Any) -> Any:
        return ([], answers) if late and late.pop() else crew.wait(answers)

    monkeypatch.setattr(ray, "wait", wait)
    monkeypatch.setattr(ray, "get", crew.get)
    exchange = Exchange(crew, 2, spans(70), 0.0)
    assert sum(map(sum, exchange.run(range(2)).values())) > USERS // 2
    assert crew.deaths == 2


def test_a_failure_ends_the_exchange(monkeypatch: pytest.MonkeyPatch) -> None:
    crew = Crew(2, np.random.default_rng(0), 0.0)
    monkeypatch.setattr(ray, "wait", crew.wait)
    monkeypatch.setattr(ray, "get", crew.get)
    crew._source.rows = N + 10
    with pytest.raises(DataUnavailable, match=r"a worker failed \(DataUnavailable: each machine reads"):
        Exchange(crew, 2, [*spans(50), (N, N + 10)], 1e9).run(range(2))


def test_no_records_are_parts_of_nobody() -> None:
    source = ArrayRecords(np.zeros((0, D)), np.zeros(0), np.zeros(0))
    about = Description(row_bound=1.0, classes=(0, 1), relation="add-or-remove-one", n=20)
    shards = made(source, about, 2)
    assert [shard.units() for shard in shards] == [[0], [0]]
    engines = engines_of(settled(shards, [0, 0]))
    assert {engine.private_count for engine in engines.values()} == {0}
    assert isinstance(shards[0].answer(Preparation([], []), SOURCE, question_of(QUERY), {0: None}), ExactSum)
