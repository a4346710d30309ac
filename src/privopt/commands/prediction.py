"""`privopt predict`: a released model applied to the rows of a table, a few at a time."""

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from privopt.atomic_files import new_file
from privopt.commands import screen
from privopt.commands.limits import limited
from privopt.commands.model_directory import SavedModel
from privopt.commands.options import WORK
from privopt.commands.screen import GIVE_TABLE, Mistake, require_given
from privopt.engine.placement import Placement
from privopt.tables.errors import TableError
from privopt.tables.places import located
from privopt.tables.schema import Schema
from privopt.tables.table import Table


def run(directory: Path | None, files: Sequence[str], *, output: Path | None) -> None:
    """Write one prediction for each row; memory does not grow with the table.

    Raises:
        Mistake, TableError: something that was typed cannot be used.
        DataUnavailable: a file has changed meanwhile; nothing is written.
    """
    require_given(
        {
            "DIR": (directory, "the model directory"),
            "TABLE": (list(files), GIVE_TABLE),
            "--output": (output, "the Parquet file to write the predictions to"),
        }
    )
    assert directory is not None
    assert output is not None
    if output.suffix.lower() not in (".parquet", ".pq"):
        raise Mistake(f"--output {str(output)!r} must end in .parquet: predictions are written as Parquet.")
    if not output.resolve().parent.is_dir():
        raise Mistake(f"--output {str(output)!r} lies in a folder that does not exist.")
    with limited(WORK, f"the model {str(directory)!r}"):
        saved = SavedModel.read(directory)
    table = Table(located(files), Schema.from_json(saved.encoder.schema), target=None, placement=Placement())
    if table.holds(output):
        raise Mistake(f"--output {str(output)!r} is the table itself: give another file.")
    table.require([block.column for block in saved.encoder.blocks_])
    estimator, labels = saved.estimator, list[object]()
    if hasattr(estimator, "predict_proba"):
        labels = list(estimator.classes_)
    written, terminal = 0, screen.console()
    with screen.working(terminal, "Counting records: texts are read for it once."):
        rows = table.row_count()
    with (
        screen.row_bar(terminal, "Predicting", rows) as advance,
        written_predictions(output, labels) as write,
    ):
        for private_features in table.features(saved.encoder):
            by_class = estimator.predict_proba(private_features) if labels else None
            write(estimator.predict(private_features), by_class)
            written += private_features.shape[0]
            advance(private_features.shape[0])
    names = ["prediction", *(f"probability_{label}" for label in labels)]
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


# ------------------------------------------------------------------------------------------------------------
# Predictions as a Parquet file that is written a few rows at a time, and is there whole or not at all.
GROUP_ROWS = 2**17  # of a row group

Write = Callable[[Any, Any], None]


@contextmanager
def written_predictions(path: Path, labels: Sequence[Any] = ()) -> Generator[Write]:
    """Around the writing of predictions: gives the function that takes the next rows' predictions and probabilities.

    Args:
        path: where to; an existing file is replaced at the end, in one step.
        labels: the classes, in the order of the columns of probabilities; none where there are no probabilities.
    Raises:
        TableError: there is no room, or the folder cannot be written to.
    """
    kept: list[Any] = []
    writer: Any = None
    names = [f"probability_{label}" for label in labels]

    try:
        with new_file(path) as stream:

            def flush() -> None:
                nonlocal writer
                if not kept:
                    return
                table = pa.concat_tables(kept)
                kept.clear()
                if writer is None:
                    writer = pq.ParquetWriter(stream, table.schema, compression="zstd")
                writer.write_table(table)

            def write(prediction: Any, by_class: Any) -> None:
                columns = {"prediction": np.asarray(prediction)}
                columns |= {name: np.asarray(by_class)[:, place] for place, name in enumerate(names)}
                kept.append(pa.table(columns))
                if sum(each.num_rows for each in kept) >= GROUP_ROWS:
                    flush()

            yield write
            flush()
            if writer is not None:
                writer.close()
    except OSError as error:
        raise TableError(
            f"{str(path)!r} cannot be written: {error.strerror or 'the system refused'}."
        ) from None
