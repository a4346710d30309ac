"""Solvers of games that release noisy numbers, the default choice, and exact matrix games."""

import jax.numpy as jnp
import numpy as np
import pytest

import privopt
from privopt import BilinearGame, Budget, SaddleProblem, Units
from privopt.curator.local import LocalCurator
from privopt.games.dual_averaging import NoisyExponentiatedGradient, SampledDualAveraging
from privopt.games.noisy_extragradient import NoisyExtragradient, SaddleGradientDescent
from privopt.games.noisy_matrix import NoisyMatrix, equilibrium
from privopt.games.registry import GAME_SOLVERS, choose_game
from privopt.ledger.events import EveryUnit
from privopt.ledger.payer import Unlimited
from privopt.mechanisms.noise import NoiseSource
from privopt.papers.best_response import BestResponse
from privopt.papers.saddle_mirror_descent import SaddleMirrorDescent
from privopt.planning.task import Task
from privopt.precision import double_precision
from privopt.problems.constraints import Box, L1Ball, Simplex
from privopt.problems.vertices import set_of, vertices_of
from privopt.public import Public, Relation
from privopt.queries.payoffs import PayoffMeans, PayoffSlope

BUDGET = Budget(1.0, 1e-6)


def task(rows, columns=None, n=20_000, budget=BUDGET, **options):
    game = BilinearGame(rows=rows, columns=columns or rows, **options)
    return Task(game, Public(n=n, d=game.width, row_bound=game.row_bound), budget)


def test_known_games_have_their_equilibria():
    matching = np.array([[1.0, -1.0], [-1.0, 1.0]])
    x, y = equilibrium(matching, np.zeros(2), np.zeros(2))
    np.testing.assert_allclose(x, [0.5, 0.5], atol=1e-9)
    np.testing.assert_allclose(y, [0.5, 0.5], atol=1e-9)
    # Row 1 pays less whatever the column, and column 1 takes least away.
    x, y = equilibrium(np.zeros((2, 3)), np.array([1.0, 0.0]), np.array([0.5, 0.0, 1.0]))
    np.testing.assert_allclose(x, [0.0, 1.0], atol=1e-9)
    np.testing.assert_allclose(y, [0.0, 1.0, 0.0], atol=1e-9)


@pytest.mark.parametrize("shape", [(3, 7), (12, 5)])
def test_no_answer_beats_an_equilibrium(shape):
    rng = np.random.default_rng(0)
    matrix, p, q = rng.normal(size=shape), rng.normal(size=shape[0]), rng.normal(size=shape[1])
    x, y = equilibrium(matrix, p, q)
    gap = np.max(matrix.T @ x - q) + p @ x - (np.min(matrix @ y + p) - q @ y)
    assert abs(gap) < 1e-9


def test_payoffs_that_are_no_numbers_give_uniform_strategies():
    x, y = equilibrium(np.full((2, 4), np.nan), np.zeros(2), np.zeros(4))
    np.testing.assert_allclose(x, [0.5, 0.5])
    np.testing.assert_allclose(y, np.full(4, 0.25))


@pytest.mark.parametrize(
    ("rows", "budget", "chosen"),
    [
        (10, BUDGET, NoisyMatrix),
        (100, BUDGET, SampledDualAveraging),
        (300, BUDGET, SampledDualAveraging),
        (1000, BUDGET, SampledDualAveraging),
        (10, Budget(1.0, 0.0), SampledDualAveraging),
        (10, Budget(float("inf"), 1e-6), NoisyMatrix),
    ],
)
def test_auto_weighs_typical_gaps(rows, budget, chosen):
    choice = choose_game("auto", task(rows, budget=budget, offsets=True))
    assert type(choice.solver) is chosen
    assert choice.reason
    game = BilinearGame(rows=rows, columns=rows, offsets=True)
    plan = privopt.plan(
        game, n=20_000, d=game.width, epsilon=budget.epsilon, delta=budget.delta, solver="auto"
    ).default
    assert plan.solver == choice.solver.title
    assert "'auto' because" in str(plan)


def test_auto_takes_noisy_gradients_between_the_two():
    assert type(choose_game("auto", task(30, offsets=True)).solver) is NoisyExponentiatedGradient


def test_auto_prefers_noise_to_draws_where_it_is_not_much_worse():
    choice = choose_game("auto", task(30, n=5000, offsets=True))
    assert type(choice.solver) is NoisyMatrix
    assert "on the games that were measured" in choice.reason
    assert "does not depend on the records" in choice.reason


@pytest.mark.parametrize(("rows", "n"), [(30, 5000), (300, 10_000)])
def test_auto_takes_the_matrix_of_a_game_without_offsets(rows, n):
    """Drawn vertices end at 0.214 on 6 types of 30 actions, noise at 0.044, see docs/benchmarks-games.md."""
    choice = choose_game("auto", task(rows, n=n))
    assert type(choice.solver) is NoisyMatrix
    assert "without offsets" in choice.reason


