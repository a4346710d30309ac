"""The solvers of the registry at their defaults, as subjects: each on the first of a few problems that it solves."""

from collections.abc import Iterator

import numpy as np

from privopt.attacks.subjects import Claim, End, Records, Run, Subject, Turned
from privopt.data.units import Units
from privopt.problems import losses
from privopt.problems.constraints import L1Ball
from privopt.problems.grouped_loss import GroupedLoss
from privopt.problems.problem import Problem
from privopt.problems.regularisers import Ridge
from privopt.solve import minimize
from privopt.solvers.registry import named

RECORDS = 300
_PROBLEMS = (
    Problem(losses.logistic, Ridge(0.01)),
    Problem(losses.logistic, constraint=L1Ball(2.0)),
    Problem(GroupedLoss(losses.logistic, 1, (1.0,))),
)


def solver_subject(name: str) -> Subject:
    """A solver as a subject.

    Args:
        name: of the registry.

    Raises:
        ValueError: none of the problems here is one for it.
    """
    solver = named(name)
    for problem, by_user in _settings():
        units = _units(Turned(target=1, others=(0,)).left(RECORDS, int), None, by_user=by_user)
        if solver.obstacle(problem, units.public) is None:
            return Subject(
                name=name,
                run=_program(name, problem, by_user=by_user),
                worst=Turned(target=1, others=(0,), share=0.05),
                kind=int,
                n=RECORDS,
            )
    raise ValueError(f"none of the problems that are attacked here is one for {name!r}.")


def _settings() -> Iterator[tuple[Problem, bool]]:
    for by_user in (False, True):
        for problem in _PROBLEMS:
            yield problem, by_user


def _units(records: Records, claim: Claim | None, *, by_user: bool) -> Units:
    return Units.from_arrays(
        records.rows,
        records.targets,
        classes=[0, 1],
        relation="replace-one" if claim is None else claim.relation,
        row_bound=1.0,
        n=RECORDS if claim is None else claim.n,
        groups=np.arange(len(records)) if by_user else None,
    )


def _program(name: str, problem: Problem, *, by_user: bool) -> Run:
    def run(claim: Claim, records: Records) -> End:
        found = minimize(
            problem,
            _units(records, claim, by_user=by_user),
            budget=claim.budget,
            solver=name,
            random_state=claim.seed,
        )
        return [found.params, found.status.value]

    return run
