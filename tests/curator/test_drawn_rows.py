"""A compiled loop is handed the rows that were drawn: the same bytes wherever they are, and nobody else's."""

from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import sparse
from tests.support.parted_engine import PartedEngine

from privopt.curator import loops
from privopt.curator.handles import Feed
from privopt.curator.local import LocalCurator
from privopt.data.units import Units
from privopt.engine.compiled_loops import traced_sum
from privopt.engine.drawn_rows import in_place
from privopt.engine.in_process import InProcessEngine
from privopt.ledger.events import FixedSize, Poisson
from privopt.ledger.payer import Unlimited
from privopt.mechanisms.additive import Gaussian
from privopt.mechanisms.noise import NoiseSource
from privopt.mechanisms.prefix_sum import PrefixSum
from privopt.mechanisms.strategies import independent
from privopt.precision import double_precision
from privopt.problems import losses
from privopt.public import Public
from privopt.queries.slopes import ClippedGradient

N, D, STEPS = 230, 4, 9


@pytest.fixture(autouse=True)
def double():
    with double_precision():
        yield


@dataclass(frozen=True)
class Descent:
    """A gradient on one sample, another on a second, and an item of a stream."""

    samplings: tuple

    def __call__(self, state, release):
        moved = state
        for sampling in self.samplings:
            query = ClippedGradient(loss=losses.logistic, at=moved, clip=0.5)
            moved = moved - 0.2 * release(query, Gaussian(40.0), sampling)
        return moved - 0.01 * release(ClippedGradient(loss=losses.logistic, at=moved, clip=0.5), into="sums")


def units_of(relation, storage="float32"):
    generator = np.random.default_rng(0)
    number = {} if relation == "replace-one" else {"n": N + 20}
    return Units.from_arrays(
        generator.normal(size=(N, D)),
        np.sign(generator.normal(size=N)),
        row_bound=1.0,
        relation=relation,
        storage=storage,
        **number,
    )


def outcome(engine):
    curator = LocalCurator(engine, Unlimited(engine.public.relation), noise=NoiseSource(3))
    samplings = (Poisson(0.2), FixedSize(17, engine.public.n))
    stream = curator.stream("sums", PrefixSum(strategy=independent(STEPS), noise_multiplier=9.0), (D,))
    feeds = {"sums": Feed(stream, curator.blocks(STEPS))}
    end = curator.iterate(Descent(samplings), jnp.zeros(D), STEPS, feeds=feeds)
    return b"".join([np.asarray(end).tobytes(), *(one.released.tobytes() for one in curator.transcript)])


@pytest.mark.later("10000")
@pytest.mark.parametrize("stretch", [2**24, 10_000])
def test_a_loop_has_the_same_bytes_wherever_the_rows_are(stretch, monkeypatch):
    monkeypatch.setattr("privopt.curator.scan.STRETCH_BYTES", stretch)
    units = units_of("replace-one")
    expected = outcome(InProcessEngine(units))
    monkeypatch.setattr(InProcessEngine, "clipped_sum", None)  # nothing but drawn rows is asked for
    for size in (N, 100, 7):
        assert outcome(PartedEngine(units, size)) == expected


@pytest.mark.parametrize("rate", [0.02, 0.2])
def test_rows_of_units_that_were_not_drawn_stay_where_they_are(rate):
    """Of samples that are together larger than the table, each row that was drawn is asked for once."""
    units = units_of("add-or-remove-one")
    handed = []

    class Noting(InProcessEngine):
        def rows(self, private_draw, room):
            found = super().rows(private_draw, room)
            handed.append((private_draw, found))
            return found

        def held_rows(self):
            return None

    curator = LocalCurator(Noting(units), Unlimited(units.public.relation), noise=NoiseSource(3))

    def step(state, release):
        query = ClippedGradient(loss=losses.logistic, at=state, clip=0.5)
        return state - release(query, Gaussian(40.0), Poisson(rate))

    curator.iterate(step, jnp.zeros(D), STEPS)
    ((draw, rows),) = handed
    assert rate == 0.02 or len(set(draw)) == len(draw) > N * 0.5
    count = len(draw)
    assert np.array_equal(rows.private_features[:count], units.private_features[draw])
    assert not any(np.any(column[count:]) for column in rows)


def test_a_small_table_in_memory_is_not_copied():
    """Nothing but the table itself and the positions that were drawn reaches a loop that draws it over and over."""
    engine = InProcessEngine(units_of("replace-one"))
    rows = engine.held_rows()
    assert all(
        np.shares_memory(one, other)
        for one, other in zip(
            rows,
            (
                engine.units.private_features,
                engine.units.private_targets,
                engine.units.private_norms,
                engine.units.private_present,
            ),
            strict=True,
        )
    )
    curator = LocalCurator(engine, Unlimited("replace-one"), noise=NoiseSource(3))
    curator.private_engine.rows = None  # nobody asks for copies

    def step(state, release):
        query = ClippedGradient(loss=losses.logistic, at=state, clip=0.5)
        return state - release(query, Gaussian(40.0), Poisson(0.2))

    assert np.all(np.isfinite(curator.iterate(step, jnp.zeros(D), STEPS)))
    assert (
        InProcessEngine(units_of("replace-one", "int8")).held_rows() is None
    )  # rows are made as they are read