def test_auto_descends_where_the_noise_in_the_matrix_is_as_large_as_payoffs():
    """300 actions, n = 10 000: 0.032 where the noisy matrix has 0.047 and the uniform strategies 0.028."""
    choice = choose_game("auto", task(300, n=10_000, budget=Budget(0.3, 1e-6)))
    assert type(choice.solver) is SaddleGradientDescent
    assert "as large as the payoffs" in choice.reason


def bent(curvatures, size=60, n=8000, budget=BUDGET):
    """A game of the user's own that is bent as stated."""
    game = SaddleProblem(
        bent_payoff,
        x=Simplex(),
        y=Simplex(),
        sizes=(size, size),
        half_ranges=(1.0, 1.0),
        curvatures=curvatures,
    )
    return Task(game, Public(n=n, d=2 * size), budget)


def bent_payoff(x, y, features, target):
    del target
    u, v = jnp.split(features, 2)
    return 0.25 * (x @ x - y @ y) - 0.1 * (u @ x - v @ y) + (u @ x) * (v @ y)


@pytest.mark.parametrize(("size", "epsilon"), [(10, 1.0), (60, 0.3), (60, 3.0), (1000, 1.0)])
def test_auto_takes_the_extragradient_method_where_both_curvatures_are_stated(size, epsilon):
    choice = choose_game("auto", bent((0.5, 0.5), size=size, budget=Budget(epsilon, 1e-6)))
    assert type(choice.solver) is NoisyExtragradient
    assert "its typical gap" in choice.reason


@pytest.mark.parametrize("curvatures", [(0.5, 0.0), (0.0, 0.0)])
def test_auto_draws_where_a_player_may_be_linear(curvatures):
    assert type(choose_game("auto", bent(curvatures)).solver) is SampledDualAveraging


@pytest.mark.audit
def test_the_extragradient_method_is_ahead_of_drawn_vertices_on_a_game_that_bends():
    rng = np.random.default_rng(0)
    size, n = 10, 4000
    kinds = rng.integers(6, size=n)
    signs = np.where(rng.random((n, 2 * size)) < rng.uniform(0.05, 0.95, (6, 2 * size))[kinds], 1.0, -1.0)
    units = Units.from_arrays(signs, row_bound=np.sqrt(2.0 * size) * 1.001)
    matrix, tilts = signs[:, :size].T @ signs[:, size:] / n, 0.1 * signs.mean(0)
    game = bent((0.5, 0.5), size=size).problem

    def gap(x, y):
        with double_precision():
            best_y = np.asarray(Simplex().project(jnp.asarray((matrix.T @ x + tilts[size:]) / 0.5)))
            best_x = np.asarray(Simplex().project(jnp.asarray((tilts[:size] - matrix @ y) / 0.5)))

        def value(x, y):
            return 0.25 * (x @ x - y @ y) - tilts[:size] @ x + tilts[size:] @ y + x @ matrix @ y

        return float(value(x, best_y) - value(best_x, y))

    gaps = [
        gap(*privopt.minimax(game, units, budget=BUDGET, solver=solver, random_state=0).params)
        for solver in (NoisyExtragradient(), SampledDualAveraging())
    ]
    assert gaps[0] < 0.5 * gaps[1]


def test_every_step_of_the_extragradient_method_asks_twice_for_each_player():
    solver = NoisyExtragradient(steps=3).configure(bent((0.5, 0.5), size=4))
    assert solver.releases() == 12
    bound = solver.plan(bent((0.5, 0.5), size=4)).bound
    assert bound is not None
    assert "concave" in bound.condition


def test_auto_never_takes_a_matrix_that_is_none():
    own = SaddleProblem(lambda x, y, f, t: x @ f[:2] * y[0], x=L1Ball(1.0), y=Simplex(), sizes=(2, 2))
    for epsilon in (0.1, 1.0, 10.0, float("inf")):
        choice = choose_game("auto", Task(own, Public(n=500, d=2), Budget(epsilon, 1e-6)))
        assert not isinstance(choice.solver, NoisyMatrix)


def test_every_solver_has_a_plan_or_a_reason():
    game = BilinearGame(rows=5, columns=6, offsets=True)
    plans = privopt.plan(game, n=300, d=game.width, epsilon=1.0, delta=1e-6)
    named = {plan.solver for plan in plans.plans} | {name for name, _ in plans.refused}
    assert len(named) == len(GAME_SOLVERS)
    assert all(plan.epsilon <= 1.0 for plan in plans.plans)


def test_without_a_delta_solvers_that_need_gaussian_noise_are_refused():
    plans = privopt.plan(BilinearGame(rows=5, columns=6), n=300, d=11, epsilon=1.0, delta=0.0)
    assert plans.default.solver == "sampled-dual-averaging"
    assert {"noisy-matrix", "saddle-gradient-descent"} <= {name for name, _ in plans.refused}


def dominated(n=400):
    """Row 1 always pays less, column 0 always more."""
    game = BilinearGame(rows=2, columns=2, offsets=True)
    row = [0.2, -1.0, 1.0, -0.5, 0.5, -0.9, -0.9, 0.9]
    return game, Units.from_arrays(np.tile(row, (n, 1)), row_bound=game.row_bound)


