"""A small process beside a cluster of our own, which outlives whoever started it and leaves nothing of the cluster.

Ray's processes end with the one that started them, mostly: where it is killed or interrupted while they start, some
stay, and so does the folder. The guardian waits until it is told, or until that process is gone, kills whoever writes
into the folder, and removes it.
"""

import contextlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

from privopt.errors import PrivoptError

_GRACE = 1.0  # seconds in which processes may end by themselves where it is told to end them
_SECONDS = 10.0  # in which whoever is killed is gone
# Where a Python finds its libraries, without which some do not start. Of the environment it is told nothing else.
_LIBRARIES = ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "DYLD_FALLBACK_LIBRARY_PATH")

# Of the cluster is who was started with an option in the folder (`--log_dir=FOLDER/r`), sends its output there, or has
# given itself a name of Ray's and a file there open. A child that the starting process has forked has its open files
# too, and none of these; nor has who only looks at a file there, as `less` does.
_PROGRAM = f"""
import os, select, shutil, signal, sys, time
folder, parent = sys.argv[1], os.getppid()

def belongs(process):
    with open(f"{{process}}/cmdline", "rb") as file:
        words = file.read()
    inside = b"=" + os.fsencode(folder) + b"/"
    if any(word.startswith(b"--") and inside in word for word in words.split(b"\\0")):
        return True
    numbers = os.listdir(f"{{process}}/fd") if words.startswith(b"ray::") else "12"
    return any(os.readlink(f"{{process}}/fd/{{number}}").startswith(folder + "/") for number in numbers)

def members():
    for name in os.listdir("/proc") if os.path.isdir("/proc/self") else ():
        if name.isdecimal() and int(name) not in (parent, os.getpid()):
            try:
                if belongs(f"/proc/{{name}}"):
                    yield int(name)
            except OSError:  # it is gone by now, or somebody else's
                pass

def gone():
    for member in set(members()):
        try:
            os.kill(member, signal.SIGKILL)
        except OSError:
            pass
    return not set(members())

os.write(1, b".")
while os.getppid() == parent and not select.select([0], [], [], 0.5)[0]:
    pass
grace = time.monotonic() + {_GRACE}
while os.getppid() == parent and set(members()) and time.monotonic() < grace:
    time.sleep(0.05)
end = time.monotonic() + {_SECONDS}
while not gone() and time.monotonic() < end:
    time.sleep(0.02)
while os.path.exists(folder) and time.monotonic() < end:
    shutil.rmtree(folder, ignore_errors=True)
    time.sleep(0.02)
"""


class Guardian:
    """Ends what is left of a cluster, and its folder, a second after it is told to, or when this process is gone.

    It has neither a token nor anything that travels, takes some 10 MB, and is in a session of its own, so that a
    signal from the terminal does not reach it.

    Args:
        folder: of the cluster, in which nothing else lies; removed where there is no guardian for it.
    Raises:
        PrivoptError: it did not start.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", _PROGRAM, str(folder)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env={name: os.environ[name] for name in _LIBRARIES if name in os.environ},
                cwd="/",
                start_new_session=True,
            )
            assert self._process.stdout is not None
            with self._process.stdout as said:
                is_there = said.read(1)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        if not is_there:
            self.wait()
            raise PrivoptError(
                f"no process could be started to clear up after the Ray cluster ({sys.executable!r} ended at once), so "
                "the cluster was not started: run this with a Python that starts by itself."
            )

    def end(self) -> None:
        """Have it end the cluster; a second time nothing is left to do."""
        if self._process.stdin is not None and not self._process.stdin.closed:
            with contextlib.suppress(OSError):
                # A child that was forked meanwhile has the pipe as well, which is not at its end then.
                self._process.stdin.write(b"end")
            with contextlib.suppress(OSError):
                self._process.stdin.close()

    def wait(self) -> None:
        """Wait until nothing is left."""
        self.end()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(2 * _SECONDS)
        shutil.rmtree(
            self.folder, ignore_errors=True
        )  # where it was killed, or Ray has written there once more
