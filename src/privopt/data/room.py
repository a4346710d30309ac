"""Where the arrays of units lie: in this process' memory, or in a place that an engine provides. PRIVATE."""

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

_TAKEN_ENTRIES = 2**18  # that are gathered at a time: other threads go on in between
_SCATTERED = 2**10  # entries or rows that are scattered at a time, each on a page of its own


class Growing(Protocol):
    """An array that gets longer."""

    def append(self, private_values: NDArray[Any]) -> None:
        """Put some values at its end."""
        ...

    def finish(self) -> NDArray[Any]:
        """The whole array; nothing is appended from then on."""
        ...


class Room(Protocol):
    """Provides arrays that live as long as somebody refers to them."""

    @property
    def limited(self) -> bool:
        """Whether more lies in it than may be in memory at a time, so that passes call `trim` as they go."""
        ...

    def trim(self) -> None:
        """Let go of what is in memory beyond the limit; nothing is lost."""
        ...

    def zeros(self, shape: int | tuple[int, ...], dtype: Any) -> NDArray[Any]:
        """Zeros that start on a 64-byte boundary, so that JAX can use them without a copy."""
        ...

    def keep(self, private_array: NDArray[Any]) -> NDArray[Any]:
        """An array that was just made, for as long as the units live."""
        ...

    def write(self, private_array: NDArray[Any], start: int, private_values: NDArray[Any]) -> None:
        """Put values into an array from `zeros`, from its row `start` on."""
        ...

    def read(self, private_array: NDArray[Any], start: int, stop: int) -> NDArray[Any]:
        """A copy of the entries from `start` to `stop - 1` of an array from `zeros`, of one dimension."""
        ...

    def growing(self, dtype: Any, most: int | None = None) -> Growing:
        """An array whose length is not known yet, but that it has `most` entries at most."""
        ...

    def another(self, size: int) -> "Room":
        """A room of the same kind for about `size` bytes, which has its own end."""
        ...


class InMemory:
    """The memory of this process."""

    limited = False

    def zeros(self, shape: int | tuple[int, ...], dtype: Any) -> NDArray[Any]:
        """See `Room.zeros`."""
        size, itemsize = int(np.prod(shape)), np.dtype(dtype).itemsize
        private_buffer = np.zeros(size + 64 // itemsize, dtype)
        offset = (-private_buffer.ctypes.data % 64) // itemsize
        return private_buffer[offset : offset + size].reshape(shape)

    def keep(self, private_array: NDArray[Any]) -> NDArray[Any]:
        """See `Room.keep`: it is there already."""
        return private_array

    def write(self, private_array: NDArray[Any], start: int, private_values: NDArray[Any]) -> None:
        """See `Room.write`."""
        private_array[start : start + len(private_values)] = private_values

    def read(self, private_array: NDArray[Any], start: int, stop: int) -> NDArray[Any]:
        """See `Room.read`."""
        return private_array[start:stop].copy()

    def growing(self, dtype: Any, most: int | None = None) -> "GrowingInMemory":
        """See `Room.growing`."""
        del most
        return GrowingInMemory(dtype)

    def another(self, size: int) -> "InMemory":
        """See `Room.another`."""
        del size
        return self

    def trim(self) -> None:
        """See `Room.trim`: there is no limit."""

    def __repr__(self) -> str:
        return "InMemory()"


class GrowingInMemory:
    """See `Growing`."""

    def __init__(self, dtype: Any) -> None:
        self._private_parts = [np.empty(0, dtype)]

    def append(self, private_values: NDArray[Any]) -> None:
        """See `Growing.append`."""
        self._private_parts.append(private_values.astype(self._private_parts[0].dtype, copy=False))

    def finish(self) -> NDArray[Any]:
        """See `Growing.finish`."""
        private_whole = np.concatenate(self._private_parts)
        self._private_parts = self._private_parts[:1]
        return private_whole


MEMORY = InMemory()


class Copies:
    """Entries or rows of an array, copied to a room one after the other.

    Args:
        room: where they go.
        private_array: that they are copied from.
        count: how many there will be.
    """

    def __init__(self, room: Room, private_array: NDArray[Any], count: int) -> None:
        self._private_array, self._taken = private_array, 0
        self.private_copy = room.zeros((count, *private_array.shape[1:]), private_array.dtype)

    def add(self, positions: NDArray[np.int64]) -> None:
        """Those at some positions that there are."""
        step = max(1, _TAKEN_ENTRIES // max(1, int(np.prod(self._private_array.shape[1:]))))
        for start in range(0, len(positions), step):
            some = positions[start : start + step]
            here = slice(self._taken, self._taken + len(some))
            # "clip" as NumPy copies once more to refuse a position that there is not.
            np.take(self._private_array, some, axis=0, out=self.private_copy[here], mode="clip")
            self._taken += len(some)


def scatter(
    room: Room, private_array: NDArray[Any], positions: NDArray[np.int64], private_values: NDArray[Any]
) -> None:
    """`private_array[positions] = private_values` in a room, within its limit on memory."""
    for start in range(0, len(positions), _SCATTERED):
        here = slice(start, start + _SCATTERED)
        private_array[positions[here]] = private_values[here]
        room.trim()
