"""A replay in a process of its own: beyond its budget nothing counts as replayed."""

import time

import numpy as np
import pytest

from privopt import LogisticRegression
from privopt.replays import limited
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
    verdict = verify(path, limited.within(0.5))[0]
    assert verdict.finding is Finding.PRICED
    assert verdict.checks[-1].outcome is Outcome.UNCHECKED
    assert "more than 0.5 s of processor time" in verdict.checks[-1].sentence
    assert time.process_time() - begun < 5


@pytest.mark.audit
def test_a_replay_that_needs_more_is_ended_and_one_that_has_enough_holds(path, monkeypatch):
    """The child has used up a second before it has compiled anything."""
    assert verify(path, limited.within(60))[0].finding is Finding.VERIFIED
    assert verify(path, limited.within(1.2))[0].finding is Finding.PRICED


@pytest.mark.audit
def test_what_a_child_says_that_is_no_check_counts_as_nothing(path, monkeypatch):
    monkeypatch.setattr(limited, "MODULE", "this")
    assert verify(path, limited.within(60))[0].finding is Finding.PRICED
