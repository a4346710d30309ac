"""What reading a file that nobody vouches for may take, in the process of a command: processor time and memory."""

import contextlib
import signal
import threading
from collections.abc import Generator
from pathlib import Path
from typing import Any

from privopt.errors import PrivoptError

MOST_MEMORY = 2**29  # bytes that reading a model and drawing its report may add
_AGAIN = 0.5  # seconds after which the exception is raised again, where somebody has swallowed it


class TooMuchWork(PrivoptError, RuntimeError):
    """A file takes more processor time to read than it may."""


@contextlib.contextmanager
def limited(seconds: float, what: str) -> Generator[None]:
    """Around what is done with a file from anywhere: more processor time or memory is refused.

    Nothing is limited in another thread than the main one, where the system has no such limits, and where a profiler
    has the timer.

    Args:
        seconds: of the processor, from now on.
        what: what takes so long, for the sentence.

    Raises:
        TooMuchWork: it took longer.
        MemoryError: it took more memory.
    """

    def stop(_signal: int, _frame: Any) -> None:
        raise TooMuchWork(
            f"{what} takes more than {seconds:g} s of processor time: allow it more with --work, if you trust where "
            "it comes from."
        )

    is_main = threading.current_thread() is threading.main_thread() and hasattr(signal, "SIGPROF")
    if not is_main or signal.getsignal(signal.SIGPROF) is not signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, seconds, _AGAIN)
    try:
        with _limited_memory():
            yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0.0)
        signal.signal(signal.SIGPROF, signal.SIG_DFL)


@contextlib.contextmanager
def _limited_memory() -> Generator[None]:
    """A limit on the memory of this process, which is taken back at the end."""
    import resource

    status = Path("/proc/self/status")
    if not status.exists():
        yield
        return
    line = next(line for line in status.read_text().splitlines() if line.startswith("VmData:"))
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    most = int(line.split()[1]) * 1024 + MOST_MEMORY
    if soft != resource.RLIM_INFINITY and soft <= most:
        yield
        return
    resource.setrlimit(resource.RLIMIT_DATA, (most, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))
