"""Stored rows on their way to or from a worker: pieces of units, and the units that they make together. PRIVATE."""

from collections.abc import Sequence
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from privopt.data.grid import GridRows
from privopt.data.rows import MappedRows, Rows, aligned_zeros
from privopt.data.storage import gather_rows
from privopt.data.units import Units
from privopt.data.users import offsets
from privopt.public import Public


class StoredRows(NamedTuple):
    """Some units, as `Units` holds them, without what is public about all."""

    private_features: Any
    private_targets: NDArray[np.float64]
    private_norms: NDArray[np.float64]
    private_present: NDArray[np.bool_]
    private_counts: NDArray[np.int64] | None
    private_weights: NDArray[np.float64] | None

    @classmethod
    def of(cls, units: Units) -> Self:
        """Those of some units."""
        return cls(
            units.private_features,
            units.private_targets,
            units.private_norms,
            units.private_present,
            None if units.private_offsets is None else np.diff(units.private_offsets),
            units.private_weights,
        )

    @classmethod
    def joined(cls, pieces: "Sequence[StoredRows]") -> Self:
        """Those of all pieces, at least one, in order; copied."""
        columns = list(zip(*pieces, strict=True))
        by_user = pieces[0].private_counts is not None
        return cls(
            _joined_rows(columns[0]),
            *(np.concatenate(column) for column in columns[1:4]),
            *(np.concatenate(column) if by_user else None for column in columns[4:]),
        )

    def at(self, private_positions: NDArray[np.int64]) -> "StoredRows":
        """Those of the records at some positions, copied, where a unit is a record."""
        return StoredRows(
            gather_rows(self.private_features, private_positions),
            self.private_targets[private_positions],
            self.private_norms[private_positions],
            self.private_present[private_positions],
            None,
            None,
        )

    def units(self, public: Public, *, seeded: bool = False, origin: str = "") -> Units:
        """As units, not copied."""
        return Units(
            public=public,
            private_features=self.private_features,
            private_targets=self.private_targets,
            private_norms=self.private_norms,
            private_present=self.private_present,
            private_offsets=None if self.private_counts is None else offsets(self.private_counts),
            private_weights=self.private_weights,
            seeded=seeded,
            origin=origin,
        )


def _joined_rows(private_pieces: Sequence[Any]) -> Rows:
    """The rows of all pieces, stored as they are."""
    first = private_pieces[0]
    if isinstance(first, MappedRows):
        private_source = _joined_rows([private_piece.private_source for private_piece in private_pieces])
        return MappedRows(private_source, first.matrix, first.bound)
    if isinstance(first, GridRows):
        private_steps = _joined_rows([private_piece.private_steps for private_piece in private_pieces])
        return GridRows(private_steps, first.steps)  # type: ignore[arg-type]  # an array of integers
    if isinstance(first, np.ndarray):
        private_rows = aligned_zeros(sum(map(len, private_pieces)), first.shape[1], first.dtype)
        np.concatenate(private_pieces, out=private_rows)
        return private_rows
    return sparse.csr_array(sparse.vstack(private_pieces, format="csr"))
