"""A real SuperLink and three SuperNodes on the loopback: the same bytes as on the grid in this process."""

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import psutil
import pytest
from flwr.app import Array, ArrayRecord

from privopt.flower import InProcessGrid

NODES = 3
PATIENCE = 120.0  # seconds by the clock, for each thing that is waited for
BIN = Path(sys.executable).parent
PROJECT = """
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "people"
version = "1.0.0"
license = "Apache-2.0"

[tool.flwr.app]
publisher = "privopt"

[tool.flwr.app.components]
serverapp = "people.apps:server"
clientapp = "people.apps:client"

[tool.flwr.app.config]
result = ""
"""
APPS = '''
import numpy as np
from flwr.app import Array, ArrayRecord
from flwr.serverapp import ServerApp

from privopt import Budget
from privopt.solvers import GradientDescent
from privopt.flower import UserStrategy, client_app
from privopt.problems import losses

N, D, CAP = 3, 2, 4
server = ServerApp()


def load(context):
    """The records of a person."""
    person = int(context.node_config["person"])
    draw = np.random.default_rng(person)
    return draw.normal(size=(1 + person, D)), draw.choice([-1.0, 1.0], size=1 + person)


client = client_app(losses.logistic, load)


def strategy():
    """Seeded, so that the noise is the same."""
    public = {"n": N, "d": D, "row_bound": 1.5, "max_records_per_user": CAP}
    solver = GradientDescent(steps=3, clip=0.2)
    return UserStrategy(losses.logistic, solver=solver, budget=Budget(8.0, 1e-4), random_state=7, **public)


@server.main()
def main(grid, context):
    result = strategy().start(grid, ArrayRecord({"w": Array(np.zeros(D))}))
    released = [np.ravel(one.released) for one in result.private.transcript]
    np.save(context.run_config["result"], np.concatenate([np.ravel(result.private.params), *released]))
'''


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def until(found: Callable[[], object], what: str) -> object:
    """What is waited for; none of the processes writes to a terminal."""
    end = time.monotonic() + PATIENCE
    while not (value := found()):
        assert time.monotonic() < end, f"no {what} after {PATIENCE:g} s"
        time.sleep(0.2)
    return value


class Federation:
    """A SuperLink and its SuperNodes, all of them ended with everything that they started."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.port, self._started = folder, free_port(), list[subprocess.Popen[bytes]]()
        self.environment = os.environ | {
            "FLWR_HOME": str(folder / "home"),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
        }

    def start(self, name: str, *command: str) -> Path:
        """The log of a process of its own."""
        log = self.folder / f"{name}.log"
        with log.open("wb") as file:
            self._started.append(
                subprocess.Popen(
                    [str(BIN / command[0]), *command[1:]],
                    stdout=file,
                    stderr=subprocess.STDOUT,
                    stdin=subprocess.DEVNULL,
                    env=self.environment,
                    start_new_session=True,
                )
            )
        return log

    def listens(self) -> bool:
        with socket.socket() as one:
            return one.connect_ex(("127.0.0.1", self.port)) == 0

    def end(self) -> list[psutil.Process]:
        """End everything; gives what is alive still."""
        every = [psutil.Process(one.pid) for one in self._started if one.poll() is None]
        every += [child for one in every for child in one.children(recursive=True)]
        for sign in (signal.SIGTERM, signal.SIGKILL):
            for one in every:
                if one.is_running():
                    one.send_signal(sign)
            _, every = psutil.wait_procs(every, timeout=15)
        for one in self._started:
            one.wait(15)
        return every


def by_hand(folder: Path, people: dict[int, int]) -> np.ndarray:
    """The same apps on the grid in this process, with the same nodes."""
    apps: dict[str, object] = {}
    exec(compile(APPS, str(folder), "exec"), apps)
    grid = InProcessGrid(apps["client"], {node: {"person": person} for node, person in people.items()})
    result = apps["strategy"]().start(grid, ArrayRecord({"w": Array(np.zeros(2))}))
    released = [np.ravel(one.released) for one in result.private.transcript]
    return np.concatenate([np.ravel(result.private.params), *released])


@pytest.mark.audit
def test_a_superlink_with_three_supernodes_gives_the_bytes_of_the_grid_in_this_process(
    tmp_path: Path,
) -> None:
    app, result = tmp_path / "app", tmp_path / "result.npy"
    (app / "people").mkdir(parents=True)
    (app / "pyproject.toml").write_text(PROJECT)
    (app / "people" / "__init__.py").write_text("")
    (app / "people" / "apps.py").write_text(APPS)
    federation = Federation(tmp_path)
    (tmp_path / "home").mkdir()
    address = f"127.0.0.1:{federation.port}"
    (tmp_path / "home" / "config.toml").write_text(
        f'[superlink]\ndefault = "loopback"\n\n[superlink.loopback]\naddress = "{address}"\ninsecure = true\n'
    )
    try:
        here = ("--insecure", "--host", "127.0.0.1", "--port")
        federation.start("superlink", "flower-superlink", *here, str(federation.port))
        until(federation.listens, "SuperLink")
        people: dict[int, int] = {}
        for person in range(NODES):
            node = (*here, str(free_port()), "--superlink", address, "--node-config", f"person={person}")
            log = federation.start(f"node-{person}", "flower-supernode", *node)
            said = until(lambda log=log: re.search(r"SuperNode ID: (\d+)", log.read_text()), "SuperNode")
            people[int(said[1])] = person
        asked = ("flwr", "run", str(app), "loopback", "--run-config", f'result="{result}"', "--stream")
        log = federation.start("run", *asked)
        until(lambda: result.exists() or "Exit Code" in log.read_text(), "result")
        assert result.exists(), log.read_text()[-3000:]
        until(lambda: federation._started[-1].poll() is not None, "end of the run")
        found = np.load(result)
    finally:
        left = federation.end()
    assert not left
    assert not federation.listens()
    assert found.tobytes() == by_hand(tmp_path, people).tobytes()
