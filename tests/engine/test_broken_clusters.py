"""A cluster of our own that breaks, or cannot start: a clear end, that says what was charged, and nothing left."""

import operator
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

ray = pytest.importorskip("ray")
psutil = pytest.importorskip("psutil")

from tests.support.running_fits import (  # noqa: E402
    charged,
    in_shared_memory,
    load,
    name_of,
    running_fit,
    started,
    still_there,
)

from privopt.engine.on_ray import cluster, starting  # noqa: E402
from privopt.engine.on_ray import cluster as guardian  # noqa: E402
from privopt.engine.on_ray.cluster import (  # noqa: E402
    Cluster,
    Guardian,
)
from privopt.engine.on_ray.fleet import Fleet  # noqa: E402
from privopt.engine.on_ray.starting import fresh_folder, require_place  # noqa: E402
from privopt.errors import ArgumentError, DataUnavailable, PrivoptError  # noqa: E402
from privopt.process import this_process  # noqa: E402


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder of a short name: sockets lie in it."""
    path = Path(tempfile.mkdtemp(prefix="pr-", dir="/tmp"))
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.mark.audit
@pytest.mark.parametrize(
    "victim", ["gcs_server", "raylet/raylet", "ray::DashboardAgent", "ray::RuntimeEnvAgent"]
)
def test_a_run_whose_cluster_loses_a_server_ends_and_says_what_was_charged(place: Path, victim: str) -> None:
    """The scheduler holds the object store, and ends with its agents."""
    before = in_shared_memory()
    process = running_fit(place, "--resume", str(place / "kept"))
    below = started(process, 2)
    charged(process, place / "kept")
    start = time.monotonic()
    os.kill(next(each.pid for each in below if victim in name_of(each)), signal.SIGKILL)
    _, complaint = process.communicate()
    allowed = 15.0 * load()
    assert time.monotonic() - start < allowed
    assert process.returncode == 3
    last = re.sub(r"\s+", " ", complaint.decode().splitlines()[-1])
    assert re.match(r"privopt: this run's own Ray cluster has lost its process '(gcs_server|raylet)': ", last)
    assert "count its whole price as spent" in last
    assert not still_there(below, allowed)
    assert not [each.name for each in place.iterdir() if each.name.startswith("privopt-")]
    assert in_shared_memory() <= before


@pytest.mark.audit
def test_a_run_whose_guardian_is_killed_clears_up_itself(place: Path) -> None:
    process = running_fit(place)
    below = started(process, 2)
    os.kill(next(each.pid for each in below if " -I -S -c " in name_of(each)), signal.SIGKILL)
    process.communicate()
    assert process.returncode == 0
    assert not still_there(below, 10.0 * load())
    assert not [each.name for each in place.iterdir() if each.name.startswith("privopt-")]


@pytest.mark.audit
@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (
            "mkdir -p $TMPDIR/m && mount -t tmpfs -o size=1m tmpfs $TMPDIR/m && TMPDIR=$TMPDIR/m",
            "MB free, and its files need 32. Make room",
        ),
        ("true", "cannot listen on 127.0.0.1 and be reached there"),  # in a network of its own, nothing is up
    ],
    ids=["full", "unreachable"],
)
def test_a_machine_on_which_no_cluster_starts_is_told_so_at_once(
    place: Path, broken: str, message: str
) -> None:
    alone = [
        "unshare",
        "-m",
        *(["-n"] if broken == "true" else []),
        "sh",
        "-c",
        f'{broken} && exec "$@"',
        "sh",
    ]
    allowed = shutil.which("unshare") and subprocess.run(
        [*alone, "true"], env={**os.environ, "TMPDIR": str(place)}, capture_output=True, check=False
    )
    if not allowed or allowed.returncode:
        pytest.skip("needs the right to mount, and to make networks")
    process = running_fit(place, before=alone)
    _, complaint = process.communicate(timeout=60 * load())
    assert process.returncode == 2
    last = re.sub(r"\s+", " ", complaint.decode().splitlines()[-1])
    assert message in last
    assert not [each.name for each in place.iterdir() if each.name.startswith("privopt-")]


def test_a_place_without_room_is_refused(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    require_place(place)
    monkeypatch.setattr(starting.shutil, "disk_usage", lambda _: SimpleNamespace(free=3 * 2**20))
    with pytest.raises(ArgumentError, match=r"has 3 MB free, and its files need 32\. Make room"):
        require_place(place)


def test_a_place_in_which_no_folder_can_be_made_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A longer name than sockets can have is passed over for /tmp, so whoever is told to give another is told that."""

    def full(prefix: str, dir: str) -> str:
        raise OSError(30, "Read-only file system", dir + prefix)

    monkeypatch.setattr(starting.tempfile, "gettempdir", lambda: "/scratch/of/somebody/who/writes/much")
    monkeypatch.setattr(starting.tempfile, "mkdtemp", full)
    told = r"no folder can be made in '/tmp' \(Read-only file system\)\. Make room.*in at most 24 letters\."
    with pytest.raises(ArgumentError, match=told):
        fresh_folder()


