"""Privacy units in memory, from a source of records: each block is clipped into its place as it is read. PRIVATE."""

import dataclasses
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from privopt.data.record_source import Description, RecordBlock, RecordSource
from privopt.data.rows import aligned_zeros
from privopt.data.units import Units, UnitsNoise, check_units
from privopt.data.user_rows import user_rows
from privopt.public import Relation, of_users


def read_units(source: RecordSource, description: Description, *, noise: UnitsNoise | None = None) -> Units:
    """Group the records of a source into privacy units, as `Units.from_arrays` does with all of them at once.

    No second copy of the rows exists. A source whose records have keys of users is read twice: which records a user
    keeps follows from all keys, and only these are stored.

    Args:
        source: the records.
        description: what is public about the units.
        noise: source of the secret choice of a user's records; default: fresh, from the operating system.
    Privacy:
        A stored row depends on its own record alone, whatever block it is read in. More units than the public n are
        refused before any record is read, or any but the keys where a unit is a user, without saying how many there
        are.
    Raises:
        ValueError: as `Units.from_arrays`.
        DataUnavailable: the source cannot be read.
    """
    relation = Relation.parse(description.relation)
    if not source.by_user:
        n = check_units(description.n, source.rows, relation, by_user=False)
        private_stored = _Stored(source.rows, None)
        _read(source, description, private_stored)
        return private_stored.units(n, relation)
    users = user_rows(source, description, noise)
    n = check_units(description.n, len(users.private_weights), relation, by_user=True)
    private_stored = _Stored(source.rows, users.private_order)
    _read(source, description, private_stored)
    units = private_stored.units(n, relation)
    public = dataclasses.replace(units.public, **_of_users(description))
    return dataclasses.replace(
        units,
        public=public,
        private_offsets=users.private_offsets,
        private_weights=users.private_weights,
        seeded=users.seeded,
    )


class _Stored:
    """Stored rows that are filled in block by block.

    Args:
        rows: how many records are read.
        private_order: those that are kept, in their order; None for all.
    """

    def __init__(self, rows: int, private_order: NDArray[np.int64] | None) -> None:
        self._private_order = private_order
        kept = rows
        if private_order is not None:
            kept = len(private_order)
            self._private_place = np.full(rows, -1)
            self._private_place[private_order] = np.arange(kept)
        self._private_targets, self._private_norms = np.zeros(kept), np.zeros(kept)
        self._private_present = np.zeros(kept, np.bool_)
        self._private_dense: Any = None
        self._private_sparse: list[Any] = []
        self._block: Units | None = None

    def put(self, first: int, private_units: Units) -> None:
        """Keep what is kept of a block that begins at record `first`."""
        private_rows: Any = private_units.private_features
        private_place: Any = slice(first, first + private_rows.shape[0])
        private_kept: Any = slice(None)
        if self._private_order is not None:
            private_place = self._private_place[private_place]
            private_kept = private_place >= 0
            private_place = private_place[private_kept]
        self._private_targets[private_place] = private_units.private_targets[private_kept]
        self._private_norms[private_place] = private_units.private_norms[private_kept]
        self._private_present[private_place] = private_units.private_present[private_kept]
        if sparse.issparse(private_rows):
            self._private_sparse.append(private_rows)
        elif self._private_dense is None:
            width = private_rows.shape[1]
            self._private_dense = aligned_zeros(len(self._private_targets), width, private_rows.dtype)
        if self._private_dense is not None:
            self._private_dense[private_place] = private_rows[private_kept]
        self._block = self._block or private_units

    def units(self, n: int, relation: Relation) -> Units:
        """All of them."""
        assert self._block is not None
        private_rows = self._private_dense
        if private_rows is None:
            private_rows = sparse.csr_array(sparse.vstack(self._private_sparse, format="csr"))
            if self._private_order is not None:
                private_rows = private_rows[self._private_order]
        return Units(
            public=dataclasses.replace(self._block.public, n=n, relation=relation),
            private_features=private_rows,
            private_targets=self._private_targets,
            private_norms=self._private_norms,
            private_present=self._private_present,
        )


def _read(source: RecordSource, description: Description, private_stored: _Stored) -> None:
    """Clip every block as records are clipped, and put it into its place."""
    arguments = _of_records(description)
    first = 0
    for block in source.blocks(0, source.rows):
        rows = block.private_features.shape[0]
        private_stored.put(first, _clipped(block, rows, arguments))
        first += rows
    if first == 0:  # no records: what is public follows from the width alone
        nothing: Any = np.zeros((0, source.width), np.float32)
        private_targets = None if description.classes is None else np.asarray(list(description.classes))[:0]
        if source.is_sparse:
            nothing = sparse.csr_array(nothing)
        private_stored.put(0, _clipped(RecordBlock(nothing, private_targets, None), 0, arguments))


def _clipped(block: RecordBlock, rows: int, arguments: dict[str, Any]) -> Units:
    """One block as units that are records; of no meaning but for its rows and what is public of them."""
    return Units.from_arrays(block.private_features, block.private_targets, n=max(rows, 2), **arguments)


def _of_records(description: Description) -> dict[str, Any]:
    """The description of a block, in which a record is a unit and may be missing."""
    arguments = description.arguments()
    for name in ("n", "max_records_per_user", "user_weighting", "typical_records"):
        del arguments[name]
    return arguments | {"relation": Relation.ADD_OR_REMOVE_ONE}


def _of_users(description: Description) -> dict[str, Any]:
    """What is public of units that are users."""
    return of_users(description.max_records_per_user, description.user_weighting, description.typical_records)
