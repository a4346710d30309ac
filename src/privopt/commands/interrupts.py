"""Ctrl-C while a command runs: it ends the command, whatever piece of Python it falls into.

Python raises it in the code that happens to run. Where that is a callback of the garbage collector, as JAX has one, a
finaliser, or a library that catches everything, it is lost there, and the command goes on as if nothing had come.
"""

import contextlib
import signal
import sys
import time
from collections.abc import Generator
from typing import Any

from privopt.errors import chain_of

AGAIN = 0.1  # seconds after which an interrupt that was lost is raised again
CLEARING = 5.0  # seconds in which what an interrupt ends is not itself interrupted


class Interrupts:
    """The interrupts of one command.

    Attributes:
        came: whether there was one.
    """

    def __init__(self) -> None:
        self.came = False
        self._since, self._by_timer, self._settled = 0.0, False, False

    @contextlib.contextmanager
    def heard(self) -> Generator[None]:
        """Around a command: one that was lost is raised again, and what one ends is not stopped halfway by the next.

        Nothing is changed where interrupts, or alarms, are somebody else's already, as in a process that ignores them;
        where there are no alarms; and in another thread than the main one.
        """
        try:
            usual = (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGALRM))
            if usual != (signal.default_int_handler, signal.SIG_DFL):
                raise ValueError
            signal.signal(signal.SIGINT, self._interrupt)
            signal.signal(signal.SIGALRM, self._again)
        except (AttributeError, ValueError):
            yield
            return
        try:
            yield
        finally:
            self.settle()
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.default_int_handler)

    def settle(self) -> None:
        """What ends a command has arrived where it is told: no interrupt is raised from now on."""
        if not self._settled:
            self._settled = True
            if hasattr(signal, "setitimer"):
                signal.setitimer(signal.ITIMER_REAL, 0.0)

    def _interrupt(self, number: int, frame: Any) -> None:
        del number, frame
        by_timer, self._by_timer = self._by_timer, False
        if self._settled:
            return
        now = time.monotonic()
        if not self.came:
            self.came, self._since = True, now
        signal.setitimer(signal.ITIMER_REAL, AGAIN)
        if _is_carried_out() and (by_timer or now < self._since + CLEARING):
            return
        raise KeyboardInterrupt

    def _again(self, number: int, frame: Any) -> None:
        """Through whoever handles interrupts at this moment, who may have reasons to have it wait."""
        del number, frame
        self._by_timer = True
        signal.raise_signal(signal.SIGINT)


def _is_carried_out() -> bool:
    """Whether the code that runs is there because of an interrupt: a block that it runs through on its way out."""
    return any(isinstance(error, KeyboardInterrupt) for error in chain_of(sys.exception()))
