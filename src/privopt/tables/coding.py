"""A raw table to coded columns and back, by a public schema alone: levels, public bins, a cell for what is missing."""

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from privopt.data.cells import is_written_whole
from privopt.tables.cells import level_codes, read_columns
from privopt.tables.column_spec import dates_of, day_number
from privopt.tables.errors import TableError
from privopt.tables.schema import ColumnSpec, Schema
from privopt.tables.values import is_stored_as_truth, read_values, whole_offsets

CODED_KINDS = ("num", "flag", "cat", "date")
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
        edges: of a number or a date, where its bins begin, and the end of the last: bin k is [edges[k], edges[k + 1]),
            the last one holds its end. Numbers outside of the range are moved to the nearer end. A date is in days.
        whole: whether the number is a whole one, as the schema says; a day is.
        origin: what the edges are counted from: 0, or the lower bound of whole numbers that are too large for floats to
            tell neighbours apart.
        as_truth: whether a flag is stored as truth values, and comes back so.
    """

    spec: ColumnSpec
    edges: tuple[float, ...] = ()
    whole: bool = False
    origin: int = 0
    as_truth: bool = False

    @property
    def known(self) -> int:
        """How many cells there are for values; one for missing values may come after them."""
        return {"cat": len(self.spec.levels), "flag": 2}.get(self.spec.kind, len(self.edges) - 1)

    @property
    def cells(self) -> int:
        """How many cells there are in all: no missing one where the schema says that the column is required."""
        return self.known + (not self.spec.required)

    @property
    def labels(self) -> list[str]:
        """What each cell is called, the missing one included."""
        if self.spec.kind == "cat":
            names = list(self.spec.levels)
        elif self.spec.kind == "flag":
            names = ["0", "1"]
        else:
            names = [self._bin(k) for k in range(self.known)]
        return [*names, MISSING][: self.cells]

    def codes(self, private_column: Any) -> Codes:
        """The cell of every row. Each is read by itself, and what cannot be read is missing.

        In a required column, which has no cell for that, it becomes the first level, 0, or the bin in the middle of the
        range: the schema ruled it out, and a record must have some code.
        """
        private_codes = self._read_codes(private_column)
        unread = self.known
        if self.spec.required:
            middle = self.edges[0] / 2 + self.edges[-1] / 2 if self.edges else 0.0
            unread = int(np.searchsorted(self.edges[1:-1], middle, side="right"))
        return np.where(private_codes < 0, unread, private_codes).astype(np.int64)

    def _read_codes(self, private_column: Any) -> Codes:
        """The cell of every row, -1 for what cannot be read."""
        if self.spec.kind == "cat":
            return level_codes(private_column, self.spec)
        if self.origin:
            private_values = whole_offsets(private_column, self.spec, self.origin)
        else:
            private_values = read_values(private_column, self.spec)
        private_finite = np.isfinite(private_values)
        private_kept = np.where(private_finite, private_values, 0.0)
        if self.spec.kind == "flag":
            private_codes = private_kept.astype(np.int64)
        else:
            if self.whole:  # the day of a time, the whole number nearest to another
                private_kept = np.floor(private_kept) if self.spec.kind == "date" else np.rint(private_kept)
            private_codes = np.searchsorted(self.edges[1:-1], private_kept, side="right")
        return np.where(private_finite, private_codes, -1)

    def values(self, codes: Codes, rng: np.random.Generator) -> Any:
        """Values for codes, as a column: levels, flags, and numbers and dates drawn uniformly from their bins.

        Args:
            codes: of this column.
            rng: public randomness.
        Privacy:
            How the values are stored follows from the schema, and of a flag from the type that its column declares,
            never from cells.
        """
        missing = codes >= self.known
        inside = np.where(missing, 0, codes)
        if self.spec.kind == "cat":
            return self._levels(inside, missing)
        if self.spec.kind == "flag":
            return self._flags(inside, missing)
        start, stop = np.asarray(self.edges)[inside], np.asarray(self.edges)[inside + 1]
        if self.whole:
            first, count = self._whole_numbers()
            drawn = first[inside] + np.floor(rng.random(len(codes)) * count[inside])
            if self.spec.kind == "date":
                return dates_of(drawn, missing)
            if self.origin + self.edges[-1] >= 2**63:
                return _nullable(drawn.astype(np.uint64) + np.uint64(self.origin), missing)
            return _nullable(drawn.astype(np.int64) + self.origin, missing)
        drawn = np.clip(start + rng.random(len(codes)) * (stop - start), start, stop)
        return np.where(missing, np.nan, drawn)

    def overlap(self, wanted: Any) -> NDArray[np.float64]:
        """What share of each cell a condition covers: a level, a list of levels, or (low, high) of a number.

        Raises:
            TableError: it names a level that there is not, or is no interval.
        """
        if self.spec.kind in ("num", "date"):
            return self._covered(wanted)
        names = self.labels[: self.known]
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
        return np.array([*(name in texts for name in names), False][: self.cells], np.float64)

    def _covered(self, wanted: Any) -> NDArray[np.float64]:
        """The share of each bin within an interval."""
        is_date = self.spec.kind == "date"
        try:
            low, high = map(day_number if is_date else (lambda end: float(end - self.origin)), wanted)
        except (TypeError, ValueError):
            low, high = math.nan, math.nan
        if not low <= high:
            raise TableError(
                f"Column {self.spec.name!r} is a {'date' if is_date else 'number'}: ask for it by an interval "
                f"(low, high), got {wanted!r}."
            )
        edges = np.asarray(self.edges)
        if self.whole:
            first, sizes = self._whole_numbers()
            covered = np.minimum(first + sizes - 1, np.floor(high)) - np.maximum(first, np.ceil(low)) + 1
        else:
            sizes = edges[1:] - edges[:-1]
            covered = np.minimum(edges[1:], high) - np.maximum(edges[:-1], low)
        return np.append(np.clip(covered / sizes, 0.0, 1.0), 0.0)[: self.cells]

    def _whole_numbers(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """The first whole number of each bin, and how many there are; of a bin without any, the next one."""
        edges = np.asarray(self.edges)
        first, last = np.ceil(edges[:-1]), np.ceil(edges[1:]) - 1
        last[-1] = np.floor(edges[-1])
        return first, np.maximum(last - first + 1, 1.0)

    def _levels(self, inside: Codes, missing: NDArray[np.bool_]) -> Any:
        """Levels as the schema writes them, as whole numbers where it writes all of them so."""
        levels = self.spec.levels
        if all(map(is_written_whole, levels)):
            return _nullable(np.array([int(level) for level in levels])[inside], missing)
        named = np.array([*levels, None], dtype=object)
        return named[np.where(missing, len(levels), inside)]

    def _flags(self, inside: Codes, missing: NDArray[np.bool_]) -> Any:
        """Flags as they are stored: truth values, the schema's own texts, or 0 and 1."""
        if self.as_truth:
            return pd.arrays.BooleanArray(inside.astype(np.bool_), missing)
        spelt = (self.spec.false[:1] + self.spec.true[:1]) or ("0", "1")
        if all(map(is_written_whole, spelt)):
            return _nullable(np.array([int(text) for text in spelt])[inside], missing)
        return np.array([*spelt, None], dtype=object)[np.where(missing, 2, inside)]

    def _bin(self, k: int) -> str:
        low, high = self.edges[k], self.edges[k + 1]
        if self.whole and math.ceil(high) - low <= 1:
            return self._shown(low)
        return f"[{self._shown(low)}, {self._shown(high)}{']' if k == self.known - 1 else ')'}"

    def _shown(self, edge: float) -> str:
        if self.spec.kind == "date":
            return str(dates_of(np.array([edge]), np.zeros(1, np.bool_))[0].astype("datetime64[D]"))
        return str(self.origin + round(edge)) if self.origin else f"{edge:g}"


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
        cut = [one.name for one in chosen if one.kind in ("num", "date")]
        strangers = [name for name in given if name not in cut]
        if strangers:
            raise TableError(f"bins names {strangers[0]!r}, which is not among the columns of numbers here.")
        usual: Any = default_bins(n) if bins is None or isinstance(bins, Mapping) else bins

        def coded(spec: ColumnSpec) -> ColumnCoding:
            if spec.kind not in ("num", "date"):
                return ColumnCoding(spec=spec)
            chosen_here = spec.name in given or isinstance(bins, int)
            return _number(spec, given.get(spec.name, usual), fixed=chosen_here)

        return cls(columns=tuple(map(coded, chosen)))

    @property
    def levels(self) -> tuple[int, ...]:
        """Cells of each column, that of missing values included where there is one."""
        return tuple(column.cells for column in self.columns)

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

    def stored_as(self, table: Any) -> "TableCoding":
        """The same for the types that the columns of a table declare: flags that are truth values stay so.

        Raises:
            TableError: a column is not there.
        """
        flags = [column.spec for column in self.columns if column.spec.kind == "flag"]
        private_columns, _ = read_columns(table, flags)
        truths = {spec.name for spec in flags if is_stored_as_truth(private_columns[spec.name])}
        return TableCoding(
            columns=tuple(replace(one, as_truth=one.spec.name in truths) for one in self.columns)
        )

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
        raise TableError(
            "No column is left for synthetic data: describe some of kind num, flag, cat or date."
        )
    if len({one.name for one in chosen}) < len(chosen):
        raise TableError("A column is named twice.")
    return chosen


