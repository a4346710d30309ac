"""Estimators with a solver that chooses its releases as it goes: alone, after estimated bounds, and within searches."""

import json
import math
from typing import Any

import numpy as np
import pytest

from privopt import Account, LinearRegression, LogisticRegression, PrivateSearchCV
from privopt.solvers import Whitening
from privopt.solvers.adaptive_gradient_descent import AdaptiveGradientDescent

BUDGET: dict[str, Any] = {"epsilon": 2.0, "delta": 1e-6}
COMMON: dict[str, Any] = {"classes": (0, 1), "random_state": 0}
N = 400
SOLVER = AdaptiveGradientDescent(most_steps=25, window=5)


@pytest.fixture(scope="module")
def records() -> tuple[Any, Any]:
    source = np.random.default_rng(0)
    features = source.normal(size=(N, 3))
    return features, (features[:, 0] + 0.5 * source.normal(size=N) > 0).astype(int)


def checked(model: Any, fits: int = 1) -> None:
    """The price is the budget's, the plan held all releases, and each fit has a filter of its own."""
    report = model.privacy_
    assert 0.999 * 2.0 <= report.epsilon <= 2.0
    assert report.count <= model.plan_.releases
    filters = [group.filter for group in report.releases if group.filter is not None]
    assert len({use.number for use in filters}) == fits
    assert all(use.used is not None and 0.0 < use.used <= 1.0 + 1e-9 for use in filters)
    assert "chosen as the run went" in " ".join(str(report).split())
    json.dumps(report.to_dict(), allow_nan=False)


@pytest.mark.later("bounds", "loose-bounds")
@pytest.mark.parametrize(
    "more",
    [
        {"bounds": (-4, 4)},
        {"loose_bounds": (-100, 100)},
        {"bounds": (-4, 4), "relation": "add-or-remove-one", "n": N},
        {"bounds": (-4, 4), "account": Account(3.0, 1e-5)},
    ],
    ids=["bounds", "loose-bounds", "add-or-remove", "account"],
)
def test_a_classifier_keeps_its_budget(records: tuple[Any, Any], more: dict[str, Any]) -> None:
    model = LogisticRegression(solver=SOLVER, **BUDGET, **COMMON, **more).fit(*records)
    checked(model)
    made = model.privacy_.count - 1 - ("loose_bounds" in more)  # the usable records are counted first
    assert model.n_iter_ == made <= 25
    assert np.all(np.isfinite(model.coef_))


def test_users_are_protected_whole(records: tuple[Any, Any]) -> None:
    model = LogisticRegression(solver=SOLVER, bounds=(-4, 4), **BUDGET, **COMMON)
    checked(model.fit(*records, groups=np.arange(N) // 2))


def test_a_regression_is_fitted_by_name_of_a_configured_solver(records: tuple[Any, Any]) -> None:
    features, _ = records
    model = LinearRegression(solver=SOLVER, bounds=(-4, 4), target_bounds=(-4, 4), random_state=0, **BUDGET)
    checked(model.fit(features, features[:, 0]))


@pytest.mark.later("given")
@pytest.mark.parametrize(
    "bounds", [{"bounds": (-4, 4)}, {"loose_bounds": (-100, 100)}], ids=["given", "loose"]
)
def test_the_strength_of_the_penalty_is_chosen_privately(
    records: tuple[Any, Any], bounds: dict[str, Any]
) -> None:
    model = LogisticRegression(
        solver=SOLVER, penalty="l2", alpha="private", alphas=(0.01, 0.1), **bounds, **BUDGET, **COMMON
    )
    checked(model.fit(*records), fits=3)
    assert 1 <= model.n_iter_ <= 25


def test_candidates_with_different_solvers_are_compared(records: tuple[Any, Any]) -> None:
    search = PrivateSearchCV(
        LogisticRegression(bounds=(-4, 4), **COMMON),
        {"solver": [SOLVER, "gradient-descent"]},
        random_state=0,
        **BUDGET,
    )
    search.fit(*records)
    adaptive = 2 if search.best_index_ == 0 else 1
    checked(search, fits=adaptive)


@pytest.mark.audit
def test_it_runs_in_whitened_coordinates(records: tuple[Any, Any]) -> None:
    checked(
        LogisticRegression(solver=Whitening(inner=SOLVER), bounds=(-4, 4), **BUDGET, **COMMON).fit(*records)
    )


def test_without_privacy_all_steps_are_taken(records: tuple[Any, Any]) -> None:
    model = LogisticRegression(solver=SOLVER, bounds=(-4, 4), epsilon=math.inf, delta=1e-6, **COMMON)
    model.fit(*records)
    assert model.n_iter_ == 25
    assert math.isinf(model.privacy_.epsilon)
    _, group = model.privacy_.releases
    assert group.filter is not None
    assert group.filter.used is None
    json.dumps(model.privacy_.to_dict(), allow_nan=False)
