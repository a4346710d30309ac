"""Accelerated phases: equal to a plain reference, the promises with tests in front, halts and fallbacks, samples."""

import math

import numpy as np
import pytest
from tests.reference.promises import (
    WIDE,
    assert_costs,
    assert_rehearses,
    assert_replays,
    largest_move,
    solve,
)
from tests.support.turns import in_turn

from privopt.data.units import Units
from privopt.errors import BudgetTooSmall, NotPriceable
from privopt.ledger import accounting
from privopt.ledger.amounts import Budget
from privopt.ledger.events import DeltaEvent, TestedSampleEvent, leaf_counts
from privopt.ledger.ledger import Ledger
from privopt.mechanisms.noise import NoiseSource
from privopt.planning.task import Instance
from privopt.problems import losses
from privopt.problems.constraints import L2Ball
from privopt.problems.problem import Problem
from privopt.problems.regularisers import Ridge
from privopt.solvers.phased_accelerated_erm import PhasedAcceleratedERM
from privopt.status import Status

LOGISTIC = Problem(losses.logistic)
RELATIONS = ["replace-one", "add-or-remove-one"]
FREE = Budget(math.inf, 1e-5)


def some_users(n=60, spread=0.3, seed=0, relation="replace-one", last=None, weighting="user"):
    """Two records a user; `last` replaces those of the last user."""
    rng = np.random.default_rng(seed)
    rows = np.repeat([[1.0, 0.5]], 2 * n, axis=0) + spread * rng.normal(size=(2 * n, 2))
    labels = np.where(rng.random(2 * n) < 0.8, 1.0, -1.0)
    owners = np.repeat(np.arange(n), 2)
    if last is not None:
        rows, labels, owners = rows[:-2], labels[:-2], owners[:-2]
        rows, labels = np.concatenate([rows, last[0]]), np.concatenate([labels, last[1]])
        owners = np.concatenate([owners, np.full(len(last[0]), n - 1)])
    return Units.from_arrays(
        rows,
        labels,
        groups=owners,
        n=n,
        row_bound=3.0,
        relation=relation,
        max_records_per_user=4,
        typical_records=2,
        user_weighting=weighting,
        storage="float64",
        noise=NoiseSource(5),
    )


def erm(aggregator, **fields):
    return PhasedAcceleratedERM(
        **{
            "aggregator": aggregator,
            "phases": 2,
            "lengths": ((3,), (2,)),
            "distance": 1.0,
            "probe_share": 0.0,
            "smoothness": 2.0,
            "strength": 0.1,
            "clip": 0.5,
            "quantile": 0.5,
            "spread": 3.0,
            "tests": "none" if aggregator != "stable" else "gaussian",
            "bad_event_delta": 1e-7 if aggregator == "stable" else 0.0,
            "test_share": 0.3,
            "test_epsilon": 40.0,
            "noise_multiplier": 0.5,
            **fields,
        }
    )


def run(solver, units, *, budget=WIDE, problem=LOGISTIC):
    return solve(
        lambda curator: solver.solve(curator, problem), units, plan=solver.event(units.public), budget=budget
    )


def gradients(units, w):
    """Every user's mean gradient."""
    rows, labels = np.asarray(units.private_features, np.float64), units.private_targets
    each = -(labels / (1 + np.exp(labels * (rows @ w))))[:, None] * rows
    return each.reshape(-1, 2, 2).mean(axis=1)


@pytest.mark.later("user")
@pytest.mark.parametrize("weighting", ["user", "sqrt"])
def test_phases_follow_a_plain_reference_written_from_the_paper(weighting):
    """Algorithms 2 and 3 with AC-SA in two stages of the first phase, a ridge, a ball; clipped means; no noise."""
    units = some_users(weighting=weighting)
    ridge, radius, beta, clip = 0.05, 0.8, 2.0, 0.2
    weight = 1.0 if weighting == "user" else math.sqrt(0.5)
    end = np.zeros(2)
    for lam, stages in ((0.1, (3, 2)), (0.2, (2,))):
        anchor, mu, smooth = end.copy(), lam + ridge, lam + beta
        for length in stages:
            x = average = end
            for t in range(1, length + 1):
                alpha, gamma = 2 / (t + 1), 4 * smooth / (t * (t + 1))
                middle = ((1 - alpha) * (mu + gamma) * average + alpha * ((1 - alpha) * mu + gamma) * x) / (
                    gamma + (1 - alpha**2) * mu
                )
                each = weight * gradients(units, middle)
                short = np.minimum(1.0, clip / np.linalg.norm(each, axis=1))[:, None]
                slope = (each * short).mean(axis=0) / weight + ridge * middle + lam * (middle - anchor)
                x = (alpha * mu * middle + ((1 - alpha) * mu + gamma) * x - alpha * slope) / (mu + gamma)
                x = x * min(1.0, radius / np.linalg.norm(x))
                average = alpha * x + (1 - alpha) * average
            end = average
    solver = erm("clip", lengths=((3, 2), (2,)), clip=clip, noise_multiplier=0.0)
    problem = Problem(losses.logistic, Ridge(ridge), L2Ball(radius))
    found = run(solver, units, budget=FREE, problem=problem)
    np.testing.assert_allclose(found.params, end, rtol=1e-6)
    assert found.status is Status.FINISHED


