"""Which version of a file stands under its name: what is another by now was replaced, or written to.

A file on this machine is known by its size, the time of its last change, that of the last change of its entry, which
nobody can set, and on a disk of this machine its number there: one that is put in its place, or written over, differs
in these even if size and time of change were made the same. Numbers of network and user-space file systems are left
out: some give them anew. A file in a store is known by what the store says of versions: an ETag, a generation, a time.
"""

import os
import stat
from pathlib import Path
from typing import Any

from pyarrow import fs

_OF_STORES = ("ETag", "etag", "VersionId", "version_id", "generation", "Last-Modified")
_OF_FSSPEC = (*_OF_STORES, "LastModified", "last_modified", "updated", "checksum", "md5", "mtime", "created")
_GONE = (-1, "")


def version_of(system: Any, path: str) -> tuple[int, str]:
    """The size of a file, -1 where there is none, and what tells its version from others.

    Args:
        system: its file system, of pyarrow or of fsspec.
        path: in it.
    Raises:
        Exception: whatever a file system raises that cannot be reached.
    """
    if isinstance(system, fs.PyFileSystem):
        return _of_fsspec(system.handler.fs, path)
    if isinstance(system, fs.LocalFileSystem):
        return _of_this_machine(Path(path))
    return _of_store(system, path)


def _of_store(system: Any, path: str) -> tuple[int, str]:
    """One question where a store has tags, whose listings tell times to the second alone; two where it has none."""
    try:
        with system.open_input_file(path) as stream:
            size, told = int(stream.size()), stream.metadata() or {}
    except FileNotFoundError:
        return _GONE
    tags = [told[tag].decode(errors="replace") for tag in _OF_STORES if tag in told]
    return size, " ".join(tags or [str(system.get_file_info(path).mtime_ns)])


def _of_this_machine(path: Path) -> tuple[int, str]:
    try:
        found = path.stat()
    except FileNotFoundError:
        return _GONE
    if not stat.S_ISREG(found.st_mode):
        return _GONE
    on_disk = os.major(found.st_dev) != 0  # network and user-space file systems have no device of their own
    number = f" {found.st_ino}" if on_disk else ""
    return found.st_size, f"{found.st_mtime_ns} {found.st_ctime_ns}{number}"


def _of_fsspec(system: Any, path: str) -> tuple[int, str]:
    system.invalidate_cache()
    try:
        told = system.info(path)
    except FileNotFoundError:
        return _GONE
    return int(told["size"] or 0), " ".join(str(told[tag]) for tag in _OF_FSSPEC if tag in told)
