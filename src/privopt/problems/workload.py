"""What is asked of a table of coded columns: marginals, or queries on the cells of the joint table. Public mathematics.

A column of L cells takes the codes 0, ..., L - 1; the last one stands for a missing or undeclared value. The cells of a
set of columns are numbered with the first column of the set running fastest: `first + L_first * second + ...`.
"""

import hashlib
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

MOST_BYTES = 2**30  # of the answers of a workload, or of its queries, in float64
MOST_CELLS = 2**20  # of a joint table that is written out cell by cell
MOST_SETS = 10**6  # of columns
_LARGEST_COLUMN = 2**31 - 1


@dataclass(frozen=True, eq=False)
class Workload:
    """The marginals or the queries that synthetic data shall answer well.

    Attributes:
        levels: cells of each column, that of a missing value included as the last one; at least 2 each.
        sets: the marginals, each a tuple of columns; empty where `queries` are given.
        queries: (m, N) values q_j(z) in [0, 1] on every cell z of the joint table; None where `sets` are given. They
            are copied and can no longer be changed.
    Raises:
        TypeError, ValueError: something does not fit, or would not fit into memory.

    Examples:
        >>> work = Workload.ways((3, 2, 4), 2)
        >>> work.sets, work.cells
        (((0, 1), (0, 2), (1, 2)), (6, 12, 8))
    """

    levels: tuple[int, ...]
    sets: tuple[tuple[int, ...], ...] = ()
    queries: Any = None

    def __init_subclass__(cls) -> None:
        raise TypeError("Workload has no subclasses: sensitivities rest on how its cells are numbered.")

    def __post_init__(self) -> None:
        object.__setattr__(self, "levels", checked_levels(self.levels))
        object.__setattr__(self, "sets", _checked_sets(self.sets, len(self.levels)))
        if bool(self.sets) == (self.queries is not None):
            raise ValueError(
                "a workload needs column sets or queries, one of the two: give `sets` or `queries`."
            )
        if self.queries is not None:
            object.__setattr__(self, "queries", _checked_queries(self.queries, self.levels))
        if self.memory_bytes > MOST_BYTES:
            what = f"{len(self.sets):,} marginals" if self.sets else f"{self.size:,} queries"
            raise ValueError(
                f"a workload of {what} takes {_gigabytes(self.memory_bytes)} of memory, more than the "
                f"{_gigabytes(MOST_BYTES)} that are allowed: ask for fewer columns at once, coarser bins or fewer sets."
            )

    @classmethod
    def ways(cls, levels: Sequence[int], k: int) -> "Workload":
        """All marginals of k columns.

        Raises:
            ValueError: there are no k columns.
        """
        columns = len(checked_levels(levels))
        if isinstance(k, bool) or not 1 <= k <= columns:
            raise ValueError(f"k must be a whole number between 1 and the {columns} columns, got {k!r}.")
        if math.comb(columns, k) > MOST_SETS:
            raise ValueError(
                f"{columns} columns have {math.comb(columns, k):,} sets of {k}, more than {MOST_SETS:,}: name the sets "
                "that matter, or fewer columns."
            )
        return cls(tuple(levels), sets=tuple(itertools.combinations(range(columns), k)))

    @cached_property
    def cells(self) -> tuple[int, ...]:
        """How many cells each marginal has."""
        return tuple(cells_of(self.levels, columns) for columns in self.sets)

    @property
    def size(self) -> int:
        """How many numbers answer it: the cells of all marginals, or the queries."""
        return sum(self.cells) if self.sets else len(self.queries)

    @property
    def universe(self) -> int:
        """N, the cells of the joint table."""
        return math.prod(self.levels)

    @property
    def memory_bytes(self) -> int:
        """What the answers take in float64; for queries, their values on all cells as well."""
        return 8 * (self.size if self.sets else self.size * (self.universe + 1))

    @cached_property
    def slices(self) -> tuple[slice, ...]:
        """Where the cells of each marginal stand among the answers."""
        ends = np.cumsum((0, *self.cells)).tolist()
        return tuple(itertools.starmap(slice, itertools.pairwise(ends)))

    @cached_property
    def digest(self) -> str:
        """A fingerprint of the content, by which workloads are compared."""
        made = hashlib.sha256(repr((self.levels, self.sets)).encode())
        if self.queries is not None:
            made.update(repr(self.queries.shape).encode() + self.queries.tobytes())
        return made.hexdigest()

    def answers(self, joint: Any) -> NDArray[np.float64]:
        """The answers on a joint table.

        Args:
            joint: (N,) weights of all cells, the first column running fastest.
        Returns:
            (size,) the marginals' cells one after the other, or the queries' values.
        """
        table = np.asarray(joint, np.float64)
        if table.shape != (self.universe,):
            raise ValueError(f"a joint table has {self.universe:,} cells here, got shape {table.shape}.")
        if self.queries is not None:
            return self.queries @ table
        return np.concatenate([marginal_of(table, self.levels, columns) for columns in self.sets])

    def marginals(self, answers: Any) -> Iterator[tuple[tuple[int, ...], NDArray[np.float64]]]:
        """Each column set with its cells among the answers, as a view."""
        values = np.asarray(answers)
        for columns, place in zip(self.sets, self.slices, strict=True):
            yield columns, values[place]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Workload) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)

    def __repr__(self) -> str:
        what = f"{len(self.sets):,} marginals" if self.sets else f"{self.size:,} queries"
        return f"Workload({what} of {len(self.levels)} columns)"


