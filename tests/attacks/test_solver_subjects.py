import pytest

from privopt.attacks.lockstep import in_lockstep
from privopt.attacks.optimal import optimal_attack
from privopt.attacks.subjects import Claim, solver_subject
from privopt.ledger.amounts import Budget
from privopt.public import Relation
from privopt.solvers.registry import NAMES

OF_OTHER_PROBLEMS = {"kl-spider", "kl-proximal-point", "worst-group-two-stage"}


def test_solvers_are_attacked_on_a_problem_that_they_solve():
    for name in set(NAMES) - OF_OTHER_PROBLEMS:
        assert solver_subject(name).name == name
    for name in OF_OTHER_PROBLEMS:
        with pytest.raises(ValueError, match="none of the problems"):
            solver_subject(name)


def test_a_solver_whose_releases_are_of_another_kind_has_no_bound_and_a_line_that_says_so():
    found = optimal_attack(solver_subject("objective-perturbation"), Budget(1.0, 1e-6), runs=2)
    assert not found.refutes
    assert found.lower_bound == 0.0
    assert (
        "no bound, its releases are not of a kind whose law is known here: PerturbedMinimiser" in found.detail
    )


def test_drawn_vertices_are_told_apart_by_the_chances_of_their_draws():
    subject = solver_subject("vertex-anytime")
    claim = Claim(budget=Budget(1.0, 1e-6), relation=Relation.REPLACE_ONE, n=subject.n)
    left, right = subject.sides(Relation.REPLACE_ONE)
    seen = in_lockstep(lambda: subject.run(claim, left), lambda: subject.run(claim, right))
    assert set(seen.names) == {"VertexSampler.draw"}
    assert not seen.unwatched
    assert seen.spread > 0
    assert seen.same_end
