"""Users through every front end: plans that agree with what was spent, and neighbours that differ in one user."""

import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from numpy.typing import NDArray
from sklearn.metrics import mean_poisson_deviance
from tests.support.configured_estimators import EVERY_ESTIMATOR, FEW_STEPS, configured, toy_data
from tests.support.user_neighbours import HOSTILE, USERS, WIDTH, audited, table_of
from typer.testing import CliRunner

import privopt
from privopt import losses
from privopt.cli import app
from privopt.data.units import Units
from privopt.estimators.linear import LogisticRegression, Ridge
from privopt.estimators.selection import PrivateSearchCV
from privopt.ledger.account import Account
from privopt.ledger.amounts import Budget
from privopt.planning.plan import Plan
from privopt.solve import minimize

SLACK = 1.0 + 1e-9
KEYS = np.repeat(np.arange(60), 4)
PAIR = np.stack([KEYS // 10, KEYS % 10], axis=1)  # the same users by two columns
BUDGET: dict[str, Any] = {"epsilon": 20.0, "delta": 1e-5}
RELATIONS: dict[str, dict[str, Any]] = {
    "replace-one": {},
    "add-or-remove-one": {"relation": "add-or-remove-one", "n": 70},
}
WAYS: dict[str, dict[str, Any]] = {
    "plain": {},
    "auto": {"solver": "auto"},
    "a private strength": {"alpha": "private", "alphas": [1e-3, 1.0]},
    "loose bounds": {"bounds": None, "loose_bounds": (-100.0, 100.0)},
    "one record each": {"max_records_per_user": 1},
    "by their records": {"user_weighting": "record", "typical_records": 4, "max_records_per_user": 4},
    "by the root of their records": {
        "user_weighting": "sqrt",
        "typical_records": 4,
        "max_records_per_user": 4,
    },
}


# A million records of one person take most of the time, and are ten thousand to every clip.
EVERYBODY = [
    pytest.param(name, marks=(pytest.mark.audit,) if name == "a million records" else ()) for name in HOSTILE
]


def model_of(kind: Any, way: str, **more: Any) -> Any:
    return configured(kind, **(BUDGET | WAYS[way] | more))


# ---- plans ---------------------------------------------------------------------------------------------------


@pytest.mark.at_once(
    "LogisticRegression-by the root of their records-add-or-remove-one",
    "LogisticRegression-one record each-add-or-remove-one",
    "LogisticRegression-one record each-replace-one",
    "Ridge-by their records-add-or-remove-one",
    "Ridge-loose bounds-replace-one",
    "Ridge-plain-add-or-remove-one",
    "Ridge-plain-replace-one",
)
@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", [LogisticRegression, Ridge])
def test_what_was_planned_for_users_is_what_was_spent(kind: Any, way: str, relation: str) -> None:
    model = model_of(kind, way, **RELATIONS[relation])
    announced: Plan = model.plan(n_features=WIDTH, n=RELATIONS[relation].get("n", 60), by_user=True)
    model.fit(*toy_data(kind), groups=PAIR)
    assert announced.event == model.plan_.event == model.privacy_.event
    assert announced.public == model.plan_.public
    assert announced.public.unit == "user"
    assert model.privacy_.count <= announced.releases
    assert model.privacy_.epsilon <= 20.0
    assert np.all(np.isfinite(model.coef_))


@pytest.mark.later("add-or-remove-one")
@pytest.mark.parametrize("relation", RELATIONS)
def test_a_search_over_users_costs_what_was_planned(relation: str) -> None:
    base = configured(LogisticRegression, epsilon=None, delta=None, **RELATIONS[relation])
    search = PrivateSearchCV(base, {"alpha": [1e-3, 1.0]}, **BUDGET)
    announced = search.plan(n_features=WIDTH, n=RELATIONS[relation].get("n", 60), by_user=True)
    search.fit(*toy_data(), groups=pd.DataFrame(PAIR, columns=["site", "person"]))
    assert announced.event == search.plan_.event
    assert search.privacy_.count == announced.releases


@pytest.mark.at_once("HuberRegressor")
@pytest.mark.parametrize("kind", EVERY_ESTIMATOR)
def test_every_estimator_takes_keys_of_several_columns(kind: Any) -> None:
    X, y = toy_data(kind)
    frame = pd.DataFrame({"site": KEYS // 10, "person": [f"p{key % 10}" for key in KEYS]})
    seeded = configured(kind, random_state=1)
    expected = seeded.fit(X, y, groups=KEYS).coef_
    forms: list[Any] = [PAIR, frame, list(map(tuple, PAIR)), [f"user {key}" for key in KEYS]]
    for groups in forms:
        np.testing.assert_array_equal(seeded.fit(X, y, groups=groups).coef_, expected)
        assert seeded.privacy_.n == 60


def test_the_report_says_what_users_are_promised_and_nothing_of_who_has_records() -> None:
    X, y = toy_data()
    model = configured(LogisticRegression, max_records_per_user=3, user_weighting="user", n=77)
    keys = [*KEYS[:-4], None, None, None, None]
    report = model.fit(X, y, groups=keys).privacy_
    text = report.to_html() + str(report) + str(model.plan_)
    for phrase in (
        "everything a person contributed; at most 3 records of each",
        "each person counts the same",
        "Guessed beforehand, used of a typical person: 1.7 records",
        "Number of users, given by the user: 77",
    ):
        assert phrase in text or phrase in " ".join(text.split())
    document = json.dumps(report.to_dict()) + text
    for private in ("59", "236", "177"):  # users with records, records with a key, records kept
        assert f" {private} " not in document
    assert report.n == 77


# ---- bad input -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"groups": KEYS[:-1]}, "groups must have shape"),
        ({"groups": np.zeros((240, 0))}, "groups must have shape"),
        ({"groups": [None] * 240}, "name 0 users"),
        ({"groups": np.zeros(240)}, "name 1 users"),
        ({"n": 50}, "more users than n = 50"),
        ({"max_records_per_user": 0}, "max_records_per_user must be an integer of at least 1"),
        ({"typical_records": 0.5}, "typical_records must lie between 1 and the cap"),
        ({"user_weighting": "all"}, "user_weighting must be"),
    ],
)
@pytest.mark.parametrize("way", ["plain", "a private strength", "loose bounds"])
def test_a_mistake_about_users_is_one_sentence_and_costs_nothing(
    way: str, change: dict[str, Any], sentence: str
) -> None:
    account = Account(20.0, 1e-5)
    groups, arguments = change.get("groups", KEYS), {k: v for k, v in change.items() if k != "groups"}
    with pytest.raises(ValueError, match=sentence) as refusal:
        model_of(LogisticRegression, way, account=account, **arguments).fit(*toy_data(), groups=groups)
    assert "\n" not in str(refusal.value)
    assert not account.entries


# ---- one user, whatever they contribute ----------------------------------------------------------------------

Fit = Callable[[NDArray[np.float64], NDArray[np.float64], Any, dict[str, Any]], Any]


def by_estimator(way: str) -> Fit:
    return lambda X, y, keys, relation: model_of(LogisticRegression, way, **relation).fit(X, y, groups=keys)


def by_search(X: Any, y: Any, keys: Any, relation: dict[str, Any]) -> Any:
    base = configured(LogisticRegression, epsilon=None, delta=None, **relation)
    return PrivateSearchCV(base, {"alpha": [1e-3, 1.0]}, **BUDGET).fit(X, y, groups=keys)


def by_regression(X: Any, y: Any, keys: Any, relation: dict[str, Any]) -> Any:
    return model_of(Ridge, "plain", **relation).fit(X, y * 6, groups=keys)


def by_minimize(X: Any, y: Any, keys: Any, relation: dict[str, Any]) -> Any:
    units = Units.from_arrays(X, y, groups=keys, row_bound=2.0, classes=[0, 1], **relation)
    return minimize(losses.logistic, units, budget=Budget(20.0, 1e-5))


FRONT_ENDS: dict[str, Fit] = {way: by_estimator(way) for way in WAYS}
FRONT_ENDS |= {"a search": by_search, "a regression": by_regression, "minimize": by_minimize}


@pytest.mark.at_once(
    "1e30-by the root of their records-replace-one",
    "1e30-by their records-replace-one",
    "1e30-plain-replace-one",
    "NaN-a regression-add-or-remove-one",
    "NaN-a regression-replace-one",
    "NaN-by the root of their records-add-or-remove-one",
    "NaN-by the root of their records-replace-one",
    "NaN-by their records-replace-one",
    "NaN-one record each-add-or-remove-one",
    "NaN-plain-add-or-remove-one",
    "labels that are NaN-a regression-add-or-remove-one",
    "labels that are NaN-by their records-add-or-remove-one",
    "labels that are NaN-by their records-replace-one",
    "labels that are NaN-one record each-add-or-remove-one",
    "labels that are NaN-plain-add-or-remove-one",
    "nobody-a regression-add-or-remove-one",
    "nobody-by the root of their records-add-or-remove-one",
    "ten thousand records-by the root of their records-replace-one",
    "ten thousand records-by their records-add-or-remove-one",
    "ten thousand records-loose bounds-replace-one",
    "ten thousand records-plain-add-or-remove-one",
    "ten thousand records-plain-replace-one",
    "the opposite-by their records-add-or-remove-one",
    "the opposite-by their records-replace-one",
    "the opposite-one record each-add-or-remove-one",
    "the opposite-one record each-replace-one",
    "the opposite-plain-add-or-remove-one",
    "the opposite-plain-replace-one",
    "wrong labels-by the root of their records-replace-one",
    "wrong labels-by their records-add-or-remove-one",
    "wrong labels-loose bounds-replace-one",
    "wrong labels-one record each-add-or-remove-one",
    "wrong labels-one record each-replace-one",
)
@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize("front_end", FRONT_ENDS)
@pytest.mark.parametrize("hostile", EVERYBODY)
def test_a_hostile_user_moves_no_statistic_by_more_than_its_sensitivity(
    hostile: str, front_end: str, relation: str
) -> None:
    X, y, keys = table_of(hostile)
    given = RELATIONS[relation] or {"n": USERS}
    with warnings.catch_warnings(), audited(absent=relation == "add-or-remove-one") as moves:
        warnings.simplefilter("error")
        FRONT_ENDS[front_end](X, y, keys, given)
    assert moves
    assert max(moved for _, moved in moves) <= SLACK, moves


@pytest.mark.parametrize("way", ["plain", "auto"])
def test_the_audit_sees_a_user_who_moves_as_much_as_the_clip_allows(way: str) -> None:
    X, y, keys = table_of("the opposite")
    with audited() as moves:
        model_of(LogisticRegression, way, n=USERS, user_weighting="user").fit(X, y, groups=keys)
    assert 0.2 < max(moved for _, moved in moves) <= SLACK


@pytest.mark.at_once("ten thousand records")
@pytest.mark.parametrize("hostile", EVERYBODY)
def test_a_hostile_user_in_a_file_moves_no_statistic_by_more_than_its_sensitivity(
    hostile: str, tmp_path: Path
) -> None:
    X, y, keys = table_of(hostile)
    frame = pd.DataFrame(X, columns=["a", "b", "c"]).assign(site="north", person=keys, ill=y)
    frame.to_parquet(tmp_path / "table.parquet")
    numbers = {name: {"kind": "num", "low": -1, "high": 1} for name in "abc"}
    columns = numbers | {"site": {"kind": "id"}, "person": {"kind": "id"}, "ill": {"kind": "flag"}}
    (tmp_path / "schema.json").write_text(json.dumps({"target": "ill", "columns": columns}))
    arguments = ["--schema", tmp_path / "schema.json", "--epsilon", 20, "--delta", 1e-5, "--n", USERS]
    arguments += ["--group", "site", "--group", "person", "--output", tmp_path / "model"]
    with audited() as moves:
        outcome = CliRunner().invoke(app, ["fit", str(tmp_path / "table.parquet"), *map(str, arguments)])
    assert outcome.exit_code == 0, outcome.output
    assert moves
    assert max(moved for _, moved in moves) <= SLACK, moves


# ---- nothing shows -------------------------------------------------------------------------------------------


@pytest.mark.at_once(
    "auto-wrong labels",
    "by the root of their records-labels that are NaN",
    "by the root of their records-wrong labels",
    "by their records-ten thousand records",
    "loose bounds-1e30",
    "loose bounds-NaN",
    "one record each-nobody",
    "plain-the opposite",
)
@pytest.mark.parametrize("hostile", EVERYBODY)
@pytest.mark.parametrize("way", WAYS)
def test_a_hostile_user_changes_nothing_that_shows(hostile: str, way: str) -> None:
    X, y, keys = table_of(hostile)
    second = keys == "hostile"
    shown: list[Any] = []
    for kept in (~second, keys != "ordinary"):
        model = model_of(LogisticRegression, way, n=USERS)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            model.fit(X[kept], y[kept], groups=keys[kept])
        report = model.privacy_
        labels = [(group.name, group.count, group.events, group.sampling) for group in report.releases]
        plan = model.plan_.to_dict()
        # One notice follows from the number of usable users, which was released.
        notices = [one for one in report.notices if "usable" not in one]
        shown.append((report.status, labels, report.declared, notices, plan, model.coef_.shape))
    assert shown[0] == shown[1]


@pytest.mark.parametrize("relation", RELATIONS)
def test_no_users_at_all_are_a_data_set(relation: str) -> None:
    X, y = toy_data()
    given = RELATIONS[relation] or {"n": 60}
    for groups in ([None] * len(y), np.full(len(y), np.nan), [("a", None)] * len(y)):
        model = configured(LogisticRegression, **(BUDGET | given)).fit(X, y, groups=groups)
        assert model.privacy_.status == "The planned steps were all taken."
        assert model.privacy_.n == given["n"]


def test_the_order_of_rows_does_not_matter_where_all_records_of_a_user_are_used() -> None:
    X, y = toy_data()
    order = np.random.default_rng(0).permutation(len(y))
    within = order[np.argsort(KEYS[order], kind="stable")]  # users in their order, records of each shuffled
    seeded = configured(LogisticRegression, random_state=1, solver=FEW_STEPS)
    expected = seeded.fit(X, y, groups=KEYS).coef_
    for rows in (within, order):
        np.testing.assert_allclose(seeded.fit(X[rows], y[rows], groups=KEYS[rows]).coef_, expected, rtol=1e-9)


@pytest.mark.later("a private strength")
@pytest.mark.parametrize("way", ["a private strength", "loose bounds"])
def test_a_fit_of_several_stages_uses_the_same_records_of_a_user_in_all_of_them(
    way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    X, _ = toy_data()
    numbered, load = np.arange(240.0), Units.from_arrays
    kept: list[Any] = []

    def watched(features: Any, targets: Any = None, **given: Any) -> Units:
        labels: Any = {"classes": None, "target_bounds": (0.0, 300.0)}
        kept.append(sorted(load(features, numbered, **(given | labels)).private_targets.tolist()))
        return load(features, targets, **given)

    monkeypatch.setattr(Units, "from_arrays", watched)
    model = model_of(LogisticRegression, way, max_records_per_user=2)
    model.fit(X, toy_data()[1], groups=KEYS)
    assert len(kept) >= (
        1 if way == "a private strength" else 2
    )  # all candidates see the rows of one loading
    assert len(kept[0]) == 2 * 60
    assert all(each == kept[0] for each in kept)
    first = list(kept)
    model.fit(X, toy_data()[1], groups=KEYS)
    assert kept[-1] != first[0]  # and others in the next fit
    assert model.privacy_.is_private


def test_a_cap_of_one_still_protects_users() -> None:
    plan = privopt.plan(losses.logistic, n=1000, d=3, epsilon=1.0, delta=1e-6, max_records_per_user=1)
    assert plan.default.public.by_user
    assert "at most 1 record of each" in " ".join(str(plan).split())


def counts_of_users(
    users: int, mean: float, columns: int, seed: int
) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """About five records each of users who differ, with log-rates around a mean."""
    generator = np.random.default_rng(seed)
    keys = np.repeat(np.arange(users), 1 + generator.poisson(4, users))
    weights = generator.normal(size=columns)
    weights *= 0.5 / np.sqrt(np.sum(weights**2) / 3.0)
    rows = 0.5 * generator.uniform(-1.0, 1.0, (users, columns))[keys]
    rows += 0.5 * generator.uniform(-1.0, 1.0, rows.shape)
    scores = mean + rows @ weights + 0.5 * generator.normal(size=users)[keys]
    return rows, generator.poisson(np.exp(scores)).astype(float), keys


def over_the_constant(users: int, mean: float, columns: int, epsilon: float, seed: int) -> float:
    """The deviance of a fit by user on the records of others, over that of their own mean."""
    rows, counts, keys = counts_of_users(users + 2_000, mean, columns, seed)
    fitted = keys < users
    model = privopt.PoissonRegressor(
        epsilon=epsilon,
        delta=1.0 / users**2,
        bounds=(-1.0, 1.0),
        target_bounds=(0.0, 1_000.0),
        random_state=seed,
    ).fit(rows[fitted], counts[fitted], groups=keys[fitted])
    others = counts[~fitted]
    deviances = [
        mean_poisson_deviance(others, rates)
        for rates in (model.predict(rows[~fitted]), np.full(len(others), others.mean()))
    ]
    return deviances[0] / deviances[1]


@pytest.mark.audit
def test_counts_of_a_few_hundred_users_are_predicted_better_than_by_their_mean():
    assert over_the_constant(300, 3.0, 12, epsilon=1.0, seed=0) <= 1.0


@pytest.mark.audit
@pytest.mark.parametrize("users", [300, 500, 1_000])
@pytest.mark.parametrize(("mean", "columns"), [(1.0, 5), (0.0, 12), (3.0, 12)])
def test_counts_of_users_are_hardly_ever_predicted_worse_than_by_their_mean(users, mean, columns):
    found = [over_the_constant(users, mean, columns, epsilon=1.0, seed=seed) for seed in range(10)]
    assert np.mean(found) <= 1.02
