"""Sparse models on an l1 ball: what they select, what they refuse, and what they keep sparse."""

import math
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import sparse
from sklearn.base import clone

from privopt import LassoClassifier, LassoRegressor, LogisticRegression, PrivateSearchCV
from privopt.estimators.records import Shape
from privopt.mechanisms.noise import NoiseSource
from privopt.problems.constraints import Box, L1Ball, Product
from privopt.solvers.accelerated_mirror_descent import AcceleratedMirrorDescent

WIDTH = 120
COMMON: dict[str, Any] = {"epsilon": 2.0, "delta": 1e-8, "bounds": (-1, 1), "random_state": 0}


def signs(n: int = 4000) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Rows of signs, a truth with three weights, and scores with a constant of 0.5."""
    rng = np.random.default_rng(3)
    rows = rng.choice([-1.0, 1.0], size=(n, WIDTH))
    truth = np.zeros(WIDTH)
    truth[[4, 40, 99]] = [1.0, -0.8, 0.6]
    return rows, truth, rows @ truth + 0.5


def labels_of(scores: NDArray[np.float64]) -> NDArray[np.int64]:
    return np.where(np.random.default_rng(0).random(len(scores)) < 1 / (1 + np.exp(-scores)), 1, -1)


def classifier(**changes: Any) -> LassoClassifier:
    return LassoClassifier(**(COMMON | {"classes": [-1, 1], "radius": 3.0} | changes))


@pytest.mark.audit
def test_few_features_are_selected_and_the_true_ones_among_them() -> None:
    rows, _, scores = signs()
    model = classifier().fit(rows, labels_of(scores))
    assert set(model.support_) >= {4, 40, 99}
    assert len(model.support_) < 40
    assert np.sum(np.abs(model.coef_)) <= 3.0 * (1 + 1e-9)
    assert 0.1 < model.intercept_[0] < 1.0
    assert model.plan_.solver == "frank-wolfe"
    assert model.score(rows, labels_of(scores)) > 0.7
    assert model.privacy_.epsilon <= 2.0


@pytest.mark.audit
def test_sparse_rows_give_the_same_model_as_dense_ones() -> None:
    rows, _, scores = signs(1500)
    rows = rows * (np.random.default_rng(1).random(rows.shape) < 0.1)
    labels = labels_of(scores[:1500])
    dense, csr = (classifier(radius=1.0).fit(X, labels) for X in (rows, sparse.csr_array(rows)))
    np.testing.assert_allclose(csr.coef_, dense.coef_, atol=1e-12)
    assert np.array_equal(csr.support_, dense.support_)


def test_rows_are_not_shortened_and_the_radius_is_that_of_the_scaled_weights() -> None:
    shape = Shape(width=WIDTH, n=4000, by_user=False)
    setup = classifier()._setup(shape, None)
    assert setup.problem.constraint == Product(((L1Ball(3.0), WIDTH), (Box(-3.0, 3.0), 1)))
    assert not setup.unit_rows
    assert setup.public.entry_bound == 1.0
    assert setup.public.row_bound == pytest.approx(math.sqrt(WIDTH + 1), rel=1e-5)
    rows, _, scores = signs(4000)
    given = classifier()
    units = setup.units(given._specification().records(given, rows, labels_of(scores), None, NoiseSource(0)))
    np.testing.assert_allclose(np.abs(units.private_features), 1.0)
    assert units.public == setup.public


@pytest.mark.later("given0")
@pytest.mark.parametrize("given", [{"l1_radius": 3.0}, {"l1_radius": 3.0, "row_bound": "entries"}])
def test_a_logistic_regression_on_the_ball_is_the_same_model(given: Any) -> None:
    rows, _, scores = signs(1500)
    labels = labels_of(scores)
    expected = classifier().fit(rows, labels)
    model = LogisticRegression(**COMMON, classes=[-1, 1], **given).fit(rows, labels)
    np.testing.assert_array_equal(model.coef_, expected.coef_)
    assert model.row_lengths_ is None


def test_the_rule_for_entries_is_open_to_every_model() -> None:
    shape = Shape(width=WIDTH, n=4000, by_user=False)
    plain = LogisticRegression(**COMMON, classes=[-1, 1], row_bound="entries")._setup(shape, None)
    assert (plain.unit_rows, plain.public.entry_bound) == (False, 1.0)
    assert LogisticRegression(**COMMON, classes=[-1, 1])._setup(shape, None).public.entry_bound is None


@pytest.mark.audit
def test_the_refit_finds_weights_nearer_to_the_truth() -> None:
    rows, truth, scores = signs(8000)
    labels = labels_of(scores)
    away = [
        np.linalg.norm(classifier(refit=refit, epsilon=1.0).fit(rows, labels).coef_ - truth)
        for refit in (False, True)
    ]
    assert away[1] < 0.8 * away[0]


@pytest.mark.audit
def test_a_single_pass_reads_every_record_once_and_has_the_intercept_in_the_ball() -> None:
    rows, _, scores = signs(8000)
    model = classifier(single_pass=True, epsilon=4.0).fit(rows, labels_of(scores))
    assert model.plan_.solver == "vertex-anytime"
    assert model.plan_.passes == 1.0
    assert {4, 40} <= set(model.support_)
    assert np.sum(np.abs(model.coef_)) + abs(model.intercept_[0]) <= 3.0 * (1 + 1e-9)
    assert any("weights and intercepts" in sentence for sentence in model.privacy_.declared)


def test_a_regression_in_the_units_of_its_target() -> None:
    rows, truth, scores = signs()
    model = LassoRegressor(**COMMON, target_bounds=(-4.0, 5.0), radius=1.0).fit(rows, scores)
    assert set(np.flatnonzero(truth)) <= set(model.support_)
    assert np.linalg.norm(model.coef_ - truth) < 0.5 * np.linalg.norm(truth)
    assert model.score(rows, scores) > 0.7
    assert np.sum(np.abs(model.coef_)) / 4.5 <= 1.0 + 1e-9


@pytest.mark.audit
def test_several_classes_and_users() -> None:
    rows, _, scores = signs(1500)
    codes = np.digitize(scores, [-0.5, 1.0])
    model = clone(classifier()).set_params(classes=[0, 1, 2], radius=6.0, epsilon=8.0).fit(rows, codes)
    assert model.coef_.shape == (3, WIDTH)
    assert model.support_.max() < WIDTH
    by_user = classifier(max_records_per_user=3, typical_records=3.0).fit(
        rows, labels_of(scores), groups=np.arange(1500) // 3
    )
    assert by_user.plan_.solver == "frank-wolfe"
    assert len(by_user.support_) < WIDTH / 2


def test_a_missing_radius_is_guessed_and_noticed() -> None:
    plan = classifier(radius=None).plan(n=4000, n_features=WIDTH)
    assert plan.settings["l1_radius"] == 3.0
    assert any("no radius was given, so 3 is taken" in notice for notice in plan.notices)
    assert not any("radius" in notice for notice in classifier().plan(n=4000, n_features=WIDTH).notices)
    rows, _, scores = signs(500)
    declared = classifier(radius=None).fit(rows, labels_of(scores)).privacy_.declared
    assert any("a guess, since none was given: 3" in sentence for sentence in declared)


@pytest.mark.parametrize(
    ("changes", "kind", "message"),
    [
        (
            {"radius": -1.0},
            ValueError,
            r"radius must be positive and finite, got -1.0: it is a bound on \|\|w\|\|_1",
        ),
        ({"radius": "4"}, TypeError, r"radius must be a number"),
        ({"refit": 1}, TypeError, r"refit must be True or False, got 1"),
        ({"single_pass": "yes"}, TypeError, r"single_pass must be True or False, got 'yes'"),
        ({"refit": True, "single_pass": True}, ValueError, r"a refit is a second use of the records"),
        ({"refit": True, "solver": "mirror-descent"}, ValueError, r"refit=True chooses the solver"),
    ],
)
def test_bad_arguments_get_a_sentence_before_data_are_read(changes: Any, kind: Any, message: str) -> None:
    with pytest.raises(kind, match=message):
        classifier(**changes).plan(n=4000, n_features=WIDTH)


def test_another_solver_may_be_given_and_the_support_is_not_there_before_a_fit() -> None:
    model = classifier(solver=AcceleratedMirrorDescent())
    assert model.plan(n=4000, n_features=WIDTH).solver == "accelerated-mirror-descent"
    assert not hasattr(model, "support_")


@pytest.mark.audit
def test_a_search_may_vary_the_radius() -> None:
    rows, _, scores = signs(1500)
    model = LassoClassifier(bounds=(-1, 1), classes=[-1, 1])
    found = PrivateSearchCV(model, {"radius": [0.01, 3.0]}, epsilon=20.0, delta=1e-6, random_state=0)
    assert found.fit(rows, labels_of(scores)).best_params_ == {"radius": 3.0}
