"""Exact noise through the door: single releases, compiled loops, replays, and what transcript and report say of it."""

import threading
from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
import pytest

from privopt.curator.handles import Feed
from privopt.curator.local import LocalCurator
from privopt.curator.replay import Replay
from privopt.data.units import Units
from privopt.ledger.amounts import Budget
from privopt.ledger.events import EveryUnit, Poisson
from privopt.ledger.payer import Unlimited
from privopt.mechanisms.additive import Gaussian, Laplace
from privopt.mechanisms.base import noise_exponent, spacing_of, spacing_ratio
from privopt.mechanisms.choice import ExponentialMechanism, PermuteAndFlip
from privopt.mechanisms.noise import NoiseSource
from privopt.mechanisms.objective_perturbation import PassNoise
from privopt.mechanisms.prefix_sum import PrefixSum
from privopt.mechanisms.strategies import banded, independent
from privopt.mechanisms.tests import AboveThreshold
from privopt.mechanisms.vertex_stream import VertexStream
from privopt.precision import double_precision
from privopt.problems import losses
from privopt.problems.problem import Problem
from privopt.problems.regularisers import Ridge
from privopt.problems.saddle import BilinearGame
from privopt.public import Relation
from privopt.queries.scores import VertexScores
from privopt.queries.slopes import ClippedGradient, GradientNorm
from privopt.report import forms
from privopt.report.report import PrivacyReport
from privopt.result import Result
from privopt.solve import minimize
from privopt.solve_games import minimax
from privopt.status import Status

N, D, STEPS = 300, 5, 40
FEATURES = np.random.default_rng(5).normal(size=(N, D))


@pytest.fixture(autouse=True)
def x64():
    with double_precision():
        yield


def open_curator(source):
    units = Units.from_arrays(FEATURES, np.sign(FEATURES[:, 0]), row_bound=1.0)
    return LocalCurator(units, Unlimited(Relation.REPLACE_ONE), noise=source)


def gradient(at):
    return ClippedGradient(loss=losses.logistic, at=at, clip=0.5)


@dataclass(frozen=True)
class Descent:
    """Sampled descent of two releases a step, of different noise."""

    sampling: object = Poisson(0.2)

    def __call__(self, state, release):
        first = release(gradient(state), Gaussian(3.0), self.sampling)
        return state - 0.1 * first - 0.1 * release(gradient(-state), Gaussian(50.0), self.sampling)


def spacings(release, multiplier, entries):
    ratio = spacing_ratio(multiplier, entries, "l2")
    return np.array([float(spacing_of(np.float64(moved), ratio)) for moved in release.sensitivity])


def on_the_lattice(release, multiplier):
    """Whether every number of a release is an integer times its spacing, rounded once."""
    g = spacings(release, multiplier, release.released[0].size)
    g = g.reshape(-1, *[1] * (release.released.ndim - 1))
    return np.rint(release.released / g) * g == release.released


@pytest.mark.later("compiled")
@pytest.mark.parametrize("sampling", [Poisson(0.2), EveryUnit()], ids=["compiled", "eager"])
def test_nothing_that_a_loop_releases_is_off_the_lattice(sampling):
    curator = open_curator(NoiseSource())
    curator.iterate(Descent(sampling), jnp.zeros(D, jnp.float64), STEPS)
    for release, multiplier in zip(curator.transcript, (3.0, 50.0), strict=True):
        assert release.exact
        assert release.released.shape == (STEPS, D)
        assert np.all(on_the_lattice(release, multiplier))
    floats = open_curator(NoiseSource(exact=False))
    floats.iterate(Descent(sampling), jnp.zeros(D, jnp.float64), STEPS)
    assert not any(release.exact for release in floats.transcript)
    assert np.mean(on_the_lattice(floats.transcript[0], 3.0)) < 0.5


