"""Write a file so that a reader sees the old content or the new one, never half of it."""

import os
from pathlib import Path


def replace_file(path: Path, content: bytes) -> None:
    """Write beside `path` and rename over it; on failure nothing is left behind."""
    beside = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with beside.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)
