"""The checkout holds finished, portable files: no leftovers, no path of one machine, well-formed change fragments."""

import re
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("src", "tests", "docs", "benchmarks", "changelog.d", ".ci")
SUFFIXES = {"", ".cff", ".css", ".html", ".j2", ".js", ".json", ".md", ".py", ".toml", ".yaml", ".yml"}
LEFTOVER = re.compile(r"\b(TO" r"DO|FIX" r"ME|XX" r"X|NotImple" r"mentedError|pytest\.mark\.xf" r"ail)\b")
LOCAL_PATH = re.compile(r"(?<![\w.])/(home|root|work|Users|tmp)/\w")
KINDS = {"privacy", "breaking", "change", "deprecation"}


def texts() -> Iterator[tuple[str, str]]:
    """Every text file of the checkout: its name and its content."""
    files = [
        path for path in ROOT.iterdir() if path.is_file() and path.name != ".git"
    ]  # of a second work tree
    for folder in FOLDERS:
        files += [path for path in (ROOT / folder).rglob("*") if path.is_file()]
    for path in sorted(files):
        if path.suffix in SUFFIXES and "__pycache__" not in path.parts and ".egg-info" not in str(path):
            yield path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8")


def lines_matching(pattern: re.Pattern[str]) -> list[str]:
    return [
        f"{name}:{number}: {line.strip()}"
        for name, text in texts()
        for number, line in enumerate(text.splitlines(), 1)
        if pattern.search(line)
    ]


def test_nothing_is_left_for_later() -> None:
    assert not lines_matching(LEFTOVER)


def test_no_file_names_a_path_of_one_machine() -> None:
    assert not lines_matching(LOCAL_PATH)


def test_every_change_fragment_names_its_kind() -> None:
    fragments = [path for path in (ROOT / "changelog.d").iterdir() if path.name != "README.md"]
    assert not [path.name for path in fragments if not re.fullmatch(r"[\w-]+\.(\w+)\.md", path.name)]
    assert {path.name.split(".")[-2] for path in fragments} <= KINDS
    assert not [path.name for path in fragments if not path.read_text(encoding="utf-8").strip().endswith(".")]


def test_what_is_kept_is_text_in_a_folder_that_is_known() -> None:
    """No compiled program, no cache, no build."""
    asked = ["git", "-C", str(ROOT), "ls-files", "-z"]
    listed = subprocess.run(asked, capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip("not a checkout of git")
    names = [name for name in listed.stdout.split("\0") if name]
    assert {name.split("/")[0] for name in names if "/" in name} == {*FOLDERS, "examples"}
    assert not [name for name in names if (ROOT / name).is_file() and b"\0" in (ROOT / name).read_bytes()]


def version() -> str:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]


def test_the_changelog_has_a_short_section_for_the_version_with_privacy_first() -> None:
    sections = re.split(r"^## ", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
    assert sections[0].split()[0] == version()
    lines = sections[0].strip().splitlines()[1:]
    assert len(lines) <= 60
    points = re.findall(r"^\* (.*)", sections[0], flags=re.MULTILINE)
    concern = [point.startswith("**Privacy.**") for point in points]
    assert concern == sorted(concern, reverse=True)
    assert concern[0]


def test_the_citation_has_what_its_format_requires_and_the_version() -> None:
    text = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    fields = dict(re.findall(r"^([\w-]+): *(.*)$", text, flags=re.MULTILINE))
    assert {"cff-version", "message", "title", "authors"} <= set(fields)  # what version 1.2.0 requires
    assert fields["cff-version"] == "1.2.0"
    assert fields["version"] == version()
    assert fields["license"] == "Apache-2.0"


def test_commits_are_checked_by_the_targets_of_the_makefile() -> None:
    (entry,) = re.findall(r"entry: make (.*)", (ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in entry.split():
        assert re.search(rf"^{target}:.*installed-dev", makefile, flags=re.MULTILINE)


def test_the_readme_begins_with_installing_and_two_commands() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    headings = re.findall(r"^## (.*)$", text, flags=re.MULTILINE)
    assert headings[:4] == ["Install", "Two commands", "In a minute", "Solvers"]
    commands = text.split("## Two commands")[1].split("## ")[0]
    assert re.findall(r"^make (\w+)", commands, flags=re.MULTILINE) == ["demo", "test"]
