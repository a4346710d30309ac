"""The contract of a solver: its result is post-processing, its price is known, no unit moves a release too far."""

from collections.abc import Sequence
from dataclasses import dataclass

from privopt.ledger.amounts import Budget
from privopt.planning.task import Instance
from privopt.problems import losses
from privopt.problems.problem import Problem
from privopt.problems.regularisers import Ridge
from privopt.public import Relation
from privopt.solvers.base import Solver
from privopt.testing.programs import ProgramTrial
from privopt.testing.toy_data import ToyData

BUDGET = Budget(2.0, 1e-5)
_PROBLEM = Problem(losses.logistic, Ridge(0.1))


def check_solver(
    solver: Solver,
    problem: Problem = _PROBLEM,
    *,
    budget: Budget = BUDGET,
    relations: Sequence[Relation | str] = ("replace-one", "add-or-remove-one"),
    records: int = 40,
    columns: int = 5,
    by_user: bool = False,
    seed: int = 0,
) -> None:
    """Hold a solver to its promises on small data.

    It is run on data, on their neighbours, and on other data that give the same answers; without data, on recorded
    answers and on zeros; and on data from which nothing can be learnt.

    Args:
        solver: configured or not; open fields are derived.
        problem: what it solves; the loss says which targets are made up.
        budget: calibrates the noise, unless `noise_multiplier` is given.
        relations: which data sets are neighbours.
        records: how many there are.
        columns: features of each.
        by_user: whether two records are a user.
        seed: of data and noise.
    Raises:
        ContractViolation: which names the promise that was broken.
        ValueError: the solver does not apply to the problem, or cannot be configured.
    """
    for relation in relations:
        data = ToyData(
            problem=problem,
            relation=Relation.parse(relation),
            records=records,
            columns=columns,
            by_user=by_user,
            seed=seed,
        )
        again = (
            f"check_solver(solver, problem, relations=[{data.relation.value!r}], records={records}, "
            f"columns={columns}, by_user={by_user}, seed={seed})"
        )
        SolverTrial(solver, data, budget, again).require_all()


@dataclass(frozen=True)
class SolverTrial(ProgramTrial):
    """A solver of minimisations on made-up data."""

    @property
    def task(self) -> Instance:
        """A minimisation."""
        return Instance(self.data.problem, self.public, self.budget)
