"""Sampled dual averaging: reference values, its preset, and what it does at the edges."""

import math
from types import SimpleNamespace

import numpy as np
import pytest

from privopt.curator.local import LocalCurator
from privopt.data.units import Units
from privopt.games.dual_averaging import SampledDualAveraging
from privopt.games.gradients import Drawn, Noised
from privopt.ledger.amounts import Budget
from privopt.ledger.curves import zcdp_rho_budget
from privopt.ledger.payer import Unlimited
from privopt.mechanisms.noise import NoiseSource
from privopt.mechanisms.vertex_stream import VertexSampler
from privopt.planning.averaging import balanced_sizes
from privopt.planning.sampled_dual_averaging import batch_needs
from privopt.planning.task import Task
from privopt.problems.saddle import BilinearGame
from privopt.problems.vertices import SimplexVertices
from privopt.public import Public, Relation

N, ROWS, COLUMNS = 12, 3, 4
GAME = BilinearGame(rows=ROWS, columns=COLUMNS)


@pytest.fixture
def drawn_by_means(monkeypatch):
    """Draws replaced by their means: the softmax itself comes out."""

    def means(self, state, noise):
        logits = -self.temperatures[state.drawn] * state.private_scores
        state.drawn += 1
        masses = np.exp(logits - np.max(logits))
        return masses / np.sum(masses)

    monkeypatch.setattr(VertexSampler, "draw", means)
    monkeypatch.setattr(SimplexVertices, "shares", lambda self, drawn: drawn)


def records():
    """u_ij = sin(i + 2 j + 1), v_ij = cos(2 i + j + 1)."""
    i, j = np.arange(N)[:, None], np.arange(COLUMNS)[None, :]
    return np.concatenate([np.sin(i + 2 * j[:, :ROWS] + 1), np.cos(2 * i + j + 1)], axis=1)


def as_units(rows, relation="replace-one", n=N):
    return Units.from_arrays(rows, relation=relation, row_bound=GAME.row_bound, n=n, storage="float64")


def gap(x, y):
    payoff = records()[:, :ROWS].T @ records()[:, ROWS:] / N
    return np.max(payoff.T @ x) - np.min(payoff @ y)


def played(solver, units, seed=1):
    solver = solver.filled(Task(GAME, units.public, Budget(1.0, 1e-6)))
    return solver.solve(LocalCurator(units, Unlimited(units.public.relation), noise=NoiseSource(seed)), GAME)


@pytest.mark.later("False")
@pytest.mark.parametrize("held", [True, False])
def test_draws_replaced_by_their_means_give_the_reference_values(drawn_by_means, held):
    move = Drawn(draws=1, scale=2.0)
    x, y = played(SampledDualAveraging(steps=5, x=move, y=move, held=held), as_units(records())).params
    np.testing.assert_allclose(x, [0.338710049804, 0.343771531165, 0.317518419031], atol=1e-8)
    np.testing.assert_allclose(y, [0.248403920575, 0.248394265193, 0.250465527229, 0.252736287003], atol=1e-8)
    assert gap(x, y) == pytest.approx(0.013687236976, abs=1e-8)


def test_batches_of_one_pass_have_their_reference_sizes():
    needs = batch_needs(6, 0.5)
    expected = [1.169520319523, 1.212893693244, 1.144552314226, 0.997775303140, 0.745355992500]
    np.testing.assert_allclose(needs, expected, atol=1e-11)
    assert balanced_sizes(needs, 100) == (22, 23, 22, 19, 14)
    assert min(balanced_sizes([1.0, 1e-9], 10)) == 2
    with pytest.raises(ValueError, match="3 batches of at least 2 units need more than n = 5"):
        balanced_sizes([1.0] * 3, 5)


@pytest.mark.parametrize("relation", list(Relation))
def test_the_scale_is_that_of_the_closed_form(relation):
    """s = 2 n sqrt(rho_P / K) / (c L sqrt(T (T - 1))), each of two equal players at half of rho."""
    game = BilinearGame(rows=50, columns=50)
    public = Public(n=5000, d=100, relation=relation, row_bound=10.0)
    budget = Budget(1.0, 1e-6)
    solver = SampledDualAveraging(steps=200).configure(Task(game, public, budget))
    share = zcdp_rho_budget(1.0, 1e-6) / 2.0
    expected = 2 * public.n * math.sqrt(share) / (relation.factor * math.sqrt(200 * 199))
    assert solver.x.draws == solver.y.draws == 1
    assert solver.x.scale == pytest.approx(expected, rel=1e-6)