def test_an_adaptive_clip_follows_the_share_of_users_inside():
    units = some_users()
    solver = erm("adaptive", noise_multiplier=0.0, lengths=((2,), (0,)), clip=1e-3)
    norms = np.linalg.norm(gradients(units, np.zeros(2)), axis=1)
    assert np.all(norms > 1e-3)
    found = run(solver, units, budget=FREE)
    assert found.status is Status.FINISHED
    second = found.transcript[1].sensitivity[0] / found.transcript[0].sensitivity[0]
    assert second == pytest.approx(math.exp(0.4 * 0.5), rel=1e-6)  # nobody inside, half wanted


WAYS = {
    "clip": {},
    "adaptive": {},
    "stable": {},
    "stable, sparse vector": {"tests": "sparse-vector"},
    "stable, samples": {"tests": "sparse-vector", "rate": 0.8},
    "adaptive, samples": {"rate": 0.5},
    "adaptive, probed": {"probe_share": 0.02},
}


RUNS = [(reuse, relation) for reuse in (True, False) for relation in RELATIONS]


@pytest.mark.at_once("adaptive-True, add-or-remove-one", "clip-True, replace-one")
@pytest.mark.parametrize(("way", "run_on"), in_turn(WAYS, RUNS))
def test_a_run_replays_costs_its_plan_and_can_be_rehearsed(way, run_on):
    reuse, relation = run_on
    units = some_users(n=300 if reuse else 640, relation=relation)
    solver = erm(way.split(",")[0], reuse=reuse, **WAYS[way])
    result = run(solver, units)

    def program(curator):
        return solver.solve(curator, LOGISTIC)

    assert result.status is Status.FINISHED
    assert_replays(program, result, units.public)
    plan = solver.event(units.public)
    assert_costs(result, plan, units.public)
    if not way.startswith("stable"):  # zeros fail a test
        assert_rehearses(program, plan, units.public)


HOSTILE = {
    "turned": (np.array([[-1.0, -0.5]] * 2), np.ones(2)),
    "huge": (np.full((2, 2), 1e30), np.array([1.0, -1.0])),
    "not a number": (np.full((2, 2), np.nan), np.ones(2)),
    "many": (np.tile([[3.0, -4.0]], (1000, 1)), np.ones(1000)),
    "none": (np.zeros((0, 2)), np.zeros(0)),
}


@pytest.mark.at_once(
    "adaptive, probed-huge-add-or-remove-one",
    "adaptive, probed-many-add-or-remove-one",
    "adaptive, probed-none-replace-one",
    "adaptive, probed-not a number-replace-one",
    "adaptive, probed-turned-replace-one",
    "adaptive, samples-many-replace-one",
    "adaptive, samples-none-add-or-remove-one",
    "adaptive, samples-not a number-add-or-remove-one",
    "adaptive, samples-turned-add-or-remove-one",
    "clip-huge-add-or-remove-one",
    "clip-many-add-or-remove-one",
    "clip-none-replace-one",
    "clip-not a number-replace-one",
)
@pytest.mark.parametrize(("way", "kind", "relation"), in_turn(WAYS, HOSTILE, RELATIONS))
def test_no_user_moves_a_release_by_more_than_its_sensitivity(way, relation, kind):
    # Under add-or-remove-one the other data set has no such user.
    left = some_users(n=170, relation=relation, last=None if relation == "replace-one" else HOSTILE["none"])
    right = some_users(n=170, relation=relation, last=HOSTILE[kind])
    solver = erm(way.split(",")[0], **WAYS[way])
    moved = largest_move(
        lambda curator: solver.solve(curator, LOGISTIC), left, right, plan=solver.event(left.public)
    )
    assert moved <= 1.0


