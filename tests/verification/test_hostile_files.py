"""Hostile files of at most 1 MB are priced, refused or given up within 10 seconds of processor time and 1 GB."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.hostile_files import attempts, files, save_small_model, seconds
from tests.support.slowness import slowness

MOST_SECONDS, MOST_MEMORY = 10.0, 1.0  # GiB
QUICK = (
    "report: 5,000 pictures",
    "report: deep blocks",
    "report: a tiny delta",
    "model: not a number",
)

DECLARED = ("report: many metrics",)  # what the caller declared is not checked, and the rest is honest


def require_harmless(each, imports=0.0):
    assert each["code"] in (0, 1, 2), each
    assert "internal error" not in each["said"], each
    assert not each["is_verified"] or each["name"] in DECLARED, each
    assert each["seconds"] < MOST_SECONDS * slowness() + imports, each


@pytest.fixture(scope="module")
def hostile(tmp_path_factory):
    good = save_small_model(tmp_path_factory.mktemp("hostile") / "good", of_table=True)
    return {each[0]: each for each in files(good) if each[0] in QUICK}


@pytest.mark.at_once("report: a tiny delta", "model: not a number")
@pytest.mark.parametrize("name", QUICK)
def test_a_few_hostile_files_are_harmless(name, hostile, tmp_path):
    for each in attempts(tmp_path, [hostile[name]], forget=lambda: None):
        require_harmless(each)
        if each["name"] == "model: not a number" and each["command"] == "predict":
            assert "not finite: it predicts nothing" in each["said"]
        if each["name"] == "report: 5,000 pictures" and each["command"] == "report":
            assert each["code"] == 2


@pytest.mark.audit
def test_all_hostile_files_are_harmless(tmp_path):
    begun = seconds()
    subprocess.run([sys.executable, "-c", "import privopt.replays.check"], check=True)
    imports = 1.5 * (seconds() - begun)
    child = [sys.executable, "-m", "tests.support.hostile_files", str(tmp_path)]
    subprocess.run(child, check=True, cwd=Path(__file__).parents[2])
    found = json.loads((tmp_path / "said.json").read_text())
    assert len({each["name"] for each in found}) > 200
    for each in found:
        require_harmless(each, imports if each["command"] == "verify" else 0.0)
        assert each["memory"] < MOST_MEMORY, each
