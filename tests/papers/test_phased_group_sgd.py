"""Phased SGD on groups: the reference values, the promises with a test in front, halts and fallbacks, hostile users."""

import math

import jax.numpy as jnp
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

import privopt.curator.local as local
from privopt.curator.local import LocalCurator
from privopt.data import participants as grouping
from privopt.data.participants import GroupDraw
from privopt.data.units import Units
from privopt.errors import BudgetTooSmall
from privopt.ledger import accounting
from privopt.ledger.amounts import Budget
from privopt.ledger.events import DeltaEvent, GaussianEvent, leaf_counts
from privopt.ledger.ledger import Ledger
from privopt.mechanisms.noise import NoiseSource
from privopt.papers.phased_group_sgd import PhasedGroupSGD
from privopt.planning.task import Instance
from privopt.problems import losses
from privopt.problems.constraints import L2Ball
from privopt.problems.problem import Problem
from privopt.status import Status

LOGISTIC = Problem(losses.logistic)
RELATIONS = ["replace-one", "add-or-remove-one"]


def six_users():
    """user-level reference, R6: 6 users with 5 records each."""
    i = np.arange(30)
    rows = np.stack([np.ones(30), np.sin(i + 1), np.cos(2 * i)], axis=1)
    labels = np.where((i**2 + i // 7) % 3 == 0, 1.0, -1.0)
    return rows, labels, i // 5


def as_units(rows, labels, users, relation="replace-one", n=None, cap=5, bound=2.0):
    return Units.from_arrays(
        rows,
        labels,
        groups=users,
        n=n or int(users.max()) + 1,
        row_bound=bound,
        relation=relation,
        max_records_per_user=cap,
        user_weighting="user",
        storage="float64",
        noise=NoiseSource(5),
    )


@pytest.fixture
def fixed_groups(monkeypatch):
    """Users 0 to 2 and 3 to 5 make a group each, their records in order."""

    def draw(public, groups, generator, *, private_count):
        del generator
        positions = np.arange(max(public.n, private_count))
        return GroupDraw(
            count=groups,
            private_groups=positions * groups // len(positions),
            private_seeds=positions.astype(np.uint64),
        )

    monkeypatch.setattr(local, "draw_groups", draw)
    monkeypatch.setattr(
        grouping, "_keys", lambda seeds, index: seeds * np.uint64(1000) + index.astype(np.uint64)
    )


def run(solver, units, *, budget=WIDE, noise=None, problem=LOGISTIC):
    return solve(
        lambda curator: solver.solve(curator, problem),
        units,
        plan=solver.event(units.public),
        budget=budget,
        noise=noise,
    )


def silent(**fields):
    """One phase with nothing but the arithmetic of the paper."""
    return PhasedGroupSGD(
        **{
            "groups": 2,
            "phases": 1,
            "step_size": 0.5,
            "smoothness": 1.0,
            "gradient_norm": 1.0,
            "bad_event_delta": 0.0,
            "test_share": 0.1,
            "search_epsilon": 1.0,
            "noise_multiplier": 0.0,
            **fields,
        }
    )


@pytest.mark.audit
def test_the_mean_of_two_groups_has_its_reference_value(fixed_groups):
    """user-level reference, R6: group averages, then clipped to 0.5 around 0."""
    units = as_units(*six_users())
    averages = np.array(
        [(-0.5954831782, 0.0563951275, 0.741345994), (0.1192072016, 0.0953675258, -0.2455698584)]
    )
    free = Budget(math.inf, 1e-5)
    wide = run(silent(distance=1e6), units, budget=free)
    np.testing.assert_allclose(wide.params, averages.mean(axis=0), rtol=1e-8)
    clipped = run(silent(distance=0.5 / 0.8), units, budget=free)
    np.testing.assert_allclose(clipped.params, (-0.0966810113, 0.062484669, 0.0717813916), rtol=1e-7)


def test_phases_follow_a_plain_reference_written_from_the_paper(fixed_groups):
    """Algorithm 1, lines 3 to 10 and 24, with the clipped mean of ours, a projection and halved steps."""
    rows, labels, _ = six_users()
    w, radius = np.zeros(3), 0.7
    for i in range(3):
        ends = []
        for members in (range(15), range(15, 30)):
            x, total = w.copy(), np.zeros(3)
            for r in members:
                x = x + 0.5 * 0.5**i * labels[r] * rows[r] / (1 + np.exp(labels[r] * (rows[r] @ x)))
                x = x * min(1.0, radius / np.linalg.norm(x))
                total += x
            moved = total / 15 - w
            ends.append(moved * min(1.0, 0.8 * 0.5**i / np.linalg.norm(moved)))
        w = w + np.mean(ends, axis=0)
        w = w * min(1.0, radius / np.linalg.norm(w))
    found = run(
        silent(phases=3, distance=1.0),
        as_units(*six_users()),
        budget=Budget(math.inf, 1e-5),
        problem=Problem(losses.logistic, constraint=L2Ball(radius)),
    )
    np.testing.assert_allclose(found.params, w, rtol=1e-6)
    assert found.status is Status.FINISHED


# Modes with a test need many groups or little noise: 40 users, each its own group, at a huge epsilon.
def many_users(seed=0, n=40, spread=0.3):
    rng = np.random.default_rng(seed)
    rows = np.repeat([[1.0, 0.5]], 2 * n, axis=0) + spread * rng.normal(size=(2 * n, 2))
    labels = np.where(rng.random(2 * n) < 0.8, 1.0, -1.0)
    return rows, labels, np.repeat(np.arange(n), 2)


def behind_test(mode, **fields):
    return PhasedGroupSGD(
        **{
            "mode": mode,
            "groups": 40,
            "phases": 2,
            "step_size": 0.1,
            "smoothness": 1.0,
            "distance": 1.0,
            "gradient_norm": 2.0,
            "spread": 2.0,
            "bad_event_delta": 1e-7,
            "test_share": 0.2,
            "search_epsilon": 12.0,
            "noise_multiplier": 0.1,
            **fields,
        }
    )


MODES = ["stable", "stable-auto", "paper"]


@pytest.mark.later(
    "stable-auto-False-replace-one",
    "stable-False-add-or-remove-one",
    "stable-auto-True-add-or-remove-one",
    "stable-True-replace-one",
    "paper-False-add-or-remove-one",
)
@pytest.mark.parametrize(("mode", "reuse", "relation"), in_turn(MODES, (True, False), RELATIONS))
def test_a_run_with_tests_replays_costs_its_plan_and_can_be_rehearsed(mode, reuse, relation):
    units = as_units(*many_users(n=80), relation=relation, cap=3)
    solver = behind_test(mode, reuse=reuse, groups=80)
    result = run(solver, units)

    def program(curator):
        return solver.solve(curator, LOGISTIC)

    assert result.status is Status.FINISHED
    assert_replays(program, result, units.public)
    plan = solver.event(units.public)
    spent = result.transcript.epsilon(1e-5)
    assert spent == pytest.approx(accounting.epsilon(plan, 1e-5, relation), rel=1e-9)
    if mode != "stable-auto":  # which asks radius after radius, and stops
        assert_costs(result, plan, units.public)
        assert_rehearses(program, plan, units.public)


def hostile_users(rows, labels, users, last):
    """The same data with other records of the last user."""
    kept = users < users.max()
    count = len(last[0])
    return (
        np.concatenate([rows[kept], last[0]]),
        np.concatenate([labels[kept], last[1]]),
        np.concatenate([users[kept], np.full(count, users.max())]),
    )


HOSTILE = {
    "turned": (np.array([[-1.0, -0.5]] * 2), np.ones(2)),
    "huge": (np.full((2, 2), 1e30), np.array([1.0, -1.0])),
    "not a number": (np.full((2, 2), np.nan), np.ones(2)),
    "many": (np.tile([[3.0, -4.0]], (1000, 1)), np.ones(1000)),
    "none": (np.zeros((0, 2)), np.zeros(0)),
}


@pytest.mark.later(
    "clip-turned-replace-one",
    "paper-turned-add-or-remove-one",
    "stable-auto-huge-add-or-remove-one",
    "stable-auto-many-add-or-remove-one",
    "stable-auto-none-replace-one",
    "stable-auto-not a number-replace-one",
    "stable-auto-turned-replace-one",
    "stable-huge-replace-one",
    "stable-turned-add-or-remove-one",
)
@pytest.mark.parametrize(("mode", "kind", "relation"), in_turn(("clip", *MODES), HOSTILE, RELATIONS))
def test_no_user_moves_a_release_by_more_than_its_sensitivity(mode, relation, kind):
    data = many_users()
    left = as_units(*data, relation=relation, cap=3)
    right = as_units(*hostile_users(*data, HOSTILE[kind]), relation=relation, n=40, cap=3)
    solver = behind_test(mode)
    moved = largest_move(
        lambda curator: solver.solve(curator, LOGISTIC), left, right, plan=solver.event(left.public)
    )
    assert moved <= 1.0


def far_apart(n=40):
    """Every user pulls another way: no test can pass."""
    angles = np.linspace(0, 2 * np.pi, n, endpoint=False)
    rows = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    return rows, np.ones(n), np.arange(n)


@pytest.mark.later("stable-auto-add-or-remove-one", "stable-auto-replace-one")
@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize("mode", MODES)
def test_a_failed_test_returns_the_last_private_iterate_or_clips_and_never_zero(mode, relation):
    units = as_units(*far_apart(), relation=relation, cap=3)
    start = jnp.array([0.3, 0.4])
    fields = {"spread": 1e-3, "distance": 1e-3} if mode == "stable-auto" else {"spread": 1e-3}
    halting = behind_test(mode, after_failure="halt", **fields)
    plan = halting.event(units.public)
    halted = solve(lambda c: halting.solve(c, LOGISTIC, start), units, plan=plan)
    assert halted.status is Status.HALTED
    np.testing.assert_array_equal(halted.params, start)
    falling = behind_test(mode, **fields)
    fallen = solve(lambda c: falling.solve(c, LOGISTIC, start), units, plan=falling.event(units.public))
    assert fallen.status is Status.FELL_BACK
    assert np.all(np.isfinite(fallen.params))
    assert np.any(np.asarray(fallen.params) != np.asarray(start))
    # It costs what was planned: the same test, and the mean's Gaussian on another query.
    assert fallen.transcript.epsilon(1e-5) == pytest.approx(
        accounting.epsilon(plan, 1e-5, relation), rel=1e-9
    )
    assert leaf_counts(fallen.transcript.event())[0] == leaf_counts(plan)[0]


def test_the_bad_events_of_all_tests_are_a_tenth_of_delta():
    units = as_units(*many_users(n=300, spread=0.1), cap=3)
    budget = Budget(8.0, 1e-6)
    solver = PhasedGroupSGD(mode="stable", groups=300, phases=2).configure(
        Instance(LOGISTIC, units.public, budget)
    )
    leaves, _ = leaf_counts(solver.event(units.public))
    bad = sum(event.delta * count for event, count in leaves.items() if isinstance(event, DeltaEvent))
    assert bad == pytest.approx(1e-7)
    assert accounting.epsilon(solver.event(units.public), 1e-6, "replace-one") <= 8.0
    gaussians = [e for e in leaves if isinstance(e, GaussianEvent)]
    assert len(gaussians) == 2  # of tests and of means


def test_too_few_groups_for_a_test_are_refused_with_the_number_that_would_do():
    units = as_units(*many_users(), cap=3)
    with pytest.raises(
        BudgetTooSmall, match=r"40 points are too few for a stable mean at this noise.*give at least"
    ):
        PhasedGroupSGD(mode="stable", groups=40, phases=1).configure(
            Instance(LOGISTIC, units.public, Budget(1.0, 1e-6))
        )


def test_disjoint_phases_stop_where_the_last_has_too_few_groups():
    units = as_units(*many_users(n=400), cap=3)
    solver = PhasedGroupSGD(mode="stable", groups=400, reuse=False).configure(
        Instance(LOGISTIC, units.public, Budget(2.0, 1e-6))
    )
    assert 1 <= solver.phases < 3


def test_a_group_that_one_user_is_taken_from_is_replaced_and_priced_as_such():
    """Pricing c / C under add-or-remove-one would make epsilon = 1 really 2.12."""
    units = as_units(*many_users(), relation="add-or-remove-one", cap=3)
    solver = behind_test("clip", noise_multiplier=5.0)
    result = run(solver, units)
    release = result.transcript[0]
    radius = 0.8
    assert release.sensitivity[0] == pytest.approx(2 * radius / 40, rel=1e-6)


@pytest.mark.parametrize("relation", RELATIONS)
def test_nothing_about_the_data_changes_what_a_run_looks_like(relation):
    solver = behind_test("clip", noise_multiplier=5.0)
    shapes = set()
    for rows, labels, users in (
        many_users(),
        many_users(seed=1, spread=30.0),
        (np.zeros((0, 2)), np.zeros(0), np.zeros(0, int)),
    ):
        units = as_units(rows, labels, users, relation=relation, n=40, cap=3)
        ledger = Ledger(WIDE, relation, plan=solver.event(units.public))
        result = solver.solve(LocalCurator(units, ledger, noise=NoiseSource(1)), LOGISTIC)
        shapes.add((result.status, len(result.transcript), np.shape(result.params)))
    assert len(shapes) == 1
