"""A disk of so many bytes, as the files of a spool see it."""

import errno
import os
from pathlib import Path

from privopt.engine.streamed import spool

_TAKE = spool._take_room


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
        monkeypatch.setattr(spool, "_take_room", self._take)

    def taken(self):
        """How many bytes of it are taken."""
        links = [path for path in Path("/proc/self/fd").iterdir() if path.is_symlink()]
        found = [path for path in links if str(path.readlink()).startswith(self._folder)]
        return sum({path.stat().st_ino: 512 * path.stat().st_blocks for path in found}.values())

    def _take(self, descriptor, size):
        if self.size is not None and self.taken() + size > self.size:
            raise OSError(errno.ENOSPC, "full")
        _TAKE(descriptor, size)
        assert os.fstat(descriptor).st_size >= size
        self.most = max(self.most, self.taken())
