"""Missing features: one rule for arrays, masks, sparse rows and frames, in a fit and in predictions."""

from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import sparse

from privopt import LogisticRegression, Ridge
from privopt.data.units import Units
from privopt.estimators.scaling import FeatureScaling, ScaledFeatures, with_indicators

RNG = np.random.default_rng(0)
X = RNG.uniform(-1, 3, (400, 3))
Y = (X[:, 0] - X[:, 1] > 0).astype(int)
HOLES = RNG.random((400, 3)) < 0.2
BROKEN = np.where(HOLES, np.nan, X)
FILLED = np.where(HOLES, 1.0, X)  # the middle of the bounds
SETTINGS: dict[str, Any] = {"epsilon": 5.0, "delta": 1e-5, "bounds": (-1, 3), "random_state": 1}


def classifier(**more: Any) -> LogisticRegression:
    return LogisticRegression(classes=[0, 1], **SETTINGS, **more)


FORMS: dict[str, Any] = {
    "an array": BROKEN,
    "infinite": np.where(HOLES, np.inf, X),
    "a mask": np.ma.array(X, mask=HOLES),
    "a mask over NaN": np.ma.array(BROKEN, mask=False),
    "a frame": pd.DataFrame(BROKEN),
    "nullable": pd.DataFrame(BROKEN).convert_dtypes(),
    "a list": [[None if np.isnan(cell) else cell for cell in row] for row in BROKEN],
    "texts in a list": [["?" if np.isnan(cell) else repr(float(cell)) for cell in row] for row in BROKEN],
}


@pytest.mark.at_once("texts in a list")
@pytest.mark.parametrize("form", FORMS)
def test_a_missing_feature_counts_as_the_middle_of_its_bounds(form: str) -> None:
    expected, model = classifier().fit(FILLED, Y), classifier().fit(FORMS[form], Y)
    np.testing.assert_array_equal(model.coef_, expected.coef_)
    np.testing.assert_allclose(model.decision_function(FORMS[form]), expected.decision_function(FILLED))
    np.testing.assert_array_equal(model.predict(FORMS[form]), expected.predict(FILLED))


def test_a_regression_predicts_rows_with_missing_features() -> None:
    model = Ridge(target_bounds=(0, 1), **SETTINGS).fit(BROKEN, Y)
    np.testing.assert_allclose(model.predict(BROKEN), model.predict(FILLED))


def test_sparse_rows_follow_the_same_rule() -> None:
    rows = np.where(RNG.random(X.shape) < 0.5, 0.0, np.abs(X))
    holes = np.where(HOLES, np.nan, rows)
    filled = np.where(HOLES, 2.0, rows)
    settings = SETTINGS | {"bounds": (0, 4)}
    one = LogisticRegression(classes=[0, 1], **settings).fit(sparse.csr_array(holes), Y)
    other = LogisticRegression(classes=[0, 1], **settings).fit(sparse.csr_array(filled), Y)
    np.testing.assert_array_equal(one.coef_, other.coef_)
    np.testing.assert_allclose(
        one.decision_function(sparse.csr_array(holes)), other.decision_function(filled)
    )


def test_by_zero_the_whole_record_counts_as_zero() -> None:
    missing = HOLES.any(axis=1)
    expected = classifier().fit(X, [None if gone else label for gone, label in zip(missing, Y, strict=True)])
    model = classifier(missing="zero").fit(BROKEN, Y)
    np.testing.assert_array_equal(model.coef_, expected.coef_)
    np.testing.assert_allclose(model.decision_function(BROKEN), model.decision_function(FILLED))


def test_an_indicator_says_where_a_feature_is_missing() -> None:
    told = np.where(HOLES[:, 0], RNG.integers(0, 2, 400), 1 - HOLES[:, 0]) * 0 + HOLES[:, 0]
    model = classifier(missing="indicator", indicator=[0], solver="gradient-descent").fit(BROKEN, told)
    assert model.coef_.shape == (1, 4)
    assert model.coef_[0, 3] > 1
    assert model.n_features_in_ == 3
    assert np.mean(model.predict(BROKEN) == told) > 0.95
    named = pd.DataFrame(BROKEN, columns=["a", "b", "c"])
    by_name = classifier(missing="indicator", indicator=["a"], solver="gradient-descent").fit(named, told)
    np.testing.assert_array_equal(by_name.coef_, model.coef_)
    assert by_name.privacy_.model.features == ("a", "b", "c", "a missing")
    sparse_rows = sparse.csr_array(np.where(HOLES, np.nan, np.maximum(X, 0)))
    added = with_indicators(sparse_rows, [2, 0])
    np.testing.assert_array_equal(added.toarray()[:, 3:], HOLES[:, [2, 0]])


