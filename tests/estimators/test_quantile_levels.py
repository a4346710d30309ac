"""The share of targets below a quantile fit is its level."""

import json
import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from privopt import QuantileRegressor
from privopt.data.units import Units
from privopt.ledger.amounts import Budget
from privopt.planning import counts, shrinkage
from privopt.planning.task import Instance
from privopt.problems import losses
from privopt.problems.problem import Problem
from privopt.queries.slopes import ClippedGradient
from privopt.solvers.gradient_descent import GradientDescent
from privopt.solvers.whitening import Whitening

LEVELS, EPSILONS = (0.05, 0.25, 0.5, 0.9, 0.95), (1.0, 10.0, math.inf)
TABLES = ("skewed", "tied", "california", "adult", "randhie")
COLUMNS = {
    "california": ("median_house_value", ("median_income", "housing_median_age", "latitude", "longitude")),
    "adult": ("hours_per_week", ("age", "education_num", "capital_gain")),
    "randhie": ("lnmeddol", ("age", "educdec", "disea", "mhi")),
}
ROWS = 4_000


def skewed() -> tuple[np.ndarray, np.ndarray]:
    """Targets whose noise is skewed and grows with the first column."""
    generator = np.random.default_rng(3)
    features = generator.uniform(-1.0, 1.0, (ROWS, 6))
    noise = generator.exponential(0.1 * (1.5 + features[:, 0]))
    return features, np.clip(0.3 * features[:, 0] - 0.2 * features[:, 1] - 0.4 + noise, -1.0, 1.0)


def table(name: str, shared: Path) -> tuple[np.ndarray, np.ndarray]:
    """Features and targets scaled to [-1, 1] by their public ranges."""
    features, targets = skewed()
    if name in ("skewed", "tied"):
        return features, targets if name == "skewed" else np.round(10.0 * targets) / 10.0
    columns = json.loads((shared / "schema.json").read_text())[name]["columns"]
    target, used = COLUMNS[name]
    frame = pd.read_parquet(shared / f"{name}.parquet", columns=[target, *used]).dropna()
    frame = frame.sample(ROWS, random_state=0)

    def scaled(column: str) -> np.ndarray:
        low, high = columns[column]["low"], columns[column]["high"]
        return np.clip(2.0 * (frame[column].to_numpy(float) - low) / (high - low) - 1.0, -1.0, 1.0)

    return np.stack([scaled(column) for column in used], axis=1), scaled(target)


def reached(targets: np.ndarray, predicted: np.ndarray, level: float) -> float:
    """How far the level is from the shares of targets below, and at or below, the predictions."""
    below, within = np.mean(targets < predicted - 1e-4), np.mean(targets <= predicted + 1e-4)
    return max(below - level, level - within, 0.0)


def fitted(
    features: np.ndarray, targets: np.ndarray, level: float, epsilon: float, **options
) -> QuantileRegressor:
    common = {"bounds": (-1, 1), "target_bounds": (-1, 1), "delta": 1.0 / ROWS**2, "random_state": 0}
    return QuantileRegressor(quantile=level, epsilon=epsilon, **common, **options).fit(features, targets)


def noise_of(epsilon: float) -> float:
    """Standard deviation of a released share."""
    instance = Instance(_PROBLEM, _units().public, Budget(epsilon, 1.0 / ROWS**2))
    if not instance.is_private:
        return 0.0
    share = counts.default_share(instance)
    return math.sqrt(counts.STEPS / share) / (ROWS * instance.mu)


_PROBLEM = Problem(losses.quantile(0.25, 0.1), constant=2)


def _units() -> Units:
    generator = np.random.default_rng(0)
    rows = np.hstack([generator.uniform(-1.0, 1.0, (ROWS, 2)), np.ones((ROWS, 1))])
    return Units.from_arrays(rows, generator.uniform(-1.0, 1.0, ROWS), relation="replace-one", row_bound=2.0)


@pytest.mark.audit
@pytest.mark.parametrize(("name", "level"), [(name, level) for name in TABLES for level in LEVELS])
def test_the_share_of_targets_below_the_fit_is_its_level(name, level, request):
    shared = Path() if name in ("skewed", "tied") else request.getfixturevalue("shared_data")
    features, targets = table(name, shared)
    for epsilon in EPSILONS:
        off = reached(targets, fitted(features, targets, level, epsilon).predict(features), level)
        assert off < 4.0 * noise_of(epsilon) + 0.002


@pytest.mark.audit
def test_the_level_is_right_although_the_corner_is_smooth():
    features, targets = skewed()
    for level, epsilon in ((0.05, 1.0), (0.9, math.inf)):
        model = fitted(features, targets, level, epsilon)
        assert reached(targets, model.predict(features), level) < 4.0 * noise_of(epsilon) + 0.002
        assert model.plan_.releases == model.n_iter_ + math.isinf(epsilon)  # which counts the usable records
        assert any("is set to" in notice for notice in model.plan_.notices)


def test_without_the_shares_the_level_is_wrong_and_the_plan_says_so():
    features, targets = skewed()
    solver = GradientDescent(steps=300)
    model = fitted(features, targets, 0.05, math.inf, solver=solver)
    assert reached(targets, model.predict(features), 0.05) > 0.02
    assert any("may be off its level 0.05" in notice for notice in model.plan_.notices)


def test_a_share_moves_by_one_over_n_and_no_more():
    units = _units()
    instance = Instance(_PROBLEM, units.public, Budget(1.0, 1e-6))
    query = ClippedGradient(loss=losses.quantile(0.25), at=np.array([1e6, 0.1]), clip=0.75 * (1.0 + 1e-5))
    assert float(query.sensitivity(units.public)) <= 2.0 * 0.75 * (1.0 + 1e-4) / ROWS
    solver = Whitening().configure(instance)
    assert solver.quantile_share == counts.LEAST_SHARE
    assert solver.releases() == 1 + solver.inner.releases() + shrinkage.STEPS + counts.STEPS


def test_the_interval_is_halved_towards_the_level():
    assert counts.halved(-0.5, 0.5, -0.2) == (0.0, 0.5)
    assert counts.halved(-0.5, 0.5, 0.2) == (-0.5, 0.0)
    assert counts.halved(-0.5, 0.5, math.nan) == (-0.5, 0.5)


def test_the_share_is_for_quantiles_of_records_with_an_intercept():
    units = _units()
    for problem in (Problem(losses.quantile(0.25, 0.1)), Problem(losses.huber(0.2), constant=2)):
        assert counts.default_share(Instance(problem, units.public, Budget(1.0, 1e-6))) == 0.0
        assert "quantile_share" in str(Whitening(quantile_share=0.1).obstacle(problem, units.public))
