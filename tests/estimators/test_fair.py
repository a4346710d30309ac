"""The classifier for the worst group: what it is told in public, what it fits, reports and refuses."""

import json
import math

import numpy as np
import pandas as pd
import pytest
from scipy import sparse
from scipy.special import expit
from sklearn.base import clone

from privopt import Account, FairClassifier, LogisticRegression, PrivacyReport, PrivateSearchCV
from privopt.errors import BudgetExceeded
from privopt.solvers.worst_group_descent import WorstGroupDescent

VALUES, SHARES = ["a", "b", "c"], [0.6, 0.3, 0.1]
FEW = WorstGroupDescent(steps=5)
PUBLIC = {"epsilon": 2.0, "delta": 1e-6, "bounds": (-1, 1), "classes": ["no", "yes"]}


def model(**changes):
    """A configured classifier, quick to fit."""
    given = {"sensitive_values": VALUES, "shares": SHARES, "random_state": 0, "solver": FEW, **PUBLIC}
    return FairClassifier(**(given | changes))


def records(rows=3000, seed=0):
    """Features, labels as text, groups."""
    rng = np.random.default_rng(seed)
    features, groups = rng.uniform(-1.0, 1.0, (rows, 4)), rng.choice(3, rows, p=SHARES)
    weights = np.array([[3.0, 0, 0, 0], [0, 3.0, 0, 0], [-3.0, 0, 3.0, 0]])[groups]
    labels = np.where(rng.random(rows) < expit(2.0 * np.sum(features * weights, axis=1)), "yes", "no")
    return features, labels, np.asarray(VALUES)[groups]


X, Y, G = records()


def worst_loss(fitted, features, labels, groups):
    yes = fitted.predict_proba(features)[:, 1]
    each = -np.log(np.where(labels == "yes", yes, 1.0 - yes))
    return max(np.mean(each[groups == value]) for value in VALUES)


@pytest.mark.audit
def test_the_worst_group_is_better_off_than_after_a_private_plain_fit():
    fresh = records(seed=1)
    fair = model(solver="auto").fit(X, Y, sensitive_features=G)
    plain = LogisticRegression(random_state=0, **PUBLIC).fit(X, Y)
    assert fair.plan_.solver == "whitened worst-group-descent"
    assert fair.privacy_.epsilon <= 2.0
    assert worst_loss(fair, *fresh) < worst_loss(plain, *fresh) - 0.02
    assert fair.group_weights_.shape == (30, 3)
    assert fair.group_weights_[-1, 2] > 0.3
    np.testing.assert_allclose(fair.group_shares_, SHARES)
    assert fair.group_losses_ is None
    assert set(fair.predict(X[:9])) <= {"no", "yes"}


@pytest.mark.at_once("features3", "features4")
@pytest.mark.parametrize(
    "features",
    [list(G), pd.Series(G, dtype="category"), pd.DataFrame({"group": G}), {"group": G}, G.astype(object)],
)
def test_every_form_of_sensitive_features_is_the_same_fit(features):
    fitted = model().fit(X, Y, sensitive_features=features)
    np.testing.assert_array_equal(fitted.coef_, model().fit(X, Y, sensitive_features=G).coef_)


@pytest.mark.audit
def test_several_columns_and_names_of_columns_combine():
    codes = np.asarray([VALUES.index(value) for value in G])
    frame = pd.DataFrame(X, columns=list("wxyz")).assign(low=(codes > 0) * 1.0, high=(codes > 1) * 1.0)
    pairs = {"sensitive_values": [(0, 0), (1, 0), (1, 1)]}
    named = model(**pairs).fit(frame, Y, sensitive_features=("low", "high"))
    given = model(**pairs).fit(frame, Y, sensitive_features=frame[["low", "high"]])
    np.testing.assert_array_equal(named.coef_, given.coef_)
    one = model(sensitive_values=[0, 1], shares=[0.6, 0.4]).fit(frame, Y, sensitive_features="low")
    assert one.group_weights_.shape[1] == 2


def test_sparse_rows_give_the_fit_of_dense_ones():
    kept = np.where(np.abs(X) > 0.5, X, 0.0)
    dense = model().fit(kept, Y, sensitive_features=G)
    thin = model().fit(sparse.csr_array(kept), Y, sensitive_features=G)
    np.testing.assert_allclose(thin.coef_, dense.coef_, rtol=1e-4, atol=1e-6)


