"""Rows that come in one order and lie in another, written to a room page by page. PRIVATE."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privopt.data.room import Room, scatter

_HELD_BYTES = 2**24  # that are sorted by place together: the more, the fewer times a page is asked for


class ScatteredRows:
    """Puts rows of some columns at their places in a room; they are there when `finish` was called.

    Args:
        room: where the columns lie.
        private_columns: arrays from `room.zeros`, of one length.
    """

    def __init__(self, room: Room, private_columns: Sequence[NDArray[Any]]) -> None:
        self._room, self._private_columns = room, private_columns
        self._private_held = list[tuple[NDArray[np.int64], Sequence[NDArray[Any]]]]()
        self._bytes = 0

    def put(self, private_places: NDArray[np.int64], private_values: Sequence[NDArray[Any]]) -> None:
        """Put rows at places that nothing else is put at.

        Args:
            private_places: of the rows.
            private_values: theirs of each column; not changed afterwards.
        """
        self._private_held.append((private_places, private_values))
        self._bytes += private_places.nbytes + sum(values.nbytes for values in private_values)
        if self._bytes >= _HELD_BYTES:
            self.finish()

    def finish(self) -> None:
        """Write what is held, in the order of the places."""
        if not self._private_held:
            return
        private_places = np.concatenate([places for places, _ in self._private_held])
        private_order = np.argsort(private_places, kind="stable")
        for k, private_column in enumerate(self._private_columns):
            private_values = np.concatenate([values[k] for _, values in self._private_held])
            scatter(self._room, private_column, private_places[private_order], private_values[private_order])
        self._private_held.clear()
        self._bytes = 0