@pytest.mark.parametrize("exact", [True, False])
def test_a_replay_of_a_compiled_loop_is_bit_identical(exact):
    curator = open_curator(NoiseSource(exact=exact))
    first = curator.iterate(Descent(), jnp.zeros(D, jnp.float64), STEPS)
    replay = Replay(curator.transcript, curator.public)
    again = replay.iterate(Descent(), jnp.zeros(D, jnp.float64), STEPS)
    assert np.array_equal(again, first)
    assert [release.exact for release in replay.transcript] == [exact, exact]


def test_an_eager_loop_of_the_same_seed_draws_the_same_integers():
    """One step of sampled releases, compiled and by hand: the same units and noise, so the same lattice points."""
    looped, single = open_curator(NoiseSource(seed=4)), open_curator(NoiseSource(seed=4))
    looped.iterate(Descent(), jnp.zeros(D, jnp.float64), 1)
    for multiplier in (3.0, 50.0):
        single.release(gradient(jnp.zeros(D, jnp.float64)), Gaussian(multiplier), Poisson(0.2))
    for compiled, eager, multiplier in zip(looped.transcript, single.transcript, (3.0, 50.0), strict=True):
        apart = (compiled.released - eager.released) / spacings(compiled, multiplier, D)
        assert np.max(np.abs(apart)) <= 1.0 + 1e-6


@dataclass(frozen=True)
class Choices:
    """A choice a step, of the steepest direction and by the other mechanism."""

    def __call__(self, state, release):
        for kind in (ExponentialMechanism, PermuteAndFlip):
            index = jnp.asarray(release(scores(state), kind(0.02), Poisson(0.9))).astype(int)
            state = state.at[index % D].add(jnp.where(index < D, 0.1, -0.1))
        return state


def scores(at):
    return VertexScores(loss=losses.logistic, at=at, clip=0.1, offset=jnp.zeros(D, jnp.float64))


def test_choices_in_a_compiled_loop_are_the_eager_ones_and_replay_alike():
    looped, single = open_curator(NoiseSource(seed=6)), open_curator(NoiseSource(seed=6))
    end = looped.iterate(Choices(), jnp.zeros(D, jnp.float64), STEPS)
    state = jnp.zeros(D, jnp.float64)
    for _ in range(STEPS):
        state = Choices()(state, single.release)
    assert np.array_equal(state, end)
    assert len(set(looped.transcript[0].released.tolist())) > 2
    again = Replay(looped.transcript, looped.public).iterate(Choices(), jnp.zeros(D, jnp.float64), STEPS)
    assert np.array_equal(again, end)
    assert all(release.exact for release in looped.transcript)


class FloatGaussian(Gaussian):
    """Somebody's mechanism, written before there were integers: it draws floats, and inherits `exact`."""

    def standard(self, noise, shape):
        return noise.normal(shape)


@dataclass(frozen=True)
class ByAnother:
    mechanism: Gaussian

    def __call__(self, state, release):
        return state - release(gradient(state), self.mechanism, Poisson(0.2))


def test_floats_are_never_cut_to_integers():
    """They would be noise of a spacing or two in place of 2^30."""
    curator, start = open_curator(NoiseSource()), jnp.zeros(D, jnp.float64)
    with pytest.raises(TypeError, match="FloatGaussian calls itself exact, but draws float64 noise"):
        curator.iterate(ByAnother(FloatGaussian(3.0)), start, STEPS)
    assert all(line.released is None for line in curator.transcript)
    floats = open_curator(NoiseSource(exact=False))
    floats.iterate(ByAnother(FloatGaussian(3.0)), start, STEPS)
    release = floats.transcript[0]
    assert np.std(release.released[1:] - release.released[:-1]) > 0.5 * release.scale.min()


class FloatSums(PrefixSum):
    """Somebody's stream that draws floats."""

    def add(self, state, noise, private_item, sensitivity, *, item_index=None):
        return super().add(state, noise, private_item, sensitivity) + 0.0 * noise.uniform((D,))


@dataclass(frozen=True)
class Fed:
    """Every step enters an item."""

    def __call__(self, state, release):
        return state - release(gradient(state), into="sums")


class FloatRows(PrefixSum):
    """Somebody's stream, written before there were integers."""

    def draw_next(self, state, noise):
        return np.asarray(super().draw_next(state, noise), np.float64) * 2.0**-30


