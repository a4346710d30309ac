"""Files of a spool: without a name, for nobody else, gone with the process; their pages, within the limit."""

import errno
import os
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from privopt.data.room import MEMORY, Copies
from privopt.engine import placement
from privopt.engine.placement import available_memory, lies_in_memory
from privopt.engine.streamed.disk import Residency, nameless_file
from privopt.engine.streamed.spool import Spool
from privopt.errors import DataUnavailable

MB = 2**20


def spool_in(folder, size=0, limit=MB):
    return Spool(folder, size, Residency(limit))


@pytest.mark.parametrize("named", [False, True])
def test_a_file_has_no_name_and_is_its_owners_alone(named, tmp_path, monkeypatch):
    if named:  # a file system without files that never had a name
        monkeypatch.delattr(os, "O_TMPFILE")
    file = nameless_file(tmp_path)
    descriptor = file.number
    found = os.fstat(descriptor)
    assert stat.S_IMODE(found.st_mode) == 0o600
    assert found.st_nlink == 0
    assert str(Path(f"/proc/self/fd/{descriptor}").readlink()).endswith("(deleted)")
    assert not os.get_inheritable(descriptor)
    assert list(tmp_path.iterdir()) == []
    del file
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)


@pytest.mark.parametrize("room", ["memory", "spool"])
def test_a_room_provides_zeros_on_boundaries_and_keeps_what_it_is_given(room, tmp_path):
    place = MEMORY if room == "memory" else spool_in(tmp_path, 1000)
    arrays = [place.zeros((7, 3), np.float32), place.zeros(5, np.bool_), place.zeros(300_000, np.float64)]
    for array in arrays:
        assert array.ctypes.data % 64 == 0
        assert not array.any()
        array[...] = 1
    assert all(array.all() for array in arrays)
    place.write(arrays[0], 2, np.full((3, 3), 2.0))
    np.testing.assert_array_equal(arrays[0][:, 0], [1, 1, 2, 2, 2, 1, 1])
    place.write(arrays[0], 7, np.empty((0, 3)))
    values = np.arange(12.0).reshape(6, 2)
    np.testing.assert_array_equal(place.keep(values), values)
    flat = place.zeros(50_000, np.int32)
    flat[40_000:] = np.arange(10_000)
    place.write(flat, 7, np.arange(5))
    copy = place.read(flat, 5, 49_999)
    np.testing.assert_array_equal(copy, flat[5:49_999])
    copy[:] = 3
    assert flat[8] == 1
    assert place.read(flat, 9, 9).shape == (0,)
    copies = Copies(place, values, 3)
    copies.add(np.array([5]))
    copies.add(np.array([0, 5]))
    np.testing.assert_array_equal(copies.private_copy, values[[5, 0, 5]])
    growing = place.growing(np.int32)
    for part in (np.arange(3), np.empty(0), np.arange(3, 9)):
        growing.append(part)
    np.testing.assert_array_equal(growing.finish(), np.arange(9))
    assert place.growing(np.float64).finish().shape == (0,)
    assert place.zeros((0, 4), np.float32).shape == (0, 4)
    assert not place.another(10).zeros(3, np.float64).any()


def test_a_spool_that_cannot_be_read_is_said(tmp_path, monkeypatch):
    spool = spool_in(tmp_path)
    array = spool.zeros(4096, np.uint8)

    def broken(*arguments):
        raise OSError(5, "Input/output error")

    for fault, what in ((broken, "Input/output error"), (lambda *arguments: 0, "shorter than it was")):
        monkeypatch.setattr("os.preadv", fault)
        with pytest.raises(DataUnavailable, match=f"the spool cannot be read.*{what}"):
            spool.read(array, 0, 10)


def test_a_full_disk_is_an_error_that_says_what_to_do(tmp_path, monkeypatch):
    spool = spool_in(tmp_path)

    def full(*_):
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(DataUnavailable, match=r"No space left on device.*--spool"):
        spool.zeros(10, np.float64)
    with pytest.raises(DataUnavailable, match="no room for the rows in the spool's folder"):
        spool_in(tmp_path, 10**12 - 10**9)


CHILD = """
import sys, time
from pathlib import Path
import numpy as np
from privopt.data.record_source import ArrayRecords, Description
from privopt.engine.placement import Placement
from privopt.engine.streamed import open_streamed
rows = np.random.default_rng(0).normal(size=(2000, 5))
engine = open_streamed(ArrayRecords(rows), Description(row_bound=1.0), Placement(spool=Path(sys.argv[1]), memory=1))
print("there", flush=True)
time.sleep(60)
"""


