"""The paper's mirror descent: reference values, the closed forms of every schedule's price, and the edges."""

import math

import numpy as np
import pytest
from tests.games.test_sampled_dual_averaging import (  # noqa: F401  (a fixture)
    GAME,
    as_units,
    drawn_by_means,
    gap,
    records,
)

from privopt.curator.local import LocalCurator
from privopt.data.places import Stretch
from privopt.ledger.amounts import Budget
from privopt.ledger.payer import Unlimited
from privopt.mechanisms.noise import NoiseSource
from privopt.papers.saddle_mirror_descent import SaddleMirrorDescent, schedule
from privopt.planning.task import Task
from privopt.problems.saddle import BilinearGame
from privopt.public import Public, Relation

BUDGET = Budget(1.0, 1e-6)
SCHEDULES = ("paper", "single", "decreasing", "epochs", "full")


def test_draws_replaced_by_their_means_give_the_reference_values(drawn_by_means, monkeypatch):  # noqa: F811
    """T = 4, batches {0,1,2}, {3,4,5}, {6,7,8} in order, tau = 0.7 for both."""
    monkeypatch.setattr(
        "privopt.curator.local.block_assignment",
        lambda public, sizes, generator, private_count: [(Stretch(3 * b, 3 * b + 3), 3) for b in range(3)],
    )
    units = as_units(records())
    solver = SaddleMirrorDescent(steps=4, schedule="paper", draws=1, step_x=0.7, step_y=0.7)
    solver = solver.configure(Task(GAME, units.public, Budget(1e3, 1e-6)))
    x, y = solver.solve(LocalCurator(units, Unlimited(Relation.REPLACE_ONE)), GAME).params
    np.testing.assert_allclose(x, [0.345226099404, 0.348011860273, 0.306762040323], atol=1e-8)
    np.testing.assert_allclose(y, [0.249093002130, 0.250588545295, 0.250808716283, 0.249509736291], atol=1e-8)
    assert gap(x, y) == pytest.approx(0.014479068960, abs=1e-8)
    assert x @ (records()[:, :3].T @ records()[:, 3:] / 12) @ y == pytest.approx(-0.001243633855, abs=1e-8)


def rho(name, steps=10, n=1000, tau=0.5, epochs=2, relation=Relation.REPLACE_ONE):
    game = BilinearGame(rows=5, columns=5)
    public = Public(n=n, d=10, relation=relation, row_bound=4.0)
    solver = SaddleMirrorDescent(
        steps=steps, draws=1, schedule=name, epochs=epochs, step_x=tau, step_y=tau
    ).configure(Task(game, public, BUDGET))
    return 2 * solver.sampler(game.x, public).rho()


@pytest.mark.parametrize(
    ("name", "expected"), [("paper", 0.0009), ("single", 0.000730460190), ("full", 0.000285)]
)
def test_prices_have_their_reference_values(name, expected):
    """n = 1000, T = 10, tau = 0.5, L = 1, K = 1, both players, replace-one."""
    assert rho(name) == pytest.approx(expected, rel=1e-6)
    assert rho(name, relation=Relation.ADD_OR_REMOVE_ONE) == pytest.approx(expected / 4, rel=1e-6)


def test_prices_are_those_of_the_closed_forms():
    n, steps = 20_000, 40
    unit = 2 * (2 * 2 * 0.5 / n) ** 2 / 8
    assert rho("full", steps, n) == pytest.approx(unit * (steps - 1) * steps * (2 * steps - 1) / 6, rel=1e-6)
    assert rho("paper", steps, n) == pytest.approx(unit * (steps - 1) * steps**2, rel=1e-6)
    assert rho("single", steps, n) == pytest.approx(unit * (steps - 1) ** 3, rel=5e-3)
    balanced = unit * sum(math.sqrt(j) for j in range(1, steps)) ** 2
    assert rho("decreasing", steps, n) == pytest.approx(balanced, rel=0.02)


def test_epochs_cost_no_more_than_their_bound():
    """T = 12, E = 3, n = 1000, one player: exactly 0.000376, by the bound 0.000448."""
    exact = rho("epochs", 12, 1000, epochs=3) / 2
    assert exact == pytest.approx(0.000376, abs=5e-7)
    assert exact <= 12**3 * (1 + 1 / 3) * (1 + 1 / 6) / 3 * (2 * 2 * 0.5 / 1000) ** 2 / 8


