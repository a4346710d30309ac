"""Engines that come one after the other: what one has outside of this process' memory is kept for the next."""

from collections.abc import Callable
from typing import Any, TypeVar, final

K = TypeVar("K")


@final
class Succession:
    """Engines of one run, of which one is open at a time.

    Between two of them their room on a disk is not given back, so that no other program can take it: a run that was
    paid for goes on. Without it, each engine takes and gives back its own.
    """

    def __init__(self) -> None:
        self._kept: Any = None

    def kept(self, made: Callable[[], K]) -> K:
        """What the engine before left, or what is made for the first."""
        if self._kept is None:
            self._kept = made()
        return self._kept

    def close(self) -> None:
        """After the last engine: what is kept is given back."""
        kept, self._kept = self._kept, None
        if kept is not None:
            kept.close()

    def __repr__(self) -> str:
        return "Succession()"
