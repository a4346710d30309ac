"""The servers of others' cluster on which a run rests: whether they can be reached while answers are waited for.

Ray ends this process, without a word on what was charged, a minute after it has lost the head's server of facts; and
where this machine's own node is gone it makes no worker anew, and waits.
"""

import os
import socket
import sys
import threading
import time
from collections.abc import Mapping
from typing import NoReturn

SILENCE = 30.0  # seconds out of reach after which a server counts as gone: it may have started anew before
_LOOK = 3.0  # seconds between looks
_PATIENCE = 2.0  # seconds that a server has to accept

UNENDED = "a connection to Ray that does not end"  # name of the thread that waits for it


class Reach:
    """Servers that are looked at.

    Args:
        servers: HOST:PORT of each, by what it is called.
    """

    def __init__(self, servers: Mapping[str, str]) -> None:
        self._servers = servers
        self._looked = time.monotonic()
        self._since: dict[str, float] = {}  # when one was first found out of reach, of those that still are

    @property
    def gone(self) -> str | None:
        """Which server all looks have missed for `SILENCE` seconds, in words; None for none."""
        now = time.monotonic()
        if now - self._looked >= _LOOK:
            missed = [name for name, where in self._servers.items() if why_unreached(where, _PATIENCE)]
            self._since = {name: self._since.get(name, now) for name in missed}
            self._looked = time.monotonic()
        gone = next((name for name, since in self._since.items() if now - since >= SILENCE), None)
        return None if gone is None else f"{gone} has been out of reach for {SILENCE:.0f} seconds"


def why_unreached(address: str, seconds: float) -> str | None:
    """Why nobody is reached at HOST:PORT, in a few words; None where somebody listens there."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), seconds).close()
    except (OSError, OverflowError, UnicodeError) as error:
        return (getattr(error, "strerror", None) or str(error) or type(error).__name__).lower()
    return None


def leave(code: int) -> NoReturn:
    """End this process with an exit code; without Python's own where Ray still waits, which would crash."""
    if any(each.name == UNENDED for each in threading.enumerate()):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)