def test_unknown_groups_and_labels_count_as_nothing_and_raise_nothing():
    groups, labels = G.astype(object), Y.astype(object)
    groups[:5], labels[5:10] = [None, np.nan, "d", {}, 3], [None, np.nan, "maybe", 2, {}]
    features = X.copy()
    features[10] = np.nan
    fitted = model(missing="zero").fit(features, labels, sensitive_features=groups)
    absent = features.copy()
    absent[:11] = np.nan
    same = model(missing="zero").fit(absent, Y, sensitive_features=G)
    np.testing.assert_array_equal(fitted.coef_, same.coef_)


def test_without_sensitive_features_all_records_are_one_group():
    alone = model(sensitive_values=None, shares=None).fit(X, Y)
    with pytest.raises(ValueError, match="sensitive_features is missing: sensitive_values declares 3 groups"):
        model().fit(X, Y)
    assert alone.plan_.releases == 1 + 5
    assert "all records are one group" in str(alone.privacy_.to_json())
    assert any("nothing is to be gained" in notice for notice in alone.plan_.notices)


def test_released_shares_and_losses_are_paid_for():
    fitted = model(shares="private", report_groups=0.2, epsilon=8.0).fit(X, Y, sensitive_features=G)
    assert fitted.privacy_.epsilon <= 8.0
    np.testing.assert_allclose(fitted.group_shares_, SHARES, atol=0.05)
    assert fitted.group_shares_.sum() == pytest.approx(1.0)
    each = fitted.predict_proba(X)[:, 1]
    measured = -np.log(np.where(Y == "yes", each, 1.0 - each))
    found = [np.mean(measured[value == G]) for value in VALUES]
    np.testing.assert_allclose(fitted.group_losses_[:2], found[:2], atol=0.1)
    assert fitted.plan_.releases == 1 + 5 + 5 + 2
    assert "released by a noisy histogram" in fitted.privacy_.to_json()


@pytest.mark.audit
def test_cvar_caps_the_weights_at_the_share_over_alpha():
    fitted = model(objective="cvar", cvar_alpha=0.5, solver="auto").fit(X, Y, sensitive_features=G)
    assert np.all(fitted.group_weights_ <= np.asarray(SHARES) / 0.5 + 1e-9)
    everybody = model(objective="cvar", cvar_alpha=1.0).fit(X, Y, sensitive_features=G)
    np.testing.assert_allclose(everybody.group_weights_, [SHARES] * 5, rtol=1e-9)


@pytest.mark.audit
def test_an_l1_radius_gives_a_fit_within_it():
    fitted = model(solver="auto", l1_radius=1.5).fit(X, Y, sensitive_features=G)
    assert fitted.plan_.solver == "worst-group-descent"
    low, high = fitted.bounds_
    assert np.sum(np.abs(fitted.coef_ * (high - low) / 2)) <= 1.5 * (1 + 1e-6)


def test_users_are_protected_whole():
    users = np.arange(len(X)) // 3
    fitted = model(report_groups=0.1).fit(X, Y, groups=users, sensitive_features=G)
    assert fitted.privacy_.unit == "user"
    assert np.all(np.isfinite(fitted.coef_))
    assert fitted.privacy_.epsilon <= 2.0


@pytest.mark.audit
def test_the_report_shows_the_weights_by_name_and_survives_a_file():
    fitted = model(report_groups=0.1).fit(X, Y, sensitive_features=G)
    (picture,) = fitted.privacy_.pictures
    assert [one.name for one in picture.series] == VALUES
    assert len(picture.series[0].ys) == 5
    page, text = fitted.privacy_.to_html(), fitted.privacy_.to_json()
    assert "Weights of the groups" in page
    assert "a replaced record may be in another one" in page
    assert "Worst group excess" in page
    again = PrivacyReport.from_dict(json.loads(text))
    assert again.pictures == fitted.privacy_.pictures


def test_a_plan_needs_no_data():
    announced = model(solver="auto").plan(n_features=4, n=3000)
    assert announced.releases == 61
    assert 0.999 * 2.0 <= announced.epsilon <= 2.0
    assert model(solver="auto", report_groups=0.1).plan(n_features=4, n=3000).releases == 62


