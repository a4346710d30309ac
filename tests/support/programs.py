"""Compiled programs of a test process: how many may be there before they are forgotten."""

import os
from pathlib import Path

MOST_RESIDENT = 4 * 2**30  # bytes of a worker
MOST_MAPS = 20_000  # about 6 GB of programs; Linux allows a process 65,530


def forget_programs() -> None:
    """Forget compiled programs before they fill memory, or the table of memory maps: the compiler crashes there."""
    maps, pages = Path("/proc/self/maps"), Path("/proc/self/statm")
    if not maps.exists():
        return
    resident = int(pages.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    if resident > MOST_RESIDENT or maps.read_bytes().count(b"\n") > MOST_MAPS:
        import jax

        jax.clear_caches()