def test_nothing_is_left_after_a_process_was_killed(tmp_path):
    shared = set(Path("/dev/shm").iterdir())
    with subprocess.Popen([sys.executable, "-c", CHILD, str(tmp_path)], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"there\n"
        descriptors = Path(f"/proc/{child.pid}/fd")
        files = [path for path in descriptors.iterdir() if str(tmp_path) in str(path.readlink())]
        assert files
        for path in files:
            assert str(path.readlink()).endswith("(deleted)")
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert list(tmp_path.iterdir()) == []
        child.send_signal(signal.SIGKILL)
    assert list(tmp_path.iterdir()) == []
    assert not [path for path in set(Path("/dev/shm").iterdir()) - shared if "privopt" in path.name]


def pages():
    return int(Path("/proc/self/statm").read_text().split()[2]) * os.sysconf("SC_PAGE_SIZE")


def test_pages_beyond_the_limit_are_let_go_and_nothing_is_lost(tmp_path):
    residency = Residency(4 * MB)
    spool = Spool(tmp_path, 64 * MB, residency)
    before = pages()
    array = spool.zeros(8 * MB, np.float64)
    array[...] = np.arange(8 * MB)
    waited = time.monotonic()
    while pages() - before > 8 * MB and time.monotonic() < waited + 10.0:
        time.sleep(0.01)
    assert pages() - before <= 8 * MB
    assert float(array.sum()) == 4 * MB * (8 * MB - 1.0)
    assert repr(residency) == f"Residency(limit={4 * MB})"


def test_what_fits_the_limit_is_not_watched(tmp_path):
    residency = Residency(64 * MB)
    Spool(tmp_path, 2 * MB, residency)
    assert not residency.watched


def machine(root, **files):
    for name, text in files.items():
        path = root / name.replace("__", "/").replace("_dot_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


@pytest.fixture
def unlimited(monkeypatch):
    monkeypatch.setattr(placement.resource, "getrlimit", lambda _: (placement.resource.RLIM_INFINITY,) * 2)


@pytest.mark.usefixtures("unlimited")
def test_half_of_the_least_that_is_left_is_for_rows(tmp_path):
    assert available_memory(tmp_path) is None
    machine(tmp_path, proc__meminfo="MemTotal: 9000 kB\nMemAvailable:    8000 kB\n")
    assert available_memory(tmp_path) == 4000 * 1024
    machine(
        tmp_path,
        proc__self__cgroup="0::/a/b\n",
        sys__fs__cgroup__a__b__memory_dot_max="max\n",
        sys__fs__cgroup__a__b__memory_dot_current="10\n",
        sys__fs__cgroup__a__memory_dot_max="3000000\n",
        sys__fs__cgroup__a__memory_dot_current="1500000\n",
        sys__fs__cgroup__a__memory_dot_stat="anon 7\ninactive_file 500000\n",
    )
    assert available_memory(tmp_path) == 1_000_000


@pytest.mark.usefixtures("unlimited")
@pytest.mark.parametrize("inside", [False, True])
def test_control_groups_of_version_1_and_of_a_container_are_found(inside, tmp_path):
    folder = "sys__fs__cgroup__memory" + ("" if inside else "__job__7")
    machine(
        tmp_path,
        proc__meminfo="MemAvailable: 8000 kB\n",
        proc__self__cgroup="5:cpu:/job\n4:memory,hugetlb:/job/7\n0::/\n",
        **{
            f"{folder}__memory.limit_in_bytes": "4000000\n",
            f"{folder}__memory.usage_in_bytes": "5000000\n",
            f"{folder}__memory.stat": "total_inactive_file 3000000\n",
        },
    )
    assert available_memory(tmp_path) == 1_000_000


def test_what_ulimit_leaves_counts(tmp_path, monkeypatch):
    monkeypatch.setattr(placement.resource, "getrlimit", lambda _: (10_000 * 1024, 10_000 * 1024))
    machine(
        tmp_path, proc__meminfo="MemAvailable: 8000 kB\n", proc__self__status="Name: x\nVmSize:  9000 kB\n"
    )
    assert available_memory(tmp_path) == 500 * 1024


@pytest.mark.parametrize("kind", ["tmpfs", "ext4"])
def test_a_folder_in_memory_is_known(kind, tmp_path):
    device = tmp_path.stat().st_dev
    number = f"{os.major(device)}:{os.minor(device)}"
    lines = f"22 1 9999:1 / /run rw - tmpfs tmpfs rw\n30 22 {number} / /x rw shared:1 - {kind} other rw\n"
    machine(tmp_path, proc__self__mountinfo=lines)
    assert lies_in_memory(tmp_path, tmp_path) is (kind == "tmpfs")
    assert not lies_in_memory(tmp_path, tmp_path / "elsewhere")


def test_this_machine_has_memory():
    found = available_memory()
    assert found is None or found >= 0
