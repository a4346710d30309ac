"""`user_mean`, as a user meets it."""

import numpy as np
import pytest

import privopt
from privopt.errors import BudgetExceeded
from privopt.mean_of_users import plan_user_mean
from privopt.public import Public, of_users
from privopt.status import Status

USERS, D = 1200, 4
FAR = np.array([30.0, -20.0, 10.0, 5.0])
BUDGET = {"bound": 50.0, "epsilon": 2.0, "delta": 1e-6}


def embeddings(users=USERS, seed=0, records=3):
    rng = np.random.default_rng(seed)
    keys = np.repeat(np.arange(users), records)
    offsets = 0.5 * rng.normal(size=(users, D))
    return FAR + offsets[keys] + 0.1 * rng.normal(size=(len(keys), D)), keys


def off(result):
    return float(np.linalg.norm(result.value - FAR))


@pytest.mark.later("add or remove", "searched")
@pytest.mark.parametrize(
    "options",
    [{}, {"radius": 1.8}, {"relation": "add-or-remove-one", "n": 1300}],
    ids=["searched", "known radius", "add or remove"],
)
def test_the_noise_is_that_of_the_spread(options):
    values, keys = embeddings()
    result = privopt.user_mean(values, keys, **BUDGET, **options, random_state=4)
    assert result.status is Status.FINISHED
    clipped = result.plan.public.relation.factor * 50.0 / result.plan.public.n * np.sqrt(D) * 2.0
    assert off(result) < 0.15 < clipped
    assert result.value.shape == (D,)
    assert result.plan.epsilon <= 2.0
    assert "Private mean over users" in str(result.report)
    assert "Private tests" in result.report.to_html()
    again = privopt.user_mean(values, keys, **BUDGET, **options, random_state=4)
    np.testing.assert_array_equal(again.value, result.value)
    assert result.transcript.seeded


def test_scattered_users_fall_back_to_clipping_at_the_price_announced():
    rng = np.random.default_rng(1)
    values = 30.0 * rng.normal(size=(USERS, D))
    result = privopt.user_mean(values, np.arange(USERS), **BUDGET, radius=0.5, random_state=3)
    assert result.status is Status.FELL_BACK
    assert result.transcript[-1].name == "HeldMean"
    assert result.transcript.epsilon(1e-6) <= 2.0


@pytest.mark.audit
def test_few_users_are_clipped_around_zero():
    values, keys = embeddings(users=100)
    result = privopt.user_mean(values, keys, **BUDGET, random_state=3)
    assert result.status is Status.FINISHED
    assert result.plan.solver == "user mean (clipped)"
    assert len(result.transcript) == 1
    assert "too few" in str(result.plan)
    assert "give at least" in str(result.plan)


def test_no_privacy_is_the_mean_over_users_of_their_averages():
    values, keys = embeddings(users=20)
    values, keys = np.concatenate([values, values[:1] + 5.0]), np.concatenate([keys, keys[:1]])
    result = privopt.user_mean(values, keys, bound=500.0, epsilon=np.inf, delta=1e-6)
    exact = np.mean([values[keys == user].mean(axis=0) for user in range(20)], axis=0)
    np.testing.assert_allclose(result.value, exact, rtol=1e-5)


@pytest.mark.audit
def test_rates_are_numbers():
    rng = np.random.default_rng(0)
    clicks = rng.random(6000) < 0.2
    result = privopt.user_mean(
        clicks.astype(float), rng.integers(0, USERS, 6000), bound=1.0, epsilon=2.0, delta=1e-6
    )
    assert np.shape(result.value) == ()
    assert float(result.value) == pytest.approx(0.2, abs=0.05)
    assert repr(result).startswith("UserMean(value=")


@pytest.mark.parametrize("kind", ["empty", "a million", "not a number", "huge", "equal"])
def test_hostile_users_change_neither_price_nor_shape(kind):
    values, keys = embeddings()
    if kind == "a million":
        values = np.concatenate([values, np.full((100_000, D), -3.0)])
        keys = np.concatenate([keys, np.zeros(100_000, int)])
    elif kind == "equal":
        values = np.full_like(values, 7.0)
    else:
        values[keys == 3] = {"empty": np.nan, "not a number": np.inf, "huge": 1e30}[kind]
    result = privopt.user_mean(values, keys, **BUDGET, radius=1.8, random_state=3)
    assert len(result.transcript) == 2
    assert np.all(np.isfinite(result.value))
    assert result.status is Status.FINISHED


def test_an_account_is_charged_and_refuses_before_anything_is_read():
    values, keys = embeddings(users=300)
    account = privopt.Account(2.2, 1e-5)
    privopt.user_mean(values, keys, **BUDGET, account=account)
    assert len(account.entries) == 1
    with pytest.raises(BudgetExceeded, match="would cost"):
        privopt.user_mean(values, keys, **BUDGET, account=account)


def test_the_plan_needs_public_numbers_alone():
    public = Public(n=2000, d=5, **of_users(100, "user"))
    planned = plan_user_mean(public, privopt.Budget(1.0, 1e-6), bound=3.0, radius=None, outliers=0.05)
    assert planned.title == "user mean (stable, radius searched for)"
    assert planned.indicators["noise_over_radius"].value > 0


@pytest.mark.parametrize(
    ("changed", "error", "message"),
    [
        ({"bound": 0.0}, ValueError, "bound must be positive"),
        ({"bound": "1"}, TypeError, "bound must be a number"),
        ({"radius": -1.0}, ValueError, "radius must be positive"),
        ({"outliers": 0.5}, ValueError, "outliers must be"),
        ({"outliers": "few"}, TypeError, "outliers must be a number, got 'few'"),
        ({"bound": 10**400}, ValueError, "bound is larger than any number that can be computed with"),
        ({"groups": None}, ValueError, "groups is missing"),
        ({"groups": np.zeros(7)}, ValueError, "group"),
        ({"epsilon": 0.0}, ValueError, "epsilon"),
        ({"delta": 2.0}, ValueError, "delta"),
        ({"n": 10}, ValueError, "more users than n"),
        ({"max_records_per_user": 0}, ValueError, "max_records_per_user"),
        ({"relation": "add-or-remove-one"}, ValueError, "n is missing"),
        ({"relation": "swap"}, ValueError, "relation must be"),
        ({"account": 3}, TypeError, "account"),
        ({"observer": 3}, TypeError, "observer"),
    ],
)
def test_bad_arguments_get_one_sentence(changed, error, message):
    values, keys = embeddings(users=30)
    arguments = {"groups": keys, **BUDGET, **changed}
    with pytest.raises(error, match=message):
        privopt.user_mean(values, arguments.pop("groups"), **arguments)
