"""Keeps mapped files from filling this process' memory: their pages are let go when they are more than a limit."""

import contextlib
import mmap
import os
import threading
import weakref
from pathlib import Path

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
