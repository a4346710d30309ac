"""The benchmark runner measures a cell, keeps it, and renders it; nothing here depends on how fast it is."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from benchmarks import (
    auto,
    auto_problems,
    correlated,
    eager,
    groups,
    inventory,
    kl,
    kl_data,
    kl_methods,
    methods,
    nonsmooth,
    own_losses,
    panel_tables,
    planned,
    robust,
    synthetic,
    tables,
    users,
)
from benchmarks.bars import verdicts
from benchmarks.cells import Task, measure
from benchmarks.encoded import encode, open_encoded
from benchmarks.results import append, read

from privopt.data.units import Units
from privopt.planning.task import Instance
from privopt.precision import double_precision


@pytest.fixture(scope="module")
def small_adult(shared_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return encode("adult", shared_data, tmp_path_factory.mktemp("encoded"), rows=1500)


@pytest.mark.audit
def test_a_cell_is_measured_against_the_optimum_of_the_same_rows(small_adult: Path, tmp_path: Path) -> None:
    common = {"encoded": str(small_adult), "optima": str(tmp_path)}
    (plain,) = measure(Task(method=methods.PLAIN, **common))
    (private,) = measure(Task(method=methods.DEFAULT, epsilons=(1.0,), seeds=2, **common))
    assert plain["n"] == private["n"] == open_encoded(small_adult).rows == 1500
    assert plain["optimum_gradient_norm"] < 1e-5
    assert 0.0 < private["excess"] < math.log(2.0) - plain["optimum_loss"]
    assert private["accuracy"] > 0.7
    assert private["spent_epsilon"] <= 1.0
    assert private["delta"] == 1.0 / 1500**2


def test_the_last_result_of_a_cell_counts_and_is_rendered(tmp_path: Path) -> None:
    cell = {"benchmark": "accuracy", "data": "adult", "method": methods.DEFAULT, "relation": "replace-one"}
    measured = {"predicted_excess": 0.2, "objective_excess": 0.1, "predicted_over_measured": 2.0}
    for accuracy in (0.5, 0.8501234567):
        append({**cell, **measured, "epsilon": 1.0, "accuracy": accuracy, "accuracy_sd": None}, tmp_path)
    records = read(tmp_path)
    assert [record["accuracy"] for record in records] == [0.850123]
    page = "a\n<!-- table: accuracy-replace-one -->\nold\n<!-- end of table -->\nb\n"
    rendered = tables.render(records, page)
    assert "old" not in rendered
    assert "| adult | 1 | 0.8501 |" in rendered
    assert tables.render(records, rendered) == rendered
    (verdict,) = verdicts(records)
    assert verdict.met
    assert str(verdict).startswith("pass")


@pytest.mark.parametrize(
    "place",
    [
        tables.PAGE,
        correlated.PAGE,
        kl.PAGE,
        nonsmooth.PAGE,
        own_losses.PAGE,
        panel_tables.PAGE,
        auto.PAGE,
        robust.PAGE,
        users.PAGE,
        groups.PAGE,
        synthetic.PAGE,
    ],
    ids=lambda place: place.stem,
)
def test_every_marked_table_of_a_page_can_be_rendered(place: Path) -> None:
    page = place.read_text(encoding="utf-8")
    marked = [found["name"] for found in tables.MARK.finditer(page)]
    assert len(marked) == page.count("<!-- table: ") > 0
    assert tables.MARK.sub("", tables.render([], page)) == tables.MARK.sub("", page)


@pytest.mark.audit
def test_groups_are_measured_and_judged() -> None:
    sets = [groups.generated("generated, d = 50", 1, rows=400)]
    records = [groups.measured(sets, method, 1.0) for method in (groups.PLAIN, groups.FAIR)]
    assert all(0.3 < one["mean_loss"] <= one["worst_loss"] < 2.0 for one in records)
    assert [row[2] for row in groups.table_rows(records)] == [groups.FAIR, groups.PLAIN]
    (verdict,) = groups.verdicts(records)
    assert verdict.measured == records[1]["worst_loss"]


@pytest.fixture(scope="module")
def small_generated(tmp_path_factory: pytest.TempPathFactory) -> kl_data.Case:
    return kl_data.case("generated", tmp_path_factory.mktemp("no-data"), rows=500)


@pytest.mark.audit
def test_a_cell_of_the_kl_comparison_has_the_excess_over_the_optimum(small_generated: kl_data.Case) -> None:
    problem = small_generated
    auto = kl.cell(problem, kl_methods.AUTO, 4.0, seeds=2, quick=True)
    tuned = kl.cell(problem, kl_methods.TUNED, 4.0, seeds=1, quick=True)
    for record in (auto, tuned):
        assert 0.0 < record["excess"] < record["start_excess"]
        assert record["n"] == 500
        assert record["delta"] == kl.DELTA
    assert auto["seeds"] == 2
    assert tuned["candidates"] == 4
    assert set(tuned["oracle"]) == {"steps", "step_size"}


def test_the_default_is_judged_cell_by_cell_against_the_tuned_baseline() -> None:
    def record(data: str, epsilon: float, method: str, excess: float) -> dict[str, object]:
        here = "kl" if method == kl_methods.TUNED else "own-losses"
        return {"benchmark": here, "data": data, "method": method, "epsilon": epsilon, "excess": excess}

    records = [
        record("leaky", 1.0, own_losses.AUTO, 0.5e-3),
        record("leaky", 1.0, kl_methods.TUNED, 2e-3),
        record("relu", 1.0, own_losses.AUTO, 1.0),
        record("relu", 1.0, own_losses.TUNED, 1.0),
    ]
    assert own_losses.ratios(records) == {("leaky", 1.0): 0.25, ("relu", 1.0): 1.0}
    mean, worst, *_, leaky = own_losses.verdicts(records)
    assert (mean.measured, worst.measured, leaky.measured) == (0.5, 1.0, 0.5)
    assert mean.met
    assert leaky.met
    assert own_losses.ratio_rows(records)[0] == ["leaky", "yes", "", "0.25", ""]


def test_no_parameters_are_below_the_certified_optimum(small_generated: kl_data.Case) -> None:
    problem = small_generated
    rng = np.random.default_rng(0)
    truth = kl_data.generated(500)[1]
    near = min(problem.objective(truth + scale * rng.normal(size=20)) for scale in (0.0, 0.1, 1.0))
    assert problem.best < near < problem.objective(problem.start) + 1.0
    params, step = np.zeros(20), 1.0 / problem.curvature
    for _ in range(20_000):
        params = params - step * problem.gradient(params)
    assert problem.best - 1e-9 <= problem.objective(params) <= problem.best + 1e-3


def test_the_growth_told_to_kl_spider_holds_along_a_run(small_generated: kl_data.Case) -> None:
    problem = small_generated
    known = kl_methods.growth(problem)
    params = np.zeros(20)
    for _ in range(50):
        slope = problem.gradient(params)
        assert problem.objective(params) - problem.best <= known.excess_at(float(np.linalg.norm(slope))) * (
            1 + 1e-9
        )
        params = params - slope / problem.curvature


def test_the_losses_of_the_users_own_have_the_gradients_of_their_mean(tmp_path: Path) -> None:
    problem = kl_data.case("leaky", tmp_path, rows=50)
    params, direction = np.linspace(-1.0, 1.0, 20), np.linspace(1.0, 2.0, 20)
    change = problem.objective(params + 1e-5 * direction) - problem.objective(params - 1e-5 * direction)
    assert change / 2e-5 == pytest.approx(float(problem.gradient(params) @ direction), rel=1e-6)
    assert problem.objective(kl_data.generated(50)[1]) >= 0.0 == problem.best
    at_truth = problem.objective(kl_data.generated(20_000)[1])
    assert at_truth == pytest.approx(0.0, abs=1e-20)


def test_the_bars_of_the_kl_comparison_are_means_of_ratios() -> None:
    def record(method: str, epsilon: float, excess: float) -> dict[str, object]:
        return {"benchmark": "kl", "data": "adult", "method": method, "epsilon": epsilon, "excess": excess}

    records = [
        *(record(kl_methods.TUNED, epsilon, 1.0) for epsilon in (0.5, 1.0, 2.0)),
        *(
            record(kl_methods.AUTO, epsilon, excess)
            for epsilon, excess in ((0.5, 1.2), (1.0, 0.1), (2.0, 0.4))
        ),
    ]
    large, large_geometric, *convex, small, small_geometric = list(kl.verdicts(records))[:6]
    assert [verdict.measured for verdict in convex[:2]] == [large.measured, large_geometric.measured]
    assert (large.measured, large.met) == (pytest.approx(0.25), True)
    assert large_geometric.measured == pytest.approx(0.2)
    assert (small.measured, small.met, small_geometric.met) == (pytest.approx(1.2), False, False)
    assert kl.worse_rows(records) == [["adult", "0.5", "1.20"]]
    page = "<!-- table: kl -->\n<!-- end of table -->\n"
    assert "| adult | auto |  | 1.2e+03 | 1e+02 | 4e+02 |  |" in tables.render(records, page)


def test_the_panel_of_auto_has_a_cell_of_every_family_and_no_cell_twice() -> None:
    cells = [(cell.family, cell.epsilon) for cell in auto.cells()]
    assert 40 <= len(cells) == len(set(cells))
    words = {family.split(",")[0] for family, _ in cells}
    assert {"curved game", "matrix game", "power 2", "sine", "largest entry by values", "ramp"} <= words


@pytest.mark.audit
def test_no_answer_beats_the_gap_that_the_panel_reports_for_a_curved_game() -> None:
    posed = auto_problems.curved(200, 4, 0)
    rows = np.asarray(posed.units.private_features)
    game: Any = posed.problem
    rng = np.random.default_rng(0)

    def value(x: Any, y: Any) -> float:
        return float(np.mean([game.payoff(x, y, row, 0.0) for row in rows]))

    x, y = rng.dirichlet(np.ones(4), 2)
    gap = posed.excess((x, y))
    answers = rng.dirichlet(np.full(4, 0.5), 10)
    seen = max(value(x, one) for one in answers) - min(value(one, y) for one in answers)
    assert 0.0 <= seen <= gap + 1e-6
    assert gap == pytest.approx(seen, abs=0.2)


def test_auto_is_judged_by_ratios_to_the_best_rival() -> None:
    def record(data: str, method: str, excess: float) -> dict[str, object]:
        cell = {"benchmark": "auto", "data": data, "epsilon": 1.0, "relation": "replace-one"}
        return {**cell, "method": method, "took": "one", "excess": excess, "excess_error": None}

    records = [
        record("a", auto.AUTO, 0.3),
        record("a", "one", 0.2),
        record("a", "broken", math.nan),
        record("b", auto.AUTO, 0.1),
        record("b", "two", 0.2),
    ]
    near, worst = auto.verdicts(records)
    assert (near.measured, near.met) == (0.5, False)
    assert (worst.measured, worst.met) == (pytest.approx(1.5), True)
    assert [row[-1] for row in auto.table_rows(records)] == ["**1.50**", "0.50"]


def test_an_eager_step_is_timed_from_release_to_release() -> None:
    units = eager.small_units()
    for solver, problem in eager.solvers(4)[:1]:
        configured = solver.configure(Instance(problem, units.public, eager.BUDGET))
        seconds = eager.step_seconds(configured, problem, units, seed=0)
        assert len(seconds) == 3
        assert min(seconds) > 0.0


def test_planned_seconds_are_put_beside_measured_ones() -> None:
    record = planned.fits(500, 6, 1)
    assert record["rows"] == 500
    assert record["planned_s"] > 0
    assert record["planned_over_measured"] == record["planned_s"] / record["fit_s"]
    assert planned.WIDTHS == (10, 54, 108, 511)


@pytest.mark.audit
def test_orthonormal_directions_stay_near_independent_ones_and_ahead_of_the_worst_case_clip() -> None:
    methods = {method.name: method for method in inventory.METHODS}
    wanted = ("orthonormal directions", "independent directions")
    worst = "independent directions, the worst case for a clip"
    problem = inventory.inventory(4)
    posed, costs = inventory.posed(problem), {}
    demands = problem.demands(inventory.UNITS, 0)
    units = Units.from_arrays(demands, np.zeros(len(demands)), row_bound=inventory.ROW_BOUND)
    for name in (*wanted, worst):
        by_rate = [
            problem.mean_cost(
                inventory.run(posed, problem.start, units, methods[name], 0.1, rate, 0), demands
            )
            for rate in (4.0, 16.0)
        ]
        costs[name] = min(by_rate)
    assert costs[wanted[0]] <= costs[wanted[1]] + 0.05
    assert all(costs[name] < costs[worst] - 0.1 for name in wanted)
    assert all(costs[name] < problem.mean_cost(problem.start, demands) - 0.5 for name in wanted)


def test_the_traced_inventory_costs_what_the_simulator_says() -> None:
    problem = inventory.inventory(2)
    demands = problem.demands(7, 3)
    with double_precision():
        found = inventory.posed(problem).objective(np.asarray(problem.start), demands, np.zeros(7))
    assert float(found) == pytest.approx(problem.mean_cost(problem.start, demands))
