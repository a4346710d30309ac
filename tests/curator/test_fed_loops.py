"""Streams that a loop feeds: compiled and step by step alike, replayed, audited, and never fed too often."""

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from privopt.curator.audit import Audit
from privopt.curator.dry_run import DryRun
from privopt.curator.handles import Feed
from privopt.curator.local import LocalCurator
from privopt.curator.replay import Replay
from privopt.data.units import Units
from privopt.errors import BudgetExceeded
from privopt.ledger.amounts import Budget
from privopt.ledger.events import GaussianEvent, NoEvent, Parallel, Poisson, Repeated, Sequence
from privopt.ledger.ledger import Ledger
from privopt.mechanisms.additive import Gaussian
from privopt.mechanisms.noise import NoiseSource
from privopt.mechanisms.prefix_sum import PrefixSum
from privopt.mechanisms.strategies import Participation, banded, independent, prefix_noise, unit_sensitivity
from privopt.mechanisms.tests import AboveThreshold, TestedSamples
from privopt.precision import double_precision
from privopt.problems import losses
from privopt.queries.slopes import ClippedGradient
from privopt.queries.users import HeldMean

N, D, BLOCKS, EPOCHS = 46, 3, 4, 2
RELATIONS = ("replace-one", "add-or-remove-one")
TWICE = Participation(separation=BLOCKS, most=EPOCHS)
SUMS = PrefixSum(
    strategy=unit_sensitivity(banded(BLOCKS * EPOCHS, BLOCKS), TWICE),
    noise_multiplier=0.3,
    participation=TWICE,
)


@pytest.fixture(autouse=True)
def double():
    with double_precision():
        yield


def some_units(relation="replace-one", target=1.0):
    generator = np.random.default_rng(0)
    targets = np.sign(generator.normal(size=N))
    targets[7] = target
    features = generator.normal(size=(N, D))
    number = {} if relation == "replace-one" else {"n": N}
    return Units.from_arrays(features, targets, row_bound=1.0, relation=relation, **number)


def new_curator(relation="replace-one", **options):
    units = some_units(relation)
    ledger = Ledger(Budget(1e3, 1e-6), relation, composition="gaussian")
    return LocalCurator(units, ledger, noise=NoiseSource(1), **options)


class State(NamedTuple):
    params: jax.Array
    prefix: jax.Array


@dataclass(frozen=True)
class Descent:
    """Feeds one gradient a step."""

    def __call__(self, state, release):
        query = ClippedGradient(loss=losses.logistic, at=state.params, clip=0.5)
        prefix = release(query, into="sums")
        return State(state.params - 0.5 * (prefix - state.prefix), prefix)


def program(curator, step=None, times=BLOCKS * EPOCHS, blocks=BLOCKS, mechanism=SUMS):
    stream = curator.stream("gradient sums", mechanism, (D,))
    feed = Feed(stream, curator.blocks(blocks))
    state = State(jnp.zeros(D, jnp.float64), jnp.zeros(D, jnp.float64))
    return curator.iterate(step or Descent(), state, times, feeds={"sums": feed})


def eagerly(monkeypatch):
    monkeypatch.setattr("privopt.curator.loops.compiles", lambda slots, public: False)


def test_the_mean_of_a_drawn_block_depends_on_nobody_outside_of_it(monkeypatch):
    """In a compiled program its order of summation might follow how many are elsewhere, and with it the last bit."""
    monkeypatch.setattr("privopt.curator.scan.run", None)  # not reached
    program(new_curator("add-or-remove-one"))
    with pytest.raises(TypeError, match="not callable"):
        program(new_curator("replace-one"))


def test_a_compiled_loop_feeds_what_an_eager_one_does(monkeypatch):
    """46 units in 4 blocks: of 11 and of 12."""
    compiled = new_curator()
    found = program(compiled)
    eagerly(monkeypatch)
    eager = new_curator()
    expected = program(eager)
    np.testing.assert_allclose(np.asarray(found.params), np.asarray(expected.params), rtol=1e-12, atol=1e-14)
    for one, other in zip(compiled.transcript, eager.transcript, strict=True):
        assert (one.name, one.count, one.event, one.lineage) == (
            other.name,
            other.count,
            other.event,
            other.lineage,
        )
        np.testing.assert_allclose(one.released, other.released, rtol=1e-12, atol=1e-14)
        np.testing.assert_allclose(one.sensitivity, other.sensitivity, rtol=1e-14)
        if one.scale is not None:
            np.testing.assert_allclose(one.scale, other.scale, rtol=1e-12)


