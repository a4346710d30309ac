"""The panel: its halves are those that were drawn, its simulator is the library, its statistics are what they say."""

import math
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from benchmarks import panel, panel_oracles, panel_users
from benchmarks import panel_statistics as statistics
from benchmarks.panel_calibrated import calibrated
from benchmarks.panel_cells import Cell, Rule
from benchmarks.panel_halfway import halfway
from benchmarks.panel_problems import (
    CHOOSE,
    HALVES,
    JUDGE,
    PROBLEMS,
    STRATA,
    PanelArrays,
    PanelProblem,
    Target,
    arrays,
    drawn_halves,
)
from benchmarks.panel_rules import landed, whitened
from benchmarks.results import RESULTS, append, read

from privopt.engine.in_process import InProcessEngine
from privopt.estimators.linear import LogisticRegression
from privopt.estimators.records import Shape
from privopt.planning.whitening import SHARE, WhiteningRule
from privopt.queries.moments import unpack
from privopt.queries.slopes import ClippedGradient
from privopt.solve import minimize
from privopt.solvers.gradient_descent import GradientDescent
from privopt.solvers.objective_perturbation import ObjectivePerturbation
from privopt.solvers.whitening import Whitening


@pytest.fixture(autouse=True)
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Optima of these small cells are kept for one test only."""
    monkeypatch.setattr("benchmarks.panel_cells.SCRATCH", tmp_path)


def small(kind: str = "two classes", *, table: str = "compas", rows: int = 400, name: str = "small") -> Cell:
    """A cell of five columns; its table is on the half there is to choose on."""
    generator = np.random.default_rng(0)
    features = generator.uniform(-1, 1, size=(rows, 5)).astype(np.float32)
    score = 2.0 * features[:, 0] - features[:, 1] + 0.3 * generator.normal(size=rows)
    targets = {
        "two classes": (score > 0).astype(float),
        "classes": np.digitize(score, (-1.0, 1.0)).astype(float),
        "numbers": np.clip(score / 3.0, -1, 1),
        "counts": generator.poisson(np.exp(np.clip(score, -3, 2))).clip(0, 20).astype(float),
    }[kind]
    stored = PanelArrays(
        features=features,
        targets=targets,
        test_features=features[:10],
        test_targets=targets[:10],
        classes={"two classes": 2, "classes": 3}.get(kind, 0),
        most=20.0,
    )
    problem = PanelProblem(name=name, table=table, kind=kind, target=Target(column="none"))  # type: ignore[arg-type]
    return Cell(problem, stored, 1.0, seeds=3)


class Silent:
    """A generator of nothing but zeros."""

    def standard_normal(self, shape: Any) -> Any:
        return np.zeros(shape)


def test_the_halves_are_those_that_were_drawn() -> None:
    assert CHOOSE == (
        "adult", "anes96", "california", "clickbait", "compas", "fair", "fars", "mnist", "w8a",
    )  # fmt: skip
    assert JUDGE == (
        "breast_cancer", "covertype", "diabetes", "digits", "german", "hiva", "kdd99", "movietweetings", "randhie",
    )  # fmt: skip
    assert drawn_halves() == HALVES == dict.fromkeys(CHOOSE, "choose") | dict.fromkeys(JUDGE, "judge")
    for stratum in STRATA:
        assert {HALVES[table] for table in stratum} == {"choose", "judge"}


def test_problems_are_many_and_have_names_of_their_own() -> None:
    assert len(PROBLEMS) == len({one.name for one in PROBLEMS}) >= 60
    assert {one.kind for one in PROBLEMS} == {"two classes", "classes", "numbers", "counts"}
    assert {one.table for one in PROBLEMS} == {*CHOOSE, *JUDGE}
    assert sum(one.users for one in PROBLEMS) == 2


BUNDLED_OR_SMALL = ("compas", "german", "fair", "anes96", "diabetes", "digits", "breast_cancer", "california")


@pytest.mark.parametrize("table", BUNDLED_OR_SMALL)
def test_arrays_are_finite_and_within_their_bounds(table: str, shared_data: Path, tmp_path: Path) -> None:
    for problem in (one for one in PROBLEMS if one.table == table):
        found = arrays(problem, shared_data, tmp_path)
        assert len(found.features) == len(found.targets) <= problem.rows
        for features, targets in (
            (found.features, found.targets),
            (found.test_features, found.test_targets),
        ):
            assert np.isfinite(features).all()
            assert np.abs(features).max() <= 1.0
            if problem.kind in ("two classes", "classes"):
                assert set(np.unique(targets)) <= set(range(found.classes))
            elif problem.kind == "counts":
                assert 0.0 <= targets.min() <= targets.max() <= found.most
            else:
                assert np.abs(targets).max() <= 1.0
        if problem.kind == "two classes":
            assert found.classes == 2
            assert 0.0 < found.targets.mean() < 1.0


@pytest.mark.audit
@pytest.mark.parametrize(
    ("kind", "returns", "rule"),
    [
        ("two classes", "settled", landed),
        ("two classes", "corrected", partial(halfway, ridge=math.inf)),
        ("numbers", "settled", landed),
        ("classes", None, landed),
    ],
)
def test_the_simulator_is_the_library(kind: str, returns: Any, rule: Rule) -> None:
    """On the library's answers it takes the library's steps, and its own answers are the library's without noise."""
    cell = small(kind)
    cell.seeds = 1
    solver = Whitening(inner=GradientDescent(returns=returns), rescaling_share=0.0)
    result = minimize(
        cell.instance.problem, cell.units, budget=cell.instance.budget, solver=solver, random_state=0
    )
    first, *rest = list(result.transcript)
    answers = np.concatenate([one.released.reshape(one.count, *cell.start().shape[1:]) for one in rest])
    deviations = np.concatenate([one.scale for one in rest])
    cell._moments[SHARE] = np.asarray(unpack(first.released[0], cell.d))[None]
    exact, noise, asked = cell.gradients, cell.noise_of_one, []

    def answered(mapped, points, clip, *, balanced=False):  # type: ignore[no-untyped-def]
        own = exact(mapped, points, clip, balanced=balanced)
        if len(asked) in (0, 1, len(answers) - 1):
            engine = InProcessEngine(cell.units).view(mapped.matrix[0], float(mapped.longest[0]))
            query = ClippedGradient(
                loss=cell.loss, at=points[0], clip=float(np.ravel(clip)[0]), balanced=balanced
            )
            np.testing.assert_allclose(own[0], np.asarray(engine.clipped_sum(query)) / cell.n, atol=1e-5)
        asked.append(float(noise(clip, 1.0 - SHARE)[0]) * math.sqrt(len(answers)))
        return answers[len(asked) - 1][None]

    whitened(
        cell, WhiteningRule.of(cell.instance, SHARE), SHARE
    )  # the coordinates, before the draws are silenced
    cell.gradients, cell.generator = answered, lambda *purpose: Silent()  # type: ignore
    params = rule(cell)
    np.testing.assert_allclose(params[0], np.asarray(result.params), atol=1e-4)
    np.testing.assert_allclose(asked, deviations, rtol=2e-3)  # the library calibrates epsilon to three digits


