"""Odd inputs as users have them: what is given, what becomes of it, and what it costs.

Each case says what is right: the values that are read, None for a cell that counts as missing, or the words of a
refusal. An outcome that is neither is silently wrong: `outcome_of` says so, and tests hold their number to 0. A cell
that counts as missing must be counted by `privopt check` as well. A refusal costs nothing, and a fit is paid once.

* `columns`: flags, numbers as text, categories, dates, labels, frames, names of columns of a schema;
* `files`: encodings, separators, headers, stored types;
* `cells`: cells that no loader should have to meet;
* `declarations`: bounds, names of features, options, users' keys;
* `absurd`: files and command lines that attack a loader, in a process of their own.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from tests.support.odd_inputs import columns, declarations, files
from tests.support.odd_inputs.cells import ODD

from privopt.data import cells
from privopt.tables import Schema, TableError, TabularEncoder
from privopt.tables.diagnosis import diagnose
from privopt.tables.row_blocks import RowBlocks
from privopt.tables.table import Table


@dataclass(frozen=True, kw_only=True)
class OddInput:
    """One input.

    Attributes:
        kind: of oddity.
        name: what is odd.
        right: the values that are read, None for a missing one; or the words of the refusal.
        entry: how the schema describes the column `v`.
        file: what the schema says of files.
        made: makes the table: a frame, or a file in a folder.
        classes: of labels, which are given to an estimator without a schema.
    """

    kind: str
    name: str
    right: list[Any] | str
    entry: dict[str, Any] = field(default_factory=dict[str, Any])
    file: dict[str, Any] | None = None
    made: Callable[[Path], Any]
    classes: tuple[Any, ...] | None = None

    @property
    def schema(self) -> dict[str, Any]:
        """With the column `v`, and what is said of files."""
        described: dict[str, Any] = {"columns": {"v": self.entry}}
        return described if self.file is None else {**described, "file": self.file}


def read_of(case: OddInput, folder: Path) -> list[Any]:
    """What becomes of the cells, None for a missing one.

    Raises:
        TableError, TypeError: the input is refused.
    """
    made = case.made(folder)
    if case.classes is not None:
        codes = cells.label_codes(cells.targets(made, labels=True), list(case.classes))
        return [case.classes[code] if code >= 0 else None for code in codes]
    encoder = TabularEncoder(case.schema, missing="indicator", sparse_output=False)
    if isinstance(made, Path):
        features = np.concatenate(list(Table.open(made, case.schema).features(encoder)))
    else:
        features = np.asarray(encoder.transform(made))
    missing = features[:, -1] == 1
    if case.entry["kind"] == "cat":
        values = [case.entry["levels"][code] for code in np.argmax(features[:, :-1], axis=1)]
    elif case.entry["kind"] == "flag":
        values = [int(value) for value in features[:, 0]]
    else:
        low, high = Schema.from_json(case.schema).column("v").limits
        values = (low + (features[:, 0].astype(float) + 1) / 2 * (high - low)).tolist()
    return [None if gone else value for gone, value in zip(missing, values, strict=True)]


def counted(case: OddInput, folder: Path) -> int:
    """How many cells a diagnosis finds to be missing, unreadable or unknown."""
    made, schema = case.made(folder), Schema.from_json(case.schema)
    if isinstance(made, Path):
        place = Table.open(made, schema)._place
        blocks = RowBlocks(place, schema, ["v"], most=100, counted={}, as_texts=True)
        tables = [blocks.empty(), *blocks.read(0, blocks.rows)]
    else:
        tables = [made]
    found = diagnose(tables, schema.columns).columns[0]
    return found.missing + found.unreadable + found.unknown


def outcome_of(case: OddInput, folder: Path) -> str:
    """What became of an input: "read", "missing" (cells that a diagnosis counts), "refused" or "silently wrong"."""
    try:
        found = read_of(case, folder)
    except (TableError, TypeError) as error:
        return (
            "refused"
            if isinstance(case.right, str) and case.right in str(error)
            else f"silently wrong: {error}"
        )
    if isinstance(case.right, str) or len(found) != len(case.right):
        return f"silently wrong: {found}"
    for value, right in zip(found, case.right, strict=True):
        same = value is right or value == right
        if not same and isinstance(right, float) and value is not None:
            same = math.isclose(value, right, rel_tol=0, abs_tol=0.003)
        if not same:
            return f"silently wrong: {found}"
    gone = sum(right is None for right in case.right)
    if case.classes is None and counted(case, folder) != gone:
        return f"silently wrong: a diagnosis counts {counted(case, folder)} cells, not {gone}"
    return "missing" if gone else "read"


def _frame(values: list[Any]) -> Callable[[Path], Any]:
    return lambda folder: pd.DataFrame(
        {"v": pd.Series(np.fromiter(values, dtype=object, count=len(values)), dtype=object)}
    )


def _named(names: list[Any]) -> Callable[[Path], Any]:
    return lambda folder: pd.DataFrame(np.ones((2, len(names))), columns=pd.Index(names, tupleize_cols=False))


def odd_inputs() -> Iterator[OddInput]:
    """All of them."""
    for name, (spelt, values, right) in columns.FLAGS.items():
        yield OddInput(
            kind="flags", name=name, right=right, entry={**columns.FLAG, **spelt}, made=_frame(values)
        )
    for name, (file, values, right) in columns.NUMBERS.items():
        given = {"entry": columns.NUMBER, "file": file, "right": right}
        yield OddInput(kind="numbers as text", name=name, made=_frame(values), **given)
    for name, (values, right) in columns.CATEGORIES.items():
        entry = {"kind": "cat", "levels": columns.LEVELS}
        yield OddInput(kind="categories", name=name, right=right, entry=entry, made=_frame(values))
    for name, (values, right) in columns.DATES.items():
        yield OddInput(kind="dates", name=name, right=right, entry=columns.DATE, made=_frame(values))
    for name, (classes, values, right) in columns.LABELS.items():
        made = lambda folder, values=values: values  # noqa: E731
        yield OddInput(kind="labels", name=name, right=right, made=made, classes=classes)
    for name, cell in ODD.items():
        for kind, entry in (("num", columns.NUMBER), ("flag", columns.FLAG)):
            given = {"right": [None, 1.0 if kind == "num" else 1], "entry": entry, "made": _frame([cell, 1])}
            yield OddInput(kind="missing cells", name=f"{name} ({kind})", **given)
    for name, (entry, file, made, right) in columns.MARKED.items():
        given = {"right": right, "entry": entry, "file": file, "made": lambda folder, made=made: made()}
        yield OddInput(kind="missing cells", name=f"{name}, marked", **given)
    for name, (entry, made, right) in columns.FRAMES.items():
        given = {"right": right, "entry": entry, "made": lambda folder, made=made: made()}
        yield OddInput(kind="frames", name=name, **given)
    for name, (names, words) in columns.NAMES.items():
        yield OddInput(
            kind="names of columns", name=name, right=words, entry=columns.NUMBER, made=_named(names)
        )
    for name, (entry, file, made, right) in files.FILES.items():
        yield OddInput(kind="files", name=name, right=right, entry=entry, file=file, made=made)


CASES = {f"{case.kind}: {case.name}": case for case in odd_inputs()}


def counts_by_kind() -> Counter[str]:
    """How many inputs there are of each kind, those of `declarations` among them."""
    found = Counter(case.kind for case in CASES.values())
    found += Counter({kind: len(listed) for kind, listed in declarations.KINDS.items()})
    return found
