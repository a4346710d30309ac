"""The record that a few signed queries like best: what the data player of a dual query answers with."""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from privopt.problems.workload import Workload, codes_of

# (workload, drawn queries, their signs, public randomness for ties) -> the codes of a record of a large signed sum.
Oracle = Callable[[Workload, NDArray[np.int64], NDArray[np.int64], np.random.Generator], Sequence[int]]

_SWEEPS = 20


def best_record(
    workload: Workload, queries: NDArray[np.int64], signs: NDArray[np.int64], rng: np.random.Generator
) -> tuple[int, ...]:
    """A record of a large sum of signed queries.

    Queries on the joint table are tried on every cell. Cells of marginals are conjunctions: from each drawn cell in
    turn, one column after the other takes its best code until nothing gains; the best end is kept. Exact where the
    drawn cells are about different columns; otherwise a local optimum, which costs accuracy, never privacy.

    Source:
        Gaboardi, Gallego Arias, Hsu, Roth, Wu 2014 (dual query), section 4, with a solver for integer programs.
    """
    if workload.queries is not None:
        cell = int(np.argmax(signs @ workload.queries[queries]))
        return tuple(int(code) for code in codes_of(workload.levels, range(len(workload.levels)))[cell])
    terms = [
        (*_conjunction(workload, int(query)), int(sign)) for query, sign in zip(queries, signs, strict=True)
    ]
    best: list[int] = []
    reached = -np.inf
    for columns, codes, _ in terms:
        record: list[int] = rng.integers(0, workload.levels).tolist()
        for column, code in zip(columns, codes, strict=True):
            record[column] = code
        record = _climb(workload.levels, terms, record)
        value = _worth(terms, record)
        if value > reached:
            best, reached = record, value
    return tuple(best)


Term = tuple[tuple[int, ...], tuple[int, ...], int]


def _conjunction(workload: Workload, cell: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The columns of a cell's marginal, and the codes that the cell stands for."""
    starts = [place.start for place in workload.slices]
    place = int(np.searchsorted(starts, cell, side="right")) - 1
    columns, rest, codes = workload.sets[place], cell - starts[place], []
    for column in columns:
        codes.append(rest % workload.levels[column])
        rest //= workload.levels[column]
    return columns, tuple(codes)


def _worth(terms: Sequence[Term], record: Sequence[int]) -> int:
    return sum(
        sign
        for columns, codes, sign in terms
        if all(record[column] == code for column, code in zip(columns, codes, strict=True))
    )


def _climb(levels: tuple[int, ...], terms: Sequence[Term], record: list[int]) -> list[int]:
    """Change one column at a time to its best code, ties to the code that stands."""
    used = sorted({column for columns, _, _ in terms for column in columns})
    for _ in range(_SWEEPS):
        before = list(record)
        for column in used:
            named = {codes[columns.index(column)] for columns, codes, _ in terms if column in columns}
            other = next((code for code in range(levels[column]) if code not in named), None)
            choices = [record[column], *sorted(named), *([] if other is None else [other])]
            worth = [_worth(terms, [*record[:column], code, *record[column + 1 :]]) for code in choices]
            record[column] = choices[int(np.argmax(worth))]
        if record == before:
            break
    return record
