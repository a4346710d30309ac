"""A replay in a process of its own, which is ended when it takes more processor time or memory than it may.

A recipe comes from anywhere, and compiled code answers to no signal handler: only the system can end it. The parent
needs none of what a replay imports.
"""

import functools
import json
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np
import safetensors.numpy

from privopt.verification.checks import REPLAY, Check, Outcome, unreplayed
from privopt.verification.files import Numbers, Replay, released_values

MOST_MEMORY = 640 * 2**20  # bytes, beyond what the imports took: a gigabyte in all
MODULE = "privopt.replays.limited"  # what the child runs
_PATIENCE = 20  # times as long by the clock as by the processor, on a busy machine
_IMPORTS = 600.0  # seconds by the clock


def within(seconds: float) -> Replay:
    """A replay of at most so much processor time, counted from now on; beyond it, nothing counts as replayed."""
    return functools.partial(_replayed, seconds, time.process_time())


def _replayed(
    seconds: float, begun: float, report: Mapping[str, Any], releases: Path, model: Numbers | None = None
) -> Check | None:
    packed = released_values(report, releases)
    if not isinstance(packed, bytes):
        return None if packed is None else unreplayed(packed)
    arrays = b"" if model is None else safetensors.numpy.save(dict(model.arrays))
    left = seconds - (time.process_time() - begun)
    content = {
        "seconds": left,
        "report": report,
        "model": None if model is None else model._replace(arrays={})._asdict(),
        "sizes": [len(packed), len(arrays)],
    }
    if left < 1:
        return _ended(seconds)
    asked = json.dumps(content).encode() + b"\n" + packed + arrays
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-m", MODULE],
            input=asked,
            capture_output=True,
            timeout=_IMPORTS + _PATIENCE * seconds,
            check=False,
        )
        said = json.loads(done.stdout.decode()) if done.returncode == 0 else None
        return Check(REPLAY, Outcome(said["outcome"]), str(said["sentence"])) if said else _ended(seconds)
    except (subprocess.TimeoutExpired, ValueError, KeyError, TypeError):
        return _ended(seconds)


def _ended(seconds: float) -> Check:
    return unreplayed(
        f"it takes more than {seconds:g} s of processor time, or more memory than is given to it (--work)"
    )


def main() -> None:
    """Answer one request, on the standard streams."""
    content = cast("dict[str, Any]", json.loads(sys.stdin.buffer.readline()))
    of_packed, of_arrays = content["sizes"]
    packed = sys.stdin.buffer.read(of_packed)
    arrays = sys.stdin.buffer.read(of_arrays)

    from privopt.replays.check import replayed_from

    model = content["model"]
    numbers = None
    if model is not None:
        loaded = {name: np.asarray(one) for name, one in safetensors.numpy.load(arrays).items()}
        numbers = Numbers(**(model | {"arrays": loaded}))
    _limit(content["seconds"])
    check = replayed_from(content["report"], packed, numbers)
    sys.stdout.write(json.dumps({"outcome": check.outcome.value, "sentence": check.sentence}))


def _limit(seconds: float) -> None:
    """Have the system end this process after so much more processor time, and allow it so much more memory."""
    try:
        import resource
    except ImportError:  # Windows: the parent's clock alone
        return
    used = resource.getrusage(resource.RUSAGE_SELF)
    most = int(used.ru_utime + used.ru_stime + seconds)
    resource.setrlimit(resource.RLIMIT_CPU, (most, most + 1))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    status = Path("/proc/self/status")
    if status.exists():  # of addresses, threads reserve far more than they use
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmData:"))
        most = int(line.split()[1]) * 1024 + MOST_MEMORY
        resource.setrlimit(resource.RLIMIT_DATA, (most, most))


if __name__ == "__main__":
    main()
