"""Boosting: how units are divided, what the choice costs and finds, and that one run on all units is better."""

import math

import numpy as np
import pytest
from tests.support.bent_game import BENT, bent_payoff

from privopt.curator.local import LocalCurator
from privopt.data.units import Units
from privopt.games.dual_averaging import SampledDualAveraging
from privopt.ledger import accounting
from privopt.ledger.amounts import Budget
from privopt.ledger.events import Parallel
from privopt.ledger.payer import Unlimited
from privopt.mechanisms.choice import ExponentialMechanism
from privopt.mechanisms.noise import NoiseSource
from privopt.papers.boosted_saddle import BoostedSaddle, constraint_of, one_sided
from privopt.planning.task import Task
from privopt.precision import double_precision
from privopt.problems.constraints import L1Ball, Simplex
from privopt.problems.gaps import nonprivate_gap
from privopt.problems.saddle import BilinearGame, SaddleProblem
from privopt.problems.vertices import ListedVertices, vertices_of
from privopt.public import Public, Relation
from privopt.queries.payoffs import CandidateGaps, CandidatePayoffs
from privopt.solve_games import minimax

BUDGET = Budget(1.0, 1e-6)
MATRIX = BilinearGame(rows=5, columns=5)
CURVED = SaddleProblem(bent_payoff, x=Simplex(), y=Simplex(), sizes=(3, 4), curvatures=(0.5, 0.0))


def test_candidates_and_answers_follow_from_the_failure_probability():
    solver = BoostedSaddle(failure=0.05).filled(Task(MATRIX, Public(n=40_000, d=10), BUDGET))
    assert (solver.candidates, solver.answers) == (7, 11)
    assert solver.candidates * solver.answers == 77


def test_linear_players_need_no_answers_and_leave_more_units_to_the_runs():
    parts = {
        game: BoostedSaddle().division(game.players.values(), 60_000)
        for game in (
            MATRIX,
            CURVED,
            SaddleProblem(bent_payoff, x=Simplex(), y=Simplex(), sizes=(3, 4), curvatures=(1, 1)),
        )
    }
    groups = [2, 3, 4]
    for (_, one), count in zip(parts.items(), groups, strict=True):
        assert one.choice_size == 60_000 // count
        assert one.run_size == one.choice_size // 7
        assert sum(one.sizes) <= 60_000
    assert [len(one.sizes) for one in parts.values()] == [8, 85, 162]


@pytest.mark.parametrize(
    ("game", "clip"),
    [
        (MATRIX, 1.0),
        (BilinearGame(rows=2, columns=2, offsets=True), 1.5),
        (BilinearGame(rows=2, columns=2, entries=(0.0, 1.0)), 0.5),
        (BilinearGame(rows=2, columns=2, entries=(-0.5, 2.0)), 2.5),
        (BENT, 2.0),
    ],
)
def test_payoffs_are_clipped_to_half_their_range(game, clip):
    assert BoostedSaddle().default_payoff_clip(Task(game, Public(n=100, d=4), BUDGET)) == pytest.approx(clip)


def test_the_choice_has_the_reference_probabilities():
    """G = (.3, .5, .35), n = 1000, a quarter of them for the choice, B = 2, pure epsilon 1."""
    with double_precision():
        units = Units.from_arrays(np.zeros((250, 4)), relation="replace-one", row_bound=1.0)
        curator = LocalCurator(units, Unlimited(Relation.REPLACE_ONE))
        game = BilinearGame(rows=2, columns=2)
        empty = np.zeros((3, 0, 2))
        uniform = np.full((3, 2), 0.5)
        payoffs = CandidatePayoffs(
            game=game, x=uniform, y=uniform, x_answers=empty, y_answers=empty, payoff_clip=2.0
        )
        range_ = float(CandidateGaps(mean=curator.hold_mean(payoffs)).sensitivity(units.public))
    assert range_ == pytest.approx(8 * 2.0 / 250, rel=1e-9)
    gaps = np.array([0.3, 0.5, 0.35])
    logits = -gaps / range_ * ExponentialMechanism(1.0).epsilon
    chances = np.exp(logits - logits.max())
    expected = [0.665880796195, 0.029256760344, 0.304862443461]
    np.testing.assert_allclose(chances / chances.sum(), expected, atol=1e-8)
    pure = BoostedSaddle().filled(Task(MATRIX, Public(n=40_000, d=10), Budget(1.0, 0.0)))
    assert pure.selection == pytest.approx(1.0, rel=1e-6)


def test_every_part_may_spend_the_budget_and_the_dearest_is_charged():
    task = Task(MATRIX, Public(n=40_000, d=10, row_bound=4.0), BUDGET)
    solver = BoostedSaddle().configure(task)
    event = solver.event(task.public)
    assert isinstance(event, Parallel)
    prices = [accounting.epsilon(part, 1e-6, Relation.REPLACE_ONE) for part in event.events]
    assert len(prices) == 8
    assert max(prices) <= 1.0
    assert prices[-1] == pytest.approx(1.0, rel=1e-3)
    assert solver.plan(task).epsilon == pytest.approx(max(prices), rel=1e-6)


