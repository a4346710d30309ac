"""What the curator refuses, and what blocks, streams and their transcripts cost."""

from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
import pytest

from privopt.curator.dry_run import DryRun
from privopt.curator.local import LocalCurator
from privopt.curator.replay import Replay
from privopt.data.units import Units
from privopt.ledger.amounts import Budget
from privopt.ledger.composition import alternatives
from privopt.ledger.events import GaussianEvent, NoEvent, Parallel, Poisson, Sequence
from privopt.ledger.ledger import Ledger
from privopt.ledger.payer import Unlimited
from privopt.mechanisms.additive import Gaussian, Laplace
from privopt.mechanisms.choice import ExponentialMechanism
from privopt.mechanisms.noise import NoiseSource
from privopt.mechanisms.prefix_sum import PrefixSum
from privopt.mechanisms.strategies import independent
from privopt.precision import double_precision
from privopt.problems import losses
from privopt.queries.slopes import ClippedGradient, GradientNorm

N, D = 60, 4
NOISE = Gaussian(40.0)
STREAM = PrefixSum(strategy=independent(2), noise_multiplier=30.0)


@pytest.fixture(autouse=True)
def x64():
    with double_precision():
        yield


def open_curator(**options):
    features = np.random.default_rng(5).normal(size=(N, D))
    units = Units.from_arrays(features, np.sign(features[:, 0]), row_bound=1.0)
    options = options or {"composition": "gaussian"}
    return LocalCurator(units, Ledger(Budget(3.0, 1e-6), "replace-one", **options), noise=NoiseSource(2))


def query(kind=ClippedGradient):
    return kind(loss=losses.logistic, at=jnp.zeros(D, jnp.float64), clip=0.5)


@pytest.mark.parametrize("mechanism", [Laplace(40.0), ExponentialMechanism(0.1)])
def test_noise_of_another_norm_than_the_querys_is_refused_before_it_is_charged(mechanism):
    curator = open_curator(composition="zcdp")
    with pytest.raises(ValueError, match="use a mechanism of that norm"):
        curator.release(query(), mechanism)
    assert curator.ledger.spent == 0.0
    curator.release(query(GradientNorm), Laplace(40.0))  # one number: all norms are the same


@dataclass(frozen=True)
class Step:
    mechanism: object

    def __call__(self, state, release):
        return state - release(query(), self.mechanism, Poisson(0.5))


def test_noise_of_another_norm_is_refused_in_a_loop():
    with pytest.raises(ValueError, match="use a mechanism of that norm"):
        open_curator(composition="zcdp").iterate(Step(Laplace(40.0)), jnp.zeros(D, jnp.float64), 3)


def work_on_blocks(curator):
    """A release on everybody, two blocks of which one is split again, and a release on everybody."""
    curator.release(query(), NOISE)
    first, second = curator.blocks([20, 30])
    first.release(query(), NOISE)
    second.release(query(), Gaussian(30.0))
    for part in second.blocks(3):
        part.release(query(), Gaussian(50.0))
    first.release(query(), NOISE)
    return curator.release(query(), NOISE)


def test_a_transcript_of_blocks_costs_what_the_ledger_was_paid():
    once, dearer, inner = GaussianEvent(40.0), GaussianEvent(30.0), GaussianEvent(50.0)
    plan = Sequence(
        (
            once,
            Parallel((Sequence((once, once)), Sequence((dearer, Parallel((inner, inner, inner)))))),
            once,
        )
    )
    curator = open_curator(plan=plan)
    released = work_on_blocks(curator)
    assert (
        alternatives(curator.transcript.event())
        == alternatives(curator.ledger.spent_event())
        == alternatives(plan)
    )
    filtered = open_curator()
    work_on_blocks(filtered)
    assert filtered.ledger.spent_epsilon(1e-6) == pytest.approx(curator.transcript.epsilon(1e-6), rel=1e-9)
    replay = Replay(curator.transcript, curator.public)
    assert np.array_equal(work_on_blocks(replay), released)
    assert replay.transcript.event() == curator.transcript.event()
    rehearsal = DryRun(curator.public)
    work_on_blocks(rehearsal)
    assert rehearsal.transcript.event() == curator.transcript.event()


def test_a_stream_is_charged_once_and_fed_by_blocks():
    curator = open_curator(plan=Sequence((STREAM.event(), Parallel((NoEvent(), NoEvent())))))
    stream = curator.stream("sums", STREAM, (D,))
    sums = [stream.ask("add", query(), on=block) for block in curator.blocks([20, 30])]
    assert curator.transcript.event() == GaussianEvent(30.0)
    sensitivities = [float(release.sensitivity[0]) for release in list(curator.transcript)[1:]]
    np.testing.assert_allclose(sensitivities, [2 * 0.5 / 20, 2 * 0.5 / 30], rtol=1e-9)
    assert not np.array_equal(*sums)


def test_a_stream_takes_no_unit_more_often_than_it_was_charged_for():
    curator = open_curator()
    stream = curator.stream("sums", STREAM, (D,))
    stream.ask("add", query())
    with pytest.raises(ValueError, match="than the stream was charged for"):
        stream.ask("add", query())


def test_a_stream_is_fed_by_the_units_that_have_paid_for_it_only():
    curator = open_curator()
    first, second = curator.blocks(2)
    stream = first.stream("sums", STREAM, (D,))
    for stranger in (curator, second, open_curator()):
        with pytest.raises(ValueError, match="no other curator's units have paid"):
            stream.ask("add", query(), on=stranger)
    stream.ask("add", query(), on=first.allot("lent", share=0.5))


class Mine(LocalCurator):
    """A curator of somebody's own, which says nothing of its parts."""


def test_parts_of_a_curator_are_of_its_kind_with_streams_of_their_own():
    units = Units.from_arrays(np.ones((N, D)), np.ones(N), row_bound=1.0)
    curator = Mine(units, Unlimited("replace-one"), noise=NoiseSource(2))
    curator.stream("noise", STREAM, (D,))
    blocks = curator.blocks(2)
    for part in (*blocks, curator.view(np.eye(D), 1.0), curator.filtered("inner", NOISE)):
        assert type(part) is Mine
        assert part.transcript is curator.transcript
        assert not part._streams
        assert part.cut_from is (curator if part in blocks else None)
        assert [block.count for block in part.lineage] == ([2] if part in blocks else [])
    assert len(curator._streams) == 1
