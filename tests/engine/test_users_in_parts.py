"""More users than a part holds: whole users in each part, and the same bits in memory and streamed."""

import dataclasses
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import sparse
from tests.contracts.queries import EVERY_QUERY, D
from tests.engine.test_streamed import require_equal

from privopt.data import user_parts
from privopt.data.places import GivenPlaces
from privopt.data.read_units import read_units
from privopt.data.record_source import ArrayRecords, Description, RecordBlock
from privopt.data.units import Units
from privopt.data.user_keys import UserSecret
from privopt.data.user_parts import part_count, parts_of_digests, user_digests
from privopt.engine.in_process import InProcessEngine
from privopt.engine.parts import parts_of
from privopt.engine.placement import Placement
from privopt.engine.reference import ReferenceEngine
from privopt.engine.streamed import open_streamed
from privopt.errors import ArgumentError, DataUnavailable
from privopt.ledger.amounts import Budget
from privopt.mechanisms.noise import NoiseSource
from privopt.precision import double_precision
from privopt.problems import losses
from privopt.problems.workload import Workload
from privopt.queries.marginals import MarginalMeans
from privopt.queries.slopes import ClippedGradient
from privopt.solve import minimize
from privopt.solvers.continuous_spider import ContinuousSpider
from privopt.solvers.gradient_descent import GradientDescent

