"""How much memory is left to this process: the least that the machine, its control groups and its limits leave."""

import os
import resource
from collections.abc import Iterator
from pathlib import Path

_UNKNOWN = 2**30  # bytes for rows, where nothing says how many there are
_NO_LIMIT = 1 << 60  # what control groups of version 1 show as no limit is larger
_SHARE = 2  # rows may take one part in so many of what is left


def memory_share() -> int:
    """How many bytes rows may take where the user has not said it: half of those that are left."""
    return max(1, available_memory() or _UNKNOWN)


def available_memory(root: Path = Path("/")) -> int | None:
    """Half of the bytes that are left, for rows; None where nothing says how many there are.

    Asked are the memory that the machine has available, every control group above this process (version 1 and 2,
    without what they could drop of files), and the address space that `ulimit -v` leaves.

    Args:
        root: where `proc` and `sys` are.
    """
    left = [*_of_machine(root), *_of_control_groups(root), *_of_address_space(root)]
    return max(0, min(left)) // _SHARE if left else None


def lies_in_memory(folder: Path, root: Path = Path("/")) -> bool:
    """Whether what is written to a folder takes memory, since its file system lies there.

    Args:
        folder: one that is there.
        root: where `proc` is.
    """
    device = folder.stat().st_dev
    number = f"{os.major(device)}:{os.minor(device)}"
    mounts = (line.partition(" - ") for line in _text(root / "proc/self/mountinfo").splitlines())
    return any(
        place.split()[2:3] == [number] and kind.split()[:1] in (["tmpfs"], ["ramfs"])
        for place, _, kind in mounts
    )


def _of_machine(root: Path) -> Iterator[int]:
    found = _fields(root / "proc/meminfo").get("MemAvailable")
    if found is not None:
        yield 1024 * found


def _of_control_groups(root: Path) -> Iterator[int]:
    """What each control group leaves, from the one of this process up to the topmost that can be seen."""
    for line in _text(root / "proc/self/cgroup").splitlines():
        number, controllers, path = [*line.split(":", 2), "", ""][:3]
        if number == "0" and not controllers:
            tops, names = (
                ("sys/fs/cgroup", "sys/fs/cgroup/unified"),
                ("memory.max", "memory.current", "inactive_file"),
            )
        elif "memory" in controllers.split(","):
            tops = ("sys/fs/cgroup/memory",)
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        else:
            continue
        for top in tops:
            # In a container the path may be that of outside: then the topmost folder is its own group.
            folder = Path(path.lstrip("/"))
            for group in dict.fromkeys((folder, *folder.parents, Path())):
                yield from _of_group(root / top / group, *names)


def _of_group(folder: Path, limit: str, used: str, reclaimable: str) -> Iterator[int]:
    most, now = _number(folder / limit), _number(folder / used)
    if most is not None and now is not None and most < _NO_LIMIT:
        yield most - max(0, now - _fields(folder / "memory.stat").get(reclaimable, 0))


def _of_address_space(root: Path) -> Iterator[int]:
    most = resource.getrlimit(resource.RLIMIT_AS)[0]
    now = _fields(root / "proc/self/status").get("VmSize")
    if most != resource.RLIM_INFINITY and now is not None:
        yield most - 1024 * now


def _fields(path: Path) -> dict[str, int]:
    """Lines of a name, maybe a colon, and a number."""
    pairs = (line.replace(":", " ").split()[:2] for line in _text(path).splitlines())
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdigit()}


def _number(path: Path) -> int | None:
    text = _text(path).strip()
    return int(text) if text.isdigit() else None


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
