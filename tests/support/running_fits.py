"""Fits by the command line on a cluster of their own, looked at from outside while they run."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import psutil

ROWS, WIDTH = 3000, 3
SCHEMA = {
    "columns": {
        **{f"x{k}": {"kind": "num", "low": -4, "high": 4} for k in range(WIDTH)},
        "y": {"kind": "flag"},
    },
    "target": "y",
}
# A run of many rounds, each with a part for every 64 records, on two workers.
FIT = """
import sys
import privopt, privopt.engine.parts, privopt.engine.on_ray.layout
from privopt.cli import app
privopt.engine.parts.PART_UNITS = 64
app(sys.argv[1:])
"""


def written(place: Path) -> list[str]:
    """A table and its schema; the words that fit to it."""
    rng = np.random.default_rng(0)
    table = pd.DataFrame(rng.normal(size=(ROWS, WIDTH)), columns=[f"x{k}" for k in range(WIDTH)])
    table["y"] = (table["x0"] > 0).astype(int)
    table.to_parquet(place / "table.parquet")
    (place / "schema.json").write_text(json.dumps(SCHEMA))
    names = ["--schema", str(place / "schema.json"), "--epsilon", "1", "--delta", "1e-7"]
    return ["fit", str(place / "table.parquet"), *names, "--solver", "gradient-descent"]


def without_ray(environment: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if not name.startswith("RAY_")}


def running_fit(place: Path, *options: str, before: Sequence[str] = ()) -> subprocess.Popen[bytes]:
    """A fit on a cluster of its own, with a `$TMPDIR` of its own; `before` stands before the command."""
    environment = {**without_ray(dict(os.environ)), "TMPDIR": str(place), "PYTHONUNBUFFERED": "1"}
    command = [
        *before,
        sys.executable,
        "-c",
        FIT,
        *written(place),
        "--engine",
        "ray",
        "--output",
        str(place / "out"),
        *options,
    ]
    return subprocess.Popen(
        command,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        # A shell has what runs in its background ignore it.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )


def started(process: subprocess.Popen[bytes], least: int) -> list[Any]:
    """Its descendants, as soon as so many of them are workers."""
    end = time.monotonic() + 300
    while time.monotonic() < end and process.poll() is None:
        below = psutil.Process(process.pid).children(recursive=True)
        names = [name for each in below if (name := name_of(each))]
        if sum("ray::Shard" in name for name in names) >= least:
            return below
        time.sleep(0.1)
    raise AssertionError(process.communicate()[1])


def charged(process: subprocess.Popen[bytes], kept: Path) -> None:
    """Wait until a fit with `--resume kept` has made a release, and so has been charged."""
    end = time.monotonic() + 300
    while time.monotonic() < end and process.poll() is None:
        if any(each.stat().st_size for each in kept.glob("*.journal")):
            return
        time.sleep(0.1)
    raise AssertionError(process.communicate()[1])


def name_of(process: Any) -> str:
    """The words that a process was started with, or has given itself; none where it is gone."""
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


def still_there(processes: list[Any], seconds: float) -> list[str]:
    """Who of them is not gone after so many seconds."""
    _, alive = psutil.wait_procs(processes, timeout=seconds)
    return [name_of(each) for each in alive if each.is_running() and each.status() != psutil.STATUS_ZOMBIE]


def load() -> float:
    """How much longer things take on this machine now than where it does nothing else."""
    return max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


def in_shared_memory() -> set[str]:
    """Names of object stores."""
    shared = Path("/dev/shm")
    return {each.name for each in shared.iterdir() if "plasma" in each.name} if shared.exists() else set()
