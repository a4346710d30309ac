"""The product's attacks at full strength: every model at its defaults, and every broken run."""

import pytest
from tests.attacks.broken import BROKEN

from privopt.attacks.one_run import one_run_attack
from privopt.attacks.optimal import optimal_attack
from privopt.commands.task import MODELS
from privopt.ledger.amounts import Budget

pytestmark = pytest.mark.audit


@pytest.mark.parametrize("relation", ["replace-one", "add-or-remove-one"])
@pytest.mark.parametrize(
    "budget", [Budget(0.3, 1e-5), Budget(1.0, 1e-6), Budget(2.0, 0.2), Budget(8.0, 1e-9)]
)
def test_the_optimal_test_reaches_the_claim_and_never_exceeds_it(relation, budget, evidence):
    found = optimal_attack(budget, relation=relation, runs=2000, seed=1)
    assert 0.9 * budget.epsilon <= found.lower_bound <= budget.epsilon
    assert not found.refutes
    claim = f"optimal test, epsilon {budget.epsilon:g}, delta {budget.delta:g}, {relation}"
    evidence("attacks", claim, tried=2000, of="runs", largest=found.lower_bound, bound=budget.epsilon)


@pytest.mark.parametrize("kind", ["canaries", "membership"])
@pytest.mark.parametrize("name", MODELS)
def test_no_model_at_its_defaults_reveals_more_than_it_claims(name, kind, evidence):
    model = MODELS[name]
    for seed in range(5):
        found = one_run_attack(
            model.estimator, kind, epsilon=1.0, delta=1e-6, of_classes=model.of_classes, seed=seed
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


@pytest.mark.parametrize("name", MODELS)
def test_hardly_any_noise_gives_the_canaries_of_every_model_away(name):
    model = MODELS[name]

    def loud(**arguments):
        return model.estimator(**arguments | {"epsilon": 1e4})

    found = one_run_attack(loud, "canaries", epsilon=1.0, delta=1e-6, of_classes=model.of_classes)
    assert found.refutes, found


@pytest.mark.parametrize(("fault", "kinds"), list(BROKEN.items()))
def test_a_broken_run_is_caught_under_every_budget(fault, kinds, evidence):
    for broken in kinds:
        for epsilon in (0.1, 1.0, 10.0):
            found = optimal_attack(Budget(epsilon, 1e-6), watch=broken, runs=200, seed=2)
            assert found.refutes, (broken, found)
            assert fault in " ".join(found.faults)
    evidence("mutants", f"a run with {fault}, by the optimal test", tried=3 * len(kinds), of="mistakes")