def test_where_the_cap_binds_the_plan_costs_less_and_says_so():
    public = Public(n=100_000, d=14, row_bound=4.0)
    game = BilinearGame(rows=7, columns=7)
    plan = SampledDualAveraging(steps=50, x=Drawn(draws=1), y=Drawn(draws=1)).plan(
        Task(game, public, Budget(8.0, 1e-6))
    )
    assert plan.epsilon < 4.0
    assert any("An account pays for the plan only" in notice for notice in plan.notices)
    cheaper = SampledDualAveraging(steps=50).configure(Task(game, public, Budget(8.0, 1e-6)))
    assert cheaper.x.draws > 10  # what the cap leaves over buys draws


def test_the_price_is_divided_by_what_players_need():
    public = Public(n=20_000, d=1010, row_bound=40.0)
    solver = SampledDualAveraging().configure(
        Task(BilinearGame(rows=10, columns=1000), public, Budget(1.0, 1e-6))
    )
    rho = [solver.sampler(who, public).rho() for who in ("x", "y")]
    wanted = (math.log(1000) / math.log(10)) ** (2 / 3)
    assert rho[1] / rho[0] == pytest.approx(wanted, rel=1e-6)


@pytest.mark.parametrize(("steps", "releases"), [(0, 0), (1, 4)])
def test_too_few_steps_spend_nothing(steps, releases):
    units = as_units(records())
    task = Task(GAME, units.public, Budget(1.0, 1e-6))
    solver = SampledDualAveraging(steps=steps).configure(task)
    result = solver.solve(LocalCurator(units, Unlimited(Relation.REPLACE_ONE)), GAME)
    assert solver.releases() == result.transcript.releases == releases
    assert solver.plan(task).epsilon == 0.0
    assert any("learn nothing" in notice for notice in solver.plan(task).notices)
    if steps == 0:
        np.testing.assert_allclose(result.params[1], np.full(COLUMNS, 0.25))


def test_a_player_with_one_vertex_is_not_asked_about():
    game = BilinearGame(rows=1, columns=6)
    units = as_units(records())
    solver = SampledDualAveraging(steps=4).configure(Task(game, units.public, Budget(1.0, 1e-6)))
    curator = LocalCurator(units, Unlimited(Relation.REPLACE_ONE))
    result = solver.solve(curator, game)
    assert result.params[0] == 1.0
    assert {release.name for release in result.transcript} == {"vertices of y", "VertexSampler.draw"}


def test_more_batches_than_units_are_refused():
    task = Task(GAME, Public(n=12, d=7), Budget(1.0, 1e-6))
    with pytest.raises(ValueError, match="19 disjoint batches need 38 units, and there are n = 12"):
        SampledDualAveraging(batches="one pass", steps=20).configure(task)


def test_it_plays_the_game_that_it_was_configured_for():
    solver = SampledDualAveraging(steps=3).configure(Task(GAME, Public(n=12, d=7), Budget(1.0, 1e-6)))
    other = BilinearGame(rows=4, columns=3)
    with pytest.raises(ValueError, match="configured for another game"):
        solver.solve(LocalCurator(as_units(records()), Unlimited(Relation.REPLACE_ONE)), other)


def test_dominated_strategies_are_left():
    """Row 1 always pays less and column 0 always more: the plays move to them (signs of both players)."""
    rows = np.tile([1.0, -1.0, 1.0, -0.5], (400, 1))
    rows[:, :2] = [0.2, -1.0]
    game = BilinearGame(rows=2, columns=2, offsets=True)
    offsets = np.tile([0.5, -0.9, -0.9, 0.9], (400, 1))
    units = Units.from_arrays(np.concatenate([rows, offsets], axis=1), row_bound=game.row_bound)
    task = Task(game, units.public, Budget(20.0, 1e-6))
    solver = SampledDualAveraging(steps=40).configure(task)
    curator = LocalCurator(units, Unlimited(Relation.REPLACE_ONE), noise=NoiseSource(0))
    x, y = solver.solve(curator, game).params
    assert x[1] > 0.8
    assert y[0] > 0.8