def test_batches_are_as_the_schedule_says():
    assert schedule("paper", 5, 1, 100).sizes == (20,) * 4
    assert schedule("single", 5, 1, 100).sizes == (25,) * 4
    assert schedule("epochs", 6, 2, 99).sizes == (33,) * 3
    assert schedule("epochs", 6, 2, 99).participation == ((0, 3), (1, 4), (2,))
    assert schedule("full", 5, 1, 100).participation is None
    falling = schedule("decreasing", 6, 1, 100).sizes
    assert sum(falling) <= 100
    assert list(falling) == sorted(falling, reverse=True)


@pytest.mark.at_once("fresh-epochs", "played-full", "played-paper", "played-single")
@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("output", ["played", "fresh"])
def test_every_schedule_keeps_to_the_budget(name, output):
    public = Public(n=300, d=40, row_bound=7.0)
    solver = SaddleMirrorDescent(steps=24, schedule=name, output=output, draws=2)
    plan = solver.plan(Task(BilinearGame(rows=20, columns=20), public, BUDGET))
    assert 0.5 < plan.epsilon <= 1.0
    assert plan.bound.value > 0


def test_the_papers_step_costs_a_small_part():
    public = Public(n=2000, d=200, row_bound=15.0)
    task = Task(BilinearGame(rows=100, columns=100), public, BUDGET)
    solver = SaddleMirrorDescent(schedule="paper", output="fresh", calibration="paper", steps=50, draws=1)
    configured = solver.configure(task)
    expected = 40 / (16 * math.sqrt(50 * 2 * math.log(1e6)))
    assert configured.step_x == pytest.approx(expected)
    assert configured.plan(task).epsilon < 0.25
    exact = solver.with_(calibration="exact").configure(task)
    assert exact.step_x > 3 * configured.step_x


@pytest.mark.audit
def test_open_steps_and_draws_have_the_least_bound():
    public = Public(n=4000, d=200, row_bound=15.0)
    task = Task(BilinearGame(rows=100, columns=100), public, BUDGET)
    chosen = SaddleMirrorDescent().configure(task)
    assert chosen.draws == 1  # linear in both players
    for steps in (chosen.steps // 2, 2 * chosen.steps):
        other = SaddleMirrorDescent(steps=steps).plan(task)
        assert other.bound.value >= 0.999 * chosen.plan(task).bound.value
    epochs = SaddleMirrorDescent(schedule="epochs", epochs=3).configure(task)
    assert epochs.steps % 3 == 0


@pytest.mark.parametrize("steps", [0, 1])
def test_too_few_steps_spend_nothing(steps):
    units = as_units(records())
    task = Task(GAME, units.public, BUDGET)
    solver = SaddleMirrorDescent(steps=steps).configure(task)
    plan = solver.plan(task)
    assert plan.epsilon == 0.0
    assert any("learn nothing" in notice for notice in plan.notices)
    result = solver.solve(LocalCurator(units, Unlimited(Relation.REPLACE_ONE), noise=NoiseSource(0)), GAME)
    assert result.transcript.releases == solver.releases()
    if steps == 0:
        np.testing.assert_allclose(result.params[0], np.full(3, 1 / 3))


def test_more_draws_than_steps_are_allowed():
    units = as_units(records())
    solver = SaddleMirrorDescent(steps=2, draws=9).configure(Task(GAME, units.public, BUDGET))
    result = solver.solve(LocalCurator(units, Unlimited(Relation.REPLACE_ONE)), GAME)
    assert sum(result.params[0]) == pytest.approx(1.0)


def test_fewer_units_than_batches_are_refused():
    task = Task(GAME, Public(n=12, d=7), BUDGET)
    for name in ("paper", "single", "decreasing", "epochs"):
        with pytest.raises(ValueError, match="batches of at least 2 units need more than n = 12"):
            SaddleMirrorDescent(steps=40, epochs=2, schedule=name).configure(task)
    with pytest.raises(ValueError, match="steps must be a multiple of epochs = 3, got 7"):
        SaddleMirrorDescent(schedule="epochs", epochs=3, steps=7)
