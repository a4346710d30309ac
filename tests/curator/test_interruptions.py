"""An exception at any line of a release, a loop or a stream: what may have been seen is paid, the state is clean."""

from functools import partial

import jax.numpy as jnp
import numpy as np
import pytest
from tests.support.interrupting import house, interrupted_at

from privopt.curator.local import LocalCurator
from privopt.data.units import Units
from privopt.engine.reference import ReferenceEngine
from privopt.ledger import accounting
from privopt.ledger.amounts import Budget
from privopt.ledger.ledger import Ledger
from privopt.mechanisms.additive import Gaussian
from privopt.mechanisms.noise import NoiseSource
from privopt.mechanisms.prefix_sum import PrefixSum
from privopt.mechanisms.strategies import independent
from privopt.precision import double_precision
from privopt.problems import losses
from privopt.queries.slopes import ClippedGradient

N, D = 24, 3
NOISE = Gaussian(5.0)
RHO = accounting.zcdp_rho(NOISE.event())
SUMS = PrefixSum(strategy=independent(4), noise_multiplier=5.0)
ROOMS = house("curator", "ledger", "mechanisms")


@pytest.fixture(autouse=True)
def double():
    with double_precision():
        yield


def units():
    rows = np.random.default_rng(0).normal(size=(N, D))
    return Units.from_arrays(rows, np.sign(rows[:, 0]), row_bound=1.0)


class Watched(ReferenceEngine):
    """An engine that notes that the data were read."""

    reads = 0

    def clipped_sum(self, query, private_draw=None):
        Watched.reads += 1
        return super().clipped_sum(query, private_draw)

    def subset(self, private_places, size):
        return Watched(self.units.subset(private_places, size))


def gradient(at=None):
    return ClippedGradient(loss=losses.logistic, at=jnp.zeros(D) if at is None else at, clip=0.5)


def opened():
    return LocalCurator(
        Watched(units()), Ledger(Budget(20.0, 1e-6), "replace-one", composition="zcdp"), noise=NoiseSource(1)
    )


def one_release(curator):
    return lambda: curator.release(gradient(), NOISE)


def of_a_block(curator):
    block = curator.blocks(2)[0]
    return lambda: block.release(gradient(), NOISE)


def of_an_allotment(curator):
    part = curator.allot("part", share=0.5)
    return lambda: part.release(gradient(), NOISE)


def of_a_filter(curator):
    part = curator.filtered("part", NOISE)
    return lambda: part.release(gradient(), Gaussian(6.0))


def a_loop(curator):
    def step(state, release):
        return state - release(gradient(state), Gaussian(10.0)) - release(gradient(), Gaussian(10.0))

    return lambda: curator.iterate(step, jnp.zeros(D), 2)  # four times a quarter of the price


def a_stream(curator):
    return lambda: curator.stream("sums", SUMS, (D,)).ask("add", gradient(), on=curator)


WAYS = [one_release, of_a_block, of_an_allotment, of_a_filter, a_loop, a_stream]


@pytest.mark.at_once("of_a_block-MemoryError", "of_a_filter-MemoryError", "of_an_allotment-MemoryError")
@pytest.mark.parametrize("kind", [KeyboardInterrupt, MemoryError])
@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_whatever_may_have_been_seen_is_paid_at_whichever_line_it_stops(way, kind):
    way(opened())()  # compiled, and traced, beforehand
    line, first_read = 1, None
    while True:
        curator = opened()
        call = way(curator)
        Watched.reads = 0
        error = interrupted_at(line, call, kind, ROOMS)
        if error is None:
            break
        if Watched.reads:
            first_read = first_read or line
            assert curator.ledger.spent >= RHO * (1 - 1e-9)
            assert accounting.zcdp_rho(curator.transcript.event()) >= RHO * (1 - 1e-9)
        # What comes next is answered, and paid for, whatever was left behind.
        for block in curator.blocks(2):
            block.release(gradient(), Gaussian(4.0))
        assert curator.ledger.spent >= (RHO if Watched.reads > 2 else 0.0) + 0.5 / 16.0 * (1 - 1e-9)
        line += 1 if kind is KeyboardInterrupt and way is not a_loop else 7
    assert line > 20
    assert first_read is not None


def test_blocks_of_which_one_was_interrupted_pay_for_the_dearest():
    """The sum above is paid before the blocks note that it is: else the next block would release for nothing."""
    line = 1
    while True:
        curator = opened()
        first, second = curator.blocks(2)
        if (
            interrupted_at(line, partial(first.ledger.charge, "a", NOISE.event()), KeyboardInterrupt, ROOMS)
            is None
        ):
            break
        second.release(gradient(), NOISE)
        assert curator.ledger.spent >= RHO * (1 - 1e-9)
        line += 1
    assert line > 10


@pytest.mark.parametrize("way", [one_release, a_loop, of_a_block], ids=lambda way: way.__name__)
def test_the_message_says_what_was_paid_and_the_transcript_keeps_it(way, monkeypatch):
    def broken(self, query, private_draw=None):
        raise MemoryError("no room")

    curator = opened()
    call = way(curator)
    monkeypatch.setattr(Watched, "clipped_sum", broken)
    with pytest.raises(MemoryError, match="no room") as raised:
        call()
    (note,) = raised.value.__notes__
    assert "paid for before this, and not given back" in note
    assert "ClippedGradient (Gaussian noise" in note
    assert accounting.zcdp_rho(curator.transcript.event()) == pytest.approx(RHO)
    assert all(line.released is None for line in curator.transcript)


def test_a_refusal_pays_nothing_and_says_nothing_of_payment():
    curator = opened()
    with pytest.raises(Exception, match="would cost") as raised:
        curator.release(gradient(), Gaussian(1e-3))
    assert not hasattr(raised.value, "__notes__")
    assert len(curator.transcript) == 0


@pytest.mark.parametrize("kind", [RecursionError, MemoryError, KeyboardInterrupt])
def test_a_stream_that_ran_out_of_something_answers_no_more(kind, monkeypatch):
    """A RecursionError is a RuntimeError, and no refusal: the item had entered."""
    curator = opened()
    stream, entered = curator.stream("sums", SUMS, (D,)), PrefixSum.add

    def interrupted(self, *arguments, **others):
        entered(self, *arguments, **others)
        raise kind("in the middle")

    monkeypatch.setattr(PrefixSum, "add", interrupted)
    first, second = curator.blocks(2)
    with pytest.raises(kind, match="in the middle"):
        stream.ask("add", gradient(), on=first)
    monkeypatch.undo()
    with pytest.raises(RuntimeError, match="broke off"):
        stream.ask("add", gradient(), on=second)


def test_an_observer_that_fails_takes_nothing_from_the_transcript():
    def fails(name, count):
        raise KeyboardInterrupt("by the user")

    curator = LocalCurator(
        Watched(units()),
        Ledger(Budget(20.0, 1e-6), "replace-one", composition="zcdp"),
        noise=NoiseSource(1),
        observer=fails,
    )
    with pytest.raises(KeyboardInterrupt, match="by the user"):
        curator.release(gradient(), NOISE)
    (line,) = curator.transcript
    assert line.released is not None
