"""A room on a local disk: arrays in files without a name, mapped into memory. PRIVATE."""

import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privopt.data.derived import spare_bytes
from privopt.engine.streamed.disk import explained, mapped_file, nameless_file, require_room, whole, write
from privopt.engine.streamed.lent import Lent, MappedFile, Reserve
from privopt.engine.streamed.residency import Residency
from privopt.errors import DataUnavailable

_LEAST = 2**20  # bytes of a file
_CHANGED = "a record has more entries than one had when the table was opened, or may have: it has changed."


class Spool:
    """Arrays in files of which the file system has no name, so that they are gone with the process, however it ends.

    Room on the disk is taken when a file is made, before anything is written to it: a full disk is an error here, and
    no signal later. What `reserve` has taken beforehand is lent to this spool and to those that come of it by
    `another`; what they give back is lent again. All that a spool of a `KeptRoom` has is lent of that.

    Args:
        folder: where; it must be there.
        size: bytes to take room for at once. More is taken as it is asked for.
        residency: counts what lies in memory.
        reserve: of the spool that this one comes of, or of the kept room.
    Privacy:
        What is in a file are clipped rows of records. Where the file system can (`O_TMPFILE`, `O_EXCL`), a file never
        has a name, nor can it get one; elsewhere it has one for a moment, in a folder of its own of mode 0700. Its mode
        is 0600. So nobody can open it but the process, its owner through /proc while the process lives, and whoever
        reads the disk itself: what must not stay there needs a disk that is encrypted.
    Raises:
        NoRoom: there is no room on the disk, or no file can be made.
    """

    def __init__(self, folder: Path, size: int, residency: Residency, reserve: Reserve | None = None) -> None:
        self._folder, self._residency = folder, residency
        self._first, self._reserve = reserve is None, reserve or Reserve(folder, residency)
        self._files: list[MappedFile] = []
        if size:
            self._more(size)

    @property
    def limited(self) -> bool:
        """See `Room.limited`."""
        return self._residency.watched

    @property
    def memory(self) -> int:
        """How many bytes of its pages may be in memory at a time."""
        return self._residency.limit

    def trim(self) -> None:
        """See `Room.trim`."""
        self._residency.trim()

    def zeros(self, shape: int | tuple[int, ...], dtype: Any) -> NDArray[Any]:
        """See `Room.zeros`."""
        count, kind = int(np.prod(shape)), np.dtype(dtype)
        size = count * kind.itemsize
        file = next((file for file in self._files if file.left >= size), None) or self._more(size)
        return np.frombuffer(file.mapping, kind, count, file.take(size)).reshape(shape)

    def keep(self, private_array: NDArray[Any]) -> NDArray[Any]:
        """See `Room.keep`: a copy in a file."""
        private_kept = self.zeros(private_array.shape, private_array.dtype)
        private_kept[...] = private_array
        return private_kept

    def write(self, private_array: NDArray[Any], start: int, private_values: NDArray[Any]) -> None:
        """See `Room.write`: by a call to the system, which maps no page for it."""
        private_target = private_array[start : start + len(private_values)]
        file = next(file for file in self._files if file.holds(private_target))
        private_bytes = np.ascontiguousarray(private_values, private_array.dtype).reshape(-1).view(np.uint8)
        with explained(self._folder):
            file.write(private_target, private_bytes.data)

    def read(self, private_array: NDArray[Any], start: int, stop: int) -> NDArray[Any]:
        """See `Room.read`: by a call to the system, which maps no page for it.

        Raises:
            DataUnavailable: the disk cannot be read.
        """
        private_source = private_array[start:stop]
        private_copy = np.empty(private_source.shape, private_source.dtype)
        if private_copy.size:
            file = next(file for file in self._files if file.holds(private_source))
            file.read(private_source, private_copy.view(np.uint8).data)
        return private_copy

    def growing(self, dtype: Any, most: int | None = None) -> "GrowingFile":
        """See `Room.growing`: room for the most there can be is taken at once."""
        return GrowingFile(self._folder, np.dtype(dtype), self._residency, most, self._reserve)

    def another(self, size: int) -> "Spool":
        """See `Room.another`: what was reserved, or another file in the same folder."""
        return Spool(self._folder, size + spare_bytes() if size else 0, self._residency, self._reserve)

    @property
    def kept(self) -> bool:
        """Whether its room is kept for a spool that comes after it."""
        return self._reserve.kept

    def reserve(self, size: int, anew: int = 0) -> None:
        """Take room for so many bytes of other spools, in place of what was reserved before; 0 gives it back.

        What is kept is asked for once, for all that comes, and given back as a whole.

        Args:
            size: bytes; where room is kept, beyond those of this spool.
            anew: how many bytes more the spool after this one takes, while it is filled, than this one took.
        Raises:
            NoRoom: there is no room on the disk; none is reserved then.
        """
        with explained(self._folder):
            self._reserve.require(whole(size) if size else 0, anew)

    def let_go(self) -> None:
        """Let go of all pages in memory; they stay in the file."""
        self._residency.let_go()

    def close(self) -> None:
        """Give the room back at once where no array refers to it; else when none does any more."""
        for file in self._files:
            file.close()
        self._files.clear()
        if self._first:
            self._reserve.close()

    def _more(self, size: int) -> MappedFile:
        with explained(self._folder):
            file = self._reserve.lent(whole(size))
            if file is None:
                descriptor, bytes_ = nameless_file(self._folder), max(_LEAST, whole(size)) + whole(1)
                require_room(descriptor, bytes_)
                file = MappedFile(descriptor, mapped_file(descriptor, bytes_, self._residency))
        self._files.append(file)
        return file

    def __repr__(self) -> str:
        return f"Spool({str(self._folder)!r})"