def test_a_machine_that_does_not_reach_itself_is_refused(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreachable(*_: Any, **__: Any) -> Any:
        raise OSError(101, "Network is unreachable")

    monkeypatch.setattr(socket, "create_connection", unreachable)
    with pytest.raises(
        ArgumentError, match=r"be reached there \(Network is unreachable\)\. Have its loopback"
    ):
        require_place(place)


def test_a_wait_ends_where_a_server_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray itself waits on, as long as it is told to."""
    looks: list[float] = []

    def wait(references: list[int], *, timeout: float, **_: Any) -> tuple[list[int], list[int]]:
        looks.append(timeout)
        return [], references

    monkeypatch.setattr("ray.wait", wait)
    fleet = object.__new__(Fleet)
    fleet.cluster = SimpleNamespace(lost=None)  # type: ignore[assignment]
    assert fleet.ready([1], 0.5, fetch=True) == []
    assert looks == [pytest.approx(0.5, abs=0.1)]
    fleet.cluster = SimpleNamespace(lost="it has lost 'raylet'")  # type: ignore[assignment]
    with pytest.raises(DataUnavailable, match="it has lost 'raylet': the records cannot be computed on"):
        fleet.ready([1], 300.0, fetch=True)


def test_a_guardian_has_the_place_of_libraries_and_no_secret(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", "/opt/python/lib")
    monkeypatch.setenv("RAY_AUTH_TOKEN", "0" * 64)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    folder = place / "cluster"
    folder.mkdir()
    kept = Guardian(folder)
    try:
        assert psutil.Process(kept._process.pid).environ() == {"LD_LIBRARY_PATH": "/opt/python/lib"}
    finally:
        kept.wait()


def test_a_guardian_that_does_not_start_is_an_error_and_leaves_no_folder(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = place / "cluster"
    folder.mkdir()
    monkeypatch.setattr(guardian.sys, "executable", shutil.which("false") or sys.executable)
    with pytest.raises(PrivoptError, match="no process could be started to clear up"):
        Guardian(folder)
    assert not folder.exists()


def test_what_a_killed_guardian_leaves_is_removed(place: Path) -> None:
    folder = place / "cluster"
    (folder / "r").mkdir(parents=True)
    kept = Guardian(folder)
    os.kill(kept._process.pid, signal.SIGKILL)
    kept.wait()
    assert not folder.exists()


def test_an_end_that_ctrl_c_falls_into_is_carried_through(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else Ray makes its folder anew as Python ends, the token stays, and the next run meets a cluster that is gone."""
    folder, ends = place / "cluster", list[int]()
    folder.mkdir()

    def end() -> None:
        ends.append(len(ends))
        if len(ends) == 1:
            raise KeyboardInterrupt
        (folder / "r").mkdir(parents=True, exist_ok=True)

    ours = object.__new__(Cluster)
    ours.address, ours._owner, ours._guardian = None, this_process(), Guardian(folder)
    ours._kept_environment = {"RAY_AUTH_TOKEN": None}
    ours._kept_voice = cluster._worker_module().print_to_stdstream
    monkeypatch.setenv("RAY_AUTH_TOKEN", "0" * 64)
    monkeypatch.setattr(cluster._Open, "cluster", ours)
    monkeypatch.setattr("ray.shutdown", end)
    with pytest.raises(KeyboardInterrupt, match=r"^$"):
        ours._end()
    assert ends == [0, 1]
    assert cluster._Open.cluster is None
    assert "RAY_AUTH_TOKEN" not in os.environ
    assert not folder.exists()


def test_a_fleet_whose_end_is_interrupted_leaves_its_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the workers that are left keep their rows until this process ends."""

    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    left = list[str]()
    fleet = object.__new__(Fleet)
    fleet._closed, fleet.workers = False, [SimpleNamespace(actor=None)]  # type: ignore[list-item]
    fleet.cluster = SimpleNamespace(  # type: ignore[assignment]
        lost=None, close=lambda: left.append("the cluster")
    )
    monkeypatch.setattr("ray.kill", interrupted)
    with pytest.raises(KeyboardInterrupt, match=r"^$"):
        fleet.close()
    fleet.close()
    assert left == ["the cluster"]


def test_nothing_is_said_to_a_cluster_that_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray would take half a minute for each word."""
    told = list[Any]()
    monkeypatch.setattr("ray.kill", lambda actor, **_: told.append(actor))
    reservation = SimpleNamespace(close=lambda: told.append("cores"))
    for lost, expected in ((None, ["a worker", "cores"]), ("its head is gone", [])):
        fleet = object.__new__(Fleet)
        fleet._closed, fleet.workers = False, [SimpleNamespace(actor="a worker")]  # type: ignore[list-item]
        fleet.cluster = SimpleNamespace(lost=lost, close=lambda: None)  # type: ignore[assignment]
        fleet._reservation = reservation  # type: ignore[assignment]
        fleet.close()
        assert told == expected
        told.clear()


def test_the_version_of_ray_that_is_installed_is_one_that_tests_have_passed_with() -> None:
    """Where it is not: run `pytest -m audit tests/engine -k "ray or cluster"`, then add the version to `TESTED`."""
    assert ".".join(ray.__version__.split(".")[:2]) in starting.TESTED
    starting.require_tested()


def test_every_name_that_ray_does_not_publish_is_looked_for_beforehand() -> None:
    folder = Path(starting.__file__).parent
    text = "\n".join(path.read_text() for path in folder.glob("*.py"))
    modules = set(re.findall(r"""ray\.(?:_private\.\w+|_raylet)""", text))
    assert modules == set(starting.RELIED_ON)
    used = set(re.findall(r"\b(?:services|module|_worker_module\(\)|raylet)\.(\w+)", text))
    used |= set(re.findall(r"_instead\([\w.\"]+, \"(\w+)\"", text)) | {"dead_processes", "GcsClient"}
    used |= {"start_api_server", "start_monitor", "start_log_monitor"}
    named = {part for names in starting.RELIED_ON.values() for name in names for part in name.split(".")}
    assert used <= named, used - named


ALL_NAMES = [(module, name) for module, names in starting.RELIED_ON.items() for name in names]


@pytest.mark.parametrize("address", [None, "127.0.0.1:9"])
def test_a_ray_without_one_of_the_names_is_refused_and_nothing_is_started(
    address: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster, "fresh_folder", None)  # not reached
    monkeypatch.setattr(cluster, "admitted", None)
    found = operator.attrgetter
    for module, name in ALL_NAMES:

        def without(asked: str, gone: str = name) -> Any:
            return found("not there" if asked == gone else asked)

        with monkeypatch.context() as patch:
            patch.setattr(starting.operator, "attrgetter", without)
            with pytest.raises(ArgumentError, match=rf"has no {module}\.{name}, .*install ray 2\.60"):
                Cluster.joined(address)


@pytest.mark.parametrize("version", ["2.59.1", "2.61.0", "3.0.0.dev0", "2.6"])
def test_a_version_of_ray_that_no_test_has_passed_is_refused(
    version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster, "fresh_folder", None)
    monkeypatch.setattr(ray, "__version__", version)
    with pytest.raises(
        ArgumentError, match=rf"not tested with ray {re.escape(version)}, .*install ray 2\.60"
    ):
        Cluster.joined(None)


def test_what_is_to_be_replaced_and_is_not_there_is_an_error() -> None:
    with (
        pytest.raises(ArgumentError, match="has no start_something"),
        starting._instead(starting, "start_something", None),
    ):
        pass
    with starting._instead(starting, "LOOPBACK", "elsewhere"):
        assert starting.LOOPBACK == "elsewhere"
    assert starting.LOOPBACK == "127.0.0.1"
