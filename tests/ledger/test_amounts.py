"""A budget is checked when it is made."""

import math

import pytest

from privopt.ledger.amounts import Budget


@pytest.mark.parametrize("value", [0.0, -1.0, math.nan])
def test_an_epsilon_must_be_positive(value: float) -> None:
    with pytest.raises(ValueError, match="epsilon must be positive"):
        Budget(value)


@pytest.mark.parametrize("value", [1.0, -1e-9, math.nan])
def test_delta_is_a_probability(value: float) -> None:
    with pytest.raises(ValueError, match="delta must be at least 0 and below 1"):
        Budget(1.0, value)


def test_a_budget_prints_and_knows_whether_it_is_private() -> None:
    assert str(Budget(1, 1e-6)) == "epsilon = 1, delta = 1e-06"
    assert str(Budget(0.5)) == "epsilon = 0.5, delta = 0"
    assert str(Budget(math.inf, 0.1)) == "epsilon = infinity (not private)"
    assert not Budget(math.inf, 0.1).is_private
    assert Budget(1, 1e-6).is_private