def test_small_parts_are_refused_unless_forced():
    task = Task(MATRIX, Public(n=4000, d=10), BUDGET)
    with pytest.raises(
        ValueError, match="8 parts of 285 or more, and 2,000 are needed: use sampled-dual-averaging"
    ):
        BoostedSaddle().configure(task)
    assert BoostedSaddle(forced=True).configure(task).candidates == 7
    with pytest.raises(ValueError, match="2 are needed: take fewer candidates"):
        BoostedSaddle(forced=True).configure(Task(MATRIX, Public(n=20, d=10), BUDGET))


def test_the_plan_says_that_one_run_is_better():
    plan = BoostedSaddle().plan(Task(MATRIX, Public(n=40_000, d=10, row_bound=4.0), BUDGET))
    assert any("a run on all units is better" in notice for notice in plan.notices)
    assert any("2,857 of 40,000 units" in notice for notice in plan.notices)


def test_without_noise_the_best_candidate_is_chosen():
    rng = np.random.default_rng(0)
    rows = rng.choice([-1.0, 1.0], (600, 10), p=[0.4, 0.6])
    units = Units.from_arrays(rows, relation="replace-one", row_bound=4.0, storage="float64")
    solver = BoostedSaddle(forced=True, candidates=4, inner=SampledDualAveraging(steps=3))
    solver = solver.configure(Task(MATRIX, units.public, Budget(1.0, 1e-6))).with_(selection=math.inf)

    seen = []

    class Watched(LocalCurator):
        def private_value(self, query, sampling, private_draw):
            value = super().private_value(query, sampling, private_draw)
            if isinstance(query, CandidateGaps):
                seen.append(value)
            return value

        def _child(self, private_engine, ledger):
            return Watched(private_engine, ledger, noise=self._noise, transcript=self.transcript)

    result = solver.solve(Watched(units, Unlimited(Relation.REPLACE_ONE), noise=NoiseSource(1)), MATRIX)
    assert result.findings["candidate"].value == int(np.argmax(seen[0]))


@pytest.mark.audit
@pytest.mark.later("replace-one")
@pytest.mark.parametrize("relation", ["replace-one", "add-or-remove-one"])
def test_bent_players_are_answered_by_solvers(relation):
    """By trees of fresh units, each on its part."""
    rng = np.random.default_rng(1)
    rows = rng.normal(size=(1200, 7))
    units = Units.from_arrays(rows, relation=relation, row_bound=5.0, n=1200, storage="float64")
    solver = BoostedSaddle(forced=True, candidates=2, answers=2, inner=SampledDualAveraging(steps=4))
    result = minimax(CURVED, units, budget=Budget(2.0, 1e-6), solver=solver, random_state=1)
    assert {one.name for one in result.transcript} >= {"CandidateGaps", "vertices of x", "chosen vertices"}
    assert all(np.sum(part) == pytest.approx(1.0) for part in result.params)
    assert result.transcript.epsilon(1e-6) <= 2.0


def test_a_one_sided_problem_is_what_the_player_sees():
    with double_precision():
        fixed = np.array([0.1, 0.2, 0.3, 0.4])
        row = np.arange(7.0)
        point = np.array([0.2, 0.3, 0.5])
        problem = one_sided(BENT, "x", fixed)
        assert float(problem.loss.value(point, row, 0.0)) == pytest.approx(
            float(BENT.payoff(point, fixed, row, 0.0))
        )
        other = one_sided(BENT, "y", point)
        assert float(other.loss.value(fixed, row, 0.0)) == pytest.approx(
            -float(BENT.payoff(point, fixed, row, 0.0))
        )
        assert problem == one_sided(BENT, "x", fixed.copy())
    for constraint, size in ((Simplex(2.0), 3), (L1Ball(1.5), 3)):
        assert constraint_of(vertices_of(constraint, size)) == constraint
    assert constraint_of(ListedVertices(np.eye(3))).matrix.shape == (3, 3)


@pytest.mark.audit
def test_one_run_on_all_units_is_better():
    rng = np.random.default_rng(2)
    kinds = rng.uniform(0.05, 0.95, (8, 60))
    rows = np.where(rng.random((28_000, 60)) < kinds[rng.integers(0, 8, 28_000)], 1.0, -1.0)
    game = BilinearGame(rows=30, columns=30)
    units = Units.from_arrays(rows, relation="replace-one", row_bound=game.row_bound)
    gaps = {}
    for name, solver in (("one run", SampledDualAveraging()), ("boosted", BoostedSaddle())):
        gaps[name] = [
            nonprivate_gap(
                game,
                rows,
                None,
                *minimax(game, units, budget=BUDGET, solver=solver, random_state=seed).params,
            ).high
            for seed in range(3)
        ]
    assert np.mean(gaps["one run"]) < 0.7 * np.mean(gaps["boosted"])