@pytest.mark.audit
def test_the_default_of_two_classes_is_the_simulated_one() -> None:
    """The mean of many runs of the library against that of the simulator, in units of its standard error."""
    cell = small(rows=1_500)
    cell.seeds = 12
    options = {"classes": [0, 1], "epsilon": 1.0, "delta": 1.0 / cell.n**2, "bounds": (-1.0, 1.0)}
    shape = Shape(width=5, n=cell.n, by_user=False, budget=cell.instance.budget)
    problem = LogisticRegression(**options)._setup(shape, None).problem
    runs = [
        minimize(problem, cell.units, budget=cell.instance.budget, random_state=seed).params
        for seed in range(cell.seeds)
    ]
    theirs, ours = cell.excess(np.stack(runs)), cell.excess(calibrated(cell))
    error = math.hypot(np.std(theirs), np.std(ours)) / math.sqrt(cell.seeds)
    assert abs(np.mean(theirs) - np.mean(ours)) < 4.0 * error


def test_released_moments_have_the_noise_of_the_library() -> None:
    cell = small()
    cell.seeds = 2_000
    noise = cell.moment(SHARE) - cell.exact_moment
    upper = noise[:, *np.triu_indices(cell.d, 1)]
    diagonal = np.einsum("sii->si", noise)
    solver = Whitening().configure(cell.instance)
    scale = solver.noise_multiplier * math.sqrt(2.0) * cell.instance.public.row_bound**2 / cell.n
    np.testing.assert_allclose(noise, np.swapaxes(noise, 1, 2))
    assert np.std(diagonal) == pytest.approx(scale, rel=0.03)
    assert np.std(upper) == pytest.approx(scale / math.sqrt(2.0), rel=0.03)


