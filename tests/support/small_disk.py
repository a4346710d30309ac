"""A disk of so many bytes, as the files of a spool see it."""

import contextlib
import os
from pathlib import Path

from privopt.engine.streamed import disk

_TAKE = disk.take_room


class SmallDisk:
    """Stands for the disk of a folder.

    Args:
        folder: where files without a name are counted that this process has open.
        monkeypatch: puts it in the place of the real one.
    Attributes:
        size: bytes; None for no limit.
        most: the most that was ever taken.
    """

    def __init__(self, folder, monkeypatch):
        self._folder, self.size, self.most = str(folder), None, 0
        monkeypatch.setattr(disk, "take_room", self._take)

    def taken(self):
        """How many bytes of it are taken."""
        blocks: dict[int, int] = {}
        for path in Path("/proc/self/fd").iterdir():
            with contextlib.suppress(FileNotFoundError):  # another thread has closed it meanwhile
                if str(path.readlink()).startswith(self._folder):
                    blocks[path.stat().st_ino] = path.stat().st_blocks
        return 512 * sum(blocks.values())

    def fill(self):
        """Another program takes all that is left of it."""
        self.size = 0

    def _take(self, descriptor, size, start=0):
        if self.size is not None and self.taken() + size > self.size:
            raise disk.Full(self.taken() + size - self.size)
        _TAKE(descriptor, size, start)
        assert os.fstat(descriptor).st_size >= start + size
        self.most = max(self.most, self.taken())
