"""A test that takes long fails the default run, unless it waits for the audit."""

import pytest
from tests.support import time_limits

pytest_plugins = ["pytester"]

TESTS = """
import subprocess, sys, time
import pytest

def spend(seconds):
    begun = time.process_time()
    while time.process_time() - begun < seconds:
        pass

def test_short():
    time.sleep(0.4)

def test_long():
    spend(0.3)

@pytest.mark.audit
def test_long_and_waiting():
    spend(0.3)

@pytest.fixture
def prepared():
    spend(0.3)

def test_long_only_before(prepared):
    pass

def test_a_short_process():
    subprocess.run([sys.executable, "-c", "pass"], check=True)

def test_a_long_process():
    subprocess.run([sys.executable, "-c", "import time\\nwhile time.process_time() < 0.4: pass"], check=True)

def test_wrong():
    assert spend(0.3)
"""


def test_processor_time_of_the_call_counts(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time_limits, "slowness", lambda usual: 1.0)
    monkeypatch.setattr(time_limits, "TOLERANCE", 1.0)
    monkeypatch.setattr(time_limits, "STARTING", 0.1)
    pytester.makepyfile(TESTS)
    pytester.makeini("[pytest]\nmarkers =\n    audit: later")
    found = pytester.inline_run("-p", "no:cacheprovider", plugins=[time_limits.TimeLimit(0.2)])
    passed, _, failed = found.listoutcomes()
    assert {each.location[2] for each in failed} == {"test_long", "test_a_long_process", "test_wrong"}
    assert len(passed) == 4
    said = {each.location[2]: each.longreprtext for each in failed}
    assert "s of processor time, and its processes 0.0 s: make it cheaper" in said["test_long"]
    assert "assert None" in said["test_wrong"]


def test_a_slow_machine_has_longer(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time_limits, "slowness", lambda usual: 3.0)
    pytester.makepyfile(TESTS)
    pytester.makeini("[pytest]\nmarkers =\n    audit: later")
    found = pytester.inline_run(
        "-p", "no:cacheprovider", "-k", "test_long", plugins=[time_limits.TimeLimit(0.2)]
    )
    found.assertoutcome(passed=3)


def test_what_numba_compiles_is_left_out() -> None:
    from numba import njit

    limit = time_limits.TimeLimit(2.0)
    before = limit._compilations.seconds
    assert njit(lambda number: number + 1)(1) == 2
    assert limit._compilations.seconds > before
