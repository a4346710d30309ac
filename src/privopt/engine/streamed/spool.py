"""A room on a local disk: arrays in files without a name, mapped into memory. PRIVATE."""

import contextlib
import errno
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

from privopt.engine.streamed.residency import Residency
from privopt.errors import DataUnavailable

_PAGE = mmap.ALLOCATIONGRANULARITY
_LEAST = 2**20  # bytes of a file


class Spool:
    """Arrays in files of which the file system has no name, so that they are gone with the process, however it ends.

    Room on the disk is taken when a file is made, before anything is written to it: a full disk is an error here, and
    no signal later.

    Args:
        folder: where; it must be there.
        size: bytes to take room for at once. More is taken as it is asked for.
        residency: counts what lies in memory.
    Privacy:
        What is in a file are clipped rows of records. Where the file system can (`O_TMPFILE`, `O_EXCL`), a file never
        has a name, nor can it get one; elsewhere it has one for a moment, in a folder of its own of mode 0700. Its mode
        is 0600. So nobody can open it but the process, its owner through /proc while the process lives, and whoever
        reads the disk itself: what must not stay there needs a disk that is encrypted.
    Raises:
        DataUnavailable: there is no room on the disk, or no file can be made.
    """

    def __init__(self, folder: Path, size: int, residency: Residency) -> None:
        self._folder, self._residency = folder, residency
        self._files: list[_File] = []
        if size:
            self._more(size)

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

    def growing(self, dtype: Any) -> "GrowingFile":
        """See `Room.growing`."""
        return GrowingFile(self._folder, np.dtype(dtype), self._residency)

    def another(self, size: int) -> "Spool":
        """See `Room.another`: another file in the same folder."""
        return Spool(self._folder, size, self._residency)

    def trim(self) -> None:
        """See `Room.trim`."""
        self._residency.trim()

    def let_go(self) -> None:
        """Let go of all pages in memory; they stay in the file."""
        self._residency.let_go()

    def close(self) -> None:
        """Give the room back at once where no array refers to it; else when none does any more."""
        for file in self._files:
            file.close()
        self._files.clear()

    def _more(self, size: int) -> "_File":
        with _explained(self._folder):
            descriptor = nameless_file(self._folder)
            try:
                whole = max(_LEAST, -(-size // _PAGE) * _PAGE) + _PAGE  # arrays begin on pages
                disk = os.fstatvfs(descriptor)
                if (
                    disk.f_bavail * disk.f_frsize < whole
                ):  # asked first, so that the disk is not full for a moment
                    raise OSError(errno.ENOSPC, "")
                os.posix_fallocate(descriptor, 0, whole)
                self._files.append(_File(descriptor, _mapped(descriptor, whole, self._residency)))
            except BaseException:
                os.close(descriptor)
                raise
        return self._files[-1]

    def __repr__(self) -> str:
        return f"Spool({str(self._folder)!r})"


class _File:
    """A mapped file, of which the first bytes are taken."""

    def __init__(self, descriptor: int, mapping: mmap.mmap) -> None:
        self.mapping, self._taken = mapping, 0
        self._descriptor, self._closed = descriptor, weakref.finalize(self, os.close, descriptor)
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
        start, done = private_target.ctypes.data - self._address, 0
        while done < len(private_bytes):  # a write may stop in between
            done += os.pwrite(self._descriptor, private_bytes[done:], start + done)

    def close(self) -> None:
        """Give it back, at once where no array refers to it."""
        self._closed()
        with contextlib.suppress(BufferError):
            self.mapping.close()


class GrowingFile:
    """An array that is written to the end of a file, and mapped when it is whole; see `Growing`."""

    def __init__(self, folder: Path, dtype: np.dtype[Any], residency: Residency) -> None:
        self._folder, self._dtype, self._residency = folder, dtype, residency
        self._size = 0
        with _explained(folder):
            self._file = os.fdopen(nameless_file(folder), "wb", buffering=0)

    def append(self, private_values: NDArray[Any]) -> None:
        """See `Growing.append`."""
        private_bytes = np.ascontiguousarray(private_values, self._dtype).view(np.uint8)
        with _explained(self._folder):
            done = 0
            while done < private_bytes.nbytes:  # a write may stop in between
                done += self._file.write(private_bytes.data[done:])
        self._size += done

    def finish(self) -> NDArray[Any]:
        """See `Growing.finish`."""
        with self._file, _explained(self._folder):
            if not self._size:
                return np.empty(0, self._dtype)
            mapping = _mapped(self._file.fileno(), self._size, self._residency)
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


def _mapped(descriptor: int, size: int, residency: Residency) -> mmap.mmap:
    mapping = mmap.mmap(descriptor, size)
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
