"""How much memory rows may take in this process, where the user has not said it: half of what is left. Public."""

import resource
from pathlib import Path

SHARE = 0.5
_FALLBACK = 2**32  # bytes, where the system says nothing
_GROUPS = Path("/sys/fs/cgroup")


def memory_share() -> int:
    """Half of the bytes that the machine, the control group and the limits of this process leave."""
    return max(1, int(SHARE * memory_left()))


def memory_left() -> int:
    """The bytes that can still be taken: the least of what the machine, the control group and the limits leave."""
    left = [each for each in (_of_machine(), _of_group(), _of_limits()) if each is not None]
    return max(0, min(left, default=_FALLBACK))


def _of_machine() -> int | None:
    for line in _read(Path("/proc/meminfo")).splitlines():
        if line.startswith("MemAvailable:"):
            return 1024 * int(line.split()[1])
    return None


def _of_group() -> int | None:
    """What the control group leaves, in either version of them."""
    own = next((line[3:] for line in _read(Path("/proc/self/cgroup")).splitlines() if line[:3] == "0::"), "/")
    folders = [_GROUPS / own.lstrip("/"), _GROUPS]
    pairs = [(folder / "memory.max", folder / "memory.current") for folder in folders]
    pairs.append((_GROUPS / "memory/memory.limit_in_bytes", _GROUPS / "memory/memory.usage_in_bytes"))
    for limit, used in pairs:
        most, taken = _read(limit).strip(), _read(used).strip()
        if most.isdigit() and taken.isdigit():
            return int(most) - int(taken)
    return None


def _of_limits() -> int | None:
    """What `ulimit -v` and `ulimit -d` leave."""
    left: list[int] = []
    for kind, name in ((resource.RLIMIT_AS, "VmSize:"), (resource.RLIMIT_DATA, "VmData:")):
        most = resource.getrlimit(kind)[0]
        if most == resource.RLIM_INFINITY:
            continue
        lines = _read(Path("/proc/self/status")).splitlines()
        taken = next((1024 * int(line.split()[1]) for line in lines if line.startswith(name)), 0)
        left.append(most - taken)
    return min(left, default=None)


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="ascii")
    except (OSError, UnicodeError):
        return ""
