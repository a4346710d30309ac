"""Points of a secret sample: who may ask about them, how often, and what one unit moves."""

import jax.numpy as jnp
import numpy as np
import pytest

from privopt.curator.audit import Audit
from privopt.curator.handles import Held
from privopt.curator.local import LocalCurator
from privopt.curator.replay import Replay
from privopt.data.units import Units
from privopt.ledger.amounts import Budget
from privopt.ledger.ledger import Ledger
from privopt.mechanisms.additive import Gaussian
from privopt.mechanisms.noise import NoiseSource
from privopt.mechanisms.tests import AboveThreshold, TestedSamples
from privopt.precision import double_precision
from privopt.problems import losses
from privopt.queries.base import query
from privopt.queries.scores import HeldCount
from privopt.queries.slopes import ClippedGradient
from privopt.queries.users import (
    AcceptedMean,
    ConcentrationScore,
    FriendlyMean,
    FriendlyWeight,
    HeldMean,
    HuberCentre,
    HuberScore,
)

RELATIONS = ["replace-one", "add-or-remove-one"]
WIDE = Budget(1e6, 1e-5)
TESTS = TestedSamples(
    20.0, 1.0, 1.0, reversed=True, bad_event_delta=1e-7, rate=0.5, noise_multiplier=2.0, tests=2
)


def units(n=100, relation="replace-one", last=1.0, count=None):
    rows = np.ones((count or n, 2))
    rows[-1] *= last
    return Units.from_arrays(rows, np.ones(len(rows)), n=n, row_bound=2.0, relation=relation)


def curator_on(data, seed=1):
    ledger = Ledger(WIDE, data.public.relation, plan=TESTS.event())
    return LocalCurator(data, ledger, noise=NoiseSource(seed))


POINTS = ClippedGradient(loss=losses.squared, at=np.zeros(2), clip=10.0)


def count(held, radius=5.0):
    return HeldCount(held=held, centre=jnp.zeros(2), radius=radius)


def mean(held):
    return HeldMean(held=held, centre=jnp.zeros(2), radius=10.0)


def steps(curator):
    """Two steps as they should be."""
    stream, found = curator.stream("tests", TESTS), []
    for _ in range(2):
        held = curator.hold(POINTS, sample=stream)
        assert not stream.ask("answer", count(held))
        found.append(np.asarray(stream.ask("mean", mean(held))))
    return found


@pytest.mark.later("replace-one")
@pytest.mark.parametrize("relation", RELATIONS)
def test_a_sample_is_tested_once_and_then_released_once(relation):
    with double_precision():
        curator = curator_on(units(relation=relation))
        found = steps(curator)
        assert len(curator.transcript) == 5
        again = steps(Replay(curator.transcript, curator.public))
        np.testing.assert_array_equal(found, again)
        assert curator.ledger.epsilon() == curator.transcript.epsilon(1e-5)


@pytest.mark.parametrize("order", ["mean", "answer answer", "mean mean", "old", "three"])
def test_what_the_price_does_not_cover_is_refused(order):
    with double_precision():
        curator = curator_on(units())
        stream = curator.stream("tests", TESTS)
        held = curator.hold(POINTS, sample=stream)
        refused = pytest.raises(
            ValueError, match="a sample serves for one test, and for one release once it passed"
        )
        if order == "mean":
            with refused:
                stream.ask("mean", mean(held))
            return
        stream.ask("answer", count(held))
        if order == "answer answer":
            with refused:
                stream.ask("answer", count(held))
            return
        stream.ask("mean", mean(held))
        if order == "mean mean":
            with refused:
                stream.ask("mean", mean(held))
            return
        fresh = curator.hold(POINTS, sample=stream)
        if order == "old":
            with refused:
                stream.ask("answer", count(held))
            return
        stream.ask("answer", count(fresh))
        stream.ask("mean", mean(fresh))
        third = curator.hold(POINTS, sample=stream)
        with refused:
            stream.ask("answer", count(third))


def test_after_a_failed_test_its_sample_is_spent_and_fresh_ones_serve_for_a_release_each():
    with double_precision():
        curator = curator_on(units())
        stream = curator.stream("tests", TESTS)
        held = curator.hold(POINTS, sample=stream)
        assert stream.ask("answer", count(held, radius=1e-9))  # nobody is that near: stop
        with pytest.raises(ValueError, match="a sample serves for one test"):
            stream.ask("mean", mean(held))
        for _ in range(2):
            fresh = curator.hold(POINTS, sample=stream)
            stream.ask("mean", mean(fresh))
        with pytest.raises(ValueError, match="2 times at most"):
            stream.ask("mean", mean(curator.hold(POINTS, sample=stream)))


def test_nobody_else_is_answered_about_a_sample():
    with double_precision():
        data = units()
        ledger = Ledger(WIDE, "replace-one", composition="zcdp")
        curator = LocalCurator(data, Ledger(WIDE, "replace-one", plan=TESTS.event()), noise=NoiseSource(1))
        stream = curator.stream("tests", TESTS)
        held = curator.hold(POINTS, sample=stream)
        with pytest.raises(ValueError, match="a secret sample drawn for the tests of a stream"):
            curator.release(mean(held), Gaussian(5.0))
        other = LocalCurator(data, ledger, noise=NoiseSource(1))
        plain = other.stream("plain", AboveThreshold(1.0, 1.0, 1.0))
        with pytest.raises(ValueError, match="a secret sample drawn for the tests of a stream"):
            plain.ask("answer", count(held))
        with pytest.raises(ValueError, match="a sample serves for one test"):
            stream.ask("answer", count(curator.hold(POINTS)))
        with pytest.raises(ValueError, match="sample must be a stream of TestedSamples"):
            other.hold(POINTS, sample=plain)
        with pytest.raises(ValueError, match="sample must be a stream of TestedSamples"):
            other.hold(POINTS, sample=stream)
        with pytest.raises(ValueError, match="sample must be a stream of TestedSamples"):
            curator.hold(POINTS, groups=4, sample=stream)