def test_the_transcript_of_a_fed_loop_states_the_noise_of_every_sum():
    curator = new_curator()
    program(curator)
    opened, sums = curator.transcript
    assert opened.event == SUMS.event()
    assert (sums.name, sums.count) == ("PrefixSum.add", BLOCKS * EPOCHS)
    sizes = [12, 12, 11, 11] * EPOCHS
    np.testing.assert_allclose(sums.sensitivity, [2 * 0.5 / size for size in sizes], rtol=1e-9)
    np.testing.assert_allclose(sums.scale, 0.3 * prefix_noise(SUMS.strategy, sums.sensitivity), rtol=1e-12)
    assert curator.transcript.epsilon(1e-6) == pytest.approx(curator.ledger.spent_epsilon(1e-6), rel=1e-9)


@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize("compiled", [True, False])
def test_a_fed_loop_replays_to_the_last_bit_and_rehearses(relation, compiled, monkeypatch):
    if not compiled:
        eagerly(monkeypatch)
    curator = new_curator(relation)
    found = program(curator)
    again = program(Replay(curator.transcript, curator.public))
    assert np.array_equal(np.asarray(again.params), np.asarray(found.params))
    rehearsal = DryRun(curator.public)
    program(rehearsal)
    assert rehearsal.transcript.event() == curator.transcript.event()


def test_the_audit_follows_a_fed_loop_and_notices_an_understated_sensitivity():
    left, right = some_units(), some_units(target=-1.0)
    for understate, most in ((0.0, 1.0), (0.6, np.inf)):
        audit = Audit(
            left, right, Ledger(Budget(1e3, 1e-6), "replace-one"), noise=NoiseSource(2), understate=understate
        )
        program(audit)
        moved = [ratio for _, ratio in audit.moves]
        assert len(moved) == BLOCKS * EPOCHS
        assert sum(ratio > 0 for ratio in moved) == EPOCHS  # the unit that differs is in one block
        assert max(moved) <= most
        assert understate == 0.0 or max(moved) > 1.0


@dataclass(frozen=True)
class Period:
    """Feeds two items a step, the second a gradient elsewhere, and releases one on a sample."""

    def __call__(self, state, release):
        first = release(ClippedGradient(loss=losses.logistic, at=state.params, clip=0.5), into="sums")
        aside = release(
            ClippedGradient(loss=losses.logistic, at=state.params, clip=0.5), Gaussian(30.0), Poisson(0.3)
        )
        later = ClippedGradient(loss=losses.logistic, at=state.params - 0.1 * first, clip=0.25)
        second = release(later, into="sums")
        return State(state.params - 0.1 * (second - state.prefix) - 1e-3 * aside, second)


@pytest.mark.parametrize("compiled", [True, False])
def test_a_step_feeds_several_items_in_turn(compiled, monkeypatch):
    """On blocks of sizes of their own; and the stream goes on by hand where the loop has ended."""
    if not compiled:
        eagerly(monkeypatch)
    mechanism = PrefixSum(strategy=banded(7, 3), noise_multiplier=0.2)
    plan = Sequence(
        (mechanism.event(), Parallel((NoEvent(),) * 7), Repeated(Poisson(0.3).event(GaussianEvent(30.0)), 3))
    )
    curator = LocalCurator(
        some_units(), Ledger(Budget(1e3, 1e-6), "replace-one", plan=plan), noise=NoiseSource(1)
    )

    def run(where):
        stream = where.stream("sums", mechanism, (D,))
        blocks = where.blocks([8, 3, 8, 3, 8, 3, 5])
        state = State(jnp.zeros(D, jnp.float64), jnp.zeros(D, jnp.float64))
        state = where.iterate(Period(), state, 3, feeds={"sums": Feed(stream, blocks[:6])})
        query = ClippedGradient(loss=losses.logistic, at=state.params, clip=0.5)
        return state, stream.ask("add", query, on=blocks[6], item_index=6)

    state, last = run(curator)
    _, first, _, second, final = curator.transcript
    np.testing.assert_allclose(first.sensitivity, [2 * 0.5 / 8] * 3, rtol=1e-9)
    np.testing.assert_allclose(second.sensitivity, [2 * 0.25 / 3] * 3, rtol=1e-9)
    in_order = np.concatenate(
        [np.stack([first.sensitivity, second.sensitivity], axis=1).ravel(), final.sensitivity]
    )
    stated = np.concatenate([np.stack([first.scale, second.scale], axis=1).ravel(), final.scale])
    np.testing.assert_allclose(stated, 0.2 * prefix_noise(mechanism.strategy, in_order), rtol=1e-12)
    assert np.linalg.norm(last - second.released[-1]) < 2.0  # one item on, with its noise
    again, last_again = run(Replay(curator.transcript, curator.public))
    assert np.array_equal(np.asarray(again.params), np.asarray(state.params))
    assert np.array_equal(last_again, last)


