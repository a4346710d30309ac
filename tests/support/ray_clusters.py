"""Clusters of Ray as somebody would start them with `ray start`: a head and another node, with tokens or without."""

import contextlib
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import NamedTuple

_START = 180.0  # seconds, on a machine that is busy with something else


class Running(NamedTuple):
    """A cluster that runs.

    Attributes:
        address: of its head.
        client: where Ray Client's proxy listens, which cannot be left out.
        environment: for whoever may use it.
    """

    address: str
    client: str
    environment: dict[str, str]


@contextlib.contextmanager
def two_nodes(folder: Path, *, tokens: bool, more: Mapping[str, str] | None = None) -> Generator[Running]:
    """A head and a second node, each with one core and its files in a folder of a short name."""
    folder.mkdir(mode=0o700)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    environment |= {"RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0"}
    environment |= {"RAY_automatic_object_spilling_enabled": "0", "RAY_worker_niceness": "0", **(more or {})}
    if tokens:
        (folder / "token").write_text(secrets.token_hex(32))
        environment |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(folder / "token")}
    port, client = _free_port(), _free_port()
    address = f"127.0.0.1:{port}"
    common = ["--num-cpus=1", "--object-store-memory=100000000", "--block"]
    head = ["--head", f"--port={port}", f"--ray-client-server-port={client}", "--include-dashboard=false"]
    with (
        _node([*head, *common, f"--temp-dir={folder / 'h'}"], environment, folder / "head.log"),
        _node(
            [f"--address={address}", *common, f"--temp-dir={folder / 'w'}"], environment, folder / "node.log"
        ),
    ):
        yield Running(address, f"127.0.0.1:{client}", environment)


@contextlib.contextmanager
def _node(arguments: list[str], environment: Mapping[str, str], log: Path) -> Generator[None]:
    command = [str(Path(sys.executable).with_name("ray")), "start", *arguments]
    with log.open("wb") as output:
        process = subprocess.Popen(command, env=dict(environment), stdout=output, stderr=output)
    try:
        end = time.monotonic() + _START
        while "Ray runtime started" not in log.read_text(errors="replace"):
            if process.poll() is not None or time.monotonic() > end:
                raise RuntimeError(f"the node did not start: {log.read_text(errors='replace')}")
            time.sleep(0.2)
        yield
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])
