"""A raw table to bounded features: scaling by public ranges, one-hot by public levels, nothing fitted on the rows."""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from sklearn.base import BaseEstimator, TransformerMixin

from privopt.tables.cells import column_names, lacking, level_codes, lists, read_columns
from privopt.tables.column_spec import part_names
from privopt.tables.diagnosis import Diagnosis, diagnose
from privopt.tables.schema import ColumnSpec, Schema
from privopt.tables.values import active_indices, check_missing, fill_parts, most_of, no_list, read_values

# Wider than this, and with at most a tenth of a row's features non-zero, is stored as CSR by `sparse_output="auto"`.
WIDE = 1000
# Names of rules in models that were written before.
_EARLIER_RULES: dict[Any, Any] = {"neutral": "midpoint", "record": "zero"}
_AS_ENCODED = "Columns are as encoded: "
_UNITS = {
    "num": "a number runs from {low} to {high} over its declared range",
    "flag": "a flag is 0 or 1",
    "cat": "a level is 1 where it applies, else 0",
    "date": "a date runs over its declared range as a number does",
    "set": "a member of a set is 1 where it is in it, else 0",
    "pixels": "a pixel runs from 0 to 1 over its declared range",
}
ROWS_AT_ONCE = 2048  # images are scaled in blocks of rows: the float64 copy of a block stays near the cache


@dataclass(frozen=True, kw_only=True)
class Block:
    """The features that one column becomes: encoded columns `start` to `stop`, of l2 norm at most `norm_bound`."""

    column: str
    kind: str
    start: int
    stop: int
    norm_bound: float