def test_without_noise_the_sums_are_those_of_the_means():
    silent = PrefixSum(strategy=SUMS.strategy, noise_multiplier=0.0, participation=TWICE)
    units = some_units()
    curator = LocalCurator(units, Ledger(Budget(np.inf, 1e-6), "replace-one"), noise=NoiseSource(1))

    class Still(Descent):
        def __call__(self, state, release):
            return state._replace(prefix=super().__call__(state, release).prefix)

    program(curator, Still(), mechanism=silent)
    sums = curator.transcript[-1].released
    everybody = LocalCurator(units, Ledger(Budget(np.inf, 1e-6), "replace-one"))
    mean = everybody.release(ClippedGradient(loss=losses.logistic, at=np.zeros(D), clip=0.5), Gaussian(0.0))
    weights = np.array([12, 12, 11, 11]) / N
    increments = np.diff(np.concatenate([np.zeros((1, D)), sums]), axis=0)
    for epoch in range(EPOCHS):
        np.testing.assert_allclose(weights @ increments[4 * epoch : 4 * epoch + 4], mean, rtol=1e-10)


def test_a_loop_that_would_feed_too_much_is_refused_before_anything_is_read(monkeypatch):
    monkeypatch.setattr(LocalCurator, "private_value", None)
    curator = new_curator()
    with pytest.raises(ValueError, match="would feed 9 items to a stream of 8"):
        program(curator, times=9)
    with pytest.raises(ValueError, match="more often or closer together"):
        program(curator, blocks=3, times=6)
    elsewhere = Feed(new_curator().stream("sums", SUMS, (D,)), curator.blocks(4))
    with pytest.raises(ValueError, match="opened by another curator"):
        curator.iterate(Descent(), State(jnp.zeros(D), jnp.zeros(D)), 2, feeds={"sums": elsewhere})
    with pytest.raises(ValueError, match=r"a stream that `iterate` was given in `feeds` \(here: none\)"):
        curator.iterate(Descent(), State(jnp.zeros(D), jnp.zeros(D)), 2)
    with pytest.raises(ValueError, match="got none"):
        Feed(curator.stream("sums", SUMS, (D,)), [])
    threshold = AboveThreshold(threshold=0.0, epsilon_threshold=0.1, epsilon_queries=0.1)
    with pytest.raises(ValueError, match="a loop feeds streams of PrefixSum, got AboveThreshold"):
        Feed(DryRun(curator.public).stream("above", threshold), curator.blocks(2))
    assert all(len(stream.entered) == 0 for stream in curator._streams.values())


@pytest.mark.parametrize(("block", "kind"), [(0, KeyboardInterrupt), (3, RuntimeError), (0, ValueError)])
def test_after_an_interrupted_loop_its_stream_answers_no_more(block, kind, monkeypatch):
    """All its items count as entered and two are: the first block would seem four items away and is two."""
    eagerly(monkeypatch)
    curator = new_curator()
    stream = curator.stream("sums", SUMS, (D,))
    blocks = curator.blocks(BLOCKS)
    answers = LocalCurator._answer_stream

    def interrupted(self, request, state):
        if state.count == 2:
            raise kind("now")
        return answers(self, request, state)

    monkeypatch.setattr(LocalCurator, "_answer_stream", interrupted)
    state = State(jnp.zeros(D, jnp.float64), jnp.zeros(D, jnp.float64))
    with pytest.raises(kind, match="now"):
        curator.iterate(Descent(), state, BLOCKS, feeds={"sums": Feed(stream, blocks)})
    monkeypatch.undo()
    with double_precision(), pytest.raises(RuntimeError, match="broke off"):
        stream.ask("add", ClippedGradient(loss=losses.logistic, at=state.params, clip=0.5), on=blocks[block])


