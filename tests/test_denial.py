"""Absurd tables, schemas, accounts, projects, models and arguments: one sentence each, within limits, nothing paid."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.support.slowness import slowness

from privopt.printable import MOST_SHOWN, printable
from privopt.untrusted import UntrustedFile, read_regular

MOST_SECONDS = 10.0  # of CPU for one command; 2 s is usual


def outcomes_of(folder: Path, *arguments: str) -> list[dict[str, Any]]:
    """What a child with limited memory did with every absurdity."""
    child = [sys.executable, "-m", "tests.support.odd_inputs.absurd", str(folder), *arguments]
    subprocess.run(child, check=True, timeout=900, capture_output=True, cwd=Path(__file__).parents[1])
    return json.loads((folder / "said.json").read_text())


@pytest.mark.at_once("some")
@pytest.mark.parametrize("arguments", [("some",), (), ("full",)], ids=["some", "all", "full"])
def test_whatever_is_absurd_is_refused_in_a_sentence_within_limits(
    arguments: tuple[str, ...], tmp_path: Path
) -> None:
    outcomes = {each["name"]: each for each in outcomes_of(tmp_path, *arguments)}
    assert json.loads(outcomes.pop("spent")["out"])["payments"] == []
    assert outcomes.pop("opened")["code"] == 0
    assert len(outcomes) > (75 // 5 if "some" in arguments else 75)
    for name, each in outcomes.items():
        said = each["said"]
        assert each["code"] == 2, (name, said)
        assert said.startswith("privopt: "), name
        assert said.count("\n") == 1, name
        assert printable(said[:-1], len(said)) == said[:-1], name
        assert len(said) <= MOST_SHOWN + 20, name
        assert "internal error" not in said, (name, said)
        assert not each["new"], (name, each["new"])
        assert each["seconds"] < MOST_SECONDS * slowness(), (name, each["seconds"])


def test_a_file_that_grows_while_it_is_read_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "report.json"
    path.write_text("{}")
    status = os.fstat

    def earlier(handle: int) -> os.stat_result:
        found = status(handle)
        with path.open("a") as file:
            file.write(" ")
        return found

    monkeypatch.setattr(os, "fstat", earlier)
    with pytest.raises(UntrustedFile, match="changed while it was read"):
        read_regular(path, 100)


def test_a_link_is_followed_only_where_a_person_named_it(tmp_path: Path) -> None:
    (tmp_path / "real").write_text("{}")
    (tmp_path / "link").symlink_to("real")
    assert read_regular(tmp_path / "link", 100, follow=True) == b"{}"
    with pytest.raises(UntrustedFile, match="symbolic link"):
        read_regular(tmp_path / "link", 100)