@pytest.mark.audit
def test_oracles_are_no_worse_than_their_candidates() -> None:
    cell = small()
    setting, excess = panel_oracles.best_plain_descent(cell)
    one = panel_oracles.plain_descents(cell, 10, [(1.0, 1.0)], cell.seeds)
    assert excess.shape == (cell.seeds,)
    assert np.mean(excess) <= min(np.mean(cell.excess(params)) for params in one.values()) + 1e-9
    assert setting.steps in panel_oracles.STEPS
    chosen, best = panel_oracles.best_steps(cell)
    assert np.mean(best) <= np.mean(cell.excess(landed(cell, steps=panel_oracles.HINDSIGHT_STEPS[2]))) + 1e-9
    assert chosen.steps in panel_oracles.HINDSIGHT_STEPS
    assert list(panel_oracles.asked_of(small("classes"), {"dp-gd"})) == ["best T"]


@pytest.mark.audit
def test_perturbed_minimisers_are_those_of_the_library() -> None:
    cell = small()
    solver = ObjectivePerturbation().configure(cell.instance)
    query = solver.query(cell.instance.problem)
    tilt = np.random.default_rng(3).normal(size=cell.d) * cell.n * 0.02
    theirs = query.minimise(
        cell.instance.public,
        query.objective(cell.instance.public).over(
            np.asarray(cell.units.private_features), np.asarray(cell.units.private_targets)
        ),
        tilt,
        1e-6 * cell.n,
    )
    ours = panel_oracles.minimised(
        cell,
        tilts=tilt[None] / cell.n,
        ridges=np.full((1, cell.d), solver.ridge_total),
        clip=float(solver.clip),
    )
    np.testing.assert_allclose(ours[0], theirs, atol=2e-3 * np.abs(theirs).max())
    factor, excess = panel_oracles.best_perturbed_minimiser(cell)
    assert factor.factor in panel_oracles.RIDGE_FACTORS
    assert np.all(excess > 0)


def record(table: str, data: str, excess: float, **fields: object) -> dict[str, object]:
    common = {
        "benchmark": "panel",
        "what": "logistic",
        "kind": "two classes",
        "epsilon": 1.0,
        "method": "landed",
    }
    return {**common, "half": "choose", "table": table, "data": data, "excess": excess, **fields} | {
        "excesses": [excess * 0.5, excess * 1.5],
        "constant": 1.0,
        "constants": [1.0, 1.0],
    }


def test_tables_weigh_alike_however_many_cells_they_have() -> None:
    base = [record("a", f"a{k}", 1.0) for k in range(9)] + [record("b", "b0", 1.0)]
    rule = [record("a", f"a{k}", 1.0) for k in range(9)] + [record("b", "b0", 4.0)]
    found = statistics.ratios(statistics.by_cell(rule), statistics.by_cell(base))
    mean = statistics.overall(found)
    assert mean.value == pytest.approx(2.0)
    assert (mean.low, mean.high) == pytest.approx((1.0, 4.0))
    assert statistics.table_means(found) == pytest.approx({"a": 1.0, "b": 4.0})
    assert statistics.geometric_mean(found) == pytest.approx(4.0**0.1)
    assert statistics.share_above(found, 1.0).value == 0.5
    assert found[0].error == pytest.approx(0.0)  # paired seeds that agree
    above = [one for one in statistics.against_constant(statistics.by_cell(rule)) if one.ratio > 1.05]
    assert [one.data for one in above] == ["b0"]


def test_the_best_peer_is_chosen_cell_by_cell() -> None:
    fields = {"benchmark": "panel-oracles"}
    records = [
        record("a", "a0", 2.0, **fields, method="dp-gd"),
        record("a", "a0", 1.0, **fields, method="objective perturbation"),
        record("a", "a1", 1.0, **fields, method="dp-gd"),
        record("a", "a1", 0.1, **fields, method="best T"),
    ]
    best = statistics.best_peer(records, panel.PEERS)
    assert [(cell[0], one["method"], one["excess"]) for cell, one in best.items()] == [
        ("a0", "objective perturbation", 1.0),
        ("a1", "dp-gd", 1.0),
    ]


@pytest.fixture
def problems(monkeypatch: pytest.MonkeyPatch) -> dict[str, PanelProblem]:
    """One problem on each half, of the same small arrays."""
    made = {table: small(table=table, name=f"{table}: small") for table in ("compas", "german")}
    monkeypatch.setattr(panel, "arrays", lambda problem: made[problem.table].arrays)
    return {HALVES[table]: cell.problem for table, cell in made.items()}