def _number(spec: ColumnSpec, bins: Any, *, fixed: bool) -> ColumnCoding:
    """The bins of a number or a date.

    A whole number of few values has a bin for each: no more than twice as many as there are bins by default.
    """
    is_date = spec.kind == "date"
    whole = is_date or spec.integer is True
    low, high = (math.floor(end) for end in spec.limits) if is_date else (spec.low, spec.high)
    if whole:
        low, high = math.ceil(low), math.floor(high)
    origin = low if spec.is_huge else 0
    if not isinstance(bins, int | np.integer) or isinstance(bins, bool):
        edges = _given_edges(spec, bins, origin)
        return ColumnCoding(spec=spec, edges=edges, whole=whole, origin=origin)
    if not 1 <= bins <= LARGEST_BINS:
        raise TableError(f"Column {spec.name!r} needs between 1 and {LARGEST_BINS} bins, got {bins!r}.")
    _require_distinct(spec, low, high, int(bins))
    low, high = low - origin, high - origin
    values = high - low + 1
    if whole and (values <= bins or (not fixed and not spec.log1p and values <= 2 * bins)):
        edges = (*np.arange(low, high + 1).tolist(), high)
        return ColumnCoding(spec=spec, edges=edges, whole=True, origin=origin)
    as_log = spec.log1p and not origin
    ends = (math.log1p(low), math.log1p(high)) if as_log else (low, high)
    # Halved and doubled, since the range may be wider than float64 reaches.
    edges = 2.0 * np.linspace(ends[0] / 2, ends[1] / 2, int(bins) + 1)
    if as_log:
        edges = np.expm1(edges)
    edges[0], edges[-1] = low, high
    if whole:
        edges[1:-1] = np.ceil(edges[1:-1])
    edges = tuple(np.unique(np.clip(edges, low, high)).tolist())
    return ColumnCoding(spec=spec, edges=edges, whole=whole, origin=origin)


