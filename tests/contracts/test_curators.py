"""What the curator itself promises: loops, allotments, blocks, views, refusals."""

from dataclasses import dataclass, replace

import jax.numpy as jnp
import numpy as np
import pytest

from privopt.curator.handles import Held, Stream
from privopt.curator.local import LocalCurator
from privopt.curator.replay import Replay
from privopt.curator.transcript import Transcript
from privopt.data.units import Units
from privopt.errors import BudgetExceeded, PlanMismatch, ReplayMismatch
from privopt.ledger.amounts import Budget
from privopt.ledger.events import FixedSize, GaussianEvent, Poisson, Repeated, Sequence
from privopt.ledger.ledger import Ledger
from privopt.mechanisms.additive import Gaussian
from privopt.mechanisms.noise import NoiseSource
from privopt.precision import double_precision
from privopt.problems import losses
from privopt.queries.slopes import ClippedGradient

N, D = 60, 4
NOISE = Gaussian(40.0)


@pytest.fixture(autouse=True)
def x64():
    with double_precision():
        yield


def units(relation="replace-one", n=N):
    rng = np.random.default_rng(5)
    features = rng.normal(size=(N, D))
    return Units.from_arrays(features, np.sign(features[:, 0]), relation=relation, row_bound=1.0, n=n)


def open_curator(data=None, seed=2, **options):
    data = units() if data is None else data
    options = options or {"composition": "gaussian"}
    return LocalCurator(
        data, Ledger(Budget(3.0, 1e-6), data.public.relation, **options), noise=NoiseSource(seed)
    )


def gradient(at=None):
    return ClippedGradient(loss=losses.logistic, at=jnp.zeros(D) if at is None else at, clip=0.5)


@dataclass(frozen=True)
class Descent:
    """A step with two releases of different kinds of samples."""

    sampling: object
    second: bool = False

    def __call__(self, state, release):
        move = release(gradient(state), NOISE, self.sampling)
        if self.second:
            move = move + release(gradient(state + 1.0), Gaussian(90.0), self.sampling)
        return state - 0.3 * move


@pytest.mark.later("one release-fixed size", "two releases-fixed size")
@pytest.mark.parametrize("sampling", [Poisson(0.3), FixedSize(9, N)], ids=["poisson", "fixed size"])
@pytest.mark.parametrize("second", [False, True], ids=["one release", "two releases"])
def test_a_compiled_loop_equals_the_eager_loop(sampling, second, monkeypatch):
    step = Descent(sampling, second)
    plan = {"plan": Repeated(sampling.event(NOISE.event()), 11)}
    if second:
        plan = {"plan": Sequence((plan["plan"], Repeated(sampling.event(Gaussian(90.0).event()), 11)))}
    compiled = open_curator(**plan)
    end = compiled.iterate(step, jnp.zeros(D), 11)
    monkeypatch.setattr("privopt.curator.loops.compiles", lambda slots, public: False)
    eager = open_curator(**plan)
    np.testing.assert_allclose(end, eager.iterate(step, jnp.zeros(D), 11), rtol=1e-12)
    for left, right in zip(compiled.transcript, eager.transcript, strict=True):
        np.testing.assert_allclose(left.released, right.released, rtol=1e-12)
        np.testing.assert_allclose(left.sensitivity, right.sensitivity, rtol=1e-12)


def test_a_compiled_loop_in_several_blocks_equals_one_block(monkeypatch):
    sampling = Poisson(0.3)
    plan = {"plan": Repeated(sampling.event(NOISE.event()), 11)}
    whole = open_curator(**plan).iterate(Descent(sampling), jnp.zeros(D), 11)
    monkeypatch.setattr("privopt.curator.scan.STRETCH_BYTES", 1000)
    parts = open_curator(**plan)
    assert np.array_equal(parts.iterate(Descent(sampling), jnp.zeros(D), 11), whole)
    again = Replay(parts.transcript, parts.public).iterate(Descent(sampling), jnp.zeros(D), 11)
    assert np.array_equal(again, whole)


def test_a_loop_whose_cost_depends_on_its_state_is_refused():
    def step(state, release):
        return state - release(gradient(state), Gaussian(1.0 + jnp.sum(state)))

    with pytest.raises(ValueError, match="priced before it runs"):
        open_curator().iterate(step, jnp.zeros(D), 3)


