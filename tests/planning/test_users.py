"""How many users a budget needs: the noise of one mean, the refusal, and what is expected."""

import math
from dataclasses import replace

import pytest

from privopt import losses
from privopt.errors import BudgetTooSmall, PrivoptError
from privopt.ledger.amounts import Budget
from privopt.planning import users
from privopt.planning.task import Instance
from privopt.problems.problem import Problem
from privopt.public import Public, Relation, of_users


def instance(
    *, n: int = 1000, d: int = 20, epsilon: float = 1.0, typical: float = 10.0, delta: float = 1e-6
) -> Instance:
    public = Public(n=n, d=d, **of_users(100, "sqrt", typical))
    return Instance(Problem(losses.logistic), public, Budget(epsilon, delta))


def test_the_noise_of_one_mean_is_that_of_the_specification() -> None:
    # R1: rho(1, 1e-6) = 0.028014481912630524, and N0 = 2 sqrt(d) / (n sqrt(2 rho)).
    expected = 2.0 * math.sqrt(20) / (1000 * math.sqrt(2 * 0.028014481912630524))
    assert users.one_shot_noise(instance()) == pytest.approx(expected, rel=1e-8)
    # R10: N0 = 0.03876831 where 7 % of rho go elsewhere.
    assert users.one_shot_noise(instance()) / math.sqrt(0.93) == pytest.approx(0.03876831, rel=0.02)


def test_an_added_user_takes_half_the_noise_of_a_replaced_one() -> None:
    replaced = instance()
    added = replace(replaced, public=replace(replaced.public, relation=Relation.ADD_OR_REMOVE_ONE))
    assert users.one_shot_noise(replaced) == pytest.approx(2.0 * users.one_shot_noise(added))


@pytest.mark.parametrize(("d", "epsilon"), [(20, 1.0), (3, 0.1), (2, 8.0), (400, 0.5)])
def test_the_smallest_workable_n_is_workable_and_one_less_is_not(d: int, epsilon: float) -> None:
    least = users.smallest_workable_n(instance(d=d, epsilon=epsilon))
    users.require_workable(instance(n=least, d=d, epsilon=epsilon))
    with pytest.raises(BudgetTooSmall, match=f"At least {least:,} users"):
        users.require_workable(instance(n=least - 1, d=d, epsilon=epsilon))


def test_the_refusal_is_one_of_ours_and_says_what_to_expect() -> None:
    with pytest.raises(
        PrivoptError, match=r"19 users are too few .* the predicted excess is 0\.\d+\. At least"
    ) as refusal:
        users.require_workable(instance(n=19, epsilon=4.0))
    assert isinstance(refusal.value, ValueError)


def test_without_noise_nothing_is_refused() -> None:
    quiet = instance(n=2, epsilon=math.inf)
    users.require_workable(quiet)
    assert users.one_shot_noise(quiet) == 0.0
    assert users.faint_users(quiet) == ()
    assert users.expected_excess(quiet) == 0.0


def test_a_plan_warns_before_it_is_refused() -> None:
    assert users.faint_users(instance(n=10_000)) == ()
    (notice,) = users.faint_users(instance(n=300))
    assert "noise will dominate: with 300 users and epsilon 1 " in notice


# docs/benchmarks-users.md, excess x 1000 of the default that is told how many records people have.
MEASURED = [
    (13_243, 27, 2.0, 1.0, 4.2),
    (13_243, 27, 2.0, 3.0, 1.4),
    (4_730, 47, 3.0, 1.0, 12.7),
    (4_730, 47, 3.0, 3.0, 3.8),
    (800, 41, 36.0, 1.0, 5.8),
    (800, 41, 36.0, 3.0, 1.1),
]


@pytest.mark.parametrize(("n", "d", "typical", "epsilon", "measured"), MEASURED)
def test_the_expected_excess_is_within_a_factor_of_three_of_measurements(
    n: int, d: int, typical: float, epsilon: float, measured: float
) -> None:
    found = 1e3 * users.expected_excess(
        instance(n=n, d=d, epsilon=epsilon, typical=typical, delta=1.0 / n**2)
    )
    assert measured / 3 <= found <= 3 * measured


def test_more_records_of_each_user_help() -> None:
    found = [users.expected_excess(instance(typical=typical)) for typical in (1.0, 4.0, 16.0)]
    assert found[0] / found[1] == pytest.approx(4**0.9)
    assert found[1] / found[2] == pytest.approx(4**0.9)
