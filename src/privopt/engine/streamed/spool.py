"""A room on a local disk: arrays in files without a name, mapped into memory. PRIVATE."""

import contextlib
import gc
import mmap
import os
import weakref
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privopt.data.storage import spare_bytes
from privopt.engine.streamed.disk import (
    Descriptor,
    Residency,
    explained,
    mapped_file,
    nameless_file,
    read,
    require_room,
    whole,
    write,
)
from privopt.errors import DataUnavailable

# ---- Room on a disk that is lent piece by piece, and again what is given back. PRIVATE ---------------------
_ZEROS = memoryview(bytes(2**20))


class MappedFile:
    """A mapped file, or a piece of one, of which the first bytes are taken.

    Args:
        descriptor: of the file.
        mapping: of the piece.
        start: where in the file it begins.
    """

    def __init__(self, descriptor: Descriptor, mapping: mmap.mmap, start: int = 0) -> None:
        self.mapping, self._taken = mapping, 0
        self._descriptor, self._start = descriptor, start
        self._address = np.frombuffer(mapping, np.uint8).ctypes.data

    @property
    def left(self) -> int:
        """How many bytes are not taken."""
        return len(self.mapping) - self._taken

    def take(self, size: int) -> int:
        """Take some; where they begin, on a boundary of 64 bytes."""
        start = self._taken
        self._taken = min(len(self.mapping), start + -(-size // 64) * 64)
        return start

    def holds(self, private_array: NDArray[Any]) -> bool:
        """Whether an array lies in it."""
        return 0 <= private_array.ctypes.data - self._address < len(self.mapping)

    def write(self, private_target: NDArray[Any], private_bytes: memoryview) -> None:
        """Write to where an array lies that is without gaps."""
        write(self._descriptor, private_bytes, self._start + private_target.ctypes.data - self._address)

    def read(self, private_source: NDArray[Any], private_bytes: memoryview) -> None:
        """Read from where an array lies that is without gaps."""
        read(self._descriptor, private_bytes, self._start + private_source.ctypes.data - self._address)

    def close(self) -> None:
        """Give it back, at once where no array refers to it."""
        with contextlib.suppress(BufferError):
            self.mapping.close()


class Lent:
    """A file that is lent piece by piece, and again what is given back.

    Args:
        descriptor: of the file.
        size: bytes, whole pages.
    Attributes:
        descriptor: of the file.
        size: bytes of which there is room on the disk.
        high: where the last of the pieces ends that were lent since this was set.
    Raises:
        OSError: there is no room on the disk.
    """

    def __init__(self, descriptor: Descriptor, size: int) -> None:
        self.descriptor, self.size, self.high = descriptor, 0, 0
        self._free, self._returned = list[tuple[int, int]](), list[tuple[int, int]]()  # from where to where
        self._touched = 0  # what lies beyond was never lent
        self.reach(size)

    def reach(self, stop: int) -> None:
        """Take room on the disk up to a place.

        Raises:
            OSError: there is none.
        """
        if stop > self.size:
            require_room(self.descriptor, stop - self.size, self.size)
            self._free.append((self.size, stop))
            self.size = stop

    def fits(self, size: int) -> bool:
        """Whether so many bytes in a row are not lent."""
        self._gather()
        return any(stop - start >= size for start, stop in self._free)

    @property
    def left_at_end(self) -> int:
        """How many bytes at its end are not lent."""
        self._gather()
        start, stop = self._free[-1] if self._free else (0, 0)
        return stop - start if stop == self.size else 0

    def taken(self, size: int) -> int | None:
        """Where so many bytes begin that are lent from now on; None where there are not so many. Whole pages."""
        self._gather()
        place = next((k for k, (start, stop) in enumerate(self._free) if stop - start >= size), None)
        if place is None:
            return None
        start, stop = self._free[place]
        self._free[place] = (start + size, stop)
        self._touched, self.high = max(self._touched, start + size), max(self.high, start + size)
        return start

    def mapped(self, start: int, size: int, residency: Residency) -> mmap.mmap:
        """Bytes that were taken, in memory. They are back when no array refers to them."""
        mapping = mapped_file(self.descriptor, size, residency, start)
        weakref.finalize(mapping, self._returned.append, (start, start + size))
        return mapping

    def give_back(self, start: int, stop: int) -> None:
        """Bytes that were taken and are not in memory."""
        self._returned.append((start, stop))

    def piece(self, size: int, residency: Residency) -> MappedFile | None:
        """So many zeros; None where there are not so many bytes. Whole pages."""
        touched, start = self._touched, self.taken(size)
        if start is None:
            return None
        stop = min(start + size, touched)
        for at in range(start, stop, len(_ZEROS)):
            write(self.descriptor, _ZEROS[: stop - at], at)
        return MappedFile(self.descriptor, self.mapped(start, size, residency), start)

    def _gather(self) -> None:
        while self._returned:
            self._free.append(self._returned.pop())
        self._free = _merged(self._free)


class Reserve:
    """Room that was taken beforehand, if any was.

    Args:
        folder: where.
        residency: counts what lies in memory.
    Attributes:
        kept: whether it is kept for spools that come one after the other, see `KeptRoom`; else it stays as it was asked
            for.
        private_grown: entries of the longest array of which it was not known beforehand how long it would get: CSR rows
            as read.
    """

    kept = False

    def __init__(self, folder: Path, residency: Residency) -> None:
        self._folder, self._residency = folder, residency
        self.private_grown = 0
        self._file: Lent | None = None
        self._required = False  # of what is kept: whether there is room for all that comes

    def lent(self, size: int) -> MappedFile | None:
        """So many zeros of it; None where so many bytes are not left."""
        file = self._with(size)
        return None if file is None else file.piece(size, self._residency)

    def taken(self, size: int) -> tuple[Lent, int]:
        """So many bytes of what is kept, and where they begin."""
        file = self._with(size)
        start = None if file is None else file.taken(size)
        assert file is not None
        assert start is not None
        return file, start

    def require(self, size: int, anew: int) -> None:
        """See `Spool.reserve`."""
        if not self.kept:
            self._file = None
            if size:
                self._file = Lent(nameless_file(self._folder), size)
        elif size and self._file is not None and not self._required:
            self._required = True
            self._file.reach(max(self._with_at_end(size), whole(self._file.high + anew)))

    def close(self) -> None:
        """Give it back, where no array refers to it."""
        self._file = None

    def _with(self, size: int) -> Lent | None:
        """The file, if there is one, with so many bytes in a row that are not lent, if there can be."""
        if self._file is None and self.kept:
            self._file = Lent(nameless_file(self._folder), 0)
        if self._file is None or self._file.fits(size):
            return self._file
        if self._required or not self.kept:
            gc.collect()  # see `require_room`
        if self.kept and not self._file.fits(size):
            self._file.reach(self._with_at_end(size))
        return self._file

    def _with_at_end(self, size: int) -> int:
        """How large the file must be to have so many bytes at its end that are not lent."""
        assert self._file is not None
        return self._file.size + max(0, size - self._file.left_at_end)


class KeptRoom(Reserve):
    """Room on a disk for spools that come one after the other: what one gives back is kept for the next.

    It grows as it must, and all that they have is lent of it. Between two of them nothing is given back to the disk, so
    that no other program can take it.
    """

    kept = True

    def spool(self, size: int) -> "Spool":
        """The next one, for so many bytes; the one before it was closed.

        Raises:
            NoRoom: there is no room on the disk.
        """
        if self._file is not None:
            self._file.high = 0
        return Spool(self._folder, size + spare_bytes(), self._residency, self)


def _merged(ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The same in order, without gaps between those that touch each other, or empty ones."""
    merged: list[tuple[int, int]] = []
    for start, stop in sorted(ranges):
        if merged and merged[-1][1] == start:
            merged[-1] = (merged[-1][0], stop)
        elif start < stop:
            merged.append((start, stop))
    return merged


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
