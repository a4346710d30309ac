"""Attacks on the curator that once worked, or that a reader would try first: each must be refused or have no effect."""

import copy
import os
import pickle
import sys
import threading

import jax.numpy as jnp
import numpy as np
import pytest
from tests.support.loop_sums import loop_sum

from privopt.curator.local import LocalCurator
from privopt.curator.transcript import Transcript
from privopt.data.places import Stretch
from privopt.data.rows import PRODUCT_ROWS, dense_product
from privopt.data.units import Units
from privopt.engine.in_process import InProcessEngine
from privopt.errors import BudgetExceeded
from privopt.ledger import accounting
from privopt.ledger.account import Account
from privopt.ledger.amounts import Budget
from privopt.ledger.events import (
    FixedSize,
    GaussianEvent,
    NonPrivateEvent,
    Parallel,
    Poisson,
    Repeated,
    SampledEvent,
)
from privopt.ledger.ledger import Ledger
from privopt.mechanisms.additive import Gaussian
from privopt.mechanisms.noise import NoiseSource
from privopt.precision import double_precision
from privopt.problems import losses
from privopt.public import Public
from privopt.queries.base import ArgminQuery, clip_to_ball, query, shrunk_radius
from privopt.queries.slopes import ClippedGradient, ClippedGradientDifference, GradientNorm
from privopt.solve import minimize

N, D = 40, 3


@pytest.fixture(autouse=True)
def x64():
    with double_precision():
        yield


def arrays():
    rng = np.random.default_rng(7)
    features = rng.normal(size=(N, D))
    return features, np.sign(features[:, 0])


def units(relation="replace-one", **options):
    return Units.from_arrays(*arrays(), relation=relation, row_bound=1.0, **options)


def open_curator(data=None, *, epsilon=3.0, noise=1, **options):
    data = units() if data is None else data
    ledger = Ledger(Budget(epsilon, 1e-6), data.public.relation, **(options or {"composition": "gaussian"}))
    return LocalCurator(data, ledger, noise=NoiseSource(noise))


def gradient(at=None, clip=0.5):
    return ClippedGradient(loss=losses.logistic, at=jnp.zeros(D) if at is None else at, clip=clip)


# Prices of something else than what is released ----------------------------------------------------------------------


