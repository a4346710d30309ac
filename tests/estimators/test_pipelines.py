"""Private estimators beside scikit-learn's own tools."""

import warnings

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.compose import ColumnTransformer, TransformedTargetRegressor
from sklearn.decomposition import PCA
from sklearn.feature_selection import SelectKBest
from sklearn.frozen import FrozenEstimator
from sklearn.impute import SimpleImputer
from sklearn.model_selection import GridSearchCV, RandomizedSearchCV, cross_val_score
from sklearn.pipeline import FeatureUnion, make_pipeline
from sklearn.preprocessing import FunctionTransformer, MinMaxScaler, Normalizer, OneHotEncoder, StandardScaler
from tests.support.configured_estimators import configured, toy_data

from privopt.estimators.linear import LinearRegression, LogisticRegression
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
    assert not found.best_estimator_.privacy_.is_private
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


@pytest.mark.audit
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


PUBLIC_STEPS = {
    "a function": FunctionTransformer(np.abs),
    "each row by itself": Normalizer(),
    "listed categories": ColumnTransformer(
        [("code", OneHotEncoder(categories=[[0.0, 1.0]], handle_unknown="ignore"), [0])],
        remainder="passthrough",
    ),
    "nothing": "passthrough",
    "frozen": FrozenEstimator(StandardScaler().fit([[0.0, 1.0, 2.0], [1.0, 2.0, 0.0]])),
    "a constant": SimpleImputer(strategy="constant", fill_value=0.0, keep_empty_features=True),
}
LEARNED_STEPS = {
    "StandardScaler": StandardScaler(),
    "PCA": PCA(2),
    "SimpleImputer": SimpleImputer(),
    "SelectKBest": SelectKBest(k=2),
    "OneHotEncoder": ColumnTransformer(
        [("code", OneHotEncoder(handle_unknown="ignore"), [0])], remainder="drop"
    ),
    "MinMaxScaler": FeatureUnion([("plain", "passthrough"), ("scaled", make_pipeline(MinMaxScaler()))]),
}


@pytest.mark.at_once("SelectKBest")
@pytest.mark.parametrize("step", LEARNED_STEPS)
def test_a_step_that_learned_from_the_records_is_named_and_not_private(step: str) -> None:
    X, y = toy_data()
    model = make_pipeline(LEARNED_STEPS[step], configured(LogisticRegression, bounds=(-1, 1))).fit(X, y)
    report = model[-1].privacy_
    assert not report.is_private
    assert not report.to_dict()["guarantee"]["holds"]
    assert f"({step}) learned from the same records" in report.selection.sentence
    assert "Preprocessing not private" in str(report)
    assert "Preprocessing not private" in report.to_html()


@pytest.mark.parametrize("step", PUBLIC_STEPS)
def test_a_step_whose_rule_is_public_changes_nothing(step: str) -> None:
    X, y = toy_data()
    report = (
        make_pipeline(PUBLIC_STEPS[step], configured(LogisticRegression, bounds=(-1, 1)))
        .fit(X, y)[-1]
        .privacy_
    )
    assert report.selection is None
    assert report.is_private


def test_a_private_search_and_a_scaled_target_say_what_was_learned_before() -> None:
    X, y = toy_data()
    search = PrivateSearchCV(
        LogisticRegression(bounds=(-1, 1), classes=[0, 1]), {"alpha": [1e-3, 0.1]}, epsilon=2.0, delta=1e-6
    )
    report = make_pipeline(StandardScaler(), search).fit(X, y)[-1].privacy_
    assert not report.is_private
    assert report.selection.sentence.startswith(
        "Preprocessing not private: in the pipeline, before the model, "
    )
    assert "exponential mechanism" in report.selection.sentence
    scaled = TransformedTargetRegressor(configured(LinearRegression), transformer=StandardScaler())
    assert not scaled.fit(X, y.astype(float)).regressor_.privacy_.is_private


def _tries(search: type) -> dict[str, int]:
    return {"n_iter": 2, "random_state": 0} if search is RandomizedSearchCV else {}


@pytest.mark.parametrize("labels", [np.array([0, 1]), np.array(["no", "yes"]), np.array([False, True])])
def test_labels_print_as_pythons_own_in_a_pipeline_too(labels):
    for given in (list(labels), tuple(labels)):
        model = LogisticRegression(classes=given)
        assert model.classes == type(given)(labels.tolist())
        assert clone(clone(model)).get_params()["classes"] == model.classes
        assert "np." not in repr(make_pipeline(FunctionTransformer(), model))
        assert "np." not in repr(model.set_params(classes=given))
    assert LogisticRegression(classes=labels).classes is labels
