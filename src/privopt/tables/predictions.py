"""Predictions as a Parquet file that is written a few rows at a time, and is there whole or not at all."""

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from privopt.atomic_files import new_file
from privopt.tables.errors import TableError

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
