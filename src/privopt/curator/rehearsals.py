"""What a run makes of its units, found without data, and the room for it, taken before the run is paid for."""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Protocol

from privopt.curator.base import Curator
from privopt.curator.dry_run import DryRun
from privopt.data.derived import Derived, Extra
from privopt.data.units import Units
from privopt.engine.choose import in_memory
from privopt.engine.protocol import Engine


class Course(Protocol):
    """What is known of a program before it runs, see `Program`."""

    @property
    def adaptive(self) -> bool: ...
    @property
    def makes(self) -> frozenset[str]: ...


def foresee(
    program: Course, solve: Callable[[Curator], object], data: Units | Engine, derived: Derived
) -> None:
    """Note what a program makes of some units, and refuse what the engine cannot do.

    Args:
        program: as it will run; of one that is adaptive all is noted that it may make.
        solve: runs it.
        data: the units, or an engine; units in memory need no room of their own, and no rehearsal.
        derived: the units that it will see, and where it is noted.
    Raises:
        ValueError: the engine cannot do it.
    """
    if isinstance(data, Units) or in_memory(data):
        return
    if program.adaptive:
        derived.anything(blocks="blocks" in program.makes, maps="maps" in program.makes)
        return
    solve(DryRun(derived.public, require=data.require, derived=derived))


@contextmanager
def reserved(data: Units | Engine, extra: Extra) -> Generator[None]:
    """Around a run: the room that it needs is taken before it is paid for, and given back at its end.

    Args:
        data: the units, or an engine.
        extra: what the run takes besides.
    Raises:
        ArgumentError: there is no such room; nothing was paid.
    """
    if isinstance(data, Units):
        yield
        return
    data.reserve(extra)
    try:
        yield
    finally:
        data.reserve(Extra())
