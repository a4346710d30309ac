"""Streams: what may be asked of them, and that no two share a state or a turn."""

import contextlib
import os
import sys
import threading
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar

import jax.numpy as jnp
import numpy as np
import pytest

from privopt.curator.dry_run import DryRun
from privopt.curator.local import LocalCurator
from privopt.curator.replay import Replay
from privopt.curator.transcript import Transcript
from privopt.data.units import Units
from privopt.ledger.amounts import Budget
from privopt.ledger.events import GaussianEvent
from privopt.ledger.ledger import Ledger
from privopt.mechanisms.base import HiddenState, Request, StreamMechanism
from privopt.mechanisms.noise import NoiseSource
from privopt.mechanisms.prefix_sum import PrefixSum
from privopt.mechanisms.strategies import Participation, banded, independent, prefix_noise, unit_sensitivity
from privopt.mechanisms.tests import AboveThreshold
from privopt.mechanisms.vertex_stream import VertexSampler
from privopt.precision import double_precision
from privopt.problems import losses
from privopt.public import Relation
from privopt.queries.base import query
from privopt.queries.slopes import ClippedGradient

N, D = 40, 3
SUMS = PrefixSum(strategy=independent(2), noise_multiplier=20.0)


@pytest.fixture(autouse=True)
def double():
    with double_precision():
        yield


def new_curator():
    rng = np.random.default_rng(0)
    units = Units.from_arrays(rng.normal(size=(N, D)), np.ones(N), row_bound=1.0)
    return LocalCurator(units, Ledger(Budget(1e3, 1e-6), "replace-one"), noise=NoiseSource(1))


def gradient():
    return ClippedGradient(loss=losses.squared, at=jnp.zeros(D), clip=0.5)


@pytest.fixture
def unread(monkeypatch):
    """A query, and a failure if it is computed."""

    def read(self, query, sampling, private_draw):
        raise AssertionError("the data were read.")

    monkeypatch.setattr(LocalCurator, "private_value", read)
    return gradient()


class Kept(HiddenState):
    """What was fed in."""

    __slots__ = ("private_items",)

    def __init__(self):
        self.private_items = []


@dataclass(frozen=True)
class Memory(StreamMechanism):
    """A mechanism of somebody's own, with a helper that would give the sum away."""

    requests: ClassVar[Mapping[str, Request]] = MappingProxyType(
        {
            "add": Request(fed=True, releases=False, arguments=frozenset({"label"})),
            "count": Request(fed=False),
        }
    )

    def event(self):
        return GaussianEvent(5.0)

    def open(self, noise, shape):
        return Kept()

    def admits(self, items):
        return True

    def add(self, state, noise, private_item, sensitivity, *, label=""):
        del noise, sensitivity, label
        state.private_items.append(private_item)

    def count(self, state, noise):
        return len(state.private_items)

    def private_sum(self, state, noise):
        return np.sum(state.private_items, axis=0)


@pytest.mark.parametrize(
    "where", [new_curator, lambda: DryRun(new_curator().public)], ids=["data", "rehearsal"]
)
def test_a_stream_answers_its_declared_requests_and_nothing_else(where):
    curator = where()
    stream = curator.stream("memory", Memory(), (D,))
    assert stream.ask("add", gradient(), label="first") is None
    assert stream.ask("count") == 1
    before = len(curator.transcript)
    for name in ("private_sum", "open", "event", "__class__", "requests", "Count"):
        with pytest.raises(
            ValueError, match=f"Memory cannot be asked for '{name}': it answers 'add', 'count'"
        ):
            stream.ask(name)
    assert len(curator.transcript) == before


def test_a_mechanism_that_declares_no_request_answers_none():
    @dataclass(frozen=True)
    class Undeclared(Memory):
        requests: ClassVar[Mapping[str, Request]] = MappingProxyType({})

    stream = new_curator().stream("memory", Undeclared(), (D,))
    with pytest.raises(ValueError, match="it answers nothing: it declares no `requests`"):
        stream.ask("private_sum")


