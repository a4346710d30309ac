"""A raw table to coded columns and back, by a public schema alone: levels, public bins, a cell for what is missing."""

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from privopt.tables.cells import level_codes, numbers, read_columns
from privopt.tables.errors import TableError
from privopt.tables.schema import ColumnSpec, Schema

CODED_KINDS = ("num", "flag", "cat")
FEWEST_BINS, MOST_BINS, LARGEST_BINS = 8, 32, 4096
MISSING = "missing"  # what the last cell of every column is called

Codes = NDArray[np.int64]
Bins = Mapping[str, int | Sequence[float]] | int | None


def default_bins(n: int) -> int:
    """How many bins a number gets where nobody says: the cube root of the public number of units, within 8 and 32."""
    return min(max(round(n ** (1 / 3)), FEWEST_BINS), MOST_BINS)


@dataclass(frozen=True, kw_only=True)
class ColumnCoding:
    """The public cells of one column.

    Attributes:
        spec: the column as the schema describes it.
        edges: of a number, where its bins begin, and the end of the last: bin k is [edges[k], edges[k + 1]), the last
            one holds its end. Numbers outside of the range are moved to the nearer end.
        whole: whether the number is taken to be a whole one: its bounds are, or the schema says so.
    """

    spec: ColumnSpec
    edges: tuple[float, ...] = ()
    whole: bool = False

    @property
    def known(self) -> int:
        """How many cells there are for values; the missing one comes after them."""
        return {"num": len(self.edges) - 1, "flag": 2}.get(self.spec.kind, len(self.spec.levels))

    @property
    def labels(self) -> list[str]:
        """What each cell is called, the missing one included."""
        if self.spec.kind == "cat":
            return [*self.spec.levels, MISSING]
        if self.spec.kind == "flag":
            return ["0", "1", MISSING]
        return [*(self._bin(k) for k in range(self.known)), MISSING]

    def codes(self, private_column: Any) -> Codes:
        """The cell of every row. Each is read by itself, and what cannot be read is missing."""
        if self.spec.kind == "cat":
            private_codes = level_codes(private_column, self.spec.levels, self.spec.name)
            return np.where(private_codes < 0, self.known, private_codes)
        private_values = numbers(private_column, self.spec.name)
        private_finite = np.isfinite(private_values)
        if self.spec.kind == "flag":
            private_codes = (np.where(private_finite, private_values, 0.0) >= 0.5).astype(np.int64)
        else:
            private_kept = np.where(private_finite, private_values, self.edges[0])
            private_codes = np.searchsorted(self.edges[1:-1], private_kept, side="right")
        return np.where(private_finite, private_codes, self.known).astype(np.int64)

    def values(self, codes: Codes, rng: np.random.Generator) -> Any:
        """Values for codes, as a column: levels, flags, and numbers drawn uniformly from their bins.

        Args:
            codes: of this column.
            rng: public randomness.
        Privacy:
            How the values are stored follows from the schema alone: readers infer a table's types from its cells.
        """
        missing = codes >= self.known
        inside = np.where(missing, 0, codes)
        if self.spec.kind == "cat":
            return self._levels(inside, missing)
        if self.spec.kind == "flag":
            return _nullable(inside, missing)
        start, stop = np.asarray(self.edges)[inside], np.asarray(self.edges)[inside + 1]
        if self.whole:
            first, count = self._whole_numbers()
            drawn = first[inside] + np.floor(rng.random(len(codes)) * count[inside])
            return _nullable(drawn.astype(np.int64), missing)
        drawn = np.clip(start + rng.random(len(codes)) * (stop - start), start, stop)
        return np.where(missing, np.nan, drawn)

    def overlap(self, wanted: Any) -> NDArray[np.float64]:
        """What share of each cell a condition covers: a level, a list of levels, or (low, high) of a number.

        Raises:
            TableError: it names a level that there is not, or is no interval.
        """
        if self.spec.kind == "num":
            return self._covered(wanted)
        names = self.labels[:-1]
        chosen = (
            [wanted] if isinstance(wanted, str | int) or not isinstance(wanted, Iterable) else list(wanted)
        )
        texts = [str(int(one)) if isinstance(one, bool) else str(one) for one in chosen]
        unknown = [text for text in texts if text not in names]
        if unknown or not texts:
            raise TableError(
                f"Column {self.spec.name!r} has no level {unknown[0]!r}: give one of its levels, or a list of them."
                if unknown
                else f"Column {self.spec.name!r} is asked for no level: give at least one."
            )
        return np.array([*(name in texts for name in names), False], np.float64)

    def _covered(self, wanted: Any) -> NDArray[np.float64]:
        """The share of each bin within an interval."""
        try:
            low, high = map(float, wanted)
        except (TypeError, ValueError):
            low, high = math.nan, math.nan
        if not low <= high:
            raise TableError(
                f"Column {self.spec.name!r} is a number: ask for it by an interval (low, high), got {wanted!r}."
            )
        edges = np.asarray(self.edges)
        if self.whole:
            first, sizes = self._whole_numbers()
            covered = np.minimum(first + sizes - 1, np.floor(high)) - np.maximum(first, np.ceil(low)) + 1
        else:
            sizes = edges[1:] - edges[:-1]
            covered = np.minimum(edges[1:], high) - np.maximum(edges[:-1], low)
        return np.append(np.clip(covered / sizes, 0.0, 1.0), 0.0)

    def _whole_numbers(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """The first whole number of each bin, and how many there are; of a bin without any, the next one."""
        edges = np.asarray(self.edges)
        first, last = np.ceil(edges[:-1]), np.ceil(edges[1:]) - 1
        last[-1] = np.floor(edges[-1])
        return first, np.maximum(last - first + 1, 1.0)

    def _levels(self, inside: Codes, missing: NDArray[np.bool_]) -> Any:
        """Levels as the schema writes them, as whole numbers where it writes all of them so."""
        levels = self.spec.levels
        if all(map(_is_written_whole, levels)):
            return _nullable(np.array([int(level) for level in levels])[inside], missing)
        named = np.array([*levels, None], dtype=object)
        return named[np.where(missing, len(levels), inside)]

    def _bin(self, k: int) -> str:
        low, high = self.edges[k], self.edges[k + 1]
        if self.whole and math.ceil(high) - low <= 1:
            return f"{low:g}"
        return f"[{low:g}, {high:g}{']' if k == self.known - 1 else ')'}"


@dataclass(frozen=True, kw_only=True)
class TableCoding:
    """The public cells of the columns of a table.

    Attributes:
        columns: in order.
    """

    columns: tuple[ColumnCoding, ...]

    @classmethod
    def of(
        cls, schema: Schema, n: int, *, columns: Sequence[str] | None = None, bins: Bins = None
    ) -> "TableCoding":
        """Cells by a schema.

        Args:
            schema: levels and ranges.
            n: the public number of units, which says how fine numbers are cut by default.
            columns: those wanted; default: all numbers, flags and categories but users and splits.
            bins: of numbers: how many, or for single columns how many or where they begin and the last one ends.
        Raises:
            TableError: a column is unknown, cannot be coded, or its bins are none.
        """
        chosen = _chosen(schema, columns)
        given: Mapping[str, Any] = bins if isinstance(bins, Mapping) else {}
        strangers = [name for name in given if name not in [one.name for one in chosen if one.kind == "num"]]
        if strangers:
            raise TableError(f"bins names {strangers[0]!r}, which is not among the columns of numbers here.")
        usual: Any = default_bins(n) if bins is None or isinstance(bins, Mapping) else bins

        def coded(spec: ColumnSpec) -> ColumnCoding:
            if spec.kind != "num":
                return ColumnCoding(spec=spec)
            chosen_here = spec.name in given or isinstance(bins, int)
            return _number(spec, given.get(spec.name, usual), fixed=chosen_here)

        return cls(columns=tuple(map(coded, chosen)))

    @property
    def levels(self) -> tuple[int, ...]:
        """Cells of each column, the missing one included."""
        return tuple(column.known + 1 for column in self.columns)

    @property
    def names(self) -> tuple[str, ...]:
        """The columns' names."""
        return tuple(column.spec.name for column in self.columns)

    def place(self, name: str) -> int:
        """Which column has a name.

        Raises:
            TableError: none has.
        """
        if name not in self.names:
            raise TableError(
                f"There is no column {name!r} here: the columns are {', '.join(map(repr, self.names))}."
            )
        return self.names.index(name)

    def encode(self, table: Any) -> Codes:
        """(rows, columns) codes of a table.

        Raises:
            TableError: a column is not there, or is stored as something that its kind cannot be.
        """
        private_columns, rows = read_columns(table, [column.spec for column in self.columns])
        private_codes = np.empty((rows, len(self.columns)), np.int64)
        for place, column in enumerate(self.columns):
            private_codes[:, place] = column.codes(private_columns[column.spec.name])
        return private_codes

    def decode(self, codes: Codes, rng: np.random.Generator) -> pd.DataFrame:
        """A table of values for codes, as `ColumnCoding.values` makes them."""
        return pd.DataFrame(
            {
                column.spec.name: column.values(codes[:, place], rng)
                for place, column in enumerate(self.columns)
            }
        )


def _chosen(schema: Schema, columns: Sequence[str] | None) -> list[ColumnSpec]:
    """The columns to code."""
    if columns is None:
        left_out = (schema.user, schema.split)
        chosen = [one for one in schema.columns if one.kind in CODED_KINDS and one.name not in left_out]
    else:
        if isinstance(columns, str):
            raise TableError(f"columns must be a list of column names, got {columns!r}.")
        chosen = [schema.column(name) for name in columns]
    for one in chosen:
        if one.kind not in CODED_KINDS:
            raise TableError(
                f"Column {one.name!r} is of kind {one.kind!r}: synthetic data can have {', '.join(CODED_KINDS)} only, "
                "so leave it out."
            )
    if not chosen:
        raise TableError("No column is left for synthetic data: describe some of kind num, flag or cat.")
    if len({one.name for one in chosen}) < len(chosen):
        raise TableError("A column is named twice.")
    return chosen


def _number(spec: ColumnSpec, bins: Any, *, fixed: bool) -> ColumnCoding:
    """The bins of a number.

    A whole number of few values has a bin for each: no more than twice as many as there are bins by default.
    """
    whole = spec.integer if spec.integer is not None else _is_whole(spec.low) and _is_whole(spec.high)
    if not isinstance(bins, int | np.integer) or isinstance(bins, bool):
        return ColumnCoding(spec=spec, edges=_given_edges(spec, bins), whole=whole)
    if not 1 <= bins <= LARGEST_BINS:
        raise TableError(f"Column {spec.name!r} needs between 1 and {LARGEST_BINS} bins, got {bins!r}.")
    low, high = float(spec.low), float(spec.high)
    if whole:
        low, high = math.ceil(low), math.floor(high)
    values = high - low + 1
    if whole and (values <= bins or (not fixed and not spec.log1p and values <= 2 * bins)):
        return ColumnCoding(spec=spec, edges=(*np.arange(low, high + 1).tolist(), high), whole=True)
    ends = (math.log1p(low), math.log1p(high)) if spec.log1p else (low, high)
    # Halved and doubled, since the range may be wider than float64 reaches.
    edges = 2.0 * np.linspace(ends[0] / 2, ends[1] / 2, int(bins) + 1)
    if spec.log1p:
        edges = np.expm1(edges)
    edges[0], edges[-1] = low, high
    if whole:
        edges[1:-1] = np.ceil(edges[1:-1])
    return ColumnCoding(spec=spec, edges=tuple(np.unique(np.clip(edges, low, high)).tolist()), whole=whole)


def _given_edges(spec: ColumnSpec, bins: Any) -> tuple[float, ...]:
    """Edges that a person named.

    Raises:
        TableError: they are no increasing numbers.
    """
    try:
        edges = tuple(map(float, bins))
    except (TypeError, ValueError):
        edges = ()
    rising = all(low < high for low, high in itertools.pairwise(edges))
    if not 2 <= len(edges) <= LARGEST_BINS + 1 or not rising or not all(map(math.isfinite, edges)):
        raise TableError(
            f"Column {spec.name!r} needs a number of bins or a list of rising edges, public ones; got {bins!r}."
        )
    return edges


def _nullable(values: Codes, missing: NDArray[np.bool_]) -> Any:
    """Whole numbers, some of them missing."""
    return pd.arrays.IntegerArray(values.astype(np.int64), missing)


def _is_whole(number: float) -> bool:
    return float(number).is_integer() and abs(number) <= 2**53


def _is_written_whole(level: str) -> bool:
    return level.removeprefix("-").isdecimal() and len(level) <= 18 and str(int(level)) == level
