"""Records of two NumPy files, as a source that notices when they change."""

from pathlib import Path

import numpy as np

from privopt.data.record_source import ArrayRecords, RecordSource
from privopt.errors import DataUnavailable


class FileRecords(RecordSource):
    """Features and targets that were saved to a folder; each process opens them for itself."""

    def __init__(self, folder: Path, features, targets) -> None:
        self._paths = [folder / "features.npy", folder / "targets.npy"]
        for path, values in zip(self._paths, (features, targets), strict=True):
            np.save(path, values)
        self.rows, self.width = features.shape
        self._opened = self.fingerprint()

    def blocks(self, start: int, stop: int):
        """See `RecordSource.blocks`."""
        if self.fingerprint() != self._opened:
            raise DataUnavailable("the files have changed")
        features, targets = (np.load(path, mmap_mode="r") for path in self._paths)
        yield from ArrayRecords(features, targets).blocks(start, stop)

    def fingerprint(self) -> str:
        """See `RecordSource.fingerprint`."""
        states = [path.stat() for path in self._paths if path.exists()]
        return str([(state.st_size, state.st_mtime_ns) for state in states])