def test_a_request_is_refused_before_anything_is_read_or_entered(unread, monkeypatch):
    curator = new_curator()
    stream = curator.stream("sums", SUMS, (D,))
    for name, fed, arguments, match in (
        ("draw", unread, {}, "PrefixSum cannot be asked for 'draw': it answers 'add'"),
        ("add", None, {}, "PrefixSum.add is fed the value of a query: give one"),
        (
            "add",
            unread,
            {"noise": 0.0},
            "PrefixSum.add knows no argument 'noise'; its arguments are: item_index",
        ),
    ):
        with pytest.raises(ValueError, match=match):
            stream.ask(name, fed, **arguments)
    assert len(curator._streams[stream.key].entered) == 0
    sampler = VertexSampler.weighted_average(
        step_weights=[1.0], inverse_temperatures=[1.0, 1.0], draws=1, half_range=1.0, sensitivities=0.1
    )
    vertices = curator.stream("vertices", sampler, (4,))
    with pytest.raises(ValueError, match="takes no query: leave it out"):
        vertices.ask("draw", unread)
    assert vertices.ask("draw").shape == (1,)
    monkeypatch.undo()
    assert stream.ask("add", gradient(), item_index=0).shape == (D,)


def test_every_stream_mechanism_of_the_library_declares_methods_that_it_has():
    for kind in (AboveThreshold, PrefixSum, VertexSampler):
        assert kind.requests
        assert all(callable(getattr(kind, name)) for name in kind.requests)


@dataclass(frozen=True, kw_only=True)
class Meeting(Memory):
    """Opens only when two threads are at it at once."""

    meeting: threading.Barrier

    def open(self, noise, shape):
        self.meeting.wait(10.0)
        return super().open(noise, shape)


def test_two_threads_that_open_streams_at_once_never_share_a_state():
    curator, mechanism = new_curator(), Meeting(meeting=threading.Barrier(2))
    with ThreadPoolExecutor(2) as pool:
        streams = list(pool.map(lambda name: curator.stream(name, mechanism, (D,)), ["one", "other"]))
    streams[0].ask("add", gradient())
    assert [stream.ask("count") for stream in streams] == [1, 0]


@dataclass(frozen=True, kw_only=True)
class Slow(Memory):
    """Notes how many threads are inside at once."""

    inside: list
    most: list

    def add(self, state, noise, private_item, sensitivity):
        self.inside.append(1)
        time.sleep(0.02)
        self.most.append(len(self.inside))
        self.inside.pop()


def test_two_threads_that_ask_one_stream_take_turns():
    """Else both might read the noise of the same item, or a first hit twice."""
    curator, mechanism = new_curator(), Slow(inside=[], most=[])
    stream = curator.stream("slow", mechanism, (D,))

    def ask(_):
        with double_precision():
            stream.ask("add", gradient())

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(ask, range(8)))
    assert max(mechanism.most) == 1
    assert len(mechanism.most) == 8


def test_a_forked_child_is_not_answered_from_a_copy_of_the_noise(monkeypatch):
    stream = new_curator().stream("sums", SUMS, (D,))
    parent = os.getpid()
    monkeypatch.setattr(os, "getpid", lambda: parent + 1)
    with pytest.raises(RuntimeError, match="opened in another process"):
        stream.ask("add", gradient())


def test_numbers_of_cuts_filters_and_streams_are_never_given_twice():
    transcript, before = Transcript(Relation.REPLACE_ONE), sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for number in (transcript.next_cut, transcript.next_filter, transcript.next_stream):
            with ThreadPoolExecutor(8) as pool:
                given = list(pool.map(lambda _, number=number: number(), range(8_000), chunksize=1))
            assert sorted(given) == list(range(1, 8_001))
    finally:
        sys.setswitchinterval(before)


@pytest.mark.parametrize("bad", [np.nan, -1.0, np.inf])
def test_an_item_of_a_sensitivity_that_no_noise_fits_is_refused_before_it_is_read(bad, unread):
    @query
    class Wrong(ClippedGradient):
        sensitivity_argument = "None: it is wrong on purpose."

        def sensitivity(self, public, sampling=None):
            return bad

    curator = new_curator()
    stream = curator.stream("sums", SUMS, (D,))
    with pytest.raises(ValueError, match="the sensitivity"):
        stream.ask("add", Wrong(loss=unread.loss, at=unread.at, clip=0.5))
    assert len(curator._streams[stream.key].entered) == 0


