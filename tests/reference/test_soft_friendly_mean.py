from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.reference.promises import (
    NO_PRIVACY,
    assert_costs,
    assert_replays,
    hostile_rows,
    largest_move,
    solve,
)
from tests.reference.soft_friendly_mean import (
    Concentration,
    InlierMean,
    SoftFriendlyMean,
    UnitVector,
    soft_weights,
)

from privopt.curator.audit import Audit
from privopt.curator.handles import Held
from privopt.curator.local import LocalCurator
from privopt.data.units import Units
from privopt.ledger import accounting
from privopt.ledger.amounts import Budget
from privopt.ledger.events import GaussianEvent, Sequence
from privopt.ledger.ledger import Ledger
from privopt.mechanisms.additive import Gaussian
from privopt.mechanisms.gaussian_test import GaussianTest
from privopt.mechanisms.noise import NoiseSource
from privopt.public import Public
from privopt.queries.base import StatisticOfHeld, query, static

K, D = 40, 3
CENTRE = np.full(D, 7.0)
SOLVER = SoftFriendlyMean(
    within=0.6,
    least_weight=8.0,
    clip=6.0,
    test=GaussianTest(1.0, bad_event_delta=1e-6),
    noise=Gaussian(2.0),
)


def points():
    j = np.arange(K)
    vectors = np.stack([0.3 * np.cos(1 + j), 0.2 * np.sin(2 * j), 0.1 * np.cos(3 * j + 0.5)], axis=1)
    vectors[38], vectors[39] = (2, 1, -1), (-5, 0.5, 3)
    return vectors


def as_units(vectors):
    return Units.from_arrays(vectors, row_bound=6.0)


def program(solver):
    return lambda curator: solver.solve(curator, CENTRE)


def test_weight_and_mean_have_their_reference_values():
    silent = replace(SOLVER, test=GaussianTest(0.0), noise=Gaussian(0.0))
    result = solve(
        program(silent), as_units(points()), plan=silent.event(as_units(points()).public), budget=NO_PRIVACY
    )
    assert result.transcript[0].released[0] == pytest.approx(32.769230769230774, abs=1e-12)
    # The vectors are stored in float32.
    np.testing.assert_allclose(result.params, [0.0020629235, 0.0044634766, 0.0008168638], atol=1e-8)
    weights = soft_weights(jnp.asarray(points()), 0.6)[:4]
    np.testing.assert_allclose(weights, [0.8974358974, 0.8974358974, 0.6923076923, 0.8974358974], atol=1e-10)


def test_replay_and_price():
    units = as_units(points())
    plan = SOLVER.event(units.public)
    result = solve(program(SOLVER), units, plan=plan)
    assert len(result.transcript) == 2
    assert_replays(program(SOLVER), result, units.public)
    assert_costs(result, plan, units.public)
    without = Sequence((GaussianEvent(1.0), GaussianEvent(2.0)))
    assert accounting.delta(plan, 2.0, "replace-one") == pytest.approx(
        accounting.delta(without, 2.0, "replace-one") + 1e-6
    )


def test_scattered_vectors_fail_the_test_and_release_no_mean():
    scattered = as_units(np.random.default_rng(0).normal(size=(K, D)) * 5)
    result = solve(program(SOLVER), scattered, plan=SOLVER.event(scattered.public))
    assert len(result.transcript) == 1
    np.testing.assert_array_equal(result.params, CENTRE)
    assert_replays(program(SOLVER), result, scattered.public)


def test_a_test_pays_for_its_bad_event_under_a_filter_too():
    units = as_units(points())
    budget = Budget(8.0, 1e-5)
    solve(program(SOLVER), units, budget=budget, composition="zcdp", bad_event_delta=1e-6)
    with pytest.raises(Exception, match="would cost delta"):
        solve(program(SOLVER), units, budget=budget, composition="zcdp")


@pytest.mark.parametrize("kind", hostile_rows(np.ones(D)))
def test_no_unit_moves_weight_or_mean_by_more_than_its_sensitivity(kind):
    other = points()
    other[3] = hostile_rows(other[5])[kind]
    left, right = as_units(points()), as_units(other)
    assert largest_move(program(SOLVER), left, right, plan=SOLVER.event(left.public)) <= 1.0


