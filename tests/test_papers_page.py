"""The page of the five papers names classes, commands and tests that exist."""

import pkgutil
import re
import shlex
from pathlib import Path

import pytest
from benchmarks.__main__ import parser

ROOT = Path(__file__).resolve().parent.parent
PAGE = (ROOT / "docs" / "papers.md").read_text(encoding="utf-8")
NAMES = sorted(set(re.findall(r"`(privopt\.[\w.]+)`", PAGE)))
COMMANDS = sorted(set(re.findall(r"`python -m benchmarks ([^`]+)`", PAGE)))
TESTS = sorted(set(re.findall(r"`(tests/[\w/.]+)`", PAGE)))


def test_the_page_names_enough_to_be_checked() -> None:
    assert len(NAMES) > 80
    assert len(COMMANDS) > 8
    assert len(TESTS) > 40


@pytest.mark.parametrize("dotted", NAMES)
def test_every_name_on_the_page_can_be_imported(dotted: str) -> None:
    assert pkgutil.resolve_name(dotted) is not None


@pytest.mark.parametrize("command", COMMANDS)
def test_every_benchmark_on_the_page_is_offered(command: str) -> None:
    words = shlex.split(command)
    assert parser().parse_args(words).what == words[0]


def test_every_test_on_the_page_exists() -> None:
    assert not [path for path in TESTS if not (ROOT / path).exists()]
