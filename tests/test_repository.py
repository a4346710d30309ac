"""The checkout holds finished, portable files: no leftovers, no path of one machine, well-formed change fragments."""

import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("src", "tests", "docs", "benchmarks", "changelog.d", ".ci")
SUFFIXES = {"", ".css", ".html", ".j2", ".json", ".md", ".py", ".toml", ".yml"}
LEFTOVER = re.compile(r"\b(TO" r"DO|FIX" r"ME|XX" r"X|NotImple" r"mentedError|pytest\.mark\.xf" r"ail)\b")
LOCAL_PATH = re.compile(r"(?<![\w.])/(home|root|work|Users|tmp)/\w")
KINDS = {"privacy", "breaking", "change", "deprecation"}


def texts() -> Iterator[tuple[str, str]]:
    """Every text file of the checkout: its name and its content."""
    files = [path for path in ROOT.iterdir() if path.is_file()]
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
