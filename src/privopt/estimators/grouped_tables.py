"""Groups of the records of a table in files: the columns that say them, and targets that say label and group."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self, final

import numpy as np
from numpy.typing import NDArray

from privopt.data import cells
from privopt.data.targets import check_targets
from privopt.errors import ArgumentError
from privopt.estimators.groups import GroupedClasses, coded_targets
from privopt.tables.cells import level_codes, read_columns
from privopt.tables.schema import ColumnSpec, Schema
from privopt.tables.table import Table
from privopt.tables.targets import read_target
from privopt.tables.values import read_values

Codes = NDArray[np.int64]


def sensitive_columns(schema: Schema, names: Any) -> tuple[ColumnSpec, ...]:
    """The columns that say which group a record is in; none where all records are one group.

    Args:
        schema: of the table.
        names: of a column, or of several.
    Raises:
        ArgumentError: they are no names, or of columns whose values are not declared.
        TableError: the schema has no such column.
    """
    listed = [names] if isinstance(names, str) else names
    if listed is None:
        return ()
    if not isinstance(listed, list | tuple) or not listed or not all(isinstance(one, str) for one in listed):
        raise ArgumentError(
            "sensitive_features of a table must be the name of a column, or a list of names: those that say which "
            "group a record is in."
        )
    columns = tuple(schema.column(name) for name in dict.fromkeys(listed))
    for column in columns:
        if column.kind not in ("cat", "flag"):
            raise ArgumentError(
                f"sensitive_features names {column.name!r}, which is of kind {column.kind!r}: which groups there are "
                "is public, and the schema says it of a category (cat) or a flag. Write others into a column of their "
                "own beforehand."
            )
    return columns


def declared_values(columns: Sequence[ColumnSpec]) -> list[Any]:
    """The groups that the schema allows: the values of one column, or the tuples of values of several."""
    values = [column.levels if column.kind == "cat" else (0, 1) for column in columns]
    return list(values[0]) if len(values) == 1 else list(itertools.product(*values))


@final
@dataclass(frozen=True, kw_only=True)
class GroupedTargets:
    """Reads `(g + 1) label` of each record, see `coded_targets`: a `TargetReading`.

    Attributes:
        schema: of the table.
        target: the column to predict.
        classes: the two labels.
        sensitive: the columns that say the group.
        keys: of each group, as `_joined` makes them of its values.

    Privacy:
        What a record's target becomes follows from its own cells. One with a label or a value that is not declared is
        NaN, and counts as nothing.
    """

    schema: Schema
    target: str
    classes: tuple[Any, ...]
    sensitive: tuple[ColumnSpec, ...]
    keys: tuple[int, ...]

    @classmethod
    def of(cls, table: Table, target: GroupedClasses, sensitive: tuple[ColumnSpec, ...]) -> Self:
        """What reads a table's targets as labels and groups.

        Raises:
            ArgumentError: a declared group is none that the schema allows, or two are one.
        """
        values = [value if isinstance(value, tuple) else (value,) for value in target.groups.values]
        if any(len(value) != len(sensitive) for value in values):
            raise ArgumentError(
                f"sensitive_features has {len(sensitive)} columns and sensitive_values says otherwise: with several "
                "columns every value is a tuple of one value a column, such as ('Female', 'Black')."
            )
        codes = [
            _declared_codes([value[place] for value in values], column)
            for place, column in enumerate(sensitive)
        ]
        keys = _joined(codes, sensitive, len(values) or 1).tolist()
        if min(keys) < 0 or len(set(keys)) < len(keys):
            raise ArgumentError(
                f"sensitive_values {list(target.groups.values)!r} are not all different groups that the schema allows: "
                f"it has {declared_values(sensitive)!r}."
            )
        assert table.target is not None
        classes = tuple(target.labels.tolist())
        return cls(
            schema=table.schema, target=table.target, classes=classes, sensitive=sensitive, keys=tuple(keys)
        )

    @property
    def columns(self) -> tuple[str, ...]:
        """See `TargetReading.columns`."""
        return (self.target, *(column.name for column in self.sensitive))

    def __call__(self, private_table: Any) -> NDArray[np.float64]:
        """See `TargetReading.__call__`."""
        private_read = read_target(private_table, self.schema, self.target)
        private_labels = check_targets(private_read, len(private_read), self.classes)
        assert private_labels is not None
        private_columns, rows = read_columns(private_table, self.sensitive)
        private_codes = [_codes_of(private_columns[column.name], column) for column in self.sensitive]
        private_groups = cells.label_codes(_joined(private_codes, self.sensitive, rows), self.keys)
        return coded_targets(private_labels, private_groups, self.classes)


def _codes_of(private_column: Any, column: ColumnSpec) -> Codes:
    """The position of every cell among a column's values, -1 where it is missing or none of them."""
    if column.kind == "cat":
        return level_codes(private_column, column)
    private_values = read_values(private_column, column)
    return np.where(np.isfinite(private_values), private_values, -1).astype(np.int64)


def _declared_codes(values: list[Any], column: ColumnSpec) -> Codes:
    """The same of the values that were declared, of which a flag's are 0 and 1."""
    if column.kind == "cat":
        return _codes_of(np.fromiter(values, dtype=object, count=len(values)), column)
    return np.asarray([(0, 1).index(value) if value in (0, 1) else -1 for value in values], np.int64)


def _joined(private_codes: Sequence[Codes], columns: Sequence[ColumnSpec], rows: int) -> Codes:
    """One number for the codes of several columns, -1 where one of them is; 0 for all of no columns."""
    private_keys, private_known = np.zeros(rows, np.int64), np.ones(rows, np.bool_)
    for private_column, column in zip(private_codes, columns, strict=True):
        private_keys = private_keys * max(2, len(column.levels)) + private_column
        private_known &= private_column >= 0
    return np.where(private_known, private_keys, -1)
