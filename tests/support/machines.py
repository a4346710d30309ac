"""Machines of a network of their own, made of Linux namespaces: each has an address, a name, memory that is shared with
nobody, and processes that end with it. Nothing reaches them from outside, or leaves them.
"""

import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import pytest

_APART = ["unshare", "--net", "--uts", "--ipc", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
_START = 180.0  # seconds, on a machine that is busy with something else
PORT = 6379


class Machine:
    """One machine; its port of the switch has the same number.

    Args:
        number: the last byte of its address.
        own: a folder in which it sees files of its own alone.
    Attributes:
        address: its address.
    """

    def __init__(self, number: int, own: Path) -> None:
        self.number, self.address, self.own = number, f"10.77.0.{number}", own
        self._holder = subprocess.Popen([*_APART, "sleep", "infinity"], stdin=subprocess.DEVNULL)
        self.first = _child(self._holder.pid)

    def words(self, *words: Any) -> list[str]:
        """A command there."""
        return ["nsenter", "-t", str(self.first), "-n", "-u", "-i", "-m", "-p", *map(str, words)]

    def do(self, *words: Any) -> str:
        """What a command there prints."""
        return _done(self.words(*words))

    def kill(self) -> None:
        """End all its processes at once."""
        _done(["kill", "-KILL", str(self.first)])
        self._holder.wait()

    def end(self) -> None:
        """Likewise, where that has not been done."""
        self._holder.kill()
        self._holder.wait()


class Network:
    """Machines on one switch."""

    def __init__(self, machines: Sequence[Machine]) -> None:
        self.machines = machines
        self._switch = subprocess.Popen(["unshare", "--net", "--fork", "--kill-child", "sleep", "infinity"])
        self._first = _child(self._switch.pid)
        self._at_switch("ip", "link", "add", "name", "switch0", "type", "bridge")
        self._at_switch("ip", "link", "set", "switch0", "up")
        for each in machines:
            port = f"port{each.number}"
            ends = ["ip", "link", "add", "name", port, "netns", str(self._first), "type", "veth"]
            _done([*ends, "peer", "name", "eth0", "netns", str(each.first)])
            self._at_switch("ip", "link", "set", port, "master", "switch0", "up")
            for words in (
                ("hostname", f"machine{each.number}"),
                ("ip", "link", "set", "lo", "up"),
                ("ip", "addr", "add", f"{each.address}/24", "dev", "eth0"),
                ("ip", "link", "set", "eth0", "up"),
                (
                    "ip",
                    "route",
                    "add",
                    "default",
                    "dev",
                    "eth0",
                ),  # by which Ray finds its address; it leads nowhere
                ("mount", "-t", "tmpfs", "-o", "size=512m", "tmpfs", "/dev/shm"),
                ("mount", "-t", "tmpfs", "-o", "size=512m", "tmpfs", each.own),
            ):
                each.do(*words)

    def cut_off(self, machine: Machine) -> None:
        """Take a machine's link down, which it does not see."""
        self._at_switch("ip", "link", "set", f"port{machine.number}", "down")

    def end(self) -> None:
        """End all machines, and the network with the last."""
        for each in self.machines:
            each.end()
        self._switch.kill()
        self._switch.wait()

    def _at_switch(self, *words: str) -> None:
        _done(["nsenter", "-t", str(self._first), "-n", *words])


@contextlib.contextmanager
def machines(count: int, own: Path) -> Generator[Network]:
    """So many machines on one network; a test that may not make them is skipped."""
    own.mkdir()
    made: list[Machine] = []
    network = None
    try:
        try:
            made += [Machine(k + 1, own) for k in range(count)]
            network = Network(made)
        except (OSError, subprocess.SubprocessError) as error:
            pytest.skip(f"needs the right to make namespaces: {error}")
        yield network
    finally:
        for each in made:
            each.end()
        if network is not None:
            network.end()


@contextlib.contextmanager
def node(
    machine: Machine, environment: Mapping[str, str], *, cores: int, head: Machine | None = None
) -> Generator[None]:
    """A node of Ray on a machine; the head, unless its head is given."""
    role = ["--head", f"--port={PORT}", "--include-dashboard=false"]
    if head is not None:
        role = [f"--address={head.address}:{PORT}"]
    more = [
        f"--num-cpus={cores}",
        "--object-store-memory=100000000",
        "--block",
        f"--temp-dir={machine.own}/r",
    ]
    command = machine.words(Path(sys.executable).with_name("ray"), "start", *role, *more)
    with tempfile.TemporaryFile("w+") as log:  # no pipe: what the node starts would hold it
        process = subprocess.Popen(command, env=dict(environment), stdout=log, stderr=log)
        try:
            end = time.monotonic() + _START
            while "Ray runtime started" not in _read(log):
                if process.poll() is not None or time.monotonic() > end:
                    raise RuntimeError(f"the node did not start: {_read(log)}")
                time.sleep(0.2)
            yield
        finally:
            process.kill()
            process.wait()


def _read(log: IO[str]) -> str:
    """What a process has written so far, which goes on writing at the end."""
    return os.pread(log.fileno(), 2**20, 0).decode(errors="replace")


def _done(command: Sequence[str]) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def _child(pid: int) -> int:
    """The first process in new namespaces."""
    end = time.monotonic() + 10.0
    while time.monotonic() < end:
        found = Path(f"/proc/{pid}/task/{pid}/children")
        if not found.exists():
            break
        if there := found.read_text().split():
            return int(there[0])
        time.sleep(0.02)
    raise OSError("no namespaces could be made")
