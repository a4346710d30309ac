"""The records of a table in files as they are read: encoded features, targets, keys of users. PRIVATE."""

import hashlib
from collections.abc import Iterator, Sequence
from typing import Any, final

import numpy as np

from privopt.data.record_source import RecordBlock, RecordSource
from privopt.tables.column_spec import ColumnSpec
from privopt.tables.encoder import TabularEncoder
from privopt.tables.keys import block_keys
from privopt.tables.places import Place
from privopt.tables.row_blocks import RowBlocks
from privopt.tables.schema import Schema
from privopt.tables.targets import TargetReading, read_target
from privopt.tables.text_blocks import TextBlock

BLOCK_BYTES = 2**22  # of encoded rows at a time
LEAST_BLOCK, MOST_BLOCK = 2**8, 2**14  # rows at a time


@final
class EncodedRecords(RecordSource):
    """The records of a table as features, targets and keys of users, encoded as they are read.

    Args:
        place: the files.
        encoder: of the features; from the schema alone.
        target: the column to predict; None where no targets are read.
        reading: of targets in the place of that column.
        groups: the columns that say whose record a row is; none where a record is a unit.
        counted: see `RowBlocks`.
    Raises:
        TableError: a file is damaged, lacks a column, or stores one as something that the schema rules out.
        DataUnavailable: a file has changed since the table was opened.

    Privacy:
        Each record is encoded by itself, whatever block it is read in, see `TabularEncoder`.
    """

    def __init__(
        self,
        place: Place,
        encoder: TabularEncoder,
        *,
        target: str | None,
        reading: TargetReading | None = None,
        groups: Sequence[str] = (),
        counted: dict[str, list[TextBlock]],
    ) -> None:
        self.width, self.is_sparse, self.by_user = encoder.n_features_out_, encoder.is_sparse, bool(groups)
        self.row_entries = encoder.row_entries
        self._place, self._encoder, self._target, self._groups = place, encoder, target, tuple(groups)
        self._schema, self._reading = Schema.from_json(encoder.schema), reading
        self._keys = [self._schema.column(name) for name in groups]
        columns = [block.column for block in encoder.blocks_]
        targets = ([] if target is None else [target]) if reading is None else reading.columns
        self._columns: list[str] = list(dict.fromkeys([*columns, *targets, *groups]))
        cells = max(len(self._columns), self.row_entries or 0) if self.is_sparse else self.width
        self.block_rows = min(MOST_BLOCK, max(LEAST_BLOCK, BLOCK_BYTES // (4 * cells)))
        self._blocks = RowBlocks(place, self._schema, self._columns, most=self.block_rows, counted=counted)
        self.rows = self._blocks.rows
        self._blocks.require(self._encoded)  # a column of the wrong type is refused before anything is paid
        self._blocks.require_keys(self._groups)

    def blocks(self, start: int, stop: int) -> Iterator[RecordBlock]:
        """See `RecordSource.blocks`."""
        return map(self._encoded, self._blocks.read(start, stop))

    def fingerprint(self) -> str:
        """See `RecordSource.fingerprint`."""
        asked = self._encoder.get_params(deep=False)
        read = [self._schema.to_json(), self._columns, self._target, self._groups]
        read += [] if self._reading is None else [self._reading]
        told = f"{self._place.fingerprint()} {read!r} { {name: asked[name] for name in asked if name != 'schema'}!r}"
        return hashlib.sha256(told.encode("utf-8", "surrogatepass")).hexdigest()

    def no_features(self) -> Any:
        """The features of no record."""
        return self._encoded(self._blocks.empty()).private_features

    def _encoded(self, private_table: Any) -> RecordBlock:
        private_targets = None
        if self._reading is not None:
            private_targets = self._reading(private_table)
        elif self._target is not None:
            private_targets = read_target(private_table, self._schema, self._target)
        private_keys = block_keys(private_table, self._keys) if self._keys else None
        return RecordBlock(self._encoder.transform(private_table), private_targets, private_keys)

    def __repr__(self) -> str:
        return f"EncodedRecords(<private>, d={self.width})"


@final
class KeyRecords(RecordSource):
    """Whose the records of a table are, and nothing else of them.

    Args:
        place: the files.
        blocks: of the columns that say it.
        columns: these.
    """

    width, by_user = 1, True

    def __init__(self, place: Place, blocks: RowBlocks, columns: Sequence[ColumnSpec]) -> None:
        self._place, self._blocks, self._columns = place, blocks, columns
        self.rows = blocks.rows
        blocks.require_keys([column.name for column in columns])

    def blocks(self, start: int, stop: int) -> Iterator[RecordBlock]:
        """See `RecordSource.blocks`."""
        for private_table in self._blocks.read(start, stop):
            nothing = np.zeros((private_table.num_rows, 1), np.float32)
            yield RecordBlock(nothing, None, block_keys(private_table, self._columns))

    def fingerprint(self) -> str:
        """See `RecordSource.fingerprint`."""
        told = [(column.name, column.format.missing) for column in self._columns]
        return hashlib.sha256(f"{self._place.fingerprint()} {told!r}".encode()).hexdigest()

    def __repr__(self) -> str:
        return "KeyRecords(<private>)"
