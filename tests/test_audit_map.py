"""The map of what a guarantee rests on: it lists the trusted core alone, is short, and is what the docs show."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from privopt.commands.audit_map import CORE, FORMULAS, audit_map

PAGE = Path(__file__).resolve().parent.parent / "docs" / "audit-map.md"
MOST_LINES = 3_000  # of plain gradient descent on the plain engine


@pytest.fixture(scope="module")
def plain():
    """That of gradient descent on the plain engine, from a process of its own: nothing is compiled there yet."""
    program = "from privopt.cli import main; main()"
    command = [
        sys.executable,
        "-c",
        program,
        "audit-map",
        "gradient-descent",
        "--engine",
        "reference",
        "--json",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
    (found,) = json.loads(done.stdout)
    return found


@pytest.mark.audit
def test_plain_descent_on_the_plain_engine_rests_on_few_lines_of_the_core(plain):
    assert 1_000 < plain["lines"] <= MOST_LINES
    rooms = {reading["file"].split("/")[0] for reading in plain["files"]}
    assert rooms <= {*CORE, "problems"}
    assert {reading["file"] for reading in plain["files"] if reading["file"].startswith("problems/")} <= {
        f"problems/{name}" for name in FORMULAS
    }


@pytest.mark.audit
def test_it_names_what_a_reader_expects_and_no_kernel(plain):
    named = {function for reading in plain["files"] for function in reading["functions"]}
    assert {"ClippedGradient.sensitivity", "Ledger.charge", "Curator.release", "Gaussian.event"} <= named
    assert not [reading["file"] for reading in plain["files"] if "kernel" in reading["file"]]


@pytest.mark.audit
def test_the_page_lists_the_same_files(plain):
    page = PAGE.read_text(encoding="utf-8")
    rows = [line for line in page.splitlines() if line.startswith("| `") and ".py`" in line]
    listed = {line.split("`")[1] for line in rows if "every solver" in line or "`gradient-descent`" in line}
    assert listed == {reading["file"] for reading in plain["files"]}


def test_an_unknown_solver_is_named():
    with pytest.raises(ValueError, match="got 'magic'"):
        audit_map("magic", engine="fast")