@query
class AnotherMean(HeldMean):
    """Whatever the library says of its mean, it does not say it of this one."""

    def value(self, private_vectors, private_present):
        del private_present
        return private_vectors.sum(axis=0)


@query
class ClaimedCount(HeldCount):
    """A class that makes the claim itself."""

    on_samples = frozenset({"answer"})


@query
class InheritedCount(HeldCount):
    """Changes nothing, claims nothing."""


AROUND = {"origin": np.zeros(2), "radius": 1.0, "least": 30, "steps": 400}
NEAR = {"origin": np.zeros(2), "within": 0.1}
ON_SAMPLES = {
    "friendly weight": (lambda held: FriendlyWeight(held=held, **NEAR), ""),
    "friendly mean": (lambda held: FriendlyMean(held=held, least_weight=4.0, **NEAR), ""),
    "concentration": (lambda held: ConcentrationScore(held=held, **NEAR), ""),
    "accepted mean": (
        lambda held: AcceptedMean(held=held, lottery=np.zeros(50), failure=1e-6, **NEAR),
        "",
    ),
    "count": (count, "answer"),
    "score": (lambda held: HuberScore(held=held, **AROUND), "answer"),
    "clipped mean": (mean, "mean"),
    "centre": (lambda held: HuberCentre(held=held, **AROUND), "mean"),
    "another mean": (lambda held: AnotherMean(held=held, centre=jnp.zeros(2), radius=10.0), ""),
    "claimed": (lambda held: ClaimedCount(held=held, centre=jnp.zeros(2), radius=5.0), "answer"),
    "inherited": (lambda held: InheritedCount(held=held, centre=jnp.zeros(2), radius=5.0), ""),
}


@pytest.mark.later("accepted mean-answer", "centre-mean", "score-answer")
@pytest.mark.parametrize("wanted", ["answer", "mean"])
@pytest.mark.parametrize("kind", ON_SAMPLES)
def test_a_sample_answers_only_statistics_that_are_made_for_it(kind, wanted, monkeypatch):
    """Replace-one: the price is that of a sample, so that nothing may read the other rows; and a unit that enters must
    move what is released by half of its sensitivity, which a count or a score does not satisfy."""
    statistic, claimed = ON_SAMPLES[kind]
    with double_precision():
        curator = curator_on(units())
        stream = curator.stream("tests", TESTS)
        held = curator.hold(POINTS, sample=stream)
        if wanted == "mean":
            assert not stream.ask("answer", count(held))
        asked = statistic(held)
        if wanted == claimed:
            stream.ask(wanted, asked)
            return

        def read(*arguments):
            pytest.fail("the data were read")

        monkeypatch.setattr(type(asked), "value", read)
        with pytest.raises(ValueError, match=f"is not made for the request '{wanted}' on a secret sample"):
            stream.ask(wanted, asked)
        turn = curator._streams[stream.key].sample
        assert (turn.answers, turn.releases) == ((0, 0) if wanted == "answer" else (1, 0))


@pytest.mark.parametrize("kind", ["friendly weight", "friendly mean", "concentration", "accepted mean"])
def test_statistics_of_a_known_number_of_points_refuse_a_sample_by_themselves(kind):
    held = Held(points=50, replaced=True, drawn_for=0)
    with pytest.raises(ValueError, match="private in a secret sample"):
        ON_SAMPLES[kind][0](held).sensitivity(units().public)


@pytest.mark.parametrize("relation", RELATIONS)
def test_one_unit_moves_what_is_asked_by_its_sensitivity_at_most(relation):
    left = units(relation=relation)
    right = (
        units(relation=relation, last=1e30)
        if relation == "replace-one"
        else units(relation=relation, count=99)
    )
    moved = []
    for seed in range(6):
        audit = Audit(left, right, Ledger(WIDE, relation, plan=TESTS.event()), noise=NoiseSource(seed))
        with double_precision():
            steps(audit)
        moved += [ratio for _, ratio in audit.moves]
    assert max(moved) <= 1.0
    if relation == "add-or-remove-one":
        assert max(moved) > 0.1


def test_units_are_drawn_anew_and_independently():
    with double_precision():
        curator = curator_on(units(n=400))
        stream = curator.stream("tests", TESTS)
        sizes = []
        for _ in range(100):
            held = curator.hold(POINTS, sample=stream)
            sizes.append(int(curator._private_held[held][1].sum()))
        assert held.points == 200
        assert 180 <= np.mean(sizes) <= 220
        assert 5 < np.std(sizes) < 15  # binomial: 10


def test_wrong_arguments_are_refused():
    with pytest.raises(ValueError, match="use reversed=True"):
        TestedSamples(1.0, 1.0, 1.0, rate=0.5)
    with pytest.raises(ValueError, match="the sampling rate must be in"):
        TestedSamples(1.0, 1.0, 1.0, reversed=True, rate=0.0)
    with pytest.raises(ValueError, match="tests must be at least 1"):
        TestedSamples(1.0, 1.0, 1.0, reversed=True, rate=0.5, tests=0)
