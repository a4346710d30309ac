"""Private estimators beside scikit-learn's own tools."""

import warnings

import numpy as np
import pandas as pd
import pytest
from sklearn.model_selection import GridSearchCV, RandomizedSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from tests.support.configured_estimators import configured, toy_data

from privopt.estimators.classifiers import LogisticRegression
from privopt.estimators.searched import in_search
from privopt.estimators.selection import PrivateSearchCV
from privopt.tables.encoder import TabularEncoder
from privopt.tables.schema import Schema

SCHEMA = {
    "target": "ill",
    "columns": {
        "age": {"kind": "num", "low": 0, "high": 100},
        "sex": {"kind": "cat", "levels": ["f", "m"]},
        "ill": {"kind": "flag"},
    },
}


def table() -> pd.DataFrame:
    generator = np.random.default_rng(3)
    age = generator.uniform(0, 100, 300)
    sex = generator.choice(["f", "m"], 300)
    return pd.DataFrame({"age": age, "sex": sex, "ill": (age > 50).astype(int)})


def test_a_raw_table_goes_through_an_encoder_with_public_rules() -> None:
    data = table()
    encoder = TabularEncoder(Schema.from_json(SCHEMA))
    model = configured(LogisticRegression, epsilon=20.0, delta=1e-3, random_state=0)
    pipeline = make_pipeline(encoder, model).fit(data, data["ill"])
    assert pipeline.score(data, data["ill"]) > 0.9
    assert pipeline[-1].privacy_.model.features == ("x0", "x1", "x2")
    named = make_pipeline(encoder.set_output(transform="pandas"), model).fit(data, data["ill"])
    assert named[-1].privacy_.model.features == ("age", "sex=f", "sex=m")


@pytest.mark.parametrize("search", [GridSearchCV, RandomizedSearchCV])
def test_a_search_on_raw_scores_is_reported_as_not_private(search: type) -> None:
    X, y = toy_data()
    found = search(configured(LogisticRegression), {"alpha": [0.001, 0.1]}, cv=2, **_tries(search)).fit(X, y)
    selection = found.best_estimator_.privacy_.selection
    assert not selection.private
    assert "Selection not private: chosen on raw validation scores" in selection.sentence
    assert "Selection not private" in str(found.best_estimator_.privacy_)


def test_the_search_is_noticed_from_within_a_pipeline() -> None:
    data = table()
    pipeline = make_pipeline(TabularEncoder(Schema.from_json(SCHEMA)), configured(LogisticRegression))
    found = GridSearchCV(pipeline, {"logisticregression__alpha": [0.001, 0.1]}, cv=2).fit(data, data["ill"])
    assert not found.best_estimator_[-1].privacy_.selection.private


def test_a_fit_outside_a_search_says_nothing_about_selection() -> None:
    X, y = toy_data()
    assert configured(LogisticRegression).fit(X, y).privacy_.selection is None
    assert not in_search()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(cross_val_score(configured(LogisticRegression), X, y, cv=2)) == 2


def test_a_private_search_ends_a_pipeline() -> None:
    data = table()
    search = PrivateSearchCV(
        LogisticRegression(bounds=(-1, 1), classes=[0, 1]),
        {"alpha": [1e-4, 0.1]},
        epsilon=20.0,
        delta=1e-3,
        random_state=0,
    )
    pipeline = make_pipeline(TabularEncoder(Schema.from_json(SCHEMA)), search).fit(data, data["ill"])
    assert pipeline.score(data, data["ill"]) > 0.85


def _tries(search: type) -> dict[str, int]:
    return {"n_iter": 2, "random_state": 0} if search is RandomizedSearchCV else {}
