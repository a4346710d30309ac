"""The Ray engine on several machines, made of namespaces: their bytes, and what is said when one is gone."""

import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.support.machines import PORT, Machine, Network, machines, node
from tests.support.running_fits import FIT, charged, load, without_ray, written

pytest.importorskip("ray")

from privopt.engine.on_ray import starting
from privopt.engine.on_ray.starting import SILENCE, Reach, require_node
from privopt.errors import ArgumentError


@dataclass(frozen=True)
class Lab:
    """A head that lends no cores, two machines that lend one each, and one that has no part in the cluster."""

    place: Path
    network: Network
    words: list[str]
    environment: dict[str, str]

    def __getitem__(self, number: int) -> Machine:
        return self.network.machines[number - 1]

    def running(self, on: int, output: str, words: Sequence[Any], *options: Any) -> subprocess.Popen[bytes]:
        command = self[on].words(sys.executable, "-c", FIT, *words, "--output", self.place / output, *options)
        return subprocess.Popen(
            command,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )

    def fitted(self, on: int, output: str, words: Sequence[Any], *options: Any) -> tuple[int, str]:
        """The exit code of a fit on a machine, and the end of what it says."""
        process = self.running(on, output, words, *options)
        return ended(process, 300.0)

    @property
    def on_ray(self) -> list[str]:
        return ["--engine", "ray", "--address", f"{self[1].address}:{PORT}"]


@pytest.fixture
def lab() -> Iterator[Lab]:
    place = Path(tempfile.mkdtemp(prefix="pr-", dir="/tmp"))  # a short name: sockets lie in it
    (place / "token").write_text(secrets.token_hex(32))
    environment = without_ray(dict(os.environ)) | {
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": str(place / "token"),
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_automatic_object_spilling_enabled": "0",
        "TMPDIR": str(place / "own"),
    }
    words = written(place)
    try:
        with machines(4, place / "own") as network, ExitStack() as nodes:
            head, *others, _ = network.machines
            nodes.enter_context(node(head, environment, cores=0))
            for each in others:
                nodes.enter_context(node(each, environment, cores=1, head=head))
            yield Lab(place, network, words, environment)
    finally:
        shutil.rmtree(place, ignore_errors=True)


def ended(process: subprocess.Popen[bytes], seconds: float) -> tuple[int, str]:
    try:
        _, complaint = process.communicate(timeout=seconds * load())
    finally:
        process.kill()
    return process.returncode, re.sub(r"\s+", " ", complaint.decode())[-600:]


@pytest.mark.audit
def test_machines_compute_the_bytes_of_memory_and_refuse_what_they_cannot_share(lab: Lab) -> None:
    model = "model.safetensors"
    seeded = ["--random-state", "3"]
    assert lab.fitted(1, "memory", lab.words, *seeded, "--engine", "memory")[0] == 0
    assert lab.fitted(1, "ray", lab.words, *seeded, *lab.on_ray, "--workers", "2") == (0, "")
    assert (lab.place / "ray" / model).read_bytes() == (lab.place / "memory" / model).read_bytes()

    start = time.monotonic()
    code, said = lab.fitted(4, "none", lab.words, *lab.on_ray)
    assert code == 2
    assert f"none of the Ray cluster's at {lab[1].address}:{PORT}" in said
    assert time.monotonic() - start < 30.0 * load()  # Ray alone looks for a node for a minute

    alone = lab[1].own / "table.parquet"
    lab[1].do("cp", lab.words[1], alone)
    code, said = lab.fitted(1, "none", [lab.words[0], alone, *lab.words[2:]], *lab.on_ray)
    assert code == 3
    assert "each machine reads the files by itself, under the same names" in said
    assert "Nothing was spent" in said


@pytest.mark.audit
def test_a_run_that_is_cut_off_from_its_head_ends_and_says_what_was_charged(lab: Lab) -> None:
    """Ray would wait, or end the process itself without a word on the charge."""
    process = lab.running(2, "none", lab.words, *lab.on_ray, "--resume", lab.place / "kept")
    charged(process, lab.place / "kept")
    with held_up(process):
        lab.network.cut_off(lab[1])
        lab.network.cut_off(lab[3])  # so that an answer is missing
    assert_gone(process, f"the head of the Ray cluster at {lab[1].address}:{PORT}")


@pytest.mark.audit
def test_a_run_whose_machine_loses_its_node_ends_and_says_what_was_charged(lab: Lab) -> None:
    """With it go the workers that belong to this process, and Ray would start no other."""
    process = lab.running(2, "none", lab.words, *lab.on_ray, "--resume", lab.place / "kept")
    charged(process, lab.place / "kept")
    with held_up(process):
        lab[2].do("pkill", "-KILL", "raylet")
        time.sleep(5.0)  # in which its workers see it
    assert_gone(process, f"this machine's node of the Ray cluster at {lab[1].address}:{PORT}")


@contextmanager
def held_up(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """A run that does not get to its end meanwhile."""
    os.killpg(process.pid, signal.SIGSTOP)
    yield
    os.killpg(process.pid, signal.SIGCONT)


def assert_gone(process: subprocess.Popen[bytes], what: str) -> None:
    start = time.monotonic()
    code, said = ended(process, 80.0)
    assert code == 3, said
    assert time.monotonic() - start >= SILENCE
    assert f"{what} has been out of reach" in said
    assert "count its whole price as spent" in said


def test_a_server_counts_as_gone_once_it_has_been_out_of_reach_for_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(starting, "_LOOK", 0.0)
    monkeypatch.setattr(starting, "SILENCE", 2.0)
    at = iter([float(k) for k in range(100)])
    monkeypatch.setattr(starting.time, "monotonic", lambda: next(at))
    with socket.create_server(("127.0.0.1", 0)) as there:
        address = there.getsockname()
        looked = Reach({"the head": f"127.0.0.1:{address[1]}"})
        assert looked.gone is None
    assert looked.gone is None
    with socket.create_server(address):  # it has started anew
        assert looked.gone is None
    assert looked.gone is None
    assert looked.gone == "the head has been out of reach for 2 seconds"


def test_a_machine_without_a_node_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ray._private.services.find_node_ids", set)
    with pytest.raises(
        ArgumentError, match=r"none of the Ray cluster's at h:6379.*--address h:6379 --num-cpus 0"
    ):
        require_node("h:6379")
    monkeypatch.setattr("ray._private.services.find_node_ids", lambda: {"a"})
    require_node("h:6379")


def test_who_asks_for_tokens_imports_nothing_from_the_folder_it_runs_in(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A folder named `ray` that came with other files would have our token, and say that everybody else needs one."""
    (tmp_path / "planted.py").write_text("raise SystemExit(11)\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        starting, "_PROBE", "try:\n    import planted\nexcept ImportError:\n    raise SystemExit(10)"
    )
    assert starting.asks_for_tokens("127.0.0.1:1")
