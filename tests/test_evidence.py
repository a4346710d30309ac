"""The record of evidence: the page is made from it, and says what was left out; a run writes both."""

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.audit.test_neighbours import EVERYTHING, NAMES, REPLACED_ONLY, STORAGES, searches
from tests.support.evidence import MARKED, Record, attach, narrowing, with_marks
from tests.support.evidence_page import AREAS, page

from privopt.testing.queries import SLACK

DOCS = Path(__file__).resolve().parent.parent / "docs"
RECORD = json.loads((DOCS / "evidence.json").read_text(encoding="utf-8"))
TEST = """
import pytest

@pytest.mark.audit
@pytest.mark.parametrize("size", [1, 2])
def test_sizes(evidence, size):
    evidence("noise", f"size {size}", tried=10 * size, of="draws", largest=0.5 * size, bound=2.0)
    assert size == 1 or evidence

@pytest.mark.audit
def test_that_fails(evidence):
    evidence("noise", "what fails", tried=1, of="draws")
    assert False

@pytest.mark.audit
def test_that_cannot_run():
    pytest.skip("there is no moon")

@pytest.mark.audit
def test_that_nobody_asks_for():
    pass
"""


def test_the_page_is_that_of_the_record():
    found = (DOCS / "evidence.md").read_text(encoding="utf-8")
    assert found == page(RECORD), "make it anew: python -m tests.support.evidence"


def test_the_record_holds_no_violation_and_names_the_code_that_ran():
    for line in RECORD["lines"]:
        assert line["area"] in AREAS
        assert line["bound"] is None or line["largest"] <= line["bound"] * SLACK
    assert not any(test["failed"] for test in RECORD["tests"])
    assert RECORD["run"]["commit"]
    assert {line["what"] for line in RECORD["lines"] if line["area"] == "neighbours"} <= set(EVERYTHING)


def test_a_full_audit_tries_a_million_neighbours_in_every_storage_and_relation():
    share = -(-1_000_000 // len(NAMES))
    met = Counter()
    for name in NAMES[::3]:
        planned = searches(name, share)
        assert sum(some for some, *_ in planned) == share
        for _, ways, parted in planned:
            for way in (f"{way}{', several parts' * parted}" for way in ways["ways"]):
                met.update((way, layout) for layout in ways["layouts"])
                met.update((way, relation) for relation in ways.get("relations", ()))
                met.update((way, storage) for storage in ways.get("storages", ()))
    for way in ("reference", "loop", "sampled loop", "fast", "sample, several parts"):
        assert min(met[way, relation] for relation in ("replace-one", "add-or-remove-one")) > 10
        assert min(met[way, storage] for storage in STORAGES) > 5
    assert set(NAMES) >= REPLACED_ONLY


@pytest.mark.audit
@pytest.mark.parametrize("workers", ["0", pytest.param("2", marks=pytest.mark.audit)])
def test_a_run_writes_what_it_tried_and_what_it_left_out(tmp_path, workers):
    file = tmp_path / "test_made_up.py"
    file.write_text(TEST, encoding="utf-8")
    root = DOCS.parent
    command = [
        sys.executable,
        "-m",
        "pytest",
        str(file),
        "-q",
        "-p",
        "no:cacheprovider",
        "-m",
        "audit or evidence",
    ]
    options = ["-n", workers, "-k", "not nobody", "-c", str(root / "pyproject.toml"), "--rootdir", str(root)]
    found = subprocess.run(
        [*command, *options, "-p", "tests.conftest", "--evidence", str(tmp_path)],
        cwd=root, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert "3 passed" in found.stdout or "2 passed" in found.stdout, found.stdout + found.stderr
    record = json.loads((tmp_path / "evidence.json").read_text(encoding="utf-8"))
    assert [(line["what"], line["tried"]) for line in record["lines"]] == [("size 1", 10), ("size 2", 20)]
    (tests,) = record["tests"]
    assert (tests["passed"], tests["failed"], tests["skipped"]) == (2, 1, 1)
    assert [one["why"] for one in record["skipped"]] == ["there is no moon"]
    assert record["run"]["narrowed"] == "-k not nobody"
    assert record["run"]["workers"] == max(1, int(workers))
    left = {one["file"]: one["tests"] for one in record["left_out"]}
    assert left[tests["file"]] == 1
    assert "tests/audit/test_descent.py" in left
    written = (tmp_path / "evidence.md").read_text(encoding="utf-8")
    assert written == page(record)
    assert "In all **30 draws**, at most **0.5** of the bound." in written
    assert "there is no moon" in written


@pytest.mark.parametrize("chosen", ["", "not audit"])
def test_a_record_of_tests_that_are_no_audit_is_refused(chosen):
    given = {"--evidence": "unused", "-m": chosen}
    with pytest.raises(pytest.UsageError, match="--evidence records an audit"):
        attach(SimpleNamespace(getoption=given.get))


def test_arguments_that_choose_tests_are_kept_and_no_others():
    given = (
        "-m",
        "audit",
        "-n",
        "2",
        "--evidence",
        "docs",
        "tests/audit",
        "-k",
        "descent",
        "--neighbours",
        "10",
    )
    assert narrowing(given) == ["tests/audit", "-k", "descent", "--neighbours", "10"]


def test_files_with_tests_of_the_audit_are_known_by_their_text():
    assert MARKED.search("@pytest.mark.audit")
    found = with_marks()
    assert "tests/audit/test_neighbours.py" in found
    assert {"tests/queries/test_wire.py", "tests/queries/test_vertex_scores.py"} <= set(found)


def test_a_run_of_everything_says_that_nothing_was_left_out():
    record = Record(Path(), []).contents()
    text = page({**record, "left_out": []})
    assert "Nothing: all tests of the audit were run." in text
