"""Room on a local disk: files without a name, and room for them before anything is written. PRIVATE."""

import contextlib
import errno
import gc
import mmap
import os
import shutil
import tempfile
import threading
import weakref
from collections.abc import Generator
from pathlib import Path

from privopt.errors import DataUnavailable

# ------------------------------------------------------------------------------------------------------------
# Keeps mapped files from filling this process' memory: their pages are let go when they are more than a
# limit.


_EVERY = 0.005  # seconds between two looks: a pass reads some 30 MB in that time
_STATM = Path("/proc/self/statm")
_PAGE = mmap.PAGESIZE


class Residency:
    """The pages of some mapped files that are in this process' memory: at most about a limit.

    A thread looks how many pages of files the process has, and so do passes as they go, since on a machine that others
    use a thread may wait for long. Where they are more than the limit, all of them are let go at once: what is not
    asked for again is then only in the cache of the operating system, which gives it up when memory is short, and what
    is asked for comes back from there, in a few milliseconds for a gigabyte, or from the disk. Nothing is lost by it: a
    page that was written is the file's, whoever has it in memory.

    Args:
        limit: bytes.
    Attributes:
        watched: whether there were files of more bytes than that at a time.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._mappings = weakref.WeakSet[mmap.mmap]()
        self._mapped, self._gone = 0, list[int]()  # bytes, and of files that nobody refers to any more
        self._others = 0  # pages of other files, such as libraries
        self._lock = threading.Lock()
        self.watched = False

    def watch(self, mapping: mmap.mmap) -> None:
        """Count a mapped file's pages from now on."""
        with self._lock:
            while self._gone:
                self._mapped -= self._gone.pop()
            self._mappings.add(mapping)
            self._mapped += len(mapping)
            weakref.finalize(mapping, self._gone.append, len(mapping))
            if self.watched or self._mapped <= self.limit or not _STATM.exists():
                return
            self.watched = True
            self._others = _file_bytes()
        threading.Thread(target=_look, args=(weakref.ref(self),), name="privopt-spool", daemon=True).start()

    def trim(self) -> None:
        """Let go of all pages if they are more than the limit."""
        now = _file_bytes()
        self._others = min(self._others, now)
        if now - self._others > self.limit:
            self.let_go()
            self._others = _file_bytes()

    def let_go(self) -> None:
        """Let go of all pages."""
        with self._lock:
            mappings = list(self._mappings)
        for mapping in mappings:
            with contextlib.suppress(ValueError):  # it was closed just now
                mapping.madvise(mmap.MADV_DONTNEED)

    def __repr__(self) -> str:
        return f"Residency(limit={self.limit})"


def _look(of: "weakref.ref[Residency]") -> None:
    """Look every now and then, as long as somebody refers to the residency."""
    pause = threading.Event()
    while (residency := of()) is not None:
        residency.trim()
        del residency
        pause.wait(_EVERY)


def _file_bytes() -> int:
    """The bytes of files, mapped and shared, in this process' memory."""
    descriptor = os.open(_STATM, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return int(os.read(descriptor, 200).split()[2]) * _PAGE
    finally:
        os.close(descriptor)


# ---- Room on a local disk: files without a name, and room for them before anything is written --------------


_GRANULE = mmap.ALLOCATIONGRANULARITY


class Full(OSError):
    """The disk has no room.

    Attributes:
        missing: how many bytes of it there are too few.
    """

    def __init__(self, missing: int) -> None:
        super().__init__(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.missing = missing


class NoRoom(DataUnavailable):
    """There is no room for the rows.

    Attributes:
        private_missing: how many bytes there are too few, which tells of the rows; None where the system does not say.
    """

    def __init__(self, message: str, private_missing: int | None) -> None:
        super().__init__(message)
        self.private_missing = private_missing


class Descriptor:
    """Of an open file, which is closed when nobody refers to it."""

    def __init__(self, number: int) -> None:
        self.number = number
        weakref.finalize(self, os.close, number)


def nameless_file(folder: Path) -> Descriptor:
    """A new file of mode 0600 that has no name in the file system.

    Raises:
        OSError: it cannot be made.
    """
    flags = os.O_RDWR | os.O_CLOEXEC
    if hasattr(os, "O_TMPFILE"):
        with contextlib.suppress(OSError):  # a file system without
            return Descriptor(os.open(folder, flags | os.O_TMPFILE | os.O_EXCL, 0o600))
    own = tempfile.mkdtemp(prefix="privopt-", dir=folder)
    try:
        return Descriptor(os.open(Path(own) / "spool", flags | os.O_CREAT | os.O_EXCL, 0o600))
    finally:
        shutil.rmtree(own, ignore_errors=True)


def whole(size: int) -> int:
    """So many bytes, up to a whole page, at least one."""
    return max(1, -(-size // _GRANULE)) * _GRANULE


def require_room(descriptor: Descriptor, size: int, start: int = 0) -> None:
    """Take room for some bytes of a file; where there is none, again when what nobody refers to was given back.

    Args:
        descriptor: of the file.
        size: how many bytes.
        start: where they begin.
    Raises:
        OSError: there is no room on the disk.
    """
    try:
        take_room(descriptor.number, size, start)
    except OSError:
        gc.collect()  # curators that refer to each other keep spools that nobody else refers to
        take_room(descriptor.number, size, start)


def take_room(descriptor: int, size: int, start: int = 0) -> None:
    """Take room for some bytes of a file that has none there; asked first, so that the disk is not full for a moment.

    Raises:
        OSError: there is no room on the disk.
    """
    disk = os.fstatvfs(descriptor)
    free = disk.f_bavail * disk.f_frsize
    if free < size:
        raise Full(size - free)
    if size:
        os.posix_fallocate(descriptor, start, size)


def mapped_file(descriptor: Descriptor, size: int, residency: Residency, start: int = 0) -> mmap.mmap:
    """Some bytes of a file in memory, whole pages."""
    mapping = mmap.mmap(descriptor.number, size, offset=start)
    residency.watch(mapping)
    return mapping


def write(descriptor: Descriptor, private_bytes: memoryview, start: int) -> None:
    """Write all of some bytes to a place in a file: a single call to the system may stop in between."""
    done = 0
    while done < len(private_bytes):
        done += os.pwrite(descriptor.number, private_bytes[done:], start + done)


def read(descriptor: Descriptor, private_bytes: memoryview, start: int) -> None:
    """Fill some bytes from a place in a file: a single call to the system may stop in between.

    Raises:
        DataUnavailable: they cannot be read.
    """
    done = 0
    while done < len(private_bytes):
        try:
            more = os.preadv(descriptor.number, [private_bytes[done:]], start + done)
        except OSError as error:
            raise DataUnavailable(f"the spool cannot be read ({os.strerror(error.errno or 0)}).") from None
        if not more:
            raise DataUnavailable("the spool cannot be read: its file is shorter than it was.")
        done += more


@contextlib.contextmanager
def explained(folder: Path) -> Generator[None]:
    """Say of an error of the disk what can be done about it; not how much room was needed, which tells of the rows."""
    try:
        yield
    except OSError as error:
        raise NoRoom(
            f"no room for the rows in the spool's folder {folder} ({os.strerror(error.errno or 0)}): free some, or "
            "name a folder on another disk (--spool).",
            getattr(error, "missing", None),
        ) from None
