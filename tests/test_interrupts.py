"""Ctrl-C that somebody swallows, and Ctrl-C again and again: a command ends, once, and says what was spent."""

import contextlib
import gc
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from privopt.cli import app
from privopt.commands.interrupts import AGAIN, Interrupts
from privopt.curator.local import LocalCurator
from privopt.engine.on_ray.starting import undisturbed
from privopt.problems.black_box import quiet_calls

SCHEMA = {"columns": {"x": {"kind": "num", "low": -4, "high": 4}, "y": {"kind": "flag"}}, "target": "y"}


@pytest.fixture(autouse=True)
def _usual() -> Iterator[None]:
    """Whatever runs these tests: interrupts and alarms as a terminal finds them."""
    kept = [signal.signal(number, signal.SIG_DFL) for number in (signal.SIGINT, signal.SIGALRM)]
    signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    assert signal.getitimer(signal.ITIMER_REAL)[0] == 0.0
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert signal.getsignal(signal.SIGALRM) is signal.SIG_DFL
    for number, handler in zip((signal.SIGINT, signal.SIGALRM), kept, strict=True):
        signal.signal(number, handler)


def swallowed() -> None:
    with contextlib.suppress(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)


def works_on() -> None:
    """A loop of Python that nothing else ends."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        time.sleep(0.01)
    raise AssertionError("nobody ended it")


def test_an_interrupt_that_was_swallowed_is_raised_again() -> None:
    def command() -> None:
        with Interrupts().heard():
            swallowed()
            swallowed()
            works_on()

    start = time.monotonic()
    with pytest.raises(KeyboardInterrupt, match=r"^$"):
        command()
    assert time.monotonic() - start >= AGAIN


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_one_that_falls_into_a_callback_of_the_collector_is_raised_again() -> None:
    came: list[str] = []

    def called(phase: str, about: Any) -> None:
        if phase == "start" and not came:
            came.append(phase)
            signal.raise_signal(signal.SIGINT)

    def command() -> None:
        with Interrupts().heard():
            gc.callbacks.append(called)
            gc.collect()
            gc.callbacks.remove(called)
            works_on()

    with pytest.raises(KeyboardInterrupt, match=r"^$"):
        command()
    assert came


def test_what_an_interrupt_ends_is_not_interrupted() -> None:
    """Neither by the alarm nor by an impatient hand, in a `finally`, and in a failure that is met there."""
    reached: list[str] = []

    def command() -> None:
        try:
            signal.raise_signal(signal.SIGINT)
        finally:
            try:
                raise OSError("no such folder")
            except OSError:
                signal.raise_signal(signal.SIGINT)
                time.sleep(3 * AGAIN)
            reached.append("the end")

    interrupts = Interrupts()
    with pytest.raises(KeyboardInterrupt, match=r"^$"), interrupts.heard():
        command()
    assert interrupts.came
    assert reached == ["the end"]


def test_one_that_falls_into_an_exception_that_comes_from_itself_ends_the_command() -> None:
    def command() -> None:
        error = OSError("no such folder")
        try:
            raise error from error
        except OSError:
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt, match=r"^$"), Interrupts().heard():
        command()


def test_an_impatient_hand_is_heard_where_the_end_takes_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("privopt.commands.interrupts.CLEARING", 0.2)
    reached: list[str] = []

    def command() -> None:
        try:
            signal.raise_signal(signal.SIGINT)
        finally:
            time.sleep(0.3)
            reached.append("the end")
            signal.raise_signal(signal.SIGINT)
            reached.append("too far")

    with pytest.raises(KeyboardInterrupt, match=r"^$"), Interrupts().heard():
        command()
    assert reached == ["the end"]


def test_after_a_command_has_ended_none_is_raised() -> None:
    interrupts = Interrupts()
    with interrupts.heard():
        swallowed()
        interrupts.settle()
        signal.raise_signal(signal.SIGINT)
        time.sleep(2 * AGAIN)
    assert interrupts.came


def test_one_that_was_swallowed_waits_until_ray_has_started() -> None:
    reached: list[str] = []

    def command() -> None:
        with Interrupts().heard():
            swallowed()
            with undisturbed():
                time.sleep(3 * AGAIN)
                reached.append("the end")
            works_on()

    with pytest.raises(KeyboardInterrupt, match=r"^$"):
        command()
    assert reached == ["the end"]


def test_one_that_a_black_box_swallows_is_no_failure_of_a_record() -> None:
    def command() -> None:
        with Interrupts().heard(), quiet_calls():
            with contextlib.suppress(BaseException):
                signal.raise_signal(signal.SIGINT)
            with contextlib.suppress(Exception):
                works_on()
            raise AssertionError("it went on")

    with pytest.raises(KeyboardInterrupt, match=r"^$"):
        command()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGALRM])
def test_handlers_of_somebody_else_stay(number: signal.Signals) -> None:
    usual = signal.signal(number, signal.SIG_IGN)
    try:
        with Interrupts().heard():
            assert signal.getsignal(number) == signal.SIG_IGN
            assert Interrupts._again not in map(signal.getsignal, (signal.SIGINT, signal.SIGALRM))
    finally:
        signal.signal(number, usual)


def test_another_thread_than_the_main_one_changes_nothing() -> None:
    found: list[Any] = []

    def command() -> None:
        with Interrupts().heard():
            found.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=command)
    thread.start()
    thread.join()
    assert found == [signal.default_int_handler]


def written(place: Path, rows: int) -> list[str]:
    """A table and its schema; a command line that fits to it."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=rows)
    pd.DataFrame({"x": x, "y": (x > rng.normal(size=rows)).astype(int)}).to_parquet(
        place / "t.parquet", row_group_size=10_000
    )
    (place / "s.json").write_text(json.dumps(SCHEMA))
    names = ["--schema", str(place / "s.json"), "--epsilon", "2", "--delta", "1e-7"]
    return ["fit", str(place / "t.parquet"), *names, "--output", str(place / "model")]