@pytest.mark.parametrize("kind", [PrefixSum, FloatRows])
def test_a_fed_loop_is_exact_and_cuts_no_row_of_floats(kind):
    curator, start = open_curator(NoiseSource()), jnp.zeros(D, jnp.float64)
    stream = curator.stream("sums", kind(strategy=banded(4, 2), noise_multiplier=3.0), (D,))
    feeds = {"sums": Feed(stream, curator.blocks(4))}
    if kind is FloatRows:
        with pytest.raises(TypeError, match="FloatRows calls itself exact, but draws float64 noise"):
            curator.iterate(Fed(), start, 4, feeds=feeds)
        return
    end = curator.iterate(Fed(), start, 4, feeds=feeds)
    sums, by = curator.transcript[-1], stream.mechanism.of_item()
    assert all(line.exact for line in curator.transcript)
    ratio = spacing_ratio(by.noise_multiplier, D, "l2", by.exponent)
    before = np.zeros(D)
    for value, moved in zip(sums.released, sums.sensitivity, strict=True):
        g = float(spacing_of(np.float64(moved), ratio))
        assert np.array_equal(before + np.rint((value - before) / g) * g, value)
        before = value
    replay = Replay(curator.transcript, curator.public)
    stream = replay.stream("sums", stream.mechanism, (D,))
    again = replay.iterate(Fed(), start, 4, feeds={"sums": Feed(stream, replay.blocks(4))})
    assert np.array_equal(again, end)


def test_noise_is_called_what_it_is_made_of_and_not_what_its_class_says():
    at, everybody = jnp.zeros(D, jnp.float64), EveryUnit()
    curator = open_curator(NoiseSource())
    for mechanism in (Gaussian(3.0), FloatGaussian(3.0), Gaussian(3.0)):
        curator.release(gradient(at), mechanism)
    curator.iterate(lambda state, release: release(gradient(state), FloatGaussian(2.0), everybody), at, 2)
    sums = curator.stream("sums", FloatSums(strategy=independent(2), noise_multiplier=3.0), (D,))
    sums.ask("add", gradient(at))
    assert [line.exact for line in curator.transcript] == [True, False, True, False, True, False]
    assert arithmetic(report_of(curator)).startswith("exact, integers, but not for: ")


class CutFloats(Gaussian):
    """Somebody's mechanism whose integers are floats that were rounded."""

    def draw(self, noise, shape):
        return np.rint(noise.normal(shape) * 2.0 ** noise_exponent(self.noise_multiplier)).astype(np.int64)


class CutRows(PrefixSum):
    """Somebody's stream whose integers are likewise."""

    def draw_next(self, state, noise):
        private_row = super().draw_next(state, noise)
        return private_row + np.rint(noise.normal(private_row.shape)).astype(np.int64)


def test_a_compiled_loop_calls_integers_that_were_floats_no_exact_noise():
    curator, start = open_curator(NoiseSource()), jnp.zeros(D, jnp.float64)
    curator.iterate(ByAnother(CutFloats(3.0)), start, STEPS)
    stream = curator.stream("sums", CutRows(strategy=banded(4, 2), noise_multiplier=3.0), (D,))
    curator.iterate(Fed(), start, 4, feeds={"sums": Feed(stream, curator.blocks(4))})
    curator.iterate(ByAnother(Gaussian(3.0)), start, STEPS)
    assert [line.exact for line in curator.transcript] == [False, True, False, True]


def test_another_threads_floats_mark_no_release_of_this_one():
    source = NoiseSource()
    curator = open_curator(source)
    thread = threading.Thread(target=lambda: source.normal((3,)))
    thread.start()
    thread.join()
    curator.release(gradient(jnp.zeros(D, jnp.float64)), Gaussian(3.0))
    assert curator.transcript[0].exact
    assert not source.drew_floats()
    source.laplace((2,))
    assert source.drew_floats()
    assert not source.drew_floats()


