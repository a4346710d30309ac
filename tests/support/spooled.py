"""Units that were made in memory, moved into a spool."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse

from privopt.data.rows import GridRows, csr_of
from privopt.data.units import Units
from privopt.engine.streamed import StreamedEngine
from privopt.engine.streamed.disk import Residency
from privopt.engine.streamed.spool import Spool


def spooled(units: Units, folder: Path, *, memory: int = 1) -> StreamedEngine:
    """An engine on the same units in a spool."""
    room = Spool(folder, 2**16, Residency(memory))
    private_rows: Any = units.private_features
    if sparse.issparse(private_rows):
        private_parts = (private_rows.data, private_rows.indices, private_rows.indptr)
        private_values, private_columns, private_starts = map(room.keep, private_parts)
        private_rows = csr_of(private_values, private_columns, private_starts, private_rows.shape[1])
    elif isinstance(private_rows, GridRows):
        private_rows = GridRows(room.keep(private_rows.private_steps), private_rows.steps)
    else:
        private_rows = room.keep(private_rows)
    arrays = {name: value for name, value in vars(units).items() if isinstance(value, np.ndarray)}
    moved = {name: room.keep(value) for name, value in arrays.items()}
    return StreamedEngine(
        dataclasses.replace(units, **(moved | {"private_features": private_rows}), room=room)
    )