def test_a_refused_release_reads_nothing_and_records_nothing(monkeypatch):
    curator = open_curator()
    monkeypatch.setattr(curator.private_engine, "clipped_sum", lambda *_: pytest.fail("the data was read"))
    with pytest.raises(BudgetExceeded, match="would cost"):
        curator.release(gradient(), Gaussian(0.01))
    assert len(curator.transcript) == 0
    assert not curator.affords(Gaussian(0.01))
    assert curator.affords(NOISE)


def test_a_release_outside_the_plan_is_refused():
    curator = open_curator(plan=Repeated(GaussianEvent(40.0), 2))
    curator.release(gradient(), NOISE)
    with pytest.raises(PlanMismatch, match="plan"):
        curator.release(gradient(), Gaussian(41.0))


def test_an_allotment_spends_the_lenders_budget_and_no_more_than_its_share():
    curator = open_curator()
    inner = curator.allot("inner", share=0.25)
    before = curator.ledger.spent
    inner.release(gradient(), NOISE)
    assert curator.ledger.spent > before
    assert len(curator.transcript) == 1
    with pytest.raises(BudgetExceeded, match="would cost"):
        inner.release(gradient(), Gaussian(3.0))
    assert curator.affords(Gaussian(3.0))


@pytest.mark.parametrize("relation", ["replace-one", "add-or-remove-one"])
def test_blocks_are_disjoint_and_only_the_dearest_is_charged(relation):
    curator = open_curator(units(relation))
    blocks = curator.blocks(3)
    positions = np.concatenate([np.asarray(b.private_engine.units.private_features) for b in blocks])
    stored = np.asarray(curator.private_engine.units.private_features)
    assert np.array_equal(np.sort(positions, axis=0), np.sort(stored, axis=0))
    for block in blocks:
        assert block.public.n in (19, 20, 21)
        block.release(gradient(), NOISE)
    once = curator.ledger.spent
    blocks[0].release(gradient(), NOISE)
    assert curator.ledger.spent == pytest.approx(2 * once)
    blocks[1].release(gradient(), NOISE)
    assert curator.ledger.spent == pytest.approx(2 * once)


def test_a_view_maps_the_rows_and_keeps_the_ledger():
    curator = open_curator()
    row_map = jnp.asarray(np.linspace(-1.0, 1.0, D * 2).reshape(D, 2))
    view = curator.view(row_map, 5.0)
    assert view.public.d == 2
    assert view.public.row_bound == 5.0
    plain = Gaussian(0.0)
    free = LocalCurator(
        curator.private_engine.units, Ledger(Budget(np.inf, 1e-6), "replace-one"), noise=NoiseSource(1)
    )
    at = jnp.asarray([0.4, -0.3])
    unclipped = {"loss": losses.logistic, "clip": jnp.inf}
    mapped = free.view(row_map, 5.0).release(ClippedGradient(at=at, **unclipped), plain)
    direct = free.release(ClippedGradient(at=row_map @ at, **unclipped), plain)
    np.testing.assert_allclose(mapped, row_map.T @ direct, rtol=1e-5)
    view.release(ClippedGradient(loss=losses.logistic, at=at, clip=0.5), NOISE)
    assert curator.ledger.spent > 0


def test_handles_print_as_private():
    curator = open_curator()
    assert repr(curator.hold(gradient())) == "<private>"
    assert repr(Held(points=3, replaced=True)) == repr(Stream(curator, None, 0)) == "<private>"


def test_single_precision_is_refused():
    import jax

    with jax.enable_x64(False), pytest.raises(RuntimeError, match="single precision"):
        open_curator().release(gradient(), NOISE)


def test_a_replay_notices_a_solver_that_asks_for_something_else():
    curator = open_curator()
    curator.release(gradient(), NOISE)
    replay = Replay(curator.transcript, curator.public)
    replay.release(gradient(), NOISE)
    with pytest.raises(ReplayMismatch, match="end of the transcript"):
        replay.release(gradient(), NOISE)


def test_large_transcripts_drop_values_and_keep_prices():
    curator = open_curator()
    curator.transcript = Transcript(curator.public.relation, keep_bytes=8 * D)
    curator.release(gradient(), NOISE)
    curator.release(gradient(), NOISE)
    kept, dropped = curator.transcript
    assert kept.released is not None
    assert dropped.released is None
    assert curator.transcript.epsilon(1e-6) == pytest.approx(
        replace(curator.transcript, keep_bytes=10**9).epsilon(1e-6)
    )
    replay = Replay(curator.transcript, curator.public)
    replay.release(gradient(), NOISE)
    with pytest.raises(ReplayMismatch, match="keep_bytes"):
        replay.release(gradient(), NOISE)