def test_a_loop_without_noise_runs():
    for source in (NoiseSource(), NoiseSource(exact=False)):
        curator = open_curator(source)
        curator.iterate(ByAnother(Gaussian(0.0)), jnp.zeros(D, jnp.float64), 2)
        assert np.all(np.isfinite(curator.transcript[0].released))


class OwnSums(PrefixSum):
    """A stream that does not claim to be exact."""

    exact = False


def arithmetic(report):
    """What a report says of its noise but where it came from."""
    return forms.sentence("page", "arithmetic", report.facts)


def report_of(curator):
    result = Result(np.zeros(D), Status.FINISHED, curator.transcript)
    return PrivacyReport.of(result)


@pytest.mark.audit
def test_the_report_says_which_noise_is_exact():
    curator = open_curator(NoiseSource())
    curator.release(gradient(jnp.zeros(D, jnp.float64)), Gaussian(3.0))
    curator.release(GradientNorm(loss=losses.logistic, at=jnp.zeros(D, jnp.float64), clip=0.5), Laplace(3.0))
    curator.public_seed("directions")
    report = report_of(curator)
    assert report.to_dict()["guarantee"]["noise"].startswith("exact, integers; operating-system entropy")
    assert arithmetic(PrivacyReport.from_dict(report.to_dict())) == "exact, integers"
    curator.release(scores(jnp.zeros(D, jnp.float64)), ExponentialMechanism(1.0))
    test = curator.stream("test", AboveThreshold(0.1, 1.0, 1.0))
    test.ask("answer", GradientNorm(loss=losses.logistic, at=jnp.zeros(D, jnp.float64), clip=0.5))
    assert arithmetic(report_of(curator)) == "exact, integers"
    curator.stream("sums", PrefixSum(strategy=independent(2), noise_multiplier=3.0), (D,))
    assert arithmetic(report_of(curator)) == "exact, integers"
    curator.stream("floats", OwnSums(strategy=independent(2), noise_multiplier=3.0), (D,))
    assert arithmetic(report_of(curator)).startswith("exact, integers, but not for: Floats")


def test_floating_point_is_marked_wherever_it_is_used():
    curator = open_curator(NoiseSource(exact=False))
    curator.release(gradient(jnp.zeros(D, jnp.float64)), Gaussian(3.0))
    report = report_of(curator)
    assert arithmetic(report) == "64-bit floating point"
    assert "drawn as 64-bit floats" in str(report.to_dict()["not_covered"])
    assert not curator.transcript.to_dict()["releases"][0]["exact"]
    assert repr(NoiseSource(exact=False)) == "NoiseSource(<private>, floating point)"


def test_noise_at_the_steps_of_a_pass_is_not_called_exact():
    assert VertexStream.exact
    assert PassNoise(noise_multiplier=1.0, places=3, size=2, inside=False).exact
    assert not PassNoise(noise_multiplier=1.0, places=3, size=2, inside=True).exact


@pytest.mark.parametrize("solver", ["snowball-sgd", "objective-perturbation"])
def test_a_report_says_where_noise_is_in_the_middle_of_floats(solver):
    rows = FEATURES / np.linalg.norm(FEATURES, axis=1, keepdims=True)
    units = Units.from_arrays(rows, np.sign(rows[:, 0]), row_bound=1.0)
    found = minimize(Problem(losses.logistic, Ridge(0.1)), units, budget=Budget(1.0, 1e-6), solver=solver)
    assert arithmetic(PrivacyReport.of(found)) == "64-bit floating point"


def test_a_game_takes_its_noise_by_name():
    units = Units.from_arrays(np.abs(FEATURES[:, :4]), np.zeros(N), row_bound=4.0)
    game = BilinearGame(rows=2, columns=2)
    with pytest.raises(ValueError, match="noise must be 'exact' or"):
        minimax(game, units, budget=Budget(1.0, 1e-6), noise="fine")
    for noise in ("exact", "float"):
        found = minimax(game, units, budget=Budget(1.0, 1e-6), solver="noisy-matrix", noise=noise)
        assert any(line.exact for line in found.transcript) == (noise == "exact")
