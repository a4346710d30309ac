"""A replay in a process of its own: beyond its budget nothing counts as replayed."""

import subprocess
import sys
import time

import numpy as np
import pytest
from tests.support.slowness import slowness

from privopt import LogisticRegression
from privopt.replays import check
from privopt.verification.checks import Outcome
from privopt.verification.files import verify
from privopt.verification.verdict import Finding


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    rows = np.random.default_rng(0).uniform(-1, 1, (300, 3))
    model = LogisticRegression(epsilon=1, delta=1e-6, bounds=(-1, 1), classes=[0, 1])
    report = model.fit(rows, rows[:, 0] > 0).privacy_
    return report.save(tmp_path_factory.mktemp("limited") / "report.json", keep_releases=True)


def test_a_replay_without_time_is_none_and_the_guarantee_is_priced(path):
    begun = time.process_time()
    verdict = verify(path, check.within(0.5))[0]
    assert verdict.finding is Finding.PRICED
    assert verdict.checks[-1].outcome is Outcome.UNCHECKED
    assert "more than 0.5 s of processor time" in verdict.checks[-1].sentence
    assert time.process_time() - begun < 5 * slowness()


@pytest.mark.audit
def test_a_replay_that_has_time_holds_in_a_process_of_its_own(path):
    assert verify(path, check.within(60))[0].finding is Finding.VERIFIED


@pytest.mark.later("while True: pass")
@pytest.mark.parametrize("work", ["while True: pass", "x = bytearray(2**31)"])
def test_the_system_ends_what_takes_more_time_or_memory(work):
    child = f"from privopt.replays.check import _limit; _limit(1.0); {work}"
    done = subprocess.run([sys.executable, "-c", child.replace("; ", "\n")], timeout=120, capture_output=True)
    assert done.returncode != 0


@pytest.mark.audit
def test_what_a_child_says_that_is_no_check_counts_as_nothing(path, monkeypatch):
    monkeypatch.setattr(check, "MODULE", "this")
    assert verify(path, check.within(60))[0].finding is Finding.PRICED
