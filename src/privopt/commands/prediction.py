"""`privopt predict`: predictions for the rows of a table, a few rows at a time."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from privopt.commands import screen
from privopt.commands.limits import limited
from privopt.commands.options import WORK
from privopt.commands.outputs import table_file
from privopt.commands.screen import GIVE_TABLE, Mistake, require_given
from privopt.engine.placement import Placement
from privopt.estimators.saving import load
from privopt.tables.errors import TableError
from privopt.tables.io import check_written, new_table
from privopt.tables.places import located
from privopt.tables.row_blocks import RowBlocks
from privopt.tables.schema import Schema
from privopt.tables.table import Table


def run(directory: Path, files: Sequence[str], *, output: Path | None, keep: Sequence[str]) -> None:
    """Write one prediction for each row, beside the columns to be kept; memory does not grow with the table.

    Raises:
        Mistake, TableError: something that was typed cannot be used.
        DataUnavailable: a file has changed meanwhile; nothing is written.
    """
    require_given(
        {
            "DIR": (directory, "the model directory"),
            "TABLE": (list(files), GIVE_TABLE),
            "--output": (output, "the file to write the predictions to"),
        }
    )
    assert output is not None
    table_file(output, overwrite=True)
    with limited(WORK, f"the model {str(directory)!r}"):
        model = load(directory)
    if model.encoder_ is None:
        raise Mistake(
            f"the model {str(directory)!r} was fitted to features, without a schema that makes them of a table: "
            "predict in Python, with privopt.load(...).predict(X)."
        )
    encoder = model.encoder_
    table = Table(located(files), Schema.from_json(encoder.schema), target=None, placement=Placement())
    if table.holds(output):
        raise Mistake(f"--output {str(output)!r} is the table itself: give another file.")
    table.require([block.column for block in encoder.blocks_])
    labels = list(model.classes_) if hasattr(model, "predict_proba") else []
    names = ["prediction", *(f"probability_{label}" for label in labels)]
    keep = list(dict.fromkeys(keep))
    kept = _kept(table, keep, names)
    if kept is not None:
        check_written(output, kept.empty())
    written, terminal = 0, screen.console()
    with screen.working(terminal, "Counting records: texts are read for it once."):
        rows = table.row_count()
    with screen.row_bar(terminal, "Predicting", rows) as advance, new_table(output) as write:
        for private_features in table.features(encoder):
            count = private_features.shape[0]
            private_columns = [] if kept is None else _plain(kept, written, written + count)
            private_columns.append(model.predict(private_features))
            if labels:
                private_columns += list(model.predict_proba(private_features).T)
            write(pa.table(private_columns, names=[*keep, *names]))
            written += count
            advance(count)
    names = [*keep, *names]
    shown = ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
    screen.show_rows(
        terminal,
        "Done",
        [
            ("predictions", f"{output}: {written:,} rows, {shown}"),
            (
                "mind",
                "The guarantee covers the model; what it predicts for these rows is as private as the rows are.",
            ),
        ],
    )


def _kept(table: Table, names: Sequence[str], made: Sequence[str]) -> RowBlocks | None:
    """The columns of a table to be copied; None for none.

    Args:
        table: opened.
        names: of the columns.
        made: the columns beside which they stand.
    Raises:
        Mistake: the table has no such column, or it has the name of one that is made.
    """
    for name in names:
        if name in made:
            raise Mistake(f"--keep {name!r} has the name of a column of predictions: rename it in the table.")
    try:
        return table.as_stored(names) if names else None
    except TableError as error:
        raise Mistake(f"--keep: {error}") from None


def _plain(kept: RowBlocks, start: int, stop: int) -> list[Any]:
    """Some rows, texts as such, not as places in a dictionary; a cell that is no UTF-8 text is missing."""
    private_table = pa.concat_tables(list(kept.read(start, stop)) or [kept.empty()]).unify_dictionaries()
    return [_readable(private_column) for private_column in private_table.columns]


def _readable(private_column: Any) -> Any:
    if pa.types.is_dictionary(private_column.type):
        private_column = private_column.cast(private_column.type.value_type)
    try:
        private_column.validate(full=True)
    except pa.ArrowInvalid:
        private_cells = private_column.cast(pa.binary()).to_pylist()
        return pa.array([_text(cell) for cell in private_cells], private_column.type)
    return private_column


def _text(private_cell: bytes | None) -> str | None:
    try:
        return None if private_cell is None else private_cell.decode()
    except UnicodeDecodeError:
        return None