@pytest.mark.later("noisy-extragradient", "saddle-gradient-descent", "sampled-dual-averaging")
@pytest.mark.parametrize(
    "solver",
    [
        SampledDualAveraging(steps=40),
        SaddleMirrorDescent(steps=60),
        SaddleGradientDescent(steps=40),
        NoisyExtragradient(),
        NoisyExponentiatedGradient(steps=40),
        BestResponse(steps=40),
        NoisyMatrix(),
    ],
    ids=lambda solver: solver.title,
)
def test_every_solver_leaves_dominated_strategies(solver):
    game, units = dominated(2000)
    result = privopt.minimax(game, units, budget=Budget(50.0, 1e-6), solver=solver, random_state=0)
    x, y = result.params
    assert x[1] > 0.6
    assert y[0] > 0.6


def test_a_clip_below_the_longest_gradient_reads_the_records():
    game = BilinearGame(rows=3, columns=2)
    units = Units.from_arrays(np.random.default_rng(0).choice([-1.0, 1.0], (50, 5)), row_bound=3.0)
    for clip, asked in ((0.4, "PlayerSlope"), (None, "PayoffSlope")):
        solver = SaddleGradientDescent(steps=3, clip_x=clip, clip_y=clip)
        solver = solver.configure(Task(game, units.public, Budget(5.0, 1e-6)))
        result = solver.solve(LocalCurator(units, Unlimited(Relation.REPLACE_ONE)), game)
        assert {release.name for release in result.transcript} == {asked}


@pytest.mark.audit
def test_without_noise_descent_and_exponentiated_gradient_find_the_saddle_point():
    rng = np.random.default_rng(3)
    game = BilinearGame(rows=6, columns=5)
    records = rng.choice([-1.0, 1.0], (300, 11))
    units = Units.from_arrays(records, row_bound=game.row_bound)
    payoff = records[:, :6].T @ records[:, 6:] / 300
    free = Budget(float("inf"), 1e-6)
    for solver in (
        SaddleGradientDescent(steps=150),
        NoisyExponentiatedGradient(),
        NoisyExtragradient(steps=200),
        BestResponse(steps=300),
    ):
        x, y = privopt.minimax(game, units, budget=free, solver=solver).params
        assert np.max(payoff.T @ x) - np.min(payoff @ y) < 0.03
    x, y = privopt.minimax(game, units, budget=free).params
    assert np.max(payoff.T @ x) - np.min(payoff @ y) < 1e-6


def test_a_set_is_that_of_its_vertices():
    with double_precision():
        far = jnp.asarray([3.0, -1.0])
        for constraint in (Simplex(2.0), L1Ball(1.5), Box(-1.0, 1.0)):
            hull = set_of(vertices_of(constraint, 2))
            np.testing.assert_allclose(hull.project(far), constraint.project(far), atol=1e-6)


@pytest.mark.parametrize("relation", list(Relation))
def test_the_stated_length_of_a_slope_is_attained_up_to_rounding(relation):
    """One record pays (1, 1, -1, -1), nobody else anything: a statement 0.2 % too small would be caught."""
    game, n = BilinearGame(rows=4, columns=1), 12
    left, right = np.zeros((n, 5)), np.zeros((n, 5))
    right[0] = [1.0, 1.0, -1.0, -1.0, 1.0]
    if relation is Relation.REPLACE_ONE:
        left[0] = [-1.0, -1.0, 1.0, 1.0, 1.0]
    values = []
    for rows in (left, right):
        units = Units.from_arrays(rows, relation=relation, row_bound=3.0, n=n)
        curator = LocalCurator(units, Unlimited(relation))
        asked = PayoffSlope(mean=curator.hold_mean(PayoffMeans(game=game)), who="x", play=np.ones(1))
        values.append(np.asarray(curator.private_value(asked, EveryUnit(), None)))
    moved = np.linalg.norm(values[1] - values[0])
    assert 0.999 < moved / float(asked.sensitivity(units.public)) <= 1.0


def test_a_second_run_compiles_nothing_for_a_matrix_game(monkeypatch):
    game = BilinearGame(rows=9, columns=8)
    units = Units.from_arrays(np.random.default_rng(0).choice([-1.0, 1.0], (60, 17)), row_bound=5.0)
    compiled: list[str] = []
    import jax

    def listen(event, _, **details):
        if event == "/jax/core/compile/backend_compile_duration":
            compiled.append(str(details.get("fun_name")))

    privopt.minimax(game, units, budget=BUDGET, solver=SampledDualAveraging(steps=5))
    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        privopt.minimax(game, units, budget=Budget(3.0, 1e-6), solver=SampledDualAveraging(steps=7))
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)
    assert compiled == []


def test_an_instance_without_a_seed_differs_from_run_to_run():
    game, units = dominated()
    solver = SampledDualAveraging(steps=20).configure(Task(game, units.public, BUDGET))
    found = [
        solver.solve(LocalCurator(units, Unlimited(Relation.REPLACE_ONE), noise=NoiseSource()), game)
        for _ in range(2)
    ]
    drawn = [[release.released.tolist() for release in one.transcript] for one in found]
    assert drawn[0] != drawn[1]
