"""The stored rows of units that were drawn: what an engine hands to a compiled loop, for many of its steps at once."""

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from privopt.data.room import MEMORY
from privopt.data.rows import aligned_zeros, take_rows
from privopt.data.units import Units
from privopt.public import Public

OTHER_BYTES = 8 + 8 + 1  # of a row: its target, its norm, and whether it is present
PLACE_BYTES = 4 + 8  # of a unit that was drawn: at which row it stands, and its position


class DrawnRows(NamedTuple):
    """Dense records, one after the other. What is left of the room behind them is absent."""

    private_features: Any  # Float[Array, "m d"]: as stored, or as a row in a public format of storage is read
    private_targets: Any  # Float[Array, " m"]
    private_norms: Any  # Float[Array, " m"]
    private_present: Any  # Bool[Array, " m"]


class Handed(NamedTuple):
    """What a compiled loop is handed: rows, and at which of them the units stand that take part.

    Attributes:
        private_rows: at least one.
        private_places: of each unit, one step's after the other's: Int[Array, " p"].
    """

    private_rows: DrawnRows
    private_places: Any


def in_place(private_rows: DrawnRows) -> Handed:
    """Rows that stand as they take part."""
    return Handed(private_rows, np.arange(len(private_rows.private_targets), dtype=np.int32))


def row_bytes(width: int) -> int:
    """The most that a row of so many columns takes, in any format of storage."""
    return 8 * width + OTHER_BYTES


def drawn_bytes(places: int, rows: int, width: int) -> int:
    """The most that so many units take which were drawn, and so many rows."""
    return PLACE_BYTES * places + row_bytes(width) * rows


def most_units(public: Public) -> int:
    """How many units there are at most; of a drawn block more with a probability below 1e-12.

    A unit joins a drawn block by a draw of its own, and n of them do on average, or fewer. From the mean + 1 on the
    upper tail of a sum of such draws is below that of a Poisson variable of this mean: Anderson and Samuels 1967.
    """
    return int(1 + stats.poisson.isf(1e-12, public.n)) if public.drawn else public.n


def absent_rows(room: int, width: int, dtype: Any = np.float32) -> DrawnRows:
    """Records that are absent, as many as there is room for."""
    return DrawnRows(
        aligned_zeros(room, width, dtype), np.zeros(room), np.zeros(room), np.zeros(room, np.bool_)
    )


def drawn_rows(units: Units, private_draw: NDArray[np.int64], room: int) -> DrawnRows:
    """The rows of the units at some positions, in the order of the positions, and absent ones up to `room`.

    Args:
        units: records, dense.
        private_draw: positions, with repetition or without, at most `room`.
        room: how many rows are returned.
    Raises:
        ValueError: the rows are sparse, or units are users; such loops run eagerly.
    """
    if units.public.sparse or units.public.unit != "record":
        raise ValueError(
            "a compiled loop needs dense records, one for each unit: run this loop with `release` instead."
        )
    private_rows = absent_rows(room, units.public.d, units.private_features.dtype)
    count = len(private_draw)
    if isinstance(units.private_features, np.ndarray):
        # "clip" as NumPy copies once more to refuse a position that there is not; a draw has none.
        np.take(
            units.private_features,
            private_draw,
            axis=0,
            out=private_rows.private_features[:count],
            mode="clip",
        )
    elif count:
        private_rows.private_features[:count] = take_rows(units.private_features, private_draw)
    private_rows.private_targets[:count] = units.private_targets[private_draw]
    private_rows.private_norms[:count] = units.private_norms[private_draw]
    private_rows.private_present[:count] = units.private_present[private_draw]
    return private_rows


def held_rows(units: Units) -> DrawnRows | None:
    """All rows as they lie in this process' memory, not copied; None where they lie elsewhere, or are not dense.

    None of users as well, at whose positions stand records of others: see `drawn_rows`.
    """
    if units.room is not MEMORY or units.public.unit != "record":
        return None
    if not isinstance(units.private_features, np.ndarray):
        return None
    return DrawnRows(
        units.private_features, units.private_targets, units.private_norms, units.private_present
    )


def side_by_side(private_blocks: Iterable[DrawnRows], room: int) -> DrawnRows:
    """Blocks of rows, at least one, one after the other, and absent ones up to `room`."""
    private_all: DrawnRows | None = None
    start = 0
    for private_block in private_blocks:
        stop = start + len(private_block.private_targets)
        if stop - start == room:
            return private_block
        if private_all is None:
            private_features = private_block.private_features
            private_all = absent_rows(room, private_features.shape[1], private_features.dtype)
        for private_column, private_values in zip(private_all, private_block, strict=True):
            private_column[start:stop] = private_values
        start = stop
    assert private_all is not None
    return private_all
