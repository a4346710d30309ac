"""The Ray engine as it is used: clusters that run already, with tokens, without and with TLS; and how a run ends.

Each test starts processes of its own, and looks at what they open and leave.
"""

import os
import re
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.ray_clusters import two_nodes
from tests.support.running_fits import (
    FIT,
    in_shared_memory,
    load,
    running_fit,
    started,
    still_there,
    without_ray,
    written,
)

pytest.importorskip("ray")
psutil = pytest.importorskip("psutil")

from privopt.engine.on_ray.cluster import Guardian  # noqa: E402
from privopt.engine.on_ray.starting import undisturbed  # noqa: E402


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder of a short name: sockets lie in it."""
    path = Path(tempfile.mkdtemp(prefix="pr-", dir="/tmp"))
    yield path
    shutil.rmtree(path, ignore_errors=True)


def fitted(words: list[str], output: Path, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", FIT, *words, "--random-state", "3", "--output", str(output)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.audit
def test_a_fit_on_a_cluster_with_tokens_has_the_bytes_of_memory(place: Path) -> None:
    words = written(place)
    plain = without_ray(dict(os.environ))
    assert fitted([*words, "--engine", "memory"], place / "memory", plain).returncode == 0
    with two_nodes(place / "c", tokens=True) as running:
        on_ray = [*words, "--engine", "ray", "--address", running.address]
        found = fitted(on_ray, place / "ray", running.environment)
        assert found.returncode == 0, found.stderr
        wrong = {**plain, "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "0" * 64}
        for environment, message in ((wrong, "does not accept our token"), (plain, "asks for a token")):
            refused = fitted(on_ray, place / "none", environment)
            assert message in refused.stderr
            assert refused.returncode == 2
        code = f"import ray; ray.init('ray://{running.client}'); print('let in')"
        proxied = subprocess.run(
            [sys.executable, "-c", code], env=plain, capture_output=True, text=True, check=False, timeout=200
        )
        assert "let in" not in proxied.stdout
        opened_in_python(place, running.address, running.environment)
        crowded = fitted([*on_ray, "--workers", "3"], place / "none", running.environment)
        assert "has no room: 3 workers need 3 cores" in crowded.stderr
    model = "model.safetensors"
    assert (place / "ray" / model).read_bytes() == (place / "memory" / model).read_bytes()
    assert f"They were on the Ray cluster at {running.address}, with tokens" in report(place / "ray")


def opened_in_python(place: Path, address: str, environment: dict[str, str]) -> None:
    """`Table.open` and an estimator on both nodes, whose cores are reserved as long as it takes."""
    code = f"""
import json, ray, privopt, privopt.engine.parts
privopt.engine.parts.PART_UNITS = 64
table = privopt.Table.open({str(place / "table.parquet")!r}, json.load(open({str(place / "schema.json")!r})),
                           engine="ray", address={address!r})
engine = table.engine()
assert len({{seat.node for seat in engine._fleet._reservation.seats}}) == 2
for worker in engine._fleet.workers:
    where = worker.actor.__ray_call__.remote(lambda _: ray.get_runtime_context().get_node_id())
    assert ray.get(where) == worker.seat.node
while ray.available_resources().get("CPU", 0): pass
engine.close()
model = privopt.LogisticRegression(epsilon=1.0, delta=1e-7, solver="gradient-descent").fit(table)
print(model.coef_.shape)
"""
    ran = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr


# Users whose number is not given: counted, and then exchanged, by the cores that the two nodes have.
USERS = """
import sys
import numpy as np
from privopt.data import user_parts
from privopt.data.record_source import ArrayRecords, Description
from privopt.data.units import Units
from privopt.engine.in_process import InProcessEngine
from privopt.engine.on_ray.engine import open_on_ray
from privopt.engine.placement import Placement
from privopt.mechanisms.noise import NoiseSource
from privopt.problems import losses
from privopt.queries.slopes import ClippedGradient