@pytest.mark.audit
def test_a_run_is_kept_cell_by_cell_and_read_as_a_table(
    problems: dict[str, PanelProblem], tmp_path: Path
) -> None:
    both = tuple(problems.values())
    for one in panel.measure(quick=True, oracles=True, problems=both):
        append(one, tmp_path)
    records = read(tmp_path)
    assert {one["half"] for one in records} == {"choose"}
    assert sorted(one["method"] for one in records if one["epsilon"] == 1.0) == sorted(
        ["landed", *panel_oracles.ORACLES]
    )
    again = list(panel.measure(quick=True, oracles=True, problems=both, known=records))
    assert [one["method"] for one in again] == ["landed", "landed"]
    assert [one["excess"] for one in again] == pytest.approx(
        [one["excess"] for one in records if one["method"] == "landed"], rel=1e-5
    )
    text = panel.report(records, "choose", ["landed"])
    assert "landed, logistic, choose: excess over that of best tuned peer" in text
    assert "compas               2" in text
    assert panel.report(records, "judge", ["landed"]) == ""


def test_every_opening_of_the_judging_half_is_a_line(
    problems: dict[str, PanelProblem], tmp_path: Path
) -> None:
    both = tuple(problems.values())
    for _ in range(2):
        for one in panel.measure(half="judge", quick=True, problems=both, known=read(tmp_path)):
            append(one, tmp_path)
    lines = (tmp_path / "panel-openings.jsonl").read_text().splitlines()
    assert len(lines) == 4  # before and after each
    openings = [one for one in read(tmp_path) if one["benchmark"] == "panel-openings"]
    assert [one["rows"] for one in openings] == [1, 2]
    assert openings[0]["rule"] == (landed.__doc__ or "").splitlines()[0]
    assert openings[0]["cells"] == 2
    assert "cells above the constant model" in openings[1]


def test_a_cell_is_the_same_data_in_everything_that_was_measured_of_it() -> None:
    bests: dict[tuple[str, str, int, int], list[float]] = {}
    for one in read(RESULTS):
        if one["benchmark"] in ("panel", "panel-oracles", "panel-variants"):
            bests.setdefault((one["data"], one["what"], one["n"], one["d"]), []).append(one["best"])
    assert len({cell[:2] for cell in bests}) == len(bests) > 60
    for cell, found in bests.items():
        assert max(found) == pytest.approx(min(found), rel=1e-3, abs=1e-6), cell


@pytest.mark.audit
def test_peers_of_every_loss_are_measured_and_no_rule_is_run_without_a_name(
    problems: dict[str, PanelProblem], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(panel_oracles, "STEPS", (2, 3))
    both = tuple(problems.values())
    found = list(
        panel.measure(half="judge", rules=(), losses=("hinge",), oracles=True, quick=True, problems=both)
    )
    assert {(one["benchmark"], one["what"]) for one in found} == {("panel-oracles", "hinge")}
    assert {one["method"] for one in found} == {*panel_oracles.ORACLES}


def test_variants_stay_on_the_half_there_is_to_choose_on(problems: dict[str, PanelProblem]) -> None:
    both, name = tuple(problems.values()), "half the steps"
    found = list(panel.measure(rules=(name,), losses=("logistic", "hinge"), quick=True, problems=both))
    assert {(one["benchmark"], one["method"], one["what"]) for one in found} == {
        ("panel-variants", name, "logistic")
    }
    with pytest.raises(ValueError, match="Variants stay on the half"):
        next(panel.measure(half="judge", rules=("landed", name), problems=both))


@pytest.mark.audit
def test_whole_people_are_measured_against_a_base_rate() -> None:
    cell = small(rows=1_200)
    groups = np.arange(1_200) // 3
    record = panel_users.measure(cell.problem, replace(cell.arrays, groups=groups), 3.0, seeds=2)
    assert (record["n"], record["seeds"], len(record["excesses"])) == (400, 2, 2)
    assert 0.0 < record["excess"] < record["constant"] < math.log(2.0)
    signs, weights = 2.0 * cell.arrays.targets - 1.0, np.full(1_200, 1 / 1_200)
    found = panel_users.least(cell.arrays.features, signs, weights)
    assert found == pytest.approx(small(rows=1_200).best, abs=1e-5)
    with pytest.raises(ValueError, match="has no users"):
        panel_users.measure(cell.problem, cell.arrays, 1.0)