@pytest.mark.parametrize("way", ["stable", "stable, sparse vector", "stable, samples"])
def test_a_failed_test_returns_the_last_private_iterate_or_clips_and_never_zero(way):
    units = some_users(n=170)
    start = np.array([0.3, 0.4])
    for after, status in (("halt", Status.HALTED), ("clip", Status.FELL_BACK)):
        solver = erm("stable", spread=1e-6, after_failure=after, **WAYS[way])
        plan = solver.event(units.public)
        found = solve(lambda c, s=solver: s.solve(c, LOGISTIC, start), units, plan=plan)
        assert found.status is status
        assert np.all(np.isfinite(found.params))
        assert np.array_equal(found.params, start) is (after == "halt")
        # What was released is part of the plan; what was not asked for is not given back.
        spent, priced = leaf_counts(found.transcript.event())[0], leaf_counts(plan)[0]
        assert all(priced[leaf] >= count for leaf, count in spent.items())


def test_the_bad_events_of_all_tests_are_at_most_a_tenth_of_delta():
    units = some_users(n=3000)
    for fields in ({}, {"tests": "sparse-vector"}, {"rate": 0.8}, {"reuse": False}):
        solver = PhasedAcceleratedERM(aggregator="stable", phases=2, most_steps=4, **fields).configure(
            Instance(LOGISTIC, units.public, Budget(8.0, 1e-6))
        )
        event = solver.event(units.public)
        leaves, parallels = leaf_counts(event)
        for node, _ in parallels:
            leaves = leaves | leaf_counts(node.events[0])[0]
        bad = sum(leaf.delta * count for leaf, count in leaves.items() if isinstance(leaf, DeltaEvent))
        assert 0 < bad <= 1e-7 * (1 + 1e-9)
        assert 0.999 * 8.0 <= accounting.epsilon(event, 1e-6, "replace-one", near=8.0) <= 8.0


def test_tests_on_samples_have_one_event_a_phase_and_no_filter_pays_for_it():
    solver = erm("stable", **WAYS["stable, samples"])
    leaves, _ = leaf_counts(solver.event(some_users().public))
    assert [type(leaf) for leaf in leaves if not isinstance(leaf, DeltaEvent)] == [TestedSampleEvent] * 2
    ledger = Ledger(WIDE, "replace-one", composition="zcdp")
    with pytest.raises(NotPriceable, match="on each a test of a sparse vector"):
        ledger.charge("tests", solver.event(some_users().public))


def test_a_tested_mean_that_is_too_dear_is_refused_with_what_to_do():
    public = some_users(n=190).public
    with pytest.raises(
        BudgetTooSmall, match=r"times as noisy as one around a known centre.*aggregator='clip'"
    ):
        PhasedAcceleratedERM(aggregator="stable", phases=1, most_steps=3).configure(
            Instance(LOGISTIC, public, Budget(2.0, 1e-6))
        )
    with pytest.raises(BudgetTooSmall, match="60 points are too few for a stable mean"):
        PhasedAcceleratedERM(aggregator="stable", phases=1, most_steps=3).configure(
            Instance(LOGISTIC, some_users().public, Budget(1.0, 1e-6))
        )


@pytest.mark.audit
def test_tests_are_gaussian_up_to_forty_steps_and_a_sparse_vector_beyond():
    public = some_users(n=100_000).public
    instance = Instance(LOGISTIC, public, Budget(4.0, 1e-6))
    few = PhasedAcceleratedERM(aggregator="stable", phases=1, strength=1e-3).configure(instance)
    many = PhasedAcceleratedERM(aggregator="stable", phases=3, strength=1e-3).configure(instance)
    assert (few.tests, many.tests) == ("gaussian", "sparse-vector")
    assert sum(map(sum, many.lengths)) > 40


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"aggregator": "stable", "tests": "gaussian", "rate": 0.8}, "needs tests='sparse-vector'"),
        ({"aggregator": "stable", "tests": "none"}, "releases every mean behind a test"),
        ({"aggregator": "clip", "tests": "gaussian"}, "only aggregator='stable' has tests"),
        ({"aggregator": "adaptive", "tests": "sparse-vector"}, "only aggregator='stable' has tests"),
    ],
)
def test_tests_that_nobody_asks_or_prices_are_refused(fields, message):
    with pytest.raises(ValueError, match=message):
        PhasedAcceleratedERM(**fields)
    with pytest.raises(ValueError, match=message):
        erm(fields["aggregator"]).with_(**fields)