user_parts.MEAN_RECORDS, user_parts.LEAST_USERS = 64, 1
rng = np.random.default_rng(1)
rows, targets, keys = rng.normal(size=(3000, 4)), rng.choice([-1.0, 1.0], 3000), np.arange(3000) * 7 % 90
about = Description(row_bound=1.0, max_records_per_user=5)
placement = Placement(engine="ray", address=sys.argv[1])
engine = open_on_ray(ArrayRecords(rows, targets, keys), about, placement, noise=NoiseSource(1))
memory = InProcessEngine(Units.from_arrays(rows, targets, groups=keys, noise=NoiseSource(1), **about.arguments()))
query = ClippedGradient(loss=losses.logistic, at=np.ones(4), clip=0.3)
assert engine.public == memory.public and engine.public.n == 90
assert len(engine._private_ranges) == 8 and len(engine._fleet.workers) == 2
assert engine.clipped_sum(query).tobytes() == memory.clipped_sum(query).tobytes()
engine.close()
"""


@pytest.mark.audit
def test_users_are_counted_and_held_by_one_cluster(place: Path) -> None:
    with two_nodes(place / "c", tokens=True) as running:
        command = [sys.executable, "-c", USERS, running.address]
        ran = subprocess.run(
            command, env=running.environment, capture_output=True, text=True, check=False, timeout=400
        )
    assert ran.returncode == 0, ran.stderr


def report(folder: Path) -> str:
    return (folder / "report.json").read_text()


@pytest.mark.audit
def test_a_cluster_without_tokens_is_used_where_its_network_is_trusted(place: Path) -> None:
    words, plain = written(place), without_ray(dict(os.environ))
    with two_nodes(place / "c", tokens=False) as running:
        on_ray = [*words, "--engine", "ray", "--address", running.address]
        refused = fitted(on_ray, place / "none", plain)
        assert refused.returncode == 2
        assert "asks for no tokens" in refused.stderr
        trusted = fitted([*on_ray, "--trust-network"], place / "ray", plain)
        assert trusted.returncode == 0, trusted.stderr
    assert "WITHOUT tokens: the network was declared trusted" in report(place / "ray")


@pytest.mark.audit
def test_a_cluster_that_encrypts_is_used_with_certificates_alone(place: Path) -> None:
    words = written(place)
    certificates = self_signed(place)
    with two_nodes(place / "c", tokens=True, more=certificates) as running:
        on_ray = [*words, "--engine", "ray", "--address", running.address]
        found = fitted(on_ray, place / "ray", running.environment)
        assert found.returncode == 0, found.stderr
        plain = {**running.environment, "RAY_USE_TLS": "0"}
        refused = fitted(on_ray, place / "none", plain)
        assert "cannot be reached" in refused.stderr
        assert refused.returncode == 2


def self_signed(place: Path) -> dict[str, str]:
    """A certificate of this machine, and what has Ray use it."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl makes the certificates")
    address = subprocess.run(
        [sys.executable, "-c", "import ray; print(ray.util.get_node_ip_address())"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()[-1]
    key, certificate = place / "node.key", place / "node.crt"
    subprocess.run(
        [
            *(
                "openssl",
                "req",
                "-x509",
                "-newkey",
                "rsa:2048",
                "-nodes",
                "-days",
                "2",
                "-subj",
                "/CN=privopt",
            ),
            *("-addext", f"subjectAltName=IP:127.0.0.1,IP:{address},DNS:localhost"),
            *("-keyout", str(key), "-out", str(certificate)),
        ],
        capture_output=True,
        check=True,
    )
    return {
        "RAY_USE_TLS": "1",
        "RAY_TLS_SERVER_CERT": str(certificate),
        "RAY_TLS_SERVER_KEY": str(key),
        "RAY_TLS_CA_CERT": str(certificate),
    }


@pytest.mark.audit
@pytest.mark.parametrize("workers", [0, 1, 2])
def test_ctrl_c_ends_everything_within_five_seconds(place: Path, workers: int) -> None:
    """As Ray starts, as the workers do, and in rounds; to the whole group, as a terminal sends it."""
    process = running_fit(place)
    started(process, workers)
    while not psutil.Process(process.pid).children():
        time.sleep(0.05)
    time.sleep(0.5)
    below = psutil.Process(process.pid).children(recursive=True)
    start = time.monotonic()
    os.killpg(process.pid, signal.SIGINT)
    _, complaint = process.communicate()
    allowed = 5.0 * load()
    assert time.monotonic() - start < allowed
    assert process.returncode == 130
    last = re.sub(r"\s+", " ", complaint.decode().splitlines()[-1])
    assert last.startswith("privopt: stopped. ")
    assert "Nothing was spent" in last or "count its whole price as spent" in last
    assert not still_there(below, allowed)
    assert not [each.name for each in place.iterdir() if each.name.startswith("privopt-")]


@pytest.mark.audit
def test_a_killed_run_leaves_neither_processes_nor_files(place: Path) -> None:
    before = in_shared_memory()
    process = running_fit(place)
    below = started(process, 2)
    folder = next(each for each in place.iterdir() if each.name.startswith("privopt-"))
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    token = inspected(below, folder)
    assert in_shared_memory() <= before  # files of the object store have no names
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    assert not still_there(below, 10.0 * load())
    end = time.monotonic() + 10.0 * load()
    while folder.exists() and time.monotonic() < end:
        time.sleep(0.1)
    assert not folder.exists()
    assert in_shared_memory() <= before
    left = [each for each in place.rglob("*") if each.is_file() and token.encode() in each.read_bytes()]
    assert not left


def inspected(below: list[Any], folder: Path) -> str:
    """Look at a running cluster's processes, sockets and files; its token."""
    tokens, listening = set[str](), list[Any]()
    for each in below:
        words, environment = each.cmdline(), each.environ()
        if "RAY_AUTH_TOKEN" in environment:
            tokens.add(environment["RAY_AUTH_TOKEN"])
        assert not any("dashboard.py" in word or "log_monitor.py" in word for word in words)
        assert not any("monitor.py" in word for word in words)
        listening += [c.laddr.ip for c in each.net_connections("tcp") if c.status == psutil.CONN_LISTEN]
    assert len(tokens) == 1
    (token,) = tokens
    assert not any(token in " ".join(each.cmdline()) for each in below)
    assert listening
    assert set(listening) <= {"127.0.0.1", "::ffff:127.0.0.1"}
    inside = list(folder.rglob("*"))
    assert not [each for each in inside if each.is_file() and each.stat().st_mode & 0o077]
    assert not any(token in each.read_text(errors="ignore") for each in inside if each.is_file())
    return token


def test_a_guardian_ends_who_writes_into_the_folder_and_nobody_else(place: Path) -> None:
    folder = place / "cluster"
    folder.mkdir()
    code = "import time; time.sleep(60)"
    with (folder / "log").open("w") as log:
        inside = subprocess.Popen([sys.executable, "-c", code], stdout=log)
        named = subprocess.Popen([sys.executable, "-c", code, f"--log-dir={folder}/r"])
        outside = subprocess.Popen([sys.executable, "-c", code])
        holding = subprocess.Popen([sys.executable, "-c", code], pass_fds=[log.fileno()])  # as a fork would
    looking = subprocess.Popen(["tail", "-f", folder / "log"], stdout=subprocess.DEVNULL)
    speaking = subprocess.Popen([sys.executable, "-c", code, f"what is in {folder}/log"])
    try:
        guardian = Guardian(folder)
        guardian.wait()
        assert [each.wait(10) for each in (inside, named)] == [-signal.SIGKILL] * 2
        assert not folder.exists()
        assert outside.poll() is None
        assert [each.poll() for each in (holding, looking, speaking)] == [None] * 3
    finally:
        for each in (inside, named, outside, holding, looking, speaking):
            each.kill()
            each.wait()


def test_a_guardian_is_told_although_a_forked_child_has_its_pipe_too(place: Path) -> None:
    folder = place / "cluster"
    folder.mkdir()
    guardian = Guardian(folder)
    pipe = guardian._process.stdin
    assert pipe is not None
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], pass_fds=[pipe.fileno()])
    try:
        guardian.wait()
        assert not folder.exists()
        guardian.end()  # nothing is left to do
    finally:
        child.kill()
        child.wait()


def test_ctrl_c_while_ray_starts_is_raised_once_it_has() -> None:
    reached: list[str] = []

    def starting() -> None:
        with undisturbed():
            signal.raise_signal(signal.SIGINT)
            reached.append("the end")

    kept = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt, match=r"^$"):
            starting()
        assert reached == ["the end"]
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, kept)