def test_a_fixed_size_sample_of_another_number_of_units_is_refused():
    false = FixedSize(N // 2, 10**7)  # would be priced at a rate of 2 in a million
    curator = open_curator(plan=Repeated(false.event(GaussianEvent(2.0)), 5))
    with pytest.raises(ValueError, match="another rate"):
        curator.release(gradient(), Gaussian(2.0), false)
    with pytest.raises(ValueError, match="another rate"):
        curator.iterate(lambda w, release: w - release(gradient(w), Gaussian(2.0), false), jnp.zeros(D), 5)
    whole = FixedSize(10, N)
    plan = Parallel((Repeated(whole.event(GaussianEvent(4.0)), 2),) * 4)
    block = open_curator(epsilon=9.0, plan=plan).blocks(4)[0]
    with pytest.raises(ValueError, match="another rate"):  # it would hold everybody in the block
        block.release(gradient(), Gaussian(4.0), whole)


def test_a_ledger_of_another_relation_is_refused():
    with pytest.raises(ValueError, match="one relation"):
        LocalCurator(units("add-or-remove-one", n=N), Ledger(Budget(1.0, 1e-6), "replace-one"))


@pytest.mark.parametrize("sampling", [None, Poisson(0.3)], ids=["eager", "compiled"])
def test_a_step_that_releases_something_else_than_was_priced_is_refused(sampling):
    mechanisms = iter([Gaussian(40.0)] + [Gaussian(0.01)] * 9)
    extra = () if sampling is None else (sampling,)
    event = GaussianEvent(40.0) if sampling is None else sampling.event(GaussianEvent(40.0))
    curator = open_curator(plan=Repeated(event, 3))
    with pytest.raises(ValueError, match="not the one that was priced"):
        curator.iterate(
            lambda w, release: w - release(gradient(w), next(mechanisms), *extra), jnp.zeros(D), 3
        )
    assert all(line.released is None for line in curator.transcript)


def test_a_compiled_step_whose_closure_changed_is_not_run_as_it_was():
    sampling, multiplier = Poisson(0.3), [0.05]

    def step(w, release):
        return w - release(gradient(w), Gaussian(multiplier[0]), sampling)

    scales = []
    for multiplier[0] in (0.05, 40.0):
        plan = Repeated(sampling.event(GaussianEvent(multiplier[0])), 3)
        curator = open_curator(epsilon=1e9, plan=plan)
        curator.iterate(step, jnp.zeros(D), 3)
        scales.append(np.mean(np.abs(curator.transcript[0].released)))
    assert scales[1] > 10 * scales[0]


def test_a_minimiser_over_records_does_not_serve_users():
    @query
    class Minimiser(ArgminQuery):
        def sensitivity(self, public, sampling=None):
            return 1.0

        def shape(self, public):
            return (D,)

        def objective(self, public):
            raise AssertionError("nothing is computed")

        def minimise(self, public, private_sum, noise, tolerance):
            return noise

        def implied_noise(self, public, private_sum, solution):
            return solution

    curator = open_curator(units(groups=np.arange(N) // 4))
    with pytest.raises(ValueError, match="which user owns them"):
        curator.release(Minimiser(), Gaussian(40.0))


def test_a_release_without_noise_on_a_sample_has_no_finite_price():
    bare = Repeated(SampledEvent(Poisson(0.1), NonPrivateEvent()), 4)
    assert accounting.epsilon(bare, 1e-6, "replace-one") == np.inf
    with pytest.raises(BudgetExceeded, match="no finite epsilon"):
        Ledger(Budget(9.0, 1e-6), "add-or-remove-one", plan=bare)


# One budget, spent twice ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, pickle.dumps])
def test_a_ledger_and_a_curator_are_not_copied(duplicate):
    curator = open_curator()
    for thing in (curator.ledger, curator.ledger.sub_ledger("part", share=0.5)):
        with pytest.raises(TypeError, match="cannot be pickled or copied"):
            duplicate(thing)
    assert copy.copy(curator).ledger is curator.ledger  # the same budget
    with pytest.raises(TypeError, match="cannot be pickled or copied"):
        (copy.deepcopy if duplicate is copy.copy else duplicate)(curator)


def test_a_budget_is_not_spent_in_a_forked_child(monkeypatch):
    ledger, account = Ledger(Budget(1.0, 1e-6), "replace-one"), Account(1.0, 1e-6)
    parent = os.getpid()
    monkeypatch.setattr(os, "getpid", lambda: parent + 1)
    with pytest.raises(BudgetExceeded, match="another process"):
        ledger.charge("release", GaussianEvent(90.0))
    with pytest.raises(BudgetExceeded, match="another process"):
        ledger.sub_ledger("part", share=0.5).charge("release", GaussianEvent(90.0))
    with pytest.raises(BudgetExceeded, match="another process"):
        account.spend("fit", GaussianEvent(90.0), 0.1, 1e-6)


def test_threads_do_not_overspend_a_filter():
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for _ in range(20):
            ledger = Ledger(Budget(1.0, 1e-6), "replace-one", composition="gaussian")
            tenth = GaussianEvent(float(np.sqrt(10 / (2 * ledger.remaining))))
            threads = [threading.Thread(target=_spend, args=(ledger, tenth)) for _ in range(6)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert sum(entry.count for entry in ledger.entries) == 10
    finally:
        sys.setswitchinterval(interval)


def _spend(ledger, event):
    for _ in range(6):
        try:
            ledger.charge("release", event)
        except BudgetExceeded:
            return


def test_an_account_protects_one_kind_of_unit():
    account = Account(9.0, 1e-5)
    minimize(losses.logistic, units(), budget=Budget(1.0, 1e-7), account=account)
    users = units(groups=np.arange(N) // 4)
    with pytest.raises(ValueError, match="open one account for each"):
        minimize(losses.logistic, users, budget=Budget(1.0, 1e-7), account=account, solver="gradient-descent")


# Randomness that is not secret ---------------------------------------------------------------------------------------


def test_a_seed_marks_everything_it_touches():
    account = Account(9.0, 1e-5)
    minimize(losses.logistic, units(), budget=Budget(1.0, 1e-7), account=account)
    assert "mark" not in account.to_dict()
    result = minimize(losses.logistic, units(), budget=Budget(1.0, 1e-7), account=account, random_state=3)
    assert "not private" in account.to_dict()["mark"]
    assert not result.report.is_private
    assert open_curator(noise=3).ledger.seeded
    assert open_curator(noise=3).ledger.sub_ledger("part", share=0.5).seeded
    chosen = units(groups=np.arange(N) // 8, max_records_per_user=2, noise=NoiseSource(3))
    curator = LocalCurator(
        chosen, Ledger(Budget(1.0, 1e-6), "replace-one")
    )  # secret noise, but a known choice of records
    assert curator.transcript.seeded
    assert curator.ledger.seeded


def test_a_known_choice_of_records_marks_a_run_with_secret_noise_everywhere():
    chosen = units(groups=np.arange(N) // 8, max_records_per_user=2, noise=NoiseSource(3))
    account = Account(9.0, 1e-5)
    result = minimize(
        losses.logistic, chosen, budget=Budget(1.0, 1e-7), account=account, solver="gradient-descent"
    )
    assert "not private" in account.to_dict()["mark"]
    assert result.transcript.seeded
    assert not result.report.is_private
    whole = Ledger(Budget(1.0, 1e-6), "replace-one", composition="zcdp")
    transcript = Transcript(chosen.public.relation)
    LocalCurator(chosen, whole.sub_ledger("part", share=0.5), transcript=transcript)
    assert transcript.seeded  # one that was opened for curators of other data
    assert whole.seeded
    assert "mark" in whole.to_dict()


def test_a_choice_of_records_by_a_generator_of_ones_own_is_marked_as_not_secret():
    class Own:
        units_generator = np.random.default_rng(0)

    groups = np.arange(N) // 8
    assert units(groups=groups, max_records_per_user=2, noise=Own()).seeded
    assert not units(groups=groups, max_records_per_user=2, noise=NoiseSource()).seeded
    assert not units(groups=groups, max_records_per_user=2).seeded


# Numbers at the ends of their range ----------------------------------------------------------------------------------


@pytest.mark.later("-1.0", "1e-200", "5e-324", "1e-101")
@pytest.mark.parametrize("stated", [5e-324, 1e-200, 1e-101, 0.0, -1.0, np.nan, -np.inf])
def test_a_radius_too_small_for_its_sensitivity_lets_nothing_through(stated):
    assert float(shrunk_radius(stated)) == 0.0
    for vector in (np.ones(3), np.full(3, 1e-310), np.full(3, 5e-324), np.full(3, 1e308)):
        assert not np.any(np.asarray(clip_to_ball(jnp.asarray(vector), stated)))
    engine = InProcessEngine(Units.from_arrays(np.ones((4, D)), np.full(4, 1e200), row_bound=1.0))
    for loss in (losses.squared, losses.RecordLoss(lambda w, a, y: 0.5 * (a @ w - y) ** 2)):
        assert not np.any(engine.clipped_sum(ClippedGradient(loss=loss, at=jnp.zeros(D), clip=stated)))
    point = jnp.asarray(np.arange(3.0 * D).reshape(D, 3))
    softmax = ClippedGradient(loss=losses.softmax(3), at=point, clip=stated)
    assert not np.any(engine.clipped_sum(softmax))
    assert not np.any(engine.general_sum(softmax))
    assert not np.any(engine._row_form_sum(softmax, softmax.row_form(engine.units.public), None))


@pytest.mark.parametrize("clip", [1e100, 1e200, 1e307])
def test_a_sum_of_the_largest_contributions_does_not_overflow(clip):
    data = Units.from_arrays(np.tile([1.0, 0.0, 0.0], (N, 1)), np.full(N, -1.7e308), row_bound=1.0)
    curator = open_curator(data)
    for kind in (ClippedGradient, GradientNorm):
        released = curator.release(kind(loss=losses.squared, at=jnp.zeros(D), clip=clip), Gaussian(40.0))
        assert np.all(np.isfinite(released))
    far = ClippedGradientDifference(
        loss=losses.squared, at=jnp.full(D, 1e120), anchor=jnp.zeros(D), slope_clip=1.0
    )
    assert np.all(np.isfinite(curator.release(far, Gaussian(40.0))))


def test_a_row_times_a_matrix_is_rounded_alike_wherever_it_stands():
    rng = np.random.default_rng(2)
    for width, columns in ((17, 1), (54, 1), (54, 2), (200, 3)):
        row, matrix = rng.normal(size=width).astype(np.float32), rng.normal(size=(width, columns))
        found = {
            product.tobytes()
            for count in (1, 2, 3, 5, 7, 27, PRODUCT_ROWS - 1, PRODUCT_ROWS, 133)
            for product in dense_product(np.tile(row, (count, 1)), matrix)
        }
        assert len(found) == 1


def test_a_compiled_loop_leaves_out_no_unit_of_a_crowded_block():
    crowded = units("add-or-remove-one", n=N).subset(Stretch(0, 30), 20)  # nominal 20, it holds 30
    assert isinstance(crowded.public, Public)
    engine = InProcessEngine(crowded)
    compiled = loop_sum(engine, gradient(), np.arange(30))
    np.testing.assert_allclose(compiled, engine.clipped_sum(gradient(), np.arange(30)), rtol=1e-12)
