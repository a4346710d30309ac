"""Curators under a filter: one price paid ahead, and releases beneath it whose noise is chosen as the run goes."""

import math

import jax.numpy as jnp
import numpy as np
import pytest

from privopt.curator.audit import Audit
from privopt.curator.dry_run import DryRun
from privopt.curator.local import LocalCurator
from privopt.curator.replay import Replay
from privopt.data.units import Units
from privopt.errors import BudgetExceeded, NotPriceable, PlanMismatch
from privopt.ledger import accounting
from privopt.ledger.amounts import Budget
from privopt.ledger.events import GaussianEvent, NonPrivateEvent, Parallel, Repeated, Sequence
from privopt.ledger.ledger import Ledger
from privopt.mechanisms.additive import Gaussian, Laplace
from privopt.mechanisms.noise import NoiseSource
from privopt.precision import double_precision
from privopt.problems import losses
from privopt.queries.slopes import ClippedGradient, GradientNorm

N, D = 40, 3
WIDE = Budget(1e6, 1e-6)
CAP = 4.0  # the noise multiplier that a filter is paid by
HALF = Gaussian(CAP * math.sqrt(2.0))  # spends half of it


@pytest.fixture(autouse=True)
def double():
    with double_precision():
        yield


def units(seed=0):
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(N, D))
    return Units.from_arrays(rows, np.sign(rows[:, 0]), row_bound=1.0, n=N)


def open_curator(plan=None, budget=WIDE, **options):
    ledger = Ledger(budget, "replace-one", plan=plan, **options)
    return LocalCurator(units(), ledger, noise=NoiseSource(3))


def gradient(at=0.0, kind=ClippedGradient):
    return kind(loss=losses.logistic, at=jnp.full(D, at, jnp.float64), clip=0.5)


def test_what_is_released_beneath_a_filter_costs_what_was_paid_for_it():
    curator = open_curator(plan=GaussianEvent(CAP))
    inner = curator.filtered("inner", Gaussian(CAP))
    inner.release(gradient(), HALF)
    inner.release(gradient(0.1, GradientNorm), Gaussian(2.0 * CAP))
    assert curator.transcript.event() == GaussianEvent(CAP)
    assert curator.transcript.releases == 2
    assert inner.ledger.spent == pytest.approx(0.75 / (2 * CAP**2))
    assert inner.ledger.remaining == pytest.approx(0.25 / (2 * CAP**2))
    assert curator.ledger.spent_event() == GaussianEvent(CAP)
    assert "inner" in str(curator.ledger)


def test_a_release_past_the_cap_is_refused_and_nothing_is_recorded():
    curator = open_curator(plan=GaussianEvent(CAP))
    inner = curator.filtered("inner", Gaussian(CAP))
    inner.release(gradient(), HALF)
    assert inner.affords(HALF)
    assert not inner.affords(Gaussian(CAP))
    with pytest.raises(BudgetExceeded, match="would cost"):
        inner.release(gradient(), Gaussian(CAP))
    assert len(curator.transcript) == 1
    inner.release(gradient(), HALF)  # exactly what is left
    with pytest.raises(BudgetExceeded, match="would cost"):
        inner.release(gradient(), Gaussian(1e3 * CAP))
    with pytest.raises(BudgetExceeded, match="would cost"):
        inner.release(gradient(), Gaussian(0.0))


def test_only_gaussian_noise_fits_beneath_it():
    inner = open_curator(plan=GaussianEvent(CAP)).filtered("inner", Gaussian(CAP))
    norm = gradient(kind=GradientNorm)  # one number: any noise would do
    for refused in (lambda: inner.release(norm, Laplace(10.0)), lambda: inner.affords(Laplace(10.0))):
        with pytest.raises(NotPriceable, match="Gaussian releases only"):
            refused()


def test_a_filter_that_nobody_planned_or_can_pay_is_refused():
    curator = open_curator(plan=Repeated(GaussianEvent(CAP), 1))
    with pytest.raises(PlanMismatch, match="plan"):
        curator.filtered("inner", Gaussian(2.0 * CAP))
    curator.filtered("inner", Gaussian(CAP))
    with pytest.raises(PlanMismatch, match="plan"):
        curator.filtered("again", Gaussian(CAP))
    poor = open_curator(budget=Budget(0.1, 1e-6), composition="gaussian")
    with pytest.raises(BudgetExceeded, match="would cost"):
        poor.filtered("inner", Gaussian(1.0))


def test_filters_and_plain_releases_stand_side_by_side_in_order():
    plan = Sequence((GaussianEvent(CAP), GaussianEvent(2.0), GaussianEvent(CAP)))
    curator = open_curator(plan=plan)
    first = curator.filtered("first", Gaussian(CAP))
    first.release(gradient(), HALF)
    curator.release(gradient(), Gaussian(2.0))
    second = curator.filtered("second", Gaussian(CAP))
    second.release(gradient(), HALF)
    first.release(gradient(), HALF)  # filters may take turns
    assert curator.transcript.event() == plan
    assert curator.transcript.epsilon(1e-6) == pytest.approx(accounting.epsilon(plan, 1e-6, "replace-one"))


def test_a_filter_in_a_filter_pays_out_of_the_outer_one():
    curator = open_curator(plan=GaussianEvent(CAP))
    outer = curator.filtered("outer", Gaussian(CAP))
    inner = outer.filtered("inner", HALF)
    inner.release(gradient(), Gaussian(2.0 * CAP))
    assert outer.ledger.remaining == pytest.approx(0.5 / (2 * CAP**2))  # all of the inner one is paid for
    with pytest.raises(BudgetExceeded, match="would cost"):
        inner.release(gradient(), HALF)
    outer.release(gradient(), HALF)
    assert curator.transcript.event() == GaussianEvent(CAP)
    with pytest.raises(BudgetExceeded, match="would cost"):
        outer.filtered("too much", Gaussian(10.0 * CAP))


