"""A room on a local disk: arrays in files without a name, mapped into memory. PRIVATE."""

import contextlib
import errno
import gc
import mmap
import os
import shutil
import tempfile
import weakref
from collections.abc import Generator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privopt.data.derived import spare_bytes
from privopt.engine.streamed.residency import Residency
from privopt.errors import DataUnavailable

_PAGE = mmap.ALLOCATIONGRANULARITY
_LEAST = 2**20  # bytes of a file


class Spool:
    """Arrays in files of which the file system has no name, so that they are gone with the process, however it ends.

    Room on the disk is taken when a file is made, before anything is written to it: a full disk is an error here, and
    no signal later. What `reserve` has taken beforehand is lent to this spool and to those that come of it by
    `another`; what they give back is lent again.

    Args:
        folder: where; it must be there.
        size: bytes to take room for at once. More is taken as it is asked for.
        residency: counts what lies in memory.
        reserve: of the spool that this one comes of.
    Privacy:
        What is in a file are clipped rows of records. Where the file system can (`O_TMPFILE`, `O_EXCL`), a file never
        has a name, nor can it get one; elsewhere it has one for a moment, in a folder of its own of mode 0700. Its mode
        is 0600. So nobody can open it but the process, its owner through /proc while the process lives, and whoever
        reads the disk itself: what must not stay there needs a disk that is encrypted.
    Raises:
        DataUnavailable: there is no room on the disk, or no file can be made.
    """

    def __init__(
        self, folder: Path, size: int, residency: Residency, reserve: "_Reserve | None" = None
    ) -> None:
        self._folder, self._residency = folder, residency
        self._first, self._reserve = reserve is None, reserve or _Reserve(residency)
        self._files: list[_File] = []
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
        with _explained(self._folder):
            file.write(private_target, private_bytes.data)

    def growing(self, dtype: Any, most: int | None = None) -> "GrowingFile":
        """See `Room.growing`: room for the most there can be is taken at once."""
        return GrowingFile(self._folder, np.dtype(dtype), self._residency, most or 0)

    def another(self, size: int) -> "Spool":
        """See `Room.another`: what was reserved, or another file in the same folder."""
        return Spool(self._folder, size + spare_bytes() if size else 0, self._residency, self._reserve)

    def reserve(self, size: int) -> None:
        """Take room for so many bytes of other spools, in place of what was reserved before; 0 gives it back.

        Raises:
            DataUnavailable: there is no room on the disk; none is reserved then.
        """
        self._reserve.file = None
        if size:
            with _explained(self._folder):
                self._reserve.file = _Lent(_Descriptor(nameless_file(self._folder)), _whole(size))

    def let_go(self) -> None:
        """Let go of all pages in memory; they stay in the file."""
        self._residency.let_go()

    def close(self) -> None:
        """Give the room back at once where no array refers to it; else when none does any more."""
        for file in self._files:
            file.close()
        self._files.clear()
        if self._first:
            self._reserve.file = None

    def _more(self, size: int) -> "_File":
        file = self._reserve.lent(_whole(size))
        if file is None:
            with _explained(self._folder):
                descriptor = _Descriptor(nameless_file(self._folder))
                whole = max(_LEAST, _whole(size)) + _PAGE
                _require_room(descriptor.number, whole)
                file = _File(descriptor, _mapped(descriptor.number, whole, self._residency))
        self._files.append(file)
        return file

    def __repr__(self) -> str:
        return f"Spool({str(self._folder)!r})"


class _Descriptor:
    """Of an open file, which is closed when nobody refers to it."""

    def __init__(self, number: int) -> None:
        self.number = number
        weakref.finalize(self, os.close, number)


class _File:
    """A mapped file, or a piece of one, of which the first bytes are taken.

    Args:
        descriptor: of the file.
        mapping: of the piece.
        start: where in the file it begins.
    """

    def __init__(self, descriptor: _Descriptor, mapping: mmap.mmap, start: int = 0) -> None:
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
        start, done = self._start + private_target.ctypes.data - self._address, 0
        while done < len(private_bytes):  # a write may stop in between
            done += os.pwrite(self._descriptor.number, private_bytes[done:], start + done)

    def close(self) -> None:
        """Give it back, at once where no array refers to it."""
        with contextlib.suppress(BufferError):
            self.mapping.close()