ROWS, USERS, SMALL = 240, 70, 20
RNG = np.random.default_rng(1)
FEATURES = RNG.normal(size=(ROWS, D)) * (RNG.random((ROWS, D)) < 0.7)
FEATURES[3], FEATURES[40], FEATURES[70] = np.nan, 1e200, 0.0
LABELS = RNG.integers(0, 2, ROWS)
KEYS = RNG.integers(0, USERS, ROWS)
FEATURES[KEYS == 5] = np.nan  # a user without a usable record
WORDS = np.array([None if key == 2 else f"user {key}" for key in KEYS], object)
LAYOUTS: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "users": (FEATURES, KEYS, {"max_records_per_user": 2}),
    "int8 users": (FEATURES, KEYS, {"storage": "int8", "max_records_per_user": 1, "user_weighting": "sqrt"}),
    "sparse users": (sparse.csr_array(FEATURES), WORDS, {"max_records_per_user": 2}),
    "two keys": (FEATURES, np.stack([KEYS % 5, KEYS // 5], axis=1), {"max_records_per_user": 100}),
    "at most n": (FEATURES, WORDS, {"n": 300, "relation": "add-or-remove-one"}),
}
POINTS = RNG.normal(size=(2, D))
KERNEL = ClippedGradient(loss=losses.logistic, at=POINTS[0], clip=0.3)
QUERIES = (KERNEL, EVERY_QUERY["second moment"])


@pytest.fixture(autouse=True)
def _small_parts(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(user_parts, "MEAN_USERS", SMALL)
    with double_precision():
        yield


def in_memory(layout: str, seed: int = 3) -> Units:
    features, keys, rest = LAYOUTS[layout]
    return Units.from_arrays(
        features, LABELS, groups=keys, row_bound=1.5, classes=[0, 1], noise=NoiseSource(seed), **rest
    )


def described(layout: str, records: Any = ArrayRecords) -> tuple[ArrayRecords, Description]:
    features, keys, rest = LAYOUTS[layout]
    return records(features, LABELS, keys), Description(row_bound=1.5, classes=[0, 1], **rest)


def streamed(layout: str, folder: Any) -> Any:
    return open_streamed(*described(layout), Placement(spool=folder, memory=1), noise=NoiseSource(3))


@pytest.mark.at_once(
    "at most n-240-524288",
    "at most n-31-1",
    "int8 users-240-524288",
    "sparse users-240-524288",
    "two keys-240-524288",
    "users-240-524288",
    "users-7-30",
)
@pytest.mark.parametrize(("block", "run"), [(7, 30), (240, 2**19), (31, 1)])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_users_that_are_streamed_are_those_in_memory(layout, block, run, tmp_path, monkeypatch):
    monkeypatch.setattr("privopt.data.record_source.BLOCK_RECORDS", block)
    for module in ("user_parts", "read_units"):
        monkeypatch.setattr(f"privopt.data.{module}.AT_ONCE", run)
    expected = in_memory(layout)
    assert len(expected.private_ranges) == part_count(expected.public.n, 1) > 3
    source, description = described(layout)
    require_equal(expected, read_units(source, description, noise=NoiseSource(3)))
    require_equal(expected, streamed(layout, tmp_path).units)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_user_lies_whole_in_the_part_of_its_hash(layout):
    features, keys, rest = LAYOUTS[layout]
    tags = sparse.csr_array(np.eye(ROWS)) if sparse.issparse(features) else np.eye(ROWS)
    units = Units.from_arrays(
        tags, groups=keys, row_bound=1.0, noise=NoiseSource(3), **(rest | {"storage": "float32"})
    )
    digests, _ = user_digests(keys, ROWS, UserSecret.drawn(NoiseSource(3), ROWS))
    owners = parts_of_digests(digests, len(units.private_ranges))
    cap, seen = rest.get("max_records_per_user", 100), set()
    for part, private_part in enumerate(parts_of(units)):
        assert private_part.private_ranges is None
        rows = private_part.private_features
        places = (rows.toarray() if sparse.issparse(rows) else np.asarray(rows)).argmax(axis=1)
        assert set(owners[places]) <= {part}
        first = []
        for user in range(private_part.private_count):
            own = places[slice(*private_part.private_offsets[user : user + 2])]
            alike = np.flatnonzero(digests == digests[own[0]])
            assert len(own) == min(cap, len(alike))
            assert set(own) <= set(alike)
            assert digests[own[0]] not in seen
            seen.add(digests[own[0]])
            first.append(alike[0])
        assert first == sorted(first)
    assert len(seen) == len(set(digests[digests != 0]))


@pytest.mark.later("users")
@pytest.mark.parametrize("layout", ["users", "sparse users"])
def test_sums_over_parts_of_users_have_the_bits_of_those_in_memory(layout, tmp_path):
    memory, spool = InProcessEngine(in_memory(layout)), streamed(layout, tmp_path)
    plain = ReferenceEngine(in_memory(layout))
    assert len(memory._parts) == len(spool._parts) == len(plain._parts) > 3
    drawn = np.flatnonzero(RNG.random(memory.private_count) < 0.4)
    some = GivenPlaces(drawn)
    pairs = [
        (memory, spool, plain),
        (
            memory.subset(some, len(some)),
            spool.subset(some, len(some)),
            ReferenceEngine(memory.units.subset(some, len(some))),
        ),
        (
            memory.view(np.eye(D) / 2, 1.0),
            spool.view(np.eye(D) / 2, 1.0),
            ReferenceEngine(memory.units.mapped(np.eye(D) / 2, 1.0)),
        ),
    ]
    for one, other, third in pairs:
        few = drawn[drawn < len(drawn)]
        assert one.units.private_ranges == other.units.private_ranges == third.units.private_ranges
        for query in QUERIES:
            for draw in (None, few, few[:0], few[::-1]):
                total = one.clipped_sum(query, draw)
                assert total.tobytes() == other.clipped_sum(query, draw).tobytes()
                np.testing.assert_allclose(third.clipped_sum(query, draw), total, rtol=1e-9, atol=1e-11)
        assert one.gather(KERNEL).tobytes() == other.gather(KERNEL).tobytes()


def test_many_parts_sum_to_what_one_part_sums_to(monkeypatch):
    several = InProcessEngine(in_memory("two keys"))
    monkeypatch.setattr(user_parts, "MEAN_USERS", 10**6)
    one = InProcessEngine(in_memory("two keys"))
    assert one.units.private_ranges is None
    np.testing.assert_allclose(several.clipped_sum(KERNEL), one.clipped_sum(KERNEL), rtol=1e-12)


@pytest.mark.parametrize("n", [15, 60, ROWS - 1])
@pytest.mark.parametrize("relation", ["replace-one", "add-or-remove-one"])
def test_more_users_than_n_are_refused_in_the_same_words_where_a_part_has_no_room(n, relation, monkeypatch):
    monkeypatch.setattr(user_parts, "MOST_USERS", 2 * SMALL)
    about = {"row_bound": 1.0, "n": n, "relation": relation}
    for read in (
        lambda: Units.from_arrays(FEATURES, groups=np.arange(ROWS), **about),
        lambda: read_units(ArrayRecords(FEATURES, None, np.arange(ROWS)), Description(**about)),
    ):
        with pytest.raises(ArgumentError, match="there are more users than n = "):
            read()


def test_tables_of_codes_are_laid_out_by_the_same_rule():
    codes = RNG.integers(0, 2, (ROWS, 2))
    units = Units.from_codes(codes, levels=(3, 3), groups=WORDS, noise=NoiseSource(3), max_records_per_user=2)
    assert (
        units.private_ranges
        == Units.from_arrays(
            np.ones((ROWS, 1)), row_bound=1.0, groups=WORDS, noise=NoiseSource(3)
        ).private_ranges
    )
    query = MarginalMeans(workload=Workload.ways((3, 3), 1))
    assert len(InProcessEngine(units)._parts) > 3
    assert (
        InProcessEngine(units).clipped_sum(query).tobytes()
        == ReferenceEngine(units).clipped_sum(query).tobytes()
    )


class AnotherTime(ArrayRecords):
    """Records whose keys are others when they are read again, as if a file had been written anew in between."""

    times = 0

    def blocks(self, start, stop):
        type(self).times += 1
        for block in super().blocks(start, stop):
            yield block if self.times == 1 else block._replace(private_keys=np.roll(block.private_keys, 1))


class OfEachBlock(ArrayRecords):
    """Records whose keys come in another type in each block."""

    def blocks(self, start, stop):
        for place, block in enumerate(super().blocks(start, stop)):
            keys = np.asarray(block.private_keys)
            forms = (keys.astype(float), keys.astype(str), pd.Series(keys, dtype="Int64"), list(keys), keys)
            yield RecordBlock(*block[:2], forms[place % len(forms)])


def test_a_part_refuses_records_of_users_who_belong_to_another(tmp_path):
    AnotherTime.times = 0
    with pytest.raises(DataUnavailable, match="belong to another part"):
        open_streamed(
            *described("users", AnotherTime), Placement(spool=tmp_path, memory=1), noise=NoiseSource(3)
        )


def test_a_user_who_is_spread_over_parts_is_caught(monkeypatch):
    """The promise broken on purpose: a division into parts that looks at places instead of users."""
    monkeypatch.setattr(
        "privopt.data.units.parts_of_digests",
        lambda digests, parts: np.arange(len(digests)) % parts,
    )
    with pytest.raises(DataUnavailable, match="belong to another part"):
        in_memory("users")


def test_keys_of_other_types_in_each_block_are_the_same_users(monkeypatch, tmp_path):
    monkeypatch.setattr("privopt.data.record_source.BLOCK_RECORDS", 16)
    units = open_streamed(
        *described("users", OfEachBlock), Placement(spool=tmp_path, memory=1), noise=NoiseSource(3)
    ).units
    require_equal(in_memory("users"), units)


def test_how_many_parts_there_are_follows_from_the_public_number_alone():
    few = Units.from_arrays(
        np.ones((4, 1)), row_bound=1.0, groups=[1, 1, 2, 3], n=100, relation="add-or-remove-one"
    )
    many = Units.from_arrays(
        np.ones((90, 1)), row_bound=1.0, groups=range(90), n=100, relation="add-or-remove-one"
    )
    assert len(few.private_ranges) == len(many.private_ranges) == 5
    assert np.isfinite(
        InProcessEngine(few).clipped_sum(ClippedGradient(loss=losses.squared, at=np.zeros(1), clip=1.0))
    ).all()


def test_more_users_than_n_are_refused_and_a_table_of_nobody_is_read(tmp_path):
    source, description = described("users")
    with pytest.raises(ValueError, match="there are more users than n = 30"):
        open_streamed(source, dataclasses.replace(description, n=30), Placement(spool=tmp_path), noise=None)
    nobody = ArrayRecords(FEATURES[:6], LABELS[:6], np.full(6, np.nan))
    engine = open_streamed(nobody, dataclasses.replace(description, n=70), Placement(spool=tmp_path))
    assert engine.private_count == 0
    assert engine.clipped_sum(KERNEL).tolist() == [0.0] * D


@pytest.mark.later("solver1")
@pytest.mark.parametrize(
    "solver", [GradientDescent(steps=4, clip=1.0), ContinuousSpider(steps=4, clip=1.0, curvature=0.25)]
)
def test_a_fit_has_the_same_transcript_and_model_in_every_order_of_reading(solver, tmp_path, monkeypatch):
    def fitted(data: Any) -> tuple[Any, ...]:
        result = minimize(losses.logistic, data, budget=Budget(1.0, 1e-6), solver=solver, random_state=1)
        return np.asarray(result.params).tobytes(), [repr(release) for release in result.transcript]

    expected = fitted(in_memory("users"))
    for block, run in ((7, 50), (100, 11)):
        monkeypatch.setattr("privopt.data.record_source.BLOCK_RECORDS", block)
        for module in ("user_parts", "read_units"):
            monkeypatch.setattr(f"privopt.data.{module}.AT_ONCE", run)
        engine = streamed("users", tmp_path)
        assert fitted(engine) == expected
        engine.close()