def test_records_of_users_are_not_handed_over_as_users():
    """A loop would clip and draw records by the positions of users."""
    users = Units.from_arrays(np.ones((6, D)), np.ones(6), groups=[1, 1, 2, 2, 3, 3], row_bound=1.0)
    assert InProcessEngine(users).held_rows() is None
    with pytest.raises(ValueError, match="needs dense records, one for each unit"):
        InProcessEngine(users).rows(np.arange(3), 3)


@pytest.mark.at_once("100")
@pytest.mark.parametrize("width", [4, 100])
def test_room_and_place_do_not_round_a_record_otherwise(width):
    """Room follows the number of records, places who is drawn: at a far point, of which all but rounding cancels, what
    every record contributes would follow one that comes or goes."""
    generator = np.random.default_rng(0)
    half = generator.normal(size=(1, width // 2))
    units = Units.from_arrays(np.tile(half, (300, 2)), np.ones(300), row_bound=1.0)
    weight = 1e17 * generator.normal(size=width // 2)
    query = ClippedGradient(loss=losses.logistic, at=np.concatenate([weight, -weight]), clip=0.5)
    program = jax.jit(partial(traced_sum, query, units.public), static_argnames="room")
    found = set()
    for room in (1, 3, 4, 7, 20, 21, 100, 300):
        private_rows = InProcessEngine(units).rows(np.arange(room), room)
        for place in {0, room // 2, room - 1}:
            there = private_rows._replace(private_present=np.arange(room) == place)
            found.add(
                np.asarray(program(in_place(there), np.array([0, room], np.int32), room=room)).tobytes()
            )
    assert len(found) == 1


def slot_of(sampling=None, blocks=(), mechanism=None):
    mechanism = Gaussian(1.0) if mechanism is None else mechanism
    return loops.Slot(
        "gradient",
        ClippedGradient,
        mechanism,
        sampling,
        (100,),
        feed="sums" if blocks else "",
        publics=tuple(Public(n=n, d=100) for n in blocks),
    )


def test_a_step_over_very_many_rows_runs_by_the_engines_own_pass():
    """So that a driver never holds more than some tens of megabytes of drawn rows, however many units there are."""
    wide, narrow = Public(n=10**9, d=100), Public(n=10**9, d=1)
    assert loops.compiles([slot_of(Poisson(4e-5))], wide)
    assert not loops.compiles([slot_of(Poisson(5e-5))], wide)
    assert loops.compiles([slot_of(FixedSize(2**18, 10**9))], narrow)
    assert not loops.compiles([slot_of(FixedSize(2**18 + 1, 10**9))], narrow)
    assert not loops.compiles([slot_of(Poisson(1e-5)), slot_of(Poisson(5e-5))], wide)


def test_a_parted_draw_keeps_the_format_of_the_rows():
    engine = InProcessEngine(units_of("replace-one", "float64"))
    assert engine.rows(np.zeros(0, np.int64), 3).private_features.dtype == np.float64


def test_rows_that_are_mapped_as_they_are_read_are_handed_over_as_well(monkeypatch):
    """Those of a wide sparse table seen through a matrix: too many to store, and dense."""
    monkeypatch.setattr("privopt.data.storage.DENSE_VIEW_BYTES", 0)
    generator = np.random.default_rng(0)
    table = sparse.random(90, 30, density=0.3, random_state=0, format="csr")
    units = Units.from_arrays(table, np.sign(generator.normal(size=90)), row_bound=1.0)
    matrix = generator.normal(size=(30, D))
    draw = np.array([4, 80, 4])
    viewed = InProcessEngine(units).view(matrix, 1.0)
    assert not viewed.public.sparse
    found = viewed.rows(draw, 5)
    dense = np.asarray(table.toarray(), np.float32).astype(np.float64)
    lengths = np.linalg.norm(dense, axis=1, keepdims=True)
    expected = (dense / np.maximum(lengths, 1.0)) @ matrix
    expected /= np.maximum(np.linalg.norm(expected, axis=1, keepdims=True), 1.0)
    np.testing.assert_allclose(found.private_features[:3], expected[draw], atol=1e-6)
    assert not np.any(found.private_features[3:])
    curator = LocalCurator(units, Unlimited("replace-one"), noise=NoiseSource(3)).view(matrix, 1.0)

    def step(state, release):
        query = ClippedGradient(loss=losses.logistic, at=state, clip=0.5)
        return state - release(query, Gaussian(40.0), Poisson(0.2))

    assert np.all(np.isfinite(curator.iterate(step, jnp.zeros(D), 3)))