def test_a_clone_has_the_same_arguments_and_an_account_is_charged_first():
    first = model(cvar_alpha=0.4, objective="cvar")
    assert clone(first).get_params() == first.get_params()
    account = Account(1.0, 1e-5)
    with pytest.raises(BudgetExceeded, match="would cost"):
        model(account=account).fit(X, Y, sensitive_features=G)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"shares": None}, "shares is missing: give the share of all records that each of the 3 groups has"),
        ({"shares": [0.5, 0.3, 0.1]}, "shares must sum to 1, got 0.9"),
        ({"shares": [0.6, 0.4]}, "one number for each of the 3 groups, got 2"),
        ({"shares": [0.6, 0.5, -0.1]}, "above 0 and at most 1"),
        ({"shares": "guess"}, "shares must be a list of numbers or 'private'"),
        ({"sensitive_values": None}, "shares were given without sensitive_values"),
        ({"sensitive_values": None, "shares": None}, "sensitive_values is missing"),
        ({"sensitive_values": ["a", "a", "b"]}, "at least one value, all different"),
        ({"sensitive_values": [("a", 1), "b", "c"]}, "tuples of as many values"),
        ({"sensitive_values": [("a", 1), ("b", 1), ("c", 1)]}, "has 1 columns"),
        ({"sensitive_values": "abc"}, "must be a list of values"),
        ({"objective": "mean"}, "objective must be 'worst' or 'cvar'"),
        ({"objective": "cvar"}, "cvar_alpha is missing"),
        ({"cvar_alpha": 0.5}, "it is for objective='cvar'"),
        ({"objective": "cvar", "cvar_alpha": 1.5}, r"cvar_alpha must be in \(0, 1\]"),
        ({"share_floor": 0.0}, "share_floor must lie strictly between 0 and 1"),
        ({"loss_cap": -1.0}, "loss_cap must be positive"),
        ({"report_groups": 0.9}, "report_groups must be at least 0 and below 0.7"),
        ({"alpha": "private"}, "which is not what FairClassifier minimises"),
        ({"classes": ["no", "yes", "maybe"]}, "Only binary classification is supported"),
        ({"solver": "gradient-descent"}, "does not weight groups against each other"),
        ({"penalty": "l1"}, "the penalty is not smooth"),
        ({"epsilon": None}, "epsilon is missing"),
    ],
)
def test_what_is_missing_or_wrong_gets_one_sentence(changes, words):
    with pytest.raises((ValueError, TypeError), match=words) as caught:
        model(**changes).fit(X, Y, sensitive_features=G)
    assert len(str(caught.value)) < 400


def test_columns_that_are_not_there_and_shapes_that_do_not_fit_get_one_sentence():
    frame = pd.DataFrame(X, columns=list("wxyz"))
    with pytest.raises(ValueError, match="names a column that X does not have; it has w, x, y, z"):
        model().fit(frame, Y, sensitive_features="race")
    with pytest.raises(TypeError, match="X is no data frame"):
        model().fit(X, Y, sensitive_features="race")
    with pytest.raises(ValueError, match="give as many values as rows"):
        model().fit(X, Y, sensitive_features=G[:-1])
    with pytest.raises(ValueError, match="the target y is None"):
        model().fit(X, None, sensitive_features=G)


def test_without_noise_nothing_is_private_and_the_report_says_so():
    fitted = model(epsilon=math.inf, delta=None).fit(X, Y, sensitive_features=G)
    assert "not private" in str(fitted.privacy_)


def test_a_search_refuses_it_as_labels_alone_would_be_read_as_groups():
    model = FairClassifier(bounds=(-1, 1), classes=[0, 1], sensitive_values=["a", "b"], shares=[0.5, 0.5])
    search = PrivateSearchCV(model, {"alpha": [0.1, 1.0]}, epsilon=1.0, delta=1e-6)
    with pytest.raises(
        TypeError, match="FairClassifier is not searched: candidates are scored by the accuracy"
    ):
        search.fit(np.zeros((20, 2)), np.arange(20) % 2)
    with pytest.raises(TypeError, match="FairClassifier is not searched"):
        search.plan(n_features=2, n=20)
