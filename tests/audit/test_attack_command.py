"""The product's attacks at full strength: every estimator at its defaults, and everything that is broken."""

import numpy as np
import pytest
from tests.attacks.broken import BROKEN, attack_broken
from tests.attacks.test_residuals import noise

from privopt.attacks.one_run import one_run_attack
from privopt.attacks.optimal import noise_faults, optimal_attack
from privopt.attacks.subjects import IN_ONE_RUN, SUBJECTS
from privopt.ledger.amounts import Budget

pytestmark = pytest.mark.audit

RELATIONS = ["replace-one", "add-or-remove-one"]


@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize(
    "budget", [Budget(0.3, 1e-5), Budget(1.0, 1e-6), Budget(2.0, 0.2), Budget(8.0, 1e-9)], ids=str
)
def test_the_optimal_test_reaches_the_claim_on_descent_and_never_exceeds_it(relation, budget, evidence):
    found = optimal_attack(SUBJECTS["descent"], budget, relation=relation, runs=100, seed=1)
    assert 0.8 * budget.epsilon <= found.lower_bound <= budget.epsilon
    assert not found.refutes
    claim = f"optimal test, epsilon {budget.epsilon:g}, delta {budget.delta:g}, {relation}"
    evidence("attacks", claim, tried=100, of="runs", largest=found.lower_bound, bound=budget.epsilon)


@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize("name", SUBJECTS)
def test_no_estimator_at_its_defaults_reveals_more_than_it_claims(name, relation, evidence):
    found = optimal_attack(SUBJECTS[name], Budget(1.0, 1e-6), relation=relation)
    assert not found.refutes, found
    assert found.lower_bound > 0.2 or "no bound" in found.detail, found
    bound = max(0.0, found.lower_bound)
    evidence("attacks", f"optimal test, {name}, {relation}", tried=20, of="runs", largest=bound, bound=1.0)


def test_bounds_of_many_seeds_never_exceed_the_claim_and_nothing_is_accused():
    """Each is wrong with probability 1e-3 at most: two of 100 happen once in 200 times."""
    found = [
        optimal_attack(SUBJECTS["descent"], Budget(1.0, 1e-6), relation=RELATIONS[seed % 2], seed=seed)
        for seed in range(100)
    ]
    assert [one.faults for one in found if one.faults] == []
    assert sum(one.refutes for one in found) <= 1
    assert np.median([one.lower_bound for one in found]) >= 0.9


def test_noise_that_is_right_is_not_accused_in_two_thousand_seeds():
    assert [fault for seed in range(2000) for fault in noise_faults(noise(seed))] == []


@pytest.mark.parametrize("kind", ["canaries", "membership"])
@pytest.mark.parametrize("name", IN_ONE_RUN)
def test_guesses_about_one_run_do_not_refute_a_claim(name, kind, evidence):
    estimator, of_classes = IN_ONE_RUN[name]
    for seed in range(5):
        found = one_run_attack(
            estimator, kind, name=name, epsilon=1.0, delta=1e-6, of_classes=of_classes, seed=seed
        )
        assert not found.refutes, found
        evidence(
            "attacks",
            f"{kind}, {name}, {seed}",
            tried=1,
            of="runs",
            largest=max(0.0, found.lower_bound),
            bound=1.0,
        )


# A penalty on the sum of sizes keeps coefficients at 0, and a capped loss has no slope where canaries lie.
IN_VAIN = ("lasso", "robust-regression")


@pytest.mark.parametrize("name", [name for name in IN_ONE_RUN if not name.startswith(IN_VAIN)])
def test_hardly_any_noise_gives_the_canaries_away(name):
    estimator, of_classes = IN_ONE_RUN[name]

    def loud(**arguments):
        return estimator(**arguments | {"epsilon": 1e4})

    found = one_run_attack(loud, "canaries", name=name, epsilon=1.0, delta=1e-6, of_classes=of_classes)
    assert found.refutes, found


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 10.0])
@pytest.mark.parametrize("fault", BROKEN)
def test_what_is_broken_is_told_by_its_own_name_under_every_budget(fault, epsilon, evidence):
    for seed in range(5):
        found = attack_broken(fault, epsilon=epsilon, runs=20, seed=seed)
        assert [one.split(":")[0] for one in found.faults] == [fault]
    evidence(
        "mutants", f"a run with {fault}, by the optimal test, epsilon {epsilon:g}", tried=5, of="mistakes"
    )
