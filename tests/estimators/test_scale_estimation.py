"""Bounds that are estimated privately: right, charged, of one plan with the fit, and silent about the data."""

import pickle
import warnings
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import sparse
from sklearn.base import clone
from tests.support.configured_estimators import FEW_STEPS, ROWS, WIDTH, configured, toy_data

from privopt.errors import BudgetExceeded
from privopt.estimators.linear import LinearRegression, LogisticRegression
from privopt.estimators.records import HeldRecords, Records, Shape
from privopt.estimators.scaling import FeatureScaling
from privopt.estimators.selection import PrivateSearchCV
from privopt.estimators.stages import LEVELS, ScaleEstimation, StagedPlan, fit_in_stages
from privopt.ledger.account import Account
from privopt.ledger.amounts import Budget
from privopt.ledger.curves import gaussian_mu
from privopt.ledger.events import leaf_counts
from privopt.mechanisms.noise import NoiseSource, RepeatedChoice
from privopt.public import Relation
from privopt.solvers.gradient_descent import GradientDescent
from privopt.solvers.stochastic_gradient_descent import StochasticGradientDescent

LOOSE = (-1e4, 1e4)
SCALES = np.array([1.0, 30.0, 0.01])


def loose(kind: Any = LogisticRegression, **changes: Any) -> Any:
    return configured(kind, **({"bounds": None, "loose_bounds": LOOSE, "epsilon": 5.0} | changes))


def wide_data(kind: Any = LogisticRegression) -> tuple[NDArray[np.float64], NDArray[Any]]:
    X, y = toy_data(kind)
    return X * SCALES, y


def records_of(X: Any, y: Any, seed: int = 0) -> Records:
    return HeldRecords(
        private_features=X,
        private_targets=y,
        groups=None,
        noise=NoiseSource(seed),
        choice=RepeatedChoice(NoiseSource(seed)),
    )


def estimation(bounds: Any, width: int, *, share: float = 0.05) -> ScaleEstimation:
    scaling = FeatureScaling.of(bounds, width, centered=False, keep_zero=False, name="loose_bounds")
    return ScaleEstimation(loose=scaling, share=share, keep_zero=False)


def estimated(X: Any, *, stddev: float = 0.0, low: Any = LOOSE[0], high: Any = LOOSE[1]) -> Any:
    """Bounds from exact shares, as if they had been released with some noise."""
    width = X.shape[1]
    scales = estimation((low, high), width)
    peak = np.maximum(np.abs(scales.loose.low), np.abs(scales.loose.high))
    shares = np.zeros((width, 2 * LEVELS + 1))
    for column, entries in enumerate((X / peak).T):
        sizes = np.abs(entries)
        levels = sum((sizes > 2.0**-k).astype(int) for k in range(1, LEVELS + 1))
        shares[column] = np.bincount(LEVELS + np.sign(entries).astype(int) * levels, minlength=2 * LEVELS + 1)
    return scales.bounds(shares / len(X), stddev)


@given(
    columns=st.lists(st.floats(1e-4, 1e4), min_size=1, max_size=4),
    signs=st.sampled_from([(-1, 1), (0, 1), (-1, 0)]),
)
def test_the_bounds_hold_the_column_and_are_at_most_twice_too_wide(
    columns: list[float], signs: tuple[int, int]
) -> None:
    X = np.linspace(signs[0], signs[1], 200)[:, None] * np.asarray(columns)
    low, high = estimated(X)
    assert np.all(low <= 0.1 * X.max(0))  # the few entries next to zero may be left out
    assert np.all(high >= 0.1 * X.min(0))
    # The largest one percent may lie just beyond a power of two, in a bin that is too rare to count.
    if signs[1]:
        assert np.all((high >= 0.97 * X.max(0)) & (high <= np.minimum(2.0001 * X.max(0), LOOSE[1])))
    if signs[0]:
        assert np.all((low <= 0.97 * X.min(0)) & (low >= np.maximum(2.0001 * X.min(0), LOOSE[0])))


def test_a_column_that_never_comes_near_zero_gets_a_lower_end_above_it() -> None:
    low, high = estimated(np.linspace(17.0, 90.0, 100)[:, None])
    assert 8.5 <= low[0] <= 17.0
    assert 90.0 <= high[0] <= 180.0


def test_columns_without_a_scale_in_sight_keep_the_loose_range() -> None:
    rare = np.zeros(1000)
    rare[:3] = 5.0
    low, high = estimated(np.stack([np.zeros(1000), rare, np.ones(1000)], axis=1))
    np.testing.assert_array_equal(low[:2], LOOSE[0])
    np.testing.assert_array_equal(high[:2], LOOSE[1])
    assert 0.0 < low[2] <= 1.0 <= high[2] <= 2.0


