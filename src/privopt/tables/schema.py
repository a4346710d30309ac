"""What is publicly known about a table: for every column its kind and its range or its levels.

A schema is written down by a person from documentation or plausibility, never read off the rows, so scaling and one-hot
encoding by it cost no privacy. Its JSON form is one object:

    {"target": "income", "other_targets": [], "sensitive": ["sex"], "user": "person",
     "columns": {"age": {"kind": "num", "low": 16, "high": 90},
                 "gain": {"kind": "num", "low": 0, "high": 100000, "log1p": true},
                 "sex": {"kind": "cat", "levels": ["Female", "Male"]},
                 "joined": {"kind": "date", "low": "1990-01-01", "high": "2030-12-31"},
                 "person": {"kind": "id"},
                 "smoker": {"kind": "flag", "true": "ja", "false": "nein", "required": true},
                 "income": {"kind": "flag"}}}

`"required": true` says of a column that it is never missing. A further key says how text files write cells:

    "file": {"separator": ";", "decimal": ",", "thousands": ".", "encoding": "cp1252", "missing": ["NA", "."]}
"""

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, cast

from privopt.tables.column_spec import (
    FEATURE_KINDS,
    MOST_FEATURES,
    TARGET_KINDS,
    ColumnSpec,
    is_whole,
    listed,
)
from privopt.tables.errors import TableError
from privopt.tables.file_format import PLAIN, FileFormat
from privopt.untrusted import UntrustedFile, read_json

MOST_COLUMNS = 100_000
ENTRY_KEYS = (
    "columns",
    "target",
    "other_targets",
    "sensitive",
    "user",
    "split",
    "n",
    "file",
    "codes",
    "description",
)


@dataclass(frozen=True, kw_only=True)
class TargetEncoding:
    """What a target may be: one of `classes`, or a number within `bounds`. Exactly one of the two is given."""

    column: str
    classes: tuple[Any, ...] | None = None
    bounds: tuple[float, float] | None = None


