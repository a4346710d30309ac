import math

import pytest
from tests.attacks.broken import BROKEN

from privopt.attacks.optimal import optimal_attack
from privopt.errors import ArgumentError
from privopt.ledger.amounts import Budget

RELATIONS = ["replace-one", "add-or-remove-one"]


@pytest.mark.parametrize("relation", RELATIONS)
def test_descent_reveals_nearly_what_it_claims_and_no_more(relation):
    found = optimal_attack(Budget(1.0, 1e-6), relation=relation, steps=4, runs=150, seed=7)
    assert 0.8 <= found.lower_bound <= 1.0
    assert not found.refutes


@pytest.mark.parametrize(
    ("fault", "broken"), [(fault, kind) for fault, kinds in BROKEN.items() for kind in kinds]
)
def test_a_broken_run_is_caught_by_name(fault, broken):
    found = optimal_attack(Budget(1.0, 1e-6), steps=4, runs=30, watch=broken, seed=7)
    assert found.refutes
    assert fault in " ".join(found.faults)


def test_an_attack_without_a_claim_is_refused():
    with pytest.raises(ArgumentError, match="needs a claim"):
        optimal_attack(Budget(math.inf, 1e-6))
    with pytest.raises(ArgumentError, match="at least two runs"):
        optimal_attack(Budget(1.0, 1e-6), runs=1)
