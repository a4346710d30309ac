import math

import pytest
from tests.attacks.broken import BROKEN, attack_broken

from privopt.attacks.optimal import optimal_attack
from privopt.attacks.subjects import SUBJECTS
from privopt.errors import ArgumentError
from privopt.ledger.amounts import Budget

RELATIONS = ["replace-one", "add-or-remove-one"]


@pytest.mark.later("add-or-remove-one")
@pytest.mark.parametrize("relation", RELATIONS)
def test_descent_reveals_nearly_what_it_claims_and_no_more(relation):
    found = optimal_attack(SUBJECTS["descent"], Budget(1.0, 1e-6), relation=relation, seed=7)
    assert 0.8 <= found.lower_bound <= 1.0
    assert not found.refutes
    assert found.detail == "20 runs of 16 releases"


@pytest.mark.at_once("sensitivity understated")
@pytest.mark.parametrize("fault", BROKEN)
def test_what_is_broken_is_told_by_its_own_name_alone(fault):
    found = attack_broken(fault)
    assert found.refutes
    assert [one.split(":")[0] for one in found.faults] == [fault]


def test_an_attack_without_a_claim_is_refused():
    with pytest.raises(ArgumentError, match="needs a claim"):
        optimal_attack(SUBJECTS["descent"], Budget(math.inf, 1e-6))
    with pytest.raises(ArgumentError, match="at least two runs"):
        optimal_attack(SUBJECTS["descent"], Budget(1.0, 1e-6), runs=1)
