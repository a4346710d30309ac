"""Room on a disk that is lent piece by piece, and again what is given back. PRIVATE."""

import contextlib
import gc
import mmap
import weakref
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privopt.engine.streamed.disk import (
    Descriptor,
    mapped_file,
    nameless_file,
    read,
    require_room,
    whole,
    write,
)
from privopt.engine.streamed.residency import Residency

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
        kept: whether it is kept for spools that come one after the other: it then grows as it must, and all that they
            have is lent of it; else it stays as it was asked for.
    Attributes:
        kept: likewise.
        private_grown: entries of the longest array of which it was not known beforehand how long it would get.
    """

    def __init__(self, folder: Path, residency: Residency, *, kept: bool = False) -> None:
        self._folder, self._residency, self.kept = folder, residency, kept
        self.private_grown = 0
        self._file: Lent | None = None
        self._required = False  # of what is kept: whether there is room for all that comes

    def begin(self) -> None:
        """A spool comes after another, which was closed."""
        if self._file is not None:
            self._file.high = 0

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


def _merged(ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The same in order, without gaps between those that touch each other, or empty ones."""
    merged: list[tuple[int, int]] = []
    for start, stop in sorted(ranges):
        if merged and merged[-1][1] == start:
            merged[-1] = (merged[-1][0], stop)
        elif start < stop:
            merged.append((start, stop))
    return merged