@pytest.mark.audit
def test_indicators_with_estimated_bounds_and_in_a_plan() -> None:
    settings = SETTINGS | {"bounds": None, "loose_bounds": (-1e6, 1e6)}
    model = LogisticRegression(classes=[0, 1], missing="indicator", indicator=[1], **settings)
    assert model.plan(n_features=4, n=400).public.d == 5
    model.fit(BROKEN, Y)
    assert model.coef_.shape == (1, 4)
    assert np.all(np.abs(model.bounds_[1][:3]) <= 4)  # missing cells widen no bounds
    assert np.isfinite(model.decision_function(BROKEN)).all()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"missing": "mean"}, "missing must be 'midpoint', 'zero' or 'indicator', got 'mean'"),
        ({"missing": "indicator"}, r"needs indicator=\[...\] for plain features"),
        ({"indicator": [0]}, "give missing='indicator'"),
        ({"missing": "indicator", "indicator": "a"}, "must be a list of columns"),
        ({"missing": "indicator", "indicator": [3]}, "names the column 3, which is not there"),
        ({"missing": "indicator", "indicator": [1, 1]}, "names a column twice"),
    ],
)
def test_a_rule_that_cannot_be_followed_is_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises((ValueError, TypeError), match=words):
        classifier(**options).fit(BROKEN, Y)


def test_a_masked_target_counts_as_missing() -> None:
    gone = np.arange(400) % 5 == 0
    for targets in (np.ma.array(Y, mask=gone), np.ma.array(Y.astype(str), mask=gone)):
        model = classifier().fit(X, targets)
        expected = classifier().fit(X, np.where(gone, np.nan, Y))
        np.testing.assert_array_equal(model.coef_, expected.coef_)
    numbers = Ridge(target_bounds=(0, 1), **SETTINGS).fit(X, np.ma.array(Y * 1.0, mask=gone))
    expected_numbers = Ridge(target_bounds=(0, 1), **SETTINGS).fit(X, np.where(gone, np.nan, Y))
    np.testing.assert_array_equal(numbers.coef_, expected_numbers.coef_)
    units = Units.from_arrays(
        np.ma.array(X, mask=HOLES), row_bound=9.0
    )  # without bounds a record is left out
    np.testing.assert_array_equal(units.private_present, ~HOLES.any(axis=1))


@pytest.mark.at_once("<lambda>1-classes0", "<lambda>5-classes2")
@pytest.mark.parametrize("classes", [[0, 1], [False, True], ["0", "1"], [0.0, 1.0]])
@pytest.mark.parametrize(
    "form",
    [
        lambda y: y.astype(str),
        lambda y: [f" {label}.0 " for label in y],
        lambda y: y.astype(float),
        lambda y: y.astype(bool),
        lambda y: pd.Series(y.astype(str), dtype="str"),
        lambda y: np.where(y, "yes", "NO"),
    ],
)
def test_labels_stored_as_text_are_the_labels_that_they_write(classes: list[Any], form: Any) -> None:
    if classes == ["0", "1"] and form(Y[:1])[0] in ("NO", "yes"):
        return  # words stand for 0 and 1, not for the texts
    model = LogisticRegression(classes=classes, **SETTINGS).fit(X, form(Y))
    assert model.score(X, form(Y)) == model.score(X, model.classes_[Y])
    np.testing.assert_array_equal(model.coef_, classifier().fit(X, Y).coef_)


@pytest.mark.parametrize("centered", [True, False])
@pytest.mark.parametrize("filling", ["midpoint", "nothing"])
def test_a_filled_row_is_no_longer_than_one_that_is_complete(centered: bool, filling: Any) -> None:
    rng = np.random.default_rng(3)
    for _ in range(20):
        low = rng.uniform(-5, 0, 4)
        high = low + rng.uniform(0, 9, 4)
        scaling = FeatureScaling.of((low, high), 4, centered=centered, keep_zero=False, filling=filling)
        rows = rng.uniform(-20, 20, (50, 4))
        rows[rng.random(rows.shape) < 0.4] = rng.choice([np.nan, np.inf, -np.inf])
        scaled = np.asarray(ScaledFeatures(scaling)(rows))
        assert np.all(np.abs(scaled) <= 1)
        corners = np.asarray(ScaledFeatures(scaling)(np.stack([low, high])))
        assert np.all(np.abs(scaled) <= np.abs(corners).max(axis=0) + 1e-7)
