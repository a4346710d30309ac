"""The example programs run, with a few steps on some of the records. Example solvers: test_example_solvers.py."""

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

FOLDER = Path(__file__).resolve().parent.parent / "examples"


@pytest.fixture(scope="module")
def network() -> ModuleType:
    pytest.importorskip("statsmodels")
    return loaded("network")


def loaded(name: str) -> ModuleType:
    """An example program as a module."""
    found = importlib.util.spec_from_file_location(f"{name}_example", FOLDER / f"{name}.py")
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    sys.modules[found.name] = module
    found.loader.exec_module(module)
    return module


@pytest.mark.audit
def test_the_network_plans_first_then_compares_and_reports(
    network: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = network.run(tmp_path / "out", epsilons=(4.0,), n=1000, most_steps=12, reference_steps=3)
    printed = " ".join(capsys.readouterr().out.split())
    order = [
        "Plans, made before any record is read",
        "adaptive-gradient-descent: epsilon 4",
        "On held-out records",
        "logistic regression",
        "network without privacy",
        "Done in",
    ]
    places = [printed.index(phrase) for phrase in order]
    assert places == sorted(places)
    text = page.read_text(encoding="utf-8")
    assert "Network for any doctor visit, epsilon 4" in text
    assert "chosen as the run went, under a Gaussian filter" in text


def test_the_network_starts_with_an_open_mind(network: ModuleType) -> None:
    rows = np.ones((3, network.FEATURES - 1), np.float32)
    assert network._log_odds(network.start(), rows).tolist() == [0.0, 0.0, 0.0]


@pytest.mark.audit
def test_settings_are_compared_on_made_up_records(
    network: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = network.compare_settings(n=500, most_steps=5)
    assert len(rows) == 7
    assert all(steps <= 5 and 0.0 < auc < 1.0 for *_, steps, auc in rows)
    assert len(capsys.readouterr().out.splitlines()) == 8


@pytest.mark.audit
def test_the_federated_run_reports_and_is_compared(capsys: pytest.CaptureFixture[str]) -> None:
    found = loaded("federated").run(people=60, rounds=2, seed=1)
    printed = " ".join(capsys.readouterr().out.split())
    assert "one user, among 60 users" in printed
    assert "federated, private" in printed
    assert found["private"].transcript.releases == 2 + 15
    assert 0.5 < found["scores"]["in the clear"] <= 1.0


def test_every_example_program_has_a_target_in_the_makefile() -> None:
    makefile = (FOLDER.parent / "Makefile").read_text(encoding="utf-8")
    programs = sorted(path.name for path in FOLDER.glob("*.py") if "__main__" in path.read_text("utf-8"))
    assert programs
    missing = [name for name in programs if f"examples/{name}" not in makefile]
    assert missing == [], json.dumps(missing)
