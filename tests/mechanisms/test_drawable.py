"""Noise that no integers hold is refused before anything is paid."""

import math
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from privopt.curator.local import LocalCurator
from privopt.curator.run import Run
from privopt.data.units import Units
from privopt.errors import BudgetTooSmall
from privopt.ledger.account import Account
from privopt.ledger.amounts import Budget
from privopt.ledger.events import (
    BoundedRangeEvent,
    Event,
    GaussianEvent,
    LaplaceEvent,
    NonPrivateEvent,
    Parallel,
    Poisson,
    Repeated,
    SampledEvent,
    Sequence,
)
from privopt.ledger.ledger import Ledger
from privopt.mechanisms.additive import Gaussian, Laplace
from privopt.mechanisms.choice import ExponentialMechanism, PermuteAndFlip
from privopt.mechanisms.drawable import MOST_ENTRIES, require_drawable
from privopt.mechanisms.noise import NoiseSource
from privopt.mechanisms.objective_perturbation import PassNoise
from privopt.mechanisms.prefix_sum import PrefixSum
from privopt.mechanisms.strategies import square_root_toeplitz
from privopt.papers.single_pass_o2nc import SinglePassO2NC
from privopt.planning.task import Instance
from privopt.precision import double_precision
from privopt.problems import losses
from privopt.problems.problem import Problem
from privopt.queries.scores import VertexScores
from privopt.queries.slopes import ClippedGradient
from privopt.solvers.correlated_noise_descent import CorrelatedNoiseDescent

HUGE = 1e14


def units() -> Units:
    return Units.from_arrays(np.ones((20, 3)), np.ones(20), row_bound=2.0)


@pytest.mark.parametrize(
    "event",
    [
        GaussianEvent(HUGE),
        LaplaceEvent(HUGE),
        Repeated(BoundedRangeEvent(1e-10), 3),
        Repeated(SampledEvent(Poisson(0.1), GaussianEvent(HUGE)), 3),
        Parallel((NonPrivateEvent(), Sequence((GaussianEvent(1.0), LaplaceEvent(HUGE))))),
    ],
)
def test_a_plan_with_such_noise_is_refused_before_the_account_pays(event: Event) -> None:
    account = Account(1.0, 1e-6)
    held = account.remaining
    with pytest.raises(ValueError, match=r"drawn exactly.*nothing was read or spent"):
        Run("a plan", event, Budget(1.0, 1e-6), units().public, noise=NoiseSource(), account=account)
    assert account.remaining == held
    floats = NoiseSource(exact=False)
    assert Run("floats", event, Budget(math.inf, 1e-6), units().public, noise=floats).ledger is not None


def test_a_plan_that_is_not_refused_can_be_drawn_whatever_it_releases() -> None:
    largest = 2.0**27
    require_drawable(Sequence((GaussianEvent(largest), LaplaceEvent(1e6))))
    Gaussian(largest).require_room(MOST_ENTRIES)


@pytest.mark.parametrize("exact", [True, False])
def test_a_release_a_loop_and_a_stream_are_refused_before_they_are_charged(exact: bool) -> None:
    with double_precision():
        source = NoiseSource(seed=1, exact=exact)
        curator = LocalCurator(units(), Ledger(Budget(1.0, 1e-6), "replace-one"), noise=source)
        start = jnp.zeros(3, jnp.float64)
        query = ClippedGradient(loss=losses.logistic, at=start, clip=0.5)
        scores = VertexScores(loss=losses.logistic, at=start, offset=start, clip=0.5)
        stream = PrefixSum(strategy=square_root_toeplitz(4), noise_multiplier=HUGE)
        asked = (
            lambda: curator.release(scores, ExponentialMechanism(1e-10)),
            lambda: curator.release(query, Gaussian(HUGE)),
            lambda: curator.iterate(lambda state, release: release(query, Gaussian(HUGE)), start, 2),
            lambda: curator.stream("sums", stream, (3,)),
        )
        for ask in asked:
            if not exact:
                ask()
                continue
            with pytest.raises(ValueError, match="beyond the integers"):
                ask()
            assert not len(curator.transcript)
            assert curator.ledger.spent == 0.0


@pytest.mark.parametrize(
    "solver",
    [
        CorrelatedNoiseDescent(),
        SinglePassO2NC(variance_reduction=True, steps=9, window=3, period=3, step_size=0.1),
    ],
)
def test_a_plan_of_sums_without_room_for_their_noise_is_refused(solver: Any) -> None:
    """Where independent noise of the same plan would still be drawn."""
    data = Units.from_arrays(np.ones((200, 256)), np.ones(200), row_bound=2.0)
    instance = Instance(Problem(losses.logistic), data.public, Budget(1e-8, 1e-11))
    with pytest.raises(BudgetTooSmall, match=r"drawn exactly.*nothing was read or spent"):
        solver.plan(instance)
    require_drawable(GaussianEvent(solver.configure(instance).noise_multiplier))


def test_every_mechanism_on_a_lattice_says_what_fits() -> None:
    for mechanism in (
        Gaussian(HUGE),
        Laplace(HUGE),
        PassNoise(noise_multiplier=HUGE, places=2, size=3, inside=False),
        ExponentialMechanism(1e-10),
        PermuteAndFlip(1e-10),
    ):
        with pytest.raises(ValueError, match="beyond the integers"):
            mechanism.require_room(3)
    Gaussian(0.0).require_room(3)
    ExponentialMechanism(math.inf).require_room(3)
    PassNoise(noise_multiplier=HUGE, places=2, size=3, inside=True).require_room(3)  # added as floats
