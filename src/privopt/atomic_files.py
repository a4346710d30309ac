"""Write a file so that a reader sees the old content or the new one, never half of it."""

import os
from pathlib import Path


def replace_file(path: Path, content: bytes) -> None:
    """Write beside `path` and rename over it, both for good; on failure nothing is left behind."""
    beside = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with beside.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
        keep_names(path.parent)
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
