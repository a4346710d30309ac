"""A table in files that need not fit into memory: what stands for X and y, and its records as features and targets."""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Self, final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from privopt.data.read_units import stated_public
from privopt.data.record_source import Description, RecordBlock, RecordSource
from privopt.data.rows import Storage
from privopt.data.targets import check_intercept, check_row_bound, check_storage
from privopt.data.units import UnitsNoise
from privopt.data.user_keys import user_count
from privopt.engine.choose import engine_of, placed
from privopt.engine.placement import Placement, PlaceName
from privopt.engine.protocol import Engine
from privopt.errors import ArgumentError
from privopt.public import DEFAULT_RECORDS, DEFAULT_WEIGHTING, INTEGER_STORAGES, Public, Relation, Weighting
from privopt.tables.column_spec import ColumnSpec
from privopt.tables.encoder import TabularEncoder
from privopt.tables.errors import TableError, instead_of
from privopt.tables.keys import block_keys, columns_of
from privopt.tables.places import Place, located
from privopt.tables.row_blocks import RowBlocks, checked_headers
from privopt.tables.schema import Schema
from privopt.tables.text_blocks import TextBlock
from privopt.tables.text_stream import bytes_of
from privopt.tables.values import MISSING_WORDS, TargetReading, check_missing, read_target

# ---- The records of a table in files as they are read: encoded features, targets, keys of users. PRIVATE ---
BLOCK_BYTES = 2**22  # of encoded rows at a time
LEAST_BLOCK, MOST_BLOCK = 2**5, 2**14  # rows at a time


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