@dataclass(frozen=True, kw_only=True)
class Schema:
    """The public description of a table.

    Attributes:
        columns: the columns that may be read; others in the table are left alone.
        target: the column to predict, if the schema names one.
        other_targets: columns that give the target away and are therefore no features.
        sensitive: columns about which fairness is asked; they are features unless they are excluded.
        user: the column that says whose record a row is.
        split: the column that assigns rows to "train" and "test".
        n: the public number of rows, if the schema states it.
        file: how files write cells, if the schema says it; so are texts in other tables read.
    """

    columns: tuple[ColumnSpec, ...]
    target: str | None = None
    other_targets: tuple[str, ...] = ()
    sensitive: tuple[str, ...] = ()
    user: str | None = None
    split: str | None = None
    n: int | None = None
    file: FileFormat | None = None

    def __post_init__(self) -> None:
        if self.file is not None:  # a column's cells are read by its own description
            known = tuple(replace(column, file=self.file) for column in self.columns)
            object.__setattr__(self, "columns", known)
        if not self.columns:
            raise TableError("A schema needs at least one column under 'columns'.")
        if len(self.columns) > MOST_COLUMNS or sum(column.width for column in self.columns) > MOST_FEATURES:
            raise TableError(
                f"A schema may describe {MOST_COLUMNS:,} columns and {MOST_FEATURES:,} features at most: name those "
                "that are needed."
            )
        if len(set(self.names)) < len(self.names):
            raise TableError("A schema may name each column once only.")
        roles = {"target": self.target, "user": self.user, "split": self.split}
        named = [(role, name) for role, name in roles.items() if name is not None]
        named += [("other_targets", name) for name in self.other_targets]
        named += [("sensitive", name) for name in self.sensitive]
        for role, name in named:
            if name not in self.names:
                raise TableError(f"The schema's {role!r} names {name!r}, which is not among its columns.")
        if self.n is not None and (not is_whole(self.n) or self.n < 1):
            raise TableError(f"The schema's 'n' must be a whole number of rows, at least 1; got {self.n!r}.")
        if self.target is not None:
            self.target_encoding()

    @property
    def format(self) -> FileFormat:
        """How files write cells."""
        return PLAIN if self.file is None else self.file

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all columns, in order."""
        return tuple(column.name for column in self.columns)

    def column(self, name: str) -> ColumnSpec:
        """The description of the column `name`.

        Raises:
            TableError: the schema has no such column.
        """
        if name not in self._by_name:
            near = difflib.get_close_matches(name, self.names, 1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise TableError(f"The schema has no column {name!r}: it names {listed(self.names)}.{hint}")
        return self._by_name[name]

    @cached_property
    def _by_name(self) -> dict[str, ColumnSpec]:
        return {column.name: column for column in self.columns}

    def feature_columns(
        self, features: Iterable[str] | None = None, *, exclude: Iterable[str] = (), target: str | None = None
    ) -> tuple[ColumnSpec, ...]:
        """The columns a model learns from: `features`, or all that are neither target, user nor split, less `exclude`.

        Args:
            features: names, in the order wanted; None takes every usable column in the schema's order.
            exclude: names to leave out.
            target: the column to predict, where it is not the schema's own target (which then is no feature either).

        Raises:
            TableError: a name is unknown, not usable as a feature, or nothing is left.
        """
        excluded = tuple(self.column(name).name for name in exclude)
        predicted = self.target if target is None else self.column(target).name
        if features is None:
            reserved = {predicted, self.target, self.user, self.split, *self.other_targets, *excluded}
            chosen = [c for c in self.columns if c.kind in FEATURE_KINDS and c.name not in reserved]
        else:
            chosen = [self.column(name) for name in features]
            for column in chosen:
                if column.kind not in FEATURE_KINDS or column.name in (predicted, self.user, self.split):
                    raise TableError(
                        f"Column {column.name!r} (kind {column.kind!r}) cannot be a feature: targets, users, splits, "
                        "identifiers and free text are left out."
                    )
            chosen = [column for column in chosen if column.name not in excluded]
        if not chosen:
            raise TableError("No feature column is left: name some of kind num, flag, cat, pixels or set.")
        if len({column.name for column in chosen}) < len(chosen):
            raise TableError("A feature column is named twice.")
        return tuple(chosen)

    def target_encoding(self, target: str | None = None) -> TargetEncoding:
        """What the target may be: classes (0, 1) of a flag, the levels of a category, or the bounds of a number.

        Raises:
            TableError: no target is known, or its column is of a kind that cannot be predicted.
        """
        name = self.target if target is None else target
        if name is None:
            raise TableError("The schema names no target: give the column to predict.")
        column = self.column(name)
        if column.kind not in TARGET_KINDS:
            dated = " In the place of a date store the days since a day of your choice, and describe them as a num."
            raise TableError(
                f"The target {name!r} is of kind {column.kind!r}: only {listed(TARGET_KINDS)} can be predicted."
                f"{dated if column.kind == 'date' else ''}"
            )
        if column.kind == "num":
            return TargetEncoding(column=name, bounds=(float(column.low), float(column.high)))
        if column.kind == "flag":
            return TargetEncoding(column=name, classes=(0, 1))
        if len(column.levels) < 2:
            raise TableError(f"The target {name!r} has a single level: there is nothing to predict.")
        return TargetEncoding(column=name, classes=column.levels)

    @classmethod
    def from_json(
        cls, source: "Schema | Mapping[str, Any] | str | Path", name: str | None = None
    ) -> "Schema":
        """Read a schema from a JSON file, from the object in it, or return the schema that is given.

        Args:
            source: one entry, or an object of several entries under their names.
            name: which entry; needed where there are several.

        Raises:
            TableError: the file cannot be read, or says something that a schema may not say.
        """
        if isinstance(source, Schema):
            return source
        entry = _one_entry(_read_json(Path(source)) if isinstance(source, str | Path) else source, name)
        unknown = [key for key in entry if key not in ENTRY_KEYS]
        if unknown:
            near = difflib.get_close_matches(unknown[0], ENTRY_KEYS, 1)
            hint = f"did you mean {near[0]!r}?" if near else f"use {listed(ENTRY_KEYS)}."
            raise TableError(f"The schema has the unknown key {unknown[0]!r}: {hint}")
        described: Any = entry["columns"]
        if not isinstance(described, Mapping):
            raise TableError(
                "The schema's 'columns' must be an object that describes each column under its name."
            )
        columns = tuple(
            ColumnSpec.from_json(str(key), column)
            for key, column in cast("Mapping[str, Any]", described).items()
        )
        return cls(
            columns=columns,
            target=_name(entry, "target"),
            other_targets=_names(entry, "other_targets"),
            sensitive=_names(entry, "sensitive"),
            user=_name(entry, "user"),
            split=_name(entry, "split") or _split_among(columns),
            n=entry.get("n"),
            file=None if entry.get("file") is None else FileFormat.from_json(entry["file"]),
        )

    def to_json(self) -> dict[str, Any]:
        """The JSON entry that `from_json` reads back to an equal schema."""
        roles = {"target": self.target, "user": self.user, "split": self.split, "n": self.n}
        lists = {"other_targets": list(self.other_targets), "sensitive": list(self.sensitive)}
        entry: dict[str, Any] = {key: value for key, value in (roles | lists).items() if value}
        if self.file is not None:
            entry["file"] = self.file.to_json()
        entry["columns"] = {column.name: column.to_json() for column in self.columns}
        return entry


def _name(entry: Mapping[str, Any], key: str) -> str | None:
    name = entry.get(key)
    if name is not None and not isinstance(name, str):
        raise TableError(f"The schema's {key!r} must be the name of one column; got {name!r}.")
    return name


def _names(entry: Mapping[str, Any], key: str) -> tuple[str, ...]:
    names: Any = entry.get(key, [])
    if not isinstance(names, list | tuple) or not all(
        isinstance(name, str) for name in cast("list[Any]", names)
    ):
        raise TableError(f"The schema's {key!r} must be a list of column names; got {names!r}.")
    return tuple(cast("list[str]", names))


def _split_among(columns: tuple[ColumnSpec, ...]) -> str | None:
    """The column named `split`, where its levels show that it assigns rows to training and test."""
    for column in columns:
        if column.name == "split" and {"train", "test"} <= set(column.levels):
            return column.name
    return None


def _read_json(path: Path) -> Mapping[str, Any]:
    if not path.exists():
        raise TableError(f"There is no schema file {str(path)!r}.")
    try:
        return read_json(path, follow=True)
    except UntrustedFile as error:
        raise TableError(f"The schema file cannot be used: {error}") from None


def _one_entry(content: object, name: str | None) -> Mapping[str, Any]:
    """The entry `name` of a file with several, or the only one there is."""
    if not isinstance(content, Mapping):
        raise TableError("A schema must be a JSON object with a 'columns' object in it.")
    entries = cast("Mapping[str, Any]", content)
    if "columns" in entries:
        if name is not None:
            raise TableError(
                f"The schema file has no entry {name!r}: it describes one table, without a name. Leave the name out."
            )
        return entries
    usable = [key for key, entry in entries.items() if isinstance(entry, Mapping) and "columns" in entry]
    if not usable:
        raise TableError("The schema has no 'columns': describe each column of the table under its name.")
    if name is None and len(usable) > 1:
        raise TableError(f"The schema file has several entries: say which one by name, of {listed(usable)}.")
    chosen = usable[0] if name is None else name
    if chosen not in usable:
        raise TableError(f"The schema file has no entry {chosen!r}: it has {listed(usable)}.")
    return cast("Mapping[str, Any]", entries[chosen])