class TabularEncoder(TransformerMixin, BaseEstimator):
    """Encode a pandas DataFrame or an Arrow table as float32 features, by a public schema alone.

    * `num`: clipped to [low, high], mapped by log(1 + v) where the schema says `log1p`, scaled to `numeric_range`;
    * `flag`: 1 or 0, as its cells are spelt, see `ColumnSpec`;
    * `cat`: one feature per level, 1 at the level; a level that the schema does not list is a block of zeros;
    * `date`: scaled as a `num` is, or one feature for each value of its `parts`;
    * `pixels`: `size` features scaled to [0, 1];
    * `set`: `size` features, 1 at the active indices; indices outside are left out.

    A cell that is missing or cannot be read follows one rule, `missing`. By "midpoint" a `num` or a `date` becomes the
    middle of `numeric_range`, a `flag` and each of a list of `pixels` 0.5, anything else zeros. "indicator" is
    "midpoint" with one more feature for each column that the schema does not call `required`: 1 where the cell is
    missing or cannot be read, else 0. With "zero" numbers, flags, dates and pixels that are missing become NaN, by
    which the whole record counts as zero in a private model that is given `missing="zero"` as well.

    Args:
        schema: a `Schema`, its JSON object, or the path of its JSON file.
        target: the column to predict, where it is not the schema's own; never a feature.
        features: the columns to encode, in order; None takes all but targets, user, split, identifiers and free text.
        exclude: columns to leave out.
        numeric_range: where `num` columns are scaled to, low and high.
        missing: "midpoint", "zero" or "indicator".
        sparse_output: True for CSR, False for a dense array, "auto" for CSR where a column is a `set` or the encoding
            is wide and mostly zeros by its schema.

    Attributes:
        n_features_out_: the number of encoded features.
        row_norm_bound_: the largest l2 norm that an encoded row without NaN can have.
        blocks_: which features each column becomes.
        columns_: the public descriptions of the encoded columns, in order.
        feature_names_in_: names of the columns of the table seen by `fit`, used or not.
        n_features_in_: how many those are.

    Privacy:
        Each row is encoded by itself and by public values only, so encoding costs nothing and changes no privacy
        unit. `fit` looks at the table's column names only; once stored types are checked, no exception depends on a
        cell.

    Examples:
        >>> import pandas as pd
        >>> schema = {"columns": {"age": {"kind": "num", "low": 0, "high": 100},
        ...                       "sex": {"kind": "cat", "levels": ["f", "m"]}}}
        >>> encoder = TabularEncoder(schema)
        >>> encoder.fit_transform(pd.DataFrame({"age": [25, 200], "sex": ["m", "?"]}))
        array([[-0.5,  0. ,  1. ],
               [ 1. ,  0. ,  0. ]], dtype=float32)
        >>> list(encoder.get_feature_names_out())
        ['age', 'sex=f', 'sex=m']
    """

    def __init__(
        self,
        schema: "Schema | Mapping[str, Any] | str | Path",
        *,
        target: str | None = None,
        features: Sequence[str] | None = None,
        exclude: Sequence[str] = (),
        numeric_range: tuple[float, float] = (-1.0, 1.0),
        missing: str = "midpoint",
        sparse_output: bool | str = "auto",
    ) -> None:
        self.schema = schema
        self.target = target
        self.features = features
        self.exclude = exclude
        self.numeric_range = numeric_range
        self.missing = missing
        self.sparse_output = sparse_output

    def fit(self, X: Any, y: Any = None) -> "TabularEncoder":
        """Check the arguments and the table's column names; nothing else is looked at.

        Raises:
            TableError: the schema is not valid, or the table lacks one of its feature columns.
            ValueError: an option has a value that is not allowed.
            TypeError: X has no named columns.
        """
        self._check_options()
        names = column_names(X)
        columns = self._described_columns()
        for column in columns:
            if column.name not in names:
                raise lacking(column.name, names)
        self.columns_ = columns
        self.feature_names_in_ = np.asarray(names, dtype=object)
        self.n_features_in_ = len(names)
        return self

    def transform(self, X: Any) -> Any:
        """Encode every row. Columns may stand in any order, others are ignored, and `fit` is not needed.

        Returns:
            A float32 array, or a CSR array, of shape (rows, n_features_out_).
        """
        self._check_options()
        columns = self._columns()
        private_columns, rows = read_columns(X, columns)
        if self.is_sparse:
            return self._encode_sparse(private_columns, rows)
        return self._encode_dense(private_columns, rows)

    def check(self, X: Any) -> Diagnosis:
        """Count the cells of a table that cannot be read, exactly: for its holder alone, outside of any guarantee.

        Print it for the counts and the likely causes. Nothing that is released calls this.

        Args:
            X: a pandas DataFrame or an Arrow table with the columns of the features; its target is looked at too.
        Raises:
            TableError: a feature column is not there, or is stored as something else.
        """
        schema, columns = Schema.from_json(self.schema), self._columns()
        target = schema.target if self.target is None else self.target
        if target is not None and target in column_names(X):
            columns = (*columns, schema.column(target))
        return diagnose([X], columns)

    def get_feature_names_out(self, input_features: Any = None) -> NDArray[Any]:
        """The name of every encoded feature: `age`, `sex=Female`, `pixels_17`, `active_300`."""
        seen = getattr(self, "feature_names_in_", input_features)
        if input_features is not None and list(input_features) != list(seen):
            raise ValueError("input_features must be the column names that `fit` saw; leave it out.")
        names: list[str] = []
        for column in self._columns():
            if column.kind == "cat":
                names += [f"{column.name}={level}" for level in column.levels]
            elif column.parts:
                names += [
                    f"{column.name} {part}={value}" for part in column.parts for value in part_names(part)
                ]
            elif column.kind in ("pixels", "set"):
                names += [f"{column.name}_{index}" for index in range(column.size)]
            else:
                names.append(column.name)
            if self._is_indicated(column):
                names.append(f"{column.name} missing")
        return np.asarray(names, dtype=object)

    @property
    def blocks_(self) -> tuple[Block, ...]:
        """Which features each column becomes, and how long they can be."""
        blocks: list[Block] = []
        start = 0
        for column in self._columns():
            bound = self._norm_bound(column)
            stop = start + column.width + self._is_indicated(column)
            blocks.append(
                Block(column=column.name, kind=column.kind, start=start, stop=stop, norm_bound=bound)
            )
            start = stop
        return tuple(blocks)

    @property
    def n_features_out_(self) -> int:
        """The number of encoded features."""
        return sum(column.width + self._is_indicated(column) for column in self._columns())

    @property
    def row_norm_bound_(self) -> float:
        """The largest l2 norm an encoded row can have, from the schema alone; a bound of `sqrt(size)` for a `set`."""
        return math.sqrt(sum(block.norm_bound**2 for block in self.blocks_))

    def to_document(self) -> dict[str, Any]:
        """Everything needed to build the same encoder again, as plain JSON values."""
        return {
            "schema": Schema.from_json(self.schema).to_json(),
            "target": self.target,
            "features": [column.name for column in self._columns()],
            "numeric_range": list(self.numeric_range),
            "missing": self.missing,
            "sparse_output": self.sparse_output,
        }

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> "TabularEncoder":
        """Build the encoder that `to_document` described."""
        low, high = document["numeric_range"]
        return cls(
            Schema.from_json(document["schema"]),
            target=document["target"],
            features=tuple(document["features"]),
            numeric_range=(low, high),
            missing=_EARLIER_RULES.get(document["missing"], document["missing"]),
            sparse_output=document["sparse_output"],
        )

    def __sklearn_is_fitted__(self) -> bool:
        return True  # everything is known from the schema

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.requires_fit = False
        tags.no_validation = True
        tags.input_tags.allow_nan = True
        tags.input_tags.categorical = True
        tags.input_tags.string = True
        return tags

    def _check_options(self) -> None:
        try:
            low, high = map(float, self.numeric_range)
        except (TypeError, ValueError):
            raise TypeError(
                f"numeric_range must be a pair of numbers (low, high), got {self.numeric_range!r}."
            ) from None
        for name in ("features", "exclude"):
            names = getattr(self, name)
            if isinstance(names, str) or not isinstance(names, Iterable | None):
                raise TypeError(f"{name} must be a list of column names, got {names!r}.")
        if not (math.isfinite(low) and math.isfinite(high) and low < high):
            raise ValueError(
                f"numeric_range must be two finite numbers, low < high; got {self.numeric_range!r}."
            )
        check_missing(self.missing)
        if self.sparse_output != "auto" and not isinstance(self.sparse_output, bool):
            raise ValueError(f"sparse_output must be True, False or 'auto'; got {self.sparse_output!r}.")

    def _columns(self) -> tuple[ColumnSpec, ...]:
        """The columns that `fit` settled on, or those of the schema before it."""
        return getattr(self, "columns_", None) or self._described_columns()

    def _described_columns(self) -> tuple[ColumnSpec, ...]:
        schema = Schema.from_json(self.schema)
        return schema.feature_columns(self.features, exclude=self.exclude, target=self.target)

    def describe_units(self) -> str:
        """In which units the encoded features are, in a sentence."""
        low, high = self.numeric_range
        kinds = {column.kind for column in self._columns()}
        parts = [text for kind, text in _UNITS.items() if kind in kinds]
        return f"{_AS_ENCODED}{', '.join(parts)}.".format(low=f"{low:g}", high=f"{high:g}")

    def _norm_bound(self, column: ColumnSpec) -> float:
        """The largest norm of a column's features, over all cells that there can be, a missing one among them."""
        if column.kind == "num" or (column.kind == "date" and not column.parts):
            longest = float(max(abs(np.float32(end)) for end in self.numeric_range))
        else:
            most = {"pixels": column.size, "set": min(column.size, column.max_active or column.size)}
            most["date"] = len(column.parts)
            longest = math.sqrt(most.get(column.kind, 1))
        if not self._is_indicated(column):
            return longest
        filled = abs(self.missing_value(column)) * math.sqrt(column.width)
        return max(longest, math.hypot(filled, 1.0) * (1.0 + 2.0**-20) if filled else 1.0)

    def _is_indicated(self, column: ColumnSpec) -> bool:
        """Whether a further feature says where the column's cells are missing."""
        return self.missing == "indicator" and not column.required

    def missing_value(self, column: ColumnSpec) -> float:
        """What each feature of a missing cell becomes."""
        if column.kind in ("cat", "set") or column.parts:
            return 0.0
        if self.missing == "zero":
            return math.nan
        start, end = self.numeric_range
        return start / 2 + end / 2 if column.kind in ("num", "date") else 0.5

    @property
    def is_sparse(self) -> bool:
        """Whether features are a CSR array."""
        if self.sparse_output != "auto":
            return bool(self.sparse_output)
        columns = self._columns()
        non_zero = sum(1 if column.kind == "set" else most_of(column) for column in columns)
        wide = self.n_features_out_ > WIDE and self.n_features_out_ > 10 * non_zero
        return wide or any(column.kind == "set" for column in columns)

    @property
    def row_entries(self) -> int | None:
        """The most entries of an encoded row that are not zero; None where a set has no `max_active` to say."""
        columns = self._columns()
        if any(column.kind == "set" and column.max_active is None for column in columns):
            return None
        return sum(most_of(column) + self._is_indicated(column) for column in columns)

    @property
    def most_entries(self) -> int | None:
        """The most entries of a CSR row, its width where the schema says no other number; None of dense rows."""
        width = self.n_features_out_
        return min(width, self.row_entries or width) if self.is_sparse else None

    def _encode_dense(self, private_columns: Mapping[str, Any], rows: int) -> NDArray[np.float32]:
        private_features = np.zeros((rows, self.n_features_out_), dtype=np.float32)
        for column, block in zip(self._columns(), self.blocks_, strict=True):
            self._fill(private_features[:, block.start : block.stop], column, private_columns[column.name])
        return private_features

    def _encode_sparse(self, private_columns: Mapping[str, Any], rows: int) -> "sparse.csr_array":
        private_blocks: list[Any] = []
        for column in self._columns():
            private_column, width = private_columns[column.name], column.width
            if column.kind == "set":
                lengths, index = active_indices(column, private_column)
                value = np.ones(len(index), dtype=np.float32)
            elif column.kind == "cat":
                codes = level_codes(private_column, column)
                lengths, index = (codes >= 0).astype(np.int64), codes[codes >= 0]
                value = np.ones(len(index), dtype=np.float32)
            else:
                width += self._is_indicated(column)
                dense = np.zeros((rows, width), dtype=np.float32)
                self._fill(dense, column, private_column)
                at, index = np.nonzero(dense)
                lengths, value = np.bincount(at, minlength=rows), dense[at, index]
            ends = np.append(0, np.cumsum(lengths)).astype(np.int32 if len(index) < 2**31 else np.int64)
            csr = (value, index.astype(np.int32, copy=False), ends)
            private_blocks.append(sparse.csr_array(csr, shape=(rows, width)))
            if width == column.width and self._is_indicated(column):
                private_missing = lengths == 0 if column.kind == "cat" else no_list(column, private_column)
                private_blocks.append(sparse.csr_array(private_missing.astype(np.float32)[:, None]))
        return sparse.csr_array(sparse.hstack(private_blocks, format="csr"))

    def _fill(self, out: NDArray[np.float32], column: ColumnSpec, private_column: Any) -> None:
        """Write one column's features into their place, which holds zeros."""
        if column.kind == "cat":
            codes = level_codes(private_column, column)
            known = np.flatnonzero(codes >= 0)
            out[known, codes[known]] = 1.0
            private_missing = codes < 0
        elif column.kind == "set":
            lengths, index = active_indices(column, private_column)
            out[np.repeat(np.arange(len(lengths)), lengths), index] = 1.0
            private_missing = no_list(column, private_column)
        elif column.kind == "pixels":
            private_missing = self._fill_pixels(out[:, : column.size], column, private_column)
        else:
            private_values = read_values(private_column, column)
            private_missing = ~np.isfinite(private_values)
            if column.parts:
                fill_parts(out, column, private_values)
            else:
                out[:, 0] = self._scaled(column, private_values)
        if self._is_indicated(column):
            out[:, column.width] = private_missing

    def _scaled(self, column: ColumnSpec, private_values: NDArray[np.float64]) -> NDArray[np.float32]:
        """A `num`, `flag` or `date` column as one feature."""
        finite = np.isfinite(private_values)
        if column.kind == "flag":
            return np.where(finite, private_values, self.missing_value(column)).astype(np.float32)
        start, end = self.numeric_range
        low, high = column.limits
        clipped = np.clip(np.where(finite, private_values, low), low, high)
        if column.log1p:
            clipped, low, high = np.log1p(clipped), math.log1p(low), math.log1p(high)
        # Halved before the difference is taken: bounds near the largest float64 must not overflow.
        spread = high / 2 - low / 2  # 0 of whole numbers whose bounds floats do not tell apart
        fraction = (clipped / 2 - low / 2) / spread if spread else np.full(len(clipped), 0.5)
        scaled = np.where(finite, start + (end - start) * fraction, self.missing_value(column))
        # Rounding, to float64 above and to float32 here, must not leave the range.
        return np.clip(scaled.astype(np.float32), np.float32(start), np.float32(end))

    def _fill_pixels(
        self, out: NDArray[np.float32], column: ColumnSpec, private_column: Any
    ) -> NDArray[np.bool_]:
        """Write the pixels of every row; say which rows have no list of them."""
        first, private_missing = 0, np.zeros(len(out), np.bool_)
        for lengths, private_flat in lists(private_column, column.name):
            rows = np.arange(first, first + len(lengths))
            first += len(lengths)
            whole = lengths == column.size  # a list of another length counts as missing
            out[rows[~whole]] = self.missing_value(column)
            private_missing[rows[~whole]] = True
            kept = private_flat if whole.all() else private_flat[np.repeat(whole, np.maximum(lengths, 0))]
            private_pixels, rows = kept.reshape(-1, column.size), rows[whole]
            if private_pixels.dtype == np.uint8:  # bytes: scale the 256 there are, once
                table = self._scaled_pixels(column, np.arange(256)).astype(np.float32)
            else:
                table = None
            for start in range(0, len(rows), ROWS_AT_ONCE):
                block = private_pixels[start : start + ROWS_AT_ONCE]
                scaled = self._scaled_pixels(column, block) if table is None else table[block]
                out[rows[start : start + ROWS_AT_ONCE]] = scaled
        return private_missing

    def _scaled_pixels(self, column: ColumnSpec, private_pixels: NDArray[Any]) -> NDArray[np.float64]:
        low, high = column.limits
        values = private_pixels.astype(np.float64)
        fraction = (np.clip(values, low, high) / 2 - low / 2) / (high / 2 - low / 2)
        return np.where(np.isfinite(values), np.clip(fraction, 0.0, 1.0), self.missing_value(column))


def is_units_sentence(text: str) -> bool:
    """Whether a sentence is one that `TabularEncoder.describe_units` gives for some schema."""
    number = r"-?[0-9.]+(?:e[+-]?[0-9]+)?"
    parts = (
        re.escape(text).replace(r"\{low\}", number).replace(r"\{high\}", number) for text in _UNITS.values()
    )
    each = "|".join(parts)
    return re.fullmatch(rf"{_AS_ENCODED}(?:(?:{each})(?:, (?={each})|\.$))+", text) is not None