@final
class Table:
    """A table in files, opened with `Table.open`. It stands for X and y: `LogisticRegression(...).fit(table)`.

    Attributes:
        schema: what is public about its columns.
        target: the column to predict; None for none.
        n: the public number of units; None where an estimator says it, or the table's own number is public.
        missing: what a missing cell becomes, where an estimator does not say it.
        placement: where its records are kept during a run.
    """

    def __init__(
        self,
        place: Place,
        schema: Schema,
        *,
        target: str | None,
        placement: Placement,
        features: Sequence[str] | None = None,
        exclude: Sequence[str] = (),
        n: int | None = None,
        missing: str = "midpoint",
    ) -> None:
        self.schema, self.target, self.n, self.placement = schema, target, n, placement
        self.missing = missing
        self._place, self._features, self._exclude = place, features, tuple(exclude)
        self._users: dict[tuple[str, ...], int] = {}
        self._counted: dict[str, list[TextBlock]] = {}

    @classmethod
    def open(
        cls,
        uri: str | Path | Iterable[str | Path],
        schema: Schema | Mapping[str, Any] | str | Path,
        *,
        target: str | None = None,
        features: Sequence[str] | None = None,
        exclude: Sequence[str] = (),
        n: Any = None,
        missing: str = "midpoint",
        engine: PlaceName = "auto",
        memory: int | str | None = None,
        spool: str | Path | None = None,
        address: str | None = None,
        workers: int | None = None,
        retries: int = 3,
        trust_network: bool = False,
    ) -> Self:
        """Find the files of a table and look at their headers; no record is read.

        Args:
            uri: a file, a folder, a glob, a URI (s3://, gs://, hdfs://, file://, or any that fsspec opens), or a list
                of these: Parquet, or CSV and TSV, also with .gz. They are read in the order of their names. A folder
                of Delta needs the extra `privopt[delta]`.
            schema: what is public about the columns, see `Schema`.
            target: the column to predict; default: the schema's.
            features: columns to learn from; default: all that the schema allows.
            exclude: columns to leave out.
            n: public number of units, see `PrivateLinearModel`; one that an estimator is given comes first.
            missing: what a missing cell becomes, see `TabularEncoder`; an estimator may say it instead.
            engine: where rows are kept: "memory", "stream", "ray", or "auto": memory, or a spool on a local disk
                where they would exceed their share of it.
            memory: bytes that rows may take in this process, or a text such as "8GB".
            spool: folder of the spool.
            address: of a Ray cluster.
            workers: processes of a cluster that hold rows.
            retries: how often the parts of lost workers are read again.
            trust_network: whether a cluster without tokens may be used.
        Raises:
            TableError: there is no such table, its files differ in format, or the schema does not fit.
            ValueError: an argument is out of its range.
        """
        described = Schema.from_json(schema)
        if target is None:
            target = described.target
        elif described.target_encoding(target):
            target = described.column(target).name
        if n is not None and (isinstance(n, bool) or not isinstance(n, int) or n < 1):
            raise ArgumentError(f"n must be a whole number of units of at least 1, got {n!r}.")
        check_missing(missing)
        placement = Placement(
            engine=engine,
            memory=bytes_of(memory),
            spool=None if spool is None else Path(spool),
            address=address,
            workers=workers,
            retries=retries,
            trust_network=trust_network,
        )
        idle = placement.idle()
        if idle is not None:
            raise ArgumentError(f"{idle[0]} is {idle[1]}: give it with engine={idle[2]!r}.")
        return cls(
            located(uri),
            described,
            target=target,
            features=features,
            exclude=exclude,
            n=n,
            missing=missing,
            placement=placement,
        )

    @property
    def is_text(self) -> bool:
        """Whether its files are texts, whose cells have no types."""
        return self._place.delimiter is not None

    @property
    def size(self) -> int:
        """Bytes of its files together."""
        return self._place.size

    @property
    def declared(self) -> tuple[str, ...]:
        """What a run on it takes for public, in sentences of its report."""
        schema = (
            f"Schema, given by the user: the kinds and bounds or levels of {len(self.schema.columns):,} columns. By "
            "it rows were encoded, and from it follows how long one can be."
        )
        return schema, MISSING_WORDS[self.missing]

    @property
    def names(self) -> list[str]:
        """The names of its columns, those that all its files have."""
        headers = checked_headers(self._place, self.schema, [])
        everywhere = set[str].intersection(*map(set, headers))
        return [name for name in headers[0] if name in everywhere]

    def require(self, columns: Sequence[str]) -> None:
        """Refuse a table without these columns, by the headers of its files alone.

        Raises:
            TableError: a file is damaged, lacks one of them, or has other columns than the rest.
        """
        checked_headers(self._place, self.schema, columns)

    def fingerprint(self) -> str:
        """A digest of the names, sizes and times of its files."""
        return self._place.fingerprint()

    def asked(self, groups: Any = None) -> dict[str, Any]:
        """What is asked of it, by the names that a user knows its parts by; for a run that is to be resumed.

        Args:
            groups: the column or columns that say whose record a row is; keys of users themselves are not told.
        """
        listed = [groups] if isinstance(groups, str) else groups if isinstance(groups, tuple | list) else []
        return {
            "files": self.fingerprint(),
            "schema": self.schema.to_json(),
            "target": self.target,
            "features": None if self._features is None else list(self._features),
            "excluded columns": list(self._exclude),
            "missing cells": self.missing,
            "groups": [name for name in listed if isinstance(name, str)],
        }

    def holds(self, file: Path) -> bool:
        """Whether a file on this machine is one of its own."""
        return self._place.holds(file)

    def columns(self, names: Sequence[str]) -> RowBlocks:
        """Some of its columns as they are stored."""
        return RowBlocks(self._place, self.schema, names, most=MOST_BLOCK, counted=self._counted)

    def as_stored(self, names: Sequence[str]) -> RowBlocks:
        """Some of its columns, which the schema need not have; of text files the cells as they are written.

        Raises:
            TableError: it lacks one of them, or its files store one as different types.
        """
        present = self.names
        for name in names:
            if name not in present:
                raise TableError(f"The table has no column {name!r}{instead_of(name, present, names) or '.'}")
        described = Schema.from_json({"columns": {name: {"kind": "id"} for name in names}})
        described = replace(described, file=self.schema.file)
        blocks = RowBlocks(
            self._place, described, names, most=MOST_BLOCK, counted=self._counted, as_texts=True
        )
        first = blocks.empty().schema

        def require_same(nothing: Any) -> None:
            if not nothing.schema.equals(first):
                raise TableError(f"it stores {', '.join(names)} as other types than the first file does.")

        blocks.require(require_same)
        return blocks

    def read(self, names: Sequence[str]) -> Any:
        """Some of its columns, as an Arrow table in memory.

        Raises:
            TableError: its files store a column in different ways.
        """
        blocks = self.columns(names)
        try:
            return pa.concat_tables(list(blocks.read(0, blocks.rows)) or [blocks.empty()])
        except pa.ArrowException:  # its text may quote a cell
            raise TableError(
                "The files of the table store a column as different types: write them with the same."
            ) from None

    def row_count(self) -> int:
        """How many rows it has: public under replace-one only, private under add-or-remove-one."""
        return self.columns([]).rows

    def encoder(
        self, groups: str | Sequence[str] | None = None, missing: str | None = None
    ) -> TabularEncoder:
        """What turns its rows into features: from the schema alone, without the columns that name users."""
        missing = self.missing if missing is None else missing
        exclude = [*self._exclude, *columns_of(groups)]
        asked: dict[str, Any] = {"target": self.target, "missing": missing}
        if self._features is not None:
            return TabularEncoder(self.schema, features=self._features, exclude=exclude, **asked)
        columns = self.schema.feature_columns(exclude=exclude, target=self.target)
        return TabularEncoder(self.schema, features=[each.name for each in columns], **asked)

    def records(
        self,
        encoder: TabularEncoder | None = None,
        *,
        target: str | None = None,
        reading: TargetReading | None = None,
        groups: str | Sequence[str] | None = None,
    ) -> EncodedRecords:
        """Its records as they are read: features, targets, keys of users.

        Args:
            encoder: of the features; default: `encoder`.
            target: the column to predict; default: the table's, if there is one.
            reading: of targets in the place of that column.
            groups: the column or columns that say whose record a row is.
        Raises:
            TableError: a file lacks a column, or stores it as something else. Text files are read once, to count.
            DataUnavailable: a file has changed since the table was opened.
        """
        names = columns_of(groups)
        for name in names:
            self.schema.column(name)
        encoder = self.encoder(groups) if encoder is None else encoder
        target = self.target if target is None else target
        asked: dict[str, Any] = {"target": target, "reading": reading, "groups": names}
        return EncodedRecords(self._place, encoder, counted=self._counted, **asked)

    def engine(
        self,
        *,
        groups: str | Sequence[str] | None = None,
        relation: Relation | str = Relation.REPLACE_ONE,
        row_bound: float | None = None,
        entry_bound: float | None = None,
        intercept: float | None = None,
        n: int | None = None,
        max_records_per_user: int = DEFAULT_RECORDS,
        user_weighting: Weighting = DEFAULT_WEIGHTING,
        typical_records: float | None = None,
        storage: Storage = "float32",
        noise: UnitsNoise | None = None,
        placement: Placement | None = None,
        ahead: Callable[[Public, Placement], object] | None = None,
    ) -> Engine:
        """An engine on its records, for `minimize`: encoded features, and the target as the schema describes it.

        Args:
            groups: the column or columns that say whose record a row is; then a unit is a user.
            relation: see `Units.from_arrays`, as for all that follow.
            row_bound: default: the longest that an encoded row can be.
            entry_bound: of the entries; default: where `storage` is of integers, the largest that there can be.
            intercept: value of a constant last column.
            n: default: the table's.
            max_records_per_user: public cap.
            user_weighting: of a user's average.
            typical_records: of a user.
            storage: the format of the stored rows.
            noise: source of the secret choice of a user's records.
            placement: where they are kept; default: the table's.
            ahead: called before any record is read, with what is public about the units and where they will be kept.
        Raises:
            ValueError: as `Units.from_arrays`.
            DataUnavailable: the files cannot be read.
        """
        encoder = self.encoder(groups)
        dtype = check_storage(storage, is_sparse=encoder.is_sparse)
        row_bound = check_row_bound(encoder.row_norm_bound_ if row_bound is None else row_bound)
        if entry_bound is None and storage in INTEGER_STORAGES:  # by which the grid is laid
            entry_bound = max(min(1.0, row_bound), abs(check_intercept(intercept, dtype) or 0.0))
        target = None if self.target is None else self.schema.target_encoding(self.target)
        n = self.n if n is None else n
        if n is None and groups is not None and Relation.parse(relation) is Relation.REPLACE_ONE:
            n = user_count(self.user_count(groups))
        description = Description(
            relation=relation,
            row_bound=row_bound,
            entry_bound=entry_bound,
            n=n,
            max_records_per_user=max_records_per_user,
            user_weighting=user_weighting,
            typical_records=typical_records,
            classes=None if target is None else target.classes,
            target_bounds=None if target is None else target.bounds,
            intercept=intercept,
            storage=storage,
        )
        source = self.records(encoder, groups=groups)
        placement = placed(source, description, self.placement if placement is None else placement)
        if ahead is not None:
            ahead(stated_public(source, description), placement)
        return engine_of(source, description, placement, noise=noise)

    def features(self, encoder: TabularEncoder | None = None) -> Iterator[Any]:
        """The features of its rows, block by block, at least one block; the target need not be there."""
        encoder = self.encoder() if encoder is None else encoder
        records = EncodedRecords(self._place, encoder, target=None, counted=self._counted)
        if not records.rows:
            yield records.no_features()
        for start in range(0, records.rows, records.block_rows):  # a block of text may have many more
            for block in records.blocks(start, min(start + records.block_rows, records.rows)):
                yield block.private_features

    def targets(self) -> NDArray[Any]:
        """The target of every row, as `read_target` gives it."""
        if self.target is None:
            raise TableError("The schema names no target: give the column to predict.")
        blocks = self.columns([self.target])
        private_tables = [blocks.empty(), *blocks.read(0, blocks.rows)]
        return np.concatenate([read_target(each, self.schema, self.target) for each in private_tables])

    def key_records(self, groups: str | Sequence[str]) -> KeyRecords:
        """Whose its records are, by the columns that say it."""
        names = columns_of(groups)
        return KeyRecords(self._place, self.columns(names), [self.schema.column(name) for name in names])

    def user_count(self, groups: str | Sequence[str]) -> int:
        """How many users its keys name: public under replace-one only, private under add-or-remove-one."""
        names = columns_of(groups)
        if names not in self._users:
            self._users[names] = self._counted_users(names)
        return self._users[names]

    def _counted_users(self, names: tuple[str, ...]) -> int:
        """Counted by the workers of a cluster where they shall hold the records, else here."""
        records = self.key_records(names)
        if self.placement.engine != "ray":
            from privopt.engine.streamed import counted_users  # late, as the engine is

            return counted_users(records, self.placement)
        from privopt.engine.on_ray.user_fleet import count_users as count_on_ray  # late: an extra

        return count_on_ray(records, Description(row_bound=1.0), self.placement)

    def __repr__(self) -> str:
        files = len(self._place.files)
        return f"Table({files} file{'s' if files > 1 else ''}, <private>)"
