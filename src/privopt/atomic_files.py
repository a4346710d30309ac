"""Write a file so that a reader sees the old content or the new one, never half of it."""

import os
import uuid
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO


def replace_file(path: Path, content: bytes) -> None:
    """Write beside `path` and rename over it, both for good; on failure nothing is left behind."""
    with _written_beside(path, content) as beside:
        beside.replace(path)
        keep_names(path.parent)


@contextmanager
def new_file(path: Path) -> Generator[BinaryIO]:
    """A file to write into piece by piece, which then stands in the place of `path`; on failure nothing is left."""
    beside = _beside(path)
    try:
        with beside.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
        keep_names(path.parent)
    finally:
        beside.unlink(missing_ok=True)


def add_file(path: Path, content: bytes) -> None:
    """Write a file that is not there yet, for good; of several writers, on several machines, one succeeds.

    Raises:
        FileExistsError: it is there.
        OSError: the file system has no links, or has no room.
    """
    with _written_beside(path, content) as beside:
        os.link(beside, path)
        keep_names(path.parent)


def _beside(path: Path) -> Path:
    return path.with_name(f".{path.name}.{os.getpid()}.{uuid.uuid4().hex}.part")


@contextmanager
def _written_beside(path: Path, content: bytes) -> Generator[Path]:
    beside = _beside(path)
    try:
        with beside.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        yield beside
    finally:
        beside.unlink(missing_ok=True)


def keep_names(folder: Path) -> None:
    """Have the names of a folder's files survive a power cut, where the system can be asked for that."""
    if not hasattr(os, "O_DIRECTORY"):  # Windows keeps names by itself
        return
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
