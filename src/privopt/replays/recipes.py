"""What a run was asked, written down, so that it can be rebuilt beside its released values."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from privopt.ledger.amounts import Budget
from privopt.planning.seen_columns import SourceColumn
from privopt.problems.problem import Problem
from privopt.public import Public
from privopt.replays.values import Unwritten, written
from privopt.report.kept import Recipe
from privopt.solvers.base import Solver

MINIMIZE, ESTIMATOR = "minimize", "estimator"
UNRECORDED = ("account", "random_state")  # arguments of an estimator that no release depends on


def asked_of(estimator: Any) -> dict[str, Any]:
    """The arguments of an estimator that its releases depend on, those of an estimator inside it first."""
    given = {name: value for name, value in estimator.get_params().items() if name not in UNRECORDED}
    return dict(sorted(given.items(), key=lambda pair: "__" not in pair[0]))


def recipe_of(problem: Problem, public: Public, budget: Budget, solver: Solver | str, start: Any) -> Recipe:
    """What `minimize` was asked, the start flat.

    Returns:
        The recipe; one with an obstacle where a part of it is the user's own.
    """
    try:
        values = {
            "problem": written(problem),
            "public": {name: written(value) for name, value in _plain(public).items()},
            "budget": written([budget.epsilon, budget.delta]),
            "solver": written(solver),
            "start": None if start is None else written(np.asarray(start, np.float64)),
        }
    except Unwritten as error:
        return Recipe(obstacle=str(error))
    return Recipe(MINIMIZE, values)


def recipe_of_fit(
    kind: str,
    arguments: dict[str, Any],
    *,
    width: int,
    n: int,
    by_user: bool,
    is_sparse: bool,
    row_entries: int | None,
    columns: Sequence[SourceColumn] | None,
    names: Sequence[str] | None,
    labels: Any,
) -> Recipe:
    """What a linear model was asked.

    Args:
        kind: its class.
        arguments: as they were given.
        width: number of features.
        n: number of units.
        by_user: whether a unit is a user.
        is_sparse: whether the features are sparse.
        row_entries: the most entries of a sparse row, where something public says it.
        columns: of a table, whose features they are; None of plain features.
        names: of the features, where they are known.
        labels: of the classes; None of a regression.

    Returns:
        The recipe; one with an obstacle where an argument is the user's own.
    """
    try:
        values = {
            "estimator": kind,
            "arguments": {
                name: written(value) for name, value in arguments.items() if name not in UNRECORDED
            },
            "width": width,
            "n": n,
            "by_user": by_user,
            "sparse": is_sparse,
            "row_entries": row_entries,
            "columns": None if columns is None else [asdict(column) for column in columns],
            "names": None if names is None else [str(name) for name in names],
            "labels": None if labels is None else written(np.asarray(labels)),
        }
    except Unwritten as error:
        return Recipe(obstacle=str(error))
    return Recipe(ESTIMATOR, values)


def _plain(public: Public) -> dict[str, Any]:
    return asdict(public) | {"relation": public.relation.value}
