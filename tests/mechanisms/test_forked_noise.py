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


@pytest.mark.audit
@pytest.mark.parametrize("seed", ["secret", "3"])
def test_a_fork_while_another_thread_compiles_the_sampler_does_not_hang(seed: str, tmp_path: Path) -> None:
    """Its children would wait for ever for the compiler's lock, and for the source's where that is not keyed anew."""
    drawn = drawn_by_all(seed, 60.0, NUMBA_CACHE_DIR=str(tmp_path))
    assert len(drawn) == 4
    assert None not in drawn
