"""Which fits are recognised as those of a search that compares raw scores: a public list."""

import re
from pathlib import Path
from typing import Any, ClassVar

import joblib
import pytest
from sklearn.experimental import enable_halving_search_cv  # noqa: F401
from sklearn.feature_selection import RFECV, SequentialFeatureSelector
from sklearn.model_selection import (
    GridSearchCV,
    HalvingGridSearchCV,
    HalvingRandomSearchCV,
    RandomizedSearchCV,
    TunedThresholdClassifierCV,
    cross_val_predict,
    cross_val_score,
    cross_validate,
    learning_curve,
    permutation_test_score,
    validation_curve,
)
from sklearn.pipeline import make_pipeline
from tests.support.configured_estimators import toy_data

from privopt.estimators.linear import LogisticRegression
from privopt.estimators.searched import SEARCHES
from privopt.solvers.gradient_descent import GradientDescent


class Watched(LogisticRegression):
    """Notes whether each fit was recognised as one of a search."""

    seen: ClassVar[list[bool]] = []

    def fit(self, X: Any, y: Any, **options: Any) -> Any:
        fitted = super().fit(X, y, **options)
        self.seen.append(fitted.privacy_.selection is not None)
        return fitted


CALLERS = {
    "GridSearchCV": lambda model, X, y: GridSearchCV(model, {"alpha": [0.001, 0.1]}, cv=2).fit(X, y),
    "RandomizedSearchCV": lambda model, X, y: RandomizedSearchCV(
        model, {"alpha": [0.001, 0.1]}, n_iter=1, cv=2
    ).fit(X, y),
    "HalvingGridSearchCV": lambda model, X, y: HalvingGridSearchCV(model, {"alpha": [0.001, 0.1]}, cv=2).fit(
        X, y
    ),
    "HalvingRandomSearchCV": lambda model, X, y: HalvingRandomSearchCV(
        model, {"alpha": [0.001, 0.1]}, n_candidates=2, cv=2
    ).fit(X, y),
    "RFECV": lambda model, X, y: RFECV(model, cv=2, min_features_to_select=2).fit(X, y),
    "SequentialFeatureSelector": lambda model, X, y: SequentialFeatureSelector(
        model, n_features_to_select=1, cv=2
    ).fit(X, y),
    "TunedThresholdClassifierCV": lambda model, X, y: TunedThresholdClassifierCV(model, cv=2).fit(X, y),
    "cross_val_score": lambda model, X, y: cross_val_score(model, X, y, cv=2),
    "cross_validate": lambda model, X, y: cross_validate(model, X, y, cv=2),
    "cross_val_predict": lambda model, X, y: cross_val_predict(model, X, y, cv=2),
    "learning_curve": lambda model, X, y: learning_curve(model, X, y, cv=2, train_sizes=[0.5], shuffle=True),
    "validation_curve": lambda model, X, y: validation_curve(
        model, X, y, param_name="alpha", param_range=[0.1], cv=2
    ),
    "permutation_test_score": lambda model, X, y: permutation_test_score(model, X, y, cv=2, n_permutations=1),
}


def watched() -> Watched:
    Watched.seen.clear()
    return Watched(epsilon=1.0, delta=1e-5, bounds=(-1, 1), classes=[0, 1], solver=GradientDescent(steps=2))


@pytest.mark.at_once("cross_validate", "learning_curve")
@pytest.mark.parametrize("caller", SEARCHES)
def test_every_fit_that_a_listed_search_makes_is_marked_on_threads_too(caller: str) -> None:
    CALLERS[caller](watched(), *toy_data())
    assert Watched.seen
    assert all(Watched.seen)
    with joblib.parallel_config("threading", n_jobs=2):
        Watched.seen.clear()
        CALLERS[caller](watched(), *toy_data())
    assert Watched.seen
    assert all(Watched.seen)


def test_the_list_of_searches_is_the_one_in_the_documentation() -> None:
    page = Path("docs/sharp-edges.md").read_text()
    table = page[page.index("| recognised in scikit-learn") : page.index("Nothing else is recognised")]
    assert set(re.findall(r"`(\w+)`", table)) == set(SEARCHES)
    assert set(CALLERS) == set(SEARCHES)


def test_a_model_behind_a_choice_of_features_in_a_pipeline_is_marked() -> None:
    X, y = toy_data()
    selector = SequentialFeatureSelector(watched(), n_features_to_select=1, cv=2)
    pipeline = make_pipeline(selector, watched()).fit(X, y)
    assert not pipeline[-1].privacy_.selection.private


def test_a_loop_of_ones_own_is_not_recognised_and_the_report_says_that_it_cannot_be() -> None:
    X, y = toy_data()
    best = max(
        [0.001, 0.1], key=lambda alpha: cross_val_score(watched().set_params(alpha=alpha), X, y, cv=2).mean()
    )
    report = watched().set_params(alpha=best).fit(X, y).privacy_
    assert report.selection is None
    limits = " ".join(point["text"] for point in report.to_dict()["not_covered"])
    assert "This report cannot know of them" in limits
    assert "no loop of your own" in limits