class _Lent:
    """A file that is lent piece by piece, and again what is given back: zeros each time.

    Args:
        descriptor: of the file.
        size: bytes, whole pages.
    Raises:
        OSError: there is no room on the disk.
    """

    def __init__(self, descriptor: _Descriptor, size: int) -> None:
        _require_room(descriptor.number, size)
        self._descriptor = descriptor
        self._free, self._returned = [(0, size)], list[tuple[int, int]]()  # from where to where
        self._touched = 0  # what lies beyond was never lent

    def piece(self, size: int, residency: Residency) -> _File | None:
        """A piece of so many bytes, whole pages; None where there is none. It is back when no array refers to it."""
        while self._returned:
            self._free.append(self._returned.pop())
        self._free = _merged(self._free)
        place = next((k for k, (start, stop) in enumerate(self._free) if stop - start >= size), None)
        if place is None:
            return None
        start, stop = self._free[place]
        self._free[place] = (start + size, stop)
        mapping = _mapped(self._descriptor.number, size, residency, start)
        weakref.finalize(mapping, self._returned.append, (start, start + size))
        used = min(size, self._touched - start)
        if used > 0:
            np.frombuffer(mapping, np.uint8, used)[...] = 0
        self._touched = max(self._touched, start + size)
        return _File(self._descriptor, mapping, start)


class _Reserve:
    """What was taken beforehand, if anything was."""

    def __init__(self, residency: Residency) -> None:
        self._residency = residency
        self.file: _Lent | None = None

    def lent(self, size: int) -> _File | None:
        """So many bytes of it; None where so many are not left."""
        if self.file is None:
            return None
        found = self.file.piece(size, self._residency)
        if found is None:
            gc.collect()  # see `_require_room`
            found = self.file.piece(size, self._residency)
        return found


def _merged(ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The same in order, without gaps between those that touch each other, or empty ones."""
    merged: list[tuple[int, int]] = []
    for start, stop in sorted(ranges):
        if merged and merged[-1][1] == start:
            merged[-1] = (merged[-1][0], stop)
        elif start < stop:
            merged.append((start, stop))
    return merged


class GrowingFile:
    """An array that is written to the end of a file, and mapped when it is whole; see `Growing`."""

    def __init__(self, folder: Path, dtype: np.dtype[Any], residency: Residency, most: int) -> None:
        self._folder, self._dtype, self._residency = folder, dtype, residency
        self._size = 0
        with _explained(folder):
            self._descriptor = _Descriptor(nameless_file(folder))
            _require_room(self._descriptor.number, most * dtype.itemsize)

    def append(self, private_values: NDArray[Any]) -> None:
        """See `Growing.append`."""
        private_bytes = np.ascontiguousarray(private_values, self._dtype).view(np.uint8)
        with _explained(self._folder):
            done = 0
            while done < private_bytes.nbytes:  # a write may stop in between
                done += os.write(self._descriptor.number, private_bytes.data[done:])
        self._size += done

    def finish(self) -> NDArray[Any]:
        """See `Growing.finish`."""
        with _explained(self._folder):
            os.ftruncate(self._descriptor.number, self._size)
            if not self._size:
                return np.empty(0, self._dtype)
            mapping = _mapped(self._descriptor.number, self._size, self._residency)
        return np.frombuffer(mapping, self._dtype)


def nameless_file(folder: Path) -> int:
    """A descriptor of a new file of mode 0600 that has no name in the file system.

    Raises:
        OSError: it cannot be made.
    """
    flags = os.O_RDWR | os.O_CLOEXEC
    if hasattr(os, "O_TMPFILE"):
        with contextlib.suppress(OSError):  # a file system without
            return os.open(folder, flags | os.O_TMPFILE | os.O_EXCL, 0o600)
    own = tempfile.mkdtemp(prefix="privopt-", dir=folder)
    try:
        return os.open(Path(own) / "spool", flags | os.O_CREAT | os.O_EXCL, 0o600)
    finally:
        shutil.rmtree(own, ignore_errors=True)


def _whole(size: int) -> int:
    """So many bytes, up to a whole page, at least one."""
    return max(1, -(-size // _PAGE)) * _PAGE


def _require_room(descriptor: int, size: int) -> None:
    """Take room for a file; where there is none, again when what nobody refers to was given back."""
    try:
        _take_room(descriptor, size)
    except OSError:
        gc.collect()  # curators that refer to each other keep spools that nobody else refers to
        _take_room(descriptor, size)


def _take_room(descriptor: int, size: int) -> None:
    """Take room for a file; asked first, so that the disk is not full for a moment."""
    disk = os.fstatvfs(descriptor)
    if disk.f_bavail * disk.f_frsize < size:
        raise OSError(errno.ENOSPC, "")
    if size:
        os.posix_fallocate(descriptor, 0, size)


def _mapped(descriptor: int, size: int, residency: Residency, start: int = 0) -> mmap.mmap:
    mapping = mmap.mmap(descriptor, size, offset=start)
    residency.watch(mapping)
    return mapping


@contextlib.contextmanager
def _explained(folder: Path) -> Generator[None]:
    """Say of an error of the disk what can be done about it; not how much room was needed, which tells of the rows."""
    try:
        yield
    except OSError as error:
        raise DataUnavailable(
            f"no room for the rows in the spool's folder {folder} ({os.strerror(error.errno or 0)}): free some, or "
            "name a folder on another disk (--spool)."
        ) from None