@pytest.mark.parametrize("beneath", [True, False], ids=["blocks under a filter", "filters in blocks"])
def test_filters_and_blocks_price_the_dearest_block_once(beneath):
    event = GaussianEvent(CAP)
    plan = event if beneath else Parallel((event, GaussianEvent(2.0 * CAP)))
    curator = open_curator(plan=plan)
    if beneath:
        outer = curator.filtered("outer", Gaussian(CAP))
        left, right = outer.blocks(2)
        left.release(gradient(), HALF)
        right.release(gradient(), HALF)
        assert outer.ledger.remaining == pytest.approx(0.5 / (2 * CAP**2))
        right.release(gradient(), HALF)  # the dearer block now has it all
        left.release(gradient(), HALF)
        with pytest.raises(BudgetExceeded, match="would cost"):
            left.release(gradient(), Gaussian(10.0 * CAP))
    else:
        left, right = curator.blocks(2)
        for block, multiplier in ((left, CAP), (right, 2.0 * CAP)):
            inner = block.filtered("inner", Gaussian(multiplier))
            inner.release(gradient(), Gaussian(multiplier * math.sqrt(2.0)))
            inner.release(gradient(), Gaussian(multiplier * math.sqrt(2.0)))
    assert curator.transcript.event() == plan


@pytest.mark.parametrize("order", ["filter, view", "view, filter"])
def test_a_view_spends_from_the_same_filter(order):
    curator = open_curator(plan=GaussianEvent(CAP))
    row_map, bound = np.diag([1.0, 0.5, 2.0]), 2.0
    if order == "filter, view":
        outer = curator.filtered("outer", Gaussian(CAP))
        inner = outer.view(row_map, bound)
        outer.release(gradient(), HALF)
    else:
        inner = curator.view(row_map, bound).filtered("inner", Gaussian(CAP))
        inner.release(gradient(), HALF)
    inner.release(gradient(), HALF)
    with pytest.raises(BudgetExceeded, match="would cost"):
        inner.release(gradient(), Gaussian(10.0 * CAP))
    assert curator.transcript.event() == GaussianEvent(CAP)


def halving(outer):
    """Noise that follows what was released: a program over any curator."""
    inner = outer.filtered("halving", Gaussian(CAP))
    at, left = jnp.zeros(D, jnp.float64), 0.5 / CAP**2
    for _ in range(4):
        multiplier = 4.0 * CAP * (1.0 + float(jnp.linalg.norm(at)))
        left -= 0.5 / multiplier**2
        query = ClippedGradient(loss=losses.logistic, at=at, clip=0.5)
        at = at - inner.release(query, Gaussian(multiplier))
    return at - inner.release(gradient(), Gaussian(1.0 / math.sqrt(2.0 * left)))


def test_a_program_under_a_filter_replays_and_rehearses():
    curator = open_curator(plan=GaussianEvent(CAP))
    found = halving(curator)
    assert curator.transcript.releases == 5
    replay = Replay(curator.transcript, curator.public)
    assert np.array_equal(halving(replay), found)
    rehearsal = DryRun(curator.public)
    halving(rehearsal)
    assert replay.transcript.event() == rehearsal.transcript.event() == curator.transcript.event()
    scales = [[release.scale[0] for release in t] for t in (curator.transcript, replay.transcript)]
    assert scales[0] == scales[1]


def test_the_realised_price_of_a_neighbour_is_within_the_cap():
    """Released with noise that depends on releases, two data sets differ by no more than was paid."""
    left, right = units(), units()
    right.private_features[3] *= -1.0
    audit = Audit(left, right, Ledger(WIDE, "replace-one", plan=GaussianEvent(CAP)), noise=NoiseSource(3))
    halving(audit)
    assert len(audit.moves) == 5
    assert max(ratio for _, ratio in audit.moves) <= 1.0
    multipliers = [release.scale[0] / release.sensitivity[0] for release in audit.transcript]
    realised = sum(ratio**2 / (2 * z**2) for (_, ratio), z in zip(audit.moves, multipliers, strict=True))
    assert realised <= 0.5 / CAP**2 * (1 + 1e-9)


@pytest.mark.parametrize(("composition", "cap"), [("gaussian", 0.5), ("zcdp", 0.5)])
def test_a_filter_can_be_opened_on_a_ledger_without_a_plan(composition, cap):
    curator = open_curator(composition=composition)
    before = curator.ledger.remaining
    inner = curator.filtered("inner", Gaussian(1.0))
    inner.release(gradient(), Gaussian(5.0))
    assert curator.ledger.spent == pytest.approx(cap)
    assert curator.ledger.remaining == pytest.approx(before - cap)
    inner.release(gradient(), Gaussian(5.0))
    assert curator.ledger.spent == pytest.approx(cap)  # charged once


def test_with_the_noise_off_a_filter_lets_everything_through():
    curator = open_curator(plan=NonPrivateEvent(), budget=Budget(math.inf, 1e-6))
    inner = curator.filtered("inner", Gaussian(0.0))
    for _ in range(3):
        inner.release(gradient(), Gaussian(0.0))
    assert curator.transcript.event() == NonPrivateEvent()
    assert math.isinf(curator.transcript.epsilon(1e-6))