def test_noise_is_not_taken_for_data() -> None:
    X, stddev = np.linspace(-1, 1, 500)[:, None], 0.01
    noise = np.random.default_rng(0)
    scales = estimation(LOOSE, 30)
    low, high = scales.bounds(stddev * noise.normal(size=(30, 2 * LEVELS + 1)), stddev)
    np.testing.assert_array_equal([low, high], [[end] * 30 for end in LOOSE])
    assert np.all(np.abs(estimated(X, stddev=stddev)) <= 2.0)


@pytest.mark.audit
def test_sparse_features_keep_zero_inside() -> None:
    X, y = wide_data()
    shifted = sparse.csr_array(np.where(np.arange(ROWS)[:, None] % 2 == 0, X + 50.0, 0.0))
    low, high = loose(epsilon=50.0).fit(shifted, y).bounds_
    assert np.all(low <= 0.0)
    assert np.all(high >= 40.0)
    with pytest.raises(ValueError, match="loose_bounds of sparse features must include 0"):
        loose(loose_bounds=(1.0, 9.0)).fit(shifted, y)


@pytest.mark.parametrize("kind", [LogisticRegression, LinearRegression])
def test_one_plan_covers_the_bounds_and_the_fit(kind: Any) -> None:
    X, y = wide_data(kind)
    model = loose(kind).fit(X, y)
    announced = loose(kind).plan(n=ROWS, n_features=WIDTH)
    assert announced.event == model.plan_.event == model.privacy_.event
    assert 0.999 * 5.0 <= model.privacy_.epsilon <= 5.0
    assert (model.plan_.releases, model.n_iter_, model.privacy_.count) == (22, 20, 22)
    assert model.plan_.settings["scale_share"] == 0.05
    assert [group.name for group in model.privacy_.releases] == [
        "ColumnMagnitudes",
        "UsableUnits",
        "ClippedGradient",
    ]
    assert any("for 5 % of the budget" in sentence for sentence in model.privacy_.declared)


@pytest.mark.later("Relation.ADD_OR_REMOVE_ONE-solver1", "Relation.REPLACE_ONE-solver1")
@pytest.mark.parametrize("solver", [FEW_STEPS, StochasticGradientDescent(steps=8, rate=0.3)])
@pytest.mark.parametrize("relation", list(Relation))
def test_the_transcript_is_the_plan(solver: Any, relation: Relation) -> None:
    X, y = wide_data()
    budget = Budget(2.0, 1e-5)
    model = loose(relation=relation, n=ROWS)
    shape = Shape(width=WIDTH, n=ROWS, by_user=False, budget=budget)
    setup = model._setup(shape, y)
    staged = StagedPlan.of(setup, solver)
    assert staged is not None
    result, setup, *_ = fit_in_stages(staged, records_of(X, y), account=None, observer=None)
    assert leaf_counts(result.transcript.event()) == leaf_counts(staged.plan.event)
    assert 2.0 * (1 - 1e-3) <= result.transcript.epsilon(budget.delta) <= 2.0
    assert setup.features.width == WIDTH


def test_the_share_is_one_of_rho() -> None:
    scales = estimation(LOOSE, WIDTH, share=0.2).configured(Budget(1.0, 1e-6))
    assert scales.noise_multiplier is not None
    assert scales.noise_multiplier**-2 == pytest.approx(0.2 * gaussian_mu(1.0, 1e-6) ** 2)


def test_with_little_noise_the_fit_is_as_good_as_with_known_bounds() -> None:
    X, y = wide_data()
    found = loose(epsilon=50.0, delta=1e-3, random_state=0).fit(X, y)
    low, high = found.bounds_
    assert np.all((high >= 0.5 * SCALES) & (high <= 2 * SCALES))
    assert np.all((low <= -0.5 * SCALES) & (low >= -2 * SCALES))
    assert found.score(X, y) > 0.9
    np.testing.assert_array_equal(found.predict(X), found.predict(X))


def test_epsilon_infinity_finds_the_bounds_without_noise() -> None:
    X, y = wide_data()
    first, second = (loose(epsilon=float("inf"), delta=None).fit(X, y) for _ in range(2))
    np.testing.assert_array_equal(first.bounds_, second.bounds_)
    assert not first.privacy_.is_private


HOPELESS = {
    "a column of NaN": lambda X: np.where(np.arange(WIDTH) == 1, np.nan, X),
    "nothing but NaN": lambda X: np.full_like(X, np.nan),
    "constant columns": lambda X: np.ones_like(X),
    "zeros": np.zeros_like,
    "huge": lambda X: np.where(np.arange(WIDTH) == 1, 1e300, X),
    "infinite": lambda X: np.where(np.arange(WIDTH) == 1, -np.inf, X),
    "denormal": lambda X: X * 1e-310,
}