def test_a_program_over_streams_replays():
    def program(where):
        stream = where.stream("sums", SUMS, (D,))
        return np.stack([stream.ask("add", gradient(), on=block) for block in where.blocks(2)])

    curator = new_curator()
    found = program(curator)
    assert np.array_equal(program(Replay(curator.transcript, curator.public)), found)


TWICE = PrefixSum(
    strategy=unit_sensitivity(banded(6, 3), Participation(separation=3, most=2)),
    noise_multiplier=20.0,
    participation=Participation(separation=3, most=2),
)


def test_blocks_are_fed_again_as_often_and_as_far_apart_as_was_declared():
    curator = new_curator()
    stream = curator.stream("sums", TWICE, (D,))
    first, second, third = curator.blocks(3)
    for block in (first, second, third, first):
        stream.ask("add", gradient(), on=block)
    with pytest.raises(ValueError, match="than the stream was charged for"):
        stream.ask("add", gradient(), on=third)  # two items after its last
    with pytest.raises(ValueError, match="than the stream was charged for"):
        stream.ask("add", gradient(), on=first)
    with pytest.raises(ValueError, match="than the stream was charged for"):
        stream.ask("add", gradient())  # everybody
    stream.ask("add", gradient(), on=second)
    stream.ask("add", gradient(), on=third)
    with pytest.raises(ValueError, match="than the stream was charged for"):
        stream.ask("add", gradient(), on=first)  # a third time


def test_blocks_of_another_cut_may_hold_any_unit():
    """Shuffled epochs: the last block of one may share units with the first of the next."""
    curator = new_curator()
    twice = PrefixSum(
        strategy=unit_sensitivity(banded(6, 3), Participation(most=2)),
        noise_multiplier=20.0,
        participation=Participation(most=2),
    )
    for mechanism, admitted in ((TWICE, 3), (twice, 6)):
        stream, items = curator.stream("sums", mechanism, (D,)), 0
        with contextlib.suppress(ValueError):
            for block in [block for _ in range(3) for block in curator.blocks(3)]:
                stream.ask("add", gradient(), on=block)
                items += 1
        assert items == admitted


@pytest.mark.parametrize("where", ["data", "rehearsal"])
def test_the_transcript_states_the_noise_of_every_answer(where):
    curator = new_curator() if where == "data" else DryRun(new_curator().public)
    stream = curator.stream("sums", TWICE, (D,))
    blocks = curator.blocks([10, 14, 16])
    for block in (*blocks, *blocks):
        stream.ask("add", gradient(), on=block)
    answers = [release for release in curator.transcript if release.name == "PrefixSum.add"]
    sensitivities = [float(release.sensitivity[0]) for release in answers]
    assert len(set(sensitivities)) == 3
    stated = [float(release.scale[0]) for release in answers]
    np.testing.assert_allclose(stated, 20.0 * prefix_noise(TWICE.strategy, sensitivities), rtol=1e-12)


def test_without_noise_every_answer_is_stated_to_have_none():
    curator = DryRun(new_curator().public)
    silent = PrefixSum(strategy=independent(1), noise_multiplier=0.0)
    curator.stream("silent", silent, (D,)).ask("add", gradient())
    assert float(curator.transcript[-1].scale[0]) == 0.0


def test_a_stream_whose_answer_broke_off_answers_no_more(monkeypatch):
    """The item is in the prefix already, and its block would be taken for one that never entered."""
    stream, entered = (curator := new_curator()).stream("sums", SUMS, (D,)), PrefixSum.add

    def interrupted(self, *arguments, **others):
        entered(self, *arguments, **others)
        raise KeyboardInterrupt("by the user")

    first, second = curator.blocks(2)
    monkeypatch.setattr(PrefixSum, "add", interrupted)
    with pytest.raises(KeyboardInterrupt, match="by the user"):
        stream.ask("add", gradient(), on=first)
    monkeypatch.undo()
    for block in (first, second):
        with pytest.raises(RuntimeError, match="broke off"):
            stream.ask("add", gradient(), on=block)
