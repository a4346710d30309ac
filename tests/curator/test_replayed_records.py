"""A replay of a compiled loop does without the records, and its memory does not grow with their number."""

from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
import pytest

from privopt.curator.local import LocalCurator
from privopt.curator.replay import Replay
from privopt.curator.transcript import Release, Transcript
from privopt.data.units import Units
from privopt.engine.drawn_rows import absent_rows, row_bytes
from privopt.ledger.amounts import Budget
from privopt.ledger.events import GaussianEvent, Poisson
from privopt.ledger.ledger import Ledger
from privopt.mechanisms.additive import Gaussian
from privopt.mechanisms.noise import NoiseSource
from privopt.planning.task import Instance
from privopt.precision import double_precision
from privopt.problems import losses
from privopt.problems.problem import Problem
from privopt.problems.regularisers import Ridge
from privopt.public import Public
from privopt.queries.slopes import ClippedGradient
from privopt.solvers.stochastic_gradient_descent import StochasticGradientDescent


@pytest.mark.later("1048576")
@pytest.mark.parametrize("stretch", [2**20, 2**10])
def test_a_replay_is_the_same_to_the_bit_however_many_steps_a_stretch_has(stretch, monkeypatch):
    rng = np.random.default_rng(0)
    units = Units.from_arrays(rng.normal(size=(4_800, 3)), rng.normal(size=4_800), row_bound=1.0)
    problem, budget = Problem(losses.squared, Ridge(0.1)), Budget(1.0, 1e-4)
    monkeypatch.setattr("privopt.curator.scan.STRETCH_BYTES", 2**20)
    made = StochasticGradientDescent(rate=0.02, steps=30)
    solver = made.configure(Instance(problem, units.public, budget))
    ledger = Ledger(budget, units.public.relation, plan=solver.event(units.public))
    result = solver.solve(LocalCurator(units, ledger, noise=NoiseSource(1)), problem)
    monkeypatch.setattr("privopt.curator.scan.STRETCH_BYTES", stretch)
    again = solver.solve(Replay(result.transcript, units.public), problem)
    np.testing.assert_array_equal(again.params, result.params)


@dataclass(frozen=True)
class Descent:
    """One gradient of a sample a step."""

    rate: float

    def __call__(self, state, release):
        query = ClippedGradient(loss=losses.logistic, at=state, clip=0.5)
        return state - release(query, Gaussian(9.0), Poisson(self.rate))


@pytest.mark.parametrize(("n", "rate"), [(10**9, 1e-6), (10**9, 1e-4), (10**9, 0.5), (10**7, 1e-2)])
def test_the_records_of_a_replay_take_no_more_for_more_units(n, rate, monkeypatch):
    """Of any sample: one that is too large for a stretch is not handed over, see `loops.compiles`."""
    taken = []

    def absent(room, width, *dtype):
        taken.append(room * row_bytes(width))
        return absent_rows(room, width, *dtype)

    monkeypatch.setattr("privopt.curator.replay.absent_rows", absent)
    public, released = Public(n=n, d=100), np.zeros((40, 100))
    recorded = Transcript(public.relation)
    event = Poisson(rate).event(GaussianEvent(9.0))
    recorded.append(
        Release(
            name="ClippedGradient",
            event=event,
            count=40,
            sensitivity=np.ones(40),
            noise="",
            scale=None,
            sampling=Poisson(rate),
            released=released,
        )
    )
    with double_precision():
        Replay(recorded, public).iterate(Descent(rate), jnp.zeros(100), 40)
    assert max(taken, default=0) <= 2 * 32 * 2**20
    assert bool(taken) == (rate * n < 40_000)
