"""Which process this is: no forked child is taken for one that it descends from, even where it has its number."""

import os

Process = tuple[int, int]  # its number, and of how many forks in a row it is the child


class _Forks:
    """How many there were between the first process and this one."""

    number = 0

    @classmethod
    def count(cls) -> None:
        """Count one more, in the child."""
        cls.number += 1


def this_process() -> Process:
    """What tells this process from all that it descends from.

    An operating system gives the number of a process that has ended to a new one, and a container counts from 1 again:
    the number alone would let a grandchild pass for the process whose keys, ledgers and streams it has copies of. So
    forks are counted as well. A fork that Python is not told of, in a library in C, shows by the number alone.
    """
    return os.getpid(), _Forks.number


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_Forks.count)
