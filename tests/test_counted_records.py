"""The number of usable records where no released moment tells it: counted for 1 % of the budget, or not at all."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from privopt import LassoClassifier, LinearRegression, LogisticRegression
from privopt.data.units import Units
from privopt.engine.in_process import InProcessEngine
from privopt.engine.reference import ReferenceEngine
from privopt.estimators.selection import PrivateSearchCV
from privopt.ledger.amounts import Budget
from privopt.ledger.curves import gaussian_mu
from privopt.ledger.events import leaf_counts
from privopt.planning.row_length import count_multiplier
from privopt.public import Public, Relation
from privopt.queries.moments import SecondMoment, TotalWeight, UsableUnits, unpack
from privopt.replays.check import replayed
from privopt.solvers.gradient_descent import GradientDescent
from privopt.verification.checks import Outcome

ROWS, WIDTH = 2_000, 4
CAUSES = "Usual causes: labels in another spelling than the declared ones"
WAYS: dict[str, dict[str, Any]] = {
    "a named solver": {"solver": "gradient-descent"},
    "a sampled solver": {"solver": "stochastic-gradient-descent"},
    "one release": {"solver": "objective-perturbation"},
    "no intercept": {"fit_intercept": False},
    "rows of length 1": {"row_bound": "unit"},
    "an l1 penalty": {"penalty": "l1"},
    "an l1 ball": {"kind": LassoClassifier, "radius": 3.0},
    "loose bounds": {"bounds": None, "loose_bounds": (-100, 100), "solver": "gradient-descent"},
    "without noise": {"epsilon": math.inf},
    "targets to predict": {"kind": LinearRegression, "target_bounds": (0, 1), "solver": "gradient-descent"},
}


def table() -> tuple[Any, Any]:
    draw = np.random.default_rng(5)
    features = draw.uniform(-1.0, 1.0, (ROWS, WIDTH))
    return features, (features[:, 0] > draw.logistic(size=ROWS) / 4).astype(float)


def made(kind: Any = LogisticRegression, **options: Any) -> Any:
    declared: dict[str, Any] = {"epsilon": 1.0, "delta": 1e-6, "bounds": (-1, 1), "random_state": 3}
    labels: dict[str, Any] = {} if kind is LinearRegression else {"classes": [0, 1]}
    return kind(**declared | labels | options)


def with_gaps(y: Any) -> Any:
    """Every other target is missing."""
    return np.where(np.arange(ROWS) % 2, y, np.nan)


@pytest.mark.at_once("targets to predict-replace-one")
@pytest.mark.parametrize("relation", ["replace-one", "add-or-remove-one"])
@pytest.mark.parametrize("way", WAYS)
def test_every_fit_tells_how_many_records_it_could_use(way: str, relation: str, tmp_path: Path) -> None:
    features, y = table()
    model = made(**WAYS[way], relation=relation, n=ROWS)
    announced = model.plan(n_features=WIDTH)
    model.fit(features, with_gaps(y))
    plan, report = model.plan_, model.privacy_
    deviation = plan.indicators["usable"].value
    assert deviation == (0.0 if way == "without noise" else pytest.approx(42.2, rel=0.02))
    assert abs(model.usable_ - ROWS / 2) <= 4 * deviation
    assert plan.settings["count_share"] == 0.01
    assert announced.event == plan.event == report.event
    assert report.count == plan.releases == model.n_iter_ + 1 + ("scale_share" in plan.settings)
    assert [group.count for group in report.releases if group.name == "UsableUnits"] == [1]
    assert report.epsilon <= model.epsilon
    assert "give the number of usable records to about ± " in " ".join(str(plan).split())
    shown = " ".join(str(report).split())
    assert "of 2,000 records are usable, by a count, for 1 % of the budget" in shown
    assert CAUSES in shown
    assert CAUSES in report.to_html()
    assert report.to_dict()["findings"]["usable"]["value"] == model.usable_
    saved = report.save(tmp_path / "report.json", keep_releases=True)
    check = replayed(json.loads(saved.read_text()), tmp_path / "report.releases.safetensors")
    assert check is not None
    assert check.outcome is Outcome.HOLDS, check.sentence


def test_of_readable_records_nothing_is_noticed() -> None:
    model = made(solver="gradient-descent").fit(*table())
    assert abs(model.usable_ - ROWS) <= 4 * model.plan_.indicators["usable"].value
    assert CAUSES not in " ".join(str(model.privacy_).split())


def test_users_without_a_usable_record_are_not_counted() -> None:
    users = np.arange(ROWS) // 4
    features, y = table()
    model = made(solver="user-gradient-descent", epsilon=4.0, max_records_per_user=10)
    model.fit(features, np.where(users % 2, y, np.nan), groups=users)
    assert abs(model.usable_ - ROWS / 8) <= 4 * model.plan_.indicators["usable"].value
    assert "of 500 users are usable, by a count" in " ".join(str(model.privacy_).split())


def test_what_the_default_shows_anyway_is_not_counted() -> None:
    features, y = table()
    model = made().fit(features, y)
    assert "count_share" not in model.plan_.settings
    assert {group.name for group in model.privacy_.releases} == {"SecondMoment", "ClippedGradient"}
    wide = made().plan(n_features=400, n=500)  # where its trace would be noise, a count is not
    assert wide.settings["count_share"] == 0.01
    assert "by a count" in wide.indicators["usable"].meaning


@pytest.mark.parametrize(
    "options",
    [
        {"solver": GradientDescent(steps=0)},
        {"solver": GradientDescent(noise_multiplier=60.0)},
        {"solver": "gradient-descent", "epsilon": 0.01},
    ],
    ids=["nothing is released", "the noise is given", "noise would hide the number"],
)
def test_nothing_is_counted_where_that_would_be_of_no_use(options: dict[str, Any]) -> None:
    model = made(**options).fit(*table())
    assert model.usable_ is None
    assert "count_share" not in model.plan_.settings
    assert "usable" not in model.plan_.indicators


@pytest.mark.at_once("gradient-descent-True")
@pytest.mark.parametrize("loose", [False, True])
@pytest.mark.parametrize("solver", ["auto", "gradient-descent"])
def test_a_search_counts_once(solver: str, loose: bool) -> None:
    features, y = table()
    bounds: dict[str, Any] = {"loose_bounds": (-100, 100)} if loose else {"bounds": (-1, 1)}
    base = LogisticRegression(classes=[0, 1], solver=solver, **bounds)
    search = PrivateSearchCV(base, {"alpha": [1e-3, 1.0]}, epsilon=4.0, delta=1e-6, random_state=0)
    announced = search.plan(n_features=WIDTH, n=ROWS)
    chosen = search.fit(features, with_gaps(y)).best_estimator_
    assert announced.event == search.plan_.event
    assert 4.0 * (1 - 1e-3) <= search.privacy_.epsilon <= 4.0
    counts = [group.count for group in search.privacy_.releases if group.name == "UsableUnits"]
    assert counts == ([1] if solver == "gradient-descent" else [])
    assert abs(chosen.usable_ - ROWS / 2) < 200


def test_a_private_strength_says_which_share_it_has() -> None:
    model = made(penalty="l2", alpha="private", solver="gradient-descent").fit(*table())
    assert model.usable_ is not None
    assert "among 4 public ones for 49.5 % of the budget" in model.privacy_.selection.sentence


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 8.0])
def test_the_count_costs_one_percent(epsilon: float) -> None:
    multiplier = count_multiplier(Budget(epsilon, 1e-6))
    assert multiplier == pytest.approx(10.0 / gaussian_mu(epsilon, 1e-6))
    plan = made(solver="gradient-descent", epsilon=epsilon).plan(n_features=WIDTH, n=10**6)
    leaves: dict[Any, int] = dict(leaf_counts(plan.event)[0])
    counted = [
        times for event, times in leaves.items() if event.noise_multiplier == pytest.approx(multiplier)
    ]
    assert counted == [1]
    assert plan.epsilon == pytest.approx(epsilon, rel=1e-3)


@pytest.mark.later(
    "InProcessEngine-Relation.REPLACE_ONE-False",
    "ReferenceEngine-Relation.ADD_OR_REMOVE_ONE-True",
    "ReferenceEngine-Relation.REPLACE_ONE-False",
    "ReferenceEngine-Relation.REPLACE_ONE-True",
)
@pytest.mark.parametrize("by_user", [False, True])
@pytest.mark.parametrize("relation", list(Relation))
@pytest.mark.parametrize("engine", [InProcessEngine, ReferenceEngine])
def test_a_count_and_a_trace_mean_the_same(engine: Any, relation: Relation, by_user: bool) -> None:
    features, y = table()
    rows = np.column_stack([features, np.ones(ROWS)])
    users = np.arange(ROWS) // 4
    targets = np.where(users % 2, y, np.nan)
    targets[5::3] = 7.0
    units = Units.from_arrays(
        rows,
        targets,
        classes=[0, 1],
        groups=users if by_user else None,
        max_records_per_user=9,
        relation=relation,
        n=ROWS,
        row_bound=3.0,
    )
    engined = engine(units)
    trace = np.trace(np.asarray(unpack(engined.clipped_sum(SecondMoment(row_bound=1.0)), WIDTH + 1)))
    counted = float(engined.clipped_sum(UsableUnits()))
    usable = len(np.unique(users[np.isin(targets, [0, 1])])) if by_user else np.isin(targets, [0, 1]).sum()
    assert counted == usable
    assert trace == pytest.approx(usable, rel=1e-6)
    weight = float(engined.clipped_sum(TotalWeight()))
    assert weight == usable if not by_user else weight < usable


@pytest.mark.parametrize("relation", list(Relation))
@pytest.mark.parametrize("unit", ["record", "user"])
def test_one_unit_moves_the_count_by_one(relation: Relation, unit: str) -> None:
    public = Public(n=100, d=3, relation=relation, unit=unit)
    assert float(UsableUnits().sensitivity(public)) == 0.01
