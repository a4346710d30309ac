"""The solvers of docs/add-a-solver.md, beside the contract tests that they share with the library's own."""

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from examples.independent_columns import IndependentColumns
from examples.plain_descent import PlainDescent
from examples.sampled_descent import SampledDescent
from examples.streamed_descent import StreamedDescent
from examples.weights_game import WeightsGame

from privopt import BilinearGame, Budget, Problem, SyntheticData, Units, losses, minimax, minimize
from privopt.ledger.curves import gaussian_epsilon
from privopt.planning.task import Instance
from privopt.public import Public
from privopt.solvers.base import Solver
from privopt.solvers.program import Program
from privopt.testing import check_game, check_synthesizer

FOLDER = Path(__file__).resolve().parent.parent / "examples"
EXAMPLES = [PlainDescent(steps=100), SampledDescent(), StreamedDescent(steps=100)]
BUDGET = Budget(1.0, 1e-8)
TRUE = np.array([0.5, -1.0, 0.25])


def name_of(solver: Solver) -> str:
    return solver.name


def agreeing_units() -> Units:
    """Records with one common minimiser of their squared losses, so that a single pass can reach it, too."""
    rows = np.random.default_rng(0).normal(size=(4000, 3))
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    return Units.from_arrays(rows, rows @ TRUE, row_bound=1.0, storage="float64")


@pytest.mark.parametrize("solver", EXAMPLES, ids=name_of)
def test_without_privacy_an_example_reaches_the_optimum(solver: Solver) -> None:
    budget = Budget(math.inf, 1e-8)
    result = minimize(losses.squared, agreeing_units(), budget=budget, solver=solver.with_(clip=math.inf))
    np.testing.assert_allclose(result.params, TRUE, atol=1e-9)


@pytest.mark.later("streamed-descent")
@pytest.mark.parametrize("solver", EXAMPLES, ids=name_of)
def test_an_example_comes_near_the_optimum_within_its_budget(solver: Solver) -> None:
    result = minimize(losses.squared, agreeing_units(), budget=BUDGET, solver=solver, random_state=1)
    assert 0.999 * BUDGET.epsilon <= result.transcript.epsilon(BUDGET.delta) <= BUDGET.epsilon
    assert np.linalg.norm(np.asarray(result.params) - TRUE) < 0.3 * np.linalg.norm(TRUE)


def test_a_whole_stream_costs_one_gaussian_release() -> None:
    public = Public(n=4000, d=3)
    plan = replace(EXAMPLES[2], noise_multiplier=5.0).plan(Instance(Problem(losses.squared), public, BUDGET))
    assert plan.epsilon == gaussian_epsilon(1.0 / 5.0, BUDGET.delta)


@pytest.fixture
def compiled() -> Iterator[list[str]]:
    """Names of the programs compiled during a test."""
    names: list[str] = []

    def listen(event: str, _: float, **details: object) -> None:
        if event == "/jax/core/compile/backend_compile_duration":
            names.append(str(details.get("fun_name")))

    jax.monitoring.register_event_duration_secs_listener(listen)
    yield names
    jax.monitoring.unregister_event_duration_listener(listen)


def test_a_sampled_loop_with_another_clip_and_step_size_compiles_nothing_anew(compiled: list[str]) -> None:
    units, solver = agreeing_units(), SampledDescent(steps=20, noise_multiplier=60.0)
    for settings in ({"clip": 0.5, "step_size": 1.0}, {"clip": 0.7, "step_size": 0.9}):
        before = len(compiled)
        minimize(losses.squared, units, budget=BUDGET, solver=solver.with_(**settings), random_state=1)
    assert compiled
    assert len(compiled) == before


@pytest.mark.audit
def test_the_game_and_the_synthesizer_of_the_page_keep_their_promises() -> None:
    check_game(WeightsGame(rounds=5))
    check_synthesizer(IndependentColumns())


def test_the_game_of_the_page_finds_the_better_action() -> None:
    game = BilinearGame(rows=2, columns=2)
    payoffs = np.tile([1.0, -1.0, 1.0, 1.0], (500, 1))  # the second row costs x less, whatever y does
    units = Units.from_arrays(payoffs, row_bound=game.row_bound)
    x, _ = minimax(game, units, budget=Budget(3.0, 1e-6), solver=WeightsGame(), random_state=0).params
    assert x[1] > 0.9


def test_the_synthesizer_of_the_page_draws_its_marginals() -> None:
    table = {"fits": np.repeat([0, 1], [900, 100])}
    schema = {"columns": {"fits": {"kind": "flag"}}}
    asked = SyntheticData(
        schema, epsilon=3.0, delta=1e-6, n=1000, method=IndependentColumns(), random_state=0
    )
    assert asked.fit(table).sample(2000)["fits"].mean() == pytest.approx(0.1, abs=0.03)


def test_an_example_names_nothing_private_and_imports_no_data() -> None:
    everything: list[Program[Any]] = [*EXAMPLES, WeightsGame(), IndependentColumns()]
    for solver in everything:
        source = (FOLDER / f"{type(solver).__module__.rpartition('.')[2]}.py").read_text(encoding="utf-8")
        assert not [word for word in ("private_", "privopt.data", "privopt.engine") if word in source]
