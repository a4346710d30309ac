"""Where the records of a run are kept and computed on, as the user asks for it. Public."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from privopt.engine.on_ray.admission import check_address

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