def test_a_pure_budget_needs_no_delta():
    public = Public(n=50_000, d=40, row_bound=7.0)
    task = Task(BilinearGame(rows=20, columns=20), public, Budget(1.0, 0.0))
    solver = SampledDualAveraging().configure(task)
    assert 4 <= solver.steps < 1000
    assert solver.plan(task).epsilon <= 1.0


def test_a_noised_player_pays_for_gaussian_releases():
    public = Public(n=5000, d=40, row_bound=7.0)
    task = Task(BilinearGame(rows=20, columns=20), public, Budget(1.0, 1e-6))
    plan = SampledDualAveraging(steps=30, y=Noised()).plan(task)
    assert 0.999 <= plan.epsilon <= 1.0
    assert plan.releases == 31 + 29


def test_bound_and_typical_gap_are_told_apart():
    public = Public(n=20_000, d=600, row_bound=25.0)
    plan = SampledDualAveraging().plan(Task(BilinearGame(rows=300, columns=300), public, Budget(1.0, 1e-6)))
    assert plan.measure == "duality gap"
    assert plan.bound.probability is None
    assert 10 < plan.bound.value / plan.predicted_excess < 1000
    assert "duality gap at most" in str(plan)


def test_the_bound_is_no_more_than_the_closed_form():
    """log m / (s sqrt T) + 1.42 s L^2 / sqrt T a player, for every T."""
    for steps in (4, 30, 400):
        move = Drawn(draws=1, scale=3.0)
        solver = SampledDualAveraging(steps=steps, x=move, y=move)
        task = Task(
            BilinearGame(rows=30, columns=30), Public(n=9000, d=60, row_bound=9.0), Budget(100.0, 1e-6)
        )
        bound = solver.plan(task).bound.value
        closed = 2 * (math.log(30) / (3 * math.sqrt(steps)) + 1.42 * 3 / math.sqrt(steps))
        assert 0.85 * closed < bound <= closed


def test_findings_say_what_was_drawn():
    units = as_units(records())
    solver = SampledDualAveraging(steps=6).configure(Task(GAME, units.public, Budget(1.0, 1e-6)))
    result = solver.solve(LocalCurator(units, Unlimited(Relation.REPLACE_ONE)), GAME)
    sampler = solver.sampler("x", units.public)
    found = SimpleNamespace(**{name: one.value for name, one in result.findings.items()})
    assert found.x_draws == 6 * solver.x.draws
    assert found.x_rho == sampler.rho()
    assert found.x_range == pytest.approx(max(sampler.range_bounds(range(5))))
    assert sum(found.y_weights) == pytest.approx(1.0)


def typical(solver, budget=None):
    """The predicted gap, and what is said of it."""
    game = BilinearGame(rows=40, columns=40, offsets=True)
    task = Task(game, Public(n=20_000, d=game.width, row_bound=game.row_bound), budget or Budget(1.0, 1e-6))
    plan = solver.plan(task)
    return plan.predicted_excess, plan.prediction


def test_without_two_steps_the_trivial_gap_is_predicted():
    for steps in (0, 1):
        gap, meaning = typical(SampledDualAveraging(steps=steps))
        assert gap == 2.0
        assert "uniform" in meaning


@pytest.mark.audit
def test_nothing_is_predicted_of_steps_that_nobody_measured():
    usual, _ = typical(SampledDualAveraging())
    assert 0 < usual < 0.1
    for steps in (3, 1000):
        gap, meaning = typical(SampledDualAveraging(steps=steps))
        assert gap is None
        assert "far from the default" in meaning


def test_pure_privacy_is_predicted_to_be_dearer():
    with_delta, _ = typical(SampledDualAveraging())
    pure, _ = typical(SampledDualAveraging(), Budget(1.0, 0.0))
    assert pure > 1.2 * with_delta