def _require_distinct(spec: ColumnSpec, low: Any, high: Any, bins: int) -> None:
    """Refuse bounds so near to each other that floats between them are few, or that no integer type holds."""
    if spec.is_huge:
        if not (low >= -(2**63) and high < (2**63 if low < 0 else 2**64)):
            raise TableError(
                f"Column {spec.name!r} holds whole numbers beyond 64 bits: give smaller bounds, or leave it out."
            )
    elif spec.kind == "num" and float(high) - float(low) < 2.0**10 * bins * math.ulp(
        max(abs(low), abs(high))
    ):
        raise TableError(
            f"Column {spec.name!r} has bounds between which there are few floating-point numbers, {spec.low!r} and "
            f'{spec.high!r}: say "integer": true of whole numbers, or subtract a public number from all.'
        )


def _given_edges(spec: ColumnSpec, bins: Any, origin: int) -> tuple[float, ...]:
    """Edges that a person named."""
    try:
        edges = tuple(map(day_number if spec.kind == "date" else (lambda end: float(end - origin)), bins))
    except (TypeError, ValueError):
        edges = ()
    rising = all(low < high for low, high in itertools.pairwise(edges))
    if not 2 <= len(edges) <= LARGEST_BINS + 1 or not rising or not all(map(math.isfinite, edges)):
        raise TableError(
            f"Column {spec.name!r} needs a number of bins or a list of rising edges, public ones; got {bins!r}."
        )
    return edges


def _nullable(values: NDArray[Any], missing: NDArray[np.bool_]) -> Any:
    """Whole numbers, some of them missing."""
    return pd.arrays.IntegerArray(values, missing)