def test_the_audit_notices_an_understated_weight():
    """One of K equal vectors leaves: its own weight and 2 of the others' are lost."""
    other = np.zeros((K, D))
    other[4] = 5.0
    left, right = as_units(np.zeros((K, D))), as_units(other)

    def moved(understate):
        ledger = Ledger(NO_PRIVACY, "replace-one")
        audit = Audit(left, right, ledger, noise=NoiseSource(1), understate=understate)
        audit.release(
            Concentration(held=audit.hold(UnitVector(clip=6.0)), within=0.6), GaussianTest(1.0, 1e-6)
        )
        return audit.moves[0][1]

    assert 0.999 <= moved(0.0) <= 1.0
    assert moved(0.002) > 1.0


@pytest.mark.parametrize("units", [6, 7])
def test_brute_force_on_small_instances_finds_no_larger_move(units):
    """Points on a line, many of them exactly one radius apart, and scattered ones; one is replaced by any other."""
    rng = np.random.default_rng(units)
    line = rng.choice([-2.0, -1.0, 0.0, 1.0, 2.0, 40.0], (4000, units + 1, 1))
    cloud = rng.normal(size=(2000, units + 1, 1)) * rng.choice([0.3, 0.6, 1.0], (2000, 1, 1))
    both = np.concatenate([line, cloud])
    left, right = both[:, :-1], both[:, 1:]  # all but the last, all but the first
    public = Public(n=units, d=1)
    weight = Concentration(held=Held(points=units, replaced=True), within=1.0)
    mean = InlierMean(held=Held(points=units, replaced=True), within=1.0, least_weight=1.0)
    weights, means = (
        [
            np.asarray(jax.jit(jax.vmap(statistic.value))(jnp.asarray(side), jnp.ones(side.shape[:2], bool)))
            for side in (left, right)
        ]
        for statistic in (weight, mean)
    )
    moved = np.abs(weights[0] - weights[1])
    assert moved.max() == pytest.approx(3.0, abs=1e-12)
    assert moved.max() <= weight.sensitivity(public)
    large = np.maximum(*weights)
    ratio = np.linalg.norm(means[0] - means[1], axis=1) * large / mean.sensitivity(public)
    assert 0.33 < ratio[large > 3.0].max() <= 1.0


def test_add_or_remove_one_is_refused():
    with pytest.raises(ValueError, match="use replace-one"):
        Concentration(held=Held(points=5, replaced=False), within=1.0).sensitivity(
            Public(n=5, d=2, relation="add-or-remove-one")
        )


def test_held_vectors_are_used_where_they_are_held():
    """A sensitivity may rest on how the vectors were clipped: another curator's must not take their place."""
    curator = LocalCurator(as_units(points()), Ledger(NO_PRIVACY, "replace-one"))
    statistic = Concentration(held=curator.hold(UnitVector(clip=6.0)), within=0.6)
    lent = curator.allot("inner", share=0.5)
    lent.hold(UnitVector(clip=0.01))
    assert float(lent.release(statistic, Gaussian(0.0))) == pytest.approx(32.769230769230774)
    with pytest.raises(ValueError, match="another curator holds"):
        curator.blocks(2)[0].release(statistic, Gaussian(0.0))


def test_a_statistic_of_all_units_is_not_charged_as_a_sample():
    from privopt.ledger.sampling import Poisson

    @query
    class First(StatisticOfHeld):
        held: Held = static()

        def sensitivity(self, public, sampling=None):
            return 1.0

        def shape(self, public):
            return ()

        def value(self, private_vectors, private_present):
            return private_vectors[0, 0]

    curator = LocalCurator(as_units(points()), Ledger(Budget(1.0, 1e-5), "replace-one"))
    with pytest.raises(ValueError, match="cannot be charged for a sample"):
        curator.release(First(held=curator.hold(UnitVector(clip=1.0))), Gaussian(9.0), Poisson(0.1))
    assert curator.ledger.spent == 0.0