def checked_levels(levels: Any) -> tuple[int, ...]:
    """The cells of each column as integers.

    Raises:
        TypeError, ValueError: there is no column, or one has fewer than two cells.
    """
    if isinstance(levels, str | bytes | int) or not isinstance(levels, Sequence | np.ndarray):
        raise TypeError(f"levels must list the number of cells of each column, got {levels!r}.")
    given: list[Any] = list(levels)
    if not given:
        raise ValueError("levels must name at least one column, got none: give the number of cells of each.")
    for level in given:
        if isinstance(level, bool) or not isinstance(level, int | np.integer):
            raise TypeError(f"a column's number of cells must be an integer, got {level!r}.")
        if not 2 <= level <= _LARGEST_COLUMN:
            raise ValueError(
                f"a column needs at least 2 cells, one for a value and the last for a missing one, got {level}."
            )
    return tuple(int(level) for level in given)


def cells_of(levels: Sequence[int], columns: Sequence[int]) -> int:
    """How many cells a marginal has."""
    return math.prod(levels[column] for column in columns)


def strides_of(levels: Sequence[int], columns: Sequence[int]) -> tuple[int, ...]:
    """What a code of each column of a set is multiplied by in the index of its cell: the first column runs fastest."""
    sizes = [levels[column] for column in columns]
    return tuple(math.prod(sizes[:place]) for place in range(len(sizes)))


def codes_of(levels: Sequence[int], columns: Sequence[int]) -> NDArray[np.int64]:
    """(cells, k) the codes that every cell of a marginal stands for."""
    index = np.arange(cells_of(levels, columns))
    strides = strides_of(levels, columns)
    sizes = [levels[column] for column in columns]
    return np.stack([index // stride % size for stride, size in zip(strides, sizes, strict=True)], axis=1)


def marginal_of(
    table: NDArray[np.float64], levels: Sequence[int], columns: Sequence[int]
) -> NDArray[np.float64]:
    """The marginal of a joint table on some of its columns, in their order."""
    axes = np.reshape(table, tuple(levels), order="F")
    rest = tuple(axis for axis in range(len(levels)) if axis not in columns)
    kept = sorted(columns)
    summed = np.sum(axes, axis=rest) if rest else axes
    return np.ravel(np.transpose(summed, [kept.index(column) for column in columns]), order="F")


def _checked_sets(sets: Any, columns: int) -> tuple[tuple[int, ...], ...]:
    """The column sets as tuples of integers."""
    if isinstance(sets, str | bytes) or not isinstance(sets, Sequence):
        raise TypeError(f"sets must list column sets such as ((0, 1), (0, 2)), got {sets!r}.")
    made: list[tuple[int, ...]] = []
    for each in sets:
        if isinstance(each, str | bytes) or not isinstance(each, Sequence):
            raise TypeError(f"a column set must be a tuple of column numbers, got {each!r}.")
        chosen: list[Any] = list(each)
        if not all(isinstance(one, int | np.integer) and not isinstance(one, bool) for one in chosen):
            raise TypeError(f"a column set must hold column numbers, got {each!r}.")
        if not chosen or len(set(chosen)) < len(chosen) or min(chosen) < 0 or max(chosen) >= columns:
            raise ValueError(f"a column set must name different columns of 0 to {columns - 1}, got {each!r}.")
        made.append(tuple(int(one) for one in chosen))
    if len({frozenset(one) for one in made}) < len(made):
        raise ValueError("a workload names each column set once: one is given twice.")
    return tuple(made)


def _checked_queries(queries: Any, levels: tuple[int, ...]) -> NDArray[np.float64]:
    """The queries' values, read-only, once their size is known to be bearable."""
    cells = math.prod(levels)
    if cells > MOST_CELLS:
        raise ValueError(
            f"queries need every cell of the joint table, and there are {cells:,}, more than {MOST_CELLS:,}: ask for "
            "marginals of such a table, or give fewer columns or coarser bins."
        )
    shape = np.shape(queries)
    if len(shape) != 2 or shape[0] < 1 or shape[1] != cells:
        raise ValueError(
            f"queries must have shape (m, {cells}), one value for each cell of the joint table, got {shape}."
        )
    if 8 * shape[0] * (cells + 1) > MOST_BYTES:
        raise ValueError(
            f"{shape[0]:,} queries on {cells:,} cells take {_gigabytes(8 * shape[0] * (cells + 1))} of memory, more "
            f"than the {_gigabytes(MOST_BYTES)} that are allowed: ask for fewer."
        )
    values = np.array(queries, np.float64, order="C")
    if not np.all((values >= 0) & (values <= 1)):
        raise ValueError("queries must have values in [0, 1] on every cell: scale them by public numbers.")
    values.flags.writeable = False
    return values


def _gigabytes(size: int) -> str:
    return f"{size / 2**30:,.1f} GiB"
