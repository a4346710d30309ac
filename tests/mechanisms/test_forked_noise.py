"""Noise in child processes and threads: fresh, and never waiting for a lock that nobody holds."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "support" / "forked_noise.py"

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="there is no fork")


def drawn_by_all(seed: str, seconds: float, **environment: str) -> list[list[int] | None]:
    """What a thread, the parent and two forked children drew from one source."""
    done = subprocess.run(
        [sys.executable, str(SCRIPT), seed, str(seconds)],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(done.stdout)


def test_a_child_and_a_thread_draw_noise_of_their_own() -> None:
    drawn = drawn_by_all("secret", 60.0)
    assert len(drawn) == 4
    assert None not in drawn
    assert len({number for row in drawn if row for number in row}) == 80


# A grandchild that has the number of the process that opened everything, as a system gives numbers again.
GRANDCHILD = """
import json, os, sys, tempfile
from pathlib import Path
import numpy as np
from privopt.curator.handles import OpenStream
from privopt.curator.journal import Journal
from privopt.errors import PrivoptError
from privopt.ledger.account import Account
from privopt.ledger.events import GaussianEvent
from privopt.mechanisms.noise import NoiseSource

source, account, stream = NoiseSource(), Account(1.0, 1e-6), OpenStream(None)
journal = Journal(Path(tempfile.mkdtemp()) / "run.journal")
number = os.getpid()
os.getpid = lambda: number

def said(act):
    try:
        act()
    except (PrivoptError, RuntimeError) as error:
        return str(error)
    return "nothing"

def all_of_it():
    return [
        source.rounded_normal((8,), 40).tolist(),
        source.units_generator.integers(0, 2**62, 8).tolist(),
        said(lambda: account.spend("fit", GaussianEvent(90.0), 0.1, 1e-6)),
        said(stream.__enter__),
        said(lambda: journal.add({"name": "line"}, np.ones(2))),
    ]

answers, asked = os.pipe()
if not os.fork():
    if not os.fork():
        os.write(asked, json.dumps(all_of_it()).encode())
    os._exit(0)
os.close(asked)
os.wait()
with os.fdopen(answers) as answer:
    child = json.loads(answer.read())
sys.stdout.write(json.dumps([all_of_it(), child]))
"""


@pytest.mark.audit
def test_a_grandchild_of_the_same_number_has_other_noise_and_spends_nothing() -> None:
    done = subprocess.run([sys.executable, "-c", GRANDCHILD], capture_output=True, text=True, check=True)
    ours, theirs = json.loads(done.stdout)
    assert not set(ours[0]) & set(theirs[0])
    assert not set(ours[1]) & set(theirs[1])
    assert ours[2:] == ["nothing"] * 3
    for said, of_a_process in zip(
        theirs[2:], ("another process", "another process", "forked process"), strict=True
    ):
        assert of_a_process in said


@pytest.mark.audit
@pytest.mark.parametrize("seed", ["secret", "3"])
def test_a_fork_while_another_thread_compiles_the_sampler_does_not_hang(seed: str, tmp_path: Path) -> None:
    """Its children would wait for ever for the compiler's lock, and for the source's where that is not keyed anew."""
    drawn = drawn_by_all(seed, 60.0, NUMBA_CACHE_DIR=str(tmp_path))
    assert len(drawn) == 4
    assert None not in drawn