def test_a_loop_that_is_not_paid_for_has_entered_nothing():
    """Neither is its stream lost: the loop never ran."""
    curator = new_curator()
    stream = curator.stream("sums", SUMS, (D,))
    feeds = {"sums": Feed(stream, curator.blocks(BLOCKS))}
    zeros = jnp.zeros(D, jnp.float64)

    def dear(state, release):
        query = ClippedGradient(loss=losses.logistic, at=state.params, clip=0.5)
        release(query, Gaussian(1e-3))
        return State(state.params, release(query, into="sums"))

    with pytest.raises(BudgetExceeded, match="would cost"):
        curator.iterate(dear, State(zeros, zeros), BLOCKS, feeds=feeds)
    curator.iterate(Descent(), State(zeros, zeros), BLOCKS * EPOCHS, feeds=feeds)


def test_independent_streams_of_one_step_keep_apart():
    curator = new_curator()
    one, other = (
        PrefixSum(strategy=independent(BLOCKS), noise_multiplier=multiplier) for multiplier in (0.1, 0.0)
    )

    class Two(Descent):
        def __call__(self, state, release):
            query = ClippedGradient(loss=losses.logistic, at=state.params, clip=0.5)
            return State(release(query, into="noisy"), release(query, into="quiet"))

    curator = LocalCurator(some_units(), Ledger(Budget(np.inf, 1e-6), "replace-one"), noise=NoiseSource(3))
    blocks = curator.blocks(BLOCKS)
    feeds = {
        "noisy": Feed(curator.stream("noisy", one, (D,)), blocks),
        "quiet": Feed(curator.stream("quiet", other, (D,)), blocks),
    }
    zeros = jnp.zeros(D, jnp.float64)
    curator.iterate(Two(), State(zeros, zeros), BLOCKS, feeds=feeds)
    noisy, quiet = list(curator.transcript)[2:]
    assert np.all(quiet.scale == 0.0)
    assert np.all(noisy.scale > 0.0)
    assert not np.allclose(noisy.released, quiet.released)


@pytest.mark.parametrize("engine", ["fast", "reference"])
def test_a_stream_is_fed_under_one_name(engine):
    """Counted apart, each name would put the same units into items of its own."""
    curator = new_curator(engine=engine)
    stream = curator.stream("sums", PrefixSum(strategy=independent(4), noise_multiplier=20.0), (D,))
    blocks = curator.blocks(BLOCKS)

    def twice(state, release):
        gradient = ClippedGradient(loss=losses.squared, at=state, clip=0.5)
        return state - release(gradient, into="a") - release(gradient, into="b")

    feeds = {"a": Feed(stream, blocks), "b": Feed(stream, blocks)}
    with pytest.raises(ValueError, match="one stream under several names"):
        curator.iterate(twice, jnp.zeros(D), 2, feeds=feeds)


def test_a_loop_feeds_no_points_that_are_the_sample_of_another_stream():
    """Their price covers what that stream releases, and takes it to be secret who is in the sample."""
    tests = TestedSamples(
        20.0, 1.0, 1.0, reversed=True, bad_event_delta=1e-7, rate=0.5, noise_multiplier=2.0, tests=2
    )
    sums = PrefixSum(strategy=independent(1), noise_multiplier=20.0)
    ledger = Ledger(Budget(1e6, 1e-5), "replace-one", plan=Sequence((tests.event(), sums.event())))
    curator = LocalCurator(some_units(), ledger, noise=NoiseSource(1))
    points = ClippedGradient(loss=losses.squared, at=np.zeros(D), clip=0.5)
    held = curator.hold(points, sample=curator.stream("tests", tests))
    stream = curator.stream("sums", sums, (D,))

    def step(state, release):
        mean = HeldMean(held=held, centre=jnp.zeros(D), radius=10.0)
        return state + release(mean, into="sums")

    with pytest.raises(ValueError, match="secret sample drawn for the tests"):
        curator.iterate(step, jnp.zeros(D), 1, feeds={"sums": Feed(stream, [curator])})