class KeptRoom:
    """Room on a disk for spools that come one after the other: what one gives back is kept for the next.

    Between two of them nothing is given back to the disk, so that no other program can take it.

    Args:
        folder: where.
        residency: counts what lies in memory.
    """

    def __init__(self, folder: Path, residency: Residency) -> None:
        self._folder, self._residency = folder, residency
        self._reserve = Reserve(folder, residency, kept=True)

    @property
    def private_entries(self) -> int:
        """How many entries the longest array got of which that was not known beforehand: CSR rows as read."""
        return self._reserve.private_grown

    def spool(self, size: int) -> Spool:
        """The next one, for so many bytes; the one before it was closed.

        Raises:
            NoRoom: there is no room on the disk.
        """
        self._reserve.begin()
        return Spool(self._folder, size + spare_bytes(), self._residency, self._reserve)

    def close(self) -> None:
        """Give all of it back, where no array refers to it."""
        self._reserve.close()


class GrowingFile:
    """An array that is written to the end of a file, and mapped when it is whole; see `Growing`.

    Args:
        folder: of the file.
        dtype: of the array.
        residency: counts what lies in memory.
        most: entries that it has at most; None where that is not known.
        reserve: what is kept, if anything is, has room for so many; else the file is one of its own.
    """

    def __init__(
        self, folder: Path, dtype: np.dtype[Any], residency: Residency, most: int | None, reserve: Reserve
    ) -> None:
        self._folder, self._dtype, self._residency = folder, dtype, residency
        self._size, self._start = 0, 0
        self._unknown, self._reserve = most is None, reserve
        self._lent: Lent | None = None
        with explained(folder):
            if most and reserve.kept:
                self._room = whole(most * dtype.itemsize)
                self._lent, self._start = reserve.taken(self._room)
                self._descriptor = self._lent.descriptor
            else:
                self._descriptor = nameless_file(folder)
                require_room(self._descriptor, (most or 0) * dtype.itemsize)

    def append(self, private_values: NDArray[Any]) -> None:
        """See `Growing.append`.

        Raises:
            DataUnavailable: there are more than was said, and no room for them.
        """
        private_bytes = np.ascontiguousarray(private_values, self._dtype).view(np.uint8)
        if self._lent is not None and self._size + private_bytes.nbytes > self._room:
            raise DataUnavailable(_CHANGED)
        with explained(self._folder):
            write(self._descriptor, private_bytes.data, self._start + self._size)
        self._size += private_bytes.nbytes

    def finish(self) -> NDArray[Any]:
        """See `Growing.finish`."""
        used = whole(self._size) if self._size else 0
        entries = self._size // self._dtype.itemsize
        if self._unknown:
            self._reserve.private_grown = max(self._reserve.private_grown, entries)
        with explained(self._folder):
            if self._lent is not None:
                self._lent.give_back(self._start + used, self._start + self._room)
            else:
                os.ftruncate(self._descriptor.number, self._size)
            if not used:
                return np.empty(0, self._dtype)
            if self._lent is not None:
                mapping = self._lent.mapped(self._start, used, self._residency)
            else:
                mapping = mapped_file(self._descriptor, self._size, self._residency)
        return np.frombuffer(mapping, self._dtype, entries)
