"""Where the records of a run are kept and computed on, as the user asks for it. Public."""

import os
import resource
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from privopt.engine.on_ray.starting import check_address

PlaceName = Literal["auto", "memory", "stream", "ray"]
RETRIES = 3


@dataclass(frozen=True, kw_only=True)
class Placement:
    """How to keep the records of a run; what is released is the same to the last byte.

    Attributes:
        engine: "memory" (this process), "stream" (a spool on a local disk, read once a pass), "ray" (a cluster), or
            "auto": memory, or a spool where the rows exceed their share of it.
        memory: bytes that rows may take in this process; None for half of what the machine, its control group and its
            limits leave.
        spool: folder of the spool; None for the system's folder of temporary files.
        address: of a Ray cluster; None for one that is started on this machine for the run.
        workers: processes of a cluster that hold rows; None for one a machine, or a core of this one.
        retries: how often the parts of lost workers are read again, in the whole run.
        trust_network: whether a cluster without tokens may be used.
        chosen: whether the engine was asked for as "auto", and chosen since, see `choose.settled`.
    """

    engine: PlaceName = "auto"
    memory: int | None = None
    spool: Path | None = None
    address: str | None = None
    workers: int | None = None
    retries: int = RETRIES
    trust_network: bool = False
    chosen: bool = False

    def idle(self) -> tuple[str, str, str] | None:
        """A setting that was given and does nothing with the engine asked for; None if there is none.

        Returns:
            Its name, what it is, and the engine that it is for.
        """
        ray = {
            "address": self.address is not None,
            "workers": self.workers is not None,
            "trust_network": self.trust_network,
            "retries": self.retries != RETRIES,
        }
        spool = {
            "spool": (self.spool is not None, "the folder of a streamed table"),
            "memory": (self.memory is not None, "what rows may take before they are streamed"),
        }
        for name, given in ray.items():
            if given and self.engine != "ray":
                return name, "about a Ray cluster", "ray"
        for name, (given, what) in spool.items():
            if given and self.engine not in ("auto", "stream"):
                return name, what, "stream"
        return None

    def told(self, machines: Iterable[str] = ()) -> str:
        """Where the records of a run were kept, for its report; of "auto", where they may have been.

        Args:
            machines: what engines said of those that held records.
        """
        memory = "in the memory of this process"
        spool = "in a spool on a local disk, whose files had no names, and were read from there once a pass"
        workers = (
            "in the memory of the workers of a Ray cluster, between which and this process sums travelled before noise "
            "was added to them; so did drawn rows, where rows were drawn, and from worker to worker the clipped "
            "records of users, where a unit is a user"
        )
        where = {"memory": memory, "stream": spool, "ray": workers, "auto": f"{memory}, or {spool}"}[
            self.engine
        ]
        return " ".join(
            [f"Rows were read from files and kept {where}.", *(f"They were on {one}." for one in machines)]
        )

    def __post_init__(self) -> None:
        if self.engine not in ("auto", "memory", "stream", "ray"):
            raise ValueError(f"engine must be 'auto', 'memory', 'stream' or 'ray', got {self.engine!r}.")
        for name, least in (("memory", 1), ("workers", 1), ("retries", 0)):
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < least):
                raise ValueError(f"{name} must be a whole number of at least {least}, got {value!r}.")
        if self.address is not None:
            check_address(self.address)


# ------------------------------------------------------------------------------------------------------------
# How much memory is left to this process: the least that the machine, its control groups and its limits
# leave.


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