@pytest.mark.parametrize("failure", [None, RuntimeError])
def test_a_command_whose_interrupt_was_swallowed_ends_and_says_what_was_spent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failure: type[Exception] | None
) -> None:
    """By nobody knows whom, who goes on, or who fails in some other way because of it."""

    def answers(*arguments: Any, **options: Any) -> Any:
        swallowed()
        if failure is not None:
            raise failure("CANCELLED: KeyboardInterrupt")
        works_on()

    monkeypatch.setattr(LocalCurator, "private_value", answers)
    outcome = CliRunner().invoke(app, written(tmp_path, 200))
    assert outcome.exit_code == 130, outcome.output
    last = re.sub(r"\s+", " ", outcome.stderr.splitlines()[-1])
    assert last.startswith("privopt: stopped. Stopped after 0 of ")
    assert last.endswith("count its whole price as spent on these data, epsilon 2 at delta 1e-7.")
    assert not (tmp_path / "model").exists()


# In processes of their own.


@pytest.mark.audit
@pytest.mark.parametrize("engine", ["memory", "stream"])
@pytest.mark.parametrize("solver", ["gradient-descent", "stochastic-gradient-descent"])
def test_interrupts_at_random_moments_end_as_many_runs(tmp_path: Path, engine: str, solver: str) -> None:
    """Rounds in Python, and loops that are compiled; some moments are in the plan, most in reading and fitting."""
    rng = np.random.default_rng(len(engine) + len(solver))
    words = [*written(tmp_path, 300_000), "--engine", engine, "--solver", solver]
    longest, tried = 4.0, 0
    while tried < 10:
        after = float(rng.uniform(0, longest))
        found = interrupted(words, after, tmp_path / "said")
        if found is None:  # it had ended by then
            longest = 0.9 * after
            shutil.rmtree(tmp_path / "model", ignore_errors=True)
            continue
        tried, (seconds, code, last) = tried + 1, found
        assert code == 130, last
        assert "privopt: stopped. " in last, last
        assert "Nothing was spent" in last or "count its whole price as spent" in last
        assert "The fit was made" in last or not (tmp_path / "model").exists()
        busy = max(
            1.0, os.getloadavg()[0] / (os.cpu_count() or 1)
        )  # times as long as where nothing else runs
        assert seconds < 5.0 * busy
        shutil.rmtree(tmp_path / "model", ignore_errors=True)


def interrupted(words: list[str], after: float, said: Path) -> tuple[float, int, str] | None:
    """A run that is interrupted some seconds after its plan was shown: how long it took, its code, its last words.

    None for one that had ended by itself, or did so before an interrupt that was lost could be raised again. What it
    prints goes to a file.
    """
    with said.open("w") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "privopt", *words],
            stdout=output,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        )
    while "Plan, made before" not in said.read_text() and process.poll() is None:
        time.sleep(0.05)
    time.sleep(after)
    start, ended = time.monotonic(), "Done" in said.read_text()
    process.send_signal(signal.SIGINT)
    _, complaint = process.communicate()
    seconds = time.monotonic() - start
    busy = max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))
    ended |= process.returncode == 0 and "Done" in said.read_text() and seconds < (AGAIN + 1.0) * busy
    return None if ended else (seconds, process.returncode, re.sub(r"\s+", " ", complaint).strip())
