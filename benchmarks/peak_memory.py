"""The most memory that this process has held.

By what Linux says of the process itself: `ru_maxrss` of a process that was just started is at least that of the one
that started it.
"""

import contextlib
from pathlib import Path

STATUS = Path("/proc/self/status")
MEGABYTE = 2**20


def reset_peak_memory() -> float:
    """Begin a new measurement of the peak; what the process holds now, in MB, 0 where the system cannot tell."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    return _held_mb("VmRSS")


def peak_memory_mb() -> float:
    """The most memory this process has held since the last reset, the data and all libraries included."""
    return _held_mb("VmHWM")


def _held_mb(what: str) -> float:
    if not STATUS.exists():
        return 0.0
    lines = STATUS.read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{what}:")) * 1024 / MEGABYTE
