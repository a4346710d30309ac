"""What synthetic data is asked to answer well: names of marginals, column sets or queries, as a public workload."""

from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from privopt.problems.workload import MOST_CELLS, Workload
from privopt.tables.coding import TableCoding
from privopt.tables.errors import TableError

WAYS = {"1-way": 1, "2-way": 2, "3-way": 3}
FORMS = (
    "'1-way', '2-way', '3-way', a list of column sets such as [('age', 'sex')], or a list of queries such as "
    "[{'sex': 'f', 'age': (20, 30)}]"
)


def asked_workload(asked: Any, coding: TableCoding) -> Workload:
    """The workload on coded columns.

    Args:
        asked: "1-way" to "3-way" for all marginals of so many columns; column sets, each a name or a tuple of names;
            queries, each a mapping of columns to conditions (see `ColumnCoding.overlap`) that a record must meet, or
            all of them as an array of values in [0, 1], (m, N), on the cells of the joint table.
        coding: the columns.
    Raises:
        ValueError, TypeError, TableError: it is none of these, names an unknown column, or is too large.
    """
    levels = coding.levels
    if isinstance(asked, Workload):
        if asked.levels != levels:
            raise ValueError(
                f"the workload is about columns of {asked.levels} cells, and these have {levels}: make it of the same "
                "columns and bins."
            )
        return asked
    if isinstance(asked, str):
        if asked not in WAYS:
            raise ValueError(f"workload must be {FORMS}; got {asked!r}.")
        return Workload.ways(levels, min(WAYS[asked], len(levels)))
    if isinstance(asked, np.ndarray):
        return Workload(levels, queries=cast("Any", asked))
    if not isinstance(asked, Sequence) or not asked:
        raise TypeError(f"workload must be {FORMS}; got {asked!r}.")
    given: Sequence[Any] = cast("Sequence[Any]", asked)
    if all(isinstance(one, Mapping) for one in given):
        return Workload(levels, queries=_values([cast("Mapping[str, Any]", one) for one in given], coding))
    if any(isinstance(one, Mapping) for one in given):
        raise TypeError("workload must hold column sets or queries, not both.")
    return Workload(levels, sets=tuple(_places(one, coding) for one in given))


def _places(asked: Any, coding: TableCoding) -> tuple[int, ...]:
    """A column set by the columns' names."""
    names: list[Any] = (
        [asked] if isinstance(asked, str) else list(asked) if isinstance(asked, Sequence) else []
    )
    if not names or not all(isinstance(name, str) for name in names):
        raise TypeError(f"a column set must be a name or a tuple of names, got {asked!r}.")
    places = tuple(coding.place(name) for name in names)
    if len(set(places)) < len(places):
        raise TableError(f"The column set {tuple(names)!r} names a column twice.")
    return places


def _values(queries: list[Mapping[str, Any]], coding: TableCoding) -> NDArray[np.float64]:
    """The values of conjunctions on the cells of the joint table: products of what each condition covers."""
    cells = int(np.prod([float(level) for level in coding.levels]))
    if cells > MOST_CELLS:
        raise ValueError(
            f"queries need every cell of the joint table, and there are {cells:,}, more than {MOST_CELLS:,}: ask for "
            "marginals, or give fewer columns or coarser bins."
        )
    return np.stack([_value(query, coding) for query in queries])


def _value(query: Mapping[str, Any], coding: TableCoding) -> NDArray[np.float64]:
    if not query:
        raise ValueError("a query must name at least one column, such as {'sex': 'f'}; got an empty one.")
    conditions = {coding.place(name): wanted for name, wanted in query.items()}
    value = np.ones(1)
    for place, column in enumerate(coding.columns):  # the first column runs fastest
        covered = column.overlap(conditions[place]) if place in conditions else np.ones(coding.levels[place])
        value = np.ravel(covered[:, None] * value[None, :])
    return value