@pytest.mark.later("a column of NaN", "infinite", "nothing but NaN")
@pytest.mark.parametrize("spoil", HOPELESS.values(), ids=HOPELESS.keys())
def test_no_data_raise_warn_or_change_the_plan(spoil: Any) -> None:
    X, y = wide_data()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = loose().fit(spoil(X), y)
    assert model.plan_.event == loose().plan(n=ROWS, n_features=WIDTH).event
    assert np.all(np.isfinite(model.coef_))
    assert np.all(np.isfinite(model.bounds_))
    assert np.all(model.bounds_[0] <= model.bounds_[1])


def test_users_are_protected_in_both_stages() -> None:
    X, y = wide_data()
    model = loose(max_records_per_user=3).fit(X, y, groups=np.arange(ROWS) // 4)
    assert (model.privacy_.unit, model.privacy_.n) == ("user", ROWS // 4)
    assert model.privacy_.epsilon <= 5.0


def test_an_account_pays_once_for_both_stages() -> None:
    X, y = wide_data()
    account = Account(5.5, 1e-5)
    loose(account=account).fit(X, y)
    assert len(account.entries) == 1
    with pytest.raises(BudgetExceeded, match="is left"):
        loose(account=account).fit(X, y)


def test_a_seeded_fit_repeats_and_a_model_clones_and_pickles() -> None:
    X, y = wide_data()
    first, second = (loose(random_state=4).fit(X, y) for _ in range(2))
    np.testing.assert_array_equal(first.coef_, second.coef_)
    assert first.privacy_.seeded
    packed = pickle.loads(pickle.dumps(first))
    np.testing.assert_array_equal(packed.predict(X), first.predict(X))
    assert clone(first).loose_bounds == LOOSE


@pytest.mark.audit
def test_a_search_estimates_the_bounds_first_and_once() -> None:
    X, y = wide_data()
    estimator = LogisticRegression(loose_bounds=LOOSE, classes=[0, 1], solver=FEW_STEPS)
    search = PrivateSearchCV(estimator, {"alpha": [1e-3, 30.0]}, epsilon=300.0, delta=1e-2, random_state=0)
    found = search.fit(X, y)
    assert 300.0 * (1 - 1e-3) <= found.privacy_.epsilon <= 300.0
    assert found.privacy_.count == found.plan_.releases == 2 + 40 + 1 + 20
    assert found.plan_.event == search.plan(n=ROWS, n_features=WIDTH).event
    assert found.best_params_ == {"alpha": 1e-3}
    assert found.score(X, y) > 0.85
    assert np.all(found.best_estimator_.bounds_[1] < 100.0)


WRONG = [
    ({"bounds": (-1, 1)}, ValueError, "bounds and loose_bounds were both given"),
    ({"loose_bounds": None}, ValueError, "bounds is missing: .* loose_bounds"),
    ({"loose_bounds": 3.0}, TypeError, "loose_bounds must be a pair"),
    ({"loose_bounds": (1.0, 0.0)}, ValueError, "loose_bounds must be finite with low <= high"),
    ({"scale_share": 0.0}, ValueError, "scale_share must lie strictly between 0 and 1"),
    ({"scale_share": 1.0}, ValueError, "scale_share must lie strictly between 0 and 1"),
    ({"scale_share": "some"}, TypeError, "scale_share must be a number"),
]


@pytest.mark.parametrize(("change", "error", "message"), WRONG)
def test_a_wrong_argument_gets_a_sentence(change: Any, error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        loose(**change).fit(*wide_data())


@pytest.mark.audit
def test_a_range_too_wide_by_orders_of_magnitude_costs_little_on_a_real_table(shared_data: Any) -> None:
    pandas = pytest.importorskip("pandas")
    table = pandas.read_parquet(shared_data / "adult.parquet").iloc[:12_000]
    columns = ["age", "fnlwgt", "education_num", "capital_gain", "capital_loss", "hours_per_week"]
    X, y = table[columns].to_numpy(np.float64), table["target"].to_numpy(int)
    high = np.array([90.0, 1.5e6, 16.0, 1e5, 4500.0, 99.0])
    common: dict[str, Any] = {"epsilon": 2.0, "delta": 1e-8, "classes": [0, 1], "random_state": 0}
    common["solver"] = GradientDescent()
    known = LogisticRegression(bounds=(0.0, high), **common).fit(X, y).score(X, y)
    for factor in (10.0, 1000.0):
        model = LogisticRegression(loose_bounds=(0.0, factor * high), **common).fit(X, y)
        assert model.score(X, y) > known - 0.01


def test_the_second_stage_keeps_a_plan_that_rests_on_the_row_bound() -> None:
    rng = np.random.default_rng(5)
    X = rng.uniform(0.0, 30.0, (400, 2))
    model = LinearRegression(
        epsilon=2.0,
        delta=1e-6,
        loose_bounds=(-1e3, 1e3),
        target_bounds=(0.0, 60.0),
        solver="objective-perturbation",
        random_state=0,
    )
    assert np.all(np.isfinite(model.fit(X, X.sum(axis=1)).coef_))
