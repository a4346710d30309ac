"""A test of the default run takes few seconds of processor time, or waits for the audit: `--most-seconds`.

Processor time does not depend on what else the machine does. What numba compiles is left out: it is kept on disk, and
whichever test comes first pays for all. So is what a process of the test's own takes to start, and an example in a
docstring: it shows what users run.
"""

import resource
import time
from collections.abc import Generator

import pytest
from numba.core import event
from tests.support.slowness import slowness

LOOP = 0.06  # processor seconds of the loop of `slowness` on the machine for which the limit is stated
TOLERANCE = 3.0  # a test that comes first in its process traces and compiles what others find done, and machines differ
STARTING = 4.0  # processor seconds that processes of a test's own may take besides, on that machine


class _Compilations(event.Listener):
    """The processor seconds in which numba compiled."""

    def __init__(self) -> None:
        self.seconds, self._depth, self._begun = 0.0, 0, 0.0

    def on_start(self, event: event.Event) -> None:
        """One begins, perhaps inside of another."""
        if self._depth == 0:
            self._begun = time.process_time()
        self._depth += 1

    def on_end(self, event: event.Event) -> None:
        """It ends."""
        self._depth -= 1
        if self._depth == 0:
            self.seconds += time.process_time() - self._begun


class TimeLimit:
    """A plugin that fails a test which takes longer.

    Args:
        most: processor seconds of a test's own call, on the machine for which limits are stated.
    """

    def __init__(self, most: float) -> None:
        self._most, self._compilations = most, _Compilations()
        event.register("numba:compile", self._compilations)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, object, object]:
        """Measure, and fail."""
        begun, begun_apart = self._spent()
        returned = yield
        own, apart = (now - then for now, then in zip(self._spent(), (begun, begun_apart), strict=True))
        limited = "audit" not in item.keywords and not isinstance(item, pytest.DoctestItem)
        if limited and own + apart > self._most:
            times = slowness(LOOP)
            if own + max(0.0, apart - times * STARTING) > times * TOLERANCE * self._most:
                pytest.fail(
                    f"took {own:.1f} s of processor time, and its processes {apart:.1f} s: make it cheaper, or give it "
                    "`@pytest.mark.audit` where another test holds its law by default; see CONTRIBUTING.md, Tests",
                    pytrace=False,
                )
        return returned

    def pytest_unconfigure(self) -> None:
        """Listen no more."""
        event.unregister("numba:compile", self._compilations)

    def _spent(self) -> tuple[float, float]:
        """Seconds of this process without compilations of numba, and of processes that it started."""
        ended = resource.getrusage(resource.RUSAGE_CHILDREN)
        return time.process_time() - self._compilations.seconds, ended.ru_utime + ended.ru_stime
